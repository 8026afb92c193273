"""CPU seconds of the first run: compilation with an empty cache, and start-up time of short commands.

    python benchmarks/cold_start.py [--ncelm PATH] [--rounds 3] [--json]

For `train --recipe ptb-fast`, `train --recipe holmes` and `score`: CPU seconds with an empty compile cache minus CPU
seconds with the cache that this run has filled. For `--version`, `--help` and `neighbors`: CPU seconds with a full
cache. CPU seconds are user and system time of the process and all its children, so that they are comparable on a busy
machine, although less precise. The text is synthetic and small: almost all time is start-up and compilation.

The cache directory is set with NCELM_CACHE_DIR, and with NUMBA_CACHE_DIR for versions that only know that.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from common import append_history, argument_parser, executable_version, log, markdown_table, report_header
from ncelm.io.machine import environment_info

# Maximum CPU seconds: of compilation, and of warm commands
TARGETS = {
    "train --recipe ptb-fast": 25.0,
    "train --recipe holmes": 25.0,
    "score": 3.0,
    "--version": 0.15,
    "--help": 0.3,
    "neighbors": 0.8,
}


def cpu_seconds(command: list[str], cache: Path) -> float:
    """Return user and system time of a command and its children."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "NCELM_CACHE_DIR": str(cache)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{process.stderr.strip()}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write_text(path: Path, vocabulary: int = 500, sentences: int = 500) -> None:
    """Write a small text: sentences of 20 words with frequencies of Zipf's law."""
    rng = np.random.default_rng(0)
    frequencies = 1.0 / np.arange(1, vocabulary + 1)
    ids = rng.choice(vocabulary, (sentences, 20), p=frequencies / frequencies.sum())
    path.write_text("".join(" ".join(f"w{i}" for i in line) + "\n" for line in ids.tolist()))


def measure(ncelm: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Return CPU seconds of all commands."""
    text, store, model, setup_cache = folder / "text", folder / "store", folder / "model", folder / "setup"
    write_text(text)
    cpu_seconds([ncelm, "prepare", "--train", str(text), "--out", str(store)], setup_cache)
    log("training the model that `score` and `neighbors` use")
    cpu_seconds([ncelm, "train", str(store), "--recipe", "ptb-fast", "--out", str(model)], setup_cache)
    numbers = iter(range(1_000_000))

    def train(recipe: str) -> list[str]:
        """Return a command with a new output directory."""
        return [
            ncelm,
            "train",
            str(store),
            "--recipe",
            recipe,
            "--threads",
            "1",
            "--out",
            str(folder / f"run-{next(numbers)}"),
        ]

    compiling = {
        "train --recipe ptb-fast": lambda: train("ptb-fast"),
        "train --recipe holmes": lambda: train("holmes"),
        "score": lambda: [ncelm, "score", str(model), str(text), "--threads", "1"],
    }
    result: dict[str, Any] = {"compile": {}, "warm": {}}
    for name, command in compiling.items():
        cold, warm = [], []
        for number in range(rounds):
            cache = folder / f"cache-{next(numbers)}"
            cache.mkdir()
            cold.append(cpu_seconds(command(), cache))
            warm.append(cpu_seconds(command(), cache))
            log(f"round {number + 1}/{rounds}, {name}: empty cache {cold[-1]:.1f} s, full cache {warm[-1]:.1f} s")
        result["compile"][name] = {
            "empty_cache": cold,
            "full_cache": warm,
            "seconds": statistics.median(a - b for a, b in zip(cold, warm, strict=True)),
        }
    short = {"--version": ["--version"], "--help": ["--help"], "neighbors": ["neighbors", str(model), "w0"]}
    for name, arguments in short.items():
        cpu_seconds([ncelm, *arguments], setup_cache)  # writes Python's own caches
        each = [cpu_seconds([ncelm, *arguments], setup_cache) for _ in range(3 * rounds)]
        result["warm"][name] = {"rounds": each, "seconds": statistics.median(each)}
        log(f"{name}: {result['warm'][name]['seconds']:.2f} s")
    return result


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = [
        [f"`{name}`, {kind}", f"{each['seconds']:.2f}", f"≤ {TARGETS[name]:g}"]
        for key, kind in (("compile", "empty minus full cache"), ("warm", "full cache"))
        for name, each in result[key].items()
    ]
    return "\n".join(
        [*report_header("First run and start-up", result), *markdown_table(["", "CPU seconds", "target"], rows)]
    )


def main() -> int:
    """Measure all commands and print."""
    parser = argument_parser(__doc__)
    default = Path(sys.executable).with_name("ncelm")
    parser.add_argument(
        "--ncelm", type=Path, default=default, metavar="PATH", help="executable (default: this environment's)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="repetitions (3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = {
            **environment_info(),
            **executable_version(options.ncelm),  # replaces the commit of this checkout
            **measure(str(options.ncelm), options.rounds, Path(folder)),
        }
    figures = {f"{name}, CPU s": each["seconds"] for kind in ("compile", "warm") for name, each in result[kind].items()}
    append_history(options.history, result, figures)
    print(json.dumps(result, indent=1) if options.json else report(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
