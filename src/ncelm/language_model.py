"""A trained model with its vocabulary: what `ncelm.load` gives. The verbs are those KenLM's users know.

All log-probabilities are natural logarithms, exactly normalised. An unknown word is scored as `<unk>` and marked; the
end of the sentence counts as a word, as in KenLM, unless `end=False`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, tee
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ncelm.errors import NcelmError
from ncelm.io import run
from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.models import description
from ncelm.models.base import Blank, Scorer, WordModel
from ncelm.models.ensemble import Ensemble
from ncelm.models.evaluate import Evaluation, Tally, evaluate_split
from ncelm.models.load import part_folders, read_model
from ncelm.models.lsa import Lsa
from ncelm.models.pmi import Pmi
from ncelm.models.vectors import nearest_words
from ncelm.text.settings import TextSettings
from ncelm.text.store import Boundary, TokenStore
from ncelm.text.vocabulary import END, Vocabulary

Sentence = str | Sequence[str]  # a line of text, split as the training text was; or words, taken as they are
BATCH_SENTENCES = 1024  # scored together: enough to keep the matrix products busy


@dataclass(frozen=True)
class WordScore:
    """One word of a sentence, as the model sees it."""

    word: str
    log_probability: float  # log P(word | context), natural logarithm
    unknown: bool  # not in the vocabulary: scored as <unk>


@dataclass(frozen=True)
class SentenceScore:
    """A sentence, as the model sees it."""

    log_probability: float  # the sum over its words, natural logarithm
    tokens: int  # words, and the end of the sentence if it counts
    unknown: int  # of them, scored as <unk>


class _Batch(NamedTuple):
    """Sentences that were scored together."""

    sentences: list[list[str]]
    ids: np.ndarray  # of all words and sentence ends, one after another, (n,)
    ends: np.ndarray  # where in it each sentence ends, (sentences,)
    scores: np.ndarray  # s(w, h), (n,)
    log_z: np.ndarray  # log Z(h), (n,)

    @property
    def logs(self) -> np.ndarray:
        """log P(w|h), (n,) float64."""
        return np.asarray(self.scores - self.log_z, np.float64)


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A model that can be asked about text."""

    model: WordModel
    vocabulary: Vocabulary
    boundary: Boundary
    text: TextSettings
    store_path: Path | None  # where the token store was in training, if there was one
    threads: int | None = None  # all cores

    @classmethod
    def load(cls, path: Path | str, threads: int | None = None) -> "LanguageModel":
        """Read a run: a log-bilinear model, one of PyTorch's, an n-gram model or a mixture."""
        path = Path(path)
        content = run.read_config(path)
        origin = description.read_origin(path, content)
        model = read_model(path, content, len(origin.vocabulary))
        return cls(model, origin.vocabulary, origin.boundary, origin.text, origin.store, threads)

    @property
    def two_sided(self) -> bool:
        """Does the model see both sides of the word it predicts? Then a sentence's score is not its probability."""
        return self.model.sides == "both"

    # -- sentences ----------------------------------------------------------------------------------------------------

    def score(self, sentence: Sentence, end: bool = True) -> float:
        """log P(sentence): the sum over its words, each given the words before it."""
        return next(self.scores_of([sentence], end)).log_probability

    def scores_of(
        self, sentences: Iterable[Sentence], end: bool = True, normalised: bool = True
    ) -> Iterator[SentenceScore]:
        """The score of each of many sentences, worked on in batches: read lazily, in bounded memory.

        Unless `normalised`, log P(w|h) is s(w, h), as if Z(h) were 1: about what NCE trains it to be, and far faster.
        """
        for batch in self._scored_batches(sentences, normalised):
            logs, starts = batch.logs, np.append(0, batch.ends[:-1] + 1)
            if not end:
                logs[batch.ends] = 0.0
            totals, tokens = np.add.reduceat(logs, starts), batch.ends - starts + end
            unknown = np.add.reduceat(batch.ids == self.vocabulary.unknown_id, starts, dtype=np.int64)
            yield from map(SentenceScore, totals.tolist(), tokens.tolist(), unknown.tolist())

    def full_scores(self, sentence: Sentence, end: bool = True) -> list[WordScore]:
        """log P of each word, in order, the end of the sentence last; unknown words are marked."""
        return next(self.full_scores_of([sentence], end))

    def full_scores_of(
        self, sentences: Iterable[Sentence], end: bool = True, normalised: bool = True
    ) -> Iterator[list[WordScore]]:
        """full_scores of each of many sentences, in batches and normalised or not as in `scores_of`."""
        unknown = self.vocabulary.unknown_id
        for batch in self._scored_batches(sentences, normalised):
            each = zip(batch.ids.tolist(), batch.logs.tolist(), strict=True)
            for words in batch.sentences:
                scored = [
                    WordScore(word, value, id == unknown)
                    for word, (id, value) in zip([*words, END], islice(each, len(words) + 1), strict=True)
                ]
                yield scored if end else scored[:-1]

    def choice_scores(self, blanks: Iterable[Blank]) -> Iterator[tuple[list[float], list[float]]]:
        """How well each choice fits into its gap (section 5 of the paper): log P of the whole sentence.

        Of a two-sided model, to which that is nothing, log P of the choice given both sides. The second numbers are the
        same with scores s(w, h) in place of log P(w|h), as if Z were 1.
        """
        blanks, to_fill = tee(blanks)
        filled = ([*blank.before, *choice, *blank.after] for blank in to_fill for choice in blank.choices)
        each_word = self._each_word(filled)
        for blank in blanks:
            answers: tuple[list[float], list[float]] = ([], [])
            for choice in blank.choices:
                for answer, words in zip(answers, next(each_word), strict=True):
                    counted = words[len(blank.before) :][: len(choice)] if self.two_sided else words
                    answer.append(float(counted.sum()))
            yield answers

    def _each_word(self, sentences: Iterable[Sentence]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """log P and s(w, h) of each word and of the end of each sentence."""
        for batch in self._scored_batches(sentences):
            bare, starts = np.asarray(batch.scores, np.float64), batch.ends[:-1] + 1
            yield from zip(np.split(batch.logs, starts), np.split(bare, starts), strict=True)

    def likeliest(
        self, before: Sequence[str], after: Sequence[str], n: int = 10, tried: int = 1000
    ) -> list[tuple[str, float]]:
        """The n likeliest words between these, with log P of the sentence, or of the word if the model is two-sided.

        Of a model that sees one side, the `tried` words likeliest by that side are tried in the sentence.
        """
        words = self.vocabulary
        left, right = words.encode(before), words.encode(after)
        logs = self.model.distribution(left, right, self._alone(np.zeros(0, np.uint32)).pad_id)  # (V,)
        logs[[words.unknown_id, words.end_id]] = -np.inf  # neither is an answer
        best = np.argsort(-logs, kind="stable")[: n if self.two_sided else tried]
        spelled = [words.word(int(i)) for i in best if np.isfinite(logs[i])]
        if self.two_sided:
            return [(word, float(logs[i])) for word, i in zip(spelled, best, strict=False)]
        ((scores, _),) = self.choice_scores([Blank(list(before), [[word] for word in spelled], list(after))])
        order = sorted(range(len(spelled)), key=lambda i: -scores[i])[:n]
        return [(spelled[i], scores[i]) for i in order]

    def perplexity(self, sentences: str | Iterable[Sentence]) -> float:
        """exp(−mean log P(word)) over all words and ends of one line or of many sentences, unknown words included."""
        return self.evaluate([sentences] if isinstance(sentences, str) else sentences).perplexity

    def evaluate(self, sentences: Iterable[Sentence]) -> Evaluation:
        """Perplexity with everything that was counted, each sentence scored by itself."""
        tally, n_sentences, unknown = Tally(), 0, 0
        for batch in self._scored_batches(sentences):
            tally.add(batch.scores, batch.log_z)
            n_sentences += len(batch.sentences)
            unknown += int(np.count_nonzero(batch.ids == self.vocabulary.unknown_id))
        if n_sentences == 0:
            raise NcelmError("there is no text to evaluate: perplexity needs at least one sentence")
        return tally.result(n_sentences, unknown)

    def evaluate_split(self, store: TokenStore | Path | str, name: str) -> Evaluation:
        """Perplexity on a split of a token store, which must have the vocabulary this model was trained with."""
        store = TokenStore.open(store)
        self.check_store(store)
        with Team(self.threads) as team:
            return evaluate_split(self.model, store, name, team)

    def check_store(self, store: TokenStore) -> None:
        """Refuse a store whose numbers mean other words than this model's, or whose text was read in another way."""
        if (store.boundary, store.text) != (self.boundary, self.text):
            raise NcelmError(
                f"{store.path} was prepared in another way than the model's text ({store.boundary}, {store.text}; the "
                f"model: {self.boundary}, {self.text}): give the store that the model was trained on"
            )
        if store.vocabulary.digest != self.vocabulary.digest:
            raise NcelmError(
                f"{store.path} has another vocabulary than the model, so its ids mean other words: give the store that "
                "the model was trained on, or the text itself with --file"
            )

    def _scored_batches(self, sentences: Iterable[Sentence], normalised: bool = True) -> Iterator[_Batch]:
        """Sentences in batches, with id, s(w, h) and log Z(h) of every word and sentence end, one after another."""
        iterator = iter(sentences)
        with Team(self.threads) as team:
            while batch := [self._words(sentence) for sentence in islice(iterator, BATCH_SENTENCES)]:
                ids, ends = self._encode(batch)
                yield _Batch(
                    batch, ids, ends, *self.model.score_positions(self._alone(ids), 0, ids.size, team, normalised)
                )

    def _words(self, sentence: Sentence) -> list[str]:
        if isinstance(sentence, str):
            return self.text.words(sentence)
        words = list(sentence)
        if not all(isinstance(word, str) for word in words):
            raise NcelmError(f"a sentence is a string or a list of strings, not {str(sentence)[:40]}")
        return words

    def _encode(self, sentences: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all words and sentence ends, and where the ends are."""
        ends = np.cumsum([len(words) + 1 for words in sentences]) - 1
        ids = np.full(ends[-1] + 1, self.vocabulary.end_id, np.uint32)
        is_word = np.ones(ids.size, np.bool_)
        is_word[ends] = False
        ids[is_word] = self.vocabulary.encode(list(chain.from_iterable(sentences)))
        return ids, ends

    def _alone(self, ids: np.ndarray) -> records.Corpus:
        """Each sentence by itself: contexts end at its ends, and outside is padding, as at the start of a text."""
        words = self.vocabulary
        pad = words.end_id if self.boundary == "stream" else words.out_of_sentence_id
        return records.Corpus(ids, 0, True, words.end_id, pad)

    # -- words --------------------------------------------------------------------------------------------------------

    def neighbors(self, word: str, n: int = 10, table: str = "context") -> list[tuple[str, float]]:
        """The n words whose vectors point most nearly the same way, with the cosine of the angle."""
        return nearest_words(self.vectors(table), self.vocabulary, self.text, word, n)

    def vectors(self, table: str = "context") -> np.ndarray:
        """Word vectors, (V, d): as words of a context (r_w) or as predicted words (q_w)."""
        arrays = self.model.arrays() if hasattr(self.model, "arrays") else {}
        if "context_vectors" not in arrays:
            raise NcelmError("this model has no word vectors: log-bilinear, feed-forward and LSTM models have, and LSA")
        as_context = arrays["context_vectors"][:-1]  # without the out-of-sentence word
        match table:
            case "context":
                return as_context
            case "target":
                return arrays.get("target_vectors", as_context)  # one table may serve for both
        raise NcelmError(f"there is no table of vectors {table!r}: choose context or target")


def load_scorer(path: Path | str, threads: int | None = None) -> Scorer:
    """Read a run of any kind, those that give words no probabilities (LSA, PMI, ensembles) too."""
    path = Path(path)
    match run.read_config(path)["kind"]:
        case "lsa":
            return Lsa.load(path)
        case "pmi":
            return Pmi.load(path)
        case "ensemble":
            return load_ensemble(path, threads)
    return LanguageModel.load(path, threads)


def load_ensemble(path: Path | str, threads: int | None = None) -> Ensemble:
    """Read a run of `blend`."""
    path = Path(path)
    content = run.read_config(path)
    origin = description.read_origin(path, content)
    folders = part_folders(path, content)
    weights = content.get("weights")
    if not (isinstance(weights, list) and len(weights) == len(folders) and all(map(_two_numbers, weights))):
        raise run.damaged_config(path)
    parts = tuple(load_scorer(folder, threads) for folder in folders)
    return Ensemble(parts, np.array(weights), origin.vocabulary, origin.text)


def _two_numbers(weights: object) -> bool:
    return isinstance(weights, list) and len(weights) == 2 and all(type(weight) is float for weight in weights)
