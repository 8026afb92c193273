"""Products and sums of exponentials with a lane per position: values, order of sums, the same bits in all lanes."""

import numpy as np
import pytest
from numba import njit

from ncelm.kernels import panels
from ncelm.kernels.panels import GROUP, LANES, LOWEST

GUARD = np.float32(7.0)
SHAPES = ((2, 12), (1, 6))  # with AVX-512 and without


def compile_with(shape):
    """Return both functions, compiled for tiles of this shape."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panels, "_tile_shape", lambda context: shape)

        @njit
        def multiply(table, panel, out, onto):
            panels.multiply_panel(table, panel, out, onto)

        @njit
        def add(table, biases, first, last, panel, largest, total):
            panels.add_exponentials(table, biases, first, last, panel, largest, total)

        matrix, vector = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
        panel, lanes = np.zeros((1, LANES), np.float32), np.zeros(LANES, np.float32)
        multiply(matrix, panel, panel.copy(), False)  # compiles: later calls do not look at the shape
        add(matrix, vector, 0, 1, panel, lanes, lanes.copy())
    return multiply, add


@pytest.fixture(scope="module")
def compiled():
    return [compile_with(shape) for shape in SHAPES]


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def log_sums(add, table, biases, panel, blocks=((0, None),)):
    """Return log Σ exp(s) over all words, taken in blocks, for each lane."""
    largest, total = np.full(LANES, LOWEST, np.float32), np.zeros(LANES, np.float32)
    for first, last in blocks:
        add(table, biases, first, len(biases) if last is None else last, panel, largest, total)
    return largest.astype(np.float64) + np.log(total.astype(np.float64))


# -- products ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3, 4, 5, 6, 7, 11, 12, 13, 16, 17, 29, 100])
@pytest.mark.parametrize("d", [1, 2, 7, 100])
def test_products(compiled, n, d):
    table, panel = normal(n, n, d), normal(d, d, LANES)
    expected, results = table.astype(np.float64) @ panel, []
    for multiply, _ in compiled:
        for onto in (False, True):
            padded = np.full((n + 2, LANES), GUARD)
            multiply(table, panel, padded[1:-1], onto)
            np.testing.assert_allclose(padded[1:-1], expected + GUARD * onto, atol=2e-5)
            assert (padded[[0, -1]] == GUARD).all()
            results.append(padded)
    np.testing.assert_array_equal(results[:2], results[2:])  # the shape of the tiles does not matter


def test_products_are_added_up_from_the_first_dimension_to_the_last(compiled):
    """2²⁴ + 1 is 2²⁴ in float32: other orders give other sums."""
    large = np.float32(2.0**24)
    row = np.array([1.0, large, 1.0, 1.0, 2.0, 1.0, -large, 1.0], np.float32)
    table, panel = np.tile(row, (13, 1)), np.ones((8, LANES), np.float32)
    for multiply, _ in compiled:
        out = np.empty((13, LANES), np.float32)
        multiply(table, panel, out, False)
        assert (out == np.add.accumulate(row)[-1]).all()
        assert (out == 5.0).all()  # the exact sum is 7


@pytest.mark.parametrize("lane", range(LANES))
def test_a_position_has_the_same_bits_in_every_lane_with_any_neighbours(compiled, lane):
    table, biases, column = normal(1, 100, 37), normal(2, 100), normal(3, 37)
    for multiply, add in compiled:
        products, sums = [], []
        for place, neighbours in ((0, np.zeros((37, LANES))), (lane, 100 * normal(lane, 37, LANES))):
            panel, out = neighbours.astype(np.float32), np.empty((100, LANES), np.float32)
            panel[:, place] = column
            multiply(table, panel, out, False)
            products.append(out[:, place])
            sums.append(log_sums(add, table, biases, panel)[place])
        np.testing.assert_array_equal(*products)
        assert sums[0] == sums[1]


# -- sums of exponentials ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [1, 2, 5, GROUP - 1, GROUP, GROUP + 1, 3 * GROUP, 1000])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])  # of scores: from nearly equal ones to one that dominates
def test_log_sums_of_exponentials(compiled, words, scale):
    table, biases, panel = normal(words, words, 50), normal(1, words), normal(2, 50, LANES) * np.float32(scale)
    expected = np.logaddexp.reduce(table.astype(np.float64) @ panel + biases[:, None], axis=0)
    found = [log_sums(add, table, biases, panel) for _, add in compiled]
    np.testing.assert_allclose(found[0], expected, atol=1e-5 * max(scale, 1.0))
    np.testing.assert_array_equal(*found)


def test_only_the_words_of_the_range_are_added(compiled):
    table, biases, panel = normal(0, 60, 8), normal(1, 60), normal(2, 8, LANES)
    table[[6, 43]] = np.nan
    expected = np.logaddexp.reduce(table[7:43].astype(np.float64) @ panel + biases[7:43, None], axis=0)
    for _, add in compiled:
        np.testing.assert_allclose(log_sums(add, table, biases, panel, [(7, 20), (20, 43)]), expected, atol=2e-6)


@pytest.mark.parametrize("biases", [[500.0, -500.0], [-500.0, 500.0], [-np.inf, -500.0], [3e38, -3e38], [-1e38, -3e38]])
def test_extreme_scores(compiled, biases):
    """The larger score is the sum: there is neither overflow nor NaN."""
    biases, table, panel = np.array(biases, np.float32), np.zeros((2, 3), np.float32), np.ones((3, LANES), np.float32)
    for _, add in compiled:
        assert log_sums(add, table, biases, panel).tolist() == [biases.max()] * LANES


@pytest.mark.parametrize("word", [0, 5, 11, 12, 13])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_not_numbers_are_noticed(compiled, word, value):
    """In their own lane only."""
    table, biases, panel = np.ones((14, 1), np.float32), np.zeros(14, np.float32), np.ones((1, LANES), np.float32)
    table[word], panel[0, :4] = 2e38, value
    for _, add in compiled:
        found = log_sums(add, table, biases, panel)
        assert np.isnan(found[:4]).all()
        assert np.isfinite(found[4:]).all()
