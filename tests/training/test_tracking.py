"""Experiment trackers, with modules that stand for the real ones."""

import sys
import warnings
from types import ModuleType, SimpleNamespace

import pytest

import ncelm
from ncelm.cli.main import main
from ncelm.errors import ArgumentError, ArgumentTypeError, DivergedError, MissingExtraError
from ncelm.io.metrics import Metrics
from ncelm.training import tracking

SMALL = {"config": ncelm.TrainConfig(), "dim": 4, "batch_size": 100, "epochs": 2, "progress": False}


class FakeRun:
    def __init__(self, options):
        self.options, self.logged, self.finished = options, [], None

    def log(self, values, step):
        print("a message of the tracker")
        self.logged.append((step, values))

    def finish(self, exit_code=0):
        self.finished = exit_code


@pytest.fixture
def fakes(monkeypatch):
    """Modules wandb and trackio that keep their runs."""
    runs = {"wandb": [], "trackio": []}
    for name, started in runs.items():

        def init(started=started, **options):
            started.append(FakeRun(options))
            return started[-1]

        module = ModuleType(name)
        module.init = init
        monkeypatch.setitem(sys.modules, name, module)
    return runs


@pytest.fixture
def always(monkeypatch):
    """Log at every report within an epoch."""
    monkeypatch.setattr(tracking, "INTERVAL_SECONDS", 0.0)


def test_records_progress_and_options_are_logged(cycle_store, tmp_path, fakes, always, capsys):
    ncelm.train(cycle_store, tmp_path / "run", track=["wandb", "trackio"], **SMALL)
    words = cycle_store.split("train").tokens
    records = Metrics(tmp_path / "run" / "metrics.jsonl").read()
    for name in fakes:
        (run,) = fakes[name]
        at_ends = [(step, values) for step, values in run.logged if "valid_perplexity" in values]
        assert [step for step, _ in at_ends] == [words, 2 * words]
        for (_, values), record in zip(at_ends, records, strict=True):
            numbers = {field for field, value in record.items() if type(value) in (int, float)}
            assert set(values) == numbers  # neither `finished` nor null
            assert values["loss"] == record["loss"]
        within = [(step, values) for step, values in run.logged if "progress/loss" in values]
        assert within
        assert all(0 < step <= 2 * words and values["progress/words_per_second"] > 0 for step, values in within)
        assert [step for step, _ in run.logged] == sorted(step for step, _ in run.logged)
        assert run.finished == 0
        options = run.options
        assert (options["project"], options["resume"]) == ("ncelm", "allow")
        assert (options["config"]["dim"], options["config"]["training_words"]) == (4, words)
    captured = capsys.readouterr()
    assert captured.out == ""  # of a command with --json it is one JSON object
    assert "a message of the tracker" in captured.err
    (wandb,), (trackio,) = fakes["wandb"], fakes["trackio"]
    assert (wandb.options["name"], wandb.options["dir"]) == ("run", str(tmp_path / "run"))
    assert trackio.options["name"] == f"run-{wandb.options['id']}"


def test_a_function_is_called_too(cycle_store, tmp_path, fakes):
    seen = []
    ncelm.train(cycle_store, tmp_path / "run", track="wandb", **SMALL | {"progress": seen.append})
    assert [at.epoch for at in seen if at.metrics] == [1, 2]
    assert len(fakes["wandb"]) == 1


def test_a_resumed_run_continues_in_the_tracker(cycle_store, tmp_path, fakes):
    def press_ctrl_c(at):
        if at.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ncelm.train(cycle_store, tmp_path / "run", track="wandb", **SMALL | {"progress": press_ctrl_c})
    ncelm.train(cycle_store, tmp_path / "run", resume=True, track="wandb", **SMALL)
    first, second = fakes["wandb"]
    assert (first.finished, second.finished) == (1, 0)
    assert first.options["id"] == second.options["id"]
    words = cycle_store.split("train").tokens
    assert [step for step, _ in first.logged] == [words]
    assert [step for step, _ in second.logged] == [2 * words]


def test_a_divergence_is_logged(cycle_store, tmp_path, fakes):
    with pytest.raises(DivergedError):
        ncelm.train(cycle_store, tmp_path / "run", track="wandb", learning_rate=1e6, optimizer="sgd", **SMALL)
    (run,) = fakes["wandb"]
    assert "step" in run.logged[-1][1]
    assert run.finished == 1


def test_a_tracker_that_cannot_start_does_not_stop_training(cycle_store, tmp_path, fakes, monkeypatch):
    def init(**options):
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(sys.modules["wandb"], "init", init)
    with pytest.warns(UserWarning, match="^wandb failed, training continues without it: no network$") as caught:
        ncelm.train(cycle_store, tmp_path / "run", track="wandb,trackio", **SMALL)
    assert len(caught) == 1
    assert fakes["trackio"][0].finished == 0


def test_a_tracker_that_fails_later_is_left_out(cycle_store, tmp_path, fakes, monkeypatch, always):
    calls = []

    def log(run, values, step):
        calls.append(step)
        raise RuntimeError

    monkeypatch.setattr(FakeRun, "log", log)
    with pytest.warns(UserWarning, match="trackio failed, training continues without it: RuntimeError"):
        result = ncelm.train(cycle_store, tmp_path / "run", track="trackio", **SMALL)
    assert len(calls) == 1
    assert result["finished"]


@pytest.mark.parametrize("module", ["tensorboardX", "torch.utils.tensorboard"])
def test_tensorboard(cycle_store, tmp_path, monkeypatch, module):
    written = []

    class Writer:
        def __init__(self, folder, purge_step, flush_secs):
            written.append(("open", folder, purge_step))

        def add_text(self, tag, text, step):
            written.append((tag, text, step))

        def add_scalar(self, tag, value, step):
            written.append((tag, value, step))

        def close(self):
            written.append(("close",))

    for name in tracking.MODULES["tensorboard"][0]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(tracking, "_is_installed", lambda name: False)
    fake = ModuleType(module)
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, module, fake)
    ncelm.train(cycle_store, tmp_path / "run", track="tensorboard", **SMALL)
    words = cycle_store.split("train").tokens
    assert written[0] == ("open", str(tmp_path / "run" / "tensorboard"), None)
    assert "| dim | 4 |" in written[1][1]
    perplexities = [line for line in written if line[0] == "valid_perplexity"]
    assert [step for _, _, step in perplexities] == [words, 2 * words]
    assert written[-1] == ("close",)


def test_real_tensorboard_files(cycle_store, tmp_path):
    pytest.importorskip("tensorboardX")
    ncelm.train(cycle_store, tmp_path / "run", track="tensorboard", **SMALL)
    (file,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert b"valid_perplexity" in file.read_bytes()


def test_wrong_names_and_types():
    with pytest.raises(ArgumentError, match="`track` is 'mlflow': give one of tensorboard, wandb, trackio"):
        tracking.check_track("mlflow")
    with pytest.raises(ArgumentTypeError, match="`track` is 3: give a list of strings"):
        tracking.check_track(3)
    assert tracking.check_track(()) == []


def test_missing_packages(cycle_store, tmp_path, monkeypatch):
    for name in ("tensorboardX", "torch.utils.tensorboard", "wandb", "trackio"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    for name, package in (("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("trackio", "trackio")):
        with pytest.raises(MissingExtraError, match=f"`track` {name} needs .*: pip install {package}$"):
            ncelm.train(cycle_store, tmp_path / "run", track=name, **SMALL)
    assert not (tmp_path / "run").exists()


def test_the_command_line(cycle_store, tmp_path, fakes, capsys):
    options = ["--dim", "4", "--batch-size", "100", "--epochs", "1", "--json"]
    out = tmp_path / "run"
    command = ["train", str(cycle_store.path), "--out", str(out), "--track", "wandb,trackio", "--track", "wandb"]
    with warnings.catch_warnings():
        assert main([*command, *options]) == 0
    assert [len(runs) for runs in fakes.values()] == [1, 1]
    assert capsys.readouterr().out.startswith("{")
    assert main(["train", str(cycle_store.path), "--out", str(out), "--track", "mlflow"]) == 2
    assert "--track is 'mlflow': give one of tensorboard, wandb, trackio" in capsys.readouterr().err


def test_only_the_first_worker_logs(fakes):
    setup = SimpleNamespace(collective=SimpleNamespace(rank=1))
    with tracking.track_training(["wandb"], setup, None, None) as report:
        assert report is None
    assert fakes["wandb"] == []
