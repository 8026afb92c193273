"""Scores of a few classes per example, with closed-form gradients.

Autograd's own gradient of a gather followed by a product keeps more intermediate tensors and makes more passes over
memory; `benchmarks/pytorch_losses.py` compares both.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's convention)
from torch import Tensor


def pair_scores(input: Tensor, weight: Tensor, bias: Tensor | None, classes: Tensor, sparse: bool) -> Tensor:
    """Return s(w, h) = hᵀ q_w + b_w of the classes of each example: (N, d), (V, d), (V,), (N, m) → (N, m)."""
    if sparse:
        return _with_sparse_gradients(input, weight, bias, classes)
    if torch.compiler.is_compiling():  # the compiler derives and fuses the gradient itself
        rows, biases = gather(weight, bias, classes, input.dtype, sparse)
        return _products(input, rows) + biases
    return _PairScores.apply(input, weight, bias, classes, False)


def shared_scores(
    input: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, noise: Tensor, sparse: bool
) -> tuple[Tensor, Tensor]:
    """Return s(w, h) of one target per example, (N,), and of k classes that all examples share, (N, k)."""
    rows, biases = gather(weight, bias, torch.cat([targets, noise]), input.dtype, sparse)  # one gather, one gradient
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


@torch.compiler.disable
def _with_sparse_gradients(*arguments: Any) -> Tensor:
    return _PairScores.apply(*arguments, True)


class _PairScores(torch.autograd.Function):
    """Scores of (example, class) pairs. The gathered rows, (N, m, d), are kept for the gradient of the input."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, classes: Tensor, sparse: bool) -> Tensor:
        flat = classes.reshape(-1)
        rows = weight.index_select(0, flat).view(*classes.shape, weight.shape[1]).to(input.dtype)  # (N, m, d)
        scores = _products(input, rows)
        if bias is not None:
            scores += bias.index_select(0, flat).view(classes.shape)
        ctx.save_for_backward(input, rows, flat)
        ctx.weight = weight.shape, weight.dtype
        ctx.bias = None if bias is None else (bias.shape, bias.dtype)
        ctx.sparse = sparse
        return scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, rows, flat = ctx.saved_tensors
        by_input = by_weight = by_bias = None
        if ctx.needs_input_grad[0]:
            by_input = torch.bmm(gradient.unsqueeze(1), rows).squeeze(1)  # Σ_w g(w) q_w, (N, d)
        if ctx.needs_input_grad[1]:
            shape, dtype = ctx.weight
            values = (gradient.unsqueeze(2) * input.unsqueeze(1)).flatten(0, 1)  # g(w) h, (N m, d)
            by_weight = row_gradient(flat, values.to(dtype), shape, ctx.sparse)
        if ctx.needs_input_grad[2]:
            shape, dtype = ctx.bias
            by_bias = row_gradient(flat, gradient.reshape(-1).to(dtype), shape, ctx.sparse)
        return by_input, by_weight, by_bias, None, None


def row_gradient(rows: Tensor, values: Tensor, shape: torch.Size, sparse: bool) -> Tensor:
    """Return the gradient of a table of which `rows`, (n,), got the gradients `values`, (n, d) or (n,)."""
    if sparse:
        return torch.sparse_coo_tensor(rows.unsqueeze(0), values, shape, check_invariants=False)
    return add_rows_(values.new_zeros(shape), rows, values)


def add_rows_(table: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """Add values, (n, d) or (n,), to rows of a table in place; rows may occur several times.

    On the CPU, `scatter_add_` with an expanded index is several times as fast as `index_add_`.
    """
    index = rows if values.dim() == 1 else rows.unsqueeze(1).expand_as(values)
    return table.scatter_add_(0, index, values)
