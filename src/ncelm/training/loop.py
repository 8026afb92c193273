"""Training: epochs, validation, checkpoints, interruption. It prints nothing; progress is reported by a callback.

The same store, configuration and seed give the same bytes in model.safetensors, for any number of threads and any
sequence of interruptions and resumes.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ncelm.arguments import check_float
from ncelm.distributed import collective, membership
from ncelm.distributed.collective import errors_on_all
from ncelm.errors import ArgumentError, DivergedError, NcelmError
from ncelm.io import array_files, run, signals
from ncelm.io.machine import available_cores
from ncelm.io.metrics import Metrics
from ncelm.kernels.threads import Team
from ncelm.models.evaluate import EvaluationSums
from ncelm.models.fit_normalizer import fit_after_training
from ncelm.progress import training_shown
from ncelm.text.store import TokenStore
from ncelm.training import diagnostics, recipes
from ncelm.training.adaptive import Choice, choose
from ncelm.training.backend import Engine, TrainedModel, memory_bytes
from ncelm.training.checkpoint import Snapshot, former_config, write_checkpoint, write_model
from ncelm.training.config import ImportanceSampling, TrainConfig
from ncelm.training.diagnostics import Divergence, WeightTrace
from ncelm.training.reduction import LossReduction
from ncelm.training.schedule import ScheduleState, after_validation, is_finished, learning_rates
from ncelm.training.setup import Setup, check_arguments
from ncelm.training.start import start
from ncelm.training.tracking import check_track, track_training
from ncelm.training.validation import evaluate_sample

__all__ = ["Progress", "memory_bytes", "train"]

WORDS_FOR_NORMALIZER = 20_000_000  # of training, all epochs together, from which on a normalizer is fitted at the end


@dataclass(frozen=True)
class Progress:
    """The progress of training, after every call of the engine and after every epoch."""

    epoch: int  # the first is 1
    epochs: float
    words: int  # of this epoch
    words_per_epoch: int
    loss: float  # mean over this epoch so far
    words_per_second: float
    metrics: dict[str, Any] | None  # the record in metrics.jsonl, at the end of an epoch


def train(
    store: TokenStore | Path | str,
    out: Path | str,
    config: TrainConfig | None = None,
    *,
    recipe: str | None = None,
    minutes: float | None = None,
    threads: int | None = None,
    resume: bool = False,
    checkpoint_minutes: float = 5.0,
    peer_timeout: float = collective.PEER_TIMEOUT,
    watch: Sequence[str] = (),
    progress: bool | Callable[[Progress], None] | None = True,
    track: str | Sequence[str] = (),
    **changes: Any,
) -> dict[str, Any]:
    """Train a model on a token store, write it to the directory `out`, and return the last record of its metrics.

    Args:
        store: token store, or its path.
        out: run directory. It must not exist, unless `resume` is set.
        config: configuration. Without it and without `recipe`, it is chosen from the size of the text and `minutes`
            (`ncelm.training.adaptive`).
        recipe: instead of `config`, the name of a recipe (`ncelm.training.recipes`), such as "paper/ptb-fast".
        minutes: time for training and validation. Without it, the model is trained as long as it improves much.
        threads: number of threads; all cores by default. The result does not depend on it.
        resume: continue from the last checkpoint, to the same result, or start if there is none.
        checkpoint_minutes: time between checkpoints within an epoch. There is one after each epoch in any case.
        peer_timeout: with torchrun, seconds after which a worker that does not answer ends training on all machines.
        watch: splits whose perplexity is recorded after each epoch. Training does not depend on it.
        progress: True for a bar or lines in a log, False for none (see `ncelm.progress`), or a function that is called
            after every call of the engine and after every epoch.
        track: one or several of "tensorboard", "wandb" and "trackio", to which metrics are logged
            (`ncelm.training.tracking`).
        changes: options by flat name (`ncelm.training.options`): train(…, dim=50, loss="ml").

    Ctrl-C and SIGTERM write a checkpoint before KeyboardInterrupt or its subclass `ncelm.errors.Terminated` is raised.
    """
    check_arguments(store, out, config, threads, resume, checkpoint_minutes, progress)
    check_float("peer_timeout", peer_timeout, 1.0, 1e6)
    trackers = check_track(track)
    group = collective.current(peer_timeout)
    store = group.open_store(store)
    if threads is None:
        threads = max(available_cores() // collective.local_world_size(), 1)
    adaptive = config is None and recipe is None
    choice = configure(store, out, config, recipe=recipe, minutes=minutes, threads=threads, resume=resume, **changes)
    config = choice.config
    team = Team(threads)  # validates the number of threads, before anything is written
    setup = Setup.create(store, Path(out), config, watch, group)
    with ExitStack() as stack:
        snapshot = start(setup, resume, stack)
        introduction = choice.explanation if adaptive else ""
        shown = stack.enter_context(training_shown(progress, introduction))
        report = stack.enter_context(track_training(trackers, setup, snapshot.state, shown))
        result = Loop(setup, snapshot, team, 60.0 * checkpoint_minutes, report).run()
        _fit_normalizer(setup, team)
        return result


def _fit_normalizer(setup: Setup, team: Team) -> None:
    """Fit a normalizer to a log-bilinear model, if that takes a small part of the time of training.

    Rank 0 does, to its part of the text.
    """
    words = setup.tokens * setup.config.schedule.epochs
    log_bilinear = setup.config.model.architecture == "log-bilinear"
    if setup.collective.rank == 0 and log_bilinear and words >= WORDS_FOR_NORMALIZER:
        with team:
            fit_after_training(setup.out, setup.store, team)


def configure(
    store: TokenStore,
    out: Path | str,
    config: TrainConfig | None = None,
    *,
    recipe: str | None = None,
    minutes: float | None = None,
    threads: int | None = None,
    resume: bool = False,
    **changes: Any,
) -> Choice:
    """Return the configuration that `train` uses for these arguments, and a line that explains it.

    A run that is resumed keeps the options it was started with, unless `config` or `recipe` is given.
    """
    if recipe is not None and config is not None:
        raise ArgumentError("`recipe` is the name of a configuration: give either `recipe` or `config`, not both")
    if config is None and recipe is None:
        former = former_config(Path(out)) if resume else None
        if former is not None:
            return Choice(former.with_changes(**changes), "")
        if minutes is not None and collective.started_by_torchrun():
            raise ArgumentError("`minutes` goes with one process: leave it out with torchrun, and give `epochs`")
        return choose(store, minutes=minutes, threads=threads, **changes)
    if minutes is not None:
        raise ArgumentError("`minutes` goes with adaptive defaults: leave `recipe` and `config` out, or give `epochs`")
    config = (config or recipes.recipe(recipe or "")).with_changes(**changes)
    return Choice(config, f"recipe {recipe}" if recipe else "as given")


class _Evaluated(NamedTuple):
    """The result of a model on held-out text."""

    perplexity: float
    log_z_mean: float
    log_z_std: float
    seconds: float


class Loop:
    """The epoch loop of one run."""

    def __init__(
        self,
        setup: Setup,
        snapshot: Snapshot,
        team: Team,
        checkpoint_seconds: float,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.setup, self.snapshot, self.team = setup, snapshot, team
        self.state = snapshot.state
        self.metrics = Metrics(setup.out / run.METRICS)
        self.checkpoint_seconds, self.progress = checkpoint_seconds, progress
        self.last_checkpoint = time.monotonic()
        self.last_record: dict[str, Any] = {}
        self.reduction = LossReduction(setup.collective)
        self.importance = isinstance(setup.config.loss, ImportanceSampling)
        self.trace = WeightTrace(diagnostics.summary_interval(setup.steps_per_epoch), self.state.weights)
        self.evaluated = False

    def run(self) -> dict[str, Any]:
        """Train until the schedule ends; return the last record of the metrics."""
        if not self.state.finished:
            with self.team:
                engine = self.setup.backend.create(
                    self.snapshot.model,
                    self.snapshot.optimizer_state,
                    self.setup.noise(),
                    self.setup.store,
                    self.setup.worker_config,
                    self.team,
                    self.snapshot.log_normalizers,
                    self.setup.context_ids,
                    self.snapshot.carried,
                    self.setup.order,
                )
                self._run_epochs(engine)
        self.setup.collective.gather("")  # no worker is started again after this
        membership.forget(self.setup.out)
        if self.setup.collective.rank > 0:  # other workers may not even see the file
            return self.last_record
        records = self.metrics.read()
        if not records:
            raise NcelmError(
                f"{self.metrics.path} is missing or empty, but training is finished: {self.setup.out} can be used"
            )
        return records[-1]

    def _run_epochs(self, engine: Engine) -> None:
        with signals.deferred() as request:
            self.last_checkpoint = time.monotonic()
            while not self.state.finished:
                self._run_epoch(engine, request)
                self._end_epoch(request)
                (stop,) = self.setup.collective.all_reduce(np.array([request.weight]))
                if stop and not self.state.finished:
                    self._stop(request, stop)

    def _run_epoch(self, engine: Engine, request: signals.StopRequest) -> None:
        """Run the remaining minibatches of an epoch."""
        setup, state, group = self.setup, self.state, self.setup.collective
        config, steps, calls = setup.config, setup.steps_of(state.epoch), 0
        sync = steps if group.size == 1 else state.step
        while state.step < steps:
            if state.step == sync:
                sync = setup.next_sync(state.epoch, state.step, state.schedule.learning_rate)
            n = min(engine.planned, sync - state.step)
            began = time.perf_counter()
            updates_done = state.epoch * setup.steps_per_epoch + state.step + np.arange(n)
            rate = state.schedule.learning_rate
            optimizer = setup.worker_config.optimizer
            rates = learning_rates(config.schedule, optimizer, rate, updates_done, setup.steps_per_epoch)
            losses = engine.run(state.epoch, state.step, rates, rates * config.matrix_lr_scale)
            state.step += n
            calls += 1
            last = state.step == steps
            self.reduction.add(losses)
            if last or calls % group.reduce_interval == 0:
                due = group.rank == 0 and time.monotonic() - self.last_checkpoint > self.checkpoint_seconds
                self.reduction.start(state.step, request.weight, due)
            if state.step == sync:
                self._synchronize(full=last)
            state.seconds += time.perf_counter() - began
            if self.importance:
                self._trace_weights(engine, losses)
            # workers do not wait for the all-reduces that they have just started
            stop, save = self._add_losses(0 if last else group.reduce_delay)
            if self.importance:
                self._probe(n)
            self._report(None)
            if (stop or save) and not last:  # an epoch ends with a checkpoint in any case
                self.reduction.start(state.step, 0.0, False)
                self._add_losses(0)
                self._synchronize(full=True)
                self._checkpoint()
                sync = state.step
                if stop:
                    self._stop(request, stop)

    def _synchronize(self, full: bool) -> None:
        """Exchange row deltas. A number that is not finite ends the run on all workers."""
        if problem := self.setup.collective.synchronize(full):
            self._diverged(problem)

    def _add_losses(self, in_flight: int) -> tuple[float, bool]:
        """Add reduced losses, except for the last `in_flight`; return the requests to stop and whether to save."""
        state, stop, save = self.state, 0.0, False
        began = time.perf_counter()
        for reduced in self.reduction.finish(in_flight):
            stop, save = stop + reduced.stop, save or reduced.save
            for loss in reduced.losses:  # one by one: the sum must not depend on the number of losses in a call
                state.loss_sum += float(loss)
            if not math.isfinite(state.loss_sum):
                state.step = reduced.first_step + int(np.flatnonzero(~np.isfinite(reduced.losses))[0])
                self._diverged("the training loss is not finite")
        state.seconds += time.perf_counter() - began
        return stop, save

    # -- diagnostics -------------------------------------------------------------------------------------------------

    def _trace_weights(self, engine: Engine, losses: np.ndarray) -> None:
        """Record the importance weights of the minibatches of the last call, up to the first infinite loss."""
        for row in range(int(np.isfinite(losses).cumprod().sum())):
            if (weights := engine.weights(row)) is not None:
                self.trace.add(self.state.step - len(losses) + row, weights)

    def _probe(self, n: int) -> None:
        """Probe the model for divergence if the last n minibatches completed an interval of the trace."""
        setup, step, interval = self.setup, self.state.step, self.trace.interval
        if step // interval == (step - n) // interval:
            return
        perplexity = math.nan
        if setup.collective.rank == 0:  # between synchronisations the models of workers differ
            perplexity = diagnostics.probe(self.snapshot.model, setup.store, self.team)
        (perplexity,) = setup.collective.broadcast(np.array([perplexity])).tolist()
        if problem := diagnostics.probe_problem(perplexity, setup.vocabulary_size):
            self._diverged(problem)

    def _diverged(self, reason: str) -> NoReturn:
        """Append the divergence to the metrics, and end the run."""
        state, setup = self.state, self.setup
        divergence = Divergence(state.epoch + 1, state.step, reason, state.seconds, state.best_epoch)
        if setup.collective.rank == 0:
            weights = self.trace.record() | self.trace.last_record(setup.store.vocabulary)
            self.metrics.append(divergence.record() | weights)
        raise DivergedError(divergence.message(self.metrics.path, setup.config.learning_rate))

    # -- end of an epoch ---------------------------------------------------------------------------------------------

    def _end_epoch(self, request: signals.StopRequest) -> None:
        """Validate, write the model if it is the best, the metrics and a checkpoint."""
        state, setup, group = self.state, self.setup, self.setup.collective
        parameters, seconds, words = self.snapshot.model.arrays(), state.epoch_seconds, setup.words_of(state.epoch)
        record: dict[str, Any] = {
            "epoch": state.epoch + 1,
            "loss": state.loss_sum / words,
            "learning_rate": state.schedule.learning_rate,
            "words": words,
            "seconds": state.seconds,
            "words_per_second": words / seconds if seconds > 1e-9 else None,  # a checkpoint is not trusted
        }
        if (c := self.snapshot.log_normalizers).size:
            mean, std = float(c.mean()), float(c.std())
            record |= {"contexts": c.size, "log_normalizers_mean": mean, "log_normalizers_std": std}
        record |= self.trace.record()
        if not all(array_files.all_bounded(array) for array in parameters.values()):
            self._diverged("some parameters are not finite or too large")
        if group.size > 1:
            record |= {"workers": group.size, "bytes_sent": group.bytes_sent}
        schedule, best, epoch = state.schedule, True, state.epoch + 1
        if setup.is_validated(epoch):
            record |= self._validate(request)
            if problem := diagnostics.validation_problem(record["valid_perplexity"], setup.vocabulary_size):
                self._diverged(problem)
            schedule, best = after_validation(
                schedule, setup.config.schedule, record["valid_perplexity"], setup.valid_tolerance
            )
        elif "valid" in setup.store.splits:
            best = False
        for name in setup.watch:
            record |= {f"{name}_perplexity": self._evaluate(self.snapshot.model, name, request).perplexity}
        finished = is_finished(schedule, setup.config.schedule, epoch)
        if finished and "valid" in setup.store.splits:
            result, best = self._validate_result(schedule, best, request)
            record |= result
        # From here on nothing is interrupted: the state changes.
        self.trace.clear()
        state.schedule, state.epoch, state.finished = schedule, epoch, finished
        state.step, state.loss_sum, state.seconds_at_epoch = 0, 0.0, state.seconds
        if best:
            state.best_epoch = state.epoch
            if group.rank == 0:
                write_model(setup.out / run.MODEL, parameters, setup.config.model.architecture)
        record |= {"best_epoch": state.best_epoch, "finished": finished}
        self.last_record = record
        if group.rank == 0:
            self.metrics.append(record)
            state.metrics_bytes, state.metrics_sha256 = self.metrics.size, self.metrics.digest()
        self._checkpoint()
        self._report(record)

    def _validate(self, request: signals.StopRequest) -> dict[str, Any]:
        """Return the fields of a record on the sample of the validation text."""
        found = self._evaluate(self.snapshot.model, "valid", request, self.setup.valid_words)
        self.state.validation_seconds += found.seconds
        return {
            "valid_perplexity": found.perplexity,
            "valid_log_z_mean": found.log_z_mean,
            "valid_log_z_std": found.log_z_std,
            "valid_words": self.setup.valid_words,
            "validation_seconds": self.state.validation_seconds,
        }

    def _validate_result(
        self, schedule: ScheduleState, best: bool, request: signals.StopRequest
    ) -> tuple[dict[str, Any], bool]:
        """Return the fields of the last record, on the whole validation text, and whether the last model is the best.

        A sample may have selected the wrong epoch: the last model is compared with the selected one on all of the text.
        """
        setup, words = self.setup, self.setup.final_valid_words
        if setup.valid_words == words:
            return {"best_valid_perplexity": schedule.best_perplexity, "best_valid_words": words}, best
        found = self._evaluate(self.snapshot.model, "valid", request, words)
        seconds = found.seconds
        if not best:
            selected = self._evaluate(self._best_model(), "valid", request, words)
            seconds += selected.seconds
            best = found.perplexity < selected.perplexity
            found = found if best else selected
        fields = {"best_valid_perplexity": found.perplexity, "best_valid_words": words, "evaluation_seconds": seconds}
        return fields, best

    def _best_model(self) -> TrainedModel:
        """Return the model with the lowest validation perplexity so far. It is in the run directory of rank 0."""
        setup, group = self.setup, self.setup.collective
        arrays = {name: np.empty(shape, np.float32) for name, shape in setup.shapes.parameters.items()}
        with errors_on_all(group):
            if group.rank == 0:
                found = array_files.read_parameters(setup.out / run.MODEL, setup.shapes.parameters)
                arrays = {name: np.array(found[name]) for name in arrays}  # in the order of all workers
        group.broadcast_arrays(arrays)
        return setup.model_class.from_arrays(setup.config.model, arrays)

    def _evaluate(
        self, model: TrainedModel, name: str, request: signals.StopRequest, words: int | None = None
    ) -> "_Evaluated":
        """Return the result of a model on a split, or on a sample of it. Each worker evaluates its share.

        A request to stop ends the evaluation. A resumed run starts with it.
        """
        began, group, store = time.perf_counter(), self.setup.collective, self.setup.store
        sums, stop = EvaluationSums(), 0.0
        with errors_on_all(group):
            try:
                with request.immediate():
                    if not self.evaluated:  # the first call may compile a kernel, which is not validation time
                        evaluate_sample(model, store, name, 1, self.team)
                        self.evaluated, began = True, time.perf_counter()
                    words = words or store.split(name).tokens
                    sums = evaluate_sample(model, store, name, words, self.team, group.rank, group.size)
            except KeyboardInterrupt:
                stop = request.weight
        total = group.all_reduce(np.append(sums.as_array(), stop))
        if stopped := float(total[-1]):
            self._checkpoint()
            self._stop(request, stopped)
        result = EvaluationSums.from_array(total[:-1]).result()
        return _Evaluated(result.perplexity, result.log_z_mean, result.log_z_std, time.perf_counter() - began)

    def _checkpoint(self) -> None:
        """Write a checkpoint. Rank 0 does; each worker checks the parts of the store that it has read."""
        group, store, out = self.setup.collective, self.setup.store, self.setup.out
        changed: NcelmError | None = None
        with errors_on_all(group):
            try:
                store.check_unchanged()
            except NcelmError as error:
                if store.is_mapped:  # training may have seen the change
                    raise
                changed = error
        with errors_on_all(group):
            if group.rank == 0:
                with_carried = self.state.step > 0 and group.size == 1
                write_checkpoint(out / run.CHECKPOINT, self.snapshot, with_carried)
            membership.remember(out, self.setup.progress(self.state))
            self.last_checkpoint = time.monotonic()
            if changed:
                raise NcelmError(f"{changed}; a checkpoint is in {out}: continue with `resume`") from changed

    def _stop(self, request: signals.StopRequest, weight: float) -> NoReturn:
        """End training on all workers, with the signal that one of them received."""
        request.add(weight)
        raise request.exception(f"a checkpoint is in {self.setup.out}: continue with `resume`")

    def _report(self, record: dict[str, Any] | None) -> None:
        if self.progress is None:
            return
        state, setup = self.state, self.setup
        words = record["words"] if record else min(state.step * setup.step_words, setup.tokens)
        self.progress(
            Progress(
                epoch=record["epoch"] if record else state.epoch + 1,
                epochs=setup.config.schedule.epochs,
                words=words,
                words_per_epoch=setup.tokens,
                loss=record["loss"] if record else state.loss_sum / words,
                words_per_second=record["words_per_second"] if record else words / max(state.epoch_seconds, 1e-9),
                metrics=record,
            )
        )
