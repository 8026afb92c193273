"""Word vectors in the files that other tools read."""

from pathlib import Path
from typing import Literal

from ncelm.io.files import atomic_write, check_not_existing
from ncelm.models.base import Scorer

VectorFormat = Literal["word2vec", "word2vec-binary", "glove"]


def export_vectors(lm: Scorer, path: Path, kind: VectorFormat = "word2vec", table: str = "context") -> tuple[int, int]:
    """Write all word vectors to `path`, which must not exist; return how many and of how many dimensions.

    word2vec: text, a first line with both numbers, then a word and its vector a line. word2vec-binary: the same with
    float32 in place of digits. glove: the text form without the first line.
    """
    check_not_existing(path)
    vectors, words = lm.vectors(table), lm.vocabulary.words
    with atomic_write(path) as file:
        if kind != "glove":
            file.write(f"{vectors.shape[0]} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, vectors, strict=True):
            if kind == "word2vec-binary":
                file.write(f"{word} ".encode() + vector.astype("<f4").tobytes() + b"\n")
            else:
                numbers = " ".join(f"{x:.9g}" for x in vector.tolist())  # nine digits are a float32, exactly
                file.write(f"{word} {numbers}\n".encode())
    return vectors.shape
