"""Training: determinism, resuming, stopping, diverging, and finding a distribution that is known."""

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

from ncelm.errors import DivergedError, NcelmError
from ncelm.io import array_files, run
from ncelm.io.metrics import Metrics
from ncelm.language_model import LanguageModel, load_scorer
from ncelm.models.lsa import train_lsa
from ncelm.text.prepare import prepare
from ncelm.training import loop as training
from ncelm.training.config import TrainConfig
from ncelm.training.loop import train
from ncelm.training.recipes import RECIPES, recipe

SMALL = {"context": 2, "dim": 8, "noise_samples": 5, "batch_size": 100}


@pytest.fixture(scope="module")
def store(cycle_store):
    return cycle_store


def test_training_learns_and_reports(store, tmp_path):
    seen = []
    last = train(store, tmp_path / "run", epochs=3, progress=seen.append, **SMALL)
    records = Metrics(tmp_path / "run" / run.METRICS).read()
    assert [r["epoch"] for r in records] == [1, 2, 3]
    assert records[-1] == last
    assert last["finished"]
    assert records[-1]["valid_perplexity"] < records[0]["valid_perplexity"] < len(store.vocabulary)
    assert abs(last["valid_log_z_mean"]) < 0.5
    assert seen[-1].metrics == last
    assert seen[-1].words == store.split("train").tokens
    assert all(a.loss > 0 and a.words_per_second > 0 for a in seen)


@pytest.mark.parametrize("estimator", ["nce", "ml"])
def test_the_same_bytes_whatever_the_number_of_threads(store, tmp_path, estimator):
    for threads in (1, 2, 3):
        train(store, tmp_path / str(threads), estimator=estimator, epochs=2, threads=threads, **SMALL)
    assert model_bytes(tmp_path / "1") == model_bytes(tmp_path / "2") == model_bytes(tmp_path / "3")


COMPILED = """
import sys
from ncelm.training.loop import train
small = {{"context": 2, "dim": 8, "noise_samples": 5, "batch_size": 100, "epochs": 2}}
train({store!r}, sys.argv[1] + "/own", **small)
train({store!r}, sys.argv[1] + "/shared", shared_noise=True, **small)
"""


@pytest.mark.slow
def test_the_same_bytes_whether_just_compiled_or_from_the_cache(store, tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
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


def test_training_starts_from_the_vectors_of_another_run(store, tmp_path):
    train_lsa(store, tmp_path / "lsa", dim=9)
    start = {"start_from": str(tmp_path / "lsa"), "learning_rate": 1e-12, "epochs": 1}
    train(store, tmp_path / "run", **SMALL | start)
    given = load_scorer(tmp_path / "lsa").vectors()[:, :8]
    given = given[2:] / np.linalg.norm(given[2:], axis=1, keepdims=True)  # <unk> and </s> have none
    arrays = load_file(tmp_path / "run" / run.MODEL)
    for name in ("context_vectors", "target_vectors"):
        np.testing.assert_allclose(arrays[name][2 : 2 + len(given)], given, atol=1e-5)
        assert arrays[name][1].std() == pytest.approx(0.1, abs=0.06)  # as without
    train(store, tmp_path / "again", **SMALL | {"epochs": 1, "start_from": str(tmp_path / "run")})  # any model will do


def test_vectors_that_do_not_fit_are_refused_before_anything_is_written(store, tmp_path):
    train_lsa(store, tmp_path / "lsa", dim=5)
    (tmp_path / "text").write_text("a b c\n" * 50)
    other = prepare(train=tmp_path / "text", out=tmp_path / "other", boundary="sentence")
    for options, message in (
        ({"start_from": str(tmp_path / "lsa")}, "vectors of 5 numbers, and --dim is 8"),
        ({"start_from": str(tmp_path / "nothing")}, "there is no run at"),
        ({"start_from": str(tmp_path / "lsa"), "dim": 5, "store": other}, "another vocabulary"),
    ):
        with pytest.raises(NcelmError, match=message):
            train(options.pop("store", store), tmp_path / "run", **SMALL | options)
        assert not (tmp_path / "run").exists()


def test_adagrad_that_starts_from_large_sums_of_squares_is_plain_descent(store, tmp_path):
    """Its limiting case: rate/√(start + Σg²) → rate/√start."""
    train(store, tmp_path / "plain", optimizer="sgd", learning_rate=0.01, epochs=1, **SMALL)
    train(store, tmp_path / "adagrad", learning_rate=10.0, adagrad_start=1e6, warm_up=1, epochs=1, **SMALL)
    plain, adagrad = (load_file(tmp_path / name / run.MODEL) for name in ("plain", "adagrad"))
    for name, values in plain.items():
        np.testing.assert_allclose(adagrad[name], values, atol=1e-3)


@pytest.mark.parametrize("schedule", ["linear", "halve"])
def test_interrupted_and_resumed_is_the_same_to_the_byte(store, tmp_path, monkeypatch, schedule):
    monkeypatch.setattr("ncelm.training.engine.MOST_PLANNED", 3)
    options = {"epochs": 4, "schedule": schedule, **SMALL}
    train(store, tmp_path / "whole", **options)
    calls = 0

    def press_ctrl_c(at):
        nonlocal calls
        calls += 1
        if calls % 7 == 0:
            os.kill(os.getpid(), signal.SIGINT)

    stops = 0
    while True:
        try:
            train(store, tmp_path / "broken", resume=True, progress=press_ctrl_c, **options)
            break
        except KeyboardInterrupt:
            stops += 1
    assert stops > 2
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "broken")
    whole, broken = (Metrics(tmp_path / name / run.METRICS).read() for name in ("whole", "broken"))
    for a, b in zip(whole, broken, strict=True):
        for measured in ("seconds", "words_per_second"):
            a.pop(measured), b.pop(measured)
        assert a == b


@pytest.mark.parametrize("group", [0, -1], ids=["first", "last"])
def test_ctrl_c_in_the_middle_of_any_group_of_minibatches_can_be_resumed(store, tmp_path, monkeypatch, group):
    options = {"epochs": 2, **SMALL}
    train(store, tmp_path / "whole", **options)
    original = training.Engine.run
    pressed = []

    def run_and_press(self, epoch, step, *rates):
        wanted = step == 0 if group == 0 else step + len(rates[0]) == self.steps_per_epoch
        if wanted and not pressed:
            pressed.append(step)
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, epoch, step, *rates)

    monkeypatch.setattr(training.Engine, "run", run_and_press)
    with pytest.raises(KeyboardInterrupt):
        train(store, tmp_path / "broken", **options)
    train(store, tmp_path / "broken", resume=True, **options)
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "broken")


def test_what_workers_have_begun_needs_as_many_to_go_on_within_an_epoch(store, tmp_path, monkeypatch):
    monkeypatch.setattr("ncelm.training.engine.MOST_PLANNED", 3)

    def press_ctrl_c(at):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(store, tmp_path / "run", epochs=3, progress=press_ctrl_c, **SMALL)
    arrays = load_file(tmp_path / "run" / run.CHECKPOINT)
    _, header = array_files.read_arrays(tmp_path / "run" / run.CHECKPOINT, {}, arrays)
    assert header["state"]["step"] > 0
    array_files.write_arrays(tmp_path / "run" / run.CHECKPOINT, arrays, {"state": header["state"] | {"workers": 2}})
    with pytest.raises(NcelmError, match="stopped by 2 workers in mid-epoch: resume it with as many"):
        train(store, tmp_path / "run", epochs=3, resume=True, **SMALL)


def test_workers_of_one_machine_share_its_cores(monkeypatch):
    from ncelm.distributed import collective as workers

    assert workers.local_world_size() == 1
    names = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"}
    for name, value in (names | {"LOCAL_WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(name, value)
    assert workers.local_world_size() == 2


KILLED = """
import sys
from ncelm.training.loop import train
import ncelm.training.engine
ncelm.training.engine.MOST_PLANNED = 2
options = {{"context": 2, "dim": 8, "noise_samples": 5, "batch_size": 100}}
train({store!r}, {out!r}, epochs=6, resume=True, checkpoint_minutes=0.0, **options)
"""


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed_is_the_same_to_the_byte(store, tmp_path):
    """SIGKILL again and again, at moments spread over the run, with checkpoints after every few minibatches."""
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


def test_resume_without_a_checkpoint_simply_starts(store, tmp_path):
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


def test_resume_refuses_other_options_and_other_stores(store, tmp_path):
    train(store, tmp_path / "run", epochs=1, **SMALL)
    with pytest.raises(NcelmError, match="--dim 8, not 9"):
        train(store, tmp_path / "run", epochs=1, resume=True, **SMALL | {"dim": 9})
    (tmp_path / "text").write_text("a b c\nb c a\n")
    other = prepare(train=tmp_path / "text", out=tmp_path / "other")
    with pytest.raises(NcelmError, match="another token store"):
        train(other, tmp_path / "run", epochs=1, resume=True, **SMALL)


def test_an_output_folder_that_exists_is_refused_and_left_alone(store, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("precious")
    with pytest.raises(NcelmError, match="exists already"):
        train(store, tmp_path / "run", **SMALL)
    with pytest.raises(NcelmError, match="not a run"):
        train(store, tmp_path / "run", resume=True, **SMALL)
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["mine"]


def test_a_damaged_checkpoint_is_refused(store, tmp_path):
    train(store, tmp_path / "run", epochs=1, **SMALL)
    path = tmp_path / "run" / run.CHECKPOINT
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(NcelmError, match="damaged"):
        train(store, tmp_path / "run", epochs=1, resume=True, **SMALL)


def test_a_model_file_is_not_taken_for_a_checkpoint(store, tmp_path):
    train(store, tmp_path / "run", epochs=1, **SMALL | {"optimizer": "sgd", "learning_rate": 0.01})
    shutil.copy(tmp_path / "run" / run.MODEL, tmp_path / "run" / run.CHECKPOINT)
    options = SMALL | {"optimizer": "sgd", "learning_rate": 0.01}
    with pytest.raises(NcelmError, match=r"damaged|not a checkpoint"):
        train(store, tmp_path / "run", epochs=1, resume=True, **options)


@pytest.mark.parametrize(
    "change",
    [{"step": -1}, {"step": 10**6}, {"epoch": 7}, {"epoch": "1"}, {"rate": None}, {"seconds": float("nan")},
     {"finished": 0}, {"metrics_bytes": -5}, {"other": 1}],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_that_says_impossible_things_is_refused(store, tmp_path, change):
    def press_ctrl_c(at):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(store, tmp_path / "run", epochs=3, progress=press_ctrl_c, **SMALL)
    arrays = load_file(tmp_path / "run" / run.CHECKPOINT)
    shapes = {name: array.shape for name, array in arrays.items()}
    _, header = array_files.read_arrays(tmp_path / "run" / run.CHECKPOINT, shapes)
    array_files.write_arrays(tmp_path / "run" / run.CHECKPOINT, arrays, {"state": header["state"] | change})
    with pytest.raises(NcelmError, match="not a checkpoint"):
        train(store, tmp_path / "run", epochs=3, resume=True, **SMALL)


def test_a_model_that_no_machine_could_hold_is_refused_before_anything_is_written(store, tmp_path):
    with pytest.raises(NcelmError, match="GB of memory and this machine has"):
        train(store, tmp_path / "run", dim=100_000, context=1000)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("estimator", ["nce", "ml"])
def test_divergence_stops_with_a_clear_line_and_keeps_the_best(store, tmp_path, estimator, monkeypatch):
    with pytest.raises(NcelmError, match=r"diverged in epoch 1.*lower --learning-rate than 1e"):
        train(
            store, tmp_path / "run", optimizer="sgd", learning_rate=1e6, matrix_rate=1.0, estimator=estimator, **SMALL
        )
    assert not (tmp_path / "run" / run.MODEL).exists()

    kept = train(store, tmp_path / "two", estimator=estimator, epochs=1, **SMALL)
    original = training._Training._rates
    monkeypatch.setattr(  # explode in the second epoch
        training._Training, "_rates", lambda self, *a: original(self, *a) * (1 if self.state.epoch == 0 else 1e9)
    )
    options = SMALL | {"optimizer": "sgd", "learning_rate": 1e-3}
    with pytest.raises(NcelmError, match=r"diverged in epoch 2.*epoch 1. is kept"):
        train(store, tmp_path / "three", estimator=estimator, epochs=3, **options)
    assert kept["epoch"] == 1
    LanguageModel.load(tmp_path / "three")


def test_rates_are_halved_when_perplexity_rises_and_training_stops_early(store, tmp_path):
    last = train(
        store, tmp_path / "run", schedule="halve", optimizer="sgd", learning_rate=0.02, epochs=60, patience=2, **SMALL
    )
    records = Metrics(tmp_path / "run" / run.METRICS).read()
    assert last["epoch"] < 60
    for before, now, following in zip(records, records[1:], records[2:], strict=False):
        rose = now["valid_perplexity"] > before["valid_perplexity"] * 0.999
        assert following["learning_rate"] == now["learning_rate"] / (2 if rose else 1)
    best = min(records, key=lambda r: r["valid_perplexity"])
    assert last["best_epoch"] == best["epoch"]
    lm = LanguageModel.load(tmp_path / "run")
    assert lm.evaluate_split(store, "valid").perplexity == pytest.approx(best["valid_perplexity"])


def test_divergence_is_seen_without_a_validation_split_too(tmp_path):
    (tmp_path / "text").write_text("a b c d\nb c a\n" * 200)
    lonely = prepare(train=tmp_path / "text", out=tmp_path / "store")
    options = SMALL | {"optimizer": "sgd", "learning_rate": 1e6, "batch_size": 5000}
    with pytest.raises(NcelmError, match="diverged in epoch 1"):
        train(lonely, tmp_path / "run", epochs=1, **options)
    train(lonely, tmp_path / "another", epochs=1, **options | {"learning_rate": 0.001})


def test_overfitting_is_not_divergence(tmp_path):
    random = np.random.default_rng(0)
    for name in ("train", "valid"):  # nothing in one tells about the other
        lines = [" ".join(f"w{i}" for i in random.integers(500, size=10)) for _ in range(60)]
        (tmp_path / name).write_text("\n".join(lines))
    store = prepare(train=tmp_path / "train", valid=tmp_path / "valid", out=tmp_path / "store")
    last = train(store, tmp_path / "run", dim=50, epochs=60, batch_size=50, learning_rate=0.2)
    assert last["finished"]
    assert last["valid_perplexity"] > len(store.vocabulary)
    assert last["best_epoch"] < 5


def test_divergence_is_recorded_and_not_tried_again(store, tmp_path):
    options = SMALL | {"optimizer": "sgd", "learning_rate": 1e6, "matrix_rate": 1.0}
    with pytest.raises(DivergedError) as first:
        train(store, tmp_path / "run", **options)
    (record,) = Metrics(tmp_path / "run" / run.METRICS).read()
    assert record["finished"]
    assert record["diverged"] in str(first.value)
    assert record["epoch"] == 1
    with pytest.raises(DivergedError) as again:
        train(store, tmp_path / "run", resume=True, **options)
    assert str(again.value) == str(first.value)


def test_importance_sampling_reports_its_weights(store, tmp_path):
    last = train(store, tmp_path / "run", estimator="importance", epochs=2, learning_rate=0.02, **SMALL)
    assert 1.0 <= last["least_effective_samples"] <= last["effective_samples"] <= 5.0
    assert last["samples"] == 5.0
    assert np.isfinite(last["largest_log_weight"])
    steps = [line[0] for line in last["weights"]]
    assert steps == sorted(set(steps))
    assert len(steps) > 10
    assert last["valid_perplexity"] < len(store.vocabulary)


def test_importance_sampling_draws_more_until_enough_samples_count(store, tmp_path):
    options = SMALL | {"effective_samples": 6.0, "max_samples": 40, "learning_rate": 0.02}
    last = train(store, tmp_path / "run", estimator="importance", epochs=1, **options)
    assert last["effective_samples"] >= 6.0
    assert 5.0 < last["samples"] <= 40.0


def test_importance_sampling_that_diverges_says_which_weights_did_it(store, tmp_path):
    options = SMALL | {"optimizer": "sgd", "learning_rate": 3.0, "batch_size": 20}
    with pytest.raises(DivergedError, match=r"worse than if all|not a number"):
        train(store, tmp_path / "run", estimator="importance", epochs=20, **options)
    record = Metrics(tmp_path / "run" / run.METRICS).read()[-1]
    last = record["last_weights"]
    assert 1 <= len(last) <= 5
    assert last[-1]["step"] <= record["step"]
    assert last[-1]["word"] in store.vocabulary
    assert len(last[-1]["context"]) == 2
    assert 0 < last[-1]["share"] <= 1
    assert max(line["largest_log_weight"] for line in last) <= record["largest_log_weight"]
    assert record["weights"]


@pytest.mark.parametrize(
    "options",
    [
        {"constants": "learned", "noise": "bigram"},
        {"estimator": "importance", "effective_samples": 4.0, "max_samples": 20, "learning_rate": 0.02},
        {"shared_noise": True, "dropout": 0.1},
    ],
    ids=lambda options: "-".join(options),
)
def test_every_method_resumes_to_the_same_byte(store, tmp_path, monkeypatch, options):
    monkeypatch.setattr("ncelm.training.engine.MOST_PLANNED", 3)
    options = SMALL | {"epochs": 2} | options
    train(store, tmp_path / "whole", **options)
    calls = 0

    def press_ctrl_c(at):
        nonlocal calls
        calls += 1
        if calls == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(store, tmp_path / "broken", progress=press_ctrl_c, **options)
    train(store, tmp_path / "broken", resume=True, threads=1, **options)
    assert model_bytes(tmp_path / "whole") == model_bytes(tmp_path / "broken")
    whole, broken = (Metrics(tmp_path / name / run.METRICS).read() for name in ("whole", "broken"))
    for field in set(whole[-1]) - {"seconds", "words_per_second"}:
        assert whole[-1][field] == broken[-1][field], field


def test_learned_constants_stay_out_of_the_model(store, tmp_path):
    last = train(store, tmp_path / "run", constants="learned", epochs=2, **SMALL)
    assert last["contexts"] > 20
    assert last["constants_std"] > 0
    assert "constants" not in load_file(tmp_path / "run" / run.MODEL)
    assert load_file(tmp_path / "run" / run.CHECKPOINT)["constants"].shape == (last["contexts"],)


def test_splits_are_watched_without_a_say_in_what_is_learned(store, tmp_path):
    plain = train(store, tmp_path / "plain", epochs=2, **SMALL)
    watched = train(store, tmp_path / "watched", epochs=2, watch=("test",), **SMALL)
    assert "test_perplexity" not in plain
    expected = LanguageModel.load(tmp_path / "watched").evaluate_split(store, "test").perplexity
    assert watched["test_perplexity"] == pytest.approx(expected)
    assert model_bytes(tmp_path / "plain") == model_bytes(tmp_path / "watched")
    with pytest.raises(NcelmError, match="no dev split"):
        train(store, tmp_path / "dev", watch=("dev",))


def test_a_run_of_an_earlier_version_resumes_with_new_options_at_their_defaults(store, tmp_path):
    train(store, tmp_path / "run", epochs=1, **SMALL)
    path = tmp_path / "run" / run.CONFIG
    config = json.loads(path.read_text())
    del config["config"]["dropout"]
    path.write_text(json.dumps(config))
    train(store, tmp_path / "run", epochs=1, resume=True, **SMALL)
    with pytest.raises(NcelmError, match=r"begun with --dropout 0.0, not 0.5"):
        train(store, tmp_path / "run", epochs=1, resume=True, dropout=0.5, **SMALL)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shared_noise": True, "estimator": "ml"}, "--shared-noise goes with"),
        ({"shared_noise": True, "noise": "bigram"}, "--shared-noise goes with"),
        ({"shared_noise": True, "constants": "learned"}, "--shared-noise goes with"),
        ({"constants": "learned", "estimator": "importance"}, "--constants learned goes with"),
        ({"noise": "bigram", "context": 0, "context_after": 2}, "--noise bigram needs"),
        ({"effective_samples": 50.0, "max_samples": 10}, "--effective-samples is 50"),
        ({"effective_samples": 5.0, "max_samples": 10}, "--max-samples is 10"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, words):
    with pytest.raises(NcelmError, match=words):
        TrainConfig().with_changes(**options)


def test_two_processes_cannot_train_one_run(store, tmp_path):
    def again(at):
        with pytest.raises(NcelmError, match="another process"):
            train(store, tmp_path / "run", epochs=1, resume=True, **SMALL)

    train(store, tmp_path / "run", epochs=1, progress=again, **SMALL)


def stopped_run(store, out, epochs=3):
    """A run stopped by Ctrl-C in its second epoch."""

    def press_ctrl_c(at):
        if at.epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(store, out, epochs=epochs, progress=press_ctrl_c, **SMALL)


def test_resume_puts_a_lost_vocabulary_back(store, tmp_path):
    stopped_run(store, tmp_path / "run")
    (tmp_path / "run" / run.VOCABULARY).unlink()
    train(store, tmp_path / "run", epochs=3, resume=True, **SMALL)
    LanguageModel.load(tmp_path / "run")


@pytest.mark.parametrize("name", [run.METRICS, run.MODEL])
def test_resume_says_at_once_that_files_are_gone(store, tmp_path, name):
    stopped_run(store, tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    with pytest.raises(NcelmError, match=f"{name} is gone"):
        train(store, tmp_path / "run", epochs=3, resume=True, **SMALL)


def test_halving_needs_a_validation_split(tmp_path):
    (tmp_path / "text").write_text("a b c\nb c a\n")
    lonely = prepare(train=tmp_path / "text", out=tmp_path / "store")
    with pytest.raises(NcelmError, match="no validation text"):
        train(lonely, tmp_path / "run", schedule="halve")
    assert not (tmp_path / "run").exists()
    train(lonely, tmp_path / "run", epochs=1)  # a linear schedule needs none


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("noise_samples", 0), ("epochs", 0), ("batch_size", 0), ("learning_rate", 0.0), ("learning_rate", float("nan")),
        ("seed", -1), ("penalty", -1.0), ("dim", 0), ("context", -1), ("context", 0), ("patience", 0), ("spread", -0.1),
        ("adagrad_start", -1.0), ("warm_up", 0), ("prior", -1.0),
        ("dim", 3.0), ("batch_size", 10.5), ("shared_tables", "no"), ("learning_rate", 1e300), ("noise_power", 1000.0),
        ("estimator", "is"), ("noise", "trigram"), ("dropout", 1.0), ("bigram_smoothing", 0.0),
        ("member", "cube"), ("constants", "free"), ("max_samples", 0),
        ("effective_samples", -1.0), ("optimizer", "adam"), ("schedule", "cosine"), ("matrices", "none"),
    ],
)  # fmt: skip
def test_senseless_options_are_refused_by_name(option, value):
    with pytest.raises(NcelmError, match=f"--{option.replace('_', '-')} is|--context"):
        TrainConfig().with_changes(**{option: value})


def test_unknown_options_and_recipes_are_refused(store, tmp_path):
    with pytest.raises(NcelmError, match="no training option 'dims'"):
        train(store, tmp_path / "run", dims=3)
    with pytest.raises(NcelmError, match="choose one of default"):
        recipe("nce")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains(store, tmp_path, name):
    config = recipe(name).with_changes(epochs=1, dim=8)
    if config.by_torch:
        pytest.importorskip("torch", reason="needs the extra `torch`")
    assert train(store, tmp_path / "run", config)["finished"]


def test_training_does_not_diverge_on_odd_little_corpora(tmp_path):
    for i, text in enumerate(("a b\n", "a\nb\n", "x y " * 1000, "a b c\n" * 500)):
        (tmp_path / f"{i}.txt").write_text(text)
        store = prepare(train=tmp_path / f"{i}.txt", out=tmp_path / f"s{i}")
        train(store, tmp_path / f"r{i}", dim=10)
        assert np.isfinite(LanguageModel.load(tmp_path / f"r{i}").perplexity(["a b"]))


@pytest.mark.slow
@pytest.mark.parametrize("matrices", ["full", "diagonal"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"estimator": "ml"},
        {"noise": "uniform"},
        {"noise": "bigram"},
        {"constants": "learned"},
        {"shared_noise": True, "noise_samples": 50},
        {"estimator": "importance", "noise_samples": 100},  # few samples are biased
        {"estimator": "family", "member": "root"},
        {"estimator": "family", "member": "square", "epochs": 8},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_a_known_distribution_is_recovered(tmp_path, options, matrices):
    """Words from a Markov chain: the model has room for the true P(w|h) and must find it, and its log Z must be 0."""
    random = np.random.default_rng(1)
    size, length = 6, 120_000
    chain = random.dirichlet(np.full(size, 0.7), size=size)
    words, word = [], 0
    for u in random.random(length):
        word = min(int(np.searchsorted(np.cumsum(chain[word]), u)), size - 1)
        words.append(word)
    lines = [" ".join(f"w{w}" for w in words[i : i + 1000]) for i in range(0, length, 1000)]
    (tmp_path / "text").write_text("\n".join(lines))
    store = prepare(train=tmp_path / "text", out=tmp_path / "store", boundary="stream")
    options = {"epochs": 4, "noise_samples": 20} | options
    train(store, tmp_path / "run", context=1, dim=12, matrices=matrices, batch_size=200, **options)
    lm = LanguageModel.load(tmp_path / "run")
    ids = np.array([lm.vocabulary.id(f"w{w}") for w in range(size)])
    log_p = lm.model.log_probabilities(ids[:, None])[:, ids]
    divergence = np.sum(chain * (np.log(np.maximum(chain, 1e-12)) - log_p), axis=1)
    assert divergence.max() < 0.02
    scores = lm.model.scores(ids[:, None]).astype(np.float64)
    log_z = np.log(np.exp(scores).sum(axis=1))
    # likelihoods, exact or estimated, care nothing for log Z, and learned constants take it upon themselves
    if options.get("estimator") not in ("ml", "importance") and options.get("constants") != "learned":
        assert np.abs(log_z).max() < 0.1


def test_metrics_are_json_lines(store, tmp_path):
    train(store, tmp_path / "run", epochs=2, **SMALL)
    for line in (tmp_path / "run" / run.METRICS).read_text().splitlines():
        assert {"epoch", "loss", "learning_rate", "words", "seconds", "valid_perplexity"} <= set(json.loads(line))
