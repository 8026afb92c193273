"""The reference implementation against claims of the papers and against numeric derivatives."""

import numpy as np
import pytest
from tests.helpers import numeric_gradient, random_distribution

from ncelm.losses import reference as ref

V, D, C = 6, 3, 2


@pytest.fixture
def random():
    return np.random.default_rng(0)


def test_eq1_is_a_distribution_even_for_huge_scores():
    probabilities = ref.eq1_probabilities(np.array([1000.0, 999.0, -1000.0]))
    assert probabilities.sum() == pytest.approx(1.0)
    assert probabilities[0] / probabilities[1] == pytest.approx(np.e)


@pytest.mark.parametrize("diagonal", [False, True])
def test_eq2_and_eq3_by_hand(diagonal):
    rows = np.array([[1.0, 2.0], [3.0, 5.0]])
    matrices = np.array([[2.0, 1.0], [1.0, 0.5]]) if diagonal else np.array([[[2.0, 0.5], [0.0, 1.0]], np.eye(2)])
    predicted = ref.eq2_prediction(matrices, rows)
    np.testing.assert_allclose(predicted, [5.0, 4.5] if diagonal else [6.0, 7.0])
    np.testing.assert_allclose(ref.eq3_scores(np.array([5.0, 4.5]), np.array([[1.0, 2.0]]), np.array([0.25])), [14.25])


def test_eq4_is_the_derivative_of_the_log_likelihood(random):
    scores = random.normal(size=V)
    numeric = numeric_gradient(lambda s: np.log(ref.eq1_probabilities(s)[2]), scores)
    np.testing.assert_allclose(ref.eq4_ml_gradient(scores, 2), numeric, atol=1e-8)


# -- importance sampling -----------------------------------------------------------------------------------------------


def test_eq5_is_the_derivative_of_its_objective(random):
    scores, proposal, samples = random.normal(size=V), random_distribution(random, V), np.array([1, 4, 4, 0])
    numeric = numeric_gradient(lambda s: ref.eq5_objective(s, 4, samples, proposal), scores)
    np.testing.assert_allclose(ref.eq5_importance_gradient(scores, 4, samples, proposal), numeric, atol=1e-8)


def test_eq5_with_every_word_as_a_sample_is_eq4(random):
    """A uniform proposal that happens to give each word once."""
    scores, everything, uniform = random.normal(size=V), np.arange(V), np.full(V, 1.0 / V)
    gradient = ref.eq5_importance_gradient(scores, 2, everything, uniform)
    np.testing.assert_allclose(gradient, ref.eq4_ml_gradient(scores, 2), atol=1e-12)
    objective = ref.eq5_objective(scores, 2, everything, uniform)
    assert objective == pytest.approx(np.log(ref.eq1_probabilities(scores)[2]))


def test_eq5_with_the_model_as_proposal_is_exact_in_expectation(random):
    scores = random.normal(size=V)
    model = ref.eq1_probabilities(scores)
    estimates = [ref.eq5_importance_gradient(scores, 0, random.choice(V, 5, p=model), model) for _ in range(20_000)]
    np.testing.assert_allclose(np.mean(estimates, axis=0), ref.eq4_ml_gradient(scores, 0), atol=0.01)


def test_effective_sample_size_by_hand():
    scores, uniform = np.log([1.0, 1.0, 3.0]), np.full(3, 1 / 3)
    assert ref.effective_sample_size(scores, np.array([0, 1, 1]), uniform) == pytest.approx(3.0)
    assert ref.effective_sample_size(scores, np.array([0, 2]), uniform) == pytest.approx(1.6)  # 4² / (1 + 9)


# -- NCE ---------------------------------------------------------------------------------------------------------------


def test_eq7_is_eq6_with_the_model_in_place_of_the_data(random):
    data, noise = random_distribution(random, V), random_distribution(random, V)
    np.testing.assert_allclose(ref.eq7_model_posterior(np.log(data), noise, 5), ref.eq6_posterior(data, noise, 5))


def test_eq6_by_hand():
    np.testing.assert_allclose(ref.eq6_posterior(np.array([0.5, 0.2]), np.array([0.1, 0.2]), 3), [0.625, 0.25])


def test_eq8_constant_scales_the_model(random):
    scores = random.normal(size=V)
    np.testing.assert_allclose(ref.eq8_model(scores, -ref.log_sum_exp(scores)), ref.eq1_probabilities(scores))


@pytest.mark.parametrize("k", [1, 5, 25])
def test_eq10_and_eq11_are_the_derivative_of_eq9(random, k):
    scores, data, noise = random.normal(size=V), random_distribution(random, V), random_distribution(random, V)
    numeric = numeric_gradient(lambda s: ref.eq9_objective(s, data, noise, k), scores)
    np.testing.assert_allclose(ref.eq10_gradient(scores, data, noise, k), numeric, atol=1e-8)
    np.testing.assert_allclose(ref.eq11_gradient(scores, data, noise, k), numeric, atol=1e-8)


def test_eq9_is_largest_at_the_data_distribution_whatever_k(random):
    """NCE finds the normalised model by itself: there is no constraint on the sum."""
    data, noise = random_distribution(random, V), random_distribution(random, V)
    for k in (1, 7):
        np.testing.assert_allclose(ref.eq10_gradient(np.log(data), data, noise, k), 0.0, atol=1e-12)
        largest = ref.eq9_objective(np.log(data), data, noise, k)
        for _ in range(20):
            assert ref.eq9_objective(np.log(data) + 0.1 * random.normal(size=V), data, noise, k) < largest


def test_eq11_tends_to_eq12_as_k_grows(random):
    scores, data, noise = random.normal(size=V), random_distribution(random, V), random_distribution(random, V)
    distances = [
        np.abs(ref.eq11_gradient(scores, data, noise, k) - ref.eq12_limit(scores, data)).max()
        for k in (10, 1_000, 100_000)
    ]
    assert distances[0] > 10 * distances[1] > 100 * distances[2]
    assert distances[2] < 1e-3


def test_eq12_is_the_maximum_likelihood_gradient_of_a_normalised_model(random):
    scores, data = random.normal(size=V), random_distribution(random, V)
    scores = scores - ref.log_sum_exp(scores)
    by_eq4 = sum(p * ref.eq4_ml_gradient(scores, w) for w, p in enumerate(data))
    np.testing.assert_allclose(ref.eq12_limit(scores, data), by_eq4, atol=1e-12)


def test_eq13_is_the_derivative_of_its_objective(random):
    scores, noise, samples = random.normal(size=V), random_distribution(random, V), np.array([1, 4, 4, 0])
    numeric = numeric_gradient(lambda s: ref.eq13_objective(s, 4, samples, noise, 0.3), scores)
    np.testing.assert_allclose(ref.eq13_gradient(scores, 4, samples, noise, 0.3), numeric, atol=1e-8)


def test_eq13_averages_to_eq11(random):
    """Summed over all targets and noise words with their probabilities: k noise words are k times one of them."""
    scores, data, noise = random.normal(size=V), random_distribution(random, V), random_distribution(random, V)
    mean = np.zeros(V)
    for target in range(V):
        for first in range(V):
            for second in range(V):
                weight = data[target] * noise[first] * noise[second]
                mean += weight * ref.eq13_gradient(scores, target, np.array([first, second]), noise, 0.3)
    np.testing.assert_allclose(mean, ref.eq11_gradient(scores, data, noise, 2, 0.3), atol=1e-12)


# -- the family --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ref.FAMILY)
def test_family_gradients_are_derivatives(random, member):
    scores, noise, samples = random.normal(size=V), random_distribution(random, V), np.array([1, 4, 4, 0])
    numeric = numeric_gradient(lambda s: ref.family_objective(member, s, 4, samples, noise, 0.3), scores)
    gradient = ref.family_gradient(member, scores, 4, samples, noise, 0.3)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("member", ref.FAMILY)
def test_members_fulfil_the_condition_of_the_family(member):
    """g2'(q) = q g1'(q), by numeric derivatives of both."""
    g1, g2, up = ref.FAMILY[member]
    q = np.array([0.05, 0.3, 1.0, 4.0])
    slope1, slope2 = ((g(q * (1 + 1e-6)) - g(q * (1 - 1e-6))) / (2e-6 * q) for g in (g1, g2))
    np.testing.assert_allclose(slope2, q * slope1, rtol=1e-5)
    np.testing.assert_allclose(up(q), q * slope1, rtol=1e-5)


def test_nce_is_a_member_of_the_family(random):
    scores, noise, samples = random.normal(size=V), random_distribution(random, V), np.array([1, 4, 4, 0])
    arguments = (scores, 4, samples, noise, 0.3)
    assert ref.family_objective("nce", *arguments) == pytest.approx(ref.eq13_objective(*arguments))
    np.testing.assert_allclose(ref.family_gradient("nce", *arguments), ref.eq13_gradient(*arguments), atol=1e-12)


# -- ranking and the log Z penalty -------------------------------------------------------------------------------------


def test_ranking_by_hand():
    """exp(s) / Pn is 4 for the target and 2, 2 for the noise words: the target's share is one half."""
    scores, noise = np.log([2.0, 0.5, 1.0]), np.array([0.5, 0.25, 0.25])
    samples = np.array([1, 1])
    assert ref.ranking_objective(scores, 0, samples, noise) == pytest.approx(np.log(0.5))
    np.testing.assert_allclose(ref.ranking_gradient(scores, 0, samples, noise), [0.5, -0.5, 0.0], atol=1e-12)


def test_ranking_gradient_is_the_derivative(random):
    scores, noise, samples = random.normal(size=V), random_distribution(random, V), np.array([1, 4, 4, 0])
    numeric = numeric_gradient(lambda s: ref.ranking_objective(s, 4, samples, noise), scores)
    np.testing.assert_allclose(ref.ranking_gradient(scores, 4, samples, noise), numeric, atol=1e-8)


def test_log_z_by_hand():
    """exp(s) / Pn is 4 and 2, on average 3."""
    scores, noise = np.log([2.0, 0.5, 1.0]), np.array([0.5, 0.25, 0.25])
    assert ref.log_z_estimate(scores, np.array([0, 1]), noise) == pytest.approx(np.log(3.0))
    gradient = ref.log_z_penalty_gradient(scores, np.array([0, 1]), noise)
    np.testing.assert_allclose(gradient, 2 * np.log(3.0) * np.array([2 / 3, 1 / 3, 0.0]))


def test_log_z_penalty_gradient_is_the_derivative(random):
    scores, noise, samples = random.normal(size=V), random_distribution(random, V), np.array([1, 4, 4, 0])
    numeric = numeric_gradient(lambda s: ref.log_z_estimate(s, samples, noise) ** 2, scores)
    np.testing.assert_allclose(ref.log_z_penalty_gradient(scores, samples, noise), numeric, atol=1e-8)


def test_the_estimate_of_z_is_unbiased(random):
    scores, noise = random.normal(size=V), random_distribution(random, V)
    mean = sum(
        noise[a] * noise[b] * np.exp(ref.log_z_estimate(scores, np.array([a, b]), noise))
        for a in range(V)
        for b in range(V)
    )
    assert mean == pytest.approx(np.exp(ref.log_sum_exp(scores)))


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_bigram_noise_by_hand():
    noise = ref.bigram_noise(np.array([3.0, 1.0, 0.0]), np.array([0.25, 0.25, 0.5]), 4.0)
    np.testing.assert_allclose(noise, [0.5, 0.25, 0.25])


def test_eq14_weighs_contexts_by_their_frequency():
    assert ref.eq14_objective(np.array([0.25, 0.75]), np.array([4.0, 8.0])) == pytest.approx(7.0)


def test_eq15_gives_the_paper_s_examples():
    assert ref.eq15_speedup(2, 100, 10_000, 25) == pytest.approx(45, abs=0.5)
    assert ref.eq15_speedup(2, 100, 10_000, 25, diagonal=True) == pytest.approx(370, abs=1)


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("dropout", [False, True])
def test_parameter_gradients_are_the_derivatives_of_the_objective(random, diagonal, dropout):
    parameters = {
        "context_vectors": random.normal(size=(V + 1, D)),
        "target_vectors": random.normal(size=(V, D)),
        "biases": random.normal(size=V),
        "matrices": random.normal(size=(C, D) if diagonal else (C, D, D)),
    }
    contexts, targets = np.array([[0, 1], [3, 3], [V, 2]]), [2, 5, 0]
    samples, noise = np.array([[1, 2], [5, 5], [4, 0]]), random_distribution(random, V)
    masks = np.array([[2.0, 0.0, 2.0], [0.0, 2.0, 2.0], [2.0, 2.0, 2.0]]) if dropout else np.ones((3, D))
    examples = list(zip(contexts, targets, samples, masks, strict=True))

    def scores(p, context, mask):
        predicted = mask * ref.eq2_prediction(p["matrices"], p["context_vectors"][context])
        return ref.eq3_scores(predicted, p["target_vectors"], p["biases"])

    def objective(p):
        return sum(ref.eq13_objective(scores(p, h, mask), w, x, noise) for h, w, x, mask in examples)

    dJ_ds = [ref.eq13_gradient(scores(parameters, h, mask), w, x, noise) for h, w, x, mask in examples]
    gradients = ref.parameter_gradients(parameters, contexts, np.array(dJ_ds), masks if dropout else 1.0)
    for name in parameters:
        numeric = numeric_gradient(lambda value, name=name: objective(parameters | {name: value}), parameters[name])
        np.testing.assert_allclose(gradients[name], numeric, atol=1e-6)


# -- further sampled losses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hits", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_sampled_softmax_gradient_is_the_derivative(random, hits, smoothing):
    scores, noise = random.normal(size=V), random_distribution(random, V)
    samples = np.array([2, 4, 4, 0])  # 2 is the target
    arguments = (2, samples, noise, hits, smoothing)
    numeric = numeric_gradient(lambda s: ref.sampled_softmax_objective(s, *arguments), scores)
    np.testing.assert_allclose(ref.sampled_softmax_gradient(scores, *arguments), numeric, atol=1e-8)


def test_the_denominator_of_the_sampled_softmax_is_unbiased(random):
    """Over all samples of one class, E[Ẑ] = Z, if the target is left out of the samples."""
    scores, noise = random.normal(size=V), random_distribution(random, V)
    z = [np.exp(scores[1] - ref.sampled_softmax_objective(scores, 1, np.array([w]), noise)) for w in range(V)]
    assert noise @ z == pytest.approx(np.exp(scores).sum())


@pytest.mark.parametrize("hits", [False, True])
def test_the_negative_sampling_gradient_is_the_derivative(random, hits):
    scores, samples = random.normal(size=V), np.array([2, 4, 4, 0])
    numeric = numeric_gradient(lambda s: ref.negative_sampling_objective(s, 2, samples, hits), scores)
    np.testing.assert_allclose(ref.negative_sampling_gradient(scores, 2, samples, hits), numeric, atol=1e-8)


def test_the_optimum_of_negative_sampling_is_shifted_pointwise_mutual_information(random):
    """The expected gradient is 0 there: data and noise enter with their probabilities."""
    data, noise, k = random_distribution(random, V), random_distribution(random, V), 3
    scores = ref.negative_sampling_optimum(data, noise, k)
    sigma = 1.0 / (1.0 + np.exp(-scores))
    np.testing.assert_allclose(data * (1.0 - sigma) - k * noise * sigma, 0.0, atol=1e-12)


def test_the_in_batch_objective_is_ranking_with_the_other_items_as_noise(random):
    scores, frequencies, ids = random.normal(size=V), random_distribution(random, V), np.array([3, 1, 3, 0])
    found = ref.in_batch_objective(scores[ids], 1, ids, frequencies[ids], hits=True)
    assert found == pytest.approx(ref.ranking_objective(scores, 1, ids[[0, 2, 3]], frequencies))
    # without hits, the other item 3 is left out
    found = ref.in_batch_objective(scores[ids], 0, ids, frequencies[ids])
    assert found == pytest.approx(ref.ranking_objective(scores, 3, ids[[1, 3]], frequencies))


def test_the_log_uniform_noise_is_a_distribution():
    noise = ref.log_uniform_noise(1000)
    assert noise.sum() == pytest.approx(1.0)
    assert noise[0] / noise[1] == pytest.approx(np.log(2.0) / np.log(1.5))
