"""Tokenizers: sentences to words."""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ncelm.errors import NcelmError

Tokenizer = Literal["whitespace", "treebank"]
SHORT = 20  # characters of a sentence whose words are remembered


@dataclass(frozen=True)
class TextSettings:
    """The tokenizer and its options. Stores and models keep them, so that new text is tokenized in the same way.

    >>> TextSettings("treebank", lowercase=True).words("They'll come, he said.")
    ['they', "'ll", 'come', ',', 'he', 'said', '.']
    """

    tokenizer: Tokenizer = "whitespace"
    lowercase: bool = False

    def __post_init__(self) -> None:
        """Validate the fields."""
        if self.tokenizer not in get_args(Tokenizer):
            raise NcelmError(f"`tokenizer` is {self.tokenizer!r}: it must be {' or '.join(get_args(Tokenizer))}")
        if type(self.lowercase) is not bool:
            raise NcelmError(f"`lowercase` is {self.lowercase!r}: it must be True or False")

    def words(self, sentence: str) -> list[str]:
        """Return the words of one sentence; no word contains white space."""
        if self.tokenizer == "treebank":
            # One of NLTK's regular expressions takes quadratic time on runs of white space.
            sentence = " ".join(sentence.split())
            # Very short sentences repeat: a text may have a million lines "* * *".
            words = list(_remembered(sentence)) if len(sentence) <= SHORT else _treebank_tokenizer().tokenize(sentence)
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
        return " ".join(words)


@functools.lru_cache(1 << 14)
def _remembered(sentence: str) -> tuple[str, ...]:
    """Return the words of a short sentence."""
    return tuple(_treebank_tokenizer().tokenize(sentence))


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
