"""Table 3 of the paper, sentence completion on 48 million words: train every row, ask it the questions, write the page.

A row's run is an ordinary run folder in OUT/runs, beside it, in JSON, what it came to. Finished rows are not trained
again, stopped ones go on; any row can be run alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ncelm import completion
from ncelm.combine import blend
from ncelm.errors import NcelmError
from ncelm.io.files import read_json, write_errors, write_json
from ncelm.io.machine import commit, surroundings
from ncelm.io.metrics import Metrics
from ncelm.io.run import METRICS
from ncelm.kernels.threads import Team
from ncelm.language_model import LanguageModel, load_scorer
from ncelm.models.lsa import train_lsa
from ncelm.models.ngram.model import train_ngram
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
SRILM_CUTOFFS = (1, 1, 2)  # the paper's toolkit leaves n-grams of order 3 and more out that were seen once
START, START_DIM = "lsa-300", 300  # log-bilinear models start from the vectors of this row
OUTCOME = "outcome.json"  # in a run's folder: test perplexity and accuracy


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    key: str
    kind: Literal["n-gram", "LSA", "PMI", "LBL", "ensemble"]
    context: int  # words before the predicted one; of an n-gram model, its order less one
    after: int  # words after it
    dim: int | None
    paper_percent: float | None
    paper_perplexity: float | None

    @property
    def name(self) -> str:
        """For people."""
        match self.kind:
            case "n-gram":
                return f"{self.context + 1}-gram"
            case "LSA":
                return f"LSA, {self.dim} dimensions"
            case "PMI":
                return "PMI of words in a sentence"
            case "ensemble":
                return "together: " + ", ".join(TEAM)
        sides = f"{self.context}×2" if self.after else f"{self.context}"
        return f"LBL, context {sides}, {self.dim} dimensions"

    @property
    def short_name(self) -> str:
        """For a picture: log-bilinear models by context · dimensions."""
        return f"{self.context}·{self.dim}" if self.kind == "LBL" else self.name


ROWS = [
    *(
        Row(f"ngram-{order}", "n-gram", order - 1, 0, None, percent, perplexity)
        for order, percent, perplexity in ((3, 36.0, 130.8), (4, 39.1, 122.1), (5, 38.7, 121.5), (6, 38.4, 121.7))
    ),
    Row(START, "LSA", 0, 0, START_DIM, 49.0, None),
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
# Past the paper: who stands in one sentence with whom, and several models that choose together, by weights that are
# learned on questions made from the validation text.
TEAM = ("ngram-5", "lsa-300", "pmi", "lbl-10-200", "lbl-10-300", "lbl-10x2-200")
BEYOND = [Row("pmi", "PMI", 0, 0, None, None, None), Row("together", "ensemble", 0, 0, None, None, None)]


def reproduce_table3(
    data: Path,
    out: Path,
    *,
    rows: Sequence[str] = (),
    finished_only: bool = False,
    threads: int | None = None,
    progress: Callable[[RowProgress], None] | None = None,
) -> dict[str, Any]:
    """Train the rows (all, or those with these keys), let each answer the questions, write OUT/table3.md and .json.

    `data` has holmes/holmes_training.tar.xz, msrscc/testing_data.csv and msrscc/test_answer.csv.
    """
    by_key = {row.key: row for row in (*ROWS, *BEYOND)}
    for key in rows:
        if key not in by_key:
            raise NcelmError(f"table3 has no row {key!r}: it has {', '.join(by_key)}")
    wanted = [by_key[key] for key in rows or by_key]
    if finished_only:
        wanted = [row for row in wanted if (_folder(out, row) / OUTCOME).exists()]
        if not wanted:
            raise NcelmError(f"no row of table3 is finished in {out}: leave --finished-only out to train them")
    store = _store(data, out, _Teller(progress, 0, len(wanted), "preparing the text"))
    questions = completion.read_questions(data / QUESTIONS)
    answers = completion.read_answers(data / ANSWERS, questions)
    for number, row in enumerate(wanted, 1):
        folder, tell = _folder(out, row), _Teller(progress, number, len(wanted), row.name)
        tell.begin()
        if row.kind == "LBL" or not (folder / OUTCOME).exists():  # a run of another recipe is refused, finished or not
            _make(store, folder, row, threads, tell)
        if not (folder / OUTCOME).exists():
            tell.begin()
            _ask(store, folder, row, questions, answers, threads, tell)
    command = f"ncelm reproduce table3 --data {data.name} --out {out.name}" + (
        f" --rows {' '.join(rows)}" if rows else ""
    )
    return _write_page(out, wanted, command + " --finished-only" * finished_only)


@dataclass(frozen=True)
class _Teller:
    """Tells how far a row is, if anybody wants to know."""

    progress: Callable[[RowProgress], None] | None
    number: int
    rows: int
    name: str

    def begin(self) -> None:
        """A new piece of work."""
        self._tell(None, None)

    def training(self, at: Progress) -> None:
        """What training reports."""
        self._tell(at, None)

    def steps(self, done: int, total: int | None = None) -> None:
        """What everything else reports."""
        self._tell(None, (done, total))

    def _tell(self, at: Progress | None, steps: tuple[int, int | None] | None) -> None:
        if self.progress:
            self.progress(RowProgress(self.number, self.rows, self.name, None, at, steps))


def _folder(out: Path, row: Row) -> Path:
    return out / "runs" / row.key


def _store(data: Path, out: Path, tell: _Teller) -> TokenStore:
    """The 522 works as a token store in OUT/store, made at the first call."""
    for path in (ARCHIVE, QUESTIONS, ANSWERS):
        if not (data / path).is_file():
            raise NcelmError(f"{data / path} is missing: --data is a folder with {ARCHIVE}, {QUESTIONS} and {ANSWERS}")
    with write_errors(out):
        (out / "runs").mkdir(parents=True, exist_ok=True)
    if (out / "store").exists():
        store = TokenStore.open(out / "store")
        if not (store.path / REPORT).is_file():
            raise NcelmError(f"{store.path} was not made from {data / ARCHIVE}: choose another --out")
        return store
    options: dict[str, Any] = {"gutenberg": True, "lowercase": True, "min_count": 5}
    return prepare(data / ARCHIVE, out=out / "store", **options, progress=tell.steps)


def _make(store: TokenStore, folder: Path, row: Row, threads: int | None, tell: _Teller) -> None:
    """Train a row, or what is left of it."""
    if row.kind == "LBL":
        assert row.dim
        start = folder.with_name(START)
        if not start.exists() and not folder.exists():
            train_lsa(store, start, START_DIM, progress=tell.steps)
        config = holmes(row.context, row.dim, row.after).with_changes(start_from=str(start))
        train(store, folder, config, threads=threads, resume=True, progress=tell.training)
    elif folder.exists():
        return
    elif row.kind == "LSA":
        assert row.dim
        train_lsa(store, folder, row.dim, progress=tell.steps)
    elif row.kind == "PMI":
        train_pmi(store, folder)
    elif row.kind == "ensemble":
        parts = [folder.with_name(key) for key in TEAM]
        for part in parts:
            if not (part / OUTCOME).exists():
                raise NcelmError(f"the row {row.key!r} puts others together: finish {part.name!r} first")
        blend(parts, folder, store=store, threads=threads, progress=tell.steps)
    else:
        train_ngram(store, folder, row.context + 1, SRILM_CUTOFFS, progress=tell.steps)


def _ask(
    store: TokenStore,
    folder: Path,
    row: Row,
    questions: list[completion.Question],
    answers: dict[str, str],
    threads: int | None,
    tell: _Teller,
) -> None:
    """Test perplexity and accuracy of a finished row."""
    outcome: dict[str, Any] = {"format": "ncelm-outcome", "version": 1, "commit": commit()}  # that finished it
    if row.kind in ("n-gram", "LBL"):
        outcome["test"] = LanguageModel.load(folder, threads).evaluate_split(store, "test").as_dict()
    for kind, rankings in completion.rank_both(load_scorer(folder, threads), questions, tell.steps).items():
        found = completion.accuracy(rankings, answers)
        outcome[kind] = {"percent": found.percent, "interval": found.interval, "right": found.right}
    for record in Metrics(folder / METRICS).read()[-1:]:  # an ensemble has none
        outcome |= {"seconds": record["seconds"], "epochs": record.get("epoch")}
        if row.kind == "LBL":
            outcome["threads"] = Team(threads).threads  # of the last sitting
    write_json(folder / OUTCOME, outcome)


# -- the page ----------------------------------------------------------------------------------------------------------


def _write_page(out: Path, rows: list[Row], command: str) -> dict[str, Any]:
    """Markdown, JSON and a plot of what is finished."""
    outcomes = [read_json(_folder(out, row) / OUTCOME, "outcome", "ncelm-outcome", 1) for row in rows]
    answer: dict[str, Any] = {
        "table": "table3",
        "command": command,
        "complete": {row.key for row in ROWS} <= {row.key for row in rows},
        "made": surroundings("ncelm", "numpy", "numba", "scipy"),
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
    one_sided = {  # two-sided models are told more, so that their perplexities are another thing
        row.short_name: (outcome["test"]["perplexity"], outcome["normalised"]["percent"])
        for row, outcome in zip(rows, outcomes, strict=True)
        if "test" in outcome and not row.after
    }
    answer["plots"] = []
    if one_sided and plots.accuracy_against_perplexity(out / "table3-accuracy.png", one_sided):
        answer["plots"] = ["table3-accuracy.png"]
    save_page(out / "table3", answer, _markdown(answer))
    return answer


def _markdown(answer: dict[str, Any]) -> str:
    made = answer["made"]
    trained_at = sorted({(row["commit"] or "unknown")[:12] for row in answer["rows"]})
    lines = [
        "# Table 3: the MSR Sentence Completion Challenge",
        "",
        f"`{answer['command']}`, {made['date'][:10]}, commit {(made['commit'] or 'unknown')[:12]}, seed 0,",
        f"{made['cores']} cores of {made['cpu']}. Percent of 1,040 questions answered rightly, exactly normalised,",
        "with Wilson's 95 % interval; in brackets the same by unnormalised scores. Test perplexity is of 500 random",
        "sentences, with their ends counted, which the paper seems not to do: compare rows with each other more than",
        f"with the paper. Log-bilinear models start from the vectors of {START}. Rows were made at commit",
        f"{', '.join(trained_at)}; those with one thread may have had a neighbour on the other core.",
        "",
        "| | percent correct | 95 % | the paper | test perplexity | the paper | training time |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in answer["rows"]:
        low, high = row["normalised"]["interval"]
        bare = f" ({row['unnormalised']['percent']:.1f})" if "unnormalised" in row else ""
        test = f"{row['test']['perplexity']:.1f}" if "test" in row else "–"
        paper = row["paper"]
        time = _duration(row["seconds"]) if "seconds" in row else "–"
        time += f", {row['epochs']} passes" if row.get("epochs") else ""
        time += f", {row['threads']} thread" + "s" * (row["threads"] > 1) if "threads" in row else ""
        lines.append(
            f"| {row['name']} | **{row['normalised']['percent']:.1f}**{bare} | {low:.1f}–{high:.1f} | "
            f"{paper['percent'] or '–'} | {test} | {paper['test_perplexity'] or '–'} | {time} |"
        )
    lines += _against_the_five_gram(answer)
    lines += ["", *(f"![accuracy against perplexity]({plot})" for plot in answer["plots"])]
    if not answer["complete"]:
        lines += ["", "Not all rows of the table are finished."]
    return "\n".join(lines).rstrip() + "\n"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def _against_the_five_gram(answer: dict[str, Any]) -> list[str]:
    """The largest model's test perplexity as a part of the 5-gram's, ours and the paper's, if both are there."""
    test = {row["key"]: row["test"]["perplexity"] for row in answer["rows"] if "test" in row}
    paper = {row["key"]: row["paper"]["test_perplexity"] for row in answer["rows"]}
    ours, theirs = ([of[key] for key in ("lbl-10-300", "ngram-5") if key in of] for of in (test, paper))
    if len(ours) < 2:
        return []
    return [
        "",
        f"Test perplexity of the largest log-bilinear model over the 5-gram's: **{ours[0] / ours[1]:.3f}** "
        f"(the paper: {theirs[0] / theirs[1]:.3f}).",
    ]
