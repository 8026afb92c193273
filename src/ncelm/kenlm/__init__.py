"""The Python interface of KenLM, with the models of ncelm: replace `import kenlm` by `import ncelm.kenlm as kenlm`.

    model = kenlm.Model("model.arpa")            # or a run: an n-gram model, a neural model, a mixture
    model.score("this is a sentence .")          # log10 P, with the beginning and the end of the sentence
    list(model.full_scores("this is a sentence ."))

    state, next_state = kenlm.State(), kenlm.State()
    model.BeginSentenceWrite(state)
    model.BaseScore(state, "this", next_state)

Logarithms are to base 10, as in KenLM; `ncelm.load` returns models with natural logarithms. With an ARPA file, all
numbers are those of KenLM, up to rounding. With a run:

- Sentences are tokenized like the training text of the run. (Words of an ARPA file are separated by white space.)
- An n-gram model of a text without sentence boundaries (`boundary` "stream") begins a sentence after `</s>`.
- A neural model or a mixture has no state without a context: `bos=False` and `NullContextWrite` are the beginning of a
  sentence. The length of an n-gram is the number of words that the prediction depends on, itself included.

Methods that KenLM does not have: `scores` and `perplexities`, of many sentences at once, which is faster.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ncelm.arguments import check_bool, check_iterable, check_type, shown
from ncelm.errors import ArgumentTypeError, NcelmError
from ncelm.kenlm.queries import load

__all__ = [
    "ARPALoadComplain",
    "Config",
    "FullScoreReturn",
    "LanguageModel",
    "LoadMethod",
    "Model",
    "ModelError",
    "State",
]


class ModelError(NcelmError, OSError):
    """A model cannot be read. KenLM raises OSError."""


class LoadMethod:
    """How KenLM reads binary files. ncelm accepts the values and ignores them: it maps runs into memory."""

    LAZY, POPULATE_OR_LAZY, POPULATE_OR_READ, READ, PARALLEL_READ = range(5)


class ARPALoadComplain:
    """What KenLM reports about ARPA files. ncelm accepts the values and ignores them: it validates all of a file."""

    ALL, EXPENSIVE, NONE = range(3)


@dataclass
class Config:
    """The options of `Model`. Only `show_progress` has an effect."""

    load_method: int = LoadMethod.POPULATE_OR_READ
    show_progress: bool = True  # while an ARPA file is read: a bar in a terminal, a line every 30 seconds in a log
    arpa_complain: int = ARPALoadComplain.ALL


@dataclass(frozen=True, repr=False)
class FullScoreReturn:
    """The score of a word."""

    log_prob: float  # log10 P
    ngram_length: int  # of the longest n-gram that matches
    oov: bool  # whether the word is not in the vocabulary

    def __repr__(self) -> str:
        return f"FullScoreReturn({self.log_prob!r}, {self.ngram_length!r}, {self.oov!r})"


class State:
    """The context of the next word. States of one model are equal if all further scores are equal.

    States can be compared, hashed and copied. A new one has no context, like that of `NullContextWrite`.
    """

    __slots__ = ("_values",)
    _values: np.ndarray  # int64: of an n-gram model, see `ncelm.kernels.ngram_queries.State`; of others, the last words

    def __init__(self) -> None:
        self._values = np.empty(0, np.int64)

    def _order(self) -> tuple[int, list[int]]:
        return self._values.size, self._values.tolist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self._values.tobytes() == other._values.tobytes()

    def __lt__(self, other: "State") -> bool:
        return self._order() < other._order()

    def __le__(self, other: "State") -> bool:
        return self._order() <= other._order()

    def __gt__(self, other: "State") -> bool:
        return self._order() > other._order()

    def __ge__(self, other: "State") -> bool:
        return self._order() >= other._order()

    def __hash__(self) -> int:
        return hash(self._values.tobytes())

    def __copy__(self) -> "State":
        copied = State()
        copied._values = self._values.copy()
        return copied

    def __deepcopy__(self, memo: object = None) -> "State":
        return self.__copy__()


class Model:
    """A language model with the methods of `kenlm.Model`. Models are pickled by their paths."""

    def __init__(self, path: str | bytes | os.PathLike[str], config: Config | None = None) -> None:
        """Load a model.

        Args:
            path: an ARPA file, which may be compressed with gzip, or a run.
            config: options.
        """
        valid = isinstance(path, str | bytes | os.PathLike)
        check_type("path", path, valid, "the path of an ARPA file or of a run, as a str, bytes or Path")
        check_type("config", config, config is None or isinstance(config, Config), "a Config")
        self.path: bytes = os.fsencode(Path(os.fsdecode(path)).absolute())
        """The absolute path of the model."""
        folder_or_file = Path(os.fsdecode(self.path))
        try:
            self._queries = load(folder_or_file, (config or Config()).show_progress)
        except NcelmError as error:
            raise ModelError(f"cannot read model {folder_or_file}: {error}") from error

    @property
    def order(self) -> int:
        """The length of the longest n-gram; of a neural model, 1 + the number of its context words."""
        return self._queries.order

    def score(self, sentence: str | bytes, bos: bool = True, eos: bool = True) -> float:
        """Return log10 P(sentence).

        Args:
            sentence: the words of a sentence, without `<s>` and `</s>`.
            bos: whether the sentence begins here; if not, its first word has no context.
            eos: whether the sentence ends here, and its end is scored, too.
        """
        return self._queries.score(sentence, bos is True or bool(bos), eos is True or bool(eos))

    def scores(self, sentences: Iterable[str], bos: bool = True, eos: bool = True) -> list[float]:
        """Return `score` of each sentence, faster than one by one."""
        lines = _checked_lines(sentences)
        return self._queries.scores(lines, check_bool("bos", bos), check_bool("eos", eos)).log10.tolist()

    def perplexity(self, sentence: str | bytes) -> float:
        """Return the perplexity of a sentence: 10 to the power of -log10 P per word, with the end of the sentence."""
        return self._queries.perplexity(sentence)

    def perplexities(self, sentences: Iterable[str]) -> list[float]:
        """Return `perplexity` of each sentence, faster than one by one."""
        log10, words, _ = self._queries.scores(_checked_lines(sentences), True, True)
        return (10.0 ** (-log10 / (words + 1))).tolist()

    def full_scores(
        self, sentence: str | bytes, bos: bool = True, eos: bool = True
    ) -> Iterator[tuple[float, int, bool]]:
        """Yield log10 P of each word, the length of the n-gram that it is from, and whether the word is unknown."""
        return self._queries.full_scores(sentence, bool(bos), bool(eos))

    def BeginSentenceWrite(self, state: State) -> None:  # noqa: N802
        """Set a state to that at the beginning of a sentence."""
        _check_state("state", state)._values = self._queries.start(True)

    def NullContextWrite(self, state: State) -> None:  # noqa: N802
        """Set a state to that without a context."""
        _check_state("state", state)._values = self._queries.start(False)

    def BaseScore(self, in_state: State, word: str, out_state: State) -> float:  # noqa: N802
        """Return log10 P of a word after `in_state`, and set `out_state` to the state after the word."""
        return self._step(in_state, word, out_state)[0]

    def BaseFullScore(self, in_state: State, word: str, out_state: State) -> FullScoreReturn:  # noqa: N802
        """Return the score of a word after `in_state`, and set `out_state` to the state after the word."""
        return FullScoreReturn(*self._step(in_state, word, out_state))

    def _step(self, in_state: State, word: str, out_state: State) -> tuple[float, int, bool]:
        if type(in_state) is not State or type(out_state) is not State:
            _check_state("in_state", in_state)
            _check_state("out_state", out_state)
        log10, length, oov, out_state._values = self._queries.step(in_state._values, word, out_state._values)
        return log10, length, oov

    def __contains__(self, word: str | bytes) -> bool:
        return self._queries.knows(word)

    def __repr__(self) -> str:
        return f"<Model from {Path(os.fsdecode(self.path)).name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)


class LanguageModel(Model):
    """The former name of `Model`."""


# -- arguments -------------------------------------------------------------------------------------------------------


def _checked_lines(sentences: Iterable[str]) -> list[str]:
    lines = list(check_iterable("sentences", sentences, "a list of sentences"))
    if not set(map(type, lines)) <= {str}:
        raise ArgumentTypeError("`sentences` has a value that is not a str: give a list of sentences")
    return lines


def _check_state(name: str, state: object) -> State:
    if isinstance(state, State):
        return state
    raise ArgumentTypeError(f"`{name}` is {shown(state)}: give an ncelm.kenlm.State")
