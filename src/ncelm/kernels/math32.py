"""Single-precision exp and log that LLVM can vectorise, and sums in a fixed order."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ncelm.kernels.compile import inline


@intrinsic
def _as_float32(typing_context, bits):
    """The float32 with these bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def _as_bits(typing_context, number):
    """The bits of a float32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@inline
def exp32(x):
    """exp(x) in float32, relative error below 2e-6 for |x| < 30, without a branch, so that LLVM can vectorise it."""
    x = min(max(x, np.float32(-87.0)), np.float32(87.0))  # 1/exp(x) is a normal float32 too
    t = x * np.float32(1.4426950408889634)
    n = np.int32(t + np.float32(128.5)) - np.int32(128)  # round to nearest; the sum is positive, so truncation floors
    f = t - np.float32(n)  # in [-1/2, 1/2]: 2^t = 2^n 2^f
    p = np.float32(1.5353362e-4)
    p = p * f + np.float32(1.3398874e-3)
    p = p * f + np.float32(9.6184373e-3)
    p = p * f + np.float32(5.5503324e-2)
    p = p * f + np.float32(2.4022648e-1)
    p = p * f + np.float32(6.9314720e-1)
    p = p * f + np.float32(1.0)
    return p * _as_float32((n + np.int32(127)) << np.int32(23))


@inline
def log32(x):
    """log(x) in float32 for a normal positive x, absolute error below 2e-6 for x in [1e-9, 1], without a branch."""
    bits = _as_bits(x)
    half = (bits >> np.int32(22)) & np.int32(1)  # is the mantissa, in [1, 2), at least 1.5? Then halve it
    exponent = (bits >> np.int32(23)) - np.int32(127) + half
    m = _as_float32((bits & np.int32(0x7FFFFF)) | ((np.int32(127) - half) << np.int32(23)))  # in [3/4, 3/2)
    s = (m - np.float32(1.0)) / (m + np.float32(1.0))  # log m = 2 artanh s
    q = s * s
    p = np.float32(1.0 / 9.0)
    p = p * q + np.float32(1.0 / 7.0)
    p = p * q + np.float32(0.2)
    p = p * q + np.float32(1.0 / 3.0)
    p = p * q + np.float32(1.0)
    return np.float32(2.0) * s * p + np.float32(exponent) * np.float32(0.6931471805599453)


@inline
def copy(source, out):
    """out[:] = source, without the check of shapes that Numba compiles into every assignment of arrays."""
    for t in range(out.size):
        out[t] = source[t]


@inline
def dot(a, b):
    """Σ a b of two float32 vectors."""
    total = np.float32(0.0)
    for t in range(a.size):
        total += a[t] * b[t]
    return total
