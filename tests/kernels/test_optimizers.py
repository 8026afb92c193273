"""Compiled optimizers against their equations in float64, against PyTorch, and in limiting cases."""

import numpy as np
import pytest
from numba import njit

from ncelm.kernels import optimizers
from ncelm.kernels.optimizers import STATES, Adagrad, Adam, Sgd, bias_correction

BETA1, BETA2, EPSILON = 0.8, 0.97, 1e-4
ADAM = Adam(np.float32(BETA1), np.float32(BETA2), np.float32(EPSILON))
OPTIMIZERS = {"sgd": Sgd(), "adagrad": Adagrad(), "adam": ADAM}
ROWS, D = 3, 37
RATE, DECAY = 0.05, 0.2


@njit
def update_row(optimizer, table, state, index, weight, gradient, rate, decay):
    optimizers.update_row(optimizer, table, state, index, weight, gradient, rate, decay)


@njit
def update_value(optimizer, values, state, index, gradient, rate):
    optimizers.update_value(optimizer, values, state, index, gradient, rate)


@njit
def update_row_by_sum(optimizer, table, state, index, weights, vectors, rows, gradient, rate, decay):
    optimizers.update_row_by_sum(optimizer, table, state, index, weights, vectors, rows, gradient, rate, decay)


@njit
def prefetch_state(state, index):
    optimizers.prefetch_state(state, index)


def state_of(optimizer, shape, start=0.0):
    kind = STATES[type(optimizer)]
    return kind and kind(*(np.full(shape, start, np.float32) for _ in kind._fields))


def equation(optimizer, values, state, gradient, rate):
    """Update values and state, both float64, in place."""
    match optimizer:
        case Sgd():
            values += rate * gradient
        case Adagrad():
            state["accumulator"] += gradient**2
            values += rate * gradient / (np.sqrt(state["accumulator"]) + 1e-8)
        case Adam():
            state["momentum"] += (1 - BETA1) * (gradient - state["momentum"])
            state["accumulator"] += (1 - BETA2) * (gradient**2 - state["accumulator"])
            values += rate * state["momentum"] / (np.sqrt(state["accumulator"]) + EPSILON)


def gradients_of(random, updates, shape):
    """Return gradients whose magnitudes differ, some of them 0."""
    gradients = random.normal(size=(updates, *shape)) * np.exp(random.normal(size=shape))
    gradients[random.random(gradients.shape) < 0.1] = 0.0
    return gradients.astype(np.float32)


def as_float64(state):
    return {} if state is None else {name: array.astype(np.float64) for name, array in state._asdict().items()}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("decay", [0.0, DECAY])
def test_rows_are_updated_by_the_equations(name, decay):
    optimizer, random = OPTIMIZERS[name], np.random.default_rng(0)
    table, state = random.normal(size=(ROWS, D)).astype(np.float32), state_of(optimizer, (ROWS, D), 0.01)
    before, row, row_state = table.copy(), table[1].astype(np.float64), as_float64(state)
    row_state = {statistic: array[1] for statistic, array in row_state.items()}
    for weight, gradient in zip(random.normal(size=6).astype(np.float32), gradients_of(random, 6, (D,)), strict=True):
        update_row(optimizer, table, state, 1, weight, gradient, np.float32(RATE), np.float32(decay))
        equation(optimizer, row, row_state, np.float64(weight) * gradient - decay * row, RATE)
    np.testing.assert_allclose(table[1], row, rtol=1e-5, atol=1e-6)
    for statistic, expected in row_state.items():
        np.testing.assert_allclose(getattr(state, statistic)[1], expected, rtol=1e-5, atol=1e-6)
        assert (getattr(state, statistic)[[0, 2]] == np.float32(0.01)).all()
    np.testing.assert_array_equal(table[[0, 2]], before[[0, 2]])  # nothing outside


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_values_are_updated_by_the_equations(name):
    optimizer, random = OPTIMIZERS[name], np.random.default_rng(1)
    values, state = random.normal(size=5).astype(np.float32), state_of(optimizer, 5, 0.01)
    before, expected, expected_state = values.copy(), values.astype(np.float64), as_float64(state)
    for gradient in gradients_of(random, 6, (1,))[:, 0]:
        update_value(optimizer, values, state, 3, gradient, np.float32(RATE))
        part = {statistic: array[3:4] for statistic, array in expected_state.items()}
        equation(optimizer, expected[3:4], part, np.array([gradient], np.float64), RATE)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.delete(values, 3), np.delete(before, 3))
    for statistic, array in expected_state.items():
        np.testing.assert_allclose(getattr(state, statistic), array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("decay", [0.0, DECAY])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_a_row_is_updated_by_a_sum_of_rows(name, decay, n):
    """SGD without weight decay adds the sum to the row itself; all others need the sum first."""
    optimizer, random = OPTIMIZERS[name], np.random.default_rng(2)
    table, vectors = (random.normal(size=(ROWS, D)).astype(np.float32) for _ in range(2))
    state, rows = state_of(optimizer, (ROWS, D), 0.01), random.integers(ROWS, size=n).astype(np.int32)
    weights = random.normal(size=n + 1).astype(np.float32)  # the buffer may be longer
    total = weights[:n].astype(np.float64) @ vectors[rows]
    before, row, row_state = table.copy(), table[1].astype(np.float64), as_float64(state)
    row_state = {statistic: array[1] for statistic, array in row_state.items()}
    scratch = np.full(D, np.nan, np.float32)
    update_row_by_sum(
        optimizer, table, state, 1, weights, vectors, rows, scratch, np.float32(RATE), np.float32(decay)
    )  # fmt: skip
    equation(optimizer, row, row_state, total - decay * row, RATE)
    np.testing.assert_allclose(table[1], row, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(table[[0, 2]], before[[0, 2]])
    for statistic, expected in row_state.items():
        np.testing.assert_allclose(getattr(state, statistic)[1], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_prefetching_the_state_changes_nothing(name):
    state = state_of(OPTIMIZERS[name], (ROWS, D), 0.5)
    prefetch_state(state, 2)
    assert all((array == 0.5).all() for array in state or ())


# -- Adam and its bias correction --------------------------------------------------------------------------------------


def run_adam(gradients, optimizer, rate):
    """Return a row after these updates with the corrected learning rate, as `Engine` computes it; it starts at 0."""
    table, state = np.zeros((1, gradients.shape[1]), np.float32), state_of(optimizer, (1, gradients.shape[1]))
    rates = (rate * bias_correction(optimizer, np.arange(1, len(gradients) + 1))).astype(np.float32)
    for gradient, corrected in zip(gradients, rates, strict=True):
        update_row(optimizer, table, state, 0, np.float32(1.0), gradient, corrected, np.float32(0.0))
    return table[0]


def test_adam_is_that_of_kingma_and_ba():
    """Algorithm 1, with ε as in the last paragraph of section 2, where it is not corrected: ascent here."""
    gradients = gradients_of(np.random.default_rng(3), 20, (D,))
    value, mean, square = np.zeros(D), np.zeros(D), np.zeros(D)
    for t, g in enumerate(gradients.astype(np.float64), start=1):
        mean, square = BETA1 * mean + (1 - BETA1) * g, BETA2 * square + (1 - BETA2) * g**2
        rate = 0.1 * np.sqrt(1 - BETA2**t) / (1 - BETA1**t)
        value += rate * mean / (np.sqrt(square) + EPSILON)
    np.testing.assert_allclose(run_adam(gradients, ADAM, 0.1), value, rtol=1e-4, atol=1e-6)


def test_the_first_update_of_adam_has_the_size_of_the_learning_rate():
    """Bias correction: the estimates of both moments are exact after one update, whatever the gradient."""
    tiny = ADAM._replace(epsilon=np.float32(1e-12))
    gradient = np.array([[1e-3, -1e-2, 5.0, -300.0]], np.float32)
    np.testing.assert_allclose(run_adam(gradient, tiny, 0.1), 0.1 * np.sign(gradient[0]), rtol=1e-4)


def test_adam_agrees_with_pytorch():
    """SparseAdam is Adam for the rows that have a gradient, as here; it descends."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(4)
    optimizer = ADAM._replace(epsilon=np.float32(1e-8))
    table = random.normal(size=(4, D)).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(table.copy()))
    adam = torch.optim.SparseAdam([theirs], lr=0.1, betas=(BETA1, BETA2), eps=1e-8)
    state = state_of(optimizer, table.shape)
    rates = (0.1 * bias_correction(optimizer, np.arange(1, 13))).astype(np.float32)
    for rate in rates:
        rows = np.sort(random.choice(4, 2, replace=False))  # the others do not change, nor does their state
        gradient = random.normal(size=(2, D)).astype(np.float32)
        for row, g in zip(rows, gradient, strict=True):
            update_row(optimizer, table, state, row, np.float32(-1.0), g, rate, np.float32(0.0))
        theirs.grad = torch.sparse_coo_tensor(
            torch.from_numpy(rows)[None], torch.from_numpy(gradient), table.shape, check_invariants=True
        ).coalesce()
        adam.step()
    np.testing.assert_allclose(table, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_only_adam_has_a_bias_correction():
    updates = np.arange(1, 5)
    for name in ("sgd", "adagrad"):
        assert bias_correction(OPTIMIZERS[name], updates).tolist() == [1.0] * 4
    expected = [np.sqrt(1 - BETA2**t) / (1 - BETA1**t) for t in (1, 2, 3, 4)]
    np.testing.assert_allclose(bias_correction(ADAM, updates), expected, rtol=1e-6)
    assert bias_correction(ADAM, np.array([10**6])) == pytest.approx(1.0)


# -- limiting cases ----------------------------------------------------------------------------------------------------


def sgd(gradients, rate, start=0.0):
    table = np.full((1, gradients.shape[1]), start, np.float32)
    for gradient in gradients:
        update_row(Sgd(), table, None, 0, np.float32(1.0), gradient, np.float32(rate), np.float32(0.0))
    return table[0]


def test_adam_without_moving_averages_is_the_sign_of_the_gradient():
    """β₁ = β₂ = 0 and a small ε: g / |g|, also after much larger gradients."""
    gradients = np.random.default_rng(5).normal(size=(8, D)).astype(np.float32)
    optimizer = Adam(np.float32(0.0), np.float32(0.0), np.float32(1e-12))
    np.testing.assert_allclose(run_adam(gradients, optimizer, 0.1), sgd(np.sign(gradients), 0.1), atol=3e-4)


def test_adam_with_a_large_epsilon_is_sgd_with_momentum():
    gradients = np.random.default_rng(6).normal(size=(8, D)).astype(np.float32)
    for beta1 in (0.0, 0.5):
        optimizer, value, mean = Adam(np.float32(beta1), np.float32(0.999), np.float32(1e4)), np.zeros(D), np.zeros(D)
        rates = 1e4 * 0.1 * bias_correction(optimizer, np.arange(1, 9))
        for rate, gradient in zip(rates, gradients, strict=True):
            mean = beta1 * mean + (1 - beta1) * gradient
            value += rate / 1e4 * mean
        np.testing.assert_allclose(run_adam(gradients, optimizer, 1e4 * 0.1), value, rtol=1e-3)


def test_adam_with_a_long_memory_divides_by_the_root_mean_square_of_all_gradients():
    """β₁ = 0 and β₂ → 1: Adagrad, multiplied by the root of the number of updates."""
    gradients = np.random.default_rng(7).normal(size=(10, D)).astype(np.float32)
    optimizer = Adam(np.float32(0.0), np.float32(1 - 2.0**-17), np.float32(1e-12))
    table, state = np.zeros((1, D), np.float32), state_of(Adagrad(), (1, D))
    for t, gradient in enumerate(gradients, start=1):
        rate = np.float32(0.1 * np.sqrt(t))
        update_row(Adagrad(), table, state, 0, np.float32(1.0), gradient, rate, np.float32(0.0))
    np.testing.assert_allclose(run_adam(gradients, optimizer, 0.1), table[0], rtol=1e-3, atol=1e-4)


def test_adagrad_with_a_large_initial_accumulator_is_sgd():
    gradients = np.random.default_rng(8).normal(size=(8, D)).astype(np.float32)
    table, state = np.zeros((1, D), np.float32), state_of(Adagrad(), (1, D), 1e8)
    for gradient in gradients:
        update_row(Adagrad(), table, state, 0, np.float32(1.0), gradient, np.float32(1e4 * 0.1), np.float32(0.0))
    np.testing.assert_allclose(table[0], sgd(gradients, 0.1), rtol=1e-5, atol=1e-6)


def test_the_first_update_of_adagrad_has_the_size_of_the_learning_rate():
    gradient = np.array([[1e-3, -1e-2, 5.0, -300.0]], np.float32)
    table, state = np.zeros((1, 4), np.float32), state_of(Adagrad(), (1, 4))
    update_row(Adagrad(), table, state, 0, np.float32(1.0), gradient[0], np.float32(0.1), np.float32(0.0))
    np.testing.assert_allclose(table[0], 0.1 * np.sign(gradient[0]), rtol=1e-4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weight_decay_alone_pulls_a_row_to_zero(name):
    optimizer, table = OPTIMIZERS[name], np.array([[1.0, -1.0, 2.0]], np.float32)
    state, gradient = state_of(optimizer, (1, 3), 0.01), np.zeros(3, np.float32)
    for _ in range(300):
        update_row(optimizer, table, state, 0, np.float32(1.0), gradient, np.float32(0.02), np.float32(1.0))
    assert (np.abs(table) < [[0.5, 0.5, 1.5]]).all()


def test_an_update_that_is_not_finite_is_not_hidden():
    """A run that diverges must be detected: NaN stays NaN in spite of fast-math."""
    for optimizer in OPTIMIZERS.values():
        table, state = np.zeros((1, 2), np.float32), state_of(optimizer, (1, 2), 0.01)
        gradient = np.array([np.nan, 1.0], np.float32)
        update_row(optimizer, table, state, 0, np.float32(1.0), gradient, np.float32(0.1), np.float32(0.0))
        assert np.isnan(table[0]).tolist() == [True, False]
