"""PyTorch's models: the twin of the core, honest scores, training by any estimator, resuming, the same verbs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `torch`")
torch.set_num_threads(1)  # tensors are small here: threads would wait for each other

from safetensors.numpy import load_file  # noqa: E402
from tests.helpers import model_bytes, refused  # noqa: E402

import ncelm  # noqa: E402
from ncelm.cli.main import main  # noqa: E402
from ncelm.errors import NcelmError  # noqa: E402
from ncelm.io import run  # noqa: E402
from ncelm.kernels import records  # noqa: E402
from ncelm.kernels.threads import Team  # noqa: E402
from ncelm.models.log_bilinear import ModelConfig  # noqa: E402
from ncelm.torch import models  # noqa: E402
from ncelm.torch.models import ARCHITECTURES, LogBilinear  # noqa: E402
from ncelm.training.config import TrainConfig  # noqa: E402
from ncelm.training.loop import train  # noqa: E402

V = 30
SMALL = {"dim": 8, "noise_samples": 10, "batch_size": 100, "bptt_length": 10, "features": 5000, "learning_rate": 0.3}
SMALL |= {"matrix_lr_scale": 0.3}
SHAPES = [
    {"context": 3},
    {"context": 3, "matrices": "diagonal"},
    {"context": 2, "context_after": 2, "tied_embeddings": True},
    {"context": 0, "context_after": 2},
]


@pytest.fixture(scope="module")
def store(cycle_store):
    return cycle_store


def made(architecture, **options):
    config = ModelConfig(architecture=architecture, **{"dim": 8, "features": 1000, **options})
    probabilities = np.random.default_rng(0).dirichlet(np.ones(V))
    model = ARCHITECTURES[architecture].initialise(config, probabilities, 1, 0.5)
    with torch.no_grad():  # biases and zeros are no test
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
    return model


# -- scores ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_the_twin_has_the_core_s_scores_both_ways(options, store):
    core = ncelm.LogBilinear.initialise(ModelConfig(dim=8, **options), np.full(V, 1 / V), 3, 0.5)
    twin = LogBilinear.from_core(core)
    contexts = np.random.default_rng(0).integers(V + 1, size=(50, core.config.positions))
    with torch.no_grad():
        scores = twin.all_scores(torch.from_numpy(contexts))
        np.testing.assert_allclose(scores, core.scores(contexts), atol=1e-5)
        back = twin.to_core()
    np.testing.assert_array_equal(back.scores(contexts), core.scores(contexts))
    twin.biases.data += 1.0  # one memory
    assert core.biases[0] == back.biases[0]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scores_of_some_words_are_those_of_all(architecture):
    model = made(architecture)
    random = torch.Generator().manual_seed(0)
    contexts = torch.randint(V + 1, (6, 4), generator=random)
    if architecture == "lstm":
        contexts, _ = model.read(contexts, None, 0.0)
        contexts = contexts[:, -1]
    every = model.all_scores(contexts)
    words = torch.randint(V, (6, 3), generator=random)
    torch.testing.assert_close(model.scores(contexts, words), every.gather(1, words))
    torch.testing.assert_close(model.scores(contexts, words[0]), every[:, words[0]])


@pytest.mark.parametrize("boundary", ["stream", "sentence"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_word_has_one_probability_however_it_is_asked_for(architecture, boundary, monkeypatch):
    """Whole or in parts, in one thread or two, and alone by `distribution`."""
    monkeypatch.setattr(models, "EXACT_SCORES", 7 * V)
    monkeypatch.setattr(models, "HISTORY", 16)
    monkeypatch.setattr(models, "BLOCK", 32)
    model = made(architecture, context=3)
    random = np.random.default_rng(5)
    ids = random.integers(2, V, size=150)
    ids[random.integers(150, size=12)] = 1
    ids[-1] = 1
    pad = 1 if boundary == "stream" else V
    corpus = records.Corpus(ids, 0, boundary == "sentence", 1, pad)
    with Team(1) as team:
        scores, log_z = model.score_positions(corpus, 0, 150, team)
        parts = [model.score_positions(corpus, first, min(first + 40, 150), team) for first in range(0, 150, 40)]
        np.testing.assert_allclose(np.concatenate([part[0] for part in parts]), scores, atol=1e-5)
        np.testing.assert_allclose(np.concatenate([part[1] for part in parts]), log_z, atol=1e-5)
        bare, zeros = model.score_positions(corpus, 30, 90, team, normalised=False)
        np.testing.assert_allclose(bare, scores[30:90], atol=1e-5)
        assert not zeros.any()
    for position in (0, 1, 5, 30):  # of the first block, which an LSTM reads from the start
        start = 0
        if boundary == "sentence" and (ids[:position] == 1).any():
            start = int(np.flatnonzero(ids[:position] == 1)[-1]) + 1
        logs = model.distribution(ids[start:position], np.zeros(0, np.int64), pad)
        assert np.exp(logs).sum() == pytest.approx(1.0)
        assert logs[ids[position]] == pytest.approx(scores[position] - log_z[position], abs=1e-5)


def test_the_state_of_an_lstm_is_that_of_all_words_before():
    """Against a reader that takes one word after another."""
    model = made("lstm")
    words = torch.randint(V, (1, 12), generator=torch.Generator().manual_seed(0))
    whole, _ = model.read(words, None, 0.0)
    state = None
    for t in range(12):
        one, state = model.read(words[:, t : t + 1], state, 0.0)
        torch.testing.assert_close(one[:, 0], whole[:, t])


def test_an_lstm_forgets_where_a_sentence_begins():
    """What was read before the mark makes no difference to what follows it."""
    model = made("lstm")
    random = torch.Generator().manual_seed(0)
    words, state = torch.randint(V, (2, 9), generator=random), torch.randn(2, 1, 2, model.width, generator=random)
    fresh = torch.zeros(2, 9, dtype=torch.bool)
    fresh[0, 4] = True
    states, _ = model.read(words, (state[0], state[1]), 0.0, fresh)
    alone, _ = model.read(words[:1, 4:], None, 0.0)
    torch.testing.assert_close(states[0, 4:], alone[0])
    through, _ = model.read(words, (state[0], state[1]), 0.0)
    torch.testing.assert_close(states[1], through[1])
    torch.testing.assert_close(states[0, :4], through[0, :4])


def test_features_of_a_maximum_entropy_model_are_its_n_grams():
    """The same n-gram, the same weight, wherever it is; words further away than the n-gram make no difference."""
    model = made("maximum-entropy", context=3, context_after=1, features=10**7)
    contexts = torch.tensor([[1, 2, 3, 4], [9, 2, 3, 4], [1, 2, 3, 5], [3, 2, 1, 4]])
    places = model.features(contexts, torch.tensor([7, 8]))  # (4, 2, 4): one, two, three before; one after
    assert places.shape == (4, 2, 4)
    assert torch.equal(places[0, :, :2], places[1, :, :2])  # one and two words before are the same
    assert not torch.equal(places[0, :, 2], places[1, :, 2])
    assert torch.equal(places[0, :, 3], places[1, :, 3])
    assert torch.equal(places[0, :, :3], places[2, :, :3])
    assert not torch.equal(places[0, :, 3], places[2, :, 3])
    assert not (places[0] == places[3])[:, :3].any()  # the order of words counts
    assert not (places[:, 0] == places[:, 1]).any()  # and so does the word
    assert torch.equal(places, model.features(contexts, torch.tensor([[7, 8]] * 4)))


def test_there_are_more_features_than_words():
    with pytest.raises(NcelmError, match="--features is 30: give more than the 30 words"):
        made("maximum-entropy", features=V)


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("options", [{"loss": "nce"}, {"shared_noise": True, "noise_samples": 100},
                                     {"loss": "ml"}, {"noise": "bigram", "bigram_smoothing": 10.0}],
                         ids=["nce", "shared", "ml", "bigram"])  # fmt: skip
def test_any_model_learns_by_any_estimator(store, tmp_path, architecture, options):
    """Each word is followed by the next in eight of ten cases: perplexity can be 4.8, and that of unigrams is 20."""
    chosen = {"engine": "torch", "context": 2, "epochs": 6, **SMALL, **options}
    if options.get("loss") == "ml":
        del chosen["noise_samples"]
    last = train(store, tmp_path / "run", architecture=architecture, threads=1, **chosen)
    assert last["valid_perplexity"] < 8.0
    if options.get("loss") != "ml" and not options.get("noise"):
        assert abs(last["valid_log_z_mean"]) < 0.5


def test_importance_sampling_trains_too(store, tmp_path):
    for architecture in ("feed-forward", "maximum-entropy"):
        chosen = SMALL | {"learning_rate": 0.05, "noise_samples": 20}
        options = {"loss": "importance", "context": 2, "epochs": 3, **chosen}
        last = train(store, tmp_path / architecture, architecture=architecture, threads=1, **options)
        assert last["valid_perplexity"] < 18.0


def test_the_twin_s_gradients_are_the_core_s(store, tmp_path):
    """Exact maximum likelihood draws nothing, so one engine must do what the other does, step by step."""
    options = {name: value for name, value in SMALL.items() if name != "noise_samples"}
    options |= {"loss": "ml", "context": 2, "epochs": 1, "optimizer": "sgd", "learning_rate": 0.01}
    for engine in ("compiled", "torch"):
        train(store, tmp_path / engine, engine=engine, threads=1, **options)
    ours, theirs = (load_file(tmp_path / engine / run.MODEL) for engine in ("compiled", "torch"))
    for name, values in ours.items():
        np.testing.assert_allclose(theirs[name], values, atol=2e-5)


class StopError(Exception):
    """To stop a training where it is."""


@pytest.mark.parametrize("architecture", ["lstm", "maximum-entropy"])
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(store, tmp_path, architecture, monkeypatch):
    options = {"architecture": architecture, "context": 2, "epochs": 2, "dropout": 0.2, "threads": 1, **SMALL}
    train(store, tmp_path / "whole", **options)
    calls = 0

    def stop(at):
        nonlocal calls
        calls += 1
        if calls == 7:
            raise StopError

    with pytest.raises(StopError):
        train(store, tmp_path / "stopped", progress=stop, checkpoint_minutes=0.0, **options)
    assert (tmp_path / "stopped" / run.CHECKPOINT).exists()
    train(store, tmp_path / "stopped", resume=True, **options)
    assert model_bytes(tmp_path / "stopped") == model_bytes(tmp_path / "whole")


def test_another_model_is_not_resumed(store, tmp_path):
    train(store, tmp_path / "run", architecture="feed-forward", context=2, epochs=1, **SMALL)
    with pytest.raises(NcelmError, match="begun with `architecture` feed-forward, not lstm"):
        train(store, tmp_path / "run", architecture="lstm", context=2, epochs=1, resume=True, **SMALL)


def test_what_only_the_compiled_engine_can_is_refused():
    for options in (
        {"weight_decay": 0.1},
        {"weight_decay_per_epoch": 1.0},
        {"log_normalizers": "learned"},
        {"loss": "family"},
    ):
        with pytest.raises(NcelmError, match="`engine` compiled only"):
            TrainConfig().with_changes(architecture="lstm", **options)
    with pytest.raises(NcelmError, match="reads forwards"):
        ModelConfig(architecture="lstm", context_after=1)
    with pytest.raises(NcelmError, match="`architecture` is 'gru': give one of"):
        ModelConfig(architecture="gru")
    with pytest.raises(NcelmError, match="`bptt_length` is 2000"):
        TrainConfig(model=ModelConfig(architecture="lstm"), bptt_length=2000)


# -- the verbs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["feed-forward", "lstm", "maximum-entropy"])
def test_the_same_verbs(store, tmp_path, architecture, capsys):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    out = str(tmp_path / "run")
    command = ["train", str(store.path), "--out", out, "--model", architecture, "--epochs", "2", "--context", "2"]
    assert main([*command, *words, "--json"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert main(["evaluate", out, "--split", "valid", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["perplexity"] == pytest.approx(trained["valid_perplexity"], rel=1e-5)
    (tmp_path / "text").write_text("w1 w2 w3\n\nw9 nobody w3\n")
    assert main(["score", out, str(tmp_path / "text"), "--json"]) == 0
    scores = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [score["tokens"] for score in scores] == [4, 1, 4]
    assert scores[2]["unknown"] == 1
    assert main(["score", out, str(tmp_path / "text"), "--unnormalised"]) == 0
    capsys.readouterr()
    assert main(["complete", out, "w1 w2 ___ w4", "--choices", "w3,w9,w15", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["words"][0]["word"] == "w3"
    if architecture == "maximum-entropy":
        refused(capsys, ["neighbors", out, "w1"], "no word vectors")
        return
    for table in ("context", "target"):
        assert main(["neighbors", out, "w1", "--table", table, "--count", "3", "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["w1"]) == 3


def test_a_damaged_model_is_refused_in_a_line(store, tmp_path, capsys):
    train(store, tmp_path / "run", architecture="lstm", epochs=1, **SMALL)
    model = tmp_path / "run" / run.MODEL
    content = model.read_bytes()
    model.write_bytes(content[: len(content) // 2])
    refused(capsys, ["evaluate", tmp_path / "run"], "damaged")
    shutil.copy(tmp_path / "run" / run.CHECKPOINT, model)
    refused(capsys, ["evaluate", tmp_path / "run"], "does not fit")


def test_without_torch_the_command_line_names_the_extra(store, tmp_path, capsys, monkeypatch):
    import sys

    for name in [name for name in sys.modules if name.startswith("ncelm.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(capsys, ["train", store.path, "--out", tmp_path / "run", "--model", "lstm"], "pip install 'ncelm[torch]'")
    assert not (tmp_path / "run").exists()


def test_the_example_with_many_classes_runs():
    script = Path(__file__).parents[2] / "examples" / "large_output.py"
    command = [sys.executable, str(script), "--classes", "2000", "--steps", "3", "--exact-steps", "2"]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "NCE's step is" in told.stdout
    assert told.stderr == ""
