"""N-gram back-off models in flat arrays: queries, and the file format.

The n-grams of an order are sorted by their first n - 1 words (their history), then by their last word, so that the
extensions of a history are adjacent: a trie in four arrays, order after order. The state of a query is the positions of
the 1-, 2-, …, (N - 1)-grams that end at the last word. For the next word, the child of each is found by binary search.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ncelm.arguments import check_ids
from ncelm.errors import ArgumentError, NcelmError
from ncelm.io import array_files, run
from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.models import description
from ncelm.models.base import Mode, Sides

if TYPE_CHECKING:
    from ncelm.kernels.ngram import Trie

MAX_ORDER = 10
LOG_ZERO = np.float32(-99.0)  # log10 of the probability of <s>, and of words without one, as in ARPA files
LOG_MISSING = np.float32(-100.0)  # of <unk> if an ARPA file does not have it, as in KenLM
LN_10 = float(np.log(10.0))
MAX_EXCESS = 1e-3  # log10 by which a probability may exceed 1, because the numbers of an ARPA file are rounded
VALIDATED = 1 << 22  # n-grams validated in one call
MAX_LOG = 1e4  # absolute values of logarithms are below this
# Arrays of a model file. int64 first, so that each array is aligned to the size of its items.
ARRAYS = {"children": "int64", "words": "int32", "log_probabilities": "float32", "log_backoffs": "float32"}


@dataclass(frozen=True, eq=False)
class NGramModel:
    """A back-off model: P(w|h) is that of the longest known suffix of h, times the back-off weights of longer ones.

    Symbols: V words and <s>, whose id is V; N orders; G n-grams of all orders, H of them below order N.
    """

    counts: tuple[int, ...]  # number of n-grams of each order
    words: np.ndarray  # last word of each n-gram, order after order, (G,) int32; order 1 is 0, 1, …, V
    children: np.ndarray  # start of the extensions of each n-gram in `words`, and the end of all, (H + 1,) int64
    # log10, as in ARPA files, so that reading and writing such a file changes nothing
    log_probabilities: np.ndarray  # (G,) float32; LOG_ZERO for <s>, which is never predicted
    log_backoffs: np.ndarray  # (H,) float32

    def __repr__(self) -> str:
        return f"NGramModel(order {self.order}, {sum(self.counts):,} n-grams)"

    @property
    def sides(self) -> Sides:
        """The context is before the predicted word."""
        return "before"

    @property
    def order(self) -> int:
        """The length N of the longest n-grams."""
        return len(self.counts)

    def view(self) -> "Trie":
        """Return the model in the form that compiled code accepts."""
        from ncelm.kernels.ngram import Trie

        arrays = (self.words, self.children, self.log_probabilities, self.log_backoffs)
        return Trie(self.order, *map(records.read_only, arrays))

    def score_positions(
        self, corpus: records.Corpus, first: int, last: int, team: Team, mode: Mode = "exact"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log P(w|h) of the words at positions first..last - 1, and log-normalizers, which are 0."""
        from ncelm.kernels import ngram as kernels

        out = np.empty(last - first, np.float64)
        ids, within_sentence, end_id, pad_id = corpus.ids, corpus.within_sentence, corpus.end_id, corpus.pad_id
        team.run(kernels.score_positions, 1, self.view(), ids, within_sentence, end_id, pad_id, first, last, out)
        return _checked(out) * LN_10, np.zeros(last - first)

    def distribution(self, before: np.ndarray, after: np.ndarray, pad_id: int) -> np.ndarray:
        """Return log P(w|h) of every word, (V,), after the words `before`; `after` is ignored."""
        return self.log_probabilities_after(np.concatenate([[pad_id], before]))

    def log_probabilities_after(self, history: np.ndarray | list[int]) -> np.ndarray:
        """Return log P(w|history) of every word, (V,). A history that starts a sentence starts with <s>, id V."""
        from ncelm.kernels import ngram as kernels

        ids, vocabulary_size = check_ids("history", history).astype(np.int64), self.counts[0] - 1
        if ids.size and not 0 <= ids.min() <= ids.max() <= vocabulary_size:  # queries do not check indices
            raise ArgumentError(f"`history` has an id that no word has: give ids from 0 to {vocabulary_size:,}")
        out = np.empty(vocabulary_size, np.float64)
        kernels.distribution(self.view(), ids, out)
        return _checked(out) * LN_10


def _checked(log_probabilities: np.ndarray) -> np.ndarray:
    """Return log-probabilities, at most 0; raise `NcelmError` if one of them is that of no probability."""
    if log_probabilities.size and log_probabilities.max() > MAX_EXCESS:
        raise NcelmError(
            f"this n-gram model gives a word the probability {10.0 ** min(log_probabilities.max(), 300.0):.4g}: its "
            "back-off weights are wrong; train or import it again"
        )
    return np.minimum(log_probabilities, 0.0)


def save(model: NGramModel, path: Path) -> None:
    """Write a model to a file that `load` maps into memory."""
    array_files.write_mapped(
        path, {name: getattr(model, name) for name in ARRAYS}, {"kind": "ngram", "counts": model.counts}
    )


def load(path: Path, vocabulary_size: int) -> NGramModel:
    """Map a file of `save` into memory. Validate it: queries do not check indices."""
    damaged = NcelmError(f"{path} is damaged: restore it from a copy or train again")
    arrays, header = array_files.map_arrays(path, ARRAYS)
    counts = header.get("counts")
    if not isinstance(counts, list) or not all(type(n) is int and 0 < n <= arrays["words"].size for n in counts):
        raise damaged
    if not 1 <= len(counts) <= MAX_ORDER or counts[0] != vocabulary_size + 1:
        raise damaged
    starts = np.cumsum([0, *counts], dtype=np.int64)  # of each order in `words`, and the end, (N + 1,)
    model = NGramModel(tuple(counts), **arrays)
    sizes_match = (
        model.words.size == model.log_probabilities.size == starts[-1]
        and model.log_backoffs.size == starts[-2]
        and model.children.size == starts[-2] + 1
    )
    # children of an n-gram are of the next order: a query cannot leave the arrays
    if not (sizes_match and np.array_equal(model.children[starts[:-1]], starts[1:]) and _is_sound(model)):
        raise damaged
    return model


def _is_sound(model: NGramModel) -> bool:
    """Return whether all indices and numbers of a model are in range. Between two blocks, Ctrl-C is answered."""
    from ncelm.kernels import ngram as kernels

    trie, unigrams = model.view(), model.counts[0]
    histories, total = model.children.size - 1, model.words.size
    return all(
        kernels.are_children_sound(trie, first, min(first + VALIDATED, histories))
        for first in range(0, histories, VALIDATED)
    ) and all(
        kernels.are_numbers_sound(trie, unigrams, first, min(first + VALIDATED, total))
        for first in range(0, total, VALIDATED)
    )


def write_run(folder: Path, model: NGramModel, origin: description.Origin, **more: Any) -> None:
    """Write the files of a run: description and model. `more` are further fields of config.json."""
    description.write_description(folder, "ngram", origin, order=model.order, **more)
    save(model, folder / run.MODEL)
