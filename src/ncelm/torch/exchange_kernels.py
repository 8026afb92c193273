"""The compiled loops of `distributed`: what rows have changed, by how much, and what all workers make of them."""

import numpy as np

from ncelm.kernels import compiled


@compiled
def find_changed(now, former, columns, tolerance, answer):
    """Which rows are not what they were: now and former (rows, width); answer (rows,).

    Only the first `columns` are looked at, and a change below `tolerance` times the largest of them is none. What is no
    number has changed: all must hear of it.
    """
    for row in range(now.shape[0]):
        now_row, former_row = now[row, :columns], former[row, :columns]
        largest, same = np.float32(0.0), True
        for column in range(now_row.size):
            largest = max(largest, abs(now_row[column]))
        for column in range(now_row.size):
            same &= abs(now_row[column] - former_row[column]) <= tolerance * largest
        answer[row] = not same


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
def take_news(now, former, rows, mine, all_of_us, settle):
    """All workers' news of these rows, added up, are what all agree on; the others' are added to what there is now.

    mine and all_of_us (len(rows), width). To `settle` is to have what all agree on and nothing else.
    """
    total, own = np.empty(now.shape[1], np.float32), np.empty(now.shape[1], np.float32)
    total_bits, own_bits = total.view(np.uint32), own.view(np.uint32)
    for i in range(rows.size):
        now_row, former_row, my_row, our_row = now[rows[i]], former[rows[i]], mine[i], all_of_us[i]
        for column in range(total.size):
            total_bits[column] = np.uint32(np.uint32(our_row[column]) << np.uint32(16))
            own_bits[column] = np.uint32(np.uint32(my_row[column]) << np.uint32(16))
        for column in range(total.size):
            former_row[column] += total[column]
            now_row[column] = former_row[column] if settle else now_row[column] + (total[column] - own[column])
