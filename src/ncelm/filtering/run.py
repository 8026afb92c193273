"""Filter documents on all cores, in bounded memory.

This process reads blocks of lines and writes the results in the same order. Worker processes decode, score and encode.
At most a few blocks for each worker are in memory. filter.json is written every few seconds; the output after it is
cut off when a call is resumed, so that the result has the same bytes as that of a call that was not interrupted.
"""

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from ncelm.arguments import (
    check,
    check_bool,
    check_choice,
    check_float,
    check_floats,
    check_int,
    check_iterable,
    check_path,
    check_str,
)
from ncelm.errors import NcelmError, Terminated
from ncelm.filtering import scoring
from ncelm.filtering.blocks import Block, Source, find_sources, read_blocks, sample_blocks
from ncelm.filtering.page import write_page
from ncelm.filtering.result import FilterResult, result_of_state
from ncelm.filtering.scoring import Compression, Format, Job, Mode, Result, Sentences
from ncelm.filtering.state import FILE, Output, Outputs, State, open_outputs
from ncelm.io import run as run_directory
from ncelm.io.files import exclusive_lock, write_errors
from ncelm.io.machine import available_cores
from ncelm.io.workers import result_of, worker_pool
from ncelm.progress import OnProgress, Option, check_progress, shown
from ncelm.text.readers import STANDARD_INPUT

MAX_WORKERS = 1024
BLOCKS_PER_WORKER = 3  # in memory: being scored, waiting, or waiting to be written
SAVE_SECONDS = 5.0  # between two states
LOCK = "filter.lock"
PAGE = "filter.html"
SPLIT = (30.0, 60.0)  # percentiles of head and middle, as in CCNet
DOCUMENTS = 10_000  # in a sample
_MIN_SAMPLE = 10  # values from which percentiles are estimated


def filter_documents(
    run: Path | str,
    files: Path | str | Sequence[Path | str],
    out: Path | str,
    *,
    column: str = "text",
    keep: float | None = None,
    threshold: float | None = None,
    split: Sequence[float] | None = None,
    score_only: bool = False,
    calibrate: int = DOCUMENTS,
    thresholds_from: Path | str | None = None,
    contrast: Path | str | None = None,
    mode: Literal["auto", "exact", "fast", "unnormalised"] = "auto",
    sentences: Literal["auto", "lines", "punkt"] = "auto",
    max_unknown: float | None = None,
    rejected: bool = False,
    prefix: str = "",
    format: Literal["jsonl", "text"] = "jsonl",
    compress: Literal["none", "gz", "zst"] = "none",
    html: bool = False,
    skip_broken: bool = False,
    resume: bool = False,
    workers: int | None = None,
    progress: Option = True,
) -> FilterResult:
    """Score documents, write each with its perplexity and bucket to files in the folder `out`, and return a summary.

    A document is a row of a table (JSON lines, Parquet, CSV, TSV) or a line of plain text; files may be compressed
    (.gz, .xz, .zst). Its perplexity is that of all its sentences, exp(-mean log P) over their tokens. Documents keep
    their order. Each output file has lines of JSON: the fields of the document, perplexity, tokens, unknown and bucket.

    By default there are three files, head, middle and tail, as in CCNet: documents below the 30th percentile of the
    perplexity, below the 60th, and the others. Percentiles are estimated on a sample of the documents first.

    Args:
        run: the directory of a model.
        files: files, folders, patterns with *, or "-" for standard input.
        out: the folder to make. It must not exist, unless `resume` is set.
        column: the column or field that has the text.
        keep: in place of three buckets, keep this percentage of the documents, those with the lowest perplexity.
        threshold: keep documents whose perplexity is not above this one.
        split: other percentiles of the three buckets than (30, 60).
        score_only: write all documents to one file.
        calibrate: the number of documents in the sample.
        thresholds_from: an output folder of this function, whose thresholds are used, in place of a sample.
        contrast: the directory of a second model. The measure is then the cross-entropy per word of `run` minus that of
            `contrast`, in nats (Moore & Lewis, 2010): `run` models the text that is wanted, `contrast` general text, or
            bad text.
        mode: how scores are normalised: "exact"; "fast", by the normalizer of the model; "unnormalised", whose result
            is called pseudo_perplexity; "auto" for "fast" if the model has a normalizer, "exact" for n-gram models, and
            otherwise "unnormalised".
        sentences: "punkt" splits documents into sentences by the sentence model of the training text, "lines" takes
            each line for a sentence, "auto" does what was done with the training text.
        max_unknown: the largest share of unknown words; documents with more are in the last bucket.
        rejected: with `keep` or `threshold`, write the other documents, too.
        prefix: of the names of the new fields.
        format: "jsonl", or "text" for the text of the documents only.
        compress: "gz" or "zst" for compressed output.
        html: write filter.html, a page with a histogram and examples of documents.
        skip_broken: skip rows that cannot be read, and count them, instead of raising an error.
        resume: continue an interrupted call with the same arguments, or start if `out` does not exist. The result has
            the same bytes as without interruption.
        workers: the number of processes; one per core by default.
        progress: True for a bar or lines in a log, False for none (see `ncelm.progress`), or a function that is called
            with the number of bytes read so far, and of all bytes.
    """
    out = check_path("out", out)
    paths = [check_path("files", each) for each in _listed(files)]
    names = (check_str("column", column), check_str("prefix", prefix))
    for name, flag in (("score_only", score_only), ("rejected", rejected), ("html", html),
                       ("skip_broken", skip_broken), ("resume", resume)):  # fmt: skip
        check_bool(name, flag)
    for name, value, choices in (("mode", mode, Mode), ("sentences", sentences, Sentences), ("format", format, Format),
                                 ("compress", compress, Compression)):  # fmt: skip
        check_choice(name, value, get_args(choices))
    if max_unknown is not None:
        max_unknown = check_float("max_unknown", max_unknown, 0, 1)
    check_int("calibrate", calibrate, _MIN_SAMPLE, 10_000_000)
    workers = min(available_cores(), MAX_WORKERS) if workers is None else check_int("workers", workers, 1, MAX_WORKERS)
    check_progress(progress)
    check("prefix", prefix, not set(prefix) & set('"\\') and prefix.isprintable(), "letters, digits or _")
    if compress == "zst":
        scoring.zstd()
    plan = _Plan.of(keep, threshold, split, score_only, thresholds_from)
    if rejected and plan.buckets != ("kept", "rejected"):
        raise NcelmError("`rejected` goes with `keep` or `threshold`")
    job = Job(
        run=check_path("run", run).resolve(),
        contrast=None if contrast is None else check_path("contrast", contrast).resolve(),
        mode=mode,
        column=names[0],
        sentences=sentences,
        buckets=plan.buckets,
        written=plan.buckets if rejected else tuple(name for name in plan.buckets if name != "rejected"),
        max_unknown=max_unknown,
        prefix=names[1],
        format=format,
        compression=compress,
        examples=html,
    )
    sources = find_sources(paths)
    state = _initial_state(job, plan, calibrate, sources)
    call = _Call(out, job, plan, sources, calibrate, skip_broken, workers)
    created = not (resume and out.exists())
    if created and (out.exists() or out.is_symlink()):
        again = (out / FILE).exists()
        raise NcelmError(f"{out} exists already: {'continue with `resume`, or ' if again else ''}choose another `out`")
    if not created:
        state = _resumed(out, state, sources)
    elif plan.percentiles and any(source.path == STANDARD_INPUT for source in sources):
        raise NcelmError("standard input cannot be read twice for a sample: give `threshold` or `thresholds_from`")
    with _folder(out, created), exclusive_lock(out / LOCK, f"another process is working on {out}: wait for it"):
        if not state.finished:
            call.run(state, progress)
        result = result_of_state(out, job, state)
        if html:
            write_page(out / PAGE, result, job, state)
    return result


def _listed(files: Any) -> list[Any]:
    one = isinstance(files, str | Path)
    found = [files] if one else list(check_iterable("files", files, "a path or a list of paths"))
    if not found:
        raise NcelmError("`files` is empty: give at least one file or folder")
    return found


@dataclass(frozen=True)
class _Plan:
    """Which documents go where."""

    buckets: tuple[str, ...]
    percentiles: tuple[float, ...]  # to be estimated; empty if the thresholds are known
    thresholds: tuple[float, ...] | None

    @classmethod
    def of(cls, keep: Any, threshold: Any, split: Any, score_only: bool, thresholds_from: Any) -> "_Plan":
        given = [name for name, value in (("keep", keep), ("threshold", threshold), ("split", split),
                 ("score_only", score_only or None)) if value is not None]  # fmt: skip
        if len(given) > 1:
            raise NcelmError(f"give either `{given[0]}` or `{given[1]}`, not both")
        if score_only:
            plan = cls(("scored",), (), ())
        elif threshold is not None:
            plan = cls(("kept", "rejected"), (), (check_float("threshold", threshold),))
        elif keep is not None:
            plan = cls(("kept", "rejected"), (check_float("keep", keep, 0, 100, positive=True),), None)
        else:
            numbers = SPLIT if split is None else tuple(check_floats("split", split))
            valid = len(numbers) == 2 and 0 < numbers[0] < numbers[1] < 100
            check("split", split, valid, "two percentages, such as (30, 60)")
            plan = cls(("head", "middle", "tail"), numbers, None)
        if thresholds_from is None:
            return plan
        if not plan.percentiles:
            raise NcelmError("`thresholds_from` does not go with `threshold` or `score_only`: leave one of them out")
        former = State.load(check_path("thresholds_from", thresholds_from))
        if former.thresholds is None or len(former.thresholds) != len(plan.percentiles):
            raise NcelmError(f"{thresholds_from} has no thresholds for {', '.join(plan.buckets)}: give another folder")
        return cls(plan.buckets, (), tuple(former.thresholds))


# -- the state -------------------------------------------------------------------------------------------------------


def _initial_state(job: Job, plan: _Plan, calibrate: int, sources: list[Source]) -> State:
    """Return the state before the first block."""
    options = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(job).items()}
    options |= {
        "models": [run_directory.identity(path) for path in (job.run, job.contrast) if path],
        "percentiles": list(plan.percentiles),
        "calibrate": calibrate if plan.percentiles else None,
        "given_thresholds": plan.thresholds and list(plan.thresholds),
    }
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    inputs = [[str(source.path), source.kind, source.bytes, source.modified] for source in sources]
    suffix = {"none": "", "gz": ".gz", "zst": ".zst"}[job.compression]
    outputs = [f"{name}.{'txt' if job.format == 'text' else 'jsonl'}{suffix}" for name in job.written]
    state = State(options, inputs, None if plan.thresholds is None else list(plan.thresholds))
    state.outputs = {name: Output() for name in outputs}
    state.documents = dict.fromkeys(job.buckets, 0)
    return state


def _resumed(out: Path, expected: State, sources: list[Source]) -> State:
    """Return the state of an interrupted call, which must have had the same arguments, files and models."""
    state = State.load(out)
    for name, value in expected.options.items():
        if state.options.get(name) != value:
            shown_name = {"models": "run", "compression": "compress", "examples": "html"}.get(name, name)
            raise NcelmError(
                f"{out} was started with another `{shown_name}`: give the same arguments, or choose another `out`"
            )
    if state.inputs != expected.inputs:
        raise NcelmError(f"{out} was started with other files, or they have changed: choose another `out`")
    if any(source.path == STANDARD_INPUT for source in sources) and not state.finished:
        raise NcelmError(f"standard input cannot be resumed: remove {out} and filter again")
    same = state.outputs.keys() == expected.outputs.keys() and state.documents.keys() == expected.documents.keys()
    if expected.thresholds is not None:
        same = same and state.thresholds == expected.thresholds
    if state.source > len(sources) or not same:
        raise NcelmError(f"{out / FILE} is damaged: remove {out} and filter again")
    return state


@contextmanager
def _folder(out: Path, created: bool) -> Iterator[None]:
    """Make the folder; remove it again if an error occurs before the first state is written."""
    with write_errors(out):
        out.mkdir(parents=True, exist_ok=not created)
    try:
        yield
    except BaseException as error:
        if created and not (out / FILE).exists():
            shutil.rmtree(out, ignore_errors=True)
        elif isinstance(error, KeyboardInterrupt):
            name = "SIGTERM" if isinstance(error, Terminated) else "Ctrl-C"
            raise type(error)(f"stopped by {name}; what is done is in {out}: continue with `resume`") from error
        raise


# -- blocks ----------------------------------------------------------------------------------------------------------


Submit = Callable[..., Any]  # of a function and its arguments; returns a future


class _Done:
    """The result of a call in this process, in place of a future."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value


class _Call:
    """One call of `filter_documents`."""

    def __init__(
        self, out: Path, job: Job, plan: _Plan, sources: list[Source], calibrate: int, skip: bool, workers: int
    ) -> None:
        self.out, self.job, self.plan, self.sources = out, job, plan, sources
        self.calibrate, self.skip, self.workers = calibrate, skip, workers

    def run(self, state: State, progress: Option) -> None:
        """Filter all blocks that are left."""
        if self.workers == 1:
            scoring.start(self.job)
            self._filter(state, progress, lambda function, *arguments: _Done(function(*arguments)))
            return
        with worker_pool(self.workers, scoring.start, (self.job,)) as pool:
            if pool is None:  # this system has no worker processes
                scoring.start(self.job)
                self._filter(state, progress, lambda function, *arguments: _Done(function(*arguments)))
            else:
                self._filter(state, progress, pool.submit)

    def _filter(self, state: State, progress: Option, submit: Submit) -> None:
        # one process compiles what the others then load
        about = result_of(submit(scoring.describe))
        if state.modes not in ([], about["modes"]):
            raise NcelmError(f"{self.out} was started in another mode ({state.modes[0]}): choose another `out`")
        state.modes, state.normalised = about["modes"], about["normalised"]
        if state.thresholds is None:
            state.thresholds = self._percentiles(submit)
        with (
            open_outputs(self.out, state) as outputs,
            shown(progress, desc="filtering", unit="B", unit_scale=True) as report,
        ):
            self._all_blocks(state, outputs, submit, report)
            outputs.save()
            outputs.finish()

    def _percentiles(self, submit: Submit) -> list[float]:
        """Return the thresholds, from a sample of the documents."""
        values: list[float] = []
        for _, result in self._in_order(sample_blocks(self.sources, self.job.column, self.calibrate), submit, None):
            values += result.values
        if len(values) < _MIN_SAMPLE:
            raise NcelmError(
                f"there are only {len(values)} documents with words in the sample, too few for percentiles: give "
                "`threshold`"
            )
        return [float(f"{x:.6g}") for x in np.percentile(values, self.plan.percentiles).tolist()]

    def _in_order(
        self, blocks: Iterator[Block], submit: Submit, thresholds: list[float] | None
    ) -> Iterator[tuple[Block, Result]]:
        """Yield blocks, without their data, and their results, in order."""
        pending: deque[tuple[Block, Any]] = deque()
        for block in blocks:
            kind = self.sources[block.source].kind
            future = submit(scoring.score_block, kind, block.first, block.data, thresholds, self.skip)
            pending.append((block._replace(data=b""), future))
            while len(pending) > BLOCKS_PER_WORKER * self.workers or (pending and self.workers == 1):
                first, future = pending.popleft()
                yield first, result_of(future)
        while pending:
            first, future = pending.popleft()
            yield first, result_of(future)

    def _all_blocks(self, state: State, outputs: Outputs, submit: Submit, report: OnProgress | None) -> None:
        began, saved, before = time.monotonic(), time.monotonic(), state.seconds
        total = sum(source.bytes for source in self.sources)
        sizes = [0, *np.cumsum([source.bytes for source in self.sources]).tolist()]
        blocks = read_blocks(self.sources, self.job.column, state.source, state.position, state.lines)
        names = dict(zip(self.job.written, state.outputs, strict=True))
        for block, result in self._in_order(blocks, submit, state.thresholds):
            source = self.sources[block.source]
            unit = "line" if source.is_lines else "row"
            if block.broken:
                result.broken, result.named = 1, [(block.first, block.broken)]
            if result.broken and not self.skip:
                number, reason = result.named[0]
                resume = " and `resume`" if state.lines else ""
                if state.lines:
                    outputs.save()
                raise NcelmError(
                    f"{source.path}, {unit} {number:,}: {reason}; or skip such rows with `skip_broken`{resume}"
                )
            for bucket, data in result.outputs.items():
                outputs.write(names[bucket], data)
            state.add(source.path, unit, result)
            state.source, state.position, state.lines = block.source, block.position, block.lines
            state.read, state.seconds = sizes[block.source] + block.read, before + time.monotonic() - began
            if report:
                report(min(state.read, total) if total else state.read, total or state.read)
            if time.monotonic() - saved > SAVE_SECONDS:
                outputs.save()
                saved = time.monotonic()
        state.seconds = before + time.monotonic() - began
