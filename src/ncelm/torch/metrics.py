"""Ranking metrics for very many classes, without all scores in memory.

The weight is that of a loss, or the vectors of all items of a two-tower model.
"""

import torch
from torch import Tensor

from ncelm.torch import exact


@torch.no_grad()
def top_k(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest scores in descending order, and their classes, (N, k) each, in blocks of classes.

    Args:
        input (Tensor): hidden vectors or queries, (N, d).
        weight (Tensor): vectors of the classes, (V, d).
        bias (Tensor): biases of the classes, (V,).
        k (int): number of classes.

    Examples:
        >>> top_k(torch.tensor([[1.0]]), torch.tensor([[3.0], [9.0], [5.0]]), k=2)
        (tensor([[9., 5.]]), tensor([[1, 2]]))
    """
    return exact.top_k(input, weight, bias, k)


def recall_at_k(classes: Tensor, target: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Return the mean share of the targets of an example that are among its k predicted classes.

    Args:
        classes (Tensor): predicted classes, (N, k), from `top_k`.
        target (Tensor): targets, (N,), or (N, T) for several. Examples without a target do not count.
        ignore_index (int): targets of this value are ignored. Default: -100.

    Examples:
        >>> recall_at_k(torch.tensor([[1, 2], [3, 4]]), torch.tensor([2, 5]))
        tensor(0.5000)
    """
    targets = target.reshape(len(classes), -1)  # (N, T)
    counted = targets != ignore_index
    found = (targets.unsqueeze(2) == classes.unsqueeze(1)).any(2) & counted
    number = counted.sum(1)
    shares = found.sum(1) / number.clamp(min=1)
    return shares.sum() / (number > 0).sum().clamp(min=1)


@torch.no_grad()
def ranks(input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the rank of each target among all classes, (N,): 1 + the number of classes with a higher score.

    Args:
        input (Tensor): hidden vectors or queries, (N, d).
        weight (Tensor): vectors of the classes, (V, d).
        target (Tensor): targets, (N,).
        bias (Tensor): biases of the classes, (V,).

    Examples:
        >>> ranks(torch.tensor([[1.0]]), torch.tensor([[3.0], [9.0], [5.0]]), torch.tensor([2]))
        tensor([2])
    """
    higher = torch.zeros_like(target)
    for first in range(0, len(input), exact.BLOCK_EXAMPLES):
        here = slice(first, first + exact.BLOCK_EXAMPLES)
        own = _scores(input[here], weight, target[here].unsqueeze(1), bias)  # (n, 1)
        for start, scores in exact.score_blocks(input[here], weight, bias):
            # a class must not be above itself by a rounding error
            others = torch.arange(start, start + scores.shape[1], device=scores.device) != target[here].unsqueeze(1)
            higher[here] += ((scores > own) & others).sum(1)
    return higher + 1


@torch.no_grad()
def sampled_ranks(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    num_samples: int = 1000,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return estimates of `ranks` from classes drawn uniformly, (N,), as floating-point numbers.

    The estimate 1 + (V − 1)·(share of the samples with a higher score) is unbiased for the rank. Metrics that are not
    linear in the rank are biased: a target of rank r has no sample above it, and the estimate 1, with probability about
    (1 − r/V)^m for m samples, so that ranks below V/m cannot be told apart. Unless m is much larger than V/K, recall@K
    is wrong (too high for ranks that are uniformly distributed), and can order two models wrongly (Krichene & Rendle
    2020). Report `recall_at_k` of `top_k`, which is exact.

    Args:
        input (Tensor): hidden vectors or queries, (N, d).
        weight (Tensor): vectors of the classes, (V, d).
        target (Tensor): targets, (N,).
        bias (Tensor): biases of the classes, (V,).
        num_samples (int): classes drawn for each example, m. Default: 1000.
        generator (torch.Generator): source of the samples.
    """
    own = _scores(input, weight, target.unsqueeze(1), bias)  # (N, 1)
    # uniform over the V − 1 other classes: those above the target move up by one
    samples = torch.randint(len(weight) - 1, (len(target), num_samples), device=input.device, generator=generator)
    samples += samples >= target.unsqueeze(1)
    higher = torch.cat(
        [
            (_scores(input, weight, part, bias) > own).sum(1, keepdim=True)
            for part in samples.split(max(exact.BLOCK_SCORES // max(input.numel(), 1), 1), 1)
        ],
        1,
    ).sum(1)
    return 1.0 + (len(weight) - 1) * higher / num_samples


def _scores(input: Tensor, weight: Tensor, classes: Tensor, bias: Tensor | None) -> Tensor:
    """Return the scores of classes (N, m) of each example, (N, m)."""
    scores = torch.einsum("nd,nmd->nm", input, weight[classes].to(input.dtype))
    return scores if bias is None else scores + bias[classes]
