"""The paper's tables, each by one call: train every row, with several seeds, and put our figures beside the paper's.

A row's runs are ordinary run folders in OUT/runs: finished ones are not trained again, stopped ones go on. A table is
made from their metrics alone. Two tables with the same OUT share the rows that they have in common.
"""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ncelm import plots, reference
from ncelm.corpus import TokenStore
from ncelm.errors import Diverged, NcelmError
from ncelm.files import write_errors, write_whole
from ncelm.machine import surroundings
from ncelm.preparing import prepare
from ncelm.recipes import recipe
from ncelm.run import METRICS, Metrics
from ncelm.training import Progress, TrainConfig, train

Table = Literal["table1", "table2"]
TARGET = 163.5  # test perplexity of the paper's maximum likelihood: the level whose time is compared


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    key: str  # names its run folders
    name: str
    config: TrainConfig
    paper: float | None = None  # the paper's test perplexity
    part: str = "paper"  # of the table

    @property
    def effort(self) -> float:
        """About how much work it is, in arbitrary units: only to tell the time left."""
        config = self.config
        c, d = config.model.positions, config.model.dim
        scored = {"ml": 10_000.0, "importance": float(config.noise_samples + 30 * config.effective_samples)}.get(
            config.estimator, config.noise_samples / (3.0 if config.shared_noise else 1.0)
        )
        return (c * d + 100 + scored) * (config.epochs if config.schedule == "linear" else 14)


@dataclass(frozen=True)
class Result:
    """What a row came to: one entry of each list for each seed."""

    row: Row
    seeds: list[int]
    records: list[list[dict[str, Any]]]  # metrics.jsonl of each run

    @property
    def diverged(self) -> list[dict[str, Any] | None]:
        """The line that says how a run diverged, if it did."""
        return [lines[-1] if "diverged" in lines[-1] else None for lines in self.records]

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


# -- the rows ----------------------------------------------------------------------------------------------------------

PAPER_UNIGRAM = {1: 192.5, 5: 172.6, 25: 163.1, 100: 159.1}
PAPER_UNIFORM = {1: 291.0, 5: 233.7, 25: 195.1, 100: 173.2}


def rows_of(table: Table) -> list[Row]:
    """All rows of a table."""
    return table1() if table == "table1" else table2()


def _nce_rows() -> list[Row]:
    nce = recipe("ptb-nce")
    return [
        Row(f"nce-unigram-{k}", f"NCE, k = {k}", nce.with_changes(noise_samples=k), PAPER_UNIGRAM[k])
        for k in PAPER_UNIGRAM
    ]


def table1() -> list[Row]:
    """Table 1: training algorithms; then what the paper tells in words; then beyond the paper."""
    return [Row("ml", "ML", recipe("ptb-ml"), 163.5), *_nce_rows()]


def table2() -> list[Row]:
    """Table 2: kinds of noise, and how much of it."""
    return _nce_rows()
