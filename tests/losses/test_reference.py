"""The reference implementation against the paper's own claims and against numeric derivatives."""

import numpy as np
import pytest

from ncelm.losses import reference as ref

V, D, C = 6, 3, 2


@pytest.fixture
def random():
    return np.random.default_rng(0)


def numeric_gradient(function, x, step=1e-6):
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        gradient[i] = (function(up) - function(down)) / (2 * step)
    return gradient


def distribution(random, size=V):
    weights = random.random(size) + 0.1
    return weights / weights.sum()


def test_eq1_is_a_distribution_even_for_huge_scores():
    probabilities = ref.eq1_probabilities(np.array([1000.0, 999.0, -1000.0]))
    assert probabilities.sum() == pytest.approx(1.0)
    assert probabilities[0] / probabilities[1] == pytest.approx(np.e)


@pytest.mark.parametrize("diagonal", [False, True])
def test_eq2_and_eq3_by_hand(diagonal):
    rows = np.array([[1.0, 2.0], [3.0, 5.0]])
    matrices = np.array([[2.0, 1.0], [1.0, 0.5]]) if diagonal else np.array([np.diag([2.0, 1.0]), np.diag([1.0, 0.5])])
    predicted = ref.eq2_prediction(matrices, rows)
    np.testing.assert_allclose(predicted, [5.0, 4.5])
    np.testing.assert_allclose(ref.eq3_scores(predicted, np.array([[1.0, 2.0]]), np.array([0.25])), [14.25])


def test_eq4_is_the_derivative_of_the_log_likelihood(random):
    scores = random.normal(size=V)
    numeric = numeric_gradient(lambda s: np.log(ref.eq1_probabilities(s)[2]), scores)
    np.testing.assert_allclose(ref.eq4_ml_gradient(scores, 2), numeric, atol=1e-8)


def test_eq5_with_the_model_as_proposal_is_exact_in_expectation(random):
    scores = random.normal(size=V)
    model = ref.eq1_probabilities(scores)
    estimates = [ref.eq5_importance_gradient(scores, 0, random.choice(V, 5, p=model), model) for _ in range(20_000)]
    np.testing.assert_allclose(np.mean(estimates, axis=0), ref.eq4_ml_gradient(scores, 0), atol=0.01)


def test_eq7_is_eq6_with_the_model_in_place_of_the_data(random):
    data, noise = distribution(random), distribution(random)
    np.testing.assert_allclose(ref.eq7_model_posterior(np.log(data), noise, 5), ref.eq6_posterior(data, noise, 5))


def test_eq8_constant_scales_the_model(random):
    scores = random.normal(size=V)
    np.testing.assert_allclose(ref.eq8_model(scores, -ref.log_sum_exp(scores)), ref.eq1_probabilities(scores))


@pytest.mark.parametrize("k", [1, 5, 25])
def test_eq10_and_eq11_are_the_derivative_of_eq9(random, k):
    scores, data, noise = random.normal(size=V), distribution(random), distribution(random)
    numeric = numeric_gradient(lambda s: ref.eq9_objective(s, data, noise, k), scores)
    np.testing.assert_allclose(ref.eq10_gradient(scores, data, noise, k), numeric, atol=1e-8)
    np.testing.assert_allclose(ref.eq11_gradient(scores, data, noise, k), numeric, atol=1e-8)


def test_eq9_is_largest_at_the_data_distribution_whatever_k(random):
    """NCE finds the normalised model by itself: at log P_d the gradient is zero, with no constraint on the sum."""
    data, noise = distribution(random), distribution(random)
    for k in (1, 7):
        np.testing.assert_allclose(ref.eq11_gradient(np.log(data), data, noise, k), 0.0, atol=1e-12)


def test_eq11_tends_to_eq12_as_k_grows(random):
    scores, data, noise = random.normal(size=V), distribution(random), distribution(random)
    distances = [
        np.abs(ref.eq11_gradient(scores, data, noise, k) - ref.eq12_limit(scores, data)).max()
        for k in (10, 1_000, 100_000)
    ]
    assert distances[0] > 10 * distances[1] > 100 * distances[2]
    assert distances[2] < 1e-3


def test_eq12_is_the_maximum_likelihood_gradient_of_a_normalised_model(random):
    scores, data = random.normal(size=V), distribution(random)
    scores = scores - ref.log_sum_exp(scores)
    by_eq4 = sum(p * ref.eq4_ml_gradient(scores, w) for w, p in enumerate(data))
    np.testing.assert_allclose(ref.eq12_limit(scores, data), by_eq4, atol=1e-12)


def test_eq13_is_the_derivative_of_its_objective(random):
    scores, noise, samples = random.normal(size=V), distribution(random), np.array([1, 4, 4, 0])
    numeric = numeric_gradient(lambda s: ref.eq13_objective(s, 4, samples, noise, 0.3), scores)
    np.testing.assert_allclose(ref.eq13_gradient(scores, 4, samples, noise, 0.3), numeric, atol=1e-8)


def test_eq13_averages_to_eq11(random):
    scores, data, noise, k = random.normal(size=V), distribution(random), distribution(random), 5
    estimates = [
        ref.eq13_gradient(scores, random.choice(V, p=data), random.choice(V, k, p=noise), noise) for _ in range(20_000)
    ]
    np.testing.assert_allclose(np.mean(estimates, axis=0), ref.eq11_gradient(scores, data, noise, k), atol=0.02)


def test_eq14_weighs_contexts_by_their_frequency():
    assert ref.eq14_objective(np.array([0.25, 0.75]), np.array([4.0, 8.0])) == pytest.approx(7.0)


def test_eq15_gives_the_paper_s_examples():
    assert ref.eq15_speedup(2, 100, 10_000, 25) == pytest.approx(45, abs=0.5)
    assert ref.eq15_speedup(2, 100, 10_000, 25, diagonal=True) == pytest.approx(370, abs=1)


@pytest.mark.parametrize("diagonal", [False, True])
def test_parameter_gradients_are_the_derivatives_of_the_objective(random, diagonal):
    parameters = {
        "context_vectors": random.normal(size=(V + 1, D)),
        "target_vectors": random.normal(size=(V, D)),
        "biases": random.normal(size=V),
        "matrices": random.normal(size=(C, D) if diagonal else (C, D, D)),
    }
    contexts, targets = np.array([[0, 1], [3, 3], [V, 2]]), [2, 5, 0]
    samples, noise = np.array([[1, 2], [5, 5], [4, 0]]), distribution(random)

    def scores(p, context):
        predicted = ref.eq2_prediction(p["matrices"], p["context_vectors"][context])
        return ref.eq3_scores(predicted, p["target_vectors"], p["biases"])

    def objective(p):
        return sum(
            ref.eq13_objective(scores(p, h), w, x, noise) for h, w, x in zip(contexts, targets, samples, strict=True)
        )

    dJ_ds = [
        ref.eq13_gradient(scores(parameters, h), w, x, noise)
        for h, w, x in zip(contexts, targets, samples, strict=True)
    ]
    gradients = ref.parameter_gradients(parameters, contexts, np.array(dJ_ds))
    for name in parameters:
        numeric = numeric_gradient(lambda value, name=name: objective(parameters | {name: value}), parameters[name])
        np.testing.assert_allclose(gradients[name], numeric, atol=1e-6)
