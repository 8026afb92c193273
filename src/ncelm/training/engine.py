"""The workbench of training: the buffers that the compiled kernels share, and one call to run many minibatches."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ncelm.errors import NcelmError
from ncelm.kernels import records
from ncelm.kernels import steps as kernels
from ncelm.kernels.threads import Team
from ncelm.models.base import corpus_view
from ncelm.models.log_bilinear import LogBilinear
from ncelm.noise import BigramNoise, Noise
from ncelm.text.store import TokenStore
from ncelm.training.backend import ImportanceWeights
from ncelm.training.config import NCE, Adagrad, ContrastiveFamily, ImportanceSampling, Ranking, Sgd, TrainConfig

PLAN_BYTES = 32 << 20  # minibatches are planned ahead in groups that take about so much memory …
PLANNED_WORDS = 16_000  # … and have at most so many words, so that Ctrl-C is answered soon …
MOST_PLANNED = 128  # … in at most so many minibatches


NO_NUMBERS = np.zeros(0, np.int32)
NO_CONSTANTS = records.Constants(np.zeros(0, np.float32), np.zeros(0, np.float32))


def number_contexts(store: TokenStore, context: int, context_after: int) -> tuple[np.ndarray, int]:
    """The number of each training word's context, (N,) int32, equal contexts having equal numbers; and how many."""
    corpus = corpus_view(store.split("train"), store, context)
    numbers = np.empty(corpus.ids.size, np.int32)
    slots = np.full(1 << (2 * corpus.ids.size - 1).bit_length(), -1, np.int32)  # at most half of them are taken
    return numbers, int(kernels.number_contexts(corpus, context + context_after, slots, numbers))


@dataclass(frozen=True)
class Sizes:
    """The numbers that decide how much memory a training run takes."""

    vocabulary: int  # V
    dim: int  # d
    positions: int  # c
    diagonal: bool
    shared: bool
    batch: int  # B
    samples: int  # k + 1, or 1 for maximum likelihood and for shared noise
    exact: bool  # maximum likelihood: a score for every word
    adagrad: bool
    shared_samples: int = 0  # K: noise words that a minibatch shares
    bigram_words: int = 0  # N, for bigram noise
    numbered_words: int = 0  # N, for learned constants

    @property
    def group_blocks(self) -> int:
        """Most blocks of unique context words in one minibatch, each with its part of the matrices' gradient."""
        if self.diagonal:
            return -(-min(self.batch * self.positions, self.vocabulary + 1) // kernels.GROUP_BLOCK)
        return -(-min(self.batch, self.vocabulary + 1) // kernels.POSITION_BLOCK)

    @property
    def target_groups(self) -> int:
        """Most unique target words in one minibatch."""
        entries = self.batch * self.samples + self.shared_samples
        return self.vocabulary if self.exact else min(self.vocabulary, entries)

    @property
    def coefficients(self) -> int:
        """Derivatives by scores in one minibatch."""
        return self.batch * (self.vocabulary if self.exact else self.samples + self.shared_samples)

    @property
    def plan_bytes(self) -> int:
        """One planned minibatch."""
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
        """Of all C_i together."""
        c, d = self.positions, self.dim
        return (c, d) if self.diagonal else (c, d, d)

    @property
    def memory_bytes(self) -> int:
        """What training will take beside the Python process: parameters, their sums of squares, buffers."""
        tables = 1 if self.shared else 2
        parameters = 4 * (self.vocabulary * (tables * self.dim + 1) + int(np.prod(self.matrix_shape)))
        shared = 4 * self.dim * (self.target_groups + self.batch * self.positions) if self.shared else 0
        vectors = 4 * self.batch * self.dim * (2 + (0 if self.diagonal else 2 * self.positions))
        coefficients = 4 * self.coefficients
        noise = 8 * self.shared_samples * (self.dim + 1) + 20 * self.bigram_words
        # at worst every context is another; their numbers are found by a hash table that is at most 16 N bytes
        constants = self.numbered_words * (16 + 4 + (16 if self.adagrad else 8))
        partial = 4 * self.group_blocks * int(np.prod(self.matrix_shape))
        # parameters twice: a checkpoint is put together in memory before it is written
        return (
            parameters * (4 if self.adagrad else 2)
            + shared
            + vectors
            + coefficients
            + noise
            + constants
            + partial
            + self.planned * self.plan_bytes
        )


def check(config: TrainConfig) -> None:
    """Raise NcelmError for a loss or an optimizer that this engine does not implement."""
    if isinstance(config.loss, Ranking):
        raise NcelmError(
            "`loss` ranking is not implemented in `engine` compiled: choose `engine` torch or another loss"
        )
    if isinstance(config.loss, NCE) and config.loss.log_z_penalty:
        raise NcelmError(
            "`log_z_penalty` is not implemented in `engine` compiled: choose `engine` torch, or leave it out"
        )
    if not isinstance(config.optimizer, Sgd | Adagrad):
        raise NcelmError(
            f"`optimizer` {config.optimizer.name} is not implemented in `engine` compiled: choose sgd or adagrad"
        )


def sizes_of(config: TrainConfig, vocabulary_size: int, tokens: int) -> Sizes:
    """Return the sizes that determine the memory of training on this number of tokens."""
    loss, exact = config.loss, not config.sampled
    samples = getattr(loss, "samples", 0)
    if isinstance(loss, ImportanceSampling) and loss.adaptive:
        samples = loss.max_samples
    shared = getattr(loss, "shared_noise", False)
    return Sizes(
        vocabulary=vocabulary_size,
        dim=config.model.dim,
        positions=config.model.positions,
        diagonal=config.model.matrices == "diagonal",
        shared=config.model.tied_embeddings,
        batch=config.batch_size,
        samples=1 if exact or shared else samples + 1,
        exact=exact,
        adagrad=isinstance(config.optimizer, Adagrad),
        shared_samples=samples if shared else 0,
        bigram_words=tokens if config.noise.name == "bigram" and not exact else 0,
        numbered_words=tokens if config.learned_log_normalizers else 0,
    )


def method_of(config: TrainConfig) -> records.Method:
    """Return the loss and dropout as the compiled code takes them."""
    loss = config.loss
    member = kernels.MEMBERS.index(loss.member if isinstance(loss, ContrastiveFamily) else "nce")
    effective = 0.0
    if isinstance(loss, ImportanceSampling):
        member, effective = kernels.IMPORTANCE_SAMPLING, float(loss.min_effective_samples)
    samples = getattr(loss, "samples", 1)
    return records.Method(member, samples, effective, float(config.regularization.dropout))


def steps_per_epoch(config: TrainConfig, tokens: int) -> int:
    """Return the number of minibatches in an epoch."""
    return -(-tokens // config.batch_size)


def memory_bytes(config: TrainConfig, vocabulary_size: int, tokens: int) -> int:
    """Return the approximate memory of training: parameters, optimizer state, buffers."""
    return sizes_of(config, vocabulary_size, tokens).memory_bytes


def carried_shapes(config: TrainConfig, tokens: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of arrays that a minibatch hands to the next one: none."""
    return {}


def create(
    model: LogBilinear,
    optimizer_state: dict[str, dict[str, np.ndarray]],
    noise: Noise | BigramNoise,
    store: TokenStore,
    config: TrainConfig,
    team: Team,
    log_normalizers: np.ndarray = NO_CONSTANTS.values,
    context_ids: np.ndarray = NO_NUMBERS,
    carried: dict[str, np.ndarray] | None = None,
) -> "Engine":
    """Return an engine for the training split of a store.

    Args:
        model: trained in place.
        optimizer_state: {} or {"accumulator": {parameter name: array}}; updated in place.
        noise: noise distribution of the store.
        store: token store.
        config: complete configuration.
        team: threads.
        log_normalizers: learned log-normalizers c_h, (contexts,); trained in place.
        context_ids: index of each training word's context, (N,).
        carried: unused.
    """
    check(config)
    accumulator = optimizer_state.get("accumulator", {})

    def squares(name: str, array: np.ndarray) -> np.ndarray:
        return accumulator.get(name, np.zeros((0, *array.shape[1:]), np.float32))

    context = squares("context_vectors", model.context_vectors)
    # a tied table has one accumulator, whose last row is the out-of-sentence word's
    tied = model.config.tied_embeddings
    target = context[: len(store.vocabulary)] if tied else squares("target_vectors", model.target_vectors)
    return Engine(
        model,
        records.Parameters(context, target, squares("biases", model.biases), squares("matrices", model.matrices)),
        noise,
        store,
        sizes_of(config, len(store.vocabulary), store.split("train").tokens),
        method_of(config),
        config.seed,
        config.regularization.weight_decay,
        team,
        records.Constants(log_normalizers, squares("log_normalizers", log_normalizers)),
        context_ids,
        config.regularization.weight_decay_per_epoch,
    )


class Engine:
    """Runs minibatches of one training split through the kernels, with all threads."""

    def __init__(
        self,
        model: LogBilinear,
        squares: records.Parameters,
        noise: Noise | BigramNoise,
        store: TokenStore,
        sizes: Sizes,
        method: records.Method,
        seed: int,
        penalty: float,
        team: Team,
        constants: records.Constants = NO_CONSTANTS,
        context_numbers: np.ndarray = NO_NUMBERS,
        prior: float = 0.0,
    ) -> None:
        self.sizes, self.method, self.seed, self.team = sizes, method, seed, team
        self.corpus = corpus_view(store.split("train"), store, model.config.context, context_numbers)
        self.parameters, self.squares, self.constants = model.parameters(), squares, constants
        self.noise = noise.table(sizes.shared_samples or max(sizes.samples - 1, 1))
        touches = _touches(store.vocabulary.counts, noise.probabilities, sizes)
        contexts, targets = ((penalty + prior / each).astype(np.float32) for each in touches)
        self.penalties = records.Penalties(np.float32(penalty), contexts, targets)
        self.plan, self.work = _plan(sizes), _work(sizes)
        self.kernel: Any = kernels.sampled_steps
        if sizes.exact or sizes.shared_samples:
            self.kernel = kernels.ml_steps if sizes.exact else kernels.shared_noise_steps
        # compile (once a machine) before anything is timed, in this thread, so that Ctrl-C is heard
        nothing = np.empty(0)
        arguments = self._arguments(0, 0, nothing, nothing)
        self.kernel(0, 1, np.zeros(records.SYNC_STRIDE, np.int64), *arguments)

    @property
    def planned(self) -> int:
        """Most minibatches in one call."""
        return self.sizes.planned

    @property
    def steps_per_epoch(self) -> int:
        """Minibatches that cover the training split once; the last may be smaller."""
        return -(-self.corpus.ids.size // self.sizes.batch)

    def run(self, epoch: int, step: int, table_rates: np.ndarray, matrix_rates: np.ndarray) -> np.ndarray:
        """Train on the minibatches step, step + 1, … of an epoch, one for each rate; return the loss of each."""
        steps = len(table_rates)
        if steps > self.sizes.planned:  # compiled code would write beyond its buffers
            raise ValueError(f"{steps} minibatches at once, but there is room for {self.sizes.planned}")
        self.work.losses[:] = 0.0
        self.work.weights[:] = (0.0, np.inf, 0.0, -np.inf, 0.0, 0.0, 0.0)
        arguments = self._arguments(epoch, step, table_rates, matrix_rates)
        self.team.run(self.kernel, 1 + kernels.PHASES * steps, *arguments)
        return self.work.losses[:steps].sum(axis=1)

    def weights(self, row: int) -> ImportanceWeights:
        """The importance weights of the row-th minibatch of the last call."""
        blocks, size = self.work.weights[row], int(self.plan.sizes[row])
        log_weight, share, word, example = blocks[blocks[:, 3].argmax(), 3:]
        return ImportanceWeights(
            effective_samples=float(blocks[:, 0].sum()) / size,
            least_effective_samples=float(blocks[:, 1].min()),
            samples=float(blocks[:, 2].sum()) / size,
            largest_log_weight=float(log_weight),
            share=float(share),
            word=int(word),
            context=self.plan.contexts[row, int(example)].tolist(),
        )

    def _arguments(self, epoch: int, step: int, table_rates: np.ndarray, matrix_rates: np.ndarray) -> tuple[Any, ...]:
        """What the kernels take, after thread, threads and sync."""
        return (
            self.corpus,
            self.noise,
            self.method,
            np.uint64(self.seed),
            epoch,
            epoch * self.steps_per_epoch + step,
            len(table_rates),
            self.sizes.batch,
            step * self.sizes.batch,
            self.plan,
            self.parameters,
            self.squares,
            self.constants,
            self.work,
            records.Rates(table_rates.astype(np.float32), matrix_rates.astype(np.float32), self.penalties),
            self.sizes.shared,
        )


def _touches(counts: np.ndarray, noise: np.ndarray, sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """In about how many minibatches of an epoch each context row, (V + 1,), and each target row, (V,), is updated."""
    tokens = max(int(counts.sum()), 1)
    steps, frequency = max(tokens / sizes.batch, 1.0), np.clip(counts / tokens, 1.0 / tokens, 0.5)

    def seen(log_missed: np.ndarray) -> np.ndarray:
        return steps * -np.expm1(log_missed)

    noise_draws = sizes.shared_samples or sizes.batch * (sizes.samples - 1)
    missed = sizes.batch * np.log1p(-frequency)
    targets = seen(missed + noise_draws * np.log1p(-np.minimum(noise, 0.5)))
    # what lies outside the sentence is in every minibatch, and so is every word for exact maximum likelihood
    contexts = np.append(seen(sizes.positions * missed), steps)
    return contexts, np.full(counts.size, steps) if sizes.exact else targets


def _plan(sizes: Sizes) -> records.Plan:
    """Empty plans for a group of minibatches."""
    G, B, c, samples = sizes.planned, sizes.batch, sizes.positions, sizes.samples
    rows = B + sizes.shared_samples

    def integers(*shape: int) -> np.ndarray:
        return np.zeros((G, *shape), np.int32)

    words = 0 if sizes.diagonal else B
    # with shared tables a row is needed as a context's too, so it has to wait
    singles = samples > 1 and not sizes.shared
    targets = 0 if sizes.exact else sizes.target_groups
    entries = 0 if sizes.exact else rows * samples
    return records.Plan(
        sizes=np.zeros(G, np.int64),
        contexts=integers(B, c),
        words=integers(rows, samples),
        distinct=np.zeros(G, np.int64),
        draws=np.zeros((G, sizes.shared_samples), np.float32),
        keys=np.zeros((G, B), np.uint64),
        log_k_noise=np.zeros((G, B, samples) if sizes.bigram_words else (0, 0, 0), np.float32),
        constants=np.zeros((G, B) if sizes.numbered_words else (0, 0), np.int32),
        position_groups=integers(c),
        position_words=integers(c, words),
        position_offsets=integers(c, words + 1),
        position_rows=integers(c, words),
        position_slots=integers(words, c),
        context_groups=integers(),
        context_words=integers(B * c),
        context_offsets=integers(B * c + 1),
        context_order=integers(B * c),
        context_rows=integers(B * c if sizes.diagonal else 0),
        singles=integers(B * samples if singles else 0),
        single_offsets=integers(B + 1 if singles else 0),
        target_groups=integers(),
        target_words=integers(targets),
        target_offsets=integers(targets + 1),
        target_order=integers(entries),
        target_rows=integers(entries),
    )


def _work(sizes: Sizes) -> records.Work:
    """Buffers for the intermediate results of one minibatch."""
    B, c, d = sizes.batch, sizes.positions, sizes.dim

    def floats(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    full = 0 if sizes.diagonal else c
    example_blocks = -(-B // min(kernels.EXAMPLE_BLOCK, kernels.ML_EXAMPLE_BLOCK, kernels.SHARED_EXAMPLE_BLOCK))
    shared_contexts = B * c if sizes.shared and sizes.diagonal else 0
    return records.Work(
        predicted=floats(B, d),
        gradients=floats(B, d),
        coefficients=floats(sizes.coefficients),
        gathered=floats(full, B, d),
        projected=floats(full, B, d),
        transposed=floats(full, d, d),
        matrix_gradients=floats(sizes.group_blocks, *sizes.matrix_shape),
        target_gradients=floats(sizes.target_groups if sizes.shared else 0, d),
        context_gradients=floats(shared_contexts, d),
        losses=np.zeros((sizes.planned, example_blocks)),
        weights=np.zeros((sizes.planned, example_blocks, 7)),
        constant_gradients=floats(B if sizes.numbered_words else 0),
        noise_rows=floats(sizes.shared_samples, d),
        noise_shifts=floats(sizes.shared_samples),
        noise_gradients=floats(sizes.shared_samples, d),
        noise_bias_gradients=floats(sizes.shared_samples),
    )
