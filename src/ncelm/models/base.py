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
from typing import Literal, NamedTuple, Protocol

import numpy as np

from ncelm.arguments import check_iterable, check_strings, check_type, shown
from ncelm.errors import ArgumentTypeError
from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.text.settings import TextSettings
from ncelm.text.store import Split, TokenStore
from ncelm.text.vocabulary import Vocabulary

Sides = Literal["before", "after", "both"]
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
        self, corpus: records.Corpus, first: int, last: int, team: Team, normalised: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scores s(w, h) and log-normalizers log Z(h) of the words at positions first..last - 1 of a text.

        Both are (last - first,); log P(w|h) is their difference. The model determines the size of its context:
        `corpus.before` is ignored. With normalised=False, log-normalizers that need a sum over the vocabulary are 0.
        """

    def distribution(self, before: np.ndarray, after: np.ndarray, pad_id: int) -> np.ndarray:
        """Return log P(w|h) of every word, (V,) float64, for a gap between the words `before` and `after`.

        Both are ids, and together with the gap one sentence; context positions outside of it have the id `pad_id`.
        """


class Gap(NamedTuple):
    """A gap in a sentence, and the words to choose from, tokenized."""

    before: list[str]
    choices: list[list[str]]  # a choice such as "woman's" may be several tokens
    after: list[str]


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

    def choice_scores(self, gaps: Iterable[Gap]) -> Iterator[ChoiceScores]:
        """Return the scores of the choices for each gap. Gaps are read lazily."""

    def most_likely(self, before: Sequence[str], after: Sequence[str], n: int = 10) -> list[tuple[str, float]]:
        """Return the n words of the vocabulary with the highest scores between these words, and their scores."""

    def vectors(self, table: Table = "context") -> np.ndarray:
        """Return the word vectors, (V, d); raise `NcelmError` if the model has none."""

    def neighbors(self, word: str, n: int = 10, table: Table = "context") -> list[tuple[str, float]]:
        """Return the n words with the nearest vectors by cosine similarity, and the similarities."""


def check_scorer(name: str, value: object) -> None:
    """Raise `ArgumentTypeError` unless an argument is a model that ranks words for gaps."""
    valid = all(hasattr(value, method) for method in ("vocabulary", "text", "choice_scores", "most_likely"))
    check_type(name, value, valid and not isinstance(value, type), "a model, such as ncelm.load_scorer returns")


def checked_gaps(gaps: object) -> Iterator[Gap]:
    """Return the gaps of an argument `gaps`. They are read and checked lazily."""
    return map(_checked_gap, check_iterable("gaps", gaps, "a list of gaps"))


def _checked_gap(gap: object) -> Gap:
    if not isinstance(gap, Gap):
        raise ArgumentTypeError(f"`gaps` has {shown(gap)}: give a list of ncelm.models.base.Gap")
    check_words_around(gap.before, gap.after)
    for choice in check_iterable("choices", gap.choices, "a list of lists of words"):
        check_strings("choices", choice)
    return gap


def check_words_around(before: object, after: object) -> tuple[list[str], list[str]]:
    """Return the words before and after a gap."""
    return check_strings("before", before), check_strings("after", after)


def corpus_view(split: Split, store: TokenStore, context: int = 0) -> records.Corpus:
    """Return a split of a store in the form that compiled code accepts."""
    within_sentence, end_id = store.boundary == "sentence", store.vocabulary.end_id
    return records.Corpus(records.read_only(split.ids), context, within_sentence, end_id, store.pad_id)
