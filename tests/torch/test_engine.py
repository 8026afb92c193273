"""ncelm.torch.engine: training of all models with all losses, Adam, resuming, options that are rejected."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from safetensors.numpy import load_file  # noqa: E402
from tests.helpers import model_bytes, refused  # noqa: E402

from ncelm.cli.main import main  # noqa: E402
from ncelm.errors import NcelmError  # noqa: E402
from ncelm.io import run  # noqa: E402
from ncelm.models.log_bilinear import ModelConfig  # noqa: E402
from ncelm.torch import engine  # noqa: E402
from ncelm.torch.models import ARCHITECTURES, LogBilinear  # noqa: E402
from ncelm.training.config import Adam, Ranking, Sgd, TrainConfig  # noqa: E402
from ncelm.training.loop import train  # noqa: E402

SMALL = {"dim": 8, "noise_samples": 10, "batch_size": 100, "bptt_length": 10, "features": 5000, "learning_rate": 0.3}
SMALL |= {"matrix_lr_scale": 0.3}
LOSSES = {
    "nce": {"loss": "nce"},
    "shared": {"shared_noise": True, "noise_samples": 100},
    "penalty": {"log_z_penalty": 0.1},
    "ranking": {"loss": "ranking"},
    "ranking-penalty": {"loss": "ranking", "log_z_penalty": 0.1},
    "ml": {"loss": "ml"},
    "bigram": {"noise": "bigram", "bigram_smoothing": 10.0},
}


@pytest.fixture(scope="module")
def store(cycle_store):
    return cycle_store


def is_fast(architecture, loss):
    """Return whether a combination is in the fast subset: each loss with an output layer and with scores only."""
    return architecture in ("feed-forward", "maximum-entropy") or loss == "nce"


def combinations(losses):
    """Return all architectures with all losses as parameters of a test."""
    return [
        pytest.param(architecture, loss, marks=() if is_fast(architecture, loss) else pytest.mark.slow)
        for architecture in ARCHITECTURES
        for loss in losses
    ]


@pytest.mark.parametrize(("architecture", "loss"), combinations(LOSSES))
def test_every_model_learns_with_every_loss(store, tmp_path, architecture, loss):
    """A word is followed by the next of a cycle with probability 0.81: perplexity 4.8 is possible, unigrams have 20."""
    options = {"engine": "torch", "context": 2, "epochs": 6, **SMALL, **LOSSES[loss]}
    if loss == "ml":
        del options["noise_samples"]
    last = train(store, tmp_path / "run", TrainConfig(), architecture=architecture, threads=1, **options)
    assert last["valid_perplexity"] < 8.0
    if loss in ("nce", "shared", "penalty", "ranking-penalty"):  # self-normalized
        assert abs(last["valid_log_z_mean"]) < 0.5


def test_importance_sampling_learns(store, tmp_path):
    for architecture in ("feed-forward", "maximum-entropy"):
        small = SMALL | {"learning_rate": 0.05, "noise_samples": 20}
        options = {"loss": "importance", "context": 2, "epochs": 3, **small}
        last = train(store, tmp_path / architecture, TrainConfig(), architecture=architecture, threads=1, **options)
        assert last["valid_perplexity"] < 18.0


def test_gradients_equal_those_of_the_compiled_engine(store, tmp_path):
    """Maximum likelihood uses no random numbers: both engines take the same steps."""
    options = {name: value for name, value in SMALL.items() if name != "noise_samples"}
    options |= {"loss": "ml", "context": 2, "epochs": 1, "optimizer": "sgd", "learning_rate": 0.01}
    for name in ("compiled", "torch"):
        train(store, tmp_path / name, TrainConfig(), engine=name, threads=1, **options)
    compiled, ours = (load_file(tmp_path / name / run.MODEL) for name in ("compiled", "torch"))
    for name, values in compiled.items():
        np.testing.assert_allclose(ours[name], values, atol=2e-5)


# -- Adam --------------------------------------------------------------------------------------------------------------


class NumpyAdam:
    """Lazy Adam in float64: rows without a gradient are not updated."""

    def __init__(self, shape, beta1, beta2, epsilon):
        self.m, self.v = np.zeros(shape), np.zeros(shape)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def step(self, values, gradient, rows, t, rate):
        m = self.m[rows] = self.beta1 * self.m[rows] + (1 - self.beta1) * gradient[rows]
        v = self.v[rows] = self.beta2 * self.v[rows] + (1 - self.beta2) * gradient[rows] ** 2
        m_hat, v_hat = m / (1 - self.beta1**t), v / (1 - self.beta2**t)
        values[rows] -= rate * m_hat / (np.sqrt(v_hat) + self.epsilon)


def adam_case():
    model = LogBilinear.initialise(ModelConfig(dim=4, context=2), np.full(6, 1 / 6), 0, 0.1)
    model.sparse = True
    state = {kind: {n: np.zeros_like(a) for n, a in model.arrays().items()} for kind in ("momentum", "accumulator")}
    return model, state


def sparse_gradient(dense, rows):
    index = torch.tensor(rows)
    return torch.sparse_coo_tensor(index.unsqueeze(0), dense[index], dense.shape)


def adam_steps(model, state, config, steps):
    """Run updates with random gradients, of rows {t, t + 2} of each table; return the gradients and rows of each."""
    optimizer = engine.OPTIMIZERS[Adam](model, state, config)
    history = []
    for step in steps:
        optimizer.prepare(step, 0.1, 0.01)
        random = torch.Generator().manual_seed(step)
        update = {}
        for name, parameter in model.named_parameters():
            dense = torch.randn(parameter.shape, generator=random)
            rows = [step % 6, (step + 2) % 6] if name != "matrices" else list(range(len(dense)))
            parameter.grad = dense if name == "matrices" else sparse_gradient(dense, rows)
            update[name] = (dense.double().numpy(), rows)
        optimizer.step()
        history.append(update)
    return history


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # set explicitly by the engine
def test_adam_equals_its_equations_on_dense_and_sparse_parameters():
    """A large ε shows where it is added. Rows without a gradient keep their values and moments."""
    config = Adam(beta1=0.8, beta2=0.9, epsilon=0.1)
    model, state = adam_case()
    values = {name: array.astype(np.float64) for name, array in model.arrays().items()}
    reference = {name: NumpyAdam(array.shape, 0.8, 0.9, 0.1) for name, array in values.items()}
    for t, update in enumerate(adam_steps(model, state, config, range(5)), start=1):
        for name, (gradient, rows) in update.items():
            reference[name].step(values[name], gradient, rows, t, 0.01 if name == "matrices" else 0.1)
    for name, array in model.arrays().items():
        np.testing.assert_allclose(array, values[name], atol=1e-5)
        np.testing.assert_allclose(state["momentum"][name], reference[name].m, atol=1e-6)
        np.testing.assert_allclose(state["accumulator"][name], reference[name].v, atol=1e-6)
    assert not state["momentum"]["context_vectors"][6].any()  # never in a minibatch


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_adam_continues_from_its_arrays():
    """The state is in the arrays and in the number of the update: a new optimizer continues with the same bytes."""
    whole, split = adam_case(), adam_case()
    adam_steps(*whole, Adam(), range(6))
    adam_steps(*split, Adam(), range(3))
    adam_steps(*split, Adam(), range(3, 6))
    for name, array in whole[0].arrays().items():
        assert array.tobytes() == split[0].arrays()[name].tobytes()


@pytest.mark.parametrize(("architecture", "loss"), combinations(["nce", "ml"]))
def test_every_model_learns_with_adam(store, tmp_path, architecture, loss):
    options = SMALL | {"learning_rate": 0.02, "matrix_lr_scale": 0.5, **LOSSES[loss]}
    if loss == "ml":
        del options["noise_samples"]
    options |= {"engine": "torch", "optimizer": "adam", "context": 2, "epochs": 6}
    last = train(store, tmp_path / "run", TrainConfig(), architecture=architecture, threads=1, **options)
    assert last["valid_perplexity"] < 8.0


# -- resuming ----------------------------------------------------------------------------------------------------------


class StopError(Exception):
    """Raised by a callback to stop training."""


@pytest.mark.parametrize(
    ("architecture", "options"),
    [("lstm", {"dropout": 0.2}), ("lstm", {"optimizer": "adam"}), ("maximum-entropy", {}),
     ("feed-forward", {"loss": "ranking", "optimizer": "adam"})],
)  # fmt: skip
def test_a_stopped_run_continues_to_the_same_bytes(store, tmp_path, architecture, options):
    options = {"architecture": architecture, "context": 2, "epochs": 2, "threads": 1, **SMALL, **options}
    if options.get("optimizer") == "adam":
        options |= {"learning_rate": 0.02}
    train(store, tmp_path / "whole", **options)
    calls = 0

    def stop(progress):
        nonlocal calls
        calls += 1
        if calls == 7:
            raise StopError

    with pytest.raises(StopError):
        train(store, tmp_path / "stopped", progress=stop, checkpoint_minutes=0.0, **options)
    assert (tmp_path / "stopped" / run.CHECKPOINT).exists()
    train(store, tmp_path / "stopped", resume=True, **options)
    assert model_bytes(tmp_path / "stopped") == model_bytes(tmp_path / "whole")


def test_a_run_is_not_resumed_with_another_architecture(store, tmp_path):
    train(store, tmp_path / "run", architecture="feed-forward", context=2, epochs=1, threads=1, **SMALL)
    with pytest.raises(NcelmError, match="with `architecture` feed-forward, not lstm"):
        train(store, tmp_path / "run", architecture="lstm", context=2, epochs=1, resume=True, **SMALL)


# -- rejected options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "registry", "removed", "message"),
    [
        ({"loss": "ranking"}, "LOSSES", Ranking, "`loss` ranking is not implemented in `engine` torch: choose one of "
         "nce, ml, importance"),
        ({"optimizer": "sgd"}, "OPTIMIZERS", Sgd, "`optimizer` sgd is not implemented in `engine` torch: choose one of "
         "adagrad, adam"),
    ],
)  # fmt: skip
def test_what_is_not_registered_is_rejected_before_anything_is_written(
    store, tmp_path, monkeypatch, options, registry, removed, message
):
    monkeypatch.delitem(getattr(engine, registry), removed)
    with pytest.raises(NcelmError) as error:
        train(store, tmp_path / "run", architecture="feed-forward", **SMALL, **options)
    assert str(error.value) == message
    assert not (tmp_path / "run").exists()


def test_options_without_effect_are_rejected(store, tmp_path):
    for options in ({"dropout": 0.2}, {"clip_norm": 1.0}):
        (name,) = options
        with pytest.raises(NcelmError, match=f"`{name}` of a maximum-entropy model is not implemented"):
            train(store, tmp_path / "run", architecture="maximum-entropy", **SMALL, **options)
    assert not (tmp_path / "run").exists()


def test_options_of_the_compiled_engine_are_rejected():
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


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["feed-forward", "lstm", "maximum-entropy"])
def test_commands_work_with_every_model(store, tmp_path, architecture, capsys):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    out = str(tmp_path / "run")
    command = ["train", str(store.path), "--out", out, "--model", architecture, "--epochs", "2", "--context", "2"]
    assert main([*command, *words, "--threads", "1", "--json"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert main(["evaluate", out, "--split", "valid", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["perplexity"] == pytest.approx(trained["valid_perplexity"], rel=1e-5)
    (tmp_path / "text").write_text("w1 w2 w3\n\nw9 unseen w3\n")
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


def test_a_damaged_model_is_rejected(store, tmp_path, capsys):
    train(store, tmp_path / "run", architecture="lstm", epochs=1, threads=1, **SMALL)
    model = tmp_path / "run" / run.MODEL
    content = model.read_bytes()
    model.write_bytes(content[: len(content) // 2])
    refused(capsys, ["evaluate", tmp_path / "run"], "damaged")
    shutil.copy(tmp_path / "run" / run.CHECKPOINT, model)
    refused(capsys, ["evaluate", tmp_path / "run"], "does not fit")


def test_the_command_line_reports_a_missing_installation(store, tmp_path, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("ncelm.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(capsys, ["train", store.path, "--out", tmp_path / "run", "--model", "lstm"], "pip install 'ncelm[torch]'")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow  # three processes import PyTorch
def test_the_example_with_many_classes_runs():
    script = Path(__file__).parents[2] / "examples" / "large_output.py"
    command = [sys.executable, str(script), "--classes", "2000", "--steps", "3", "--exact-steps", "2"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "Speed-up of NCE" in done.stdout
    assert done.stderr == ""
