"""Compare two versions of ncelm: the trained model must be identical, and the ratio of throughputs is reported.

    python benchmarks/compare_versions.py --before old/.venv/bin/ncelm --after new/.venv/bin/ncelm --store STORE
        [--recipe ptb-fast] [--epochs N] [--dim N] [--threads 1 2] [--rounds 5] [--json]

Both executables train the same recipe on the same token store in alternating runs: before, after, before, after, ….
A ratio is taken between neighboring runs, so that slow changes of the load of the machine cancel; the median of all
ratios is reported, and the ratio of the best epochs. Throughput is `words_per_second` in metrics.jsonl, which excludes
compilation, validation and file access. Exit code 1 if model.safetensors is not the same in all runs.

Only options that have the same name in all versions are used.
"""

import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import append_history, argument_parser, executable_version, log, markdown_table, report_header
from ncelm.io.machine import environment_info

VERSIONS = ("before", "after")


@dataclass(frozen=True)
class Run:
    """One training run."""

    version: str  # "before" or "after"
    threads: int
    words_per_second: float  # mean over all words
    best_words_per_second: float  # of the fastest epoch
    sha256: str  # of model.safetensors


def train(executable: Path, version: str, store: Path, options: list[str], threads: int, out: Path) -> Run:
    """Train once and return throughput and hash."""
    command = [str(executable), "train", str(store), *options, "--threads", str(threads), "--out", str(out)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(f"{version}: {' '.join(command)} failed:\n{process.stderr.strip()}")
    epochs = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    words, seconds = sum(e["words"] for e in epochs), sum(e["words"] / e["words_per_second"] for e in epochs)
    return Run(
        version=version,
        threads=threads,
        words_per_second=words / seconds,
        best_words_per_second=max(e["words_per_second"] for e in epochs),
        sha256=hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
    )


def ratios(runs: list[Run]) -> list[float]:
    """Return after/before of each pair of neighboring runs."""
    return [
        b.words_per_second / a.words_per_second
        if b.version == "after"
        else a.words_per_second / b.words_per_second
        for a, b in pairwise(runs)
    ]  # fmt: skip


def summary(runs: list[Run]) -> dict[str, Any]:
    """Return the comparison of alternating runs with the same number of threads."""
    by_version = {version: [run for run in runs if run.version == version] for version in VERSIONS}
    best = {version: max(run.best_words_per_second for run in some) for version, some in by_version.items()}
    each = ratios(runs)
    return {
        "words_per_second": {
            version: statistics.median(run.words_per_second for run in some) for version, some in by_version.items()
        },
        "best_words_per_second": best,
        "median_ratio": statistics.median(each),
        "min_ratio": min(each),
        "max_ratio": max(each),
        "best_ratio": best["after"] / best["before"],
    }


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    lines = report_header(f"Comparison of two versions: {result['recipe']}", result)
    for version in VERSIONS:
        lines.append(f"- {version}: {result[version]['version']}, commit {result[version]['commit'] or 'unknown'}")
    if result["identical"]:
        lines += ["", f"model.safetensors is identical in all runs: sha256 {next(iter(result['sha256']))}", ""]
    else:
        lines += ["", "**model.safetensors differs:**", ""]
        lines += [f"- {digest}: {runs} runs ({who})" for digest, (runs, who) in result["sha256"].items()] + [""]
    header = ["threads", "before, words/s", "after, words/s", "median ratio", "range", "best/best"]
    rows = [
        [
            threads,
            *(f"{each['words_per_second'][version]:,.0f}" for version in VERSIONS),
            f"**{each['median_ratio']:.3f}**",
            f"{each['min_ratio']:.3f}–{each['max_ratio']:.3f}",
            f"{each['best_ratio']:.3f}",
        ]
        for threads, each in result["threads"].items()
    ]
    return "\n".join([*lines, *markdown_table(header, rows)])


def main() -> int:
    """Train in alternation and print the comparison."""
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--before", type=Path, required=True, metavar="PATH", help="ncelm executable of the old version"
    )
    parser.add_argument("--after", type=Path, required=True, metavar="PATH", help="ncelm executable of the new version")
    parser.add_argument("--store", type=Path, required=True, metavar="DIR", help="token store")
    parser.add_argument("--recipe", default="ptb-fast", metavar="NAME", help="recipe (default: %(default)s)")
    parser.add_argument("--epochs", type=int, metavar="N", help="number of epochs (default: that of the recipe)")
    parser.add_argument("--dim", type=int, metavar="N", help="dimension (default: that of the recipe)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="numbers of threads (1 2)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="runs of each version (5)")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    executables = {"before": options.before, "after": options.after}
    training = ["--recipe", options.recipe]
    for name in ("epochs", "dim"):
        if getattr(options, name) is not None:
            training += [f"--{name}", str(getattr(options, name))]
    runs: dict[int, list[Run]] = {threads: [] for threads in options.threads}
    with tempfile.TemporaryDirectory() as folder:
        for threads, done in runs.items():
            for number in range(options.rounds):
                for version, executable in executables.items():
                    out = Path(folder, f"{version}-{threads}-{number}")
                    done.append(train(executable, version, options.store, training, threads, out))
                    speed = done[-1].words_per_second
                    log(f"round {number + 1}/{options.rounds}, {threads} threads, {version}: {speed:,.0f} words/s")
    everything = [run for some in runs.values() for run in some]
    counts = Counter(run.sha256 for run in everything)
    result: dict[str, Any] = {
        **environment_info(),
        **{version: executable_version(executable) for version, executable in executables.items()},
        "recipe": " ".join(training[1:]),
        "identical": len(counts) == 1,
        "sha256": {
            digest: (number, " and ".join(sorted({run.version for run in everything if run.sha256 == digest})))
            for digest, number in counts.items()
        },
        "threads": {str(threads): summary(some) for threads, some in runs.items()},
        "runs": [asdict(run) for run in everything],
    }
    figures = {
        f"{result['recipe']}, {threads} threads: {name}": each[key]
        for threads, each in result["threads"].items()
        for name, key in (("median ratio", "median_ratio"), ("best/best", "best_ratio"))
    }
    append_history(options.history, result, figures)
    print(json.dumps(result, indent=1) if options.json else report(result))
    return 0 if result["identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
