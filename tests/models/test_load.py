"""Loading of runs: damaged and foreign run directories, runs of earlier versions, digests, imports."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.helpers import change_json, save_model

from ncelm import load
from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.models.load import load_vectors, load_word_model, run_checksum
from ncelm.models.log_bilinear import LogBilinear, ModelConfig
from ncelm.models.lsa import train_lsa
from ncelm.training.config import TrainConfig
from ncelm.training.loop import train


@pytest.fixture(scope="module")
def saved(cycle_store, tmp_path_factory):
    size = len(cycle_store.vocabulary)
    model = LogBilinear.initialise(ModelConfig(context=2, dim=4), np.full(size, 1.0 / size), seed=0, init_std=0.5)
    return save_model(tmp_path_factory.mktemp("load") / "run", cycle_store, model)


@pytest.fixture
def folder(saved, tmp_path):
    """A run that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


def change_config(folder, **changes):
    change_json(folder / run.CONFIG, changes)


# -- run directories -------------------------------------------------------------------------------------------------


def test_a_newer_run(folder):
    change_config(folder, version=99)
    with pytest.raises(NcelmError, match="newer ncelm"):
        load(folder)


def test_an_unknown_kind(folder):
    change_config(folder, kind="transformer")
    with pytest.raises(NcelmError, match="unknown kind, 'transformer'"):
        load(folder)


def test_folders_that_are_not_runs(tmp_path):
    with pytest.raises(NcelmError, match="there is no run at"):
        load(tmp_path / "nothing")
    with pytest.raises(NcelmError, match="is not a run"):
        load(tmp_path)
    (tmp_path / run.CONFIG).write_text('{"model_type": "bert"}')
    with pytest.raises(NcelmError, match="is not a run"):
        load(tmp_path)
    (tmp_path / run.CONFIG).write_text("not json")
    with pytest.raises(NcelmError, match="damaged"):
        load(tmp_path)


@pytest.mark.parametrize("field", ["config", "boundary", "text", "store"])
def test_missing_fields(folder, field):
    change_config(folder, **{field: 5 if field == "store" else None})  # a model may have no store
    with pytest.raises(NcelmError, match="damaged"):
        load(folder)


@pytest.mark.parametrize("model", [None, [], {"dim": 0}, {"dim": "4"}, {"dims": 4}, {"context": 0}])
def test_invalid_model_configurations(folder, model):
    change_config(folder, config={"model": model})
    with pytest.raises(NcelmError, match="damaged"):
        load(folder)


def test_a_missing_model(folder):
    (folder / run.MODEL).unlink()
    with pytest.raises(NcelmError, match=r"has no model\.safetensors: if training was stopped"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 5, 100, -50])
def test_a_truncated_model(folder, keep):
    path = folder / run.MODEL
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(NcelmError, match="damaged"):
        load(folder)


def test_a_model_with_an_impossible_length(folder):
    path = folder / run.MODEL
    path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(NcelmError, match="damaged"):
        load(folder)


def test_a_pickle_is_not_loaded(folder):
    (folder / run.MODEL).write_bytes(pickle.dumps({"context_vectors": [1.0]}))
    with pytest.raises(NcelmError, match="damaged"):
        load(folder)


def test_a_model_of_another_shape(folder):
    arrays = load_file(folder / run.MODEL)
    array_files.write_arrays(folder / run.MODEL, arrays | {"biases": arrays["biases"][:-1]}, {})
    with pytest.raises(NcelmError, match="biases is float32"):
        load(folder)
    del arrays["biases"]
    array_files.write_arrays(folder / run.MODEL, arrays, {})
    with pytest.raises(NcelmError, match="has no biases"):
        load(folder)


def test_a_checkpoint_is_not_a_model(cycle_store, tmp_path):
    """With SGD, which has no state, both have the same arrays."""
    train(cycle_store, tmp_path / "run", TrainConfig(), optimizer="sgd", learning_rate=0.02, epochs=1, dim=4)
    (tmp_path / "run" / run.CHECKPOINT).rename(tmp_path / "run" / run.MODEL)
    with pytest.raises(NcelmError, match="is a checkpoint, not a model"):
        load(tmp_path / "run")


def test_a_model_that_does_not_match_its_configuration(folder):
    content = json.loads((folder / run.CONFIG).read_text())
    content["config"]["model"]["tied_embeddings"] = True
    change_config(folder, **content)
    with pytest.raises(NcelmError, match="target_vectors"):
        load(folder)


def test_a_model_with_nan(folder):
    arrays = load_file(folder / run.MODEL)
    arrays["biases"][3] = np.nan
    array_files.write_arrays(folder / run.MODEL, arrays, {})
    with pytest.raises(NcelmError, match="not finite"):
        load(folder)


def test_the_vocabulary_of_another_model(folder):
    path = folder / run.VOCABULARY
    path.write_text(path.read_text().replace("w3", "x3"))
    with pytest.raises(NcelmError, match="not the vocabulary of this model"):
        load(folder)


def test_runs_of_version_1_are_loaded():
    path = Path(__file__).parents[1] / "fixtures/run_v1/nce"
    assert json.loads((path / run.CONFIG).read_text())["version"] == 1
    model, _ = load_word_model(path)
    expected = load_file(path / run.MODEL)
    assert isinstance(model, LogBilinear)
    for name, array in model.arrays().items():
        np.testing.assert_array_equal(array, expected[name])


# -- vectors, digests ------------------------------------------------------------------------------------------------


def test_vectors_of_a_run(saved, cycle_store, tmp_path):
    arrays = load_file(saved / run.MODEL)
    vectors, vocabulary = load_vectors(saved)
    np.testing.assert_array_equal(vectors, arrays["context_vectors"][:-1])
    assert vocabulary.digest == cycle_store.vocabulary.digest
    np.testing.assert_array_equal(load_vectors(saved, "target")[0], arrays["target_vectors"])
    train_lsa(cycle_store, tmp_path / "lsa", dim=3)
    np.testing.assert_array_equal(load_vectors(tmp_path / "lsa")[0], load_file(tmp_path / "lsa" / run.MODEL)["vectors"])


def test_a_digest_depends_on_configuration_and_parameters(folder):
    digest = run_checksum(folder)
    assert run_checksum(folder) == digest
    arrays = load_file(folder / run.MODEL)
    arrays["biases"][0] += 1.0
    array_files.write_arrays(folder / run.MODEL, arrays, {})
    changed = run_checksum(folder)
    assert changed != digest
    change_config(folder, note="changed")
    assert run_checksum(folder) not in (digest, changed)


# -- imports ---------------------------------------------------------------------------------------------------------

SLOW = ("numba", "scipy", "nltk", "torch", "tqdm", "matplotlib", "ncelm.training")


def imported_by(code: str) -> set[str]:
    """Return the names of SLOW modules that a new process imports to run `code`."""
    code = f"import sys\n{code}\nprint(*[name for name in {SLOW!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split())


def test_importing_the_models_is_fast():
    modules = "ncelm.language_model, ncelm.combine, ncelm.completion, ncelm.arpa, ncelm.noise"
    assert imported_by(f"import {modules}, ncelm.models.ngram.estimate") == set()


def test_neighbors_need_neither_numba_nor_scipy(saved, cycle_store, tmp_path):
    train_lsa(cycle_store, tmp_path / "lsa", dim=3)
    for path in (saved, tmp_path / "lsa"):
        code = f"from ncelm.language_model import load_scorer\nload_scorer({str(path)!r}).neighbors('w1')"
        assert imported_by(code) == set()


def test_evaluation_does_not_import_training(cycle_store, tmp_path):
    from ncelm.models.ngram.estimate import train_ngram

    train_ngram(cycle_store, tmp_path / "run", order=2)
    code = f"import ncelm\nncelm.load({str(tmp_path / 'run')!r}).score('w1 w2')"
    assert "ncelm.training" not in imported_by(code)


def test_the_parameters_of_another_run(folder, cycle_store, tmp_path):
    """The shapes are the same, and the checksum is right."""
    size = len(cycle_store.vocabulary)
    model = LogBilinear.initialise(ModelConfig(context=2, dim=4), np.full(size, 1.0 / size), seed=1, init_std=0.5)
    save_model(tmp_path / "other", cycle_store, model)
    change_config(tmp_path / "other", config={"model": {"context": 2, "dim": 4}, "seed": 1})
    array_files.write_arrays(tmp_path / "other" / run.MODEL, model.arrays(), {"kind": "log-bilinear"})
    load(tmp_path / "other")
    shutil.copy(tmp_path / "other" / run.MODEL, folder / run.MODEL)
    with pytest.raises(NcelmError, match=r"model.safetensors is a file of another run"):
        load(folder)
