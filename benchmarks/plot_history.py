"""Plot the results of benchmarks over commits, from the records that the benchmarks append to benchmarks/history.

    python benchmarks/plot_history.py [FILE …] [--out DIR] [--machine TEXT]

Prints the last value of every figure and its ratio to the previous one. With matplotlib, also draws one image per
benchmark: a panel for each figure, and a line for each machine and command, because only their results are comparable.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from common import HISTORY, log

COLUMNS = 4  # panels in a row


def read(paths: list[Path]) -> dict[str, list[dict[str, Any]]]:
    """Return the records of each benchmark in order of date."""
    records: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                record = json.loads(line)
                records[record["benchmark"]].append(record)
            except (ValueError, KeyError, TypeError):
                raise SystemExit(f"{path}:{number} is not a record of a benchmark: remove the line") from None
    return {name: sorted(some, key=lambda record: record["date"]) for name, some in sorted(records.items())}


def series(records: list[dict[str, Any]]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return the points (index of the record, value) of each figure and, within it, of each machine and command."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for index, record in enumerate(records):
        label = f"{record['cpu']}, {record['cores']} cores: {record['command']}"
        for name, value in record["figures"].items():
            found[name][label].append((index, value))
    return found


def print_changes(benchmark: str, records: list[dict[str, Any]]) -> None:
    """Print the last value of each figure and its ratio to the previous value."""
    by_label: dict[str, list[str]] = defaultdict(list)
    for name, lines in series(records).items():
        for label, points in lines.items():
            index, last = points[-1]
            previous = points[-2][1] if len(points) > 1 else 0
            change = f"{last / previous:8.3f} ×" if previous else " " * 10
            commit = (records[index]["commit"] or "unknown")[:9]
            by_label[label].append(f"  {last:14,.4g}{change}  {commit:9}  {name}")
    for label, figures in by_label.items():
        print("\n".join([f"\n{benchmark}: {label}", f"  {'last value':>14}  previous  commit", *figures]))


def draw(path: Path, benchmark: str, records: list[dict[str, Any]]) -> bool:
    """Draw all figures of a benchmark; return False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    panels = series(records)
    rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(4.5 * min(len(panels), COLUMNS), 3.2 * rows), layout="constrained")
    grid = figure.subplots(rows, min(len(panels), COLUMNS), squeeze=False)
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    commits = [(record["commit"] or "unknown")[:7] for record in records]
    for axes, (name, lines) in zip(grid.flat, panels.items(), strict=False):
        for label, points in lines.items():
            axes.plot(*zip(*points, strict=True), marker="o", color=f"C{labels.index(label) % 10}", label=label)
        axes.set_title(name, fontsize="small")
        axes.set_xticks(range(len(commits)), commits, rotation=90, fontsize="x-small")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.suptitle(benchmark)
    if len(labels) > 1:
        handles = {
            label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", fontsize="x-small")
    figure.savefig(path, dpi=100)
    return True


def main() -> None:
    """Read the history, print changes and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "files", type=Path, nargs="*", metavar="FILE", help="history files (default: benchmarks/history/*)"
    )
    parser.add_argument(
        "--out", type=Path, default=HISTORY, metavar="DIR", help="directory for images (benchmarks/history)"
    )
    parser.add_argument(
        "--machine", default="", metavar="TEXT", help="only machines whose processor name contains TEXT"
    )
    options = parser.parse_args()
    paths = options.files or sorted(HISTORY.glob("*.jsonl"))
    if not paths:
        raise SystemExit(f"{HISTORY} has no records: run a benchmark first")
    options.out.mkdir(parents=True, exist_ok=True)
    for benchmark, records in read(paths).items():
        chosen = [record for record in records if options.machine in record["cpu"]]
        if not chosen:
            continue
        print_changes(benchmark, chosen)
        path = options.out / f"{benchmark}.png"
        if not draw(path, benchmark, chosen):
            log("no plots: matplotlib is not installed (pip install matplotlib)")
            return
        print(f"  plot: {path}")


if __name__ == "__main__":
    main()
