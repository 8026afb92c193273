"""Progress in terminals, notebooks and logs; the parameter `progress`; remaining time."""

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest

import ncelm
from ncelm import progress
from ncelm.errors import ArgumentTypeError
from ncelm.training.loop import Progress

SMALL = {"config": ncelm.TrainConfig(), "dim": 4, "batch_size": 100, "epochs": 2}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def use_terminal(monkeypatch):
    """Make standard error a terminal. (Not a fixture: pytest replaces the stream after fixtures.)"""
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    return stream


@pytest.fixture
def clock(monkeypatch):
    """The time that logs and estimates see, which tests set."""
    at = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: at.now))
    return at


def at(epoch=1, words=0, metrics=None, epochs=4, rate=10.0):
    return Progress(epoch, epochs, words, 100, 3.25, rate, metrics)


# -- bars and logs ---------------------------------------------------------------------------------------------------


def test_a_bar_on_a_terminal(monkeypatch):
    terminal = use_terminal(monkeypatch)
    with progress.progress_bar(desc="reading", unit="B") as bar:
        progress.show(bar)(50, 100)
        bar.refresh()
    assert "reading:  50%" in terminal.getvalue()
    assert "B/s" in terminal.getvalue()


def test_a_log_has_a_line_now_and_then(monkeypatch, clock):
    """Nothing in the first 30 seconds, then at most one line in 30 seconds, with rate and remaining time."""
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with progress.progress_bar(desc="reading", unit="B", mininterval=0.0, miniters=1) as bar:
        move = progress.show(bar)
        for step in range(1, 100):
            clock.now = float(step)
            move(step, 1000)
    lines = stream.getvalue().splitlines()
    assert [line.split()[:3] for line in lines] == [["reading:", f"{n / 10:.0f}%", f"{n}/1000"] for n in (30, 60, 90)]
    assert all("\r" not in line and "B/s" in line for line in lines)


def test_quick_work_leaves_no_trace_in_a_log(capsys):
    with progress.progress_bar(desc="reading") as bar:
        progress.show(bar)(1, 1)
    assert capsys.readouterr().err == ""


def test_only_the_first_of_several_processes_shows_progress(monkeypatch):
    terminal = use_terminal(monkeypatch)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1"),
                        ("TORCHELASTIC_RUN_ID", "1")):  # fmt: skip
        monkeypatch.setenv(name, value)
    assert not progress.on_terminal()
    with progress.progress_bar(desc="reading") as bar:
        progress.show(bar)(1, 2)
    assert terminal.getvalue() == ""


def test_notebooks_have_a_bar_without_a_warning(monkeypatch):
    """Without ipywidgets, tqdm.auto warns; warnings are errors in tests. The bar then consists of characters."""
    for module in ("tqdm.auto", "tqdm.autonotebook"):  # they decide when they are imported
        monkeypatch.delitem(sys.modules, module, raising=False)
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    progress._bar_class.cache_clear()
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())  # not a terminal
    try:
        assert progress.in_notebook()
        with progress.shown(True, desc="reading", delay=0) as report:
            report(1, 2)
    finally:
        progress._bar_class.cache_clear()
    assert "reading" in stream.getvalue()


def test_an_ipython_terminal_is_not_a_notebook(monkeypatch):
    ipython = ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not progress.in_notebook()
    ipython.get_ipython = lambda: SimpleNamespace(config={"TerminalIPythonApp": {}})
    assert not progress.in_notebook()
    ipython.get_ipython = lambda: None
    assert not progress.in_notebook()


# -- the parameter ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [False, None])
def test_no_progress(value, monkeypatch):
    terminal = use_terminal(monkeypatch)
    with progress.shown(value, desc="reading", delay=0) as report:
        assert report is None
    with progress.training_shown(value) as report:
        assert report is None
    assert terminal.getvalue() == ""


def test_a_function_is_called_by_the_operation():
    def own(done, total):
        pass

    with progress.shown(own) as report:
        assert report is own
    with progress.training_shown(own) as report:
        assert report is own


@pytest.mark.parametrize("value", [1, "yes", []])
def test_wrong_types(value):
    with pytest.raises(ArgumentTypeError, match=r"`progress` is .*True, False, None or a function"):
        progress.check_progress(value)


def test_operations_of_the_library_show_bars(cycle_store, tmp_path, monkeypatch):
    terminal = use_terminal(monkeypatch)
    monkeypatch.setattr(progress, "DELAY_SECONDS", 0.0)
    ncelm.train(cycle_store, tmp_path / "run", **SMALL)
    ncelm.train_ngram(cycle_store, tmp_path / "ngram", 3)
    ncelm.train_lsa(cycle_store, tmp_path / "lsa", 5)
    ncelm.mix([tmp_path / "run", tmp_path / "ngram"], tmp_path / "mixed")
    ncelm.export_arpa(tmp_path / "ngram", tmp_path / "arpa")
    shown = terminal.getvalue()
    for text in ("epoch 2/2 loss", "perplexity", "counting n-grams", "decomposing", "scoring", "writing"):
        assert text in shown
    terminal.truncate(0)
    ncelm.train(cycle_store, tmp_path / "run2", **SMALL, progress=False)
    ncelm.train_ngram(cycle_store, tmp_path / "ngram2", 3, progress=None)
    ncelm.train_lsa(cycle_store, tmp_path / "lsa2", 5, progress=False)
    ncelm.mix([tmp_path / "run", tmp_path / "ngram"], tmp_path / "mixed2", progress=False)
    assert terminal.getvalue() == ""


# -- training --------------------------------------------------------------------------------------------------------


def test_a_bar_of_training(monkeypatch, clock):
    terminal = use_terminal(monkeypatch)
    metrics = {"valid_perplexity": 123.45}
    with progress.progress_bar(unit=" words", leave=True) as bar:
        display = progress.TrainingBar(bar)
        display(at(2, 50, metrics), "row: ")
        assert (bar.n, bar.total) == (150, 400)
        display(at(1, 10))  # the next run
        assert bar.n == 10
    assert "row: epoch 2/4 loss 3.250:  38%" in terminal.getvalue()
    assert "10.00 words/s, perplexity 123.5" in terminal.getvalue()
    assert "10.00 words/s]" in terminal.getvalue()  # the next run has no perplexity yet
    assert max(map(len, terminal.getvalue().replace("\r", "\n").splitlines())) <= 80


def test_training_in_a_log(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with progress.progress_bar(unit=" words") as bar:
        display = progress.TrainingBar(bar)
        display(at(1, 10))
        clock.now = 31.0
        display(at(2, 50, {"valid_perplexity": 123.45}))
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("epoch 2/4 loss 3.250: 38% 150/400 [")
    assert "10.00 words/s, perplexity 123.5]" in line


def test_remaining_time_includes_validation(clock):
    """Ten seconds of training in each of four epochs, then five seconds of validation."""
    remaining = progress.RemainingTime()
    assert remaining.update(at(1, 20)) == pytest.approx(38)  # validation is not known yet
    clock.now = 8.0
    assert remaining.update(at(1, 100)) == pytest.approx(30)
    clock.now = 13.0
    assert remaining.update(at(1, 100, {"finished": False})) == pytest.approx(30 + 3 * 5)
    clock.now = 18.0
    assert remaining.update(at(2, 50)) == pytest.approx(25 + 3 * 5)
    clock.now = 28.0
    assert remaining.update(at(2, 100, {"finished": False})) == pytest.approx(20 + 2 * 5)
    assert remaining.update(at(3, 100, {"finished": True})) == 0.0  # stopped early


def test_the_last_epoch_may_be_shorter(monkeypatch, clock):
    remaining = progress.RemainingTime()
    assert remaining.update(at(1, 50, epochs=1.5)) == pytest.approx(10)
    use_terminal(monkeypatch)
    with progress.progress_bar(unit=" words") as bar:
        progress.TrainingBar(bar)(at(2, 50, epochs=1.5))
        assert (bar.n, bar.total) == (150, 150)
        assert bar.desc == "epoch 2/2 loss 3.250: "


def test_remaining_time_is_unknown_without_a_rate():
    assert progress.RemainingTime().update(at(1, 100, {}, rate=None)) is None
