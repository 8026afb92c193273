"""The paper's tables, each by one call: train every row, with several seeds, and put our figures beside the paper's.

A row's runs are ordinary run folders in OUT/runs: finished ones are not trained again, stopped ones go on. A table is
made from their metrics alone. Two tables with the same OUT share the rows that they have in common.
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
from ncelm.paper.rows import Row, Table, rows_of
from ncelm.text.prepare import prepare
from ncelm.text.readers import read_lines
from ncelm.text.store import TokenStore
from ncelm.training.loop import Progress, train

TEST = "test.json"  # in a run's folder: its best model on the test text


@dataclass(frozen=True)
class RowProgress:
    """Where a reproduction is: given to the callback whenever a row begins, and with all that training reports."""

    number: int  # of the run, the first is 1
    runs: int
    name: str
    seconds_left: float | None  # of all runs; None until there is something to go by
    training: Progress | None
    steps: tuple[int, int | None] | None = None  # done, and in all, of work that is not training


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
    """Train the rows of a table (all, or those with these keys) and write OUT/<table>.md, .json and plots.

    `data` has ptb.train.txt, ptb.valid.txt and ptb.test.txt. Called again it trains what is not finished yet; with
    `finished_only` it trains nothing and writes down what there is.
    """
    wanted = _wanted(table, rows)
    if not 1 <= seeds <= 1000:
        raise NcelmError(f"--seeds is {seeds}: give a number from 1 to 1000")
    store = _store(data, out)
    runs = [(row, seed) for row in wanted for seed in range(seeds)]
    if finished_only:
        runs = [(row, seed) for row, seed in runs if _is_finished(_folder(out, row, seed))]
        if not runs:
            raise NcelmError(f"no row of {table} is finished in {out}: leave --finished-only out to train them")
    clock = _Clock([row.effort for row, _ in runs])
    results = {row.key: Result(row, [], [], []) for row, _ in runs}
    for number, (row, seed) in enumerate(runs):
        name = f"{row.name}, seed {seed}"

        def report(at: Progress | None, number: int = number, name: str = name) -> None:
            if progress:
                progress(RowProgress(number + 1, len(runs), name, clock.left(number, at), at))

        report(None)
        folder = _folder(out, row, seed)
        records = _train(store, folder, row, seed, threads, report)
        clock.finished(number, records[-1]["seconds"])
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


def _wanted(table: Table, keys: Sequence[str]) -> list[Row]:
    rows = {row.key: row for row in rows_of(table)}
    for key in keys:
        if key not in rows:
            raise NcelmError(f"{table} has no row {key!r}: it has {', '.join(rows)}")
    return [rows[key] for key in keys or rows]


def _store(data: Path, out: Path) -> TokenStore:
    """The Penn Treebank as a token store in OUT/store, made at the first call."""
    texts = {split: data / f"ptb.{split}.txt" for split in ("train", "valid", "test")}
    for path in texts.values():
        if not path.is_file():
            names = ", ".join(text.name for text in texts.values())
            raise NcelmError(f"{path} is missing: --data is the folder with {names}")
    with write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    if (out / "store").exists():
        store = TokenStore.open(out / "store")
        for split, path in texts.items():
            tokens = sum(len(line.split()) + 1 for line in read_lines(path))
            if tokens != store.split(split).tokens:
                raise NcelmError(f"{store.path} was made from another text than {path}: choose another --out")
        return store
    return prepare(out=out / "store", train=texts["train"], valid=texts["valid"], test=texts["test"])


def _train(
    store: TokenStore,
    folder: Path,
    row: Row,
    seed: int,
    threads: int | None,
    report: Callable[[Progress | None], None],
) -> list[dict[str, Any]]:
    """Train one run, or what is left of it, and return its metrics. To diverge is a result, too."""
    config, watch = row.config.with_changes(seed=seed), ("test",) if row.watched else ()
    with suppress(DivergedError):
        train(store, folder, config, threads=threads, resume=True, watch=watch, progress=report)
    return Metrics(folder / METRICS).read()


def _test(store: TokenStore, folder: Path, threads: int | None) -> dict[str, Any] | None:
    """Evaluate the best model of a finished run on the test text, once; None if it diverged before there was one."""
    if not (folder / MODEL).exists():
        return None
    if not (folder / TEST).exists():
        test = LanguageModel.load(folder, threads).evaluate_split(store, "test")
        write_json(folder / TEST, {"format": "ncelm-evaluation", "version": 1, **test.as_dict()})
    return read_json(folder / TEST, "evaluation", "ncelm-evaluation", 1)


class _Clock:
    """Guesses the time left from what each run is expected to cost and what those before it have cost."""

    def __init__(self, efforts: list[float]) -> None:
        self.efforts = efforts
        self.seconds, self.effort = 0.0, 0.0

    def finished(self, number: int, seconds: float) -> None:
        self.seconds, self.effort = self.seconds + seconds, self.effort + self.efforts[number]

    def left(self, number: int, at: Progress | None) -> float | None:
        if not self.effort:
            return None
        done = 0.0
        if at:
            epochs = at.epochs if at.epochs < 15 else 14  # those that halve their rates stop long before the last
            done = min((at.epoch - 1 + at.words / at.words_per_epoch) / epochs, 1.0) * self.efforts[number]
        return (sum(self.efforts[number:]) - done) * self.seconds / self.effort
