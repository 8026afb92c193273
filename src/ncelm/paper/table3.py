"""Table 3 of the paper: sentence completion with models trained on 48 million words.

Every row is trained, answers the questions, and is added to the report. The run of a row is an ordinary run directory
in OUT/runs with an additional file of results. Finished rows are not trained again, interrupted rows resume, and rows
can be run one at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ncelm import completion
from ncelm.combine import blend
from ncelm.errors import NcelmError
from ncelm.io.files import read_json, write_errors, write_json
from ncelm.io.machine import environment_info, git_commit
from ncelm.io.metrics import Metrics
from ncelm.io.run import METRICS
from ncelm.kernels.threads import Team
from ncelm.language_model import LanguageModel, load_scorer
from ncelm.models.lsa import train_lsa
from ncelm.models.ngram.estimate import train_ngram
from ncelm.models.pmi import train_pmi
from ncelm.paper import plots
from ncelm.paper.report import save_page
from ncelm.paper.tables import RowProgress
from ncelm.text.archives import REPORT
from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore
from ncelm.training.loop import Progress, train
from ncelm.training.recipes import holmes

ARCHIVE = Path("holmes", "holmes_training.tar.xz")
QUESTIONS, ANSWERS = Path("msrscc", "testing_data.csv"), Path("msrscc", "test_answer.csv")
SRILM_CUTOFFS = (1, 1, 2)  # SRILM, used by the paper, drops n-grams of order 3 and higher that occur once
INIT_KEY, INIT_DIM = "lsa-300", 300  # log-bilinear models are initialized with the vectors of this row
OUTCOME = "outcome.json"  # in a run directory: test perplexity and accuracy


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    key: str
    kind: Literal["n-gram", "LSA", "PMI", "LBL", "ensemble"]
    context: int  # context words before the target; the order minus one for n-gram models
    after: int  # context words after the target
    dim: int | None
    paper_percent: float | None
    paper_perplexity: float | None

    @property
    def name(self) -> str:
        """Name in the report."""
        match self.kind:
            case "n-gram":
                return f"{self.context + 1}-gram"
            case "LSA":
                return f"LSA, {self.dim} dimensions"
            case "PMI":
                return "PMI of words in a sentence"
            case "ensemble":
                return "ensemble: " + ", ".join(ENSEMBLE)
        sides = f"{self.context}×2" if self.after else f"{self.context}"
        return f"LBL, context {sides}, {self.dim} dimensions"

    @property
    def short_name(self) -> str:
        """Label in the plot: context·dimensions for log-bilinear models."""
        return f"{self.context}·{self.dim}" if self.kind == "LBL" else self.name


ROWS = [
    *(
        Row(f"ngram-{order}", "n-gram", order - 1, 0, None, percent, perplexity)
        for order, percent, perplexity in ((3, 36.0, 130.8), (4, 39.1, 122.1), (5, 38.7, 121.5), (6, 38.4, 121.7))
    ),
    Row(INIT_KEY, "LSA", 0, 0, INIT_DIM, 49.0, None),
    *(
        Row(f"lbl-{context}-{dim}", "LBL", context, 0, dim, percent, perplexity)
        for context, dim, percent, perplexity in (
            (2, 100, 41.5, 145.5),
            (3, 100, 45.1, 135.6),
            (5, 100, 49.3, 129.8),
            (10, 100, 50.0, 124.0),
            (5, 200, 50.8, 123.6),
            (10, 200, 52.8, 117.7),
            (10, 300, 54.7, 116.4),
        )
    ),
    *(
        Row(f"lbl-10x2-{dim}", "LBL", 10, 10, dim, percent, perplexity)
        for dim, percent, perplexity in ((100, 44.5, 38.6), (200, 49.8, 33.6))
    ),
]
# Beyond the paper: pointwise mutual information of the words of a sentence, and an ensemble whose weights are learned
# on questions generated from the validation split.
ENSEMBLE = ("ngram-5", "lsa-300", "pmi", "lbl-10-200", "lbl-10-300", "lbl-10x2-200")
EXTENSIONS = [Row("pmi", "PMI", 0, 0, None, None, None), Row("ensemble", "ensemble", 0, 0, None, None, None)]


def reproduce_table3(
    data: Path,
    out: Path,
    *,
    rows: Sequence[str] = (),
    finished_only: bool = False,
    threads: int | None = None,
    progress: Callable[[RowProgress], None] | None = None,
) -> dict[str, Any]:
    """Train and evaluate the rows, write OUT/table3.md, .json and a plot, and return the content of the JSON file.

    Parameters
    ----------
    data
        Directory with holmes/holmes_training.tar.xz, msrscc/testing_data.csv and msrscc/test_answer.csv.
    out
        Output directory. Rows that are finished there are not trained again.
    rows
        Keys of the rows; all rows by default.
    finished_only
        Train nothing and report the finished rows.
    threads
        Number of threads; all cores by default.
    progress
        Callback for progress.
    """
    by_key = {row.key: row for row in (*ROWS, *EXTENSIONS)}
    for key in rows:
        if key not in by_key:
            raise NcelmError(f"table3 has no row {key!r}: it has {', '.join(by_key)}")
    selected = [by_key[key] for key in rows or by_key]
    if finished_only:
        selected = [row for row in selected if (_folder(out, row) / OUTCOME).exists()]
        if not selected:
            raise NcelmError(f"no row of table3 is finished in {out}: leave `finished_only` out to train them")
    store = _store(data, out, _RowReporter(progress, 0, len(selected), "preparing the text"))
    questions = completion.read_questions(data / QUESTIONS)
    answers = completion.read_answers(data / ANSWERS, questions)
    for number, row in enumerate(selected, 1):
        folder, reporter = _folder(out, row), _RowReporter(progress, number, len(selected), row.name)
        reporter.started()
        if row.kind == "LBL" or not (folder / OUTCOME).exists():  # `train` also checks the recipe of a finished run
            _train_row(store, folder, row, threads, reporter)
        if not (folder / OUTCOME).exists():
            reporter.started()
            _evaluate_row(store, folder, row, questions, answers, threads, reporter)
    command = f"ncelm reproduce table3 --data {data.name} --out {out.name}" + (
        f" --rows {' '.join(rows)}" if rows else ""
    )
    return _write_report(out, selected, command + " --finished-only" * finished_only)


@dataclass(frozen=True)
class _RowReporter:
    """Passes the progress of one row to the callback, if there is one."""

    progress: Callable[[RowProgress], None] | None
    number: int
    rows: int
    name: str

    def started(self) -> None:
        """Report that training or evaluation of the row has started."""
        self._report(None, None)

    def training(self, at: Progress) -> None:
        """Report progress of training."""
        self._report(at, None)

    def steps(self, done: int, total: int | None = None) -> None:
        """Report completed steps of any other work."""
        self._report(None, (done, total))

    def _report(self, at: Progress | None, steps: tuple[int, int | None] | None) -> None:
        if self.progress:
            self.progress(RowProgress(self.number, self.rows, self.name, None, at, steps))


def _folder(out: Path, row: Row) -> Path:
    return out / "runs" / row.key


def _store(data: Path, out: Path, reporter: _RowReporter) -> TokenStore:
    """Return the token store of the 522 works in OUT/store, which is prepared on the first call."""
    for path in (ARCHIVE, QUESTIONS, ANSWERS):
        if not (data / path).is_file():
            files = f"{ARCHIVE}, {QUESTIONS} and {ANSWERS}"
            raise NcelmError(f"{data / path} is missing: `data` is a directory with {files}")
    with write_errors(out):
        (out / "runs").mkdir(parents=True, exist_ok=True)
    if (out / "store").exists():
        store = TokenStore.open(out / "store")
        if not (store.path / REPORT).is_file():
            raise NcelmError(f"{store.path} was not made from {data / ARCHIVE}: choose another `out`")
        return store
    options: dict[str, Any] = {"gutenberg": True, "lowercase": True, "min_count": 5}
    return prepare(data / ARCHIVE, out=out / "store", **options, progress=reporter.steps)


def _train_row(store: TokenStore, folder: Path, row: Row, threads: int | None, reporter: _RowReporter) -> None:
    """Train a row or resume its training."""
    if row.kind == "LBL":
        assert row.dim
        init = folder.with_name(INIT_KEY)
        if not init.exists() and not folder.exists():
            train_lsa(store, init, INIT_DIM, progress=reporter.steps)
        config = holmes(row.context, row.dim, row.after).with_changes(init_from=str(init))
        train(store, folder, config, threads=threads, resume=True, progress=reporter.training)
    elif folder.exists():
        return
    elif row.kind == "LSA":
        assert row.dim
        train_lsa(store, folder, row.dim, progress=reporter.steps)
    elif row.kind == "PMI":
        train_pmi(store, folder)
    elif row.kind == "ensemble":
        parts = [folder.with_name(key) for key in ENSEMBLE]
        for part in parts:
            if not (part / OUTCOME).exists():
                raise NcelmError(f"the row {row.key!r} combines other rows: finish {part.name!r} first")
        blend(parts, folder, store=store, threads=threads, progress=reporter.steps)
    else:
        train_ngram(store, folder, row.context + 1, SRILM_CUTOFFS, progress=reporter.steps)


def _evaluate_row(
    store: TokenStore,
    folder: Path,
    row: Row,
    questions: list[completion.Question],
    answers: dict[str, str],
    threads: int | None,
    reporter: _RowReporter,
) -> None:
    """Write test perplexity and accuracy of a trained row to its run directory."""
    outcome: dict[str, Any] = {"format": "ncelm-outcome", "version": 2, "commit": git_commit()}
    if row.kind in ("n-gram", "LBL"):
        outcome["test"] = LanguageModel.load(folder, threads).evaluate_split(store, "test").as_dict()
    # The published figures score the few choices that are not in the vocabulary as <unk>.
    both = completion.rank_both(load_scorer(folder, threads), questions, reporter.steps, unknown="token")
    for kind, rankings in both.items():
        found = completion.accuracy(rankings, answers)
        outcome[kind] = {"percent": found.percent, "interval": found.interval, "right": found.correct}
    for record in Metrics(folder / METRICS).read()[-1:]:  # ensembles have no metrics
        outcome |= {"seconds": record["seconds"], "epochs": record.get("epoch")}
        if row.kind == "LBL":
            outcome["threads"] = Team(threads).threads  # of the process that finished the row
    write_json(folder / OUTCOME, outcome)


# -- the report --------------------------------------------------------------------------------------------------------


def _write_report(out: Path, rows: list[Row], command: str) -> dict[str, Any]:
    """Write Markdown, JSON and a plot of finished rows; return the content of the JSON file."""
    outcomes = [read_json(_folder(out, row) / OUTCOME, "outcome", "ncelm-outcome", 2, checksum_since=2) for row in rows]
    report: dict[str, Any] = {
        "table": "table3",
        "command": command,
        "complete": {row.key for row in ROWS} <= {row.key for row in rows},
        "made": environment_info("ncelm", "numpy", "numba", "scipy"),
        "rows": [
            {
                "key": row.key,
                "name": row.name,
                "paper": {"percent": row.paper_percent, "test_perplexity": row.paper_perplexity},
                **{name: value for name, value in outcome.items() if name not in ("format", "version")},
            }
            for row, outcome in zip(rows, outcomes, strict=True)
        ],
    }
    one_sided = {  # perplexities of models that also see the following words are not comparable
        row.short_name: (outcome["test"]["perplexity"], outcome["normalised"]["percent"])
        for row, outcome in zip(rows, outcomes, strict=True)
        if "test" in outcome and not row.after
    }
    report["plots"] = []
    if one_sided and plots.accuracy_against_perplexity(out / "table3-accuracy.png", one_sided):
        report["plots"] = ["table3-accuracy.png"]
    save_page(out / "table3", report, _markdown(report))
    return report


def _markdown(report: dict[str, Any]) -> str:
    made = report["made"]
    trained_at = sorted({(row["commit"] or "unknown")[:12] for row in report["rows"]})
    lines = [
        "# Table 3: the MSR Sentence Completion Challenge",
        "",
        f"`{report['command']}`, {made['date'][:10]}, commit {(made['commit'] or 'unknown')[:12]}, seed 0,",
        f"{made['cores']} cores of {made['cpu']}. Accuracy is the percentage of 1,040 questions answered correctly",
        "with exactly normalised probabilities, with Wilson's 95 % interval; in parentheses, the accuracy with",
        "unnormalised scores. Test perplexity is that of 500 random sentences and counts sentence ends, unlike",
        "(apparently) the paper: rows are comparable with each other, and with the paper only approximately.",
        f"Log-bilinear models are initialized with the vectors of {INIT_KEY}. Rows were trained at commit",
        f"{', '.join(trained_at)}; during rows with one thread, another process may have used the other core.",
        "",
        "| | accuracy, % | 95 % interval | paper | test perplexity | paper | training time |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        low, high = row["normalised"]["interval"]
        unnormalised = f" ({row['unnormalised']['percent']:.1f})" if "unnormalised" in row else ""
        test = f"{row['test']['perplexity']:.1f}" if "test" in row else "–"
        paper = row["paper"]
        time = _duration(row["seconds"]) if "seconds" in row else "–"
        time += f", {row['epochs']} epochs" if row.get("epochs") else ""
        time += f", {row['threads']} thread" + "s" * (row["threads"] > 1) if "threads" in row else ""
        lines.append(
            f"| {row['name']} | **{row['normalised']['percent']:.1f}**{unnormalised} | {low:.1f}–{high:.1f} | "
            f"{paper['percent'] or '–'} | {test} | {paper['test_perplexity'] or '–'} | {time} |"
        )
    lines += _ratio_to_five_gram(report)
    lines += ["", *(f"![accuracy against perplexity]({plot})" for plot in report["plots"])]
    if not report["complete"]:
        lines += ["", "Some rows of the table are not finished."]
    return "\n".join(lines).rstrip() + "\n"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def _ratio_to_five_gram(report: dict[str, Any]) -> list[str]:
    """Return lines with the ratio of the largest model's test perplexity to the 5-gram's, if both are finished."""
    test = {row["key"]: row["test"]["perplexity"] for row in report["rows"] if "test" in row}
    paper = {row["key"]: row["paper"]["test_perplexity"] for row in report["rows"]}
    ours, theirs = ([of[key] for key in ("lbl-10-300", "ngram-5") if key in of] for of in (test, paper))
    if len(ours) < 2:
        return []
    return [
        "",
        f"Ratio of the test perplexities of the largest log-bilinear model and the 5-gram: "
        f"**{ours[0] / ours[1]:.3f}** (paper: {theirs[0] / theirs[1]:.3f}).",
    ]
