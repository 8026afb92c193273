"""Perplexity of word models. Logarithms are natural."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ncelm.kernels.threads import Team
from ncelm.models.base import WordModel, corpus_view
from ncelm.text.settings import TextSize
from ncelm.text.store import TokenStore

CHUNK = 1 << 20  # words evaluated in one call; bounds the memory
LN_2 = float(np.log(2.0))
BLOCK = 50  # words in a row; a sample consists of many blocks that are evenly spaced, because topics change


@dataclass(frozen=True)
class Evaluation:
    """The perplexity of a model on a text: explicitly normalised, `<unk>` and `</s>` included."""

    perplexity: float
    tokens: int
    sentences: int
    unknown: int  # tokens that are <unk>
    log_probability: float  # sum over all tokens
    log_z_mean: float  # of the log-normalizers log Z(h)
    log_z_std: float
    words: int | None = None  # of the text, separated by white space; None if they were not counted
    bytes: int | None = None  # of the text in UTF-8, with one blank or line end after each word

    @property
    def word_perplexity(self) -> float | None:
        """The perplexity per word and sentence end: of models with different tokenizers, this can be compared."""
        if self.words is None:
            return None
        with np.errstate(over="ignore"):
            return float(np.exp(-self.log_probability / (self.words + self.sentences)))

    @property
    def bits_per_byte(self) -> float | None:
        """-log2 P of the text, divided by its bytes. Unknown words count as `<unk>`, without their spelling."""
        return None if not self.bytes else -self.log_probability / (LN_2 * self.bytes)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the measures per word and per byte by name, for JSON."""
        return {**asdict(self), "word_perplexity": self.word_perplexity, "bits_per_byte": self.bits_per_byte}


class EvaluationSums:
    """Sums of log-probabilities and log-normalizers over parts of a text, in float64."""

    def __init__(self) -> None:
        self.tokens, self.log_probability, self.log_z, self.squared_log_z = 0, 0.0, 0.0, 0.0

    @classmethod
    def from_array(cls, array: np.ndarray) -> "EvaluationSums":
        """Return the sums that `as_array` returned, or the sum of several such arrays."""
        sums = cls()
        tokens, sums.log_probability, sums.log_z, sums.squared_log_z = array.tolist()
        sums.tokens = int(tokens)
        return sums

    def as_array(self) -> np.ndarray:
        """Return the sums, (4,) float64, to be added to those of other workers."""
        return np.array([self.tokens, self.log_probability, self.log_z, self.squared_log_z], np.float64)

    def add(self, scores: np.ndarray, log_z: np.ndarray) -> None:
        """Add words with these scores s(w, h) and log-normalizers log Z(h), both (n,)."""
        self.tokens += scores.size
        self.log_probability += float(np.sum(scores - log_z, dtype=np.float64))
        self.log_z += float(log_z.sum())
        self.squared_log_z += float(np.square(log_z).sum())

    def result(self, sentences: int = 0, unknown: int = 0, size: TextSize | None = None) -> Evaluation:
        """Return the perplexity of all words added.

        Of these, the arguments are the number of sentences and of unknown words, and the size of the text.
        """
        mean = self.log_z / self.tokens
        with np.errstate(over="ignore"):
            perplexity = float(np.exp(-self.log_probability / self.tokens))
        return Evaluation(
            perplexity=perplexity,
            tokens=self.tokens,
            sentences=sentences,
            unknown=unknown,
            log_probability=self.log_probability,
            log_z_mean=mean,
            log_z_std=float(np.sqrt(max(self.squared_log_z / self.tokens - mean * mean, 0.0))),
            words=size.words if size else None,
            bytes=size.bytes if size else None,
        )


def sample_parts(words: int, tokens: int) -> list[tuple[int, int]]:
    """Return the first and last positions of the parts of a sample of `words` of `tokens` words, evenly spaced."""
    if words >= tokens:
        return [(first, min(first + CHUNK, tokens)) for first in range(0, tokens, CHUNK)]
    parts = max(words // BLOCK, 1)
    sizes = np.diff(np.linspace(0, words, parts + 1, dtype=np.int64)).tolist()
    middles = ((np.arange(parts) + 0.5) * tokens / parts).tolist()  # of the parts of the text
    firsts = [int(middle - size / 2) for middle, size in zip(middles, sizes, strict=True)]
    return [(first, first + size) for first, size in zip(firsts, sizes, strict=True)]


def share_of(parts: list[tuple[int, int]], rank: int, size: int) -> list[tuple[int, int]]:
    """Return the share of worker `rank` of `size` of the positions in these parts, in order, as parts.

    >>> share_of([(0, 4), (10, 14)], 1, 3), share_of([(0, 4), (10, 14)], 0, 1)
    ([(2, 4), (10, 11)], [(0, 4), (10, 14)])
    """
    total, done, share = sum(last - first for first, last in parts), 0, []
    low, high = total * rank // size, total * (rank + 1) // size
    for first, last in parts:
        start, stop = max(first, first + low - done), min(last, first + high - done)
        if start < stop:
            share.append((start, stop))
        done += last - first
    return share


def evaluate_split(model: WordModel, store: TokenStore, name: str, team: Team) -> Evaluation:
    """Return the perplexity of a model on a split of a store."""
    split = store.split(name)
    corpus = corpus_view(split, store)
    sums = EvaluationSums()
    for first in range(0, split.tokens, CHUNK):
        sums.add(*model.score_positions(corpus, first, min(first + CHUNK, split.tokens), team))
    return sums.result(split.n_sentences, split.unknown, split.size)
