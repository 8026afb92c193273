"""Fixtures of the tests of the command line."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import without_compilation

from ncelm.cli.main import main

TEXT = "the cat sat on the mat\nthe dog sat on the log\na cat and a dog\n" * 40
QUICK = ("--epochs", "2", "--dim", "8", "--batch-size", "100")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, a store and a run, made by the command line. Tests must not change it."""
    path = tmp_path_factory.mktemp("cli")
    (path / "text").write_text(TEXT)
    t = str(path / "text")
    assert main(["prepare", "--train", t, "--valid", t, "--test", t, "--out", str(path / "store")]) == 0
    assert main(["train", str(path / "store"), "--out", str(path / "run"), *QUICK]) == 0
    return path


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lines of progress in logs, however long the kernels take to compile."""
    monkeypatch.setattr("ncelm.progress.LOG_SECONDS", math.inf)


@pytest.fixture
def quick() -> list[str]:
    """Options of a training run that takes no time."""
    return list(QUICK)


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Callable[[Sequence[object]], str]:
    """Run a command that succeeds and prints nothing to standard error; return what it prints."""

    def run(arguments: Sequence[object]) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 0
        captured = capsys.readouterr()
        assert without_compilation(captured.err) == ""
        return captured.out

    return run


@pytest.fixture
def answer(output: Callable[[Sequence[object]], str]) -> Callable[[Sequence[object]], Any]:
    """Run a command with --json; return its result."""
    return lambda arguments: json.loads(output([*arguments, "--json"]))


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that exits with code 2; return the line on standard error, which has all the fragments."""

    def run(arguments: Sequence[object], *fragments: str) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 2
        captured = capsys.readouterr()
        errors = without_compilation(captured.err)
        assert captured.out == ""
        assert errors.startswith("ncelm: ")
        assert errors.count("\n") == 1
        for fragment in fragments:
            assert fragment in errors
        return errors

    return run
