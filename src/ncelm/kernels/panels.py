"""Matrix products and sums of exponentials for scoring, in which each position of a text has its own vector lane.

A panel holds the vectors of LANES positions, transposed: (d, LANES). Each number of a table is loaded once, broadcast,
and multiplied by the same component of all positions of the panel. All lanes execute the same instructions, and every
score is one sum over the dimensions from the first to the last. The result of a position therefore depends neither on
its lane nor on the other positions, and the last positions of a text need no code of their own. BLAS does not guarantee
this: it computes a row by different code depending on its place and on the number of rows. It also copies the table.

Processors differ in the size of a tile, not in the order of a sum: exponentials are always added up in groups of GROUP
words.
"""

from itertools import zip_longest

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 32  # positions in a panel
GROUP = 12  # words whose exponentials are added up first
LOWEST = -3.4028234663852886e38  # the smallest float32: the largest score of no words

_WIDTH = 16  # lanes of a vector: one register with AVX-512, two with AVX, four with NEON
_VECTOR = ir.VectorType(ir.FloatType(), _WIDTH)
_BITS = ir.VectorType(ir.IntType(32), _WIDTH)
# Instructions without flags would get those of the surrounding kernel, which allow any order. These do not.
_IN_ORDER = ("nsz",)
_FUSED = ("contract",)  # a product and the sum that it is added to are one instruction where the processor has it


def _tile_shape(context):
    """Vectors of positions × words whose sums are kept in registers: of 32 vector registers, or of 16."""
    features = context.codegen().magic_tuple()[2].split(",")
    return (2, 12) if "+avx512f" in features else (1, 6)


def _constant(value, vector=_VECTOR):
    return ir.Constant(vector, [value] * vector.count)


def _broadcast(builder, value):
    """A vector with `value` in every lane."""
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.IntType(32)(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_BITS, None))


def _multiply_add(builder, x, y, z):
    """x y + z."""
    return builder.fadd(builder.fmul(x, y, flags=_FUSED), z, flags=_FUSED)


def _maximum(builder, x, y):
    """The larger of both, y if one of them is NaN."""
    return builder.select(builder.fcmp_ordered(">", x, y, flags=_IN_ORDER), x, y)


def _exp(builder, x):
    """exp(x) for x ≤ 0 with the polynomial of `math32.exp32`. NaN stays NaN."""
    x = _maximum(builder, _constant(-87.0), x)
    t = builder.fmul(x, _constant(1.4426950408889634), flags=_IN_ORDER)
    magic = _constant(1.5 * 2**23)  # t + magic is rounded to an integer n, which is in its lowest bits
    rounded = builder.fadd(t, magic, flags=_IN_ORDER)
    f = builder.fsub(t, builder.fsub(rounded, magic, flags=_IN_ORDER), flags=_IN_ORDER)  # 2^t = 2^n 2^f
    p = _constant(1.5353362e-4)
    for coefficient in (1.3398874e-3, 9.6184373e-3, 5.5503324e-2, 2.4022648e-1, 6.9314720e-1, 1.0):
        p = _multiply_add(builder, p, f, _constant(coefficient))
    exponent = builder.shl(builder.bitcast(rounded, _BITS), _constant(23, _BITS))
    power = builder.bitcast(builder.add(exponent, _constant(0x3F800000, _BITS)), _VECTOR)  # 2^n
    return builder.fmul(p, power, flags=_IN_ORDER)


def _sum(builder, vectors):
    """The sum of vectors: of neighbours first, then of neighbouring sums."""
    while len(vectors) > 1:
        vectors = [
            a if b is None else builder.fadd(a, b, flags=_IN_ORDER) for a, b in zip_longest(vectors[::2], vectors[1::2])
        ]
    return vectors[0]


def _vectors_at(builder, array, row, lane, count):
    """Pointers to `count` vectors of array[row, lane:], an array with LANES columns."""
    number = row.type
    places = (builder.add(builder.mul(row, number(LANES)), number(lane + _WIDTH * i)) for i in range(count))
    return [builder.bitcast(builder.gep(array.data, [place]), _VECTOR.as_pointer()) for place in places]


def _add_products(builder, sums, table, word, panel, lane):
    """sums[i] + table[word + i] · panel[:, lane:]: for each word some vectors of positions."""
    depth = builder.extract_value(table.shape, 1)
    number = depth.type
    totals = [[cgutils.alloca_once(builder, _VECTOR) for _ in row] for row in sums]
    for row, values in zip(totals, sums, strict=True):
        for total, value in zip(row, values, strict=True):
            builder.store(value, total)
    vectors = [builder.gep(table.data, [builder.mul(builder.add(word, number(i)), depth)]) for i in range(len(sums))]
    with cgutils.for_range(builder, depth) as loop:
        places = _vectors_at(builder, panel, loop.index, lane, len(sums[0]))
        pieces = [builder.load(place, align=4) for place in places]
        for row, vector in zip(totals, vectors, strict=True):
            component = _broadcast(builder, builder.load(builder.gep(vector, [loop.index])))
            for total, piece in zip(row, pieces, strict=True):
                builder.store(_multiply_add(builder, component, piece, builder.load(total)), total)
    return [[builder.load(total) for total in row] for row in totals]


def _blocks_of_rows(builder, first, last, sizes):
    """Yield the first row and the number of rows of each block of rows, for sizes from the largest to 1.

    The code that the caller builds for a block is the body of a loop.
    """
    row, number = cgutils.alloca_once_value(builder, first), first.type
    builder.store(first, row)
    for size in sizes:
        with cgutils.for_range(builder, builder.sdiv(builder.sub(last, builder.load(row)), number(size))):
            start = builder.load(row)
            yield start, size
            builder.store(builder.add(start, number(size)), row)


@intrinsic
def multiply_panel(typing_context, table, panel, out, onto):
    """out = table · panel, added to out if `onto`: table (n, d), panel (d, LANES), out (n, LANES)."""

    def generate(context, builder, signature, arguments):
        table, panel, out = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
        )
        n = builder.extract_value(table.shape, 0)
        vectors, words = _tile_shape(context)
        for lane in range(0, LANES, _WIDTH * vectors):
            for first, rows in _blocks_of_rows(builder, n.type(0), n, (words, 4, 1)):
                places = [_vectors_at(builder, out, builder.add(first, n.type(i)), lane, vectors) for i in range(rows)]
                zero = ir.Constant(_VECTOR, None)
                before = [
                    [builder.select(arguments[3], builder.load(place, align=4), zero) for place in row]
                    for row in places
                ]
                after = _add_products(builder, before, table, first, panel, lane)
                for row, values in zip(places, after, strict=True):
                    for place, value in zip(row, values, strict=True):
                        builder.store(value, place, align=4)
        return context.get_dummy_value()

    return types.void(table, panel, out, types.boolean), generate


@intrinsic
def add_exponentials(typing_context, table, biases, first, last, panel, largest, total):
    """Add the words first..last - 1 to `total`, Σ exp(s − largest), where `largest` is the largest score so far.

    s = table[w] · panel + biases[w] (Eq. 3): table (V, d), biases (V,), panel (d, LANES), largest and total (LANES,).
    They are LOWEST and 0 before the first word.
    """

    def generate(context, builder, signature, arguments):
        table, biases, panel, largest, total = (
            context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 1, 4, 5, 6)
        )
        first, last = arguments[2], arguments[3]
        number = first.type
        vectors, words = _tile_shape(context)

        def scores_of(word, count, lane):
            """The scores of a tile, some vectors for each word."""
            zero = ir.Constant(_VECTOR, None)
            products = _add_products(builder, [[zero] * vectors] * count, table, word, panel, lane)
            for i, row in enumerate(products):
                bias = builder.load(builder.gep(biases.data, [builder.add(word, number(i))]))
                yield [builder.fadd(value, _broadcast(builder, bias), flags=_IN_ORDER) for value in row]

        for lane in range(0, LANES, _WIDTH * vectors):
            maxima = _vectors_at(builder, largest, number(0), lane, vectors)
            totals = _vectors_at(builder, total, number(0), lane, vectors)
            for word, count in _blocks_of_rows(builder, first, last, (GROUP, 1)):
                tile = min(words, count)
                scores = [
                    row for i in range(0, count, tile) for row in scores_of(builder.add(word, number(i)), tile, lane)
                ]
                for column, maximum, place in zip(zip(*scores, strict=True), maxima, totals, strict=True):
                    before = shift = builder.load(maximum, align=4)
                    for score in column:
                        shift = _maximum(builder, score, shift)
                    terms = [_exp(builder, builder.fsub(score, shift, flags=_IN_ORDER)) for score in column]
                    factor = _exp(builder, builder.fsub(before, shift, flags=_IN_ORDER))
                    rescaled = builder.fmul(builder.load(place, align=4), factor, flags=_IN_ORDER)
                    builder.store(builder.fadd(rescaled, _sum(builder, terms), flags=_IN_ORDER), place, align=4)
                    builder.store(shift, maximum, align=4)
        return context.get_dummy_value()

    return types.void(table, biases, types.int64, types.int64, panel, largest, total), generate
