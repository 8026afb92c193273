"""Scoring: s(w, h) and log Z(h) of the words of a text."""

from typing import TYPE_CHECKING

import numpy as np

from ncelm.kernels.barrier import take_item
from ncelm.kernels.compile import inline, kernel
from ncelm.kernels.math32 import copy, dot
from ncelm.kernels.plan import fill_contexts
from ncelm.kernels.products import VOCABULARY_BLOCK, exponentiate
from ncelm.kernels.records import ScoreScratch
from ncelm.kernels.simd import add_scaled_rows, borrowed

if TYPE_CHECKING:
    from ncelm.kernels.records import Parameters

SCORE_BLOCK = 250  # words in one work item


def score_scratch(parameters: "Parameters", threads: int, normalised: bool) -> ScoreScratch:
    """Buffers for `score_positions`."""
    c, d, full = len(parameters.matrices), parameters.target_vectors.shape[1], parameters.matrices.ndim == 3
    rows = SCORE_BLOCK if full else 0
    return ScoreScratch(
        contexts=np.empty((threads, SCORE_BLOCK, c), np.int64),
        predicted=np.empty((threads, SCORE_BLOCK, d), np.float32),
        gathered=np.empty((threads, rows, d), np.float32),
        projected=np.empty((threads, rows, d), np.float32),
        block=np.empty((threads, SCORE_BLOCK * VOCABULARY_BLOCK if normalised else 0), np.float32),
        largest=np.empty((threads, SCORE_BLOCK), np.float32),
        total=np.empty((threads, SCORE_BLOCK), np.float64),
    )


@kernel
def predict(matrices, context_vectors, contexts, gathered, projected, out):
    """q̂ (Eq. 2) of each row of contexts (n, c), (n, d). gathered and projected (n, d) are scratch."""
    predict_rows(matrices, context_vectors, contexts, gathered, projected, out)


@inline
def predict_rows(matrices, context_vectors, contexts, gathered, projected, out):
    """q̂ of each row of contexts (n, c). matrices (c, d, d), or (c, d) for diagonal ones: one branch is compiled."""
    if matrices.ndim == 2:
        for e in range(contexts.shape[0]):
            add_scaled_rows(matrices, context_vectors, contexts[e], out[e])
    else:
        out[:] = np.float32(0.0)
        for i in range(contexts.shape[1]):
            for e in range(contexts.shape[0]):
                copy(context_vectors[contexts[e, i]], gathered[e])
            np.dot(gathered, matrices[i].T, projected)
            for e in range(contexts.shape[0]):
                for t in range(out.shape[1]):
                    out[e, t] += projected[e, t]


@kernel
def score_positions(thread, threads, sync, corpus, parameters, first, last, scores, log_z, scratch):
    """s(w, h) and log Z(h) = log Σ_w exp s(w, h) of the words at positions first..last - 1 of a text.

    log P(w|h) = s(w, h) − log Z(h) (Eq. 1). A thread holds at most SCORE_BLOCK × VOCABULARY_BLOCK scores. If log_z is
    None, only s(w, h) is computed, which does not need the other words of the vocabulary.
    """
    sync, corpus, parameters, scores, scratch = borrowed((sync, corpus, parameters, scores, scratch))
    table, biases = parameters.target_vectors, parameters.biases
    contexts, predicted = scratch.contexts[thread], scratch.predicted[thread]
    gathered, projected = scratch.gathered[thread], scratch.projected[thread]
    item = take_item(sync, 0)
    while first + item * SCORE_BLOCK < last:
        start = first + item * SCORE_BLOCK
        n = min(SCORE_BLOCK, last - start)
        for e in range(n):
            fill_contexts(corpus, start + e, contexts[e])
        predict_rows(
            parameters.matrices, parameters.context_vectors, contexts[:n], gathered[:n], projected[:n], predicted[:n]
        )
        for e in range(n):
            target = corpus.ids[start + e]
            scores[start - first + e] = dot(predicted[e], table[target]) + biases[target]
        log_normalizers(
            log_z, start - first, predicted[:n], table, biases, scratch.block[thread], scratch.largest[thread, :n],
            scratch.total[thread, :n],
        )  # fmt: skip
        item = take_item(sync, 0)


@inline
def log_normalizers(log_z, begin, predicted, table, biases, buffer, largest, total):
    """log Z of each row of predicted (n, d), into log_z[begin : begin + n]. The last three arguments are scratch."""
    if log_z is not None:
        n, vocabulary = predicted.shape[0], biases.size
        largest[:] = -np.inf
        total[:] = 0.0
        for v0 in range(0, vocabulary, VOCABULARY_BLOCK):
            v1 = min(v0 + VOCABULARY_BLOCK, vocabulary)
            block = buffer[: n * (v1 - v0)].reshape(n, v1 - v0)
            np.dot(predicted, table[v0:v1].T, block)
            exponentiate(block, biases[v0:v1], largest, total)
        for e in range(n):
            log_z[begin + e] = np.float64(largest[e]) + np.log(total[e])
