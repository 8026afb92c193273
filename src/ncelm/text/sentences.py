"""Sentence splitting by Punkt (Kiss & Strunk 2006), as implemented in NLTK."""

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ncelm.errors import NcelmError
from ncelm.io.files import read_json, write_json

PIECE_CHARACTERS = 20_000  # Punkt takes quadratic time on text such as ". . . . ."
REMEMBERED = 1 << 14  # words around a period, with the decision whether it ends a sentence
PUNKT_TRAINING_CHARACTERS = 5_000_000  # about a million words, half a minute: enough for Punkt

BLANK_LINE = re.compile(r"\n\s*\n")


class SentenceSplitter:
    """A Punkt model. Punkt is unsupervised and works for European languages.

    >>> splitter = SentenceSplitter.train(["Mr. Smith met Dr. Jones. They spoke. Mr. Smith and Dr. Jones left. "] * 20)
    >>> splitter.sentences("Mr. Smith came. Dr. Jones left.")
    ['Mr. Smith came.', 'Dr. Jones left.']
    """

    def __init__(self, parameters: Any) -> None:
        """Create a splitter from NLTK's `PunktParameters`. Use `english`, `train` or `load` instead."""
        from nltk.tokenize.punkt import PunktSentenceTokenizer

        self._parameters = parameters
        # Punkt looks up every word of a text; NLTK's defaultdict would store each of them.
        parameters.ortho_context = _ZeroIfMissing(parameters.ortho_context)
        self._tokenizer = tokenizer = PunktSentenceTokenizer(parameters)
        # Punkt takes 30 µs to decide whether a period ends a sentence. In a text such as "e.g. e.g. e.g." that is all
        # it does, for the same few words.
        decide = functools.lru_cache(REMEMBERED)(tokenizer.text_contains_sentbreak)
        tokenizer.text_contains_sentbreak = decide

    @classmethod
    def english(cls) -> "SentenceSplitter":
        """Return NLTK's model for English, which must be installed."""
        from nltk.tokenize.punkt import PunktTokenizer

        try:
            return cls(PunktTokenizer("english")._params)
        except (LookupError, OSError):
            raise NcelmError(
                "NLTK's English sentence model is not installed: run `python -m nltk.downloader punkt_tab`, "
                "or pass `punkt` train to train a model on your own text, without a download"
            ) from None

    @classmethod
    def train(cls, chunks: Iterable[str]) -> "SentenceSplitter":
        """Return a model trained on a text, of which the first 5 million characters are used."""
        from nltk.tokenize.punkt import PunktTrainer

        trainer = PunktTrainer()
        left = PUNKT_TRAINING_CHARACTERS
        for chunk in chunks:
            # The trainer matches a regular expression on each line under a time limit: lines must be short.
            lines = (piece for line in chunk[:left].split("\n") for piece in _pieces(line) or [""])
            trainer.train("\n".join(lines), finalize=False)
            left -= len(chunk)
            if left <= 0:
                break
        return cls(trainer.get_params())

    def sentences(self, text: str) -> list[str]:
        """Return the sentences of a text. A blank line always ends a sentence; a line end never does."""
        return [sentence for paragraph in BLANK_LINE.split(text) for sentence in self._paragraph(paragraph)]

    def _paragraph(self, text: str) -> list[str]:
        """Return the sentences of one paragraph, which Punkt splits in pieces of bounded length."""
        found: list[str] = []
        for piece in _pieces(" ".join(text.split())):
            # The last sentence of the previous piece may be incomplete, unless it fills the piece.
            if found and len(found[-1]) < PIECE_CHARACTERS:
                piece = f"{found.pop()} {piece}"
            found += self._tokenizer.tokenize(piece)
        return found

    def save(self, folder: Path) -> None:
        """Write the model to punkt.json in `folder`."""
        parameters = self._parameters
        content = {
            "format": "ncelm-punkt",
            "version": 2,  # version 1 had no checksum
            "abbreviations": sorted(parameters.abbrev_types),
            "collocations": sorted(map(list, parameters.collocations)),
            "sentence_starters": sorted(parameters.sent_starters),
            "orthographic_contexts": dict(sorted(parameters.ortho_context.items())),
        }
        write_json(folder / "punkt.json", content)

    @classmethod
    def load(cls, folder: Path) -> "SentenceSplitter":
        """Return the model that `save` wrote to `folder`."""
        from nltk.tokenize.punkt import PunktParameters

        content = read_json(folder / "punkt.json", "sentence model", "ncelm-punkt", 2, checksum_since=2)
        parameters = PunktParameters()
        try:
            parameters.abbrev_types = {_string(word) for word in content["abbreviations"]}
            parameters.collocations = {(_string(a), _string(b)) for a, b in content["collocations"]}
            parameters.sent_starters = {_string(word) for word in content["sentence_starters"]}
            parameters.ortho_context = {w: int(flags) for w, flags in content["orthographic_contexts"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise NcelmError(f"{folder / 'punkt.json'} is damaged: prepare the store again") from None
        return cls(parameters)


class _ZeroIfMissing(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return 0


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _pieces(text: str) -> list[str]:
    """Return a text in pieces of at most PIECE_CHARACTERS, cut at blanks."""
    pieces = []
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        blank = text.rfind(" ", start + 1, start + PIECE_CHARACTERS)
        stop = blank if blank > 0 else start + PIECE_CHARACTERS  # longer than any word: cut it anywhere
        pieces.append(text[start:stop])
        start = stop + (blank > 0)
    return [*pieces, text[start:]] if start < len(text) else pieces
