"""Compiled loops of n-gram models: validation, smoothing and queries. Logarithms are to base 10."""

from typing import NamedTuple

import numpy as np

from ncelm.kernels.compile import inline, kernel

BLOCK = 4096  # words in one work item


class Trie(NamedTuple):
    """The arrays of an n-gram model: see ncelm.models.ngram.query.NGramModel."""

    order: int
    words: np.ndarray
    children: np.ndarray
    log_probabilities: np.ndarray
    log_backoffs: np.ndarray


@kernel(fastmath=False)
def are_children_sound(trie, first, last):
    """Whether the children of the n-grams first..last - 1 are adjacent, inside the arrays, and sorted."""
    children, words, total = trie.children, trie.words, trie.words.size
    for i in range(first, last):
        begin, end = children[i], children[i + 1]
        if begin < 0 or begin > end or end > total:  # before they are used as indices
            return False
    unsorted = 0
    for i in range(first, last):
        for place in range(children[i] + 1, children[i + 1]):
            unsorted += words[place] <= words[place - 1]
    return unsorted == 0


@kernel(fastmath=False)
def are_numbers_sound(trie, unigrams, first, last):
    """Whether words and numbers of the n-grams first..last - 1 are in range. Counts are sums of vectors."""
    words, logs, backoffs = trie.words[first:last], trie.log_probabilities[first:last], trie.log_backoffs[first:last]
    limit, invalid = np.int32(unigrams), np.int32(0)
    for i in range(words.size):
        invalid += np.int32(words[i] < np.int32(0)) | np.int32(words[i] >= limit)
    low, high, zero = np.float32(-1e4), np.float32(1e4), np.float32(0.0)
    for i in range(logs.size):  # comparisons with NaN are false
        invalid += np.int32(1) - (np.int32(logs[i] > low) & np.int32(logs[i] <= zero))
    for i in range(backoffs.size):
        invalid += np.int32(1) - (np.int32(backoffs[i] > low) & np.int32(backoffs[i] < high))
    for i in range(first, min(last, unigrams)):
        invalid += np.int32(trie.words[i] != i)
    return invalid == 0


@kernel(fastmath=False)
def smooth(counts, kept, bounds, suffixes, discounts, lower, probabilities, log_probabilities, log_backoffs):
    """Interpolated Kneser–Ney of one order: P(w|h) = (c(hw) - D(c(hw))) / Σ c(h·) + γ(h) P(w|h'), h' one word shorter.

    γ(h) is what the discounts D took, as a share of Σ c(h·); of n-grams that are not `kept` they take everything. The
    n-grams hw of history h lie between bounds[h] and bounds[h + 1]; suffixes say where h'w is in `lower`, the
    probabilities of the order below.
    """
    for history in range(bounds.size - 1):
        first, last = bounds[history], bounds[history + 1]
        total, taken = 0.0, 0.0
        for i in range(first, last):
            total += counts[i]
            taken += discounts[min(counts[i], 3)] if kept[i] else counts[i]
        # a history without continuations leaves all probability to the shorter history
        gamma = taken / total if total > 0.0 else 1.0
        log_backoffs[history] = np.log10(gamma)
        for i in range(first, last):
            own = (counts[i] - discounts[min(counts[i], 3)]) / total if kept[i] else 0.0
            probabilities[i] = own + gamma * lower[suffixes[i]]
            log_probabilities[i] = np.log10(probabilities[i])


@inline(fastmath=False)
def child(trie, place, word):
    """The position of the n-gram at `place` extended by a word, or -1."""
    low, count = trie.children[place], trie.children[place + 1] - trie.children[place]
    if count == 0:
        return -1
    # bisection without branches: a mispredicted branch costs more than an unnecessary read
    while count > 1:
        half = count >> 1
        low += half * (trie.words[low + half] <= word)
        count -= half
    return low if trie.words[low] == word else -1


@inline(fastmath=False)
def step(trie, state, word):
    """log P(word | state); `state` is advanced by the word.

    state[m] is where the (m + 1)-gram that ends at the last word is, or -1; (N - 1,).
    """
    log_backoff, score, known = 0.0, 0.0, False
    for m in range(state.size - 1, -1, -1):
        place = state[m]
        if place >= 0:
            longer = child(trie, place, word)
            if longer >= 0 and not known:
                score, known = trie.log_probabilities[longer] + log_backoff, True
            elif not known:
                log_backoff += trie.log_backoffs[place]
        else:
            longer = -1
        if m + 1 < state.size:
            state[m + 1] = longer
    if not known:
        score = trie.log_probabilities[word] + log_backoff
    if state.size:
        state[0] = word  # the position of a 1-gram is its id
    return score


@kernel(fastmath=False)
def fill_links(trie, links, largest):
    """For each n-gram below the highest order: where its longest known proper suffix is, and its likeliest child.

    links (H,) int64, -1 for 1-grams; largest (H,) float32, log P, -inf without children. n-grams come after their
    histories, so that the links of shorter ones are known.
    """
    links[: trie.children[0]] = -1
    for place in range(links.size):
        largest[place] = -np.inf
        for longer in range(trie.children[place], trie.children[place + 1]):
            largest[place] = max(largest[place], trie.log_probabilities[longer])
            if longer < links.size:
                suffix, found = links[place], -1
                while suffix >= 0 and found < 0:
                    found = child(trie, suffix, trie.words[longer])
                    suffix = links[suffix]
                links[longer] = found if found >= 0 else trie.words[longer]


@kernel(fastmath=False)
def find_excess(trie, links, largest, by_probability, limit):
    """An n-gram after which a word that backs off has log P > limit, and that word; -1, -1 if there is none.

    Only a back-off weight above 1 can make a probability larger than it is after a shorter history. by_probability
    (V + 1,) are the words from the most to the least likely one.
    """
    for place in range(links.size):
        log_backoff, suffix = trie.log_backoffs[place], links[place]
        if log_backoff <= 0.0:
            continue
        while suffix >= 0:
            if largest[suffix] + log_backoff > limit:
                for longer in range(trie.children[suffix], trie.children[suffix + 1]):
                    above = trie.log_probabilities[longer] + log_backoff > limit
                    if above and not _is_covered(trie, links, place, suffix, trie.words[longer]):
                        return place, np.int64(trie.words[longer])
            log_backoff += trie.log_backoffs[suffix]
            suffix = links[suffix]
        for word in by_probability:
            if trie.log_probabilities[word] + log_backoff <= limit:
                break
            if not _is_covered(trie, links, place, -1, word):
                return place, np.int64(word)
    return np.int64(-1), np.int64(-1)


@inline(fastmath=False)
def _is_covered(trie, links, place, end, word):
    """Whether the n-gram at `place`, or a suffix of it that is longer than that at `end`, is extended by a word."""
    while place != end:
        if child(trie, place, word) >= 0:
            return True
        place = links[place]
    return False


@kernel(fastmath=False)
def score_positions(thread, threads, sync, trie, ids, within_sentence, end_id, begin_id, first, last, out):
    """log P of the words at positions first..last - 1, by all threads, a block of words at a time."""
    state = np.empty(trie.order - 1, np.int64)
    block = first + thread * BLOCK
    while block < last:
        # the state depends on the last N − 1 words before the block
        start = max(block - (trie.order - 1), 0)
        fresh(ids, start, within_sentence, end_id, begin_id, state)
        for position in range(start, min(block + BLOCK, last)):
            if position > start and within_sentence and ids[position - 1] == end_id:
                begin(state, begin_id)
            score = step(trie, state, np.int64(ids[position]))
            if position >= block:
                out[position - first] = score
        block += threads * BLOCK


@inline(fastmath=False)
def begin(state, begin_id):
    """The state at the start of a sentence."""
    state[:] = -1
    if state.size:
        state[0] = begin_id


@inline(fastmath=False)
def fresh(ids, position, within_sentence, end_id, begin_id, state):
    """Set the state to that before `position`, without the words before it."""
    state[:] = -1
    if position == 0 or (within_sentence and ids[position - 1] == end_id):
        begin(state, begin_id)


@kernel(fastmath=False)
def distribution(trie, history, out):
    """log P of every word after a history."""
    state, trial = np.empty(trie.order - 1, np.int64), np.empty(trie.order - 1, np.int64)
    state[:] = -1
    for i in range(history.size):
        step(trie, state, history[i])
    for word in range(out.size):
        trial[:] = state
        out[word] = step(trie, trial, word)
