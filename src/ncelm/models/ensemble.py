"""Ensembles for sentence completion: a weighted sum of the scores of several models.

The probability of a choice is a softmax over Σ_i λ_i s_i(choice), where s_i are the normalised and the unnormalised
scores of all models. The weights λ ≥ 0 maximize the likelihood of the answers to questions generated from held-out text
(`ncelm.models.questions`), a convex problem. Without the bound, n-gram models would get negative weights, because the
distractors of these questions are words to which an n-gram model assigns high probabilities.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ncelm.arguments import check_int
from ncelm.errors import NcelmError
from ncelm.models.base import ChoiceScores, Gap, Scorer, Table, check_words_around, checked_gaps
from ncelm.text.settings import TextSettings
from ncelm.text.vocabulary import Vocabulary

WEIGHT_DECAY = 1e-4  # L2, for standardized scores: determines the weights of components with equal scores
CANDIDATES_PER_WORD = 10  # of each component, for each word that `most_likely` returns
NO_VECTORS = "an ensemble has no word vectors: give the run of one of its components"


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Models of any kind, and their weights."""

    components: tuple[Scorer, ...]
    weights: np.ndarray  # λ, (components, 2) float64: of normalised and of unnormalised scores
    vocabulary: Vocabulary
    text: TextSettings

    def __repr__(self) -> str:
        return f"Ensemble({', '.join(map(str, self.components))})"

    @property
    def log_unknown_types(self) -> float | None:
        """The weighted sum of those of the components; None if it is None for one of them."""
        each = [component.log_unknown_types for component in self.components]
        known = [value for value in each if value is not None]
        return float(self.weights.sum(axis=1) @ known) if len(known) == len(each) else None

    def choice_scores(self, gaps: Iterable[Gap]) -> Iterator[ChoiceScores]:
        """Return the weighted sum of the components' scores of each choice."""
        scored = component_scores(self.components, list(checked_gaps(gaps)))
        sums = ((each @ self.weights.ravel()).tolist() for each in scored)
        return (ChoiceScores(scores, scores) for scores in sums)

    def most_likely(self, before: Sequence[str], after: Sequence[str], n: int = 10) -> list[tuple[str, float]]:
        """Return the n words with the highest scores, of the most likely words of each component."""
        before, after = check_words_around(before, after)
        n = check_int("n", n, 1)
        found = [each.most_likely(before, after, CANDIDATES_PER_WORD * n) for each in self.components]
        words = list(dict.fromkeys(word for each in found for word, _ in each))
        ((scores, _),) = self.choice_scores([Gap(before, [[word] for word in words], after)])
        order = sorted(range(len(words)), key=lambda i: -scores[i])[:n]
        return [(words[i], scores[i]) for i in order]

    def vectors(self, table: Table = "context") -> np.ndarray:
        """Raise `NcelmError`: an ensemble has no word vectors."""
        raise NcelmError(NO_VECTORS)

    def neighbors(self, word: str, n: int = 10, table: Table = "context") -> list[tuple[str, float]]:
        """Raise `NcelmError`: an ensemble has no word vectors."""
        raise NcelmError(NO_VECTORS)


def component_scores(components: Sequence[Scorer], gaps: list[Gap]) -> Iterator[np.ndarray]:
    """Return both scores of each component, minus their means over the choices: (choices, 2 components) per gap."""
    for each in zip(*(component.choice_scores(gaps) for component in components), strict=True):
        scores = np.concatenate(each).T
        yield scores - scores.mean(axis=0)


def learn_weights(scores: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return the weights λ ≥ 0, (n,), that maximize the likelihood of the answers.

    Shapes: scores (questions, choices, n), answers (questions,).
    """
    from scipy.optimize import minimize

    scale = np.maximum(scores.std(axis=(0, 1)), 1e-12)  # (n,)
    scaled, rows = scores / scale, np.arange(len(answers))

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean of -log P(answer), with weight decay, and its gradient."""
        totals = scaled @ weights  # (questions, choices)
        probabilities = np.exp(totals - totals.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        value = -np.log(probabilities[rows, answers]).mean() + WEIGHT_DECAY * float(weights @ weights)
        probabilities[rows, answers] -= 1.0
        return value, np.einsum("qc,qcp->p", probabilities, scaled) / len(answers) + 2 * WEIGHT_DECAY * weights

    n = scores.shape[2]
    found = minimize(loss, np.full(n, 1.0 / n), jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * n)
    weights: np.ndarray = found.x / scale
    return weights


def cross_validated_accuracy(scores: np.ndarray, answers: np.ndarray, folds: int = 5) -> float:
    """Return the accuracy in percent by cross-validation: weights for each fold are learned on the other folds."""
    fold, correct = np.arange(len(answers)) % folds, 0
    for held_out in range(folds):
        train, test = fold != held_out, fold == held_out
        weights = learn_weights(scores[train], answers[train])
        correct += int(np.count_nonzero((scores[test] @ weights).argmax(axis=1) == answers[test]))
    return 100.0 * correct / len(answers)
