"""The compiled engine: minibatches of a log-bilinear model, many in one call of `kernels.steps.train`.

`create` is the one place that turns a store and a configuration into the records that kernels take.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ncelm.errors import NcelmError
from ncelm.kernels import contexts, exact, losses, optimizers, per_example, plan, products, records, shared_noise, steps
from ncelm.kernels.threads import Team
from ncelm.models.base import corpus_view
from ncelm.models.log_bilinear import LogBilinear
from ncelm.noise import BigramNoise, Noise
from ncelm.text.store import TokenStore
from ncelm.training import config as configuration
from ncelm.training.backend import ImportanceWeights
from ncelm.training.config import TrainConfig

PLAN_BYTES = 32 << 20  # minibatches are planned in groups that take about this much memory …
PLANNED_WORDS = 16_000  # … and have at most this number of words, so that Ctrl-C is answered soon …
MOST_PLANNED = 128  # … in at most this number of minibatches

NO_NORMALIZERS, NO_CONTEXTS = np.zeros(0, np.float32), np.zeros(0, np.int32)

# -- losses and optimizers: from the types of the configuration to those of the kernels --------------------------------


def _penalized(loss: Any, coefficient: float) -> Any:
    return losses.LogZPenalty(loss, np.float32(coefficient)) if coefficient else loss


LOSSES: dict[Any, Any] = {
    configuration.NCE: lambda loss: _penalized(losses.Nce(), loss.log_z_penalty),
    configuration.Ranking: lambda loss: _penalized(losses.Ranking(), loss.log_z_penalty),
    configuration.ImportanceSampling: lambda loss: losses.Importance(loss.samples, float(loss.min_effective_samples)),
    configuration.ContrastiveFamily: lambda loss: losses.Family(losses.MEMBERS[loss.member]()),
    configuration.MaximumLikelihood: lambda loss: None,  # its own strategy
}
OPTIMIZERS: dict[Any, Any] = {
    configuration.Sgd: lambda optimizer: optimizers.Sgd(),
    configuration.Adagrad: lambda optimizer: optimizers.Adagrad(),
    configuration.Adam: lambda optimizer: optimizers.Adam(
        np.float32(optimizer.beta1), np.float32(optimizer.beta2), np.float32(optimizer.epsilon)
    ),
}


def check(config: TrainConfig) -> None:
    """Raise NcelmError for a loss or an optimizer that this engine does not implement."""
    for name, registry in (("loss", LOSSES), ("optimizer", OPTIMIZERS)):
        chosen = getattr(config, name)
        if type(chosen) not in registry:
            known = ", ".join(each.name for each in registry)
            raise NcelmError(f"`{name}` {chosen.name} is not implemented by `engine` compiled: choose one of {known}")
    if config.regularization.clip_norm:
        raise NcelmError("`clip_norm` is not implemented by `engine` compiled: leave it out, or choose `engine` torch")


# -- sizes -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """The numbers that determine the memory of a training run."""

    vocabulary: int  # V
    dim: int  # d
    positions: int  # c
    diagonal: bool
    tied: bool
    batch: int  # B
    samples: int  # k + 1, or 1 for exact likelihood and for shared noise
    exact: bool  # every word of the vocabulary is scored
    statistics: int  # arrays that the optimizer keeps for each parameter
    shared_samples: int = 0  # K: noise words shared by a minibatch
    bigram_words: int = 0  # N, with bigram noise
    numbered_words: int = 0  # N, with learned log-normalizers

    @classmethod
    def of(cls, config: TrainConfig, vocabulary_size: int, tokens: int) -> "Sizes":
        """The sizes of training on this number of tokens."""
        loss, exact_loss = config.loss, not config.sampled
        samples = getattr(loss, "samples", 0)
        if isinstance(loss, configuration.ImportanceSampling) and loss.adaptive:
            samples = loss.max_samples
        shared = getattr(loss, "shared_noise", False)
        state = optimizers.STATES[type(OPTIMIZERS[type(config.optimizer)](config.optimizer))]
        return cls(
            vocabulary=vocabulary_size,
            dim=config.model.dim,
            positions=config.model.positions,
            diagonal=config.model.matrices == "diagonal",
            tied=config.model.tied_embeddings,
            batch=config.batch_size,
            samples=1 if exact_loss or shared else samples + 1,
            exact=exact_loss,
            statistics=len(state._fields) if state else 0,
            shared_samples=samples if shared else 0,
            bigram_words=tokens if isinstance(config.noise, configuration.BigramNoise) and not exact_loss else 0,
            numbered_words=tokens if config.learned_log_normalizers else 0,
        )

    @property
    def group_blocks(self) -> int:
        """Most blocks of unique context words in a minibatch, each with its part of the gradient of the matrices."""
        if self.diagonal:
            return -(-min(self.batch * self.positions, self.vocabulary + 1) // contexts.GROUP_BLOCK)
        return -(-min(self.batch, self.vocabulary + 1) // contexts.POSITION_BLOCK)

    @property
    def example_blocks(self) -> int:
        """Most work items of examples in a minibatch."""
        return -(-self.batch // min(per_example.EXAMPLE_BLOCK, exact.EXAMPLE_BLOCK, shared_noise.LEAST_EXAMPLES))

    @property
    def target_groups(self) -> int:
        """Most unique target words in a minibatch."""
        entries = self.batch * self.samples + self.shared_samples
        return self.vocabulary if self.exact else min(self.vocabulary, entries)

    @property
    def entries(self) -> int:
        """(word, example) pairs on the target side of a minibatch that are grouped by word."""
        return 0 if self.exact else (self.batch + self.shared_samples) * self.samples

    @property
    def score_gradients(self) -> int:
        """Derivatives by scores in a minibatch."""
        return self.batch * (self.vocabulary if self.exact else self.samples + self.shared_samples)

    @property
    def plan_bytes(self) -> int:
        """Memory of one planned minibatch."""
        noise = 5 * self.samples if self.bigram_words else 4 * self.samples
        return 4 * self.batch * (noise + 8 * self.positions + 4) + 8 * self.target_groups + 16 * self.shared_samples

    @property
    def planned(self) -> int:
        """Minibatches planned together: G."""
        if self.exact:  # these take long enough by themselves
            return int(np.clip(PLAN_BYTES // self.plan_bytes, 1, 2))
        return int(np.clip(min(PLAN_BYTES // self.plan_bytes, PLANNED_WORDS // self.batch), 1, MOST_PLANNED))

    @property
    def matrix_shape(self) -> tuple[int, ...]:
        """The shape of all C_i together."""
        c, d = self.positions, self.dim
        return (c, d) if self.diagonal else (c, d, d)

    @property
    def memory_bytes(self) -> int:
        """The memory of training in addition to the Python process: parameters, optimizer state, buffers."""
        tables = 1 if self.tied else 2
        parameters = 4 * (self.vocabulary * (tables * self.dim + 1) + int(np.prod(self.matrix_shape)))
        tied = 4 * self.dim * (self.target_groups + self.batch * self.positions) if self.tied else 0
        vectors = 4 * self.batch * self.dim * (2 + (0 if self.diagonal else 2 * self.positions))
        noise = 8 * self.shared_samples * (self.dim + 1) + 20 * self.bigram_words
        # at worst every context is distinct; they are numbered with a hash table of at most 16 N bytes
        normalizers = self.numbered_words * (16 + 4 + 8 * (1 + self.statistics))
        partial = 4 * self.group_blocks * int(np.prod(self.matrix_shape))
        # parameters and state twice: a checkpoint is assembled in memory before it is written
        return (
            2 * parameters * (1 + self.statistics)
            + tied
            + vectors
            + 4 * self.score_gradients
            + noise
            + normalizers
            + partial
            + self.planned * self.plan_bytes
        )


# -- the functions of a backend ----------------------------------------------------------------------------------------


def steps_per_epoch(config: TrainConfig, tokens: int) -> int:
    """The number of minibatches in an epoch."""
    return -(-tokens // config.batch_size)


def memory_bytes(config: TrainConfig, vocabulary_size: int, tokens: int) -> int:
    """The approximate memory of training in addition to the Python process."""
    return Sizes.of(config, vocabulary_size, tokens).memory_bytes


def carried_shapes(config: TrainConfig, tokens: int) -> dict[str, tuple[int, ...]]:
    """The shapes of arrays that a minibatch passes on to the next one: none."""
    return {}


def number_contexts(store: TokenStore, context: int, context_after: int) -> tuple[np.ndarray, int]:
    """The number of each training word's context, (N,) int32, equal for equal contexts; and how many there are."""
    corpus = corpus_view(store.split("train"), store, context)
    numbers = np.empty(corpus.ids.size, np.int32)
    slots = np.full(1 << (2 * corpus.ids.size - 1).bit_length(), -1, np.int32)  # at most half full
    return numbers, int(plan.number_contexts(corpus, context + context_after, slots, numbers))


def create(
    model: LogBilinear,
    optimizer_state: dict[str, dict[str, np.ndarray]],
    noise: Noise | BigramNoise,
    store: TokenStore,
    config: TrainConfig,
    team: Team,
    log_normalizers: np.ndarray = NO_NORMALIZERS,
    context_ids: np.ndarray = NO_CONTEXTS,
    carried: dict[str, np.ndarray] | None = None,
    order: records.Order | None = None,
) -> "Engine":
    """An engine for the training split of a store.

    Args:
        model: trained in place.
        optimizer_state: {statistic: {parameter name: array}}, such as {"accumulator": {…}}; updated in place.
        noise: noise distribution of the store.
        store: token store.
        config: complete configuration.
        team: threads.
        log_normalizers: learned log-normalizers c_h, (contexts,); trained in place.
        context_ids: number of each training word's context, (N,).
        carried: not used.
        order: of the words in an epoch. Default: a random one.
    """
    check(config)
    order = order or records.Order(np.uint64(config.seed))
    return Engine(model, optimizer_state, noise, store, config, team, log_normalizers, context_ids, order)


class Engine:
    """Runs minibatches of a training split through the kernels, with all threads of a team."""

    def __init__(
        self,
        model: LogBilinear,
        optimizer_state: dict[str, dict[str, np.ndarray]],
        noise: Noise | BigramNoise,
        store: TokenStore,
        config: TrainConfig,
        team: Team,
        log_normalizers: np.ndarray,
        context_ids: np.ndarray,
        order: records.Order,
    ) -> None:
        self.order = order
        self.sizes = sizes = Sizes.of(config, len(store.vocabulary), store.split("train").tokens)
        self.seed, self.team = np.uint64(config.seed), team
        self.corpus = corpus_view(store.split("train"), store, config.model.context)
        self.optimizer = OPTIMIZERS[type(config.optimizer)](config.optimizer)
        self.parameters = model.parameters()
        self.state = self._parameter_state(model, optimizer_state)
        self.normalizers = None
        if config.learned_log_normalizers:
            state = self._state_of("log_normalizers", log_normalizers.shape, optimizer_state)
            self.normalizers = records.LogNormalizers(log_normalizers, state, context_ids)
        self.strategy = self._strategy(config, noise)
        regularization = config.regularization
        self.dropout = records.Dropout(float(regularization.dropout)) if regularization.dropout else None
        self.weight_decay = _weight_decay(
            regularization.weight_decay,
            regularization.weight_decay_per_epoch,
            store.vocabulary.counts,
            noise.probabilities,
            sizes,
        )
        self.matrices = _matrices(model.matrices, sizes)
        self.plan, self.workspace = _plan(sizes), _workspace(sizes, isinstance(self._loss, losses.Importance))
        self.scratch = _scratch(sizes, team.threads)
        # Compile before anything is timed, in this thread, where Ctrl-C is handled.
        self._call(0, 0, np.empty(0), np.empty(0), _run_alone)

    @property
    def _loss(self) -> Any:
        return getattr(self.strategy, "loss", None)

    def _strategy(self, config: TrainConfig, noise: Noise | BigramNoise) -> Any:
        sizes, loss = self.sizes, LOSSES[type(config.loss)](config.loss)
        if sizes.exact:
            return records.ExactLikelihood()
        table = noise.table(sizes.shared_samples or sizes.samples - 1)
        if sizes.shared_samples:
            assert isinstance(table, records.NoiseTable)  # the configuration excludes bigram noise
            return records.SharedNoise(loss, table)
        return records.PerExampleNoise(loss, table, self.normalizers)

    def _state_of(self, name: str, shape: tuple[int, ...], state: dict[str, dict[str, np.ndarray]]) -> Any:
        """The optimizer's state for one parameter."""
        kind = optimizers.STATES[type(self.optimizer)]
        return kind(*(state[statistic][name].reshape(shape) for statistic in kind._fields)) if kind else None

    def _parameter_state(self, model: LogBilinear, state: dict[str, dict[str, np.ndarray]]) -> records.Parameters:
        context = self._state_of("context_vectors", model.context_vectors.shape, state)
        if model.config.tied_embeddings:  # a tied table has one state, whose last row is the out-of-sentence word's
            target = None if context is None else type(context)(*(array[:-1] for array in context))
        else:
            target = self._state_of("target_vectors", model.target_vectors.shape, state)
        biases = self._state_of("biases", model.biases.shape, state)
        matrices = self._state_of("matrices", (len(model.matrices), model.matrices[0].size), state)
        return records.Parameters(context, target, biases, matrices)

    @property
    def planned(self) -> int:
        """The maximum number of minibatches in one call of `run`."""
        return self.sizes.planned

    @property
    def steps_per_epoch(self) -> int:
        """Minibatches that cover the training split once; the last may be smaller."""
        return -(-self.corpus.ids.size // self.sizes.batch)

    def run(self, epoch: int, step: int, table_rates: np.ndarray, matrix_rates: np.ndarray) -> np.ndarray:
        """Train on minibatches `step`, `step + 1`, … of an epoch, one per learning rate; return the loss of each."""
        count = len(table_rates)
        if count > self.sizes.planned:  # compiled code would write beyond its buffers
            raise ValueError(f"{count} minibatches in one call, but there is room for {self.sizes.planned}")
        self.workspace.losses[:] = 0.0
        if self.workspace.importance is not None:
            self.workspace.importance[:] = (0.0, np.inf, 0.0, -np.inf, 0.0, 0.0, 0.0)  # losses.IMPORTANCE_FIELDS
        self._call(
            epoch, step, table_rates, matrix_rates, lambda phases, *call: self.team.run(steps.train, phases, *call)
        )
        return self.workspace.losses[:count].sum(axis=1)

    def _call(self, epoch: int, step: int, table_rates: np.ndarray, matrix_rates: np.ndarray, run: Any) -> None:
        first, count = epoch * self.steps_per_epoch + step, len(table_rates)
        correction = optimizers.bias_correction(self.optimizer, np.arange(first + 1, first + count + 1))
        run(
            1 + steps.PHASES * count,
            records.Steps(self.seed, self.order, epoch, first, count, self.sizes.batch, step * self.sizes.batch),
            self.corpus,
            self.strategy,
            self.matrices,
            self.dropout,
            self.optimizer,
            self.plan,
            self.parameters,
            self.state,
            self.workspace,
            records.Rates(
                (table_rates * correction).astype(np.float32),
                (matrix_rates * correction).astype(np.float32),
                self.weight_decay,
            ),
            self.scratch,
        )

    def weights(self, row: int) -> ImportanceWeights | None:
        """The importance weights of a minibatch of the last call, by index; None if they are not recorded."""
        if self.workspace.importance is None:
            return None
        blocks, size = self.workspace.importance[row], int(self.plan.sizes[row])
        of = dict(zip(losses.IMPORTANCE_FIELDS, blocks.T, strict=True))  # each (blocks,)
        heaviest = int(of["largest_log_weight"].argmax())
        return ImportanceWeights(
            effective_samples=float(of["effective_samples"].sum()) / size,
            least_effective_samples=float(of["least_effective_samples"].min()),
            samples=float(of["samples"].sum()) / size,
            largest_log_weight=float(of["largest_log_weight"][heaviest]),
            share=float(of["share"][heaviest]),
            word=int(of["word"][heaviest]),
            context=self.plan.contexts[row, int(of["example"][heaviest])].tolist(),
        )


def _run_alone(phases: int, *arguments: Any) -> None:
    """Enter the training kernel with this thread only."""
    steps.train(0, 1, np.zeros(phases * records.SYNC_STRIDE, np.int64), *arguments)


def _weight_decay(
    weight_decay: float, per_epoch: float, counts: np.ndarray, noise: np.ndarray, sizes: Sizes
) -> records.WeightDecay:
    """Weight decay of each row: a constant, plus `per_epoch` divided by the expected updates of the row per epoch."""
    tokens = max(int(counts.sum()), 1)
    updates, frequency = max(tokens / sizes.batch, 1.0), np.clip(counts / tokens, 1.0 / tokens, 0.5)
    log_absent = sizes.batch * np.log1p(-frequency)  # log P(a word is not among the targets of a minibatch), (V,)
    # the out-of-sentence word is in every minibatch, and so is every word for exact likelihood
    contexts_updated = np.append(-np.expm1(sizes.positions * log_absent), 1.0) * updates  # (V + 1,)
    noise_draws = sizes.shared_samples or sizes.batch * (sizes.samples - 1)
    targets_updated = -np.expm1(log_absent + noise_draws * np.log1p(-np.minimum(noise, 0.5))) * updates  # (V,)
    if sizes.exact:
        targets_updated = np.full(counts.size, updates)
    return records.WeightDecay(
        np.float32(weight_decay),
        (weight_decay + per_epoch / contexts_updated).astype(np.float32),
        (weight_decay + per_epoch / targets_updated).astype(np.float32),
    )


# -- buffers -----------------------------------------------------------------------------------------------------------


def _floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _matrices(values: np.ndarray, sizes: Sizes) -> records.FullMatrices | records.DiagonalMatrices:
    c, B, d = sizes.positions, sizes.batch, sizes.dim
    if sizes.diagonal:
        return records.DiagonalMatrices(values)
    return records.FullMatrices(values, _floats(c, B, d), _floats(c, B, d), _floats(c, d, d))


def _plan(sizes: Sizes) -> records.Plan:
    """Empty plans for a group of minibatches."""
    G, B, c, samples = sizes.planned, sizes.batch, sizes.positions, sizes.samples

    def integers(*shape: int) -> np.ndarray:
        return np.zeros((G, *shape), np.int32)

    def groups(most: int, entries: int, rows: int) -> records.Groups:
        return records.Groups(integers(), integers(most), integers(most + 1), integers(entries), integers(rows))

    positions = None
    if not sizes.diagonal:
        positions = records.PositionGroups(
            integers(c), integers(c, B), integers(c, B + 1), integers(c, B), integers(B, c)
        )
    shared = None
    if sizes.shared_samples:
        shared = records.SharedDraws(np.zeros(G, np.int64), np.zeros((G, sizes.shared_samples), np.float32))
    # with tied embeddings a row is also read as a context word's, so that its update has to wait
    singletons = samples > 1 and not sizes.tied
    return records.Plan(
        sizes=np.zeros(G, np.int64),
        contexts=integers(B, c),
        words=integers(B + sizes.shared_samples, samples),
        keys=np.zeros((G, B), np.uint64),
        context_groups=groups(B * c, B * c, B * c if sizes.diagonal else 0),
        position_groups=positions,
        target_groups=None if sizes.exact else groups(sizes.target_groups, sizes.entries, sizes.entries),
        singletons=records.Singletons(integers(B * samples), integers(B + 1)) if singletons else None,
        shared=shared,
        log_k_noise=np.zeros((G, B, samples), np.float32) if sizes.bigram_words else None,
        normalizers=integers(B) if sizes.numbered_words else None,
    )


def _workspace(sizes: Sizes, importance: bool) -> records.Workspace:
    """Buffers for the intermediate results of a minibatch."""
    G, B, c, d, K = sizes.planned, sizes.batch, sizes.positions, sizes.dim, sizes.shared_samples
    tied = None
    if sizes.tied:
        tied = records.TiedGradients(_floats(sizes.target_groups, d), _floats(B * c if sizes.diagonal else 0, d))
    return records.Workspace(
        predicted=_floats(B, d),
        predicted_gradients=_floats(B, d),
        score_gradients=_floats(sizes.score_gradients),
        matrix_gradients=_floats(sizes.group_blocks, *sizes.matrix_shape),
        losses=np.zeros((G, sizes.example_blocks)),
        tied=tied,
        noise=records.SharedNoiseBuffers(_floats(K, d), _floats(K), _floats(K, d), _floats(K)) if K else None,
        normalizer_gradients=_floats(B) if sizes.numbered_words else None,
        importance=np.zeros((G, sizes.example_blocks, len(losses.IMPORTANCE_FIELDS))) if importance else None,
    )


def _scratch(sizes: Sizes, threads: int) -> records.Scratch:
    """Buffers of each thread."""
    block_rows = max(products.VOCABULARY_BLOCK, exact.EXAMPLE_BLOCK) if sizes.exact else 0
    block_rows = shared_noise.MOST_EXAMPLES if sizes.shared_samples else block_rows
    entries = max(sizes.entries, sizes.batch * sizes.positions)
    shifts = exact.EXAMPLE_BLOCK * -(-sizes.vocabulary // products.VOCABULARY_BLOCK) if sizes.exact else block_rows
    sums = 0 if sizes.diagonal else contexts.POSITION_BLOCK
    weights = max(entries, products.VOCABULARY_BLOCK if sizes.exact else shared_noise.NOISE_BLOCK)
    gap, gap_rows = records.GAP, 1 + records.GAP // sizes.dim
    return records.Scratch(
        gradient=_floats(threads, sizes.dim + gap),
        counts=np.zeros((threads, sizes.vocabulary + 1 + gap), np.int32),
        order=np.zeros((threads, entries + gap), np.int32),
        weights=_floats(threads, weights + gap),
        scores=_floats(threads, 4, losses.padded(sizes.samples)),  # the fourth row is the gap
        block=_floats(threads, block_rows + gap_rows, sizes.dim),
        sums=_floats(threads, sums + gap_rows, sizes.dim),
        largest=_floats(threads, block_rows + gap),
        total=np.zeros((threads, block_rows + gap)),
        shifts=_floats(threads, shifts + gap),
    )
