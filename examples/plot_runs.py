"""Draw validation perplexity against seconds of training for some runs: python plot_runs.py OUT.png RUN…"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

from ncelm.run import METRICS, Metrics


def main(out: Path, runs: list[Path]) -> None:
    """One line for each run, an epoch to a dot."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for run in runs:
        records = Metrics(run / METRICS).read()
        seconds, perplexity = ([r[field] for r in records] for field in ("seconds", "valid_perplexity"))
        axes.plot(seconds, perplexity, marker=".", label=f"{run.name} (best {min(perplexity):.1f})")
    axes.set(xscale="log", xlabel="seconds of training", ylabel="validation perplexity")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(run) for run in sys.argv[2:]])
