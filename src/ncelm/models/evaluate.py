"""Perplexities that are what they say, and the scores of sentences and words. Natural logarithms throughout."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ncelm.kernels.threads import Team
from ncelm.models.base import WordModel, corpus_view
from ncelm.text.store import TokenStore

CHUNK = 1 << 20  # words evaluated in one go: memory does not grow with the text


@dataclass(frozen=True)
class Evaluation:
    """How well a model predicts a text: explicitly normalised, unknown words and sentence ends included."""

    perplexity: float
    tokens: int
    sentences: int
    unknown: int
    log_probability: float
    log_z_mean: float
    log_z_std: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Tally:
    """Adds up scores and normalisers, in float64, piece by piece."""

    def __init__(self) -> None:
        self.tokens, self.log_probability, self.z_sum, self.z_squares = 0, 0.0, 0.0, 0.0

    def add(self, scores: np.ndarray, log_z: np.ndarray) -> None:
        """Count words with these scores s(w, h) and normalisers log Z(h)."""
        self.tokens += scores.size
        self.log_probability += float(np.sum(scores - log_z, dtype=np.float64))
        self.z_sum += float(log_z.sum())
        self.z_squares += float(np.square(log_z).sum())

    def result(self, sentences: int, unknown: int) -> Evaluation:
        """The perplexity of all words counted so far."""
        mean = self.z_sum / self.tokens
        with np.errstate(over="ignore"):
            perplexity = float(np.exp(-self.log_probability / self.tokens))
        return Evaluation(
            perplexity=perplexity,
            tokens=self.tokens,
            sentences=sentences,
            unknown=unknown,
            log_probability=self.log_probability,
            log_z_mean=mean,
            log_z_std=float(np.sqrt(max(self.z_squares / self.tokens - mean * mean, 0.0))),
        )


def evaluate_split(model: WordModel, store: TokenStore, name: str, team: Team) -> Evaluation:
    """Perplexity of a model on a split of a store, exactly normalised."""
    split = store.split(name)
    corpus = corpus_view(split, store)
    tally = Tally()
    for first in range(0, split.tokens, CHUNK):
        tally.add(*model.score_positions(corpus, first, min(first + CHUNK, split.tokens), team))
    return tally.result(split.n_sentences, split.unknown)
