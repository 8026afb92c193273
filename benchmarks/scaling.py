"""Throughput and memory as functions of vocabulary, dimension, noise samples, context, threads and corpus size.

    python benchmarks/scaling.py --out DIR [--only vocabulary dim …]

Each quantity varies while the others have the values of BASE. Every point is measured in several processes that
alternate with those of the other points, on a synthetic text whose word frequencies follow Zipf's law. Vocabularies are
compared on a longer text, because every word occurs at least once: with a vocabulary of 1,000,000 these occurrences
would be half of a text of 2,000,000 words. Writes DIR/scaling.json, scaling.md and scaling.png. Memory is anonymous
resident memory, without the memory-mapped pages of the token store.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from common import append_history, argument_parser, log, new_engine, report_header, zipf_store
from ncelm.io.machine import environment_info
from ncelm.kernels.threads import Team
from ncelm.models.log_bilinear import ModelConfig
from ncelm.text.store import TokenStore
from ncelm.training.config import NCE, Sgd, TrainConfig

BASE = {"vocabulary": 10_000, "dim": 100, "noise_samples": 25, "context": 5, "threads": 1, "words": 1_000_000}
VALUES: dict[str, tuple[int, ...]] = {
    "vocabulary": (10_000, 30_000, 100_000, 300_000, 1_000_000),
    "dim": (50, 100, 200, 300, 500, 1000),
    "noise_samples": (1, 5, 25, 100, 300, 1000),
    "context": (1, 2, 5, 10, 20),
    "threads": (1, 2),
    "words": (1_000_000, 3_000_000, 10_000_000, 30_000_000),
}
ROUNDS, PROCESSES = 5, 3  # rounds in a process, processes of a point
VOCABULARY_TEXT = 10_000_000  # words of the text on which vocabularies are compared


def measure(point: dict[str, int], path: Path, seconds: float) -> dict[str, Any]:
    """Return words per second of all rounds, and memory, of one point in this process."""
    store = TokenStore.open(path)
    config = TrainConfig(
        model=ModelConfig(context=point["context"], dim=point["dim"], matrices="diagonal"),
        loss=NCE(samples=point["noise_samples"]),
        optimizer=Sgd(),
    )
    with Team(point["threads"]) as team:
        engine = new_engine(config, store, team)
        n, speeds = engine.planned, []
        rates = np.full(n, 1e-4)
        first = 0
        for _ in range(ROUNDS + 1):  # the first round warms up
            began, steps = time.perf_counter(), 0
            while time.perf_counter() < began + seconds:  # on different words in each call, as in training
                engine.run(0, first % max(1, engine.steps_per_epoch - n), rates, rates)
                first, steps = first + n, steps + n
            speeds.append(steps * config.batch_size / (time.perf_counter() - began))
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {"words_per_second": speeds[1:], "memory_bytes": int(status["RssAnon"].split()[0]) * 1024}


def all_points(quantities: list[str], seconds: float) -> list[dict[str, Any]]:
    """Return the median and best throughput and the minimum of memory of all points."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        stores: dict[tuple[int, int], Path] = {}
        for quantity in quantities:
            points = [BASE | {quantity: value} for value in VALUES[quantity]]
            for point in points:
                if quantity == "vocabulary":
                    point["words"] = VOCABULARY_TEXT
                text = point["vocabulary"], point["words"]
                if text not in stores:
                    directory = Path(folder, "-".join(map(str, text)))
                    directory.mkdir()
                    stores[text] = zipf_store(directory, *text).path
                    (directory / "text").unlink()
            rounds: list[list[dict[str, Any]]] = [[] for _ in points]
            for number in range(PROCESSES):
                for point, found in zip(points, rounds, strict=True):
                    store = stores[point["vocabulary"], point["words"]]
                    arguments = json.dumps([point, str(store), seconds])
                    command = [sys.executable, __file__, "--point", arguments]
                    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                    found.append(json.loads(output))
                    speed = statistics.median(found[-1]["words_per_second"])
                    log(f"process {number + 1}/{PROCESSES}, {quantity} {point[quantity]:,}: {speed:,.0f} words/s")
            for point, found in zip(points, rounds, strict=True):
                speeds = [speed for each in found for speed in each["words_per_second"]]
                results.append(
                    {
                        "quantity": quantity,
                        "value": point[quantity],
                        "words_per_second": statistics.median(speeds),
                        "best_words_per_second": max(speeds),
                        "memory_bytes": min(each["memory_bytes"] for each in found),
                    }
                )
    return results


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    base = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in BASE.items())
    lines = [
        *report_header("Scaling of throughput and memory", result),
        f"Diagonal matrices, noise samples per word, SGD. Base values: {base}. "
        f"Vocabularies are compared on {VOCABULARY_TEXT:,} words of text. Words/s are the median and the best of "
        f"{PROCESSES * ROUNDS} rounds in {PROCESSES} alternating processes.",
        "",
        "| quantity | value | words/s | best | memory, MB |",
        "|---|---|---|---|---|",
    ]
    for each in result["points"]:
        name = each["quantity"].replace("_", " ")
        lines.append(
            f"| {name} | {each['value']:,} | {each['words_per_second']:,.0f} | {each['best_words_per_second']:,.0f} | "
            f"{each['memory_bytes'] / 1e6:,.0f} |"
        )
    return "\n".join([*lines, "", "![words/s and memory](scaling.png)", ""])


def draw(path: Path, points: list[dict[str, Any]]) -> None:
    """Plot throughput and memory against each quantity."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log("no plot: matplotlib is not installed (pip install matplotlib)")
        return
    quantities = list(dict.fromkeys(each["quantity"] for each in points))
    figure = Figure(figsize=(4.0 * len(quantities), 6.0), layout="constrained")
    grid = figure.subplots(2, len(quantities), squeeze=False)
    for column, quantity in enumerate(quantities):
        chosen = [each for each in points if each["quantity"] == quantity]
        values = [each["value"] for each in chosen]
        for row, (key, label) in enumerate((("words_per_second", "words/s"), ("memory_bytes", "bytes of memory"))):
            axes = grid[row][column]
            axes.plot(values, [each[key] for each in chosen], marker="o")
            axes.set(xscale="log", xlabel=quantity.replace("_", " "), ylabel=label)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def main() -> int:
    """Measure all points and write the report."""
    parser = argument_parser(__doc__)
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory for the report")
    parser.add_argument("--only", nargs="+", choices=VALUES, default=list(VALUES), help="quantities (all)")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a round (0.5)")
    parser.add_argument("--point", help=argparse.SUPPRESS)  # measure one point in this process
    options = parser.parse_args()
    if options.point:
        point, store, seconds = json.loads(options.point)
        print(json.dumps(measure(point, Path(store), seconds)))
        return 0
    if not options.out:
        parser.error("--out is missing: give a directory for the report")
    result = {"points": all_points(options.only, options.seconds), **environment_info("ncelm", "numpy", "numba")}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scaling.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / "scaling.md").write_text(report(result))
    draw(options.out / "scaling.png", result["points"])
    figures = {
        f"{each['quantity'].replace('_', ' ')} {each['value']:,}, words/s": each["words_per_second"]
        for each in result["points"]
    }
    append_history(options.history, result, figures)
    print(json.dumps(result, indent=1) if options.json else report(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
