"""What all verbs of the command line share: options with the same meaning, progress bars, JSON."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from tqdm import tqdm
from tyro.conf import Positional, arg

from ncelm.distributed.collective import rank
from ncelm.errors import NcelmError
from ncelm.io.metrics import Metrics
from ncelm.io.run import METRICS
from ncelm.training.loop import Progress

Shard = Annotated[
    str | None,
    arg(metavar="I/N", help="Only the I-th of N parts, for schedulers: what the parts say, one after another, is all."),
]
Json = Annotated[bool, arg(help="Answer in JSON, for programs.")]
Threads = Annotated[
    int | None,
    arg(help="Threads to use; all cores by default. The result is the same to the bit (but for models of PyTorch)."),
]
Run = Annotated[Path, Positional, arg(metavar="RUN", help="A folder that `train`, `ngram …` or `mix` has made.")]
VectorRun = Annotated[Path, Positional, arg(metavar="RUN", help="A folder that `train` or `lsa train` has made.")]
Store = Annotated[Path, Positional, arg(metavar="STORE", help="A folder that `ncelm prepare` has made.")]
NewRun = Annotated[Path, arg(help="The run: a folder that does not exist yet.")]


def parse_shard(text: str) -> tuple[int, int]:
    """ "2/8": the second of eight parts."""
    number, slash, shards = text.partition("/")
    if not (slash and number.isdecimal() and shards.isdecimal() and 1 <= int(number) <= int(shards) <= 1_000_000):
        raise NcelmError(f"--shard is {text!r}: give a part and how many there are, such as 2/8; the first is 1/8")
    return int(number), int(shards)


def print_json(answer: dict[str, Any]) -> None:
    """Answer a program."""
    print(json.dumps(answer, allow_nan=False))


def warn(message: str) -> None:
    """Something a person should know, that does not spoil the answer."""
    print(f"ncelm: {message}", file=sys.stderr)


def count(number: int, thing: str) -> str:
    """1 thing, 2 things."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def on_terminal() -> bool:
    """Is anybody watching? (Of several workers, the first.)"""
    return sys.stderr.isatty() and rank() == 0


def progress_bar(**options: Any) -> "tqdm[Any]":
    """A progress bar with rate and time left; nothing at all if nobody is watching."""
    return tqdm(disable=not on_terminal(), dynamic_ncols=True, **options)


def show(bar: "tqdm[Any]") -> Callable[[int, int | None], None]:
    """How a bar hears of progress."""

    def progress(done: int, total: int | None) -> None:
        bar.total = total
        bar.update(done - bar.n)

    return progress


def show_training(bar: "tqdm[Any]", at: Progress, where: str = "") -> None:
    """How a bar hears of training."""
    bar.total = at.epochs * at.words_per_epoch
    bar.update((at.epoch - 1) * at.words_per_epoch + at.words - bar.n)
    bar.set_description(f"{where}epoch {at.epoch}/{at.epochs} loss {at.loss:.3f}", refresh=False)
    if at.metrics and "valid_perplexity" in at.metrics:
        bar.set_postfix_str(
            f"perplexity {at.metrics['valid_perplexity']:.1f}, log Z {at.metrics['valid_log_z_mean']:+.2f}"
        )


def metrics(run_folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics."""
    return Metrics(run_folder / METRICS).read()
