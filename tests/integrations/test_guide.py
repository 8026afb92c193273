"""The guide to data pipelines: its Spark function, its Slurm script and its Makefile."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT
from tests.integrations.conftest import DOCUMENTS

GUIDE = (ROOT / "docs" / "guides" / "pipelines.md").read_text()


def block(language: str, containing: str) -> str:
    """Return the code block that contains a word."""
    (found,) = [code for code in re.findall(rf"```{language}\n(.*?)```", GUIDE, re.S) if containing in code]
    return found


def test_the_function_for_spark(expected):
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    scope: dict = {}
    exec(block("python", "mapInPandas"), scope)
    table = pandas.DataFrame({"id": range(len(DOCUMENTS)), "text": DOCUMENTS})
    done = pandas.concat(scope["scored"](str(expected.model))([table[:2], table[2:]]))
    assert done["id"].tolist() == list(range(len(DOCUMENTS)))
    assert [value if value == value else None for value in done["perplexity"]] == pytest.approx(expected.perplexities)


@pytest.fixture
def folder(expected, tmp_path, monkeypatch) -> Path:
    """A folder with a model, a corpus, and the command `ncelm`."""
    (tmp_path / "model").symlink_to(expected.model)
    (tmp_path / "corpus.txt").write_text("".join(f"w{i % 20} w{(i + 1) % 20} w{i * i % 20}\n" for i in range(101)))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ncelm").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ncelm "$@"\n')
    (tmp_path / "bin" / "ncelm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.chdir(tmp_path)
    subprocess.run("ncelm score model corpus.txt --json > whole.jsonl", shell=True, check=True)
    return tmp_path


@pytest.mark.serial
def test_the_array_job(folder):
    script = block("text", "SBATCH").replace("64", "2")
    (folder / "scores").mkdir()
    for task in (2, 1):
        subprocess.run(["sh", "-c", script], env={**_environment(), "SLURM_ARRAY_TASK_ID": str(task)}, check=True)
    found = "".join(path.read_text() for path in sorted((folder / "scores").glob("*.jsonl")))
    assert found == (folder / "whole.jsonl").read_text()
    assert len([json.loads(line) for line in found.splitlines()]) == 101


@pytest.mark.serial
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_makefile(folder):
    (folder / "Makefile").write_text(block("text", "SHARDS").replace("64", "3"))
    (folder / "scores").mkdir()
    (folder / "scores" / "3.jsonl.part").write_text("from a job that was stopped\n")
    subprocess.run(["make", "-s", "-j", "2"], check=True, env=_environment())
    assert (folder / "scores.jsonl").read_text() == (folder / "whole.jsonl").read_text()
    assert len(list((folder / "scores").glob("*.jsonl"))) == 3


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
