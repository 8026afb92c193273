"""Generation of text by word models: random sampling, beam search, and Gibbs sampling of gaps. Sentences are word ids.

A model needs `distribution` only. Models with `next_distributions` or `draw_next` (log-bilinear models) compute many
sentences at once.

Every sentence has a random stream of its own, chosen by the seed and the number of the sentence: its words depend
neither on the other sentences nor on the number of threads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ncelm.arguments import check_float, check_int, set_checked
from ncelm.errors import NcelmError
from ncelm.kernels.threads import Team
from ncelm.models.base import WordModel

SORTED = 1024  # words that top-p sorts at first
BATCH_NUMBERS = 1 << 26  # log-probabilities of one call, over all words and sentences; bounds the memory


@dataclass(frozen=True)
class Sampling:
    """How the next word is drawn from P(w|h). The filters apply in the order of the fields.

    >>> Sampling(temperature=0.8, top_p=0.9)
    Sampling(repetition_penalty=1.0, temperature=0.8, top_k=0, top_p=0.9, min_p=0.0)
    """

    repetition_penalty: float = 1.0  # log P of words that the sentence has already is multiplied by it
    temperature: float = 1.0  # log P is divided by it; 0: the most likely word
    top_k: int = 0  # only the k most likely words; 0: all
    top_p: float = 1.0  # only the most likely words that together have this probability: nucleus sampling
    min_p: float = 0.0  # only words with at least this part of the probability of the most likely word

    def __post_init__(self) -> None:
        """Validate the fields."""
        set_checked(self, "repetition_penalty", check_float("repetition_penalty", self.repetition_penalty, 1, 1e6))
        set_checked(self, "temperature", check_float("temperature", self.temperature, 0, 1e6))
        set_checked(self, "top_k", check_int("top_k", self.top_k, 0))
        set_checked(self, "top_p", check_float("top_p", self.top_p, 0, 1, positive=True))
        set_checked(self, "min_p", check_float("min_p", self.min_p, 0, 1))

    @property
    def is_plain(self) -> bool:
        """Whether words are drawn from all allowed words, with a temperature at most."""
        return self == Sampling(temperature=self.temperature) and self.temperature > 0

    def weights(self, logs: np.ndarray, history: np.ndarray) -> np.ndarray:
        """Return the weights with which words are drawn, (V,) float64, not normalised.

        Args:
            logs: log P(w|h), (V,); −∞ for words that are not allowed.
            history: ids of the words that the sentence has already.
        """
        logs = logs.astype(np.float64)
        if self.repetition_penalty != 1.0:
            seen = np.unique(history)
            logs[seen] *= self.repetition_penalty  # log P ≤ 0
        if self.temperature == 0.0:
            weights = np.zeros(logs.size)
            weights[np.argmax(logs)] = 1.0
            return weights
        logs = (logs - logs.max()) / self.temperature
        weights = np.exp(logs)
        if self.top_k and self.top_k < weights.size:
            weights = _only(weights, _largest(weights, self.top_k)[: self.top_k])
        if self.top_p < 1.0:
            weights = _only(weights, self._nucleus(weights))
        if self.min_p:
            weights[weights < self.min_p * weights.max()] = 0.0
        return weights

    def _nucleus(self, weights: np.ndarray) -> np.ndarray:
        """Return the indices of the largest weights that together have the part `top_p` of all."""
        goal = self.top_p * float(weights.sum()) * (1.0 - 1e-12)  # rounding must not add a word
        count = SORTED
        while True:
            order = _largest(weights, count)
            sums = np.cumsum(weights[order])
            if sums[-1] >= goal or order.size == weights.size:
                return order[: np.searchsorted(sums, goal) + 1]  # the word that reaches it is included
            count *= 8


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest values, and of those equal to them, from the largest; ties in order.

    Sorting a part takes much less time than sorting the vocabulary.
    """
    if count >= values.size:
        return np.argsort(-values, kind="stable")
    smallest = np.partition(values, values.size - count)[values.size - count]
    found = np.flatnonzero(values >= smallest)
    return found[np.argsort(-values[found], kind="stable")]


def _only(weights: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return weights that are 0 except at the indices `kept`."""
    result = np.zeros_like(weights)
    result[kept] = weights[kept]
    return result


def draw(weights: np.ndarray, uniform: float) -> int:
    """Return an index with a probability proportional to its weight, for a random number in [0, 1)."""
    sums = np.cumsum(weights)
    return int(np.searchsorted(sums, uniform * sums[-1], side="right"))


class WordIds(NamedTuple):
    """What generation needs to know about the vocabulary."""

    size: int  # V
    end_id: int
    pad_id: int  # in context positions outside of the sentence
    banned: tuple[int, ...]  # words that are never drawn


class Word(NamedTuple):
    """A word that was generated."""

    sentence: int  # the index of the sentence
    id: int
    log_probability: float  # log P(w|h) in the model, without temperature and filters


def random_stream(seed: int, sentence: int) -> np.random.Generator:
    """Return the random numbers of a sentence."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, sentence], np.uint64)))


def sample(
    model: WordModel,
    prompts: Sequence[np.ndarray],
    vocabulary: WordIds,
    sampling: Sampling,
    max_words: int,
    seed: int,
    team: Team,
) -> Iterator[Word]:
    """Yield the words of all sentences, the next word of each sentence in turn, until all have ended.

    Args:
        model: a model of the words before a word.
        prompts: ids of the beginning of each sentence.
        vocabulary: ids with a special meaning.
        sampling: how words are drawn.
        max_words: words that are generated for a sentence at most.
        seed: of the random numbers.
        team: an open team of threads.
    """
    check_reads_forwards(model)
    size = max(BATCH_NUMBERS // vocabulary.size, 1)  # sentences that are generated at once
    for first in range(0, len(prompts), size):
        part = range(first, min(first + size, len(prompts)))
        yield from _sample_batch(model, prompts, part, vocabulary, sampling, max_words, seed, team)


def _sample_batch(
    model: WordModel,
    prompts: Sequence[np.ndarray],
    part: range,
    vocabulary: WordIds,
    sampling: Sampling,
    max_words: int,
    seed: int,
    team: Team,
) -> Iterator[Word]:
    live = list(part)
    sentences = {i: np.asarray(prompts[i], np.int64) for i in part}
    streams = {i: random_stream(seed, i) for i in part}
    for _ in range(max_words):
        if not live:
            break
        uniforms = np.array([streams[i].random() for i in live])
        words, logs = _next_words(model, [sentences[i] for i in live], vocabulary, sampling, uniforms, team)
        for i, word, log_probability in zip(live, words.tolist(), logs.tolist(), strict=True):
            yield Word(i, word, log_probability)
            sentences[i] = np.append(sentences[i], word)
        live = [i for i, word in zip(live, words.tolist(), strict=True) if word != vocabulary.end_id]


def _next_words(
    model: WordModel,
    sentences: list[np.ndarray],
    vocabulary: WordIds,
    sampling: Sampling,
    uniforms: np.ndarray,
    team: Team,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the next word of each sentence and its log P(w|h), both (n,)."""
    if sampling.is_plain and hasattr(model, "draw_next"):
        found: tuple[np.ndarray, np.ndarray] = model.draw_next(
            sentences, vocabulary.pad_id, vocabulary.banned, sampling.temperature, uniforms, team
        )
        return found
    words, logs = np.empty(len(sentences), np.int64), np.empty(len(sentences))
    for i, row in enumerate(next_distributions(model, sentences, vocabulary.pad_id, team)):
        allowed = row.copy()
        allowed[list(vocabulary.banned)] = -np.inf
        words[i] = draw(sampling.weights(allowed, sentences[i]), uniforms[i])
        logs[i] = row[words[i]]
    return words, logs


def next_distributions(
    model: WordModel, sentences: Sequence[np.ndarray], pad_id: int, team: Team
) -> Iterator[np.ndarray]:
    """Yield log P(w|h) of every word, (V,), after each sentence."""
    if hasattr(model, "next_distributions"):
        yield from model.next_distributions(sentences, pad_id, team)
    else:
        nothing = np.zeros(0, np.int64)
        for sentence in sentences:
            yield model.distribution(sentence, nothing, pad_id)


def check_reads_forwards(model: WordModel) -> None:
    """Raise `NcelmError` unless a model predicts a word from the words before it."""
    if model.sides != "before":
        where = "on both sides of" if model.sides == "both" else "after"
        raise NcelmError(f"this model sees the words {where} a word, and cannot continue a text: use another model")


# -- beam search -----------------------------------------------------------------------------------------------------


class Hypothesis(NamedTuple):
    """A continuation."""

    log_probability: float
    ids: np.ndarray  # with the prompt, without the end of the sentence
    finished: bool  # whether the sentence has ended


def beam_search(
    model: WordModel, prompt: np.ndarray, vocabulary: WordIds, width: int, max_words: int, team: Team
) -> list[Hypothesis]:
    """Return up to `width` continuations of a sentence, the most probable first.

    In each step the `width` most probable beginnings are kept. A larger width finds more probable sentences. Search
    ends when no beginning is as probable as the `width` finished sentences, or after `max_words` words.
    """
    check_reads_forwards(model)
    live, finished = [Hypothesis(0.0, np.asarray(prompt, np.int64), False)], list[Hypothesis]()
    for _ in range(max_words):
        rows = next_distributions(model, [each.ids for each in live], vocabulary.pad_id, team)
        found = list[Hypothesis]()
        for each, row in zip(live, rows, strict=True):
            logs = row.astype(np.float64)
            logs[list(vocabulary.banned)] = -np.inf
            best = _largest(logs, width + 1)[: width + 1]  # one of them may be the end of the sentence
            for word in best[np.isfinite(logs[best])].tolist():
                total = each.log_probability + float(logs[word])
                if word == vocabulary.end_id:
                    finished.append(Hypothesis(total, each.ids, True))
                else:
                    found.append(Hypothesis(total, np.append(each.ids, word), False))
        finished = _best(finished, width)
        live = _best(found, width)
        if len(finished) == width and finished[-1].log_probability >= live[0].log_probability:
            live = []  # a longer sentence is never more probable than its beginning
        if not live:
            break
    return _best([*finished, *live], width)


def _best(hypotheses: list[Hypothesis], count: int) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda each: -each.log_probability)[:count]


# -- gaps ------------------------------------------------------------------------------------------------------------


def fill_gaps(
    model: WordModel,
    sentence: np.ndarray,
    gaps: Sequence[int],
    vocabulary: WordIds,
    sampling: Sampling,
    sweeps: int,
    random: np.random.Generator,
) -> np.ndarray:
    """Return a sentence with words drawn for its gaps by Gibbs sampling.

    Each sweep draws the word of every gap anew, given the words on both sides. The first sweep leaves out gaps that
    have no word yet.

    Args:
        model: a model of the words on both sides of a word.
        sentence: word ids; those at the positions `gaps` are ignored.
        gaps: positions of the gaps.
        vocabulary: ids with a special meaning.
        sampling: how words are drawn.
        sweeps: number of sweeps.
        random: random numbers.
    """
    if model.sides != "both":
        raise NcelmError("only a model that sees both sides of a word (`context_after`) can fill gaps: use `complete`")

    words, known = np.asarray(sentence, np.int64).copy(), np.ones(len(sentence), np.bool_)
    known[list(gaps)] = False
    banned = [*vocabulary.banned, vocabulary.end_id]
    for _ in range(sweeps):
        for gap in gaps:
            before, after = words[:gap][known[:gap]], words[gap + 1 :][known[gap + 1 :]]
            logs = model.distribution(before, after, vocabulary.pad_id).copy()
            logs[banned] = -np.inf
            words[gap] = draw(sampling.weights(logs, np.concatenate([before, after])), random.random())
            known[gap] = True
    return words
