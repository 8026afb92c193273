"""Exact quantities of a softmax over very many classes, in blocks of classes: bounded memory, closed-form gradient.

The functions take hidden vectors (N, d), a weight (V, d) and a bias (V,) or None. They never hold more than
`BLOCK_SCORES` scores at once.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's convention)
from torch import Tensor

BLOCK_SCORES = 1 << 24  # scores held at once: 64 MB
BLOCK_EXAMPLES = 1 << 12


def negative_log_likelihood(input: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return −log P of the targets, (N,)."""
    if torch.compiler.is_compiling() or len(input) * len(weight) <= BLOCK_SCORES:
        return F.cross_entropy(F.linear(input, weight.to(input.dtype), _to(bias, input)), targets, reduction="none")
    return _NegativeLogLikelihood.apply(input, weight, bias, targets)


def top_k(input: Tensor, weight: Tensor, bias: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest scores in descending order, and their classes, (N, k) each."""
    if not 1 <= k <= len(weight):
        raise ValueError(f"k is {k}: give a number from 1 to {len(weight)}, the number of classes")
    parts = []
    for rows in input.split(BLOCK_EXAMPLES):
        best = rows.new_full((len(rows), 0), 0.0), rows.new_zeros((len(rows), 0), dtype=torch.int64)
        for first, scores in score_blocks(rows, weight, bias):
            values, classes = scores.topk(min(k, scores.shape[1]), 1)
            best = merge_top_k(k, [best, (values, classes + first)])
        parts.append(best)
    if not parts:
        return input.new_zeros((0, k)), input.new_zeros((0, k), dtype=torch.int64)
    return torch.cat([values for values, _ in parts]), torch.cat([classes for _, classes in parts])


def merge_top_k(k: int, parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the k highest of several lists of scores and classes, (N, …) each."""
    values, classes = (torch.cat(tensors, 1) for tensors in zip(*parts, strict=True))
    values, places = values.topk(min(k, values.shape[1]), 1)
    return values, classes.gather(1, places)


def log_normalizers(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return log Z(h) = log Σ_w exp(s(w, h)), (N,)."""
    parts = []
    for rows in input.split(BLOCK_EXAMPLES):
        total = rows.new_full((len(rows),), -torch.inf)
        for _, scores in score_blocks(rows, weight, bias):
            total = torch.logaddexp(total, torch.logsumexp(scores, 1))
        parts.append(total)
    return torch.cat(parts) if parts else input.new_zeros(0)


def score_blocks(input: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[int, Tensor]]:
    """Yield the first class of each block and the scores of its classes, (N, block)."""
    size = max(BLOCK_SCORES // max(len(input), 1), 1)
    for first in range(0, len(weight), size):
        block = weight[first : first + size].to(input.dtype)
        yield first, F.linear(input, block, _to(None if bias is None else bias[first : first + size], input))


class _NegativeLogLikelihood(torch.autograd.Function):
    """−log P in blocks of classes: scores are computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        log_z = log_normalizers(input, weight, bias)  # (N,)
        scores = (input * weight[targets].to(input.dtype)).sum(1)
        if bias is not None:
            scores = scores + bias[targets].to(input.dtype)
        ctx.save_for_backward(input, weight, bias, targets, log_z)
        return log_z - scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, bias, targets, log_z = ctx.saved_tensors
        by_input = torch.zeros_like(input) if ctx.needs_input_grad[0] else None
        by_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        by_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        examples = input.split(BLOCK_EXAMPLES)
        for i, rows in enumerate(examples):
            here = slice(i * BLOCK_EXAMPLES, i * BLOCK_EXAMPLES + len(rows))
            for first, scores in score_blocks(rows, weight, bias):
                last = first + scores.shape[1]
                # (P(w|h) − 1[w = target]) times the gradient of the loss, (n, block); Eq. 4
                by_scores = torch.exp(scores - log_z[here].unsqueeze(1))
                inside = (targets[here] >= first) & (targets[here] < last)
                by_scores[inside, targets[here][inside] - first] -= 1.0
                by_scores *= gradient[here].unsqueeze(1)
                if by_input is not None:
                    by_input[here] += by_scores @ weight[first:last].to(input.dtype)
                if by_weight is not None:
                    by_weight[first:last] += (by_scores.T @ rows).to(weight.dtype)
                if by_bias is not None:
                    by_bias[first:last] += by_scores.sum(0).to(bias.dtype)
        return by_input, by_weight, by_bias, None


def _to(bias: Tensor | None, input: Tensor) -> Tensor | None:
    return None if bias is None else bias.to(input.dtype)
