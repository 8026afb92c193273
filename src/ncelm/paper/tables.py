"""Tables 1 and 2 of the paper: train every row with several seeds and compare the results with the published ones.

The runs of a row are ordinary run directories in OUT/runs. Finished runs are not trained again, interrupted runs
resume. The report is computed from the metrics of the runs. Tables with the same OUT share their common rows.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncelm.errors import DivergedError, NcelmError
from ncelm.io.files import read_json, write_errors, write_json
from ncelm.io.metrics import Metrics
from ncelm.io.run import METRICS, MODEL
from ncelm.language_model import LanguageModel
from ncelm.paper.report import Result, write_page
from ncelm.paper.rows import TYPICAL_EPOCHS, Row, Table, rows_of
from ncelm.text.prepare import prepare
from ncelm.text.readers import read_lines
from ncelm.text.store import TokenStore
from ncelm.training.loop import Progress, train
from ncelm.training.migrate import upgrade_record

TEST = "test.json"  # in a run directory: evaluation of the best model on the test split


@dataclass(frozen=True)
class RowProgress:
    """Progress of a reproduction, passed to the callback when a run starts and whenever training reports progress."""

    number: int  # index of the run, starting at 1
    runs: int  # number of runs
    name: str
    seconds_left: float | None  # estimate for all runs; None before the first run has finished
    training: Progress | None
    steps: tuple[int, int | None] | None = None  # completed and total steps of work other than training


def reproduce(
    table: Table,
    data: Path,
    out: Path,
    *,
    seeds: int = 3,
    rows: Sequence[str] = (),
    finished_only: bool = False,
    threads: int | None = None,
    progress: Callable[[RowProgress], None] | None = None,
) -> dict[str, Any]:
    """Train the rows of a table and write OUT/<table>.md, .json and plots; return the content of the JSON file.

    Parameters
    ----------
    table
        "table1" or "table2".
    data
        Directory with ptb.train.txt, ptb.valid.txt and ptb.test.txt.
    out
        Output directory. Runs that are finished there are not trained again.
    seeds
        Number of runs per row, with seeds 0, 1, ….
    rows
        Keys of the rows to train; all rows by default.
    finished_only
        Train nothing and report the finished runs.
    threads
        Number of threads; all cores by default.
    progress
        Callback for progress.
    """
    selected = _select_rows(table, rows)
    if not 1 <= seeds <= 1000:
        raise NcelmError(f"`seeds` is {seeds}: give a number from 1 to 1000")
    store = _store(data, out)
    runs = [(row, seed) for row in selected for seed in range(seeds)]
    if finished_only:
        runs = [(row, seed) for row, seed in runs if _is_finished(_folder(out, row, seed))]
        if not runs:
            raise NcelmError(f"no row of {table} is finished in {out}: leave `finished_only` out to train them")
    timer = _RemainingTime([row.cost for row, _ in runs])
    results = {row.key: Result(row, [], [], []) for row, _ in runs}
    for number, (row, seed) in enumerate(runs):
        name = f"{row.name}, seed {seed}"

        def report(at: Progress | None, number: int = number, name: str = name) -> None:
            if progress:
                progress(RowProgress(number + 1, len(runs), name, timer.estimate(number, at), at))

        report(None)
        folder = _folder(out, row, seed)
        records = _train(store, folder, row, seed, threads, report)
        timer.finished(number, records[-1]["seconds"])
        results[row.key].seeds.append(seed)
        results[row.key].records.append(records)
        results[row.key].tests.append(_test(store, folder, threads))
    complete = len(runs) == seeds * len(rows_of(table))
    command = f"ncelm reproduce {table} --data {data.name} --out {out.name} --seeds {seeds}"
    command += " --finished-only" * finished_only + (f" --rows {' '.join(rows)}" if rows else "")
    return write_page(table, list(results.values()), out, seeds, complete, command)


def _folder(out: Path, row: Row, seed: int) -> Path:
    return out / "runs" / f"{row.key}-seed{seed}"


def _is_finished(folder: Path) -> bool:
    records = Metrics(folder / METRICS).read()
    return bool(records) and records[-1]["finished"]


def _select_rows(table: Table, keys: Sequence[str]) -> list[Row]:
    rows = {row.key: row for row in rows_of(table)}
    for key in keys:
        if key not in rows:
            raise NcelmError(f"{table} has no row {key!r}: it has {', '.join(rows)}")
    return [rows[key] for key in keys or rows]


def _store(data: Path, out: Path) -> TokenStore:
    """Return the token store of the Penn Treebank in OUT/store, which is prepared on the first call."""
    texts = {split: data / f"ptb.{split}.txt" for split in ("train", "valid", "test")}
    for path in texts.values():
        if not path.is_file():
            names = ", ".join(text.name for text in texts.values())
            raise NcelmError(f"{path} is missing: `data` is the directory with {names}")
    with write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    if (out / "store").exists():
        store = TokenStore.open(out / "store")
        for split, path in texts.items():
            tokens = sum(len(line.split()) + 1 for line in read_lines(path))
            if tokens != store.split(split).tokens:
                raise NcelmError(f"{store.path} was made from another text than {path}: choose another `out`")
        return store
    return prepare(out=out / "store", train=texts["train"], valid=texts["valid"], test=texts["test"], progress=False)


def _train(
    store: TokenStore,
    folder: Path,
    row: Row,
    seed: int,
    threads: int | None,
    report: Callable[[Progress | None], None],
) -> list[dict[str, Any]]:
    """Train or resume one run and return its metrics."""
    config, watch = row.config.with_changes(seed=seed), ("test",) if row.test_each_epoch else ()
    with suppress(DivergedError):  # divergence is reported in the table
        train(store, folder, config, threads=threads, resume=True, watch=watch, progress=report)
    return [upgrade_record(record) for record in Metrics(folder / METRICS).read()]


def _test(store: TokenStore, folder: Path, threads: int | None) -> dict[str, Any] | None:
    """Return the evaluation of a run's best model on the test split; None if it diverged before the first epoch."""
    if not (folder / MODEL).exists():
        return None
    if not (folder / TEST).exists():
        test = LanguageModel.load(folder, threads).evaluate_split(store, "test")
        write_json(folder / TEST, {"format": "ncelm-evaluation", "version": 2, **test.as_dict()})
    return read_json(folder / TEST, "evaluation", "ncelm-evaluation", 2, checksum_since=2)


class _RemainingTime:
    """Estimates the remaining time from the relative costs of all runs and the times of the finished ones."""

    def __init__(self, costs: list[float]) -> None:
        self.costs = costs  # arbitrary units
        self.seconds, self.cost = 0.0, 0.0  # of the finished runs

    def finished(self, number: int, seconds: float) -> None:
        self.seconds, self.cost = self.seconds + seconds, self.cost + self.costs[number]

    def estimate(self, number: int, at: Progress | None) -> float | None:
        """Return the remaining seconds during run `number`, or None before the first run has finished."""
        if not self.cost:
            return None
        done = 0.0
        if at:
            epochs = min(at.epochs, TYPICAL_EPOCHS)  # early stopping usually ends runs with a higher maximum there
            done = min((at.epoch - 1 + at.words / at.words_per_epoch) / epochs, 1.0) * self.costs[number]
        return (sum(self.costs[number:]) - done) * self.seconds / self.cost
