"""Progress of long operations: a bar in a terminal or notebook, a line every 30 seconds in a log.

Functions that take long have a parameter `progress`:

- True, the default: a bar if standard error is a terminal, or in a notebook (a widget if ipywidgets is installed).
  Elsewhere, such as in a script whose output is redirected, a line every `LOG_SECONDS` and nothing before the first.
- False or None: nothing.
- a function, which the operation calls itself.

Of several processes that torchrun started, only the first one shows progress.
"""

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from ncelm.arguments import check_type
from ncelm.io.machine import rank

if TYPE_CHECKING:
    from tqdm import tqdm

    from ncelm.training.loop import Progress

LOG_SECONDS = 30.0  # between two lines of progress in a log
DELAY_SECONDS = 0.5  # operations that take less show no bar

OnProgress = Callable[[int, int], None]  # called with what is done so far, and the total
Option = bool | OnProgress | None  # the parameter `progress`, for most operations

_TRAINING_FORMAT = "{l_bar}{bar}| [{elapsed}<{remaining}, {rate_fmt}{postfix}]"  # fits in 80 columns
_TRAINING_LOG_FORMAT = "{desc}{percentage:.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


def check_progress(value: object) -> None:
    """Raise `ArgumentTypeError` unless a value is True, False, None or a function."""
    valid = value is None or isinstance(value, bool) or callable(value)
    check_type("progress", value, valid, "True, False, None or a function")


# -- where progress is shown -----------------------------------------------------------------------------------------


def on_terminal() -> bool:
    """Return whether standard error is a terminal. Of several processes, only the first has one."""
    return sys.stderr is not None and sys.stderr.isatty() and rank() == 0  # a service may have no standard error


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    try:
        return "IPKernelApp" in sys.modules["IPython"].get_ipython().config
    except (KeyError, AttributeError):  # IPython was not imported, or is not running
        return False


def _has_size() -> bool:
    """Return whether the size of the terminal is known. That of some containers is 0 × 0."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError):
        return False


class _Log:
    """A stream for tqdm where standard error is not a terminal: it prints a line every `LOG_SECONDS`."""

    def __init__(self) -> None:
        self.printed = time.monotonic()

    def write(self, text: str) -> None:
        line = text.strip()
        if line and time.monotonic() - self.printed >= LOG_SECONDS:
            self.printed = time.monotonic()
            with suppress(OSError):  # a full disk behind a log must not stop the work
                print(line, file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Every line is flushed when it is printed."""


# -- bars ------------------------------------------------------------------------------------------------------------


@cache
def _bar_class(notebook: bool) -> Any:
    """Return tqdm's class of bars, with a remaining time and a rate that can be set."""
    base: Any
    if notebook:
        with warnings.catch_warnings():  # without ipywidgets, tqdm warns and draws a bar of characters
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm as base
    else:
        from tqdm import tqdm as base

    class Bar(base):  # type: ignore[misc]
        """A bar whose remaining time and rate, if they are set, replace those that tqdm computes."""

        values: ClassVar[dict[str, Any]] = {}
        in_log = False

        @property
        def format_dict(self) -> dict[str, Any]:
            return {**super().format_dict, **self.values}

    return Bar


def progress_bar(**options: Any) -> "tqdm[Any]":
    """Return a progress bar with rate and remaining time; in a log, it is a line every `LOG_SECONDS`."""
    notebook = in_notebook()
    shape: dict[str, Any]
    if notebook:
        shape = {}
    elif not on_terminal():
        shape = {"file": _Log(), "ncols": 0}
    elif _has_size():
        shape = {"dynamic_ncols": True}
    else:
        shape = {"ncols": 80, "nrows": 24}
    bar = _bar_class(notebook)(disable=rank() > 0, **shape, **options)
    bar.in_log = "file" in shape
    return bar


def show(bar: "tqdm[Any]") -> Callable[[int, int | None], None]:
    """Return a function that moves a bar to `done` of `total`."""

    def move(done: int, total: int | None) -> None:
        bar.total, bar.bar_format, bar.values = total, None, {}  # type: ignore[attr-defined]
        bar.update(done - bar.n)

    return move


@contextmanager
def shown(progress: Option, **options: Any) -> Iterator[OnProgress | None]:
    """Yield the function that an operation calls for a parameter `progress`; None if nothing is shown.

    For True, it moves a bar, which is closed when the block ends. `options` are those of tqdm, such as `desc`.
    """
    if progress is True:
        with progress_bar(**{"delay": DELAY_SECONDS} | options) as bar:
            yield show(bar)
    else:
        yield progress or None


# -- training --------------------------------------------------------------------------------------------------------


@contextmanager
def training_shown(
    progress: "bool | Callable[[Progress], None] | None", introduction: str = ""
) -> "Iterator[Callable[[Progress], None] | None]":
    """Yield the function that training calls for its parameter `progress`; None if nothing is shown.

    A bar comes after the line `introduction`, if there is one.
    """
    if progress is True:
        if introduction and rank() == 0:
            with suppress(OSError):  # as in a log
                print(f"ncelm: {introduction}", file=sys.stderr, flush=True)
        with progress_bar(unit=" words", unit_scale=True, desc="starting") as bar:
            yield TrainingBar(bar)
    else:
        yield progress or None


class TrainingBar:
    """A function that moves a bar to the position of a training run, or of several runs one after another."""

    def __init__(self, bar: "tqdm[Any]") -> None:
        self.bar, self.remaining = bar, RemainingTime()

    def __call__(self, at: "Progress", prefix: str = "") -> None:
        """Show epoch, loss, throughput, remaining time, and the last validation perplexity."""
        bar: Any = self.bar
        position = (at.epoch - 1) * at.words_per_epoch + at.words
        if position < bar.n:  # another run
            self.remaining = RemainingTime()
            bar.set_postfix_str("", refresh=False)
        seconds = self.remaining.update(at)
        bar.total = round(at.epochs * at.words_per_epoch)  # the last epoch may be shorter
        bar.bar_format = _TRAINING_LOG_FORMAT if bar.in_log else _TRAINING_FORMAT
        bar.values = {"remaining": "?" if seconds is None else bar.format_interval(seconds)}
        if at.words_per_second:
            bar.values["rate"] = at.words_per_second
        if bar.in_log:
            bar.values["ncols"] = None  # with 0, tqdm ignores the format
        bar.set_description(f"{prefix}epoch {at.epoch}/{math.ceil(at.epochs)} loss {at.loss:.3f}", refresh=False)
        if at.metrics and "valid_perplexity" in at.metrics:
            bar.set_postfix_str(f"perplexity {at.metrics['valid_perplexity']:.1f}", refresh=False)
        bar.update(position - bar.n)
        if at.metrics:
            bar.refresh()


class RemainingTime:
    """An estimate of the remaining time of training, validation included.

    The time between two reports in which no words were trained on is validation and file output. Its mean over the
    epochs that were seen is added for each epoch that is left; in the first epoch it is unknown.
    """

    def __init__(self) -> None:
        self.last: Progress | None = None
        self.now = 0.0
        self.other = 0.0  # seconds without training
        self.other_per_epoch = 0.0
        self.epochs = 0  # whose end was seen

    def update(self, at: "Progress") -> float | None:
        """Return the remaining seconds; None if they are unknown."""
        now = time.monotonic()
        if self.last is not None:
            same = self.last.epoch == at.epoch
            trained = _seconds(at) - (_seconds(self.last) if same else 0.0)
            self.other += max(now - self.now - max(trained, 0.0), 0.0)
        self.last, self.now = at, now
        if at.metrics:
            self.epochs += 1
            self.other_per_epoch = self.other / self.epochs
        if at.metrics and at.metrics.get("finished"):
            return 0.0
        if not at.words_per_second:
            return None
        epochs = math.ceil(at.epochs) - at.epoch + (0 if at.metrics else 1)
        words = (at.epochs - at.epoch + 1) * at.words_per_epoch - at.words
        return max(words, 0) / at.words_per_second + epochs * self.other_per_epoch


def _seconds(at: "Progress") -> float:
    """Return the training time of an epoch so far."""
    return at.words / at.words_per_second if at.words_per_second else 0.0
