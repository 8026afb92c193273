"""Losses as types: from the scores of a target and its noise words to the objective and its derivatives by each score.

A loss is a NamedTuple of its hyper-parameters. To add one: its equation in ncelm.losses.reference, its type, its
implementation of `score_gradients` (noise of each example) and of `shared_target_gradient` and `shared_noise_gradients`
(noise shared by a minibatch) and its configuration in ncelm.training.config. Objectives are maximised: a loss is the
negated objective. u is the logit s(w, h) + c_h − log(k·Pn(w)) of Eq. 7.
"""

from typing import Any, NamedTuple

import numpy as np

from ncelm.kernels.compile import generic, implements, inline
from ncelm.kernels.math32 import exp32, log32
from ncelm.kernels.simd import sum_values

SAMPLE_PAD = 32  # the scores of an example are padded to a multiple of this, which leaves no remainder for scalar code
LEAST = np.float32(1e-9)  # float32 cannot distinguish 1 − P from 0 below 6e-8


class Nce(NamedTuple):
    """Noise-contrastive estimation (Eq. 13)."""


class Ranking(NamedTuple):
    """Ranking NCE (Ma & Collins 2018): softmax over the target and its noise words of s − log Pn."""


class Importance(NamedTuple):
    """Importance sampling (Eq. 5): more samples are drawn until their effective number is `min_effective`."""

    first_samples: int
    min_effective: float


class FamilyNce(NamedTuple):
    """g1 = log(q / (1 + q)), g2 = log(1 + q)."""


class FamilyImportance(NamedTuple):
    """g1 = log q, g2 = q."""


class FamilyInverse(NamedTuple):
    """g1 = −1 / q, g2 = log q."""


class FamilyRoot(NamedTuple):
    """g1'(q) = (1 + q)^(−1/2) / q."""


class FamilySquare(NamedTuple):
    """g1'(q) = (1 + q)^(−2) / q."""


class Family(NamedTuple):
    """A member of the family of Pihlaja, Gutmann & Hyvärinen (2010)."""

    member: Any


MEMBERS = {
    "nce": FamilyNce,
    "importance": FamilyImportance,
    "inverse": FamilyInverse,
    "root": FamilyRoot,
    "square": FamilySquare,
}


class LogZPenalty(NamedTuple):
    """A loss plus coefficient · (log Ẑ(h))² (Goldberger & Melamud 2018).

    log Ẑ(h) = log(mean over the noise words of exp(s) / Pn) estimates the log-normalizer.
    """

    loss: Any
    coefficient: np.float32


# -- noise words of each example ---------------------------------------------------------------------------------------


def padded(samples: int) -> int:
    """The length of the buffers for the scores of an example with this number of words."""
    return -(-samples // SAMPLE_PAD) * SAMPLE_PAD


@inline
def clear_padding(samples, scores, log_k_noise):
    """Set what lies beyond `samples` to P(D=1) ≈ 0, but not to a denormal number, which is slow to compute with."""
    scores[samples:] = np.float32(0.0)
    log_k_noise[samples:] = np.float32(80.0)


@generic
def score_gradients(loss, scores, log_k_noise, scratch, out):
    """The objective of one example; its derivatives by the scores go to out (k + 1,), target first.

    scores is s(w, h) + c_h, log_k_noise is log(k·Pn(w)); both and scratch have the length `padded(k + 1)`.
    """


@implements(score_gradients, Nce)
def _nce(loss, scores, log_k_noise, scratch, out):
    posterior = scratch
    for j in range(scores.size):
        posterior[j] = np.float32(1.0) / (np.float32(1.0) + exp32(log_k_noise[j] - scores[j]))  # P(D=1|w), Eq. 7
    # from here on: the probability of classifying a word wrongly
    posterior[0] = np.float32(1.0) - posterior[0]
    out[0] = posterior[0]
    for j in range(1, out.size):
        out[j] = -posterior[j]
    return _sum_of_log_complements(posterior)


@inline
def _sum_of_log_complements(wrong):
    """Σ log(1 − wrong) as the logarithm of a product: one logarithm for many probabilities.

    1 − P is at least 6e-8 in float32, so that four factors fit a float32, and many such products a float64.
    """
    total, product = 0.0, 1.0
    whole = wrong.size // 4 * 4
    for j in range(0, whole, 4):
        right0, right1 = np.float32(1.0) - wrong[j], np.float32(1.0) - wrong[j + 1]
        right2, right3 = np.float32(1.0) - wrong[j + 2], np.float32(1.0) - wrong[j + 3]
        product *= max(right0, LEAST) * max(right1, LEAST) * max(right2, LEAST) * max(right3, LEAST)
        if product < 1e-250:
            total += np.log(product)
            product = 1.0
    for j in range(whole, wrong.size):
        product *= max(np.float32(1.0) - wrong[j], LEAST)
    return total + np.log(product)


@inline
def _log_sum_exp(scores, log_k_noise, first, last, scratch):
    """log Σ_j exp(u_j) over first ≤ j < last; scratch[: last - first] becomes exp(u_j) divided by that sum."""
    largest = np.float32(-np.inf)
    for j in range(first, last):
        largest = max(largest, scores[j] - log_k_noise[j])
    for j in range(first, last):
        scratch[j - first] = exp32(scores[j] - log_k_noise[j] - largest)
    total = sum_values(scratch, last - first)
    for j in range(last - first):
        scratch[j] /= total
    return largest + log32(total)


@implements(score_gradients, Ranking)
def _ranking(loss, scores, log_k_noise, scratch, out):
    log_sum = _log_sum_exp(scores, log_k_noise, 0, out.size, scratch)
    out[0] = np.float32(1.0) - scratch[0]
    for j in range(1, out.size):
        out[j] = -scratch[j]
    return np.float64(scores[0] - log_k_noise[0] - log_sum)


@implements(score_gradients, LogZPenalty)
def _penalized(loss, scores, log_k_noise, scratch, out):
    objective = score_gradients(loss.loss, scores, log_k_noise, scratch, out)
    log_z = _log_sum_exp(scores, log_k_noise, 1, out.size, scratch)
    for j in range(1, out.size):
        out[j] -= np.float32(2.0) * loss.coefficient * log_z * scratch[j - 1]
    return objective - np.float64(loss.coefficient * log_z * log_z)


@generic
def contrast(member, u):
    """q g1'(q) and q² g1'(q), g1(q) and g2(q) of a member of the family, for q = exp(u)."""


@implements(contrast, FamilyNce)
def _contrast_nce(member, u):
    q = np.exp(u)
    return 1.0 / (1.0 + q), q / (1.0 + q), u - np.log1p(q), np.log1p(q)


@implements(contrast, FamilyImportance)
def _contrast_importance(member, u):
    q = np.exp(u)
    return 1.0, q, u, q


@implements(contrast, FamilyInverse)
def _contrast_inverse(member, u):
    return np.exp(-u), 1.0, -np.exp(-u), u


@implements(contrast, FamilyRoot)
def _contrast_root(member, u):
    q = np.exp(u)
    root = np.sqrt(1.0 + q)
    return 1.0 / root, q / root, u - 2.0 * np.log1p(root), 2.0 * root


@implements(contrast, FamilySquare)
def _contrast_square(member, u):
    q = np.exp(u)
    wrong = 1.0 / (1.0 + q)
    return wrong * wrong, q * wrong * wrong, u - np.log1p(q) + wrong, -wrong


@implements(score_gradients, Family)
def _family(loss, scores, log_k_noise, scratch, out):
    objective = 0.0
    for j in range(out.size):
        up, down, g1, g2 = contrast(loss.member, np.float64(scores[j]) - np.float64(log_k_noise[j]))
        out[j] = up if j == 0 else -down
        objective += g1 if j == 0 else -g2
    return objective


# What importance sampling records for a block of examples, in this order.
IMPORTANCE_FIELDS = (
    "effective_samples",  # summed over the examples
    "least_effective_samples",
    "samples",  # summed over the examples
    "largest_log_weight",
    "share",  # of that weight in the sum of its example's weights
    "word",  # that has it
    "example",  # that has it
)


@inline
def importance_gradients(scores, log_k_noise, out):
    """Importance sampling in log-space: the objective, the effective sample size, the largest log weight and its index.

    The objective is s(w, h) − log(mean of v), with weights v = exp(s) / (k Q); out (n + 1,) has its derivatives, target
    first. The effective sample size is (Σv)² / Σv².
    """
    largest, heaviest, n = -np.inf, 1, out.size - 1
    for j in range(1, n + 1):
        log_v = np.float64(scores[j] - log_k_noise[j])
        if log_v > largest:
            largest, heaviest = log_v, j
    total, squares = 0.0, 0.0
    for j in range(1, n + 1):
        v = np.exp(np.float64(scores[j] - log_k_noise[j]) - largest)
        out[j] = -v
        total += v
        squares += v * v
    out[0] = np.float32(1.0)
    for j in range(1, n + 1):
        out[j] /= np.float32(total)
    return scores[0] - (largest + np.log(total) - np.log(n)), total * total / squares, largest, heaviest


# -- noise words shared by a minibatch ---------------------------------------------------------------------------------


@inline
def shared_nce_gradients(scores, shifts, multiplicities, scratch):
    """Scores q̂ᵀ q_w of noise words become dJ/ds = −n P(D=1|w) (Eq. 13), in place; returns Σ n log(1 − P(D=1|w)).

    scores (B, K), shifts (K,) is b_w − log(k·Pn(w)), multiplicities (K,) is n. n is the same for all examples, so that
    one logarithm serves the product of four of them, which a float32 can hold.
    """
    objective, rights = 0.0, scratch[: shifts.size]
    for first in range(0, scores.shape[0], 4):
        rights[:] = np.float32(1.0)
        for e in range(first, min(first + 4, scores.shape[0])):
            row = scores[e]
            for j in range(shifts.size):
                posterior = np.float32(1.0) / (np.float32(1.0) + exp32(-row[j] - shifts[j]))  # Eq. 7
                rights[j] *= max(np.float32(1.0) - posterior, LEAST)
                row[j] = -multiplicities[j] * posterior
        total = np.float32(0.0)
        for j in range(shifts.size):
            total += multiplicities[j] * log32(rights[j])
        objective += total
    return objective


@inline
def accumulate_log_sum(scores, shifts, multiplicities, largest, total):
    """Take a block of noise words into log Σ n exp(u): `largest` so far and `total` of n exp(u − largest), (B,).

    `scores` (B, K) are q̂ᵀ q_w and become u.
    """
    for e in range(scores.shape[0]):
        row = scores[e]
        shift = largest[e]
        for j in range(shifts.size):
            row[j] += shifts[j]
            shift = max(shift, row[j])
        block_total = np.float32(0.0)
        for j in range(shifts.size):
            block_total += multiplicities[j] * exp32(row[j] - shift)
        total[e] = total[e] * np.exp(np.float64(largest[e]) - np.float64(shift)) + block_total
        largest[e] = shift


@generic
def shared_target_gradient(loss, u, log_sum):
    """dJ/ds of the target and the target's part of the objective; log_sum is log Σ n exp(u) over the noise words."""


@generic
def shared_noise_gradients(loss, row, multiplicities, u, log_sum, scratch):
    """u of noise words become dJ/ds, in place: row (K,). Returns their part of the objective. `u` is the target's."""


@implements(shared_target_gradient, Nce)
def _shared_nce_target(loss, u, log_sum):
    wrong = np.float32(1.0) / (np.float32(1.0) + exp32(u))  # P(D=0|w), Eq. 7
    return wrong, np.log(max(np.float32(1.0) - wrong, LEAST))


@implements(shared_noise_gradients, Nce)
def _shared_nce_noise(loss, row, multiplicities, u, log_sum, scratch):
    objective = np.float32(0.0)
    for j in range(row.size):
        posterior = np.float32(1.0) / (np.float32(1.0) + exp32(-row[j]))
        objective += multiplicities[j] * log32(max(np.float32(1.0) - posterior, LEAST))
        row[j] = -multiplicities[j] * posterior
    return np.float64(objective)


@inline
def _log_add_exp(a, b):
    return max(a, b) + np.log1p(np.exp(-abs(a - b)))


@implements(shared_target_gradient, Ranking)
def _shared_ranking_target(loss, u, log_sum):
    log_share = np.float64(u) - _log_add_exp(np.float64(u), log_sum)
    return np.float32(-np.expm1(log_share)), log_share


@implements(shared_noise_gradients, Ranking)
def _shared_ranking_noise(loss, row, multiplicities, u, log_sum, scratch):
    log_total = np.float32(_log_add_exp(np.float64(u), log_sum))
    for j in range(row.size):
        row[j] = -multiplicities[j] * exp32(row[j] - log_total)
    return 0.0


@implements(shared_target_gradient, LogZPenalty)
def _shared_penalized_target(loss, u, log_sum):
    gradient, objective = shared_target_gradient(loss.loss, u, log_sum)
    return gradient, objective - loss.coefficient * log_sum * log_sum


@implements(shared_noise_gradients, LogZPenalty)
def _shared_penalized_noise(loss, row, multiplicities, u, log_sum, scratch):
    log_z = np.float32(log_sum)
    for j in range(row.size):
        scratch[j] = multiplicities[j] * exp32(row[j] - log_z)
    objective = shared_noise_gradients(loss.loss, row, multiplicities, u, log_sum, scratch)
    for j in range(row.size):
        row[j] -= np.float32(2.0) * loss.coefficient * log_z * scratch[j]
    return objective
