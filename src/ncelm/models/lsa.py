"""Latent semantic analysis: words that occur in the same sentences point the same way.

A sentence is a document. A word's count n in it becomes log(1 + n), times the word's weight: 1 minus its entropy over
the sentences, so that words which are everywhere alike weigh nothing (Dumais 1991). The truncated singular value
decomposition of that matrix gives each word a vector; a candidate's score in a sentence is its total similarity to the
other words, the sum of their cosines (Zweig & Burges 2011).
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh

from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.io.files import atomic_folder, check_not_existing
from ncelm.io.machine import check_memory
from ncelm.io.metrics import Metrics
from ncelm.models import description
from ncelm.models.base import Blank
from ncelm.models.vectors import nearest_words
from ncelm.text.settings import TextSettings
from ncelm.text.store import TokenStore
from ncelm.text.vocabulary import Vocabulary

TOLERANCE = 1e-4  # of squared singular values, relative
BYTES_PER_WORD = 48  # of the text, while its matrix is made


@dataclass(frozen=True, eq=False)
class Lsa:
    """A vector for each word, of length 1; or 0 for words that say nothing, as `<unk>` and `</s>`."""

    unit_vectors: np.ndarray  # (V, d) float32
    vocabulary: Vocabulary
    text: TextSettings

    @classmethod
    def load(cls, path: Path | str) -> "Lsa":
        """Read a run of `train_lsa`."""
        path = Path(path)
        content, origin = description.read_kind(path, "lsa")
        dim = content.get("dim")
        if type(dim) is not int or dim < 1:
            raise run.damaged_config(path)
        arrays, _ = array_files.read_arrays(path / run.MODEL, {"vectors": (len(origin.vocabulary), dim)})
        return cls(arrays["vectors"], origin.vocabulary, origin.text)

    def choice_scores(self, blanks: Iterable[Blank]) -> Iterator[tuple[list[float], list[float]]]:
        """The total similarity of each choice: the sum of its cosines with the other words of its sentence.

        A choice that is several words to the tokeniser has the sum of theirs. There is nothing to normalise.
        """
        for blank in blanks:
            others = self._sum([*blank.before, *blank.after])
            scores = [float(self._sum(choice) @ others) for choice in blank.choices]
            yield scores, scores

    def likeliest(self, before: list[str], after: list[str], n: int = 10) -> list[tuple[str, float]]:
        """The n words with the largest total similarity to these."""
        similarities = self.unit_vectors @ self._sum([*before, *after])  # (V,)
        best = np.argsort(-similarities, kind="stable")
        best = best[best > self.vocabulary.end_id][:n]  # neither <unk> nor </s> is an answer
        return [(self.vocabulary.word(int(i)), float(similarities[i])) for i in best]

    def _sum(self, words: list[str]) -> np.ndarray:
        return self.unit_vectors[self.vocabulary.encode(words)].sum(axis=0)  # (d,)

    def vectors(self, table: str = "context") -> np.ndarray:
        """The word vectors, (V, d); there is but one table."""
        return self.unit_vectors

    def neighbors(self, word: str, n: int = 10, table: str = "context") -> list[tuple[str, float]]:
        """The n words whose vectors point most nearly the same way, with the cosine of the angle."""
        return nearest_words(self.unit_vectors, self.vocabulary, self.text, word, n)


def train_lsa(
    store: TokenStore | Path | str,
    out: Path | str,
    dim: int = 300,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Lsa:
    """Decompose the matrix of a store's training sentences, and write the run `out`.

    `progress` hears how often the matrix has been multiplied; about two to four times `dim` is usual.
    """
    store, out = TokenStore.open(store), Path(out)
    check_not_existing(out)
    most = min(len(store.vocabulary), store.split("train").n_sentences) - 1
    if most < 1:
        raise NcelmError(f"{store.path} has too few sentences for LSA: give more text")
    if seed < 0:
        raise NcelmError(f"--seed is {seed}: it must not be negative")
    if not 1 <= dim <= most:
        raise NcelmError(f"--dim is {dim}: give a number from 1 to {most:,}, fewer than words and sentences")
    check_memory("LSA of this text", memory_bytes(store, dim), "give a lower --dim or a shorter text")
    began = time.perf_counter()
    vectors = decompose(weighted_counts(store), dim, seed, progress)
    origin = description.Origin.of(store)
    with atomic_folder(out) as folder:
        description.write_description(folder, "lsa", origin, dim=dim, seed=seed)
        array_files.write_arrays(folder / run.MODEL, {"vectors": vectors}, {"kind": "lsa"})
        Metrics(folder / run.METRICS).append({"finished": True, "seconds": time.perf_counter() - began})
    return Lsa(vectors, origin.vocabulary, origin.text)


def memory_bytes(store: TokenStore, dim: int) -> int:
    """About so much memory is taken by training: the larger of making the matrix and of decomposing it."""
    basis = len(store.vocabulary) * (3 * dim + 20) * np.dtype(np.float32).itemsize  # the search keeps 2 dim + 1 vectors
    return store.split("train").tokens * BYTES_PER_WORD + basis


def sentence_counts(store: TokenStore) -> sparse.csr_array:
    """How often each word is in each sentence of the training text, (V, sentences); not so `<unk>` and `</s>`."""
    split, vocabulary = store.split("train"), store.vocabulary
    lengths = np.diff(split.sentences).astype(np.int64)
    ids = np.asarray(split.ids, np.int32)
    words = ids > vocabulary.end_id
    sentence = np.repeat(np.arange(lengths.size, dtype=np.int32), lengths)[words]
    ids = ids[words]
    counts = sparse.csr_array((np.ones(ids.size, np.float32), (ids, sentence)), shape=(len(vocabulary), lengths.size))
    counts.sum_duplicates()
    return counts


def weighted_counts(store: TokenStore) -> sparse.csr_array:
    """log(1 + n) times the weight of the word, (V, sentences); `<unk>` and `</s>`, which are no words, have none."""
    counts, vocabulary = sentence_counts(store), store.vocabulary
    sentences = max(counts.shape[1], 2)
    row = np.repeat(np.arange(len(vocabulary), dtype=np.int32), np.diff(counts.indptr))
    total = np.bincount(row, counts.data, minlength=len(vocabulary))
    share = counts.data / total[row]
    entropy = -np.bincount(row, share * np.log(share), minlength=len(vocabulary))
    entropy[total == 0] = np.log(sentences)  # words that do not occur
    weight = 1.0 - entropy / np.log(sentences)  # (V,)
    weight[weight < 1e-9] = 0.0  # that is rounding: the word is everywhere alike
    if not weight.any():
        raise NcelmError("every word is in all sentences alike, so LSA can tell none from another: give other text")
    counts.data = (np.log1p(counts.data) * weight[row]).astype(np.float32)
    return counts


def decompose(
    matrix: sparse.csr_array, dim: int, seed: int, progress: Callable[[int], None] | None = None
) -> np.ndarray:
    """A vector for each row of A: its place along the first left singular vectors U, scaled to length 1; float32.

    U and not U Σ: the first few singular values are so large that they would drown what tells words apart. U are the
    eigenvectors of A Aᵀ, which is multiplied by, never made. (SciPy's `svds` does that too, but then makes a vector for
    each sentence: gigabytes that nobody asked for.)
    """
    products = 0
    transposed = matrix.T.tocsr()  # twice the memory, but both products run along rows

    def multiply(x: np.ndarray) -> np.ndarray:
        nonlocal products
        products += 1
        if progress:
            progress(products)
        return matrix @ (transposed @ x)

    size = matrix.shape[0]
    start = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    _, left = eigsh(
        LinearOperator((size, size), matvec=multiply, dtype=np.float32), k=dim, v0=start, tol=TOLERANCE
    )  # (dim,), (rows, dim), the smallest first
    vectors = left[:, ::-1]
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    said_something = norms > 1e-6 * norms.max()
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=said_something).astype(np.float32)
