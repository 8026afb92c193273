"""Linear interpolation of word models: P(w|h) = Σ_i λ_i P_i(w|h), the weights λ learned by EM on held-out text."""

from dataclasses import dataclass

import numpy as np

from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.models.base import Sides, WordModel


@dataclass(frozen=True, eq=False)
class Mixture:
    """Several models of one vocabulary, each with its weight."""

    models: tuple[WordModel, ...]
    weights: np.ndarray  # λ, (models,) float64, sums to 1

    @property
    def sides(self) -> Sides:
        """What its parts see, all together."""
        seen = {model.sides for model in self.models}
        return seen.pop() if len(seen) == 1 else "both"

    def score_positions(
        self, corpus: records.Corpus, first: int, last: int, team: Team, normalised: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """log P(w|h) of the words at positions first..last; the normaliser of a mixture of distributions is 1."""
        logs = log_probabilities(self.models, corpus, first, last, team, normalised)  # (models, n)
        with np.errstate(divide="ignore"):
            return np.logaddexp.reduce(logs + np.log(self.weights)[:, None], axis=0), np.zeros(last - first)

    def distribution(self, before: np.ndarray, after: np.ndarray, pad_id: int) -> np.ndarray:
        """log P of every word, (V,), between these words of a sentence."""
        logs = np.stack([model.distribution(before, after, pad_id) for model in self.models])  # (models, V)
        with np.errstate(divide="ignore"):
            return np.logaddexp.reduce(logs + np.log(self.weights)[:, None], axis=0)


def log_probabilities(
    models: tuple[WordModel, ...],
    corpus: records.Corpus,
    first: int,
    last: int,
    team: Team,
    normalised: bool = True,
) -> np.ndarray:
    """log P_i(w|h) of each model, (models, last - first)."""
    return np.stack([np.subtract(*model.score_positions(corpus, first, last, team, normalised)) for model in models])


def learn_weights(logs: np.ndarray, tolerance: float = 1e-7, most: int = 1000) -> np.ndarray:
    """The λ that make a text likeliest, from log P_i of its words, (models, n), by expectation maximisation.

    Each round a word is shared out among the models by how likely each makes it; a model's weight is its share of all
    words. The likelihood has one maximum, and never falls on the way to it.

    >>> learn_weights(np.log([[0.9, 0.9, 0.1], [0.1, 0.1, 0.9]])).round(3).tolist()
    [0.708, 0.292]
    """
    weights = np.full(len(logs), 1.0 / len(logs))
    for _ in range(most):
        joint = logs + np.log(weights)[:, None]
        shares = np.exp(joint - np.logaddexp.reduce(joint, axis=0))  # (models, n)
        before, weights = weights, np.maximum(shares.mean(axis=1), 1e-300)
        if np.abs(weights - before).max() < tolerance:
            break
    return weights / weights.sum()
