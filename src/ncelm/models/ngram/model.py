"""N-gram models with interpolated modified Kneser–Ney smoothing (Chen & Goodman 1999), all in flat arrays.

The n-grams of each order are sorted by their first n − 1 words (their history), then by their last word, so that those
which extend a history lie side by side: a trie in four arrays, order after order. What a model knows of a text so far
is where the 1-, 2-, … (N − 1)-grams that end there are; a child of each is found by bisection when the next word comes.

A model is estimated order by order, by sorting: an n-gram is a pair of numbers, its history's rank and its last word.
Nothing is kept for each n-gram but numbers in arrays.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.io.files import atomic_folder, check_not_existing
from ncelm.io.machine import check_memory
from ncelm.io.metrics import Metrics
from ncelm.kernels import ngram as ngram_kernels
from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.models import description
from ncelm.models.base import Sides
from ncelm.models.evaluate import evaluate_split
from ncelm.text.store import Split, TokenStore

MOST_ORDERS = 10
LEAST = np.float32(-99.0)  # the base-10 logarithm of what has no probability, as is the habit
MOST_LOG = 1e4  # a logarithm beyond this is no number of a model
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # for n-grams seen once, twice, more often, where counts of counts tell none
BYTES_PER_WORD = 24  # measured on random text, where every n-gram is another: of the text, while an order is sorted …
BYTES_PER_NGRAM = 32  # … and of each n-gram of each order, whose number is at most that of the words


@dataclass(frozen=True, eq=False)
class NGramModel:
    """A back-off model: P(w|h) = P of the longest n-gram that is there, times the back-off of each longer history."""

    counts: tuple[int, ...]  # n-grams of each order
    words: np.ndarray  # the last word of each n-gram, order after order, (G,) int32; order 1 is 0, 1, …, V
    children: np.ndarray  # where the extensions of each n-gram below order N begin in `words`; and the end of all
    # logarithms to base 10, float32, as ARPA files have them, so that a file read and written again is the same
    log_probabilities: np.ndarray  # (G,); of <s>, which is never predicted, LEAST
    log_backoffs: np.ndarray  # of each n-gram below order N

    @property
    def sides(self) -> Sides:
        """Words before the predicted one only."""
        return "before"

    @property
    def order(self) -> int:
        """N."""
        return len(self.counts)

    def view(self) -> ngram_kernels.Trie:
        """The model as the compiled code takes it."""
        arrays = (self.words, self.children, self.log_probabilities, self.log_backoffs)
        return ngram_kernels.Trie(self.order, *map(_frozen, arrays))

    def score_positions(
        self, corpus: records.Corpus, first: int, last: int, team: Team, normalised: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """log P(w|h) of the words at positions first..last, natural, and the logarithm of the normaliser: 0."""
        out = np.empty(last - first, np.float64)
        ids, _, within_sentence, end_id, pad_id, _ = corpus
        team.run(ngram_kernels.score_positions, 1, self.view(), ids, within_sentence, end_id, pad_id, first, last, out)
        return out * np.log(10.0), np.zeros(last - first)

    def distribution(self, before: np.ndarray, after: np.ndarray, pad_id: int) -> np.ndarray:
        """log P of every word, (V,), after these words of a sentence; what comes after makes no difference."""
        return self.log_probabilities_after(np.concatenate([[pad_id], before]))

    def log_probabilities_after(self, history: np.ndarray | list[int]) -> np.ndarray:
        """log P(w | history) of every word, (V,): ids, <s> = V first where the sentence begins there."""
        out = np.empty(self.counts[0] - 1, np.float64)
        ngram_kernels.distribution(self.view(), np.asarray(history, np.int64), out)
        return out * np.log(10.0)


def _frozen(array: np.ndarray) -> np.ndarray:
    """A view that nobody writes to: one type for arrays in memory and on disk, so that kernels are compiled once."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


# -- on disk -----------------------------------------------------------------------------------------------------------

# int64 first: every array then begins at a multiple of its own size
ARRAYS = {"children": "int64", "words": "int32", "log_probabilities": "float32", "log_backoffs": "float32"}


def save(model: NGramModel, path: Path) -> None:
    """Write a model in the form that is mapped into memory."""
    array_files.write_mapped(
        path, {name: getattr(model, name) for name in ARRAYS}, {"kind": "ngram", "counts": model.counts}
    )


def load(path: Path, vocabulary_size: int) -> NGramModel:
    """Map a model of `save` into memory and check what queries rely on: no place they look at may lie outside."""
    damaged = NcelmError(f"{path} is damaged: restore it from a copy or train again")
    arrays, header = array_files.map_arrays(path, ARRAYS)
    counts = header.get("counts")
    if not isinstance(counts, list) or not all(type(count) is int and count > 0 for count in counts):
        raise damaged
    if not 1 <= len(counts) <= MOST_ORDERS or counts[0] != vocabulary_size + 1:
        raise damaged
    begins = np.cumsum([0, *counts], dtype=np.int64)  # of each order, and the end
    model = NGramModel(tuple(counts), **arrays)
    fits = (
        model.words.size == model.log_probabilities.size == begins[-1]
        and model.log_backoffs.size == begins[-2]
        and model.children.size == begins[-2] + 1
    )
    # children of an order are of the next one: queries go from order to order and never past the last
    if not (fits and np.array_equal(model.children[begins[:-1]], begins[1:]) and ngram_kernels.is_sound(model.view())):
        raise damaged
    return model


def train_ngram(
    store: TokenStore | Path | str,
    out: Path | str,
    order: int = 5,
    min_counts: Sequence[int] = (1,),
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Estimate a model of a store's training text, write the run `out`, and return its line of metrics.

    n-grams of order n that were seen less than min_counts[n - 1] times are left out; the last number holds for all
    higher orders, too.
    """
    store, out = TokenStore.open(store), Path(out)
    check_not_existing(out)
    began = time.perf_counter()
    model, discounts = estimate(store, order, min_counts, progress)
    record: dict[str, Any] = {
        "finished": True,
        "order": order,
        "ngrams": list(model.counts),
        "words": store.split("train").tokens,
        "discounts": [asdict(discount) for discount in discounts],
        "seconds": time.perf_counter() - began,
    }
    if "valid" in store.splits:
        with Team() as team:
            record["valid_perplexity"] = evaluate_split(model, store, "valid", team).perplexity
    with atomic_folder(out) as folder:
        write_run(folder, model, description.Origin.of(store), min_counts=list(min_counts))
        Metrics(folder / run.METRICS).append(record)
    return record


def write_run(folder: Path, model: NGramModel, origin: description.Origin, **more: Any) -> None:
    """Write what a run of an n-gram model has."""
    description.write_description(folder, "ngram", origin, order=model.order, **more)
    save(model, folder / run.MODEL)


# -- estimating --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Discounts:
    """What is taken from the count of an n-gram seen once, twice, three times or more; one for each order."""

    amounts: tuple[float, float, float]
    fallback: bool  # counts of counts did not allow an estimate

    @classmethod
    def estimate(cls, counts: np.ndarray) -> "Discounts":
        """From the (adjusted) counts of the n-grams of one order: equation 26 of Chen & Goodman."""
        n1, n2, n3, n4 = (int(np.count_nonzero(counts == k)) for k in (1, 2, 3, 4))
        if min(n1, n2, n3) > 0:
            y = n1 / (n1 + 2 * n2)
            amounts = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
            if all(0 < amount <= k for k, amount in enumerate(amounts, 1)):
                return cls(amounts, fallback=False)
        return cls(FALLBACK_DISCOUNTS, fallback=True)


def memory_bytes(split: Split, order: int) -> int:
    """At most so much memory is taken by `estimate`."""
    words = split.tokens + split.n_sentences
    return words * (BYTES_PER_WORD + order * BYTES_PER_NGRAM)


def estimate(
    store: TokenStore,
    order: int,
    min_counts: Sequence[int] = (1,),
    progress: Callable[[int, int], None] | None = None,
) -> tuple[NGramModel, list[Discounts]]:
    """The model of a store's training text, and the discounts of each order. See `train_ngram`.

    `progress` is told how many steps of how many are done: two for each order.
    """
    check_order(order, min_counts)
    split, vocabulary = store.split("train"), len(store.vocabulary)
    check_memory(f"a model of order {order}", memory_bytes(split, order), "give a lower --order")
    report = progress or (lambda done, total: None)
    text = _Text.of(split, store)
    levels = _count(text, vocabulary, order, lambda done: report(done, 2 * order))
    least = [*min_counts, *(min_counts[-1] for _ in range(order))][:order]
    return _smooth(levels, vocabulary, least, lambda done: report(order + done, 2 * order))


def check_order(order: int, min_counts: Sequence[int] = (1,)) -> None:
    """Refuse what is no order of a model, or what would leave an n-gram without its beginning."""
    if not min_counts or min_counts[0] != 1 or list(min_counts) != sorted(min_counts):
        raise NcelmError(
            f"--min-counts are {' '.join(map(str, min_counts)) or 'none'}: the first, of single words, is 1, and none "
            "is below the one before it"
        )
    if not 1 <= order <= MOST_ORDERS:
        raise NcelmError(f"--order is {order}: give a number from 1 to {MOST_ORDERS}")


class _Text(NamedTuple):
    """A text with a mark before each sentence, or before the whole of it, where contexts run on over sentence ends."""

    ids: np.ndarray  # (N,) int32
    depth: np.ndarray  # how far each word is from the mark before it, both counted, (N,) int32

    @classmethod
    def of(cls, split: Split, store: TokenStore) -> "_Text":
        within_sentence = store.boundary == "sentence"
        starts = split.sentences[:-1].astype(np.int64) if within_sentence else np.zeros(1, np.int64)
        ids = np.insert(split.ids.astype(np.int32), starts, store.pad_id)
        marks = np.zeros(ids.size, np.int32)
        marks[starts + np.arange(starts.size)] = starts + np.arange(starts.size)
        depth = np.arange(1, ids.size + 1, dtype=np.int32) - np.maximum.accumulate(marks, out=marks)
        return cls(ids, depth)


@dataclass
class _Level:
    """The n-grams of one order, sorted; one entry for each."""

    words: np.ndarray  # last word, (G_n,) int32
    bounds: np.ndarray  # where the n-grams with each history begin, (G_{n-1} + 1,) int64
    suffixes: np.ndarray  # the rank of the (n − 1)-gram without its first word, (G_n,) int32
    counts: np.ndarray  # adjusted: see _count, (G_n,) int32
    seen: np.ndarray  # how often in the text, (G_n,) int32


def _count(text: _Text, begin: int, order: int, done: Callable[[int], None]) -> list[_Level]:
    """Find the n-grams of all orders and their adjusted counts.

    Adjusted is: below order N, how many different words stand before an n-gram; at order N, and for n-grams before
    which nothing ever stands, because a mark is their first word, how often it was seen.
    """
    ids, depth = text
    size = begin + 1  # numbers below this are words or <s>
    seen = np.bincount(ids[depth > 1], minlength=size).astype(np.int32)
    levels = [_Level(np.arange(size, dtype=np.int32), np.array([0, size]), np.zeros(size, np.int32), seen, seen)]
    ranks = ids  # of the n-gram that ends at each word
    done(1)
    for n in range(2, order + 1):
        ends = np.flatnonzero(depth >= n).astype(np.int32)  # where an n-gram ends
        if ends.size == 0:
            raise NcelmError(
                f"no sentence of the text has {n} words, <s> and </s> counted: give an --order below {n}, or more text"
            )
        keys = ranks[ends - 1].astype(np.int64)
        keys *= size
        keys += ids[ends]  # history and last word in one number
        by_key = np.argsort(keys)
        keys = keys[by_key]
        where = ends[by_key]  # places where n-grams end, equal ones side by side
        del ends, by_key
        new = np.empty(keys.size, bool)
        new[0] = True
        np.not_equal(keys[1:], keys[:-1], out=new[1:])
        firsts = np.flatnonzero(new)
        distinct = keys[firsts]
        del keys
        seen = np.diff(firsts, append=where.size).astype(np.int32)
        suffixes = ranks[where[firsts]]
        bounds = np.searchsorted(distinct, np.arange(levels[-1].words.size + 1, dtype=np.int64) * size)
        levels.append(_Level((distinct % size).astype(np.int32), bounds, suffixes, seen, seen))
        del distinct, firsts
        below = levels[-2]
        before = np.bincount(suffixes, minlength=below.words.size).astype(np.int32)  # different words before each
        below.counts = np.where(before > 0, before, below.counts)
        ranks = np.full(ids.size, -1, np.int32)
        ranks[where] = np.cumsum(new, dtype=np.int32) - 1
        done(n)
    return levels


def _smooth(
    levels: list[_Level], vocabulary: int, least: list[int], done: Callable[[int], None]
) -> tuple[NGramModel, list[Discounts]]:
    """Interpolated modified Kneser–Ney: from counts to probabilities and back-off weights, order by order."""
    # Single words stay, whatever their count. Counts of longer n-grams are no higher and their limits no lower, so that
    # histories and suffixes of those that stay, stay.
    kept_counts = [int(np.count_nonzero(level.seen >= limit)) for level, limit in zip(levels, least, strict=True)]
    counts = (levels[0].words.size, *kept_counts[1:])
    if not all(counts):
        empty = 1 + next(n for n, count in enumerate(counts) if not count)
        raise NcelmError(
            f"no {empty}-gram was seen {least[empty - 1]} times: give lower --min-counts or a lower --order"
        )
    begins = np.cumsum((0, *counts)).tolist()  # of each order in the flat arrays
    model = NGramModel(
        counts=counts,
        words=np.empty(begins[-1], np.int32),
        children=np.full(begins[-2] + 1, begins[-1], np.int64),
        log_probabilities=np.empty(begins[-1], np.float32),
        log_backoffs=np.empty(begins[-2], np.float32),
    )
    discounts = []
    lower = np.full(vocabulary + 1, 1.0 / vocabulary)  # below the first order all words are alike
    kept_below = np.ones(1, bool)  # the empty history
    for n, limit in enumerate(least):
        level, begin, end = levels.pop(0), begins[n], begins[n + 1]  # popped: freed as soon as it is smoothed
        kept = level.seen >= limit if n else np.ones(level.words.size, bool)
        discounts.append(Discounts.estimate(level.counts))
        probabilities = np.empty(level.words.size, np.float64)
        logs, backoffs = np.empty(level.words.size, np.float32), np.empty(level.bounds.size - 1, np.float32)
        ngram_kernels.smooth(
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
        model.words[begin:end] = level.words[kept]
        model.log_probabilities[begin:end] = logs[kept]
        if n:
            before = np.zeros(kept.size + 1, np.int64)  # how many are kept before each
            np.cumsum(kept, out=before[1:])
            model.children[begins[n - 1] : begin] = before[level.bounds[:-1]][kept_below] + begin
            model.log_backoffs[begins[n - 1] : begin] = backoffs[kept_below]
        lower, kept_below = probabilities, kept
        done(n + 1)
    model.log_probabilities[vocabulary] = LEAST
    return model, discounts
