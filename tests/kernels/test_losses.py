"""Compiled losses against `ncelm.losses.functions`: noise words of each example, and shared by a minibatch."""

import numpy as np
import pytest
from numba import njit

from ncelm.kernels import losses, records, shared_noise
from ncelm.kernels.compile import callable_from_python
from ncelm.losses import functions
from ncelm.losses import reference as ref
from ncelm.noise import Noise
from ncelm.training import engine

GUARD = np.float32(7.0)
COEFFICIENT = np.float32(0.3)
UNSHARED = {
    "nce": losses.Nce(),
    "ranking": losses.Ranking(),
    "penalized nce": losses.LogZPenalty(losses.Nce(), COEFFICIENT),
    "penalized ranking": losses.LogZPenalty(losses.Ranking(), COEFFICIENT),
    **{f"family {name}": losses.Family(member()) for name, member in losses.MEMBERS.items()},
}
SHARED = {name: loss for name, loss in UNSHARED.items() if not name.startswith("family")}


@njit
def score_gradients(loss, scores, log_k_noise, scratch, out):
    return losses.score_gradients(loss, scores, log_k_noise, scratch, out)


clear_padding = callable_from_python(losses.clear_padding)


def compiled(loss, scores, log_k_noise):
    """Return the objective of one example and its derivatives by the scores, target first."""
    n = len(scores)
    buffers = np.full((3, losses.padded(n)), np.nan, np.float32)
    buffers[0, :n], buffers[1, :n] = scores, log_k_noise
    clear_padding(n, buffers[0], buffers[1])
    padded = np.full(n + 2, GUARD)
    objective = score_gradients(loss, buffers[0], buffers[1], buffers[2], padded[1:-1])
    assert padded[0] == padded[-1] == GUARD  # nothing outside
    return objective, padded[1:-1]


def expected(name, scores, log_k_noise, k=None):
    """Return the same by pure functions, in float64: scores (n, k + 1) or (k + 1,), target first."""
    scores, log_k_noise = np.atleast_2d(scores).astype(np.float64), np.atleast_2d(log_k_noise).astype(np.float64)
    k = k or scores.shape[1] - 1
    target, noise = (scores[:, 0], log_k_noise[:, 0]), (scores[:, 1:], log_k_noise[:, 1:])
    kind = name.removeprefix("penalized ")
    if kind == "nce":
        loss, by_target, by_noise = functions.nce(target[0], noise[0], target[1], noise[1])
    elif kind == "ranking":
        loss, by_target, by_noise = functions.ranking(target[0], noise[0], target[1] - np.log(k), noise[1] - np.log(k))
    else:
        contrast = functions.FAMILY[kind.removeprefix("family ")]
        loss, by_target, by_noise = functions.contrastive(target[0] - target[1], noise[0] - noise[1], contrast)
    if name != kind:
        penalty, derivative = functions.log_z_penalty(noise[0], noise[1] - np.log(k))
        loss, by_noise = loss + np.float64(COEFFICIENT) * penalty, by_noise + np.float64(COEFFICIENT) * derivative
    return -loss, -np.concatenate([by_target[:, None], by_noise], axis=1)


def example(k, seed=0):
    """Return scores and log(k·Pn) of a target and k noise words."""
    random = np.random.default_rng(seed)
    return random.normal(-5, 3, k + 1).astype(np.float32), random.normal(-5, 1, k + 1).astype(np.float32)


# -- noise words of each example ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNSHARED)
@pytest.mark.parametrize("k", [1, 2, 3, 7, 25, 30, 31, 32, 33, 63, 64, 100, 1000])  # 32 is a padded length
def test_losses_agree_with_the_functions(name, k):
    for seed in range(3):
        scores, log_k_noise = example(k, seed)
        objective, gradients = compiled(UNSHARED[name], scores, log_k_noise)
        expected_objective, expected_gradients = expected(name, scores, log_k_noise)
        assert objective == pytest.approx(expected_objective[0], rel=1e-5, abs=1e-5)
        np.testing.assert_allclose(gradients, expected_gradients[0], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize(
    ("target", "noise"), [(-500.0, [500.0] * 99), (500.0, [-500.0] * 40), (1e4, [1e4, -1e4]), (-80.0, [-90.0, 80.0])]
)
def test_extreme_scores_have_the_right_derivatives(name, target, noise):
    """They are bounded for NCE and ranking (section 3 of the paper); none is infinite or undefined."""
    scores = np.array([target, *noise], np.float32)
    objective, gradients = compiled(UNSHARED[name], scores, np.zeros_like(scores))
    _, expected_gradients = expected(name, scores, np.zeros_like(scores))
    np.testing.assert_allclose(gradients, expected_gradients[0], rtol=1e-5, atol=1e-6)
    assert np.isfinite(objective)
    if not name.startswith("penalized"):
        assert (np.abs(gradients) <= 1.0).all()


def test_the_objective_of_nce_has_a_floor():
    """1 − P is at least LEAST, so that no example has an infinite loss; its gradient is complete."""
    scores = np.array([-500.0, *[500.0] * 99, 1e30], np.float32)
    objective, gradients = compiled(losses.Nce(), scores, np.zeros_like(scores))
    assert objective == pytest.approx(101 * np.log(losses.LEAST))
    np.testing.assert_allclose(gradients, [1.0, *[-1.0] * 100])


@pytest.mark.parametrize("name", ["ranking", "penalized ranking"])
def test_the_objective_of_ranking_has_no_floor(name):
    scores = np.array([-500.0, *[500.0] * 3], np.float32)
    objective, _ = compiled(UNSHARED[name], scores, np.zeros_like(scores))
    assert objective == pytest.approx(expected(name, scores, np.zeros_like(scores))[0][0], rel=1e-6)


@pytest.mark.parametrize("loss", [losses.Nce(), losses.Ranking()])
def test_a_penalty_with_the_coefficient_0_changes_nothing(loss):
    scores, log_k_noise = example(25)
    plain = compiled(loss, scores, log_k_noise)
    penalized = compiled(losses.LogZPenalty(loss, np.float32(0.0)), scores, log_k_noise)
    assert penalized[0] == plain[0]
    np.testing.assert_array_equal(penalized[1], plain[1])
    distances = [
        np.abs(compiled(losses.LogZPenalty(loss, np.float32(c)), scores, log_k_noise)[1] - plain[1]).max()
        for c in (1e-2, 1e-3, 1e-4)
    ]
    assert distances[0] > 5 * distances[1] > 25 * distances[2] > 0


def test_a_penalty_is_0_where_the_estimated_normalizer_is_1():
    """It has a minimum there: its derivative changes sign."""
    scores, log_k_noise = example(25)
    scores[1:] -= np.float32(ref.log_sum_exp(scores[1:] - log_k_noise[1:]))  # log Ẑ = 0
    loss = UNSHARED["penalized nce"]
    for shift, sign in ((0.0, 0.0), (0.5, -1.0), (-0.5, 1.0)):
        shifted = scores + np.float32(shift)
        penalty = compiled(losses.Nce(), shifted, log_k_noise)[0] - compiled(loss, shifted, log_k_noise)[0]
        assert penalty == pytest.approx(0.3 * shift**2, abs=1e-5)
        change = (compiled(loss, shifted, log_k_noise)[1] - compiled(losses.Nce(), shifted, log_k_noise)[1])[1:]
        assert change.sum() == pytest.approx(sign * 0.3, abs=1e-5)  # 2 · 0.3 · 0.5


def test_ranking_against_all_other_words_is_maximum_likelihood():
    """With a uniform Pn the softmax is over the vocabulary, once each."""
    scores = np.random.default_rng(0).normal(size=20).astype(np.float32)
    objective, gradients = compiled(losses.Ranking(), scores, np.zeros_like(scores))
    assert objective == pytest.approx(np.log(ref.eq1_probabilities(scores)[0]), rel=1e-5)
    np.testing.assert_allclose(gradients, ref.eq4_ml_gradient(scores, 0), atol=1e-6)


def test_ranking_does_not_depend_on_a_constant_of_the_context():
    """Nor on log k, which the kernel's log(k·Pn) contains."""
    scores, log_k_noise = example(25)
    objective, gradients = compiled(losses.Ranking(), scores, log_k_noise)
    for change in (2.0, -3.0):
        again = compiled(losses.Ranking(), scores + np.float32(change), log_k_noise)
        assert again[0] == pytest.approx(objective, rel=1e-5)
        np.testing.assert_allclose(again[1], gradients, atol=1e-6)
        again = compiled(losses.Ranking(), scores, log_k_noise + np.float32(change))
        np.testing.assert_allclose(again[1], gradients, atol=1e-6)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 32, 1001])
def test_log_of_a_product_is_the_sum_of_logs(size):
    wrong = 1 - np.random.default_rng(7).random(size).astype(np.float32) ** 4
    rights = np.maximum(1 - wrong.astype(np.float64), 1e-9)
    assert callable_from_python(losses._sum_of_log_complements)(wrong) == pytest.approx(np.log(rights).sum(), rel=1e-6)


# -- importance sampling -----------------------------------------------------------------------------------------------

importance_gradients = callable_from_python(losses.importance_gradients)


@pytest.mark.parametrize("k", [1, 2, 25, 100])
def test_importance_sampling_agrees_with_the_function(k):
    scores, log_proposal = example(k, k)
    padded = np.full(k + 3, GUARD)
    objective, effective, largest, heaviest = importance_gradients(scores, log_proposal, padded[1:-1])
    loss, _, by_sample, size = functions.importance_sampling(
        scores[:1].astype(np.float64), scores[None, 1:].astype(np.float64), log_proposal[None, 1:].astype(np.float64)
    )
    assert -objective == pytest.approx(loss[0], rel=1e-5)
    np.testing.assert_allclose(padded[1:-1], [1.0, *-by_sample[0]], rtol=1e-5)
    assert effective == pytest.approx(size[0], rel=1e-5)
    log_v = scores[1:] - log_proposal[1:]
    assert largest == pytest.approx(log_v.max(), rel=1e-6)
    assert heaviest == 1 + log_v.argmax()
    assert padded[0] == padded[-1] == GUARD  # nothing outside


def test_importance_sampling_in_log_space_has_no_overflow():
    scores, log_proposal = np.array([0.0, 5000.0, 4000.0], np.float32), np.full(3, -10.0, np.float32)
    gradients = np.empty(3, np.float32)
    objective, effective, largest, heaviest = importance_gradients(scores, log_proposal, gradients)
    assert objective == pytest.approx(-(5010.0 - np.log(2)))
    assert gradients.tolist() == [1.0, -1.0, 0.0]
    assert (effective, largest, heaviest) == (1.0, 5010.0, 1)


# -- noise words shared by a minibatch ---------------------------------------------------------------------------------


@njit
def shared_gradients(loss, noise, first, last, index, plan, parameters, workspace, scratch):
    objective = 0.0
    for e in range(first, last):
        logit = scratch.shifts[e - first : e - first + 1]
        objective += shared_noise.score_target(loss, noise, e, index, plan, parameters, workspace, logit)
    return objective + shared_noise.shared_gradients(loss, first, last, index, plan, parameters, workspace, scratch)


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize(
    ("batch", "draws", "vocabulary", "scale"),
    [(1, 1, 5, 1.0), (5, 37, 60, 1.0), (6, 40, 3, 1.0), (70, 700, 400, 1.0), (5, 600, 500, 30.0)],
)
def test_shared_noise_agrees_with_the_functions(name, batch, draws, vocabulary, scale):
    """A word that was drawn n times counts n times. Up to two blocks of noise words; few and many; extreme scores."""
    random, d = np.random.default_rng(batch), 6
    noise = Noise.from_counts(random.integers(1, 9, size=vocabulary))
    sizes = engine.Sizes(
        vocabulary=vocabulary, dim=d, positions=1, diagonal=True, tied=False, batch=batch, samples=1, exact=False,
        statistics=0, shared_samples=draws,
    )  # fmt: skip
    plan, workspace = engine._plan(sizes), engine._workspace(sizes, False)
    scratch = records.Scratch(*(each[0] for each in engine._scratch(sizes, 1)))
    parameters = records.Parameters(
        None,
        (scale * random.normal(size=(vocabulary, d))).astype(np.float32),
        random.normal(size=vocabulary).astype(np.float32),
        None,
    )
    table = noise.table(draws)
    targets, drawn = random.integers(vocabulary, size=batch), random.choice(vocabulary, draws, p=noise.probabilities)
    words, multiplicities = np.unique(drawn, return_counts=True)
    K = len(words)
    assert (K > shared_noise.NOISE_BLOCK) == (draws >= 600)  # two blocks
    plan.sizes[0], plan.shared.counts[0] = batch, K
    plan.words[0, :batch, 0], plan.words[0, batch : batch + K, 0] = targets, words
    plan.shared.multiplicities[0, :K] = multiplicities
    workspace.predicted[:] = random.normal(size=(batch, d))
    workspace.noise.rows[:K] = parameters.target_vectors[words]
    workspace.noise.shifts[:K] = parameters.biases[words] - table.log_k_probability[words]
    workspace.score_gradients[:] = np.nan

    half = batch // 2  # two work items
    objective = sum(
        shared_gradients(SHARED[name], table, first, last, 0, plan, parameters, workspace, scratch)
        for first, last in ((0, half), (half, batch))
        if first < last
    )

    vectors = parameters.target_vectors.astype(np.float64)
    scores = workspace.predicted.astype(np.float64) @ vectors.T + parameters.biases  # (B, V)
    columns = np.concatenate([targets[:, None], np.tile(drawn, (batch, 1))], axis=1)  # (B, 1 + draws)
    log_k_noise = np.log(draws * noise.probabilities)
    wanted, gradients = expected(name, np.take_along_axis(scores, columns, axis=1), log_k_noise[columns])
    if not (name.endswith("nce") and scale > 1):  # the objective of NCE has a floor
        assert objective == pytest.approx(wanted.sum(), rel=2e-5)
    tolerance = 2e-5 * scale
    by_word = np.zeros((batch, vocabulary))  # of noise words, summed over draws
    np.add.at(by_word, (np.arange(batch)[:, None], columns[:, 1:]), gradients[:, 1:])
    blocks = [
        workspace.score_gradients[j * batch : min(j + shared_noise.NOISE_BLOCK, K) * batch].reshape(batch, -1)
        for j in range(0, K, shared_noise.NOISE_BLOCK)
    ]
    np.testing.assert_allclose(np.hstack(blocks), by_word[:, words], rtol=2e-5, atol=tolerance)
    of_targets = workspace.score_gradients[K * batch : K * batch + batch]
    np.testing.assert_allclose(of_targets, gradients[:, 0], rtol=2e-5, atol=tolerance)
    by_word[np.arange(batch), targets] += gradients[:, 0]
    by_predicted = by_word @ vectors
    np.testing.assert_allclose(workspace.predicted_gradients, by_predicted, rtol=1e-4, atol=2e-5 * scale**2)


def test_one_and_two_passes_over_shared_noise_agree():
    """NCE alone is finished in one pass, NCE with a penalty in two: the same Σ n log(1 − P), the same derivatives."""
    shared_nce_gradients = callable_from_python(losses.shared_nce_gradients)

    @njit
    def shared_noise_gradients(row, multiplicities, scratch):
        return losses.shared_noise_gradients(losses.Nce(), row, multiplicities, np.float32(0.0), 0.0, scratch)

    random, k = np.random.default_rng(7), 37
    for batch in (1, 4, 6):
        products, shifts = random.normal(size=(batch, k)).astype(np.float32), random.normal(size=k).astype(np.float32)
        multiplicities, scratch = random.integers(1, 4, size=k).astype(np.float32), np.empty(k, np.float32)
        one, two = products.copy(), products + shifts
        objective = shared_nce_gradients(one, shifts, multiplicities, scratch)
        total = sum(shared_noise_gradients(row, multiplicities, scratch) for row in two)
        assert objective == pytest.approx(total, rel=1e-5)
        np.testing.assert_allclose(one, two, rtol=1e-5)
