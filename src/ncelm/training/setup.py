"""The fixed part of a training run: store, configuration, backend and sizes, validated before anything is written."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ncelm import __version__
from ncelm.arguments import check_bool, check_float, check_path, check_strings, check_type
from ncelm.distributed.collective import Collective, local_world_size
from ncelm.errors import NcelmError
from ncelm.io import run
from ncelm.io.machine import check_memory
from ncelm.kernels.threads import check_threads
from ncelm.noise import BigramNoise, Noise, noise_of
from ncelm.progress import check_progress
from ncelm.text.store import TokenStore, store_or_path
from ncelm.training.backend import Backend, ModelClass, backend_of, index_contexts, model_class
from ncelm.training.checkpoint import SnapshotShapes
from ncelm.training.config import Adam, Halve, TrainConfig
from ncelm.training.schedule import total_steps
from ncelm.training.validation import SAMPLING_ERROR, sample_size

# Default synchronisation interval: 1/500 of the text; in small texts 10,000 words, but not over 1/90 of the text
SYNCS_PER_EPOCH, MIN_SYNCS_PER_EPOCH, MIN_SYNC_WORDS = 500, 90, 10_000
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

    store: TokenStore
    out: Path
    config: TrainConfig
    watch: tuple[str, ...]  # splits whose perplexity is recorded after each epoch
    collective: Collective
    worker_store: TokenStore  # with this worker's part of the training split; in a single process, all of it
    worker_config: TrainConfig  # with this worker's seed
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
            _check_workers(store, out, config, watched, collective)
        worker_store = collective.shard(store)
        seed = (config.seed * collective.size + collective.rank) % 2**63
        worker_config = replace(config, seed=seed)
        tokens, kind = worker_store.split("train").tokens, model_class(config)
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
            worker_store=worker_store,
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
        return self.store.split("train").tokens

    @property
    def step_words(self) -> int:
        """Words of text in a minibatch of each worker."""
        return self.config.batch_size * self.collective.size

    @property
    def sync_steps(self) -> int:
        """Minibatches between two synchronisations of the workers."""
        least = min(MIN_SYNC_WORDS, self.tokens // MIN_SYNCS_PER_EPOCH)
        words = self.config.distributed.sync_interval or max(self.tokens // SYNCS_PER_EPOCH, least)
        return max(words // self.step_words, 1)

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
        return noise_distribution(self.worker_store, self.config)


def noise_distribution(store: TokenStore, config: TrainConfig) -> Noise | BigramNoise:
    """Return the noise distribution of a configuration for the training text of a store."""
    noise: Any = config.noise
    return noise_of(store, noise.name, getattr(noise, "power", 0.0), getattr(noise, "smoothing", 0.0))


def _check_workers(
    store: TokenStore, out: Path, config: TrainConfig, watch: tuple[str, ...], collective: Collective
) -> None:
    """Raise NcelmError for options that need one process, and unless all workers have the same options."""
    if config.learned_log_normalizers:
        raise NcelmError("`log_normalizers` learned goes with one process, not with torchrun")
    if isinstance(config.optimizer, Adam):
        raise NcelmError("`optimizer` adam goes with one process, not with torchrun: choose adagrad or sgd")
    options = {**config.to_dict(), "out": str(out), "watch": watch}
    collective.check_equal(
        {
            "ncelm": f"{__version__} {run.VERSION}",
            "token store": store.fingerprint,
            "set of options": json.dumps(options, sort_keys=True),
        }
    )


def _check_memory(needed: int, parameters: dict[str, tuple[int, ...]], collective: Collective) -> None:
    if collective.size > 1:
        # per parameter: its last synchronised value, the remainder of its quantisation, and an int8 of each message
        needed += sum(math.prod(shape) for shape in parameters.values()) * (4 + 4 + 1 + collective.size)
        needed *= local_world_size()
    remedy = "lower `dim`, `batch_size` or `noise_samples`, or prepare the text with a smaller `vocabulary_size`"
    check_memory("training", needed, remedy)
