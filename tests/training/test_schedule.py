"""Learning rates, halving and early stopping: pure functions."""

import numpy as np
import pytest

from ncelm.training.config import Adagrad, Adam, Halve, Linear, Sgd
from ncelm.training.schedule import ScheduleState, after_validation, is_finished, learning_rates


def test_linear_decay_reaches_zero_after_the_last_update():
    rates = learning_rates(Linear(epochs=2), Sgd(), 0.8, np.arange(10), 5)
    np.testing.assert_allclose(rates, 0.8 * (1 - np.arange(10) / 10))
    assert learning_rates(Linear(epochs=2), Sgd(), 0.8, np.array([10]), 5) == [0.0]


def test_halving_keeps_the_rate_within_an_epoch():
    np.testing.assert_array_equal(learning_rates(Halve(), Sgd(), 0.3, np.arange(7), 5), 0.3)


@pytest.mark.parametrize("optimizer", [Adagrad(warmup_steps=4), Adam(warmup_steps=4)])
def test_warm_up_is_linear(optimizer):
    rates = learning_rates(Halve(), optimizer, 1.0, np.arange(6), 5)
    np.testing.assert_allclose(rates, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_warm_up_multiplies_linear_decay():
    rates = learning_rates(Linear(epochs=1), Adagrad(warmup_steps=2), 1.0, np.arange(4), 4)
    np.testing.assert_allclose(rates, [0.5, 0.75, 0.5, 0.25])


def test_rates_do_not_depend_on_how_updates_are_grouped():
    together = learning_rates(Linear(epochs=3), Adagrad(), 0.1, np.arange(30), 10)
    one_by_one = [learning_rates(Linear(epochs=3), Adagrad(), 0.1, np.array([i]), 10)[0] for i in range(30)]
    assert together.tolist() == one_by_one


def follow(schedule, perplexities):
    state, bests = ScheduleState(0.8), []
    for perplexity in perplexities:
        state, best = after_validation(state, schedule, perplexity)
        bests.append(best)
    return state, bests


def test_the_rate_is_halved_when_perplexity_stops_falling():
    schedule = Halve(min_improvement=0.01)
    assert follow(schedule, [100.0])[0].learning_rate == 0.8
    assert follow(schedule, [100.0, 90.0])[0].learning_rate == 0.8
    assert follow(schedule, [100.0, 99.5])[0].learning_rate == 0.4  # less than 1 %
    assert follow(schedule, [100.0, 120.0, 119.9])[0].learning_rate == 0.2
    assert follow(schedule, [100.0, 120.0, 101.0])[0].learning_rate == 0.4  # falls again, but is not the best
    assert follow(Linear(), [100.0, 120.0])[0].learning_rate == 0.8


def test_the_best_epoch_is_that_of_the_lowest_perplexity():
    state, bests = follow(Halve(min_improvement=0.01), [100.0, 99.9, 120.0, 99.95, 90.0])
    assert bests == [True, True, False, False, True]
    assert state.best_perplexity == 90.0
    assert state.last_perplexity == 90.0
    assert state.epochs_without_improvement == 0


def test_small_improvements_do_not_reset_patience():
    state, _ = follow(Halve(min_improvement=0.01), [100.0, 99.9, 99.8])
    assert state.best_perplexity == 99.8
    assert state.epochs_without_improvement == 2


def test_training_ends_after_all_epochs_or_by_early_stopping():
    patient = ScheduleState(0.1, epochs_without_improvement=2)
    assert not is_finished(patient, Halve(epochs=9, patience=3), 5)
    assert is_finished(patient, Halve(epochs=9, patience=2), 5)
    assert is_finished(ScheduleState(0.1), Halve(epochs=9), 9)
    assert not is_finished(ScheduleState(0.1, epochs_without_improvement=50), Linear(epochs=9), 8)
    assert is_finished(ScheduleState(0.1), Linear(epochs=9), 9)


def test_increases_within_the_sampling_error_do_not_count_for_early_stopping():
    schedule = Linear(epochs=10, patience=1)
    state, _ = after_validation(ScheduleState(0.1), schedule, 100.0)
    noisy, best = after_validation(state, schedule, 101.0, tolerance=0.02)
    assert not best
    assert not is_finished(noisy, schedule, 2)
    assert noisy.best_perplexity == 100.0
    assert is_finished(after_validation(state, schedule, 103.0, tolerance=0.02)[0], schedule, 2)
    assert is_finished(after_validation(state, schedule, 101.0)[0], schedule, 2)
