"""`ncelm fit`: output, JSON, errors, and the other commands on its model."""

import json
import signal
import subprocess
import sys
import time

import pytest
from tests.helpers import random_lines

from ncelm.cli.main import main


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder with a text and a model that `ncelm fit` has made. Tests must not change it."""
    folder = tmp_path_factory.mktemp("fit")
    (folder / "text").write_text("\n".join(random_lines(0, 400, 12)))
    arguments = ["fit", "--train", folder / "text", "--out", folder / "model", "--threads", "1"]
    assert main([str(word) for word in arguments]) == 0
    return folder


def test_output(fitted, tmp_path, capsys):
    out = tmp_path / "model"
    assert main(["fit", "--train", str(fitted / "text"), "--out", str(out), "--minutes", "0.1"]) == 0
    captured = capsys.readouterr()
    first, second = captured.out.splitlines()
    assert first.startswith(f"{out}: test perplexity: neural ")
    assert " % lower than its best component" in first
    assert second.startswith("  mixture of 0.")
    assert second.endswith(f"see {out / 'report.html'}")
    assert "ncelm: [1/6] preparing the text, 0:06 left" in captured.err
    assert "ncelm: text: " in captured.err


def test_json_of_a_finished_model(fitted, answer):
    result = answer(["fit", "--out", fitted / "model", "--resume"])
    assert result["model"] == str(fitted / "model")
    assert set(result["perplexity"]["test"]) == {"neural", "ngram", "mixture"}
    assert set(result["weights"]) == {"neural", "ngram"}
    assert result["seconds"] > 0
    assert result["compile_seconds"] >= 0
    assert isinstance(result["gain_percent"], float)
    assert any(line.startswith("text: ") for line in result["explanation"])


def test_the_other_commands(fitted, answer, output, tmp_path):
    moved, found = fitted / "model", answer(["fit", "--out", fitted / "model", "--resume"])["perplexity"]["test"]
    assert answer(["evaluate", moved])["perplexity"] == pytest.approx(found["mixture"])
    assert answer(["evaluate", moved / "ngram"])["perplexity"] == pytest.approx(found["ngram"])
    (tmp_path / "lines").write_text("w1 w2\n")
    assert float(output(["score", moved, tmp_path / "lines"])) < 0
    assert output(["neighbors", moved, "w1", "--count", "2"]) == output(
        ["neighbors", moved / "neural", "w1", "--count", "2"]
    )
    assert "vectors of" in output(["export", moved, tmp_path / "vectors"])
    (data,) = answer(["report", moved])["runs"]
    assert data["fit"]["gain_percent"] == pytest.approx(
        100 * (1 - found["mixture"] / min(found["neural"], found["ngram"]))
    )
    assert data["test_perplexity"] == pytest.approx(found["mixture"])


def test_errors(fitted, fails, tmp_path):
    text, out = fitted / "text", tmp_path / "x"
    fails(["fit", text], "--out")
    fails(["fit", "--out", out], "give either prose (files or folders) or --train files")
    fails(["fit", tmp_path / "absent", "--out", out], "there is no file")
    fails(["fit", "--train", text, "--out", fitted / "model"], "exists already: continue with --resume", "--out")
    fails(["fit", "--train", text, "--out", out, "--minutes", "-1"], "--minutes is -1.0: give a positive number")
    fails(["fit", "--train", text, "--out", out, "--min-count", "0"], "--min-count is 0")
    fails(["fit", "--train", text, "--valid-sentences", "0", "--out", out], "no validation text", "--valid-sentences")
    fails(["fit", fitted / "model" / "store", "--lowercase", "--out", out], "--lowercase is for text")
    fails(["fit", "--out", fitted / "model", "--resume", "--min-count", "3"], "--min-count is 3", "without it")
    assert not out.exists()


def test_the_help_is_short(output, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert output(["fit", "--help"]).count("\n") < 70


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_and_resume(fitted, answer, tmp_path, number, code):
    out = tmp_path / "model"
    words = ["fit", "--train", fitted / "text", "--out", out, "--threads", "1"]
    command = [sys.executable, "-m", "ncelm", *map(str, words)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 100
    while not (out / "ngram").exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=100)
    if process.returncode != 0:  # it was not faster than the signal
        assert process.returncode == code
        assert errors.splitlines()[-1].endswith(f"finished stages are in {out}: continue with --resume")
        assert main([*map(str, words), "--resume"]) == 0
    for name in ("config.json", "neural/model.safetensors", "ngram/model.safetensors"):
        assert (out / name).read_bytes() == (fitted / "model" / name).read_bytes()
    assert json.loads((out / "fit.json").read_text())["finished"]
