"""The compiled loops of `distributed`: which rows have changed, by how much, and what the others have to say of them.

A row's change is told as one byte for each number, times a scale of the row; what rounding has left unsaid is still in
the row and goes with its next news. Of Adagrad's sums of squares a row's mean growth is told: how far along a word is
matters, which of its numbers had the larger gradients hardly does.
"""

import numpy as np
from numba import njit

from ncelm.kernels.steps import compiled

# Adding this to a number leaves it rounded to a whole one in the lowest bits of the float: 1.5 · 2²³. Not for kernels
# that may add up in another order, which would take it away again.
ROUNDING = np.float32(12582912.0)
LARGEST = np.float32(127.0)  # of a signed byte
_NO_NUMBER = np.uint32(0x7F800000)  # the bits of infinity; those of NaN are larger
_WITHOUT_SIGN = np.uint32(0x7FFFFFFF)
exactly = njit(cache=True, nogil=True, error_model="numpy", boundscheck=False, forceinline=True)


@compiled
def pick_changed(now, former, ring, start, looks, columns, tolerance, rows):
    """Go round a ring of rows, from `start` on, until `rows` is full of changed ones or `looks` of them were looked at.

    now and former (all rows, width). Only the first `columns` of a row are looked at, and a change below `tolerance`
    times the largest of them is none: a row that was learned is another in every number. What is no number has
    changed. Returns where to start the next time, and how many were found.
    """
    found = 0
    for _ in range(min(looks, ring.size)):
        if found == rows.size:
            break
        row = ring[start]
        start = start + 1 if start + 1 < ring.size else 0
        now_row, former_row = now[row, :columns], former[row, :columns]
        largest, same = np.float32(0.0), True
        for column in range(now_row.size):
            largest = max(largest, abs(now_row[column]))
        for column in range(now_row.size):
            same &= abs(now_row[column] - former_row[column]) <= tolerance * largest
        if not same:
            rows[found] = row
            found += 1
    return start, found


@exactly
def write_news(now, former, rows, scales, news):
    """By how much these rows have changed: news (len(rows), width), signed bytes, times scales (len(rows),).

    What was told is added to `former`, so that the rest counts as not yet told. A change that is no number has a scale
    that is none.
    """
    change = np.empty(now.shape[1], np.float32)
    one = np.empty(1, np.float32)
    bits, one_bits = change.view(np.uint32), one.view(np.uint32)
    for i in range(rows.size):
        now_row, former_row, out = now[rows[i]], former[rows[i]], news[i]
        largest = np.uint32(0)  # bits of floats without their signs are in the order of the floats
        for column in range(change.size):
            change[column] = now_row[column] - former_row[column]
        for column in range(change.size):
            largest = max(largest, np.uint32(bits[column] & _WITHOUT_SIGN))
        if largest >= _NO_NUMBER:
            scales[i] = np.nan
            continue
        one_bits[0] = largest
        size = one[0]
        scales[i] = size / LARGEST
        to_bytes = LARGEST / size if size > np.float32(1e-30) else np.float32(0.0)
        for column in range(change.size):
            change[column] = change[column] * to_bytes + ROUNDING
        for column in range(change.size):
            out[column] = np.uint8(bits[column])
            former_row[column] += (change[column] - ROUNDING) * scales[i]


@compiled
def take_news(now, former, rows, scales, news):
    """Add another worker's changes of these rows, which are no change of one's own."""
    for i in range(rows.size):
        now_row, former_row, said, scale = now[rows[i]], former[rows[i]], news[i], scales[i]
        for column in range(now_row.size):
            change = np.float32(np.int8(said[column])) * scale
            now_row[column] += change
            former_row[column] += change


@compiled
def write_growth(squares, told, rows, growth):
    """By how much the means of these rows of squares have grown since they were told: squares (all rows, width)."""
    for i in range(rows.size):
        mean = squares[rows[i]].sum() / np.float32(squares.shape[1])
        growth[i] = mean - told[rows[i]]
        told[rows[i]] = mean


@compiled
def take_growth(squares, told, rows, growth):
    """Let these rows grow by what they have grown elsewhere: each number in proportion, or all alike if they are 0."""
    for i in range(rows.size):
        row = squares[rows[i]]
        mean = row.sum() / np.float32(row.size)
        if mean > np.float32(0.0):
            factor = np.float32(1.0) + growth[i] / mean
            for column in range(row.size):
                row[column] *= factor
        else:
            row[:] = growth[i]
        told[rows[i]] += growth[i]
