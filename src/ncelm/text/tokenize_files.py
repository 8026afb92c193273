"""Text to numbers on all cores: the units a corpus is cut into, and the worker processes that tokenise them.

Words are numbered as they turn up in a unit, from 1; 0 ends a sentence. The numbers are spilled to disk, the words
beside them, so that memory does not grow with the text. `preparing` turns them into ids.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ncelm.errors import NcelmError
from ncelm.io.files import write_errors
from ncelm.io.machine import available_cores
from ncelm.text.readers import OnBytes, byte_ranges, file_size, read_lines, read_prose
from ncelm.text.sentences import SentenceSplitter
from ncelm.text.settings import TextSettings

# Prose takes ten times longer than lines: smaller units keep all cores busy to the end.
LINES_UNIT, PROSE_UNIT = 32 << 20, 8 << 20  # bytes
# Bytes that are read in the time that starting a process takes.
LINES_WORTH_A_PROCESS, PROSE_WORTH_A_PROCESS = 8 << 20, 1 << 20
SPILLS = "spills"  # a folder in the store in the making
WORKER = "from ncelm.text.tokenize_files import work; work()"  # what a worker process runs
BLOCK = 1 << 20  # numbers handled at a time


# ---------------------------------------------------------------------------------------------------------
# One unit: text to numbers


@dataclass(frozen=True)
class Unit:
    """A file, or a part of one, for one worker to tokenise."""

    number: int
    split: str
    path: str
    start: int
    stop: int | None
    bytes: int
    encoding: str
    text: TextSettings
    folder: str  # of the store in the making, where punkt.json is and the spilled numbers go

    @property
    def numbers_file(self) -> Path:
        """Where the unit's sentences are spilled, as numbers, with a 0 after each."""
        return Path(self.folder, SPILLS, f"{self.number}.numbers")

    @property
    def words_file(self) -> Path:
        """Where the words are, one a line, in the order of their numbers, from 1."""
        return Path(self.folder, SPILLS, f"{self.number}.words")


def make_units(files: dict[str, list[Path]], encoding: str, text: TextSettings, folder: Path) -> list[Unit]:
    """Cut the files of each split into units, in order."""
    prose = text.tokenizer == "treebank"
    units: list[Unit] = []
    for split, paths in files.items():
        for path in paths:
            for start, stop in byte_ranges(path, encoding, PROSE_UNIT if prose else LINES_UNIT, at_blank_lines=prose):
                size = (file_size(path) if stop is None else stop) - start
                units.append(Unit(len(units), split, str(path), start, stop, size, encoding, text, str(folder)))
    return units


class _Numbers(dict[str, int]):
    """Numbers words 1, 2, 3, … in the order in which they are asked for."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self) + 1
        return number


def tokenize_unit(unit: Unit, splitter: SentenceSplitter | None, on_bytes: OnBytes | None) -> int:
    """Spill a unit's sentences as numbers and return how many sentences there are."""
    sentences = 0
    numbers = _Numbers()
    buffer = array("I")
    with write_errors(unit.numbers_file), unit.numbers_file.open("wb") as file:
        for sentence in _sentences(unit, splitter, on_bytes):
            words = unit.text.words(sentence)
            if not words:
                continue
            buffer.extend(map(numbers.__getitem__, words))
            buffer.append(0)
            sentences += 1
            if len(buffer) >= BLOCK:
                buffer.tofile(file)
                del buffer[:]
        buffer.tofile(file)
        unit.words_file.write_bytes("\n".join(numbers).encode("utf-8", "surrogatepass"))
    return sentences


def _sentences(unit: Unit, splitter: SentenceSplitter | None, on_bytes: OnBytes | None) -> Iterator[str]:
    where: Any = {"start": unit.start, "stop": unit.stop, "on_bytes": on_bytes}
    if splitter is None:
        yield from read_lines(unit.path, unit.encoding, **where)
    else:
        for chunk in read_prose(unit.path, unit.encoding, **where):
            yield from splitter.sentences(chunk)


def _splitter_of(unit: Unit) -> SentenceSplitter | None:
    return SentenceSplitter.load(Path(unit.folder)) if unit.text.tokenizer == "treebank" else None


# ---------------------------------------------------------------------------------------------------------
# All units, in this process or in several


def tokenise(units: list[Unit], workers: int | None, progress: Callable[[int, int], None] | None) -> list[int]:
    """Tokenise all units and return how many sentences each has."""
    total = sum(unit.bytes for unit in units)
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(min(done, total), total)

    if workers is None:
        worth = PROSE_WORTH_A_PROCESS if units[0].text.tokenizer == "treebank" else LINES_WORTH_A_PROCESS
        workers = min(available_cores(), 1 + total // worth)
    workers = min(workers, len(units))
    if workers == 1:
        splitter = _splitter_of(units[0])
        return [tokenize_unit(unit, splitter, on_bytes) for unit in units]
    return _in_processes(units, workers, on_bytes)


def _in_processes(units: list[Unit], workers: int, on_bytes: OnBytes) -> list[int]:
    """Tokenise units in worker processes, each fed by a thread of this one.

    The processes are plain commands and not `multiprocessing`, which would run the user's script once more in
    each of them, and so needs scripts written for it.
    """
    todo: queue.SimpleQueue[Unit] = queue.SimpleQueue()
    for unit in units:
        todo.put(unit)
    news: queue.SimpleQueue[Any] = queue.SimpleQueue()  # from the threads: what `_feed` says
    sentences = {unit.number: 0 for unit in units}
    processes: list[subprocess.Popen[str]] = []
    threads: list[threading.Thread] = []
    try:
        for number in range(workers):
            log = Path(units[0].folder, SPILLS, f"worker-{number}.log")
            processes.append(_start_worker(log))
            threads.append(threading.Thread(target=_feed, args=(processes[-1], log, todo, news), daemon=True))
            threads[-1].start()
        running = workers
        while running:
            kind, value = news.get()
            if kind == "bytes":
                on_bytes(value)
            elif kind == "done":
                number, count = value
                sentences[number] = count
            elif kind == "failed":
                raise value
            else:
                running -= 1
        return [sentences[unit.number] for unit in units]
    finally:  # also on Ctrl-C: no worker outlives this call
        for process in processes:
            process.kill()
        for thread in threads:
            thread.join()
        for process in processes:
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # what a worker did not live to hear
                    if pipe:
                        pipe.close()
            process.wait()


def _start_worker(log: Path) -> "subprocess.Popen[str]":
    with log.open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            encoding="ascii",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the workers
        )


def _feed(
    process: "subprocess.Popen[str]",
    log: Path,
    todo: "queue.SimpleQueue[Unit]",
    news: "queue.SimpleQueue[Any]",
) -> None:
    """Hand units to one worker until none are left, and pass on what it answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        while True:
            unit = todo.get_nowait()
            print(json.dumps(asdict(unit)), file=process.stdin, flush=True)
            kind = ""
            while kind != "done":
                kind, value = json.loads(process.stdout.readline())
                news.put(("failed", NcelmError(value)) if kind == "error" else (kind, value))
    except queue.Empty:
        news.put(("idle", None))
    except (OSError, ValueError):  # no answer, and perhaps nobody to hear the question
        news.put(("failed", _death(process, log)))


def _death(process: "subprocess.Popen[str]", log: Path) -> NcelmError:
    try:
        code = process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        code = 0
    if code < 0:
        return NcelmError(
            f"a worker process was killed (signal {-code}), perhaps for want of memory: try again with --workers 1"
        )
    said = log.read_text(errors="replace").split("\n")[-2:]
    return NcelmError(f"a worker process stopped ({said[0] or f'exit code {code}'}): try again with --workers 1")


def work() -> None:
    """Be a worker process: read one unit a line, answer in lines of [kind, value]."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints must not pass for an answer

    def answer(kind: str, value: Any) -> None:
        print(json.dumps([kind, value]), file=answers, flush=True)

    splitter = None
    for line in sys.stdin:
        fields = json.loads(line)
        unit = Unit(**{**fields, "text": TextSettings(**fields["text"])})
        try:
            splitter = splitter or _splitter_of(unit)
            sentences = tokenize_unit(unit, splitter, lambda count: answer("bytes", count))
            answer("done", [unit.number, sentences])
        except NcelmError as error:
            answer("error", str(error))
        except MemoryError:
            answer("error", f"there is not enough memory to prepare {unit.path}: try again with --workers 1")
