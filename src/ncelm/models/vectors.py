"""Words by their vectors: which point nearly the same way."""

import numpy as np

from ncelm.errors import NcelmError
from ncelm.text.settings import TextSettings
from ncelm.text.vocabulary import Vocabulary


def nearest_words(
    vectors: np.ndarray, vocabulary: Vocabulary, text: TextSettings, word: str, n: int
) -> list[tuple[str, float]]:
    """The n words whose vectors, (V, d), point most nearly the same way as a word's, with the cosine of the angle."""
    word = word.lower() if text.lowercase else word
    if word not in vocabulary:
        raise NcelmError(f"{word!r} is not in the model's vocabulary of {len(vocabulary):,} words")
    if n < 1:
        raise NcelmError(f"--count is {n}: ask for at least one neighbour")
    norms = np.linalg.norm(vectors, axis=1)
    own = vocabulary.id(word)
    if norms[own] == 0:
        raise NcelmError(f"{word!r} has no vector in this model: it says nothing of what stands beside it")
    cosines = vectors @ vectors[own] / np.maximum(norms * norms[own], 1e-30)
    cosines[own] = -np.inf
    nearest = np.argsort(-cosines, kind="stable")[: min(n, len(cosines) - 1)]
    return [(vocabulary.word(int(i)), float(cosines[i])) for i in nearest]
