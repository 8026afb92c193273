"""Scores of a few classes per example, with closed-form gradients.

Autograd's own gradient of a gather followed by a product keeps more intermediate tensors and makes more passes over
memory; `benchmarks/pytorch_losses.py` compares both.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's convention)
from torch import Tensor

PART_NUMBERS = 1 << 18  # 1 MB


def pair_scores(input: Tensor, weight: Tensor, bias: Tensor | None, classes: Tensor, sparse: bool) -> Tensor:
    """Return s(w, h) = hᵀ q_w + b_w of the classes of each example: (N, d), (V, d), (V,), (N, m) → (N, m)."""
    if not torch.compiler.is_compiling():
        return _PairScores.apply(input, weight, bias, classes, sparse)
    # the compiler derives and fuses dense gradients itself
    rows, biases = gather(weight, bias, classes, input.dtype, sparse)
    return _products(input, rows) + biases


def shared_scores(
    input: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, noise: Tensor, sparse: bool
) -> tuple[Tensor, Tensor]:
    """Return s(w, h) of one target per example, (N,), and of k classes that all examples share, (N, k)."""
    if not torch.compiler.is_compiling():
        return _SharedScores.apply(input, weight, bias, targets, noise, sparse)
    rows, biases = gather(weight, bias, torch.cat([targets, noise]), input.dtype, sparse)
    n = len(targets)
    return (input * rows[:n]).sum(-1) + biases[:n], torch.addmm(biases[n:], input, rows[n:].T)


def gather(
    weight: Tensor, bias: Tensor | None, classes: Tensor, dtype: torch.dtype, sparse: bool
) -> tuple[Tensor, Tensor]:
    """Return the weight rows (…, d) and biases (…) of classes (…)."""
    rows = take_rows(weight, classes, sparse).to(dtype)
    if bias is None:
        return rows, rows.new_zeros(classes.shape)
    return rows, take_rows(bias, classes, sparse).to(dtype)


def take_rows(table: Tensor, classes: Tensor, sparse: bool) -> Tensor:
    """Return rows of a matrix, or elements of a vector, with a dense or a sparse gradient."""
    if sparse:
        return _take_with_sparse_gradient(table, classes)
    return F.embedding(classes, table) if table.dim() == 2 else table[classes]


@torch.compiler.disable  # torch.compile does not support sparse tensors
def _take_with_sparse_gradient(table: Tensor, classes: Tensor) -> Tensor:
    if table.dim() == 2:
        return F.embedding(classes, table, sparse=True)
    return torch.gather(table, 0, classes.reshape(-1), sparse_grad=True).view(classes.shape)


def _products(input: Tensor, rows: Tensor) -> Tensor:
    """Return hᵀ q_w: (N, d), (N, m, d) → (N, m). With the vector as the second factor it is several times slower."""
    return torch.bmm(input.unsqueeze(1), rows.transpose(1, 2)).squeeze(1)


class _SharedScores(torch.autograd.Function):
    """Scores of the targets and of classes that all examples share: matrix products."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, noise: Tensor, sparse: bool
    ) -> tuple[Tensor, Tensor]:
        classes, n = torch.cat([targets, noise]), len(targets)
        rows = weight.index_select(0, classes).to(input.dtype)  # (N + k, d)
        ctx.save_for_backward(input, rows, classes)
        ctx.weight = weight.shape, weight.dtype
        ctx.bias = None if bias is None else (bias.shape, bias.dtype)
        ctx.sparse = sparse
        target_scores = (input * rows[:n]).sum(1)
        if bias is None:
            return target_scores, input @ rows[n:].T
        biases = bias.take(classes).to(input.dtype)
        return target_scores + biases[:n], torch.addmm(biases[n:], input, rows[n:].T)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_target: Tensor, by_noise: Tensor) -> tuple[Tensor | None, ...]:
        input, rows, classes = ctx.saved_tensors
        n = len(input)
        by_input = by_weight = by_bias = None
        if ctx.needs_input_grad[0]:
            by_input = torch.addmm(by_target.unsqueeze(1) * rows[:n], by_noise, rows[n:])
        if ctx.needs_input_grad[1]:
            shape, dtype = ctx.weight
            values = torch.cat([by_target.unsqueeze(1) * input, by_noise.T @ input]).to(dtype)  # (N + k, d)
            by_weight = row_gradient(classes, values, shape, ctx.sparse)
        if ctx.needs_input_grad[2]:
            shape, dtype = ctx.bias
            by_bias = row_gradient(classes, torch.cat([by_target, by_noise.sum(0)]).to(dtype), shape, ctx.sparse)
        return by_input, by_weight, by_bias, None, None, None


class _PairScores(torch.autograd.Function):
    """Scores of (example, class) pairs, in parts of a few examples.

    The rows of a part stay in the cache. They are gathered again in the backward pass: writing and reading (N, m, d)
    numbers takes longer than that.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, classes: Tensor, sparse: bool) -> Tensor:
        ctx.save_for_backward(input, weight, classes)
        ctx.bias = None if bias is None else (bias.shape, bias.dtype)
        ctx.sparse = sparse
        scores = input.new_zeros(classes.shape) if bias is None else bias.take(classes).to(input.dtype)
        for part in _parts(classes, input):
            scores[part] += _products(input[part], _rows(weight, classes[part], input.dtype))
        return scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, classes = ctx.saved_tensors
        by_input = by_weight = by_bias = values = None
        if ctx.needs_input_grad[0]:
            by_input = torch.empty_like(input)
        if ctx.needs_input_grad[1] and ctx.sparse:
            values = weight.new_empty((*classes.shape, weight.shape[1]))  # g(w) h, (N, m, d)
        elif ctx.needs_input_grad[1]:
            by_weight = torch.zeros_like(weight)
        for part in _parts(classes, input):
            if by_input is not None:  # Σ_w g(w) q_w
                rows = _rows(weight, classes[part], input.dtype)
                by_input[part] = torch.bmm(gradient[part].unsqueeze(1), rows).squeeze(1)
            if values is not None:
                values[part] = gradient[part].unsqueeze(2) * input[part].unsqueeze(1)
            elif by_weight is not None:
                outer = gradient[part].unsqueeze(2) * input[part].unsqueeze(1)
                add_rows_(by_weight, classes[part].reshape(-1), outer.flatten(0, 1).to(weight.dtype))
        flat = classes.reshape(-1)
        if values is not None:
            by_weight = row_gradient(flat, values.flatten(0, 1), weight.shape, True)
        if ctx.needs_input_grad[2]:
            shape, dtype = ctx.bias
            by_bias = row_gradient(flat, gradient.reshape(-1).to(dtype), shape, ctx.sparse)
        return by_input, by_weight, by_bias, None, None


def _parts(classes: Tensor, input: Tensor) -> Iterator[slice]:
    """Yield examples whose rows have PART_NUMBERS numbers in total."""
    size = max(PART_NUMBERS // (classes.shape[1] * input.shape[1]), 1)
    for first in range(0, len(input), size):
        yield slice(first, first + size)


def _rows(weight: Tensor, classes: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the rows of classes (n, m), (n, m, d)."""
    return weight.index_select(0, classes.reshape(-1)).view(*classes.shape, weight.shape[1]).to(dtype)


def row_gradient(rows: Tensor, values: Tensor, shape: torch.Size, sparse: bool) -> Tensor:
    """Return the gradient of a table of which `rows`, (n,), got the gradients `values`, (n, d) or (n,)."""
    if sparse:
        return torch.sparse_coo_tensor(rows.unsqueeze(0), values, shape, check_invariants=False)
    return add_rows_(values.new_zeros(shape), rows, values)


def add_rows_(table: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """Add values, (n, d) or (n,), to rows of a table in place; rows may occur several times.

    On the CPU, `scatter_add_` with an expanded index is faster than `index_add_`.
    """
    index = rows if values.dim() == 1 else rows.unsqueeze(1).expand_as(values)
    return table.scatter_add_(0, index, values)
