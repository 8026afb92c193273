"""Checkpoints: what they hold, and files that are not trusted."""

import json
import os
import signal
from dataclasses import asdict

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.helpers import change_json, rewrite_arrays

from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.models.log_bilinear import LogBilinear, ModelConfig
from ncelm.training.checkpoint import (
    Snapshot,
    SnapshotShapes,
    TrainingState,
    read_checkpoint,
    restore_carried,
    write_checkpoint,
)
from ncelm.training.config import Adagrad, Adam, Sgd
from ncelm.training.diagnostics import WeightSummary
from ncelm.training.loop import train
from ncelm.training.schedule import ScheduleState

SMALL = {"context": 2, "dim": 8, "noise_samples": 5, "batch_size": 100}
CONFIG = ModelConfig(context=2, dim=3)


@pytest.fixture(scope="module")
def store(cycle_store):
    return cycle_store


def snapshot_of(optimizer, contexts=0):
    """Return a snapshot with random arrays, and its shapes."""
    random = np.random.default_rng(0)
    shapes = SnapshotShapes(LogBilinear.shapes(CONFIG, 5), optimizer, contexts, {"carried.hidden": (1, 2, 3)})
    model = LogBilinear.initialise(CONFIG, np.full(5, 0.2), 0, 0.1)
    state = TrainingState(
        ScheduleState(0.1, 90.0, 80.0, 1), epoch=1, step=2, loss_sum=3.5, best_epoch=1, seconds=2.0,
        seconds_at_epoch=1.0, metrics_bytes=7, weights=[WeightSummary(0, 1, 2.0, 1.0, 3.0, -0.5)],
    )  # fmt: skip
    optimizer_state = {
        statistic: {name: random.random(shape, np.float32) for name, shape in shapes.trained.items()}
        for statistic in optimizer.statistics
    }
    carried = {"carried.hidden": random.random((1, 2, 3), np.float32)}
    return Snapshot(model, optimizer_state, random.random(contexts, np.float32), carried, state), shapes


@pytest.mark.parametrize("contexts", [0, 4])
@pytest.mark.parametrize("optimizer", [Sgd(), Adagrad(), Adam()], ids=lambda optimizer: optimizer.name)
def test_checkpoints_round_trip(tmp_path, optimizer, contexts):
    snapshot, shapes = snapshot_of(optimizer, contexts)
    write_checkpoint(tmp_path / "file", snapshot, with_carried=True)
    arrays, state = read_checkpoint(tmp_path / "file", shapes)
    assert state == snapshot.state
    expected = snapshot.model.arrays() | snapshot.carried
    for statistic, by_name in snapshot.optimizer_state.items():
        expected |= {f"{statistic}.{name}": array for name, array in by_name.items()}
    if contexts:
        expected["log_normalizers"] = snapshot.log_normalizers
    assert set(arrays) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array)


def test_statistics_of_optimizers():
    assert Sgd().statistics == ()
    assert Adagrad().statistics == ("accumulator",)
    assert Adam().statistics == ("momentum", "accumulator")


def test_initial_optimizer_states():
    _, shapes = snapshot_of(Adagrad(initial_accumulator=0.25), contexts=4)
    (accumulator,) = shapes.optimizer_state().values()
    assert set(accumulator) == {*LogBilinear.shapes(CONFIG, 5), "log_normalizers"}
    assert all(array.dtype == np.float32 and (array == 0.25).all() for array in accumulator.values())
    _, shapes = snapshot_of(Adam())
    assert all((array == 0).all() for by_name in shapes.optimizer_state().values() for array in by_name.values())
    assert snapshot_of(Sgd())[1].optimizer_state() == {}


def test_large_optimizer_statistics_are_valid_and_large_parameters_are_not(tmp_path):
    snapshot, shapes = snapshot_of(Adam())
    for by_name in snapshot.optimizer_state.values():
        by_name["biases"][:] = 1e9
    write_checkpoint(tmp_path / "file", snapshot, with_carried=False)
    read_checkpoint(tmp_path / "file", shapes)
    snapshot.model.biases[:] = 1e9
    write_checkpoint(tmp_path / "file", snapshot, with_carried=False)
    with pytest.raises(NcelmError, match="biases"):
        read_checkpoint(tmp_path / "file", shapes)


def test_a_checkpoint_of_another_optimizer_is_an_error(tmp_path):
    snapshot, _ = snapshot_of(Adagrad())
    write_checkpoint(tmp_path / "file", snapshot, with_carried=True)
    for optimizer in (Sgd(), Adam()):
        with pytest.raises(NcelmError, match=r"accumulator|momentum"):
            read_checkpoint(tmp_path / "file", snapshot_of(optimizer)[1])


def test_carried_arrays_are_validated(tmp_path):
    good = {"carried.hidden": np.ones((1, 2), np.float32)}
    np.testing.assert_array_equal(restore_carried(good, {"carried.hidden": (1, 2)}, tmp_path)["carried.hidden"], 1)
    for bad in ({}, {"carried.hidden": np.ones((2, 1), np.float32)}, {"carried.hidden": np.ones((1, 2))},
                {"carried.hidden": np.full((1, 2), np.nan, np.float32)}):  # fmt: skip
        with pytest.raises(NcelmError, match=r"damaged in carried\.hidden"):
            restore_carried(bad, {"carried.hidden": (1, 2)}, tmp_path)


# -- states that are not trusted -------------------------------------------------------------------------------------


def nested(state, change):
    """Return a state with a change; "schedule.last_perplexity" names a nested field."""
    state = json.loads(json.dumps(state))
    for name, value in change.items():
        first, _, second = name.partition(".")
        if second:
            state[first][second] = value
        else:
            state[first] = value
    return state


IMPOSSIBLE = [
    {"step": -1}, {"epoch": "1"}, {"epoch": True}, {"schedule.learning_rate": None}, {"seconds": float("nan")},
    {"finished": 0}, {"metrics_bytes": -5}, {"other": 1}, {"schedule": None}, {"schedule": []}, {"schedule.other": 1},
    {"schedule.last_perplexity": "90"}, {"schedule.epochs_without_improvement": 1.0}, {"weights": None},
    {"weights": [[0, 1, 2.0, 1.0, 3.0, -0.5]]}, {"weights": [{}]}, {"workers": 1.5}, {"loss_sum": float("inf")},
]  # fmt: skip


@pytest.mark.parametrize("change", IMPOSSIBLE, ids=str)
def test_impossible_states_are_errors(change):
    snapshot, _ = snapshot_of(Sgd())
    content = asdict(snapshot.state)
    assert TrainingState.from_dict(json.loads(json.dumps(content))) == snapshot.state
    with pytest.raises((TypeError, ValueError, AttributeError)):
        TrainingState.from_dict(nested(content, change))


def test_a_state_without_a_field_is_an_error():
    content = asdict(snapshot_of(Sgd())[0].state)
    for name in set(content) - {"metrics_sha256", "validation_seconds"}:  # which earlier versions did not have
        with pytest.raises((TypeError, ValueError)):
            TrainingState.from_dict({other: value for other, value in content.items() if other != name})


def test_states_that_do_not_fit_the_length_of_the_run_are_impossible():
    state = snapshot_of(Sgd())[0].state  # epoch 1, step 2
    assert state.is_possible(epochs=3, steps_per_epoch=5, learning_rate=1.0)
    assert state.is_possible(epochs=3, steps_per_epoch=2, learning_rate=1.0)  # the epoch has not been validated
    assert not state.is_possible(epochs=3, steps_per_epoch=1, learning_rate=1.0)
    assert not state.is_possible(epochs=1, steps_per_epoch=5, learning_rate=1.0)
    state.best_epoch = 2
    assert not state.is_possible(epochs=3, steps_per_epoch=5, learning_rate=1.0)


@pytest.mark.parametrize("change", [*IMPOSSIBLE[:4], {"step": 10**6}, {"epoch": 7}, {"other": 1}], ids=str)
def test_a_checkpoint_with_an_impossible_state_is_an_error(store, tmp_path, change):
    def press_ctrl_c(progress):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(store, tmp_path / "run", epochs=3, progress=press_ctrl_c, **SMALL)
    path = tmp_path / "run" / run.CHECKPOINT
    arrays, header = load_file(path), array_files.read_header(path)
    array_files.write_arrays(path, arrays, header | {"state": nested(header["state"], change)})
    with pytest.raises(NcelmError, match="not a checkpoint"):
        train(store, tmp_path / "run", epochs=3, resume=True, **SMALL)


# -- damaged files ---------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_an_error(store, tmp_path):
    train(store, tmp_path / "run", epochs=1, **SMALL)
    path = tmp_path / "run" / run.CHECKPOINT
    content = path.read_bytes()
    for damaged in (content[:-100], content[:7], b"", b"\xff" * 8 + content[8:], content[:40]):
        path.write_bytes(damaged)
        with pytest.raises(NcelmError, match="damaged"):
            train(store, tmp_path / "run", epochs=1, resume=True, **SMALL)


def test_a_checkpoint_of_a_newer_version_is_an_error(tmp_path):
    snapshot, shapes = snapshot_of(Sgd())
    array_files.write_arrays(tmp_path / "file", snapshot.model.arrays(), {"checkpoint": 4, "state": {}})
    with pytest.raises(NcelmError, match="upgrade ncelm"):
        read_checkpoint(tmp_path / "file", shapes)
    array_files.write_arrays(tmp_path / "file", snapshot.model.arrays(), {"checkpoint": "2", "state": {}})
    with pytest.raises(NcelmError, match="not a checkpoint"):
        read_checkpoint(tmp_path / "file", shapes)


@pytest.mark.parametrize("optimizer", [Sgd(), Adagrad()], ids=lambda optimizer: optimizer.name)
def test_a_model_file_is_not_a_checkpoint(tmp_path, optimizer):
    snapshot, shapes = snapshot_of(optimizer)
    array_files.write_arrays(tmp_path / "file", snapshot.model.arrays(), {"kind": "log-bilinear"})
    with pytest.raises(NcelmError, match=r"damaged|not a checkpoint"):
        read_checkpoint(tmp_path / "file", shapes)


@pytest.mark.parametrize(
    "change",
    [{"config": None}, {"config": {"loss": 3}}, {"config": {"unknown": 1}}, {"store": None}, {"store": []}],
    ids=str,
)
def test_a_damaged_config_is_an_error(store, tmp_path, change):
    train(store, tmp_path / "run", epochs=1, **SMALL)
    path = tmp_path / "run" / run.CONFIG
    change_json(path, change)
    with pytest.raises(NcelmError, match="damaged"):
        train(store, tmp_path / "run", epochs=1, resume=True, **SMALL)


def test_options_that_a_config_lacks_have_their_defaults(store, tmp_path):
    """Options can be added without a new version of the format."""
    train(store, tmp_path / "run", epochs=1, **SMALL)
    path = tmp_path / "run" / run.CONFIG
    config = json.loads(path.read_text())
    del config["config"]["regularization"]["dropout"]
    change_json(path, config)
    for name in (run.MODEL, run.CHECKPOINT):
        rewrite_arrays(path.with_name(name))
    train(store, tmp_path / "run", epochs=1, resume=True, **SMALL)
    with pytest.raises(NcelmError, match=r"started with `dropout` 0.0, not 0.5"):
        train(store, tmp_path / "run", epochs=1, resume=True, dropout=0.5, **SMALL)
