"""Pointwise mutual information (PMI) of words that occur in the same sentence.

With S sentences, n_v of which contain the word v and n_vw both v and w,

    PMI(v, w) = log (n_vw S / (n_v n_w))

Negative values, and pairs that never occur together, count as 0 (Church & Hanks 1990). The score of a word in a
sentence is the sum of its PMI with the other words. A table of all n_vw would be much larger than the text. The model
is instead a co-occurrence index: the sentences of each word and the words of each sentence; n_vw is counted on demand.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path

import numpy as np

from ncelm.arguments import check_int, check_path
from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.io.files import atomic_folder, check_not_existing
from ncelm.io.machine import check_memory
from ncelm.io.metrics import Metrics
from ncelm.models import description
from ncelm.models.base import ChoiceScores, Gap, Table, check_words_around, checked_gaps
from ncelm.models.lsa import BYTES_PER_WORD, sentence_counts
from ncelm.text.settings import TextSettings
from ncelm.text.store import TokenStore, store_or_path
from ncelm.text.vocabulary import Vocabulary

ARRAYS = {"word_begins": "int64", "sentences": "int32", "sentence_begins": "int64", "words": "int32"}
BATCH_SENTENCES = 100_000  # whose words are counted in one call; bounds the memory
BATCH_INDICES = 1 << 22  # counted in one call
NO_VECTORS = "a PMI model has no word vectors: train an LSA model on the same store, with `ncelm lsa train`"


@dataclass(frozen=True, eq=False)
class Pmi:
    """The co-occurrence index of a text. A word counts once per sentence; `<unk>` and `</s>` do not count."""

    word_begins: np.ndarray  # (V + 1,): the sentences of word w are sentences[word_begins[w] : word_begins[w + 1]]
    sentences: np.ndarray  # indices of sentences, (n,)
    sentence_begins: np.ndarray  # (S + 1,): the words of sentence s are words[sentence_begins[s] : …[s + 1]]
    words: np.ndarray  # ids, (n,)
    vocabulary: Vocabulary
    text: TextSettings

    @classmethod
    def load(cls, path: Path | str) -> "Pmi":
        """Map a run of `train_pmi` into memory. Validate that no index is out of range, and that both halves agree."""
        path = check_path("path", path)
        _, origin = description.read_kind(path, "pmi")
        arrays, _ = array_files.map_arrays(path / run.MODEL, ARRAYS)
        model = cls(**arrays, vocabulary=origin.vocabulary, text=origin.text)
        sentences = model.sentence_begins.size - 1
        if not (
            model.word_begins.size == len(origin.vocabulary) + 1
            and _are_offsets(model.word_begins, model.sentences.size)
            and _are_offsets(model.sentence_begins, model.words.size)
            and _are_indices(model.sentences, sentences)
            and _are_indices(model.words, len(origin.vocabulary))
            # both halves of the index describe the same pairs
            and _have_counts(model.words, np.diff(model.word_begins))
            and _have_counts(model.sentences, np.diff(model.sentence_begins))
        ):
            raise NcelmError(f"{path / run.MODEL} is damaged: restore it from a copy or train again")
        return model

    def __repr__(self) -> str:
        return f"Pmi({self.sentence_begins.size - 1:,} sentences, {len(self.vocabulary):,} words)"

    @property
    def log_unknown_types(self) -> None:
        """None: PMI is not a probability, and unknown words have none."""
        return

    def choice_scores(self, gaps: Iterable[Gap]) -> Iterator[ChoiceScores]:
        """Return the sum of the PMI of each choice with the other words of the sentence.

        The score of a choice of several tokens is the sum of theirs. Choices for several gaps also have the PMI of the
        tokens in different gaps. An unknown word adds 0.
        """
        return map(self._choice_scores, checked_gaps(gaps))

    def _choice_scores(self, gap: Gap) -> ChoiceScores:
        others = self._known(gap.others)
        choices = [[self._known(tokens) for tokens in fillers] for fillers in gap.fillers()]
        per_token = self._positive_pmi(np.concatenate(list(chain.from_iterable(choices))), others).sum(axis=1)
        ends = np.cumsum([sum(tokens.size for tokens in fillers) for fillers in choices])
        scores = [
            float(tokens.sum()) + sum(float(self._positive_pmi(*pair).sum()) for pair in combinations(fillers, 2))
            for tokens, fillers in zip(np.split(per_token, ends[:-1]), choices, strict=True)
        ]
        return ChoiceScores(scores, scores)

    def most_likely(self, before: Sequence[str], after: Sequence[str], n: int = 10) -> list[tuple[str, float]]:
        """Return the n words with the largest sum of PMI with these, and the sums."""
        before, after = check_words_around(before, after)
        n = check_int("n", n, 1)
        everything = np.arange(len(self.vocabulary))
        scores = self._positive_pmi(everything, self._known([*before, *after])).sum(axis=1)  # (V,)
        best = np.argsort(-scores, kind="stable")
        best = best[best > self.vocabulary.end_id][:n]  # neither <unk> nor </s>
        return [(self.vocabulary.word(int(i)), float(scores[i])) for i in best]

    def vectors(self, table: Table = "context") -> np.ndarray:
        """Raise `NcelmError`: a PMI model has no word vectors."""
        raise NcelmError(NO_VECTORS)

    def neighbors(self, word: str, n: int = 10, table: Table = "context") -> list[tuple[str, float]]:
        """Raise `NcelmError`: a PMI model has no word vectors."""
        raise NcelmError(NO_VECTORS)

    def _known(self, words: list[str]) -> np.ndarray:
        """Return the distinct ids of words, in order, without `<unk>` and `</s>`."""
        ids = np.array(list(dict.fromkeys(self.vocabulary.encode(words).tolist())), np.int64)
        return ids[ids > self.vocabulary.end_id]

    def _positive_pmi(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return max(PMI(v, w), 0) for words v of `rows` and w of `columns`; 0 for v = w."""
        counts = np.diff(self.word_begins)  # n_v, (V,)
        if counts[rows].sum() > counts[columns].sum():  # PMI is symmetric: count in fewer sentences
            return self._positive_pmi(columns, rows).T
        together = np.array([self._cooccurrences(v)[columns] for v in rows.tolist()])  # n_vw
        together = together.reshape(rows.size, columns.size)
        expected = counts[rows][:, None] * counts[columns][None, :] / (self.sentence_begins.size - 1)
        ratio: np.ndarray = np.divide(together, expected, out=np.ones(together.shape), where=together > expected)
        ratio[rows[:, None] == columns[None, :]] = 1.0
        np.log(ratio, out=ratio)
        return ratio

    def _cooccurrences(self, word: int) -> np.ndarray:
        """Return n_vw of this word v and every word w: the number of sentences that contain both, (V,)."""
        counts = np.zeros(len(self.vocabulary), np.int64)
        indices = self.sentences[self.word_begins[word] : self.word_begins[word + 1]]
        for first in range(0, indices.size, BATCH_SENTENCES):
            batch = indices[first : first + BATCH_SENTENCES].astype(np.int64)
            begins = self.sentence_begins[batch]
            lengths = self.sentence_begins[batch + 1] - begins
            # positions of the words of all sentences: begin, begin + 1, …, for each sentence
            ends = np.cumsum(lengths)
            positions = np.arange(ends[-1]) + np.repeat(begins - (ends - lengths), lengths)
            counts += np.bincount(self.words[positions], minlength=counts.size)
        return counts


def _are_offsets(offsets: np.ndarray, end: int) -> bool:
    # compared, not subtracted: a difference of int64 may overflow
    return bool(offsets.size > 1 and offsets[0] == 0 and offsets[-1] == end and (offsets[:-1] <= offsets[1:]).all())


def _are_indices(indices: np.ndarray, size: int) -> bool:
    return bool(indices.size and indices.min() >= 0 and indices.max() < size)


def _have_counts(indices: np.ndarray, counts: np.ndarray) -> bool:
    """Return whether each index i occurs counts[i] times."""
    found = np.zeros(counts.size, np.int64)
    for first in range(0, indices.size, BATCH_INDICES):  # bincount makes a copy
        found += np.bincount(indices[first : first + BATCH_INDICES], minlength=counts.size)
    return np.array_equal(found, counts)


def train_pmi(store: TokenStore | Path | str, out: Path | str) -> Pmi:
    """Build the co-occurrence index of the training text of a store, write the run `out`, and return the model."""
    store, out = store_or_path("store", store), check_path("out", out)
    store = TokenStore.open(store)
    check_not_existing(out)
    check_memory("PMI of this text", store.split("train").tokens * BYTES_PER_WORD, "give a shorter text")
    start = time.perf_counter()
    by_word = sentence_counts(store)
    if by_word.nnz == 0:
        raise NcelmError(f"{store.path} has no known words: give other text")
    by_sentence = by_word.T.tocsr()
    arrays: dict[str, np.ndarray] = {
        "word_begins": by_word.indptr.astype(np.int64),
        "sentences": by_word.indices.astype(np.int32),
        "sentence_begins": by_sentence.indptr.astype(np.int64),
        "words": by_sentence.indices.astype(np.int32),
    }
    origin = description.Origin.of(store)
    with atomic_folder(out) as folder:
        description.write_description(folder, "pmi", origin)
        array_files.write_mapped(folder / run.MODEL, arrays, {"kind": "pmi"})
        Metrics(folder / run.METRICS).append({"finished": True, "seconds": time.perf_counter() - start})
    return Pmi.load(out)
