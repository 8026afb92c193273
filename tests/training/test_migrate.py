"""Runs of format version 1: they load, and they resume to the result that version 1 would have had.

tests/fixtures/run_v1 has a token store and four runs that version 0.1.0 wrote and that were interrupted within their
second epoch; expected.safetensors is the model of the same run without interruption.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.io.metrics import Metrics
from ncelm.language_model import LanguageModel
from ncelm.training.config import (
    NCE,
    Adagrad,
    Halve,
    ImportanceSampling,
    Linear,
    MaximumLikelihood,
    Sgd,
    TrainConfig,
)
from ncelm.training.loop import train
from ncelm.training.migrate import config_from_version_1, name_in_version_1, state_from_version_1, upgrade_record

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run_v1"
SMALL = {"dim": 4, "context": 2, "noise_samples": 3, "batch_size": 40, "seed": 1}
OPTIONS = {
    "nce": SMALL | {
        "epochs": 3, "log_normalizers": "learned", "noise": "bigram", "initial_accumulator": 0.1, "warmup_steps": 5,
        "matrix_lr_scale": 0.5, "weight_decay_per_epoch": 0.01, "weight_decay": 0.001, "init_std": 0.05,
    },
    "importance": SMALL | {
        "epochs": 4, "loss": "importance", "learning_rate": 0.02, "schedule": "halve", "patience": 2,
        "min_effective_samples": 4.0, "max_samples": 20,
    },
    "sgd": SMALL | {"epochs": 3, "optimizer": "sgd", "learning_rate": 0.02, "noise": "uniform"},
}  # fmt: skip


@pytest.fixture(params=OPTIONS)
def name(request):
    return request.param


@pytest.fixture
def old_run(tmp_path, name):
    shutil.copytree(FIXTURE / name, tmp_path / "run")
    return tmp_path / "run"


def test_old_runs_load(old_run):
    assert json.loads((old_run / run.CONFIG).read_text())["version"] == 1
    assert LanguageModel.load(old_run).score("w1 w2 w3") < 0


def test_old_configurations_are_read(name):
    content = json.loads((FIXTURE / name / run.CONFIG).read_text())["config"]
    assert config_from_version_1(content) == TrainConfig().with_changes(**OPTIONS[name])


@pytest.mark.slow
def test_old_runs_resume_to_the_same_result(old_run, name):
    last = train(FIXTURE / "store", old_run, resume=True, **OPTIONS[name])
    assert last["finished"]
    resumed, expected = load_file(old_run / run.MODEL), load_file(old_run / "expected.safetensors")
    assert set(resumed) == set(expected)
    for (
        parameter,
        values,
    ) in expected.items():  # the same bytes on the machine that made them; others may round otherwise
        np.testing.assert_allclose(resumed[parameter], values, rtol=0, atol=1e-5)
    assert [record["epoch"] for record in Metrics(old_run / run.METRICS).read()] == list(range(1, last["epoch"] + 1))
    assert "squares.biases" not in load_file(old_run / run.CHECKPOINT)  # checkpoints are written in version 2
    train(FIXTURE / "store", old_run, resume=True, **OPTIONS[name])


@pytest.mark.slow
def test_old_runs_and_new_runs_are_the_same(tmp_path, old_run, name):
    train(FIXTURE / "store", old_run, resume=True, **OPTIONS[name])
    train(FIXTURE / "store", tmp_path / "new", TrainConfig(), **OPTIONS[name])
    new, old = load_file(tmp_path / "new" / run.MODEL), load_file(old_run / run.MODEL)
    for parameter, values in new.items():
        np.testing.assert_allclose(old[parameter], values, rtol=0, atol=1e-5)


def test_old_runs_do_not_resume_with_other_options(old_run, name):
    with pytest.raises(NcelmError, match="was started with `seed` 1, not 2"):
        train(FIXTURE / "store", old_run, resume=True, **OPTIONS[name] | {"seed": 2})


@pytest.mark.slow
def test_an_old_lstm_resumes_with_its_hidden_states(tmp_path):
    pytest.importorskip("torch", reason="needs the extra `torch`")
    shutil.copytree(FIXTURE / "lstm", tmp_path / "run")
    options = {
        "architecture": "lstm", "dim": 6, "context": 2, "noise_samples": 5, "batch_size": 40, "bptt_length": 5,
        "epochs": 3, "dropout": 0.1, "learning_rate": 0.2, "seed": 2,
    }  # fmt: skip
    train(FIXTURE / "store", tmp_path / "run", resume=True, threads=1, **options)
    resumed = load_file(tmp_path / "run" / run.MODEL)
    for parameter, values in load_file(FIXTURE / "lstm" / "expected.safetensors").items():
        np.testing.assert_allclose(resumed[parameter], values, rtol=0, atol=1e-4)


# -- configurations --------------------------------------------------------------------------------------------------


def test_options_that_did_not_apply_are_dropped():
    content = {
        "model": {"dim": 7, "shared_tables": True}, "estimator": "ml", "noise": "bigram", "noise_samples": 9,
        "optimizer": "sgd", "warm_up": 7, "schedule": "linear", "patience": 9, "max_samples": 3,
    }  # fmt: skip
    config = config_from_version_1(content)
    assert config.loss == MaximumLikelihood()
    assert config.optimizer == Sgd()
    assert config.schedule == Linear()
    assert config.model.tied_embeddings
    assert config_from_version_1({}) == TrainConfig()


def test_every_option_of_version_1_is_known():
    content = json.loads((FIXTURE / "nce" / run.CONFIG).read_text())["config"]
    assert len(content) - 1 + len(content["model"]) == 38
    config = config_from_version_1(content)
    assert config.loss == NCE(samples=3, log_normalizers="learned")
    assert config.optimizer == Adagrad(initial_accumulator=0.1, warmup_steps=5)
    other = config_from_version_1(content | {"estimator": "importance", "constants": "fixed", "schedule": "halve"})
    assert other.loss == ImportanceSampling(samples=3, max_samples=1000)
    assert other.schedule == Halve(epochs=3)


@pytest.mark.parametrize(
    "content",
    [None, [], {"loss": {"name": "nce"}}, {"estimator": 3}, {"estimator": []}, {"estimator": "is"}, {"model": 3},
     {"model": {"size": 3}}, {"noise_samples": "3"}, {"penalty": None}, {"unroll": 0}, {"unknown": 1}],
    ids=str,
)  # fmt: skip
def test_damaged_configurations_are_errors(content):
    with pytest.raises(NcelmError, match="damaged"):
        config_from_version_1(content)


# -- checkpoints and metrics -----------------------------------------------------------------------------------------


def test_names_of_arrays():
    assert name_in_version_1("biases") == "biases"
    assert name_in_version_1("accumulator.biases") == "squares.biases"
    assert name_in_version_1("accumulator.cells.weight_ih_l0") == "squares.cells.weight_ih_l0"
    assert name_in_version_1("log_normalizers") == "constants"
    assert name_in_version_1("accumulator.log_normalizers") == "squares.constants"


@pytest.mark.parametrize(
    "change",
    [
        {"step": -1},
        {"rate": None},
        {"weights": [[1.0]]},
        {"weights": 3},
        {"other": 1},
        {"weights": [[0, 0, 1, 1, 1, 1]]},
    ],
    ids=str,
)
def test_damaged_checkpoints_are_errors(old_run, name, change):
    path = old_run / run.CHECKPOINT
    arrays, header = load_file(path), array_files.read_header(path)
    array_files.write_arrays(path, arrays, {"state": header["state"] | change})
    with pytest.raises(NcelmError, match="not a checkpoint"):
        train(FIXTURE / "store", old_run, resume=True, **OPTIONS[name])


def test_states_of_the_first_runs_lacked_two_fields():
    content = array_files.read_header(FIXTURE / "nce" / run.CHECKPOINT)["state"]
    del content["weights"], content["workers"]
    state = state_from_version_1(content)
    assert (state["weights"], state["workers"]) == ([], 1)


def test_records_of_metrics_are_upgraded():
    former = {"epoch": 1, "constants_mean": 0.1, "constants_std": 0.2, "weights": [[5, 4.0, 3.0, 2.0, 1.0]]}
    record = upgrade_record(former)
    assert record == {
        "epoch": 1,
        "log_normalizers_mean": 0.1,
        "log_normalizers_std": 0.2,
        "weights": [
            {"step": 5, "effective_samples": 4.0, "least_effective_samples": 3.0, "samples": 2.0}
            | {"largest_log_weight": 1.0}
        ],
    }
    assert upgrade_record(record) == record
