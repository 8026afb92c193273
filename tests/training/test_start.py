"""The start of a run: new directories, resuming, initial vectors, locks."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.helpers import model_bytes

from ncelm.distributed.collective import SingleProcess
from ncelm.distributed.membership import Member
from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.io.metrics import Metrics
from ncelm.language_model import LanguageModel, load_scorer
from ncelm.models.lsa import train_lsa
from ncelm.text.prepare import prepare
from ncelm.training.loop import configure, train
from ncelm.training.setup import Setup
from ncelm.training.start import restore

SMALL = {"context": 2, "dim": 8, "noise_samples": 5, "batch_size": 100}


@pytest.fixture(scope="module")
def store(cycle_store):
    return cycle_store


def stopped_run(store, out, epochs=3):
    """A run stopped by Ctrl-C in its second epoch."""

    def press_ctrl_c(progress):
        if progress.epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(store, out, epochs=epochs, progress=press_ctrl_c, **SMALL)


# -- new runs --------------------------------------------------------------------------------------------------------


def test_an_existing_directory_is_an_error_and_is_not_changed(store, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("precious")
    with pytest.raises(NcelmError, match="exists already"):
        train(store, tmp_path / "run", **SMALL)
    with pytest.raises(NcelmError, match="not a run"):
        train(store, tmp_path / "run", resume=True, **SMALL)
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["mine"]


def test_an_existing_run_is_not_overwritten(store, tmp_path):
    train(store, tmp_path / "run", epochs=1, **SMALL)
    with pytest.raises(NcelmError, match="continue with `resume`, or choose another `out`"):
        train(store, tmp_path / "run", epochs=1, **SMALL)


def test_a_model_larger_than_memory_is_an_error_before_anything_is_written(store, tmp_path):
    with pytest.raises(NcelmError, match="GB of memory and this machine has"):
        train(store, tmp_path / "run", dim=100_000, context=1000, matrices="full")
    assert not (tmp_path / "run").exists()


def test_two_processes_cannot_train_one_run(store, tmp_path):
    def again(progress):
        with pytest.raises(NcelmError, match="another process"):
            train(store, tmp_path / "run", epochs=1, resume=True, **SMALL)

    train(store, tmp_path / "run", epochs=1, progress=again, **SMALL)


# -- resuming --------------------------------------------------------------------------------------------------------


def test_resume_without_a_checkpoint_starts(store, tmp_path):
    train(store, tmp_path / "fresh", resume=True, epochs=1, **SMALL)
    train(store, tmp_path / "plain", epochs=1, **SMALL)
    shutil.copytree(tmp_path / "plain", tmp_path / "cut")
    (tmp_path / "cut" / run.CHECKPOINT).unlink()
    train(store, tmp_path / "cut", resume=True, epochs=1, **SMALL)
    assert model_bytes(tmp_path / "fresh") == model_bytes(tmp_path / "plain") == model_bytes(tmp_path / "cut")
    assert len(Metrics(tmp_path / "cut" / run.METRICS).read()) == 1


def test_resuming_a_finished_run_changes_nothing(store, tmp_path):
    last = train(store, tmp_path / "run", epochs=1, **SMALL)
    before = model_bytes(tmp_path / "run")
    assert train(store, tmp_path / "run", epochs=1, resume=True, **SMALL) == last
    assert model_bytes(tmp_path / "run") == before


def test_other_options_and_other_stores_are_errors(store, tmp_path):
    train(store, tmp_path / "run", epochs=1, **SMALL)
    with pytest.raises(NcelmError, match="`dim` 8, not 9"):
        train(store, tmp_path / "run", epochs=1, resume=True, **SMALL | {"dim": 9})
    with pytest.raises(NcelmError, match="`loss` nce, not importance"):
        train(store, tmp_path / "run", epochs=1, resume=True, loss="importance", **SMALL)
    train(store, tmp_path / "run", epochs=1, resume=True, sync_interval=9, **SMALL)  # has no effect on one process
    (tmp_path / "text").write_text("a b c\nb c a\n")
    other = prepare(train=tmp_path / "text", out=tmp_path / "other")
    with pytest.raises(NcelmError, match="another token store"):
        train(other, tmp_path / "run", epochs=1, resume=True, **SMALL)


def test_resume_restores_a_lost_vocabulary(store, tmp_path):
    stopped_run(store, tmp_path / "run")
    (tmp_path / "run" / run.VOCABULARY).unlink()
    train(store, tmp_path / "run", epochs=3, resume=True, **SMALL)
    LanguageModel.load(tmp_path / "run")


def test_a_model_file_with_another_layout_is_written_again(store, tmp_path):
    """The same header with other blanks has the same checksum. The result of a resumed run has the same bytes."""
    train(store, tmp_path / "run", epochs=1, **SMALL)
    path, before = tmp_path / "run" / run.MODEL, model_bytes(tmp_path / "run")
    length = int.from_bytes(before[:8], "little")
    head = json.dumps(json.loads(before[8 : 8 + length]), indent=1).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + before[8 + length :])
    train(store, tmp_path / "run", epochs=1, resume=True, **SMALL)
    assert model_bytes(tmp_path / "run") == before


@pytest.mark.parametrize("name", [run.METRICS, run.MODEL])
def test_missing_files_are_errors(store, tmp_path, name):
    stopped_run(store, tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    with pytest.raises(NcelmError, match=f"{name}( is missing|$)"):
        train(store, tmp_path / "run", epochs=3, resume=True, **SMALL)


@pytest.mark.parametrize("workers", [2, 5])
def test_another_number_of_workers_continues_at_the_same_fraction_of_an_epoch(store, tmp_path, monkeypatch, workers):
    monkeypatch.setattr("ncelm.training.engine.MOST_PLANNED", 3)
    stopped_run(store, tmp_path / "run")
    arrays = load_file(tmp_path / "run" / run.CHECKPOINT)
    header = array_files.read_header(tmp_path / "run" / run.CHECKPOINT)
    config = configure(store, tmp_path / "run", epochs=3, **SMALL).config
    former = Setup.create(store, tmp_path / "run", config, (), SingleProcess())
    steps = former.steps_per_epoch_of(workers)
    header["state"] |= {"workers": workers, "step": steps // 2, "loss_sum": 1000.0}
    array_files.write_arrays(tmp_path / "run" / run.CHECKPOINT, arrays, header)
    epoch = header["state"]["epoch"]
    restored = restore(former, [Member(0, "host", "agent", epoch + steps // 2 / steps)])
    with pytest.raises(NcelmError, match="has lost its checkpoint"):
        restore(former, [Member(0, "host", "agent", epoch + (steps // 2 + 1) / steps)])
    assert restored.state.workers == 1
    fraction = restored.state.step / former.steps_per_epoch
    assert fraction == pytest.approx(0.5, abs=1.5 / min(steps, former.steps_per_epoch))
    words = restored.state.step * former.step_words
    assert restored.state.loss_sum / words == pytest.approx(1000.0 / (steps // 2 / steps * former.tokens), rel=0.01)
    result = train(store, tmp_path / "run", epochs=3, resume=True, **SMALL)
    assert result["epoch"] == 3


@pytest.mark.parametrize("workers", [3, 4, 7])
def test_a_checkpoint_of_another_number_of_workers_is_not_lost(store, tmp_path, workers):
    """Its step is rounded to that of this number of workers, which may be earlier than what a worker remembers."""
    stopped_run(store, tmp_path / "run")
    path = tmp_path / "run" / run.CHECKPOINT
    arrays, header = load_file(path), array_files.read_header(path)
    setup = Setup.create(
        store, tmp_path / "run", configure(store, tmp_path / "run", epochs=3, **SMALL).config, (), SingleProcess()
    )
    steps = setup.steps_per_epoch_of(workers)
    for step in range(1, steps):
        header["state"] |= {"workers": workers, "step": step, "loss_sum": 1.0}
        array_files.write_arrays(path, arrays, header)
        restore(setup, [Member(0, "host", "agent", header["state"]["epoch"] + step / steps)])


@pytest.mark.parametrize("workers", [0, 10**9])
def test_an_impossible_number_of_workers_is_an_error(store, tmp_path, workers):
    stopped_run(store, tmp_path / "run")
    arrays = load_file(tmp_path / "run" / run.CHECKPOINT)
    header = array_files.read_header(tmp_path / "run" / run.CHECKPOINT)
    header["state"]["workers"] = workers
    array_files.write_arrays(tmp_path / "run" / run.CHECKPOINT, arrays, header)
    with pytest.raises(NcelmError, match="is not a checkpoint"):
        train(store, tmp_path / "run", epochs=3, resume=True, **SMALL)


# -- initial vectors -------------------------------------------------------------------------------------------------


def test_initial_vectors_of_another_run(store, tmp_path):
    train_lsa(store, tmp_path / "lsa", dim=9)
    options = {"init_from": str(tmp_path / "lsa"), "learning_rate": 1e-12, "epochs": 1, "init_std": 0.1}
    train(store, tmp_path / "run", **SMALL | options)
    given = load_scorer(tmp_path / "lsa").vectors()[:, :8]
    given = given[2:] / np.linalg.norm(given[2:], axis=1, keepdims=True)  # <unk> and </s> have none
    arrays = load_file(tmp_path / "run" / run.MODEL)
    for name in ("context_vectors", "target_vectors"):
        np.testing.assert_allclose(arrays[name][2 : 2 + len(given)], given, atol=1e-5)
        assert arrays[name][1].std() == pytest.approx(0.1, abs=0.06)  # random
    train(store, tmp_path / "again", **SMALL | {"epochs": 1, "init_from": str(tmp_path / "run")})  # a neural model


def test_initial_vectors_that_do_not_fit_are_errors_before_anything_is_written(store, tmp_path):
    train_lsa(store, tmp_path / "lsa", dim=5)
    (tmp_path / "text").write_text("a b c\n" * 50)
    other = prepare(train=tmp_path / "text", out=tmp_path / "other", boundary="sentence")
    for options, message in (
        ({"init_from": str(tmp_path / "lsa")}, "vectors of 5 dimensions, and `dim` is 8"),
        ({"init_from": str(tmp_path / "nothing")}, "there is no run at"),
        ({"init_from": str(tmp_path / "lsa"), "dim": 5, "store": other}, "another vocabulary"),
    ):
        with pytest.raises(NcelmError, match=message):
            train(options.pop("store", store), tmp_path / "run", **SMALL | options)
        assert not (tmp_path / "run").exists()
