"""The log-bilinear model: Eq. 1–3 from its parameters, initial values, invalid contexts."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ncelm.errors import NcelmError
from ncelm.kernels import plan, records
from ncelm.kernels.panels import LANES
from ncelm.kernels.score import PANEL_BLOCK
from ncelm.kernels.threads import Team
from ncelm.models import log_bilinear
from ncelm.models.log_bilinear import LogBilinear, ModelConfig
from ncelm.models.normalizer import Normalizer, NormalizerError

V = 30


def random_model(**options) -> LogBilinear:
    config = ModelConfig(**({"context": 2, "dim": 7} | options))
    model = LogBilinear.initialise(config, np.random.default_rng(0).dirichlet(np.ones(V)), seed=1, init_std=0.8)
    model.matrices[:] += np.random.default_rng(2).normal(size=model.matrices.shape, scale=0.3)
    return model


def scores_by_hand(model: LogBilinear, contexts: np.ndarray) -> np.ndarray:
    """Return s(w, h) of every word in float64, (n, V): Eq. 2 and 3, one context and one position at a time."""
    out = np.zeros((len(contexts), V))
    for n, context in enumerate(contexts):
        predicted = np.zeros(model.config.dim)
        for matrix, word in zip(model.matrices.astype(np.float64), context, strict=True):
            vector = model.context_vectors[word].astype(np.float64)
            predicted += matrix @ vector if matrix.ndim == 2 else matrix * vector
        out[n] = model.target_vectors.astype(np.float64) @ predicted + model.biases
    return out


@pytest.mark.parametrize("matrices", ["full", "diagonal"])
@pytest.mark.parametrize("tied_embeddings", [False, True])
@pytest.mark.parametrize(("context", "context_after"), [(2, 0), (0, 1), (3, 2)])
def test_scores_and_probabilities_are_those_of_the_equations(matrices, tied_embeddings, context, context_after):
    model = random_model(
        matrices=matrices, tied_embeddings=tied_embeddings, context=context, context_after=context_after
    )
    contexts = np.random.default_rng(3).integers(V + 1, size=(20, context + context_after))
    expected = scores_by_hand(model, contexts)
    np.testing.assert_allclose(model.scores(contexts), expected, atol=1e-4)
    probabilities = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(model.log_probabilities(contexts)), probabilities, rtol=1e-4)


def test_distribution_pads_short_contexts():
    model = random_model(context=2, context_after=2)
    expected = scores_by_hand(model, np.array([[V, 3, 5, V]]))[0]
    expected -= np.log(np.exp(expected).sum())
    np.testing.assert_allclose(model.distribution(np.array([3]), np.array([5]), V), expected, atol=1e-4)
    longer = model.distribution(np.array([9, 8, 3]), np.array([5, 6, 7, 8]), V)
    expected = scores_by_hand(model, np.array([[8, 3, 5, 6]]))[0]
    np.testing.assert_allclose(longer, expected - np.log(np.exp(expected).sum()), atol=1e-4)


def test_the_initial_model_is_nearly_the_unigram_model():
    probabilities = np.random.default_rng(0).dirichlet(np.ones(V))
    model = LogBilinear.initialise(ModelConfig(context=2, dim=50), probabilities, seed=1, init_std=0.01)
    logs = model.log_probabilities(np.array([[1, 2], [V, V]]))
    np.testing.assert_allclose(np.exp(logs), [probabilities] * 2, rtol=0.02)
    assert model.context_vectors.std() == pytest.approx(0.01, rel=0.1)
    np.testing.assert_allclose(model.matrices, np.stack([np.eye(50)] * 2) / 2, atol=0.05)
    again = LogBilinear.initialise(ModelConfig(context=2, dim=50), probabilities, seed=1, init_std=0.01)
    np.testing.assert_array_equal(model.target_vectors, again.target_vectors)


@pytest.mark.parametrize("tied_embeddings", [False, True])
def test_arrays_have_the_declared_shapes_and_restore_the_model(tied_embeddings):
    model = random_model(tied_embeddings=tied_embeddings)
    arrays = model.arrays()
    assert {name: array.shape for name, array in arrays.items()} == LogBilinear.shapes(model.config, V)
    assert ("target_vectors" in arrays) != tied_embeddings
    again = LogBilinear.from_arrays(model.config, arrays)
    np.testing.assert_array_equal(again.target_vectors, model.target_vectors)
    assert np.shares_memory(again.target_vectors, again.context_vectors) == tied_embeddings
    for array in arrays.values():
        assert array.dtype == np.float32
        assert array.flags.c_contiguous


@pytest.mark.parametrize("contexts", [[[0, 10**12]], [[0, -1]], [[0, 1, 2]], [0, 1]])
def test_invalid_contexts(contexts):
    with pytest.raises((IndexError, ValueError)):
        random_model().log_probabilities(np.array(contexts))


# -- scores of positions -----------------------------------------------------------------------------------------------


def text(vocabulary, tokens, seed=0, skew=2.0):
    """Return the ids of a random text in which frequent words, and so equal contexts, come first."""
    return (vocabulary * np.random.default_rng(seed).random(tokens) ** skew).astype(np.uint32)


def corpus_of(ids, vocabulary, within_sentence=True):
    return records.Corpus(records.read_only(ids), 0, within_sentence, 0, vocabulary)


def score(model, corpus, first=0, last=None, threads=1, mode="exact"):
    with Team(threads) as team:
        return model.score_positions(corpus, first, corpus.ids.size if last is None else last, team, mode)


def assert_equal(found, expected):
    """Compare scores and log-normalizers bit for bit."""
    for values, others in zip(found, expected, strict=True):
        np.testing.assert_array_equal(values, others)


def with_normalizer(model, units=13):
    """Return a model whose normalizer has some random units."""
    random = np.random.default_rng(1)
    vectors = random.normal(0.0, 0.3, (units, model.config.dim)).astype(np.float32)
    biases = random.normal(0.0, 1.0, units).astype(np.float32)
    return replace(model, normalizer=Normalizer(vectors, biases, NormalizerError(1, 0.0, 0.0, 0.0)))


CONFIGS = {
    "full": {"context": 2, "dim": 7},
    "full, both sides": {"context": 1, "context_after": 2, "dim": 37},
    "diagonal": {"context": 3, "dim": 20, "matrices": "diagonal"},
    "diagonal, after": {"context": 0, "context_after": 1, "dim": 9, "matrices": "diagonal"},
    "tied": {"context": 2, "dim": 12, "tied_embeddings": True},
}


@pytest.mark.parametrize(
    ("vocabulary", "config"),
    [
        (10_000, {"context": 2, "dim": 100}),
        (10_000, {"context": 4, "dim": 300, "matrices": "diagonal"}),
        (76_000, {"context": 10, "dim": 100, "matrices": "diagonal"}),
    ],
)
def test_scores_of_positions_at_production_sizes(vocabulary, config):
    """Against float64, with scores in the range of trained models."""
    random = np.random.default_rng(0)
    model = LogBilinear.initialise(ModelConfig(**config), random.dirichlet(np.ones(vocabulary)), 1, init_std=0.5)
    corpus = corpus_of(text(vocabulary, 50), vocabulary)
    scores, log_z = score(model, corpus, threads=2)
    contexts, targets = np.empty((50, model.config.positions), np.int64), corpus.ids.astype(np.int64)
    for position in range(50):
        sentence = np.flatnonzero(corpus.ids[:position] == 0)
        start = sentence[-1] + 1 if sentence.size else 0
        before = [vocabulary] * model.config.context + corpus.ids[start:position].tolist()
        contexts[position] = before[len(before) - model.config.context :]
    vectors = model.context_vectors.astype(np.float64)[contexts]  # (n, c, d)
    matrices = model.matrices.astype(np.float64)
    predicted = np.einsum("iot,nit->no" if matrices.ndim == 3 else "it,nit->nt", matrices, vectors)
    expected = predicted @ model.target_vectors.astype(np.float64).T + model.biases
    assert np.ptp(expected) > 20
    np.testing.assert_allclose(scores, expected[np.arange(50), targets], atol=5e-6)
    np.testing.assert_allclose(log_z, np.logaddexp.reduce(expected, axis=1), atol=2e-6)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("within_sentence", [True, False])
def test_shared_log_normalizers_are_those_of_each_word(name, within_sentence, monkeypatch):
    model, corpus = random_model(**CONFIGS[name]), corpus_of(text(V, 2000), V, within_sentence)
    shared = score(model, corpus)
    counted = []

    def each_by_itself(corpus, c, first, last):
        counted.append(equal_contexts(corpus, c, first, last).offsets.size - 1)
        return log_bilinear._each_by_itself(last - first)

    equal_contexts = log_bilinear._equal_contexts
    monkeypatch.setattr(log_bilinear, "_equal_contexts", each_by_itself)
    assert_equal(shared, score(model, corpus))
    assert counted[0] < 1900  # there were equal contexts


@pytest.mark.parametrize(("before", "after"), [(1, 0), (3, 0), (0, 2), (2, 1)])
@pytest.mark.parametrize("within_sentence", [True, False])
@pytest.mark.parametrize(("first", "last"), [(0, 500), (1, 7), (200, 500), (499, 500), (30, 30)])
def test_equal_contexts_are_found(before, after, within_sentence, first, last):
    corpus = corpus_of(text(V, 500), V, within_sentence)._replace(before=before)
    words, offsets = log_bilinear._equal_contexts(corpus, before + after, first, last)
    ends = np.flatnonzero(corpus.ids == 0) + 1
    padded = np.append(0, ends) if within_sentence else np.array([0])
    keys = []
    for position in range(first, last):
        start = padded[np.searchsorted(padded, position, side="right") - 1]
        left = [V] * before + corpus.ids[start:position].tolist()
        right = corpus.ids[position + 1 :].tolist()
        if within_sentence:
            right = [] if corpus.ids[position] == 0 else right
            right = right[: right.index(0)] if 0 in right else right
        keys.append((*left[len(left) - before :], *(right + [V] * after)[:after]))
    groups = {}
    for word, key in enumerate(keys):
        groups.setdefault(key, []).append(word)
    assert sorted(words[a:b].tolist() for a, b in pairwise(offsets)) == list(groups.values())


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_do_not_depend_on_the_other_positions(name, monkeypatch):
    """Parts of any size at any place, calls of any size, any number of threads: the same bits."""
    model, tokens = with_normalizer(random_model(**CONFIGS[name])), 2 * LANES * PANEL_BLOCK + 45
    corpus = corpus_of(text(V, tokens, skew=1.0), V)
    for mode in ("exact", "fast", "unnormalised"):
        whole = score(model, corpus, mode=mode)
        for threads, alone in ((2, 0), (3, 0), (2, 10**8)):
            monkeypatch.setattr(log_bilinear, "WORK_ALONE", alone)
            assert_equal(score(model, corpus, threads=threads, mode=mode), whole)
        for first, last in ((0, 1), (3, 4), (1, 34), (31, 63), (5, 5), (100, 500), (tokens - 1, tokens)):
            part = score(model, corpus, first, last, mode=mode)
            assert_equal(part, [values[first:last] for values in whole])
        with monkeypatch.context() as patch:
            patch.setattr(log_bilinear, "WORK_PER_CALL", 1)
            assert_equal(score(model, corpus, mode=mode), whole)
        with monkeypatch.context() as patch:
            patch.setattr(log_bilinear, "KEPT_PER_CALL", 1)
            assert_equal(score(model, corpus, mode=mode), whole)
        narrow = corpus._replace(ids=records.read_only(corpus.ids.astype(np.uint16)))  # compiled separately
        assert_equal(score(model, narrow, mode=mode), whole)
    np.testing.assert_array_equal(score(model, corpus)[0], score(model, corpus, mode="unnormalised")[0])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("units", [1, 11, 12, 100])
def test_fast_scores_have_the_log_sum_exp_of_the_units(name, units):
    model, corpus = with_normalizer(random_model(**CONFIGS[name]), units), corpus_of(text(V, 300), V)
    scores, log_z = score(model, corpus, mode="fast", threads=2)
    contexts = np.empty((300, model.config.positions), np.int64)
    plan.contexts_of(corpus._replace(before=model.config.context), np.arange(300), contexts)
    vectors, biases = (array.astype(np.float64) for array in model.normalizer.units)
    expected = np.logaddexp.reduce(model.predict(contexts) @ vectors.T + biases, axis=1)
    np.testing.assert_allclose(log_z, np.maximum(expected, scores), atol=2e-6)
    np.testing.assert_array_equal(scores, score(model, corpus, mode="unnormalised")[0])


def test_fast_scores_need_a_normalizer():
    with pytest.raises(NcelmError, match="ncelm normalizer RUN"):
        score(random_model(), corpus_of(text(V, 10), V), mode="fast")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_log_normalizers_of_predicted_vectors(name, threads, monkeypatch):
    """They are those of `score_positions`, bit for bit, in calls of any size."""
    model, corpus = random_model(**CONFIGS[name]), corpus_of(text(V, 700), V)
    contexts = np.empty((700, model.config.positions), np.int64)
    plan.contexts_of(corpus._replace(before=model.config.context), np.arange(700), contexts)
    scores, log_z = score(model, corpus)
    for kept in (1 << 22, 1):
        monkeypatch.setattr(log_bilinear, "KEPT_PER_CALL", kept)
        with Team(threads) as team:
            found = model.log_normalizers(model.predict(contexts), team)
        np.testing.assert_array_equal(np.maximum(found, scores), log_z)


def test_log_normalizers_are_nan_where_parameters_are():
    """In the contexts that contain the word, not in others of the same call."""
    model = random_model(matrices="diagonal")
    model.context_vectors[7] = np.nan
    corpus = corpus_of(np.array([1, 2, 7, 3, 4, 5], np.uint32), V)
    _, log_z = score(model, corpus)
    assert np.isnan(log_z).tolist() == [False, False, False, True, True, False]


def test_no_probability_is_above_one():
    """Scores of some thousands, whose rounding errors are larger than a thousandth."""
    random = np.random.default_rng(0)
    model = random_model(dim=30, context=2)
    arrays = {name: array * np.float32(40.0) for name, array in model.arrays().items()}
    model = LogBilinear.from_arrays(model.config, arrays)
    corpus = corpus_of(random.integers(0, V, 3000).astype(np.int32), V)
    with Team(1) as team:
        scores, log_z = model.score_positions(corpus, 0, 3000, team)
    assert scores.max() > 1000
    assert np.subtract(scores, log_z).max() <= 0.0
