"""The interfaces of models.

There are two:

- A `WordModel` assigns a probability to each word of a text. `ncelm.language_model.LanguageModel` combines it with a
  vocabulary and a tokenizer. Perplexity, `score`, `complete` and `mix` work with every word model.
- A `Scorer` ranks words for a gap in a sentence. A `LanguageModel` is a scorer; LSA, PMI and ensembles are scorers
  without probabilities. `complete` and `blend` work with every scorer.

To add a model: implement one of the two protocols in a module of this package, add the kind of the model to
`ncelm.io.run.Kind`, register its loader in `ncelm.models.load`, and add it to tests/models/test_contract.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal, NamedTuple, Protocol, cast

import numpy as np

from ncelm.arguments import check, check_iterable, check_strings, check_type, shown
from ncelm.errors import ArgumentTypeError
from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.text.settings import TextSettings
from ncelm.text.store import Split, TokenStore
from ncelm.text.vocabulary import Vocabulary

Sides = Literal["before", "after", "both"]
# How scores are normalised: by the sum over the vocabulary, by an estimate of it (models.normalizer), or not at all.
Mode = Literal["exact", "fast", "unnormalised"]
Table = Literal["context", "target"]


class WordModel(Protocol):
    """A model that assigns a probability P(w|h) to each word w, given its context h.

    Log-bilinear models, PyTorch models, n-gram models and mixtures are word models.
    """

    @property
    def sides(self) -> Sides:
        """The side of the predicted word on which its context is.

        If it is "both", the sum of log P(w|h) over a sentence is not the log-probability of the sentence.
        """

    def score_positions(
        self, corpus: records.Corpus, first: int, last: int, team: Team, mode: Mode = "exact"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scores s(w, h) and log-normalizers log Z(h) of the words at positions first..last - 1 of a text.

        Both are (last - first,); log P(w|h) is their difference. The model determines the size of its context:
        `corpus.before` is ignored. Log-normalizers that need a sum over the vocabulary are estimated in the mode
        "fast", which raises `NcelmError` if the model has no estimate, and 0 in the mode "unnormalised". The result of
        a word does not depend on the other positions of the call nor on the number of threads; that of a PyTorch model
        does so in the last digits.
        """

    def distribution(self, before: np.ndarray, after: np.ndarray, pad_id: int) -> np.ndarray:
        """Return log P(w|h) of every word, (V,) float64, for a gap between the words `before` and `after`.

        Both are ids, and together with the gap one sentence; context positions outside of it have the id `pad_id`.
        """


class Gap(NamedTuple):
    """A gap in a sentence, or several, and the choices, tokenized.

    With one gap, a choice is a list of tokens; "New York" and "woman's" are two. With several gaps, `between` has the
    words between each gap and the next, and a choice is a list of such lists, one for each gap.
    """

    before: list[str]
    choices: Sequence[list[str] | list[list[str]]]
    after: list[str]
    between: Sequence[list[str]] = ()

    def fillers(self) -> list[list[list[str]]]:
        """Return the tokens that each choice puts into each gap."""
        one_gap = not self.between
        return [cast(list[list[str]], [choice] if one_gap else choice) for choice in self.choices]

    @property
    def others(self) -> list[str]:
        """The words of the sentence that are not in a gap."""
        return [*self.before, *chain.from_iterable(self.between), *self.after]

    def filled(self, fillers: Sequence[list[str]]) -> tuple[list[str], list[int]]:
        """Return the words of the sentence with these tokens in its gaps, and the positions of these tokens."""
        words, positions = [*self.before], list[int]()
        for filler, following in zip(fillers, (*self.between, self.after), strict=True):
            positions += range(len(words), len(words) + len(filler))
            words += [*filler, *following]
        return words, positions


class ChoiceScores(NamedTuple):
    """Scores of the choices for a gap. The larger is the better; scores of different gaps are not comparable."""

    normalised: list[float]  # from normalised probabilities
    unnormalised: list[float]  # from unnormalised scores; equal to `normalised` in models that need no normalisation


class Scorer(Protocol):
    """A model that ranks words for a gap in a sentence."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the model."""

    @property
    def text(self) -> TextSettings:
        """The tokenization of the model's training text."""

    @property
    def log_unknown_types(self) -> float | None:
        """The difference between the score of `<unk>` and that of one of the words that it stands for.

        It is the logarithm of their number in a model of probabilities: P(word|h) = P(`<unk>`|h) / number. It is None
        if the model has no such probabilities, or if `<unk>` does not occur in its training text.
        """

    def choice_scores(self, gaps: Iterable[Gap]) -> Iterator[ChoiceScores]:
        """Return the scores of the choices for each gap. Gaps are read lazily.

        Unknown words are scored as `<unk>`. `ncelm.completion` subtracts `log_unknown_types` for each of them.
        """

    def most_likely(self, before: Sequence[str], after: Sequence[str], n: int = 10) -> list[tuple[str, float]]:
        """Return the n words of the vocabulary with the highest scores between these words, and their scores."""

    def vectors(self, table: Table = "context") -> np.ndarray:
        """Return the word vectors, (V, d); raise `NcelmError` if the model has none."""

    def neighbors(self, word: str, n: int = 10, table: Table = "context") -> list[tuple[str, float]]:
        """Return the n words with the nearest vectors by cosine similarity, and the similarities."""


def check_scorer(name: str, value: object) -> None:
    """Raise `ArgumentTypeError` unless an argument is a model that ranks words for gaps."""
    methods = ("vocabulary", "text", "log_unknown_types", "choice_scores", "most_likely")
    valid = all(hasattr(value, method) for method in methods)
    check_type(name, value, valid and not isinstance(value, type), "a model, such as ncelm.load_scorer returns")


def checked_gaps(gaps: object) -> Iterator[Gap]:
    """Return the gaps of an argument `gaps`. They are read and checked lazily."""
    return map(_checked_gap, check_iterable("gaps", gaps, "a list of gaps"))


def _checked_gap(gap: object) -> Gap:
    if not isinstance(gap, Gap):
        raise ArgumentTypeError(f"`gaps` has {shown(gap)}: give a list of ncelm.models.base.Gap")
    check_words_around(gap.before, gap.after)
    for words in check_iterable("between", gap.between, "a list of lists of words"):
        check_strings("between", words)
    if not gap.between:
        for choice in check_iterable("choices", gap.choices, "a list of lists of words"):
            check_strings("choices", choice)
        return gap
    expected = f"a list of lists of words, {len(gap.between) + 1} for each choice"
    for choice in check_iterable("choices", gap.choices, expected):
        fillers = [check_strings("choices", words) for words in check_iterable("choices", choice, expected)]
        check("choices", choice, len(fillers) == len(gap.between) + 1, expected)
    return gap


def check_words_around(before: object, after: object) -> tuple[list[str], list[str]]:
    """Return the words before and after a gap."""
    return check_strings("before", before), check_strings("after", after)


def corpus_view(split: Split, store: TokenStore, context: int = 0) -> records.Corpus:
    """Return a split of a store in the form that compiled code accepts."""
    within_sentence, end_id = store.boundary == "sentence", store.vocabulary.end_id
    return records.Corpus(records.read_only(split.ids), context, within_sentence, end_id, store.pad_id)
