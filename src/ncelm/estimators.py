"""What to push up and what to push down: scores in, loss and its derivative by each score out.

Pure, unreduced functions of arrays: they draw no samples and change no parameters. A loss is the negated
objective of the paper, one number for each example; to train is to go against the derivative. The shape of the code
follows the equations; `kernels` has the compiled twins.
"""

import numpy as np

Array = np.ndarray


def maximum_likelihood(scores: Array, targets: Array) -> tuple[Array, Array]:
    """−log P(w|h) = log Σ_w' exp(s(w', h)) − s(w, h), and its derivative P(·|h) − 1[· = w] (Eq. 4).

    scores (B, V), targets (B,) → losses (B,), derivatives (B, V).

    >>> loss, _ = maximum_likelihood(np.zeros((1, 4)), np.array([2]))
    >>> float(np.exp(loss[0]).round(6))  # four words, all alike
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
    log_normalisers: Array | float = 0.0,
) -> tuple[Array, Array, Array]:
    """Noise-contrastive estimation (Eq. 13): is this word data, or one of the k noise words beside it?

    The classifier's logit is s(w, h) + c_h − log(k·Pn(w)) (Eq. 7–8), with c_h = `log_normalisers`, 0 for constants
    fixed to 1. The loss is −log σ(logit of the target) − Σ_j log(1 − σ(logit of noise word j)). Without log k it
    would not be NCE, and without log Pn it would be word2vec's negative sampling; neither gives probabilities.

    target_scores (B,), noise_scores (B, k), and log(k·Pn) of the same words
    → losses (B,), derivatives by target_scores (B,), derivatives by noise_scores (B, k).

    >>> loss, by_target, by_noise = nce(np.zeros(1), np.zeros((1, 1)), np.zeros(1), np.zeros((1, 1)))
    >>> float(loss[0].round(4)), by_target.tolist(), by_noise.tolist()  # a coin toss: 2 log 2
    (1.3863, [-0.5], [[0.5]])
    """
    shift = np.asarray(log_normalisers)
    target_logits = target_scores + shift - target_log_k_noise  # (B,)
    noise_logits = noise_scores + (shift[:, None] if shift.ndim else shift) - noise_log_k_noise  # (B, k)
    losses = np.logaddexp(0.0, -target_logits) + np.logaddexp(0.0, noise_logits).sum(axis=1)  # (B,)
    return losses, -_sigmoid(-target_logits), _sigmoid(noise_logits)


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(−x)), for any x."""
    return np.exp(-np.logaddexp(0.0, -x))
