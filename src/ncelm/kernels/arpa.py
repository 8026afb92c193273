"""Compiled loops that write and read the lines of ARPA files."""

from typing import NamedTuple

import numpy as np

from ncelm.kernels.compile import inline, kernel

TAB, NEWLINE, RETURN, BLANK, MINUS, POINT, ZERO, NINE, LETTER_E = (ord(c) for c in "\t\n\r -.09e")
LONGEST_NUMBER = 24  # bytes
_POWERS = 10.0 ** np.arange(23)  # those that are exact in float64


class Spelling(NamedTuple):
    """The words of a vocabulary as bytes, with a hash table."""

    letters: np.ndarray  # all words, concatenated, uint8
    bounds: np.ndarray  # the offset of each word, and the end of the last, (words + 1,) int64
    slots: np.ndarray  # open addressing: the number of a word or -1, int32; the length is a power of two


# -- writing -----------------------------------------------------------------------------------------------------------


@kernel(fastmath=False)
def write_ngrams(words, log_probabilities, log_backoffs, letters, bounds, out):
    """Write a line for each n-gram, words (G, n), into `out`; return the number of bytes. log_backoffs may be empty."""
    at = 0
    for i in range(words.shape[0]):
        at = _write_number(log_probabilities[i], out, at)
        for m in range(words.shape[1]):
            out[at] = BLANK if m else TAB
            at += 1
            for j in range(bounds[words[i, m]], bounds[words[i, m] + 1]):
                out[at] = letters[j]
                at += 1
        if log_backoffs.size:
            out[at] = TAB
            at = _write_number(log_backoffs[i], out, at + 1)
        out[at] = NEWLINE
        at += 1
    return at


@inline(fastmath=False)
def _write_number(value, out, at):
    """Write a float32 with the fewest digits, at least six, that identify it."""
    if value == 0.0:
        out[at] = ZERO
        return at + 1
    if value < 0.0:
        out[at] = MINUS
        at += 1
    size = np.float64(abs(value))
    exponent = int(np.floor(np.log10(size)))
    digits = np.int64(0)
    for n in range(6, 10):  # nine are always enough
        digits = np.int64(np.rint(size * 10.0 ** (n - 1 - exponent)))
        decimals = n - 1 - exponent
        if np.float32(digits / 10.0**decimals) == abs(value):
            break
    power = 0  # the exponent, written for small numbers only
    if exponent < -6:
        power = exponent
        decimals += exponent
    while digits % 10 == 0 and decimals > 0:
        digits //= 10
        decimals -= 1
    at = _write_fixed(digits, decimals, out, at)
    if power:
        out[at], out[at + 1] = LETTER_E, MINUS
        at = _write_fixed(np.int64(-power), 0, out, at + 2)
    return at


@inline(fastmath=False)
def _write_fixed(digits, decimals, out, at):
    """Write digits / 10^decimals, with at least one digit before the point."""
    length, rest = 0, digits
    while rest > 0 or length <= decimals:
        rest //= 10
        length += 1
    for j in range(length):  # from the last digit to the first
        place = at + length - 1 - j + (1 if decimals and j < decimals else 0)
        out[place] = ZERO + digits % 10
        digits //= 10
    if decimals:
        out[at + length - decimals] = POINT
        length += 1
    return at + length


# -- reading -----------------------------------------------------------------------------------------------------------


@kernel(fastmath=False)
def fill_slots(letters, bounds, slots):
    """Fill the hash table of a Spelling, whose slots are all -1."""
    for word in range(bounds.size - 1):
        slot = _hash(letters, bounds[word], bounds[word + 1]) & (slots.size - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (slots.size - 1)
        slots[slot] = word


@inline(fastmath=False)
def _hash(letters, first, last):
    """FNV-1a, its high bits folded into the low ones."""
    h = np.uint64(14695981039346656037)
    for i in range(first, last):
        h = (h ^ np.uint64(letters[i])) * np.uint64(1099511628211)
    return np.int64((h ^ (h >> np.uint64(29))) & np.uint64(0x7FFFFFFFFFFFFFFF))


@inline(fastmath=False)
def _find(spelling, block, first, last):
    """The number of the word block[first:last], or -1."""
    slot = _hash(block, first, last) & (spelling.slots.size - 1)
    while True:
        word = spelling.slots[slot]
        if word < 0:
            return -1
        begin = spelling.bounds[word]
        if spelling.bounds[word + 1] - begin == last - first:
            same = True
            for i in range(last - first):
                if spelling.letters[begin + i] != block[first + i]:
                    same = False
                    break
            if same:
                return word
        slot = (slot + 1) & (spelling.slots.size - 1)


@kernel(fastmath=False)
def read_ngrams(block, at, spelling, words, log_probabilities, log_backoffs):
    """Read lines of n-grams from block[at:] into arrays, until they are full or a line is not of the regular form.

    Returns the offset of that line and the number of n-grams that were read. The caller parses the line: it may be the
    end of the section, a number with an exponent, an error, or an incomplete line.
    """
    order = words.shape[1]
    for row in range(words.shape[0]):
        i, value, ok = _read_number(block, at)
        if not ok or value > 0.0 or value < -1e3:
            return at, row
        log_probabilities[row] = value
        for m in range(order):
            begin = _skip_blanks(block, i)
            i = begin
            while i < block.size and block[i] > BLANK:
                i += 1
            word = _find(spelling, block, begin, i)
            if begin == i or word < 0:
                return at, row
            words[row, m] = word
        i = _skip_blanks(block, i)
        log_backoffs[row] = np.nan
        if i < block.size and block[i] > BLANK:
            i, value, ok = _read_number(block, i)
            if not ok or abs(value) > 1e3:
                return at, row
            log_backoffs[row] = value
            i = _skip_blanks(block, i)
        if i < block.size and block[i] == RETURN:
            i += 1
        if i >= block.size or block[i] != NEWLINE:
            return at, row
        at = i + 1
    return at, words.shape[0]


@inline(fastmath=False)
def _skip_blanks(block, at):
    while at < block.size and (block[at] == BLANK or block[at] == TAB):
        at += 1
    return at


@inline(fastmath=False)
def _read_number(block, at):
    """The end and the value of a decimal number that is followed by white space, and whether it is one."""
    negative = at < block.size and block[at] == MINUS
    if negative:
        at += 1
    digits, decimals, length, point = np.int64(0), 0, 0, False
    while at < block.size and block[at] > BLANK:
        c = block[at]
        if c == POINT and not point:
            point = True
        elif ZERO <= c <= NINE and length < 15:  # fifteen digits are exact in float64
            digits = digits * 10 + (c - ZERO)
            length += 1
            decimals += 1 if point else 0
        else:
            return at, 0.0, False
        at += 1
    value = digits / _POWERS[decimals]
    return at, -value if negative else value, length > 0 and at < block.size
