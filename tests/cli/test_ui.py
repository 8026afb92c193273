"""Shards, progress on terminals and in logs, the message about compilation."""

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest

from ncelm.cli import ui
from ncelm.errors import NcelmError


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_parse_shard():
    assert ui.parse_shard("2/8") == (2, 8)


@pytest.mark.parametrize("text", ["", "2", "0/2", "3/2", "a/b", "1/2/3", "-1/2", "1/1000001"])
def test_bad_shards(text):
    with pytest.raises(NcelmError, match=r"--shard is .*such as 2/8"):
        ui.parse_shard(text)


def test_count():
    assert [ui.count(n, "word") for n in (0, 1, 2)] == ["0 words", "1 word", "2 words"]


def test_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with ui.progress_bar(desc="reading", unit="B") as bar:
        ui.show(bar)(50, 100)
        bar.refresh()
    assert "reading:  50%" in stream.getvalue()
    assert "B/s" in stream.getvalue()


def test_a_log_has_a_line_now_and_then(monkeypatch):
    """Nothing in the first 30 seconds, then at most one line in 30 seconds, with rate and remaining time."""
    now = 0.0
    monkeypatch.setattr(ui, "LOG_SECONDS", 30.0)
    monkeypatch.setattr(ui, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with ui.progress_bar(desc="reading", unit="B", mininterval=0.0, miniters=1) as bar:
        progress = ui.show(bar)
        for step in range(1, 100):
            now = float(step)
            progress(step, 1000)
    lines = stream.getvalue().splitlines()
    assert [line.split()[:3] for line in lines] == [["reading:", f"{n / 10:.0f}%", f"{n}/1000"] for n in (30, 60, 90)]
    assert all("\r" not in line and "B/s" in line for line in lines)


def test_quick_work_leaves_no_trace_in_a_log(capsys):
    with ui.progress_bar(desc="reading") as bar:
        ui.show(bar)(1, 1)
    assert capsys.readouterr().err == ""


def test_only_the_first_of_several_processes_shows_progress(monkeypatch):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1"),
                        ("TORCHELASTIC_RUN_ID", "1")):  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    assert not ui.on_terminal()
    with ui.progress_bar(desc="reading") as bar:
        ui.show(bar)(1, 2)
    assert stream.getvalue() == ""


def test_training_progress(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    metrics = {"valid_perplexity": 123.45, "valid_log_z_mean": -0.5}
    at = SimpleNamespace(epoch=2, epochs=4, words=50, words_per_epoch=100, loss=3.25, metrics=metrics)
    with ui.progress_bar(unit=" words", leave=True) as bar:
        ui.show_training(bar, at, "row: ")
        assert (bar.n, bar.total) == (150, 400)
    assert "row: epoch 2/4 loss 3.250:  38%" in stream.getvalue()
    assert "perplexity 123.5, log Z -0.50" in stream.getvalue()


def test_the_first_compilation_is_announced(monkeypatch, capsys):
    callbacks = []
    module = ModuleType("ncelm.kernels.compile")
    module.on_compile = callbacks.append
    monkeypatch.setitem(sys.modules, "ncelm.kernels.compile", module)
    ui.announce_compilation.cache_clear()
    ui.announce_compilation()
    ui.announce_compilation()
    (callback,) = callbacks
    assert capsys.readouterr().err == ""
    callback("score")
    callback("steps")
    assert capsys.readouterr().err == "ncelm: compiling … (once per machine)\n"
    ui.announce_compilation.cache_clear()
