"""Compiled kernels for float32 tensors on the CPU: the fast path of the losses and of `SparseSGD`.

Other devices and types, and torch.compile, compute with PyTorch's own operations; the results are equal up to rounding.
Kernels run on as many threads as PyTorch (`torch.set_num_threads`), and their results do not depend on the number.
"""

import ctypes
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ncelm.kernels.records import SYNC_STRIDE

if TYPE_CHECKING:  # Numba is imported late
    from ncelm.kernels.compile import CKernel

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
    found = _run(pairs.group_pairs, 0, targets, noise, by_target, by_noise, classes, offsets, weights, rows, sums)
    count = found[pairs.COUNT]
    values = torch.empty(count, input.shape[1])
    _run(pairs.class_gradients, values.numel(), offsets, weights, rows, input, values)
    return classes[:count], values, sums[:count]


def draw(keep: Tensor, alias: Tensor, uniform: Tensor, columns: Tensor) -> Tensor:
    """Return the classes that columns of an alias table give: those with uniform < keep, others their alias."""
    from ncelm.kernels import pairs

    _run(pairs.draw, columns.numel(), keep, alias, uniform.view(-1), columns.view(-1))  # in place
    return columns


def gather_rows(input: Tensor, weight: Tensor, bias: Tensor | None, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows (m, d) and biases (m,) of classes (m,), and the scores of the first N of them, (N,)."""
    from ncelm.kernels import pairs

    rows, biases = torch.empty(len(classes), weight.shape[1]), torch.empty(len(classes))
    scores = torch.empty(len(input))
    if bias is None:
        bias = torch.empty(0)
    _run(pairs.gather_rows, rows.numel(), input, weight, bias, classes, rows, biases, scores)
    return rows, biases, scores


def nce_losses(target_logits: Tensor, noise_scores: Tensor, shifts: Tensor) -> Tensor:
    """Return the losses (N,) of logits of targets (N,), scores of noise samples (N, k) and their shifts (k,).

    Logits and scores are replaced by the derivatives of the losses.
    """
    from ncelm.kernels import pairs

    losses = torch.empty(len(target_logits))
    _run(pairs.nce_losses, noise_scores.numel(), target_logits, noise_scores, shifts, losses)
    return losses


def target_gradients(input: Tensor, rows: Tensor, by_target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the targets' share of the gradients of inputs (N, d) and of rows (m, d), given those of the scores, (N,).

    The gradients of rows that are not of targets are not initialized.
    """
    from ncelm.kernels import pairs

    by_input, by_rows = torch.empty_like(input), torch.empty_like(rows)
    _run(pairs.target_gradients, input.numel(), by_target, input, rows, by_input, by_rows)
    return by_input, by_rows


def update_rows(table: Tensor, rows: Tensor, values: Tensor, rate: float) -> None:
    """Add rate · values, (n, …), to rows of a table, in place."""
    from ncelm.kernels import pairs

    flat = table.detach().flatten(1) if table.dim() > 1 else table.detach().unsqueeze(1)
    values = values.view(len(rows), flat.shape[1])
    _run(pairs.update_rows, values.numel(), flat, rows, values, torch.tensor([rate]))
    torch.autograd.graph.increment_version(table)


SMALL = 1 << 14  # numbers in a result that one thread computes faster than several


def _run(kernel: "CKernel", size: int, *tensors: Tensor) -> "ctypes.Array[ctypes.c_int64]":
    """Run a kernel whose result has `size` numbers on this thread and, unless it is small, on PyTorch's other threads.

    Return the memory of the kernel, which begins with `sync`. Kernels read the memory of tensors: `Tensor.numpy` would
    make it not resizable, and FSDP2 frees the memory of parameters by resizing it.
    """
    from ncelm.kernels.pairs import INVALID, THREADS

    threads = torch.get_num_threads() if size > SMALL else 1
    words = [0] * SYNC_STRIDE
    words[THREADS] = threads
    for tensor, dtype in zip(tensors, kernel.dtypes, strict=True):  # address, rows, columns
        if tensor.dtype != _DTYPES[dtype] or not tensor.is_contiguous():  # its memory has another meaning
            raise TypeError(f"{kernel.name} needs a contiguous tensor of {dtype}, not {tensor.dtype}")
        words += (tensor.data_ptr(), *tensor.shape) if tensor.dim() == 2 else (tensor.data_ptr(), *tensor.shape, 1)
    memory = (ctypes.c_int64 * len(words))(*words)
    function = _FUNCTION(kernel.address)
    if threads == 1:
        function(ctypes.addressof(memory))
    elif (openmp := _openmp()) is not None:
        openmp(kernel.address, ctypes.addressof(memory), threads, 0)
    else:
        helpers = [_threads().submit(function, ctypes.addressof(memory)) for _ in range(threads - 1)]
        function(ctypes.addressof(memory))
        for helper in helpers:
            if not helper.cancel():  # it has begun; otherwise all work is done
                helper.result()
    if memory[INVALID]:
        raise IndexError("index out of range: a target, a noise sample or a row of a gradient is not in the table")
    return memory


_DTYPES = {"float32": torch.float32, "int64": torch.int64}
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # it releases Python's lock during the call


@cache
def _openmp() -> Any:
    """Return GOMP_parallel of the GNU OpenMP library that PyTorch has loaded, or None if it uses another one.

    PyTorch's threads wait actively for some milliseconds after an operation. Other threads would have to share the
    cores with them.
    """
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        function = library.GOMP_parallel  # (function, its argument, number of threads, flags)
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function


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
