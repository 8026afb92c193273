"""Reports of reproduced tables: measured and published results as Markdown, JSON and plots.

Everything is computed from the metrics of finished runs. Nothing is trained here.
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncelm.io.files import atomic_write
from ncelm.io.machine import environment_info
from ncelm.losses import reference
from ncelm.paper import plots
from ncelm.paper.rows import Row, Table
from ncelm.training.config import TrainConfig
from ncelm.training.options import to_flat
from ncelm.training.recipes import ptb_nce

PTB_VOCABULARY = 10_000  # V of the standard Penn Treebank split
TARGET = 163.5  # the paper's test perplexity with maximum likelihood; times to reach it are compared


@dataclass(frozen=True)
class Result:
    """The runs of one row. Each list has one entry per seed."""

    row: Row
    seeds: list[int]
    records: list[list[dict[str, Any]]]  # metrics.jsonl of each run
    tests: list[dict[str, Any] | None]  # evaluation of each run's best model on the test split; None without a model

    def test(self, field: str) -> list[float]:
        """Return a field of the test evaluation of each run that has a model."""
        return [test[field] for test in self.tests if test]

    def best(self, field: str) -> list[float]:
        """Return a field at the epoch with the lowest validation perplexity, for each run with such an epoch."""
        chosen = []
        for lines in self.records:
            epochs = [line for line in lines if "valid_perplexity" in line]
            if epochs:
                chosen.append(min(epochs, key=lambda line: line["valid_perplexity"])[field])
        return chosen

    @property
    def epochs(self) -> float:
        """Number of epochs, mean over the seeds."""
        return statistics.fmean(lines[-1]["epoch"] for lines in self.records)

    @property
    def seconds(self) -> float:
        """Training time of the fastest seed. Other load on the machine only adds to it, so the minimum is robust."""
        return min(lines[-1]["seconds"] for lines in self.records)

    @property
    def words_per_second(self) -> float:
        """Throughput of the fastest epoch."""
        return max(line.get("words_per_second") or 0.0 for lines in self.records for line in lines)

    def time_to(self, perplexity: float) -> float | None:
        """Return the training time until test perplexity reached `perplexity`, of the fastest seed that did."""
        times = [time for lines in self.records if (time := _time_to(lines, perplexity)) is not None]
        return min(times, default=None)


def _time_to(lines: list[dict[str, Any]], perplexity: float) -> float | None:
    """Return the time at which a run reaches a test perplexity, or None.

    Log perplexity is interpolated linearly between epochs.
    """
    before: tuple[float, float] | None = None
    for line in lines:
        if "test_perplexity" not in line:
            break
        seconds, here = line["seconds"], line["test_perplexity"]
        if here <= perplexity:
            if before is None:
                return seconds
            fraction = math.log(before[1] / perplexity) / math.log(before[1] / here)
            return before[0] + fraction * (seconds - before[0])
        before = (seconds, here)
    return None


def write_page(
    table: Table, results: list[Result], out: Path, seeds: int, complete: bool, command: str
) -> dict[str, Any]:
    """Write Markdown, JSON and plots of a table; return the content of the JSON file."""
    drawn = _plots(table, results, out)
    report = {
        "table": table,
        "command": command,
        "complete": complete,
        "seeds": seeds,
        "made": environment_info("ncelm", "numpy", "numba", "scipy"),
        "rows": [_summary(result, results) for result in results],
        "plots": drawn,
    }
    save_page(out / table, report, _markdown(report))
    return report


def save_page(path: Path, report: dict[str, Any], markdown: str) -> None:
    """Write a table as PATH.json and PATH.md."""
    with atomic_write(path.with_suffix(".json")) as file:
        file.write((json.dumps(report, indent=1, allow_nan=False) + "\n").encode())
    with atomic_write(path.with_suffix(".md")) as file:
        file.write(markdown.encode())


def _mean_and_deviation(values: list[float]) -> dict[str, float | None] | None:
    """Return mean and standard deviation over the seeds; the deviation of one seed is None."""
    if not values:
        return None
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else None}


def _summary(result: Result, results: list[Result]) -> dict[str, Any]:
    """Return the JSON record of a row."""
    row, config = result.row, result.row.config
    c, d, vocabulary = config.model.positions, config.model.dim, PTB_VOCABULARY
    ml = next((other for other in results if other.row.key == "ml"), None)
    time, k = result.time_to(TARGET), getattr(config.loss, "samples", 0)
    ml_time = ml.time_to(TARGET) if ml else None
    exact = config.loss.name == "ml"
    return {
        "key": row.key,
        "name": row.name,
        "part": row.part,
        "k": None if exact else k,
        "paper": row.paper,
        "seeds": result.seeds,
        "test_perplexity": _mean_and_deviation(result.test("perplexity")),
        "test_perplexities": result.test("perplexity"),
        "valid_perplexity": _mean_and_deviation(result.best("valid_perplexity")),
        "log_z": _mean_and_deviation(result.test("log_z_mean")),
        "log_z_std": _mean_and_deviation(result.test("log_z_std")),
        "epochs": result.epochs,
        "seconds": result.seconds,
        "words_per_second": result.words_per_second,
        "seconds_to_target": time,
        "update_speedup": result.words_per_second / ml.words_per_second if ml and not exact else None,
        "eq15_speedup": None if exact else reference.eq15_speedup(c, d, vocabulary, k),
        "target_speedup": ml_time / time if ml_time and time and not exact else None,
        "log_normalizers": _log_normalizers(result),
        "runs": [_run_summary(seed, lines) for seed, lines in zip(result.seeds, result.records, strict=True)],
        "options": _changes(config),
    }


def _log_normalizers(result: Result) -> dict[str, Any] | None:
    """Return number, mean, standard deviation and memory of the learned log-normalizers c_h; None if they are fixed."""
    if not result.row.config.learned_log_normalizers or not result.best("contexts"):
        return None
    contexts = int(result.best("contexts")[0])
    words = result.records[0][-1]["words"]
    return {
        "contexts": contexts,
        "mean": statistics.fmean(result.best("log_normalizers_mean")),
        "std": statistics.fmean(result.best("log_normalizers_std")),
        "bytes": 4 * contexts + 4 * words,  # c_h, and the context index of every training word
    }


def _run_summary(seed: int, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how one run ended."""
    last = lines[-1]
    fields = ("epoch", "step", "diverged", "best_epoch", "effective_samples", "least_effective_samples", "samples",
              "largest_log_weight", "last_weights")  # fmt: skip
    return {"seed": seed, **{name: last[name] for name in fields if name in last}}


def _changes(config: TrainConfig) -> dict[str, Any]:
    """Return the options of a row that differ from the recipe `ptb-nce`."""
    base, ours = to_flat(ptb_nce()), to_flat(config)
    return {name: ours[name] for name in ours if ours[name] != base.get(name)}


def _plots(table: Table, results: list[Result], out: Path) -> list[str]:
    """Draw all plots for which there are results; return the file names."""
    names = []

    def add(name: str, drawn: bool) -> None:
        if drawn:
            names.append(name)

    curves = {r.row.name: _curve(r, "seconds", "valid_perplexity") for r in results if r.best("valid_perplexity")}
    if curves:
        name = f"{table}-time.png"
        add(name, plots.perplexity_against_time(out / name, curves, "validation"))
    by_noise: dict[str, list[Result]] = {}
    for result in results:
        if result.row.part in ("paper", "bigram") and result.row.config.loss.name == "nce" and result.tests[0]:
            by_noise.setdefault(f"{result.row.config.noise.name} noise", []).append(result)
    if by_noise:
        name = f"{table}-samples.png"
        ours = {noise: _by_samples(group, False) for noise, group in by_noise.items()}
        paper = {noise: curve for noise, group in by_noise.items() if (curve := _by_samples(group, True))[0]}
        add(name, plots.perplexity_against_samples(out / name, ours, paper))
    log_normalizers = [r for r in results if r.row.part == "log_normalizers" or r.row.key == "nce-unigram-25"]
    if len(log_normalizers) > 1:
        name = f"{table}-log-normalizers.png"
        curves = {}
        for result in log_normalizers:
            kind = "learned" if result.row.config.learned_log_normalizers else "fixed"
            curves[f"{kind} log-normalizers ({result.row.name})"] = _curve(result, "epoch", "valid_perplexity")
        add(name, plots.curves_by_epoch(out / name, curves, "validation"))
    importance = [r for r in results if r.row.config.loss.name == "importance"]
    if importance:
        name = f"{table}-importance.png"
        traces = {r.row.name: _trace(r) for r in importance}
        ends = {r.row.name: traces[r.row.name][0][-1] for r in importance if "diverged" in r.records[0][-1]}
        add(name, plots.effective_samples(out / name, traces, ends))
    return names


def _curve(result: Result, x: str, y: str) -> plots.Curve:
    """Return two fields of the metrics of the first seed, one point per epoch."""
    lines = [line for line in result.records[0] if y in line]
    return [line[x] for line in lines], [line[y] for line in lines]


def _by_samples(group: list[Result], paper: bool) -> plots.Curve:
    """Return test perplexity against k, measured or published."""
    chosen = [r for r in group if r.row.paper is not None or not paper]
    perplexities = [r.row.paper if paper else statistics.fmean(r.test("perplexity")) for r in chosen]
    return [getattr(r.row.config.loss, "samples", 0) for r in chosen], [p for p in perplexities if p is not None]


def _trace(result: Result) -> plots.Curve:
    """Return the effective sample size at each recorded step of the first seed."""
    steps, sizes, before, per_epoch = [], [], 0, 0
    for line in result.records[0]:
        for summary in line.get("weights", []):
            steps.append(before + summary["step"])
            sizes.append(summary["effective_samples"])
        per_epoch = per_epoch or -(-line.get("words", 0) // result.row.config.batch_size)
        before += per_epoch
    return steps, sizes


# -- Markdown ----------------------------------------------------------------------------------------------------------

TITLES = {
    "table1": "Table 1: training algorithms (log-bilinear model, context of 2 words, 100 dimensions, Penn Treebank)",
    "table2": "Table 2: noise distributions and numbers of noise samples (same model and data as Table 1)",
}


def _markdown(report: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    made, rows = report["made"], report["rows"]
    parts = {part: [row for row in rows if row["part"] == part] for part in dict.fromkeys(row["part"] for row in rows)}
    page = [
        f"# {TITLES[report['table']]}",
        f"Made by `{report['command']}` on {made['date'][:10]}, {made['cpu']}, {made['cores']} cores, "
        f"commit {made['commit'] or 'unknown'}, ncelm {made['versions']['ncelm']}."
        + ("" if report["complete"] else " Not every row was trained with every seed."),
        "Perplexities are explicitly normalised test perplexities, mean ± standard deviation over the seeds, at the "
        "epoch with the lowest validation perplexity. Learning rates were chosen by validation perplexity. Times are "
        "those of the fastest seed, without validation, file access and compilation. Throughput (words/s) is that of "
        "the fastest epoch.",
    ]
    if report["table"] == "table2":
        page += [_noise_table(parts.get("paper", []) + parts.get("bigram", []))]
    if parts.get("paper"):
        page += ["## All rows" if report["table"] == "table2" else "## The paper's rows", _main_table(parts["paper"])]
        page += [TABLE_NOTE]
    if parts.get("bigram"):
        page += ["## Beyond the paper: bigram noise", _main_table(parts["bigram"])]
    if parts.get("log_normalizers"):
        fixed = [row for row in rows if row["key"] == "nce-unigram-25"]
        page += [
            "## Learned and fixed log-normalizers (section 3.1)",
            _log_normalizer_table(fixed + parts["log_normalizers"]),
        ]
    if parts.get("importance"):
        page += ["## Importance sampling (sections 2.3 and 4)", _importance_table(parts["importance"])]
    if parts.get("extensions"):
        page += ["## Beyond the paper", _main_table(parts["extensions"]), _options_list(parts["extensions"])]
    page += [f"![{name.removesuffix('.png')}]({name})" for name in report["plots"]]
    return "\n\n".join(page) + "\n"


TABLE_NOTE = f"""\
"Update speed-up" is the throughput divided by that of ML, as measured and as predicted by the operation counts of
Eq. 15. "Time to {TARGET}" is the training time until test perplexity reaches {TARGET}, the paper's ML result (log
perplexity is interpolated linearly between epochs); the speed-up over ML is given in parentheses."""


def _lines(head: Sequence[str], body: list[list[str]]) -> str:
    """Return a Markdown table."""
    rows = [list(head), ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _plus_minus(value: dict[str, Any] | None) -> str:
    if not value:
        return "–"
    return f"{value['mean']:.1f}" + (f" ± {value['std']:.1f}" if value["std"] is not None else "")


def _or_dash(value: float | None, form: str = ".1f") -> str:
    return f"{value:{form}}" if value is not None else "–"


def _main_table(rows: list[dict[str, Any]]) -> str:
    head = ("", "seeds", "test perplexity", "paper", "validation", "log Z", "epochs", "time", "words/s",
            "update speed-up", "by Eq. 15", f"time to {TARGET}")  # fmt: skip
    body = []
    for row in rows:
        to_target = _or_dash(row["seconds_to_target"], ".1f")
        if row["seconds_to_target"] is not None:
            to_target += " s" + (f" ({row['target_speedup']:.0f}×)" if row["target_speedup"] else "")
        diverged = sum("diverged" in run for run in row["runs"])
        body.append([
            row["name"] + (f" ({diverged} of {len(row['runs'])} diverged)" if diverged else ""),
            str(len(row["seeds"])),
            f"**{_plus_minus(row['test_perplexity'])}**",
            _or_dash(row["paper"]),
            _plus_minus(row["valid_perplexity"]),
            f"{row['log_z']['mean']:+.2f} ± {row['log_z_std']['mean']:.2f}" if row["log_z"] else "–",
            f"{row['epochs']:.1f}",
            f"{row['seconds']:.0f} s",
            f"{row['words_per_second']:,.0f}",
            _or_dash(row["update_speedup"]) + ("×" if row["update_speedup"] else ""),
            _or_dash(row["eq15_speedup"]) + ("×" if row["eq15_speedup"] else ""),
            to_target,
        ])  # fmt: skip
    return _lines(head, body)


def _noise_table(rows: list[dict[str, Any]]) -> str:
    """Return the table in the paper's form: one line per k, one column per noise distribution."""
    noises = list(dict.fromkeys(row["options"].get("noise", "unigram") for row in rows))
    by_cell = {(row["k"], row["options"].get("noise", "unigram")): row for row in rows if row["k"]}
    body = []
    for k in sorted({k for k, _ in by_cell}):
        line = [str(k)]
        for noise in noises:
            row = by_cell.get((k, noise))
            line += [
                f"**{_plus_minus(row['test_perplexity'])}**" if row else "–",
                _or_dash(row["paper"] if row else None),
            ]
        body.append(line)
    return _lines(["k", *(cell for noise in noises for cell in (f"{noise} noise", "paper"))], body)


def _log_normalizer_table(rows: list[dict[str, Any]]) -> str:
    head = ("log-normalizers c_h", "seeds", "test perplexity", "log Z without c_h", "c_h", "contexts", "memory", "time")
    body = []
    for row in rows:
        c = row["log_normalizers"]
        body.append([
            f"learned ({row['name']})" if c else "fixed to 0",
            str(len(row["seeds"])),
            f"**{_plus_minus(row['test_perplexity'])}**",
            f"{row['log_z']['mean']:+.2f} ± {row['log_z_std']['mean']:.2f}" if row["log_z"] else "–",
            f"{c['mean']:+.2f} ± {c['std']:.2f}" if c else "0",
            f"{c['contexts']:,}" if c else "–",
            f"{c['bytes'] / 1e6:.1f} MB" if c else "0",
            f"{row['seconds']:.0f} s",
        ])  # fmt: skip
    return _lines(head, body)


def _importance_table(rows: list[dict[str, Any]]) -> str:
    head = ("run", "seed", "outcome", "effective samples (minimum)", "samples", "largest weight",
            "largest weight of the last minibatch", "test perplexity of the best epoch")  # fmt: skip
    body = []
    for row in rows:
        perplexities = iter(row["test_perplexities"])
        for run in row["runs"]:
            diverged, last = "diverged" in run, (run.get("last_weights") or [None])[-1]
            body.append([
                row["name"],
                str(run["seed"]),
                f"diverged in epoch {run['epoch']}, step {run['step']}: {run['diverged']}" if diverged
                else f"did not diverge in {run['epoch']} epochs",
                f"{_or_dash(run.get('effective_samples'))} ({_or_dash(run.get('least_effective_samples'))})",
                _or_dash(run.get("samples"), ".0f"),
                f"e^{run['largest_log_weight']:.3g}" if "largest_log_weight" in run else "–",
                f"e^{last['largest_log_weight']:.3g}, {100 * last['share']:.0f} % of the sum: `{last['word']}` after "
                f"`{' '.join(last['context'])}`" if last else "–",
                _or_dash(next(perplexities, None) if run["best_epoch"] else None),
            ])  # fmt: skip
    return _lines(head, body)


def _options_list(rows: list[dict[str, Any]]) -> str:
    """Return the options of each row that differ from the recipe `ptb-nce`."""
    lines = ["Options that differ from the recipe `ptb-nce`:", ""]
    for row in rows:
        options = ", ".join(f"{name} {value}" for name, value in row["options"].items() if name != "model")
        lines.append(f"- {row['name']}: {options}")
    return "\n".join(lines)
