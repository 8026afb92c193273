"""Loops over rows of tables, written as vector instructions; prefetching; arrays without reference counts.

LLVM vectorises inner loops only: it would load and store again and again the sums that these functions keep in
registers.
"""

import itertools

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def prefetch(typing_context, table, row):
    """Prefetch table[row], one number or a row of float32, into the first-level cache."""

    def generate(context, builder, signature, arguments):
        table, row = context.make_array(signature.args[0])(context, builder, arguments[0]), arguments[1]
        integer, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, integer, integer, integer])
        instruction = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")

        def prefetch_line(place):
            pointer = builder.bitcast(builder.gep(table.data, [place]), byte)
            builder.call(
                instruction, [pointer, integer(0), integer(3), integer(1)]
            )  # for reading, into the first-level cache

        if signature.args[0].ndim == 1:
            prefetch_line(row)
        else:
            width = builder.extract_value(table.shape, 1)
            number = width.type
            start = builder.mul(row, width)
            lines = builder.udiv(builder.add(width, number(15)), number(16))
            end = builder.sub(builder.add(start, width), number(1))
            with cgutils.for_range(builder, builder.add(lines, number(1))) as loop:
                # a cache line is 16 numbers; a row may begin within one, so that it ends in one more
                place = builder.add(start, builder.mul(loop.index, number(16)))
                prefetch_line(builder.select(builder.icmp_unsigned("<", place, end), place, end))
        return context.get_dummy_value()

    return types.void(table, types.int64), generate


@intrinsic
def borrowed(typing_context, arrays):
    """The same tuple of arrays without reference counting: the caller keeps the arrays alive.

    Numba counts references with atomic instructions, even for a row that is passed to a function. For each word that
    can cost as much as the arithmetic, and threads contend for the counters.
    """

    def generate(context, builder, signature, arguments):
        return _without_references(context, builder, signature.args[0], arguments[0])

    return arrays(arrays), generate


@intrinsic
def stack_array(typing_context, size):
    """An array (size,) of int64 on the stack of the kernel that calls this, without initial values.

    The size is a constant. The array is valid until the kernel returns; an `inline` function cannot return it.
    """
    if not isinstance(size, types.IntegerLiteral):  # Numba then tries the constant itself
        return None
    kind = types.Array(types.int64, 1, "C")

    def generate(context, builder, signature, arguments):
        number, length = context.get_value_type(types.intp), size.literal_value
        array = context.make_array(kind)(context, builder)
        context.populate_array(
            array,
            data=cgutils.alloca_once(builder, context.get_data_type(types.int64), size=length),
            shape=[number(length)],
            strides=[number(8)],
            itemsize=number(8),
            meminfo=None,
        )
        return array._getvalue()

    return kind(size), generate


def _without_references(context, builder, kind, value):
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = ir.Constant(array.meminfo.type, None)
        array.parent = ir.Constant(array.parent.type, None)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        for i, part in enumerate(kind.types):
            borrowed = _without_references(context, builder, part, builder.extract_value(value, i))
            value = builder.insert_value(value, borrowed, i)
    return value


def _broadcast(builder, value, vector):
    """A vector with `value` in every lane."""
    out = ir.Constant(vector, ir.Undefined)
    for lane in range(vector.count):
        out = builder.insert_element(out, value, ir.Constant(ir.IntType(32), lane))
    return out


def _vector_pointers(builder, pointer, offset, lanes):
    """Pointers to adjacent vectors with these numbers of lanes, starting `offset` numbers after `pointer`."""
    pointers = []
    for count in lanes:
        kind = ir.VectorType(ir.FloatType(), count).as_pointer()
        pointers.append(builder.bitcast(builder.gep(pointer, [offset]), kind))
        offset = builder.add(offset, ir.Constant(offset.type, count))
    return pointers


def _accumulators(builder, lanes):
    """One accumulator for each number of lanes."""
    return [cgutils.alloca_once(builder, ir.VectorType(ir.FloatType(), count)) for count in lanes]


def _set_zero(builder, sums):
    """Set accumulators to zero."""
    for total in sums:
        builder.store(ir.Constant(total.type.pointee, None), total)


REGISTER_SHAPES = ((*(8,) * 12, 4), (8,) * 12, (8,) * 4, (8,), (4,), (1,))  # lanes of the accumulators


def _column_blocks(builder, d, shapes):
    """Yield the first column and the register shape of each block of columns, widest shapes first.

    The code that the caller builds for a block is the body of a loop. A shape that ends in a smaller register is used
    only if d is a multiple of its width (100, 200, 300): it avoids another loop over all rows for the last columns.
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
    """total += x · y, as a fused multiply-add where the processor has one."""
    product = builder.fmul(x, y, flags=("contract",))
    builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)


@intrinsic
def score_rows(typing_context, vector, table, rows, scores):
    """scores[j] = vector · table[rows[j]]: vector (d,), table (…, d), rows (n,) int32, scores (n,) or longer.

    Eight rows at a time: `vector` is loaded once for eight rows, and the sums are independent of each other.
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
            totals = _accumulators(builder, [8] * height)
            with cgutils.for_range(builder, builder.udiv(builder.sub(n, builder.load(done)), tall)):
                places = [builder.add(builder.load(done), ir.Constant(number, i)) for i in range(height)]
                starts = [
                    builder.mul(builder.sext(builder.load(builder.gep(rows.data, [place])), number), d)
                    for place in places
                ]
                _set_zero(builder, totals)
                for first, lanes in _column_blocks(builder, d, ((8,), (4,), (1,))):
                    (piece,) = _vector_pointers(builder, vector.data, first, lanes)
                    piece = _pad_to_eight(builder, builder.load(piece, align=4))
                    for total, start in zip(totals, starts, strict=True):
                        (part,) = _vector_pointers(builder, table.data, builder.add(start, first), lanes)
                        _add_product(builder, total, piece, _pad_to_eight(builder, builder.load(part, align=4)))
                # stored as one vector: the next loop loads vectors, which would stall on separate scalar stores
                (place,) = _vector_pointers(builder, scores.data, places[0], (height,))
                builder.store(_horizontal_sums(builder, [builder.load(total) for total in totals]), place, align=4)
                builder.store(builder.add(builder.load(done), tall), done)
        return context.get_dummy_value()

    return types.void(vector, table, rows, scores), generate


def _shuffle(builder, a, b, lanes):
    """These lanes of the concatenation of two vectors."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes)))


def _pad_to_eight(builder, vector):
    """A shorter vector padded with zeros to eight lanes."""
    count = vector.type.count
    return _shuffle(builder, vector, ir.Constant(vector.type, None), [*range(count), *[count] * (8 - count)])


def _horizontal_sums(builder, vectors):
    """The sum of the eight lanes of each vector, all sums as one vector."""
    if len(vectors) == 8:
        # pairs of vectors are added lane-wise and merged, three times: 4 + 2 + 1 steps
        steps = ((0, 8, 1, 9, 4, 12, 5, 13), 2), ((0, 1, 8, 9, 4, 5, 12, 13), 2), ((0, 1, 2, 3, 8, 9, 10, 11), 4)
        for low, far in steps:
            high = [lane + far for lane in low]
            vectors = [
                builder.fadd(_shuffle(builder, a, b, low), _shuffle(builder, a, b, high))
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
def add_rows(typing_context, weights, table, rows, out, onto):
    """out = Σ_j weights[j] table[rows[j]], added to out if `onto`.

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
        for first, lanes in _column_blocks(builder, d, REGISTER_SHAPES):
            places, sums = _vector_pointers(builder, out.data, first, lanes), _accumulators(builder, lanes)
            for total, place in zip(sums, places, strict=True):
                before = builder.load(place, align=4)
                builder.store(builder.select(arguments[4], before, ir.Constant(before.type, None)), total)
            with cgutils.for_range(builder, n) as loop:
                row = builder.sext(builder.load(builder.gep(rows.data, [loop.index])), n.type)
                pieces = _vector_pointers(builder, table.data, builder.add(builder.mul(row, d), first), lanes)
                values = [builder.load(piece, align=4) for piece in pieces]
                if weighted:
                    weight = builder.load(builder.gep(weights.data, [loop.index]))
                    for total, value in zip(sums, values, strict=True):
                        _add_product(builder, total, _broadcast(builder, weight, value.type), value)
                else:
                    for total, value in zip(sums, values, strict=True):
                        builder.store(builder.fadd(builder.load(total), value), total)
            for total, place in zip(sums, places, strict=True):
                builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return types.void(weights, table, rows, out, types.boolean), generate


@intrinsic
def add_scaled_rows(typing_context, scales, table, rows, out):
    """out = Σ_i scales[i] ∘ table[rows[i]]: scales (c, d), table (…, d), rows (c,) int32, out (d,)."""

    def generate(context, builder, signature, arguments):
        scales, table, rows, out = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        c, d = builder.extract_value(rows.shape, 0), builder.extract_value(out.shape, 0)
        for first, lanes in _column_blocks(builder, d, REGISTER_SHAPES):
            sums = _accumulators(builder, lanes)
            _set_zero(builder, sums)
            with cgutils.for_range(builder, c) as loop:
                row = builder.sext(builder.load(builder.gep(rows.data, [loop.index])), c.type)
                pieces = _vector_pointers(builder, table.data, builder.add(builder.mul(row, d), first), lanes)
                factors = _vector_pointers(builder, scales.data, builder.add(builder.mul(loop.index, d), first), lanes)
                for total, factor, piece in zip(sums, factors, pieces, strict=True):
                    _add_product(builder, total, builder.load(factor, align=4), builder.load(piece, align=4))
            for total, place in zip(sums, _vector_pointers(builder, out.data, first, lanes), strict=True):
                builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return types.void(scales, table, rows, out), generate


@intrinsic
def add_scaled_rows_backward(typing_context, scales, vector, table, rows, order, out, outs):
    """The gradients of `add_scaled_rows` for one word that occurs at several context positions.

    The position of entry p is i = order[p] − c rows[p]: out = Σ_p scales[i] ∘ table[rows[p]], and
    outs[i] += vector ∘ table[rows[p]]. scales and outs (c, d), vector and out (d,), rows and order (n,) int32.
    """

    def generate(context, builder, signature, arguments):
        scales, vector, table, rows, order, out, outs = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        n, d = builder.extract_value(rows.shape, 0), builder.extract_value(out.shape, 0)
        c = builder.extract_value(scales.shape, 0)
        for first, lanes in _column_blocks(builder, d, ((8, 8, 8, 8, 8, 8, 2), (8,) * 6, (8,), (4,), (1,))):
            own = [builder.load(piece, align=4) for piece in _vector_pointers(builder, vector.data, first, lanes)]
            sums = _accumulators(builder, lanes)
            _set_zero(builder, sums)
            with cgutils.for_range(builder, n) as loop:
                row = builder.sext(builder.load(builder.gep(rows.data, [loop.index])), n.type)
                entry = builder.sext(builder.load(builder.gep(order.data, [loop.index])), n.type)
                place = builder.sub(entry, builder.mul(row, c))
                pieces = _vector_pointers(builder, table.data, builder.add(builder.mul(row, d), first), lanes)
                offset = builder.add(builder.mul(place, d), first)
                factors = _vector_pointers(builder, scales.data, offset, lanes)
                others = _vector_pointers(builder, outs.data, offset, lanes)
                for total, factor, piece, other, mine in zip(sums, factors, pieces, others, own, strict=True):
                    value = builder.load(piece, align=4)
                    _add_product(builder, total, builder.load(factor, align=4), value)
                    product = builder.fmul(mine, value, flags=("contract",))
                    builder.store(
                        builder.fadd(builder.load(other, align=4), product, flags=("contract",)), other, align=4
                    )
            for total, place in zip(sums, _vector_pointers(builder, out.data, first, lanes), strict=True):
                builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return types.void(scales, vector, table, rows, order, out, outs), generate


@intrinsic
def multiply(typing_context, a, transposed, b, out):
    """out = a b, or aᵀ b if `transposed`, for a few hundred rows and columns, where BLAS is slow.

    Four rows × 24 columns of `out` are accumulated at a time, in twelve registers.
    """

    def generate(context, builder, signature, arguments):
        a, b, out = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2, 3))
        depth, columns = builder.extract_value(b.shape, 0), builder.extract_value(b.shape, 1)
        rows, width_of_a, number = builder.extract_value(out.shape, 0), builder.extract_value(a.shape, 1), depth.type
        one = ir.Constant(number, 1)
        row_step = builder.select(arguments[1], one, width_of_a)
        depth_step = builder.select(arguments[1], width_of_a, one)
        row = cgutils.alloca_once(builder, number)
        for first, lanes in _column_blocks(builder, columns, ((8, 8, 8), (8,), (4,), (1,))):
            builder.store(ir.Constant(number, 0), row)
            for height in (4, 1):
                tall = ir.Constant(number, height)
                sums = [_accumulators(builder, lanes) for _ in range(height)]
                with cgutils.for_range(builder, builder.udiv(builder.sub(rows, builder.load(row)), tall)):
                    lines = [builder.add(builder.load(row), ir.Constant(number, i)) for i in range(height)]
                    _set_zero(builder, itertools.chain(*sums))
                    with cgutils.for_range(builder, depth) as loop:
                        offset = builder.add(builder.mul(loop.index, columns), first)
                        pieces = [
                            builder.load(piece, align=4) for piece in _vector_pointers(builder, b.data, offset, lanes)
                        ]
                        for line, totals in zip(lines, sums, strict=True):
                            place = builder.add(builder.mul(line, row_step), builder.mul(loop.index, depth_step))
                            value = _broadcast(builder, builder.load(builder.gep(a.data, [place])), pieces[0].type)
                            for total, piece in zip(totals, pieces, strict=True):
                                _add_product(builder, total, value, piece)
                    for line, totals in zip(lines, sums, strict=True):
                        offset = builder.add(builder.mul(line, columns), first)
                        for total, place in zip(
                            totals, _vector_pointers(builder, out.data, offset, lanes), strict=True
                        ):
                            builder.store(builder.load(total), place, align=4)
                    builder.store(builder.add(builder.load(row), tall), row)
        return context.get_dummy_value()

    return types.void(a, types.boolean, b, out), generate


@intrinsic
def sum_values(typing_context, values, n):
    """Σ values[:n] of float32 in a fixed order: eight partial sums, then their sum, then the remaining values.

    A plain loop would be added up in an order that LLVM chooses anew in every kernel, so that results would depend on
    the surrounding code.
    """

    def generate(context, builder, signature, arguments):
        values = context.make_array(signature.args[0])(context, builder, arguments[0])
        n, number = arguments[1], arguments[1].type
        (partial,), (single,) = _accumulators(builder, (8,)), _accumulators(builder, (1,))
        _set_zero(builder, (partial, single))
        blocks = builder.udiv(n, number(8))
        with cgutils.for_range(builder, blocks) as loop:
            (place,) = _vector_pointers(builder, values.data, builder.mul(loop.index, number(8)), (8,))
            builder.store(builder.fadd(builder.load(partial), builder.load(place, align=4)), partial)
        total = builder.extract_element(_horizontal_sums(builder, [builder.load(partial)]), ir.IntType(32)(0))
        builder.store(builder.insert_element(builder.load(single), total, ir.IntType(32)(0)), single)
        first = builder.mul(blocks, number(8))
        with cgutils.for_range(builder, builder.sub(n, first)) as loop:
            (place,) = _vector_pointers(builder, values.data, builder.add(first, loop.index), (1,))
            builder.store(builder.fadd(builder.load(single), builder.load(place, align=4)), single)
        return builder.extract_element(builder.load(single), ir.IntType(32)(0))

    return types.float32(values, types.int64), generate
