"""Compiled kernels for float32 tensors on the CPU: the fast path of the losses and of `SparseSGD`.

Other devices and types, and torch.compile, compute with PyTorch's own operations; the results are equal up to rounding.
Kernels run on as many threads as PyTorch (`torch.set_num_threads`), and their results do not depend on the number.
"""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ncelm.kernels.records import SYNC_STRIDE

_pool: ThreadPoolExecutor | None = None


def supports(*tensors: Tensor | None) -> bool:
    """Return whether the kernels take these tensors. Subclasses, such as DTensor, have no memory of their own."""
    return all(
        tensor is None
        or (
            type(tensor) in (Tensor, nn.Parameter)
            and tensor.dtype == torch.float32
            and tensor.device.type == "cpu"
            and tensor.is_contiguous()
        )
        for tensor in tensors
    )


def score_pairs(
    input: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the scores of targets (N,) and noise samples (N, k); see `ncelm.torch.scores.pair_scores`."""
    from ncelm.kernels import pairs

    target_scores, noise_scores = torch.empty(targets.shape), torch.empty(noise.shape)
    if bias is None:
        bias = torch.empty(0)
    _run(pairs.score_pairs, input.numel(), input, weight, bias, targets, noise, target_scores, noise_scores)
    return target_scores, noise_scores


def input_gradients(weight: Tensor, targets: Tensor, noise: Tensor, by_target: Tensor, by_noise: Tensor) -> Tensor:
    """Return the gradient of the inputs, (N, d), given those of the scores of targets (N,) and noise samples (N, k)."""
    from ncelm.kernels import pairs

    out = torch.empty(len(targets), weight.shape[1])
    _run(pairs.input_gradients, out.numel(), weight, targets, noise, by_target, by_noise, out)
    return out


def class_gradients(
    input: Tensor, targets: Tensor, noise: Tensor, by_target: Tensor, by_noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distinct classes (n,), in ascending order, and the gradients of their rows (n, d) and biases (n,)."""
    from ncelm.kernels import pairs

    size = targets.numel() + noise.numel()
    classes, rows = torch.empty(size, dtype=torch.int64), torch.empty(size, dtype=torch.int64)
    offsets = torch.empty(size + 1, dtype=torch.int64)
    weights, sums = torch.empty(size), torch.empty(size)
    arrays = (each.numpy() for each in (targets, noise, by_target, by_noise, classes, offsets, weights, rows, sums))
    count = pairs.group_pairs(*arrays)
    values = torch.empty(count, input.shape[1])
    _run(pairs.class_gradients, values.numel(), offsets, weights, rows, input, values)
    return classes[:count], values, sums[:count]


def draw(keep: Tensor, alias: Tensor, uniform: Tensor, columns: Tensor) -> Tensor:
    """Return the classes that columns of an alias table give: those with uniform < keep, others their alias."""
    from ncelm.kernels import pairs

    _run(pairs.draw, columns.numel(), keep, alias, uniform.view(-1), columns.view(-1))  # in place
    return columns


def update_rows(table: Tensor, rows: Tensor, values: Tensor, rate: float) -> None:
    """Add rate · values, (n, …), to distinct rows of a table, in place."""
    from ncelm.kernels import pairs

    flat = table.detach().flatten(1) if table.dim() > 1 else table.detach().unsqueeze(1)
    _run(pairs.update_rows, values.numel(), flat, rows, values.view(len(rows), flat.shape[1]), np.float32(rate))
    torch.autograd.graph.increment_version(table)


SMALL = 1 << 14  # numbers in a result that one thread computes faster than several


def _run(kernel: Callable[..., Any], size: int, *arguments: Any) -> None:
    """Run a kernel whose result has `size` numbers on the calling thread and, if others are free, on those too."""
    from ncelm.kernels.pairs import INVALID

    sync = np.zeros(SYNC_STRIDE, np.int64)
    arrays = [_array(each) if isinstance(each, Tensor) else each for each in arguments]
    helpers = []
    if size > SMALL and torch.get_num_threads() > 1:
        pool = _threads()
        helpers = [pool.submit(kernel, sync, *arrays) for _ in range(torch.get_num_threads() - 1)]
    kernel(sync, *arrays)
    for helper in helpers:
        if not helper.cancel():  # it has begun; otherwise all work is done
            helper.result()
    if sync[INVALID]:
        raise IndexError("index out of range: a target, a noise sample or a row of a gradient is not in the table")


def _array(tensor: Tensor) -> np.ndarray:
    """Return the memory of a contiguous tensor, which the caller keeps alive.

    `Tensor.numpy` would make the memory not resizable, and FSDP2 frees the memory of parameters by resizing it.
    """
    dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))
    if not tensor.numel():
        return np.empty(tensor.shape, dtype)
    memory = (ctypes.c_char * (tensor.numel() * dtype.itemsize)).from_address(tensor.data_ptr())
    return np.frombuffer(memoryview(memory), dtype).reshape(tensor.shape)


def _threads() -> ThreadPoolExecutor:
    """Return the threads that help, at most as many as there are cores."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max(os.cpu_count() or 1, 2) - 1, thread_name_prefix="ncelm-torch")
    return _pool


def _forget_threads() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)  # threads do not survive a fork
