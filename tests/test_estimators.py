"""Every estimator: known values, numeric gradients, agreement with the reference, limits, and common mistakes."""

import numpy as np
import pytest
from tests.test_reference import distribution, numeric_gradient

from ncelm import estimators, kernels
from ncelm import reference as ref

B, V, K = 4, 7, 3


@pytest.fixture
def case():
    random = np.random.default_rng(1)
    noise = distribution(random, V)
    return {
        "scores": random.normal(size=(B, V)),
        "targets": random.integers(V, size=B),
        "samples": random.integers(V, size=(B, K)),
        "noise": noise,
        "log_k_noise": np.log(K * noise),
    }


def nce_of(scores, case, shift=0.0):
    rows = np.arange(B)
    return estimators.nce(
        scores[rows, case["targets"]],
        scores[rows[:, None], case["samples"]],
        case["log_k_noise"][case["targets"]],
        case["log_k_noise"][case["samples"]],
        shift,
    )


def test_maximum_likelihood_agrees_with_the_reference(case):
    losses, derivatives = estimators.maximum_likelihood(case["scores"], case["targets"])
    for e in range(B):
        probability = ref.eq1_probabilities(case["scores"][e])[case["targets"][e]]
        assert losses[e] == pytest.approx(-np.log(probability))
        np.testing.assert_allclose(derivatives[e], -ref.eq4_ml_gradient(case["scores"][e], case["targets"][e]))


def test_maximum_likelihood_derivative_is_numeric(case):
    _, derivatives = estimators.maximum_likelihood(case["scores"], case["targets"])
    numeric = numeric_gradient(lambda s: estimators.maximum_likelihood(s, case["targets"])[0].sum(), case["scores"])
    np.testing.assert_allclose(derivatives, numeric, atol=1e-8)


@pytest.mark.parametrize("shift", [0.0, np.array([0.5, -1.0, 0.0, 2.0])])
def test_nce_agrees_with_the_reference(case, shift):
    losses, by_target, by_noise = nce_of(case["scores"], case, shift)
    for e in range(B):
        c = shift[e] if np.ndim(shift) else shift
        arguments = (case["scores"][e], case["targets"][e], case["samples"][e], case["noise"], c)
        assert losses[e] == pytest.approx(-ref.eq13_objective(*arguments))
        summed = np.zeros(V)
        summed[case["targets"][e]] += by_target[e]
        np.add.at(summed, case["samples"][e], by_noise[e])
        np.testing.assert_allclose(summed, -ref.eq13_gradient(*arguments))


def test_nce_derivatives_are_numeric(case):
    def total(scores):
        return nce_of(scores, case)[0].sum()

    _, by_target, by_noise = nce_of(case["scores"], case)
    summed = np.zeros((B, V))
    np.add.at(summed, (np.arange(B), case["targets"]), by_target)
    np.add.at(summed, (np.arange(B)[:, None], case["samples"]), by_noise)
    np.testing.assert_allclose(summed, numeric_gradient(total, case["scores"]), atol=1e-8)


def test_nce_weights_are_between_0_and_1_for_any_score():
    """What makes NCE stable (section 3): no score, however large, gives an infinite or undefined update."""
    huge = np.array([1e4, -1e4, 0.0, 50.0])
    losses, by_target, by_noise = estimators.nce(huge, huge[:, None], np.zeros(4), np.zeros((4, 1)))
    assert np.isfinite(losses).all()
    assert ((by_target >= -1) & (by_target <= 0)).all()
    assert ((by_noise >= 0) & (by_noise <= 1)).all()


def compiled_nce(scores, log_k_noise):
    padded_scores, padded_noise, scratch = kernels.padded_samples(len(scores))
    padded_scores[: len(scores)], padded_noise[: len(scores)] = scores, log_k_noise
    coefficients = np.empty(len(scores), np.float32)
    return kernels.nce_coefficients(padded_scores, padded_noise, scratch, coefficients), coefficients


def test_compiled_nce_agrees(case):
    losses, by_target, by_noise = nce_of(case["scores"], case)
    for e in range(B):
        words = np.append(case["targets"][e], case["samples"][e])
        objective, coefficients = compiled_nce(case["scores"][e, words], case["log_k_noise"][words])
        assert -objective == pytest.approx(losses[e], rel=1e-5)
        np.testing.assert_allclose(coefficients, -np.append(by_target[e], by_noise[e]), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("k", [1, 31, 32, 100, 1000])
def test_compiled_nce_agrees_for_any_number_of_noise_words(k):
    random = np.random.default_rng(k)
    scores, log_k_noise = random.normal(-5, 3, k + 1), random.normal(-5, 1, k + 1)
    loss, by_target, by_noise = estimators.nce(scores[:1], scores[None, 1:], log_k_noise[:1], log_k_noise[None, 1:])
    objective, coefficients = compiled_nce(scores, log_k_noise)
    assert -objective == pytest.approx(loss[0], rel=1e-5)
    np.testing.assert_allclose(coefficients, -np.append(by_target, by_noise), rtol=1e-5, atol=1e-6)


def test_compiled_nce_of_extreme_scores_is_finite():
    objective, coefficients = compiled_nce([-500.0, *[500.0] * 99, 1e30], [0.0] * 101)
    assert np.isfinite(objective)
    np.testing.assert_allclose(coefficients, [1.0, *[-1.0] * 100])


def test_nce_gradient_tends_to_maximum_likelihood_as_k_grows():
    """The limiting case, on samples: with more noise the average NCE derivative nears that of Eq. 4."""
    random = np.random.default_rng(3)
    noise, scores = distribution(random, V), random.normal(size=V)
    scores -= ref.log_sum_exp(scores)  # the limit is of a normalised model
    exact = -ref.eq4_ml_gradient(scores, 2)
    distances = []
    for k in (1, 10, 1000):
        examples = 200_000 // k
        samples = random.choice(V, size=(examples, k), p=noise)
        log_k_noise = np.log(k * noise)
        _, by_target, by_noise = estimators.nce(
            np.full(examples, scores[2]),
            scores[samples],
            np.full(examples, log_k_noise[2]),
            log_k_noise[samples],
        )
        mean = np.zeros(V)
        mean[2] += by_target.mean()
        np.add.at(mean, samples, by_noise / examples)
        distances.append(np.abs(mean - exact).max())
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 0.02


def test_without_log_k_or_log_noise_it_would_not_be_nce(case):
    """The classic mistakes change the answer, so the tests above would catch them."""
    rows = np.arange(B)
    right = nce_of(case["scores"], case)[0]
    for wrong in (np.log(case["noise"]), np.zeros(V)):  # log k forgotten; negative sampling
        losses, *_ = estimators.nce(
            case["scores"][rows, case["targets"]],
            case["scores"][rows[:, None], case["samples"]],
            wrong[case["targets"]],
            wrong[case["samples"]],
        )
        assert np.abs(losses - right).min() > 1e-3
