"""Statistics of importance weights, and divergence."""

import math
from pathlib import Path

import numpy as np
import pytest

from ncelm.errors import NcelmError
from ncelm.kernels.threads import Team
from ncelm.models.log_bilinear import LogBilinear, ModelConfig
from ncelm.training.backend import ImportanceWeights
from ncelm.training.diagnostics import (
    Divergence,
    WeightSummary,
    WeightTrace,
    probe,
    probe_problem,
    summary_interval,
    validation_problem,
)


def weights(effective, least, samples, largest):
    return ImportanceWeights(effective, least, samples, largest, share=0.5, word=1, context=[2, 3])


def test_a_trace_summarises_intervals_and_the_epoch():
    trace = WeightTrace(interval=2)
    for step, each in enumerate([weights(4, 2, 10, 1.0), weights(6, 3, 20, 0.5), weights(8, 1, 30, -1.0)]):
        trace.add(step, each)
    assert trace.summaries == [WeightSummary(0, 2, 10, 2, 30, 1.0), WeightSummary(2, 1, 8, 1, 30, -1.0)]
    assert trace.record() == {
        "effective_samples": 6.0,
        "least_effective_samples": 1,
        "samples": 20.0,
        "largest_log_weight": 1.0,
        "weights": [
            {"step": 0, "effective_samples": 5.0, "least_effective_samples": 2, "samples": 15.0}
            | {"largest_log_weight": 1.0},
            {"step": 2, "effective_samples": 8.0, "least_effective_samples": 1, "samples": 30.0}
            | {"largest_log_weight": -1.0},
        ],
    }


def test_a_resumed_trace_continues_its_sums():
    whole, first = WeightTrace(interval=4), WeightTrace(interval=4)
    each = [weights(0.1 * i, 0.01 * i, i, -0.3 * i) for i in range(1, 7)]
    for step in range(6):
        whole.add(step, each[step])
    for step in range(3):
        first.add(step, each[step])
    second = WeightTrace(interval=4, summaries=first.summaries)
    for step in range(3, 6):
        second.add(step, each[step])
    assert second.record() == whole.record()


def test_an_empty_trace_has_no_record(cycle_store):
    trace = WeightTrace(interval=1)
    assert trace.record() == {}
    assert trace.last_record(cycle_store.vocabulary) == {}
    trace.add(0, weights(1, 1, 1, 1))
    trace.clear()
    assert trace.record() == {}


def test_the_last_minibatches_are_recorded_in_words(cycle_store):
    trace = WeightTrace(interval=1)
    for step in range(9):
        trace.add(step, ImportanceWeights(2.0, 1.0, 5.0, 0.1 * step, 0.5, step, [len(cycle_store.vocabulary), 2]))
    last = trace.last_record(cycle_store.vocabulary)["last_weights"]
    assert [line["step"] for line in last] == [4, 5, 6, 7, 8]
    assert last[-1]["word"] == cycle_store.vocabulary.words[8]
    assert last[-1]["context"] == ["<s>", cycle_store.vocabulary.words[2]]


@pytest.mark.parametrize(
    "change",
    [{"steps": 0}, {"steps": True}, {"first_step": -1}, {"sum_samples": math.nan}, {"largest_log_weight": "1"}],
)
def test_impossible_summaries_are_invalid(change):
    valid = {
        "first_step": 0, "steps": 1, "sum_effective_samples": 1.0, "least_effective_samples": 1.0, "sum_samples": 1.0,
        "largest_log_weight": 0.0,
    }  # fmt: skip
    assert WeightSummary(**valid).is_valid()
    assert not WeightSummary(**valid | change).is_valid()


def test_there_are_about_twenty_summaries_in_an_epoch():
    assert summary_interval(1) == 1
    assert summary_interval(20) == 1
    assert summary_interval(21) == 2
    assert summary_interval(1000) == 50


def test_divergence_round_trips_through_its_record():
    divergence = Divergence(epoch=2, step=7, reason="the loss is not finite", seconds=1.5, best_epoch=1)
    record = divergence.record()
    assert record["diverged"] == "the loss is not finite"
    assert record["finished"] is True
    again = Divergence.from_record(record)
    path = Path("run/metrics.jsonl")
    assert again.message(path, 0.1) == divergence.message(path, 0.1)
    assert "epoch 2, step 7" in again.message(path, 0.1)
    assert "(epoch 1) is kept in run" in again.message(path, 0.1)
    assert "no earlier model" in Divergence(1, 0, "x", 0.0, 0).message(path, 0.1)


def test_other_records_are_no_divergence():
    assert Divergence.from_record({"epoch": 1}) is None
    for damaged in ({"diverged": "x"}, {"diverged": "x", "epoch": 1, "step": "2", "best_epoch": 0}):
        with pytest.raises(NcelmError, match="damaged"):
            Divergence.from_record(damaged)


def test_perplexities_of_diverged_models():
    assert validation_problem(5000.0, 100) is None  # overfitting
    assert "validation perplexity is 10000" in validation_problem(10_000.0, 100)
    assert validation_problem(math.nan, 100)
    assert probe_problem(99.0, 100) is None
    assert "uniform distribution over 100 words" in probe_problem(100.0, 100)
    assert probe_problem(math.inf, 100)
    assert probe_problem(math.nan, 100)


def test_a_model_with_equal_scores_has_the_perplexity_of_the_uniform_distribution(cycle_store):
    size = len(cycle_store.vocabulary)
    model = LogBilinear.initialise(ModelConfig(context=2, dim=3), np.full(size, 1 / size), 0, 0.1)
    model.target_vectors[:] = 0.0
    with Team(1) as team:
        assert probe(model, cycle_store, team) == pytest.approx(size, rel=1e-4)
