"""The page of a reproduced table: our figures beside the paper's, as Markdown, JSON and plots.

Everything here is read from the metrics of runs; nothing is trained.
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ncelm.io.files import write_whole
from ncelm.io.machine import surroundings
from ncelm.losses import reference
from ncelm.paper import plots
from ncelm.paper.rows import Row, Table
from ncelm.training.config import TrainConfig
from ncelm.training.recipes import ptb_nce

PTB_WORDS = 10_000  # V of the standard split
TARGET = 163.5  # test perplexity of the paper's maximum likelihood: the level whose time is compared


@dataclass(frozen=True)
class Result:
    """What a row came to: one entry of each list for each seed."""

    row: Row
    seeds: list[int]
    records: list[list[dict[str, Any]]]  # metrics.jsonl of each run
    tests: list[dict[str, Any] | None]  # the test text evaluated by the best model of each run, if there is one

    def test(self, field: str) -> list[float]:
        """What the best model of each run does on the test text, for each run that has one."""
        return [test[field] for test in self.tests if test]

    def best(self, field: str) -> list[float]:
        """A field at the epoch that was best by validation perplexity, for each run that has one."""
        chosen = []
        for lines in self.records:
            epochs = [line for line in lines if "valid_perplexity" in line]
            if epochs:
                chosen.append(min(epochs, key=lambda line: line["valid_perplexity"])[field])
        return chosen

    @property
    def epochs(self) -> float:
        """Passes over the text, mean over the seeds."""
        return statistics.fmean(lines[-1]["epoch"] for lines in self.records)

    @property
    def seconds(self) -> float:
        """Training time: of the fastest seed, because whatever else the machine does only adds to it."""
        return min(lines[-1]["seconds"] for lines in self.records)

    @property
    def words_per_second(self) -> float:
        """Of the fastest epoch."""
        return max(line.get("words_per_second") or 0.0 for lines in self.records for line in lines)

    def time_to(self, perplexity: float) -> float | None:
        """Seconds of training until test perplexity came down to this, of the fastest seed that got there."""
        times = [time for lines in self.records if (time := _time_to(lines, perplexity)) is not None]
        return min(times, default=None)


def _time_to(lines: list[dict[str, Any]], perplexity: float) -> float | None:
    """Where the curve through the ends of the epochs crosses a level; between epochs log perplexity is a line."""
    before: tuple[float, float] | None = None
    for line in lines:
        if "test_perplexity" not in line:
            break
        seconds, here = line["seconds"], line["test_perplexity"]
        if here <= perplexity:
            if before is None:
                return seconds
            share = math.log(before[1] / perplexity) / math.log(before[1] / here)
            return before[0] + share * (seconds - before[0])
        before = (seconds, here)
    return None


def write_page(
    table: Table, results: list[Result], out: Path, seeds: int, complete: bool, command: str
) -> dict[str, Any]:
    """Markdown, JSON and plots of what was trained; return what is in the JSON."""
    drawn = _plots(table, results, out)
    answer = {
        "table": table,
        "command": command,
        "complete": complete,
        "seeds": seeds,
        "made": surroundings("ncelm", "numpy", "numba", "scipy"),
        "rows": [_summary(result, results) for result in results],
        "plots": drawn,
    }
    save_page(out / table, answer, _markdown(answer))
    return answer


def save_page(path: Path, answer: dict[str, Any], markdown: str) -> None:
    """A table as PATH.json for programs and PATH.md for people."""
    with write_whole(path.with_suffix(".json")) as file:
        file.write((json.dumps(answer, indent=1, allow_nan=False) + "\n").encode())
    with write_whole(path.with_suffix(".md")) as file:
        file.write(markdown.encode())


def _mean_and_deviation(values: list[float]) -> dict[str, float | None] | None:
    """Over the seeds; one seed has no deviation."""
    if not values:
        return None
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else None}


def _summary(result: Result, results: list[Result]) -> dict[str, Any]:
    """Everything about a row that a table or a reader of the JSON may want."""
    row, config = result.row, result.row.config
    c, d, vocabulary = config.model.positions, config.model.dim, PTB_WORDS
    ml = next((other for other in results if other.row.key == "ml"), None)
    time, k = result.time_to(TARGET), config.noise_samples
    ml_time = ml.time_to(TARGET) if ml else None
    exact = config.estimator == "ml"
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
        "speed_up_of_update": result.words_per_second / ml.words_per_second if ml and not exact else None,
        "speed_up_by_eq15": None if exact else reference.eq15_speedup(c, d, vocabulary, k),
        "speed_up_to_target": ml_time / time if ml_time and time and not exact else None,
        "constants": _constants(result),
        "runs": [_run_summary(seed, lines) for seed, lines in zip(result.seeds, result.records, strict=True)],
        "options": _changes(config),
    }


def _constants(result: Result) -> dict[str, Any] | None:
    """Learned normalising constants: how many, what they came to, and what they take beside the model's parameters."""
    if result.row.config.constants == "fixed" or not result.best("contexts"):
        return None
    contexts = int(result.best("contexts")[0])
    numbers = result.records[0][-1]["words"]  # the number of each word's context
    return {
        "contexts": contexts,
        "mean": statistics.fmean(result.best("constants_mean")),
        "std": statistics.fmean(result.best("constants_std")),
        "bytes": 4 * contexts + 4 * numbers,
    }


def _run_summary(seed: int, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """How one run ended."""
    last = lines[-1]
    fields = ("epoch", "step", "diverged", "best_epoch", "effective_samples", "least_effective_samples", "samples",
              "largest_log_weight", "last_weights")  # fmt: skip
    return {"seed": seed, **{name: last[name] for name in fields if name in last}}


def _changes(config: TrainConfig) -> dict[str, Any]:
    """The options of a row that differ from the paper's recipe."""
    usual, ours = asdict(ptb_nce()), asdict(config)
    return {name: ours[name] for name in ours if ours[name] != usual[name]}


def _plots(table: Table, results: list[Result], out: Path) -> list[str]:
    """Draw what there is to draw; return the names of the files."""
    drawn = []

    def keep(name: str, made: bool) -> None:
        if made:
            drawn.append(name)

    curves = {r.row.name: _curve(r, "seconds", "valid_perplexity") for r in results if r.best("valid_perplexity")}
    if curves:
        name = f"{table}-time.png"
        keep(name, plots.perplexity_against_time(out / name, curves, "validation"))
    by_noise: dict[str, list[Result]] = {}
    for result in results:
        if result.row.part in ("paper", "bigram") and result.row.config.estimator == "nce" and result.tests[0]:
            by_noise.setdefault(f"{result.row.config.noise} noise", []).append(result)
    if by_noise:
        name = f"{table}-samples.png"
        ours = {noise: _by_samples(group, False) for noise, group in by_noise.items()}
        paper = {noise: curve for noise, group in by_noise.items() if (curve := _by_samples(group, True))[0]}
        keep(name, plots.perplexity_against_samples(out / name, ours, paper))
    constants = [r for r in results if r.row.part == "constants" or r.row.key == "nce-unigram-25"]
    if len(constants) > 1:
        name = f"{table}-constants.png"
        keep(
            name,
            plots.curves_by_epoch(
                out / name,
                {f"{r.row.config.constants} constants ({r.row.name})": _curve(r, "epoch", "valid_perplexity")
                 for r in constants},
                "validation",
            ),
        )  # fmt: skip
    importance = [r for r in results if r.row.config.estimator == "importance"]
    if importance:
        name = f"{table}-importance.png"
        traces = {r.row.name: _trace(r) for r in importance}
        ends = {r.row.name: traces[r.row.name][0][-1] for r in importance if "diverged" in r.records[0][-1]}
        keep(name, plots.effective_samples(out / name, traces, ends))
    return drawn


def _curve(result: Result, x: str, y: str) -> plots.Curve:
    """Of the first seed, epoch by epoch."""
    lines = [line for line in result.records[0] if y in line]
    return [line[x] for line in lines], [line[y] for line in lines]


def _by_samples(group: list[Result], paper: bool) -> plots.Curve:
    chosen = [r for r in group if r.row.paper is not None or not paper]
    perplexities = [r.row.paper if paper else statistics.fmean(r.test("perplexity")) for r in chosen]
    return [r.row.config.noise_samples for r in chosen], [p for p in perplexities if p is not None]


def _trace(result: Result) -> plots.Curve:
    """Effective sample size of the first seed, over all its steps."""
    steps, sizes, before, per_epoch = [], [], 0, 0
    for line in result.records[0]:
        for step, effective, *_ in line.get("weights", []):
            steps.append(before + step)
            sizes.append(effective)
        per_epoch = per_epoch or -(-line.get("words", 0) // result.row.config.batch_size)
        before += per_epoch
    return steps, sizes


# -- Markdown ----------------------------------------------------------------------------------------------------------

HEADLINES = {
    "table1": "Table 1: training algorithms, log-bilinear model, 2 words of context, 100 dimensions, Penn Treebank",
    "table2": "Table 2: kinds of noise and numbers of noise words, same model, Penn Treebank",
}


def _markdown(answer: dict[str, Any]) -> str:
    """The whole page."""
    made, rows = answer["made"], answer["rows"]
    parts = {part: [row for row in rows if row["part"] == part] for part in dict.fromkeys(row["part"] for row in rows)}
    page = [
        f"# {HEADLINES[answer['table']]}",
        f"Made by `{answer['command']}` on {made['date'][:10]}, {made['cpu']}, {made['cores']} cores, "
        f"commit {made['commit'] or 'unknown'}, ncelm {made['versions']['ncelm']}. "
        + ("" if answer["complete"] else "Not every row was trained with every seed. "),
        "Perplexities are of the test text, explicitly normalised, mean ± standard deviation over the seeds, each at "
        "the epoch that was best on the validation text; rates were chosen on the validation text. Times are of the "
        "fastest seed and leave out validation, files and compilation; words/s are those of the fastest epoch.",
    ]
    if answer["table"] == "table2":
        page += [_noise_table(parts.get("paper", []) + parts.get("bigram", []))]
    if parts.get("paper"):
        page += ["## Every row" if answer["table"] == "table2" else "## The paper's rows", _main_table(parts["paper"])]
        page += [TABLE_NOTE]
    if parts.get("bigram"):
        page += ["## Beyond the paper: noise that knows the word before", _main_table(parts["bigram"])]
    if parts.get("constants"):
        fixed = [row for row in rows if row["key"] == "nce-unigram-25"]
        page += [
            "## Learned and fixed normalising constants (section 3.1)",
            _constants_table(fixed + parts["constants"]),
        ]
    if parts.get("importance"):
        page += ["## Importance sampling (sections 2.3 and 4)", _importance_table(parts["importance"])]
    if parts.get("beyond"):
        page += ["## Beyond the paper", _main_table(parts["beyond"]), _options_list(parts["beyond"])]
    page += [f"![{name.removesuffix('.png')}]({name})" for name in answer["plots"]]
    return "\n\n".join(page) + "\n"


TABLE_NOTE = f"""\
"Update" is how many times faster a word of text is learned from than by ML, as measured and as Eq. 15 predicts from
counting operations. "To {TARGET}" is the time until test perplexity comes down to {TARGET}, the paper's ML figure
(between two epochs log perplexity is taken for a straight line), and in brackets how many times sooner than ML."""


def _lines(head: Sequence[str], body: list[list[str]]) -> str:
    """A Markdown table."""
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
            "update: measured", "Eq. 15", f"to {TARGET}")  # fmt: skip
    body = []
    for row in rows:
        to_target = _or_dash(row["seconds_to_target"], ".1f")
        if row["seconds_to_target"] is not None:
            to_target += " s" + (f" ({row['speed_up_to_target']:.0f}×)" if row["speed_up_to_target"] else "")
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
            _or_dash(row["speed_up_of_update"]) + ("×" if row["speed_up_of_update"] else ""),
            _or_dash(row["speed_up_by_eq15"]) + ("×" if row["speed_up_by_eq15"] else ""),
            to_target,
        ])  # fmt: skip
    return _lines(head, body)


def _noise_table(rows: list[dict[str, Any]]) -> str:
    """As the paper prints it: a line for each k, a column for each noise."""
    noises = list(dict.fromkeys(row["options"].get("noise", "unigram") for row in rows))
    by_place = {(row["k"], row["options"].get("noise", "unigram")): row for row in rows if row["k"]}
    body = []
    for k in sorted({k for k, _ in by_place}):
        line = [str(k)]
        for noise in noises:
            row = by_place.get((k, noise))
            line += [
                f"**{_plus_minus(row['test_perplexity'])}**" if row else "–",
                _or_dash(row["paper"] if row else None),
            ]
        body.append(line)
    return _lines(["k", *(cell for noise in noises for cell in (f"{noise} noise", "paper"))], body)


def _constants_table(rows: list[dict[str, Any]]) -> str:
    head = ("constants", "seeds", "test perplexity", "log Z without them", "c_h", "contexts", "memory for them", "time")
    body = []
    for row in rows:
        c = row["constants"]
        body.append([
            f"learned ({row['name']})" if c else "fixed to 1",
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
    head = ("run", "seed", "outcome", "effective samples (least)", "of", "largest weight", "in the last minibatch",
            "test perplexity of the best epoch")  # fmt: skip
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
                f"e^{last['largest_log_weight']:.3g}, {100 * last['share']:.0f} % of its sum: `{last['word']}` after "
                f"`{' '.join(last['context'])}`" if last else "–",
                _or_dash(next(perplexities, None) if run["best_epoch"] else None),
            ])  # fmt: skip
    return _lines(head, body)


def _options_list(rows: list[dict[str, Any]]) -> str:
    """What was set otherwise than in the recipe ptb-nce."""
    lines = ["Options, where they differ from the recipe `ptb-nce`:", ""]
    for row in rows:
        options = ", ".join(f"{name} {value}" for name, value in row["options"].items() if name != "model")
        lines.append(f"- {row['name']}: {options}")
    return "\n".join(lines)
