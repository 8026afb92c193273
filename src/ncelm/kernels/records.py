"""The records of arrays that compiled code takes and returns. Importing this module does not import Numba.

Symbols: B minibatch size, c context words, d dimensions, k noise words, V vocabulary, G planned minibatches.
"""

from typing import NamedTuple

import numpy as np

SYNC_STRIDE = 16  # int64s from one phase's counters to the next: items and arrivals on cache lines of their own


class Corpus(NamedTuple):
    """What a kernel needs to know of a split: its ids and how contexts end."""

    ids: np.ndarray  # (N,)
    before: int  # context words before the target
    within_sentence: bool
    end_id: int
    pad_id: int
    # learned constants only: which of all distinct contexts each word has, (N,) int32
    context_numbers: np.ndarray = np.zeros(0, np.int32)


class Method(NamedTuple):
    """How examples are turned into a gradient."""

    member: int  # which function of the family: an index of MEMBERS, or IMPORTANCE_SAMPLING
    first_samples: int  # importance sampling: so many samples at first …
    effective_samples: float  # … and more until their effective number is this
    dropout: float


class Constants(NamedTuple):
    """Learned normalising constants c_h, one for each distinct context; empty where they are fixed to 1."""

    values: np.ndarray  # (contexts,) float32
    squares: np.ndarray  # Adagrad's sums of squared gradients, (contexts,) float32, or empty


class NoiseTable(NamedTuple):
    """An alias table and the exact log(k·Pn(w)) of every word; for bigram noise also what follows each word."""

    columns: np.ndarray  # (V,) uint64, see draw_word
    log_k_probability: np.ndarray  # (V,) float32
    log_k: float
    # bigram noise only: see noise.BigramNoise
    followers: np.ndarray  # (N,) int32, empty otherwise
    offsets: np.ndarray  # (V + 2,) int64
    smoothing: float


class Parameters(NamedTuple):
    """θ. For Adagrad the sums of squared gradients have the same form (and are empty for plain SGD)."""

    context_vectors: np.ndarray  # r_w, (V + 1, d): the last row is the out-of-sentence word
    target_vectors: np.ndarray  # q_w, (V, d); the same array as context_vectors where tables are shared
    biases: np.ndarray  # b_w, (V,)
    matrices: np.ndarray  # C_i, (c, d, d), or their diagonals (c, d)


class Plan(NamedTuple):
    """Everything about one minibatch that does not depend on parameters. One leading row for each minibatch."""

    sizes: np.ndarray  # (G,) examples
    contexts: np.ndarray  # (G, B, c) int32
    words: np.ndarray  # (G, B, k + 1) int32: the target, then its noise words; shared noise: (G, B + K, 1), noise last
    # shared noise: of K draws some are the same word. The distinct ones are kept, with how often each was drawn.
    distinct: np.ndarray  # (G,) how many
    draws: np.ndarray  # (G, K) float32
    keys: np.ndarray  # (G, B) uint64: the random stream of each example
    log_k_noise: np.ndarray  # bigram noise only: log(k·Pn(w|h)), (G, B, k + 1) float32
    constants: np.ndarray  # learned constants only: the number of the context, (G, B) int32
    # full matrices: the unique words of each context position (C_i r_w is computed once for each)
    position_groups: np.ndarray  # (G, c) how many
    position_words: np.ndarray  # (G, c, B)
    position_offsets: np.ndarray  # (G, c, B + 1)
    position_rows: np.ndarray  # (G, c, B)
    position_slots: np.ndarray  # (G, B, c): which rows of `Work.projected`, all positions as one, an example adds up
    # rows of the context table: words over all positions; an entry is a (position, slot) or (example, position)
    context_groups: np.ndarray  # (G,)
    context_words: np.ndarray  # (G, B c)
    context_offsets: np.ndarray  # (G, B c + 1)
    context_order: np.ndarray  # (G, B c)
    context_rows: np.ndarray  # diagonal matrices: the example of each entry, (G, B c)
    # rows of the target table; an entry is an (example, sample)
    # noise of each example's own: entries whose words are in the minibatch once, and where those of an example begin
    singles: np.ndarray  # (G, B (k + 1)), or empty
    single_offsets: np.ndarray  # (G, B + 1)
    target_groups: np.ndarray  # (G,)
    target_words: np.ndarray  # (G, min(V, B (k + 1)))
    target_offsets: np.ndarray  # (G, min(V, B (k + 1)) + 1)
    target_order: np.ndarray  # (G, B (k + 1))
    target_rows: np.ndarray  # (G, B (k + 1))


class Work(NamedTuple):
    """Intermediate results of a minibatch, shared by the threads."""

    predicted: np.ndarray  # q̂, (B, d), Eq. 2
    gradients: np.ndarray  # dJ/dq̂, (B, d)
    coefficients: np.ndarray  # dJ/ds, (B (k + 1),), or for maximum likelihood (V B,) in blocks of words
    gathered: np.ndarray  # full matrices: r_w of the unique words of each position, (c, B, d)
    projected: np.ndarray  # full matrices: C_i r_w, and on the way back C_i' Σ dJ/dq̂, (c, B, d)
    transposed: np.ndarray  # full matrices: C_i', (c, d, d)
    matrix_gradients: np.ndarray  # one partial sum for each block: (blocks, c, d, d) or (blocks, c, d)
    target_gradients: np.ndarray  # shared tables only: dJ/dq_w, (groups, d)
    context_gradients: np.ndarray  # shared tables and diagonal matrices only: dJ/dr_w, (groups, d)
    losses: np.ndarray  # (G, blocks) float64: the objective, summed over a block of examples
    weights: np.ndarray  # (G, blocks, 7) float64: importance weights of a block of examples, see _importance_example
    constant_gradients: np.ndarray  # dJ/dc_h, (B,)
    noise_rows: np.ndarray  # shared noise only: q_w of the noise words, (K, d) …
    noise_shifts: np.ndarray  # … their b_w − log(k·Pn(w)), (K,) …
    noise_gradients: np.ndarray  # … dJ/dq_w, (K, d) …
    noise_bias_gradients: np.ndarray  # … and dJ/db_w, (K,)


class Penalties(NamedTuple):
    """λ: in each update λ·row is taken from the gradient of the row."""

    matrices: np.float32
    contexts: np.ndarray  # (V + 1,) float32
    targets: np.ndarray  # (V,) float32


class Rates(NamedTuple):
    """How far an update goes. One entry for each minibatch."""

    table: np.ndarray  # (G,) float32: word vectors, biases and learned constants
    matrix: np.ndarray  # (G,) float32: context matrices
    penalties: Penalties
