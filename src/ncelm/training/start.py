"""The start of a training run: a new run directory and initial values, or a checkpoint that is resumed."""

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ncelm.distributed.membership import Member, check_not_lost, is_restart, membership_problem, record_agents
from ncelm.errors import DivergedError, NcelmError
from ncelm.io import array_files, run
from ncelm.io.files import atomic_folder, exclusive_lock
from ncelm.io.metrics import Metrics
from ncelm.models import description
from ncelm.noise import Noise
from ncelm.training.checkpoint import (
    Snapshot,
    TrainingState,
    check_same_run,
    not_a_checkpoint,
    read_checkpoint,
    restore_carried,
    write_model,
)
from ncelm.training.diagnostics import Divergence
from ncelm.training.schedule import ScheduleState
from ncelm.training.setup import Setup


def start(setup: Setup, resume: bool, stack: ExitStack) -> Snapshot:
    """Return the state that training starts from, on all workers.

    Rank 0 creates the run directory or reads its checkpoint, and broadcasts the result. The run is locked until `stack`
    is closed. If it is closed by an error before the first checkpoint, a new run directory is removed.
    """
    group, started, snapshot = setup.collective, 0.0, None
    own = Member.of_this_process(group.rank, setup.out)
    members = [Member.from_text(text) for text in group.gather(own.to_text())]
    try:
        if group.rank == 0:
            if problem := membership_problem():
                warnings.warn(problem, stacklevel=2)
            snapshot = _start(setup, resume, members, stack)
            started = 1.0
    finally:
        (started,) = group.broadcast(np.array([started]))
    if not started:
        raise NcelmError("worker 0 could not start training: see its error message")
    snapshot = snapshot or initial_snapshot(setup)
    # not merged: the names are the same
    for arrays in (snapshot.model.arrays(), *snapshot.optimizer_state.values()):
        group.broadcast_arrays(arrays)
    if group.size > 1:
        snapshot.state = _broadcast_state(setup, snapshot.state)
        interval = max(setup.sync_words, setup.step_words)
        group.register(snapshot.model.arrays(), snapshot.optimizer_state, setup.store.vocabulary.counts, interval)
    return snapshot


def _start(setup: Setup, resume: bool, members: list[Member], stack: ExitStack) -> Snapshot:
    out, metrics = setup.out, Metrics(setup.out / run.METRICS)
    # workers that torchrun starts again, after a failure or with other machines, resume in any case
    resume = (resume or is_restart(out, members)) and out.exists()
    checkpoint = resume and (out / run.CHECKPOINT).exists()
    if not checkpoint:
        check_not_lost(out, members, 0.0)
    vectors = initial_vectors(setup) if setup.config.init.run and not checkpoint else None
    if resume:
        check_same_run(out, setup.store, setup.config, setup.collective.size)
    else:
        _create(setup, members)
        stack.enter_context(_removed_on_error(out))
    busy = f"another process is training {out}: wait for it, or choose another `out`"
    stack.enter_context(exclusive_lock(out / run.LOCK, busy))
    if resume:
        records = metrics.read()
        if divergence := Divergence.from_record(records[-1]) if records else None:  # it would diverge again
            raise DivergedError(divergence.message(metrics.path, setup.config.learning_rate))
        record_agents(out, members)
    if checkpoint:
        return restore(setup, members)
    snapshot = initial_snapshot(setup)
    if vectors is not None:
        set_vectors(snapshot, vectors)
    metrics.truncate(0)
    return snapshot


@contextmanager
def _removed_on_error(out: Path) -> Iterator[None]:
    """Remove a new run directory if an error ends training before the first checkpoint. A divergence is a result."""
    try:
        yield
    except DivergedError:
        raise
    except BaseException:
        if not (out / run.CHECKPOINT).exists():
            shutil.rmtree(out, ignore_errors=True)
        raise


def _create(setup: Setup, members: list[Member]) -> None:
    """Create the run directory with its description."""
    if (setup.out / run.CONFIG).exists():
        raise NcelmError(f"{setup.out} exists already: continue with `resume`, or choose another `out`")
    with atomic_folder(setup.out) as folder:
        origin = description.Origin.of(setup.store)
        content = setup.config.to_dict()
        description.write_description(folder, setup.config.model.architecture, origin, config=content)
        record_agents(folder, members)


def initial_snapshot(setup: Setup) -> Snapshot:
    """Return initial values: random vectors, and biases that make the model the unigram model."""
    config = setup.config
    unigram = Noise.from_counts(setup.store.vocabulary.counts).probabilities
    return Snapshot(
        model=setup.model_class.initialise(config.model, unigram, config.seed, config.init.std),
        optimizer_state=setup.shapes.optimizer_state(),
        log_normalizers=np.zeros(setup.shapes.contexts, np.float32),
        carried={name: np.zeros(shape, np.float32) for name, shape in setup.shapes.carried.items()},
        state=TrainingState(ScheduleState(config.learning_rate), workers=setup.collective.size),
    )


def restore(setup: Setup, members: list[Member]) -> Snapshot:
    """Return the state of the last checkpoint. Metrics after it are removed.

    Raise NcelmError if one of the members remembers a later checkpoint.
    """
    path, group = setup.out / run.CHECKPOINT, setup.collective
    arrays, state = read_checkpoint(path, setup.shapes)
    if not 1 <= state.workers <= setup.tokens:
        raise not_a_checkpoint(path)
    # before the step is rounded to that of another number of workers
    check_not_lost(setup.out, members, state.epoch + state.step / setup.steps_per_epoch_of(state.workers))
    carried = state.step > 0 and group.size == state.workers == 1  # of several workers, all start with zeros
    if state.workers != group.size:
        _change_workers(setup, state)
    if not state.is_possible(setup.config.schedule.epochs, setup.steps_per_epoch, setup.config.learning_rate):
        raise not_a_checkpoint(path)
    snapshot = initial_snapshot(setup)
    snapshot.state = state
    parameters = {name: arrays[name].copy() for name in setup.shapes.parameters}
    snapshot.model = setup.model_class.from_arrays(setup.config.model, parameters)
    for statistic, by_name in snapshot.optimizer_state.items():
        for name, array in by_name.items():
            array[:] = arrays[f"{statistic}.{name}"]
    if setup.shapes.contexts:
        snapshot.log_normalizers[:] = arrays["log_normalizers"]
    if carried:
        snapshot.carried = restore_carried(arrays, setup.shapes.carried, path)
    Metrics(setup.out / run.METRICS).truncate(state.metrics_bytes, state.metrics_sha256)
    if state.best_epoch:  # the best model so far may be the result
        model = setup.out / run.MODEL
        best = array_files.read_parameters(model, setup.shapes.parameters)
        # a header with other blanks or another order is valid too: written again, the result has the same bytes
        write_model(model, best, setup.config.model.architecture)
    setup.store.vocabulary.save(setup.out / run.VOCABULARY)  # in case it was lost
    setup.store.text.save(setup.out)
    return snapshot


def _change_workers(setup: Setup, state: TrainingState) -> None:
    """Let another number of workers continue an epoch, at the same fraction of it.

    Each worker reads its part of the text in a random order. The parts are other ones now: in the rest of this epoch
    some words are read for the second time, and as many are not read.
    """
    former_steps = setup.steps_per_epoch_of(state.workers)
    step = min(round(state.step / former_steps * setup.steps_per_epoch), setup.steps_per_epoch)
    if state.step and not step:
        state.loss_sum = 0.0
    elif state.step:  # the mean loss stays the same
        former_words = min(state.step / former_steps, 1.0) * setup.tokens
        state.loss_sum *= min(step * setup.step_words, setup.tokens) / former_words
    state.step, state.workers, state.weights = step, setup.collective.size, []


def _broadcast_state(setup: Setup, state: TrainingState) -> TrainingState:
    """Return the state of rank 0."""
    group, content = setup.collective, json.dumps(asdict(state)).encode()
    (size,) = group.broadcast(np.array([float(len(content))]))
    characters = np.zeros(int(size))
    if group.rank == 0:
        characters[:] = np.frombuffer(content, np.uint8)
    return TrainingState.from_dict(json.loads(group.broadcast(characters).astype(np.uint8).tobytes()))


# -- initial vectors -------------------------------------------------------------------------------------------------


def initial_vectors(setup: Setup) -> np.ndarray:
    """Return the word vectors of the run `init_from`, (V, d), scaled to length 1; words without a vector have zeros."""
    from ncelm.models.load import load_vectors

    path, dim = Path(setup.config.init.run), setup.config.model.dim
    given, vocabulary = load_vectors(path)
    if vocabulary.digest != setup.store.vocabulary.digest:
        raise NcelmError(f"{path} has another vocabulary than {setup.store.path}: give a run of the same store")
    vectors = np.array(given, np.float32)
    if vectors.shape[1] < dim:
        raise NcelmError(
            f"{path} has vectors of {vectors.shape[1]} dimensions, and `dim` is {dim}: give a run with at least {dim} "
            "dimensions, or lower `dim`"
        )
    vectors = vectors[:, :dim]
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)  # (V, 1)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)


def set_vectors(snapshot: Snapshot, vectors: np.ndarray) -> None:
    """Replace the random vectors of a model, except those of words without a vector."""
    known = np.flatnonzero(vectors.any(axis=1))
    for name, table in snapshot.model.arrays().items():
        # the output table of a feed-forward network may have another width
        if name in ("context_vectors", "target_vectors") and table.shape[1] == vectors.shape[1]:
            table[known] = vectors[known]
