"""Tokenize text files on all cores.

The text is cut into units. A unit is tokenized by one process, which writes the words of its sentences as local ids:
words are numbered from 1 in the order of their first occurrence in the unit, and 0 ends a sentence. Local ids and words
go to disk, so that memory does not grow with the text. `prepare` maps them to word ids.
"""

import re
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ncelm.errors import NcelmError
from ncelm.io.files import write_errors
from ncelm.io.machine import available_cores
from ncelm.io.workers import result_of, worker_pool
from ncelm.text.readers import OnBytes, byte_ranges, file_size, read_lines, read_prose
from ncelm.text.sentences import SentenceSplitter
from ncelm.text.settings import TextSettings, TextSize
from ncelm.text.tables import Range, read_document_lines, read_documents, table_ranges

# Prose takes ten times as long as lines: smaller units keep all cores busy until the end.
LINES_UNIT_BYTES, PROSE_UNIT_BYTES = 32 << 20, 8 << 20
# Bytes that one process reads in the time it takes to start another one.
LINES_BYTES_PER_WORKER, PROSE_BYTES_PER_WORKER = 8 << 20, 1 << 20
# Of a text that is too large for the time: bytes tokenized to measure the rate, parts of what is used, and the share of
# the measured rate that is counted on, because processes start and ids are mapped in the same time.
MEASURED_BYTES, LIMITED_PARTS, LEAST_PART_BYTES, EFFICIENCY = 200_000, 64, 50_000, 0.7
SPILLS = "spills"  # the folder for local ids, in the folder of the unfinished store
BLOCK_TOKENS = 1 << 20  # tokens processed at a time
PROGRESS_SECONDS = 0.1  # between two reports

Progress = Callable[[int, int], None]  # called with the number of bytes read so far, and of all bytes


_BLANK_LINES = re.compile(r"^[^\S\n]*\n", re.MULTILINE)


# -- one unit --------------------------------------------------------------------------------------------------------


class TextFile(NamedTuple):
    """A file, and how to read it."""

    path: Path
    encoding: str
    column: str | None  # of a table; None for plain text

    def prose(self, **options: Any) -> Iterator[str]:
        """Yield the prose of the file in chunks. The options are those of `read_line_blocks`."""
        if self.column is None:
            return read_prose(self.path, self.encoding, **options)
        return read_documents(self.path, self.column, self.encoding, **options)

    def lines(self, **options: Any) -> Iterator[str]:
        """Yield the lines of the file, blank ones too. The options are those of `read_line_blocks`."""
        if self.column is None:
            return read_lines(self.path, self.encoding, keep_blank=True, **options)
        return read_document_lines(self.path, self.column, self.encoding, **options)

    def ranges(self, size: int, prose: bool) -> list[Range]:
        """Return ranges of about `size` bytes that can be read independently."""
        if self.column is not None:
            return table_ranges(self.path, self.column, self.encoding, size)
        total = file_size(self.path)
        ranges = byte_ranges(self.path, self.encoding, size, at_blank_lines=prose)
        return [Range(start, stop, (total if stop is None else stop) - start) for start, stop in ranges]


@dataclass(frozen=True)
class Unit:
    """A file or a range of a file."""

    number: int
    split: str
    file: TextFile
    range: Range
    text: TextSettings
    prose: bool  # to be split into sentences; otherwise a line is a sentence
    keep_blank: bool  # a blank line of tokenized text is an empty sentence
    folder: str  # of the unfinished store, with punkt.json and the folder SPILLS

    @property
    def numbers_file(self) -> Path:
        """The local ids of the sentences, uint32, with a 0 after each sentence."""
        return Path(self.folder, SPILLS, f"{self.number}.numbers")

    @property
    def words_file(self) -> Path:
        """The words in the order of their local ids, one per line."""
        return Path(self.folder, SPILLS, f"{self.number}.words")

    @property
    def sizes_file(self) -> Path:
        """The `TextSize` of each sentence, two uint32."""
        return Path(self.folder, SPILLS, f"{self.number}.sizes")

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """All files of the unit."""
        return self.numbers_file, self.words_file, self.sizes_file


def make_units(
    files: dict[str, list[TextFile]], text: TextSettings, prose: bool, keep_blank: bool, folder: Path
) -> list[Unit]:
    """Return the units of the files of each split, in order."""
    unit_bytes = PROSE_UNIT_BYTES if prose or text.pieces else LINES_UNIT_BYTES
    units: list[Unit] = []
    for split, some in files.items():
        for file in some:
            for each in file.ranges(unit_bytes, prose):
                units.append(Unit(len(units), split, file, each, text, prose, keep_blank, str(folder)))
    return units


def limit_units(units: list[Unit], workers: int | None, seconds: float) -> list[Unit]:
    """Return units that are tokenized in about `seconds`: all, or evenly spaced parts of the training text.

    The rate is measured. Compressed files are not divided.
    """
    train, others = ([unit for unit in units if (unit.split == "train") is own] for own in (True, False))
    total = sum(unit.range.bytes for unit in train)
    workers = _workers(train, workers, total)
    affordable = seconds * EFFICIENCY * workers * _bytes_per_second(train)
    if total <= affordable:
        return units
    size = max(int(affordable / LIMITED_PARTS), LEAST_PART_BYTES)
    files = dict.fromkeys(unit.file for unit in train)
    prose = train[0].prose
    parts = [replace(train[0], file=file, range=each) for file in files for each in file.ranges(size, prose)]
    chosen = [parts[i] for i in evenly_spaced([part.range.bytes for part in parts], affordable)]
    return [replace(unit, number=number) for number, unit in enumerate([*chosen, *others])]


def evenly_spaced(sizes: list[int], limit: float) -> list[int]:
    """Return the indices of evenly spaced elements with a total size of about `limit`, at least one.

    >>> evenly_spaced([10] * 10, 30)
    [1, 4, 8]
    """
    share, credit, chosen = limit / max(sum(sizes), 1), 0.0, []
    for i, size in enumerate(sizes):
        credit += share * size
        if credit >= size / 2:
            chosen.append(i)
            credit -= size
    return chosen or [len(sizes) // 2]


def _bytes_per_second(units: list[Unit]) -> float:
    """Return the rate of one process on a range in the middle of the text, which is tokenized and discarded."""
    unit = units[len(units) // 2]
    ranges = unit.file.ranges(MEASURED_BYTES, unit.prose)
    sample = replace(unit, number=len(units), range=ranges[len(ranges) // 2])
    splitter = _splitter_of(unit)
    began = time.perf_counter()
    tokenize_unit(sample, splitter, None)
    return sample.range.bytes / max(time.perf_counter() - began, 1e-6)


class Counts(NamedTuple):
    """What a unit contains."""

    sentences: int
    blank_lines: int  # also those that are no sentences


class _LocalIds(dict[str, int]):
    """A mapping from words to 1, 2, 3, … in the order of the first look-up."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self) + 1
        return number


def tokenize_unit(unit: Unit, splitter: SentenceSplitter | None, on_bytes: OnBytes | None) -> Counts:
    """Write the local ids and the words of a unit and return the numbers of its sentences and blank lines."""
    sentences = blank_lines = 0
    ids = _LocalIds()
    buffer, sizes = array("I"), array("I")
    plain = unit.text == TextSettings()  # words are what is between white space
    where: Any = {"start": unit.range.start, "stop": unit.range.stop, "on_bytes": on_bytes}
    with write_errors(unit.numbers_file), unit.numbers_file.open("wb") as file:
        for text in unit.file.prose(**where) if splitter else unit.file.lines(**where):
            if splitter:
                blank_lines += len(_BLANK_LINES.findall(text))
            for sentence in splitter.sentences(text) if splitter else (text,):
                words = unit.text.words(sentence)
                if not words:
                    blank_lines += splitter is None
                    if not unit.keep_blank:
                        continue
                buffer.extend(map(ids.__getitem__, words))
                buffer.append(0)
                sizes.extend(TextSize.of_words(words) if plain else TextSize.of(sentence))
                sentences += 1
                if len(buffer) >= BLOCK_TOKENS:
                    buffer.tofile(file)
                    del buffer[:]
        buffer.tofile(file)
    with write_errors(unit.sizes_file), unit.sizes_file.open("wb") as file:
        sizes.tofile(file)
    with write_errors(unit.words_file):
        unit.words_file.write_bytes("\n".join(ids).encode("utf-8", "surrogatepass"))
    return Counts(sentences, blank_lines)


def _splitter_of(unit: Unit) -> SentenceSplitter | None:
    return SentenceSplitter.load(Path(unit.folder)) if unit.prose else None


# -- all units -------------------------------------------------------------------------------------------------------


def tokenize_units(units: list[Unit], workers: int | None, progress: Progress | None) -> list[Counts]:
    """Tokenize all units and return the numbers of sentences and blank lines of each.

    Args:
        units: what to tokenize.
        workers: the number of processes; None for one per core, or fewer if the text is short.
        progress: called with the number of bytes read so far, and of all bytes.
    """
    total = sum(unit.range.bytes for unit in units)
    workers = min(_workers(units, workers, total), len(units))
    counts = _tokenize_in_workers(units, workers, total, progress) if workers > 1 else None
    return _tokenize_here(units, total, progress) if counts is None else counts


def _workers(units: list[Unit], workers: int | None, total: int) -> int:
    """Return the number of processes for a text of `total` bytes."""
    if workers is not None:
        return workers
    prose = units[0].prose or units[0].text.pieces is not None
    return min(available_cores(), 1 + total // (PROSE_BYTES_PER_WORKER if prose else LINES_BYTES_PER_WORKER))


def _tokenize_here(units: list[Unit], total: int, progress: Progress | None) -> list[Counts]:
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(min(done, total), total)

    splitter = _splitter_of(units[0])
    return [tokenize_unit(unit, splitter, on_bytes) for unit in units]


# -- worker processes ------------------------------------------------------------------------------------------------


def _tokenize_in_workers(units: list[Unit], workers: int, total: int, progress: Progress | None) -> list[Counts] | None:
    """Return the counts of each unit, or None if this system cannot start worker processes."""
    counter_file = Path(units[0].folder, SPILLS, "progress")
    counters = np.memmap(counter_file, np.int64, "w+", shape=(len(units),))  # bytes read of each unit
    with worker_pool(workers, _start_worker, (units[0],)) as pool:
        if pool is None:
            return None
        futures = [pool.submit(_tokenize_in_worker, unit, i, counter_file) for i, unit in enumerate(units)]
        pending = set(futures)
        while pending:
            done, pending = wait(pending, PROGRESS_SECONDS, FIRST_EXCEPTION)
            for future in done:
                result_of(future)
            if progress:
                progress(min(int(counters.sum()), total), total)
        return [future.result() for future in futures]


_splitter: SentenceSplitter | None = None  # of this worker process


def _start_worker(unit: Unit) -> None:
    """Initialize a worker process."""
    global _splitter
    _splitter = _splitter_of(unit)


def _tokenize_in_worker(unit: Unit, number: int, counter_file: Path) -> Counts:
    """Tokenize a unit and add the bytes that were read to its counter in `counter_file`."""
    counters = np.memmap(counter_file, np.int64, "r+")

    def on_bytes(count: int) -> None:
        counters[number] += count

    try:
        return tokenize_unit(unit, _splitter, on_bytes)
    except MemoryError:
        raise NcelmError(
            f"there is not enough memory to prepare {unit.file.path}: try again with `workers` 1"
        ) from None
