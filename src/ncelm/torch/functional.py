"""Sampled losses as pure functions of scores. They draw no samples.

`ncelm.losses.reference` has the equations in float64, `ncelm.torch.losses` the modules. All functions take scores that
are not normalized, and log-probabilities of the classes under the noise distribution Pn that the samples come from.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's convention)
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]


def nce_loss(
    target_scores: Tensor,
    noise_scores: Tensor,
    target_log_noise: Tensor,
    noise_log_noise: Tensor,
    *,
    log_normalizer: Tensor | float = 0.0,
    log_z_penalty: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the noise-contrastive estimation loss (Mnih & Teh 2012, Eq. 13).

    The classifier's logit for "data" against k noise samples is s(w, h) + c_h − log(k·Pn(w)). The loss of an example is
    −log σ(logit of the target) − Σ_j log(1 − σ(logit of noise sample j)). log k is added here.

    Args:
        target_scores (Tensor): s(w, h) of the targets, not normalized, (…).
        noise_scores (Tensor): s(w, h) of k noise samples per example, (…, k).
        target_log_noise (Tensor): log Pn of the targets, broadcastable to (…).
        noise_log_noise (Tensor): log Pn of the noise samples, (…, k), or (k,) for shared noise.
        log_normalizer (Tensor or float): c_h, a number or (…). With 0 the model learns to be self-normalized.
        log_z_penalty (float): coefficient α of the squared log-normalizer of s(w, h) + c_h; see
            `log_z_penalty`.
        reduction (str): "mean" over examples, "sum" or "none".

    Examples:
        >>> zero = torch.zeros(1)
        >>> nce_loss(zero, torch.zeros(1, 1), zero, torch.zeros(1, 1))  # 2 log 2
        tensor(1.3863)
    """
    log_k = math.log(_samples(noise_scores))
    c = torch.as_tensor(log_normalizer, dtype=target_scores.dtype, device=target_scores.device)
    target_logits = target_scores + c - target_log_noise - log_k  # (…)
    noise_logits = noise_scores + ((c - log_k).unsqueeze(-1) - noise_log_noise)  # (…, k)
    losses = F.softplus(-target_logits) + F.softplus(noise_logits).sum(-1)  # (…)
    if log_z_penalty:
        log_z = torch.logsumexp(noise_logits, -1)  # log Σ_j exp(s_j + c − log Pn_j) − log k
        losses = losses + log_z_penalty * log_z.square()
    return reduced(losses, reduction)


def ranking_nce_loss(
    target_scores: Tensor,
    noise_scores: Tensor,
    target_log_noise: Tensor,
    noise_log_noise: Tensor,
    *,
    log_z_penalty: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the ranking NCE loss (Ma & Collins 2018).

    This is the cross-entropy of the target in a softmax over the target and its k noise samples, with the logits
    s(w, h) − log Pn(w). It is consistent for any k. A constant added to all scores of a context cancels: the loss
    determines scores up to such a constant, and the model is not self-normalized unless `log_z_penalty` is positive.

    Args:
        target_scores (Tensor): s(w, h) of the targets, not normalized, (…).
        noise_scores (Tensor): s(w, h) of k noise samples per example, (…, k).
        target_log_noise (Tensor): log Pn of the targets, broadcastable to (…).
        noise_log_noise (Tensor): log Pn of the noise samples, (…, k), or (k,) for shared noise.
        log_z_penalty (float): coefficient α of the squared log-normalizer; see `log_z_penalty`.
        reduction (str): "mean" over examples, "sum" or "none".

    Examples:
        >>> zero = torch.zeros(1)
        >>> ranking_nce_loss(zero, torch.zeros(1, 3), zero, torch.zeros(1, 3))  # log 4
        tensor(1.3863)
    """
    log_k = math.log(_samples(noise_scores))
    target_logits = target_scores - target_log_noise  # (…)
    noise_log_sum = torch.logsumexp(noise_scores - noise_log_noise, -1)  # (…)
    losses = F.softplus(noise_log_sum - target_logits)  # log(exp(target) + Σ_j exp(noise_j)) − target
    if log_z_penalty:
        losses = losses + log_z_penalty * (noise_log_sum - log_k).square()
    return reduced(losses, reduction)


def sampled_softmax_loss(
    target_scores: Tensor,
    noise_scores: Tensor,
    noise_log_noise: Tensor,
    *,
    hits: Tensor | None = None,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the sampled softmax loss, with the target in the denominator (Bengio & Senécal 2008).

    The loss of an example is log Ẑ(h) − s(w, h) with Ẑ(h) = exp(s(w, h)) + Σ_j exp(s(w_j, h)) / (k·Pn(w_j)), where j
    runs over the noise samples that are not the target (logQ correction). Ẑ(h) is then an unbiased estimate of Z(h).
    The loss is not negative, and tends to −log P(w|h) for large k. For small k it is biased: `ranking_nce_loss`, which
    also subtracts log Pn from the score of the target, is consistent for any k.

    Args:
        target_scores (Tensor): s(w, h) of the targets, not normalized, (…).
        noise_scores (Tensor): s(w, h) of k noise samples per example, (…, k).
        noise_log_noise (Tensor): log Pn of the noise samples, (…, k), or (k,) for shared noise.
        hits (Tensor): samples to leave out of Ẑ(h), (…, k), bool: `accidental_hits` of the samples. Default: none.
        label_smoothing (float): ε. The target distribution is 1 − ε for the target and ε times the noise distribution.
            With uniform noise this is the smoothing of `torch.nn.CrossEntropyLoss`. Default: 0.
        reduction (str): "mean" over examples, "sum" or "none".

    Examples:
        >>> sampled_softmax_loss(torch.zeros(1), torch.zeros(1, 3), torch.zeros(3))  # log(1 + 3 · 1/3)
        tensor(0.6931)
    """
    log_expected = noise_log_noise + math.log(_samples(noise_scores))  # log(k·Pn)
    log_rest = torch.logsumexp(_without(noise_scores - log_expected, hits), -1)  # (…)
    losses = torch.logaddexp(target_scores, log_rest) - target_scores
    if label_smoothing:
        losses = losses + label_smoothing * (target_scores - noise_scores.mean(-1))
    return reduced(losses, reduction)


def negative_sampling_loss(
    target_scores: Tensor, noise_scores: Tensor, *, hits: Tensor | None = None, reduction: Reduction = "mean"
) -> Tensor:
    """Return the negative-sampling loss of word2vec (Mikolov et al. 2013), −log σ(s) − Σ_j log σ(−s_j).

    It is NCE without the correction by log(k·Pn(w)). Scores therefore tend to log P(w|h) − log(k·Pn(w)), the shifted
    pointwise mutual information (Levy & Goldberg 2014), and not to log-probabilities.

    Args:
        target_scores (Tensor): s(w, h) of the targets, (…).
        noise_scores (Tensor): s(w, h) of k noise samples per example, (…, k).
        hits (Tensor): samples to leave out, (…, k), bool: `accidental_hits` of the samples. Default: none.
        reduction (str): "mean" over examples, "sum" or "none".

    Examples:
        >>> negative_sampling_loss(torch.zeros(1), torch.zeros(1, 1))  # 2 log 2
        tensor(1.3863)
    """
    _samples(noise_scores)
    losses = F.softplus(-target_scores) + F.softplus(_without(noise_scores, hits)).sum(-1)
    return reduced(losses, reduction)


def importance_sampling_loss(
    target_scores: Tensor, noise_scores: Tensor, noise_log_noise: Tensor, *, reduction: Reduction = "mean"
) -> tuple[Tensor, Tensor]:
    """Return the importance-sampling estimate of −log P (Mnih & Teh 2012, Eq. 5) and the effective sample sizes.

    This is not the sampled softmax. The denominator is the mean over the samples alone: the target is in it only if it
    was drawn. The loss has no lower bound, and training with few samples diverges easily. It is a baseline: use
    `sampled_softmax_loss` or `ranking_nce_loss`.

    Args:
        target_scores (Tensor): s(w, h) of the targets, not normalized, (…).
        noise_scores (Tensor): s(w, h) of k samples per example, (…, k).
        noise_log_noise (Tensor): log probability of the samples under the proposal, (…, k), or (k,) for shared samples.
        reduction (str): of the loss: "mean" over examples, "sum" or "none".

    Returns:
        The loss, and the effective sample sizes (Σ v)² / Σ v², (…), between 1 and k, where v is exp(s) divided by the
        proposal.
    """
    log_k = math.log(_samples(noise_scores))
    log_v = noise_scores - noise_log_noise  # (…, k)
    losses = torch.logsumexp(log_v, -1) - log_k - target_scores  # (…)
    effective = 1.0 / torch.softmax(log_v.detach(), -1).square().sum(-1)
    return reduced(losses, reduction), effective


def in_batch_loss(
    scores: Tensor,
    log_noise: Tensor | float = 0.0,
    *,
    hits: Tensor | None = None,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the softmax loss over the items of a batch, with logQ correction (Yi et al. 2019).

    Row i of `scores` holds the scores of query i for all N items of the batch, item i being its target, and for M more
    items as negatives. The logits are s(i, j) − log Q(j). If the other items of a batch are independent draws from Q,
    this is `ranking_nce_loss`, which is consistent. Without correction frequent items, which are in most batches, are
    suppressed.

    Args:
        scores (Tensor): scores of N queries, (N, N + M); the diagonal holds those of the targets.
        log_noise (Tensor or float): log Q of the items, (N + M,). Default: 0, without correction.
        hits (Tensor): negatives to leave out, (N, N + M), bool: `accidental_hits` of the items. The diagonal is kept.
        label_smoothing (float): ε; each of the logits gets ε / (N + M) of the target distribution. Default: 0.
        reduction (str): "mean" over queries, "sum" or "none".

    Examples:
        >>> in_batch_loss(torch.zeros(4, 4))  # log 4
        tensor(1.3863)
    """
    own = torch.arange(len(scores), device=scores.device)
    logits = scores - log_noise  # (N, N + M)
    target_logits = logits.diagonal()
    if hits is not None:
        kept = torch.arange(scores.shape[1], device=scores.device) == own.unsqueeze(1)
        logits = _without(logits, hits & ~kept)
    losses = torch.logsumexp(logits, 1) - target_logits  # (N,)
    if label_smoothing:
        losses = losses + label_smoothing * (target_logits - (scores - log_noise).mean(1))
    return reduced(losses, reduction)


def log_z_penalty(noise_scores: Tensor, noise_log_noise: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Return the squared log-normalizer, estimated from noise samples (Goldberger & Melamud 2018).

    The penalty of an example is (log Ẑ(h))² with Ẑ(h) = (1/k) Σ_j exp(s(w_j, h)) / Pn(w_j), the importance-sampling
    estimate of Z(h). It is 0 for a model that is normalized without dividing by Z(h).

    Args:
        noise_scores (Tensor): s(w, h) of k noise samples per example, (…, k).
        noise_log_noise (Tensor): log Pn of the noise samples, (…, k), or (k,) for shared noise.
        reduction (str): "mean" over examples, "sum" or "none".

    Examples:
        >>> log_z_penalty(torch.zeros(1, 2), torch.zeros(1, 2) - 1.0)  # log Ẑ = 1
        tensor(1.)
    """
    log_k = math.log(_samples(noise_scores))
    return reduced((torch.logsumexp(noise_scores - noise_log_noise, -1) - log_k).square(), reduction)


def accidental_hits(target: Tensor, noise: Tensor) -> Tensor:
    """Return which noise samples are targets of their example, bool, (N, k).

    Args:
        target (Tensor): the target of each example, (N,), or several, (N, T).
        noise (Tensor): the samples of each example, (N, k), or those of all, (k,).

    Examples:
        >>> accidental_hits(torch.tensor([5, 6]), torch.tensor([5, 6, 7]))
        tensor([[ True, False, False],
                [False,  True, False]])
    """
    samples = noise if noise.dim() == 2 else noise.unsqueeze(0)  # (N or 1, k)
    if target.dim() == 1:
        return target.unsqueeze(1) == samples
    return (target.unsqueeze(2) == samples.unsqueeze(1)).any(1)


def check_reduction(reduction: str) -> None:
    """Raise `ValueError` for an unknown reduction."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is {reduction!r}: choose mean, sum or none")


def reduced(losses: Tensor, reduction: Reduction) -> Tensor:
    """Return the mean or the sum of losses, or the losses."""
    check_reduction(reduction)
    match reduction:
        case "mean":
            return losses.mean()
        case "sum":
            return losses.sum()
    return losses


def _without(logits: Tensor, hits: Tensor | None) -> Tensor:
    """Return logits without hits. The lowest finite number, unlike −∞, has a gradient even if all are hits."""
    return logits if hits is None else logits.masked_fill(hits, torch.finfo(logits.dtype).min)


def _samples(noise_scores: Tensor) -> int:
    """Return k."""
    k = noise_scores.shape[-1]
    if k == 0:
        raise ValueError("noise_scores is empty: give at least one sample for each example")
    return k
