"""Training engine for PyTorch models: runs minibatches through a model, a loss and an optimizer.

This module is a backend of `ncelm.training.backend`. Parameters, optimizer state and the hidden states of an LSTM are
NumPy arrays that share memory with PyTorch's tensors, so that checkpoints need no conversion.

Losses and optimizers are dispatched by the type of `config.loss` and `config.optimizer`: `LOSSES` and `OPTIMIZERS`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's convention)
from torch import Tensor, nn

from ncelm import noise as core_noise
from ncelm.errors import NcelmError
from ncelm.kernels.records import Order
from ncelm.kernels.threads import Team
from ncelm.models.base import corpus_view
from ncelm.text.store import TokenStore
from ncelm.torch.functional import importance_sampling_loss, nce_loss, ranking_nce_loss
from ncelm.torch.losses import ImportanceSamplingLoss, NCELoss, RankingNCELoss
from ncelm.torch.models import ARCHITECTURES, EmbeddingModel, Lstm, NeuralModel
from ncelm.torch.noise import Noise, from_core
from ncelm.training.backend import Arrays, ImportanceWeights, OptimizerState, Shapes
from ncelm.training.config import (
    NCE,
    Adagrad,
    Adam,
    ImportanceSampling,
    MaximumLikelihood,
    Ranking,
    Sgd,
    TrainConfig,
)

MINIBATCHES_PER_CALL = 4  # Ctrl-C is handled between calls
# These parameters use the learning rate of tables; all others use that of matrices.
TABLES = ("context_vectors", "target_vectors", "biases", "weights")

# contexts, targets (N,), previous words (N,) or None → the sum of the losses
LossFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]


# -- losses ------------------------------------------------------------------------------------------------------------


def _maximum_likelihood(model: NeuralModel, noise: Noise, loss: MaximumLikelihood, dropout: float) -> LossFunction:
    """Return the exact negative log-likelihood."""

    def function(contexts: Tensor, targets: Tensor, before: Tensor | None) -> Tensor:
        if isinstance(model, EmbeddingModel):
            hidden = F.dropout(model.hidden(contexts), dropout, model.training)
            scores = F.linear(hidden, model.output_weight[: model.vocabulary_size], model.biases)
        else:
            scores = model.all_scores(contexts)
        return F.cross_entropy(scores, targets, reduction="sum")

    return function


def _nce(model: NeuralModel, noise: Noise, loss: NCE, dropout: float) -> LossFunction:
    module = partial(NCELoss, log_z_penalty=loss.log_z_penalty)
    function = partial(nce_loss, log_z_penalty=loss.log_z_penalty)
    return _sampled(model, noise, loss.samples, loss.shared_noise, dropout, module, function)


def _ranking(model: NeuralModel, noise: Noise, loss: Ranking, dropout: float) -> LossFunction:
    module = partial(RankingNCELoss, log_z_penalty=loss.log_z_penalty)
    function = partial(ranking_nce_loss, log_z_penalty=loss.log_z_penalty)
    return _sampled(model, noise, loss.samples, loss.shared_noise, dropout, module, function)


def _importance(model: NeuralModel, noise: Noise, loss: ImportanceSampling, dropout: float) -> LossFunction:
    def function(target_scores: Tensor, scores: Tensor, _: Tensor, log_proposal: Tensor, **options: Any) -> Tensor:
        return importance_sampling_loss(target_scores, scores, log_proposal, **options)[0]

    return _sampled(model, noise, loss.samples, False, dropout, ImportanceSamplingLoss, function)


def _sampled(
    model: NeuralModel,
    noise: Noise,
    samples: int,
    shared_noise: bool,
    dropout: float,
    module: Callable[..., nn.Module],
    function: Callable[..., Tensor],
) -> LossFunction:
    """Return a sampled loss: the module on the output layer of a model, or the function of a model's scores."""
    if not isinstance(model, EmbeddingModel):
        return partial(_loss_of_scores, model, noise, samples, shared_noise, function)
    output_layer = module(
        model.hidden_size,
        model.vocabulary_size,
        noise,
        samples,
        shared_noise=shared_noise,
        tied_weight=model.output_weight,
        bias=model.biases,
        sparse=model.sparse,
        reduction="sum",
        validate=False,  # the store was validated, and training checks that the loss is finite
    )

    def loss(contexts: Tensor, targets: Tensor, before: Tensor | None) -> Tensor:
        hidden = F.dropout(model.hidden(contexts), dropout, model.training)
        return output_layer(hidden, targets, before=before)

    return loss


def _loss_of_scores(
    model: NeuralModel,
    noise: Noise,
    samples: int,
    shared_noise: bool,
    function: Callable[..., Tensor],
    contexts: Tensor,
    targets: Tensor,
    before: Tensor | None,
) -> Tensor:
    """Return the loss of a model without an output layer."""
    shape = (samples,) if shared_noise else (len(targets), samples)
    previous = None if before is None or shared_noise else before.unsqueeze(1)
    words = noise.sample(shape, previous)  # (N, k) or (k,)
    target_scores = model.scores(contexts, targets.unsqueeze(1)).squeeze(1)  # (N,)
    noise_scores = model.scores(contexts, words)  # (N, k)
    noise_log_noise = noise.log_prob(words, previous)
    target_log_noise = noise.log_prob(targets, before)
    return function(target_scores, noise_scores, target_log_noise, noise_log_noise, reduction="sum")


LOSSES: dict[type, Callable[[NeuralModel, Noise, Any, float], LossFunction]] = {
    NCE: _nce,
    Ranking: _ranking,
    MaximumLikelihood: _maximum_likelihood,
    ImportanceSampling: _importance,
}


# -- optimizers --------------------------------------------------------------------------------------------------------


class Optimizer:
    """One or more of PyTorch's optimizers over all parameters, on the memory of an optimizer state.

    PyTorch's Adam does not accept sparse gradients, and SparseAdam accepts no others: a model with both needs two.
    """

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    def prepare(self, step: int, table_rate: float, matrix_rate: float) -> None:
        """Clear the gradients and set the learning rates of update `step`, the first of a run being 0."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = table_rate if group["tables"] else matrix_rate

    def step(self) -> None:
        """Update the parameters."""
        for optimizer in self.optimizers:
            optimizer.step()


class AdamOptimizer(Optimizer):
    """Adam for dense gradients and SparseAdam for sparse ones.

    SparseAdam is lazy: rows without a gradient keep their values and their moments. The bias correction uses the number
    of updates of the run for all rows.
    """

    def __init__(self, config: Adam, dense: list[Any], sparse: list[Any]) -> None:
        self.config = config
        betas, self.sparse = (config.beta1, config.beta2), None
        optimizers: list[torch.optim.Optimizer] = []
        if dense:
            optimizers.append(torch.optim.Adam(dense, lr=1.0, betas=betas, eps=config.epsilon))
        if sparse:
            self.sparse = torch.optim.SparseAdam(sparse, lr=1.0, betas=betas, eps=config.epsilon)
            optimizers.append(self.sparse)
        super().__init__(optimizers)

    def prepare(self, step: int, table_rate: float, matrix_rate: float) -> None:
        """Also set the number of earlier updates, which is not part of the optimizer state."""
        super().prepare(step, table_rate, matrix_rate)
        for optimizer in self.optimizers:
            for state in optimizer.state.values():
                state["step"] = step if optimizer is self.sparse else torch.tensor(float(step))
        if self.sparse is not None:
            # Adam divides the root by √(1 − β₂ᵗ) before it adds ε, SparseAdam afterwards: give both the same ε
            for group in self.sparse.param_groups:
                group["eps"] = self.config.epsilon * math.sqrt(1.0 - self.config.beta2 ** (step + 1))


def _groups(parameters: dict[str, nn.Parameter]) -> list[Any]:
    """Return PyTorch's parameter groups: tables and the rest, which have learning rates of their own."""
    groups = [
        {"params": [p for name, p in parameters.items() if (name in TABLES) == tables], "tables": tables}
        for tables in (True, False)
    ]
    return [group for group in groups if group["params"]]


def _sgd(model: NeuralModel, state: OptimizerState, config: Sgd) -> Optimizer:
    return Optimizer([torch.optim.SGD(_groups(dict(model.named_parameters())), lr=1.0)])


def _adagrad(model: NeuralModel, state: OptimizerState, config: Adagrad) -> Optimizer:
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.Adagrad(_groups(parameters), lr=1.0, eps=1e-8)
    for name, parameter in parameters.items():
        optimizer.state[parameter]["sum"] = torch.from_numpy(state["accumulator"][name])
    return Optimizer([optimizer])


def _adam(model: NeuralModel, state: OptimizerState, config: Adam) -> Optimizer:
    parameters = dict(model.named_parameters())
    sparse = {name: p for name, p in parameters.items() if model.sparse and name in model.sparse_parameters}
    dense = {name: p for name, p in parameters.items() if name not in sparse}
    optimizer = AdamOptimizer(config, _groups(dense), _groups(sparse))
    for each in optimizer.optimizers:
        for name, parameter in (sparse if each is optimizer.sparse else dense).items():
            each.state[parameter] |= {
                "exp_avg": torch.from_numpy(state["momentum"][name]),
                "exp_avg_sq": torch.from_numpy(state["accumulator"][name]),
            }
    return optimizer


OPTIMIZERS: dict[type, Callable[[NeuralModel, OptimizerState, Any], Optimizer]] = {
    Sgd: _sgd,
    Adagrad: _adagrad,
    Adam: _adam,
}


# -- engine ------------------------------------------------------------------------------------------------------------


def check(config: TrainConfig) -> None:
    """Raise `NcelmError` for an option that this engine does not implement."""
    regularization, maximum_entropy = config.regularization, config.model.architecture == "maximum-entropy"
    for option, used, remedy in (
        (f"`loss` {config.loss.name}", type(config.loss) not in LOSSES, _choices(LOSSES)),
        (f"`optimizer` {config.optimizer.name}", type(config.optimizer) not in OPTIMIZERS, _choices(OPTIMIZERS)),
        ("`log_normalizers` learned", config.learned_log_normalizers, "choose fixed"),
        ("`min_effective_samples`", getattr(config.loss, "min_effective_samples", 0.0) > 0, "leave it out"),
        ("`weight_decay`", regularization.weight_decay > 0, "leave it out"),
        ("`weight_decay_per_epoch`", regularization.weight_decay_per_epoch > 0, "leave it out"),
        ("`dropout` of a maximum-entropy model", maximum_entropy and regularization.dropout > 0, "leave it out"),
        ("`clip_norm` of a maximum-entropy model", maximum_entropy and regularization.clip_norm > 0, "leave it out"),
    ):
        if used:
            raise NcelmError(f"{option} is not implemented in `engine` torch: {remedy}")


def _choices(registry: dict[type, Any]) -> str:
    return "choose one of " + ", ".join(str(getattr(kind, "name", kind)) for kind in registry)


class TorchEngine:
    """Runs minibatches of a store's training split.

    Args:
        model: trained in place.
        optimizer_state: {} (SGD), {"accumulator": …} (Adagrad), and {"momentum": …} (Adam); updated in place.
        known_noise: noise distribution of the store.
        store: token store.
        config: configuration; `check` says what is implemented.
        carried: hidden states of an LSTM, with the shapes of `carried_shapes`; updated in place.
        team: its number of threads is that of PyTorch.
        order: of the words in an epoch; an LSTM reads them as they stand in the text.
    """

    planned: int = MINIBATCHES_PER_CALL

    def __init__(
        self,
        model: NeuralModel,
        optimizer_state: OptimizerState,
        known_noise: core_noise.Noise | core_noise.BigramNoise,
        store: TokenStore,
        config: TrainConfig,
        carried: Arrays,
        team: Team,
        order: Order,
    ) -> None:
        check(config)
        torch.set_num_threads(team.threads)
        self.model, self.config, self.order = model, config, order
        self.corpus = corpus_view(store.split("train"), store, config.model.context)
        # a dense gradient of a table has V rows, however few words a minibatch has
        model.sparse = config.sampled
        # an LSTM applies dropout itself
        dropout = 0.0 if isinstance(model, Lstm) else config.regularization.dropout
        self.loss = LOSSES[type(config.loss)](model, from_core(known_noise), config.loss, dropout)
        self.optimizer = OPTIMIZERS[type(config.optimizer)](model, optimizer_state, config.optimizer)
        self.state = [torch.from_numpy(array) for array in carried.values()]

    @property
    def steps_per_epoch(self) -> int:
        """Minibatches in an epoch."""
        return steps_per_epoch(self.config, self.corpus.ids.size)

    def run(self, epoch: int, step: int, table_rates: np.ndarray, matrix_rates: np.ndarray) -> np.ndarray:
        """Train on the minibatches step, step + 1, … of an epoch, one for each rate; return the loss of each."""
        from ncelm.kernels.random import step_key

        losses = []
        self.model.train()
        torch.sparse.check_sparse_tensor_invariants.disable()  # the default; PyTorch warns if it is not set explicitly
        for i, rates in enumerate(zip(table_rates.tolist(), matrix_rates.tolist(), strict=True)):
            update = epoch * self.steps_per_epoch + step + i
            self.optimizer.prepare(update, *rates)
            # a random stream for each update: training can be resumed anywhere
            torch.manual_seed(int(step_key(np.uint64(self.config.seed), update, 0)) >> 1)
            loss = self._stream_loss(step + i) if isinstance(self.model, Lstm) else self._window_loss(epoch, step + i)
            loss.backward()
            if self.config.regularization.clip_norm:
                nn.utils.clip_grad_norm_(_layers(self.model), self.config.regularization.clip_norm)
            self.optimizer.step()
            losses.append(loss.item())
        return np.array(losses)

    def weights(self, row: int) -> ImportanceWeights | None:
        """Return None: importance weights are not recorded."""
        return None

    def _window_loss(self, epoch: int, step: int) -> Tensor:
        """Return the loss of a minibatch of shuffled words, the same words as in the compiled engine."""
        from ncelm.kernels.plan import epoch_positions

        size, ids = self.config.batch_size, self.corpus.ids
        examples = range(step * size, min((step + 1) * size, ids.size))
        positions = np.empty(len(examples), np.int64)
        epoch_positions(self.order, epoch, examples.start, ids.size, positions)
        targets = torch.from_numpy(ids[positions].astype(np.int64))  # (B,)
        contexts = self.model.windows(self.corpus, positions)  # (B, c)
        before = contexts[:, self.config.model.context - 1] if self.config.model.context else None
        return self.loss(contexts, targets, before)

    def _stream_loss(self, step: int) -> Tensor:
        """Return the loss of the next words of parallel streams, by truncated backpropagation through time."""
        assert isinstance(self.model, Lstm)
        rows, length, T = *streams(self.config, self.corpus.ids.size), self.config.bptt_length
        ids, first = self.corpus.ids, step * T
        size = min(T, length - first)
        positions = np.arange(rows)[:, None] * length + np.arange(first, first + size)  # (S, T)
        targets = ids[positions].astype(np.int64)
        before = np.where(positions > 0, ids[positions - 1].astype(np.int64), self.corpus.pad_id)
        reset = None
        if self.corpus.within_sentence:  # contexts do not cross sentences
            before[before == self.corpus.end_id] = self.corpus.pad_id
            reset = torch.from_numpy(before == self.corpus.pad_id)
        if step == 0:
            for tensor in self.state:
                tensor.zero_()
        words = torch.from_numpy(before)
        hidden, cell = self.state
        initial = (hidden.clone(), cell.clone())
        states, last = self.model.hidden_states(words, initial, self.config.regularization.dropout, reset)
        for kept, new in zip(self.state, last, strict=True):
            kept.copy_(new.detach())
        return self.loss(states.flatten(0, 1), torch.from_numpy(targets).flatten(), words.flatten())


def create(
    model: NeuralModel,
    optimizer_state: OptimizerState,
    noise: core_noise.Noise | core_noise.BigramNoise,
    store: TokenStore,
    config: TrainConfig,
    team: Team,
    log_normalizers: np.ndarray,
    context_ids: np.ndarray,
    carried: Arrays,
    order: Order | None = None,
) -> TorchEngine:
    """Return an engine; see `TorchEngine`. Learned log-normalizers are not implemented: both arrays are empty."""
    order = order or Order(np.uint64(config.seed))
    return TorchEngine(model, optimizer_state, noise, store, config, carried, team, order)


def streams(config: TrainConfig, tokens: int) -> tuple[int, int]:
    """Return the number of parallel streams that an LSTM reads, and their length; the last tokens may be unused."""
    rows = max(min(config.batch_size // config.bptt_length, tokens // config.bptt_length), 1)
    return rows, tokens // rows


def steps_per_epoch(config: TrainConfig, tokens: int) -> int:
    """Return the number of minibatches in an epoch."""
    if config.model.architecture == "lstm":
        return -(-streams(config, tokens)[1] // config.bptt_length)
    return -(-tokens // config.batch_size)


def memory_bytes(config: TrainConfig, vocabulary_size: int, tokens: int) -> int:
    """Return the approximate memory of training: parameters and optimizer state, their copy in a checkpoint, scores."""
    shapes = ARCHITECTURES[config.model.architecture].shapes(config.model, vocabulary_size)
    parameters = 4 * sum(int(np.prod(shape)) for shape in shapes.values())
    per_word = getattr(config.loss, "samples", vocabulary_size)
    if config.model.architecture == "maximum-entropy":
        per_word *= 8 * config.model.positions  # 64-bit hashes, several at once
    elif config.sampled and not getattr(config.loss, "shared_noise", False):
        per_word *= config.model.hidden or config.model.dim  # gathered rows of the noise samples
    copies = 2 * (1 + len(config.optimizer.statistics))
    return copies * parameters + 3 * 4 * config.batch_size * per_word


def carried_shapes(config: TrainConfig, tokens: int) -> Shapes:
    """Return the shapes of arrays that a minibatch hands to the next one: the hidden states of an LSTM."""
    if config.model.architecture != "lstm":
        return {}
    shape = (1, streams(config, tokens)[0], config.model.hidden or config.model.dim)
    return {"carried.hidden": shape, "carried.cell": shape}


def _layers(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are not tables; their gradients are dense and can explode."""
    return [p for name, p in model.named_parameters() if name not in TABLES]
