"""Compiled loops of `ncelm.distributed.row_deltas`: selection, int8 quantisation and application of row deltas.

The delta of a row is its change since the last exchange. It is sent as one signed byte per number and one float32 scale
per row. The quantisation error stays in the row and is part of its next delta (error feedback). Of Adagrad's
accumulator only the growth of the row mean is sent.
"""

import numpy as np

from ncelm.kernels.compile import kernel

# x + ROUNDING has the integer nearest to x in its lowest bits: 1.5 · 2²³. Reassociation would cancel the constant, so
# functions that use it are compiled without fast-math.
ROUNDING = np.float32(12582912.0)
INT8_MAX = np.float32(127.0)
_INFINITY_BITS = np.uint32(0x7F800000)  # NaNs have larger bit patterns
_MAGNITUDE_BITS = np.uint32(0x7FFFFFFF)


@kernel
def select_changed_rows(values, synced, queue, start, max_examined, columns, tolerance, rows):
    """Write the indices of changed rows into `rows`; return the next start in the queue and the number of rows found.

    values, synced (all rows, width). The rows in `queue` are examined cyclically from position `start`, until `rows` is
    full or `max_examined` rows were examined. A row has changed if one of its first `columns` numbers differs by more
    than `tolerance` times the largest magnitude among them. NaN counts as a change.
    """
    found = 0
    for _ in range(min(max_examined, queue.size)):
        if found == rows.size:
            break
        row = queue[start]
        start = start + 1 if start + 1 < queue.size else 0
        value_row, synced_row = values[row, :columns], synced[row, :columns]
        largest, same = np.float32(0.0), True
        for column in range(value_row.size):
            largest = max(largest, abs(value_row[column]))
        for column in range(value_row.size):
            same &= abs(value_row[column] - synced_row[column]) <= tolerance * largest
        if not same:
            rows[found] = row
            found += 1
    return start, found


@kernel(fastmath=False)
def quantize_deltas(values, synced, rows, scales, quantized):
    """Write the deltas of these rows: quantized (len(rows), width), int8 in uint8 memory, and scales (len(rows),).

    The dequantised deltas are added to `synced`; what remains of values − synced is the quantisation error. A delta
    that is not finite has the scale NaN.
    """
    delta = np.empty(values.shape[1], np.float32)
    one = np.empty(1, np.float32)
    bits, one_bits = delta.view(np.uint32), one.view(np.uint32)
    for i in range(rows.size):
        value_row, synced_row, out = values[rows[i]], synced[rows[i]], quantized[i]
        largest = np.uint32(0)  # magnitudes of floats are ordered as their bit patterns
        for column in range(delta.size):
            delta[column] = value_row[column] - synced_row[column]
        for column in range(delta.size):
            largest = max(largest, np.uint32(bits[column] & _MAGNITUDE_BITS))
        if largest >= _INFINITY_BITS:
            scales[i] = np.nan
            continue
        one_bits[0] = largest
        size = one[0]
        scales[i] = size / INT8_MAX
        to_int8 = INT8_MAX / size if size > np.float32(1e-30) else np.float32(0.0)
        for column in range(delta.size):
            delta[column] = delta[column] * to_int8 + ROUNDING
        for column in range(delta.size):
            out[column] = np.uint8(bits[column])
            synced_row[column] += (delta[column] - ROUNDING) * scales[i]


@kernel
def apply_deltas(values, synced, rows, scales, quantized):
    """Add the deltas of another worker to both arrays, so that they are not part of this worker's next deltas."""
    for i in range(rows.size):
        value_row, synced_row, deltas, scale = values[rows[i]], synced[rows[i]], quantized[i], scales[i]
        for column in range(value_row.size):
            delta = np.float32(np.int8(deltas[column])) * scale
            value_row[column] += delta
            synced_row[column] += delta


@kernel
def accumulator_growth(accumulator, synced_means, rows, growth):
    """Write the growth of the row means since the last exchange, (len(rows),): accumulator (all rows, width)."""
    for i in range(rows.size):
        mean = accumulator[rows[i]].sum() / np.float32(accumulator.shape[1])
        growth[i] = mean - synced_means[rows[i]]
        synced_means[rows[i]] = mean


@kernel
def apply_growth(accumulator, synced_means, rows, growth):
    """Increase the row means by another worker's growth: multiply the row by a factor, or fill a row of zeros."""
    for i in range(rows.size):
        row = accumulator[rows[i]]
        mean = row.sum() / np.float32(row.size)
        if mean > np.float32(0.0):
            factor = np.float32(1.0) + growth[i] / mean
            for column in range(row.size):
                row[column] *= factor
        else:
            row[:] = growth[i]
        synced_means[rows[i]] += growth[i]
