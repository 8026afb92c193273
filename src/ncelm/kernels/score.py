"""Scoring: s(w, h) and log Z(h) of the words of a text."""

import numpy as np

from ncelm.kernels.barrier import take_item
from ncelm.kernels.compile import inline, kernel
from ncelm.kernels.math32 import dot
from ncelm.kernels.plan import fill_contexts
from ncelm.kernels.products import VOCABULARY_BLOCK, exponentiate
from ncelm.kernels.simd import add_scaled_rows, borrowed

SCORE_BLOCK = 250  # examples in one work item


@kernel
def predict(matrices, context_vectors, contexts, out):
    """q̂ (Eq. 2) of each row of contexts (n, c), (n, d)."""
    predict_rows(matrices, context_vectors, contexts, out)


@inline
def predict_rows(matrices, context_vectors, contexts, out):
    """q̂ of each row of contexts (n, c). matrices (c, d, d), or (c, d) for diagonal ones: a branch is compiled away."""
    if matrices.ndim == 2:
        for e in range(contexts.shape[0]):
            add_scaled_rows(matrices, context_vectors, contexts[e], out[e])
    else:
        out[:] = np.float32(0.0)
        gathered, projected = np.empty_like(out), np.empty_like(out)
        for i in range(contexts.shape[1]):
            for e in range(contexts.shape[0]):
                gathered[e] = context_vectors[contexts[e, i]]
            np.dot(gathered, matrices[i].T, projected)
            for e in range(contexts.shape[0]):
                for t in range(out.shape[1]):
                    out[e, t] += projected[e, t]


@kernel
def score_positions(thread, threads, sync, corpus, parameters, first, last, scores, log_z):
    """s(w, h) and log Z(h) = log Σ_w exp s(w, h) of the words at positions first..last of a text.

    log P(w|h) = s(w, h) − log Z(h) (Eq. 1). At most SCORE_BLOCK × VOCABULARY_BLOCK scores are in memory. If log_z is
    None, only s(w, h) is computed, which does not need the other words of the vocabulary.
    """
    sync, corpus, parameters, scores = borrowed((sync, corpus, parameters, scores))
    table, biases, d = parameters.target_vectors, parameters.biases, parameters.target_vectors.shape[1]
    contexts = np.empty((SCORE_BLOCK, parameters.matrices.shape[0]), np.int64)
    predicted = np.empty((SCORE_BLOCK, d), np.float32)
    item = take_item(sync, 0)
    while first + item * SCORE_BLOCK < last:
        start = first + item * SCORE_BLOCK
        n = min(SCORE_BLOCK, last - start)
        for e in range(n):
            fill_contexts(corpus, start + e, contexts[e])
        predict_rows(parameters.matrices, parameters.context_vectors, contexts[:n], predicted[:n])
        for e in range(n):
            target = corpus.ids[start + e]
            scores[start - first + e] = dot(predicted[e], table[target]) + biases[target]
        log_normalizers(log_z, start - first, predicted[:n], table, biases)
        item = take_item(sync, 0)


@inline
def log_normalizers(log_z, begin, predicted, table, biases):
    """log Z of each row of predicted (n, d), into log_z[begin : begin + n]."""
    if log_z is not None:
        n, vocabulary = predicted.shape[0], biases.size
        buffer = np.empty(n * VOCABULARY_BLOCK, np.float32)
        largest, total = np.full(n, -np.inf, np.float32), np.zeros(n, np.float64)
        for v0 in range(0, vocabulary, VOCABULARY_BLOCK):
            v1 = min(v0 + VOCABULARY_BLOCK, vocabulary)
            block = buffer[: n * (v1 - v0)].reshape(n, v1 - v0)
            np.dot(predicted, table[v0:v1].T, block)
            exponentiate(block, biases[v0:v1], largest, total)
        for e in range(n):
            log_z[begin + e] = np.float64(largest[e]) + np.log(total[e])
