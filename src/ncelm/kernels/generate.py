"""Generation: the scores of all words of the vocabulary for many contexts, and random draws from them.

As in `score`, every context has a vector lane of its own, and all sums are in a fixed order: the word that is drawn
depends neither on the other contexts of the call nor on the number of threads.
"""

import numpy as np

from ncelm.kernels.barrier import take_item, wait_for_all
from ncelm.kernels.compile import inline, kernel
from ncelm.kernels.contexts import blocks
from ncelm.kernels.math32 import exp32
from ncelm.kernels.panels import LANES, LOWEST, multiply_panel
from ncelm.kernels.records import VocabularyScores
from ncelm.kernels.score import PANEL_BLOCK, TABLE_BLOCK, WORD_BLOCK
from ncelm.kernels.simd import borrowed

SCORE_PHASES = 1
DRAW_PHASES = 2


def vocabulary_scores(predicted: np.ndarray, vocabulary_size: int) -> VocabularyScores:
    """Buffers for the scores of all words, given q̂ of each context, (n, d)."""
    n, d = predicted.shape
    panels, chunks = -(-n // LANES), -(-vocabulary_size // WORD_BLOCK)
    lanes = np.zeros((panels * LANES, d), np.float32)  # unused lanes are 0
    lanes[:n] = predicted
    return VocabularyScores(
        panels=np.ascontiguousarray(lanes.reshape(panels, LANES, d).transpose(0, 2, 1)),
        scores=np.empty((panels, vocabulary_size, LANES), np.float32),
        largest=np.empty((chunks, panels, LANES), np.float32),
        total=np.empty((chunks, panels, LANES), np.float32),
        weight=np.empty((chunks, panels, LANES), np.float32),
    )


@kernel
def score_vocabulary(thread, threads, sync, table, biases, buffers):
    """s(w, h) = q̂ᵀ q_w + b_w (Eq. 3) of every word, into buffers.scores."""
    table, biases, buffers, sync = borrowed((table, biases, buffers, sync))
    items = blocks(biases.size, WORD_BLOCK) * blocks(buffers.panels.shape[0], PANEL_BLOCK)
    item = take_item(sync, 0)
    while item < items:
        score_block(table, biases, buffers, item)
        item = take_item(sync, 0)


@inline
def score_block(table, biases, buffers, item):
    """The scores of a block of words for a block of panels. Returns its number, and the first and last panel."""
    panels, chunks = buffers.panels.shape[0], blocks(biases.size, WORD_BLOCK)
    chunk, first = item % chunks, item // chunks * PANEL_BLOCK
    last = min(first + PANEL_BLOCK, panels)
    end = min((chunk + 1) * WORD_BLOCK, biases.size)
    for word in range(chunk * WORD_BLOCK, end, TABLE_BLOCK):  # the rows stay in the cache for all panels
        stop = min(word + TABLE_BLOCK, end)
        for panel in range(first, last):
            scores = buffers.scores[panel]
            multiply_panel(table[word:stop], buffers.panels[panel], scores[word:stop], False)
            for w in range(word, stop):
                for e in range(LANES):
                    scores[w, e] += biases[w]
    return chunk, first, last


@kernel
def draw_words(
    thread, threads, sync, table, biases, allowed, inverse_temperature, uniforms, buffers, words, log_probabilities
):
    """Draw a word for each context with a probability proportional to allowed(w) P(w|h)^(1 / temperature).

    uniforms (n,) are random numbers in [0, 1). words (n,) are the results, log_probabilities (n,) their log P(w|h) in
    the model itself, without temperature and with all words. allowed (V,) is 0 or 1. There are two phases: scores and
    their sums over blocks of the vocabulary; draws.
    """
    table, biases, allowed, uniforms, buffers, words, log_probabilities, sync = borrowed(
        (table, biases, allowed, uniforms, buffers, words, log_probabilities, sync)
    )
    chunks = blocks(biases.size, WORD_BLOCK)
    items = chunks * blocks(buffers.panels.shape[0], PANEL_BLOCK)
    item = take_item(sync, 0)
    while item < items:
        chunk, first, last = score_block(table, biases, buffers, item)
        begin, end = chunk * WORD_BLOCK, min((chunk + 1) * WORD_BLOCK, biases.size)
        for panel in range(first, last):
            add_up(
                buffers.scores[panel], begin, end, allowed, inverse_temperature, buffers.largest[chunk, panel],
                buffers.total[chunk, panel], buffers.weight[chunk, panel],
            )  # fmt: skip
        item = take_item(sync, 0)
    wait_for_all(sync, 0, threads)
    e = take_item(sync, 1)
    while e < uniforms.size:
        draw_one(e, chunks, allowed, inverse_temperature, uniforms, buffers, words, log_probabilities)
        e = take_item(sync, 1)


@inline
def add_up(scores, begin, end, allowed, inverse_temperature, largest, total, weight):
    """Σ exp(s − m) and Σ allowed exp((s − m) / temperature) over the words begin..end - 1; m is their largest score."""
    for e in range(LANES):
        largest[e] = np.float32(LOWEST)
        total[e] = np.float32(0.0)
        weight[e] = np.float32(0.0)
    for w in range(begin, end):
        for e in range(LANES):
            largest[e] = max(largest[e], scores[w, e])
    for w in range(begin, end):
        for e in range(LANES):
            difference = scores[w, e] - largest[e]
            total[e] += exp32(difference)
            weight[e] += allowed[w] * exp32(difference * inverse_temperature)


@inline(fastmath=False)
def draw_one(e, chunks, allowed, inverse_temperature, uniforms, buffers, words, log_probabilities):
    """Draw the word of one context: first a block of words, then a word of it."""
    panel, lane = e // LANES, e % LANES
    largest, scores = buffers.largest[:, panel, lane], buffers.scores[panel, :, lane]
    shift = np.float64(largest[0])
    for chunk in range(1, chunks):
        shift = max(shift, np.float64(largest[chunk]))
    z, all_weights = 0.0, 0.0
    for chunk in range(chunks):
        difference = np.float64(largest[chunk]) - shift
        z += np.float64(buffers.total[chunk, panel, lane]) * np.exp(difference)
        all_weights += np.float64(buffers.weight[chunk, panel, lane]) * np.exp(difference * inverse_temperature)
    left, chosen = uniforms[e] * all_weights, -1
    for chunk in range(chunks):
        scale = np.exp((np.float64(largest[chunk]) - shift) * inverse_temperature)
        weight = np.float64(buffers.weight[chunk, panel, lane]) * scale
        if left < weight or chunk == chunks - 1:
            for w in range(chunk * WORD_BLOCK, min((chunk + 1) * WORD_BLOCK, allowed.size)):
                if allowed[w] > 0.0 and left >= 0.0:
                    difference = (scores[w] - largest[chunk]) * inverse_temperature
                    chosen = w  # the last one, if rounding leaves some weight
                    left -= np.float64(exp32(difference)) * scale
            if chosen >= 0:
                break
        else:
            left -= weight
    words[e] = chosen
    log_probabilities[e] = np.float64(scores[max(chosen, 0)]) - shift - np.log(z)
