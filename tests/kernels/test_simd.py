"""Loops over rows of tables as vector instructions: every register shape, alone and combined, and nothing outside."""

import numpy as np
import pytest
from numba import njit

from ncelm.kernels import simd

# With REGISTER_SHAPES a block has 100, 96, 32, 8, 4 or 1 columns; `add_scaled_rows_backward` has 50, 48, 8, 4, 1, and
# `multiply` 24, 8, 4, 1. Blocks of 100 and 50 columns are used for multiples of these widths only.
WIDTHS = [1, 2, 3, 4, 5, 7, 8, 9, 12, 24, 25, 31, 32, 33, 44, 48, 50, 51, 96, 97, 100, 128, 150, 200, 228, 300, 301]
GUARD = np.float32(7.0)
ROWS = 40  # of a table


def normal(random, *shape):
    return random.normal(size=shape).astype(np.float32)


def guarded(*shape):
    """Return an array and the part of it between two guard rows (or values), which kernels must not write to."""
    padded = np.full((shape[0] + 2, *shape[1:]), GUARD)
    return padded, padded[1:-1]


def assert_guards_unchanged(padded):
    assert (padded[0] == GUARD).all()
    assert (padded[-1] == GUARD).all()


def test_widths_use_every_register_shape():
    """The widths above have blocks of each shape, and each shape follows each wider one."""

    def blocks(d, shapes):
        used, column = [], 0
        for lanes in shapes:
            width = sum(lanes)
            count = (d - column) // width
            if lanes[-1] < lanes[0] and d % width:
                count = 0
            used += [width] * (count > 0)
            column += count * width
        assert column == d
        return used

    for shapes in (simd.REGISTER_SHAPES, ((8, 8, 8, 8, 8, 8, 2), (8,) * 6, (8,), (4,), (1,))):
        used = [blocks(d, shapes) for d in WIDTHS]
        for lanes in shapes:
            assert [sum(lanes)] in used  # alone
        mixed, *plain = (sum(lanes) for lanes in shapes)
        pairs = {(a, b) for each in used for i, a in enumerate(each) for b in each[i + 1 :]}
        assert pairs >= {(a, b) for i, a in enumerate(plain) for b in plain[i + 1 :]}
        assert not any(mixed in pair for pair in pairs)  # no other block is left


# -- sums of rows ------------------------------------------------------------------------------------------------------


@njit
def add_rows(weights, table, rows, out, onto):
    simd.add_rows(weights, table, rows, out, onto)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("n", [0, 1, 2, 5, 26])
def test_weighted_sums_of_rows(d, n):
    random = np.random.default_rng(0)
    table, weights = normal(random, ROWS, d), normal(random, n)
    rows = random.integers(ROWS, size=n).astype(np.int32)
    for onto in (False, True):
        padded, out = guarded(d)
        add_rows(weights, table, rows, out, onto)
        expected = 7.0 * onto + weights.astype(np.float64) @ table[rows]
        np.testing.assert_allclose(out, expected, atol=1e-5)
        assert_guards_unchanged(padded)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("n", [0, 1, 2, 10])
def test_sums_of_rows_without_weights(d, n):
    random = np.random.default_rng(0)
    table, rows = normal(random, ROWS, d), random.integers(ROWS, size=n).astype(np.int32)
    for onto in (False, True):
        padded, out = guarded(d)
        add_rows(None, table, rows, out, onto)
        np.testing.assert_allclose(out, 7.0 * onto + table[rows].astype(np.float64).sum(axis=0), atol=1e-5)
        assert_guards_unchanged(padded)


def test_more_weights_than_rows():
    """The buffer of the weights may be longer: only the first n are used."""
    table, weights = np.eye(3, dtype=np.float32), np.array([2.0, 3.0, np.nan], np.float32)
    out = np.zeros(3, np.float32)
    add_rows(weights, table, np.array([2, 0], np.int32), out, False)
    assert out.tolist() == [3.0, 0.0, 2.0]


# -- diagonal matrices -------------------------------------------------------------------------------------------------


@njit
def add_scaled_rows(scales, table, rows, out):
    simd.add_scaled_rows(scales, table, rows, out)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("c", [1, 2, 10])
@pytest.mark.parametrize("kind", [np.int32, np.int64])  # of training, of scoring
def test_sums_of_scaled_rows(d, c, kind):
    random = np.random.default_rng(0)
    scales, table = normal(random, c, d), normal(random, ROWS, d)
    rows = random.integers(ROWS, size=c).astype(kind)
    padded, out = guarded(d)
    add_scaled_rows(scales, table, rows, out)
    np.testing.assert_allclose(out, (scales.astype(np.float64) * table[rows]).sum(axis=0), atol=1e-5)
    assert_guards_unchanged(padded)


@njit
def add_scaled_rows_backward(scales, vector, table, rows, order, out, outs):
    simd.add_scaled_rows_backward(scales, vector, table, rows, order, out, outs)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize(("c", "n"), [(1, 1), (3, 0), (2, 5), (10, 26)])
def test_gradients_of_sums_of_scaled_rows(d, c, n):
    """A word that occurs n times, at any context position of any example; several times at some."""
    random = np.random.default_rng(0)
    scales, vector, table = normal(random, c, d), normal(random, d), normal(random, ROWS, d)
    rows, positions = random.integers(ROWS, size=n).astype(np.int32), random.integers(c, size=n)
    order = (rows * c + positions).astype(np.int32)
    padded, out = guarded(d)
    padded_outs, outs = guarded(c, d)
    add_scaled_rows_backward(scales, vector, table, rows, order, out, outs)
    expected, expected_outs = np.zeros(d), np.full((c, d), 7.0)
    for row, position in zip(rows, positions, strict=True):
        expected += scales[position].astype(np.float64) * table[row]
        expected_outs[position] += vector.astype(np.float64) * table[row]
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_allclose(outs, expected_outs, atol=2e-5)
    assert_guards_unchanged(padded)
    assert_guards_unchanged(padded_outs)


def test_backward_is_the_gradient_of_forward():
    """⟨forward, g⟩ is linear in each row and in each scale: its derivative by a direction is exact."""
    random = np.random.default_rng(0)
    c, d, word = 10, 100, 3
    scales, table, g = normal(random, c, d), normal(random, ROWS, d), normal(random, 1, d)
    rows = random.integers(ROWS, size=c).astype(np.int32)
    rows[[2, 7]] = word
    order = np.flatnonzero(rows == word).astype(np.int32)
    by_row, by_scales = np.zeros(d, np.float32), np.zeros((c, d), np.float32)
    add_scaled_rows_backward(scales, table[word], g, np.zeros(len(order), np.int32), order, by_row, by_scales)

    def objective(scales, table):
        out = np.empty(d, np.float32)
        add_scaled_rows(scales, table, rows, out)
        return out.astype(np.float64) @ g[0]

    step, step_scales = normal(random, d), normal(random, c, d)
    moved = table.copy()
    moved[word] += step
    change = objective(scales, moved) - objective(scales, table)
    assert change == pytest.approx(by_row.astype(np.float64) @ step, rel=1e-4)
    step_scales[rows != word] = 0.0
    change = objective(scales + step_scales, table) - objective(scales, table)
    assert change == pytest.approx((by_scales.astype(np.float64) * step_scales).sum(), rel=1e-4)


# -- scores and matrix products ----------------------------------------------------------------------------------------


@njit
def score_rows(vector, table, rows, scores):
    simd.score_rows(vector, table, rows, scores)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8, 9, 10, 16, 26])  # rows are taken in eights, twos and ones
def test_scores_of_rows(d, n):
    random = np.random.default_rng(0)
    table, vector = normal(random, ROWS, d), normal(random, d)
    rows = random.integers(ROWS, size=n).astype(np.int32)
    padded, scores = guarded(n)
    score_rows(vector, table, rows, padded[1:])  # the buffer may be longer
    np.testing.assert_allclose(scores, table[rows].astype(np.float64) @ vector, atol=1e-4)
    assert_guards_unchanged(padded)


@njit
def multiply(a, transposed, b, out):
    simd.multiply(a, transposed, b, out)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize(("rows", "depth"), [(1, 1), (3, 2), (4, 9), (7, 100), (64, 3)])
@pytest.mark.parametrize("transposed", [False, True])
def test_small_matrix_products(rows, depth, columns, transposed):
    random = np.random.default_rng(0)
    a = normal(random, *((depth, rows) if transposed else (rows, depth)))
    b = normal(random, depth, columns)
    padded, out = guarded(rows, columns)
    multiply(a, transposed, b, out)
    np.testing.assert_allclose(out, (a.T if transposed else a).astype(np.float64) @ b, atol=1e-4)
    assert_guards_unchanged(padded)


# -- sums of values ----------------------------------------------------------------------------------------------------


@njit
def sum_values(values, n):
    return simd.sum_values(values, n)


def sum_in_documented_order(values):
    """Return eight partial sums, then their sum, then the remaining values, in float32."""
    partial, blocks = np.zeros(8, np.float32), len(values) // 8
    for block in range(blocks):
        partial += values[8 * block : 8 * block + 8]
    total = partial.sum(dtype=np.float32)
    for value in values[8 * blocks :]:
        total += value
    return total


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 16, 23, 100, 1001])
def test_sum_of_values(n):
    values = np.append(normal(np.random.default_rng(n), n), np.float32(np.nan))  # only n of them are read
    assert sum_values(values, n) == pytest.approx(values[:n].astype(np.float64).sum(), abs=1e-4)


@pytest.mark.parametrize("lane", range(8))
@pytest.mark.parametrize("remaining", range(8))
def test_values_are_added_in_the_documented_order(lane, remaining):
    """2²⁴ + 1 is 2²⁴ in float32: other orders give other sums. One lane only, so that the sum of lanes is exact."""
    large = np.float32(2.0**24)
    values = np.zeros(6 * 8 + remaining, np.float32)
    values[lane : 6 * 8 : 8] = [1.0, large, 1.0, 1.0, 2.0, 1.0]
    values[6 * 8 :] = 1.0
    expected = sum_in_documented_order(values)
    assert sum_values(values, values.size) == expected == large + 4.0
    assert values.astype(np.float64).sum() > expected


def test_the_sum_of_the_same_values_has_the_same_bits_in_every_kernel():
    @njit(fastmath=True)
    def in_another_kernel(values):
        total = np.float32(0.0)
        for i in range(values.size):
            total += values[i] * np.float32(0.5)
        return total, simd.sum_values(values, values.size)

    for n in (5, 30, 1001):
        values = normal(np.random.default_rng(n), n)
        assert in_another_kernel(values)[1] == sum_values(values, n)


# -- prefetching, arrays without reference counts ----------------------------------------------------------------------


@njit
def prefetch(table, row):
    simd.prefetch(table, row)


@pytest.mark.parametrize("d", [None, *WIDTHS])
def test_prefetching_changes_nothing(d):
    """Of a row and of a number. The first and the last row begin and end where the array does."""
    table = normal(np.random.default_rng(0), *((ROWS,) if d is None else (ROWS, d)))
    before = table.copy()
    for row in (0, 1, ROWS - 1):
        prefetch(table, row)
    np.testing.assert_array_equal(table, before)


def test_borrowed_arrays_are_the_same_arrays():
    @njit
    def write(pair, array):
        (first, second), third = simd.borrowed((pair, array))
        first[0], second[1], third[2] = 1.0, 2.0, 3.0
        return first[0] + second[1] + third[2]

    a, b, c = (np.zeros(3) for _ in range(3))
    assert write((a, b), c) == 6.0
    assert (a[0], b[1], c[2]) == (1.0, 2.0, 3.0)
    assert a.tolist() == [1.0, 0.0, 0.0]
