"""Perplexity of a split: sums over chunks, log-normalizers."""

from itertools import pairwise

import numpy as np
import pytest

from ncelm.kernels.threads import Team
from ncelm.models import evaluate
from ncelm.models.evaluate import EvaluationSums, evaluate_split, sample_parts, share_of
from ncelm.models.ngram.estimate import estimate


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_chunks_change_nothing(cycle_store, monkeypatch, chunk):
    model, _ = estimate(cycle_store, 3)
    with Team(1) as team:
        whole = evaluate_split(model, cycle_store, "test", team)
        monkeypatch.setattr(evaluate, "CHUNK", chunk)
        in_chunks = evaluate_split(model, cycle_store, "test", team)
    assert in_chunks.perplexity == pytest.approx(whole.perplexity, rel=1e-12)
    assert in_chunks.tokens == whole.tokens == cycle_store.split("test").tokens
    assert whole.sentences == cycle_store.split("test").n_sentences


def test_sums_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    scores, log_z = rng.normal(size=100).astype(np.float32), rng.normal(size=100)
    sums = EvaluationSums()
    sums.add(scores[:30], log_z[:30])
    sums.add(scores[30:], log_z[30:])
    result = sums.result(sentences=5, unknown=2)
    logs = scores.astype(np.float64) - log_z
    assert result.perplexity == pytest.approx(np.exp(-logs.mean()))
    assert result.log_probability == pytest.approx(logs.sum())
    assert (result.log_z_mean, result.log_z_std) == (pytest.approx(log_z.mean()), pytest.approx(log_z.std()))
    assert (result.tokens, result.sentences, result.unknown) == (100, 5, 2)


def test_a_perplexity_that_overflows_is_infinite():
    sums = EvaluationSums()
    sums.add(np.array([-1e4]), np.zeros(1))
    assert sums.result(1, 0).perplexity == np.inf


@pytest.mark.parametrize(("words", "tokens"), [(1000, 9917), (50, 60), (1, 10), (77, 1000), (9900, 9917)])
def test_the_blocks_of_a_sample_are_spread_over_the_text(words, tokens):
    parts = sample_parts(words, tokens)
    assert sum(last - first for first, last in parts) == words
    assert parts[0][0] >= 0
    assert parts[-1][1] <= tokens
    assert all(a[1] <= b[0] for a, b in pairwise(parts))
    middle = np.mean([(first + last) / 2 for first, last in parts])
    assert middle == pytest.approx(tokens / 2, abs=1.0)


@pytest.mark.parametrize(
    "parts", [[(0, 10)], [(3, 4)], [(0, 4), (10, 14), (20, 21)], [(5, 55), (60, 61), (100, 117)]], ids=str
)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_of_workers_are_equal_and_have_each_position_once(parts, size):
    def positions(some):
        return [position for first, last in some for position in range(first, last)]

    shares = [share_of(parts, rank, size) for rank in range(size)]
    assert positions(part for share in shares for part in share) == positions(parts)
    lengths = [len(positions(share)) for share in shares]
    assert max(lengths) - min(lengths) <= 1
    assert share_of(parts, 0, 1) == parts


def test_sums_of_workers_add_up():
    sums = EvaluationSums()
    sums.add(np.array([-1.5, -2.25]), np.array([0.5, 0.125]))
    again = EvaluationSums.from_array(2 * sums.as_array())
    assert again.tokens == 4
    assert again.result().perplexity == sums.result().perplexity
    assert (again.result().log_z_mean, again.result().log_z_std) == (sums.result().log_z_mean, sums.result().log_z_std)
