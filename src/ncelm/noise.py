"""Noise distributions: where NCE's noise words come from, and exactly how likely each of them is.

A noise word is drawn in constant time from an alias table (Walker 1977; Vose 1991). NCE needs log(k·Pn(w))
of every word it may meet, target or noise, so every word has a positive probability: a word that was
never seen in training counts as seen once.
"""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from ncelm.errors import NcelmError

NoiseKind = Literal["unigram", "uniform", "power"]


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

    @property
    def log_probabilities(self) -> np.ndarray:
        """log Pn(w), (V,) float64."""
        return np.log(self.probabilities)

    def sample(self, shape: tuple[int, int], seed: int, step: int = 0) -> np.ndarray:
        """Draw the noise words of one update: (examples, k), one random stream for each (seed, step, example).

        The same numbers as in training, whatever the number of threads.
        """
        from ncelm import kernels

        out = np.empty(shape, np.int32)
        kernels.draw_words(np.uint64(seed), np.uint64(step), self.threshold, self.alias, out)
        return out


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
