"""The index of an n-gram model: log-probabilities of lines of text, from two hash tables in one array.

An index is derived from a validated model, kept in memory only, and gives the same bits as the model. A word is looked
up by its spelling, an n-gram by its history and its last word, each mostly in one cache line; a bisection of the sorted
arrays of the model needs several. The index takes about 32 bytes per n-gram. `ncelm.kenlm` uses it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ncelm.errors import ArgumentError, NcelmError
from ncelm.kernels import records
from ncelm.models.ngram.query import VALIDATED, NGramModel
from ncelm.text.vocabulary import Vocabulary

SLOTS_PER_NGRAM = 2  # of the hash table: most searches, also for n-grams that do not exist, end in one cache line
CHARACTERS_PER_CALL = 1 << 22  # a call takes less than half a second, so that Ctrl-C is answered; bounds the memory


class LineScores(NamedTuple):
    """The scores of lines of text, each array (lines,)."""

    log10: np.ndarray  # log10 P(line), float64
    words: np.ndarray  # number of words, without the end of the sentence, int64
    unknown: np.ndarray  # number of words that are not in the vocabulary, int64


def build_index(model: NGramModel, vocabulary: Vocabulary, begin_id: int) -> np.ndarray:
    """Return the index of a model; `begin_id` is the id of the word before a sentence: V, that of <s>, or of </s>.

    The layout is that of `ncelm.kernels.ngram_index`.
    """
    from ncelm.kernels import ngram_index as kernels

    spelled = [word.encode() for word in (*vocabulary.words, "<s>")]
    words, letters = len(spelled), b"".join(spelled)
    above = sum(model.counts[1:])  # n-grams above order 1
    slots, name_slots = above * SLOTS_PER_NGRAM + 1, 2 * words
    # numbers of slots, keys, and the memory of queries
    if slots >= 2**32 or (slots + words) * words >= 2**63 or model.order > kernels.MAX_ORDER:
        raise NcelmError(f"{model} is too large for an index: use ncelm.load, which needs none")
    bounds_at = kernels.HEADER + 2 * name_slots
    letters_at = bounds_at + words + 1
    unigrams_at = letters_at + len(letters) // 8 + 1
    table_at = unigrams_at + words
    table_at += table_at % 2  # slots of 16 bytes do not cross cache lines
    layout = kernels.Layout(
        model.order, words, name_slots, slots, begin_id, vocabulary.end_id,
        bounds_at, letters_at, unigrams_at, table_at, table_at + 2 * slots,
    )  # fmt: skip
    try:
        index = np.zeros(layout.size, np.uint64)
        numbers, hashes = np.empty((2, model.children.size - 1), np.uint64)  # of the n-grams below the highest order
    except MemoryError:
        raise NcelmError(
            f"the index of {above:,} n-grams needs {layout.size * 8 / 1e9:.1f} GB of memory: use a smaller model"
        ) from None
    index[: len(layout)] = layout
    index[bounds_at:letters_at] = np.cumsum([0, *map(len, spelled)])
    index[letters_at:unigrams_at].view(np.uint8)[: len(letters)] = np.frombuffer(letters, np.uint8)
    kernels.insert_words(index, layout)
    trie = model.view()
    bits = tuple(records.read_only(array.view(np.uint32)) for array in (trie.log_probabilities, trie.log_backoffs))
    kernels.insert_unigrams(index, layout, trie, bits, numbers, hashes)
    for n in range(1, model.order):
        parent, first = sum(model.counts[: n - 1]), sum(model.counts[:n])
        end = first + model.counts[n]
        while first < end:  # in portions, between which Ctrl-C is answered
            last = min(first + VALIDATED, end)
            parent = kernels.insert_ngrams(index, layout, trie, bits, numbers, hashes, parent, first, last)
            first = last
    return records.read_only(index)


def score_lines(index: np.ndarray, lines: Sequence[str], bos: bool = True, eos: bool = True) -> LineScores:
    """Return the scores of lines of text, whose words are separated by white space of ASCII."""
    from ncelm.kernels import ngram_queries as kernels

    result = LineScores(np.empty(len(lines)), np.empty(len(lines), np.int64), np.empty(len(lines), np.int64))
    ends = np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)))  # characters up to the end of each line
    first = last = 0
    while last < len(lines):
        first, before = last, int(ends[last - 1]) if last else 0
        last = max(int(np.searchsorted(ends, before + CHARACTERS_PER_CALL, "right")), first + 1)
        part = lines[first:last]
        text = "\n".join([*part, ""])
        if text.count("\n") != len(part):  # a line break within a line is white space
            text = "\n".join([*(line.replace("\n", " ") for line in part), ""])
        arrays = (array[first:last] for array in result)
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            raise ArgumentError("a line cannot be encoded as UTF-8: remove what is not a character") from None
        kernels.score_lines(index, encoded, bos, eos, *arrays)
    return result


def compile_queries(index: np.ndarray) -> None:
    """Compile, or load from the cache, all queries of an index, those of `ncelm.kenlm` included."""
    from ncelm.kernels import ngram_queries as kernels

    state = np.empty(3 * (int(index[0]) - 1), np.int64)  # the first number of the header is the order
    score_lines(index, ["a"])
    kernels.reset(index, True, state)
    kernels.score_word(index, state, b"a", state)
    kernels.find_word(index, b"a")
    kernels.score_line(index, b"a", True, True)
    kernels.score_words(index, b"a", True, True, np.empty(2), np.empty(2, np.int64), np.empty(2, np.bool_))
