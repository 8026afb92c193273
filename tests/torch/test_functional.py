"""ncelm.torch.functional: gradients, agreement with NumPy and the reference, limits."""

import math

import numpy as np
import pytest
from tests.helpers import random_distribution

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from ncelm.losses import functions  # noqa: E402
from ncelm.losses import reference as ref  # noqa: E402
from ncelm.torch import (  # noqa: E402
    accidental_hits,
    importance_sampling_loss,
    in_batch_loss,
    log_z_penalty,
    nce_loss,
    negative_sampling_loss,
    ranking_nce_loss,
    sampled_softmax_loss,
)

N, V, K = 5, 11, 3
FUNCTIONS = {"nce": nce_loss, "ranking": ranking_nce_loss}


@pytest.fixture
def case():
    random = np.random.default_rng(1)
    noise = random_distribution(random, V)
    return {
        "scores": random.normal(size=(N, V)),
        "targets": random.integers(V, size=N),
        "samples": random.integers(V, size=(N, K)),
        "noise": noise,
    }


def picked(case):
    """Return scores and log Pn of targets and noise samples, as tensors."""
    rows, log_noise = np.arange(N), np.log(case["noise"])
    arrays = (
        case["scores"][rows, case["targets"]],
        case["scores"][rows[:, None], case["samples"]],
        log_noise[case["targets"]],
        log_noise[case["samples"]],
    )
    return [torch.tensor(array) for array in arrays]


@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_nce_loss_equals_numpy_and_the_reference(case, shift):
    scores = picked(case)
    ours = nce_loss(*scores, log_normalizer=shift, reduction="none")
    t, n, log_t, log_n = (tensor.numpy() for tensor in scores)
    expected, *_ = functions.nce(t, n, log_t + np.log(K), log_n + np.log(K), shift)
    np.testing.assert_allclose(ours, expected, rtol=1e-12)
    for e in range(N):
        arguments = (case["scores"][e], case["targets"][e], case["samples"][e], case["noise"], shift)
        assert float(ours[e]) == pytest.approx(-ref.eq13_objective(*arguments))
    assert float(nce_loss(*scores, log_normalizer=shift)) == pytest.approx(expected.mean())
    assert float(nce_loss(*scores, log_normalizer=shift, reduction="sum")) == pytest.approx(expected.sum())


def test_ranking_loss_equals_numpy_and_the_reference(case):
    scores = picked(case)
    ours = ranking_nce_loss(*scores, reduction="none")
    expected, *_ = functions.ranking(*(tensor.numpy() for tensor in scores))
    np.testing.assert_allclose(ours, expected, rtol=1e-12)
    for e in range(N):
        arguments = (case["scores"][e], case["targets"][e], case["samples"][e], case["noise"])
        assert float(ours[e]) == pytest.approx(-ref.ranking_objective(*arguments))
    t, n, log_t, log_n = scores
    logits = torch.cat([(t - log_t).unsqueeze(1), n - log_n], 1)  # (N, k + 1), the target first
    softmax = torch.nn.functional.cross_entropy(logits, torch.zeros(N, dtype=torch.int64), reduction="none")
    torch.testing.assert_close(ours, softmax)
    torch.testing.assert_close(ranking_nce_loss(*scores), ours.mean())
    torch.testing.assert_close(ranking_nce_loss(*scores, reduction="sum"), ours.sum())


def test_log_z_penalty_equals_numpy_and_the_reference(case):
    _, n, _, log_n = picked(case)
    ours = log_z_penalty(n, log_n, reduction="none")
    np.testing.assert_allclose(ours, functions.log_z_penalty(n.numpy(), log_n.numpy())[0], rtol=1e-12)
    torch.testing.assert_close(ours, (n - log_n).exp().mean(1).log().square())
    for e in range(N):
        log_z = ref.log_z_estimate(case["scores"][e], case["samples"][e], case["noise"])
        assert float(ours[e]) == pytest.approx(log_z**2)


def test_importance_sampling_loss_equals_numpy(case):
    t, n, _, log_n = picked(case)
    losses, effective = importance_sampling_loss(t, n, log_n, reduction="none")
    expected, _, _, sizes = functions.importance_sampling(t.numpy(), n.numpy(), log_n.numpy())
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    np.testing.assert_allclose(effective, sizes, rtol=1e-12)


def numpy_nce(t, n, log_t, log_n):
    return functions.nce(t, n, log_t + np.log(K), log_n + np.log(K))


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_gradients_of_scores_equal_those_of_numpy(case, kind, alpha):
    t, n, log_t, log_n = picked(case)
    t.requires_grad_()
    n.requires_grad_()
    FUNCTIONS[kind](t, n, log_t, log_n, log_z_penalty=alpha, reduction="sum").backward()
    arrays = [tensor.detach().numpy() for tensor in (t, n, log_t, log_n)]
    _, d_target, d_noise = {"nce": numpy_nce, "ranking": functions.ranking}[kind](*arrays)
    _, d_penalty = functions.log_z_penalty(arrays[1], arrays[3])
    np.testing.assert_allclose(t.grad, d_target, rtol=1e-12)
    np.testing.assert_allclose(n.grad, d_noise + alpha * d_penalty, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", [*FUNCTIONS, "penalty"])
def test_gradcheck_of_functions(case, kind, shared):
    t, n, log_t, log_n = picked(case)
    if shared:  # the same k noise samples for all examples
        log_n = log_n[0]

    def value(t, n):
        if kind == "penalty":
            return log_z_penalty(n, log_n, reduction="none")
        return FUNCTIONS[kind](t, n, log_t, log_n, log_z_penalty=0.3, reduction="none")

    assert torch.autograd.gradcheck(value, (t.requires_grad_(kind != "penalty"), n.requires_grad_()))


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_the_penalty_is_added_with_its_coefficient(case, kind):
    """α (log Ẑ)² is added; as α tends to 0, the loss tends to that without penalty."""
    scores = picked(case)
    bare = FUNCTIONS[kind](*scores, reduction="none")
    penalty = log_z_penalty(scores[1], scores[3], reduction="none")
    assert float(penalty.min()) > 1e-4
    for alpha in (1.0, 1e-3, 1e-6):
        total = FUNCTIONS[kind](*scores, log_z_penalty=alpha, reduction="none")
        torch.testing.assert_close(total - bare, alpha * penalty, rtol=1e-6, atol=1e-14)
    torch.testing.assert_close(FUNCTIONS[kind](*scores, log_z_penalty=1e-15), FUNCTIONS[kind](*scores))


def test_the_penalty_of_nce_includes_the_log_normalizer(case):
    """The model's scores are s + c: c = −log Ẑ has no penalty."""
    scores = picked(case)
    log_z = (scores[1] - scores[3]).exp().mean(1).log()
    bare = nce_loss(*scores, log_normalizer=-log_z, reduction="none")
    torch.testing.assert_close(nce_loss(*scores, log_normalizer=-log_z, log_z_penalty=5.0, reduction="none"), bare)


def test_ranking_loss_does_not_depend_on_a_constant_of_the_context(case):
    t, n, log_t, log_n = picked(case)
    shift = torch.arange(N, dtype=torch.float64)
    torch.testing.assert_close(
        ranking_nce_loss(t + shift, n + shift.unsqueeze(1), log_t, log_n), ranking_nce_loss(t, n, log_t, log_n)
    )


def test_ranking_loss_of_all_words_as_noise_is_the_softmax(case):
    """Uniform noise, each word m times: log m − log P(w) + O(1/m), and the gradient of the exact softmax."""
    scores, targets = torch.tensor(case["scores"]), torch.tensor(case["targets"])
    m, log_noise = 10_000, -math.log(V)
    target_scores = scores.gather(1, targets.unsqueeze(1)).squeeze(1).requires_grad_()
    noise_scores = scores.repeat(1, m).requires_grad_()  # (N, m V)
    losses = ranking_nce_loss(
        target_scores, noise_scores, torch.full((N,), log_noise), torch.full((m * V,), log_noise), reduction="none"
    )
    exact = torch.nn.functional.cross_entropy(scores, targets, reduction="none")
    torch.testing.assert_close(losses - math.log(m), exact, rtol=0, atol=1e-4)
    losses.sum().backward()
    gradient = noise_scores.grad.view(N, m, V).sum(1)
    gradient[torch.arange(N), targets] += target_scores.grad
    expected = torch.softmax(scores, 1) - torch.nn.functional.one_hot(targets, V)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-4)


def test_empty_noise_is_rejected():
    for function in FUNCTIONS.values():
        with pytest.raises(ValueError, match="noise_scores is empty"):
            function(torch.zeros(2), torch.zeros(2, 0), torch.zeros(2), torch.zeros(2, 0))
    with pytest.raises(ValueError, match="noise_scores is empty"):
        log_z_penalty(torch.zeros(2, 0), torch.zeros(2, 0))


@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_sampled_softmax_loss_equals_the_reference(case, remove, smoothing):
    case["samples"][0, 1] = case["targets"][0]
    t, n, _, log_n = (tensor.requires_grad_() for tensor in picked(case))
    hits = accidental_hits(torch.tensor(case["targets"]), torch.tensor(case["samples"])) if remove else None
    losses = sampled_softmax_loss(t, n, log_n.detach(), hits=hits, label_smoothing=smoothing, reduction="none")
    losses.sum().backward()
    losses = losses.detach()
    for e in range(N):
        arguments = (case["scores"][e], case["targets"][e], case["samples"][e], case["noise"], not remove, smoothing)
        assert float(losses[e]) == pytest.approx(-ref.sampled_softmax_objective(*arguments))
        found = np.zeros(V)
        found[case["targets"][e]] += float(t.grad[e])
        np.add.at(found, case["samples"][e], n.grad[e].numpy())
        np.testing.assert_allclose(found, -ref.sampled_softmax_gradient(*arguments), atol=1e-12)


@pytest.mark.parametrize("remove", [False, True])
def test_negative_sampling_loss_equals_the_reference(case, remove):
    case["samples"][0, 1] = case["targets"][0]
    t, n, *_ = (tensor.requires_grad_() for tensor in picked(case))
    hits = accidental_hits(torch.tensor(case["targets"]), torch.tensor(case["samples"])) if remove else None
    losses = negative_sampling_loss(t, n, hits=hits, reduction="none")
    losses.sum().backward()
    losses = losses.detach()
    for e in range(N):
        arguments = (case["scores"][e], case["targets"][e], case["samples"][e], not remove)
        assert float(losses[e]) == pytest.approx(-ref.negative_sampling_objective(*arguments))
        found = np.zeros(V)
        found[case["targets"][e]] += float(t.grad[e])
        np.add.at(found, case["samples"][e], n.grad[e].numpy())
        np.testing.assert_allclose(found, -ref.negative_sampling_gradient(*arguments), atol=1e-12)


def test_negative_sampling_is_nce_of_scores_relative_to_the_noise(case):
    t, n, log_t, log_n = picked(case)
    shifted = nce_loss(t + log_t + math.log(K), n + log_n + math.log(K), log_t, log_n)
    torch.testing.assert_close(negative_sampling_loss(t, n), shifted)


def test_the_sampled_softmax_of_all_other_classes_is_the_softmax(case):
    """Each class once, with the expected number of draws k·Pn = 1."""
    scores, targets = torch.tensor(case["scores"]), torch.tensor(case["targets"])
    samples = torch.arange(V)
    t = scores.gather(1, targets.unsqueeze(1)).squeeze(1)
    hits = accidental_hits(targets, samples)
    for smoothing in (0.0, 0.3):
        losses = sampled_softmax_loss(
            t, scores, torch.full((V,), -math.log(V)), hits=hits, label_smoothing=smoothing, reduction="none"
        )
        expected = torch.nn.functional.cross_entropy(scores, targets, label_smoothing=smoothing, reduction="none")
        torch.testing.assert_close(losses, expected)


@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("more", [0, 4])
def test_in_batch_loss_equals_the_reference(remove, smoothing, more):
    random = np.random.default_rng(2)
    ids = np.concatenate([[3, 1, 3, 0, 2], random.integers(V, size=more)])
    scores, frequencies = random.normal(size=(N, N + more)), random_distribution(random, V)[ids]
    hits = accidental_hits(torch.tensor(ids[:N]), torch.tensor(ids)) if remove else None
    losses = in_batch_loss(
        torch.tensor(scores), torch.tensor(np.log(frequencies)), hits=hits, label_smoothing=smoothing, reduction="none"
    )
    for e in range(N):
        expected = -ref.in_batch_objective(scores[e], e, ids, frequencies, not remove, smoothing)
        assert float(losses[e]) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["sampled-softmax", "negative-sampling", "in-batch", "importance"])
def test_gradcheck_of_further_functions(case, kind):
    t, n, _, log_n = picked(case)
    hits = torch.tensor([[False, True, False]]).expand(N, K)

    def value(t, n):
        match kind:
            case "sampled-softmax":
                return sampled_softmax_loss(t, n, log_n, hits=hits, label_smoothing=0.1, reduction="none")
            case "negative-sampling":
                return negative_sampling_loss(t, n, hits=hits, reduction="none")
            case "importance":
                return importance_sampling_loss(t, n, log_n, reduction="none")[0]
        square = t.unsqueeze(0) * n[:, :1]
        mask = torch.eye(N, dtype=torch.bool).roll(1, 0)
        return in_batch_loss(square, log_n[:, 0], hits=mask, label_smoothing=0.1, reduction="none")

    assert torch.autograd.gradcheck(value, (t.requires_grad_(), n.requires_grad_()))


def test_if_all_samples_are_hits_the_loss_and_its_gradient_are_finite():
    hits = torch.ones(1, 2, dtype=torch.bool)
    for function in (
        lambda t, n: sampled_softmax_loss(t, n, torch.zeros(2), hits=hits),
        lambda t, n: negative_sampling_loss(t, n, hits=hits),
    ):
        t, n = torch.zeros(1, requires_grad=True), torch.zeros(1, 2, requires_grad=True)
        function(t, n).backward()
        assert torch.isfinite(t.grad).all()
        assert not n.grad.any()
    assert sampled_softmax_loss(torch.zeros(1), torch.zeros(1, 2), torch.zeros(2), hits=hits) == 0.0


def test_accidental_hits_of_several_targets():
    target, noise = torch.tensor([[1, -1], [2, 3]]), torch.tensor([[1, 2, 3], [1, 2, 3]])
    expected = [[True, False, False], [False, True, True]]
    assert accidental_hits(target, noise).tolist() == expected
    assert accidental_hits(target, noise[0]).tolist() == expected
