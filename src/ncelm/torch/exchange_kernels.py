"""The compiled loops of `distributed`: what rows have changed, by how much, and what all workers make of them."""

import numpy as np

from ncelm.kernels import compiled


@compiled
def find_changed(now, former, answer):
    """Which rows are not what they were: now and former (rows, width); answer (rows,)."""
    for row in range(now.shape[0]):
        for column in range(now.shape[1]):
            if now[row, column] != former[row, column]:
                answer[row] = 1
                break


@compiled
def write_news(now, former, rows, news):
    """By how much these rows have changed: news (len(rows), width), the bits of bfloat16 in uint16.

    A bfloat16 is the upper half of a float32; of two that are equally near, the even one.
    """
    change = np.empty(now.shape[1], np.float32)
    bits = change.view(np.uint32)
    for i in range(rows.size):
        now_row, former_row, out = now[rows[i]], former[rows[i]], news[i]
        for column in range(change.size):
            change[column] = now_row[column] - former_row[column]
        for column in range(change.size):  # (each step cast again, because Numba would go on in 64 bits)
            odd = np.uint32(np.uint32(bits[column] >> np.uint32(16)) & np.uint32(1))
            rounded = np.uint32(np.uint32(bits[column] + np.uint32(0x7FFF)) + odd)
            out[column] = np.uint16(np.uint32(rounded >> np.uint32(16)))


@compiled
def take_news(now, former, rows, news):
    """All workers' news of these rows, added up, make them what they are now."""
    change = np.empty(now.shape[1], np.float32)
    bits = change.view(np.uint32)
    for i in range(rows.size):
        now_row, former_row, come = now[rows[i]], former[rows[i]], news[i]
        for column in range(change.size):
            bits[column] = np.uint32(np.uint32(come[column]) << np.uint32(16))
        for column in range(change.size):
            change[column] += former_row[column]
        now_row[:] = change
        former_row[:] = change
