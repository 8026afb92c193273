"""Drawing noise words, and log(k·Pn) of words."""

import numpy as np

from ncelm.kernels.compile import generic, implements, inline, kernel
from ncelm.kernels.math32 import copy
from ncelm.kernels.random import draw, stream_key
from ncelm.kernels.records import BigramNoiseTable, NoiseTable


@kernel(fastmath=False)  # another order of the sums would give another table
def fill_alias_table(height, alias):
    """Vose's alias method: fill alias (V,), and replace heights (V,) by the share that each word keeps of its column.

    Heights are V·Pn(w): a column is full at height 1.
    """
    short, tall = np.empty(height.size, np.int64), np.empty(height.size, np.int64)  # stacks
    shorts, talls = 0, 0
    for word in range(height.size):
        alias[word] = word
        if height[word] < 1.0:
            short[shorts] = word
            shorts += 1
        else:
            tall[talls] = word
            talls += 1
    while shorts > 0 and talls > 0:
        shorts -= 1
        low, high = short[shorts], tall[talls - 1]
        alias[low] = high
        height[high] -= 1.0 - height[low]
        if height[high] < 1.0:
            talls -= 1
            short[shorts] = high
            shorts += 1
    # the remaining columns are full, except for rounding errors
    for i in range(shorts):
        height[short[i]] = 1.0
    for i in range(talls):
        height[tall[i]] = 1.0


@inline
def draw_word(bits, columns):
    """One word from an alias table, by 64 random bits: the upper half selects a column, the lower half a side.

    A column holds its word's threshold in the lower half and the other word in the upper half: one memory access for
    both, and no branch, which would be unpredictable.
    """
    half = np.uint64(0xFFFFFFFF)
    column = np.int64(((bits >> np.uint64(32)) * np.uint64(columns.size)) >> np.uint64(32))
    both = columns[column]
    return column if (bits & half) < (both & half) else np.int64(both >> np.uint64(32))


@kernel
def draw_words(seed, step, columns, out):
    """Fill out (B, k) with noise words, one random stream for each row."""
    for e in range(out.shape[0]):
        key = stream_key(seed, step, e)
        for j in range(out.shape[1]):
            out[e, j] = draw_word(draw(key, j), columns)


@inline
def draw_follower(bits, more_bits, before, noise):
    """One word of bigram noise after the word `before`, by 2 × 64 random bits."""
    first = noise.offsets[before]
    count = noise.offsets[before + 1] - first
    place = np.float64(bits >> np.uint64(11)) * 2.0**-53 * (count + noise.smoothing)  # uniform in [0, n(v) + α)
    if place < count:
        return np.int64(noise.followers[first + np.int64(place)])
    return draw_word(more_bits, noise.unigram.columns)


@inline
def log_k_follower(before, word, noise):
    """log(k·Pn(word | before)) of bigram noise: n(before, word) is found by bisection among the sorted followers."""
    first, last = noise.offsets[before], noise.offsets[before + 1]
    followers = noise.followers[first:last]
    count = np.searchsorted(followers, word, side="right") - np.searchsorted(followers, word, side="left")
    unigram = noise.unigram
    from_unigram = noise.smoothing * np.exp(np.float64(unigram.log_k_probability[word]) - unigram.log_k)  # α Pu(w)
    return np.log(count + from_unigram) - np.log(last - first + noise.smoothing) + unigram.log_k


@generic
def draw_example(noise, key, before, words, log_k_noise):
    """Draw the noise words of one example into words[1:], and log(k·Pn) of all words where it depends on the context.

    `before` is the word before the target; `log_k_noise` (k + 1,) is used by bigram noise only.
    """


@implements(draw_example, NoiseTable)
def _draw_unigram(noise, key, before, words, log_k_noise):
    for j in range(1, words.size):
        words[j] = draw_word(draw(key, j - 1), noise.columns)


@implements(draw_example, BigramNoiseTable)
def _draw_bigram(noise, key, before, words, log_k_noise):
    for j in range(1, words.size):
        words[j] = draw_follower(draw(key, 2 * j - 2), draw(key, 2 * j - 1), before, noise)
    for j in range(words.size):
        log_k_noise[j] = log_k_follower(before, words[j], noise)


@generic
def table_of(noise):
    """The unigram table of a noise distribution."""


@implements(table_of, NoiseTable)
def _unigram_itself(noise):
    return noise


@implements(table_of, BigramNoiseTable)
def _unigram_of_bigram(noise):
    return noise.unigram


@generic
def replace_log_k_noise(noise, planned, log_k_noise):
    """Where log(k·Pn) depends on the context, copy the planned values to log_k_noise[: planned.size]."""


@implements(replace_log_k_noise, NoiseTable)
def _keep_log_k_noise(noise, planned, log_k_noise):
    pass


@implements(replace_log_k_noise, BigramNoiseTable)
def _replace_log_k_noise(noise, planned, log_k_noise):
    copy(planned, log_k_noise[: planned.size])
