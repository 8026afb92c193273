"""Work items and the barrier: how the threads of a kernel share the work of a phase.

`sync` is an array of int64, zero at the start, with SYNC_STRIDE entries for each phase.

On two threads a phase costs 0.6 µs, a `prange` of Numba 1.2 µs (benchmarks/barrier.py, idle machine). `prange` would
also split a training call into one outlined function for each loop.
"""

import platform
import sys

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ncelm.kernels.compile import inline
from ncelm.kernels.records import SYNC_STRIDE


@intrinsic
def fetch_add(typing_context, array, index, value):
    """Add to array[index] (int64) atomically and return the former value."""
    signature = types.int64(array, types.int64, types.int64)

    def generate(context, builder, signature, arguments):
        pointer = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", builder.gep(pointer, [arguments[1]]), arguments[2], "seq_cst")

    return signature, generate


@intrinsic
def load_acquire(typing_context, array, index):
    """array[index] (int64), read atomically with acquire ordering."""
    signature = types.int64(array, types.int64)

    def generate(context, builder, signature, arguments):
        pointer = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load_atomic(builder.gep(pointer, [arguments[1]]), "acquire", 8)

    return signature, generate


@intrinsic
def pause(typing_context):
    """A hint to the processor that this is a spin loop."""

    def generate(context, builder, signature, arguments):
        if platform.machine().lower() in ("x86_64", "amd64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


_yield_processor = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())
SPINS = 5_000  # some tens of microseconds: beyond that there are more threads than free cores


@inline
def take_item(sync, phase):
    """The number of the next work item of this phase."""
    return fetch_add(sync, phase * SYNC_STRIDE, 1)


@inline
def wait_for_all(sync, phase, threads):
    """Return when every thread has arrived here: a spinning barrier."""
    fetch_add(sync, phase * SYNC_STRIDE + 8, 1)
    spins = 0
    while load_acquire(sync, phase * SYNC_STRIDE + 8) < threads:
        spins += 1
        pause()
        if spins > SPINS:
            _yield_processor()
