"""Compiled loops of `ncelm.distributed.row_exchange`: selection, int4 quantisation, sums and application of row deltas.

A delta is an integer from −7 to 7 per number and one float32 scale per row. A byte has column i of its row in the lower
four bits and column i + ⌈width / 2⌉ in the upper ones, so that loops are vectorised. The quantisation error stays with
its sender and is part of its next delta (error feedback). Of Adagrad's accumulator only the growth of the row mean is
sent.
"""

import numpy as np

from ncelm.kernels.compile import inline, kernel
from ncelm.kernels.simd import borrowed, prefetch

# x + ROUNDING has the integer nearest to x in its lowest bits: 1.5 · 2²³. Reassociation would cancel the constant, so
# functions that use it are compiled without fast-math.
ROUNDING = np.float32(12582912.0)
LARGEST = np.float32(7.0)
_UNIT = np.float32(1.0 / 16.0)  # numbers are unpacked as multiples of 16: four bits at the top of an int8
_INFINITY_BITS = np.uint32(0x7F800000)  # NaNs have larger bit patterns
_MAGNITUDE_BITS = np.uint32(0x7FFFFFFF)
_LEAST_SHARE = np.float32(1e-6)  # of a row mean: below it, a worker's own accumulator has no information
_LEAST_WIDTH = 8  # of rows whose curvature is measured: products of fewer numbers are too noisy
_AHEAD = 8  # rows: training has displaced the tables from the caches, and rows are far from each other
_MEMORY = np.float32(0.8)  # weight of an exchange relative to the next one, in the measurement of the curvature


@kernel
def select_changed_rows(values, synced, queue, start, max_examined, columns, tolerance, rows):
    """Write the indices of changed rows into `rows`; return the next start in the queue and the number of rows found.

    values, synced (all rows, width). The rows in `queue` are examined cyclically from position `start`, until `rows` is
    full or `max_examined` rows were examined. A row has changed if one of its first `columns` numbers differs by more
    than `tolerance` times the largest magnitude among them. NaN and infinity count as changes.
    """
    values, synced = borrowed((values, synced))
    width, flat_values, flat_synced = values.shape[1], values.reshape(-1), synced.reshape(-1)
    found = 0
    for _ in range(min(max_examined, queue.size)):
        if found == rows.size:
            break
        row = queue[start]
        later = np.int64(queue[min(start + _AHEAD, queue.size - 1)]) * width
        prefetch(flat_values, later)
        prefetch(flat_synced, later)
        start = start + 1 if start + 1 < queue.size else 0
        value_row, synced_row = values[row, :columns], synced[row, :columns]
        largest, same = np.float32(0.0), True
        for column in range(value_row.size):
            largest = max(largest, abs(value_row[column]))
        for column in range(value_row.size):
            same &= abs(value_row[column] - synced_row[column]) <= tolerance * largest
        if not (same and largest < np.inf):
            rows[found] = row
            found += 1
    return start, found


@inline(fastmath=False)
def _quantize(delta, one, out):
    """Write a row as int4, (⌈width / 2⌉,) uint8; return its scale, NaN if a number is not finite.

    `delta` (width,) becomes the quantised numbers plus `ROUNDING`. `one` (1,) is scratch.
    """
    bits = delta.view(np.uint32)
    largest = np.uint32(0)  # magnitudes of floats are ordered as their bit patterns
    for column in range(delta.size):
        largest = max(largest, np.uint32(bits[column] & _MAGNITUDE_BITS))
    if largest >= _INFINITY_BITS:
        return np.float32(np.nan)
    one.view(np.uint32)[0] = largest
    size = one[0]
    to_int4 = LARGEST / size if size > np.float32(1e-30) else np.float32(0.0)
    for column in range(delta.size):
        delta[column] = delta[column] * to_int4 + ROUNDING
    for column in range(out.size):
        out[column] = np.uint8(bits[column] & np.uint32(15))
    for column in range(delta.size - out.size):
        out[column] |= np.uint8(bits[column + out.size] << np.uint32(4))
    return size / LARGEST


@inline(fastmath=False)
def _unpack(packed, numbers):
    """Write the numbers of a row, times 16, (width,) float32; packed (⌈width / 2⌉,) uint8."""
    for column in range(packed.size):
        numbers[column] = np.float32(np.int8(packed[column] << np.uint8(4)))
    for column in range(numbers.size - packed.size):
        numbers[column + packed.size] = np.float32(np.int8(packed[column] & np.uint8(240)))


@kernel(fastmath=False)
def quantize_changes(values, synced, rows, scales, quantized):
    """Write values − synced of these rows, and subtract what was written from `values`.

    scales (len(rows),), quantized (len(rows), ⌈width / 2⌉) uint8. What remains of values − synced is the quantisation
    error. A row that is not finite has the scale NaN, and is left as it is.
    """
    values, synced, quantized = borrowed((values, synced, quantized))
    delta, one = np.empty(values.shape[1], np.float32), np.empty(1, np.float32)
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            prefetch(values, rows[i + _AHEAD])
            prefetch(synced, rows[i + _AHEAD])
        value_row, synced_row = values[rows[i]], synced[rows[i]]
        for column in range(delta.size):
            delta[column] = value_row[column] - synced_row[column]
        scale = _quantize(delta, one, quantized[i])
        scales[i] = scale
        if scale >= np.float32(0.0):  # False for NaN
            for column in range(delta.size):
                value_row[column] -= (delta[column] - ROUNDING) * scale


@kernel(fastmath=False)
def quantize_sums(sums, rows, scales, quantized):
    """Write rows of `sums`, as `quantize_changes`; return whether all are finite. What was written is subtracted."""
    sums, quantized = borrowed((sums, quantized))
    delta, one, finite = np.empty(sums.shape[1], np.float32), np.empty(1, np.float32), True
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            prefetch(sums, rows[i + _AHEAD])
        sum_row = sums[rows[i]]
        delta[:] = sum_row
        scale = _quantize(delta, one, quantized[i])
        scales[i] = scale
        if scale >= np.float32(0.0):
            for column in range(delta.size):
                sum_row[column] -= (delta[column] - ROUNDING) * scale
        else:
            finite = False
    return finite


@kernel(fastmath=False)
def add_growth(rows, scales, growth, rank, workers, total_growth, touched, found):
    """Add one worker's growth of accumulators, and append its rows to those that were touched in this exchange.

    The owner of row r is r modulo `workers`; it has the index r // workers in `total_growth` and `touched`, both (owned
    rows,). total_growth is −1 for rows that were not touched yet. Return the number of rows touched so far, or −1 if
    the message has a number that is not finite or a row that `rank` does not own.
    """
    for i in range(rows.size):
        row, own = rows[i], rows[i] // workers
        valid = scales[i] >= np.float32(0.0) and growth[i] >= np.float32(0.0)
        if not (valid and scales[i] < np.inf and growth[i] < np.inf):
            return -1
        if row < 0 or own >= touched.size or row % workers != rank:
            return -1
        if total_growth[own] < np.float32(0.0):
            total_growth[own] = np.float32(0.0)
            touched[found] = own
            found += 1
        total_growth[own] += growth[i]
    return found


@kernel(fastmath=False)
def add_deltas(rows, scales, growth, quantized, workers, means, total_growth, deltas, squares, senders):
    """Add one worker's deltas, each times (m + g) / (m + G), to `deltas` (owned rows, width).

    m is the row mean of the accumulator after the last exchange, in `means` (all rows,), g its growth by this worker
    and G that by all workers. Without an accumulator all are zero, and the factor is 1. `squares` (owned rows,) sums
    the squared lengths of what is added, and `senders` (owned rows,) counts the workers.
    """
    quantized, deltas = borrowed((quantized, deltas))
    numbers = np.empty(deltas.shape[1], np.float32)
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            prefetch(deltas, rows[i + _AHEAD] // workers)
            prefetch(means, rows[i + _AHEAD])
        own = rows[i] // workers
        delta_row, factor = deltas[own], scales[i] * _UNIT
        _unpack(quantized[i], numbers)
        total = means[rows[i]] + total_growth[own]
        if total > np.float32(0.0):
            factor *= (means[rows[i]] + growth[i]) / total
        square = np.float32(0.0)
        for column in range(delta_row.size):
            delta = numbers[column] * factor
            square += delta * delta
            delta_row[column] += delta
        squares[own] += square
        senders[own] += 1


@kernel(fastmath=False)
def damp_deltas(touched, deltas, squares, senders, last, agreement, decrease, energy, sums, limit):
    """Add the damped deltas D of the touched rows to `sums`; set `deltas`, `squares` and `senders` to zero.

    Args:
        touched: owned rows with deltas, (n,).
        deltas: D, (owned rows, width).
        squares: Σ ‖δ‖² of the deltas δ that D is the sum of, (owned rows,).
        senders: their numbers, (owned rows,).
        last: P, the last damped deltas, (owned rows, width); 0 if it is not known what workers agreed on.
        agreement: s·P of the last exchange, (owned rows,), where s is the part of D that the workers agree on.
        decrease, energy: sums of s·P − D·P and of ‖P‖² times the senders, (owned rows,); older exchanges count less.
        sums: (owned rows, width).
        limit: the largest K of a damped sum.
    """
    deltas, last, sums = borrowed((deltas, last, sums))
    for i in range(touched.size):
        if i + _AHEAD < touched.size:
            prefetch(deltas, touched[i + _AHEAD])
            prefetch(last, touched[i + _AHEAD])
            prefetch(sums, touched[i + _AHEAD])
        own = touched[i]
        delta_row, last_row, sum_row = deltas[own], last[own], sums[own]
        square, product, length = np.float32(0.0), np.float32(0.0), np.float32(0.0)
        for column in range(delta_row.size):
            square += delta_row[column] * delta_row[column]
            product += delta_row[column] * last_row[column]
            length += last_row[column] * last_row[column]
        number, factor, several = np.float32(senders[own]), np.float32(1.0), np.float32(0.0)
        if senders[own] > 1 and delta_row.size >= _LEAST_WIDTH:
            several = np.float32(1.0)
            if length > np.float32(0.0):
                decrease[own] = _MEMORY * decrease[own] + agreement[own] - product
                energy[own] = _MEMORY * energy[own] + length * number
            if decrease[own] * number > limit * energy[own]:  # K > limit
                factor = limit * energy[own] / (decrease[own] * number)
            # the products δ_i·δ_j of different workers have no noise in common
            agreement[own] = factor * (square - squares[own]) * number / (number - np.float32(1.0))
        for column in range(delta_row.size):
            step = factor * delta_row[column]
            sum_row[column] += step
            last_row[column] = several * step
            delta_row[column] = np.float32(0.0)
        squares[own], senders[own] = np.float32(0.0), 0


@kernel
def apply_deltas(values, synced, rows, scales, quantized):
    """Add the combined deltas to both arrays, so that they are not part of this worker's next deltas."""
    values, synced, quantized = borrowed((values, synced, quantized))
    numbers = np.empty(values.shape[1], np.float32)
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            prefetch(values, rows[i + _AHEAD])
            prefetch(synced, rows[i + _AHEAD])
        value_row, synced_row, scale = values[rows[i]], synced[rows[i]], scales[i] * _UNIT
        _unpack(quantized[i], numbers)
        for column in range(value_row.size):
            delta = numbers[column] * scale
            value_row[column] += delta
            synced_row[column] += delta


@kernel
def accumulator_growth(accumulator, sent_means, rows, growth):
    """Write the growth of the row means since they were sent last, (len(rows),): accumulator (all rows, width)."""
    accumulator, sent_means = borrowed((accumulator, sent_means))
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            prefetch(accumulator, rows[i + _AHEAD])
            prefetch(sent_means, rows[i + _AHEAD])
        mean = accumulator[rows[i]].sum() / np.float32(accumulator.shape[1])
        growth[i] = max(mean - sent_means[rows[i]], np.float32(0.0))
        if not mean >= np.float32(0.0):  # NaN is reported, not hidden
            growth[i] = mean
        sent_means[rows[i]] = mean


@kernel
def apply_growth(accumulator, sent_means, synced_means, rows, growth, quantized):
    """Let the accumulators grow by what the other workers added to their row means.

    A step of Adagrad is Δ = −η g / √a, and its accumulator a grows by g². The growth is therefore divided among the
    columns in proportion to a Δ², where Δ is the combined delta.

    Args:
        accumulator: of this worker, (all rows, width).
        sent_means: the row means, of this worker, when it sent them last; (all rows,).
        synced_means: the row means after the last exchange, the same on all workers.
        rows: the rows of a message, (n,).
        growth: growth of their means by all workers together, (n,).
        quantized: their combined deltas, (n, ⌈width / 2⌉) uint8.
    """
    accumulator, quantized = borrowed((accumulator, quantized))
    shares = np.empty(accumulator.shape[1], np.float32)
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            prefetch(accumulator, rows[i + _AHEAD])
        row = accumulator[rows[i]]
        _unpack(quantized[i], shares)
        mean = row.sum() / np.float32(row.size)
        synced_means[rows[i]] += growth[i]
        unsent = max(mean - sent_means[rows[i]], np.float32(0.0))
        target = synced_means[rows[i]] + unsent
        sent_means[rows[i]] = synced_means[rows[i]]
        total = np.float32(0.0)
        for column in range(row.size):
            shares[column] *= shares[column] * row[column]
            total += shares[column]
        if target > mean and total > target * _LEAST_SHARE:
            factor = (target - mean) * np.float32(row.size) / total
            for column in range(row.size):
                row[column] += shares[column] * factor
        elif mean > target * _LEAST_SHARE:
            factor = target / mean
            for column in range(row.size):
                row[column] *= factor
        else:
            row[:] = target
