"""Noise distributions: exact probabilities Pn(w), and sampling in constant time.

Noise words are drawn from alias tables (Walker 1977; Vose 1991). NCE needs log(k Pn(w)) of every target and noise word,
so every probability must be positive: words without occurrences in the training text count as if they occurred once.

Bigram noise depends on the context (section 6 of the paper): the distribution of words after the previous word,
interpolated with the unigram distribution.

Symbols: V words, N words of training text, k noise samples per target word.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from ncelm.arguments import check, check_choice, check_float, check_int, check_ints, check_type, shown
from ncelm.errors import ArgumentError, NcelmError
from ncelm.kernels import records
from ncelm.text.store import TokenStore

NoiseKind = Literal["unigram", "uniform", "power", "bigram"]


@dataclass(frozen=True, eq=False)
class Noise:
    """A distribution over the words 0..V-1, with its alias table."""

    probabilities: npt.NDArray[np.float64]  # Pn(w), (V,), all positive, sums to 1
    threshold: npt.NDArray[np.uint32]  # (V,): column w yields word w if 32 random bits are below this,
    alias: npt.NDArray[np.int32]  # (V,): and this word otherwise

    @classmethod
    def from_probabilities(cls, probabilities: np.ndarray) -> Self:
        """Return the noise with these weights, which must be positive and finite."""
        weights = _numbers("probabilities", probabilities)
        bad = np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))
        if bad.size:
            raise NcelmError(
                f"the noise weight of word {bad[0]} is {weights[bad[0]]}: give every word a positive, finite weight, "
                "because NCE needs its logarithm"
            )
        normalized = weights / weights.sum()
        threshold, alias = alias_table(normalized)
        return cls(normalized, threshold, alias)

    @classmethod
    def from_counts(cls, counts: np.ndarray, kind: NoiseKind = "unigram", power: float = 0.75) -> Self:
        """Return the noise of this kind for words with these counts: Pn ∝ count, 1 or count^power.

        >>> Noise.from_counts(np.array([6, 2, 0]), "unigram").probabilities.round(3).tolist()
        [0.667, 0.222, 0.111]
        """
        check_choice("kind", kind, get_args(NoiseKind))
        numbers, power = _numbers("counts", counts), check_float("power", power, 0, 10)
        if not (np.isfinite(numbers) & (numbers >= 0)).all():
            raise ArgumentError("`counts` has a number that is negative or not finite: give the counts of noise words")
        positive = np.maximum(numbers, 1.0)  # so that log Pn is finite
        match kind:
            case "unigram":
                return cls.from_probabilities(positive)
            case "uniform":
                return cls.from_probabilities(np.ones_like(positive))
            case "power":
                return cls.from_probabilities(positive**power)
            case "bigram":
                raise NcelmError("bigram noise needs the training text: use BigramNoise.from_store")

    @property
    def log_probabilities(self) -> npt.NDArray[np.float64]:
        """log Pn(w), (V,)."""
        return np.log(self.probabilities)

    @cached_property
    def columns(self) -> npt.NDArray[np.uint64]:
        """The alias table in the form that compiled code accepts: alias and threshold in one integer, (V,)."""
        return self.alias.astype(np.uint64) << np.uint64(32) | self.threshold

    def sample(self, shape: tuple[int, int], seed: int, step: int = 0) -> npt.NDArray[np.int32]:
        """Return the noise words of one update, (examples, k).

        They are those of training: each (seed, step, example) has a random stream of its own.
        """
        from ncelm.kernels.noise import draw_words

        sizes = check_ints("shape", shape, 0)
        check("shape", shape, len(sizes) == 2, "two numbers: examples and noise samples")
        seed, step = check_int("seed", seed, 0), check_int("step", step, 0)
        out = np.empty(sizes, np.int32)
        draw_words(np.uint64(seed), np.uint64(step), self.columns, out)
        return out

    def table(self, k: int) -> records.NoiseTable:
        """Return the distribution in the form that compiled code accepts, for k noise samples."""
        k = check_int("k", k, 1)
        return records.NoiseTable(
            columns=self.columns,
            log_k_probability=(self.log_probabilities + np.log(k)).astype(np.float32),
            log_k=float(np.log(k)),
        )


@dataclass(frozen=True, eq=False)
class BigramNoise:
    """Pn(w|v) = (n(v, w) + α Pu(w)) / (n(v) + α), for the previous word v and the unigram distribution Pu.

    Drawing from the first term means picking one of the n(v) followers of v in the training text, in constant time.
    The followers of a word are sorted, so that n(v, w) is found by binary search.
    """

    unigram: Noise
    smoothing: float  # α
    followers: npt.NDArray[np.int32]  # (N,): the words of the training text, by the previous word, then by themselves
    offsets: npt.NDArray[np.int64]  # (V + 2,): the followers of v are followers[offsets[v] : offsets[v + 1]]

    @classmethod
    def from_store(cls, store: TokenStore, smoothing: float) -> Self:
        """Return the noise of a training split. The out-of-sentence word, id V, has followers as well."""
        check_type("store", store, isinstance(store, TokenStore), "an open token store")
        smoothing = check_float("smoothing", smoothing, 0, positive=True)
        ids, size = store.split("train").ids, len(store.vocabulary)
        previous = np.append(store.pad_id, ids[:-1]).astype(np.int64)  # (N,)
        if store.boundary == "sentence":
            previous[previous == store.vocabulary.end_id] = store.pad_id
        pairs = np.sort(previous * size + ids)  # (N,)
        offsets = np.searchsorted(pairs, np.arange(size + 2, dtype=np.int64) * size)
        unigram = Noise.from_counts(store.vocabulary.counts)
        return cls(unigram, smoothing, (pairs % size).astype(np.int32), offsets.astype(np.int64))

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """The unigram distribution, (V,): the approximate frequencies of noise words over the whole text."""
        return self.unigram.probabilities

    def log_probabilities(self, before: int) -> npt.NDArray[np.float64]:
        """Return log Pn(w | before) of every word, (V,); `before` is an id, V for the out-of-sentence word."""
        before = check_int("before", before, 0, self.offsets.size - 2)
        followers = self.followers[self.offsets[before] : self.offsets[before + 1]]
        counts = np.bincount(followers, minlength=self.unigram.probabilities.size)  # n(v, w), (V,)
        weights: npt.NDArray[np.float64] = counts + self.smoothing * self.unigram.probabilities
        return np.log(weights) - float(np.log(followers.size + self.smoothing))

    def table(self, k: int) -> records.BigramNoiseTable:
        """Return the distribution in the form that compiled code accepts, for k noise samples."""
        return records.BigramNoiseTable(self.unigram.table(k), self.followers, self.offsets, float(self.smoothing))


def noise_of(store: TokenStore, kind: NoiseKind, power: float, smoothing: float) -> Noise | BigramNoise:
    """Return the noise of this kind for the training text of a store."""
    check_type("store", store, isinstance(store, TokenStore), "an open token store")
    check_choice("kind", kind, get_args(NoiseKind))
    if kind == "bigram":
        return BigramNoise.from_store(store, smoothing)
    return Noise.from_counts(store.vocabulary.counts, kind, power)


def _numbers(name: str, value: object) -> npt.NDArray[np.float64]:
    """Return an argument that has one number for each word, (V,), at least one."""
    expected = "one number for each word, and at least one word, to make noise of"
    try:
        numbers = np.asarray(value)
    except ValueError:  # lists of different lengths
        raise ArgumentError(f"`{name}` is {shown(value)}: give {expected}") from None
    check(name, value, numbers.ndim == 1 and numbers.size > 0, expected)
    check_type(name, value, numbers.dtype.kind in "iuf", expected)
    return numbers.astype(np.float64)


def alias_table(probabilities: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]]:
    """Return thresholds and aliases, both (V,), of Vose's alias method.

    The table has V columns of equal height, each shared by at most two words. Thresholds are rounded to multiples of
    2⁻³², so probabilities change by less than that.
    """
    from ncelm.kernels.noise import fill_alias_table

    keep = probabilities * probabilities.size
    alias = np.empty(keep.size, np.int32)
    fill_alias_table(keep, alias)
    threshold = np.minimum(np.round(keep * 2.0**32), 2.0**32 - 1).astype(np.uint32)
    return threshold, alias
