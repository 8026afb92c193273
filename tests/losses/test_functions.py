"""Every estimator: known values, numeric gradients, agreement with the reference, limits, and common mistakes."""

import numpy as np
import pytest
from tests.losses.test_reference import distribution, numeric_gradient

from ncelm.kernels import steps as kernels
from ncelm.losses import functions as estimators
from ncelm.losses import reference as ref

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


# -- importance sampling -------------------------------------------------------------------------------------------


def importance_of(scores, case):
    rows = np.arange(B)
    return estimators.importance_sampling(
        scores[rows, case["targets"]],
        scores[rows[:, None], case["samples"]],
        np.log(case["noise"])[case["samples"]],
    )


def test_importance_sampling_agrees_with_the_reference(case):
    losses, by_target, by_sample, sizes = importance_of(case["scores"], case)
    for e in range(B):
        arguments = (case["scores"][e], case["targets"][e], case["samples"][e], case["noise"])
        assert losses[e] == pytest.approx(-ref.eq5_objective(*arguments))
        summed = np.zeros(V)
        summed[case["targets"][e]] += by_target[e]
        np.add.at(summed, case["samples"][e], by_sample[e])
        np.testing.assert_allclose(summed, -ref.eq5_importance_gradient(*arguments))
        expected = ref.effective_sample_size(case["scores"][e], case["samples"][e], case["noise"])
        assert sizes[e] == pytest.approx(expected)


def test_importance_sampling_derivatives_are_numeric(case):
    _, by_target, by_sample, _ = importance_of(case["scores"], case)
    summed = np.zeros((B, V))
    np.add.at(summed, (np.arange(B), case["targets"]), by_target)
    np.add.at(summed, (np.arange(B)[:, None], case["samples"]), by_sample)
    numeric = numeric_gradient(lambda s: importance_of(s, case)[0].sum(), case["scores"])
    np.testing.assert_allclose(summed, numeric, atol=1e-8)


def test_importance_sampling_from_the_model_itself_is_exact():
    """Q = P: all weights are alike, every sample counts, and the expectation is that of Eq. 4."""
    random = np.random.default_rng(4)
    scores = random.normal(size=V)
    model = ref.eq1_probabilities(scores)
    samples = random.choice(V, size=(100_000, 5), p=model)
    examples = len(samples)
    losses, _, by_sample, sizes = estimators.importance_sampling(
        np.full(examples, scores[2]), scores[samples], np.log(model)[samples]
    )
    np.testing.assert_allclose(losses, -np.log(model[2]))
    np.testing.assert_allclose(sizes, 5.0)
    np.testing.assert_allclose(by_sample, 0.2)
    mean = np.zeros(V)
    np.add.at(mean, samples, by_sample / examples)
    np.testing.assert_allclose(mean, model, atol=0.003)


def test_importance_sampling_tends_to_maximum_likelihood_with_many_samples():
    random = np.random.default_rng(4)
    scores, proposal = random.normal(size=V), distribution(random, V)
    distances = []
    for k in (3, 30, 100_000):
        samples = random.choice(V, size=(1, k), p=proposal)
        _, _, by_sample, _ = estimators.importance_sampling(np.zeros(1), scores[samples], np.log(proposal)[samples])
        mean = np.zeros(V)
        np.add.at(mean, samples, by_sample)
        distances.append(np.abs(mean - ref.eq1_probabilities(scores)).max())
    assert distances[2] < 0.01 < distances[1] < distances[0]


def test_importance_sampling_in_log_space_has_no_overflow():
    losses, _, by_sample, sizes = estimators.importance_sampling(
        np.zeros(1), np.array([[5000.0, 4000.0]]), np.array([[-10.0, -10.0]])
    )
    assert np.isfinite(losses).all()
    assert by_sample.tolist() == [[1.0, 0.0]]
    assert sizes[0] == 1.0
    coefficients = np.empty(3, np.float32)
    scores, noise = np.array([0.0, 5000.0, 4000.0], np.float32), np.full(3, -10.0, np.float32)
    objective, effective, largest, heaviest = kernels.importance_coefficients(scores, noise, coefficients)
    assert objective == pytest.approx(-losses[0])
    assert coefficients.tolist() == [1.0, -1.0, 0.0]
    assert (effective, largest, heaviest) == (1.0, 5010.0, 1)


def test_compiled_importance_sampling_agrees(case):
    losses, _, by_sample, sizes = importance_of(case["scores"], case)
    for e in range(B):
        words = np.append(case["targets"][e], case["samples"][e])
        coefficients = np.empty(K + 1, np.float32)
        objective, effective, largest, heaviest = kernels.importance_coefficients(
            case["scores"][e, words].astype(np.float32), np.log(case["noise"][words]).astype(np.float32), coefficients
        )
        assert -objective == pytest.approx(losses[e], rel=1e-5)
        np.testing.assert_allclose(coefficients, [1.0, *-by_sample[e]], rtol=1e-5)
        assert effective == pytest.approx(sizes[e], rel=1e-5)
        log_v = case["scores"][e, words[1:]] - np.log(case["noise"][words[1:]])
        assert largest == pytest.approx(log_v.max(), rel=1e-5)
        assert log_v[heaviest - 1] == log_v.max()


def test_a_unigram_model_learned_by_importance_sampling_from_the_unigram_does_not_diverge():
    """The one case of section 4 that went well for the paper: the model nears its proposal, all weights are alike."""
    random = np.random.default_rng(0)
    unigram = distribution(random, 50)
    biases = np.zeros(50)
    sizes = []
    for step in range(3000):
        targets, samples = random.choice(50, 20, p=unigram), random.choice(50, (20, 25), p=unigram)
        _, by_target, by_sample, effective = estimators.importance_sampling(
            biases[targets], biases[samples], np.log(unigram)[samples]
        )
        gradient = np.zeros(50)
        np.add.at(gradient, targets, by_target)
        np.add.at(gradient, samples, by_sample)
        biases -= 0.05 / (1 + step / 300) * gradient
        sizes.append(effective.mean())
    learned = ref.eq1_probabilities(biases)
    assert np.abs(learned - unigram).max() < 0.01
    assert sizes[-1] > 23.0 > sizes[0]


# -- the family --------------------------------------------------------------------------------------------------------


def ratios(case, k=K):
    rows, log_k_noise = np.arange(B), np.log(k * case["noise"])
    return (
        case["scores"][rows, case["targets"]] - log_k_noise[case["targets"]],
        case["scores"][rows[:, None], case["samples"]] - log_k_noise[case["samples"]],
    )


@pytest.mark.parametrize("member", estimators.FAMILY)
def test_every_member_agrees_with_the_reference_and_is_numeric(case, member):
    contrast = estimators.FAMILY[member]
    target, noise = ratios(case)
    losses, by_target, by_noise = estimators.contrastive(target, noise, contrast)
    for e in range(B):
        arguments = (member, case["scores"][e], case["targets"][e], case["samples"][e], case["noise"])
        assert losses[e] == pytest.approx(-ref.family_objective(*arguments))
        summed = np.zeros(V)
        summed[case["targets"][e]] += by_target[e]
        np.add.at(summed, case["samples"][e], by_noise[e])
        np.testing.assert_allclose(summed, -ref.family_gradient(*arguments))
        words = np.append(case["targets"][e], case["samples"][e])
        coefficients = np.empty(K + 1, np.float32)
        log_k_noise = np.log(K * case["noise"][words]).astype(np.float32)
        code = kernels.MEMBERS.index(member)
        scores = case["scores"][e, words].astype(np.float32)
        objective = kernels.family_coefficients(code, scores, log_k_noise, coefficients)
        assert -objective == pytest.approx(losses[e], rel=1e-5)
        np.testing.assert_allclose(coefficients, [-by_target[e], *-by_noise[e]], rtol=1e-4)
    numeric = numeric_gradient(lambda u: estimators.contrastive(u, noise, contrast)[0].sum(), target)
    np.testing.assert_allclose(by_target, numeric, rtol=1e-5, atol=1e-7)
    numeric = numeric_gradient(lambda u: estimators.contrastive(target, u, contrast)[0].sum(), noise)
    np.testing.assert_allclose(by_noise, numeric, rtol=1e-5, atol=1e-7)


def test_nce_is_a_member_exactly(case):
    for ours, nce in zip(
        estimators.contrastive(*ratios(case), estimators.FAMILY["nce"]), nce_of(case["scores"], case), strict=True
    ):
        np.testing.assert_allclose(ours, nce, rtol=1e-12)


def test_importance_sampling_is_a_member_exactly(case):
    """With the constant that makes dJ/dc_h = 0, the weights become those of Eq. 5."""
    target, noise = ratios(case)
    c = -np.logaddexp.reduce(noise, axis=1)  # Σ q = 1
    _, by_target, by_noise = estimators.contrastive(target + c, noise + c[:, None], estimators.FAMILY["importance"])
    np.testing.assert_allclose(by_target + by_noise.sum(axis=1), 0.0, atol=1e-12)  # dJ/dc_h
    _, is_target, is_samples, _ = importance_of(case["scores"], case)
    np.testing.assert_allclose(by_target, is_target)
    np.testing.assert_allclose(by_noise, is_samples)


@pytest.mark.parametrize("member", estimators.FAMILY)
def test_every_member_is_at_rest_only_where_the_model_is_right(member):
    """In expectation the gradient is up(q) (P_d − P_θ): as Eq. 11, with another weight (the condition on g1 and g2)."""
    random = np.random.default_rng(8)
    data, noise = distribution(random, V), distribution(random, V)
    up = ref.FAMILY[member][2]
    for scores, at_rest in ((np.log(data), True), (random.normal(size=V), False)):
        q = np.exp(scores) / (K * noise)
        gradient = data * up(q) - K * noise * q * up(q)
        assert (np.abs(gradient).max() < 1e-12) == at_rest


@pytest.mark.parametrize("member", estimators.FAMILY)
def test_every_member_recovers_a_known_distribution(member):
    random = np.random.default_rng(0)
    data, noise, k = distribution(random, 20), distribution(random, 20), 10
    scores = np.log(noise)
    for step in range(4000):
        targets, samples = random.choice(20, 50, p=data), random.choice(20, (50, k), p=noise)
        _, by_target, by_noise = estimators.contrastive(
            scores[targets] - np.log(k * noise[targets]),
            scores[samples] - np.log(k * noise[samples]),
            estimators.FAMILY[member],
        )
        gradient = np.zeros(20)
        np.add.at(gradient, targets, by_target)
        np.add.at(gradient, samples, by_noise)
        scores -= 0.02 / (1 + step / 200) * np.clip(gradient, -20, 20)
    assert np.abs(np.exp(scores) - data).max() < 0.02  # and so it is normalised, too


# -- compiled ----------------------------------------------------------------------------------------------------------


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


def test_compiled_shared_noise_agrees():
    """Noise words that a minibatch shares: Eq. 13 for each example, with the same noise words."""
    random = np.random.default_rng(7)
    k = 37
    products, biases, log_k_noise = random.normal(size=(3, k)), random.normal(size=k), random.normal(size=k)
    draws = random.integers(1, 4, size=k)  # a word that was drawn n times counts n times
    scores = products.astype(np.float32)
    shifts = (biases - log_k_noise).astype(np.float32)
    total = kernels.shared_noise_coefficients(scores, shifts, draws.astype(np.float32))
    drawn = np.repeat(np.arange(k), draws)
    losses, _, by_noise = estimators.nce(
        np.full(3, 50.0), (products + biases)[:, drawn], np.zeros(3), np.tile(log_k_noise[drawn], (3, 1))
    )
    assert -total == pytest.approx(losses.sum(), rel=1e-5)
    firsts = np.cumsum(draws) - draws
    np.testing.assert_allclose(scores, -by_noise[:, firsts] * draws, rtol=1e-5, atol=1e-6)


def test_log_of_a_product_is_the_sum_of_logs():
    random = np.random.default_rng(7)
    for size in (0, 1, 5, 32, 1001):
        wrong = 1 - random.random(size).astype(np.float32) ** 4
        expected = np.log(np.maximum(1 - wrong.astype(np.float64), 1e-9)).sum()
        assert kernels.log_of_rights(wrong) == pytest.approx(expected, rel=1e-6)
