"""A Markdown table of finished runs beside published figures, and a plot of perplexity against time.

    python benchmarks/summarise_runs.py --out docs/results/ptb RUN[=PUBLISHED_TEST_PERPLEXITY]…

writes ptb.md and ptb.png. Test perplexities are computed anew, exactly normalised.
"""

import argparse
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ncelm.corpus import TokenStore
from ncelm.language_model import LanguageModel
from ncelm.run import METRICS, Metrics, read_config
from surroundings import surroundings


def main() -> None:
    """Read the command line, write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where .md and .png go, without the ending")
    parser.add_argument("--title", default="Penn Treebank")
    parser.add_argument("runs", nargs="+", metavar="RUN[=PERPLEXITY]")
    options = parser.parse_args()
    runs = {Path(name): published for name, _, published in (run.partition("=") for run in options.runs)}
    options.out.with_suffix(".md").write_text(table(options.title, runs))
    plot(options.out.with_suffix(".png"), list(runs))


def table(title: str, runs: dict[Path, str]) -> str:
    """One row for each run, and where and when they were made."""
    rows = [
        "| run | test perplexity | published | validation | log Z (test) | epochs | training time | words/s | seed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run, published in runs.items():
        config, records = read_config(run), Metrics(run / METRICS).read()
        lm = LanguageModel.load(run)
        test = lm.evaluate_split(TokenStore.open(lm.store_path), "test")
        last: dict[str, Any] = records[-1]
        speed = last["words"] * last["epoch"] / last["seconds"]
        rows.append(
            f"| {run.name} | **{test.perplexity:.1f}** | {published or '–'} "
            f"| {min(record['valid_perplexity'] for record in records):.1f} "
            f"| {test.log_z_mean:+.2f} ± {test.log_z_std:.2f} | {last['epoch']} | {last['seconds']:.0f} s "
            f"| {speed:,.0f} | {config['config']['seed']} |"
        )
    here = surroundings()
    made = f"{here['date'][:10]}, {here['cpu']}, {here['cores']} cores, commit {here['commit']}"
    return f"# {title}\n\n{made}.\n\n" + "\n".join(rows) + "\n"


def plot(out: Path, runs: list[Path]) -> None:
    """Validation perplexity against seconds of training, an epoch to a dot."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for run in runs:
        records = Metrics(run / METRICS).read()
        seconds, perplexity = ([record[field] for record in records] for field in ("seconds", "valid_perplexity"))
        axes.plot(seconds, perplexity, marker=".", label=f"{run.name}: {min(perplexity):.1f}")
    axes.set(xscale="log", xlabel="seconds of training, two cores", ylabel="validation perplexity")
    axes.grid(alpha=0.3, which="both")
    axes.legend(title="best")
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main()
