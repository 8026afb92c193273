"""Shared code of the benchmarks: command line, history of results, report headers, engines and synthetic texts."""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ncelm.io.machine import environment_info

if TYPE_CHECKING:  # imported where they are used: compiled code is not needed by all benchmarks
    from ncelm.kernels.threads import Team
    from ncelm.models.log_bilinear import LogBilinear
    from ncelm.text.store import TokenStore
    from ncelm.training.config import TrainConfig
    from ncelm.training.engine import Engine

HISTORY = Path(__file__).parent / "history"


# -- command line and history ------------------------------------------------------------------------------------------


def argument_parser(docstring: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have: --json and --history."""
    parser = argparse.ArgumentParser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print all results as JSON")
    parser.add_argument(
        "--history",
        type=Path,
        default=HISTORY / f"{_script().stem}.jsonl",
        metavar="FILE",
        help="file to which a record of the results is appended (default: %(default)s)",
    )
    return parser


def append_history(path: Path, result: Mapping[str, Any], figures: Mapping[str, float | None]) -> None:
    """Append one line of JSON to a history file: date, commit, machine, command and figures.

    `result` contains the fields of `environment_info`. `figures` maps names to the numbers that `plot_history.py` plots
    over commits; None is left out.
    """
    record = {
        "benchmark": _script().stem,
        "command": command_line(),
        **{name: result[name] for name in environment_info()},
        "figures": {name: value for name, value in figures.items() if value is not None},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")


def command_line() -> str:
    """Return the command of this process, with paths reduced to names: directories do not affect results."""
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    if "--history" in words:  # where the record is written does not affect results either
        del words[words.index("--history") : words.index("--history") + 2]
    return shlex.join(["python", f"benchmarks/{_script().name}", *words])


def _script() -> Path:
    return Path(sys.argv[0])


def executable_version(path: Path) -> dict[str, str | None]:
    """Return the version of an ncelm executable and, if it is inside of a git checkout, the commit of the checkout."""
    number = subprocess.run([str(path), "--version"], capture_output=True, text=True).stdout.strip()
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    commit = subprocess.run(command, cwd=path.absolute().parent, capture_output=True, text=True)
    return {"version": number or None, "commit": commit.stdout.strip() if commit.returncode == 0 else None}


def log(message: str) -> None:
    """Print progress to standard error."""
    print(message, file=sys.stderr, flush=True)


# -- reports -----------------------------------------------------------------------------------------------------------


def describe_environment(result: Mapping[str, Any]) -> str:
    """Return date, machine, commit and versions in one line, from the fields of `environment_info`."""
    libraries = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    commit = (result["commit"] or "unknown")[:12]
    return f"{result['date'][:10]}, {result['cores']} cores of {result['cpu']}, commit {commit}; {libraries}."


def report_header(title: str, result: Mapping[str, Any]) -> list[str]:
    """Return the first lines of a Markdown report: title, command and environment."""
    return [f"# {title}", "", f"    {command_line()}", "", describe_environment(result), ""]


def markdown_table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]


# -- engines and synthetic text ----------------------------------------------------------------------------------------


def new_engine(
    config: "TrainConfig", store: "TokenStore", team: "Team", model: "LogBilinear | None" = None
) -> "Engine":
    """Return the engine that `ncelm train` runs, without files and validation.

    Training starts from `model`, by default from random parameters.
    """
    from ncelm.models.log_bilinear import LogBilinear
    from ncelm.noise import Noise
    from ncelm.training.checkpoint import SnapshotShapes
    from ncelm.training.engine import create
    from ncelm.training.setup import noise_distribution

    if model is None:
        unigram = Noise.from_counts(store.vocabulary.counts).probabilities
        model = LogBilinear.initialise(config.model, unigram, config.seed, config.init.std)
    shapes = {name: array.shape for name, array in model.arrays().items()}
    optimizer_state = SnapshotShapes(shapes, config.optimizer, contexts=0, carried={}).optimizer_state()
    return create(model, optimizer_state, noise_distribution(store, config), store, config, team)


def zipf_store(folder: Path, vocabulary: int, words: int = 1_000_000) -> "TokenStore":
    """Return a token store of synthetic text in `folder`: word frequencies follow Zipf's law, all words occur."""
    from ncelm.text.prepare import prepare

    rng = np.random.default_rng(0)
    frequencies = 1.0 / np.arange(1, vocabulary - 1)
    drawn = rng.choice(frequencies.size, words, p=frequencies / frequencies.sum())
    ids = np.concatenate([drawn, np.arange(frequencies.size)])
    with (folder / "text").open("w") as file:
        for first in range(0, ids.size, 20):
            file.write(" ".join(f"w{i}" for i in ids[first : first + 20].tolist()) + "\n")
    return prepare(train=folder / "text", out=folder / "store", boundary="sentence")
