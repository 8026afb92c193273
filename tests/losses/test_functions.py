"""Losses: the reference, numeric derivatives, limiting cases, recovery of a known distribution, classic mistakes."""

from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from tests.helpers import numeric_gradient, random_distribution

from ncelm.losses import functions
from ncelm.losses import reference as ref

B, V, K = 4, 7, 3
LOG_NORMALIZERS = np.array([0.5, -1.0, 0.0, 2.0])
COEFFICIENT = 0.3


class Case(NamedTuple):
    """Scores of all words, targets and noise words."""

    scores: np.ndarray  # (B, V)
    targets: np.ndarray  # (B,)
    samples: np.ndarray  # (B, K)
    noise: np.ndarray  # (V,)

    @property
    def log_noise(self):
        return np.log(self.noise)

    @property
    def log_k_noise(self):
        return np.log(self.samples.shape[1] * self.noise)

    def split(self, scores):
        """Return the scores of targets, (B,), and of noise words, (B, K)."""
        rows = np.arange(len(self.targets))
        return scores[rows, self.targets], scores[rows[:, None], self.samples]

    def of(self, values):
        """Return values (V,) of targets and of noise words."""
        return values[self.targets], values[self.samples]

    def spread(self, by_target, by_noise):
        """Return derivatives by the scores of all words, (B, V): a word that occurs twice has the sum of both."""
        summed, rows = np.zeros(self.scores.shape), np.arange(len(self.targets))
        np.add.at(summed, (rows, self.targets), by_target)
        np.add.at(summed, (rows[:, None], self.samples), by_noise)
        return summed


@pytest.fixture
def case():
    random = np.random.default_rng(1)
    samples = random.integers(V, size=(B, K))
    targets = random.integers(V, size=B)
    samples[0] = targets[0], targets[0], (targets[0] + 1) % V  # noise words that equal the target are kept
    samples[1] = 2  # the same noise word three times
    return Case(random.normal(size=(B, V)), targets, samples, random_distribution(random, V))


# Each takes scores (B, V) and a case; returns losses (B,) and derivatives (B, V).


def maximum_likelihood(scores, case):
    return functions.maximum_likelihood(scores, case.targets)


def nce(scores, case, log_normalizers=0.0):
    loss, *derivatives = functions.nce(*case.split(scores), *case.of(case.log_k_noise), log_normalizers)
    return loss, case.spread(*derivatives)


def importance(scores, case):
    target, samples = case.split(scores)
    loss, by_target, by_sample, _ = functions.importance_sampling(target, samples, case.log_noise[case.samples])
    return loss, case.spread(by_target, by_sample)


def ranking(scores, case):
    loss, *derivatives = functions.ranking(*case.split(scores), *case.of(case.log_noise))
    return loss, case.spread(*derivatives)


def log_z_penalty(scores, case):
    _, samples = case.split(scores)
    penalty, by_noise = functions.log_z_penalty(samples, case.log_noise[case.samples])
    return penalty, case.spread(np.zeros(len(case.targets)), by_noise)


def penalized(loss):
    def total(scores, case):
        (losses, derivatives), (penalties, more) = loss(scores, case), log_z_penalty(scores, case)
        return losses + COEFFICIENT * penalties, derivatives + COEFFICIENT * more

    return total


def family(member):
    def contrastive(scores, case):
        (target, noise), (target_noise, noise_noise) = case.split(scores), case.of(case.log_k_noise)
        contrast = functions.FAMILY[member]
        loss, *derivatives = functions.contrastive(target - target_noise, noise - noise_noise, contrast)
        return loss, case.spread(*derivatives)

    return contrastive


LOSSES = {
    "ml": maximum_likelihood,
    "nce": nce,
    "nce with log-normalizers": lambda scores, case: nce(scores, case, LOG_NORMALIZERS),
    "importance": importance,
    "ranking": ranking,
    "log Z penalty": log_z_penalty,
    "penalized nce": penalized(nce),
    "penalized ranking": penalized(ranking),
    **{f"family {member}": family(member) for member in functions.FAMILY},
}


def reference(name, scores, target, samples, noise, c):
    """Return the loss and its derivatives of one example by the equations: scores (V,)."""
    arguments = (scores, target, samples, noise)
    kind, _, member = name.partition(" ")
    if kind == "penalized":
        loss, gradient = reference(member, *arguments, c)
        penalty, more = reference("log Z penalty", *arguments, c)
        return loss + COEFFICIENT * penalty, gradient + COEFFICIENT * more
    match kind:
        case "ml":
            return -np.log(ref.eq1_probabilities(scores)[target]), -ref.eq4_ml_gradient(scores, target)
        case "nce":
            c = c if member else 0.0
            return -ref.eq13_objective(*arguments, c), -ref.eq13_gradient(*arguments, c)
        case "importance":
            return -ref.eq5_objective(*arguments), -ref.eq5_importance_gradient(*arguments)
        case "ranking":
            return -ref.ranking_objective(*arguments), -ref.ranking_gradient(*arguments)
        case "log":
            sampled = (scores, samples, noise)
            return ref.log_z_estimate(*sampled) ** 2, ref.log_z_penalty_gradient(*sampled)
        case "family":
            return -ref.family_objective(member, *arguments), -ref.family_gradient(member, *arguments)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_agree_with_the_reference(case, name):
    losses, derivatives = LOSSES[name](case.scores, case)
    for e in range(B):
        loss, gradient = reference(
            name, case.scores[e], case.targets[e], case.samples[e], case.noise, LOG_NORMALIZERS[e]
        )
        assert losses[e] == pytest.approx(loss)
        np.testing.assert_allclose(derivatives[e], gradient, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_derivatives_are_numeric(case, name):
    _, derivatives = LOSSES[name](case.scores, case)
    numeric = numeric_gradient(lambda scores: LOSSES[name](scores, case)[0].sum(), case.scores)
    np.testing.assert_allclose(derivatives, numeric, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["ml", "nce", "importance", "ranking", "log Z penalty"])
def test_extreme_scores_have_finite_losses_and_derivatives(case, name):
    """Section 3: no score gives an infinite or undefined update. The derivatives of all but the penalty are bounded."""
    scores = np.random.default_rng(0).choice([1e4, -1e4, 0.0, 50.0], size=(B, V))
    losses, derivatives = LOSSES[name](scores, case)
    assert np.isfinite(losses).all()
    assert np.isfinite(derivatives).all()
    if name != "log Z penalty":
        assert np.abs(derivatives).max() <= K + 1


def test_nce_weights_are_between_0_and_1_for_any_score():
    huge = np.array([1e4, -1e4, 0.0, 50.0])
    losses, by_target, by_noise = functions.nce(huge, huge[:, None], np.zeros(4), np.zeros((4, 1)))
    np.testing.assert_allclose(losses, [1e4, 1e4, 2 * np.log(2), 50.0])
    np.testing.assert_allclose(by_target, [0.0, -1.0, -0.5, 0.0], atol=1e-12)
    np.testing.assert_allclose(by_noise[:, 0], [1.0, 0.0, 0.5, 1.0], atol=1e-12)


# -- expectations, exactly: the sum over all targets and noise words with their probabilities --------------------------


def expected_derivative(loss, scores, data, noise, k):
    """Return the expectation of the derivatives by the scores, (V,): scores (V,)."""
    drawn = np.array(list(product(range(len(data)), repeat=k + 1)))  # (V^(k + 1), k + 1)
    probabilities = data[drawn[:, 0]] * noise[drawn[:, 1:]].prod(axis=1)
    examples = Case(np.tile(scores, (len(drawn), 1)), drawn[:, 0], drawn[:, 1:], noise)
    _, derivatives = loss(examples.scores, examples)
    return probabilities @ derivatives


CONSISTENT = ["nce", "ranking", *(f"family {member}" for member in functions.FAMILY)]


@pytest.mark.parametrize("name", CONSISTENT)
@pytest.mark.parametrize("k", [1, 2])
def test_losses_are_at_rest_only_where_the_model_is_right(name, k):
    """Their expected derivative is 0 at log P_d; for ranking, at log P_d plus any constant."""
    random = np.random.default_rng(8)
    data, noise, size = random_distribution(random, 5), random_distribution(random, 5), 5

    def gradient(scores):
        return np.abs(expected_derivative(LOSSES[name], scores, data, noise, k)).max()

    assert gradient(np.log(data)) < 1e-12
    assert (gradient(np.log(data) + 0.5) < 1e-12) == (name == "ranking")
    for word in range(size):
        assert gradient(np.log(data) + 0.1 * (np.arange(size) == word)) > 1e-3
    assert gradient(np.log(noise)) > 1e-3
    assert gradient(np.log(data) - np.log(noise)) > 1e-3


def test_the_expected_derivative_of_nce_is_eq11():
    random = np.random.default_rng(8)
    scores, data, noise = random.normal(size=V), random_distribution(random, V), random_distribution(random, V)
    for k in (1, 3):
        expected = expected_derivative(nce, scores, data, noise, k)
        np.testing.assert_allclose(expected, -ref.eq11_gradient(scores, data, noise, k), atol=1e-12)


def test_a_penalty_has_its_minimum_where_the_normalizer_is_1():
    """Of a model that is its own noise distribution, up to a factor: each weight is Z, and so is the estimate."""
    random = np.random.default_rng(3)
    model = random_distribution(random, V)
    samples = random.integers(V, size=(1, K))
    for log_z in (-0.5, 0.0, 1.5):
        case = Case(log_z + np.log(model)[None], np.zeros(1, int), samples, model)
        penalty, derivatives = log_z_penalty(case.scores, case)
        assert penalty[0] == pytest.approx(log_z**2)
        assert derivatives.sum() == pytest.approx(2 * log_z)


# -- limiting cases ----------------------------------------------------------------------------------------------------


def test_nce_gradient_tends_to_maximum_likelihood_as_k_grows():
    """The expectation over noise words, exactly: k times that of one noise word."""
    random = np.random.default_rng(3)
    noise, scores = random_distribution(random, V), random.normal(size=V)
    scores -= ref.log_sum_exp(scores)  # the limit is of a normalised model
    exact = -ref.eq4_ml_gradient(scores, 2)
    distances = []
    for k in (1, 10, 100, 1000):
        log_k_noise = np.log(k * noise)
        _, by_target, by_noise = functions.nce(
            np.full(V, scores[2]), scores[:, None], np.full(V, log_k_noise[2]), log_k_noise[:, None]
        )
        expected = k * noise * by_noise[:, 0]
        expected[2] += by_target[2]
        distances.append(np.abs(expected - exact).max())
    assert distances[0] > distances[1] > 5 * distances[2] > 25 * distances[3]
    assert distances[3] < 0.01


def everything_as_noise(scores, target, copies=1, without_target=False):
    """Return a case with every word of the vocabulary as a noise word, `copies` times; Pn is uniform."""
    words = np.delete(np.arange(V), target) if without_target else np.arange(V)
    return Case(scores[None], np.array([target]), np.tile(words, copies)[None], np.full(V, 1.0 / V))


def test_ranking_against_all_other_words_is_maximum_likelihood():
    scores = np.random.default_rng(3).normal(size=V)
    for target in range(V):
        case = everything_as_noise(scores, target, without_target=True)
        (loss,), (gradient,) = ranking(case.scores, case)
        assert loss == pytest.approx(-np.log(ref.eq1_probabilities(scores)[target]))
        np.testing.assert_allclose(gradient, -ref.eq4_ml_gradient(scores, target), atol=1e-12)


def test_ranking_tends_to_maximum_likelihood_with_many_noise_words():
    """The share of the target itself among the k + 1 words tends to 0."""
    scores = np.random.default_rng(3).normal(size=V)
    distances = []
    for copies in (1, 10, 100):
        case = everything_as_noise(scores, 2, copies)
        _, (gradient,) = ranking(case.scores, case)
        distances.append(np.abs(gradient + ref.eq4_ml_gradient(scores, 2)).max())
    assert distances[0] > 5 * distances[1] > 25 * distances[2]
    assert distances[2] < 0.01


def test_ranking_of_two_words_is_logistic(case):
    """k = 1: the logistic loss of the difference of s − log Pn."""
    pairs = case._replace(samples=case.samples[:, 2:])
    losses, _ = ranking(pairs.scores, pairs)
    logits = pairs.scores - pairs.log_noise
    target, other = pairs.split(logits)
    np.testing.assert_allclose(losses, np.log1p(np.exp(other[:, 0] - target)))


def test_ranking_does_not_depend_on_a_constant_of_the_context(case):
    losses, derivatives = ranking(case.scores, case)
    shifted, same = ranking(case.scores + LOG_NORMALIZERS[:, None], case)
    np.testing.assert_allclose(shifted, losses)
    np.testing.assert_allclose(same, derivatives, atol=1e-12)
    np.testing.assert_allclose(derivatives.sum(axis=1), 0.0, atol=1e-12)


def test_log_z_is_exact_if_every_word_is_a_noise_word():
    scores = np.random.default_rng(3).normal(size=V)
    for copies in (1, 4):
        case = everything_as_noise(scores, 2, copies)
        (penalty,), (gradient,) = log_z_penalty(case.scores, case)
        log_z = ref.log_sum_exp(scores)
        assert penalty == pytest.approx(log_z**2)
        np.testing.assert_allclose(gradient, 2 * log_z * ref.eq1_probabilities(scores))


def test_importance_sampling_with_every_word_as_a_sample_is_maximum_likelihood():
    scores = np.random.default_rng(3).normal(size=V)
    case = everything_as_noise(scores, 2)
    (loss,), (gradient,) = importance(case.scores, case)
    assert loss == pytest.approx(-np.log(ref.eq1_probabilities(scores)[2]))
    np.testing.assert_allclose(gradient, -ref.eq4_ml_gradient(scores, 2), atol=1e-12)


def test_importance_sampling_from_the_model_itself_is_exact():
    """Q = P: all weights are equal, every sample counts, and the expectation is that of Eq. 4."""
    random = np.random.default_rng(4)
    scores = random.normal(size=V)
    model = ref.eq1_probabilities(scores)
    samples = random.choice(V, size=(100, 5), p=model)
    losses, _, by_sample, sizes = functions.importance_sampling(
        np.full(100, scores[2]), scores[samples], np.log(model)[samples]
    )
    np.testing.assert_allclose(losses, -np.log(model[2]))
    np.testing.assert_allclose(sizes, 5.0)
    np.testing.assert_allclose(by_sample, 0.2)
    expected = expected_derivative(importance, scores, np.eye(V)[2], model, 3)
    np.testing.assert_allclose(expected, -ref.eq4_ml_gradient(scores, 2), atol=1e-12)


def test_importance_sampling_tends_to_maximum_likelihood_with_many_samples():
    random = np.random.default_rng(4)
    scores, proposal = random.normal(size=V), random_distribution(random, V)
    distances = []
    for k in (3, 30, 100_000):
        samples = random.choice(V, size=(1, k), p=proposal)
        _, _, by_sample, _ = functions.importance_sampling(np.zeros(1), scores[samples], np.log(proposal)[samples])
        mean = np.zeros(V)
        np.add.at(mean, samples, by_sample)
        distances.append(np.abs(mean - ref.eq1_probabilities(scores)).max())
    assert distances[2] < 0.01 < distances[1] < distances[0]


def test_importance_sampling_in_log_space_has_no_overflow():
    losses, by_target, by_sample, sizes = functions.importance_sampling(
        np.zeros(1), np.array([[5000.0, 4000.0]]), np.array([[-10.0, -10.0]])
    )
    assert losses[0] == pytest.approx(5010.0 - np.log(2))
    assert by_target.tolist() == [-1.0]
    assert by_sample.tolist() == [[1.0, 0.0]]
    assert sizes[0] == 1.0


def test_effective_sample_sizes_agree_with_the_reference(case):
    target, samples = case.split(case.scores)
    *_, sizes = functions.importance_sampling(target, samples, case.log_noise[case.samples])
    expected = [ref.effective_sample_size(case.scores[e], case.samples[e], case.noise) for e in range(B)]
    np.testing.assert_allclose(sizes, expected)


def test_nce_is_a_member_of_the_family_exactly(case):
    for contrastive, ours in zip(family("nce")(case.scores, case), nce(case.scores, case), strict=True):
        np.testing.assert_allclose(contrastive, ours, rtol=1e-12)


def test_importance_sampling_is_a_member_of_the_family_exactly(case):
    """With the log-normalizer that makes dJ/dc_h = 0, the derivatives are those of Eq. 5."""
    _, noise = case.split(case.scores)
    c = -np.logaddexp.reduce(noise - case.log_k_noise[case.samples], axis=1)  # Σ q = 1
    _, derivatives = family("importance")(case.scores + c[:, None], case)
    np.testing.assert_allclose(derivatives.sum(axis=1), 0.0, atol=1e-12)  # dJ/dc_h
    np.testing.assert_allclose(derivatives, importance(case.scores, case)[1], atol=1e-12)


# -- recovery of a known distribution ----------------------------------------------------------------------------------


def learned(loss, data, noise, k, start):
    """Return scores after gradient descent on samples, with a decreasing learning rate."""
    random, scores, size = np.random.default_rng(0), start.copy(), len(data)
    for step in range(3000):
        targets, samples = random.choice(size, 50, p=data), random.choice(size, (50, k), p=noise)
        case = Case(np.broadcast_to(scores, (50, size)), targets, samples, noise)
        _, derivatives = loss(case.scores, case)
        scores -= 0.01 / (1 + step / 400) * derivatives.sum(axis=0)
    return scores


@pytest.mark.parametrize("name", [*CONSISTENT, "penalized nce", "penalized ranking"])
def test_a_known_distribution_is_recovered(name):
    """With its normalizer, but for ranking alone, which keeps the one that it starts with."""
    random, size = np.random.default_rng(0), 12
    data = random_distribution(random, size)
    noise = (data + random_distribution(random, size)) / 2
    start = np.log(noise) + 0.7
    scores = learned(LOSSES[name], data, noise, 10, start)
    # derivatives of "inverse" have a large variance, and the square of an estimate of log Z is biased
    tolerance = 0.15 if "inverse" in name or "penalized" in name else 0.06
    assert np.abs(np.log(ref.eq1_probabilities(scores)) - np.log(data)).max() < tolerance
    log_z = ref.log_sum_exp(scores)
    if name == "ranking":
        assert scores.sum() == pytest.approx(start.sum())  # its derivatives add up to 0
        assert log_z > 0.5
    else:
        assert abs(log_z) < 0.03


def test_a_unigram_model_learned_by_importance_sampling_from_the_unigram_does_not_diverge():
    """The one case of section 4 that went well for the paper: the model nears its proposal, all weights are equal."""
    random = np.random.default_rng(0)
    unigram = random_distribution(random, 50)
    biases = np.zeros(50)
    sizes = []
    for step in range(3000):
        targets, samples = random.choice(50, 20, p=unigram), random.choice(50, (20, 25), p=unigram)
        _, by_target, by_sample, effective = functions.importance_sampling(
            biases[targets], biases[samples], np.log(unigram)[samples]
        )
        gradient = np.zeros(50)
        np.add.at(gradient, targets, by_target)
        np.add.at(gradient, samples, by_sample)
        biases -= 0.05 / (1 + step / 300) * gradient
        sizes.append(effective.mean())
    assert np.abs(ref.eq1_probabilities(biases) - unigram).max() < 0.01
    assert sizes[-1] > 23.0 > sizes[0]


# -- classic mistakes --------------------------------------------------------------------------------------------------


def logistic_loss(target_logits, noise_logits):
    """Return −log σ(target) − Σ log(1 − σ(noise)), written out."""
    return -np.log(1 / (1 + np.exp(-target_logits))) - np.log(1 - 1 / (1 + np.exp(-noise_logits))).sum(axis=1)


# log(k·Pn) of words with probabilities Pn, as it should be and as it is often written
OFFSETS = {
    "right": lambda noise, k: np.log(k * noise),
    "log k forgotten": lambda noise, k: np.log(noise),
    "log Pn forgotten: negative sampling with log k": lambda noise, k: np.full_like(noise, np.log(k)),
    "both forgotten: word2vec's negative sampling": lambda noise, k: np.zeros_like(noise),
    "the target counted as a noise word": lambda noise, k: np.log((k + 1) * noise),
    "wrong sign": lambda noise, k: -np.log(k * noise),
}


def test_nce_is_the_logistic_loss_with_the_right_offset_and_no_other(case):
    losses, _ = nce(case.scores, case)
    target, noise = case.split(case.scores)
    for mistake, offset in OFFSETS.items():
        by_target, by_noise = case.of(offset(case.noise, K))
        difference = np.abs(losses - logistic_loss(target - by_target, noise - by_noise))
        if mistake == "right":
            assert difference.max() < 1e-12
        else:
            assert difference.min() > 1e-3, mistake


@pytest.mark.parametrize("mistake", OFFSETS)
def test_only_the_right_offset_recovers_probabilities(mistake):
    """With any other offset NCE is at rest elsewhere: exp(s) is not a distribution, or another one."""
    random = np.random.default_rng(8)
    data, noise, k = random_distribution(random, 5), random_distribution(random, 5), 2

    def with_offset(scores, case):
        loss, *derivatives = functions.nce(*case.split(scores), *case.of(OFFSETS[mistake](case.noise, k)))
        return loss, case.spread(*derivatives)

    gradient = np.abs(expected_derivative(with_offset, np.log(data), data, noise, k)).max()
    assert gradient < 1e-12 if mistake == "right" else gradient > 0.01


def test_ranking_needs_log_noise_but_not_log_k(case):
    target, noise = case.split(case.scores)
    right, *_ = functions.ranking(target, noise, *case.of(case.log_noise))
    with_k, *_ = functions.ranking(target, noise, *case.of(case.log_k_noise))
    np.testing.assert_allclose(with_k, right)
    plain = np.log(np.exp(target) + np.exp(noise).sum(axis=1)) - target  # softmax of the scores alone
    assert np.abs(right - plain)[2:].min() > 1e-3
    only_noise = np.log(np.exp(noise - case.log_noise[case.samples]).sum(axis=1)) - (
        target - case.log_noise[case.targets]
    )  # the target left out of the sum, as in importance sampling
    assert np.abs(right - only_noise).min() > 1e-3


def test_log_z_needs_the_mean_and_log_noise(case):
    _, noise = case.split(case.scores)
    right, _ = log_z_penalty(case.scores, case)
    weights = np.exp(noise) / case.noise[case.samples]
    np.testing.assert_allclose(right, np.log(weights.mean(axis=1)) ** 2)
    for wrong in (weights.sum(axis=1), np.exp(noise).mean(axis=1), np.exp(noise).sum(axis=1)):
        assert np.abs(np.log(wrong) ** 2 - right).min() > 1e-3
