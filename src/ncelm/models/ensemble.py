"""Several models choose a word together: a weighted sum of what they say, the weights learned on questions of our own.

The questions are made from held-out text as those of the challenge were (Zweig & Burges 2011): a rare word of a
sentence is the answer; of other rare words that an n-gram model might have put in its place, those that make its
likeliest sentences are the distractors. P(choice) is a softmax over Σ_i λ_i s_i(choice), where s_i are the models'
scores, normalised and not, and the λ ≥ 0 that make the answers likeliest are found by convex optimisation. (Below zero
they would learn of our questions, whose distractors an n-gram model likes, not to believe n-gram models.)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from ncelm.errors import NcelmError
from ncelm.models.base import Blank, Scorer
from ncelm.text.settings import TextSettings
from ncelm.text.vocabulary import Vocabulary

PENALTY = 1e-4  # λ² of standardised scores: keeps parts that say the same from pulling against each other


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Models of any kind, each with its weights."""

    parts: tuple[Scorer, ...]
    weights: np.ndarray  # λ, (parts, 2) float64: of normalised scores, and of those that are not
    vocabulary: Vocabulary
    text: TextSettings

    def choice_scores(self, blanks: Iterable[Blank]) -> Iterator[tuple[list[float], list[float]]]:
        """The weighted sum of what the parts say of each choice. There is nothing left to normalise."""
        for said in scores_of_parts(self.parts, list(blanks)):
            scores = (said @ self.weights.ravel()).tolist()
            yield scores, scores

    def likeliest(self, before: list[str], after: list[str], n: int = 10) -> list[tuple[str, float]]:
        """Of what each part would have said, the n best by all of them."""
        words = list(dict.fromkeys(word for part in self.parts for word, _ in part.likeliest(before, after, 10 * n)))
        ((scores, _),) = self.choice_scores([Blank(before, [[word] for word in words], after)])
        order = sorted(range(len(words)), key=lambda i: -scores[i])[:n]
        return [(words[i], scores[i]) for i in order]

    def vectors(self, table: str = "context") -> np.ndarray:
        """There are none."""
        raise NcelmError("this model has no word vectors of its own: ask one of its parts")

    def neighbors(self, word: str, n: int = 10, table: str = "context") -> list[tuple[str, float]]:
        """There are none."""
        raise NcelmError("this model has no word vectors of its own: ask one of its parts")


def scores_of_parts(parts: Sequence[Scorer], blanks: list[Blank]) -> Iterator[np.ndarray]:
    """For each blank (choices, 2 parts): both scores of each part, less their means over the choices."""
    for answers in zip(*(part.choice_scores(blanks) for part in parts), strict=True):
        said = np.concatenate(answers).T
        yield said - said.mean(axis=0)


def learn_weights(scores: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """λ ≥ 0, (n,), that make the right answers likeliest: scores (questions, choices, n), answers (questions,)."""
    scale = np.maximum(scores.std(axis=(0, 1)), 1e-12)
    scaled, rows = scores / scale, np.arange(len(answers))

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        """−log P(answer), mean over the questions, and its gradient."""
        totals = scaled @ weights  # (questions, choices)
        shares = np.exp(totals - totals.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        value = -np.log(shares[rows, answers]).mean() + PENALTY * float(weights @ weights)
        shares[rows, answers] -= 1.0
        return value, np.einsum("qc,qcp->p", shares, scaled) / len(answers) + 2 * PENALTY * weights

    n = scores.shape[2]
    found = minimize(loss, np.full(n, 1.0 / n), jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * n)
    return found.x / scale


def cross_validated(scores: np.ndarray, answers: np.ndarray, folds: int = 5) -> float:
    """Percent right when the weights for each fifth of the questions are learned on the others."""
    fold, right = np.arange(len(answers)) % folds, 0
    for this in range(folds):
        weights = learn_weights(scores[fold != this], answers[fold != this])
        right += int(np.count_nonzero((scores[fold == this] @ weights).argmax(axis=1) == answers[fold == this]))
    return 100.0 * right / len(answers)
