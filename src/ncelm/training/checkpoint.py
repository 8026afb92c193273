"""Checkpoints: the state of a run, written atomically, and validated when it is read.

A checkpoint has the parameters, the statistics of the optimizer ("accumulator.biases", "momentum.biases"), learned
log-normalizers, and within an epoch the arrays that the engine carries from one minibatch to the next. The rest of the
state is in its header.
"""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.io.files import is_finite_number
from ncelm.models.log_bilinear import Architecture
from ncelm.text.store import TokenStore
from ncelm.training.backend import Arrays, OptimizerState, Shapes, TrainedModel
from ncelm.training.config import Optimizer, Sgd, TrainConfig
from ncelm.training.diagnostics import WeightSummary
from ncelm.training.migrate import config_from_version_1, name_in_version_1, state_from_version_1
from ncelm.training.options import OPTIONS, to_flat
from ncelm.training.schedule import ScheduleState

VERSION = 3  # of checkpoints; version 2 had no digest of the metrics


@dataclass
class TrainingState:
    """The state of a run apart from its arrays."""

    schedule: ScheduleState
    epoch: int = 0  # complete epochs
    step: int = 0  # complete minibatches of the next epoch; all of them if only its validation is missing
    loss_sum: float = 0.0  # over these minibatches
    best_epoch: int = 0  # 0: there is no model yet
    seconds: float = 0.0  # of training, without validation
    seconds_at_epoch: float = 0.0  # the same at the start of this epoch
    validation_seconds: float = 0.0
    metrics_bytes: int = 0  # size of metrics.jsonl
    metrics_sha256: str = ""  # of these bytes; empty in a checkpoint of version 1 or 2
    finished: bool = False
    workers: int = 1
    weights: list[WeightSummary] = field(default_factory=list)  # importance sampling: of this epoch

    @property
    def epoch_seconds(self) -> float:
        """Seconds of training in this epoch."""
        return self.seconds - self.seconds_at_epoch

    @classmethod
    def from_dict(cls, content: Any) -> "TrainingState":
        """Return the state that `asdict` made. Raise TypeError or ValueError if it has other fields or wrong types."""
        values = {"metrics_sha256": "", "validation_seconds": 0.0, **content}  # not in earlier versions
        if set(values) != {each.name for each in fields(cls)}:
            raise ValueError("other fields")
        values["schedule"] = ScheduleState(**values["schedule"])
        values["weights"] = [WeightSummary(**summary) for summary in values["weights"]]
        state = cls(**values)
        schedule = state.schedule
        counts = [state.epoch, state.step, state.best_epoch, state.metrics_bytes, state.workers]
        counts.append(schedule.epochs_without_improvement)
        perplexities = [p for p in (schedule.last_perplexity, schedule.best_perplexity) if p is not None]
        seconds = (state.seconds, state.seconds_at_epoch, state.validation_seconds)
        numbers = (state.loss_sum, schedule.learning_rate, *seconds, *perplexities)
        if not (
            all(type(count) is int and count >= 0 for count in counts)
            and all(map(is_finite_number, numbers))
            and type(state.finished) is bool
            and type(state.metrics_sha256) is str
            and all(summary.is_valid() for summary in state.weights)
        ):
            raise ValueError("impossible values")
        return state

    def is_possible(self, epochs: float, steps_per_epoch: int, learning_rate: float) -> bool:
        """Return whether a run of this length, which starts with this learning rate, can be in this state."""
        return (
            0.0 <= self.schedule.learning_rate <= learning_rate  # a schedule only lowers it
            and self.epoch < epochs + 1  # the last epoch may be a part of one
            and self.step <= steps_per_epoch
            and self.best_epoch <= self.epoch
            and (self.finished or self.epoch < epochs)
        )


@dataclass
class Snapshot:
    """Everything that training changes."""

    model: TrainedModel
    optimizer_state: OptimizerState
    log_normalizers: np.ndarray  # learned c_h, (contexts,); empty if they are fixed
    carried: Arrays  # from one minibatch to the next
    state: TrainingState


@dataclass(frozen=True)
class SnapshotShapes:
    """The shapes of the arrays of a snapshot."""

    parameters: Shapes
    optimizer: Optimizer
    contexts: int  # learned log-normalizers
    carried: Shapes

    @property
    def trained(self) -> Shapes:
        """The shapes of all arrays that the optimizer updates, by name."""
        return self.parameters | ({"log_normalizers": (self.contexts,)} if self.contexts else {})

    def optimizer_state(self) -> OptimizerState:
        """Return the initial state of the optimizer."""
        start = {"accumulator": np.float32(getattr(self.optimizer, "initial_accumulator", 0.0))}
        return {
            statistic: {
                name: np.full(shape, start.get(statistic, np.float32(0.0))) for name, shape in self.trained.items()
            }
            for statistic in self.optimizer.statistics
        }


def write_checkpoint(path: Path, snapshot: Snapshot, with_carried: bool) -> None:
    """Write a checkpoint, with the carried arrays or without them."""
    arrays = dict(snapshot.model.arrays())
    if snapshot.log_normalizers.size:
        arrays["log_normalizers"] = snapshot.log_normalizers
    for statistic, by_name in snapshot.optimizer_state.items():
        arrays |= {f"{statistic}.{name}": array for name, array in by_name.items()}
    if with_carried:
        arrays |= snapshot.carried
    array_files.write_arrays(path, arrays, {"checkpoint": VERSION, "state": asdict(snapshot.state)})


def write_model(path: Path, parameters: Arrays, architecture: Architecture) -> None:
    """Write the parameters of a model, without the state of training."""
    array_files.write_arrays(path, parameters, {"kind": architecture})


def read_checkpoint(path: Path, shapes: SnapshotShapes) -> tuple[Arrays, TrainingState]:
    """Return the arrays of a checkpoint, by their names since version 2, and its state.

    The arrays have their shapes, except the carried ones, which are not validated. The state is consistent in itself.
    """
    version = array_files.read_header(path).get("checkpoint", 1)
    if type(version) is int and version > VERSION:
        raise NcelmError(f"{path} was written by a newer ncelm (checkpoint version {version}): upgrade ncelm")
    expected = dict(shapes.trained)
    for statistic in shapes.optimizer.statistics:
        expected |= {f"{statistic}.{name}": shape for name, shape in shapes.trained.items()}
    if version == 1:
        arrays, header = _read_version_1(path, expected, shapes)
    else:
        arrays, header = array_files.read_arrays(path, expected, shapes.carried)
    try:
        content = header["state"]
        state = TrainingState.from_dict(state_from_version_1(content) if version == 1 else content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise not_a_checkpoint(path) from error
    return arrays, state


def _read_version_1(path: Path, expected: Shapes, shapes: SnapshotShapes) -> tuple[Arrays, dict[str, Any]]:
    former = {name: name_in_version_1(name) for name in expected}
    former_shapes = {former[name]: shape for name, shape in expected.items()}
    if isinstance(shapes.optimizer, Sgd):  # had empty accumulators
        empty = {f"accumulator.{name}": (0, *shape[1:]) for name, shape in shapes.trained.items()}
        former_shapes |= {name_in_version_1(name): shape for name, shape in empty.items()}
    arrays, header = array_files.read_arrays(path, former_shapes, shapes.carried)
    carried = {name: arrays[name] for name in shapes.carried if name in arrays}
    return {name: arrays[former[name]] for name in expected} | carried, header


def not_a_checkpoint(path: Path) -> NcelmError:
    """Return the error for a file with impossible content."""
    return NcelmError(f"{path} is not a checkpoint: train again, with another `out`")


def restore_carried(arrays: Arrays, shapes: Shapes, path: Path) -> Arrays:
    """Return the carried arrays of a checkpoint that was written within an epoch, after validation."""
    carried = {}
    for name, shape in shapes.items():
        found = arrays.get(name)
        if found is None or found.shape != shape or found.dtype != np.float32 or not array_files.all_bounded(found):
            raise NcelmError(f"{path} is damaged in {name}: train again, with another `out`")
        carried[name] = found.copy()
    return carried


def former_config(out: Path) -> TrainConfig | None:
    """Return the configuration of an existing run of a model that `train` makes; None if there is none."""
    if not (out / run.CONFIG).exists():
        return None
    content = run.read_config(out)
    return _config_of(out, content) if content["kind"] in get_args(Architecture) else None


def _config_of(out: Path, content: dict[str, Any]) -> TrainConfig:
    try:
        read = config_from_version_1 if content["version"] == 1 else TrainConfig.from_dict
        return read(content.get("config"))
    except NcelmError as error:
        raise run.damaged_config(out) from error


def check_same_run(out: Path, store: TokenStore, config: TrainConfig, workers: int) -> None:
    """Raise NcelmError unless a run was started with this store and these options."""
    former = run.read_config(out)
    if former["kind"] not in get_args(Architecture):
        raise NcelmError(f"{out} holds a model of another kind ({former['kind']}): choose another `out`")
    if not isinstance(former.get("store"), dict):
        raise run.damaged_config(out)
    if former["store"].get("fingerprint") != store.fingerprint:
        raise NcelmError(f"{out} was trained on another token store: resume it with the store it was started with")
    was, now = to_flat(_config_of(out, former)), to_flat(config)
    for name in OPTIONS:
        if name == "sync_interval" and workers == 1:  # has no effect
            continue
        if was.get(name) != now.get(name):
            raise NcelmError(
                f"{out} was started with `{name}` {was.get(name)}, not {now.get(name)}: "
                "resume it with the same options, or choose another `out`"
            )
