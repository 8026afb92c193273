"""Experiment trackers: TensorBoard, Weights & Biases (wandb) and Trackio, each if it is installed.

`ncelm.train(…, track="tensorboard")` or `--track tensorboard,wandb` logs, besides writing metrics.jsonl:

- every number of every record of metrics.jsonl, under its name there: `loss`, `valid_perplexity`, …;
- every `INTERVAL_SECONDS` within an epoch, `progress/loss` (mean over the epoch so far) and
  `progress/words_per_second`;
- the options of the run and the size of its text and vocabulary as hyper-parameters.

The step is the number of words of text trained on since the start of the run, over all epochs and resumes.

- tensorboard: `pip install tensorboardX`, or PyTorch and `pip install tensorboard`. The data are in RUN/tensorboard;
  `tensorboard --logdir RUN` shows them.
- wandb: `pip install wandb`, then `wandb login`, or WANDB_MODE=offline. The data are in RUN/wandb and on the server, in
  the project WANDB_PROJECT, or "ncelm".
- trackio: `pip install trackio`. The data are in the project TRACKIO_PROJECT, or "ncelm"; `trackio show` shows them.

A resumed run continues in the tracker: RUN/tracking.json keeps its id there. A tracker that fails, for example without
a network, is left out for the rest of the run, with one warning. Training continues. Of several workers, only the first
one logs.
"""

import os
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ncelm.arguments import check_choice, check_strings
from ncelm.errors import DivergedError, MissingExtraError, NcelmError
from ncelm.io import run
from ncelm.io.files import is_finite_number, read_json, write_json
from ncelm.io.metrics import Metrics
from ncelm.training.checkpoint import TrainingState
from ncelm.training.options import to_flat
from ncelm.training.setup import Setup

if TYPE_CHECKING:
    from ncelm.training.loop import Progress

FILE = "tracking.json"  # in the run directory
INTERVAL_SECONDS = 5.0  # between two logs within an epoch
# the modules of each tracker, of which one is enough, and the package to install
MODULES = {
    "tensorboard": (("tensorboardX", "torch.utils.tensorboard"), "tensorboardX"),
    "wandb": (("wandb",), "wandb"),
    "trackio": (("trackio",), "trackio"),
}


class Tracker(Protocol):
    """An experiment tracker, in which one run was started."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Log numbers by name."""

    def finish(self, failed: bool) -> None:
        """End the run."""


def check_track(track: object) -> list[str]:
    """Return the names of trackers that a parameter `track` has, each once, after checking that they are installed."""
    names = list(dict.fromkeys(check_strings("track", track.split(",") if isinstance(track, str) else track)))
    for name in names:
        check_choice("track", name, MODULES)
        _module(name)
    return names


def _module(name: str) -> str:
    """Return the name of the module of a tracker; raise `MissingExtraError` if it is not installed."""
    modules, package = MODULES[name]
    for module in modules:
        if module in sys.modules or _is_installed(module):
            return module
    raise MissingExtraError(f"`track` {name} needs a package that is not installed: pip install {package}")


def _is_installed(module: str) -> bool:
    if module == "torch.utils.tensorboard":  # it is part of PyTorch, and needs the package tensorboard
        return find_spec("torch") is not None and find_spec("tensorboard") is not None
    return find_spec(module) is not None


# -- trackers --------------------------------------------------------------------------------------------------------


class TensorBoard:
    """Event files in RUN/tensorboard, by tensorboardX or PyTorch, whose writers have the same interface."""

    def __init__(self, out: Path, id: str, config: dict[str, Any], step: int) -> None:
        # a resumed run replaces what was logged after its checkpoint
        writer = import_module(_module("tensorboard")).SummaryWriter
        self.writer = writer(str(out / "tensorboard"), purge_step=step or None, flush_secs=10)
        rows = "\n".join(f"| {name} | {value} |" for name, value in config.items())
        self.writer.add_text("config", f"| option | value |\n|---|---|\n{rows}", step)

    def log(self, values: dict[str, float], step: int) -> None:
        """Log numbers by name."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def finish(self, failed: bool) -> None:
        """Close the file."""
        self.writer.close()


class WandbOrTrackio:
    """A run of Weights & Biases or of Trackio, whose interfaces are the same apart from `options`."""

    def __init__(self, module: str, config: dict[str, Any], **options: Any) -> None:
        project = os.environ.get(f"{module.upper()}_PROJECT", "ncelm")
        self.run = import_module(module).init(project=project, config=config, resume="allow", **options)
        self.exit_codes = module == "wandb"

    def log(self, values: dict[str, float], step: int) -> None:
        """Log numbers by name."""
        self.run.log(values, step=step)

    def finish(self, failed: bool) -> None:
        """End the run and wait until everything is written or sent."""
        self.run.finish(**{"exit_code": int(failed)} if self.exit_codes else {})


def _wandb(out: Path, id: str, config: dict[str, Any], step: int) -> Tracker:
    return WandbOrTrackio("wandb", config, name=out.name, id=id, dir=str(out))


def _trackio(out: Path, id: str, config: dict[str, Any], step: int) -> Tracker:
    return WandbOrTrackio("trackio", config, name=f"{out.name}-{id}")  # Trackio identifies runs by their names


TRACKERS: dict[str, Callable[[Path, str, dict[str, Any], int], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": _wandb,
    "trackio": _trackio,
}


# -- training --------------------------------------------------------------------------------------------------------


@contextmanager
def track_training(
    names: Sequence[str], setup: Setup, state: TrainingState, progress: "Callable[[Progress], None] | None"
) -> "Iterator[Callable[[Progress], None] | None]":
    """Yield a function that training calls with its progress: it logs it, and calls `progress`."""
    if not names or setup.collective.rank > 0:
        yield progress
        return
    step = state.epoch * setup.tokens + min(state.step * setup.step_words, setup.tokens)
    tracking = Tracking(names, setup.out, hyper_parameters(setup), step)

    def report(at: "Progress") -> None:
        tracking.report(at)
        if progress is not None:
            progress(at)

    failed = True
    try:
        yield report
        failed = False
    except DivergedError:
        tracking.log_record(Metrics(setup.out / run.METRICS).read()[-1])
        raise
    finally:
        tracking.finish(failed)


def hyper_parameters(setup: Setup) -> dict[str, Any]:
    """Return the options of a run, by flat name, and the sizes of its text and vocabulary."""
    return {**to_flat(setup.config), "vocabulary_size": setup.vocabulary_size, "training_words": setup.tokens}


class Tracking:
    """The trackers of one run. One that fails is left out from then on, with a warning."""

    def __init__(self, names: Sequence[str], out: Path, config: dict[str, Any], step: int) -> None:
        self.step = step
        self.logged = time.monotonic()
        self.trackers: dict[str, Tracker] = {}
        id = _tracking_id(out)
        for name in names:
            with self._guarded(name):
                self.trackers[name] = TRACKERS[name](out, id, config, step)

    def report(self, at: "Progress") -> None:
        """Log the record at the end of an epoch, and the progress within an epoch from time to time."""
        self.step = (at.epoch - 1) * at.words_per_epoch + at.words
        if at.metrics:
            self.log_record(at.metrics)
        elif time.monotonic() - self.logged >= INTERVAL_SECONDS:
            self._log({"progress/loss": at.loss, "progress/words_per_second": at.words_per_second})

    def log_record(self, record: dict[str, Any]) -> None:
        """Log the numbers of a record of metrics.jsonl."""
        self._log(record)

    def finish(self, failed: bool) -> None:
        """End the run in all trackers."""
        for name, tracker in list(self.trackers.items()):
            with self._guarded(name):
                tracker.finish(failed)

    def _log(self, values: dict[str, Any]) -> None:
        self.logged = time.monotonic()
        numbers = {name: float(value) for name, value in values.items() if is_finite_number(value)}
        for name, tracker in list(self.trackers.items()):
            with self._guarded(name):
                tracker.log(numbers, self.step)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Turn an error of a tracker into a warning, and its messages on standard output into ones on standard error.

        Trackers raise errors of any type.
        """
        try:
            with redirect_stdout(sys.stderr):
                yield
        except Exception as error:
            self.trackers.pop(name, None)
            reason = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(f"{name} failed, training continues without it: {reason[:300]}", stacklevel=2)


def _tracking_id(out: Path) -> str:
    """Return the id of a run in its trackers, which tracking.json keeps for resumed runs."""
    with suppress(NcelmError):
        content = read_json(out / FILE, "run", "ncelm-tracking", 1)
        if isinstance(content.get("id"), str):
            return content["id"]
    id = secrets.token_hex(4)
    write_json(out / FILE, {"format": "ncelm-tracking", "version": 1, "id": id})
    return id
