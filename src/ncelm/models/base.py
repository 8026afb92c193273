"""What may be asked of a model, whatever kind it is."""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, Protocol

import numpy as np

from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.text.settings import TextSettings
from ncelm.text.store import Split, TokenStore
from ncelm.text.vocabulary import Vocabulary

Sides = Literal["before", "after", "both"]


class WordModel(Protocol):
    """Whatever gives each word of a text a probability: log-bilinear models, PyTorch's, n-grams, mixtures of them."""

    @property
    def sides(self) -> Sides:
        """Which words around the predicted one does it see? Where both, a sentence's score is not its probability."""

    def score_positions(
        self, corpus: records.Corpus, first: int, last: int, team: Team, normalised: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores and log normalisers, each (last - first,), of the words at positions first..last of a text.

        log P(w|h) is their difference. How much context it looks at is the model's own business. Unless `normalised`,
        normalisers that would have to be computed are taken to be 1.
        """

    def distribution(self, before: np.ndarray, after: np.ndarray, pad_id: int) -> np.ndarray:
        """log P of every word, (V,), between these words of a sentence, outside which stands `pad_id`."""


class Blank(NamedTuple):
    """A gap in a sentence and what may fill it, in words."""

    before: list[str]
    choices: list[list[str]]  # each one word to a reader, and perhaps several to a tokeniser
    after: list[str]


class Scorer(Protocol):
    """Whatever can say how well words fit into a sentence: all models, LSA too."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The words it knows."""

    @property
    def text(self) -> TextSettings:
        """How lines become words."""

    def choice_scores(self, blanks: Iterable[Blank]) -> Iterator[tuple[list[float], list[float]]]:
        """Two numbers for each choice of each blank, the larger the better; only those of one blank can be compared.

        The first are by normalised probabilities, the second by scores as they are; often these are the same.
        """

    def likeliest(self, before: list[str], after: list[str], n: int = 10) -> list[tuple[str, float]]:
        """The n words that fit best between these, with such numbers."""

    def vectors(self, table: str = "context") -> np.ndarray:
        """Word vectors, (V, d), of models that have them."""

    def neighbors(self, word: str, n: int = 10, table: str = "context") -> list[tuple[str, float]]:
        """The n words with the nearest vectors, and the cosines."""


NO_NUMBERS = np.zeros(0, np.int32)


def corpus_view(
    split: Split, store: TokenStore, context: int = 0, context_numbers: np.ndarray = NO_NUMBERS
) -> records.Corpus:
    """What the kernels need to know of a split."""
    within_sentence, end_id = store.boundary == "sentence", store.vocabulary.end_id
    return records.Corpus(split.ids, context, within_sentence, end_id, store.pad_id, context_numbers)
