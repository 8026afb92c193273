"""Scores of (example, class) pairs and their gradients, for the PyTorch losses on the CPU.

Every kernel takes blocks of work from `sync` (see `barrier`) until none is left, so that any number of threads may
enter it. Results do not depend on how many do. The threads are PyTorch's own (`ncelm.torch.compiled`), which call a
kernel by its address.
"""

import numpy as np
from numba import types

from ncelm.kernels.barrier import take_item
from ncelm.kernels.compile import c_kernel, inline
from ncelm.kernels.math32 import copy, dot, exp32
from ncelm.kernels.records import SYNC_STRIDE
from ncelm.kernels.simd import add_rows, prefetch, score_rows

BLOCK = 32  # examples, classes or rows in one work item
INVALID = 8  # where `sync` says that an index was outside its table
COUNT = 9  # where it has the result of `group_pairs`
THREADS = 10  # and the number of threads that may enter the kernel
ZERO = np.float32(0.0)
INTS, INTS2 = types.Array(types.int64, 1, "C"), types.Array(types.int64, 2, "C")
FLOATS, FLOATS2 = types.Array(types.float32, 1, "C"), types.Array(types.float32, 2, "C")


@c_kernel(SYNC_STRIDE, FLOATS2, FLOATS2, FLOATS, INTS, INTS2, FLOATS, FLOATS2)
def score_pairs(sync, input, weight, bias, targets, noise, target_scores, noise_scores):
    """Scores s(w, h) of the target and of k noise samples of each example, (N,) and (N, k).

    input (N, d), weight (V, d), bias (V,) or empty, targets (N,), noise (N, k). An index outside the table is noted in
    sync[INVALID].
    """
    n, biased, classes = targets.size, bias.size > 0, _table_size(weight, bias)
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
def _table_size(weight, bias):
    """The classes that both tables have; a bias of size 0 is none."""
    return min(weight.shape[0], bias.size) if bias.size > 0 else weight.shape[0]


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


@c_kernel(SYNC_STRIDE, FLOATS2, INTS, INTS2, FLOATS, FLOATS2, FLOATS2)
def input_gradients(sync, weight, targets, noise, by_target, by_noise, out):
    """out[e] = Σ_w g(w) q_w over the target and the noise samples of example e; g are the gradients of the scores."""
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


@c_kernel(SYNC_STRIDE, INTS, FLOATS, INTS, FLOATS2, FLOATS2)
def class_gradients(sync, offsets, weights, rows, input, out):
    """out[g] = Σ_p weights[p] input[rows[p]] over the pairs p of group g; see `group_pairs`."""
    n = out.shape[0]
    while True:
        begin = take_item(sync, 0) * BLOCK
        if begin >= n:
            return
        for g in range(begin, min(begin + BLOCK, n)):
            first, last = offsets[g], offsets[g + 1]
            add_rows(weights[first:last], input, rows[first:last], out[g], False)


@c_kernel(SYNC_STRIDE, INTS, INTS2, FLOATS, FLOATS2, INTS, INTS, FLOATS, INTS, FLOATS)
def group_pairs(sync, targets, noise, by_target, by_noise, groups, offsets, weights, rows, sums):
    """Group the targets (N,) and noise samples (N, k) by class, in ascending order; sync[COUNT] is their number.

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
    sync[COUNT] = count


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


@c_kernel(SYNC_STRIDE, FLOATS2, INTS, FLOATS2, FLOATS)
def update_rows(sync, table, rows, values, rate):
    """table[rows[i]] += rate values[i] for i = 0, 1, …: table (V, d), values (n, d), rate (1,); rows may occur again.

    A work item has the rows with the same remainder of a division by the number of threads: no two threads write the
    same row. An index outside the table is noted in sync[INVALID].
    """
    rate, parts = rate[0], sync[THREADS]
    if not _are_below(rows, table.shape[0]):
        sync[INVALID] = 1
        return
    while True:
        part = take_item(sync, 0)
        if part >= parts:
            return
        own = np.empty(rows.size, np.int64)
        n = 0
        for i in range(rows.size):
            own[n] = i
            n += parts == 1 or rows[i] % parts == part
        for i in range(n):
            if i + DISTANCE < n:
                prefetch(table, rows[own[i + DISTANCE]])
            row, value = table[rows[own[i]]], values[own[i]]
            for t in range(row.size):
                row[t] += rate * value[t]


DISTANCE = 8  # rows between a row and the one that is prefetched


@c_kernel(SYNC_STRIDE, FLOATS, INTS, FLOATS, INTS)
def draw(sync, keep, alias, uniform, columns):
    """Replace column c of an alias table by the class it returns: c if uniform < keep[c], otherwise alias[c]."""
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


@c_kernel(SYNC_STRIDE, FLOATS2, FLOATS2, FLOATS, INTS, FLOATS2, FLOATS, FLOATS)
def gather_rows(sync, input, weight, bias, classes, rows, biases, scores):
    """Copy the rows (m, d) and biases (m,) of classes (m,), and score the first N of them: scores[e] = hᵀ q_w + b_w.

    input (N, d), weight (V, d), bias (V,) or empty. An index outside the table is noted in sync[INVALID].
    """
    n, biased, size = classes.size, bias.size > 0, _table_size(weight, bias)
    while True:
        begin = take_item(sync, 0) * BLOCK
        if begin >= n:
            return
        end = min(begin + BLOCK, n)
        if not _are_below(classes[begin:end], size):
            sync[INVALID] = 1
            return
        for i in range(begin, end):
            prefetch(weight, classes[i])
            if biased:
                prefetch(bias, classes[i])
        for i in range(begin, end):
            copy(weight[classes[i]], rows[i])
            biases[i] = bias[classes[i]] if biased else ZERO
            if i < scores.size:
                scores[i] = dot(input[i], rows[i]) + biases[i]


@c_kernel(SYNC_STRIDE, FLOATS, FLOATS2, FLOATS2, FLOATS2, FLOATS2)
def target_gradients(sync, by_target, input, rows, by_input, by_rows):
    """The targets' share of gradients: by_input[e] = g q_w and by_rows[e] = g h.

    by_target (N,), the gradients g of the scores; input (N, d), the vectors h; rows (≥ N, d), first the q_w.
    """
    n = by_target.size
    while True:
        begin = take_item(sync, 0) * BLOCK
        if begin >= n:
            return
        for e in range(begin, min(begin + BLOCK, n)):
            g, h, q, to_input, to_row = by_target[e], input[e], rows[e], by_input[e], by_rows[e]
            for t in range(h.size):
                to_input[t] = g * q[t]
                to_row[t] = g * h[t]


@c_kernel(SYNC_STRIDE, FLOATS, FLOATS2, FLOATS, FLOATS)
def nce_losses(sync, target_logits, noise_scores, shifts, losses):
    """losses[e] = log(1 + exp(t)) + Σ_j log(1 + exp(u_j)) of the logits t = target_logits[e], of the noise, and
    u_j = noise_scores[e, j] + shifts[j], of the data.

    target_logits (N,), noise_scores (N, k), shifts (k,), losses (N,). Each t and noise score is replaced by the
    derivative, 1 / (1 + exp(−t)) or 1 / (1 + exp(−u_j)).
    """
    n, none = losses.size, np.zeros(1, np.float32)
    while True:
        begin = take_item(sync, 0) * BLOCK
        if begin >= n:
            return
        end = min(begin + BLOCK, n)
        targets = target_logits[begin:end]
        for e in range(begin, end):
            losses[e] = _softplus_and_derivative(noise_scores[e], shifts)
        for i in range(targets.size):
            losses[begin + i] += _softplus_and_derivative(targets[i : i + 1], none)


@inline
def _softplus_and_derivative(values, shifts):
    """Σ log(1 + exp(u)), where u = values + shifts; each value becomes 1 / (1 + exp(−u)). NaN stays NaN."""
    total = ZERO
    for j in range(values.size):
        u = values[j] + shifts[j]
        small = exp32(-abs(u))  # in (0, 1]
        inverse = ONE / ((ONE + small) * (TWO + small))
        s = small * (ONE + small) * inverse  # small / (2 + small): log(1 + small) = 2 artanh s
        q = s * s
        p = np.float32(1.0 / 11.0)
        p = p * q + np.float32(1.0 / 9.0)
        p = p * q + np.float32(1.0 / 7.0)
        p = p * q + np.float32(0.2)
        p = p * q + np.float32(1.0 / 3.0)
        p = p * q + ONE
        invalid = u != u  # NaN, which `exp32` does not keep
        total += u if invalid else max(u, ZERO) + TWO * s * p
        values[j] = u if invalid else (ONE if u >= ZERO else small) * (TWO + small) * inverse
    return total


ONE, TWO = np.float32(1.0), np.float32(2.0)
