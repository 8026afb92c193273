"""The log-bilinear model: Eq. 1–3 from its parameters, initial values, invalid contexts."""

import numpy as np
import pytest

from ncelm.models.log_bilinear import LogBilinear, ModelConfig

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
