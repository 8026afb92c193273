"""Many lines of text to word ids in one call of a compiled kernel."""

import secrets
from collections.abc import Sequence

import numpy as np

from ncelm.kernels.records import WordIndex
from ncelm.text.vocabulary import Vocabulary


class LineEncoder:
    """Encodes lines whose words are separated by white space, like `TextSettings("whitespace").words`.

    >>> vocabulary = Vocabulary(["<unk>", "</s>", "the", "cat"], [0, 1, 2, 1])
    >>> ids, ends = LineEncoder(vocabulary, lowercase=True).encode(["The cat", "", "a cat"])
    >>> ids.tolist(), ends.tolist()
    ([2, 3, 1, 1, 0, 3, 1], [2, 3, 6])
    """

    def __init__(self, vocabulary: Vocabulary, lowercase: bool) -> None:
        """Make a hash table of the words of a vocabulary."""
        from ncelm.kernels import encode

        self.vocabulary, self.lowercase = vocabulary, lowercase
        words = [word.encode() for word in vocabulary.words]
        size = 1 << (2 * len(words)).bit_length()  # at most half full
        self._index = WordIndex(
            slots=np.full(size, encode.EMPTY, np.int32),
            tags=np.zeros(size, np.uint32),
            characters=np.frombuffer(b"".join(words), np.uint8),
            offsets=np.cumsum([0, *map(len, words)]),
            seed=np.uint64(secrets.randbits(64)),  # no vocabulary can be made to collide
        )
        encode.index_words(self._index)

    def encode(self, lines: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all words and of the ends of the lines, (n,), and the indices of the ends, (lines,).

        Words that are not in the vocabulary, and a word `</s>`, are unknown.
        """
        from ncelm.kernels import encode

        lines = [line.lower() for line in lines] if self.lowercase else lines
        # a word with half of a surrogate pair, which is not UTF-8, is in no vocabulary
        encoded = [line.encode("utf-8", "surrogatepass") for line in lines]
        ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        text = np.frombuffer(b"".join(encoded), np.uint8)
        ids, last = np.empty(text.size // 2 + 2 * ends.size, np.uint32), np.empty(ends.size, np.int64)
        unknown_id, end_id = self.vocabulary.unknown_id, self.vocabulary.end_id
        n = encode.encode_lines(text, ends, self._index, unknown_id, end_id, ids, last)
        return ids[:n], last
