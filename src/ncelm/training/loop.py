"""Training: epochs, learning rates, checkpoints, resuming, stopping. It prints nothing; it calls back.

The loop is deterministic: the same store, configuration and seed give the same bytes in model.safetensors, whatever the
number of threads, and however often the run was stopped, killed and resumed.
"""

import json
import math
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol, get_args

import numpy as np

from ncelm import __version__
from ncelm.distributed import collective as workers
from ncelm.distributed.collective import Collective
from ncelm.errors import DivergedError, NcelmError
from ncelm.io import array_files, run
from ncelm.io.files import atomic_folder, exclusive_lock
from ncelm.io.machine import available_cores, check_memory
from ncelm.io.metrics import Metrics
from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.models import description, evaluate
from ncelm.models.base import NO_NUMBERS, WordModel, corpus_view
from ncelm.models.log_bilinear import Architecture, LogBilinear
from ncelm.noise import Noise, noise_of
from ncelm.text.store import TokenStore
from ncelm.training.config import Halve, ImportanceSampling, Linear, Sgd, TrainConfig
from ncelm.training.options import to_flat
from ncelm.training.engine import NO_CONSTANTS, Engine, Weights, create, memory_bytes, number_contexts, sizes_of

WEIGHTS_PER_EPOCH = 20  # how often importance weights are written down, and their model looked at
PROBED_WORDS = 2000  # so many words of the validation text show whether a model has gone astray
# several workers: exchanges in a pass over the text; fewer will do for a small one, if so many words come between two
EXCHANGES, FEWEST_EXCHANGES, EXCHANGE_WORDS = 500, 90, 10_000


@dataclass(frozen=True)
class Progress:
    """Where training is: given to the callback after every group of minibatches and after every epoch."""

    epoch: int  # the first is 1
    epochs: int
    words: int  # of this epoch
    words_per_epoch: int
    loss: float  # mean over this epoch so far
    words_per_second: float
    metrics: dict[str, Any] | None  # what was written to metrics.jsonl, when an epoch has just ended


class TrainedModel(WordModel, Protocol):
    """A model whose parameters can be written down."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name, each once; not copies."""


class TrainingEngine(Protocol):
    """What runs minibatches: `ncelm.engine.Engine`, or PyTorch's."""

    @property
    def planned(self) -> int:
        """Most minibatches in one call."""

    def run(self, epoch: int, step: int, table_rates: np.ndarray, matrix_rates: np.ndarray) -> np.ndarray:
        """Train on the minibatches step, step + 1, … of an epoch, one for each rate; return the loss of each."""


# The first step of a call, how many they were, and what waits for the sum of what all workers have said of it
_Told = tuple[int, int, Callable[[], np.ndarray]]


@dataclass
class _State:
    """Where the run is, beside its parameters: kept in checkpoints."""

    epoch: int = 0  # complete epochs
    step: int = 0  # complete minibatches of the next one
    loss_sum: float = 0.0  # over those minibatches
    rate: float = 0.0  # before the linear decay
    last_perplexity: float | None = None
    best_perplexity: float | None = None
    best_epoch: int = 0
    without_improvement: int = 0
    seconds: float = 0.0  # spent in training so far, validation not counted
    seconds_at_epoch: float = 0.0  # the same when this epoch began
    metrics_bytes: int = 0
    finished: bool = False
    workers: int = 1  # that were at it
    # importance sampling, every so many steps of this epoch: first step, steps, and over these steps the sum of
    # effective sample sizes, the least, the sum of samples drawn, the largest log weight
    weights: list[list[float]] = field(default_factory=list)

    def is_possible(self, epochs: int, steps_per_epoch: int) -> bool:
        """Could a run of so many epochs be here? What a checkpoint says is not to be trusted."""
        counts = (
            self.epoch, self.step, self.best_epoch, self.without_improvement, self.metrics_bytes, self.workers,
        )  # fmt: skip
        measures = (self.loss_sum, self.rate, self.seconds, self.seconds_at_epoch)
        perplexities = [p for p in (self.last_perplexity, self.best_perplexity) if p is not None]
        return (
            all(type(count) is int and count >= 0 for count in counts)
            and all(type(number) in (int, float) and math.isfinite(number) for number in (*measures, *perplexities))
            and type(self.finished) is bool
            and self.epoch <= epochs
            and self.step < steps_per_epoch
            and self.best_epoch <= self.epoch
            and (self.finished or self.epoch < epochs)
            and all(len(line) == 6 and all(math.isfinite(number) for number in line) for line in self.weights)
        )


def train(
    store: TokenStore | Path | str,
    out: Path | str,
    config: TrainConfig | None = None,
    *,
    threads: int | None = None,
    resume: bool = False,
    checkpoint_minutes: float = 5.0,
    watch: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Train a model on a token store and leave everything in the folder `out`; return the last line of its metrics.

    Options come from `config` (see `recipes`) with `changes` on top: train(…, dim=50). With `resume` a run that was
    stopped goes on from its last checkpoint to the same result, bit for bit; if there is none, it starts.
    Ctrl-C writes a checkpoint before KeyboardInterrupt is raised. Perplexities of the splits in `watch` are written to
    the metrics after each epoch, for curves; nothing is decided by them.
    """
    store = TokenStore.open(store)
    config = (config or TrainConfig()).with_changes(**changes)
    if not 0 <= checkpoint_minutes < math.inf:
        raise NcelmError(f"--checkpoint-minutes is {checkpoint_minutes}: give a number that is not negative")
    if threads is None:
        threads = max(available_cores() // workers.local_world_size(), 1)
    team, out = Team(threads), Path(out)  # before anything is written: the number of threads may be senseless
    together = workers.current()
    training = _Training(store, out, config, checkpoint_minutes, watch, progress, together)
    with ExitStack() as alone:
        try:
            training.begin(resume, alone)
            return training.run(team)
        except DivergedError:  # a result too
            raise
        except BaseException:
            if training.created and not (out / run.CHECKPOINT).exists():  # nothing was learned: stand in nobody's way
                shutil.rmtree(out, ignore_errors=True)
            raise


class _Training:
    """One run in progress."""

    def __init__(
        self,
        store: TokenStore,
        out: Path,
        config: TrainConfig,
        checkpoint_minutes: float,
        watch: Sequence[str],
        progress: Callable[[Progress], None] | None,
        together: Collective,
    ) -> None:
        if config.init.run:  # wherever it is resumed from
            config = config.with_changes(init_from=str(Path(config.init.run).resolve()))
        self.store, self.out, self.config, self.workers = store, out, config, together
        self.created = False  # is the run's folder ours, and new?
        self.checkpoint_seconds, self.progress = 60.0 * checkpoint_minutes, progress
        self.tokens = store.split("train").tokens
        self.watch = [store.split(name).name for name in watch]  # better to miss one now than after an epoch
        if isinstance(config.schedule, Halve) and "valid" not in store.splits:
            raise NcelmError(
                f"{store.path} has no validation text, which --schedule halve needs: prepare it with --valid or "
                "--valid-sentences, or train with --schedule linear"
            )
        if together.size > 1:
            self._agree()
        # what this worker trains on: alone, it is everything
        self.own_store, self.own_config = together.shard(store), self._own_config()
        own_tokens = self.own_store.split("train").tokens
        vocabulary = store.vocabulary
        self.sizes = sizes_of(self.own_config, len(vocabulary), own_tokens)
        self.model_class = _model_class(config)
        self.steps_per_epoch, self.carried_shapes = -(-own_tokens // self.own_config.batch_size), {}
        if config.backend == "torch":
            from ncelm.torch.engine import carried_shapes, steps_per_epoch

            self.steps_per_epoch = steps_per_epoch(self.own_config, own_tokens)
            self.carried_shapes = carried_shapes(self.own_config, own_tokens)
        self._check_memory()
        self.noise = noise_of(
            self.own_store,
            config.noise.name,
            getattr(config.noise, "power", 0.0),
            getattr(config.noise, "smoothing", 0.0),
        )
        self.context_numbers, self.contexts = NO_NUMBERS, 0
        if config.learned_log_normalizers:
            context, after = config.model.context, config.model.context_after
            self.context_numbers, self.contexts = number_contexts(store, context, after)
        self.state = _State(rate=config.learning_rate, workers=together.size)
        self.metrics = Metrics(out / run.METRICS)
        self.model: TrainedModel
        self.last_record: dict[str, Any] = {}
        self.untold: list[float] = []  # losses of the last calls
        self.last_weights: list[tuple[int, Weights]] = []  # of the last few minibatches, by step

    def _agree(self) -> None:
        """Several workers: the same of everything that matters."""
        if self.config.learned_log_normalizers:
            raise NcelmError("`log_normalizers` learned goes with one process, not with torchrun")
        options = {**self.config.to_dict(), "out": str(self.out), "watch": self.watch}
        version, options_text = f"{__version__} {run.VERSION}", json.dumps(options, sort_keys=True)
        self.workers.check_equal(
            {"ncelm": version, "token store": self.store.fingerprint, "set of options": options_text}
        )

    def _own_config(self) -> TrainConfig:
        """A worker's minibatches are as large as those of one process, every `size`-th of them its own; its random
        numbers are other ones.
        """
        size = self.workers.size
        return replace(self.config, seed=(self.config.seed * size + self.workers.rank) % 2**63)

    def _check_memory(self) -> None:
        needed = _memory_bytes(self.own_config, self.sizes.vocabulary, self.own_store.split("train").tokens)
        if self.workers.size > 1:
            shapes = self.model_class.shapes(self.config.model, self.sizes.vocabulary).values()
            # as far as they have been told, what has not been, and messages, a byte for each number
            needed += sum(math.prod(shape) for shape in shapes) * (4 + 4 + 1 + self.workers.size)
            needed *= workers.local_world_size()
        remedy = "lower --dim, --batch-size or --noise-samples, or prepare the text with a smaller --vocabulary-size"
        check_memory("training", needed, remedy)

    # -- beginning and resuming ---------------------------------------------------------------------------------------

    def begin(self, resume: bool, alone: ExitStack) -> None:
        """Make the run's folder, or take up what is in it; no other process may train there until `alone` is closed.

        Of several workers the first does, and tells the others.
        """
        began = 0.0
        try:
            if self.workers.rank == 0:
                self._begin(resume, alone)
                began = 1.0
        finally:
            (began,) = self.workers.broadcast(np.array([began]))
        if not began:
            raise NcelmError("worker 0 could not begin: see what it says")
        if self.workers.rank > 0:
            self._initialise()
        for arrays in (self.model.arrays(), self.squares):  # not merged: both go by the same names
            self.workers.broadcast_arrays(arrays)
        if self.workers.size > 1:
            self._hand_out_state()
            every = self._steps_between_exchanges() * self._step_words
            state = {"accumulator": self.squares}
            self.workers.register(self.model.arrays(), state, self.store.vocabulary.counts, every)

    def _hand_out_state(self) -> None:
        """Where the first worker is, all are."""
        state = self.state
        names = [name for name, value in vars(state).items() if type(value) in (int, float, bool, type(None))]
        mine = [math.nan if (value := getattr(state, name)) is None else float(value) for name in names]
        for name, number in zip(names, self.workers.broadcast(np.array(mine)).tolist(), strict=True):
            kind = type(getattr(_State(), name))
            setattr(state, name, None if math.isnan(number) else float(number) if kind is type(None) else kind(number))

    def _begin(self, resume: bool, alone: ExitStack) -> None:
        # workers that are started again because one has died go on, whether that was asked for or not
        resume = (resume or workers.restarted()) and self.out.exists()
        begun = resume and (self.out / run.CHECKPOINT).exists()
        vectors = self._given_vectors() if self.config.init.run and not begun else None
        if resume:
            self._check_same_run()
        else:
            self._create()
            self.created = True
        busy = f"another process is training {self.out}: wait for it, or choose another --out"
        alone.enter_context(exclusive_lock(self.out / run.LOCK, busy))
        if resume:
            self._clean_up()
            records = self.metrics.read()
            if records and "diverged" in records[-1]:  # as it would again
                raise DivergedError(self._divergence(records[-1]))
        if begun:
            self._restore()
        else:
            self._initialise()
            if vectors is not None:
                self._start_from(vectors)
            self.metrics.truncate(0)

    def _given_vectors(self) -> np.ndarray:
        """The word vectors to start from, (V, d), each of length 1 or 0."""
        from ncelm.language_model import load_scorer

        path, dim = Path(self.config.init.run), self.config.model.dim
        if self.config.model.architecture == "maximum-entropy":
            raise NcelmError("a maximum-entropy model has no word vectors to start from: leave --start-from out")
        given = load_scorer(path)
        if given.vocabulary.digest != self.store.vocabulary.digest:
            raise NcelmError(
                f"{path} has another vocabulary than {self.store.path}: start from a run of the same store"
            )
        vectors = np.array(given.vectors(), np.float32)
        if vectors.shape[1] < dim:
            raise NcelmError(
                f"{path} has vectors of {vectors.shape[1]} numbers, and --dim is {dim}: "
                f"train it with --dim {dim}, or this with a smaller one"
            )
        vectors = vectors[:, :dim]
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)  # (V, 1)
        return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)

    def _start_from(self, vectors: np.ndarray) -> None:
        """These take the place of random vectors, but for words that have none."""
        known = np.flatnonzero(vectors.any(axis=1))
        for name, table in self.model.arrays().items():
            # (the output table of a feed-forward model may be of another width)
            if name in ("context_vectors", "target_vectors") and table.shape[1] == vectors.shape[1]:
                table[known] = vectors[known]

    def _create(self) -> None:
        if (self.out / run.CONFIG).exists():
            raise NcelmError(f"{self.out} exists already: go on with --resume, or choose another --out")
        with atomic_folder(self.out) as folder:
            origin = description.Origin.of(self.store)
            description.write_description(folder, self.config.model.architecture, origin, config=self.config.to_dict())

    def _check_same_run(self) -> None:
        """Refuse to resume with another store or other options: the result would be neither run's."""
        former = run.read_config(self.out)
        if former["kind"] not in get_args(Architecture):
            raise NcelmError(f"{self.out} holds a model of another kind ({former['kind']}): choose another --out")
        if not isinstance(former.get("store"), dict) or not isinstance(former.get("config"), dict):
            raise NcelmError(f"{self.out / run.CONFIG} is damaged: train again, with another --out")
        if former["store"].get("fingerprint") != self.store.fingerprint:
            raise NcelmError(f"{self.out} was trained on another token store: resume it with the store it began with")
        # an option that an earlier version did not have was as it is by default
        was, now = to_flat(TrainConfig.from_dict(former["config"])), to_flat(self.config)
        if self.workers.size == 1:
            del now["sync_interval"]  # it is nothing to who is alone
        for name in now:
            if was.get(name) != now[name]:
                raise NcelmError(
                    f"{self.out} was begun with `{name}` {was.get(name)}, not {now[name]}: "
                    "resume it with the same options, or choose another --out"
                )

    def _clean_up(self) -> None:
        """Remove what a killed process left half-written."""
        for partial in self.out.glob(".*.partial"):
            partial.unlink(missing_ok=True)

    def _initialise(self) -> None:
        # the model starts as the unigram model: biases are log frequencies, every word seen at least once
        unigram = Noise.from_counts(self.store.vocabulary.counts).probabilities
        self.model = self.model_class.initialise(self.config.model, unigram, self.config.seed, self.config.init.std)
        adagrad, start = self.sizes.adagrad, np.float32(getattr(self.config.optimizer, "initial_accumulator", 0.0))
        self.squares = {
            name: np.full((len(array) * adagrad, *array.shape[1:]), start)
            for name, array in self.model.arrays().items()
        }
        self.constants = records.Constants(np.zeros(self.contexts, np.float32), np.full(self.contexts * adagrad, start))
        self.carried = {name: np.zeros(shape, np.float32) for name, shape in self.carried_shapes.items()}

    def _restore(self) -> None:
        shapes = self.model_class.shapes(self.config.model, self.sizes.vocabulary)
        squares = {
            f"squares.{name}": shape if self.sizes.adagrad else (0, *shape[1:]) for name, shape in shapes.items()
        }
        constants: dict[str, tuple[int, ...]] = {}
        if self.contexts:
            constants = {"constants": (self.contexts,), "squares.constants": (self.contexts * self.sizes.adagrad,)}
        arrays, header = array_files.read_arrays(
            self.out / run.CHECKPOINT, shapes | squares | constants, self.carried_shapes
        )
        try:
            self.state = _State(**header["state"])
            missing = set(_State.__dataclass_fields__) - set(header["state"])
            others = self.state.workers if self.state.step > 0 else self.workers.size
            possible = (
                missing <= {"weights", "workers"}
                and type(others) is int
                and (
                    others != self.workers.size
                    or self.state.is_possible(self.config.schedule.epochs, self.steps_per_epoch)
                )
            )
        except (KeyError, TypeError):
            possible, others = False, 0
        if possible and others != self.workers.size:  # each has a part of the text, and has read so much of it
            raise NcelmError(f"{self.out} was stopped by {others} workers in mid-epoch: resume it with as many")
        if not possible:
            raise NcelmError(f"{self.out / run.CHECKPOINT} is not a checkpoint: train again, with another --out")
        self.model = self.model_class.from_arrays(self.config.model, {name: arrays[name].copy() for name in shapes})
        self.squares = {name: arrays[f"squares.{name}"].copy() for name in shapes}
        self.state.workers = self.workers.size
        self._restore_carried(arrays)
        self.constants = NO_CONSTANTS
        if self.contexts:
            self.constants = records.Constants(arrays["constants"].copy(), arrays["squares.constants"].copy())
        self.metrics.truncate(self.state.metrics_bytes)
        if self.state.best_epoch and not (self.out / run.MODEL).exists():
            raise NcelmError(f"{self.out / run.MODEL} is gone: restore it from a copy, or train with another --out")
        self.store.vocabulary.save(self.out / run.VOCABULARY)  # whatever has become of it

    def _restore_carried(self, arrays: dict[str, np.ndarray]) -> None:
        """States that go on within an epoch; several workers, of whom only the first writes, begin anew with them."""
        self.carried = {name: np.zeros(shape, np.float32) for name, shape in self.carried_shapes.items()}
        if self.state.step == 0 or self.workers.size > 1:
            return
        for name, array in self.carried.items():
            found = arrays.get(name, np.zeros(0))
            if found.shape != array.shape or found.dtype != np.float32 or not array_files.all_bounded(found):
                raise NcelmError(f"{self.out / run.CHECKPOINT} is damaged in {name}: train again, with another --out")
            array[:] = found

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self, team: Team) -> dict[str, Any]:
        if self.state.finished:
            return self._last_record()
        with team:
            self._train(self._engine(team), team)
        return self._last_record()

    def _engine(self, team: Team) -> TrainingEngine:
        if self.config.backend == "torch":
            from ncelm.torch.engine import TorchEngine
            from ncelm.torch.models import NeuralModel

            assert isinstance(self.model, NeuralModel)
            config = self.own_config
            squares = {"accumulator": self.squares}
            return TorchEngine(self.model, squares, self.noise, self.own_store, config, self.carried, team)
        assert isinstance(self.model, LogBilinear)
        state = (
            {"accumulator": {**self.squares, "log_normalizers": self.constants.squares}} if self.sizes.adagrad else {}
        )
        return create(
            self.model,
            state,
            self.noise,
            self.own_store,
            self.own_config,
            team,
            self.constants.values,
            self.context_numbers,
        )

    def _last_record(self) -> dict[str, Any]:
        if self.workers.rank > 0:  # who may not even see the file
            return self.last_record
        records = self.metrics.read()
        if not records:
            raise NcelmError(f"{self.metrics.path} is gone or empty, but training is finished: {self.out} can be used")
        return records[-1]

    def _train(self, engine: TrainingEngine, team: Team) -> None:
        with _deferred_interrupt() as interrupted:
            self.last_checkpoint = time.monotonic()
            while not self.state.finished:
                self._train_epoch(engine, team, interrupted)
                self._end_epoch(team)
                (stop,) = self.workers.all_reduce(np.array([float(interrupted.is_set())]))
                if stop and not self.state.finished:
                    self._interrupted()

    def _train_epoch(self, engine: TrainingEngine, team: Team, interrupted: threading.Event) -> None:
        state, steps = self.state, self.steps_per_epoch
        between = self._steps_between_exchanges()
        told: deque[_Told] = deque()  # what has been told to the other workers, and not yet heard of them
        calls = 0
        while state.step < steps:
            n = min(engine.planned, steps - state.step)
            if self.workers.size > 1:
                n = min(n, between - state.step % between)
            began = time.perf_counter()
            rates = self._rates(state.epoch * steps + state.step + np.arange(n), steps)
            losses = engine.run(state.epoch, state.step, rates, rates * self.config.matrix_lr_scale)
            state.step += n
            last = state.step == steps
            self.untold.extend(losses.tolist())
            calls += 1
            if last or calls % self.workers.reduce_interval == 0:
                due = self.workers.rank == 0 and time.monotonic() - self.last_checkpoint > self.checkpoint_seconds
                self._tell(told, interrupted.is_set(), due)
            if last or state.step % between == 0:
                self.workers.synchronize(full=last)
            state.seconds += time.perf_counter() - began
            if isinstance(self.config.loss, ImportanceSampling) and isinstance(engine, Engine):
                self._note_weights(engine, losses)
            # of several workers nobody waits for what the others have to say: it is heard when they tell the next
            stop, save = self._hear(told, 0 if last else self.workers.reduce_delay)
            if isinstance(self.config.loss, ImportanceSampling):
                self._look_astray(team, n)
            self._report(None)
            if (stop or save) and not last:  # there is a checkpoint at the end of an epoch anyway
                self._tell(told, False, False)
                self._hear(told, 0)
                self.workers.synchronize(full=True)
                self._checkpoint()
                if stop:
                    self._interrupted()

    def _tell(self, told: "deque[_Told]", stop: bool, save: bool) -> None:
        """Begin to add up over all workers the losses of the last calls; does this one want to stop, or to save?"""
        n = len(self.untold)
        told.append((self.state.step - n, n, self.workers.all_reduce_async(np.array([*self.untold, stop, save]))))
        self.untold = []

    def _steps_between_exchanges(self) -> int:
        few = min(EXCHANGE_WORDS, self.tokens // FEWEST_EXCHANGES)
        words = self.config.distributed.sync_interval or max(self.tokens // EXCHANGES, few)
        return max(words // self._step_words, 1)

    @property
    def _step_words(self) -> int:
        """Words of text in a minibatch of each worker."""
        return self.config.batch_size * self.workers.size

    def _hear(self, told: "deque[_Told]", late: int) -> tuple[bool, bool]:
        """Add up the losses of all workers, but for the last `late` calls; does anybody want to stop, or to save?"""
        state, wishes = self.state, np.zeros(2)
        while len(told) > late:
            step, n, arrived = told.popleft()
            began = time.perf_counter()
            losses, wanted = np.split(arrived(), [n])
            state.seconds += time.perf_counter() - began
            wishes += wanted
            for loss in losses:  # one by one: the sum must not depend on how many ran together
                state.loss_sum += float(loss)
            if not math.isfinite(state.loss_sum):
                state.step = step + int(np.flatnonzero(~np.isfinite(losses))[0])
                self._diverged("the training loss is not a number any more")
        stop, save = wishes > 0
        return bool(stop), bool(save)

    def _rates(self, steps_done: np.ndarray, steps_per_epoch: int) -> np.ndarray:
        """The learning rate of each update."""
        rates = np.full(len(steps_done), float(self.state.rate))
        if isinstance(self.config.schedule, Linear):
            rates *= 1.0 - steps_done / (steps_per_epoch * self.config.schedule.epochs)
        if not isinstance(self.config.optimizer, Sgd):
            # Adagrad's first steps are as long as its rate, in every coordinate at once, whatever the gradient:
            # taken in full they throw a small model off.
            rates *= np.minimum((steps_done + 1) / self.config.optimizer.warmup_steps, 1.0)
        return rates

    def _end_epoch(self, team: Team) -> None:
        state, config = self.state, self.config
        words, seconds = self.tokens, state.seconds - state.seconds_at_epoch
        record: dict[str, Any] = {
            "epoch": state.epoch + 1,
            "loss": state.loss_sum / words,
            "learning_rate": state.rate,
            "words": words,
            "seconds": state.seconds,
            "words_per_second": words / seconds if seconds else None,
        }
        if self.contexts:
            c = self.constants.values
            record |= {"contexts": self.contexts, "constants_mean": float(c.mean()), "constants_std": float(c.std())}
        if state.weights:
            record |= _weights_record(state.weights)
            state.weights = []
        if not all(array_files.all_bounded(array) for array in self.model.arrays().values()):
            self._diverged("some parameters are enormous or not a number any more")
        best = True
        if self.workers.size > 1:
            record |= {"workers": self.workers.size, "bytes_sent": self.workers.bytes_sent}
        if "valid" in self.store.splits:
            record |= self._evaluate("valid", team)
            best = self._judge(record["valid_perplexity"])
        for name in self.watch:
            record |= {f"{name}_perplexity": self._evaluate(name, team)[f"{name}_perplexity"]}
        record["best_epoch"] = state.best_epoch if not best else state.epoch + 1
        state.epoch, state.step, state.loss_sum, state.seconds_at_epoch = (
            state.epoch + 1,
            0,
            0.0,
            state.seconds,
        )
        if best:
            state.best_epoch = state.epoch
        if best and self.workers.rank == 0:
            array_files.write_arrays(
                self.out / run.MODEL, self.model.arrays(), {"kind": self.config.model.architecture}
            )
        out_of_patience = isinstance(config.schedule, Halve) and state.without_improvement >= config.schedule.patience
        state.finished = out_of_patience or state.epoch == config.schedule.epochs
        record["finished"] = state.finished
        self.last_record = record
        if self.workers.rank == 0:
            self.metrics.append(record)
        state.metrics_bytes = self.metrics.size
        self._checkpoint()
        self._report(record)

    def _evaluate(self, name: str, team: Team) -> dict[str, float]:
        """How well the model predicts a split: the first worker looks, and tells the others."""
        found = [0.0, 0.0, 0.0]
        if self.workers.rank == 0:
            result = evaluate.evaluate_split(self.model, self.store, name, team)
            found = [result.perplexity, result.log_z_mean, result.log_z_std]
        found = self.workers.broadcast(np.array(found)).tolist()
        return dict(zip((f"{name}_perplexity", f"{name}_log_z_mean", f"{name}_log_z_std"), found, strict=True))

    def _judge(self, perplexity: float) -> bool:
        """Follow validation perplexity: halve the rates, count epochs without improvement; is this the best model?"""
        state, config = self.state, self.config
        # a model that overfits may well be worse than if all words were alike, but not absurdly so
        if not perplexity < 100.0 * self.sizes.vocabulary:  # not so for NaN either
            self._diverged(f"validation perplexity is {perplexity:.6g}")
        enough = 1.0 - (config.schedule.min_improvement if isinstance(config.schedule, Halve) else 0.0)
        stuck = state.last_perplexity is not None and perplexity > state.last_perplexity * enough
        if stuck and isinstance(config.schedule, Halve):  # the paper's rule, section 4
            state.rate /= 2.0
        improved = state.best_perplexity is None or perplexity < state.best_perplexity * enough
        state.without_improvement = 0 if improved else state.without_improvement + 1
        best = state.best_perplexity is None or perplexity < state.best_perplexity
        state.best_perplexity = perplexity if best else state.best_perplexity
        state.last_perplexity = perplexity
        return best

    def _interrupted(self) -> NoReturn:
        raise KeyboardInterrupt(f"stopped by Ctrl-C; a checkpoint is in {self.out}: go on with --resume")

    def _note_weights(self, engine: Engine, losses: np.ndarray) -> None:
        """Importance sampling: keep account of the weights of the minibatches that have just run."""
        state, every = self.state, self._steps_between_looks()
        for row in range(int(np.isfinite(losses).cumprod().sum())):  # those before anything went wrong
            step, weights = state.step - len(losses) + row, engine.weights(row)
            if len(state.weights) <= step // every:
                least, largest = weights.least_effective_samples, weights.largest_log_weight
                state.weights.append([step, 0, 0.0, least, 0.0, largest])
            line = state.weights[-1]
            line[1:] = [
                line[1] + 1,
                line[2] + weights.effective_samples,
                min(line[3], weights.least_effective_samples),
                line[4] + weights.samples,
                max(line[5], weights.largest_log_weight),
            ]
            self.last_weights = [*self.last_weights[-4:], (step, weights)]

    def _steps_between_looks(self) -> int:
        return -(-self.steps_per_epoch // WEIGHTS_PER_EPOCH)

    def _look_astray(self, team: Team, n: int) -> None:
        """Importance sampling: see now and then whether the model is still one."""
        state, every = self.state, self._steps_between_looks()
        if state.step // every == (state.step - n) // every:
            return
        perplexity = math.nan
        if self.workers.rank == 0:  # between two exchanges others may see it otherwise
            split = self.store.split("valid" if "valid" in self.store.splits else "train")
            corpus = corpus_view(split, self.store)
            scores, log_z = self.model.score_positions(corpus, 0, min(split.tokens, PROBED_WORDS), team)
            with np.errstate(over="ignore"):
                perplexity = float(np.exp(np.mean(log_z - scores)))
        (perplexity,) = self.workers.broadcast(np.array([perplexity])).tolist()
        if not perplexity < self.sizes.vocabulary:  # not so for NaN either
            self._diverged(
                f"perplexity is {perplexity:.4g}, worse than if all {self.sizes.vocabulary:,} words were alike"
            )

    def _diverged(self, what: str) -> NoReturn:
        """Write down what happened, as the last line of the metrics, and end the run."""
        state = self.state
        record: dict[str, Any] = {
            "epoch": state.epoch + 1,
            "step": state.step,
            "diverged": what,
            "seconds": state.seconds,
            "best_epoch": state.best_epoch,
            "finished": True,
        }
        if state.weights:
            record |= _weights_record(state.weights)
        if self.last_weights:
            spell = [*self.store.vocabulary.words, "<s>"]  # the out-of-sentence word comes last
            record["last_weights"] = [
                {
                    "step": step,
                    "effective_samples": weights.effective_samples,
                    "largest_log_weight": weights.largest_log_weight,
                    "share": weights.share,
                    "word": spell[weights.word],
                    "context": [spell[word] for word in weights.context],
                }
                for step, weights in self.last_weights
            ]
        if self.workers.rank == 0:
            self.metrics.append(record)
        raise DivergedError(self._divergence(record))

    def _divergence(self, record: dict[str, Any]) -> str:
        """A line for people about a run that diverged."""
        kept = (
            f"the best model before that (epoch {record['best_epoch']}) is kept in {self.out}"
            if record["best_epoch"]
            else "there is no earlier model to keep"
        )
        return (
            f"training diverged in epoch {record['epoch']}, step {record['step']}: {record['diverged']}; {kept}; see "
            f"{self.metrics.path}, and train again with another --out and a lower --learning-rate than "
            f"{self.config.learning_rate:g}"
        )

    def _checkpoint(self) -> None:
        if self.workers.rank > 0:
            return
        arrays = self.model.arrays() | {f"squares.{name}": array for name, array in self.squares.items()}
        if self.contexts:
            arrays |= {"constants": self.constants.values, "squares.constants": self.constants.squares}
        if self.state.step > 0 and self.workers.size == 1:
            arrays |= self.carried
        array_files.write_arrays(self.out / run.CHECKPOINT, arrays, {"state": asdict(self.state)})
        self.last_checkpoint = time.monotonic()

    def _report(self, record: dict[str, Any] | None) -> None:
        if self.progress is None:
            return
        state = self.state
        words = self.tokens if record else min(state.step * self._step_words, self.tokens)
        seconds = state.seconds - state.seconds_at_epoch
        self.progress(
            Progress(
                epoch=record["epoch"] if record else state.epoch + 1,
                epochs=self.config.schedule.epochs,
                words=words,
                words_per_epoch=self.tokens,
                loss=record["loss"] if record else state.loss_sum / words,
                words_per_second=record["words_per_second"] if record else words / max(seconds, 1e-9),
                metrics=record,
            )
        )


def _weights_record(lines: list[list[float]]) -> dict[str, Any]:
    """The importance weights of an epoch so far: summed up, and as a trace."""
    steps = sum(line[1] for line in lines)
    return {
        "effective_samples": sum(line[2] for line in lines) / steps,
        "least_effective_samples": min(line[3] for line in lines),
        "samples": sum(line[4] for line in lines) / steps,
        "largest_log_weight": max(line[5] for line in lines),
        "weights": [
            [first, effective / n, least, samples / n, largest]
            for first, n, effective, least, samples, largest in lines
        ],
    }


def _model_class(config: TrainConfig) -> Any:
    """The class that makes such a model and gives the shapes of its parameters."""
    if config.backend == "compiled":
        return LogBilinear
    from ncelm.torch.models import ARCHITECTURES

    return ARCHITECTURES[config.model.architecture]


def _memory_bytes(config: TrainConfig, vocabulary_size: int, tokens: int) -> int:
    if config.backend == "compiled":
        return memory_bytes(config, vocabulary_size, tokens)
    from ncelm.torch import engine

    return engine.memory_bytes(config, vocabulary_size, tokens)


@contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """Let Ctrl-C set a flag, which is looked at after every group of minibatches, instead of tearing threads apart."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def note(number: int, frame: Any) -> None:
        interrupted.set()

    former = signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, former)
