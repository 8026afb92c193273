"""Tokenizers: sentences to words."""

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

from ncelm.arguments import check_choice
from ncelm.errors import NcelmError
from ncelm.text.normalize import Normalization, ccnet_normalized
from ncelm.text.pieces import PieceKind, Pieces

Tokenizer = Literal["whitespace", "treebank", "huggingface", "sentencepiece"]
SHORT = 100  # characters of a part of a sentence whose words are remembered


@dataclass(frozen=True)
class TextSettings:
    """The tokenizer and its options. Stores and models keep them, so that new text is tokenized in the same way.

    >>> TextSettings("treebank", lowercase=True).words("They'll come, he said.")
    ['they', "'ll", 'come', ',', 'he', 'said', '.']
    """

    tokenizer: Tokenizer = "whitespace"
    lowercase: bool = False
    normalization: Normalization = "none"  # of a sentence, before it is tokenized
    pieces: Pieces | None = None  # the subword tokenizer of kind huggingface or sentencepiece

    def __post_init__(self) -> None:
        """Validate the fields."""
        if self.tokenizer not in get_args(Tokenizer):
            raise NcelmError(f"`tokenizer` is {self.tokenizer!r}: it must be {' or '.join(get_args(Tokenizer))}")
        if type(self.lowercase) is not bool:
            raise NcelmError(f"`lowercase` is {self.lowercase!r}: it must be True or False")
        check_choice("normalization", self.normalization, get_args(Normalization))
        kind = self.pieces.kind if self.pieces else None
        if kind != (self.tokenizer if self.tokenizer in get_args(PieceKind) else None):
            raise NcelmError(f"`pieces` is {self.pieces}, which is not of kind {self.tokenizer}")

    @classmethod
    def of(cls, pieces: Pieces, lowercase: bool = False, normalization: Normalization = "none") -> "TextSettings":
        """Return the settings of a subword tokenizer."""
        return cls(pieces.kind, lowercase, normalization, pieces)

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the file of a subword tokenizer to a store or run; return `as_dict`."""
        if self.pieces:
            self.pieces.save(folder)
        return self.as_dict()

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of the settings in a JSON file, with the digest of the file of a subword tokenizer."""
        content: dict[str, Any] = {"tokenizer": self.tokenizer, "lowercase": self.lowercase}
        if self.normalization != "none":
            content["normalization"] = self.normalization
        if self.pieces:
            content["sha256"] = self.pieces.sha256
        return content

    @classmethod
    def load(cls, folder: Path, content: object) -> "TextSettings":
        """Return the settings that `save` wrote.

        Raise `ValueError` if the entry is damaged, and `NcelmError` if the file of a subword tokenizer is.
        """
        values = dict(content) if isinstance(content, dict) else {}
        tokenizer, sha256 = values.pop("tokenizer", None), values.pop("sha256", None)
        has_file = tokenizer in get_args(PieceKind)
        known = set(values) <= {"lowercase", "normalization"} and "lowercase" in values
        if not known or tokenizer not in get_args(Tokenizer) or has_file != isinstance(sha256, str):
            raise ValueError("the text settings have other fields")
        try:
            settings = cls(**values)
        except NcelmError as error:
            raise ValueError(str(error)) from error
        pieces = Pieces.load(folder, cast(PieceKind, tokenizer), sha256) if has_file else None
        return replace(settings, tokenizer=cast(Tokenizer, tokenizer), pieces=pieces)

    # -- words --------------------------------------------------------------------------------------------------------

    def words(self, sentence: str) -> list[str]:
        """Return the words of one sentence; no word contains white space."""
        if self.normalization == "ccnet":
            sentence = ccnet_normalized(sentence)
        if self.pieces:
            return self.pieces.words(" ".join((sentence.lower() if self.lowercase else sentence).split()))
        if self.tokenizer == "treebank":
            words = _treebank_words(sentence)
            return [word.lower() for word in words] if self.lowercase else words
        return sentence.lower().split() if self.lowercase else sentence.split()

    def join(self, words: Iterable[str]) -> str:
        """Return the text of a sentence, given its words: the inverse of `words`, up to white space and case.

        >>> TextSettings("treebank", lowercase=True).join(["they", "'ll", "come", ",", "he", "said", "."])
        "They'll come, he said."
        """
        if self.tokenizer == "treebank":
            text: str = _treebank_detokenizer().detokenize(list(words))
            return text[:1].upper() + text[1:] if self.lowercase else text
        return self.pieces.join(words) if self.pieces else " ".join(words)

    def spelled(self, words: Iterable[str], before: Iterable[str] = ()) -> Iterator[str]:
        """Yield the text that each word adds to the words `before`, as soon as it is known.

        A piece may be a part of a character, whose text comes with its last piece.

        >>> list(TextSettings().spelled(["the", "cat"]))
        ['the', ' cat']
        """
        known = list(before)
        if not self.pieces:
            for word in words:
                yield f" {word}" if known else word
                known.append(word)
            return
        text = self.pieces.join(known).rstrip("\ufffd")
        for word in words:
            known.append(word)
            new = self.pieces.join(known)
            complete = new.startswith(text) and not new.endswith("\ufffd")  # the replacement character
            yield new[len(text) :] if complete else ""
            text = new if complete else text


class TextSize(NamedTuple):
    """The size of a sentence, which does not depend on the tokenizer."""

    words: int  # separated by white space
    bytes: int  # in UTF-8, with one blank or line end after each word

    @classmethod
    def of(cls, sentence: str) -> "TextSize":
        """Return the size of a sentence.

        >>> TextSize.of(" Grüße,  Welt ")
        TextSize(words=2, bytes=14)
        """
        return cls.of_words(sentence.split())

    @classmethod
    def of_words(cls, words: list[str]) -> "TextSize":
        """Return the size of a sentence, given its words between white space."""
        text = " ".join(words)
        return cls(len(words), 1 + (len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))))


# The rules of the Treebank tokenizer do not extend across white space, but some apply to the beginning or the end of a
# sentence only. So the tokens of parts between white space, which repeat, can be remembered. This is much faster.


def _treebank_words(sentence: str) -> list[str]:
    parts = sentence.split()
    if len(parts) < 2:
        return _treebank_tokenizer().tokenize(parts[0]) if parts else []
    if max(map(len, parts)) > SHORT:  # rare, and not to be kept in memory
        return _treebank_tokenizer().tokenize(" ".join(parts))
    words = [*_first_part(parts[0])]
    for part in parts[1:-1]:
        words += _inner_part(part)
    words += _last_part(parts[-1])
    return words


@functools.lru_cache(1 << 17)
def _inner_part(part: str) -> list[str]:
    """Return the words of a part of a sentence that other parts precede and follow."""
    return _treebank_tokenizer().tokenize(f"x {part} x")[1:-1]


@functools.lru_cache(1 << 14)
def _first_part(part: str) -> list[str]:
    return _treebank_tokenizer().tokenize(f"{part} x")[:-1]


@functools.lru_cache(1 << 14)
def _last_part(part: str) -> list[str]:
    return _treebank_tokenizer().tokenize(f"x {part}")[1:]


@functools.cache
def _treebank_tokenizer() -> Any:
    """Return NLTK's Treebank tokenizer with the regular expressions of the standard library.

    Recent versions of NLTK match all regular expressions under a time limit. The limit halves the speed, and its errors
    depend on the load of the machine. These expressions take linear time on a sentence and need no limit.
    """
    from nltk.tokenize import TreebankWordTokenizer

    def standard(pattern: Any) -> re.Pattern[str]:
        return re.compile(pattern.pattern, pattern.flags & re.IGNORECASE)

    tokenizer = TreebankWordTokenizer()
    for name in ("STARTING_QUOTES", "PUNCTUATION", "ENDING_QUOTES"):
        setattr(tokenizer, name, [(standard(p), new) for p, new in getattr(tokenizer, name)])
    for name in ("PARENS_BRACKETS", "DOUBLE_DASHES"):
        pattern, new = getattr(tokenizer, name)
        setattr(tokenizer, name, (standard(pattern), new))
    for name in ("CONTRACTIONS2", "CONTRACTIONS3"):
        setattr(tokenizer, name, [standard(p) for p in getattr(tokenizer, name)])
    return tokenizer


@functools.cache
def _treebank_detokenizer() -> Any:
    from nltk.tokenize.treebank import TreebankWordDetokenizer

    return TreebankWordDetokenizer()
