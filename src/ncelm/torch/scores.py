"""Scores of a few classes per example, with closed-form gradients.

Autograd's own gradient of a gather followed by a product keeps more intermediate tensors and makes more passes over
memory; `benchmarks/pytorch_losses.py` compares both.
"""

import math
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
        targets, noise = targets.contiguous(), noise.long().contiguous()
        return _CompiledPairScores.apply(input, weight, bias, targets, noise, sparse)
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


class NCE(torch.autograd.Function):
    """The NCE loss of each example (Eq. 13), (N,), from scores and log Pn of targets (N,) and noise samples (N, k).

    log Pn of the noise is (k,) if it is shared. The derivatives by the scores are computed with the loss: `logsigmoid`
    and its derivative take more passes over (N, k) numbers.
    """

    @staticmethod
    def forward(
        ctx: Any, target_scores: Tensor, noise_scores: Tensor, target_log_noise: Tensor, noise_log_noise: Tensor
    ) -> Tensor:
        """Return the losses."""
        log_k = math.log(noise_scores.shape[1])
        target_logits = target_log_noise + log_k - target_scores  # (N,), of the noise
        noise_logits = noise_scores - (noise_log_noise + log_k)  # (N, k), of the data
        losses = F.softplus(noise_logits).sum(1).add_(F.softplus(target_logits))
        ctx.save_for_backward(target_logits.sigmoid_().neg_(), noise_logits.sigmoid_())
        return losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the scores."""
        by_target, by_noise = ctx.saved_tensors
        return by_target * gradient, by_noise * gradient.unsqueeze(1), None, None


class _SharedScores(torch.autograd.Function):
    """Scores of the targets and of classes that all examples share: matrix products."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, noise: Tensor, sparse: bool
    ) -> tuple[Tensor, Tensor]:
        rows, classes, biases = _shared_rows(ctx, input, weight, bias, targets, noise, sparse)
        ctx.save_for_backward(input, rows, classes)
        n = len(targets)
        target_scores = (input * rows[:n]).sum(1)
        if biases is None:
            return target_scores, input @ rows[n:].T
        return target_scores + biases[:n], torch.addmm(biases[n:], input, rows[n:].T)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_target: Tensor, by_noise: Tensor) -> tuple[Tensor | None, ...]:
        input, rows, classes = ctx.saved_tensors
        return (*_shared_gradients(ctx, input, rows, classes, by_target, by_noise), None, None, None)


class SharedNCE(torch.autograd.Function):
    """The NCE loss of each example (Eq. 13), (N,), with noise samples that all examples share.

    It is `NCE` of `shared_scores` with fewer passes over (N, k) numbers: log(k Pn) is added where the losses are
    computed, and an upstream gradient that all examples share is a factor of the matrix products.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        noise: Tensor,
        target_log_noise: Tensor,
        noise_log_noise: Tensor,
        sparse: bool,
    ) -> Tensor:
        """Return the losses. The derivatives by the scores are computed at the same time."""
        n, log_k = len(targets), math.log(len(noise))
        fast = compiled.supports(input, weight, bias)
        if fast:
            _remember_tables(ctx, weight, bias, sparse)
            classes = torch.cat([targets, noise])
            rows, biases, scores = compiled.gather_rows(input, weight, bias, classes)
            shifts = biases[n:] - noise_log_noise
        else:
            rows, classes, given = _shared_rows(ctx, input, weight, bias, targets, noise, sparse)
            scores, shifts = (input * rows[:n]).sum(1), -noise_log_noise
            if given is not None:
                scores, shifts = scores + given[:n], shifts + given[n:]
        target_logits = target_log_noise + log_k - scores  # (N,), of the noise
        shifts -= log_k
        if fast:
            noise_logits = torch.mm(input, rows[n:].T)  # (N, k), of the data when the shifts are added
            losses = compiled.nce_losses(target_logits, noise_logits, shifts)
        else:
            noise_logits = torch.addmm(shifts, input, rows[n:].T)
            losses = F.softplus(noise_logits).sum(1).add_(F.softplus(target_logits))
            target_logits.sigmoid_()
            noise_logits.sigmoid_()
        ctx.save_for_backward(input, rows, classes, target_logits.neg_(), noise_logits)
        return losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the input, the weight and the bias."""
        input, rows, classes, by_target, by_noise = ctx.saved_tensors
        factor = _common_value(gradient)
        if factor is None:
            factor, by_target, by_noise = 1.0, by_target * gradient, by_noise * gradient.unsqueeze(1)
        gradients = _shared_gradients(ctx, input, rows, classes, by_target, by_noise, factor)
        return (*gradients, None, None, None, None, None)


def _common_value(values: Tensor) -> float | None:
    """Return the value that all have, if they have. On other devices than the CPU, reading it would take longer."""
    if values.device.type != "cpu" or not values.numel():
        return None
    low, high = values.aminmax()
    return low.item() if low == high else None


def _shared_rows(
    ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, noise: Tensor, sparse: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the rows (N + k, d), the classes and the biases (N + k,) of N targets and k noise samples."""
    _remember_tables(ctx, weight, bias, sparse)
    classes = torch.cat([targets, noise])
    rows = weight.index_select(0, classes).to(input.dtype)
    return rows, classes, None if bias is None else bias.take(classes).to(input.dtype)


def _remember_tables(ctx: Any, weight: Tensor, bias: Tensor | None, sparse: bool) -> None:
    ctx.weight = weight.shape, weight.dtype
    ctx.bias = None if bias is None else (bias.shape, bias.dtype)
    ctx.sparse = sparse


def _shared_gradients(
    ctx: Any,
    input: Tensor,
    rows: Tensor,
    classes: Tensor,
    by_target: Tensor,
    by_noise: Tensor,
    factor: float = 1.0,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of the input, the weight and the bias, given those of the scores, (N,) and (N, k).

    The gradients of the scores are multiplied by the factor.
    """
    n, by_target = len(input), by_target * factor
    by_weight = by_bias = None
    if compiled.supports(input, rows, by_target):
        by_input, values = compiled.target_gradients(input, rows, by_target)
    else:
        by_input, values = by_target.unsqueeze(1) * rows[:n], torch.empty_like(rows)
        torch.mul(by_target.unsqueeze(1), input, out=values[:n])
    if ctx.needs_input_grad[0]:
        by_input.addmm_(by_noise, rows[n:], alpha=factor)
    if ctx.needs_input_grad[1]:
        shape, dtype = ctx.weight
        values[n:].addmm_(by_noise.T, input, beta=0, alpha=factor)  # `cat` would copy the products
        by_weight = row_gradient(classes, values.to(dtype), shape, ctx.sparse)
    if ctx.needs_input_grad[2]:
        shape, dtype = ctx.bias
        sums = torch.cat([by_target, by_noise.sum(0) * factor])
        by_bias = row_gradient(classes, sums.to(dtype), shape, ctx.sparse)
    return by_input if ctx.needs_input_grad[0] else None, by_weight, by_bias


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
