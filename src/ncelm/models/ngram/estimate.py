"""Estimation of n-gram models with interpolated modified Kneser–Ney smoothing (Chen & Goodman 1999).

A model is estimated order by order, by sorting. An n-gram is one integer: the rank of its history, times V + 1, plus
its last word. Sorting these integers yields the distinct n-grams, their counts, and their ranks for the next order. The
rank of the suffix of each n-gram (without its first word) yields the number of distinct words that precede the suffix.
Memory is at most BYTES_PER_WORD + N * BYTES_PER_NGRAM bytes per word of the text.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ncelm.arguments import check_int, check_ints, check_path
from ncelm.errors import NcelmError
from ncelm.io import run
from ncelm.io.files import atomic_folder, check_not_existing
from ncelm.io.machine import check_memory
from ncelm.io.metrics import Metrics
from ncelm.kernels.threads import Team
from ncelm.models import description
from ncelm.models.evaluate import evaluate_split
from ncelm.models.ngram.query import LOG_ZERO, MAX_ORDER, NGramModel, write_run
from ncelm.progress import OnProgress, Option, check_progress, shown
from ncelm.text.store import Split, TokenStore, store_or_path

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # for counts 1, 2 and 3+, if they cannot be estimated
# Measured on random text, whose n-grams are all distinct
BYTES_PER_WORD = 24  # while an order is sorted
BYTES_PER_NGRAM = 32  # of each order; there are at most as many as words


def train_ngram(
    store: TokenStore | Path | str,
    out: Path | str,
    order: int = 5,
    min_counts: Sequence[int] = (1,),
    progress: Option = True,
) -> dict[str, Any]:
    """Estimate a model of the training split of a store, write the run `out`, and return its metrics.

    n-grams that occur less than min_counts[n - 1] times are left out. The last number applies to all higher orders.
    `progress` is explained in `ncelm.progress`; a function is called with the number of steps done and their total, two
    for each order.
    """
    store, out = store_or_path("store", store), check_path("out", out)
    order, min_counts = check_order(order, min_counts)
    check_progress(progress)
    store = TokenStore.open(store)
    check_not_existing(out)
    start = time.perf_counter()
    with shown(progress, desc="counting n-grams", unit=" steps") as report:
        model, discounts = estimate(store, order, min_counts, report)
    record: dict[str, Any] = {
        "finished": True,
        "order": order,
        "ngrams": list(model.counts),
        "words": store.split("train").tokens,
        "discounts": [asdict(discount) for discount in discounts],
        "seconds": time.perf_counter() - start,
    }
    if "valid" in store.splits:
        with Team() as team:
            record["valid_perplexity"] = evaluate_split(model, store, "valid", team).perplexity
    with atomic_folder(out) as folder:
        write_run(folder, model, description.Origin.of(store), min_counts=min_counts)
        Metrics(folder / run.METRICS).append(record)
    return record


@dataclass(frozen=True)
class Discounts:
    """The discounts D1, D2 and D3+ of one order, for counts 1, 2 and 3 or more."""

    amounts: tuple[float, float, float]
    fallback: bool  # FALLBACK_DISCOUNTS, because the counts of counts allow no estimate

    @classmethod
    def estimate(cls, counts: np.ndarray) -> "Discounts":
        """Return the discounts for the adjusted counts of one order, by equation 26 of Chen & Goodman."""
        n1, n2, n3, n4 = (int(np.count_nonzero(counts == k)) for k in (1, 2, 3, 4))
        if min(n1, n2, n3) > 0:
            y = n1 / (n1 + 2 * n2)
            amounts = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
            if all(0 < amount <= k for k, amount in enumerate(amounts, 1)):
                return cls(amounts, fallback=False)
        return cls(FALLBACK_DISCOUNTS, fallback=True)


def memory_bytes(split: Split, order: int) -> int:
    """Return an upper bound on the memory of `estimate`."""
    words = split.tokens + split.n_sentences
    return words * (BYTES_PER_WORD + order * BYTES_PER_NGRAM)


def estimate(
    store: TokenStore, order: int, min_counts: Sequence[int] = (1,), progress: OnProgress | None = None
) -> tuple[NGramModel, list[Discounts]]:
    """Return the model of the training split of a store, and the discounts of each order. See `train_ngram`."""
    order, min_counts = check_order(order, min_counts)
    split, vocabulary_size = store.split("train"), len(store.vocabulary)
    check_memory(f"a model of order {order}", memory_bytes(split, order), "give a lower `order`")
    report = progress or (lambda done, total: None)
    text = _MarkedText.of(split, store)
    levels = _count(text, vocabulary_size, order, lambda done: report(done, 2 * order))
    thresholds = [*min_counts, *(min_counts[-1] for _ in range(order))][:order]
    return _smooth(levels, vocabulary_size, thresholds, lambda done: report(order + done, 2 * order))


def check_order(order: int, min_counts: Sequence[int] = (1,)) -> tuple[int, list[int]]:
    """Return both. Thresholds that would keep an n-gram without its prefix are an error."""
    min_counts = check_ints("min_counts", min_counts)
    if not min_counts or min_counts[0] != 1 or min_counts != sorted(min_counts):
        raise NcelmError(
            f"`min_counts` are {' '.join(map(str, min_counts)) or 'empty'}: the first, of single words, must be 1, and "
            "none may be lower than the one before"
        )
    return check_int("order", order, 1, MAX_ORDER), min_counts


class _MarkedText(NamedTuple):
    """A text with <s> before each sentence, or, with boundary "stream", once before the whole text."""

    ids: np.ndarray  # (T,) int32
    depth: np.ndarray  # length of the n-gram from the last <s> to each word, (T,) int32

    @classmethod
    def of(cls, split: Split, store: TokenStore) -> "_MarkedText":
        within_sentence = store.boundary == "sentence"
        starts = split.sentences[:-1].astype(np.int64) if within_sentence else np.zeros(1, np.int64)
        ids = np.insert(split.ids.astype(np.int32), starts, store.pad_id)
        marks = np.zeros(ids.size, np.int32)
        marks[starts + np.arange(starts.size)] = starts + np.arange(starts.size)
        depth = np.arange(1, ids.size + 1, dtype=np.int32) - np.maximum.accumulate(marks, out=marks)
        return cls(ids, depth)


@dataclass
class _Level:
    """The distinct n-grams of one order, sorted."""

    words: np.ndarray  # last word, (G_n,) int32
    bounds: np.ndarray  # start of the n-grams with each history, and the end, (G_{n-1} + 1,) int64
    suffixes: np.ndarray  # rank of the (n - 1)-gram without the first word, (G_n,) int32
    counts: np.ndarray  # adjusted counts: see _count, (G_n,) int32
    occurrences: np.ndarray  # counts in the text, (G_n,) int32


def _count(text: _MarkedText, begin_id: int, order: int, done: Callable[[int], None]) -> list[_Level]:
    """Return the n-grams of all orders with their adjusted counts.

    The adjusted count of an n-gram below order N is the number of distinct words that precede it. At order N, and for
    n-grams that start with <s> (which nothing precedes), it is the number of occurrences.
    """
    ids, depth = text
    size = begin_id + 1  # ids are below this
    occurrences = np.bincount(ids[depth > 1], minlength=size).astype(np.int32)
    levels = [
        _Level(np.arange(size, dtype=np.int32), np.array([0, size]), np.zeros(size, np.int32), occurrences, occurrences)
    ]
    ranks = ids  # of the n-gram that ends at each word, (T,)
    done(1)
    for n in range(2, order + 1):
        ends = np.flatnonzero(depth >= n).astype(np.int32)  # positions at which an n-gram ends
        if ends.size == 0:
            raise NcelmError(
                f"no sentence of the text has {n} words, including <s> and </s>: give an `order` below {n} or more text"
            )
        keys = ranks[ends - 1].astype(np.int64)
        keys *= size
        keys += ids[ends]  # history and last word as one integer
        by_key = np.argsort(keys)
        keys = keys[by_key]
        positions = ends[by_key]  # equal n-grams are adjacent
        del ends, by_key
        is_first = np.empty(keys.size, bool)
        is_first[0] = True
        np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
        firsts = np.flatnonzero(is_first)
        distinct = keys[firsts]
        del keys
        occurrences = np.diff(firsts, append=positions.size).astype(np.int32)
        suffixes = ranks[positions[firsts]]
        bounds = np.searchsorted(distinct, np.arange(levels[-1].words.size + 1, dtype=np.int64) * size)
        levels.append(_Level((distinct % size).astype(np.int32), bounds, suffixes, occurrences, occurrences))
        del distinct, firsts
        lower = levels[-2]
        preceding = np.bincount(suffixes, minlength=lower.words.size).astype(np.int32)  # distinct words before each
        lower.counts = np.where(preceding > 0, preceding, lower.counts)
        ranks = np.full(ids.size, -1, np.int32)
        ranks[positions] = np.cumsum(is_first, dtype=np.int32) - 1
        done(n)
    return levels


def _smooth(
    levels: list[_Level], vocabulary_size: int, thresholds: list[int], done: Callable[[int], None]
) -> tuple[NGramModel, list[Discounts]]:
    """Return the model with probabilities and back-off weights, and the discounts of each order.

    n-grams that occur less often than the threshold of their order are left out. `levels` is emptied.
    """
    from ncelm.kernels import ngram as kernels

    # All single words are kept. Counts do not rise and thresholds do not fall with the order, so the histories and
    # suffixes of n-grams that are kept, are kept.
    kept_counts = [
        int(np.count_nonzero(level.occurrences >= threshold))
        for level, threshold in zip(levels, thresholds, strict=True)
    ]
    counts = (levels[0].words.size, *kept_counts[1:])
    if not all(counts):
        empty = 1 + next(n for n, count in enumerate(counts) if not count)
        raise NcelmError(
            f"no {empty}-gram occurs {thresholds[empty - 1]} times: give lower `min_counts` or a lower `order`"
        )
    starts = np.cumsum((0, *counts)).tolist()  # of each order in the flat arrays
    model = NGramModel(
        counts=counts,
        words=np.empty(starts[-1], np.int32),
        children=np.full(starts[-2] + 1, starts[-1], np.int64),
        log_probabilities=np.empty(starts[-1], np.float32),
        log_backoffs=np.empty(starts[-2], np.float32),
    )
    discounts = []
    lower = np.full(vocabulary_size + 1, 1.0 / vocabulary_size)  # order 0: the uniform distribution
    kept_below = np.ones(1, bool)  # order 0: the empty history
    for n, threshold in enumerate(thresholds):
        level, start, end = levels.pop(0), starts[n], starts[n + 1]  # pop: free the memory of each level early
        kept = level.occurrences >= threshold if n else np.ones(level.words.size, bool)
        discounts.append(Discounts.estimate(level.counts))
        probabilities = np.empty(level.words.size, np.float64)
        logs, backoffs = np.empty(level.words.size, np.float32), np.empty(level.bounds.size - 1, np.float32)
        kernels.smooth(
            level.counts,
            kept,
            level.bounds,
            level.suffixes,
            np.array((0.0, *discounts[-1].amounts)),
            lower,
            probabilities,
            logs,
            backoffs,
        )
        model.words[start:end] = level.words[kept]
        model.log_probabilities[start:end] = logs[kept]
        if n:
            kept_before = np.zeros(kept.size + 1, np.int64)  # number of n-grams kept before each
            np.cumsum(kept, out=kept_before[1:])
            model.children[starts[n - 1] : start] = kept_before[level.bounds[:-1]][kept_below] + start
            model.log_backoffs[starts[n - 1] : start] = backoffs[kept_below]
        lower, kept_below = probabilities, kept
        done(n + 1)
    model.log_probabilities[vocabulary_size] = LOG_ZERO
    return model, discounts
