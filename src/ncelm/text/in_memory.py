"""Text in memory: collections and iterators of strings, written to a file that `prepare` reads like any other.

Anything that iterates over strings is read: lists, generators, columns of pandas, Arrow and Hugging Face datasets. None
of these packages is imported.
"""

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ncelm.arguments import check_iterable, shown
from ncelm.errors import ArgumentError, ArgumentTypeError, NcelmError
from ncelm.io.files import write_errors
from ncelm.text.readers import MAX_LINE_CHARACTERS, MAX_SENTENCE_WORDS, has_too_many_words, prose_chunks
from ncelm.text.tables import are_objects, fault_of, lines_of, normalized

COLUMN = "text"  # of the file
FIRST = 5  # strings that are tested for names of files and JSON
_PIECE_CHARACTERS = 1 << 20  # of a long document, read at a time
_ROWS = 1000  # written at a time


def check_strings_in_memory(name: str, value: object, *, lines: bool) -> Iterable[Any]:
    """Return an argument that is an iterable of strings, which is not read; refuse what could be mistaken for one."""
    expected = "a list or an iterator of strings"
    if isinstance(value, str):
        raise ArgumentTypeError(
            f"`{name}` is {shown(value)}, one string: give {expected}; pass names of files as "
            f"`{'train' if lines else 'files'}`"
        )
    if hasattr(value, "columns"):  # a DataFrame iterates over the names of its columns
        raise ArgumentTypeError(f'`{name}` is a table: give one column of it, such as table["text"]')
    if isinstance(value, set | frozenset):
        raise ArgumentTypeError(f"`{name}` is a set, whose order is different in each process: give a list")
    if not lines and isinstance(value, io.IOBase):
        raise ArgumentTypeError(f"`{name}` is an open file, whose lines are no documents: pass its name as `files`")
    return check_iterable(name, value, expected)


def write_strings(name: str, values: Iterable[Any], path: Path, *, lines: bool) -> None:
    """Write a file of JSON lines with the column `COLUMN`: documents of prose, or single lines of tokenized text.

    Args:
        name: of the argument, for errors.
        values: the strings, which are read once.
        path: of the file.
        lines: a string has one or more lines of tokenized text. Otherwise it is a document.
    """
    first: list[str] = []
    rows: list[str] = []

    def write() -> None:
        with write_errors(path):
            file.write("".join(json.dumps({COLUMN: row}, ensure_ascii=False) + "\n" for row in rows).encode())
        rows.clear()

    with path.open("wb") as file:
        for index, text in _strings(name, values):
            if len(first) < FIRST:
                first.append(text)
                if len(first) == FIRST:
                    _check_first(name, first)
            rows += _lines(f"{name}[{index:,}]", text) if lines else _chunks(text)
            if len(rows) >= _ROWS or len(text) >= _PIECE_CHARACTERS:
                write()
        if first and len(first) < FIRST:
            _check_first(name, first)
        write()


def _strings(name: str, values: Iterable[Any]) -> Iterator[tuple[int, str]]:
    """Yield each string and its index."""
    iterator = iter(values)
    index = 0
    while True:
        try:
            value = next(iterator)
        except StopIteration:
            return
        except OSError as error:  # of an open file or a data set: not of the store, which is being written
            raise NcelmError(f"`{name}` cannot be read after {index:,} strings: {error}") from error
        if not isinstance(value, str) and hasattr(value, "as_py"):  # a value of an Arrow array
            value = value.as_py()
        if fault := fault_of(value):
            kind = ArgumentError if isinstance(value, str) else ArgumentTypeError
            raise kind(f"`{name}`, element {index:,}, {fault}: {_remedy(value)}")
        yield index, str(value)
        index += 1


def _remedy(value: object) -> str:
    if isinstance(value, Path):
        return "pass names of files as `files` or `train`"
    if isinstance(value, dict):
        return 'give one column, such as dataset["text"]'
    return "correct or remove it" if isinstance(value, str) else "give strings only"


def _check_first(name: str, first: list[str]) -> None:
    """Raise an error if the first strings are not text but names of files, or JSON."""
    if all(map(_is_file, first)):
        raise ArgumentError(
            f"`{name}` begins with {shown(first[0])}, the name of a file: pass names of files as `files` or `train`"
        )
    if are_objects(first):
        raise ArgumentError(
            f"`{name}` has JSON objects, not text: pass the file, and `column` with the name of a field"
        )


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # a long text
        return False


def _chunks(text: str) -> Iterator[str]:
    """Yield a document in chunks that end with a paragraph."""
    text = normalized(text)
    if len(text) <= _PIECE_CHARACTERS:
        yield text
        return
    yield from prose_chunks(text[at : at + _PIECE_CHARACTERS] for at in range(0, len(text), _PIECE_CHARACTERS))


def _lines(where: str, text: str) -> list[str]:
    """Return the lines of a string."""
    lines = lines_of(normalized(text))
    for line in lines:
        if len(line) > MAX_LINE_CHARACTERS or has_too_many_words(line):
            raise ArgumentError(
                f"{where} has more than {MAX_SENTENCE_WORDS:,} words or {MAX_LINE_CHARACTERS:,} characters in a line: "
                "split it into sentences"
            )
    return lines
