"""Scoring: s(w, h) and log Z(h) of the words of a text.

The result of a word depends on the word and its context only, not on the other words of the call: see `panels`.
"""

from typing import TYPE_CHECKING

import numpy as np

from ncelm.kernels.barrier import take_item, wait_for_all
from ncelm.kernels.compile import inline, kernel
from ncelm.kernels.contexts import blocks
from ncelm.kernels.panels import GROUP, LANES, LOWEST, add_exponentials, multiply_panel
from ncelm.kernels.plan import fill_contexts
from ncelm.kernels.records import GAP, ScoreScratch
from ncelm.kernels.simd import add_scaled_rows, borrowed, prefetch, score_rows

if TYPE_CHECKING:
    from ncelm.kernels.records import Parameters

PHASES = 3
PANEL_BLOCK = 8  # panels in one work item of the sum over the vocabulary
TABLE_BLOCK = 21 * GROUP  # words that all panels of a work item are multiplied by while they are in the cache
WORD_BLOCK = 4 * TABLE_BLOCK  # words of the vocabulary in one work item


def score_scratch(parameters: "Parameters", threads: int, panels: int, words: int) -> ScoreScratch:
    """Buffers for `score_positions`: `panels` that are kept at a time, and `words` that log Z(h) is a sum over."""
    c, d, full = len(parameters.matrices), parameters.target_vectors.shape[1], parameters.matrices.ndim == 3
    chunks = -(-words // WORD_BLOCK)
    columns = d if full else 0
    return ScoreScratch(
        contexts=np.empty((threads, LANES, c), np.int64),
        predicted=np.empty((threads, LANES, d), np.float32),
        gathered=np.empty((threads, columns, LANES), np.float32),
        projected=np.empty((threads, columns, LANES), np.float32),
        target=np.empty((threads, GAP), np.int64),
        panels=np.empty((panels, d, LANES), np.float32),
        largest=np.empty((chunks, panels, LANES), np.float32),
        total=np.empty((chunks, panels, LANES), np.float32),
    )


@kernel
def predict(matrices, context_vectors, contexts, gathered, projected, out):
    """q̂ (Eq. 2) of each row of contexts (n, c), (n, d). gathered and projected (d, LANES) are scratch."""
    for first in range(0, contexts.shape[0], LANES):
        last = min(first + LANES, contexts.shape[0])
        predict_rows(matrices, context_vectors, contexts[first:last], gathered, projected, out[first:last])


@inline
def predict_rows(matrices, context_vectors, contexts, gathered, projected, out):
    """q̂ of up to LANES contexts (n, c). matrices (c, d, d), or (c, d) for diagonal ones: one branch is compiled."""
    if matrices.ndim == 2:
        for e in range(contexts.shape[0]):
            add_scaled_rows(matrices, context_vectors, contexts[e], out[e])
    else:
        clear_unused(gathered, contexts.shape[0])
        for i in range(contexts.shape[1]):
            for e in range(contexts.shape[0]):
                word = contexts[e, i]
                for t in range(gathered.shape[0]):
                    gathered[t, e] = context_vectors[word, t]
            multiply_panel(matrices[i], gathered, projected, i > 0)
        for e in range(contexts.shape[0]):
            for t in range(out.shape[1]):
                out[e, t] = projected[t, e]


@inline
def clear_unused(panel, used):
    """Set the lanes after the first `used` ones to 0: unknown numbers could be slow, as subnormal ones are."""
    for t in range(panel.shape[0]):
        for e in range(used, LANES):
            panel[t, e] = np.float32(0.0)


@kernel
def score_positions(thread, threads, sync, corpus, parameters, first, contexts, scores, log_z, normalizer, scratch):
    """s(w, h) and log Z(h) = log Σ_w exp s(w, h) of some words of a text, at positions first + contexts.words.

    log P(w|h) = s(w, h) − log Z(h) (Eq. 1). q̂ and log Z(h) are computed once for each context. There are three phases:
    q̂ and s(w, h) of panels of contexts; sums over blocks of the vocabulary, each for a block of panels; log Z(h). If
    log_z is None, only the first is executed, which does not need the other words of the vocabulary. If there is a
    `normalizer`, log Z(h) is estimated from it in the first phase. The words of `contexts` are indices of scores and
    log_z.
    """
    sync, corpus, parameters, contexts, scores, scratch = borrowed(
        (sync, corpus, parameters, contexts, scores, scratch)
    )
    words, offsets = contexts
    table, biases, target = parameters.target_vectors, parameters.biases, scratch.target[thread, :1]
    ids, predicted = scratch.contexts[thread], scratch.predicted[thread]
    count = offsets.size - 1
    panels = blocks(count, LANES)
    panel = take_item(sync, 0)
    while panel < panels:
        start = panel * LANES
        n = min(LANES, count - start)
        for e in range(n):
            position = first + words[offsets[start + e]]
            fill_contexts(corpus, position, ids[e])
            prefetch(table, np.int64(corpus.ids[position]))
        predict_rows(
            parameters.matrices, parameters.context_vectors, ids[:n], scratch.gathered[thread],
            scratch.projected[thread], predicted[:n],
        )  # fmt: skip
        for e in range(n):
            for i in range(offsets[start + e], offsets[start + e + 1]):
                target[0] = corpus.ids[first + words[i]]
                score_rows(predicted[e], table, target, scores[words[i] :])  # one at a time: others add up differently
                scores[words[i]] += biases[target[0]]
        keep_panel(log_z, normalizer, predicted[:n], scratch.panels, panel)
        estimate_panel(normalizer, log_z, words, offsets[start : start + n + 1], predicted[:n], scratch, thread)
        panel = take_item(sync, 0)
    sum_over_vocabulary(log_z, normalizer, threads, sync, words, offsets, table, biases, scratch)


@kernel
def log_normalizers(thread, threads, sync, predicted, parameters, contexts, log_z, scratch):
    """log Z(h) (n,) of contexts given by their q̂ (n, d). The phases are those of `score_positions`."""
    sync, predicted, parameters, contexts, log_z, scratch = borrowed(
        (sync, predicted, parameters, contexts, log_z, scratch)
    )
    panels = blocks(predicted.shape[0], LANES)
    panel = take_item(sync, 0)
    while panel < panels:
        keep_panel(log_z, None, predicted[panel * LANES : (panel + 1) * LANES], scratch.panels, panel)
        panel = take_item(sync, 0)
    table, biases = parameters.target_vectors, parameters.biases
    sum_over_vocabulary(log_z, None, threads, sync, contexts.words, contexts.offsets, table, biases, scratch)


@inline
def keep_panel(log_z, normalizer, predicted, panels, panel):
    """Write q̂ (n, d) into a panel, if there are sums over the vocabulary to be computed from it."""
    if log_z is not None and normalizer is None:
        fill_panel(predicted, panels[panel])


@inline
def fill_panel(predicted, panel):
    """panel (d, LANES) = q̂ᵀ of up to LANES contexts (n, d)."""
    clear_unused(panel, predicted.shape[0])
    for t in range(predicted.shape[1]):
        for e in range(predicted.shape[0]):
            panel[t, e] = predicted[e, t]


@inline
def estimate_panel(normalizer, log_z, words, offsets, predicted, scratch, thread):
    """log Z of the contexts of one panel, estimated by a log-sum-exp of a few scores, if there is a normalizer."""
    if normalizer is not None:
        vectors, biases = borrowed(normalizer)
        panel, largest, total = scratch.panels[thread], scratch.largest[0, thread], scratch.total[0, thread]
        fill_panel(predicted, panel)
        for e in range(LANES):
            largest[e] = np.float32(LOWEST)
            total[e] = np.float32(0.0)
        add_exponentials(vectors, biases, 0, biases.size, panel, largest, total)
        for e in range(predicted.shape[0]):
            value = log_sum(scratch.largest, scratch.total, 1, thread, e)
            for i in range(offsets[e], offsets[e + 1]):
                log_z[words[i]] = value


@inline
def sum_over_vocabulary(log_z, normalizer, threads, sync, words, offsets, table, biases, scratch):
    """log Z of each context, into the entries of log_z of its words, unless it is not needed or estimated."""
    if log_z is not None and normalizer is None:
        panels = blocks(offsets.size - 1, LANES)
        wait_for_all(sync, 0, threads)
        chunks = blocks(biases.size, WORD_BLOCK)
        item, items = take_item(sync, 1), chunks * blocks(panels, PANEL_BLOCK)
        while item < items:
            chunk, panel = item % chunks, item // chunks * PANEL_BLOCK
            begin, end = chunk * WORD_BLOCK, min((chunk + 1) * WORD_BLOCK, biases.size)
            add_block(table, biases, begin, end, scratch, chunk, panel, min(panel + PANEL_BLOCK, panels))
            item = take_item(sync, 1)
        wait_for_all(sync, 1, threads)
        panel = take_item(sync, 2)
        while panel < panels:
            for e in range(min(LANES, offsets.size - 1 - panel * LANES)):
                value = log_sum(scratch.largest, scratch.total, chunks, panel, e)
                for i in range(offsets[panel * LANES + e], offsets[panel * LANES + e + 1]):
                    log_z[words[i]] = value
            panel = take_item(sync, 2)


@inline
def add_block(table, biases, begin, end, scratch, chunk, first, last):
    """Σ exp(s) over the words begin..end - 1 for the panels first..last - 1."""
    for panel in range(first, last):
        for e in range(LANES):
            scratch.largest[chunk, panel, e] = np.float32(LOWEST)
            scratch.total[chunk, panel, e] = np.float32(0.0)
    for word in range(begin, end, TABLE_BLOCK):
        for panel in range(first, last):
            add_exponentials(
                table, biases, word, min(word + TABLE_BLOCK, end), scratch.panels[panel], scratch.largest[chunk, panel],
                scratch.total[chunk, panel],
            )  # fmt: skip


@inline(fastmath=False)
def log_sum(largest, total, chunks, panel, e):
    """log Z of one context from its sums over blocks of the vocabulary, in float64 and in their order."""
    shift = largest[0, panel, e]
    for chunk in range(1, chunks):
        shift = max(shift, largest[chunk, panel, e])
    z = 0.0
    for chunk in range(chunks):
        z += np.float64(total[chunk, panel, e]) * np.exp(np.float64(largest[chunk, panel, e]) - np.float64(shift))
    return np.float64(shift) + np.log(z)
