"""The workbench of training: the buffers that the compiled kernels share, and one call to run many minibatches."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ncelm import kernels
from ncelm.corpus import Split, TokenStore
from ncelm.model import LogBilinear
from ncelm.noise import Noise
from ncelm.threads import Team

PLAN_BYTES = 32 << 20  # minibatches are planned ahead in groups that take about so much memory …
MOST_PLANNED = 16  # … and a group is at most so many, so that Ctrl-C is answered soon


def corpus_view(split: Split, store: TokenStore, context: int) -> kernels.Corpus:
    """What the kernels need to know of a split."""
    return kernels.Corpus(split.ids, context, store.boundary == "sentence", store.vocabulary.end_id, store.pad_id)


@dataclass(frozen=True)
class Sizes:
    """The numbers that decide how much memory a training run takes."""

    vocabulary: int  # V
    dim: int  # d
    positions: int  # c
    diagonal: bool
    shared: bool
    batch: int  # B
    samples: int  # k + 1, or 1 for maximum likelihood
    exact: bool  # maximum likelihood: a score for every word
    adagrad: bool

    @property
    def group_blocks(self) -> int:
        """Most blocks of unique context words in one minibatch, each with its part of the matrices' gradient."""
        if self.diagonal:
            return -(-min(self.batch * self.positions, self.vocabulary + 1) // kernels.GROUP_BLOCK)
        return -(-min(self.batch, self.vocabulary + 1) // kernels.POSITION_BLOCK)

    @property
    def target_groups(self) -> int:
        """Most unique target words in one minibatch."""
        return self.vocabulary if self.exact else min(self.vocabulary, self.batch * self.samples)

    @property
    def plan_bytes(self) -> int:
        """One planned minibatch."""
        return 4 * self.batch * (3 * self.samples + 8 * self.positions) + 8 * self.target_groups

    @property
    def planned(self) -> int:
        """Minibatches planned together: G."""
        most = 2 if self.exact else MOST_PLANNED  # those of maximum likelihood take long enough by themselves
        return int(np.clip(PLAN_BYTES // self.plan_bytes, 1, most))

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
        coefficients = 4 * self.batch * (self.vocabulary if self.exact else self.samples)
        partial = 4 * self.group_blocks * int(np.prod(self.matrix_shape))
        # parameters twice: a checkpoint is put together in memory before it is written
        return (
            parameters * (4 if self.adagrad else 2)
            + shared
            + vectors
            + coefficients
            + partial
            + self.planned * self.plan_bytes
        )


class Engine:
    """Runs minibatches of one training split through the kernels, with all threads."""

    def __init__(
        self,
        model: LogBilinear,
        squares: kernels.Parameters,
        noise: Noise,
        store: TokenStore,
        sizes: Sizes,
        seed: int,
        penalty: float,
        team: Team,
    ) -> None:
        self.sizes, self.seed, self.penalty, self.team = sizes, seed, penalty, team
        self.corpus = corpus_view(store.split("train"), store, model.config.context)
        self.parameters, self.squares = model.parameters(), squares
        k = max(sizes.samples - 1, 1)
        self.noise = kernels.NoiseTable(
            noise.threshold, noise.alias, (noise.log_probabilities + np.log(k)).astype(np.float32)
        )
        self.plan, self.work = _plan(sizes), _work(sizes)
        self.kernel: Any = kernels.ml_steps if sizes.exact else kernels.nce_steps
        # compile (once a machine) before anything is timed, in this thread, so that Ctrl-C is heard
        self.kernel(0, 1, np.zeros(kernels.SYNC_STRIDE, np.int64), *self._arguments(0, 0, np.empty(0), np.empty(0)))

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
        arguments = self._arguments(epoch, step, table_rates, matrix_rates)
        self.team.run(self.kernel, 1 + kernels.PHASES * steps, *arguments)
        return self.work.losses[:steps].sum(axis=1)

    def _arguments(self, epoch: int, step: int, table_rates: np.ndarray, matrix_rates: np.ndarray) -> tuple[Any, ...]:
        """What the kernels take, after thread, threads and sync."""
        return (
            self.corpus,
            self.noise,
            np.uint64(self.seed),
            epoch,
            epoch * self.steps_per_epoch + step,
            len(table_rates),
            self.sizes.batch,
            step * self.sizes.batch,
            self.plan,
            self.parameters,
            self.squares,
            self.work,
            kernels.Rates(table_rates.astype(np.float32), matrix_rates.astype(np.float32), np.float32(self.penalty)),
            self.sizes.shared,
        )


def _plan(sizes: Sizes) -> kernels.Plan:
    """Empty plans for a group of minibatches."""
    G, B, c, samples = sizes.planned, sizes.batch, sizes.positions, sizes.samples

    def integers(*shape: int) -> np.ndarray:
        return np.zeros((G, *shape), np.int32)

    words = 0 if sizes.diagonal else B
    targets = 0 if sizes.exact else sizes.target_groups
    entries = 0 if sizes.exact else B * samples
    return kernels.Plan(
        sizes=np.zeros(G, np.int64),
        contexts=integers(B, c),
        words=integers(B, samples),
        position_groups=integers(c),
        position_words=integers(c, words),
        position_offsets=integers(c, words + 1),
        position_rows=integers(c, words),
        position_slots=integers(c, words),
        context_groups=integers(),
        context_words=integers(B * c),
        context_offsets=integers(B * c + 1),
        context_order=integers(B * c),
        target_groups=integers(),
        target_words=integers(targets),
        target_offsets=integers(targets + 1),
        target_order=integers(entries),
        target_rows=integers(entries),
    )


def _work(sizes: Sizes) -> kernels.Work:
    """Buffers for the intermediate results of one minibatch."""
    B, c, d = sizes.batch, sizes.positions, sizes.dim

    def floats(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    full = 0 if sizes.diagonal else c
    shared_contexts = B * c if sizes.shared and sizes.diagonal else 0
    return kernels.Work(
        predicted=floats(B, d),
        gradients=floats(B, d),
        coefficients=floats(B * (sizes.vocabulary if sizes.exact else sizes.samples)),
        gathered=floats(full, B, d),
        projected=floats(full, B, d),
        transposed=floats(full, d, d),
        matrix_gradients=floats(sizes.group_blocks, *sizes.matrix_shape),
        target_gradients=floats(sizes.target_groups if sizes.shared else 0, d),
        context_gradients=floats(shared_contexts, d),
        losses=np.zeros((sizes.planned, -(-B // min(kernels.EXAMPLE_BLOCK, kernels.ML_EXAMPLE_BLOCK)))),
    )
