"""Text files to lines, paragraphs and words. Nothing here knows word ids.

Two kinds of text come in: pre-tokenised files, one sentence a line (`read_lines`), and prose, whose
paragraphs end at blank lines (`read_prose`); `sentences` cuts those into sentences.
Files are streamed: whatever their size, and however odd, only a bounded piece of them is in memory.
"""

import codecs
import gzip
import io
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from ncelm.errors import NcelmError
from ncelm.text.sentences import BLANK_LINE

MAX_SENTENCE_WORDS = 1_000_000
MAX_LINE_CHARACTERS = 16_000_000  # a str takes up to 4 bytes a character: 64 MB
BLOCK_BYTES = 1 << 20
STANDARD_INPUT = Path("-")
MAX_PARAGRAPH_CHARACTERS = 4 << 20

# Encodings in which the bytes 10 and 13 are always line ends, so that a file can be cut at them unread.
_CUTTABLE = re.compile(r"utf-8|ascii|iso8859-\d+|cp125\d|koi8-[a-z]")

OnBytes = Callable[[int], None]


# ---------------------------------------------------------------------------------------------------------
# Files


def read_lines(path: Path | str, encoding: str = "utf-8", **where: Any) -> Iterator[str]:
    """Yield the lines of `read_line_blocks` one by one."""
    for lines in read_line_blocks(path, encoding, **where):
        yield from lines


def read_line_blocks(
    path: Path | str,
    encoding: str = "utf-8",
    *,
    start: int = 0,
    stop: int | None = None,
    on_bytes: OnBytes | None = None,
    keep_blank: bool = False,
) -> Iterator[list[str]]:
    r"""Yield the lines of a text file, without their line ends, as they come in; blank ones only if `keep_blank`.

    Lines end at \n, \r\n or \r and at nothing else; a byte order mark is skipped; `.gz` is unpacked; the path
    "-" is standard input. `start` and `stop` read only the bytes between them (see `byte_ranges`); `on_bytes` hears
    how many bytes each read took from the disk.
    """
    path = Path(path)
    number = 0
    rest = ""

    def wanted(line: str) -> bool:
        # Counting words costs time, and a line of so many has at least one character and one blank for each.
        if len(line) >= 2 * MAX_SENTENCE_WORDS and _has_too_many_words(line):
            raise _endless(path, _line(path, start, number), f"{MAX_SENTENCE_WORDS:,} words")
        return keep_blank or not (line.isspace() or line == "")

    for text in _decoded(path, encoding, start, stop, on_bytes):
        lines = (rest + text).split("\n")
        rest = lines.pop()
        block = []
        for line in lines:
            number += 1
            if wanted(line):
                block.append(line)
        if block:
            yield block
        if len(rest) > MAX_LINE_CHARACTERS:
            raise _endless(path, _line(path, start, number + 1), f"{MAX_LINE_CHARACTERS:,} characters")
    number += 1
    if rest and wanted(rest):
        yield [rest]


def read_prose(
    path: Path | str,
    encoding: str = "utf-8",
    *,
    start: int = 0,
    stop: int | None = None,
    on_bytes: OnBytes | None = None,
) -> Iterator[str]:
    """Yield a prose file in chunks of about 1 MB that end where a paragraph ends.

    A paragraph of more than 4 million characters (a file without blank lines, say) is cut at white space,
    which may cut one sentence in two. The other arguments are those of `read_lines`.
    """
    rest = ""
    for text in _decoded(Path(path), encoding, start, stop, on_bytes):
        rest += text.replace("\x1a", " ")  # Ctrl-Z, DOS's end-of-file mark, is no word
        cut = max((blank.end() for blank in BLANK_LINE.finditer(rest)), default=0)
        if not cut and len(rest) > MAX_PARAGRAPH_CHARACTERS:
            cut = max(rest.rfind("\n"), rest.rfind(" ")) + 1 or len(rest)
        if cut:
            yield rest[:cut]
            rest = rest[cut:]
    if rest and not rest.isspace():
        yield rest


def byte_ranges(path: Path | str, encoding: str, size: int, *, at_blank_lines: bool) -> list[tuple[int, int | None]]:
    """Cut a large file into (start, stop) ranges of about `size` bytes that can be read independently.

    Ranges end at line ends, or at blank lines for prose. A file that is packed, or in an encoding whose
    bytes cannot be cut so, is one range; the last range's stop is None: it goes on to the file's end.
    """
    path = Path(path)
    total = file_size(path)
    if total <= size or path.suffix == ".gz" or not _CUTTABLE.fullmatch(_codec(encoding)):
        return [(0, None)]
    cuts = [0]
    with _reading(path), path.open("rb") as file:
        while total - cuts[-1] > size:
            cut = _next_cut(file, cuts[-1] + size, rb"\n\r?\n" if at_blank_lines else rb"\n")
            if cut is None or cut >= total:
                break
            cuts.append(cut)
    return list(zip(cuts, [*cuts[1:], None], strict=True))


def shard_range(path: Path | str, encoding: str, number: int, shards: int) -> tuple[int, int | None]:
    """Where the number-th of so many parts of a file of lines starts and stops; together they are the file.

    Parts are numbered from 1. Those of a small file may be empty: they stop where they start.
    """
    if str(path) == "-" or Path(path).suffix == ".gz" or not _CUTTABLE.fullmatch(_codec(encoding)):
        raise NcelmError(f"{path} cannot be read in parts: --shard is for files that are not packed, in utf-8 or so")
    ranges = byte_ranges(path, encoding, max(-(-file_size(Path(path)) // shards), 1), at_blank_lines=False)
    return ranges[number - 1] if number <= len(ranges) else (0, 0)


def file_size(path: Path) -> int:
    """Return the bytes of a file that is there and is a file, or say what is wrong."""
    with _reading(path):
        if path.is_dir():
            raise NcelmError(f"{path} is a folder, not a text file")
        return path.stat().st_size


def check_encoding(encoding: str) -> None:
    """Refuse an encoding that Python does not know."""
    _codec(encoding)


def _codec(encoding: str) -> str:
    """Return Python's own name for an encoding."""
    try:
        "".encode(encoding)  # refuses what is a codec but not for text, such as "hex"
        return codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise NcelmError(f"there is no text encoding {encoding!r}: try utf-8, latin-1, cp1252 or utf-16") from None


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what can go wrong while reading `path` into one clear line."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise NcelmError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise NcelmError(f"{path} is a folder, not a text file") from None
    except EOFError:
        raise NcelmError(f"{path} is truncated (its packed data ends early): fetch it anew") from None
    except (gzip.BadGzipFile, zlib.error):
        raise NcelmError(f"{path} is not a gzip file, or is damaged: fetch it anew") from None
    except OSError as error:
        raise NcelmError(f"cannot read {path}: {error.strerror or error}") from error


def _decoded(path: Path, encoding: str, start: int, stop: int | None, on_bytes: OnBytes | None) -> Iterator[str]:
    r"""Yield a file's text in blocks, with every line end made \n, or say why it is not text."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(_codec(encoding))(), translate=True)
    lines = 0
    first = start == 0
    for block in _blocks(path, start, stop, on_bytes):
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            if b"\0" in block:
                raise _binary(path) from None
            raise _undecodable(path, encoding, start, lines, error) from None
        except UnicodeError as error:  # what some encodings raise instead
            raise NcelmError(f"{path} is not {encoding} ({error}): pass the right --encoding") from None
        if "\0" in text:
            raise _binary(path)
        lines += text.count("\n")
        if text:
            yield text.removeprefix("\ufeff") if first else text
            first = False


def _blocks(path: Path, start: int, stop: int | None, on_bytes: OnBytes | None) -> Iterator[bytes]:
    """Yield a file's bytes in blocks, then one empty block."""
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise NcelmError("standard input is closed: give a file, or text through a pipe")
        stdin = cast(io.BufferedReader, sys.stdin.buffer)
        while block := stdin.read1(BLOCK_BYTES):  # what is there now: answers need not wait for more
            yield block
        yield b""
        return
    with _reading(path), path.open("rb") as disk:
        if not disk.seekable():
            raise NcelmError(f"{path} is a pipe, and a text is read more than once: save it to a file first")
        disk.seek(start)
        file: IO[bytes] = gzip.GzipFile(fileobj=disk) if path.suffix == ".gz" else disk  # type: ignore[assignment]
        left = float("inf") if stop is None else stop - start
        reached = start
        while block := file.read(int(min(BLOCK_BYTES, left))):
            left -= len(block)
            if on_bytes:
                on_bytes(disk.tell() - reached)
                reached = disk.tell()
            yield block
        yield b""


def _next_cut(file: IO[bytes], position: int, pattern: bytes) -> int | None:
    """Return where the first `pattern` at or after `position` ends, or None."""
    tail = b""
    file.seek(position)
    while block := file.read(BLOCK_BYTES):
        joined = tail + block
        if found := re.search(pattern, joined):
            return file.tell() - len(joined) + found.end()
        tail = block[-2:]  # the pattern may lie across two blocks
    return None


def _has_too_many_words(line: str) -> bool:
    return any(count >= MAX_SENTENCE_WORDS for count, _ in enumerate(re.finditer(r"\S+", line)))


def _line(path: Path, start: int, number: int) -> str:
    """Name for the user, who counts from the top of the file, the line `number` counted from byte `start`."""
    if start == 0:
        return f"line {number:,}"
    with _reading(path), path.open("rb") as file:
        while start > 0 and (block := file.read(min(BLOCK_BYTES, start))):
            start -= len(block)
            number += block.count(b"\n")
    return f"line {number:,}"


def _endless(path: Path, line: str, limit: str) -> NcelmError:
    return NcelmError(f"{path}, {line}, has more than {limit}: split it into sentences, one a line")


def _binary(path: Path) -> NcelmError:
    return NcelmError(f"{path} looks like a binary file (it has NUL bytes): give plain text, best in UTF-8")


def _undecodable(path: Path, encoding: str, start: int, lines: int, error: UnicodeDecodeError) -> NcelmError:
    good = error.object[: error.start].decode(encoding, "replace")
    number = lines + 1 + len(re.findall("\r\n?|\n", good))
    byte = f"byte 0x{error.object[error.start]:02x} at {_line(path, start, number)}"
    if _codec(encoding) == "utf-8":
        return NcelmError(f"{path} is not UTF-8 ({byte}): convert it or pass --encoding latin-1")
    return NcelmError(f"{path} is not {encoding} ({byte}): convert it or pass the right --encoding")
