"""Latent semantic analysis (LSA): word vectors from the sentences in which words occur together.

A sentence is a document. The count n of a word in a document becomes log(1 + n), times the entropy weight of the word:
1 minus the normalised entropy of its distribution over documents (Dumais 1991). A truncated singular value
decomposition of this matrix gives the word vectors. The score of a word in a sentence is its total similarity to the
other words: the sum of the cosines (Zweig & Burges 2011).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from ncelm.arguments import check_choice, check_int, check_path
from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.io.files import atomic_folder, check_not_existing
from ncelm.io.machine import check_memory
from ncelm.io.metrics import Metrics
from ncelm.models import description
from ncelm.models.base import ChoiceScores, Gap, Table, check_words_around, checked_gaps
from ncelm.models.vectors import nearest_words
from ncelm.progress import check_progress, progress_bar, show
from ncelm.text.settings import TextSettings
from ncelm.text.store import TokenStore, store_or_path
from ncelm.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from scipy import sparse

TOLERANCE = 1e-4  # relative accuracy of the squared singular values
BYTES_PER_WORD = 48  # of the text, while the matrix of counts is built


@dataclass(frozen=True, eq=False)
class Lsa:
    """Word vectors of length 1, or 0 for `<unk>`, `</s>` and words without entropy weight."""

    unit_vectors: np.ndarray  # (V, d) float32
    vocabulary: Vocabulary
    text: TextSettings

    @classmethod
    def load(cls, path: Path | str) -> "Lsa":
        """Return the model of a run of `train_lsa`."""
        path = check_path("path", path)
        content, origin = description.read_kind(path, "lsa")
        dim = content.get("dim")
        if type(dim) is not int or dim < 1:
            raise run.damaged_config(path)
        arrays, _ = array_files.read_arrays(path / run.MODEL, {"vectors": (len(origin.vocabulary), dim)})
        return cls(arrays["vectors"], origin.vocabulary, origin.text)

    def __repr__(self) -> str:
        return f"Lsa(dim {self.unit_vectors.shape[1]}, {len(self.vocabulary):,} words)"

    @property
    def log_unknown_types(self) -> None:
        """None: similarities are not probabilities, and unknown words have none."""
        return

    def choice_scores(self, gaps: Iterable[Gap]) -> Iterator[ChoiceScores]:
        """Return the total similarity of each choice: the sum of its cosines with the other words of the sentence.

        The score of a choice of several tokens is the sum of theirs. Choices for several gaps also have the cosines of
        the tokens in different gaps. An unknown word adds 0.
        """
        return map(self._choice_scores, checked_gaps(gaps))

    def _choice_scores(self, gap: Gap) -> ChoiceScores:
        scores, around = [], self._sum(gap.others)
        for fillers in gap.fillers():
            score, others = 0.0, around
            for vector in map(self._sum, fillers):
                score += float(vector @ others)
                others = others + vector  # the tokens in the next gaps are compared with those in this one
            scores.append(score)
        return ChoiceScores(scores, scores)

    def most_likely(self, before: Sequence[str], after: Sequence[str], n: int = 10) -> list[tuple[str, float]]:
        """Return the n words with the largest total similarity to these, and the similarities."""
        before, after = check_words_around(before, after)
        n = check_int("n", n, 1)
        similarities = self.unit_vectors @ self._sum([*before, *after])  # (V,)
        best = np.argsort(-similarities, kind="stable")
        best = best[best > self.vocabulary.end_id][:n]  # neither <unk> nor </s>
        return [(self.vocabulary.word(int(i)), float(similarities[i])) for i in best]

    def _sum(self, words: list[str]) -> np.ndarray:
        """Return the sum of the vectors of words, (d,)."""
        total: np.ndarray = self.unit_vectors[self.vocabulary.encode(words)].sum(axis=0)
        return total

    def vectors(self, table: Table = "context") -> np.ndarray:
        """Return the word vectors, (V, d). There is only one table."""
        check_choice("table", table, get_args(Table))
        return self.unit_vectors

    def neighbors(self, word: str, n: int = 10, table: Table = "context") -> list[tuple[str, float]]:
        """Return the n words with the nearest vectors by cosine similarity, and the similarities."""
        return nearest_words(self.vectors(table), self.vocabulary, self.text, word, n)


def train_lsa(
    store: TokenStore | Path | str,
    out: Path | str,
    dim: int = 300,
    seed: int = 0,
    progress: bool | Callable[[int], None] | None = True,
) -> Lsa:
    """Decompose the matrix of the training sentences of a store, write the run `out`, and return the model.

    `progress` is explained in `ncelm.progress`; a function is called with the number of matrix products done, of which
    there are about two to four times `dim`.
    """
    store, out = store_or_path("store", store), check_path("out", out)
    dim, seed = check_int("dim", dim), check_int("seed", seed, 0)
    check_progress(progress)
    store = TokenStore.open(store)
    check_not_existing(out)
    max_dim = min(len(store.vocabulary), store.split("train").n_sentences) - 1
    if max_dim < 1:
        raise NcelmError(f"{store.path} has too few sentences for LSA: give more text")
    if not 1 <= dim <= max_dim:
        raise NcelmError(f"`dim` is {dim}: give a number from 1 to {max_dim:,}, below that of words and of sentences")
    check_memory("LSA of this text", memory_bytes(store, dim), "give a lower `dim` or a shorter text")
    start = time.perf_counter()
    with _products_shown(progress) as report:
        vectors = decompose(weighted_counts(store), dim, seed, report)
    origin = description.Origin.of(store)
    with atomic_folder(out) as folder:
        description.write_description(folder, "lsa", origin, dim=dim, seed=seed)
        array_files.write_arrays(folder / run.MODEL, {"vectors": vectors}, {"kind": "lsa"})
        Metrics(folder / run.METRICS).append({"finished": True, "seconds": time.perf_counter() - start})
    return Lsa(vectors, origin.vocabulary, origin.text)


@contextmanager
def _products_shown(progress: bool | Callable[[int], None] | None) -> Iterator[Callable[[int], None] | None]:
    """Yield the function that `decompose` calls. The number of products is not known in advance."""
    if progress is True:
        with progress_bar(desc="decomposing (about three products for each dimension)", unit=" products") as bar:
            yield lambda done: show(bar)(done, None)
    else:
        yield progress or None


def memory_bytes(store: TokenStore, dim: int) -> int:
    """Return the approximate memory of training: the matrix of counts, and the basis of the eigenvalue solver."""
    basis = len(store.vocabulary) * (3 * dim + 20) * np.dtype(np.float32).itemsize  # the solver keeps 2 dim + 1 vectors
    return store.split("train").tokens * BYTES_PER_WORD + basis


def sentence_counts(store: TokenStore) -> "sparse.csr_array":
    """Return the count of each word in each training sentence, (V, sentences); rows of `<unk>` and `</s>` are 0."""
    from scipy import sparse

    split, vocabulary = store.split("train"), store.vocabulary
    lengths = np.diff(split.sentences).astype(np.int64)
    ids = np.asarray(split.ids, np.int32)
    is_word = ids > vocabulary.end_id
    sentence = np.repeat(np.arange(lengths.size, dtype=np.int32), lengths)[is_word]
    ids = ids[is_word]
    counts = sparse.csr_array((np.ones(ids.size, np.float32), (ids, sentence)), shape=(len(vocabulary), lengths.size))
    counts.sum_duplicates()
    return counts


def weighted_counts(store: TokenStore) -> "sparse.csr_array":
    """Return log(1 + n) times the entropy weight of the word, (V, sentences); rows of `<unk>` and `</s>` are 0."""
    counts, vocabulary = sentence_counts(store), store.vocabulary
    sentences = max(counts.shape[1], 2)
    row = np.repeat(np.arange(len(vocabulary), dtype=np.int32), np.diff(counts.indptr))
    total = np.bincount(row, counts.data, minlength=len(vocabulary))  # (V,)
    share = counts.data / total[row]
    entropy = -np.bincount(row, share * np.log(share), minlength=len(vocabulary))  # (V,)
    entropy[total == 0] = np.log(sentences)  # words that do not occur
    weight = 1.0 - entropy / np.log(sentences)  # (V,)
    weight[weight < 1e-9] = 0.0  # rounding errors of words that are uniformly distributed
    if not weight.any():
        raise NcelmError("all words are uniformly distributed over the sentences: LSA needs other text")
    counts.data = (np.log1p(counts.data) * weight[row]).astype(np.float32)
    return counts


def decompose(
    matrix: "sparse.csr_array", dim: int, seed: int, progress: Callable[[int], None] | None = None
) -> np.ndarray:
    """Return a vector for each row of A, (rows, dim) float32: its row of the left singular vectors U, of length 1.

    U without the singular values Σ: the first few are so large that they would dominate all similarities. U are the
    eigenvectors of A Aᵀ. (SciPy's `svds` also computes the right singular vectors, one per sentence: gigabytes.)
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    products = 0
    transposed = matrix.T.tocsr()  # twice the memory, but both products read rows

    def multiply(x: np.ndarray) -> np.ndarray:
        nonlocal products
        products += 1
        if progress:
            progress(products)
        product: np.ndarray = matrix @ (transposed @ x)
        return product

    size = matrix.shape[0]
    start = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    _, left = eigsh(
        LinearOperator((size, size), matvec=multiply, dtype=np.float32), k=dim, v0=start, tol=TOLERANCE
    )  # (dim,), (rows, dim), in ascending order of eigenvalues
    vectors = left[:, ::-1]
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    nonzero = norms > 1e-6 * norms.max()
    unit: np.ndarray = np.divide(vectors, norms, out=np.zeros_like(vectors), where=nonzero)
    return unit.astype(np.float32)
