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
from typing import Any, NoReturn

import numpy as np

from ncelm.distributed import collective
from ncelm.errors import ArgumentError, DivergedError, NcelmError
from ncelm.io import array_files, run, signals
from ncelm.io.machine import available_cores
from ncelm.io.metrics import Metrics
from ncelm.kernels.threads import Team
from ncelm.models import evaluate
from ncelm.text.store import TokenStore
from ncelm.training import diagnostics, recipes
from ncelm.training.backend import Engine, memory_bytes
from ncelm.training.checkpoint import Snapshot, write_checkpoint
from ncelm.training.config import ImportanceSampling, TrainConfig
from ncelm.training.diagnostics import Divergence, WeightTrace
from ncelm.training.reduction import LossReduction
from ncelm.training.schedule import after_validation, is_finished, learning_rates
from ncelm.training.setup import Setup, check_arguments
from ncelm.training.start import start

__all__ = ["Progress", "memory_bytes", "train"]


@dataclass(frozen=True)
class Progress:
    """The progress of training, after every call of the engine and after every epoch."""

    epoch: int  # the first is 1
    epochs: int
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
    threads: int | None = None,
    resume: bool = False,
    checkpoint_minutes: float = 5.0,
    watch: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Train a model on a token store, write it to the directory `out`, and return the last record of its metrics.

    Args:
        store: token store, or its path.
        out: run directory. It must not exist, unless `resume` is set.
        config: configuration.
        recipe: instead of `config`, the name of a recipe (`ncelm.training.recipes`), such as "ptb-fast".
        threads: number of threads; all cores by default. The result does not depend on it.
        resume: continue from the last checkpoint, to the same result, or start if there is none.
        checkpoint_minutes: time between checkpoints within an epoch. There is one after each epoch in any case.
        watch: splits whose perplexity is recorded after each epoch. Training does not depend on it.
        progress: called after every call of the engine and after every epoch.
        changes: options by flat name (`ncelm.training.options`): train(…, dim=50, loss="ml").

    Ctrl-C and SIGTERM write a checkpoint before KeyboardInterrupt or its subclass `ncelm.errors.Terminated` is raised.
    """
    check_arguments(store, out, config, threads, resume, checkpoint_minutes, progress)
    if recipe is not None:
        if config is not None:
            raise ArgumentError("`recipe` is the name of a configuration: give either `recipe` or `config`, not both")
        config = recipes.recipe(recipe)
    config = (config or TrainConfig()).with_changes(**changes)
    store = TokenStore.open(store)
    if threads is None:
        threads = max(available_cores() // collective.local_world_size(), 1)
    team = Team(threads)  # validates the number of threads, before anything is written
    setup = Setup.create(store, Path(out), config, watch, collective.current())
    with ExitStack() as stack:
        loop = Loop(setup, start(setup, resume, stack), team, 60.0 * checkpoint_minutes, progress)
        return loop.run()


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

    def run(self) -> dict[str, Any]:
        """Train until the schedule ends; return the last record of the metrics."""
        if not self.state.finished:
            with self.team:
                engine = self.setup.backend.create(
                    self.snapshot.model,
                    self.snapshot.optimizer_state,
                    self.setup.noise(),
                    self.setup.worker_store,
                    self.setup.worker_config,
                    self.team,
                    self.snapshot.log_normalizers,
                    self.setup.context_ids,
                    self.snapshot.carried,
                )
                self._run_epochs(engine)
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
                (stop,) = self.setup.collective.all_reduce(np.array([float(request.is_set())]))
                if stop and not self.state.finished:
                    self._stop(request)

    def _run_epoch(self, engine: Engine, request: signals.StopRequest) -> None:
        """Run the remaining minibatches of an epoch."""
        setup, state, group = self.setup, self.state, self.setup.collective
        config, steps, sync_steps, calls = setup.config, setup.steps_per_epoch, setup.sync_steps, 0
        while state.step < steps:
            n = min(engine.planned, steps - state.step)
            if group.size > 1:
                n = min(n, sync_steps - state.step % sync_steps)
            began = time.perf_counter()
            updates_done = state.epoch * steps + state.step + np.arange(n)
            rate = state.schedule.learning_rate
            rates = learning_rates(config.schedule, config.optimizer, rate, updates_done, steps)
            losses = engine.run(state.epoch, state.step, rates, rates * config.matrix_lr_scale)
            state.step += n
            calls += 1
            last = state.step == steps
            self.reduction.add(losses)
            if last or calls % group.reduce_interval == 0:
                due = group.rank == 0 and time.monotonic() - self.last_checkpoint > self.checkpoint_seconds
                self.reduction.start(state.step, request.is_set(), due)
            if last or state.step % sync_steps == 0:
                group.synchronize(full=last)
            state.seconds += time.perf_counter() - began
            if self.importance:
                self._trace_weights(engine, losses)
            # workers do not wait for the all-reduces that they have just started
            stop, save = self._add_losses(0 if last else group.reduce_delay)
            if self.importance:
                self._probe(n)
            self._report(None)
            if (stop or save) and not last:  # an epoch ends with a checkpoint in any case
                self.reduction.start(state.step, False, False)
                self._add_losses(0)
                group.synchronize(full=True)
                self._checkpoint()
                if stop:
                    self._stop(request)

    def _add_losses(self, in_flight: int) -> tuple[bool, bool]:
        """Add reduced losses, except for the last `in_flight`; return whether to stop and whether to save."""
        state, stop, save = self.state, False, False
        began = time.perf_counter()
        for reduced in self.reduction.finish(in_flight):
            stop, save = stop or reduced.stop, save or reduced.save
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
        parameters, seconds = self.snapshot.model.arrays(), state.epoch_seconds
        record: dict[str, Any] = {
            "epoch": state.epoch + 1,
            "loss": state.loss_sum / setup.tokens,
            "learning_rate": state.schedule.learning_rate,
            "words": setup.tokens,
            "seconds": state.seconds,
            "words_per_second": setup.tokens / seconds if seconds > 1e-9 else None,  # a checkpoint is not trusted
        }
        if (c := self.snapshot.log_normalizers).size:
            mean, std = float(c.mean()), float(c.std())
            record |= {"contexts": c.size, "log_normalizers_mean": mean, "log_normalizers_std": std}
        record |= self.trace.record()
        if not all(array_files.all_bounded(array) for array in parameters.values()):
            self._diverged("some parameters are not finite or too large")
        if group.size > 1:
            record |= {"workers": group.size, "bytes_sent": group.bytes_sent}
        best = True
        if "valid" in setup.store.splits:
            record |= self._evaluate("valid", request)
        for name in setup.watch:
            record |= {f"{name}_perplexity": self._evaluate(name, request)[f"{name}_perplexity"]}
        # From here on nothing is interrupted: the state changes.
        if "valid" in setup.store.splits:
            perplexity = record["valid_perplexity"]
            if problem := diagnostics.validation_problem(perplexity, setup.vocabulary_size):
                self._diverged(problem)
            state.schedule, best = after_validation(state.schedule, setup.config.schedule, perplexity)
        self.trace.clear()
        state.epoch += 1
        state.step, state.loss_sum, state.seconds_at_epoch = 0, 0.0, state.seconds
        if best:
            state.best_epoch = state.epoch
            if group.rank == 0:
                array_files.write_arrays(setup.out / run.MODEL, parameters, {"kind": setup.config.model.architecture})
        state.finished = is_finished(state.schedule, setup.config.schedule, state.epoch)
        record |= {"best_epoch": state.best_epoch, "finished": state.finished}
        self.last_record = record
        if group.rank == 0:
            self.metrics.append(record)
            state.metrics_bytes, state.metrics_sha256 = self.metrics.size, self.metrics.digest()
        self._checkpoint()
        self._report(record)

    def _evaluate(self, name: str, request: signals.StopRequest) -> dict[str, float]:
        """Return perplexity and log-normalizer statistics of a split. Rank 0 evaluates.

        A request to stop ends the evaluation. A resumed run starts with it.
        """
        found = [0.0, 0.0, 0.0, 0.0]
        if self.setup.collective.rank == 0:
            try:
                with request.immediate():
                    result = evaluate.evaluate_split(self.snapshot.model, self.setup.store, name, self.team)
                found = [result.perplexity, result.log_z_mean, result.log_z_std, 0.0]
            except KeyboardInterrupt:
                found[-1] = 1.0
        *found, stopped = self.setup.collective.broadcast(np.array(found)).tolist()
        if stopped:
            self._checkpoint()
            self._stop(request)
        return dict(zip((f"{name}_perplexity", f"{name}_log_z_mean", f"{name}_log_z_std"), found, strict=True))

    def _checkpoint(self) -> None:
        """Write a checkpoint. Rank 0 does."""
        group, store, out = self.setup.collective, self.setup.store, self.setup.out
        if group.rank > 0:
            return
        changed: NcelmError | None = None
        try:
            store.check_unchanged()
        except NcelmError as error:
            if store.is_mapped:  # training may have seen the change
                raise
            changed = error
        with_carried = self.state.step > 0 and group.size == 1
        write_checkpoint(out / run.CHECKPOINT, self.snapshot, with_carried)
        self.last_checkpoint = time.monotonic()
        if changed:
            raise NcelmError(f"{changed}; a checkpoint is in {out}: continue with `resume`") from changed

    def _stop(self, request: signals.StopRequest) -> NoReturn:
        raise request.exception(f"a checkpoint is in {self.setup.out}: continue with `resume`")

    def _report(self, record: dict[str, Any] | None) -> None:
        if self.progress is None:
            return
        state, setup = self.state, self.setup
        words = setup.tokens if record else min(state.step * setup.step_words, setup.tokens)
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
