"""Matrix products over blocks of words, by BLAS: the same words for every example."""

import numpy as np

from ncelm.kernels.compile import inline
from ncelm.kernels.math32 import exp32
from ncelm.kernels.simd import sum_values

VOCABULARY_BLOCK = 1000  # words in one matrix product over the vocabulary


@inline
def add_product(score_gradients, rows, part, out):
    """dJ/dq̂ += dJ/ds q_w over a block of words: score_gradients (n, words), rows (words, d), part (n, d) is scratch."""
    np.dot(score_gradients, rows, part)
    for e in range(part.shape[0]):
        for t in range(part.shape[1]):
            out[e, t] += part[e, t]


@inline
def word_gradients(score_gradients, predicted, gradients, bias_gradients):
    """dJ/dq_w and dJ/db_w of a block of words, summed over the minibatch: score_gradients (B, words)."""
    np.dot(score_gradients.T, predicted, gradients)
    bias_gradients[:] = np.float32(0.0)
    for e in range(score_gradients.shape[0]):
        for j in range(score_gradients.shape[1]):
            bias_gradients[j] += score_gradients[e, j]


@inline
def exponentiate(scores, biases, largest, total):
    """Take a block of words into log Σ exp(s): `largest` so far and `total` of exp(s − largest), for each row.

    `scores` are q̂ᵀ q_w, without the bias, and become exp(s − largest).
    """
    for e in range(scores.shape[0]):
        shift = largest[e]
        for j in range(scores.shape[1]):
            scores[e, j] += biases[j]  # Eq. 3
            shift = max(shift, scores[e, j])
        for j in range(scores.shape[1]):
            scores[e, j] = exp32(scores[e, j] - shift)
        block_total = sum_values(scores[e], scores.shape[1])
        total[e] = total[e] * np.exp(np.float64(largest[e]) - np.float64(shift)) + block_total
        largest[e] = shift
