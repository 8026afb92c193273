"""Word vectors: those of a model, nearest neighbors, and files for other tools."""

from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from ncelm.arguments import check_choice, check_int, check_path, check_str, check_type
from ncelm.errors import NcelmError
from ncelm.io.files import atomic_write, check_not_existing
from ncelm.models.base import Scorer, Table, WordModel, check_scorer
from ncelm.models.mixture import Mixture
from ncelm.text.settings import TextSettings
from ncelm.text.vocabulary import Vocabulary

VectorFormat = Literal["word2vec", "word2vec-binary", "glove"]


def word_vectors(model: WordModel, table: Table = "context") -> np.ndarray:
    """Return the word vectors of a model, (V, d): context vectors r_w or target vectors q_w.

    Those of a mixture are the vectors of its first component that has any.
    """
    check_choice("table", table, get_args(Table))
    arrays = _arrays_with_vectors(model)
    if "context_vectors" not in arrays:
        raise NcelmError(
            "this model has no word vectors: use a log-bilinear, feed-forward or LSTM model, or an LSA model"
        )
    context_vectors = arrays["context_vectors"][:-1]  # (V, d): without the out-of-sentence word
    # tied embeddings: one table for both
    return context_vectors if table == "context" else arrays.get("target_vectors", context_vectors)


def _arrays_with_vectors(model: Any) -> dict[str, np.ndarray]:
    """Return the parameters of a model, or of the first component of a mixture that has word vectors."""
    if isinstance(model, Mixture):
        found = (_arrays_with_vectors(component) for component in model.components)
        return next((arrays for arrays in found if "context_vectors" in arrays), {})
    arrays: dict[str, np.ndarray] = model.arrays() if hasattr(model, "arrays") else {}
    return arrays


def nearest_words(
    vectors: np.ndarray, vocabulary: Vocabulary, text: TextSettings, word: str, n: int
) -> list[tuple[str, float]]:
    """Return the n words whose vectors, (V, d), have the largest cosine similarity to that of a word."""
    word, n = check_str("word", word), check_int("n", n, 1)
    valid = isinstance(vectors, np.ndarray) and vectors.ndim == 2 and len(vectors) == len(vocabulary)
    check_type("vectors", vectors, valid, f"an array with {len(vocabulary):,} rows, one for each word")
    if text.pieces and word not in vocabulary:
        found = text.words(word)
        if len(found) != 1:
            raise NcelmError(f"{word!r} has {len(found)} pieces, {' '.join(found)[:80]}: give one of the pieces")
        word = found[0]
    word = word.lower() if text.lowercase and not text.pieces else word
    if word not in vocabulary:
        raise NcelmError(f"{word!r} is not in the model's vocabulary of {len(vocabulary):,} words")
    norms = np.linalg.norm(vectors, axis=1)  # (V,)
    own = vocabulary.id(word)
    if norms[own] == 0:
        raise NcelmError(f"{word!r} has no vector in this model: choose another word")
    cosines = vectors @ vectors[own] / np.maximum(norms * norms[own], 1e-30)  # (V,)
    cosines[own] = -np.inf
    nearest = np.argsort(-cosines, kind="stable")[: min(n, len(cosines) - 1)]
    return [(vocabulary.word(int(i)), float(cosines[i])) for i in nearest]


def export_vectors(
    scorer: Scorer, path: Path | str, kind: VectorFormat = "word2vec", table: Table = "context"
) -> tuple[int, int]:
    """Write all word vectors to the new file `path`; return their number and their dimension.

    word2vec: text; the first line has both numbers, each other line a word and its vector. word2vec-binary: the same
    with float32 bytes instead of digits. glove: word2vec without the first line.
    """
    check_scorer("scorer", scorer)
    path = check_path("path", path)
    check_choice("kind", kind, get_args(VectorFormat))
    check_choice("table", table, get_args(Table))
    check_not_existing(path)
    vectors, words = scorer.vectors(table), scorer.vocabulary.words
    count, dim = vectors.shape
    with atomic_write(path) as file:
        if kind != "glove":
            file.write(f"{count} {dim}\n".encode())
        for word, vector in zip(words, vectors, strict=True):
            if kind == "word2vec-binary":
                file.write(f"{word} ".encode() + vector.astype("<f4").tobytes() + b"\n")
            else:
                numbers = " ".join(f"{x:.9g}" for x in vector.tolist())  # nine digits represent a float32 exactly
                file.write(f"{word} {numbers}\n".encode())
    return count, dim
