"""Compiled queries of an index of an n-gram model (`ncelm.kernels.ngram_index`): scores of words and lines of text.

Text is read in blocks of 64 words. The slots of the words of a block are prefetched together, and then those of all
n-grams that end at these words, so that queries seldom wait for the memory. The index is borrowed (`simd.borrowed`),
because counting references would take longer than the queries, and temporary arrays are on the stack.
"""

from typing import NamedTuple

import numpy as np

from ncelm.kernels.compile import inline, kernel
from ncelm.kernels.ngram_index import (
    EIGHT,
    HALF,
    HEADER,
    LOW,
    MAX_ORDER,
    NO_CHILDREN,
    ZERO,
    Layout,
    extended_hash,
    key_of,
    long_key,
    slot_of,
    spelling_key,
)
from ncelm.kernels.simd import borrowed, prefetch, stack_array

WORDS = 64  # words whose slots are prefetched together
ROWS = WORDS + 1  # and the end of the line
BLANK, TAB, RETURN, NEWLINE = (ord(c) for c in " \t\r\n")
LINE_END = -1  # in place of a word's id
MEMORY = 3 * (MAX_ORDER - 1) + (3 + MAX_ORDER) * ROWS  # of a state and a block


class Index(NamedTuple):
    """An index, and views of its parts."""

    numbers: np.ndarray  # all of it, uint64
    floats: np.ndarray  # all of it, float32
    letters: np.ndarray  # uint8


class State(NamedTuple):
    """What scores depend on: the 1-, 2-, …, (N - 1)-grams that end at the last word. -1, 0, 0.0 if there is none."""

    numbers: np.ndarray  # (N - 1,) int64: the n-gram if others extend it, otherwise -1
    hashes: np.ndarray  # (N - 1,) uint64, of its words
    backoffs: np.ndarray  # (N - 1,) float64, log of the back-off weight


class Block(NamedTuple):
    """The next words of a text."""

    begins: np.ndarray  # where each word begins in the text, (ROWS,)
    ends: np.ndarray  # and ends; LINE_END at the end of a line
    ids: np.ndarray  # the ids of the words; LINE_END at the end of a line
    keys: np.ndarray  # of the spelling, (ROWS,) uint64
    starts: np.ndarray  # where the searches for the n-grams that end at each word begin, (ROWS (N - 1),)


@inline(fastmath=False)
def _find_word(index, layout, text, begin, end, key):
    """The id of the word text[begin:end] with this key; 0, that of <unk>, if there is none."""
    length, slot = end - begin, slot_of(extended_hash(key, 0), layout.name_slots)
    while True:
        place = HEADER + 2 * slot
        entry = index.numbers[place + 1]
        if entry == ZERO:
            return np.int64(0)
        if index.numbers[place] == key and np.int64(entry >> HALF) == length:
            word = np.int64(entry & LOW) - 1
            if length <= 8:
                return word
            at, same = np.int64(index.numbers[layout.bounds + word]), True
            for i in range(length):
                same &= index.letters[at + i] == text[begin + i]
            if same:
                return word
        slot = slot + 1 if slot + 1 < layout.name_slots else 0


@inline(fastmath=False)
def _open(numbers):
    """The header of an index, and views of it, which the caller's array keeps alive."""
    (numbers,) = borrowed((numbers,))
    h = numbers[:HEADER].view(np.int64)
    layout = Layout(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7], h[8], h[9], h[10])
    return layout, Index(numbers, numbers.view(np.float32), numbers[h[7] : h[8]].view(np.uint8))


@inline(fastmath=False)
def _state_in(layout, memory):
    """A state in memory (at least 3 (N - 1),) int64, which the caller keeps alive."""
    (memory,), n = borrowed((memory,)), layout.order - 1
    return State(memory[:n], memory[n : 2 * n].view(np.uint64), memory[2 * n : 3 * n].view(np.float64))


@inline(fastmath=False)
def _block_in(layout, memory):
    """A block in memory (MEMORY,) int64, after a state."""
    rest = memory[3 * (layout.order - 1) :]
    keys = rest[3 * ROWS : 4 * ROWS].view(np.uint64)
    return Block(rest[:ROWS], rest[ROWS : 2 * ROWS], rest[2 * ROWS : 3 * ROWS], keys, rest[4 * ROWS :])


@inline(fastmath=False)
def _step(index, layout, state, starts, row, word):
    """log P(word | state) and the length of the n-gram that it is from; numbers and back-offs of `state` are advanced.

    starts[row (N - 1):] are the slots at which the searches begin. The sum has the order of
    `ncelm.kernels.ngram.step`: both give the same bits.
    """
    table, orders = layout.table, layout.order - 1
    log_backoff, score, length = 0.0, 0.0, 0
    for m in range(orders - 1, -1, -1):
        number = state.numbers[m]
        longer, backoff, is_found = np.int64(-1), 0.0, False
        if number >= 0:
            key, slot = key_of(number, word, layout.words), starts[row * orders + m]
            while True:
                place = table + 2 * slot
                found = index.numbers[place]
                if found == key or found == ZERO:  # noqa: SIM109  (Numba compiles `in` to slower code)
                    break
                slot = slot + 1 if slot + 1 < layout.slots else 0
            if found == key:
                is_found = True
                if length == 0:
                    score, length = log_backoff - abs(np.float64(index.floats[2 * place + 2])), m + 2
                backoff = np.float64(index.floats[2 * place + 3])
                if index.numbers[place + 1] & NO_CHILDREN == ZERO:
                    longer = layout.words + slot
        if length == 0 and not is_found:
            log_backoff += state.backoffs[m]
        if m + 1 < orders:
            state.numbers[m + 1], state.backoffs[m + 1] = longer, backoff
    place = layout.unigrams + word
    if length == 0:
        score, length = log_backoff - abs(np.float64(index.floats[2 * place])), 1
    if orders:
        _set_unigram(index, layout, state, word)
    return score, length


@inline(fastmath=False)
def _set_unigram(index, layout, state, word):
    place = layout.unigrams + word
    state.numbers[0] = word if index.numbers[place] & NO_CHILDREN == ZERO else np.int64(-1)
    state.backoffs[0] = np.float64(index.floats[2 * place + 1])


@inline(fastmath=False)
def _reset(index, layout, state, bos):
    """Set numbers and back-offs to those before a sentence, or to those without a context."""
    for m in range(layout.order - 1):
        state.numbers[m], state.backoffs[m] = -1, 0.0
    if bos and layout.order > 1:
        _set_unigram(index, layout, state, layout.begin_id)


@inline(fastmath=False)
def _reset_hashes(layout, hashes, bos):
    """The number of words of the context before a sentence; their hashes are set."""
    if bos and layout.order > 1:
        hashes[0] = extended_hash(ZERO, layout.begin_id)
        return 1
    return 0


@inline(fastmath=False)
def _advance(layout, hashes, known, word, starts, row):
    """Write the slots at which the searches for the n-grams that end at a word begin; return the words of the context.

    hashes (N - 1,) are those of the n-grams that end at the word before; the first `known` of them are valid.
    """
    orders = layout.order - 1
    for m in range(known - 1, -1, -1):
        hash = extended_hash(hashes[m], word)
        starts[row * orders + m] = slot_of(hash, layout.slots)
        if m + 1 < orders:
            hashes[m + 1] = hash
    if orders:
        hashes[0] = extended_hash(ZERO, word)
    return min(known + 1, orders)


@inline(fastmath=False)
def _is_space(c):
    return c == BLANK or (TAB <= c <= RETURN)


@inline(fastmath=False)
def _read_block(index, layout, text, at, by_line, block):
    """Find the next words of a text, at most WORDS with the ends of lines; return their number and where to go on.

    Words are separated by white space of ASCII, as in KenLM. With `by_line`, a line break is the end of a line.
    """
    n, begin, size, key = 0, at, len(text), ZERO
    while at <= size and n < WORDS:
        c = np.uint8(BLANK) if at == size else text[at]
        if _is_space(c):
            if at > begin:
                block.begins[n], block.ends[n] = begin, at
                block.keys[n] = key if at - begin <= 8 else long_key(text, begin, at)
                prefetch(index.numbers, HEADER + 2 * slot_of(extended_hash(block.keys[n], 0), layout.name_slots))
                n += 1
            if by_line and c == NEWLINE:
                block.ends[n] = LINE_END  # there is room for one more
                n += 1
            begin, key = at + 1, ZERO
        else:
            key = (key << EIGHT) | np.uint64(c)
        at += 1
    for i in range(n):
        if block.ends[i] == LINE_END:
            block.ids[i] = LINE_END
        else:
            block.ids[i] = _find_word(index, layout, text, block.begins[i], block.ends[i], block.keys[i])
    return n, begin


@inline(fastmath=False)
def _locate(index, layout, block, n, hashes, known, bos):
    """Prefetch the slots of all n-grams of a block; return the number of words of the context after it."""
    for i in range(n):
        is_end = block.ids[i] == LINE_END
        word = layout.end_id if is_end else block.ids[i]
        before = known
        known = _advance(layout, hashes, known, word, block.starts, i)
        for m in range(before):
            prefetch(index.numbers, layout.table + 2 * block.starts[i * (layout.order - 1) + m])
        if is_end:
            known = _reset_hashes(layout, hashes, bos)
    return known


@kernel(fastmath=False)
def reset(index, bos, memory):
    """Set a state, memory (3 (N - 1),) int64, to that before a sentence (bos), or to that without a context."""
    layout, index = _open(index)
    state = _state_in(layout, memory)
    memory[:] = 0
    _reset(index, layout, state, bos)
    _reset_hashes(layout, state.hashes, bos)


@kernel(fastmath=False)
def find_word(index, text):
    """The id of a word, UTF-8; 0 if it is unknown. <s> has the id V."""
    layout, index = _open(index)
    return _find_word(index, layout, text, 0, len(text), spelling_key(text, 0, len(text)))


@kernel(fastmath=False)
def score_word(index, memory, text, new_memory):
    """log P of a word, UTF-8, after a state, the length of its n-gram, and its id. The new state is written."""
    layout, index = _open(index)
    new_memory[:] = memory
    state, orders = _state_in(layout, new_memory), layout.order - 1
    word = _find_word(index, layout, text, 0, len(text), spelling_key(text, 0, len(text)))
    starts = stack_array(MAX_ORDER)
    _advance(layout, state.hashes, orders, word, starts, 0)
    score, length = _step(index, layout, state, starts, 0, word)
    for m in range(orders):  # equal states have equal bytes
        if state.numbers[m] < 0:
            state.hashes[m] = ZERO
    return score, length, word


@kernel(fastmath=False)
def score_line(index, text, bos, eos):
    """log P of a line, UTF-8."""
    layout, index = _open(index)
    memory = stack_array(MEMORY)
    state, block = _state_in(layout, memory), _block_in(layout, memory)
    _reset(index, layout, state, bos)
    known, total, at = _reset_hashes(layout, state.hashes, bos), 0.0, 0
    while at <= len(text):
        n, at = _read_block(index, layout, text, at, False, block)
        if eos and at > len(text):
            block.ids[n] = LINE_END
            n += 1
        known = _locate(index, layout, block, n, state.hashes, known, bos)
        for i in range(n):
            word = layout.end_id if block.ids[i] == LINE_END else block.ids[i]
            total += _step(index, layout, state, block.starts, i, word)[0]
    return total


@kernel(fastmath=False)
def score_words(index, text, bos, eos, scores, lengths, unknown):
    """Write log P, the length of the n-gram, and whether it is unknown, of each word of a line; return their number.

    The arrays are (words + 1,): the end of the sentence is the last word.
    """
    layout, index = _open(index)
    memory = stack_array(MEMORY)
    state, block = _state_in(layout, memory), _block_in(layout, memory)
    _reset(index, layout, state, bos)
    known, at, count = _reset_hashes(layout, state.hashes, bos), 0, 0
    while at <= len(text):
        n, at = _read_block(index, layout, text, at, False, block)
        if eos and at > len(text):
            block.ids[n] = LINE_END
            n += 1
        known = _locate(index, layout, block, n, state.hashes, known, bos)
        for i in range(n):
            word = layout.end_id if block.ids[i] == LINE_END else block.ids[i]
            scores[count], lengths[count] = _step(index, layout, state, block.starts, i, word)
            unknown[count] = word == 0
            count += 1
    return count


@kernel(fastmath=False)
def score_lines(index, text, bos, eos, totals, words, unknown):
    """Write log P, the number of words and that of unknown words of each line; all lines end with a line break."""
    layout, index = _open(index)
    memory = stack_array(MEMORY)
    state, block = _state_in(layout, memory), _block_in(layout, memory)
    _reset(index, layout, state, bos)
    known, at = _reset_hashes(layout, state.hashes, bos), 0
    line, total, count, oov = 0, 0.0, 0, 0
    while line < totals.size:
        n, at = _read_block(index, layout, text, at, True, block)
        known = _locate(index, layout, block, n, state.hashes, known, bos)
        for i in range(n):
            word = block.ids[i]
            if word != LINE_END:
                total += _step(index, layout, state, block.starts, i, word)[0]
                count += 1
                oov += word == 0
                continue
            if eos:
                total += _step(index, layout, state, block.starts, i, layout.end_id)[0]
            totals[line], words[line], unknown[line] = total, count, oov
            line, total, count, oov = line + 1, 0.0, 0, 0
            _reset(index, layout, state, bos)
