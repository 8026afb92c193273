"""The training loop: determinism, interruption and resuming, divergence, early stopping, metrics.

Each combination of loss, noise, optimizer and matrices is a kernel of its own, which takes ten seconds to compile.
Tests use NCE and Adagrad; those that need another kernel are marked as slow, and use kernels of tests/kernels.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.helpers import model_bytes

from ncelm.errors import DivergedError, NcelmError, Terminated
from ncelm.io import run
from ncelm.io.metrics import Metrics
from ncelm.language_model import LanguageModel
from ncelm.models.evaluate import EvaluationSums
from ncelm.text.prepare import prepare
from ncelm.training import loop
from ncelm.training.backend import BACKENDS, memory_bytes
from ncelm.training.config import TrainConfig
from ncelm.training.loop import train

MODEL = {"context": 2, "dim": 8, "batch_size": 100}
SMALL = MODEL | {"noise_samples": 5}


def small(loss):
    """Return options of a small model for a loss."""
    return {"loss": loss, **(MODEL if loss == "ml" else SMALL)}


@pytest.fixture(scope="module")
def store(cycle_store):
    return cycle_store


@pytest.fixture
def few_minibatches_per_call(monkeypatch):
    monkeypatch.setattr("ncelm.training.engine.MOST_PLANNED", 3)


def records_of(folder):
    return Metrics(folder / run.METRICS).read()


def press_ctrl_c(progress=None):
    os.kill(os.getpid(), signal.SIGINT)


def test_training_learns_and_reports_progress(store, tmp_path):
    seen = []
    last = train(store, tmp_path / "run", epochs=3, progress=seen.append, **SMALL)
    records = records_of(tmp_path / "run")
    assert [r["epoch"] for r in records] == [1, 2, 3]
    assert records[-1] == last
    assert last["finished"]
    assert records[-1]["valid_perplexity"] < records[0]["valid_perplexity"] < len(store.vocabulary)
    assert abs(last["valid_log_z_mean"]) < 0.5
    assert seen[-1].metrics == last
    assert seen[-1].words == store.split("train").tokens
    assert all(a.loss > 0 and a.words_per_second > 0 for a in seen)


def test_metrics_are_json_lines(store, tmp_path):
    train(store, tmp_path / "run", epochs=2, **SMALL)
    for line in (tmp_path / "run" / run.METRICS).read_text().splitlines():
        assert {"epoch", "loss", "learning_rate", "words", "seconds", "valid_perplexity"} <= set(json.loads(line))


def test_watched_splits_do_not_change_the_model(store, tmp_path):
    plain = train(store, tmp_path / "plain", epochs=2, **SMALL)
    watched = train(store, tmp_path / "watched", epochs=2, watch=("test",), **SMALL)
    assert "test_perplexity" not in plain
    expected = LanguageModel.load(tmp_path / "watched").evaluate_split(store, "test").perplexity
    assert watched["test_perplexity"] == pytest.approx(expected)
    assert model_bytes(tmp_path / "plain") == model_bytes(tmp_path / "watched")
    with pytest.raises(NcelmError, match="no dev split"):
        train(store, tmp_path / "dev", watch=("dev",))


@pytest.mark.parametrize("minutes", [-1.0, float("nan"), float("inf"), "5"])
def test_invalid_checkpoint_intervals_are_errors(store, tmp_path, minutes):
    with pytest.raises(NcelmError, match="`checkpoint_minutes` is"):
        train(store, tmp_path / "run", checkpoint_minutes=minutes)
    assert not (tmp_path / "run").exists()


def test_unknown_options_are_errors(store, tmp_path):
    with pytest.raises(NcelmError, match="no training option 'dims'"):
        train(store, tmp_path / "run", dims=3)
    assert not (tmp_path / "run").exists()


# -- backends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", ["loss", "optimizer"])
def test_what_an_engine_does_not_implement_is_rejected_before_anything_is_written(store, tmp_path, monkeypatch, slot):
    from ncelm.training import engine

    registry = engine.LOSSES if slot == "loss" else engine.OPTIMIZERS
    config = TrainConfig()
    monkeypatch.delitem(registry, type(getattr(config, slot)))
    with pytest.raises(
        NcelmError, match=rf"`{slot}` {getattr(config, slot).name} is not implemented by `engine` compiled"
    ):
        train(store, tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


def test_memory_of_all_backends():
    assert set(BACKENDS) == {"compiled", "torch"}
    small_model, large = TrainConfig().with_changes(dim=10), TrainConfig().with_changes(dim=100)
    assert memory_bytes(small_model, 1000, 10_000) < memory_bytes(large, 1000, 10_000)


# -- determinism -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["nce", pytest.param("ml", marks=pytest.mark.slow)])
def test_the_model_does_not_depend_on_the_number_of_threads(store, tmp_path, loss):
    for threads in (1, 2, 3):
        train(store, tmp_path / str(threads), epochs=2, threads=threads, **small(loss))
    assert model_bytes(tmp_path / "1") == model_bytes(tmp_path / "2") == model_bytes(tmp_path / "3")


COMPILED = """
import sys
from ncelm.training.loop import train
small = {{"context": 2, "dim": 8, "noise_samples": 5, "batch_size": 100, "epochs": 2}}
train({store!r}, sys.argv[1] + "/own", **small)
train({store!r}, sys.argv[1] + "/shared", shared_noise=True, **small)
"""


@pytest.mark.slow
def test_the_model_does_not_depend_on_the_compile_cache(store, tmp_path):
    environment = os.environ | {"NCELM_CACHE_DIR": str(tmp_path / "cache")}
    for name in ("compiled", "cached"):
        (tmp_path / name).mkdir()
        command = [sys.executable, "-c", COMPILED.format(store=str(store.path)), str(tmp_path / name)]
        subprocess.run(command, check=True, env=environment)
    for kind in ("own", "shared"):
        assert model_bytes(tmp_path / "compiled" / kind) == model_bytes(tmp_path / "cached" / kind)


def test_another_seed_gives_another_model(store, tmp_path):
    for seed in (0, 1):
        train(store, tmp_path / str(seed), seed=seed, epochs=1, **SMALL)
    assert model_bytes(tmp_path / "0") != model_bytes(tmp_path / "1")


@pytest.mark.slow
def test_adagrad_with_a_large_initial_accumulator_is_sgd(store, tmp_path):
    """Limiting case: rate/√(start + Σg²) → rate/√start."""
    train(store, tmp_path / "sgd", optimizer="sgd", learning_rate=0.01, epochs=1, **SMALL)
    options = {"learning_rate": 10.0, "initial_accumulator": 1e6, "warmup_steps": 1, "epochs": 1}
    train(store, tmp_path / "adagrad", **options, **SMALL)
    sgd, adagrad = (load_file(tmp_path / name / run.MODEL) for name in ("sgd", "adagrad"))
    for name, values in sgd.items():
        np.testing.assert_allclose(adagrad[name], values, atol=1e-3)


# -- interruption ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["linear", "halve"])
@pytest.mark.usefixtures("few_minibatches_per_call")
def test_interrupted_and_resumed_runs_give_the_same_bytes(store, tmp_path, schedule):
    options = {"epochs": 4, "schedule": schedule, **SMALL}
    train(store, tmp_path / "whole", **options)
    calls = 0

    def press_sometimes(progress):
        nonlocal calls
        calls += 1
        if calls % 7 == 0:
            press_ctrl_c()

    stops = 0
    while True:
        try:
            train(store, tmp_path / "broken", resume=True, progress=press_sometimes, **options)
            break
        except KeyboardInterrupt:
            stops += 1
    assert stops > 2
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "broken")
    whole, broken = records_of(tmp_path / "whole"), records_of(tmp_path / "broken")
    for a, b in zip(whole, broken, strict=True):
        for measured in ("seconds", "words_per_second", "validation_seconds"):
            a.pop(measured), b.pop(measured)
        assert a == b


@pytest.mark.parametrize("group", [0, -1], ids=["first", "last"])
def test_ctrl_c_within_any_call_of_the_engine_can_be_resumed(store, tmp_path, monkeypatch, group):
    from ncelm.training.engine import Engine

    options = {"epochs": 2, **SMALL}
    train(store, tmp_path / "whole", **options)
    original = Engine.run
    pressed = []

    def run_and_press(self, epoch, step, *rates):
        wanted = step == 0 if group == 0 else step + len(rates[0]) == self.steps_per_epoch
        if wanted and not pressed:
            pressed.append(step)
            press_ctrl_c()
        return original(self, epoch, step, *rates)

    monkeypatch.setattr(Engine, "run", run_and_press)
    with pytest.raises(KeyboardInterrupt, match=r"a checkpoint is in .*: continue with `resume`"):
        train(store, tmp_path / "broken", **options)
    train(store, tmp_path / "broken", resume=True, **options)
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "broken")


KILLED = """
import sys
from ncelm.training.loop import train
import ncelm.training.engine
ncelm.training.engine.MOST_PLANNED = 2
options = {{"context": 2, "dim": 8, "noise_samples": 5, "batch_size": 100}}
train({store!r}, {out!r}, epochs=6, resume=True, checkpoint_minutes=0.0, **options)
"""


@pytest.mark.slow
def test_killed_and_resumed_runs_give_the_same_bytes(store, tmp_path):
    """SIGKILL at five different moments, with checkpoints after every few minibatches."""
    train(store, tmp_path / "whole", epochs=6, **SMALL)
    out = tmp_path / "killed"
    code = KILLED.format(store=str(store.path), out=str(out))
    for kill in range(5):
        process = subprocess.Popen([sys.executable, "-c", code])
        checkpoints = set()
        while len(checkpoints) < 4 + kill:
            assert process.poll() is None, "the run ended before it could be killed"
            if (out / run.CHECKPOINT).exists():
                checkpoints.add((out / run.CHECKPOINT).stat().st_mtime_ns)
        time.sleep(0.0007 * kill)  # between checkpoints, or while one is being written
        process.kill()
        process.wait()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert model_bytes(tmp_path / "whole") == model_bytes(out)
    assert not list(out.glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"log_normalizers": "learned", "noise": "bigram"},
        {"loss": "importance", "min_effective_samples": 4.0, "max_samples": 20, "learning_rate": 0.02},
        {"shared_noise": True, "dropout": 0.1},
        {"loss": "ranking"},
        {"optimizer": "adam", "learning_rate": 0.01},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.usefixtures("few_minibatches_per_call")
def test_every_loss_resumes_to_the_same_bytes(store, tmp_path, options):
    options = SMALL | {"epochs": 2} | options
    train(store, tmp_path / "whole", **options)
    calls = 0

    def press_once(progress):
        nonlocal calls
        calls += 1
        if calls == 5:
            press_ctrl_c()

    with pytest.raises(KeyboardInterrupt):
        train(store, tmp_path / "broken", progress=press_once, **options)
    train(store, tmp_path / "broken", resume=True, threads=1, **options)
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "broken")
    whole, broken = records_of(tmp_path / "whole"), records_of(tmp_path / "broken")
    for field in set(whole[-1]) - {"seconds", "words_per_second", "validation_seconds"}:
        assert whole[-1][field] == broken[-1][field], field


def test_an_error_before_the_first_checkpoint_leaves_nothing(store, tmp_path):
    def fail(progress):
        raise RuntimeError("of the callback")

    with pytest.raises(RuntimeError):
        train(store, tmp_path / "run", progress=fail, **SMALL)
    assert not (tmp_path / "run").exists()


# -- validation on a sample ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("last", "expected"), [(80.0, 3), (86.0, 2)], ids=["last", "selected"])
def test_the_last_model_is_compared_with_the_selected_one_on_all_of_the_text(
    store, tmp_path, monkeypatch, last, expected
):
    """On the sample, the second of three epochs is the best one."""
    words = store.split("valid").tokens
    of_sample, of_text = iter([100.0, 100.0, 90.0, 91.0]), iter([last, 85.0])  # the first call compiles
    evaluated = []

    def evaluate(model, store, name, count, *rest):
        evaluated.append({key: array.copy() for key, array in model.arrays().items()})
        perplexity = next(of_text if count == words else of_sample)
        return EvaluationSums.from_array(np.array([count, -count * np.log(perplexity), 0.0, 0.0]))

    monkeypatch.setattr("ncelm.training.loop.evaluate_sample", evaluate)
    record = train(store, tmp_path / "run", epochs=3, validation_words=100, patience=2, **SMALL)
    assert record["best_epoch"] == expected
    assert record["best_valid_perplexity"] == pytest.approx(min(last, 85.0))
    assert record["best_valid_words"] == words
    written = load_file(tmp_path / "run" / "model.safetensors")
    for name, array in evaluated[expected].items():  # after the first call, one for each epoch
        np.testing.assert_array_equal(written[name], array)


# -- divergence ------------------------------------------------------------------------------------------------------


SGD = {"optimizer": "sgd"}
ADAGRAD = {"optimizer": "adagrad", "warmup_steps": 1}


@pytest.mark.parametrize(
    "options",
    [
        {**ADAGRAD, **small("nce")},
        pytest.param({**SGD, **small("nce")}, marks=pytest.mark.slow),
        pytest.param({**ADAGRAD, **small("ml")}, marks=pytest.mark.slow),
    ],
    ids=["nce-adagrad", "nce-sgd", "ml-adagrad"],
)
def test_divergence_is_one_line_and_keeps_the_best_model(store, tmp_path, options, monkeypatch):
    with pytest.raises(NcelmError, match=r"diverged in epoch 1.*lower `learning_rate` than 1e"):
        train(store, tmp_path / "run", learning_rate=1e6, matrix_lr_scale=1.0, **options)
    assert not (tmp_path / "run" / run.MODEL).exists()

    original = loop.learning_rates
    first_epoch = -(-store.split("train").tokens // 100)
    monkeypatch.setattr(  # explode in the second epoch
        loop,
        "learning_rates",
        lambda schedule, optimizer, rate, updates, steps: (
            original(schedule, optimizer, rate, updates, steps) * np.where(updates < first_epoch, 1.0, 1e9)
        ),
    )
    with pytest.raises(NcelmError, match=r"diverged in epoch 2.*epoch 1. is kept"):
        train(store, tmp_path / "two", epochs=3, learning_rate=1e-3, **options)
    LanguageModel.load(tmp_path / "two")


def test_divergence_is_detected_without_a_validation_split(tmp_path):
    (tmp_path / "text").write_text("a b c d\nb c a\n" * 200)
    lonely = prepare(train=tmp_path / "text", out=tmp_path / "store")
    options = SMALL | ADAGRAD | {"learning_rate": 1e6, "batch_size": 5000}
    with pytest.raises(NcelmError, match="diverged in epoch 1"):
        train(lonely, tmp_path / "run", epochs=1, **options)
    train(lonely, tmp_path / "another", epochs=1, **options | {"learning_rate": 0.001})


def test_overfitting_is_not_divergence(tmp_path):
    random = np.random.default_rng(0)
    for name in ("train", "valid"):  # independent texts
        lines = [" ".join(f"w{i}" for i in random.integers(500, size=10)) for _ in range(60)]
        (tmp_path / name).write_text("\n".join(lines))
    store = prepare(train=tmp_path / "train", valid=tmp_path / "valid", out=tmp_path / "store")
    last = train(store, tmp_path / "run", dim=50, epochs=60, batch_size=50, learning_rate=0.2)
    assert last["finished"]
    assert last["valid_perplexity"] > len(store.vocabulary)
    assert last["best_epoch"] < 5


def test_divergence_is_recorded_and_not_repeated(store, tmp_path):
    options = SMALL | ADAGRAD | {"learning_rate": 1e6, "matrix_lr_scale": 1.0}
    with pytest.raises(DivergedError) as first:
        train(store, tmp_path / "run", **options)
    (record,) = records_of(tmp_path / "run")
    assert record["finished"]
    assert record["diverged"] in str(first.value)
    assert record["epoch"] == 1
    with pytest.raises(DivergedError) as again:
        train(store, tmp_path / "run", resume=True, **options)
    assert str(again.value) == str(first.value)


# -- importance sampling and learned log-normalizers -----------------------------------------------------------------


@pytest.mark.slow
def test_importance_sampling_reports_its_weights(store, tmp_path):
    last = train(store, tmp_path / "run", loss="importance", epochs=2, learning_rate=0.02, **SMALL)
    assert 1.0 <= last["least_effective_samples"] <= last["effective_samples"] <= 5.0
    assert last["samples"] == 5.0
    assert np.isfinite(last["largest_log_weight"])
    steps = [summary["step"] for summary in last["weights"]]
    assert steps == sorted(set(steps))
    assert len(steps) > 10
    assert last["valid_perplexity"] < len(store.vocabulary)


@pytest.mark.slow
def test_adaptive_importance_sampling_reaches_the_effective_sample_size(store, tmp_path):
    options = SMALL | {"min_effective_samples": 6.0, "max_samples": 40, "learning_rate": 0.02}
    last = train(store, tmp_path / "run", loss="importance", epochs=1, **options)
    assert last["effective_samples"] >= 6.0
    assert 5.0 < last["samples"] <= 40.0


@pytest.mark.slow
def test_importance_sampling_that_diverges_records_the_last_weights(store, tmp_path):
    options = SMALL | ADAGRAD | {"learning_rate": 1.0, "batch_size": 20}
    with pytest.raises(DivergedError, match=r"worse than that of a uniform|not finite"):
        train(store, tmp_path / "run", loss="importance", epochs=20, **options)
    record = records_of(tmp_path / "run")[-1]
    last = record["last_weights"]
    assert 1 <= len(last) <= 5
    assert last[-1]["step"] <= record["step"]
    assert last[-1]["word"] in store.vocabulary
    assert len(last[-1]["context"]) == 2
    assert 0 < last[-1]["share"] <= 1
    assert max(line["largest_log_weight"] for line in last) <= record["largest_log_weight"]
    assert record["weights"]


@pytest.mark.slow
def test_learned_log_normalizers_are_not_part_of_the_model(store, tmp_path):
    last = train(store, tmp_path / "run", log_normalizers="learned", noise="bigram", epochs=2, **SMALL)
    assert last["contexts"] > 20
    assert last["log_normalizers_std"] > 0
    assert "log_normalizers" not in load_file(tmp_path / "run" / run.MODEL)
    assert load_file(tmp_path / "run" / run.CHECKPOINT)["log_normalizers"].shape == (last["contexts"],)


# -- schedules -------------------------------------------------------------------------------------------------------


def test_rates_are_halved_when_perplexity_rises_and_training_stops_early(store, tmp_path):
    options = {"schedule": "halve", "learning_rate": 0.3, "epochs": 60, "patience": 2}
    last = train(store, tmp_path / "run", **options, **SMALL)
    records = records_of(tmp_path / "run")
    assert last["epoch"] < 60
    for before, now, following in zip(records, records[1:], records[2:], strict=False):
        rose = now["valid_perplexity"] > before["valid_perplexity"] * 0.999
        assert following["learning_rate"] == now["learning_rate"] / (2 if rose else 1)
    best = min(records, key=lambda r: r["valid_perplexity"])
    assert last["best_epoch"] == best["epoch"]
    lm = LanguageModel.load(tmp_path / "run")
    assert lm.evaluate_split(store, "valid").perplexity == pytest.approx(best["valid_perplexity"])


def test_halving_needs_a_validation_split(tmp_path):
    (tmp_path / "text").write_text("a b c\nb c a\n")
    lonely = prepare(train=tmp_path / "text", out=tmp_path / "store")
    with pytest.raises(NcelmError, match="no validation text"):
        train(lonely, tmp_path / "run", schedule="halve")
    assert not (tmp_path / "run").exists()
    train(lonely, tmp_path / "run", epochs=1)  # linear decay needs none


def test_tiny_texts_do_not_diverge(tmp_path):
    for i, text in enumerate(("a b\n", "a\nb\n", "x y " * 1000, "a b c\n" * 500)):
        (tmp_path / f"{i}.txt").write_text(text)
        store = prepare(train=tmp_path / f"{i}.txt", out=tmp_path / f"s{i}")
        train(store, tmp_path / f"r{i}", dim=10)
        assert np.isfinite(LanguageModel.load(tmp_path / f"r{i}").perplexity(["a b"]))


# -- SIGTERM, changes of the store -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_signals_during_validation_are_answered_and_resumed(store, tmp_path, monkeypatch, number, kind):
    """The checkpoint says that all minibatches of the epoch are done; the resumed run validates."""
    options = {"epochs": 3, "schedule": "halve", "watch": ["test"], **SMALL}
    train(store, tmp_path / "whole", **options)
    original, validations = loop.evaluate_sample, []

    def evaluate_and_signal(model, store, name, *rest):
        validations.append(name)
        if len(validations) in (1, 4):  # of the validation split, and of the test split of the second epoch
            os.kill(os.getpid(), number)
            time.sleep(60)
        return original(model, store, name, *rest)

    monkeypatch.setattr(loop, "evaluate_sample", evaluate_and_signal)
    for _ in range(2):
        with pytest.raises(kind, match=r"stopped by .*; a checkpoint is in .*: continue with `resume`") as caught:
            train(store, tmp_path / "broken", resume=True, **options)
        assert type(caught.value) is kind
    train(store, tmp_path / "broken", resume=True, **options)
    assert len(validations) > 6
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "broken")
    whole, broken = records_of(tmp_path / "whole"), records_of(tmp_path / "broken")
    assert [record["valid_perplexity"] for record in whole] == [record["valid_perplexity"] for record in broken]


def test_sigterm_writes_a_checkpoint(store, tmp_path):
    def terminate(progress):
        os.kill(os.getpid(), signal.SIGTERM)

    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated, match="stopped by SIGTERM; a checkpoint is in"):
        train(store, tmp_path / "run", epochs=3, progress=terminate, **SMALL)
    assert signal.getsignal(signal.SIGTERM) is former
    assert (tmp_path / "run" / run.CHECKPOINT).exists()


CHANGES = {
    "permuted": lambda content: content[::-1],
    "overwritten": lambda content: b"\xff" * len(content),
    "truncated": lambda content: content[:100],
    "removed": None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_store_that_changes_during_training(store, tmp_path, change):
    """Training stops with one line. Nothing is lost: the run continues with the restored store, to the same bytes."""
    shutil.copytree(store.path, tmp_path / "store")
    train(store, tmp_path / "whole", epochs=2, **SMALL)
    path = tmp_path / "store/train.ids"
    content = path.read_bytes()

    def modify(progress):
        if CHANGES[change] is None:
            path.unlink(missing_ok=True)
        else:
            with path.open("r+b") as file:  # in place, as a careless program does
                file.truncate(len(CHANGES[change](content)))
                file.write(CHANGES[change](content))

    with pytest.raises(NcelmError, match=r"train.ids was changed while it was in use.*; a checkpoint is in .*`resume`"):
        train(tmp_path / "store", tmp_path / "run", epochs=2, progress=modify, **SMALL)
    with pytest.raises(NcelmError, match="prepare the store again"):
        train(tmp_path / "store", tmp_path / "run", epochs=2, resume=True, **SMALL)
    path.write_bytes(content)
    train(tmp_path / "store", tmp_path / "run", epochs=2, resume=True, **SMALL)
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "run")


def test_a_store_that_is_only_copied_does_not_matter(store, tmp_path):
    shutil.copytree(store.path, tmp_path / "store")
    path = tmp_path / "store/train.ids"

    def touch(progress):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)

    train(tmp_path / "store", tmp_path / "run", epochs=1, progress=touch, **SMALL)


@pytest.mark.parametrize("name", [run.MODEL, run.METRICS, run.CHECKPOINT])
def test_a_finished_run_with_damaged_files_is_not_resumed(store, tmp_path, name):
    train(store, tmp_path / "run", epochs=1, **SMALL)
    train(store, tmp_path / "run", epochs=1, resume=True, **SMALL)
    path = tmp_path / "run" / name
    content = path.read_bytes()
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    for bad in (content[:-3], bytes(changed)):
        path.write_bytes(bad)
        with pytest.raises(NcelmError, match=r"damaged|truncated"):
            train(store, tmp_path / "run", epochs=1, resume=True, **SMALL)
