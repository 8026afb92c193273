"""Pointwise mutual information: words that stand in one sentence more often than chance would have it.

With n_v sentences of S that have the word v, and n_vw that have both v and w,

    PMI(v, w) = log (n_vw S / (n_v n_w))

and what is negative, or not known because the two never met, counts as nothing (Church & Hanks 1990). A candidate's
score in a sentence is the sum over the sentence's other words. The table of n_vw would be far larger than the text;
the sentences of each word and the words of each sentence are kept instead, and counted when somebody asks.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.io.files import atomic_folder, check_not_existing
from ncelm.io.machine import check_memory
from ncelm.io.metrics import Metrics
from ncelm.models import description
from ncelm.models.base import Blank
from ncelm.models.lsa import BYTES_PER_WORD, sentence_counts
from ncelm.text.settings import TextSettings
from ncelm.text.store import TokenStore
from ncelm.text.vocabulary import Vocabulary

ARRAYS = {"word_begins": "int64", "sentences": "int32", "sentence_begins": "int64", "words": "int32"}
AT_ONCE = 100_000  # sentences


@dataclass(frozen=True, eq=False)
class Pmi:
    """Who stands in one sentence with whom. A word counts once in a sentence; `<unk>` and `</s>` are no words."""

    word_begins: np.ndarray  # (V + 1,): the sentences of word w are sentences[word_begins[w] : word_begins[w + 1]]
    sentences: np.ndarray  # numbers of sentences, (n,)
    sentence_begins: np.ndarray  # (S + 1,): likewise the words of a sentence
    words: np.ndarray  # ids, (n,)
    vocabulary: Vocabulary
    text: TextSettings

    @classmethod
    def load(cls, path: Path | str) -> "Pmi":
        """Map a run of `train_pmi` into memory, and check what is relied on: no place lies outside."""
        path = Path(path)
        _, origin = description.read_kind(path, "pmi")
        arrays, _ = array_files.map_arrays(path / run.MODEL, ARRAYS)
        model = cls(**arrays, vocabulary=origin.vocabulary, text=origin.text)
        sentences = model.sentence_begins.size - 1
        if not (
            model.word_begins.size == len(origin.vocabulary) + 1
            and _are_begins(model.word_begins, model.sentences.size)
            and _are_begins(model.sentence_begins, model.words.size)
            and _are_numbers(model.sentences, sentences)
            and _are_numbers(model.words, len(origin.vocabulary))
        ):
            raise NcelmError(f"{path / run.MODEL} is damaged: restore it from a copy or train again")
        return model

    def choice_scores(self, blanks: Iterable[Blank]) -> Iterator[tuple[list[float], list[float]]]:
        """The sum of each choice's information about the other words of its sentence.

        A choice that is several words to the tokeniser has the sum of theirs. There is nothing to normalise.
        """
        for blank in blanks:
            others = self._known([*blank.before, *blank.after])
            parts = [self._known(choice) for choice in blank.choices]
            each = self._information(np.concatenate(parts), others).sum(axis=1)
            ends = np.cumsum([part.size for part in parts])
            scores = [float(some.sum()) for some in np.split(each, ends[:-1])]
            yield scores, scores

    def likeliest(self, before: list[str], after: list[str], n: int = 10) -> list[tuple[str, float]]:
        """The n words that these have the most information about."""
        everything = np.arange(len(self.vocabulary))
        scores = self._information(everything, self._known([*before, *after])).sum(axis=1)
        best = np.argsort(-scores, kind="stable")
        best = best[best > self.vocabulary.end_id][:n]  # neither <unk> nor </s> is an answer
        return [(self.vocabulary.word(int(i)), float(scores[i])) for i in best]

    def vectors(self, table: str = "context") -> np.ndarray:
        """There are none."""
        raise NcelmError("a PMI model has no word vectors: `ncelm lsa train` makes them from the same sentences")

    def neighbors(self, word: str, n: int = 10, table: str = "context") -> list[tuple[str, float]]:
        """There are none."""
        raise NcelmError("a PMI model has no word vectors: `ncelm lsa train` makes them from the same sentences")

    def _known(self, words: list[str]) -> np.ndarray:
        """Different ids, in order; neither <unk> nor </s>."""
        ids = np.array(list(dict.fromkeys(self.vocabulary.encode(words).tolist())), np.int64)
        return ids[ids > self.vocabulary.end_id]

    def _information(self, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        """PMI(v, w) where it is positive, else 0: (some, others). A word has none about itself."""
        counts = np.diff(self.word_begins)  # n_v, (V,)
        if counts[some].sum() > counts[others].sum():  # it is symmetric: ask those who are in fewer sentences
            return self._information(others, some).T
        met = np.array([self._met(v)[others] for v in some.tolist()]).reshape(some.size, others.size)  # n_vw
        chance = counts[some][:, None] * counts[others][None, :] / (self.sentence_begins.size - 1)
        ratio = np.divide(met, chance, out=np.ones(met.shape), where=met > chance)
        ratio[some[:, None] == others[None, :]] = 1.0
        return np.log(ratio)

    def _met(self, word: int) -> np.ndarray:
        """n_vw for every w: how many sentences have this word and that, (V,)."""
        answer = np.zeros(len(self.vocabulary), np.int64)
        numbers = self.sentences[self.word_begins[word] : self.word_begins[word + 1]]
        for first in range(0, numbers.size, AT_ONCE):
            some = numbers[first : first + AT_ONCE].astype(np.int64)
            begins, lengths = self.sentence_begins[some], self.sentence_begins[some + 1] - self.sentence_begins[some]
            # places of all their words: each sentence's begin, and on from there
            ends = np.cumsum(lengths)
            places = np.arange(ends[-1]) + np.repeat(begins - (ends - lengths), lengths)
            answer += np.bincount(self.words[places], minlength=answer.size)
        return answer


def _are_begins(begins: np.ndarray, end: int) -> bool:
    return bool(begins.size > 1 and begins[0] == 0 and begins[-1] == end and (np.diff(begins) >= 0).all())


def _are_numbers(numbers: np.ndarray, below: int) -> bool:
    return bool(numbers.size and numbers.min() >= 0 and numbers.max() < below)


def train_pmi(store: TokenStore | Path | str, out: Path | str) -> Pmi:
    """Note down the sentences of each word of a store's training text, and write the run `out`."""
    store, out = TokenStore.open(store), Path(out)
    check_not_existing(out)
    check_memory("PMI of this text", store.split("train").tokens * BYTES_PER_WORD, "give a shorter text")
    began = time.perf_counter()
    by_word = sentence_counts(store)
    if by_word.nnz == 0:
        raise NcelmError(f"{store.path} has no words that are known: give other text")
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
        Metrics(folder / run.METRICS).append({"finished": True, "seconds": time.perf_counter() - began})
    return Pmi.load(out)
