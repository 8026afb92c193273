"""`ncelm ngram`, and `ncelm mix` of an n-gram model and a neural one."""

import errno
import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.helpers import without_compilation

from ncelm.cli.main import main


def test_ngrams_there_and_back_and_mixed(answer, output, capsys, folder, tmp_path):
    store, ngram, run = str(folder / "store"), str(tmp_path / "ngram"), str(folder / "run")
    assert main(["ngram", "train", store, "--order", "3", "--out", ngram, "--json"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["ngrams"]) == 3
    assert without_compilation(captured.err).count("\n") == 1  # the text is tiny
    assert "to estimate discounts from: 0.5, 1, 1.5 are used" in captured.err
    assert "log Z" not in output(["evaluate", ngram])
    arpa, again = str(tmp_path / "a.arpa.gz"), str(tmp_path / "again")
    assert main(["ngram", "to-arpa", ngram, arpa]) == 0
    captured = capsys.readouterr()
    assert "n-grams of order 1 to 3" in captured.out
    assert "has no <s>" in captured.err  # the store is a stream
    answer(["ngram", "from-arpa", arpa, "--out", again, "--like", store])
    for name, array in load_file(tmp_path / "ngram/model.safetensors").items():
        np.testing.assert_array_equal(load_file(tmp_path / "again/model.safetensors")[name], array)
    assert sum(answer(["mix", ngram, run, "--out", tmp_path / "mixed"])["weights"]) == pytest.approx(1.0)
    perplexities = [
        answer(["evaluate", model, "--split", "valid"])["perplexity"] for model in (ngram, run, tmp_path / "mixed")
    ]
    assert perplexities[2] <= min(perplexities) * (1 + 1e-6)
    assert len(output(["score", tmp_path / "mixed", folder / "text"]).splitlines()) == 120
    fixed = output(["mix", ngram, run, "--weights", "0.25", "0.75", "--out", tmp_path / "fixed"])
    assert fixed == f"{tmp_path / 'fixed'}: 0.250 {ngram} + 0.750 {run}\n"


def test_errors(fails, folder, tmp_path):
    store, out = folder / "store", tmp_path / "out"
    for order in (0, 20, -1):
        fails(["ngram", "train", store, "--order", order, "--out", out], f"--order is {order}: give a whole number")
    fails(["ngram", "train", store, "--min-counts", "2", "--out", out], "--min-counts are 2")
    fails(["ngram", "to-arpa", folder / "run", tmp_path / "a"], "is not an n-gram model")
    fails(["ngram", "from-arpa", folder / "text", "--out", out], "ends before \\end\\")
    fails(["ngram", "from-arpa", tmp_path / "nothing", "--out", out], "there is no file")
    fails(["ngram", "train", store, "--out", folder / "run"], "exists already")
    fails(["mix", folder / "run", "--out", out], "at least two")
    fails(["mix", folder / "run", folder / "run", "--out", out, "--weights", "0.5", "0.6"], "--weights are")
    fails(["mix", folder / "run", folder / "run", "--out", out, "--weights", "-0.5", "1.5"], "--weights are")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(fails, folder, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    fails(["ngram", "train", folder / "store", "--out", tmp_path / "run"], "no space left")
    assert list(tmp_path.iterdir()) == []
