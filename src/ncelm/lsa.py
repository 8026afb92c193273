"""Latent semantic analysis: words that occur in the same sentences point the same way.

A sentence is a document. A word's count n in it becomes log(1 + n), times the word's weight: 1 minus its entropy over the
sentences, so that words which are everywhere alike weigh nothing (Dumais 1991). The truncated singular value
decomposition of that matrix gives each word a vector; a candidate's score in a sentence is its total similarity to the
other words, the sum of their cosines (Zweig & Burges 2011).
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds

from ncelm.corpus import TokenStore
from ncelm.errors import NcelmError


@dataclass(frozen=True, eq=False)
class Lsa:
    """Vectors of length 1, or 0 for words that say nothing."""

    vectors: np.ndarray  # (V, d) float32

    def total_similarity(self, candidate: int, others: np.ndarray) -> float:
        """The sum of the cosines between a candidate and the other words of its sentence."""
        return float((self.vectors[others] @ self.vectors[candidate]).sum())


def weighted_counts(store: TokenStore) -> sparse.csr_array:
    """log(1 + n) times the weight of the word, (V, sentences); `<unk>` and `</s>`, which are no words, have none."""
    split, vocabulary = store.split("train"), store.vocabulary
    lengths = np.diff(split.sentences.astype(np.int64))
    ids = np.asarray(split.ids, np.int32)
    sentence = np.repeat(np.arange(lengths.size, dtype=np.int32), lengths)
    words = ids > vocabulary.end_id
    ones = np.ones(int(words.sum()), np.float32)
    counts = sparse.csr_array((ones, (ids[words], sentence[words])), shape=(len(vocabulary), lengths.size))
    counts.sum_duplicates()
    row = np.repeat(np.arange(len(vocabulary)), np.diff(counts.indptr))
    total = np.bincount(row, counts.data, minlength=len(vocabulary))
    share = counts.data / total[row]
    entropy = -np.bincount(row, share * np.log(share), minlength=len(vocabulary))
    weight = 1.0 - entropy / np.log(max(lengths.size, 2))
    counts.data = (np.log1p(counts.data) * weight[row]).astype(np.float32)
    return counts


def train_lsa(store: TokenStore, dim: int = 300, seed: int = 0) -> Lsa:
    """Decompose the matrix of a store's training sentences."""
    matrix = weighted_counts(store)
    if not 1 <= dim < min(matrix.shape):
        raise NcelmError(f"--dim is {dim}: give a number from 1 to {min(matrix.shape) - 1}, below words and sentences")
    left, values, _ = svds(matrix, k=dim, random_state=seed)
    vectors = (left * values)[:, ::-1]  # the largest singular value first
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return Lsa(np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 1e-9).astype(np.float32))
