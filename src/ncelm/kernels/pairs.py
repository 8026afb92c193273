"""Scores of (example, class) pairs and their gradients, for the PyTorch losses on the CPU.

Every kernel takes blocks of work from `sync` (see `barrier`) until none is left, so that any number of threads may
enter it. Results do not depend on how many do.
"""

import numpy as np

from ncelm.kernels.barrier import take_item
from ncelm.kernels.compile import inline, kernel
from ncelm.kernels.simd import add_rows, borrowed, prefetch, score_rows

BLOCK = 32  # examples, classes or rows in one work item
INVALID = 8  # where `sync` says that an index was outside its table
ZERO = np.float32(0.0)


@kernel
def score_pairs(sync, input, weight, bias, targets, noise, target_scores, noise_scores):
    """Scores s(w, h) of the target and of k noise samples of each example, (N,) and (N, k).

    input (N, d), weight (V, d), bias (V,) or empty, targets (N,), noise (N, k). An index outside the table is noted in
    sync[INVALID].
    """
    input, weight, bias, targets, noise = borrowed((input, weight, bias, targets, noise))
    target_scores, noise_scores = borrowed((target_scores, noise_scores))
    n, biased = targets.size, bias.size > 0
    classes = min(weight.shape[0], bias.size) if biased else weight.shape[0]
    while True:
        begin = take_item(sync, 0) * BLOCK
        if begin >= n:
            return
        end = min(begin + BLOCK, n)
        inside = _are_below(targets[begin:end], classes)
        for e in range(begin, end):
            inside = inside and _are_below(noise[e], classes)
        if not inside:
            sync[INVALID] = 1
            return
        _prefetch_pairs(weight, targets[begin], noise[begin])
        for e in range(begin, end):
            if biased:
                _prefetch_pairs(bias, targets[e], noise[e])
            if e + 1 < end:
                _prefetch_pairs(weight, targets[e + 1], noise[e + 1])
            score_rows(input[e], weight, targets[e : e + 1], target_scores[e : e + 1])
            score_rows(input[e], weight, noise[e], noise_scores[e])
            if biased:
                target_scores[e] += bias[targets[e]]
                for j in range(noise.shape[1]):
                    noise_scores[e, j] += bias[noise[e, j]]


@inline
def _are_below(rows, size):
    """Whether all numbers are from 0 to size − 1."""
    inside = True
    for row in rows:
        inside &= 0 <= row < size
    return inside


@inline
def _prefetch_pairs(table, target, noise):
    """Prefetch what a table, (V, d) or (V,), holds for the classes of an example."""
    prefetch(table, target)
    for j in range(noise.size):
        prefetch(table, noise[j])


@kernel
def input_gradients(sync, weight, targets, noise, by_target, by_noise, out):
    """out[e] = Σ_w g(w) q_w over the target and the noise samples of example e; g are the gradients of the scores."""
    weight, targets, noise = borrowed((weight, targets, noise))
    by_target, by_noise, out = borrowed((by_target, by_noise, out))
    n = targets.size
    while True:
        begin = take_item(sync, 0) * BLOCK
        if begin >= n:
            return
        end = min(begin + BLOCK, n)
        for e in range(begin, end):
            if e + 1 < end:
                _prefetch_pairs(weight, targets[e + 1], noise[e + 1])
            add_rows(by_target[e : e + 1], weight, targets[e : e + 1], out[e], False)
            add_rows(by_noise[e], weight, noise[e], out[e], True)


@kernel
def class_gradients(sync, offsets, weights, rows, input, out):
    """out[g] = Σ_p weights[p] input[rows[p]] over the pairs p of group g; see `group_pairs`."""
    offsets, weights, rows, input, out = borrowed((offsets, weights, rows, input, out))
    n = out.shape[0]
    while True:
        begin = take_item(sync, 0) * BLOCK
        if begin >= n:
            return
        for g in range(begin, min(begin + BLOCK, n)):
            first, last = offsets[g], offsets[g + 1]
            add_rows(weights[first:last], input, rows[first:last], out[g], False)


@kernel
def group_pairs(targets, noise, by_target, by_noise, groups, offsets, weights, rows, sums):
    """Group the targets (N,) and noise samples (N, k) by class, in ascending order; return the number of groups.

    Group g belongs to the class groups[g], has the pairs p with offsets[g] ≤ p < offsets[g + 1] and the summed gradient
    sums[g]. Pair p has the gradient weights[p] and the example rows[p]. Pairs of a group keep their order.
    """
    n, m = noise.shape[0], noise.shape[1] + 1
    low = 0  # bits of the number of a pair; the class is above them
    while (n * m) >> low:
        low += 1
    keys, other, largest = np.empty(n * m, np.int64), np.empty(n * m, np.int64), np.int64(0)
    for e in range(n):
        keys[e * m] = (targets[e] << low) | (e * m)
        largest = max(largest, targets[e])
        for j in range(1, m):
            keys[e * m + j] = (noise[e, j - 1] << low) | (e * m + j)
            largest = max(largest, noise[e, j - 1])
    shift = low
    while largest >> (shift - low):
        _sort_by_digit(keys, shift, other)
        keys, other, shift = other, keys, shift + DIGIT
    count, before = 0, np.int64(-1)
    for p in range(n * m):
        word, pair = keys[p] >> low, keys[p] & ((1 << low) - 1)
        if word != before:
            groups[count], offsets[count], sums[count] = word, p, ZERO
            before, count = word, count + 1
        row = np.int64(np.uint32(pair) // np.uint32(m))  # faster than a division of 64 bits
        place = pair - row * m
        value = by_noise[row, place - 1] if place else by_target[row]
        rows[p], weights[p] = row, value
        sums[count - 1] += value
    offsets[count] = n * m
    return count


DIGIT = 11  # bits; the counts of the digits fit into the first-level cache


@inline
def _sort_by_digit(keys, shift, out):
    """Write the keys to `out`, sorted by the bits shift … shift + 10 (stable)."""
    places, mask = np.zeros((1 << DIGIT) + 1, np.int64), (1 << DIGIT) - 1
    for key in keys:
        places[((key >> shift) & mask) + 1] += 1
    for digit in range(mask):
        places[digit + 1] += places[digit]
    for key in keys:
        digit = (key >> shift) & mask
        out[places[digit]] = key
        places[digit] += 1


@kernel
def update_rows(sync, table, rows, values, rate):
    """table[rows[i]] += rate values[i]: table (V, d), values (n, d); the rows are distinct.

    An index outside the table is noted in sync[INVALID].
    """
    table, rows, values = borrowed((table, rows, values))
    n = rows.size
    while True:
        begin = take_item(sync, 0) * BLOCK
        if begin >= n:
            return
        end = min(begin + BLOCK, n)
        if not _are_below(rows[begin:end], table.shape[0]):
            sync[INVALID] = 1
            return
        for i in range(begin, end):
            if i + DISTANCE < n:
                prefetch(table, rows[i + DISTANCE])
            row, value = table[rows[i]], values[i]
            for t in range(row.size):
                row[t] += rate * value[t]


DISTANCE = 8  # rows between a row and the one that is prefetched


@kernel
def draw(sync, keep, alias, uniform, columns):
    """Replace column c of an alias table by the class it returns: c if uniform < keep[c], otherwise alias[c]."""
    keep, alias, uniform, columns = borrowed((keep, alias, uniform, columns))
    n = columns.size
    while True:
        begin = take_item(sync, 0) * COLUMNS
        if begin >= n:
            return
        end = min(begin + COLUMNS, n)
        for i in range(begin, end):
            prefetch(keep, columns[i])
            prefetch(alias, columns[i])
        for i in range(begin, end):
            column = columns[i]
            columns[i] = column if uniform[i] < keep[column] else alias[column]


COLUMNS = 128  # in one work item
