"""The index of an n-gram model: its layout, its hash functions, and compiled loops that build it.

It has a hash table of words and one of n-grams. Logarithms are to base 10.

An index is one array of 64-bit numbers, because passing an array to a kernel takes as long as scoring a word. Its
parts, whose offsets are in its header (`Layout`):

- names: slots of a hash table of the words, two numbers each: the key of a word, and 1 + its id with its length in the
  upper half; 0, 0 if the slot is empty. The key of a word of at most eight bytes is the word itself. The key of a
  longer one is a hash, and its letters are compared.
- bounds, letters: the words, concatenated in the order of their ids, and where each begins.
- unigrams: the value of each word.
- table: slots of the n-grams above order 1, two numbers each: key and value; the key is 0 if the slot is empty.

An n-gram has a number: a word has its id, a longer n-gram V + 1 + its slot. Its key is the number of its history times
V + 1, plus its last word, plus 1: different n-grams have different keys. The search for it begins at a slot that
depends on its words only, so that the slots of the next words can be prefetched. Its value has two float32, log P
(lower half) and log of the back-off weight (upper half). The sign bit of the former is set if no n-gram extends this
one.
"""

from typing import NamedTuple

import numpy as np

from ncelm.kernels.compile import inline, kernel
from ncelm.kernels.simd import prefetch

HEADER = 16  # numbers before the first part
MAX_ORDER = 10
AHEAD = 16  # n-grams between the prefetch of a slot and the insertion into it
NO_CHILDREN = np.uint64(1 << 31)
LOW = np.uint64(0xFFFFFFFF)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
_PRIME, _BASIS = np.uint64(1099511628211), np.uint64(14695981039346656037)  # of FNV-1a
ZERO, ONE, EIGHT, HALF = (np.uint64(i) for i in (0, 1, 8, 32))


class Layout(NamedTuple):
    """The header of an index: sizes, and offsets of the parts, in 64-bit numbers."""

    order: int  # N
    words: int  # V + 1: the words of the vocabulary and <s>
    name_slots: int  # of the table of words
    slots: int  # of the table of n-grams; both are below 2^32
    begin_id: int  # the word before the first one of a sentence
    end_id: int
    bounds: int  # offset
    letters: int  # offset
    unigrams: int  # offset
    table: int  # offset
    size: int  # of the whole index


# -- hash tables -------------------------------------------------------------------------------------------------------


@inline(fastmath=False)
def slot_of(hash, slots):
    """The slot at which a search begins: the lower half of the hash, scaled to the number of slots."""
    return np.int64(((hash & LOW) * np.uint64(slots)) >> HALF)


@inline(fastmath=False)
def extended_hash(hash, word):
    """The hash of an n-gram with the hash of its history, 0 for a word by itself."""
    mixed = (hash + np.uint64(word) + ONE) * _MULTIPLIER
    return mixed ^ (mixed >> HALF)


@inline(fastmath=False)
def key_of(number, word, words):
    """The key of an n-gram: of the number of its history, and its last word; `words` is V + 1."""
    return np.uint64(number) * np.uint64(words) + np.uint64(word) + ONE


@inline(fastmath=False)
def long_key(text, begin, end):
    """The key of a word of more than eight bytes."""
    key = _BASIS
    for i in range(begin, end):
        key = (key ^ np.uint64(text[i])) * _PRIME
    return key


@inline(fastmath=False)
def spelling_key(text, begin, end):
    """The key of the word text[begin:end]."""
    if end - begin > 8:
        return long_key(text, begin, end)
    key = ZERO
    for i in range(begin, end):
        key = (key << EIGHT) | np.uint64(text[i])
    return key


# -- building ----------------------------------------------------------------------------------------------------------


@kernel(fastmath=False)
def insert_words(index, layout):
    """Fill the hash table of words, which is empty, from bounds and letters."""
    letters = index[layout.letters : layout.unigrams].view(np.uint8)
    for word in range(layout.words):
        begin, end = np.int64(index[layout.bounds + word]), np.int64(index[layout.bounds + word + 1])
        key = spelling_key(letters, begin, end)
        slot = slot_of(extended_hash(key, 0), layout.name_slots)
        while index[HEADER + 2 * slot + 1] != ZERO:
            slot = slot + 1 if slot + 1 < layout.name_slots else 0
        index[HEADER + 2 * slot] = key
        index[HEADER + 2 * slot + 1] = np.uint64(end - begin) << HALF | np.uint64(word + 1)


@inline(fastmath=False)
def _value(trie, place, bits):
    """The value of the n-gram at a place of the trie; `bits` are the log-probabilities and back-offs as integers."""
    logs, backoffs = bits
    has_backoff = place < trie.log_backoffs.size
    value = np.uint64(logs[place]) & ~NO_CHILDREN
    if not has_backoff or trie.children[place] == trie.children[place + 1]:
        value |= NO_CHILDREN
    if has_backoff:
        value |= np.uint64(backoffs[place]) << HALF
    return value


@kernel(fastmath=False)
def insert_unigrams(index, layout, trie, bits, numbers, hashes):
    """Fill the values of all words; numbers and hashes are those of `insert_ngrams`."""
    for word in range(layout.words):
        index[layout.unigrams + word] = _value(trie, word, bits)
        if word < hashes.size:
            numbers[word], hashes[word] = word, extended_hash(ZERO, word)


@kernel(fastmath=False)
def insert_ngrams(index, layout, trie, bits, numbers, hashes, parent, first, last):
    """Insert the n-grams at places first..last - 1 of a trie, all of one order; return the history of the last one.

    `parent` is the place of the history of the first, or one before it. numbers and hashes, both (H,) uint64, are those
    of the n-grams below the highest order.
    """
    table = index[layout.table :]
    ahead, parents = first, np.empty(AHEAD, np.int64)
    for place in range(first, last):
        while ahead < min(place + AHEAD, last):
            while trie.children[parent + 1] <= ahead:
                parent += 1
            parents[ahead % AHEAD] = parent
            prefetch(table, 2 * slot_of(extended_hash(hashes[parent], trie.words[ahead]), layout.slots))
            ahead += 1
        history, word = parents[place % AHEAD], trie.words[place]
        hash = extended_hash(hashes[history], word)
        slot = slot_of(hash, layout.slots)
        while table[2 * slot] != ZERO:
            slot = slot + 1 if slot + 1 < layout.slots else 0
        table[2 * slot] = key_of(numbers[history], word, layout.words)
        table[2 * slot + 1] = _value(trie, place, bits)
        if place < numbers.size:
            numbers[place], hashes[place] = layout.words + slot, hash
    return parent
