"""Noise distributions: where NCE's noise words come from, and exactly how likely each of them is.

A noise word is drawn in constant time from an alias table (Walker 1977; Vose 1991). NCE needs log(k·Pn(w))
of every word it may meet, target or noise, so every word has a positive probability: a word that was
never seen in training counts as seen once.

Bigram noise depends on the context (section 6 of the paper): what follows the word before, smoothed with the unigram.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np

from ncelm.errors import NcelmError
from ncelm.kernels import records
from ncelm.kernels import steps as kernels
from ncelm.text.store import TokenStore

NoiseKind = Literal["unigram", "uniform", "power", "bigram"]


@dataclass(frozen=True, eq=False)
class Noise:
    """A distribution over the words 0..V-1 that is cheap to draw from."""

    probabilities: np.ndarray  # Pn(w), (V,) float64, all positive, sums to 1
    threshold: np.ndarray  # (V,) uint32: column w keeps w if 32 random bits are below this …
    alias: np.ndarray  # (V,) int32: … and gives this word otherwise

    @classmethod
    def from_probabilities(cls, probabilities: np.ndarray) -> Self:
        """Build the alias table of a distribution; every word must have a positive, finite weight."""
        weights = np.asarray(probabilities, np.float64)
        if weights.ndim != 1 or weights.size == 0:
            raise NcelmError("a noise distribution needs one weight for each word, and at least one word")
        bad = np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))
        if bad.size:
            raise NcelmError(
                f"the noise weight of word {bad[0]} is {weights[bad[0]]}: NCE takes its logarithm, "
                "so every word needs a positive, finite weight"
            )
        normalised = weights / weights.sum()
        threshold, alias = alias_table(normalised)
        return cls(normalised, threshold, alias)

    @classmethod
    def from_counts(cls, counts: np.ndarray, kind: NoiseKind = "unigram", power: float = 0.75) -> Self:
        """The noise of this kind for words seen so often: Pn ∝ count, 1, or count^power.

        >>> Noise.from_counts(np.array([6, 2, 0]), "unigram").probabilities.round(3).tolist()
        [0.667, 0.222, 0.111]
        """
        seen = np.maximum(np.asarray(counts, np.float64), 1.0)  # never −inf: see the top of this file
        match kind:
            case "unigram":
                return cls.from_probabilities(seen)
            case "uniform":
                return cls.from_probabilities(np.ones_like(seen))
            case "power":
                return cls.from_probabilities(seen**power)
            case "bigram":
                raise NcelmError("bigram noise needs to know the text: make it by BigramNoise.from_store")

    @property
    def log_probabilities(self) -> np.ndarray:
        """log Pn(w), (V,) float64."""
        return np.log(self.probabilities)

    @cached_property
    def columns(self) -> np.ndarray:
        """The alias table as compiled code reads it, both halves at once: (V,) uint64."""
        return self.alias.astype(np.uint64) << np.uint64(32) | self.threshold

    def sample(self, shape: tuple[int, int], seed: int, step: int = 0) -> np.ndarray:
        """Draw the noise words of one update: (examples, k), one random stream for each (seed, step, example).

        The same numbers as in training, whatever the number of threads.
        """
        out = np.empty(shape, np.int32)
        kernels.draw_words(np.uint64(seed), np.uint64(step), self.columns, out)
        return out

    def table(self, k: int) -> records.NoiseTable:
        """This distribution as the compiled code takes it, for k noise words."""
        return records.NoiseTable(
            columns=self.columns,
            log_k_probability=(self.log_probabilities + np.log(k)).astype(np.float32),
            log_k=float(np.log(k)),
            followers=np.zeros(0, np.int32),
            offsets=np.zeros(0, np.int64),
            smoothing=0.0,
        )


@dataclass(frozen=True, eq=False)
class BigramNoise:
    """Pn(w|v) = (n(v, w) + α Pu(w)) / (n(v) + α): what followed the word before, v, and word frequencies Pu.

    To draw from the first part is to pick one of the n(v) followers of v in the training text: constant time, and no
    table for each word. The followers of a word are sorted, so n(v, w) is found by bisection.
    """

    unigram: Noise
    smoothing: float  # α
    followers: np.ndarray  # (N,) int32: every word of the training text, sorted by the word before it, then by itself
    offsets: np.ndarray  # (V + 2,) int64: the followers of v are followers[offsets[v] : offsets[v + 1]]

    @classmethod
    def from_store(cls, store: TokenStore, smoothing: float) -> Self:
        """Of the training split; the out-of-sentence word, V, has followers too."""
        ids, size = store.split("train").ids, len(store.vocabulary)
        before = np.append(store.pad_id, ids[:-1]).astype(np.int64)  # (N,): the word before each word
        if store.boundary == "sentence":
            before[before == store.vocabulary.end_id] = store.pad_id
        pairs = np.sort(before * size + ids)  # (N,)
        offsets = np.searchsorted(pairs, np.arange(size + 2, dtype=np.int64) * size)
        unigram = Noise.from_counts(store.vocabulary.counts)
        return cls(unigram, smoothing, (pairs % size).astype(np.int32), offsets.astype(np.int64))

    @property
    def probabilities(self) -> np.ndarray:
        """Over the whole text words are drawn about as often as they occur, (V,)."""
        return self.unigram.probabilities

    def log_probabilities(self, before: int) -> np.ndarray:
        """log Pn(w | before) of every word, (V,) float64."""
        followers = self.followers[self.offsets[before] : self.offsets[before + 1]]
        counts = np.bincount(followers, minlength=self.unigram.probabilities.size)  # n(v, ·)
        return np.log(counts + self.smoothing * self.unigram.probabilities) - np.log(followers.size + self.smoothing)

    def table(self, k: int) -> records.NoiseTable:
        """This distribution as the compiled code takes it, for k noise words."""
        unigram = self.unigram.table(k)
        return unigram._replace(followers=self.followers, offsets=self.offsets, smoothing=float(self.smoothing))


def noise_of(store: TokenStore, kind: NoiseKind, power: float, smoothing: float) -> Noise | BigramNoise:
    """The noise of this kind for a store's training text."""
    if kind == "bigram":
        return BigramNoise.from_store(store, smoothing)
    return Noise.from_counts(store.vocabulary.counts, kind, power)


def alias_table(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vose's construction: V columns of equal height, each shared by at most two words.

    Thresholds are rounded to 2⁻³², which moves no probability by more than that.
    """
    size = probabilities.size
    height = (probabilities * size).tolist()  # a column is full at height 1
    keep = [1.0] * size
    alias = list(range(size))
    short = [word for word in range(size) if height[word] < 1.0]
    tall = [word for word in range(size) if height[word] >= 1.0]
    while short and tall:
        low, high = short.pop(), tall[-1]
        keep[low], alias[low] = height[low], high
        height[high] -= 1.0 - height[low]
        if height[high] < 1.0:
            short.append(tall.pop())
    # what is left over is full but for rounding
    threshold = np.minimum(np.round(np.array(keep) * 2.0**32), 2.0**32 - 1).astype(np.uint32)
    return threshold, np.array(alias, np.int32)
