"""Training by PyTorch: any model of `models` by any estimator, one call for some minibatches, as `ncelm.engine` has it.

Parameters, Adagrad's sums of squares and the states that an LSTM carries on are NumPy arrays that PyTorch sees as
tensors: whoever holds the arrays can write a checkpoint at any time.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (as everyone writes it)
from torch import Tensor, nn

from ncelm import noise
from ncelm.kernels import steps as kernels
from ncelm.kernels.threads import Team
from ncelm.models.base import corpus_view
from ncelm.text.store import TokenStore
from ncelm.torch.losses import ImportanceSamplingLoss, NCELoss, importance_sampling_loss, nce_loss
from ncelm.torch.models import ARCHITECTURES, Lstm, NeuralModel, TableModel
from ncelm.torch.noise import noise_like
from ncelm.training.config import TrainConfig

PLANNED = 4  # minibatches in one call: Ctrl-C is answered between calls
# these parameters learn at the rate of tables, all others at that of matrices
TABLES = ("context_vectors", "target_vectors", "biases", "weights")


class TorchEngine:
    """Runs minibatches of a store's training split through a model, its loss and Adagrad or SGD."""

    planned: int = PLANNED

    def __init__(
        self,
        model: NeuralModel,
        squares: dict[str, np.ndarray],
        known_noise: noise.Noise | noise.BigramNoise,
        store: TokenStore,
        config: TrainConfig,
        carried: dict[str, np.ndarray],
        team: Team,
    ) -> None:
        torch.set_num_threads(team.threads)
        self.model, self.config = model, config
        self.corpus = corpus_view(store.split("train"), store, config.model.context)
        # dense gradients of tables would have as many rows as the vocabulary, however few words a minibatch has
        model.sparse = config.loss.name != "ml"
        self.noise = noise_like(known_noise)
        self.loss = self._table_loss(model) if isinstance(model, TableModel) else self._score_loss
        self.optimizer = _optimizer(model, squares, config)
        self.state = [torch.from_numpy(array) for array in carried.values()]

    @property
    def steps_per_epoch(self) -> int:
        """Minibatches that cover the training split once."""
        return steps_per_epoch(self.config, self.corpus.ids.size)

    def run(self, epoch: int, step: int, table_rates: np.ndarray, matrix_rates: np.ndarray) -> np.ndarray:
        """Train on the minibatches step, step + 1, … of an epoch, one for each rate; return the loss of each."""
        losses = []
        self.model.train()
        # said aloud, because PyTorch warns of what it does anyway
        torch.sparse.check_sparse_tensor_invariants.disable()
        for i, rates in enumerate(zip(table_rates.tolist(), matrix_rates.tolist(), strict=True)):
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            # one random stream for each step: a run can be taken up anywhere
            seed = int(kernels.stream_key(np.uint64(self.config.seed), epoch * self.steps_per_epoch + step + i, 0))
            torch.manual_seed(seed >> 1)
            self.optimizer.zero_grad()
            loss = self._stream_loss(step + i) if isinstance(self.model, Lstm) else self._window_loss(epoch, step + i)
            loss.backward()
            if self.config.regularization.clip_norm:
                nn.utils.clip_grad_norm_(_dense(self.model), self.config.regularization.clip_norm)
            self.optimizer.step()
            losses.append(loss.item())
        return np.array(losses)

    # -- minibatches --------------------------------------------------------------------------------------------------

    def _window_loss(self, epoch: int, step: int) -> Tensor:
        """Of words from all over the text, with the words around them: the same minibatches as in the core."""
        size, ids = self.config.batch_size, self.corpus.ids
        # Python's own numbers would come back into compiled code as signed ones
        shuffle = np.uint64(kernels.stream_key(np.uint64(self.config.seed), epoch, -1))
        half = np.uint64(kernels.permutation_bits(ids.size))
        examples = range(step * size, min((step + 1) * size, ids.size))
        places = np.array([kernels.permuted(i, ids.size, shuffle, half) for i in examples])
        targets = torch.from_numpy(ids[places].astype(np.int64))  # (B,)
        contexts = self.model.windows(self.corpus, places)  # (B, c)
        before = contexts[:, self.config.model.context - 1] if self.config.model.context else None
        return self.loss(contexts, targets, before)

    def _stream_loss(self, step: int) -> Tensor:
        """Of the next words of texts side by side, each a part of the training text, read on from where it was."""
        assert isinstance(self.model, Lstm)
        rows, length, T = *streams(self.config, self.corpus.ids.size), self.config.bptt_length
        ids, first = self.corpus.ids, step * T
        size = min(T, length - first)
        places = np.arange(rows)[:, None] * length + np.arange(first, first + size)  # (S, T)
        targets = ids[places].astype(np.int64)
        before = np.where(places > 0, ids[places - 1].astype(np.int64), self.corpus.pad_id)
        fresh = None
        if self.corpus.within_sentence:  # a sentence knows nothing of the one before
            before[before == self.corpus.end_id] = self.corpus.pad_id
            fresh = torch.from_numpy(before == self.corpus.pad_id)
        if step == 0:
            for tensor in self.state:
                tensor.zero_()
        words = torch.from_numpy(before)
        hidden, cell = self.state
        states, ended = self.model.read(words, (hidden.clone(), cell.clone()), self.config.regularization.dropout, fresh)
        for kept, new in zip(self.state, ended, strict=True):
            kept.copy_(new.detach())
        return self.loss(states.flatten(0, 1), torch.from_numpy(targets).flatten(), words.flatten())

    # -- estimators ---------------------------------------------------------------------------------------------------

    def _table_loss(self, model: TableModel) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
        """Of models that predict a vector: the losses that everybody can use."""
        config = self.config
        dropout = 0.0 if isinstance(model, Lstm) else config.regularization.dropout  # which has its own

        def hidden(contexts: Tensor) -> Tensor:
            return F.dropout(model.hidden(contexts), dropout, model.training)

        if config.loss.name == "ml":
            table = model.output_table

            def exact(contexts: Tensor, targets: Tensor, before: Tensor | None) -> Tensor:
                scores = F.linear(hidden(contexts), table[: model.vocabulary_size], model.biases)
                return F.cross_entropy(scores, targets, reduction="sum")

            return exact
        kind = NCELoss if config.loss.name == "nce" else ImportanceSamplingLoss
        loss = kind(
            model.width,
            model.vocabulary_size,
            self.noise,
            config.loss.samples,
            shared_noise=getattr(config.loss, "shared_noise", False),
            weight=model.output_table,
            bias=model.biases,
            sparse=model.sparse,
            reduction="sum",
            validate=False,  # the store was checked; whether the loss is a number is looked at in any case
        )

        def sampled(contexts: Tensor, targets: Tensor, before: Tensor | None) -> Tensor:
            return loss(hidden(contexts), targets, before=before)

        return sampled

    def _score_loss(self, contexts: Tensor, targets: Tensor, before: Tensor | None) -> Tensor:
        """Of models that have scores only."""
        config, model, n = self.config, self.model, len(targets)
        if config.loss.name == "ml":
            return F.cross_entropy(model.all_scores(contexts), targets, reduction="sum")
        shape = (config.loss.samples,) if getattr(config.loss, "shared_noise", False) else (n, config.loss.samples)
        beside = None if before is None or getattr(config.loss, "shared_noise", False) else before.unsqueeze(1)
        words = self.noise.sample(shape, beside)
        target_scores = model.scores(contexts, targets.unsqueeze(1)).squeeze(1)
        noise_scores = model.scores(contexts, words)
        noise_log_noise = self.noise.log_prob(words, beside)
        if config.loss.name == "importance":
            loss, _ = importance_sampling_loss(target_scores, noise_scores, noise_log_noise, reduction="sum")
            return loss
        target_log_noise = self.noise.log_prob(targets, before)
        return nce_loss(target_scores, noise_scores, target_log_noise, noise_log_noise, reduction="sum")


def streams(config: TrainConfig, tokens: int) -> tuple[int, int]:
    """An LSTM reads so many parts of the text side by side, each of so many words; a few words may be left out."""
    rows = max(min(config.batch_size // config.bptt_length, tokens // config.bptt_length), 1)
    return rows, tokens // rows


def steps_per_epoch(config: TrainConfig, tokens: int) -> int:
    """Minibatches in an epoch."""
    if config.model.architecture == "lstm":
        return -(-streams(config, tokens)[1] // config.bptt_length)
    return -(-tokens // config.batch_size)


def memory_bytes(config: TrainConfig, vocabulary_size: int) -> int:
    """About what training takes: parameters, their sums of squares, a copy of both to be written, scores."""
    shapes = ARCHITECTURES[config.model.architecture].shapes(config.model, vocabulary_size)
    parameters = 4 * sum(int(np.prod(shape)) for shape in shapes.values())
    each = vocabulary_size if config.loss.name == "ml" else config.loss.samples
    if config.model.architecture == "maximum-entropy":
        each *= 8 * config.model.positions  # 64-bit hashes, several at once
    elif config.loss.name != "ml" and not getattr(config.loss, "shared_noise", False):
        each *= config.model.hidden or config.model.dim  # every noise word's vector, gathered
    return parameters * (4 if config.optimizer.name == "adagrad" else 2) + 3 * 4 * config.batch_size * each


def carried_shapes(config: TrainConfig, tokens: int) -> dict[str, tuple[int, ...]]:
    """What goes on from one minibatch to the next beside parameters: the states of an LSTM."""
    if config.model.architecture != "lstm":
        return {}
    shape = (1, streams(config, tokens)[0], config.model.hidden or config.model.dim)
    return {"carried.hidden": shape, "carried.cell": shape}


def _dense(model: nn.Module) -> list[nn.Parameter]:
    """Parameters whose gradients are not sparse: those of the layers between the tables, which can explode."""
    return [p for name, p in model.named_parameters() if name not in TABLES]


def _optimizer(model: NeuralModel, squares: dict[str, np.ndarray], config: TrainConfig) -> torch.optim.Optimizer:
    """SGD, or Adagrad on these sums of squares."""
    named = dict(model.named_parameters())
    tables = [p for name, p in named.items() if name in TABLES]
    groups: list[Any] = [
        {"params": tables},
        {"params": [p for name, p in named.items() if name not in TABLES]},
    ]
    if config.optimizer.name == "sgd":
        return torch.optim.SGD(groups, lr=1.0)
    optimizer = torch.optim.Adagrad(groups, lr=1.0, eps=1e-8)
    for name, parameter in named.items():
        optimizer.state[parameter]["sum"] = torch.from_numpy(squares[name])
    return optimizer
