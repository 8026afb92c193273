"""Latent semantic analysis: words that occur in the same sentences point the same way.

A sentence is a document. A word's count n in it becomes log(1 + n), times the word's weight: 1 minus its entropy over
the sentences, so that words which are everywhere alike weigh nothing (Dumais 1991). The truncated singular value
decomposition of that matrix gives each word a vector; a candidate's score in a sentence is its total similarity to the
other words, the sum of their cosines (Zweig & Burges 2011).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, svds

from ncelm import run
from ncelm.corpus import TokenStore
from ncelm.errors import NcelmError
from ncelm.files import new_folder, refuse_existing
from ncelm.text import TextSettings
from ncelm.vectors import nearest_words
from ncelm.vocabulary import Vocabulary

TOLERANCE = 1e-5  # of singular values, relative: float32 has not much more


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
        content = run.read_config(path)
        if content["kind"] != "lsa":
            raise NcelmError(f"{path} holds a model of another kind than LSA: {content['kind']}")
        origin, dim = run.read_origin(path, content), content.get("dim")
        if type(dim) is not int or dim < 1:
            raise run.damaged_config(path)
        arrays, _ = run.read_arrays(path / run.MODEL, {"vectors": (len(origin.vocabulary), dim)})
        return cls(arrays["vectors"], origin.vocabulary, origin.text)

    def choice_scores(self, before: Sequence[str], choices: Sequence[str], after: Sequence[str]) -> list[float]:
        """The total similarity of each choice: the sum of its cosines with the other words of the sentence."""
        others = self.unit_vectors[self.vocabulary.encode([*before, *after])].sum(axis=0)  # (d,)
        return (self.unit_vectors[self.vocabulary.encode(choices)] @ others).tolist()

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
    store, out = store if isinstance(store, TokenStore) else TokenStore.open(store), Path(out)
    refuse_existing(out)
    most = min(len(store.vocabulary), store.split("train").n_sentences) - 1
    if not 1 <= dim <= most:
        raise NcelmError(f"--dim is {dim}: give a number from 1 to {most:,}, fewer than words and sentences")
    began = time.perf_counter()
    vectors = decompose(weighted_counts(store), dim, seed, progress)
    origin = run.Origin.of(store)
    with new_folder(out) as folder:
        run.write_description(folder, "lsa", origin, dim=dim, seed=seed)
        run.write_arrays(folder / run.MODEL, {"vectors": vectors}, {"kind": "lsa"})
        run.Metrics(folder / run.METRICS).add({"finished": True, "seconds": time.perf_counter() - began})
    return Lsa(vectors, origin.vocabulary, origin.text)


def weighted_counts(store: TokenStore) -> sparse.csr_array:
    """log(1 + n) times the weight of the word, (V, sentences); `<unk>` and `</s>`, which are no words, have none."""
    split, vocabulary = store.split("train"), store.vocabulary
    lengths = np.diff(split.sentences).astype(np.int64)
    ids = np.asarray(split.ids, np.int32)
    words = ids > vocabulary.end_id
    sentence = np.repeat(np.arange(lengths.size, dtype=np.int32), lengths)[words]
    ids = ids[words]
    counts = sparse.csr_array(
        (np.ones(ids.size, np.float32), (ids, sentence)), shape=(len(vocabulary), lengths.size)
    )  # equal entries are summed
    row = np.repeat(np.arange(len(vocabulary), dtype=np.int32), np.diff(counts.indptr))
    total = np.bincount(row, counts.data, minlength=len(vocabulary))
    share = counts.data / total[row]
    entropy = -np.bincount(row, share * np.log(share), minlength=len(vocabulary))
    weight = 1.0 - entropy / np.log(max(lengths.size, 2))  # (V,)
    counts.data = (np.log1p(counts.data) * weight[row]).astype(np.float32)
    return counts


def decompose(
    matrix: sparse.csr_array, dim: int, seed: int, progress: Callable[[int], None] | None = None
) -> np.ndarray:
    """Each row of a matrix as its place among the largest singular vectors, scaled to length 1; (rows, dim) float32."""
    products = 0
    transposed = matrix.T.tocsr()  # twice the memory, but both products run along rows

    def counted(operand: sparse.csr_array) -> Callable[[np.ndarray], np.ndarray]:
        def multiply(x: np.ndarray) -> np.ndarray:
            nonlocal products
            products += 1
            if progress:
                progress(products // 2)
            return operand @ x

        return multiply

    operator = LinearOperator(matrix.shape, matvec=counted(matrix), rmatvec=counted(transposed), dtype=np.float32)
    left, values, _ = svds(operator, k=dim, tol=TOLERANCE, return_singular_vectors="u", rng=np.random.default_rng(seed))
    vectors = (left * values)[:, ::-1]  # U Σ, the largest singular value first
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 1e-6).astype(np.float32)
