"""Scores of a few classes per example, with closed-form gradients.

Autograd's own gradient of a gather followed by a product keeps more intermediate tensors and makes more passes over
memory; `benchmarks/pytorch_losses.py` compares both.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's convention)
from torch import Tensor

from ncelm.torch import compiled


def pair_scores(
    input: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, noise: Tensor, sparse: bool
) -> tuple[Tensor, Tensor]:
    """Return s(w, h) = hᵀ q_w + b_w of the target and of k noise samples of each example, (N,) and (N, k).

    input (N, d), weight (V, d), bias (V,), targets (N,), noise (N, k).
    """
    if not torch.compiler.is_compiling() and compiled.supports(input, weight, bias):
        return _CompiledPairScores.apply(input, weight, bias, targets, noise.contiguous(), sparse)
    classes = torch.cat([targets.unsqueeze(1), noise], 1)  # (N, k + 1)
    if not torch.compiler.is_compiling():
        scores = _PairScores.apply(input, weight, bias, classes, sparse)
    else:  # the compiler derives and fuses dense gradients itself
        rows, biases = gather(weight, bias, classes, input.dtype, sparse)
        scores = _products(input, rows) + biases
    return scores[:, 0], scores[:, 1:]


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
            values = torch.empty_like(rows)  # (N + k, d); `cat` would copy the products
            torch.mul(by_target.unsqueeze(1), input, out=values[:n])
            torch.mm(by_noise.T, input, out=values[n:])
            by_weight = row_gradient(classes, values.to(dtype), shape, ctx.sparse)
        if ctx.needs_input_grad[2]:
            shape, dtype = ctx.bias
            by_bias = row_gradient(classes, torch.cat([by_target, by_noise.sum(0)]).to(dtype), shape, ctx.sparse)
        return by_input, by_weight, by_bias, None, None, None


class _CompiledPairScores(torch.autograd.Function):
    """Scores of (example, class) pairs by compiled kernels, which read rows where they are.

    The gradients of the table are summed by class: sparse ones are coalesced.
    """

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, noise: Tensor, sparse: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(input, weight, targets, noise)
        ctx.biases = None if bias is None else bias.shape
        ctx.sparse = sparse
        return compiled.score_pairs(input, weight, bias, targets, noise)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_target: Tensor, by_noise: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, targets, noise = ctx.saved_tensors
        by_target, by_noise = by_target.contiguous(), by_noise.contiguous()
        by_input = by_weight = by_bias = None
        if ctx.needs_input_grad[0]:
            by_input = compiled.input_gradients(weight, targets, noise, by_target, by_noise)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            classes, values, sums = compiled.class_gradients(input, targets, noise, by_target, by_noise)
            if ctx.needs_input_grad[1]:
                by_weight = row_gradient(classes, values, weight.shape, ctx.sparse, distinct=True)
            if ctx.needs_input_grad[2]:
                by_bias = row_gradient(classes, sums, ctx.biases, ctx.sparse, distinct=True)
        return by_input, by_weight, by_bias, None, None, None


class _PairScores(torch.autograd.Function):
    """Scores of (example, class) pairs.

    Allocating (N, m, d) numbers takes as long as computing them: the gradient is written to the memory of the rows.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, classes: Tensor, sparse: bool) -> Tensor:
        ctx.save_for_backward(input, weight, classes)
        ctx.rows = _rows(weight, classes, input.dtype)
        ctx.bias = None if bias is None else (bias.shape, bias.dtype)
        ctx.sparse = sparse
        scores = _products(input, ctx.rows)
        if bias is not None:
            scores += bias.take(classes)
        return scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, classes = ctx.saved_tensors
        rows, ctx.rows = ctx.rows, None
        if rows is None:  # another backward pass, after retain_graph=True
            rows = _rows(weight, classes, input.dtype)
        flat = classes.reshape(-1)
        by_input = by_weight = by_bias = None
        if ctx.needs_input_grad[0]:
            by_input = torch.bmm(gradient.unsqueeze(1), rows).squeeze(1)  # Σ_w g(w) q_w, (N, d)
        if ctx.needs_input_grad[1]:
            values = torch.mul(gradient.unsqueeze(2), input.unsqueeze(1), out=rows).flatten(0, 1)  # g(w) h, (N m, d)
            by_weight = row_gradient(flat, values.to(weight.dtype), weight.shape, ctx.sparse)
        if ctx.needs_input_grad[2]:
            shape, dtype = ctx.bias
            by_bias = row_gradient(flat, gradient.reshape(-1).to(dtype), shape, ctx.sparse)
        return by_input, by_weight, by_bias, None, None


def _rows(weight: Tensor, classes: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the rows of classes (N, m), (N, m, d)."""
    return weight.index_select(0, classes.reshape(-1)).view(*classes.shape, weight.shape[1]).to(dtype)


def row_gradient(rows: Tensor, values: Tensor, shape: torch.Size, sparse: bool, *, distinct: bool = False) -> Tensor:
    """Return the gradient of a table of which `rows`, (n,), got the gradients `values`, (n, d) or (n,).

    `distinct` says that the rows are sorted and each occurs once.
    """
    if sparse:
        return torch.sparse_coo_tensor(
            rows.unsqueeze(0), values, shape, check_invariants=False, is_coalesced=distinct or None
        )
    return add_rows_(values.new_zeros(shape), rows, values)


def add_rows_(table: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """Add values, (n, d) or (n,), to rows of a table in place; rows may occur several times.

    On the CPU, `scatter_add_` with an expanded index is faster than `index_add_` and than adding a sparse tensor.
    """
    index = rows if values.dim() == 1 else rows.unsqueeze(1).expand_as(values)
    return table.scatter_add_(0, index, values)
