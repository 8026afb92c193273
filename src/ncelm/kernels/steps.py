"""The compiled hot loops: arrays in, arrays out, no objects, no I/O.

What is computed here is written to be read elsewhere (`reference`, `estimators`, `noise`, `corpus`), and tests hold
both together. Functions take `matrices` beside the other parameters, because Numba drops the branch for full or for
diagonal ones only where it sees the number of dimensions of an argument.

How threads work together. A training kernel is entered by all threads at once and runs many minibatches before it
returns. A minibatch is a fixed sequence of phases; a phase is a fixed list of work items; threads take items
from a shared counter and meet at a barrier when none are left. What an item computes does not depend on who
takes it, and no two items of a phase write to the same place, so the parameters come out bit-identical
whatever the number of threads. Two things make that possible without locks:

* all (word, example) pairs of a minibatch are grouped by word beforehand, so each row of a table is
  updated once, by one thread, with the summed gradient of its minibatch, in a fixed order;
* sums over the minibatch (context matrices, losses) are kept per block and added up in block order.

Symbols in comments: B minibatch size, c context words, d dimensions, k noise words, V vocabulary, U unique words.
"""

import itertools
import platform

import numpy as np
from llvmlite import ir
from numba import literal_unroll, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ncelm.kernels.records import (
    SYNC_STRIDE,
)

# Reassociation lets LLVM turn sums into vector instructions; NaN and infinity keep their meaning, because
# a diverging run must be seen to diverge.
FAST = {"reassoc", "contract", "arcp", "nsz"}
# What a kernel calls becomes part of it. Otherwise a kernel that was just compiled calls functions as they were
# compiled for themselves, and one from the cache its own copies of them, which may add up in another order.
compiled = njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy", boundscheck=False, forceinline=True)

EXAMPLE_BLOCK = 25  # examples in one work item of the scoring phase
GROUP_BLOCK = 64  # unique words in one work item of the update phases
POSITION_BLOCK = 64  # unique words of a context position in one matrix product
VOCABULARY_BLOCK = 1000  # words in one matrix product of exact normalisation
ML_EXAMPLE_BLOCK = 250  # examples in one work item of maximum likelihood


# -- atomic counters and the barrier -------------------------------------------------------------------------------


@intrinsic
def _fetch_add(typing_context, array, index, value):
    """Add to array[index] (int64) as one indivisible step and return what was there before."""
    signature = types.int64(array, types.int64, types.int64)

    def generate(context, builder, signature, arguments):
        pointer = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", builder.gep(pointer, [arguments[1]]), arguments[2], "seq_cst")

    return signature, generate


@intrinsic
def _load(typing_context, array, index):
    """Read array[index] (int64) as other threads see it."""
    signature = types.int64(array, types.int64)

    def generate(context, builder, signature, arguments):
        pointer = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load_atomic(builder.gep(pointer, [arguments[1]]), "acquire", 8)

    return signature, generate


@intrinsic
def _as_float32(typing_context, bits):
    """The float32 that has these bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def _as_bits(typing_context, number):
    """The bits of a float32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def _pause(typing_context):
    """Tell the processor that this is a waiting loop, so that a thread on the same core gets its share."""

    def generate(context, builder, signature, arguments):
        if platform.machine().lower() in ("x86_64", "amd64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _fetch(typing_context, table, row):
    """Ask for table[row], one number or a row of float32, ahead of time: what lies anywhere in much is long coming."""

    def generate(context, builder, signature, arguments):
        table, row = context.make_array(signature.args[0])(context, builder, arguments[0]), arguments[1]
        integer, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, integer, integer, integer])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")

        def ask(place):
            pointer = builder.bitcast(builder.gep(table.data, [place]), byte)
            builder.call(prefetch, [pointer, integer(0), integer(3), integer(1)])  # to read, into the first cache

        if signature.args[0].ndim == 1:
            ask(row)
        else:
            width = builder.extract_value(table.shape, 1)
            number = width.type
            start = builder.mul(row, width)
            lines = builder.udiv(builder.add(width, number(15)), number(16))
            end = builder.sub(builder.add(start, width), number(1))
            with cgutils.for_range(builder, builder.add(lines, number(1))) as loop:
                # a cache line is 16 numbers; a row may begin within one, so that it ends in one more
                place = builder.add(start, builder.mul(loop.index, number(16)))
                ask(builder.select(builder.icmp_unsigned("<", place, end), place, end))
        return context.get_dummy_value()

    return types.void(table, types.int64), generate


@intrinsic
def borrowed(typing_context, arrays):
    """A tuple of arrays whose references are not counted, because somebody else keeps the arrays alive.

    Numba counts references in memory, by atomic instructions, even for a row that is handed to a function: per word
    that can be as much work as the word, and threads that write to the same counts wait for each other.
    """

    def generate(context, builder, signature, arguments):
        return _without_owners(context, builder, signature.args[0], arguments[0])

    return arrays(arrays), generate


def _without_owners(context, builder, kind, value):
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = ir.Constant(array.meminfo.type, None)
        array.parent = ir.Constant(array.parent.type, None)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        for i, part in enumerate(kind.types):
            borrowed = _without_owners(context, builder, part, builder.extract_value(value, i))
            value = builder.insert_value(value, borrowed, i)
    return value


_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@compiled
def _take_item(sync, phase):
    """The next work item of this phase."""
    return _fetch_add(sync, phase * SYNC_STRIDE, 1)


@compiled
def _wait_for_all(sync, phase, threads):
    """Return when every thread has arrived here."""
    _fetch_add(sync, phase * SYNC_STRIDE + 8, 1)
    spins = 0
    while _load(sync, phase * SYNC_STRIDE + 8) < threads:
        spins += 1
        _pause()
        if spins > 5_000:  # some tens of microseconds: there are more threads than free cores, so let the others run
            _sched_yield()


# -- random numbers ------------------------------------------------------------------------------------------------


@compiled
def mix(x):
    """Scramble 64 bits: the output function of SplitMix64 (Steele, Lea & Flood 2014)."""
    x = np.uint64(x)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@compiled
def stream_key(seed, step, example):
    """The start of the random stream that belongs to one example of one update."""
    key = mix(np.uint64(seed) + GOLDEN)
    key = mix(key ^ (np.uint64(step) + GOLDEN))
    return mix(key ^ (np.uint64(example) + GOLDEN))


@compiled
def draw(key, counter):
    """The counter-th 64 random bits of a stream."""
    return mix(key + (np.uint64(counter) + np.uint64(1)) * GOLDEN)


@compiled
def draw_word(bits, columns):
    """One word from an alias table, by 64 random bits: the upper half picks a column, the lower half a side.

    A column is its word's threshold in the lower half and the other word in the upper: one look at memory for both,
    and no branch, which nobody could predict.
    """
    half = np.uint64(0xFFFFFFFF)
    column = np.int64(((bits >> np.uint64(32)) * np.uint64(columns.size)) >> np.uint64(32))
    both = columns[column]
    return column if (bits & half) < (both & half) else np.int64(both >> np.uint64(32))


@compiled
def draw_words(seed, step, columns, out):
    """Fill out (B, k) with noise words, one stream per row."""
    for e in range(out.shape[0]):
        key = stream_key(seed, step, e)
        for j in range(out.shape[1]):
            out[e, j] = draw_word(draw(key, j), columns)


@compiled
def permutation_bits(size):
    """Half the bits of the smallest even number of bits that can tell `size` places apart."""
    half = np.uint64(1)
    while (np.uint64(1) << (half + half)) < np.uint64(size):
        half += np.uint64(1)
    return half


@compiled
def permuted(index, size, key, half):
    """Where `index` goes in a pseudo-random permutation of range(size): a Feistel network, walked until inside.

    It needs no memory, so a corpus of any size is visited in random order, and any step can be resumed at.
    """
    mask = (np.uint64(1) << half) - np.uint64(1)
    x = np.uint64(index)
    while True:
        left, right = x >> half, x & mask
        for turn in range(4):
            left, right = right, left ^ (mix(right + key + np.uint64(turn) * GOLDEN) & mask)
        x = (left << half) | right
        if x < np.uint64(size):
            return np.int64(x)


# -- small arithmetic ----------------------------------------------------------------------------------------------


@compiled
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


@compiled
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


@compiled
def _dot(a, b):
    total = np.float32(0.0)
    for t in range(a.size):
        total += a[t] * b[t]
    return total


# The next five are written as vector instructions, because LLVM vectorises inner loops only: it would load and store
# the sums again and again that these keep in registers.


def _spread(builder, value, vector):
    """A vector that has `value` in every lane."""
    out = ir.Constant(vector, ir.Undefined)
    for lane in range(vector.count):
        out = builder.insert_element(out, value, ir.Constant(ir.IntType(32), lane))
    return out


def _registers(builder, pointer, offset, lanes):
    """Pointers to vectors of so many numbers that lie one after another, `offset` numbers after `pointer`."""
    pointers = []
    for count in lanes:
        kind = ir.VectorType(ir.FloatType(), count).as_pointer()
        pointers.append(builder.bitcast(builder.gep(pointer, [offset]), kind))
        offset = builder.add(offset, ir.Constant(offset.type, count))
    return pointers


def _sums(builder, lanes):
    """Registers for sums of so many numbers each."""
    return [cgutils.alloca_once(builder, ir.VectorType(ir.FloatType(), count)) for count in lanes]


def _clear(builder, sums):
    """Sums begin at zero."""
    for total in sums:
        builder.store(ir.Constant(total.type.pointee, None), total)


SUMMED_PIECES = ((*(8,) * 12, 4), (8,) * 12, (8,) * 4, (8,), (4,), (1,))  # lanes of the registers for sums


def _pieces(builder, d, shapes):
    """Go through d columns, as many at a time as possible: where a piece begins, and the lanes of its registers.

    What the caller builds for a piece is the body of a loop. A shape that ends in a smaller register is for widths that
    are a multiple of it only (100, 200, 300): it saves them a pass over all rows for the few columns that are left.
    """
    column = cgutils.alloca_once_value(builder, ir.Constant(d.type, 0))
    for lanes in shapes:
        width = ir.Constant(d.type, sum(lanes))
        count = builder.udiv(builder.sub(d, builder.load(column)), width)
        if lanes[-1] < lanes[0]:
            left = builder.urem(d, width)
            count = builder.select(builder.icmp_unsigned("==", left, ir.Constant(d.type, 0)), count, left.type(0))
        with cgutils.for_range(builder, count):
            first = builder.load(column)
            yield first, lanes
            builder.store(builder.add(first, width), column)


def _add_product(builder, total, x, y):
    """total += x · y, as one instruction where the processor has it."""
    product = builder.fmul(x, y, flags=("contract",))
    builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)


@intrinsic
def _score_rows(typing_context, vector, table, rows, scores):
    """scores[j] = vector · table[rows[j]]: vector (d,), table (…, d), rows (n,) int32, scores (n,) or longer.

    Eight rows at a time, so that `vector` is loaded once for eight and no sum waits for another.
    """

    def generate(context, builder, signature, arguments):
        vector, table, rows, scores = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        n, d = builder.extract_value(rows.shape, 0), builder.extract_value(vector.shape, 0)
        number = n.type
        done = cgutils.alloca_once_value(builder, ir.Constant(number, 0))
        for height in (8, 2, 1):
            tall = ir.Constant(number, height)
            totals = _sums(builder, [8] * height)
            with cgutils.for_range(builder, builder.udiv(builder.sub(n, builder.load(done)), tall)):
                places = [builder.add(builder.load(done), ir.Constant(number, i)) for i in range(height)]
                starts = [
                    builder.mul(builder.sext(builder.load(builder.gep(rows.data, [place])), number), d)
                    for place in places
                ]
                _clear(builder, totals)
                for first, lanes in _pieces(builder, d, ((8,), (4,), (1,))):
                    (piece,) = _registers(builder, vector.data, first, lanes)
                    piece = _widened(builder, builder.load(piece, align=4))
                    for total, start in zip(totals, starts, strict=True):
                        (part,) = _registers(builder, table.data, builder.add(start, first), lanes)
                        _add_product(builder, total, piece, _widened(builder, builder.load(part, align=4)))
                # as one vector, which is how they are read again: that would have to wait for single stores
                (place,) = _registers(builder, scores.data, places[0], (height,))
                builder.store(_sums_of_lanes(builder, [builder.load(total) for total in totals]), place, align=4)
                builder.store(builder.add(builder.load(done), tall), done)
        return context.get_dummy_value()

    return types.void(vector, table, rows, scores), generate


def _shuffled(builder, a, b, lanes):
    """A vector of these lanes of two vectors, those of b counted on from those of a."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes)))


def _widened(builder, vector):
    """Eight lanes: those of a shorter vector, then zeros."""
    count = vector.type.count
    return _shuffled(builder, vector, ir.Constant(vector.type, None), [*range(count), *[count] * (8 - count)])


def _sums_of_lanes(builder, vectors):
    """The sum of the eight lanes of each vector, all sums as one vector."""
    if len(vectors) == 8:
        # two vectors become one that has the halves of both added up, three times over: 4 + 2 + 1 steps
        steps = ((0, 8, 1, 9, 4, 12, 5, 13), 2), ((0, 1, 8, 9, 4, 5, 12, 13), 2), ((0, 1, 2, 3, 8, 9, 10, 11), 4)
        for low, far in steps:
            high = [lane + far for lane in low]
            vectors = [
                builder.fadd(_shuffled(builder, a, b, low), _shuffled(builder, a, b, high))
                for a, b in zip(vectors[::2], vectors[1::2], strict=True)
            ]
        return vectors[0]
    kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), vectors[0].type])
    reduce = cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.fadd.v8f32")
    sums = ir.Constant(ir.VectorType(ir.FloatType(), len(vectors)), ir.Undefined)
    for i, vector in enumerate(vectors):
        total = builder.call(reduce, [ir.Constant(ir.FloatType(), 0.0), vector], fastmath=("reassoc",))
        sums = builder.insert_element(sums, total, ir.Constant(ir.IntType(32), i))
    return sums


@intrinsic
def _add_rows(typing_context, weights, table, rows, out, onto):
    """out = Σ_j weights[j] table[rows[j]], or `onto` what is in out.

    weights (n,) or longer, or None if all are 1; table (…, d), rows (n,) int32, out (d,).
    """

    def generate(context, builder, signature, arguments):
        table, rows, out = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[1:4], arguments[1:4], strict=True)
        )
        weighted = isinstance(signature.args[0], types.Array)
        if weighted:
            weights = context.make_array(signature.args[0])(context, builder, arguments[0])
        n, d = builder.extract_value(rows.shape, 0), builder.extract_value(out.shape, 0)
        for first, lanes in _pieces(builder, d, SUMMED_PIECES):
            places, sums = _registers(builder, out.data, first, lanes), _sums(builder, lanes)
            for total, place in zip(sums, places, strict=True):
                before = builder.load(place, align=4)
                builder.store(builder.select(arguments[4], before, ir.Constant(before.type, None)), total)
            with cgutils.for_range(builder, n) as loop:
                row = builder.sext(builder.load(builder.gep(rows.data, [loop.index])), n.type)
                pieces = _registers(builder, table.data, builder.add(builder.mul(row, d), first), lanes)
                values = [builder.load(piece, align=4) for piece in pieces]
                if weighted:
                    weight = builder.load(builder.gep(weights.data, [loop.index]))
                    for total, value in zip(sums, values, strict=True):
                        _add_product(builder, total, _spread(builder, weight, value.type), value)
                else:
                    for total, value in zip(sums, values, strict=True):
                        builder.store(builder.fadd(builder.load(total), value), total)
            for total, place in zip(sums, places, strict=True):
                builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return types.void(weights, table, rows, out, types.boolean), generate


@intrinsic
def _add_scaled_rows(typing_context, scales, table, rows, out):
    """out = Σ_i scales[i] ∘ table[rows[i]]: scales (c, d), table (…, d), rows (c,) int32, out (d,)."""

    def generate(context, builder, signature, arguments):
        scales, table, rows, out = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        c, d = builder.extract_value(rows.shape, 0), builder.extract_value(out.shape, 0)
        for first, lanes in _pieces(builder, d, SUMMED_PIECES):
            sums = _sums(builder, lanes)
            _clear(builder, sums)
            with cgutils.for_range(builder, c) as loop:
                row = builder.sext(builder.load(builder.gep(rows.data, [loop.index])), c.type)
                pieces = _registers(builder, table.data, builder.add(builder.mul(row, d), first), lanes)
                factors = _registers(builder, scales.data, builder.add(builder.mul(loop.index, d), first), lanes)
                for total, factor, piece in zip(sums, factors, pieces, strict=True):
                    _add_product(builder, total, builder.load(factor, align=4), builder.load(piece, align=4))
            for total, place in zip(sums, _registers(builder, out.data, first, lanes), strict=True):
                builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return types.void(scales, table, rows, out), generate


@intrinsic
def _add_back(typing_context, scales, vector, table, rows, order, out, outs):
    """The way back of `_add_scaled_rows`, for one word that was in several places.

    The place of entry p is i = order[p] − c rows[p]: out = Σ_p scales[i] ∘ table[rows[p]], and
    outs[i] += vector ∘ table[rows[p]]. scales and outs (c, d), vector and out (d,), rows and order (n,) int32.
    """

    def generate(context, builder, signature, arguments):
        scales, vector, table, rows, order, out, outs = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        n, d = builder.extract_value(rows.shape, 0), builder.extract_value(out.shape, 0)
        c = builder.extract_value(scales.shape, 0)
        for first, lanes in _pieces(builder, d, ((8, 8, 8, 8, 8, 8, 2), (8,) * 6, (8,), (4,), (1,))):
            own = [builder.load(piece, align=4) for piece in _registers(builder, vector.data, first, lanes)]
            sums = _sums(builder, lanes)
            _clear(builder, sums)
            with cgutils.for_range(builder, n) as loop:
                row = builder.sext(builder.load(builder.gep(rows.data, [loop.index])), n.type)
                entry = builder.sext(builder.load(builder.gep(order.data, [loop.index])), n.type)
                place = builder.sub(entry, builder.mul(row, c))
                pieces = _registers(builder, table.data, builder.add(builder.mul(row, d), first), lanes)
                offset = builder.add(builder.mul(place, d), first)
                factors = _registers(builder, scales.data, offset, lanes)
                others = _registers(builder, outs.data, offset, lanes)
                for total, factor, piece, other, mine in zip(sums, factors, pieces, others, own, strict=True):
                    value = builder.load(piece, align=4)
                    _add_product(builder, total, builder.load(factor, align=4), value)
                    product = builder.fmul(mine, value, flags=("contract",))
                    builder.store(
                        builder.fadd(builder.load(other, align=4), product, flags=("contract",)), other, align=4
                    )
            for total, place in zip(sums, _registers(builder, out.data, first, lanes), strict=True):
                builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return types.void(scales, vector, table, rows, order, out, outs), generate


@intrinsic
def _multiply(typing_context, a, transposed, b, out):
    """out = a b, or aᵀ b if `transposed`, for a few hundred rows and columns, where BLAS is at its weakest.

    Four rows × 24 columns of `out` are summed at a time, in twelve registers.
    """

    def generate(context, builder, signature, arguments):
        a, b, out = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2, 3))
        depth, columns = builder.extract_value(b.shape, 0), builder.extract_value(b.shape, 1)
        rows, width_of_a, number = builder.extract_value(out.shape, 0), builder.extract_value(a.shape, 1), depth.type
        one = ir.Constant(number, 1)
        row_step = builder.select(arguments[1], one, width_of_a)
        depth_step = builder.select(arguments[1], width_of_a, one)
        row = cgutils.alloca_once(builder, number)
        for first, lanes in _pieces(builder, columns, ((8, 8, 8), (8,), (4,), (1,))):
            builder.store(ir.Constant(number, 0), row)
            for height in (4, 1):
                tall = ir.Constant(number, height)
                sums = [_sums(builder, lanes) for _ in range(height)]
                with cgutils.for_range(builder, builder.udiv(builder.sub(rows, builder.load(row)), tall)):
                    lines = [builder.add(builder.load(row), ir.Constant(number, i)) for i in range(height)]
                    _clear(builder, itertools.chain(*sums))
                    with cgutils.for_range(builder, depth) as loop:
                        offset = builder.add(builder.mul(loop.index, columns), first)
                        pieces = [builder.load(piece, align=4) for piece in _registers(builder, b.data, offset, lanes)]
                        for line, totals in zip(lines, sums, strict=True):
                            place = builder.add(builder.mul(line, row_step), builder.mul(loop.index, depth_step))
                            value = _spread(builder, builder.load(builder.gep(a.data, [place])), pieces[0].type)
                            for total, piece in zip(totals, pieces, strict=True):
                                _add_product(builder, total, value, piece)
                    for line, totals in zip(lines, sums, strict=True):
                        offset = builder.add(builder.mul(line, columns), first)
                        for total, place in zip(totals, _registers(builder, out.data, offset, lanes), strict=True):
                            builder.store(builder.load(total), place, align=4)
                    builder.store(builder.add(builder.load(row), tall), row)
        return context.get_dummy_value()

    return types.void(a, types.boolean, b, out), generate


@compiled
def _blocks(count, size):
    """How many blocks of this size hold so many things."""
    return (count + size - 1) // size


# -- from the token store to a planned minibatch ---------------------------------------------------------------------


@compiled
def fill_contexts(corpus, position, out):
    """Write the context of the word at `position` into out (c,): the twin of corpus.contexts_and_targets."""
    ids, before, within_sentence, end_id, pad_id, _ = corpus
    inside = True
    for i in range(before):  # walking left from the target; the nearest word goes last
        place = position - 1 - i
        inside = inside and place >= 0 and not (within_sentence and ids[place] == end_id)
        out[before - 1 - i] = ids[place] if inside else pad_id
    inside = not (within_sentence and ids[position] == end_id)
    for i in range(out.size - before):  # walking right; the nearest word goes first
        place = position + 1 + i
        inside = inside and place < ids.size and not (within_sentence and ids[place] == end_id)
        out[before + i] = ids[place] if inside else pad_id


@compiled
def group_by_word(keys, scratch, words, offsets, order, rows, singles, single_offsets):
    """Group the entries of keys (n, m) by value and return the number of groups.

    Group g holds the word words[g]; its entries are order[offsets[g] : offsets[g + 1]]. An entry is row * m + column;
    `rows` has its row alone, to save a division. Entries stay in their order within a group, which fixes the order of
    every later sum. Negative keys are no entries. `scratch` has a 0 for every possible key, and is left that way.

    If `singles` (n m,) is not empty, a key that occurs once gets no group; those in a row are the entries
    singles[single_offsets[row] : single_offsets[row + 1]].
    """
    least = 2 if singles.size else 1  # entries of a group
    alone = 0
    for row in range(keys.shape[0]):
        for column in range(keys.shape[1]):
            if keys[row, column] >= 0:
                scratch[keys[row, column]] += 1
    # From here on scratch has -1 - (the place of the next entry) for words that have a group.
    groups, entries = 0, keys.size
    offsets[0] = 0
    if scratch.size <= 2 * entries:  # groups in the order of the table, which is the best order to go through it
        for word in range(scratch.size):
            if scratch[word] >= least:
                words[groups] = word
                offsets[groups + 1] = offsets[groups] + scratch[word]
                scratch[word] = -1 - offsets[groups]
                groups += 1
    else:  # in order of first appearance: time does not grow with the vocabulary
        for row in range(keys.shape[0]):
            for column in range(keys.shape[1]):
                word = keys[row, column]
                if word >= 0 and scratch[word] >= least:
                    words[groups] = word
                    offsets[groups + 1] = offsets[groups] + scratch[word]
                    scratch[word] = -1 - offsets[groups]
                    groups += 1
    for row in range(keys.shape[0]):
        if singles.size:
            single_offsets[row] = alone
        for column in range(keys.shape[1]):
            word = keys[row, column]
            if word >= 0:
                entry = row * keys.shape[1] + column
                if scratch[word] < 0:
                    place = -1 - scratch[word]
                    scratch[word] -= 1
                    order[place] = entry
                    rows[place] = row
                else:
                    scratch[word] = 0
                    singles[alone] = entry
                    alone += 1
    if singles.size:
        single_offsets[keys.shape[0]] = alone
    for group in range(groups):
        scratch[words[group]] = 0
    return groups


@compiled
def number_contexts(corpus, c, slots, numbers):
    """Number the distinct contexts of a split in order of first appearance; return how many there are.

    `slots` is an open-addressing hash table, a power of two long and -1 everywhere: each slot holds the first position
    of a context. Contexts are compared word by word, so two are never mixed up. numbers (N,) int32 is filled.
    """
    context, other = np.empty(c, np.int64), np.empty(c, np.int64)
    mask, count = np.uint64(slots.size - 1), 0
    for position in range(corpus.ids.size):
        fill_contexts(corpus, position, context)
        key = np.uint64(0)
        for i in range(c):
            key = mix(key + GOLDEN + np.uint64(context[i]))
        slot = key & mask
        while True:
            first = slots[slot]
            if first < 0:
                slots[slot] = position
                numbers[position] = count
                count += 1
                break
            fill_contexts(corpus, first, other)
            if (context == other).all():
                numbers[position] = numbers[first]
                break
            slot = (slot + np.uint64(1)) & mask
    return count


@compiled
def draw_follower(bits, more_bits, before, noise):
    """One word of bigram noise after the word `before`, by 2 × 64 random bits."""
    first = noise.offsets[before]
    count = noise.offsets[before + 1] - first
    place = np.float64(bits >> np.uint64(11)) * 2.0**-53 * (count + noise.smoothing)  # uniform in [0, n(v) + α)
    if place < count:
        return np.int64(noise.followers[first + np.int64(place)])
    return draw_word(more_bits, noise.columns)


@compiled
def log_k_follower(before, word, noise):
    """log(k·Pn(word | before)) of bigram noise: n(before, word) is found by bisection among the sorted followers."""
    first, last = noise.offsets[before], noise.offsets[before + 1]
    followers = noise.followers[first:last]
    count = np.searchsorted(followers, word, side="right") - np.searchsorted(followers, word, side="left")
    from_unigram = noise.smoothing * np.exp(np.float64(noise.log_k_probability[word]) - noise.log_k)  # α Pu(w)
    return np.log(count + from_unigram) - np.log(last - first + noise.smoothing) + noise.log_k


DROPOUT_DRAWS = 1 << 40  # counters of a stream below this draw noise words, from here on numbers to leave out


@compiled
def _plan_minibatch(corpus, noise, seed, epoch, step, first, size, row, plan, diagonal, scratch, spare):
    """Choose the examples of one minibatch, draw their noise, and group everything by word."""
    contexts, words = plan.contexts[row, :size], plan.words[row]
    samples, c = words.shape[1], contexts.shape[1]
    shuffle, half = stream_key(seed, epoch, -1), permutation_bits(corpus.ids.size)
    plan.sizes[row] = size
    for e in range(size):  # places all over the text are asked for first; they stay where keys will be
        position = permuted(first + e, corpus.ids.size, shuffle, half)
        plan.keys[row, e] = position
        _fetch(corpus.ids, position)
        _fetch(corpus.ids, max(position - corpus.before, 0))
    for e in range(size):
        position = np.int64(plan.keys[row, e])
        fill_contexts(corpus, position, contexts[e])
        words[e, 0] = corpus.ids[position]
        key = stream_key(seed, step, e)
        plan.keys[row, e] = key
        if plan.constants.size:
            plan.constants[row, e] = corpus.context_numbers[position]
        if noise.followers.size == 0:
            for j in range(1, samples):
                words[e, j] = draw_word(draw(key, j - 1), noise.columns)
        else:
            before = contexts[e, corpus.before - 1]
            for j in range(1, samples):
                words[e, j] = draw_follower(draw(key, 2 * j - 2), draw(key, 2 * j - 1), before, noise)
            for j in range(samples):
                plan.log_k_noise[row, e, j] = log_k_follower(before, words[e, j], noise)
    shared_samples, distinct = plan.draws.shape[1], 0
    if shared_samples:
        key, draws = stream_key(seed, step, -2), plan.draws[row]
        for j in range(shared_samples):
            word = draw_word(draw(key, j), noise.columns)
            if scratch[word] == 0:
                words[size + distinct, 0] = word
                draws[distinct] = np.float32(0.0)
                distinct += 1
                scratch[word] = distinct
            draws[scratch[word] - 1] += np.float32(1.0)
        for j in range(distinct):
            scratch[words[size + j, 0]] = 0
    plan.distinct[row] = distinct
    words = words[: size + distinct]
    no_singles = plan.singles[row, :0], plan.single_offsets[row]
    context_words, context_offsets = plan.context_words[row], plan.context_offsets[row]
    context_order = plan.context_order[row]
    if diagonal:
        plan.context_groups[row] = group_by_word(
            contexts, scratch, context_words, context_offsets, context_order, plan.context_rows[row], *no_singles
        )
    else:
        position_words = plan.position_words[row]
        for i in range(c):
            offsets, rows = plan.position_offsets[row, i], plan.position_rows[row, i]
            groups = group_by_word(
                contexts[:, i : i + 1], scratch, position_words[i], offsets, context_order, rows, *no_singles
            )
            for group in range(groups):
                for p in range(offsets[group], offsets[group + 1]):
                    plan.position_slots[row, rows[p], i] = i * plan.contexts.shape[1] + group
            plan.position_groups[row, i] = groups
            position_words[i, groups:] = -1
        plan.context_groups[row] = group_by_word(
            position_words, scratch, context_words, context_offsets, context_order, spare, *no_singles
        )
    if samples > 1 or shared_samples:
        plan.target_groups[row] = group_by_word(
            words, scratch, plan.target_words[row], plan.target_offsets[row], plan.target_order[row],
            plan.target_rows[row], plan.singles[row], plan.single_offsets[row],
        )  # fmt: skip


# -- one minibatch, phase by phase -----------------------------------------------------------------------------------


ONE = np.float32(1.0)


@compiled
def _update_row(table, squares, index, weight, gradient, rate, penalty):
    """One step up weight · gradient for a row: plain SGD if `squares` is empty, else Adagrad (Duchi et al. 2011).

    `weight` is float32 too: another kind of number would make all of it float64.
    """
    values = table[index]
    if squares.shape[0] == 0:
        for t in range(values.size):
            values[t] += rate * (weight * gradient[t] - penalty * values[t])
    else:
        sums = squares[index]
        for t in range(values.size):
            g = weight * gradient[t] - penalty * values[t]
            sums[t] += g * g
            values[t] += rate * g / (np.sqrt(sums[t]) + np.float32(1e-8))


AHEAD = 4  # rows are asked for so many words before their turn
IN_CACHE = 1 << 22  # numbers of a table that is mostly in a cache: to ask ahead would cost more than it saves


@compiled
def _fetch_ahead(words, g, groups, table, others):
    """Ask for the row that will be updated a few words from now, and for what belongs to the same word elsewhere."""
    if table.size > IN_CACHE and g + AHEAD < groups:
        word = np.int64(words[g + AHEAD])
        _fetch(table, word)
        for other in literal_unroll(others):
            if other.size:
                _fetch(other, word)


@compiled
def _project(matrices, item, row, plan, theta, work):
    """Full matrices: C_i r_w once for each unique word of a context position."""
    if matrices.ndim == 3:
        blocks = _blocks(plan.contexts.shape[1], POSITION_BLOCK)
        i, first = item // blocks, item % blocks * POSITION_BLOCK
        last = min(first + POSITION_BLOCK, plan.position_groups[row, i])
        if first < last:
            for u in range(first, last):
                work.gathered[i, u] = theta.context_vectors[plan.position_words[row, i, u]]
            _multiply(work.gathered[i, first:last], False, work.transposed[i], work.projected[i, first:last])


@compiled
def _predict(matrices, e, row, plan, theta, work):
    """q̂ of example e: Σ_i C_i r_wi (Eq. 2)."""
    out = work.predicted[e]
    if matrices.ndim == 2:
        _add_scaled_rows(matrices, theta.context_vectors, plan.contexts[row, e], out)
    else:
        _add_rows(None, work.projected, plan.position_slots[row, e], out, False)


@compiled
def _context_gradients(matrices, item, row, plan, theta, squares, work, rates, shared, gradient):
    """From dJ/dq̂ back to the context words and matrices, a block of unique words at a time."""
    (gradient,) = borrowed((gradient,))
    blocks = _blocks(plan.contexts.shape[1], POSITION_BLOCK)
    if matrices.ndim == 3:
        i, block = item // blocks, item % blocks
        first = block * POSITION_BLOCK
        last = min(first + POSITION_BLOCK, plan.position_groups[row, i])
        if first < last:
            summed = np.empty((last - first, gradient.size), np.float32)  # Σ dJ/dq̂ over examples with that word
            for u in range(first, last):
                entries = slice(plan.position_offsets[row, i, u], plan.position_offsets[row, i, u + 1])
                _add_rows(None, work.gradients, plan.position_rows[row, i, entries], summed[u - first], False)
            _multiply(summed, False, matrices[i], work.projected[i, first:last])
            _multiply(summed, True, work.gathered[i, first:last], work.matrix_gradients[block, i])
    else:
        first, last = item * GROUP_BLOCK, min((item + 1) * GROUP_BLOCK, plan.context_groups[row])
        partial = work.matrix_gradients[item]
        partial[:] = np.float32(0.0)
        for g in range(first, last):
            word = plan.context_words[row, g]
            vector = theta.context_vectors[word]
            others = squares.context_vectors, rates.penalties.contexts
            _fetch_ahead(plan.context_words[row], g, last, theta.context_vectors, others)
            entries = slice(plan.context_offsets[row, g], plan.context_offsets[row, g + 1])
            _add_back(
                matrices, vector, work.gradients, plan.context_rows[row, entries], plan.context_order[row, entries],
                gradient, partial,
            )  # fmt: skip
            if shared:
                work.context_gradients[g] = gradient
            else:
                penalty = rates.penalties.contexts[word]
                _update_row(
                    theta.context_vectors, squares.context_vectors, word, ONE, gradient, rates.table[row], penalty
                )


@compiled
def _update_matrices(matrices, i, row, plan, squares, work, rates):
    """Add up the partial gradients of C_i in block order and take the step."""
    c = plan.contexts.shape[2]
    if matrices.ndim == 3:
        blocks = _blocks(plan.position_groups[row, i], POSITION_BLOCK)
    else:
        blocks = _blocks(plan.context_groups[row], GROUP_BLOCK)
    parts = work.matrix_gradients.reshape(work.matrix_gradients.shape[0], c, -1)
    gradient = parts[0, i].copy()
    for block in range(1, blocks):
        for t in range(gradient.size):
            gradient[t] += parts[block, i, t]
    flat, flat_squares = matrices.reshape(c, -1), squares.matrices.reshape(squares.matrices.shape[0], gradient.size)
    _update_row(flat, flat_squares, i, ONE, gradient, rates.matrix[row], rates.penalties.matrices)
    _transpose(matrices, i, work)


@compiled
def _transpose(matrices, i, work):
    """Full matrices: keep C_i' up to date, so that products run along its rows."""
    if matrices.ndim == 3:
        for a in range(matrices.shape[1]):
            for b in range(matrices.shape[2]):
                work.transposed[i, b, a] = matrices[i, a, b]


@compiled
def _update_contexts(matrices, item, row, plan, theta, squares, work, rates, gradient):
    """Rows of the context table: the step for each unique word of the minibatch."""
    (gradient,) = borrowed((gradient,))
    for g in range(item * GROUP_BLOCK, min((item + 1) * GROUP_BLOCK, plan.context_groups[row])):
        word = plan.context_words[row, g]
        if matrices.ndim == 3:
            entries = slice(plan.context_offsets[row, g], plan.context_offsets[row, g + 1])
            _add_rows(None, work.projected, plan.context_order[row, entries], gradient, False)
        else:
            gradient[:] = work.context_gradients[g]
        penalty = rates.penalties.contexts[word]
        _update_row(theta.context_vectors, squares.context_vectors, word, ONE, gradient, rates.table[row], penalty)


@compiled
def _update_bias(biases, squares, word, gradient, rate):
    """Biases are base rates: they carry no penalty."""
    if squares.size == 0:
        biases[word] += rate * gradient
    else:
        squares[word] += gradient * gradient
        biases[word] += rate * gradient / (np.sqrt(squares[word]) + np.float32(1e-8))


@compiled
def _drop(vector, key, probability):
    """Dropout: leave numbers of a vector out with this probability, and make up for it in the others.

    The same key leaves out the same numbers, so that a gradient goes the way its vector came.
    """
    if probability > 0.0:
        scale, threshold = np.float32(1.0 / (1.0 - probability)), np.uint16(probability * 65536.0)
        draws = np.empty((vector.size + 3) // 4, np.uint64)
        for i in range(draws.size):
            draws[i] = draw(key, DROPOUT_DRAWS + i)
        parts = draws.view(np.uint16)  # four numbers from each draw
        for t in range(vector.size):
            vector[t] = np.float32(0.0) if parts[t] < threshold else vector[t] * scale


SAMPLE_PAD = 32  # scores of an example are padded to a multiple of this, so that none is left over for a scalar loop


@compiled
def padded_samples(samples):
    """Room for the scores of an example and their log(k·Pn), with what lies beyond `samples` set to P(D=1) ≈ 0.

    (Not nearer to 0 than a normal float32: denormal ones take a hundred cycles each.)
    """
    size = (samples + SAMPLE_PAD - 1) // SAMPLE_PAD * SAMPLE_PAD
    return np.zeros(size, np.float32), np.full(size, 80.0, np.float32), np.empty(size, np.float32)


@compiled
def log_of_rights(wrong):
    """Σ log(1 − wrong), the log of a product instead of a sum of logs: one log for many probabilities.

    A float32 cannot tell 1 − P from 0 below 6e-8, so four factors fit a float32, and many such products a float64.
    """
    total, product, least = 0.0, 1.0, np.float32(1e-9)
    whole = wrong.size // 4 * 4
    for j in range(0, whole, 4):
        right0, right1 = np.float32(1.0) - wrong[j], np.float32(1.0) - wrong[j + 1]
        right2, right3 = np.float32(1.0) - wrong[j + 2], np.float32(1.0) - wrong[j + 3]
        product *= max(right0, least) * max(right1, least) * max(right2, least) * max(right3, least)
        if product < 1e-250:
            total += np.log(product)
            product = 1.0
    for j in range(whole, wrong.size):
        product *= max(np.float32(1.0) - wrong[j], least)
    return total + np.log(product)


@compiled
def nce_coefficients(scores, log_k_noise, posterior, coefficients):
    """The objective of one example and its derivative by each score (Eq. 13); target first.

    `scores` is s(w, h) + c_h, log_k_noise is log(k·Pn(w)) and `posterior` is scratch, all from padded_samples.
    """
    for j in range(scores.size):
        posterior[j] = np.float32(1.0) / (np.float32(1.0) + exp32(log_k_noise[j] - scores[j]))  # P(D=1|w), Eq. 7
    # from here on: the probability of taking a word for the wrong kind, whichever kind it is
    posterior[0] = np.float32(1.0) - posterior[0]
    coefficients[0] = posterior[0]
    for j in range(1, coefficients.size):
        coefficients[j] = -posterior[j]
    return log_of_rights(posterior)


MEMBERS = ("nce", "importance", "inverse", "root", "square")  # as in estimators.FAMILY
IMPORTANCE_SAMPLING = -1


@compiled
def family_coefficients(member, scores, log_k_noise, coefficients):
    """The objective and its derivatives for any member of the family (estimators.contrastive); target first."""
    objective = 0.0
    for j in range(coefficients.size):
        u = np.float64(scores[j]) - np.float64(log_k_noise[j])  # log of the ratio q = Pm / (k·Pn)
        q = np.exp(u)
        if member == 0:  # nce
            up, down, g1, g2 = 1.0 / (1.0 + q), q / (1.0 + q), u - np.log1p(q), np.log1p(q)
        elif member == 1:  # importance
            up, down, g1, g2 = 1.0, q, u, q
        elif member == 2:  # inverse
            up, down, g1, g2 = np.exp(-u), 1.0, -np.exp(-u), u
        elif member == 3:  # root
            root = np.sqrt(1.0 + q)
            up, down, g1, g2 = 1.0 / root, q / root, u - 2.0 * np.log1p(root), 2.0 * root
        else:  # square
            wrong = 1.0 / (1.0 + q)
            up, down, g1, g2 = wrong * wrong, q * wrong * wrong, u - np.log1p(q) + wrong, -wrong
        coefficients[j] = up if j == 0 else -down
        objective += g1 if j == 0 else -g2
    return objective


@compiled
def importance_coefficients(scores, log_noise, coefficients):
    """Importance sampling (Eq. 5), in log-space: the estimated log P(w|h), its derivatives, and how far to trust them.

    Target first, then the samples. Returns also the effective sample size (Σv)² / Σv², the largest log v and whose.
    """
    largest, heaviest, n = -np.inf, 1, coefficients.size - 1
    for j in range(1, n + 1):
        log_v = np.float64(scores[j] - log_noise[j])
        if log_v > largest:
            largest, heaviest = log_v, j
    total, squares = 0.0, 0.0
    for j in range(1, n + 1):
        v = np.exp(np.float64(scores[j] - log_noise[j]) - largest)
        coefficients[j] = -v
        total += v
        squares += v * v
    coefficients[0] = np.float32(1.0)
    for j in range(1, n + 1):
        coefficients[j] /= np.float32(total)
    return scores[0] - (largest + np.log(total) - np.log(n)), total * total / squares, largest, heaviest


# The functions that work on one example or one word take arrays, not the tuples of them: a call with hundreds of
# arguments costs as much as the scores of an example.


@compiled
def _score_samples(predicted, words, target_vectors, biases, log_k_probability, scores, log_k_noise):
    """Scores and log(k·Pn) of some words of an example, (n,)."""
    _score_rows(predicted, target_vectors, words, scores)
    for j in range(words.size):
        scores[j] += biases[words[j]]
        log_k_noise[j] = log_k_probability[words[j]]


@compiled
def _importance_example(e, row, plan, noise, method, theta, work, scores, log_k_noise, coefficients, weights):
    """Importance sampling for one example: as many samples as it takes to reach the wanted effective number.

    `weights` gathers the sum of the effective sample sizes, the smallest, the number of samples used, the largest
    log v, and whose that is: its share of the sum of the weights, the word, the example.
    """
    used, most = 0, coefficients.size - 1
    while True:
        more = min(used + method.first_samples, most)
        first = used + (used > 0)  # the target is word 0
        _score_samples(
            work.predicted[e], plan.words[row, e, first : more + 1], theta.target_vectors, theta.biases,
            noise.log_k_probability, scores[first:], log_k_noise[first:],
        )  # fmt: skip
        if noise.followers.size:
            log_k_noise[first : more + 1] = plan.log_k_noise[row, e, first : more + 1]
        used = more
        objective, effective, largest, heaviest = importance_coefficients(scores, log_k_noise, coefficients[: used + 1])
        if effective >= method.effective_samples or used == most:
            break
    coefficients[used + 1 :] = np.float32(0.0)
    weights[0] += effective
    weights[1] = min(weights[1], effective)
    weights[2] += used
    if largest + noise.log_k > weights[3]:
        weights[3] = largest + noise.log_k
        weights[4], weights[5], weights[6] = -coefficients[heaviest], plan.words[row, e, heaviest], e
    return objective - noise.log_k


@compiled
def _fetch_example(matrices, e, row, plan, noise, theta, squares, rates):
    """Ask for all that belongs to the words of an example."""
    for j in range(plan.words.shape[2]):
        word = np.int64(plan.words[row, e, j])
        _fetch(theta.target_vectors, word)
        _fetch(theta.biases, word)
        _fetch(noise.log_k_probability, word)
        _fetch(rates.penalties.targets, word)
        if squares.target_vectors.size:
            _fetch(squares.target_vectors, word)
            _fetch(squares.biases, word)
    if matrices.ndim == 2:
        for i in range(plan.contexts.shape[2]):
            _fetch(theta.context_vectors, np.int64(plan.contexts[row, e, i]))


@compiled
def _sampled_examples(
    matrices, item, row, plan, noise, method, theta, squares, constants, work, rates, scores, log_k_noise, posterior
):  # fmt: skip
    """Scores, coefficients and dJ/dq̂ of a block of examples, each with noise words of its own."""
    scores, log_k_noise, posterior = borrowed((scores, log_k_noise, posterior))
    samples = plan.words.shape[2]
    objective = 0.0
    begin, end = item * EXAMPLE_BLOCK, min((item + 1) * EXAMPLE_BLOCK, plan.sizes[row])
    for e in range(begin, end):
        if theta.target_vectors.size > IN_CACHE and e + 1 < plan.sizes[row]:
            _fetch_example(matrices, e + 1, row, plan, noise, theta, squares, rates)
        _predict(matrices, e, row, plan, theta, work)
        _drop(work.predicted[e], plan.keys[row, e], method.dropout)
        words = plan.words[row, e]
        coefficients = work.coefficients[e * samples : (e + 1) * samples]
        if method.member == IMPORTANCE_SAMPLING:
            objective += _importance_example(
                e, row, plan, noise, method, theta, work, scores, log_k_noise, coefficients, work.weights[row, item]
            )
        else:
            _score_samples(
                work.predicted[e], words, theta.target_vectors, theta.biases, noise.log_k_probability, scores,
                log_k_noise,
            )  # fmt: skip
            if noise.followers.size:
                log_k_noise[:samples] = plan.log_k_noise[row, e]
            if constants.values.size:
                for j in range(samples):
                    scores[j] += constants.values[plan.constants[row, e]]
            if method.member == 0:
                objective += nce_coefficients(scores, log_k_noise, posterior, coefficients)
            else:
                objective += family_coefficients(method.member, scores, log_k_noise, coefficients)
            if constants.values.size:
                work.constant_gradients[e] = coefficients.sum()  # every score has c_h in it
        _add_rows(coefficients, theta.target_vectors, words, work.gradients[e], False)
        _drop(work.gradients[e], plan.keys[row, e], method.dropout)
    work.losses[row, item] = -objective
    if plan.singles.size:
        _update_singles(begin, end, row, plan, theta, squares, work, rates)


@compiled
def _update_singles(begin, end, row, plan, theta, squares, work, rates):
    """The steps of words that are in the minibatch once, with one of these examples: no other needs their rows.

    Now the rows are at hand. After every single example would be dearer: nobody can predict how many such words it has.
    """
    words, rate = plan.words[row].reshape(-1), rates.table[row]
    for n in range(plan.single_offsets[row, begin], plan.single_offsets[row, end]):
        entry = plan.singles[row, n]
        word, weight = words[entry], work.coefficients[entry]
        _update_bias(theta.biases, squares.biases, word, weight, rate)
        _update_row(
            theta.target_vectors, squares.target_vectors, word, weight, work.predicted[entry // plan.words.shape[2]],
            rate, rates.penalties.targets[word],
        )  # fmt: skip


@compiled
def _update_constants(row, plan, constants, work, rates):
    """Learned normalising constants: a step for each example, one after another."""
    if constants.values.size:
        for e in range(plan.sizes[row]):
            _update_bias(
                constants.values, constants.squares, plan.constants[row, e], work.constant_gradients[e],
                rates.table[row],
            )  # fmt: skip


@compiled
def _sampled_targets(item, row, plan, method, theta, squares, work, rates, shared, gradient, weights, used):
    """Rows of the target table: the summed gradient of each unique word, and its step."""
    gradient, weights, used = borrowed((gradient, weights, used))
    adaptive = method.member == IMPORTANCE_SAMPLING and method.effective_samples > 0.0
    order, examples, offsets = plan.target_order[row], plan.target_rows[row], plan.target_offsets[row]
    coefficients, rate = work.coefficients, rates.table[row]
    others = squares.target_vectors, theta.biases, squares.biases, rates.penalties.targets
    for g in range(item * GROUP_BLOCK, min((item + 1) * GROUP_BLOCK, plan.target_groups[row])):
        word, first, last = plan.target_words[row, g], offsets[g], offsets[g + 1]
        _fetch_ahead(plan.target_words[row], g, plan.target_groups[row], theta.target_vectors, others)
        bias_gradient = np.float32(0.0)
        for p in range(last - first):  # (unsigned numbers need not be checked for counting from the end)
            weight = coefficients[np.uint32(order[np.uint32(first + p)])]
            weights[p] = weight
            bias_gradient += weight
        _update_bias(theta.biases, squares.biases, word, bias_gradient, rate)
        rows = examples[first:last]
        if adaptive:  # most samples were not needed
            n = 0
            for p in range(rows.size):
                weights[n], used[n] = weights[p], rows[p]
                n += weights[p] != 0.0
            rows = used[:n]
        penalty = rates.penalties.targets[word]
        if shared:
            _add_rows(weights, work.predicted, rows, work.target_gradients[g], False)
        elif squares.target_vectors.shape[0] == 0 and penalty == 0.0:  # plain SGD: straight onto the row
            for p in range(rows.size):
                weights[p] *= rate
            _add_rows(weights, work.predicted, rows, theta.target_vectors[word], True)
        else:
            _add_rows(weights, work.predicted, rows, gradient, False)
            _update_row(theta.target_vectors, squares.target_vectors, word, ONE, gradient, rate, penalty)


PHASES = 5  # of a minibatch; planning, for all minibatches of a call, comes before them as phase 0


@compiled
def _plan_phase(
    thread, threads, sync, corpus, noise, seed, epoch, first_step, steps, batch, first_example, plan, theta, work
):
    """Plan all minibatches of the call, a minibatch to a work item."""
    matrices = theta.matrices
    scratch = np.zeros(theta.context_vectors.shape[0], np.int32)
    spare = np.empty(max(plan.context_order.shape[1], plan.target_order.shape[1]), np.int32)
    if thread == 0:
        for i in range(matrices.shape[0]):
            _transpose(matrices, i, work)
    row = _take_item(sync, 0)
    while row < steps:
        first = first_example + row * batch
        size = min(batch, corpus.ids.size - first)
        _plan_minibatch(
            corpus, noise, seed, epoch, first_step + row, first, size, row, plan, matrices.ndim == 2, scratch, spare
        )
        row = _take_item(sync, 0)
    _wait_for_all(sync, 0, threads)


@compiled
def _project_phase(threads, sync, phase, item, done, row, plan, theta, work):
    """Full matrices: C_i r_w for all unique words of all positions, as the work items from `done` on."""
    items = 0
    if theta.matrices.ndim == 3:
        items = plan.contexts.shape[2] * _blocks(plan.contexts.shape[1], POSITION_BLOCK)
    while item < done + items:
        _project(theta.matrices, item - done, row, plan, theta, work)
        item = _take_item(sync, phase)
    _wait_for_all(sync, phase, threads)


@compiled
def _context_gradient_items(matrices, row, plan):
    """Work items of `_context_gradients`."""
    if matrices.ndim == 3:
        return plan.contexts.shape[2] * _blocks(plan.contexts.shape[1], POSITION_BLOCK)
    return _blocks(plan.context_groups[row], GROUP_BLOCK)


@compiled
def _context_update_phase(threads, sync, phase, item, done, row, plan, theta, squares, work, rates, shared, gradient):
    """Steps for the matrices and for those context rows that have not had theirs; work items from `done` on."""
    c = plan.contexts.shape[2]
    done_already = theta.matrices.ndim == 2 and not shared
    items = c + (0 if done_already else _blocks(plan.context_groups[row], GROUP_BLOCK))
    while item < done + items:
        if item < done + c:
            _update_matrices(theta.matrices, item - done, row, plan, squares, work, rates)
        else:
            _update_contexts(theta.matrices, item - done - c, row, plan, theta, squares, work, rates, gradient)
        item = _take_item(sync, phase)
    _wait_for_all(sync, phase, threads)


@compiled
def _shared_table_phase(threads, sync, phase, row, plan, theta, squares, work, rates, groups, by_group):
    """Shared tables: the steps of words as predictions, which wait until the words have had theirs as contexts.

    Gradients lie in work.target_gradients by group of the minibatch, or by word.
    """
    item = _take_item(sync, phase)
    while item < _blocks(groups, GROUP_BLOCK):
        for g in range(item * GROUP_BLOCK, min((item + 1) * GROUP_BLOCK, groups)):
            word = plan.target_words[row, g] if by_group else g
            gradient = work.target_gradients[g]
            penalty = rates.penalties.targets[word]
            _update_row(theta.target_vectors, squares.target_vectors, word, ONE, gradient, rates.table[row], penalty)
        item = _take_item(sync, phase)
    _wait_for_all(sync, phase, threads)


@compiled
def sampled_steps(
    thread, threads, sync, corpus, noise, method, seed, epoch, first_step, steps, batch, first_example,
    plan, theta, squares, constants, work, rates, shared,
):  # fmt: skip
    """Train on `steps` minibatches with noise words for each example: NCE, its family, importance sampling."""
    sync, corpus, noise, plan, theta, squares, constants, work, rates = borrowed(
        (sync, corpus, noise, plan, theta, squares, constants, work, rates)
    )
    scores, log_k_noise, posterior = padded_samples(plan.words.shape[2])
    gradient = np.empty(theta.target_vectors.shape[1], np.float32)
    weights, used = np.empty(plan.target_order.shape[1], np.float32), np.empty(plan.target_order.shape[1], np.int32)
    _plan_phase(
        thread, threads, sync, corpus, noise, seed, epoch, first_step, steps, batch, first_example, plan, theta, work
    )
    for row in range(steps):
        phase = 1 + row * PHASES
        _project_phase(threads, sync, phase, _take_item(sync, phase), 0, row, plan, theta, work)

        phase += 1
        item = _take_item(sync, phase)
        while item < _blocks(plan.sizes[row], EXAMPLE_BLOCK):
            _sampled_examples(
                theta.matrices, item, row, plan, noise, method, theta, squares, constants, work, rates, scores,
                log_k_noise, posterior,
            )  # fmt: skip
            item = _take_item(sync, phase)
        _wait_for_all(sync, phase, threads)

        phase += 1  # the longest items first, so that no thread ends long after the others
        context_items = _context_gradient_items(theta.matrices, row, plan)
        items = context_items + _blocks(plan.target_groups[row], GROUP_BLOCK)
        item = _take_item(sync, phase)
        while item < items:
            if item == 0:
                _update_constants(row, plan, constants, work, rates)
            if item < context_items:
                _context_gradients(theta.matrices, item, row, plan, theta, squares, work, rates, shared, gradient)
            else:
                _sampled_targets(
                    item - context_items, row, plan, method, theta, squares, work, rates, shared, gradient, weights,
                    used,
                )  # fmt: skip
            item = _take_item(sync, phase)
        _wait_for_all(sync, phase, threads)

        phase += 1
        _context_update_phase(
            threads, sync, phase, _take_item(sync, phase), 0, row, plan, theta, squares, work, rates, shared, gradient
        )
        if shared:
            groups = plan.target_groups[row]
            _shared_table_phase(threads, sync, phase + 1, row, plan, theta, squares, work, rates, groups, True)


# -- the same words for every example: matrix products ----------------------------------------------------------------


@compiled
def _add_product_of(coefficients, rows, part, gradients):
    """dJ/dq̂ += dJ/ds q_w over a block of words: coefficients (n, words), rows (words, d); part (n, d) is scratch."""
    np.dot(coefficients, rows, part)
    for e in range(part.shape[0]):
        for t in range(part.shape[1]):
            gradients[e, t] += part[e, t]


@compiled
def _gradients_of_words(coefficients, predicted, gradients, bias_gradients):
    """dJ/dq_w and dJ/db_w of a block of words, summed over the minibatch: coefficients (B, words), predicted (B, d)."""
    np.dot(coefficients.T, predicted, gradients)
    bias_gradients[:] = np.float32(0.0)
    for e in range(coefficients.shape[0]):
        for j in range(coefficients.shape[1]):
            bias_gradients[j] += coefficients[e, j]


# -- noise shared by a minibatch ---------------------------------------------------------------------------------------

SHARED_EXAMPLE_BLOCK = 250  # most examples in one work item …
SHARED_NOISE_BLOCK = 256  # … and noise words in one matrix product, where a minibatch shares its noise


@compiled
def _shared_example_block(batch):
    """Examples in one work item: some for each thread, but not so few that a matrix product is slow."""
    return min(max(batch // 4, 63), SHARED_EXAMPLE_BLOCK)


@compiled
def _gather_noise(item, row, plan, noise, theta, work):
    """Bring the rows of a block of noise words together, and what their scores need beside q̂ᵀ q_w."""
    for j in range(item * GROUP_BLOCK, min((item + 1) * GROUP_BLOCK, plan.distinct[row])):
        word = plan.words[row, plan.sizes[row] + j, 0]
        if theta.target_vectors.size > IN_CACHE and j + AHEAD < plan.distinct[row]:
            _fetch(theta.target_vectors, np.int64(plan.words[row, plan.sizes[row] + j + AHEAD, 0]))
        work.noise_rows[j] = theta.target_vectors[word]
        work.noise_shifts[j] = theta.biases[word] - noise.log_k_probability[word]


@compiled
def shared_noise_coefficients(scores, shifts, draws):
    """Scores q̂ᵀ q_w of noise words become dJ/ds = −n P(D=1|w) (Eq. 13), in place; returns Σ n log(1 − P(D=1|w)).

    scores (B, K), shifts (K,) is b_w − log(k·Pn(w)), draws (K,) is n, how often each word was drawn. A word counts as
    often in every example, so one logarithm serves the product of four of them, which a float32 can hold.
    """
    objective, rights = 0.0, np.empty(shifts.size, np.float32)
    for first in range(0, scores.shape[0], 4):
        rights[:] = np.float32(1.0)
        for e in range(first, min(first + 4, scores.shape[0])):
            row = scores[e]
            for j in range(shifts.size):
                posterior = np.float32(1.0) / (np.float32(1.0) + exp32(-row[j] - shifts[j]))  # Eq. 7
                rights[j] *= max(np.float32(1.0) - posterior, np.float32(1e-9))
                row[j] = -draws[j] * posterior
        total = np.float32(0.0)
        for j in range(shifts.size):
            total += draws[j] * log32(rights[j])
        objective += total
    return objective


@compiled
def _shared_noise_examples(matrices, item, row, plan, noise, method, theta, work, part):
    """Scores, coefficients and dJ/dq̂ of a block of examples, by matrix products with all noise words.

    Coefficients of the noise words j0..j1 are a (B, j1 - j0) matrix of their own; those of the targets come last.
    """
    size, K = plan.sizes[row], plan.distinct[row]
    block = _shared_example_block(plan.contexts.shape[1])
    first, last = item * block, min((item + 1) * block, size)
    vectors, gradients, objective = work.predicted[first:last], work.gradients[first:last], 0.0
    for e in range(first, last):
        if theta.target_vectors.size > IN_CACHE and e + 1 < last:
            _fetch(theta.target_vectors, np.int64(plan.words[row, e + 1, 0]))
            if matrices.ndim == 2:
                for i in range(plan.contexts.shape[2]):
                    _fetch(theta.context_vectors, np.int64(plan.contexts[row, e + 1, i]))
        _predict(matrices, e, row, plan, theta, work)
        _drop(work.predicted[e], plan.keys[row, e], method.dropout)
        word = plan.words[row, e, 0]
        target_vector, gradient = theta.target_vectors[word], work.gradients[e]
        u = _dot(work.predicted[e], target_vector) + theta.biases[word] - noise.log_k_probability[word]
        wrong = np.float32(1.0) / (np.float32(1.0) + exp32(u))  # P(D=0|w), Eq. 7
        objective += np.log(max(np.float32(1.0) - wrong, np.float32(1e-9)))
        work.coefficients[K * size + e] = wrong
        for t in range(gradient.size):
            gradient[t] = wrong * target_vector[t]
    for j0 in range(0, K, SHARED_NOISE_BLOCK):
        j1 = min(j0 + SHARED_NOISE_BLOCK, K)
        scores = work.coefficients[j0 * size : j1 * size].reshape(size, j1 - j0)[first:last]
        np.dot(vectors, work.noise_rows[j0:j1].T, scores)
        objective += shared_noise_coefficients(scores, work.noise_shifts[j0:j1], plan.draws[row, j0:j1])
        _add_product_of(scores, work.noise_rows[j0:j1], part[: last - first], gradients)
    for e in range(first, last):
        _drop(work.gradients[e], plan.keys[row, e], method.dropout)
    work.losses[row, item] = -objective


@compiled
def _noise_gradients(item, row, plan, work):
    """dJ/dq_w and dJ/db_w of a block of noise words, summed over the minibatch."""
    size, K = plan.sizes[row], plan.distinct[row]
    j0, j1 = item * SHARED_NOISE_BLOCK, min((item + 1) * SHARED_NOISE_BLOCK, K)
    coefficients = work.coefficients[j0 * size : j1 * size].reshape(size, j1 - j0)
    _gradients_of_words(
        coefficients, work.predicted[:size], work.noise_gradients[j0:j1], work.noise_bias_gradients[j0:j1]
    )


@compiled
def _shared_noise_targets(item, row, plan, theta, squares, work, rates, shared, gradient):
    """Rows of the target table: each unique word's gradient, as target and as noise, and its step."""
    (gradient,) = borrowed((gradient,))
    size = plan.sizes[row]
    targets = work.coefficients[plan.distinct[row] * size :]
    others = squares.target_vectors, theta.biases, squares.biases, rates.penalties.targets
    for g in range(item * GROUP_BLOCK, min((item + 1) * GROUP_BLOCK, plan.target_groups[row])):
        word, bias_gradient = plan.target_words[row, g], np.float32(0.0)
        _fetch_ahead(plan.target_words[row], g, plan.target_groups[row], theta.target_vectors, others)
        gradient[:] = np.float32(0.0)
        for p in range(plan.target_offsets[row, g], plan.target_offsets[row, g + 1]):
            entry = plan.target_rows[row, p]
            if entry < size:
                weight, vector = targets[entry], work.predicted[entry]
                bias_gradient += weight
            else:
                weight, vector = np.float32(1.0), work.noise_gradients[entry - size]
                bias_gradient += work.noise_bias_gradients[entry - size]
            for t in range(gradient.size):
                gradient[t] += weight * vector[t]
        _update_bias(theta.biases, squares.biases, word, bias_gradient, rates.table[row])
        if shared:
            work.target_gradients[g] = gradient
        else:
            penalty = rates.penalties.targets[word]
            _update_row(theta.target_vectors, squares.target_vectors, word, ONE, gradient, rates.table[row], penalty)


@compiled
def shared_noise_steps(
    thread, threads, sync, corpus, noise, method, seed, epoch, first_step, steps, batch, first_example,
    plan, theta, squares, constants, work, rates, shared,
):  # fmt: skip
    """Train by NCE on `steps` minibatches, each with noise words that all its examples share."""
    sync, corpus, noise, plan, theta, squares, constants, work, rates = borrowed(
        (sync, corpus, noise, plan, theta, squares, constants, work, rates)
    )
    gradient = np.empty(theta.target_vectors.shape[1], np.float32)
    part = np.empty((SHARED_EXAMPLE_BLOCK, gradient.size), np.float32)
    _plan_phase(
        thread, threads, sync, corpus, noise, seed, epoch, first_step, steps, batch, first_example, plan, theta, work
    )
    for row in range(steps):
        gather_blocks = _blocks(plan.distinct[row], GROUP_BLOCK)
        noise_blocks = _blocks(plan.distinct[row], SHARED_NOISE_BLOCK)
        phase = 1 + row * PHASES
        item = _take_item(sync, phase)
        while item < gather_blocks:
            _gather_noise(item, row, plan, noise, theta, work)
            item = _take_item(sync, phase)
        _project_phase(threads, sync, phase, item, gather_blocks, row, plan, theta, work)

        phase += 1
        item = _take_item(sync, phase)
        while item < _blocks(plan.sizes[row], _shared_example_block(batch)):
            _shared_noise_examples(theta.matrices, item, row, plan, noise, method, theta, work, part)
            item = _take_item(sync, phase)
        _wait_for_all(sync, phase, threads)

        phase += 1
        item = _take_item(sync, phase)
        while item < noise_blocks + _context_gradient_items(theta.matrices, row, plan):
            if item < noise_blocks:
                _noise_gradients(item, row, plan, work)
            else:
                _context_gradients(
                    theta.matrices, item - noise_blocks, row, plan, theta, squares, work, rates, shared, gradient
                )
            item = _take_item(sync, phase)
        _wait_for_all(sync, phase, threads)

        phase += 1
        groups = plan.target_groups[row]
        item = _take_item(sync, phase)
        while item < _blocks(groups, GROUP_BLOCK):
            _shared_noise_targets(item, row, plan, theta, squares, work, rates, shared, gradient)
            item = _take_item(sync, phase)
        _context_update_phase(
            threads, sync, phase, item, _blocks(groups, GROUP_BLOCK), row, plan, theta, squares, work, rates, shared,
            gradient,
        )  # fmt: skip
        if shared:
            _shared_table_phase(threads, sync, phase + 1, row, plan, theta, squares, work, rates, groups, True)


# -- exact normalisation -----------------------------------------------------------------------------------------------


@compiled
def _exponentiate(scores, biases, largest, total):
    """Take the next block of words into log Σ exp: `largest` so far, and `total` of exp(s − largest), for each row.

    `scores` comes as q̂ᵀ q_w, without the bias, and leaves as exp(s − largest).
    """
    for e in range(scores.shape[0]):
        shift = largest[e]
        for j in range(scores.shape[1]):
            scores[e, j] += biases[j]  # Eq. 3
            shift = max(shift, scores[e, j])
        block_total = np.float32(0.0)
        for j in range(scores.shape[1]):
            scores[e, j] = exp32(scores[e, j] - shift)
            block_total += scores[e, j]
        total[e] = total[e] * np.exp(np.float64(largest[e]) - np.float64(shift)) + block_total
        largest[e] = shift


@compiled
def _ml_examples(matrices, item, row, plan, method, theta, work, part):
    """Maximum likelihood: 1[w = target] − P(w|h) (Eq. 4) of a block of examples for all words, and dJ/dq̂.

    Coefficients of the words v0..v1 are a (B, v1 - v0) matrix of their own, so that each product has
    contiguous operands.
    """
    size, vocabulary = plan.sizes[row], theta.biases.size
    first, last = item * ML_EXAMPLE_BLOCK, min((item + 1) * ML_EXAMPLE_BLOCK, size)
    n, blocks = last - first, _blocks(vocabulary, VOCABULARY_BLOCK)
    largest, total = np.full(n, -np.inf, np.float32), np.zeros(n, np.float64)
    shifts = np.empty((blocks, n), np.float32)  # a block's exponentials are kept as exp(s - shift)
    objective = 0.0
    for e in range(first, last):
        _predict(matrices, e, row, plan, theta, work)
        _drop(work.predicted[e], plan.keys[row, e], method.dropout)
    vectors = work.predicted[first:last]
    for block in range(blocks):
        v0, v1 = block * VOCABULARY_BLOCK, min((block + 1) * VOCABULARY_BLOCK, vocabulary)
        scores = work.coefficients[v0 * size : v1 * size].reshape(size, v1 - v0)[first:last]
        np.dot(vectors, theta.target_vectors[v0:v1].T, scores)
        for e in range(n):
            target = plan.words[row, first + e, 0]
            if v0 <= target < v1:
                objective += scores[e, target - v0] + theta.biases[target]
        _exponentiate(scores, theta.biases[v0:v1], largest, total)
        shifts[block] = largest
    for e in range(n):
        log_z = np.float64(largest[e]) + np.log(total[e])
        objective -= log_z
        for block in range(blocks):
            shifts[block, e] = -np.exp(np.float64(shifts[block, e]) - log_z)  # from here on: −exp(shift) / Z
    gradients = work.gradients[first:last]
    gradients[:] = np.float32(0.0)
    for block in range(blocks):
        v0, v1 = block * VOCABULARY_BLOCK, min((block + 1) * VOCABULARY_BLOCK, vocabulary)
        scores = work.coefficients[v0 * size : v1 * size].reshape(size, v1 - v0)[first:last]
        for e in range(n):
            factor = shifts[block, e]
            for j in range(v1 - v0):
                scores[e, j] *= factor
            target = plan.words[row, first + e, 0]
            if v0 <= target < v1:
                scores[e, target - v0] += np.float32(1.0)
        _add_product_of(scores, theta.target_vectors[v0:v1], part[:n], gradients)
    for e in range(first, last):
        _drop(work.gradients[e], plan.keys[row, e], method.dropout)
    work.losses[row, item] = -objective


@compiled
def _ml_targets(item, row, plan, theta, squares, work, rates, shared, part):
    """Maximum likelihood: the gradient of a block of the target table, every word of it, and the step."""
    size, vocabulary = plan.sizes[row], theta.biases.size
    v0, v1 = item * VOCABULARY_BLOCK, min((item + 1) * VOCABULARY_BLOCK, vocabulary)
    coefficients = work.coefficients[v0 * size : v1 * size].reshape(size, v1 - v0)
    bias_gradients = np.empty(v1 - v0, np.float32)
    _gradients_of_words(coefficients, work.predicted[:size], part[: v1 - v0], bias_gradients)
    for w in range(v0, v1):
        _update_bias(theta.biases, squares.biases, w, bias_gradients[w - v0], rates.table[row])
        if shared:
            work.target_gradients[w] = part[w - v0]
        else:
            penalty = rates.penalties.targets[w]
            _update_row(theta.target_vectors, squares.target_vectors, w, ONE, part[w - v0], rates.table[row], penalty)


@compiled
def ml_steps(
    thread, threads, sync, corpus, noise, method, seed, epoch, first_step, steps, batch, first_example,
    plan, theta, squares, constants, work, rates, shared,
):  # fmt: skip
    """Train by exact maximum likelihood on `steps` minibatches; entered by all threads at once."""
    sync, corpus, noise, plan, theta, squares, constants, work, rates = borrowed(
        (sync, corpus, noise, plan, theta, squares, constants, work, rates)
    )
    vocabulary, d = theta.target_vectors.shape
    gradient = np.empty(d, np.float32)
    part = np.empty((max(VOCABULARY_BLOCK, ML_EXAMPLE_BLOCK), d), np.float32)
    _plan_phase(
        thread, threads, sync, corpus, noise, seed, epoch, first_step, steps, batch, first_example, plan, theta, work
    )
    target_blocks = _blocks(vocabulary, VOCABULARY_BLOCK)
    for row in range(steps):
        phase = 1 + row * PHASES
        _project_phase(threads, sync, phase, _take_item(sync, phase), 0, row, plan, theta, work)

        phase += 1
        item = _take_item(sync, phase)
        while item < _blocks(plan.sizes[row], ML_EXAMPLE_BLOCK):
            _ml_examples(theta.matrices, item, row, plan, method, theta, work, part)
            item = _take_item(sync, phase)
        _wait_for_all(sync, phase, threads)

        phase += 1
        item = _take_item(sync, phase)
        while item < target_blocks + _context_gradient_items(theta.matrices, row, plan):
            if item < target_blocks:
                _ml_targets(item, row, plan, theta, squares, work, rates, shared, part)
            else:
                _context_gradients(
                    theta.matrices, item - target_blocks, row, plan, theta, squares, work, rates, shared, gradient
                )
            item = _take_item(sync, phase)
        _wait_for_all(sync, phase, threads)

        phase += 1
        _context_update_phase(
            threads, sync, phase, _take_item(sync, phase), 0, row, plan, theta, squares, work, rates, shared, gradient
        )
        if shared:
            _shared_table_phase(threads, sync, phase + 1, row, plan, theta, squares, work, rates, vocabulary, False)


SCORE_BLOCK = 250  # examples in one work item of exact scoring


@compiled
def predict_contexts(theta, contexts, out):
    """q̂ (Eq. 2) for each row of contexts (n, c)."""
    _predict_rows(theta.matrices, theta.context_vectors, contexts, out)


@compiled
def _predict_rows(matrices, context_vectors, contexts, out):
    if matrices.ndim == 2:
        for e in range(contexts.shape[0]):
            _add_scaled_rows(matrices, context_vectors, contexts[e], out[e])
    else:
        out[:] = np.float32(0.0)
        gathered, projected = np.empty_like(out), np.empty_like(out)
        for i in range(contexts.shape[1]):
            for e in range(contexts.shape[0]):
                gathered[e] = context_vectors[contexts[e, i]]
            np.dot(gathered, matrices[i].T, projected)
            for e in range(contexts.shape[0]):
                for t in range(out.shape[1]):
                    out[e, t] += projected[e, t]


@compiled
def score_positions(thread, threads, sync, corpus, theta, first, last, scores, log_z):
    """s(w, h) and log Z(h) = log Σ_w exp s(w, h) for the words at positions first..last of a split.

    log P(w|h) = s(w, h) − log Z(h) (Eq. 1), never more than SCORE_BLOCK × VOCABULARY_BLOCK scores in memory.
    Where `log_z` is empty, only s(w, h), which does not look at the other words of the vocabulary.
    """
    sync, corpus, theta, scores, log_z = borrowed((sync, corpus, theta, scores, log_z))
    d, c, vocabulary = theta.target_vectors.shape[1], theta.matrices.shape[0], theta.biases.size
    contexts = np.empty((SCORE_BLOCK, c), np.int64)
    predicted = np.empty((SCORE_BLOCK, d), np.float32)
    buffer = np.empty(SCORE_BLOCK * VOCABULARY_BLOCK, np.float32)
    largest, total = np.empty(SCORE_BLOCK, np.float32), np.empty(SCORE_BLOCK, np.float64)
    item = _take_item(sync, 0)
    while first + item * SCORE_BLOCK < last:
        start = first + item * SCORE_BLOCK
        n = min(SCORE_BLOCK, last - start)
        for e in range(n):
            fill_contexts(corpus, start + e, contexts[e])
        predict_contexts(theta, contexts[:n], predicted[:n])
        for e in range(n):
            target = corpus.ids[start + e]
            scores[start - first + e] = _dot(predicted[e], theta.target_vectors[target]) + theta.biases[target]
        if log_z.size:
            largest[:] = -np.inf
            total[:] = 0.0
            for v0 in range(0, vocabulary, VOCABULARY_BLOCK):
                v1 = min(v0 + VOCABULARY_BLOCK, vocabulary)
                block = buffer[: n * (v1 - v0)].reshape(n, v1 - v0)
                np.dot(predicted[:n], theta.target_vectors[v0:v1].T, block)
                _exponentiate(block, theta.biases[v0:v1], largest, total)
            for e in range(n):
                log_z[start - first + e] = np.float64(largest[e]) + np.log(total[e])
        item = _take_item(sync, 0)
