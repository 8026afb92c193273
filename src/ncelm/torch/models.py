"""Language models as PyTorch modules: contexts in, scores out. Each can be trained with each loss of `losses`.

    LogBilinear      the model of `ncelm.models.log_bilinear`, with the same parameters and scores
    FeedForward      Bengio et al. (2003): concatenated context vectors and one hidden layer
    Lstm             Hochreiter & Schmidhuber (1997): all previous words
    MaximumEntropy   a weight for each n-gram, indexed by a hash

Each is a `ncelm.models.base.WordModel`. Parameters are available as NumPy arrays by name, as in model files.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's convention)
from torch import Tensor, nn

from ncelm.errors import NcelmError
from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.models import log_bilinear as core
from ncelm.models.base import Mode, Sides
from ncelm.models.log_bilinear import ModelConfig
from ncelm.text.store import Boundary, contexts_and_targets
from ncelm.torch.exact import BLOCK_SCORES

# An LSTM scores a text without sentence boundaries in blocks, starting in the zero state HISTORY words before a block.
HISTORY, BLOCK = 256, 512
LSTM_BATCH = 1 << 14  # words that it processes at once, or the longest sentence
WINDOW_BATCH = 1 << 14  # contexts that other models process at once


class NeuralModel(nn.Module):
    """Base class of the models.

    Args:
        config (ModelConfig): architecture and sizes.
        vocabulary_size (int): V.
        device: device of the parameters, which are not initialized.
    """

    config: ModelConfig
    biases: nn.Parameter  # b_w, (V,)
    sparse = False  # whether gradients of tables are sparse; the optimizer must support it
    sparse_parameters: tuple[str, ...] = ()  # the tables whose gradients are sparse then, if the loss is sampled

    def __init__(self, config: ModelConfig, vocabulary_size: int, device: Any = None) -> None:
        super().__init__()
        self.config, self.vocabulary_size = config, vocabulary_size
        self.biases = _empty(vocabulary_size, device=device)

    @classmethod
    def shapes(cls, config: ModelConfig, vocabulary_size: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter by name."""
        return {name: tuple(p.shape) for name, p in cls(config, vocabulary_size, "meta").named_parameters()}

    @classmethod
    def from_arrays(cls, config: ModelConfig, arrays: dict[str, np.ndarray]) -> Self:
        """Return a model that shares the memory of these parameters."""
        model = cls(config, arrays["biases"].size, "meta")
        model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()}, assign=True)
        return model.requires_grad_()

    @classmethod
    def initialise(cls, config: ModelConfig, word_probabilities: np.ndarray, seed: int, std: float) -> Self:
        """Return a model with random parameters and biases log P(w), so that it starts near the unigram model."""
        model = cls(config, word_probabilities.size)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            model.reset_parameters(std, generator)
            model.biases.copy_(torch.from_numpy(np.log(word_probabilities)))
        return model

    def reset_parameters(self, std: float, generator: torch.Generator) -> None:
        """Initialize all parameters but the biases; `std` is the standard deviation of word vectors."""
        raise NotImplementedError

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the parameters by name; not copies."""
        return {name: parameter.detach().numpy() for name, parameter in self.named_parameters()}

    @property
    def sides(self) -> Sides:
        """The side of the predicted word on which its context is."""
        return self.config.sides

    # -- scores -------------------------------------------------------------------------------------------------------

    def scores(self, contexts: Tensor, words: Tensor) -> Tensor:
        """Return s(w, h), not normalized: contexts (n, …) and words (n, m), or (m,) for all contexts → (n, m)."""
        raise NotImplementedError

    def all_scores(self, contexts: Tensor) -> Tensor:
        """Return s(w, h) of every word: contexts (n, …) → (n, V)."""
        raise NotImplementedError

    def score_positions(
        self, corpus: records.Corpus, first: int, last: int, team: Team, mode: Mode = "exact"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return s(w, h) and log Z(h), each (last - first,), of the words at positions first..last - 1 of a text."""
        if mode == "fast":
            raise NcelmError("fast scores need a log-bilinear model: use the mode exact or unnormalised")
        normalised = mode == "exact"
        scores, log_z = np.empty(last - first, np.float32), np.zeros(last - first)
        rows = max(BLOCK_SCORES // self.vocabulary_size, 1) if normalised else WINDOW_BATCH
        with torch.inference_mode(), _threads(team.threads), _evaluation_mode(self):
            for positions, contexts in self.context_batches(corpus, first, last):
                targets = torch.from_numpy(corpus.ids[positions].astype(np.int64))  # (n,)
                for part in torch.arange(len(positions)).split(rows):
                    where = positions[part.numpy()] - first
                    if not normalised:
                        scores[where] = self.scores(contexts[part], targets[part, None])[:, 0].numpy()
                        continue
                    all_scores = self.all_scores(contexts[part])  # (rows, V)
                    scores[where] = all_scores.gather(1, targets[part, None])[:, 0].numpy()
                    log_z[where] = torch.logsumexp(all_scores.double(), 1).numpy()
        return scores, log_z

    def context_batches(self, corpus: records.Corpus, first: int, last: int) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield positions, (n,), and their contexts for `all_scores`; together all positions first..last - 1."""
        for start in range(first, last, WINDOW_BATCH):
            positions = np.arange(start, min(start + WINDOW_BATCH, last))
            yield positions, self.windows(corpus, positions)

    def windows(self, corpus: records.Corpus, positions: np.ndarray) -> Tensor:
        """Return the context words of these positions, (n, c)."""
        boundary: Boundary = "sentence" if corpus.within_sentence else "stream"
        sizes = self.config.context, self.config.context_after
        contexts, _ = contexts_and_targets(corpus.ids, positions, *sizes, boundary, corpus.end_id, corpus.pad_id)
        return torch.from_numpy(contexts)

    def distribution(self, before: np.ndarray, after: np.ndarray, pad_id: int) -> np.ndarray:
        """Return log P of every word, (V,), for a gap between these words of a sentence."""
        ids = np.concatenate([before, [0], after]).astype(np.int64)  # the word in the gap is not used
        corpus = records.Corpus(ids, self.config.context, False, -1, pad_id)
        with torch.inference_mode(), _evaluation_mode(self):
            ((_, contexts),) = self.context_batches(corpus, len(before), len(before) + 1)
            return torch.log_softmax(self.all_scores(contexts).double(), 1)[0].numpy()


class EmbeddingModel(NeuralModel):
    """Base class of models with a linear output layer: s(w, h) = hidden(h)·q_w + b_w."""

    sparse_parameters = ("context_vectors", "target_vectors", "biases")
    context_vectors: nn.Parameter  # r_w, (V + 1, d): the last row is the out-of-sentence word
    target_vectors: nn.Parameter  # q_w, (V, hidden_size); missing if embeddings are tied

    def __init__(self, config: ModelConfig, vocabulary_size: int, device: Any = None) -> None:
        super().__init__(config, vocabulary_size, device)
        self.context_vectors = _empty(vocabulary_size + 1, config.dim, device=device)
        if not config.tied_embeddings:
            self.target_vectors = _empty(vocabulary_size, self.hidden_size, device=device)

    @property
    def hidden_size(self) -> int:
        """Size of a hidden vector, the input of the output layer."""
        return self.config.hidden or self.config.dim

    @property
    def output_weight(self) -> nn.Parameter:
        """q_w, (V, hidden_size), or (V + 1, hidden_size) if embeddings are tied."""
        return self.context_vectors if self.config.tied_embeddings else self.target_vectors

    def reset_parameters(self, std: float, generator: torch.Generator) -> None:
        """Initialize word vectors from a normal distribution."""
        nn.init.normal_(self.context_vectors, std=std, generator=generator)
        if not self.config.tied_embeddings:
            nn.init.normal_(self.target_vectors, std=std, generator=generator)

    def hidden(self, contexts: Tensor) -> Tensor:
        """Return the hidden vector: contexts (n, …) → (n, hidden_size)."""
        raise NotImplementedError

    def scores(self, contexts: Tensor, words: Tensor) -> Tensor:
        """Return s(w, h): contexts (n, …), words (n, m) or (m,) → (n, m)."""
        hidden = self.hidden(contexts)
        rows = F.embedding(words, self.output_weight, sparse=self.sparse)
        products = hidden @ rows.T if words.dim() == 1 else torch.bmm(rows, hidden.unsqueeze(2)).squeeze(2)
        return products + self.biases[words]

    def all_scores(self, contexts: Tensor) -> Tensor:
        """Return s(w, h) of every word: contexts (n, …) → (n, V)."""
        return F.linear(self.hidden(contexts), self.output_weight[: self.vocabulary_size], self.biases)

    def embed(self, words: Tensor) -> Tensor:
        """Return the context vectors of words."""
        return F.embedding(words, self.context_vectors, sparse=self.sparse)


class LogBilinear(EmbeddingModel):
    """The log-bilinear model: the hidden vector is q̂ = Σ_i C_i r_wi (Eq. 2), with full or diagonal C_i.

    Examples:
        >>> import ncelm
        >>> core = ncelm.LogBilinear.initialise(ModelConfig(dim=8), np.full(50, 0.02), 0, 0.1)
        >>> LogBilinear.from_core(core).all_scores(torch.zeros(3, 4, dtype=torch.int64)).shape
        torch.Size([3, 50])
    """

    matrices: nn.Parameter  # C_i, (c, d, d), or their diagonals, (c, d)

    def __init__(self, config: ModelConfig, vocabulary_size: int, device: Any = None) -> None:
        super().__init__(config, vocabulary_size, device)
        c, d = config.positions, config.dim
        self.matrices = _empty(*((c, d, d) if config.matrices == "full" else (c, d)), device=device)

    @property
    def hidden_size(self) -> int:
        """The dimension of word vectors."""
        return self.config.dim

    @classmethod
    def initialise(cls, config: ModelConfig, word_probabilities: np.ndarray, seed: int, std: float) -> Self:
        """Return a model with the same initial parameters as `ncelm.models.log_bilinear.LogBilinear`."""
        return cls.from_core(core.LogBilinear.initialise(config, word_probabilities, seed, std))

    @classmethod
    def from_core(cls, model: core.LogBilinear) -> Self:
        """Return the same model as a PyTorch module; it shares memory."""
        return cls.from_arrays(model.config, model.arrays())

    def to_core(self) -> core.LogBilinear:
        """Return the same model for NumPy; it shares memory."""
        return core.LogBilinear.from_arrays(self.config, self.arrays())

    def hidden(self, contexts: Tensor) -> Tensor:
        """Return q̂: contexts (n, c) → (n, d)."""
        rows = self.embed(contexts)  # (n, c, d)
        if self.config.matrices == "diagonal":
            return (rows * self.matrices).sum(1)
        concatenated = self.matrices.transpose(0, 1).reshape(self.config.dim, -1)  # [C_1 C_2 …], (d, c d)
        return F.linear(rows.flatten(1), concatenated)


class FeedForward(EmbeddingModel):
    """The neural probabilistic language model of Bengio et al. (2003): ĥ = tanh(H [r_w1 r_w2 …] + h)."""

    def __init__(self, config: ModelConfig, vocabulary_size: int, device: Any = None) -> None:
        super().__init__(config, vocabulary_size, device)
        self.layer = nn.Linear(config.positions * config.dim, self.hidden_size, device=device)

    def reset_parameters(self, std: float, generator: torch.Generator) -> None:
        """Initialize the layer so that hidden units are not saturated."""
        super().reset_parameters(std, generator)
        nn.init.normal_(self.layer.weight, std=self.layer.in_features**-0.5, generator=generator)
        nn.init.zeros_(self.layer.bias)

    def hidden(self, contexts: Tensor) -> Tensor:
        """Return ĥ: contexts (n, c) → (n, hidden_size)."""
        return torch.tanh(self.layer(self.embed(contexts).flatten(1)))


class Lstm(EmbeddingModel):
    """A long short-term memory over all previous words.

    `hidden_states` returns the hidden vectors of parallel streams of words; they are the contexts of the other methods.
    In a text without sentence boundaries a word is scored with a history of 256 to 767 words.
    """

    def __init__(self, config: ModelConfig, vocabulary_size: int, device: Any = None) -> None:
        super().__init__(config, vocabulary_size, device)
        self.cells = nn.LSTM(config.dim, self.hidden_size, batch_first=True, device=device)

    def reset_parameters(self, std: float, generator: torch.Generator) -> None:
        """Initialize weights uniformly and biases to 0, of the forget gate to 1 (Jozefowicz et al. 2015)."""
        super().reset_parameters(std, generator)
        for name, parameter in self.cells.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
                if name == "bias_ih_l0":  # (4 hidden_size,): input gate, forget gate, cell, output gate
                    parameter[self.hidden_size : 2 * self.hidden_size] = 1.0
            else:
                nn.init.uniform_(parameter, -(self.hidden_size**-0.5), self.hidden_size**-0.5, generator=generator)

    @property
    def sides(self) -> Sides:
        """The context is before the predicted word."""
        return "before"

    def hidden_states(
        self, words: Tensor, state: tuple[Tensor, Tensor] | None, dropout: float, reset: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Return the hidden vector after each word, (S, T, hidden_size), and the last state.

        Args:
            words (Tensor): T words of S parallel streams, (S, T).
            state (tuple): initial state, each (1, S, hidden_size), or None for zeros.
            dropout (float): dropout probability of embeddings and hidden vectors, in training mode.
            reset (Tensor): positions, (S, T), before which the state is set to zero.
        """
        vectors = F.dropout(self.embed(words), dropout, self.training)
        if state is None or reset is None or not bool(reset.any()):
            states, state = self.cells(vectors, state)
        else:
            parts = []
            for t in range(words.shape[1]):
                kept = (~reset[:, t]).to(vectors.dtype).unsqueeze(1)  # (S, 1)
                part, state = self.cells(vectors[:, t : t + 1], (state[0] * kept, state[1] * kept))
                parts.append(part)
            states = torch.cat(parts, 1)
        return F.dropout(states, dropout, self.training), state

    def hidden(self, contexts: Tensor) -> Tensor:
        """Return the contexts: they are hidden vectors already."""
        return contexts

    def context_batches(self, corpus: records.Corpus, first: int, last: int) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield positions and the hidden vectors after their previous words."""
        segments = [(start, max(begin, first), min(end, last)) for start, begin, end in _segments(corpus, first, last)]
        segments.sort(key=lambda segment: segment[2] - segment[0])  # batches of similar length
        ids = corpus.ids
        while segments:
            longest = segments[-1][2] - segments[-1][0]
            rows = max(LSTM_BATCH // longest, 1)
            group, segments = segments[-rows:], segments[:-rows]
            words = np.full((len(group), longest), corpus.pad_id, np.int64)
            for row, (start, _, end) in zip(words, group, strict=True):
                if start > 0 and not (corpus.within_sentence and ids[start - 1] == corpus.end_id):
                    row[0] = ids[start - 1]
                row[1 : end - start] = ids[start : end - 1]
            states, _ = self.hidden_states(torch.from_numpy(words), None, 0.0)  # (segments, longest, hidden_size)
            positions = np.concatenate([np.arange(begin, end) for _, begin, end in group])
            yield positions, torch.cat([row[b - s : e - s] for row, (s, b, e) in zip(states, group, strict=True)])


def _segments(corpus: records.Corpus, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start of the history, first scored position, end) of segments that cover first..last - 1.

    Segments depend on the text only, not on `first` and `last`: a word has one probability.
    """
    if not corpus.within_sentence:
        for begin in range(first - first % BLOCK, last, BLOCK):
            yield max(begin - HISTORY, 0), begin, begin + BLOCK
        return
    start = first
    while start > 0 and corpus.ids[start - 1] != corpus.end_id:
        start -= 1
    ends = start + np.flatnonzero(corpus.ids[start:last] == corpus.end_id) + 1
    for end in [*ends.tolist(), last]:
        if start < end:
            yield start, start, end
        start = end


class MaximumEntropy(NeuralModel):
    """A maximum-entropy model with hashed n-gram features: s(w, h) = b_w + Σ_n θ[hash(last n words) + w].

    Different n-grams may share a weight. The weights of all words after a context are contiguous (as in Mikolov et al.
    2011): only contexts are hashed, and scores of all words read memory sequentially.
    """

    sparse_parameters = ("weights",)

    weights: nn.Parameter  # θ, (features,)

    def __init__(self, config: ModelConfig, vocabulary_size: int, device: Any = None) -> None:
        super().__init__(config, vocabulary_size, device)
        if config.features <= vocabulary_size:
            raise NcelmError(
                f"`features` is {config.features:,}: give more than the {vocabulary_size:,} words of the vocabulary"
            )
        self.weights = _empty(config.features, device=device)

    def reset_parameters(self, std: float, generator: torch.Generator) -> None:
        """Initialize weights to 0."""
        nn.init.zeros_(self.weights)

    def features(self, contexts: Tensor, words: Tensor) -> Tensor:
        """Return the indices of the active weights: contexts (n, c), words (n, m) or (m,) → (n, m, c).

        The features are the nearest previous word, the nearest two, …, and the same for the words after the gap.
        """
        split = self.config.context
        halves = [contexts[:, :split].flip(1), contexts[:, split:]]  # nearest word first
        keys = []
        for half, side in zip(halves, (1, 2), strict=True):
            key = torch.full((len(contexts),), side, dtype=torch.int64)
            for word in half.unbind(1):
                key = _hash(key * 31 + word + 1)
                keys.append(key)
        begins = torch.stack(keys, 1) % (self.config.features - self.vocabulary_size)  # (n, c)
        return begins.unsqueeze(1) + words.unsqueeze(-1)

    def scores(self, contexts: Tensor, words: Tensor) -> Tensor:
        """Return s(w, h): contexts (n, c), words (n, m) or (m,) → (n, m)."""
        indices = self.features(contexts, words)
        flat = torch.gather(self.weights, 0, indices.flatten(), sparse_grad=self.sparse)
        return flat.view(indices.shape).sum(2) + self.biases[words]

    def all_scores(self, contexts: Tensor) -> Tensor:
        """Return s(w, h) of every word: contexts (n, c) → (n, V)."""
        return self.scores(contexts, torch.arange(self.vocabulary_size))


def _hash(x: Tensor) -> Tensor:
    """Return SplitMix64's hash of 64-bit integers (Steele, Lea & Flood 2014); products wrap around."""
    x = (x ^ ((x >> 30) & (2**34 - 1))) * -4658895280553007687
    x = (x ^ ((x >> 27) & (2**37 - 1))) * -7723592293110705685
    return x ^ ((x >> 31) & (2**33 - 1))


ARCHITECTURES: dict[str, type[NeuralModel]] = {
    "log-bilinear": LogBilinear,
    "feed-forward": FeedForward,
    "lstm": Lstm,
    "maximum-entropy": MaximumEntropy,
}


def _empty(*shape: int, device: Any) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, device=device, dtype=torch.float32))


@contextmanager
def _threads(threads: int) -> Iterator[None]:
    former = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(former)


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    former = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(former)
