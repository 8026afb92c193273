"""Columns of text in tables: files of JSON lines, Parquet, CSV and TSV.

A table has one document per row. A document is prose, or one or more lines of tokenized text. Memory is bounded by the
largest document, not by the file.
"""

import csv
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from ncelm.arguments import shown
from ncelm.errors import MissingExtraError, NcelmError
from ncelm.io.compressed import SUFFIXES, ExpansionLimit, open_compressed
from ncelm.io.files import open_regular
from ncelm.text.readers import (
    MAX_SENTENCE_WORDS,
    OnBytes,
    byte_ranges,
    file_size,
    has_too_many_words,
    line_blocks,
    line_name,
    reading,
)

MAX_DOCUMENT_CHARACTERS = 64_000_000  # of one document, and of one line of JSON
HEAD_BYTES = 1 << 16  # read to find out what a file contains
HEAD_LINES = 5  # of these, all must be JSON objects
ROWS = 256  # read from a Parquet file at a time
SHOWN_COLUMNS = 20  # in an error message

Kind = Literal["jsonl", "parquet", "csv", "tsv"]
KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
}
LABELS = {"jsonl": "JSON", "parquet": "a Parquet file", "csv": "a CSV file", "tsv": "a TSV file"}
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_SPLIT = "split the text into several rows"
_PARQUET_MAGIC = b"PAR1"
_OBJECT = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:')  # the beginning of a JSON object
_SURROGATE = re.compile("[\ud800-\udfff]")


class Range(NamedTuple):
    """A part of a file that can be read independently: bytes of a text file, or row groups of a Parquet file."""

    start: int
    stop: int | None  # None for the end of the file
    bytes: int  # on disk, for progress


# -- reading ---------------------------------------------------------------------------------------------------------


def read_documents(
    path: Path | str,
    column: str,
    encoding: str = "utf-8",
    *,
    start: int = 0,
    stop: int | None = None,
    on_bytes: OnBytes | None = None,
) -> Iterator[str]:
    r"""Yield the documents of prose in a column of a table, with line ends \n.

    Args:
        path: a file of JSON lines, CSV or TSV, possibly compressed (.gz, .zst), or a Parquet file.
        column: the name of the column: a field of JSON objects, or a name in the first line of CSV and TSV files.
        encoding: of the file; Parquet files have none.
        start: of a range of `table_ranges`.
        stop: of the same range.
        on_bytes: called with the number of bytes of each read from disk.
    """
    for _, document in _read(Path(path), column, encoding, start, stop, on_bytes):
        yield document.replace("\x1a", " ")  # as in `read_prose`


def read_document_lines(path: Path | str, column: str, encoding: str = "utf-8", **options: Any) -> Iterator[str]:
    """Yield the lines of all documents, blank ones too. The arguments are those of `read_documents`.

    A line end at the end of a document does not begin another line.
    """
    path = Path(path)
    for place, document in _read(path, column, encoding, **options):
        for line in lines_of(document):
            if has_too_many_words(line):
                _fail(path, place, f"has more than {MAX_SENTENCE_WORDS:,} words: split it into sentences")
            yield line


def lines_of(document: str) -> list[str]:
    r"""Return the lines of a document, whose line ends are \n.

    >>> lines_of("the cat sat\n\nthe end\n")
    ['the cat sat', '', 'the end']
    """
    return document.removesuffix("\n").split("\n")


def normalized(document: str) -> str:
    r"""Return a document with line ends \n."""
    return document.replace("\r\n", "\n").replace("\r", "\n") if "\r" in document else document


def fault_of(document: object) -> str | None:
    """Return why a value cannot be used as text; None if it can."""
    if not isinstance(document, str):
        return f"is {shown(document)}, not a string"
    if "\0" in document:
        return "has a NUL character, which text has not"
    if not document.isascii() and _SURROGATE.search(document):
        return "has half of a surrogate pair, which is no character"
    return None


def table_ranges(path: Path | str, column: str, encoding: str, size: int) -> list[Range]:
    """Return ranges of about `size` bytes that cover a table and can be read independently.

    Ranges of JSON lines end at line ends, those of Parquet files at row groups. A compressed file or a CSV file is one
    range. Raises an error if the file is not a table, or a Parquet file without this column.
    """
    path = Path(path)
    kind = _table_kind(path, encoding)
    total = file_size(path)
    if kind == "parquet":
        with _open_parquet(path, column) as file:
            return _parquet_ranges(file, total, size)
    ranges = byte_ranges(path, encoding, size, at_blank_lines=False) if kind == "jsonl" else [(0, None)]
    return [Range(start, stop, (total if stop is None else stop) - start) for start, stop in ranges]


class _Place(NamedTuple):
    """Where a document is in its file."""

    unit: Literal["line", "row"]
    start: int  # offset in bytes from which lines are counted
    number: int


def _read(
    path: Path,
    column: str,
    encoding: str,
    start: int = 0,
    stop: int | None = None,
    on_bytes: OnBytes | None = None,
) -> Iterator[tuple[_Place, str]]:
    """Yield each document and its place."""
    kind = _table_kind(path, encoding)
    if kind == "parquet":
        rows = _read_parquet(path, column, start, stop, on_bytes)
    elif kind == "jsonl":
        rows = _read_json_lines(path, column, encoding, start, stop, on_bytes)
    else:
        rows = _read_csv(path, column, encoding, _DELIMITERS[kind], on_bytes)
    for place, value in rows:
        if fault := fault_of(value):
            _fail(path, place, f"the value of {column!r} {fault}: correct or remove it")
        if len(value) > MAX_DOCUMENT_CHARACTERS:
            _fail(path, place, f"the text has more than {MAX_DOCUMENT_CHARACTERS:,} characters: {_SPLIT}")
        yield place, normalized(value)


def _fail(path: Path, place: _Place, fault: str) -> NoReturn:
    where = line_name(path, place.start, place.number) if place.unit == "line" else f"row {place.number:,}"
    raise NcelmError(f"{path}, {where}: {fault}")


def _no_column(column: str, names: list[str]) -> str:
    if column in names:
        return f"two columns have the name {column!r}: rename one of them"
    return f"there is no column {column!r}: pass `column` with one of {_listed(names)}"


def _listed(names: list[str]) -> str:
    more = [] if len(names) <= SHOWN_COLUMNS else ["…"]
    return ", ".join([shown(name)[1:-1] for name in names[:SHOWN_COLUMNS]] + more)


# -- JSON lines ------------------------------------------------------------------------------------------------------


def _read_json_lines(
    path: Path, column: str, encoding: str, start: int, stop: int | None, on_bytes: OnBytes | None
) -> Iterator[tuple[_Place, Any]]:
    for first, lines in line_blocks(path, encoding, start, stop, on_bytes, MAX_DOCUMENT_CHARACTERS, _SPLIT):
        for number, line in enumerate(lines, first):
            if not line or line.isspace():
                continue
            place = _Place("line", start, number)
            try:
                row = json_row(line, column)
            except ValueError as error:
                _fail(path, place, str(error))
            yield place, row[column]


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno:,}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"


# -- CSV -------------------------------------------------------------------------------------------------------------


def _read_csv(
    path: Path, column: str, encoding: str, delimiter: str, on_bytes: OnBytes | None
) -> Iterator[tuple[_Place, Any]]:
    with _csv_rows(path, encoding, delimiter, on_bytes) as reader:
        names = next(reader, None)
        if names is None:  # an empty file
            return
        if names.count(column) != 1:
            _fail(path, _Place("line", 0, 1), _no_column(column, names))
        index = names.index(column)
        for row in reader:
            if not row:  # a blank line
                continue
            place = _Place("line", 0, reader.line_num)
            if len(row) != len(names):
                _fail(path, place, f"the row has {len(row)} fields and the first line has {len(names)}: correct it")
            yield place, row[index]


@contextmanager
def _csv_rows(path: Path, encoding: str, delimiter: str, on_bytes: OnBytes | None) -> Iterator[Any]:
    """Return a reader of the rows of a CSV file, in which fields may be quoted and then have line ends."""
    blocks = line_blocks(path, encoding, 0, None, on_bytes, MAX_DOCUMENT_CHARACTERS, _SPLIT)
    reader = csv.reader((line + "\n" for _, lines in blocks for line in lines), delimiter=delimiter, strict=True)
    former = csv.field_size_limit(MAX_DOCUMENT_CHARACTERS)
    try:
        yield reader
    except csv.Error as error:
        _fail(path, _Place("line", 0, reader.line_num), f"not valid CSV ({error}): correct it")
    finally:
        csv.field_size_limit(former)


# -- Parquet ---------------------------------------------------------------------------------------------------------


@contextmanager
def _open_parquet(path: Path, column: str | None = None) -> Iterator[Any]:
    """Yield an open `pyarrow.parquet.ParquetFile`, which has the column, if one is given, as a column of strings."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError(f"pyarrow is needed to read {path}: pip install 'ncelm[parquet]'") from None
    if path.suffix in SUFFIXES:
        raise NcelmError(f"{path} is a compressed Parquet file: decompress it first")
    with reading(path), open_regular(path) as disk:
        try:
            options: dict[str, Any] = {"buffer_size": 1 << 20, "pre_buffer": False}  # no whole row groups in memory
            file = parquet.ParquetFile(disk, **options)
            if column is not None:
                _check_parquet_column(path, file.schema_arrow, column)
                # As a dictionary, a text that is repeated in a million rows is in memory once.
                file = parquet.ParquetFile(disk, read_dictionary=[column], metadata=file.metadata, **options)
            yield file
        except MemoryError:
            raise
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = " ".join(str(error).split())[:100]
            raise NcelmError(f"{path} is not a Parquet file, or is damaged ({reason}): copy it again") from error


def _check_parquet_column(path: Path, schema: Any, column: str) -> None:
    from pyarrow import types

    if schema.names.count(column) != 1:
        raise NcelmError(f"{path}: {_no_column(column, schema.names)}")
    if not _is_string(types, kind := schema.field(column).type):
        raise NcelmError(f"{path}: the column {column!r} has values of type {kind}, not strings: pass another `column`")


def _is_string(types: Any, kind: Any) -> bool:
    if types.is_dictionary(kind):
        kind = kind.value_type
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _group_rows(file: Any) -> list[int]:
    """Return the number of rows of each row group. These numbers are not trusted: they are used for progress only."""
    metadata = file.metadata
    return [max(metadata.row_group(group).num_rows, 0) for group in range(metadata.num_row_groups)]


def _parquet_ranges(file: Any, total: int, size: int) -> list[Range]:
    """Return ranges of row groups. The bytes of a row group are its share of the file, by its number of rows."""
    rows = _group_rows(file)
    all_rows = sum(rows)
    if not all_rows:
        return [Range(0, len(rows), total)]
    ranges: list[Range] = []
    start = done = before = 0
    for group, count in enumerate(rows, 1):
        done += count
        share = total * done // all_rows - before
        if share >= size or group == len(rows):
            ranges.append(Range(start, group, share))
            start, before = group, before + share
    return ranges


def _read_parquet(
    path: Path, column: str, start: int, stop: int | None, on_bytes: OnBytes | None
) -> Iterator[tuple[_Place, Any]]:
    total = file_size(path)
    limit = ExpansionLimit(path, total)
    with _open_parquet(path, column) as file:
        rows = _group_rows(file)
        all_rows, number, read = max(sum(rows), 1), sum(rows[:start]), 0
        groups = range(start, len(rows) if stop is None else stop)
        first = number
        for group in groups:
            batches = file.iter_batches(batch_size=ROWS, row_groups=[group], columns=[column], use_threads=False)
            for batch in batches:
                batch.validate(full=True)
                for value in batch.column(0):
                    number += 1
                    text = value.as_py()
                    limit.add(len(text) if isinstance(text, str) else 0)
                    yield _Place("row", 0, number), text
                if on_bytes:
                    now = total * (number - first) // all_rows
                    on_bytes(now - read)
                    read = now


# -- what a file contains --------------------------------------------------------------------------------------------


def kind_of(path: Path, encoding: str) -> Kind | None:
    """Return the kind of a table, by the name of the file or by its content; None for plain text."""
    return _kind_by_name(path) or _kind_by_content(path, encoding)


def _table_kind(path: Path, encoding: str) -> Kind:
    """Return the kind of a table; raise an error for plain text."""
    kind = kind_of(path, encoding)
    if kind is None:
        raise NcelmError(f"{path} is not JSON lines, Parquet, CSV or TSV: `column` is for these")
    return kind


def table_suffix(name: str) -> str:
    """Return the suffix of the decompressed content of a file: that of a table, or .txt.

    >>> table_suffix("pages.jsonl.gz"), table_suffix("pages.xml")
    ('.jsonl', '.txt')
    """
    path = Path(name.lower())
    suffix = Path(path.stem).suffix if path.suffix in SUFFIXES else path.suffix
    return suffix if suffix in KINDS else ".txt"


def _kind_by_name(path: Path) -> Kind | None:
    return KINDS.get(table_suffix(path.name))


def _kind_by_content(path: Path, encoding: str) -> Kind | None:
    with reading(path), open_regular(path) as disk:
        content = open_compressed(disk, path, os.fstat(disk.fileno()).st_size)
        head = content.read(HEAD_BYTES)
        is_whole = len(head) < HEAD_BYTES
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
    text = head.decode(encoding, "replace").removeprefix("\ufeff")
    *lines, last = re.split(r"\r\n|\n|\r", text)
    complete = [(line, True) for line in lines if line.strip()] + ([(last, is_whole)] if last.strip() else [])
    return "jsonl" if complete and all(_is_object(*line) for line in complete[:HEAD_LINES]) else None


def _is_object(line: str, is_complete: bool) -> bool:
    """Return whether a line is a JSON object with fields, or its beginning."""
    if not is_complete:
        return _OBJECT.match(line) is not None
    try:
        row = json.loads(line) if line.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and bool(row)


def are_objects(texts: list[str]) -> bool:
    """Return whether all texts are JSON objects with fields.

    >>> are_objects(['{"text": "It was late."}']), are_objects(['{"text": "It was late."}', "It was late."])
    (True, False)
    """
    return all(_is_object(text, True) for text in texts)


def check_plain_text(path: Path, encoding: str) -> None:
    """Raise an error that names the columns if a file is a table and not plain text."""
    kind = kind_of(path, encoding)
    if kind is None:
        return
    names: list[str] = []
    with suppress(NcelmError):  # such as a damaged file; the file would be refused with `column`, too
        names = column_names(path, encoding)
    suggested = "text" if "text" in names else "NAME"
    listed = f" (its columns are {_listed(names)})" if names else ""
    by_name = kind != "parquet" and _kind_by_content(path, encoding) != kind
    rename = ", or rename it to .txt if it is plain text" if by_name else ""
    raise NcelmError(f"{path} is {LABELS[kind]}, not plain text: pass `column` {suggested}{listed}{rename}")


def column_names(path: Path, encoding: str) -> list[str]:
    """Return the names of the columns of a table; those of JSON lines are the fields of the first object."""
    kind = _table_kind(path, encoding)
    if kind == "parquet":
        with _open_parquet(path) as file:
            return list(file.schema_arrow.names)
    if kind == "jsonl":
        lines = (line for _, block in line_blocks(path, encoding, 0, None, None, HEAD_BYTES * 100) for line in block)
        for line in islice((line for line in lines if line.strip()), 1):
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
                return list(row) if isinstance(row, dict) else []
        return []
    with _csv_rows(path, encoding, _DELIMITERS[kind], None) as reader:
        return list(next(reader, []))


# -- whole rows ------------------------------------------------------------------------------------------------------


def table_rows(
    path: Path | str, column: str, encoding: str = "utf-8", *, on_bytes: OnBytes | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet, CSV or TSV file with all columns, of which one must have this name."""
    path = Path(path)
    kind = _table_kind(path, encoding)
    if kind in _DELIMITERS:
        with _csv_rows(path, encoding, _DELIMITERS[kind], on_bytes) as reader:
            names = next(reader, [column])
            if names.count(column) != 1 or len(set(names)) != len(names):
                _fail(path, _Place("line", 0, 1), _no_column(column, names))
            for row in reader:
                if row and len(row) != len(names):
                    place = _Place("line", 0, reader.line_num)
                    _fail(path, place, f"the row has {len(row)} fields and the first line has {len(names)}: correct it")
                if row:
                    yield dict(zip(names, row, strict=True))
        return
    total = file_size(path)
    limit = ExpansionLimit(path, total)
    with _open_parquet(path, column) as file:
        all_rows, done, read = max(sum(_group_rows(file)), 1), 0, 0
        for batch in file.iter_batches(batch_size=ROWS, use_threads=False):
            batch.validate(full=True)
            limit.add(batch.nbytes)
            yield from batch.to_pylist()
            done += batch.num_rows
            if on_bytes:
                now = min(total * done // all_rows, total)
                on_bytes(now - read)
                read = now


def json_row(line: str, column: str) -> dict[str, Any]:
    """Return the JSON object of a line, whose field `column` is text. Raise ValueError with the reason otherwise."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a JSON object ({_reason(error)}): write one object per line") from None
    if not isinstance(row, dict):
        raise ValueError(f"{shown(row)} is not a JSON object: write one object per line")
    if column not in row:
        raise ValueError(_no_column(column, list(row)))
    if fault := fault_of(row[column]):
        raise ValueError(f"the value of {column!r} {fault}: correct or remove it")
    return row
