"""The cost of checksums when a model is loaded.

    python benchmarks/checksums.py RUN [RUN ...] [--rounds 7] [--json]

Each run is loaded with and without verification of its checksum, in alternation, from the page cache. The time is CPU
time of the process, including all other validation. For comparison, the checksum itself is timed with XXH3 and SHA-256.
"""

import hashlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import xxhash

from common import append_history, argument_parser, log, markdown_table, report_header
from ncelm.io import array_files, run
from ncelm.io.machine import environment_info
from ncelm.models.load import load_word_model


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(path: Path, rounds: int) -> dict[str, Any]:
    """Return the median CPU seconds of loading a run, with and without verification, and of the digests alone."""
    times: dict[str, list[float]] = {"verified": [], "not verified": []}
    load_word_model(path)  # compiles, and fills the page cache
    for _ in range(rounds):
        times["verified"].append(seconds(lambda: load_word_model(path)))
        with patch.object(array_files, "_verify", lambda *arguments: None):
            times["not verified"].append(seconds(lambda: load_word_model(path)))
    content = (path / run.MODEL).read_bytes()
    result: dict[str, Any] = {name: statistics.median(each) for name, each in times.items()}
    result["xxh3"] = seconds(lambda: xxhash.xxh3_128(content).digest())
    result["sha256"] = seconds(lambda: hashlib.sha256(content).digest())
    result["bytes"] = len(content)
    result["ratio"] = result["verified"] / result["not verified"]
    return result


def main() -> None:
    """Measure all runs and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories of `train` or `ngram`")
    parser.add_argument("--rounds", type=int, default=7, help="number of timed rounds (7)")
    options = parser.parse_args()
    result: dict[str, Any] = {**environment_info("numpy", "numba", "xxhash"), "rounds": options.rounds, "runs": {}}
    for path in options.runs:
        log(f"{path.name} …")
        result["runs"][path.name] = measure(path, options.rounds)
    append_history(options.history, result, {f"{name}: ratio": each["ratio"] for name, each in result["runs"].items()})
    if options.json:
        print(json.dumps(result, indent=1))
        return
    header = ["run", "MB", "CPU s, not verified", "verified", "ratio", "XXH3 alone", "SHA-256 alone"]
    rows = [
        [
            name,
            f"{each['bytes'] / 1e6:,.0f}",
            *(f"{each[key]:.3f}" for key in ("not verified", "verified")),
            f"**{each['ratio']:.3f}**",
            *(f"{each[key]:.3f}" for key in ("xxh3", "sha256")),
        ]
        for name, each in result["runs"].items()
    ]
    print("\n".join([*report_header("Cost of checksums", result), *markdown_table(header, rows)]))


if __name__ == "__main__":
    main()
