"""Queries of the models behind `ncelm.kenlm`: n-gram models by their index, other models word by word."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ncelm.arguments import shown
from ncelm.errors import ArgumentError, ArgumentTypeError, NcelmError
from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.language_model import LanguageModel
from ncelm.models.base import WordModel
from ncelm.models.generation import check_reads_forwards
from ncelm.models.mixture import Mixture
from ncelm.models.ngram.arpa import read_arpa
from ncelm.models.ngram.index import LineScores, build_index, score_lines
from ncelm.models.ngram.query import LN_10, NGramModel
from ncelm.progress import shown as shown_progress
from ncelm.text.settings import TextSettings

BINARY_MAGIC = b"mmap lm http://kheafield.com/code"  # the first bytes of KenLM's binary files


class Queries(Protocol):
    """Queries of a model: scores are log10 P; a word has log10 P, the length of its n-gram, whether it is unknown."""

    @property
    def order(self) -> int:
        """Return the length of the longest n-gram."""

    def score(self, sentence: str | bytes, bos: bool, eos: bool) -> float:
        """Return the score of a sentence."""

    def perplexity(self, sentence: str | bytes) -> float:
        """Return the perplexity of a sentence."""

    def scores(self, sentences: list[str], bos: bool, eos: bool) -> LineScores:
        """Return the scores of sentences."""

    def full_scores(self, sentence: str | bytes, bos: bool, eos: bool) -> Iterator[tuple[float, int, bool]]:
        """Yield the score of each word."""

    def start(self, bos: bool) -> np.ndarray:
        """Return the values of a state."""

    def step(self, values: np.ndarray, word: str | bytes, out: np.ndarray) -> tuple[float, int, bool, np.ndarray]:
        """Return the score of a word after a state, and the values of the next state, which may be written to `out`."""

    def knows(self, word: str | bytes) -> bool:
        """Return whether a word is in the vocabulary."""


def _as_bytes(text: str | bytes) -> bytes:
    """Return a sentence or a word as UTF-8."""
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise ArgumentError(f"{shown(text)} cannot be encoded as UTF-8: remove what is not a character") from None
    if isinstance(text, bytes):
        return text
    raise ArgumentTypeError(f"{shown(text)} is not text: give a str or bytes")


def _as_text(text: str | bytes) -> str:
    return text if isinstance(text, str) else _as_bytes(text).decode(errors="replace")


# -- n-gram models ---------------------------------------------------------------------------------------------------


class NGramQueries:
    """Queries of an n-gram model by its index."""

    def __init__(self, model: NGramModel, index: np.ndarray, words: Callable[[str], list[str]] | None) -> None:
        from ncelm.kernels import ngram_queries

        self.order, self._index, self._kernels = model.order, index, ngram_queries
        self._words = words  # the tokenizer; None: words are separated by white space
        self._score_line = ngram_queries.score_line  # calls are short: looking it up takes a part of their time
        self._line = _as_bytes if words is None else self._tokenized_line
        self._state_size = 3 * (model.order - 1)

    def _tokenized_line(self, sentence: str | bytes) -> bytes:
        assert self._words is not None
        return _as_bytes(" ".join(self._words(_as_text(sentence))))

    def score(self, sentence: str | bytes, bos: bool, eos: bool) -> float:
        """Return the score of a sentence."""
        return self._score_line(self._index, self._line(sentence), bos, eos)

    def perplexity(self, sentence: str | bytes) -> float:
        """Return the perplexity of a sentence."""
        line = self._line(sentence)
        return float(10.0 ** (-self._score_line(self._index, line, True, True) / (len(line.split()) + 1)))

    def scores(self, sentences: list[str], bos: bool, eos: bool) -> LineScores:
        """Return the scores of sentences."""
        words = self._words
        lines = sentences if words is None else [" ".join(words(sentence)) for sentence in sentences]
        return score_lines(self._index, lines, bos, eos)

    def full_scores(self, sentence: str | bytes, bos: bool, eos: bool) -> Iterator[tuple[float, int, bool]]:
        """Yield the score of each word."""
        line = self._line(sentence)
        most = len(line) // 2 + 2  # words and the end
        scores, lengths, unknown = np.empty(most), np.empty(most, np.int64), np.empty(most, np.bool_)
        n = self._kernels.score_words(self._index, line, bos, eos, scores, lengths, unknown)
        yield from zip(scores[:n].tolist(), lengths[:n].tolist(), unknown[:n].tolist(), strict=True)

    def start(self, bos: bool) -> np.ndarray:
        """Return the values of a state."""
        values = np.empty(self._state_size, np.int64)
        self._kernels.reset(self._index, bos, values)
        return values

    def step(self, values: np.ndarray, word: str | bytes, out: np.ndarray) -> tuple[float, int, bool, np.ndarray]:
        """Return the score of a word after a state, and the values of the next state, which may be written to `out`."""
        if values.size != self._state_size:
            if values.size:
                raise ArgumentError("`in_state` is of another model: set it with BeginSentenceWrite first")
            values = self.start(False)
        following = out if out.size == self._state_size else np.empty(self._state_size, np.int64)
        log10, length, id = self._kernels.score_word(self._index, values, _as_bytes(word), following)
        return log10, length, id == 0, following

    def knows(self, word: str | bytes) -> bool:
        """Return whether a word is in the vocabulary."""
        return bool(self._kernels.find_word(self._index, _as_bytes(word)) != 0)


# -- other models ----------------------------------------------------------------------------------------------------


class WordQueries:
    """Queries of a model of any kind that predicts a word from the words before it."""

    def __init__(self, lm: LanguageModel) -> None:
        check_reads_forwards(lm.model)
        self._lm, self._context = lm, _context(lm.model)

    @property
    def order(self) -> int:
        """1 + the number of context words."""
        if self._context is None:
            raise NcelmError("this model depends on all words before a word: it has no order")
        return self._context + 1

    def score(self, sentence: str | bytes, bos: bool, eos: bool) -> float:
        """Return the score of a sentence."""
        return float(self.scores([_as_text(sentence)], bos, eos).log10[0])

    def perplexity(self, sentence: str | bytes) -> float:
        """Return the perplexity of a sentence."""
        log10, words, _ = self.scores([_as_text(sentence)], True, True)
        return float(10.0 ** (-log10[0] / (words[0] + 1)))

    def scores(self, sentences: list[str], bos: bool, eos: bool) -> LineScores:
        """Return the scores of sentences."""
        scored = list(self._lm.scores_of(sentences, end=eos))
        log10 = np.array([score.log_probability for score in scored]) / LN_10
        counts = np.array([(score.tokens - eos, score.unknown) for score in scored], np.int64).reshape(-1, 2)
        return LineScores(log10, counts[:, 0], counts[:, 1])

    def full_scores(self, sentence: str | bytes, bos: bool, eos: bool) -> Iterator[tuple[float, int, bool]]:
        """Yield the score of each word."""
        for i, word in enumerate(self._lm.full_scores(_as_text(sentence), end=eos)):
            yield word.log_probability / LN_10, self._length(i), word.unknown

    def _length(self, before: int) -> int:
        """Return the length of the n-gram of a word with this number of words before it in its sentence."""
        return before + 2 if self._context is None else min(before + 2, self._context + 1)

    def start(self, bos: bool) -> np.ndarray:
        """Return the values of a state: no words."""
        return np.empty(0, np.int64)

    def step(self, values: np.ndarray, word: str | bytes, out: np.ndarray) -> tuple[float, int, bool, np.ndarray]:
        """Return the score of a word after a state, and the values of the next state."""
        vocabulary = self._lm.vocabulary
        id = vocabulary.id(_as_text(word))
        ids = np.append(values, id)
        if ids.min() < 0 or ids.max() >= len(vocabulary):  # queries do not check indices
            raise ArgumentError("`in_state` is of another model: set it with BeginSentenceWrite first")
        pad_id = _begin_id(self._lm)
        corpus = records.Corpus(records.read_only(ids.astype(np.uint32)), 0, True, vocabulary.end_id, pad_id)
        with Team(self._lm.threads) as team:
            score, log_z = self._lm.model.score_positions(corpus, values.size, ids.size, team)
        log10 = (float(score[0]) - float(log_z[0])) / LN_10
        kept = ids if self._context is None else ids[ids.size - min(self._context, ids.size) :]
        return log10, self._length(values.size), id == vocabulary.unknown_id, kept

    def knows(self, word: str | bytes) -> bool:
        """Return whether a word is in the vocabulary."""
        return self._lm.vocabulary.id(_as_text(word)) != self._lm.vocabulary.unknown_id


def _context(model: WordModel) -> int | None:
    """Return the number of words before a word that a prediction depends on; None for all."""
    if isinstance(model, NGramModel):
        return model.order - 1
    if isinstance(model, Mixture):
        sizes = [_context(component) for component in model.components]
        return None if None in sizes else max(size for size in sizes if size is not None)
    config: Any = getattr(model, "config", None)  # of log-bilinear and PyTorch models
    return None if config is None or config.architecture == "lstm" else int(config.context)


# -- loading ---------------------------------------------------------------------------------------------------------


def load(path: Path, progress: bool, threads: int | None = None) -> Queries:
    """Return the queries of a run, or of an ARPA file. N-gram models use one thread."""
    if path.is_dir():
        return _load_run(path, threads)
    _check_not_binary(path)
    with shown_progress(progress, desc="reading", unit=" n-grams", unit_scale=True) as report:
        model, vocabulary = read_arpa(path, None, report)
    return NGramQueries(model, build_index(model, vocabulary, vocabulary.out_of_sentence_id), None)


def _load_run(path: Path, threads: int | None) -> Queries:
    lm = LanguageModel.load(path, threads)
    if not isinstance(lm.model, NGramModel):
        return WordQueries(lm)
    words = None if lm.text == TextSettings() else lm.text.words
    return NGramQueries(lm.model, build_index(lm.model, lm.vocabulary, _begin_id(lm)), words)


def _begin_id(lm: LanguageModel) -> int:
    """Return the id in context positions before a sentence."""
    return lm.vocabulary.end_id if lm.boundary == "stream" else lm.vocabulary.out_of_sentence_id


def _check_not_binary(path: Path) -> None:
    try:
        with path.open("rb") as file:
            is_binary = file.read(len(BINARY_MAGIC)) == BINARY_MAGIC
    except OSError:
        return  # the reader reports it
    if is_binary:
        raise NcelmError("it is a binary file of KenLM: give the ARPA file that it was built from")
