"""Language models for users: a word model with its vocabulary and tokenization. `ncelm.load` returns one.

The methods `score`, `full_scores` and `perplexity` are those of KenLM, with natural logarithms. Probabilities are
exactly normalised. Words that are not in the vocabulary are scored as `<unk>`. The end of a sentence counts as a word
unless `end=False`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice, tee
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, get_args, overload

import numpy as np

from ncelm.arguments import (
    check,
    check_bool,
    check_choice,
    check_int,
    check_iterable,
    check_path,
    check_str,
    check_strings,
    check_type,
    shown,
)
from ncelm.errors import ArgumentTypeError, NcelmError
from ncelm.kernels import records
from ncelm.kernels.threads import Team, check_threads
from ncelm.models import generation
from ncelm.models import load as model_loading
from ncelm.models.base import ChoiceScores, Gap, Mode, Scorer, Table, WordModel, check_words_around, checked_gaps
from ncelm.models.description import Origin
from ncelm.models.evaluate import Evaluation, EvaluationSums, evaluate_split
from ncelm.models.line_encoder import LineEncoder
from ncelm.models.normalizer import Normalizer, NormalizerError
from ncelm.models.vectors import nearest_words, word_vectors
from ncelm.text.settings import TextSettings, TextSize
from ncelm.text.store import Boundary, TokenStore, store_or_path
from ncelm.text.vocabulary import END, Vocabulary


class Tokens(tuple[str, ...]):
    """A sentence that is already split into words. (A list is a list of sentences, never one sentence.)

    >>> Tokens(["the", "cat"])
    Tokens(['the', 'cat'])
    """

    __slots__ = ()

    def __new__(cls, words: Iterable[str]) -> "Tokens":
        """Return the words as a sentence."""
        return super().__new__(cls, check_strings("words", words))

    def __repr__(self) -> str:
        return f"Tokens({list(self)})"


Sentence = str | Tokens  # a line of text, which is tokenized like the training text, or its words
BATCH_SENTENCES = 1024  # scored in one call; enough for efficient matrix products
LINES_TO_COMPILE = 32  # fewer lines are encoded without a compiled kernel, which takes some time to load


@dataclass(frozen=True)
class WordScore:
    """The score of one word of a sentence."""

    word: str
    log_probability: float  # log P(word | context), natural logarithm
    unknown: bool  # not in the vocabulary, scored as <unk>


@dataclass(frozen=True)
class SentenceScore:
    """The score of a sentence."""

    log_probability: float  # sum over its words, natural logarithm
    tokens: int  # number of words, including the end of the sentence if it is counted
    unknown: int  # number of words scored as <unk>


@dataclass(frozen=True)
class Generated:
    """A sentence that a model has generated."""

    text: str  # the sentence with the prompt, detokenized if the training text is prose
    words: tuple[str, ...]  # the words after the prompt, without the end of the sentence
    log_probability: float  # of these words, and of the end of the sentence if it was generated; natural logarithm
    finished: bool  # whether the sentence has ended; False if it has reached the largest number of words
    prompt: int = 0  # the index of the prompt, if there are several


@dataclass(frozen=True)
class GeneratedWord:
    """A word that a model has generated, as it is streamed."""

    sentence: int  # the index of the sentence
    word: str  # </s> at the end of the sentence
    log_probability: float  # log P(word | context), natural logarithm


class _ScoredBatch(NamedTuple):
    """Sentences with the scores of their words, n in total, including the ends of the sentences."""

    sentences: list[Any]  # each a sentence, or its words in a list
    ids: np.ndarray  # (n,)
    ends: np.ndarray  # index of the last word, </s>, of each sentence, (sentences,)
    scores: np.ndarray  # s(w, h), (n,)
    log_z: np.ndarray  # log Z(h), (n,)

    @property
    def log_probabilities(self) -> np.ndarray:
        """log P(w|h), (n,) float64."""
        return np.asarray(self.scores - self.log_z, np.float64)


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A word model with its vocabulary and tokenization."""

    model: WordModel
    vocabulary: Vocabulary
    boundary: Boundary
    text: TextSettings
    store_path: Path | None  # the token store of the training text; None for a model from an ARPA file
    threads: int | None = None  # None: all cores
    team: Team | None = None  # open threads that all calls share; None: each call starts its own

    def __repr__(self) -> str:
        return f"LanguageModel({self.model}, {len(self.vocabulary):,} words)"

    @classmethod
    def load(cls, path: Path | str, threads: int | None = None) -> "LanguageModel":
        """Return the model of a run: a log-bilinear model, a PyTorch model, an n-gram model or a mixture."""
        path, threads = check_path("path", path), check_threads(threads)
        return cls.of(*model_loading.load_word_model(path), threads=threads)

    @classmethod
    def of(cls, model: WordModel, origin: Origin, threads: int | None = None) -> "LanguageModel":
        """Return a language model of a word model and the origin of its training text."""
        return cls(model, origin.vocabulary, origin.boundary, origin.text, origin.store, check_threads(threads))

    def _team(self) -> AbstractContextManager[Team]:
        """Return an open team of threads, which the block may use."""
        return Team(self.threads) if self.team is None else nullcontext(self.team)

    @property
    def two_sided(self) -> bool:
        """Whether the context is on both sides of the predicted word: the score of a sentence is no probability."""
        return self.model.sides == "both"

    @property
    def normalizer_error(self) -> NormalizerError | None:
        """The error of scores in the mode "fast", measured on held-out text; None if there is no normalizer."""
        normalizer = getattr(self.model, "normalizer", None)
        return normalizer.error if isinstance(normalizer, Normalizer) else None

    # -- sentences ----------------------------------------------------------------------------------------------------

    # a string is also an iterable of strings: the first overload that matches counts
    @overload
    def score(self, sentence: Sentence, end: bool = True, mode: Mode = "exact") -> float: ...  # type: ignore[overload-overlap]

    @overload
    def score(self, sentence: Iterable[Sentence], end: bool = True, mode: Mode = "exact") -> list[float]: ...

    def score(
        self, sentence: Sentence | Iterable[Sentence], end: bool = True, mode: Mode = "exact"
    ) -> float | list[float]:
        """Return log P(sentence), the sum of log P(w|h) over its words; of a list of sentences, a list of these.

        `mode` is that of `scores_of`.
        """
        if isinstance(sentence, str | Tokens):
            return next(self.scores_of([sentence], end, mode)).log_probability
        check_iterable("sentence", sentence, "a string, Tokens, or a list of sentences")
        return [score.log_probability for score in self.scores_of(sentence, end, mode)]

    def scores_of(
        self, sentences: Iterable[Sentence], end: bool = True, mode: Mode = "exact", *, normalised: bool | None = None
    ) -> Iterator[SentenceScore]:
        """Yield the score of each sentence. Sentences are read lazily, in batches.

        Args:
            sentences: strings or Tokens.
            end: whether the end of the sentence counts as a word.
            mode: "exact" computes log Z(h) as a sum over the vocabulary. "fast" estimates it from a few hundred
                numbers: the model needs a normalizer, and `normalizer_error` has the error of the estimate.
                "unnormalised" returns s(w, h) in place of log P(w|h), as if Z(h) were 1: NCE trains models to be
                approximately normalised. N-gram models are normalised in every mode; a mixture applies the mode to its
                components.
            normalised: former name of two modes: True for "exact", False for "unnormalised".
        """
        _check_sentences(sentences, end)
        return self._scores_of(sentences, end, _checked_mode(mode, normalised))

    def _scores_of(self, sentences: Iterable[Sentence], end: bool, mode: Mode) -> Iterator[SentenceScore]:
        for batch in self._scored_batches(map(_checked_sentence, sentences), mode):
            logs, starts = batch.log_probabilities, np.append(0, batch.ends[:-1] + 1)
            if not end:
                logs[batch.ends] = 0.0
            totals, tokens = np.add.reduceat(logs, starts), batch.ends - starts + end
            unknown = np.add.reduceat(batch.ids == self.vocabulary.unknown_id, starts, dtype=np.int64)
            yield from map(SentenceScore, totals.tolist(), tokens.tolist(), unknown.tolist())

    def full_scores(self, sentence: Sentence, end: bool = True, mode: Mode = "exact") -> list[WordScore]:
        """Return the score of each word of a sentence, the end of the sentence last."""
        _check_sentence("sentence", sentence)
        return next(self.full_scores_of([sentence], end, mode))

    def full_scores_of(
        self, sentences: Iterable[Sentence], end: bool = True, mode: Mode = "exact", *, normalised: bool | None = None
    ) -> Iterator[list[WordScore]]:
        """Yield `full_scores` of each sentence. Sentences are read lazily; the arguments are those of `scores_of`."""
        _check_sentences(sentences, end)
        return self._full_scores_of(sentences, end, _checked_mode(mode, normalised))

    def _full_scores_of(self, sentences: Iterable[Sentence], end: bool, mode: Mode) -> Iterator[list[WordScore]]:
        unknown = self.vocabulary.unknown_id
        for batch in self._scored_batches(map(self._words, sentences), mode):
            scores = zip(batch.ids.tolist(), batch.log_probabilities.tolist(), strict=True)
            for words in batch.sentences:
                scored = [
                    WordScore(word, value, id == unknown)
                    for word, (id, value) in zip([*words, END], islice(scores, len(words) + 1), strict=True)
                ]
                yield scored if end else scored[:-1]

    def perplexity(self, sentences: Sentence | Iterable[Sentence]) -> float:
        """Return exp(-mean log P(w|h)) over all words and sentence ends of one sentence or of several."""
        return self.evaluate([sentences] if isinstance(sentences, str | Tokens) else sentences).perplexity

    def evaluate(self, sentences: Iterable[Sentence]) -> Evaluation:
        """Return the perplexity of sentences, each scored on its own, and the counts on which it is based."""
        _check_sentences(sentences)
        sums, n_sentences, unknown, words, size = EvaluationSums(), 0, 0, 0, 0

        def counted(sentence: Sentence) -> Sentence:
            nonlocal words, size
            sentence = _checked_sentence(sentence)
            found = TextSize.of(sentence if isinstance(sentence, str) else self.text.join(sentence))
            words, size = words + found.words, size + found.bytes
            return sentence

        for batch in self._scored_batches(map(counted, sentences)):
            sums.add(batch.scores, batch.log_z)
            n_sentences += len(batch.sentences)
            unknown += int(np.count_nonzero(batch.ids == self.vocabulary.unknown_id))
        if n_sentences == 0:
            raise NcelmError("there is no text to evaluate: perplexity needs at least one sentence")
        return sums.result(n_sentences, unknown, TextSize(words, size))

    def evaluate_split(self, store: TokenStore | Path | str, name: str) -> Evaluation:
        """Return the perplexity on a split of a token store, which must have the vocabulary of the model."""
        store, name = store_or_path("store", store), check_str("name", name)
        store = TokenStore.open(store)
        self.check_store(store)
        with self._team() as team:
            return evaluate_split(self.model, store, name, team)

    def check_store(self, store: TokenStore) -> None:
        """Raise `NcelmError` if a store has another vocabulary, boundary or tokenization than the model."""
        check_type("store", store, isinstance(store, TokenStore), "an open token store")
        if (store.boundary, store.text) != (self.boundary, self.text):
            raise NcelmError(
                f"{store.path} was prepared with other settings than the model's text ({store.boundary}, {store.text}; "
                f"the model: {self.boundary}, {self.text}): give the store that the model was trained on"
            )
        if store.vocabulary.digest != self.vocabulary.digest:
            raise NcelmError(
                f"{store.path} has another vocabulary than the model: give the store that the model was trained on, or "
                "evaluate the text file itself"
            )

    # -- gaps ---------------------------------------------------------------------------------------------------------

    @property
    def log_unknown_types(self) -> float | None:
        """The logarithm of the number of words that `<unk>` stands for; None if it is not in the training text."""
        types = self.vocabulary.unknown_types
        return math.log(types) if types else None

    def choice_scores(self, gaps: Iterable[Gap]) -> Iterator[ChoiceScores]:
        """Return log P of the sentence with each choice in its gaps (section 5 of the paper).

        If the model is two-sided, the score is log P(choice | both sides) instead. The unnormalised scores have s(w, h)
        in place of log P(w|h). Scores of several tokens are sums; they are not divided by the number of tokens.
        Unknown words are scored as `<unk>`.
        """
        return self._choice_scores(checked_gaps(gaps))

    def _choice_scores(self, gaps: Iterable[Gap]) -> Iterator[ChoiceScores]:
        gaps, to_fill = tee(gaps)
        word_scores = self._word_scores(gap.filled(fillers)[0] for gap in to_fill for fillers in gap.fillers())
        for gap in gaps:
            scores = ChoiceScores([], [])
            for fillers in gap.fillers():
                for values, words in zip(scores, next(word_scores), strict=True):
                    counted = words[gap.filled(fillers)[1]] if self.two_sided else words
                    values.append(float(counted.sum()))
            yield scores

    def _word_scores(self, sentences: Iterable[list[str]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield log P(w|h) and s(w, h) of the words and the end of each sentence, both (n,) float64."""
        for batch in self._scored_batches(sentences):
            scores, starts = np.asarray(batch.scores, np.float64), batch.ends[:-1] + 1
            yield from zip(np.split(batch.log_probabilities, starts), np.split(scores, starts), strict=True)

    def most_likely(
        self, before: Sequence[str], after: Sequence[str], n: int = 10, candidates: int = 1000
    ) -> list[tuple[str, float]]:
        """Return the n words with the highest scores between these words, and their `choice_scores`.

        If the model is not two-sided, only the words that are most likely given its side are scored: `candidates`
        words.
        """
        before, after = check_words_around(before, after)
        n, candidates = check_int("n", n, 1), check_int("candidates", candidates, 1)
        words = self.vocabulary
        left, right = words.encode(before), words.encode(after)
        logs = self.model.distribution(left, right, self._pad_id)  # (V,)
        logs[[words.unknown_id, words.end_id]] = -np.inf
        best = np.argsort(-logs, kind="stable")[: n if self.two_sided else candidates]
        spelled = [words.word(int(i)) for i in best if np.isfinite(logs[i])]
        if self.two_sided:
            return [(word, float(logs[i])) for word, i in zip(spelled, best, strict=False)]
        ((scores, _),) = self.choice_scores([Gap(before, [[word] for word in spelled], after)])
        order = sorted(range(len(spelled)), key=lambda i: -scores[i])[:n]
        return [(spelled[i], scores[i]) for i in order]

    # -- distributions ------------------------------------------------------------------------------------------------

    def distribution(self, before: Sentence, after: Sentence = "") -> np.ndarray:
        """Return log P(w|h) of every word of the vocabulary, (V,) float64, after the words `before` of a sentence.

        A model that sees words after the predicted one also uses the words `after`. The order is that of
        `vocabulary.words`.
        """
        _check_sentence("before", before)
        _check_sentence("after", after)
        left, right = (self.vocabulary.encode(self._words(words)) for words in (before, after))
        return self.model.distribution(left, right, self._pad_id)

    def next_words(self, context: Sentence, n: int = 10) -> list[tuple[str, float]]:
        """Return the n most likely words after the beginning of a sentence, and log P of each.

        The end of the sentence, `</s>`, is one of the words; `<unk>` is not shown.
        """
        _check_sentence("context", context)
        n, logs = check_int("n", n, 1), self.distribution(context)
        best = np.argsort(-logs, kind="stable")
        return [(self.vocabulary.word(int(i)), float(logs[i])) for i in best if i != self.vocabulary.unknown_id][:n]

    # -- generation ---------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: Sentence | Iterable[Sentence] = "",
        count: int = 1,
        *,
        seed: int = 0,
        max_words: int = 100,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        allow_unknown: bool = False,
    ) -> list[Generated]:
        """Return random sentences. The same seed gives the same sentences, on any number of threads.

        Args:
            prompt: the beginning of the sentences, or a list of beginnings.
            count: number of sentences for each prompt.
            seed: of the random numbers.
            max_words: words after the prompt at most. A sentence ends earlier if the model generates its end.
            temperature: below 1, likely words become more likely; 0 chooses the most likely word.
            top_k: draw from the k most likely words only; 0 for all.
            top_p: draw from the most likely words that together have this probability (nucleus sampling).
            min_p: draw from words with at least this part of the probability of the most likely word.
            repetition_penalty: log P of words that the sentence has already is multiplied by this number, at least 1.
            allow_unknown: whether `<unk>` may be generated.
        """
        prompts = self._prompts(prompt)
        words = self.stream(
            prompts, count, seed=seed, max_words=max_words, temperature=temperature, top_k=top_k, top_p=top_p,
            min_p=min_p, repetition_penalty=repetition_penalty, allow_unknown=allow_unknown,
        )  # fmt: skip
        found: list[list[GeneratedWord]] = [[] for _ in range(len(prompts) * count)]
        for word in words:
            found[word.sentence].append(word)
        return [self._generated(prompts[i // count], each, i // count) for i, each in enumerate(found)]

    def stream(
        self,
        prompt: Sentence | Iterable[Sentence] = "",
        count: int = 1,
        *,
        seed: int = 0,
        max_words: int = 100,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        allow_unknown: bool = False,
    ) -> Iterator[GeneratedWord]:
        """Yield the words of the sentences that `generate` returns for the same arguments, as they are drawn.

        Each sentence in turn has its next word. Sentence i belongs to prompt i // count.
        """
        prompts = self._prompts(prompt)
        count, max_words = check_int("count", count, 1, 10_000_000), check_int("max_words", max_words, 1)
        seed, ids = check_int("seed", seed, 0, 2**63), self._word_ids(allow_unknown)
        sampling = generation.Sampling(repetition_penalty, temperature, top_k, top_p, min_p)
        generation.check_reads_forwards(self.model)
        starts = [self.vocabulary.encode(words) for words in prompts for _ in range(count)]
        return self._stream(starts, ids, sampling, max_words, seed)

    def _stream(
        self,
        starts: list[np.ndarray],
        ids: generation.WordIds,
        sampling: generation.Sampling,
        max_words: int,
        seed: int,
    ) -> Iterator[GeneratedWord]:
        with self._team() as team:
            for word in generation.sample(self.model, starts, ids, sampling, max_words, seed, team):
                yield GeneratedWord(word.sentence, self.vocabulary.word(word.id), word.log_probability)

    def _prompts(self, prompt: Sentence | Iterable[Sentence]) -> list[Tokens]:
        """Return the words of one prompt or several."""
        given = [prompt] if isinstance(prompt, str | Tokens) else prompt
        check_iterable("prompt", given, "a string, Tokens, or a list of sentences")
        return [Tokens(self._words(each)) for each in given]

    def continuations(
        self, prompt: Sentence = "", n: int = 5, *, max_words: int = 100, allow_unknown: bool = False
    ) -> list[Generated]:
        """Return n likely continuations of a sentence, the most probable first, by beam search of width n."""
        _check_sentence("prompt", prompt)
        n, max_words = check_int("n", n, 1, 100_000), check_int("max_words", max_words, 1)
        words, ids = self._words(prompt), self._word_ids(allow_unknown)
        with self._team() as team:
            found = generation.beam_search(self.model, self.vocabulary.encode(words), ids, n, max_words, team)
        result = []
        for each in found:
            new = tuple(map(self.vocabulary.word, each.ids[len(words) :].tolist()))
            text = self.text.join([*words, *new])
            result.append(Generated(text, new, each.log_probability, each.finished))
        return result

    def fill(
        self,
        before: Sentence,
        *others: Sentence,
        count: int = 1,
        seed: int = 0,
        sweeps: int = 20,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        allow_unknown: bool = False,
    ) -> list[Generated]:
        """Return sentences in which the gaps between parts have words, drawn by Gibbs sampling.

        The model must see both sides of a word. `lm.fill("The", "sat on the", ".")` fills two gaps, each with one word.

        Args:
            before: the part before the first gap.
            others: the parts after each gap; the last one ends the sentence.
            count: number of sentences.
            seed: of the random numbers.
            sweeps: how often the word of every gap is drawn anew, given the others.
            temperature: as in `generate`, and so are `top_k`, `top_p`, `min_p` and `allow_unknown`.
        """
        parts = [before, *others]
        for part in parts:
            _check_sentence("others", part)
        check("others", others, len(others) > 0, "at least one part after a gap")
        count, sweeps = check_int("count", count, 1, 10_000_000), check_int("sweeps", sweeps, 1)
        seed, ids = check_int("seed", seed, 0, 2**63), self._word_ids(allow_unknown)
        sampling = generation.Sampling(1.0, temperature, top_k, top_p, min_p)
        texts = [self._words(part) for part in parts]
        words = list(chain.from_iterable([*text, END] for text in texts))[:-1]  # a placeholder in each gap
        gaps = (np.cumsum([len(text) + 1 for text in texts])[:-1] - 1).tolist()
        result = []
        for i in range(count):
            random = generation.random_stream(seed, i)
            encoded = self.vocabulary.encode(words)
            filled = generation.fill_gaps(self.model, encoded, gaps, ids, sampling, sweeps, random)
            new = tuple(self.vocabulary.word(int(filled[gap])) for gap in gaps)
            spelled = dict(zip(gaps, new, strict=True))
            sentence = [spelled.get(place, word) for place, word in enumerate(words)]
            logs = [self.full_scores(Tokens(sentence))[gap].log_probability for gap in gaps]
            result.append(Generated(self.text.join(sentence), new, math.fsum(logs), True))
        return result

    def _generated(self, prompt: Tokens, words: list[GeneratedWord], number: int) -> Generated:
        finished = words[-1].word == END
        new = tuple(each.word for each in words[: len(words) - finished])
        total = math.fsum(each.log_probability for each in words)
        return Generated(self.text.join([*prompt, *new]), new, total, finished, number)

    def _word_ids(self, allow_unknown: bool) -> generation.WordIds:
        banned = () if check_bool("allow_unknown", allow_unknown) else (self.vocabulary.unknown_id,)
        return generation.WordIds(len(self.vocabulary), self.vocabulary.end_id, self._pad_id, banned)

    # -- batches ------------------------------------------------------------------------------------------------------

    def _scored_batches(
        self, sentences: Iterable[Sentence | list[str]], mode: Mode = "exact"
    ) -> Iterator[_ScoredBatch]:
        """Score sentences in batches. A list is one sentence: its words.

        The scores of a sentence depend neither on the other sentences of its batch nor on the number of threads.
        PyTorch models are an exception: their scores may differ in the last digits.
        """
        iterator = iter(sentences)
        with self._team() as team:
            while batch := list(islice(iterator, BATCH_SENTENCES)):
                ids, ends = self._encode(batch)
                scores, log_z = self.model.score_positions(self._corpus(ids), 0, ids.size, team, mode)
                yield _ScoredBatch(batch, ids, ends, scores, log_z)

    def _words(self, sentence: Sentence) -> list[str]:
        _check_sentence("sentences", sentence)
        return self.text.words(sentence) if isinstance(sentence, str) else list(sentence)

    def _encode(self, sentences: list[Sentence | list[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all words and sentence ends, (n,), and the indices of the ends, (sentences,)."""
        plain = self.text == TextSettings("whitespace", self.text.lowercase)  # words as `LineEncoder` finds them
        if plain and len(sentences) >= LINES_TO_COMPILE and _are_strings(sentences):
            return self._line_encoder.encode(sentences)
        words = [each if isinstance(each, list) else self._words(each) for each in sentences]
        ends = np.cumsum([len(each) + 1 for each in words]) - 1
        ids = np.full(ends[-1] + 1, self.vocabulary.end_id, np.uint32)
        is_word = np.ones(ids.size, np.bool_)
        is_word[ends] = False
        ids[is_word] = self.vocabulary.encode(list(chain.from_iterable(words)))
        return ids, ends

    @cached_property
    def _line_encoder(self) -> LineEncoder:
        return LineEncoder(self.vocabulary, self.text.lowercase)

    def _corpus(self, ids: np.ndarray) -> records.Corpus:
        """Return independent sentences in the form that models accept: contexts do not cross sentence ends."""
        return records.Corpus(records.read_only(ids), 0, True, self.vocabulary.end_id, self._pad_id)

    @property
    def _pad_id(self) -> int:
        """The id in context positions outside of a sentence: as at the start of the training text."""
        return self.vocabulary.end_id if self.boundary == "stream" else self.vocabulary.out_of_sentence_id

    # -- word vectors -------------------------------------------------------------------------------------------------

    def neighbors(self, word: str, n: int = 10, table: Table = "context") -> list[tuple[str, float]]:
        """Return the n words with the nearest vectors by cosine similarity, and the similarities."""
        return nearest_words(self.vectors(table), self.vocabulary, self.text, word, n)

    def vectors(self, table: Table = "context") -> np.ndarray:
        """Return the word vectors, (V, d): context vectors r_w or target vectors q_w."""
        return word_vectors(self.model, table)


def _check_sentences(sentences: object, end: object = True) -> None:
    """Raise an error for invalid arguments of a method that scores sentences, which are not read."""
    check_iterable("sentences", sentences, "a list of sentences, or another iterable of them")
    check_bool("end", end)


def _checked_mode(mode: Mode, normalised: object) -> Mode:
    """Return the mode, which may be given by its former name."""
    if normalised is not None:
        return "exact" if check_bool("normalised", normalised) else "unnormalised"
    check_choice("mode", mode, get_args(Mode))
    return mode


def _are_strings(sentences: list[Any]) -> TypeGuard[list[str]]:
    return set(map(type, sentences)) == {str}


def _checked_sentence(sentence: Sentence) -> Sentence:
    _check_sentence("sentences", sentence)
    return sentence


def _check_sentence(name: str, sentence: object) -> None:
    """Raise an error unless an argument is a sentence: a string or Tokens."""
    if not isinstance(sentence, str | Tokens):
        raise ArgumentTypeError(
            f"`{name}` has {shown(sentence)}: a sentence is a string; give words as ncelm.Tokens(words)"
        )


def load_scorer(path: Path | str, threads: int | None = None) -> Scorer:
    """Return the model of a run of any kind, including LSA, PMI and ensembles, which are not language models."""
    path, threads = check_path("path", path), check_threads(threads)
    return model_loading.load_scorer(path, partial(LanguageModel.of, threads=threads))
