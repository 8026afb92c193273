"""How words/s and memory grow with vocabulary, dimensions, noise words, context, threads and corpus.

    python benchmarks/growth.py --out FOLDER [--only vocabulary dim …]

Each point trains in processes of its own, by turns with the others of its quantity, on a made-up text with the word
frequencies of Zipf's law; all quantities but one stay as they are in MIDDLE below. (But vocabularies are compared on a
longer text: every word is there at least once, and with 1,000,000 words that would be half of a text of 2,000,000.)
Writes FOLDER/growth.json, growth.md and growth.png. Memory is what the process holds for itself: pages of the token
store, which is mapped from disk, come and go.
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

from common import fresh_engine, heading, made_up_store, say
from ncelm.io.machine import environment_info
from ncelm.kernels.threads import Team
from ncelm.models.log_bilinear import ModelConfig
from ncelm.text.store import TokenStore
from ncelm.training.config import TrainConfig

MIDDLE = {"vocabulary": 10_000, "dim": 100, "noise_words": 25, "context": 5, "threads": 1, "words": 1_000_000}
VALUES: dict[str, tuple[int, ...]] = {
    "vocabulary": (10_000, 30_000, 100_000, 300_000, 1_000_000),
    "dim": (50, 100, 200, 300, 500, 1000),
    "noise_words": (1, 5, 25, 100, 300, 1000),
    "context": (1, 2, 5, 10, 20),
    "threads": (1, 2),
    "words": (1_000_000, 3_000_000, 10_000_000, 30_000_000),
}
ROUNDS, PASSES = 5, 3
LARGE_TEXT = 10_000_000


def measure(point: dict[str, int], path: Path) -> dict[str, Any]:
    """Words/s of some rounds and memory of one point, in this process."""
    store = TokenStore.open(path)
    config = TrainConfig(
        model=ModelConfig(context=point["context"], dim=point["dim"], matrices="diagonal"),
        noise_samples=point["noise_words"],
        optimizer="sgd",
    )
    with Team(point["threads"]) as team:
        engine = fresh_engine(config, store, team)
        n, speeds = engine.sizes.planned, []
        rates = np.full(n, 1e-4)
        first = 0
        for _ in range(ROUNDS + 1):
            began, steps = time.perf_counter(), 0
            while time.perf_counter() < began + 0.5:  # always other words, as in training
                engine.run(0, first % max(1, engine.steps_per_epoch - n), rates, rates)
                first, steps = first + n, steps + n
            speeds.append(steps * engine.sizes.batch / (time.perf_counter() - began))
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {"words_per_second": speeds[1:], "memory_bytes": int(status["RssAnon"].split()[0]) * 1024}


def all_points(only: list[str]) -> list[dict[str, Any]]:
    """Every point that is asked for: its median speed, and its memory at its least."""
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        stores: dict[tuple[int, int], Path] = {}
        for quantity in only:
            points = [MIDDLE | {quantity: value} for value in VALUES[quantity]]
            for point in points:
                if quantity == "vocabulary":
                    point["words"] = LARGE_TEXT
                text = point["vocabulary"], point["words"]
                if text not in stores:
                    place = Path(folder, "-".join(map(str, text)))
                    place.mkdir()
                    stores[text] = made_up_store(place, *text).path
                    (place / "text").unlink()
            rounds: list[list[dict[str, Any]]] = [[] for _ in points]
            for number in range(PASSES):
                for point, found in zip(points, rounds, strict=True):
                    store = stores[point["vocabulary"], point["words"]]
                    command = [sys.executable, __file__, "--point", json.dumps(point), "--store", str(store)]
                    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                    found.append(json.loads(output))
                    speed = statistics.median(found[-1]["words_per_second"])
                    say(f"{number + 1} of {PASSES}: {quantity} {point[quantity]:,}: {speed:,.0f} words/s")
            for point, found in zip(points, rounds, strict=True):
                speeds = [speed for each in found for speed in each["words_per_second"]]
                answers.append(
                    {
                        "quantity": quantity,
                        "value": point[quantity],
                        "words_per_second": statistics.median(speeds),
                        "best_words_per_second": max(speeds),
                        "memory_bytes": min(each["memory_bytes"] for each in found),
                    }
                )
    return answers


def markdown(answer: dict[str, Any]) -> str:
    """The result for people."""
    middle = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in MIDDLE.items())
    lines = [
        *heading("Growth", answer),
        f"Diagonal matrices, noise words of each word's own, plain SGD; where nothing else is said: {middle}. "
        f"Vocabularies are compared on {LARGE_TEXT:,} words of text. Words/s are the median and the best of "
        f"{PASSES * ROUNDS} rounds in {PASSES} processes, by turns.",
        "",
        "| | | words/s | best | memory, MB |",
        "|---|---|---|---|---|",
    ]
    for each in answer["points"]:
        name = each["quantity"].replace("_", " ")
        lines.append(
            f"| {name} | {each['value']:,} | {each['words_per_second']:,.0f} | {each['best_words_per_second']:,.0f} | "
            f"{each['memory_bytes'] / 1e6:,.0f} |"
        )
    return "\n".join([*lines, "", "![words/s and memory](growth.png)", ""])


def draw(path: Path, points: list[dict[str, Any]]) -> None:
    """A small picture for each quantity."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        say("matplotlib is not installed, so there is no picture: pip install matplotlib")
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
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="a folder for the answer")
    parser.add_argument("--only", nargs="+", choices=VALUES, default=list(VALUES), help="some of the quantities (all)")
    parser.add_argument("--point", help=argparse.SUPPRESS)  # one point, in this process
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(measure(json.loads(options.point), options.store)))
        return 0
    if not options.out:
        parser.error("--out is missing: name a folder for the answer")
    points = all_points(options.only)
    answer = {"points": points, **environment_info("ncelm", "numpy", "numba")}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "growth.json").write_text(json.dumps(answer, indent=1) + "\n")
    (options.out / "growth.md").write_text(markdown(answer))
    draw(options.out / "growth.png", points)
    print(markdown(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
