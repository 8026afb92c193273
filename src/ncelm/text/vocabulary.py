"""The vocabulary: words, their ids and their training counts.

Id 0 is the unknown word `<unk>` and id 1 the end of a sentence `</s>`. The other words follow by decreasing count, and
alphabetically where counts are equal. The out-of-sentence word is not in the vocabulary, because it is never predicted.
It has only a context id: V, the size of the vocabulary.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from itertools import repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ncelm.arguments import check_int, check_ints, check_path, check_str, check_strings, check_type
from ncelm.errors import NcelmError
from ncelm.io.files import atomic_write, read_bytes

UNKNOWN = "<unk>"
END = "</s>"
RESERVED = frozenset({UNKNOWN, END, "<s>"})  # in a text, these tokens count as <unk>


class Vocabulary:
    """An immutable list of words with their counts in the training text.

    >>> vocabulary = Vocabulary.from_counts({"the": 3, "cat": 1, "dog": 2}, sentences=2, min_count=2)
    >>> vocabulary.words
    ('<unk>', '</s>', 'the', 'dog')
    >>> vocabulary.encode(["the", "cat"]).tolist()
    [2, 0]
    >>> vocabulary.counts.tolist()
    [1, 2, 3, 2]
    """

    unknown_id = 0
    end_id = 1

    def __init__(
        self,
        words: Sequence[str],
        counts: Sequence[int] | npt.NDArray[np.int64],
        unknown_types: int | None = None,
    ) -> None:
        """Create a vocabulary.

        Args:
            words: in the order of their ids, beginning with `<unk>` and `</s>`.
            counts: the training count of each word. The count of `<unk>` is the number of unknown tokens, the count of
                `</s>` the number of sentences.
            unknown_types: the number of distinct words that `<unk>` stands for; by default, `estimate_unknown_types`
                estimates it from the counts.
        """
        self.words = tuple(check_strings("words", words))
        self.counts = np.array(check_ints("counts", counts, 0), dtype=np.int64)  # (V,)
        self.counts.flags.writeable = False
        self._ids = {word: id for id, word in enumerate(self.words)}
        if self.words[:2] != (UNKNOWN, END):
            raise NcelmError(f"a vocabulary begins with {UNKNOWN} and {END}, not with {list(self.words[:2])}")
        if len(self._ids) != len(self.words):
            raise NcelmError("a word occurs twice in a vocabulary: give each word once")
        if "<s>" in self._ids:
            raise NcelmError("<s> is reserved and cannot be a word of a vocabulary: remove it")
        if " ".join(self.words).split() != list(self.words):
            raise NcelmError("a word of a vocabulary is empty or contains white space: remove it")
        if len(self.counts) != len(self.words):
            raise NcelmError(
                f"`counts` has {len(self.counts):,} numbers for {len(self.words):,} words: give one per word"
            )
        self.unknown_types = (
            estimate_unknown_types(int(self.counts[self.unknown_id]), self.counts[self.end_id + 1 :])
            if unknown_types is None
            else check_int("unknown_types", unknown_types, 0)
        )
        try:
            self._text = "\n".join(self.words).encode()
        except UnicodeEncodeError:
            raise NcelmError("a word of the vocabulary cannot be encoded as UTF-8: remove it") from None

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        sentences: int,
        min_count: int = 1,
        max_size: int | None = None,
        always: Collection[str] = (),
    ) -> "Vocabulary":
        """Return the vocabulary of a training text.

        Args:
            counts: the number of occurrences of each word.
            sentences: the number of sentences.
            min_count: words with fewer occurrences become `<unk>`.
            max_size: the largest size, including `<unk>` and `</s>`; the rarest words become `<unk>`.
            always: words that are in the vocabulary even if they do not occur, such as all pieces of a tokenizer.

        The tokens `<unk>`, `</s>` and `<s>` of the text also count as `<unk>`. The number of words that a token `<unk>`
        of the text stands for is estimated.
        """
        check_type("counts", counts, isinstance(counts, Mapping), "a dictionary of words and their counts")
        check_strings("counts", list(counts))
        check_ints("counts", list(counts.values()), 0)
        sentences = check_int("sentences", sentences, 0)
        min_count = check_int("min_count", min_count, 1)
        max_size = None if max_size is None else check_int("max_size", max_size, 4)  # <unk>, </s> and two words
        counts = dict.fromkeys(always, 0) | dict(counts)
        always = frozenset(always)
        kept = [w for w, count in counts.items() if (count >= min_count or w in always) and w not in RESERVED]
        kept.sort(key=lambda word: (-counts[word], word))
        kept = kept if max_size is None else kept[: max_size - 2]
        kept_counts = [counts[word] for word in kept]
        unknown = sum(counts.values()) - sum(kept_counts)
        removed = sum(1 for word, count in counts.items() if count > 0 and word != UNKNOWN) - np.count_nonzero(
            kept_counts
        )
        unknown_types = int(removed) + estimate_unknown_types(counts.get(UNKNOWN, 0), np.array(kept_counts, np.int64))
        return cls([UNKNOWN, END, *kept], [unknown, sentences, *kept_counts], unknown_types)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def __repr__(self) -> str:
        return f"Vocabulary({len(self):,} words)"

    @property
    def out_of_sentence_id(self) -> int:
        """The context id of positions outside the sentence: V."""
        return len(self.words)

    @property
    def digest(self) -> str:
        """The SHA-256 digest of the words in their order. Equal digests mean equal ids."""
        return hashlib.sha256(self._text).hexdigest()

    @property
    def file_digest(self) -> str:
        """The SHA-256 digest of the file that `save` writes: of the words and their counts."""
        return hashlib.sha256(self._file_content()).hexdigest()

    def _file_content(self) -> bytes:
        lines = (f"{word}\t{count}\n" for word, count in zip(self.words, self.counts.tolist(), strict=True))
        return "".join(lines).encode()

    def id(self, word: str) -> int:
        """Return the id of a word; that of `<unk>` if the word is not in the vocabulary."""
        return self._ids.get(check_str("word", word), self.unknown_id)

    def word(self, id: int) -> str:
        """Return the word with this id."""
        id = check_int("id", id)
        if not 0 <= id < len(self.words):
            raise IndexError(f"`id` is {id}: there is no such word in a vocabulary of {len(self):,}")
        return self.words[id]

    def encode(self, words: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the ids of the words of a text, (n,).

        A token `</s>` in a text is not the end of a sentence; it is unknown, like all words outside the vocabulary.
        """
        ids, words = self._ids, check_strings("words", words)
        found = np.fromiter(map(ids.get, words, repeat(self.unknown_id)), dtype=np.int64, count=len(words))  # (n,)
        found[found == self.end_id] = self.unknown_id
        return found

    def save(self, path: Path | str) -> None:
        """Write one line "word<TAB>count" per word, in the order of the ids."""
        with atomic_write(check_path("path", path)) as file:
            file.write(self._file_content())

    @classmethod
    def load(cls, path: Path | str, unknown_types: int | None = None) -> "Vocabulary":
        """Return the vocabulary that `save` wrote. The content is validated.

        The file does not have the number of words that `<unk>` stands for: `unknown_types` is that of the constructor.
        """
        path = check_path("path", path)
        content = read_bytes(path)
        if not content:
            raise NcelmError(f"{path} is empty: restore the vocabulary from a copy")
        try:
            lines = content.decode().split("\n")
        except UnicodeDecodeError as error:
            bad = content.count(b"\n", 0, error.start) + 1
            raise NcelmError(f"{path} is not a vocabulary: line {bad:,} is not UTF-8") from None
        if lines.pop():
            raise NcelmError(f"{path} is truncated in line {len(lines) + 1:,}: restore it from a copy")
        words: dict[str, int] = {}
        for number, line in enumerate(lines, start=1):
            word, _, count = line.partition("\t")
            if word.split() != [word] or word == "<s>":
                raise NcelmError(f"{path}, line {number:,}: {word[:40]!r} is not a word")
            # 18 digits always fit into 64 bits.
            if not (count.isascii() and count.isdigit() and len(count) <= 18):
                raise NcelmError(f"{path}, line {number:,}: expected a word, a tab and a count")
            if word in words:
                raise NcelmError(f"{path}, line {number:,}: the word {word[:40]!r} occurs twice")
            if number <= 2 and word != (UNKNOWN, END)[number - 1]:
                raise NcelmError(f"{path}, line {number}: a vocabulary begins with {UNKNOWN} and {END}")
            words[word] = int(count)
        if len(words) < 2:
            raise NcelmError(f"{path} is truncated: a vocabulary begins with {UNKNOWN} and {END}")
        return cls(list(words), list(words.values()), unknown_types)


def estimate_unknown_types(tokens: int, counts: npt.NDArray[np.int64]) -> int:
    """Return an estimate of the number of distinct words that occur as `tokens` tokens `<unk>` in a text.

    `counts` are the counts of the words that are not unknown, (n,). By Zipf's law, the share of the words of a text
    that occur m times is 1 / (m (m + 1)). If words that occur fewer than c times are unknown, there are therefore

        tokens · (1 − 1/c) / (1/2 + 1/3 + … + 1/c)

    of them. The most frequent of the `counts` is taken for c, because the shares decrease with m: a few rarer words, as
    in the Penn Treebank, do not change it. The estimate is 0 without unknown tokens, and at least 1 with them.

    >>> estimate_unknown_types(45_020, np.array([1, 5, 6, 6, 6, 7, 7, 100]))
    25874
    """
    if tokens == 0:
        return 0
    seen = counts[counts > 0]
    values, frequencies = np.unique(seen, return_counts=True)  # values are sorted: of equal frequencies, the lowest
    lowest = min(max(int(values[frequencies.argmax()]), 2), 1000) if seen.size else 2  # at most 1,000 terms are added
    return max(round(tokens * (1 - 1 / lowest) / float((1 / np.arange(2, lowest + 1)).sum())), 1)
