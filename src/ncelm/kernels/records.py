"""The records of arrays that compiled code takes. Importing this module does not import Numba.

Kernels are compiled for the types of these records. A part that a configuration does not need is None, and the code
that would use it is not compiled.

Symbols: B minibatch size, c context words, d dimensions, k noise words, K noise words shared by a minibatch,
V vocabulary size, G planned minibatches, N words of the training text.
"""

from typing import Any, NamedTuple

import numpy as np

SYNC_STRIDE = 16  # int64s from one phase's counters to the next: items and arrivals on cache lines of their own


def read_only(array: np.ndarray) -> np.ndarray:
    """A read-only view: one type for arrays in memory and mapped from files, so that kernels are compiled once."""
    view = np.asarray(array).view(np.ndarray)
    view.flags.writeable = False
    return view


class Corpus(NamedTuple):
    """A text and how contexts end."""

    ids: np.ndarray  # (N,)
    before: int  # context words before the target
    within_sentence: bool
    end_id: int
    pad_id: int


class Parameters(NamedTuple):
    """θ, or with the same fields the optimizer's state for each parameter (None for plain SGD)."""

    context_vectors: Any  # r_w, (V + 1, d): the last row is the out-of-sentence word
    target_vectors: Any  # q_w, (V, d); a view of context_vectors where embeddings are tied
    biases: Any  # b_w, (V,)
    matrices: Any  # C_i, (c, d, d), or their diagonals (c, d); the optimizer's state always as (c, d²) or (c, d)


# -- noise -------------------------------------------------------------------------------------------------------------


class NoiseTable(NamedTuple):
    """An alias table and log(k·Pn(w)) of every word."""

    columns: np.ndarray  # (V,) uint64, see noise.draw_word
    log_k_probability: np.ndarray  # (V,) float32
    log_k: float


class BigramNoiseTable(NamedTuple):
    """The words that follow each word in the training text, and the unigram table they are smoothed with."""

    unigram: NoiseTable
    followers: np.ndarray  # (N,) int32, sorted by the word before, then by themselves
    offsets: np.ndarray  # (V + 2,) int64: the followers of v are followers[offsets[v] : offsets[v + 1]]
    smoothing: float


# -- what a minibatch is trained with ----------------------------------------------------------------------------------


class PerExampleNoise(NamedTuple):
    """k noise words for each example."""

    loss: Any  # a type of kernels.losses
    noise: NoiseTable | BigramNoiseTable
    normalizers: "LogNormalizers | None"


class SharedNoise(NamedTuple):
    """K noise words for all examples of a minibatch: scores are matrix products."""

    loss: Any
    noise: NoiseTable


class ExactLikelihood(NamedTuple):
    """All words of the vocabulary for each example."""


class LogNormalizers(NamedTuple):
    """Learned log-normalizers c_h, one for each distinct context of the training text."""

    values: np.ndarray  # (contexts,) float32
    state: Any  # the optimizer's state for them
    numbers: np.ndarray  # the number of each training word's context, (N,) int32


class Dropout(NamedTuple):
    """Dropout of components of q̂."""

    probability: float


class WeightDecay(NamedTuple):
    """λ: in each update λ·row is subtracted from the gradient of the row."""

    matrices: np.float32
    contexts: np.ndarray  # (V + 1,) float32
    targets: np.ndarray  # (V,) float32


class Rates(NamedTuple):
    """Learning rates, one for each minibatch of a call."""

    table: np.ndarray  # (G,) float32: word vectors, biases and log-normalizers
    matrix: np.ndarray  # (G,) float32: context matrices
    weight_decay: WeightDecay


class Order(NamedTuple):
    """The order in which an epoch visits the words of a part of the text; see plan.position_of."""

    seed: np.uint64
    start: int = 0  # position of the part in the whole text
    block: int = 1  # words of a block, a power of two


class Steps(NamedTuple):
    """Which minibatches a call trains on."""

    seed: np.uint64  # of noise and dropout
    order: Order
    epoch: int
    first: int  # the number of the first update, counted over all epochs: it selects the random streams
    total: int  # minibatches
    batch_size: int
    first_example: int  # within the epoch


# -- the plan: everything about minibatches that does not depend on parameters -----------------------------------------


class Groups(NamedTuple):
    """The entries of each minibatch grouped by word: see plan.group_by_word. One leading batch index."""

    counts: np.ndarray  # (G,) groups
    words: np.ndarray  # (G, groups)
    offsets: np.ndarray  # (G, groups + 1)
    order: np.ndarray  # (G, entries)
    rows: np.ndarray  # (G, entries): the example of each entry


class PositionGroups(NamedTuple):
    """Full matrices: the unique words of each context position, because C_i r_w is computed once for each."""

    counts: np.ndarray  # (G, c)
    words: np.ndarray  # (G, c, B)
    offsets: np.ndarray  # (G, c, B + 1)
    rows: np.ndarray  # (G, c, B)
    slots: np.ndarray  # (G, B, c): the rows of `FullMatrices.projected`, flattened, that an example adds up


class Singletons(NamedTuple):
    """Entries of words that occur once in the minibatch: their rows are updated right after their examples."""

    entries: np.ndarray  # (G, B (k + 1))
    offsets: np.ndarray  # (G, B + 1): where the entries of each example begin


class SharedDraws(NamedTuple):
    """Noise shared by a minibatch: of K draws, the distinct words and how often each was drawn."""

    counts: np.ndarray  # (G,) distinct words
    multiplicities: np.ndarray  # (G, K) float32


class Plan(NamedTuple):
    """Planned minibatches, one leading batch index."""

    sizes: np.ndarray  # (G,) examples
    contexts: np.ndarray  # (G, B, c) int32
    words: np.ndarray  # (G, B, k + 1) int32: the target, then its noise words; shared noise: (G, B + K, 1), noise last
    keys: np.ndarray  # (G, B) uint64: the random stream of each example
    context_groups: Groups  # rows of the context table; full matrices: an entry is a (position, slot)
    position_groups: PositionGroups | None  # full matrices
    target_groups: Groups | None  # rows of the target table; None for exact likelihood, which updates all of them
    singletons: Singletons | None  # per-example noise, embeddings not tied
    shared: SharedDraws | None  # shared noise
    log_k_noise: np.ndarray | None  # bigram noise: log(k·Pn(w|h)), (G, B, k + 1) float32
    normalizers: np.ndarray | None  # learned log-normalizers: the number of the context, (G, B) int32


# -- the workspace: intermediate results of one minibatch, shared by the threads ---------------------------------------


class FullMatrices(NamedTuple):
    """Context matrices C_i and the buffers for their products."""

    values: np.ndarray  # (c, d, d)
    gathered: np.ndarray  # r_w of the unique words of each position, (c, B, d)
    projected: np.ndarray  # C_i r_w and, backward, C_iᵀ Σ dJ/dq̂, (c, B, d)
    transposed: np.ndarray  # C_iᵀ, (c, d, d)


class DiagonalMatrices(NamedTuple):
    """The diagonals of context matrices."""

    values: np.ndarray  # (c, d)


class TiedGradients(NamedTuple):
    """Tied embeddings: gradients that wait until the row was updated in its other role."""

    targets: np.ndarray  # dJ/dq_w, (groups, d)
    contexts: np.ndarray  # diagonal matrices: dJ/dr_w, (groups, d)


class SharedNoiseBuffers(NamedTuple):
    """Shared noise: the rows of the noise words, brought together for matrix products."""

    rows: np.ndarray  # q_w, (K, d)
    shifts: np.ndarray  # b_w − log(k·Pn(w)), (K,)
    gradients: np.ndarray  # dJ/dq_w, (K, d)
    bias_gradients: np.ndarray  # dJ/db_w, (K,)


class Workspace(NamedTuple):
    """Intermediate results of a minibatch."""

    predicted: np.ndarray  # q̂, (B, d), Eq. 2
    predicted_gradients: np.ndarray  # dJ/dq̂, (B, d)
    score_gradients: np.ndarray  # dJ/ds, (B (k + 1),); exact likelihood (V B,) and shared noise (K B + B,) in blocks
    matrix_gradients: np.ndarray  # a partial sum for each block of words: (blocks, c, d, d) or (blocks, c, d)
    losses: np.ndarray  # (G, blocks) float64: the negated objective, summed over a block of examples
    tied: TiedGradients | None
    noise: SharedNoiseBuffers | None
    normalizer_gradients: np.ndarray | None  # dJ/dc_h, (B,)
    importance: np.ndarray | None  # (G, blocks, 7) float64: see losses.IMPORTANCE_FIELDS


GAP = 64  # numbers between the buffers of two threads, which must not share cache lines


class Contexts(NamedTuple):
    """Which words of a text have the same context."""

    words: np.ndarray  # (n,) int64: the words to be scored, counted from the first of them, grouped by context
    offsets: np.ndarray  # (contexts + 1,) int64: the words of context u are words[offsets[u] : offsets[u + 1]]


class WordIndex(NamedTuple):
    """A hash table of the words of a vocabulary. Its length is a power of two, and at least half of it is empty."""

    slots: np.ndarray  # the id of the word of each slot, −1 if it is empty, (slots,) int32
    tags: np.ndarray  # half of the hash of this word, (slots,) uint32
    characters: np.ndarray  # all words in UTF-8, one after the other, (bytes,) uint8
    offsets: np.ndarray  # the bytes of word w are offsets[w]..offsets[w + 1] - 1, (V + 1,) int64
    seed: np.uint64  # of the hash function


class NormalizerUnits(NamedTuple):
    """An estimate of log Z(h): log Σ_k exp(a_kᵀ q̂ + b_k) over a few units, see models.normalizer."""

    vectors: np.ndarray  # a_k, (K, d) float32
    biases: np.ndarray  # b_k, (K,) float32


class ScoreScratch(NamedTuple):
    """Buffers for scoring. Those of each thread have a leading thread index; the others are shared by all threads."""

    contexts: np.ndarray  # (threads, LANES, c) int64
    predicted: np.ndarray  # q̂, (threads, LANES, d) float32
    gathered: np.ndarray  # full matrices: (threads, d, LANES) float32
    projected: np.ndarray  # full matrices: (threads, d, LANES) float32
    target: np.ndarray  # (threads, GAP) int64, of which the first is used
    panels: np.ndarray  # q̂ of all contexts of a call, or of one panel of each thread, (panels, d, LANES) float32
    largest: np.ndarray  # (blocks of the vocabulary, panels, LANES) float32
    total: np.ndarray  # (blocks of the vocabulary, panels, LANES) float32


class VocabularyScores(NamedTuple):
    """Buffers for the scores of all words in many contexts. A panel is a group of LANES contexts."""

    panels: np.ndarray  # q̂ of all contexts, (panels, d, LANES) float32
    scores: np.ndarray  # s(w, h), (panels, V, LANES) float32
    largest: np.ndarray  # the largest score of a block of words, (blocks of the vocabulary, panels, LANES) float32
    total: np.ndarray  # Σ exp(s − largest) over a block, of the same shape
    weight: np.ndarray  # the same of the words that may be drawn, with the temperature


class Scratch(NamedTuple):
    """Buffers of each thread, so that training kernels allocate nothing. One leading thread index.

    Rows are longer than given here by a gap, so that threads do not write to the same cache lines.
    """

    gradient: np.ndarray  # (threads, d)
    counts: np.ndarray  # (threads, V + 1) int32: 0 between uses
    order: np.ndarray  # (threads, entries) int32
    weights: np.ndarray  # (threads, entries) float32
    scores: np.ndarray  # (threads, 3, padded k + 1) float32
    block: np.ndarray  # (threads, rows, d) float32: a part of a matrix product
    sums: np.ndarray  # (threads, POSITION_BLOCK, d) float32
    largest: np.ndarray  # (threads, examples) float32
    total: np.ndarray  # (threads, examples) float64
    shifts: (
        np.ndarray
    )  # exact likelihood: (threads, blocks of the vocabulary × examples); shared noise: targets' logits
