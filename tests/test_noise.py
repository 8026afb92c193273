"""Noise: exact probabilities, alias tables, sampling, random streams."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ncelm.errors import NcelmError
from ncelm.kernels import math32
from ncelm.kernels import noise as noise_kernels
from ncelm.kernels import random as random_kernels
from ncelm.kernels.compile import callable_from_python
from ncelm.losses import reference as ref
from ncelm.noise import BigramNoise, Noise, alias_table
from ncelm.text.prepare import prepare

exp32, log32 = callable_from_python(math32.exp32), callable_from_python(math32.log32)
draw, stream_key, permutation_bits, permuted = (
    callable_from_python(getattr(random_kernels, name))
    for name in ("draw", "stream_key", "permutation_bits", "permuted")
)
draw_follower, log_k_follower = (
    callable_from_python(getattr(noise_kernels, name)) for name in ("draw_follower", "log_k_follower")
)

COUNTS = np.array([50, 30, 10, 0, 1, 9])
weights = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=60)


@given(weights)
def test_alias_table_gives_each_word_its_probability(values):
    probabilities = np.array(values) / np.sum(values)
    threshold, alias = alias_table(probabilities)
    keep = (threshold.astype(np.float64) + (threshold == 2**32 - 1)) / 2**32
    rebuilt = keep.copy()
    np.add.at(rebuilt, alias, 1.0 - keep)
    np.testing.assert_allclose(rebuilt / len(values), probabilities, atol=1e-9)


def test_kinds():
    np.testing.assert_allclose(Noise.from_counts(COUNTS, "uniform").probabilities, 1 / 6)
    unigram = Noise.from_counts(COUNTS, "unigram").probabilities
    np.testing.assert_allclose(unigram, np.array([50, 30, 10, 1, 1, 9]) / 101)
    power = Noise.from_counts(COUNTS, "power", 0.5).probabilities
    np.testing.assert_allclose(power[0] / power[5], np.sqrt(50 / 9))


@pytest.mark.parametrize("kind", ["unigram", "uniform", "power"])
def test_words_without_occurrences_have_a_finite_log_probability_and_are_drawn(kind):
    noise = Noise.from_counts(np.array([3, 0]), kind)
    assert np.isfinite(noise.log_probabilities).all()
    assert 1 in noise.sample((200, 10), seed=0)


@pytest.mark.parametrize("bad", [[1.0, 0.0], [1.0, np.nan], [1.0, -1.0], [np.inf, 1.0], []])
def test_invalid_weights(bad):
    with pytest.raises(NcelmError, match="noise"):
        Noise.from_probabilities(np.array(bad))


@pytest.mark.parametrize("kind", ["unigram", "uniform", "power"])
def test_sampler_passes_a_chi_square_test(kind):
    noise = Noise.from_counts(np.array([500, 200, 100, 50, 20, 5, 1, 0]), kind)
    drawn = np.bincount(noise.sample((4000, 50), seed=7).ravel(), minlength=8)
    assert stats.chisquare(drawn, noise.probabilities * drawn.sum()).pvalue > 1e-3


def test_sampler_over_a_large_vocabulary_passes_a_chi_square_test():
    counts = (1e6 / np.arange(1, 5001)).astype(int)
    noise = Noise.from_counts(counts)
    drawn = np.bincount(noise.sample((20_000, 25), seed=1).ravel(), minlength=5000)
    assert stats.chisquare(drawn, noise.probabilities * drawn.sum()).pvalue > 1e-3


@pytest.fixture(scope="module")
def bigrams(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noise")
    random = np.random.default_rng(0)
    words = "abcdefgh"
    (folder / "text").write_text("\n".join(" ".join(words[i] for i in random.geometric(0.3, 9) % 8) for _ in range(99)))
    return {
        boundary: prepare(train=folder / "text", out=folder / boundary, boundary=boundary)
        for boundary in ("stream", "sentence")
    }


@pytest.mark.parametrize("boundary", ["stream", "sentence"])
def test_bigram_noise_is_exact(bigrams, boundary):
    """All distributions, including that after the out-of-sentence word, against counts; compiled and in NumPy."""
    store = bigrams[boundary]
    ids, size, end = store.split("train").ids.tolist(), len(store.vocabulary), store.vocabulary.end_id
    counts = np.zeros((size + 1, size))
    for before, word in zip([store.pad_id, *ids], ids, strict=False):
        counts[store.pad_id if boundary == "sentence" and before == end else before, word] += 1
    noise = BigramNoise.from_store(store, 2.5)
    table = noise.table(7)
    for before in range(size + 1):
        log_p = noise.log_probabilities(before)
        assert np.exp(log_p).sum() == pytest.approx(1.0, abs=1e-9)
        np.testing.assert_allclose(np.exp(log_p), ref.bigram_noise(counts[before], noise.unigram.probabilities, 2.5))
        compiled = [log_k_follower(before, word, table) for word in range(size)]
        np.testing.assert_allclose(compiled, log_p + np.log(7), atol=1e-5)


def test_bigram_sampler_passes_a_chi_square_test(bigrams):
    noise = BigramNoise.from_store(bigrams["sentence"], 30.0)
    table, size = noise.table(1), len(bigrams["sentence"].vocabulary)
    key = np.uint64(stream_key(3, 0, 0))
    for before in (2, size):
        drawn = np.zeros(size)
        for i in range(20_000):
            first, second = (np.uint64(draw(key, 2 * i + j)) for j in (0, 1))
            drawn[draw_follower(first, second, before, table)] += 1
        expected = np.exp(noise.log_probabilities(before)) * drawn.sum()
        assert stats.chisquare(drawn, expected).pvalue > 1e-3


def test_bigram_noise_cannot_be_made_from_counts_alone():
    with pytest.raises(NcelmError, match="needs the training text"):
        Noise.from_counts(COUNTS, "bigram")


def test_streams_depend_on_seed_step_and_example_only():
    noise = Noise.from_counts(np.arange(1, 1000))
    words = noise.sample((10, 20), seed=1, step=5)
    np.testing.assert_array_equal(noise.sample((3, 20), seed=1, step=5), words[:3])
    np.testing.assert_array_equal(noise.sample((10, 5), seed=1, step=5), words[:, :5])
    for other in (
        noise.sample((10, 20), seed=2, step=5),
        noise.sample((10, 20), seed=1, step=6),
        words[::-1],
    ):
        assert (other == words).mean() < 0.1


def test_random_bits_are_uniform_and_uncorrelated():
    draws = np.array([[int(draw(np.uint64(stream_key(0, 0, e)), j)) for j in range(64)] for e in range(256)])
    uniform = draws.astype(np.float64) / 2**64
    assert stats.kstest(uniform.ravel(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(uniform[:-1].ravel(), uniform[1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(uniform[:, :-1].ravel(), uniform[:, 1:].ravel())[0, 1]) < 0.03


@settings(deadline=None)  # the first call compiles
@given(st.integers(1, 3000), st.integers(0, 2**63))
def test_permutation_visits_every_place_once(size, key):
    half = np.uint64(permutation_bits(size))
    places = [permuted(i, size, np.uint64(key), half) for i in range(size)]
    assert sorted(places) == list(range(size))


def test_permutation_looks_random():
    size = 10_000
    half = np.uint64(permutation_bits(size))
    places = np.array([permuted(i, size, np.uint64(12345), half) for i in range(size)])
    assert abs(np.corrcoef(places, np.arange(size))[0, 1]) < 0.05
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.05


def test_exp_is_accurate():
    x = np.linspace(-30, 30, 10_001).astype(np.float32)
    fast = np.array([exp32(value) for value in x], np.float64)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(fast / exact - 1).max() < 2.5e-6


def test_log32_is_the_logarithm():
    x = np.concatenate([np.geomspace(1e-9, 1, 20_001), 1 - np.geomspace(1e-7, 0.5, 2001)]).astype(np.float32)
    fast = np.array([log32(value) for value in x], np.float64)
    np.testing.assert_allclose(fast, np.log(x.astype(np.float64)), atol=2e-6, rtol=2e-6)
