"""Language models as PyTorch modules: contexts in, scores out. Any of them can be trained by any loss of `losses`.

    LogBilinear      the twin of `ncelm.LogBilinear`: the same parameters by the same names, the same scores
    FeedForward      Bengio et al. (2003): the context's vectors side by side, one hidden layer
    Lstm             Hochreiter & Schmidhuber (1997): all words before
    MaximumEntropy   a weight for each n-gram, found by hashing

Each is also what `evaluate`, `score` and `complete` ask (`ncelm.scoring.WordModel`), and its parameters are arrays by
name, as a run keeps them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (as everyone writes it)
from torch import Tensor, nn

from ncelm.errors import NcelmError
from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.models import log_bilinear as core
from ncelm.models.base import Sides
from ncelm.models.log_bilinear import ModelConfig
from ncelm.text.store import Boundary, contexts_and_targets
from ncelm.torch.losses import EXACT_SCORES

HISTORY, BLOCK = 256, 512  # an LSTM reads a text that runs on in blocks, each after so many words to warm up
READ_AT_ONCE = 1 << 14  # words that it reads side by side, if no sentence is longer


class NeuralModel(nn.Module):
    """What all of them share."""

    config: ModelConfig
    biases: nn.Parameter  # b_w, (V,)
    sparse = False  # are gradients of tables to be sparse? An optimizer must be able to take them

    def __init__(self, config: ModelConfig, vocabulary_size: int, device: Any = None) -> None:
        super().__init__()
        self.config, self.vocabulary_size = config, vocabulary_size
        self.biases = _empty(vocabulary_size, device=device)

    @classmethod
    def shapes(cls, config: ModelConfig, vocabulary_size: int) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter by its name."""
        return {name: tuple(p.shape) for name, p in cls(config, vocabulary_size, "meta").named_parameters()}

    @classmethod
    def from_arrays(cls, config: ModelConfig, arrays: dict[str, np.ndarray]) -> Self:
        """The model that has these parameters; it shares their memory."""
        model = cls(config, arrays["biases"].size, "meta")
        model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()}, assign=True)
        return model.requires_grad_()

    @classmethod
    def initialise(cls, config: ModelConfig, word_probabilities: np.ndarray, seed: int, spread: float) -> Self:
        """Small random parameters, and biases such that the model starts as the unigram model."""
        model = cls(config, word_probabilities.size)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            model.reset_parameters(spread, generator)
            model.biases.copy_(torch.from_numpy(np.log(word_probabilities)))
        return model

    def reset_parameters(self, spread: float, generator: torch.Generator) -> None:
        """Fill all parameters but the biases; `spread` is the standard deviation of word vectors."""
        raise NotImplementedError

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name: views of the memory that PyTorch works on."""
        return {name: parameter.detach().numpy() for name, parameter in self.named_parameters()}

    @property
    def sides(self) -> Sides:
        """Which words around the predicted one the model sees."""
        return self.config.sides

    # -- scores -------------------------------------------------------------------------------------------------------

    def scores(self, contexts: Tensor, words: Tensor) -> Tensor:
        """s(w, h), not normalised: of contexts (n, …) and words (n, m), or (m,) the same for all → (n, m)."""
        raise NotImplementedError

    def all_scores(self, contexts: Tensor) -> Tensor:
        """s(w, h) of every word: contexts (n, …) → (n, V)."""
        raise NotImplementedError

    def score_positions(
        self, corpus: records.Corpus, first: int, last: int, team: Team, normalised: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """s(w, h) and log Z(h), each (last - first,), of the words at positions first..last of a text."""
        scores, log_z = np.empty(last - first, np.float32), np.zeros(last - first)
        rows = max(EXACT_SCORES // self.vocabulary_size, 1) if normalised else 1 << 14
        with torch.inference_mode(), _threads(team.threads), _evaluating(self):
            for places, contexts in self.contexts_of(corpus, first, last):
                targets = torch.from_numpy(corpus.ids[places].astype(np.int64))  # (n,)
                for part in torch.arange(len(places)).split(rows):
                    where = places[part.numpy()] - first
                    if not normalised:
                        scores[where] = self.scores(contexts[part], targets[part, None])[:, 0].numpy()
                        continue
                    every = self.all_scores(contexts[part])  # (rows, V)
                    scores[where] = every.gather(1, targets[part, None])[:, 0].numpy()
                    log_z[where] = torch.logsumexp(every.double(), 1).numpy()
        return scores, log_z

    def contexts_of(self, corpus: records.Corpus, first: int, last: int) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Positions, (n,), and their contexts as `all_scores` takes them, until all from first to last were there."""
        for start in range(first, last, 1 << 14):
            places = np.arange(start, min(start + (1 << 14), last))
            yield places, self.windows(corpus, places)

    def windows(self, corpus: records.Corpus, places: np.ndarray) -> Tensor:
        """The words around these positions, (n, c)."""
        boundary: Boundary = "sentence" if corpus.within_sentence else "stream"
        around = self.config.context, self.config.context_after
        contexts, _ = contexts_and_targets(corpus.ids, places, *around, boundary, corpus.end_id, corpus.pad_id)
        return torch.from_numpy(contexts)

    def distribution(self, before: np.ndarray, after: np.ndarray, pad_id: int) -> np.ndarray:
        """log P of every word, (V,), between these words of a sentence."""
        ids = np.concatenate([before, [0], after]).astype(np.int64)  # the word itself is not looked at
        corpus = records.Corpus(ids, self.config.context, False, -1, pad_id)
        with torch.inference_mode(), _evaluating(self):
            ((_, contexts),) = self.contexts_of(corpus, len(before), len(before) + 1)
            return torch.log_softmax(self.all_scores(contexts).double(), 1)[0].numpy()


class TableModel(NeuralModel):
    """Those that predict a vector, hidden(contexts), whose products with the vectors of words are their scores."""

    context_vectors: nn.Parameter  # r_w, (V + 1, d): the last row is the out-of-sentence word
    target_vectors: nn.Parameter  # q_w, (V, width); the table of context vectors itself where tables are shared

    def __init__(self, config: ModelConfig, vocabulary_size: int, device: Any = None) -> None:
        super().__init__(config, vocabulary_size, device)
        self.context_vectors = _empty(vocabulary_size + 1, config.dim, device=device)
        if not config.tied_embeddings:
            self.target_vectors = _empty(vocabulary_size, self.width, device=device)

    @property
    def width(self) -> int:
        """The size of a predicted vector."""
        return self.config.hidden or self.config.dim

    @property
    def output_table(self) -> nn.Parameter:
        """q_w, (V, width), or one row more where tables are shared."""
        return self.context_vectors if self.config.tied_embeddings else self.target_vectors

    def reset_parameters(self, spread: float, generator: torch.Generator) -> None:
        """Word vectors at random."""
        nn.init.normal_(self.context_vectors, std=spread, generator=generator)
        if not self.config.tied_embeddings:
            nn.init.normal_(self.target_vectors, std=spread, generator=generator)

    def hidden(self, contexts: Tensor) -> Tensor:
        """The predicted vector: contexts (n, …) → (n, width)."""
        raise NotImplementedError

    def scores(self, contexts: Tensor, words: Tensor) -> Tensor:
        """s(w, h) = ĥ·q_w + b_w: contexts (n, …), words (n, m) or (m,) → (n, m)."""
        predicted = self.hidden(contexts)
        rows = F.embedding(words, self.output_table, sparse=self.sparse)
        products = predicted @ rows.T if words.dim() == 1 else torch.bmm(rows, predicted.unsqueeze(2)).squeeze(2)
        return products + self.biases[words]

    def all_scores(self, contexts: Tensor) -> Tensor:
        """s(w, h) of every word: contexts (n, …) → (n, V)."""
        return F.linear(self.hidden(contexts), self.output_table[: self.vocabulary_size], self.biases)

    def look_up(self, words: Tensor) -> Tensor:
        """Vectors of context words."""
        return F.embedding(words, self.context_vectors, sparse=self.sparse)


class LogBilinear(TableModel):
    """q̂ = Σ_i C_i r_wi (Eq. 2), with full or diagonal C_i.

    >>> import ncelm
    >>> twin = LogBilinear.from_core(ncelm.LogBilinear.initialise(ModelConfig(dim=8), np.full(50, 0.02), 0, 0.1))
    >>> twin.all_scores(torch.zeros(3, 4, dtype=torch.int64)).shape
    torch.Size([3, 50])
    """

    matrices: nn.Parameter  # C_i, (c, d, d), or their diagonals, (c, d)

    def __init__(self, config: ModelConfig, vocabulary_size: int, device: Any = None) -> None:
        super().__init__(config, vocabulary_size, device)
        c, d = config.positions, config.dim
        self.matrices = _empty(*((c, d, d) if config.matrices == "full" else (c, d)), device=device)

    @property
    def width(self) -> int:
        """A predicted vector is one of a word."""
        return self.config.dim

    @classmethod
    def initialise(cls, config: ModelConfig, word_probabilities: np.ndarray, seed: int, spread: float) -> Self:
        """As the core does, to the bit."""
        return cls.from_core(core.LogBilinear.initialise(config, word_probabilities, seed, spread))

    @classmethod
    def from_core(cls, model: core.LogBilinear) -> Self:
        """The twin of a model of the core; it shares its memory."""
        return cls.from_arrays(model.config, model.arrays())

    def to_core(self) -> core.LogBilinear:
        """The twin in the core; it shares this one's memory."""
        return core.LogBilinear.from_arrays(self.config, self.arrays())

    def hidden(self, contexts: Tensor) -> Tensor:
        """q̂: contexts (n, c) → (n, d)."""
        rows = self.look_up(contexts)  # (n, c, d)
        if self.config.matrices == "diagonal":
            return (rows * self.matrices).sum(1)
        side_by_side = self.matrices.transpose(0, 1).reshape(self.config.dim, -1)  # [C_1 C_2 …], (d, c d)
        return F.linear(rows.flatten(1), side_by_side)


class FeedForward(TableModel):
    """ĥ = tanh(H [r_w1 r_w2 …] + h): the neural probabilistic language model of Bengio et al. (2003)."""

    def __init__(self, config: ModelConfig, vocabulary_size: int, device: Any = None) -> None:
        super().__init__(config, vocabulary_size, device)
        self.layer = nn.Linear(config.positions * config.dim, self.width, device=device)

    def reset_parameters(self, spread: float, generator: torch.Generator) -> None:
        """A hidden unit starts in the middle of its range."""
        super().reset_parameters(spread, generator)
        nn.init.normal_(self.layer.weight, std=self.layer.in_features**-0.5, generator=generator)
        nn.init.zeros_(self.layer.bias)

    def hidden(self, contexts: Tensor) -> Tensor:
        """ĥ: contexts (n, c) → (n, width)."""
        return torch.tanh(self.layer(self.look_up(contexts).flatten(1)))


class Lstm(TableModel):
    """The state of a long short-term memory after all words before.

    Its contexts are the words before as they come, (S, T), S texts side by side; ĥ after each of them is what predicts
    the next. Where a text runs on, each word is predicted from the 256 to 767 words before it.
    """

    def __init__(self, config: ModelConfig, vocabulary_size: int, device: Any = None) -> None:
        super().__init__(config, vocabulary_size, device)
        self.cells = nn.LSTM(config.dim, self.width, batch_first=True, device=device)

    def reset_parameters(self, spread: float, generator: torch.Generator) -> None:
        """Gates half open, but for the memory's, which start nearly open, to keep it (Jozefowicz et al. 2015)."""
        super().reset_parameters(spread, generator)
        for name, parameter in self.cells.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
                if name == "bias_ih_l0":  # (4 width,): gates to let in, to forget, new values, gates to let out
                    parameter[self.width : 2 * self.width] = 1.0
            else:
                nn.init.uniform_(parameter, -(self.width**-0.5), self.width**-0.5, generator=generator)

    @property
    def sides(self) -> Sides:
        """It reads forwards."""
        return "before"

    def read(
        self, words: Tensor, state: tuple[Tensor, Tensor] | None, dropout: float, fresh: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Go on reading: words (S, T) → ĥ after each, (S, T, width), and the state that it ends in.

        Where `fresh`, (S, T), is true, all that was read before is forgotten first.
        """
        vectors = F.dropout(self.look_up(words), dropout, self.training)
        if state is None or fresh is None or not bool(fresh.any()):
            states, state = self.cells(vectors, state)
        else:
            parts = []
            for t in range(words.shape[1]):
                kept = (~fresh[:, t]).to(vectors.dtype).unsqueeze(1)  # (S, 1)
                part, state = self.cells(vectors[:, t : t + 1], (state[0] * kept, state[1] * kept))
                parts.append(part)
            states = torch.cat(parts, 1)
        return F.dropout(states, dropout, self.training), state

    def hidden(self, contexts: Tensor) -> Tensor:
        """What `contexts_of` gives are states already."""
        return contexts

    def contexts_of(self, corpus: records.Corpus, first: int, last: int) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Positions and the states after the words before them, some segments of text at a time."""
        segments = [(start, max(begin, first), min(end, last)) for start, begin, end in _segments(corpus, first, last)]
        segments.sort(key=lambda segment: segment[2] - segment[0])  # those of about the same length together
        ids = corpus.ids
        while segments:
            longest = segments[-1][2] - segments[-1][0]
            rows = max(READ_AT_ONCE // longest, 1)
            group, segments = segments[-rows:], segments[:-rows]
            words = np.full((len(group), longest), corpus.pad_id, np.int64)
            for row, (start, _, end) in zip(words, group, strict=True):
                if start > 0 and not (corpus.within_sentence and ids[start - 1] == corpus.end_id):
                    row[0] = ids[start - 1]
                row[1 : end - start] = ids[start : end - 1]
            states, _ = self.read(torch.from_numpy(words), None, 0.0)  # (segments, longest, width)
            places = np.concatenate([np.arange(begin, end) for _, begin, end in group])
            yield places, torch.cat([row[b - s : e - s] for row, (s, b, e) in zip(states, group, strict=True)])


def _segments(corpus: records.Corpus, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Where to start reading, from where on words count, and where to stop, so that all from first to last count once.

    They depend on the text only, not on what is asked of it: a word has one probability.
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
    """s(w, h) = b_w + Σ_n θ[hash of the last n words, plus w]: a weight for every n-gram, sometimes one for two.

    The words after a context have weights side by side (as in Mikolov et al. 2011): to score all of them, only contexts
    are hashed, and memory is read in long stretches.
    """

    weights: nn.Parameter  # θ, (features,)

    def __init__(self, config: ModelConfig, vocabulary_size: int, device: Any = None) -> None:
        super().__init__(config, vocabulary_size, device)
        if config.features <= vocabulary_size:
            raise NcelmError(
                f"--features is {config.features:,}: give more than the {vocabulary_size:,} words there are"
            )
        self.weights = _empty(config.features, device=device)

    def reset_parameters(self, spread: float, generator: torch.Generator) -> None:
        """No feature counts at the start."""
        nn.init.zeros_(self.weights)

    def features(self, contexts: Tensor, words: Tensor) -> Tensor:
        """Which weights are added up: contexts (n, c), words (n, m) or (m,) → (n, m, c).

        The nearest word alone, the nearest two, … of those before; and of those after.
        """
        split = self.config.context
        halves = [contexts[:, :split].flip(1), contexts[:, split:]]  # nearest first
        keys = []
        for half, side in zip(halves, (1, 2), strict=True):
            key = torch.full((len(contexts),), side, dtype=torch.int64)
            for word in half.unbind(1):
                key = _mixed(key * 31 + word + 1)
                keys.append(key)
        begins = torch.stack(keys, 1) % (self.config.features - self.vocabulary_size)  # (n, c)
        return begins.unsqueeze(1) + words.unsqueeze(-1)

    def scores(self, contexts: Tensor, words: Tensor) -> Tensor:
        """s(w, h): contexts (n, c), words (n, m) or (m,) → (n, m)."""
        places = self.features(contexts, words)
        flat = torch.gather(self.weights, 0, places.flatten(), sparse_grad=self.sparse)
        return flat.view(places.shape).sum(2) + self.biases[words]

    def all_scores(self, contexts: Tensor) -> Tensor:
        """s(w, h) of every word: contexts (n, c) → (n, V)."""
        return self.scores(contexts, torch.arange(self.vocabulary_size))


def _mixed(x: Tensor) -> Tensor:
    """Scramble 64 bits, as SplitMix64 does (Steele, Lea & Flood 2014); products wrap around."""
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
def _evaluating(model: nn.Module) -> Iterator[None]:
    former = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(former)
