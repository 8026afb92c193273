"""The fixed part of a training run: store, configuration, backend and sizes, validated before anything is written."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ncelm import __version__
from ncelm.arguments import check_bool, check_float, check_path, check_strings, check_type
from ncelm.distributed.collective import Collective, check_equal, local_world_size
from ncelm.distributed.row_exchange import INTERVAL_EXPONENT
from ncelm.errors import NcelmError
from ncelm.io import run
from ncelm.io.machine import check_memory, has_torchrun_agent
from ncelm.kernels.records import Order
from ncelm.kernels.threads import check_threads
from ncelm.noise import BigramNoise, Noise, noise_of
from ncelm.progress import check_progress
from ncelm.text.store import TokenStore, store_or_path
from ncelm.training.backend import Backend, ModelClass, backend_of, index_contexts, model_class
from ncelm.training.checkpoint import SnapshotShapes, TrainingState
from ncelm.training.config import Adam, Halve, Linear, Optimizer, Sgd, TrainConfig
from ncelm.training.options import to_flat
from ncelm.training.schedule import total_steps
from ncelm.training.validation import SAMPLING_ERROR, sample_size

# Default synchronisation interval of two workers: 12,000 words of a text of 900,000 words or more, in proportion to the
# length^1.25 of shorter texts, and 1/1000 of a text of more than twelve million words. N workers have (2/N)^1.2 of it.
SYNC_WORDS, SHORT_TEXT, SYNC_EXPONENT, SYNCS_PER_EPOCH = 12_000, 900_000, 1.25, 1000
# Intervals of text in which the synchronisation interval of two workers grows to its value. N workers have (N/2)^1.67
# times as many: the sum of the steps of many workers is too long while Adagrad's accumulators are small.
SHORT_SYNCS, SHORT_SYNCS_EXPONENT = 10, 1.67
LEAST_WARMUP = 20  # warm-up steps of each worker, if one process has as many
MAX_SYNC_GROWTH = 10  # of the interval, which grows when the learning rate decays
BLOCK_WORDS, LEAST_BLOCKS = 256, 1024  # blocks of the order of an epoch: their largest length and least number
_NO_IDS = np.zeros(0, np.int32)


def check_arguments(
    store: object,
    out: object,
    config: object,
    threads: object,
    resume: object,
    checkpoint_minutes: object,
    progress: object,
) -> None:
    """Raise an error for an invalid argument of `train`, before anything is read or written."""
    store_or_path("store", store)
    check_path("out", out)
    check_type("config", config, config is None or isinstance(config, TrainConfig), "a TrainConfig or None")
    check_threads(threads)
    check_bool("resume", resume)
    check_float("checkpoint_minutes", checkpoint_minutes, 0)
    check_progress(progress)


@dataclass(frozen=True, eq=False)
class Setup:
    """What does not change during training."""

    store: TokenStore  # of several workers, with this worker's part of the training split
    out: Path
    config: TrainConfig
    watch: tuple[str, ...]  # splits whose perplexity is recorded after each epoch
    collective: Collective
    worker_config: TrainConfig  # with this worker's seed and batch size
    backend: Backend
    model_class: ModelClass
    steps_per_epoch: int  # of each worker
    shapes: SnapshotShapes
    context_ids: np.ndarray  # index of the context of each training word, for learned log-normalizers

    @classmethod
    def create(
        cls, store: TokenStore, out: Path, config: TrainConfig, watch: Sequence[str], collective: Collective
    ) -> "Setup":
        """Return the setup of a run. Raise NcelmError if this run is impossible; nothing has been written then."""
        if config.init.run:  # the run may be resumed from another directory
            config = config.with_changes(init_from=str(Path(config.init.run).resolve()))
        backend = backend_of(config)
        watched = tuple(store.split(name).name for name in check_strings("watch", watch))
        if isinstance(config.schedule, Halve) and "valid" not in store.splits:
            raise NcelmError(
                f"{store.path} has no validation text, which `schedule` halve needs: prepare it with `valid` or "
                "`valid_sentences`, or train with `schedule` linear"
            )
        if collective.size > 1:
            _check_workers(store, config, watched, collective)
        seed = (config.seed * collective.size + collective.rank) % 2**63
        batch_size = worker_batch_size(config, store.split("train").total_tokens, collective.size)
        optimizer = worker_optimizer(config.optimizer, collective.size)
        worker_config = replace(config, seed=seed, batch_size=batch_size, optimizer=optimizer)
        tokens, kind = store.split("train").tokens, model_class(config)
        parameters = kind.shapes(config.model, len(store.vocabulary))
        memory = backend.memory_bytes(worker_config, len(store.vocabulary), tokens)
        _check_memory(memory, parameters, collective)
        context_ids, contexts = index_contexts(store, config) if config.learned_log_normalizers else (_NO_IDS, 0)
        return cls(
            store=store,
            out=out,
            config=config,
            watch=watched,
            collective=collective,
            worker_config=worker_config,
            backend=backend,
            model_class=kind,
            steps_per_epoch=backend.steps_per_epoch(worker_config, tokens),
            shapes=SnapshotShapes(
                parameters, config.optimizer, contexts, backend.carried_shapes(worker_config, tokens)
            ),
            context_ids=context_ids,
        )

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return len(self.store.vocabulary)

    @property
    def tokens(self) -> int:
        """Words of the training text, of all workers."""
        return self.store.split("train").total_tokens

    @property
    def step_words(self) -> int:
        """Words of text in a minibatch of each worker."""
        return self.worker_config.batch_size * self.collective.size

    @property
    def sync_words(self) -> int:
        """Words of text, of all workers, between two synchronisations at the initial learning rate."""
        return self.config.distributed.sync_interval or sync_words(self.tokens, self.collective.size)

    @property
    def order(self) -> Order:
        """The order of the words in an epoch: under torchrun, where the number of workers may change, in blocks."""
        seed = np.uint64(self.config.seed)
        if not has_torchrun_agent():
            return Order(seed)
        block = min(BLOCK_WORDS, 1 << max(self.tokens // LEAST_BLOCKS, 1).bit_length() - 1)
        return Order(seed, self.store.split("train").start, block)

    def next_sync(self, epoch: int, step: int, learning_rate: float) -> int:
        """Return the step of an epoch at whose end the workers synchronise next, after `step` steps.

        What a worker misses of the others' training between two synchronisations is the number of their steps times
        the size of these steps. The interval is therefore short in the first updates, which Adagrad makes long, and
        inversely proportional to the learning rate.
        """
        done, decay = epoch * self.steps_per_epoch + step, learning_rate / self.config.learning_rate
        if isinstance(self.config.schedule, Linear):
            decay *= 1.0 - done / total_steps(self.config.schedule, self.steps_per_epoch)
        growth = SHORT_SYNCS * (self.collective.size / 2) ** SHORT_SYNCS_EXPONENT * self.sync_words  # words of text
        start = min(math.sqrt(done * self.step_words / growth), 1.0)
        words = self.sync_words * start / max(decay, 1.0 / MAX_SYNC_GROWTH)
        return min(step + max(int(words) // self.step_words, 1), self.steps_of(epoch))

    def steps_per_epoch_of(self, workers: int) -> int:
        """Return the number of minibatches in an epoch of each of `workers` workers."""
        tokens = self.tokens // workers
        config = replace(self.config, batch_size=worker_batch_size(self.config, self.tokens, workers))
        return self.backend.steps_per_epoch(config, max(tokens, 1))

    def progress(self, state: TrainingState) -> float:
        """Return the number of epochs done, with a fraction, of a state of this number of workers."""
        return state.epoch + state.step / self.steps_per_epoch

    def steps_of(self, epoch: int) -> int:
        """Return the number of minibatches of an epoch of each worker; the first epoch is 0."""
        left = total_steps(self.config.schedule, self.steps_per_epoch) - epoch * self.steps_per_epoch
        return max(min(left, self.steps_per_epoch), 0)

    def words_of(self, epoch: int) -> int:
        """Return the number of words of text in an epoch, of all workers."""
        return min(self.steps_of(epoch) * self.step_words, self.tokens)

    def is_validated(self, epoch: int) -> bool:
        """Return whether the model is validated after this number of epochs: after the last one in any case."""
        due = epoch % self.config.validation.interval == 0 or epoch >= self.config.schedule.epochs
        return due and "valid" in self.store.splits

    @cached_property
    def valid_words(self) -> int:
        """Words of the validation text that are evaluated during training; 0 without such a text."""
        if "valid" not in self.store.splits:
            return 0
        tokens = self.store.split("valid").tokens
        return sample_size(self.config, self.vocabulary_size, self.words_of(0), tokens)

    @property
    def valid_tolerance(self) -> float:
        """The relative error of the perplexity of a sample of the validation text; 0 if all of it is evaluated."""
        sampled = self.valid_words < self.store.split("valid").tokens
        return SAMPLING_ERROR / math.sqrt(self.valid_words) if sampled else 0.0

    @cached_property
    def final_valid_words(self) -> int:
        """Words of the validation text that are evaluated at the end."""
        tokens = self.store.split("valid").tokens
        return max(min(self.config.validation.final_words or tokens, tokens), self.valid_words)

    def noise(self) -> Noise | BigramNoise:
        """Return the noise distribution of this worker's text."""
        return noise_distribution(self.store, self.config)


def sync_words(tokens: int, workers: int) -> int:
    """Return the default synchronisation interval, in words of text of all workers, for a text of `tokens` words."""
    of_two = max(tokens / SYNCS_PER_EPOCH, SYNC_WORDS * min(tokens / SHORT_TEXT, 1.0) ** SYNC_EXPONENT)
    return max(int(of_two * (2.0 / workers) ** INTERVAL_EXPONENT), 1)


def worker_batch_size(config: TrainConfig, tokens: int, workers: int) -> int:
    """Return the words in a minibatch of each worker: `batch_size`, or less to have one in each interval.

    Training on a short text by many workers would otherwise have few and large steps.
    """
    if workers == 1:
        return config.batch_size
    interval = config.distributed.sync_interval or sync_words(tokens, workers)
    least = config.bptt_length if config.model.architecture == "lstm" else 1
    return min(config.batch_size, max(interval // workers, least))


def worker_optimizer(optimizer: Optimizer, workers: int) -> Optimizer:
    """Return the optimizer of each worker: the steps of all of them count as warm-up steps."""
    if isinstance(optimizer, Sgd):
        return optimizer
    steps = optimizer.warmup_steps
    return replace(optimizer, warmup_steps=max(steps // workers, min(steps, LEAST_WARMUP)))


def noise_distribution(store: TokenStore, config: TrainConfig) -> Noise | BigramNoise:
    """Return the noise distribution of a configuration for the training text of a store."""
    noise: Any = config.noise
    return noise_of(store, noise.name, getattr(noise, "power", 0.0), getattr(noise, "smoothing", 0.0))


def _check_workers(store: TokenStore, config: TrainConfig, watch: tuple[str, ...], collective: Collective) -> None:
    """Raise NcelmError for options that need one process, and unless all workers have the same options."""
    if config.learned_log_normalizers:
        raise NcelmError("`log_normalizers` learned goes with one process, not with torchrun")
    if isinstance(config.optimizer, Adam):
        raise NcelmError("`optimizer` adam goes with one process, not with torchrun: choose adagrad or sgd")
    # paths may differ between machines
    options = {f"`{name}`": value for name, value in to_flat(config).items() if name != "init_from"}
    check_equal(
        collective,
        {"ncelm": f"{__version__}.{run.VERSION}", "token store": store.fingerprint, **options, "`watch`": watch},
    )


def _check_memory(needed: int, parameters: dict[str, tuple[int, ...]], collective: Collective) -> None:
    if collective.size > 1:
        # per parameter: its last synchronised value, an owner's sum, delta and last step, and four messages of int4
        needed += sum(math.prod(shape) for shape in parameters.values()) * (4 + 12 // collective.size + 2)
        needed *= local_world_size()
    remedy = "lower `dim`, `batch_size` or `noise_samples`, or prepare the text with a smaller `vocabulary_size`"
    check_memory("training", needed, remedy)
