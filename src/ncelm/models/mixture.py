"""Linear interpolation of word models: P(w|h) = Σ_i λ_i P_i(w|h), with weights λ estimated by EM on held-out text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.models.base import Mode, Sides, WordModel
from ncelm.models.generation import next_distributions


@dataclass(frozen=True, eq=False)
class Mixture:
    """Several models of one vocabulary, and their weights."""

    components: tuple[WordModel, ...]
    weights: np.ndarray  # λ, (components,) float64, sums to 1

    def __repr__(self) -> str:
        each = (f"{weight:.3f} {component}" for weight, component in zip(self.weights, self.components, strict=True))
        return f"Mixture({' + '.join(each)})"

    @property
    def sides(self) -> Sides:
        """The sides on which the contexts of all components are."""
        sides = {component.sides for component in self.components}
        return sides.pop() if len(sides) == 1 else "both"

    def score_positions(
        self, corpus: records.Corpus, first: int, last: int, team: Team, mode: Mode = "exact"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log P(w|h) of the words at positions first..last - 1, and log-normalizers, which are 0."""
        logs = log_probabilities(self.components, corpus, first, last, team, mode)  # (components, n)
        return interpolate(logs, self.weights), np.zeros(last - first)

    def distribution(self, before: np.ndarray, after: np.ndarray, pad_id: int) -> np.ndarray:
        """Return log P(w|h) of every word, (V,), for a gap between the words `before` and `after`."""
        logs = np.stack([each.distribution(before, after, pad_id) for each in self.components])  # (components, V)
        return interpolate(logs, self.weights)

    def next_distributions(self, sentences: Sequence[np.ndarray], pad_id: int, team: Team) -> Iterator[np.ndarray]:
        """Yield log P(w|h) of every word, (V,), after each sentence."""
        of_each = (next_distributions(component, sentences, pad_id, team) for component in self.components)
        for logs in zip(*of_each, strict=True):
            yield interpolate(np.stack(logs), self.weights)


def log_probabilities(
    components: tuple[WordModel, ...],
    corpus: records.Corpus,
    first: int,
    last: int,
    team: Team,
    mode: Mode = "exact",
) -> np.ndarray:
    """Return log P_i(w|h) of each model, (components, last - first)."""
    return np.stack([np.subtract(*each.score_positions(corpus, first, last, team, mode)) for each in components])


def perplexity(logs: np.ndarray) -> float:
    """Return the perplexity of words with these log-probabilities, (n,)."""
    with np.errstate(over="ignore"):
        return float(np.exp(-np.mean(logs, dtype=np.float64)))


def interpolate(logs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return log Σ_i λ_i P_i of log P_i: (components, n) → (n,)."""
    with np.errstate(divide="ignore"):  # a weight may be 0
        mixed: np.ndarray = np.logaddexp.reduce(logs + np.log(weights)[:, None], axis=0)
    return mixed


def learn_weights(logs: np.ndarray, tolerance: float = 1e-7, max_iterations: int = 1000) -> np.ndarray:
    """Return the weights λ that maximize the likelihood of a text, by expectation maximization.

    `logs` are log P_i of its words, (components, n). The likelihood is concave in λ and increases in every iteration.

    >>> learn_weights(np.log([[0.9, 0.9, 0.1], [0.1, 0.1, 0.9]])).round(3).tolist()
    [0.708, 0.292]
    """
    weights: np.ndarray = np.full(len(logs), 1.0 / len(logs))
    for _ in range(max_iterations):
        joint = logs + np.log(weights)[:, None]
        responsibilities = np.exp(joint - np.logaddexp.reduce(joint, axis=0))  # (components, n), E step
        previous, weights = weights, np.maximum(responsibilities.mean(axis=1), 1e-300)  # M step
        if np.abs(weights - previous).max() < tolerance:
            break
    normalized: np.ndarray = weights / weights.sum()
    return normalized
