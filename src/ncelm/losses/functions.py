"""Losses as pure functions of scores: the loss of each example and its derivatives by every score.

The functions are unreduced and draw no samples. A loss is the negated objective of the paper; gradient descent goes
against the derivative. `ncelm.kernels.losses` has the compiled versions, `ncelm.torch.losses` those for PyTorch.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

Array = np.ndarray


def maximum_likelihood(scores: Array, targets: Array) -> tuple[Array, Array]:
    """−log P(w|h) = log Σ_w' exp(s(w', h)) − s(w, h), and its derivative P(·|h) − 1[· = w] (Eq. 4).

    scores (B, V), targets (B,) → losses (B,), derivatives (B, V).

    >>> loss, _ = maximum_likelihood(np.zeros((1, 4)), np.array([2]))
    >>> float(np.exp(loss[0]).round(6))  # four equal scores
    4.0
    """
    examples = np.arange(len(targets))
    largest = scores.max(axis=1, keepdims=True)  # (B, 1)
    log_z = largest + np.log(np.exp(scores - largest).sum(axis=1, keepdims=True))  # (B, 1)
    losses = log_z[:, 0] - scores[examples, targets]  # (B,)
    derivatives = np.exp(scores - log_z)  # (B, V)
    derivatives[examples, targets] -= 1.0
    return losses, derivatives


def nce(
    target_scores: Array,
    noise_scores: Array,
    target_log_k_noise: Array,
    noise_log_k_noise: Array,
    log_normalizers: Array | float = 0.0,
) -> tuple[Array, Array, Array]:
    """Noise-contrastive estimation (Eq. 13): classify words as data or as one of k noise words.

    The logit of the classifier is s(w, h) + c_h − log(k·Pn(w)) (Eq. 7–8), with c_h = `log_normalizers`, 0 if they are
    fixed. The loss is −log σ(logit of the target) − Σ_j log(1 − σ(logit of noise word j)). Without log k it would not
    be NCE, and without log Pn it would be word2vec's negative sampling; neither gives probabilities.

    target_scores (B,), noise_scores (B, k), and log(k·Pn) of the same words
    → losses (B,), derivatives by target_scores (B,), derivatives by noise_scores (B, k).

    >>> loss, by_target, by_noise = nce(np.zeros(1), np.zeros((1, 1)), np.zeros(1), np.zeros((1, 1)))
    >>> float(loss[0].round(4)), by_target.tolist(), by_noise.tolist()  # equal scores: 2 log 2
    (1.3863, [-0.5], [[0.5]])
    """
    shift = np.asarray(log_normalizers)
    target_logits = target_scores + shift - target_log_k_noise  # (B,)
    noise_logits = noise_scores + (shift[:, None] if shift.ndim else shift) - noise_log_k_noise  # (B, k)
    losses = np.logaddexp(0.0, -target_logits) + np.logaddexp(0.0, noise_logits).sum(axis=1)  # (B,)
    return losses, -_sigmoid(-target_logits), _sigmoid(noise_logits)


def importance_sampling(
    target_scores: Array, sample_scores: Array, sample_log_proposal: Array
) -> tuple[Array, Array, Array, Array]:
    """Importance sampling (Eq. 5): maximum likelihood with log Z(h) estimated from samples of a proposal Q.

    Weights v = exp(s) / Q are divided by their sum, so that neither needs to be normalised. The loss is
    log(mean of v) − s(w, h). Its derivative by a sample's score is v / Σ v, which a single large weight can dominate:
    the effective sample size (Σ v)² / Σ v², from 1 to k, measures it.

    target_scores (B,), sample_scores (B, k), and log Q of the samples
    → losses (B,), derivatives by target_scores (B,), by sample_scores (B, k), effective sample sizes (B,).

    >>> loss, _, by_sample, size = importance_sampling(np.zeros(1), np.log([[1.0, 3.0]]), np.log([[0.5, 0.5]]))
    >>> float(np.exp(loss[0]).round(6)), by_sample.round(2).tolist(), float(size[0].round(2))
    (4.0, [[0.25, 0.75]], 1.6)
    """
    log_v = sample_scores - sample_log_proposal  # (B, k)
    log_sum = np.logaddexp.reduce(log_v, axis=1, keepdims=True)  # (B, 1)
    shares = np.exp(log_v - log_sum)  # (B, k), v / Σ v
    losses = log_sum[:, 0] - np.log(log_v.shape[1]) - target_scores  # (B,)
    return losses, np.full_like(target_scores, -1.0), shares, 1.0 / np.square(shares).sum(axis=1)


def ranking(
    target_scores: Array, noise_scores: Array, target_log_noise: Array, noise_log_noise: Array
) -> tuple[Array, Array, Array]:
    """Ranking NCE (Ma & Collins 2018): −log softmax of the target among itself and its k noise words.

    The softmax is over s(w, h) − log Pn(w). A constant added to all scores of a context does not change the loss, so
    that the model is not self-normalised: exp(s) is known up to a factor for each context.

    target_scores (B,), noise_scores (B, k), and log Pn of the same words
    → losses (B,), derivatives by target_scores (B,), derivatives by noise_scores (B, k).

    >>> loss, by_target, by_noise = ranking(np.zeros(1), np.zeros((1, 3)), np.zeros(1), np.zeros((1, 3)))
    >>> float(np.exp(loss[0]).round(6)), by_target.tolist(), by_noise.tolist()  # one of four, equally likely
    (4.0, [-0.75], [[0.25, 0.25, 0.25]])
    """
    logits = np.concatenate([(target_scores - target_log_noise)[:, None], noise_scores - noise_log_noise], axis=1)
    losses, derivatives = maximum_likelihood(logits, np.zeros(len(logits), np.int64))  # (B,), (B, k + 1)
    return losses, derivatives[:, 0], derivatives[:, 1:]


def log_z_penalty(noise_scores: Array, noise_log_noise: Array) -> tuple[Array, Array]:
    """The squared log-normalizer (log Ẑ(h))² (Goldberger & Melamud 2018), estimated from the noise sample.

    log Ẑ(h) = log(mean over the noise words of exp(s(w, h)) / Pn(w)). Added to a loss, it makes Z(h) close to 1.

    noise_scores (B, k), and log Pn of the same words → penalties (B,), derivatives by noise_scores (B, k).

    >>> penalty, by_noise = log_z_penalty(np.log([[1.0, 3.0]]), np.log([[0.5, 0.5]]))
    >>> float(penalty[0].round(4)), by_noise.round(4).tolist()  # Ẑ = 4
    (1.9218, [[0.6931, 2.0794]])
    """
    logits = noise_scores - noise_log_noise  # (B, k)
    log_sum = np.logaddexp.reduce(logits, axis=1, keepdims=True)  # (B, 1)
    log_z = log_sum[:, 0] - np.log(logits.shape[1])  # (B,)
    return np.square(log_z), 2.0 * log_z[:, None] * np.exp(logits - log_sum)


Member = Literal["nce", "importance", "inverse", "root", "square"]


class Contrast(NamedTuple):
    """A member of the family of Pihlaja, Gutmann & Hyvärinen (2010), as functions of u = log q, q = Pθ / (k·Pn).

    J = g1(q of the target) − Σ_j g2(q of noise word j). If g2'(q) = q g1'(q), J is largest at the data distribution.
    Then dJ/ds is up(q) = q g1'(q) for the target and −q·up(q) for a noise word.
    """

    g1: Callable[[Array], Array]
    g2: Callable[[Array], Array]
    up: Callable[[Array], Array]


FAMILY: dict[Member, Contrast] = {
    # g1 = log(q / (1 + q)), g2 = log(1 + q): the logistic classifier
    "nce": Contrast(lambda u: -np.logaddexp(0.0, -u), lambda u: np.logaddexp(0.0, u), lambda u: _sigmoid(-u)),
    # g1 = log q, g2 = q: the likelihood, with the normalizer estimated from the noise words
    "importance": Contrast(lambda u: u, np.exp, np.ones_like),
    # g1 = −1 / q, g2 = log q: reciprocal importance weights
    "inverse": Contrast(lambda u: -np.exp(-u), lambda u: u, lambda u: np.exp(-u)),
    # up = (1 + q)^(−1/2): between importance sampling and NCE
    "root": Contrast(
        lambda u: u - 2.0 * np.log1p(np.sqrt(1.0 + np.exp(u))),
        lambda u: 2.0 * np.sqrt(1.0 + np.exp(u)),
        lambda u: 1.0 / np.sqrt(1.0 + np.exp(u)),
    ),
    # up = (1 + q)^(−2): smaller gradients than NCE
    "square": Contrast(
        lambda u: _sigmoid(-u) - np.logaddexp(0.0, -u), lambda u: -_sigmoid(-u), lambda u: np.square(_sigmoid(-u))
    ),
}


def contrastive(target_log_ratios: Array, noise_log_ratios: Array, contrast: Contrast) -> tuple[Array, Array, Array]:
    """The loss of any member of the family, from log ratios s(w, h) + c_h − log(k·Pn(w)).

    With FAMILY["nce"] this is `nce`. With FAMILY["importance"] and c_h = −log(mean of exp(s) / Pn), where dJ/dc_h is 0,
    the derivatives are those of `importance_sampling`.

    target_log_ratios (B,), noise_log_ratios (B, k)
    → losses (B,), derivatives by target_log_ratios (B,), derivatives by noise_log_ratios (B, k).
    """
    losses = contrast.g2(noise_log_ratios).sum(axis=1) - contrast.g1(target_log_ratios)  # (B,)
    return losses, -contrast.up(target_log_ratios), np.exp(noise_log_ratios) * contrast.up(noise_log_ratios)


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(−x)), for any x."""
    return np.exp(-np.logaddexp(0.0, -x))
