"""Files of documents in blocks of lines.

The process that reads does as little as possible with a block: worker processes decode it. Tables whose rows are not
lines (Parquet, CSV, TSV) become lines of JSON here.
"""

import glob
import json
import math
import os
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from ncelm.errors import NcelmError
from ncelm.io.compressed import SUFFIXES, open_compressed
from ncelm.io.files import open_regular
from ncelm.text.archives import is_archive
from ncelm.text.readers import STANDARD_INPUT, file_size, files_below, reading
from ncelm.text.tables import Kind, kind_of, table_rows

BLOCK_BYTES = 1 << 21  # of lines that a worker process scores in one call
MAX_LINE_BYTES = 64_000_000  # of one document
PROBES = 200  # places in the files from which a sample is read
MEASURED, MEASURED_BYTES = 20, 1 << 16  # places, and bytes at each, from which the size of documents is estimated
TOO_LONG = f"the line has more than {MAX_LINE_BYTES:,} bytes: split the document"
_BOM = b"\xef\xbb\xbf"


class Source(NamedTuple):
    """A file of documents."""

    path: Path
    kind: Kind | Literal["text"]  # a line of text is a document
    bytes: int  # on disk; 0 for standard input
    modified: int  # nanoseconds

    @property
    def is_lines(self) -> bool:
        """Whether a document is a line of the file."""
        return self.kind in ("text", "jsonl")

    @property
    def is_seekable(self) -> bool:
        """Whether reading can start anywhere."""
        return self.is_lines and self.path.suffix not in SUFFIXES and self.path != STANDARD_INPUT


class Block(NamedTuple):
    """Some lines of a file: JSON objects, unless the kind of the source is text."""

    source: int  # index of the file
    first: int  # number of the first line or row, from 1
    data: bytes
    position: int  # after the block: bytes of the decompressed content, or rows of a table
    lines: int  # number of lines or rows before that position
    read: int  # bytes of the file read from disk
    broken: str | None = None  # why the line, which is not in `data`, cannot be read


def find_sources(files: Iterable[Path | str]) -> list[Source]:
    """Return the files, those below folders, and those that match patterns with * or ?, each kind in order."""
    found: list[Path] = []
    for each in files:
        path = Path(each)
        if path != STANDARD_INPUT and not path.exists() and glob.has_magic(str(path)):
            matches = sorted(Path(name) for name in glob.glob(str(path), recursive=True))  # noqa: PTH207 (absolute)
            if not matches:
                raise NcelmError(f"no file matches {path}: check the pattern")
            found += [match for match in matches if match.is_file()]
        else:
            found += [path] if path == STANDARD_INPUT else files_below([path])
    if len(found) > 1 and STANDARD_INPUT in found:
        raise NcelmError("standard input (-) does not go with other files: give one or the other")
    return [_source(path) for path in found]


def _source(path: Path) -> Source:
    if path == STANDARD_INPUT:
        return Source(path, "jsonl", 0, 0)
    if is_archive(path):
        raise NcelmError(f"{path} is a tar archive: extract it first")
    size = file_size(path)
    return Source(path, kind_of(path, "utf-8") or "text", size, path.stat().st_mtime_ns)


def read_blocks(
    sources: list[Source], column: str, index: int = 0, position: int = 0, lines: int = 0
) -> Iterator[Block]:
    """Yield all documents in blocks, from a position in the file `index` on, before which there are so many lines."""
    for number, source in enumerate(sources[index:], index):
        yield from _read(source, number, column, position, lines)
        position = lines = 0


def _read(source: Source, index: int, column: str, position: int, lines: int) -> Iterator[Block]:
    if source.path == STANDARD_INPUT:
        if sys.stdin is None:
            raise NcelmError("standard input is closed: give a file, or text through a pipe")
        yield from _line_blocks(sys.stdin.buffer, None, index, position, lines)
    elif source.is_lines:
        with reading(source.path), open_regular(source.path) as disk:
            file = open_compressed(disk, source.path, os.fstat(disk.fileno()).st_size)
            _skip(file, position, source)
            yield from _line_blocks(file, disk, index, position, lines)
    else:
        yield from _row_blocks(source, index, column, position)


def _skip(file: IO[bytes], position: int, source: Source) -> None:
    """Move to a position of the decompressed content."""
    if source.is_seekable:
        file.seek(position)
        return
    while position > 0:
        count = len(file.read(min(position, BLOCK_BYTES)))
        if not count:
            raise NcelmError(f"{source.path} has changed: filter it again from the beginning")
        position -= count


def _line_blocks(file: IO[bytes], disk: IO[bytes] | None, index: int, position: int, lines: int) -> Iterator[Block]:
    """Yield blocks that end with the first line end after BLOCK_BYTES: where one ends depends on its beginning only."""
    buffer, searched = bytearray(), 0

    def take(size: int) -> Block:
        nonlocal position, lines, searched
        data = bytes(buffer[:size])
        del buffer[:size]
        first, searched = lines + 1, 0
        position, lines = position + size, lines + data.count(b"\n") + (not data.endswith(b"\n"))
        return Block(index, first, data, position, lines, disk.tell() if disk else position)

    while data := file.read(BLOCK_BYTES):
        if position == 0 and not buffer and data.startswith(_BOM):
            position, data = len(_BOM), data[len(_BOM) :]
        buffer += data
        while len(buffer) >= BLOCK_BYTES and (end := buffer.find(b"\n", max(BLOCK_BYTES - 1, searched)) + 1):
            yield take(end)
        searched = len(buffer)
        if searched > BLOCK_BYTES + MAX_LINE_BYTES:
            if begin := buffer.rfind(b"\n", 0, BLOCK_BYTES) + 1:
                yield take(begin)
            position, lines = position + len(buffer) + _skip_line(file, buffer), lines + 1
            yield Block(index, lines, b"", position, lines, disk.tell() if disk else position, TOO_LONG)
            searched = 0
    if buffer:
        yield take(len(buffer))


def _skip_line(file: IO[bytes], buffer: bytearray) -> int:
    """Read the rest of a line, and return its size; what was read after it replaces the content of the buffer."""
    size = 0
    buffer.clear()
    while data := file.read(BLOCK_BYTES):
        end = data.find(b"\n") + 1
        if end:
            buffer += data[end:]
            return size + end
        size += len(data)
    return size


def _row_blocks(source: Source, index: int, column: str, position: int) -> Iterator[Block]:
    rows: list[bytes] = []
    size = done = read = 0

    def on_bytes(count: int) -> None:
        nonlocal read
        read += count

    for done, row in enumerate(table_rows(source.path, column, on_bytes=on_bytes), 1):
        if done <= position:
            continue
        rows.append(_json(row))
        size += len(rows[-1])
        if size >= BLOCK_BYTES:
            yield Block(index, done - len(rows) + 1, b"\n".join(rows), done, done, read)
            rows, size = [], 0
    if rows:
        yield Block(index, done - len(rows) + 1, b"\n".join(rows), done, done, source.bytes)


def _json(row: dict[str, Any]) -> bytes:
    """Return a row as JSON. Values that JSON does not have are strings; bytes are base64, and NaN is null."""
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:
        text = json.dumps(_finite(row), ensure_ascii=False, default=_plain)
    return text.encode("utf-8", "surrogatepass")


def _plain(value: object) -> str:
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- a sample --------------------------------------------------------------------------------------------------------


def sample_blocks(sources: list[Source], column: str, documents: int) -> Iterator[Block]:
    """Yield about this number of documents, evenly spaced in the files.

    A file that cannot be read from anywhere (compressed, Parquet, CSV) contributes its beginning.
    """
    total = sum(source.bytes for source in sources) or 1
    for index, source in enumerate(sources):
        share = documents * source.bytes / total
        if source.is_seekable:
            probes = max(round(PROBES * source.bytes / total), 1)
            with reading(source.path), open_regular(source.path) as file:
                # Windows of equal size: each document is in one with the same probability, whatever its length.
                size = math.ceil(share * _document_bytes(file, source.bytes) / probes)
                starts = [probe * source.bytes // probes for probe in range(probes + 1)]
                for start, following in pairwise(starts):
                    yield Block(index, 1, _window(file, start, min(start + size, following)), 0, 0, 0)
            continue
        left = math.ceil(share)
        for block in _read(source, index, column, 0, 0):
            lines = block.data.splitlines()[:left]
            yield block._replace(data=b"\n".join(lines))
            left -= len(lines)
            if left <= 0:
                break


def _document_bytes(file: IO[bytes], total: int) -> float:
    """Return the mean size of the lines of a file, estimated at some places."""
    size = lines = 0
    for place in range(MEASURED):
        file.seek(place * total // MEASURED)
        block = file.read(MEASURED_BYTES)
        size, lines = size + len(block), lines + block.count(b"\n")
    return size / max(lines, 1)


def _window(file: IO[bytes], start: int, stop: int) -> bytes:
    """Return the lines that begin in a window of a file."""
    file.seek(max(start - 1, 0))
    if start:
        file.readline(MAX_LINE_BYTES)  # the rest of a line, or the end of the line before
    lines = []
    while file.tell() < stop and (line := file.readline(MAX_LINE_BYTES)):
        lines.append(line)
    return b"".join(lines)
