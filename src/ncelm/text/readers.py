"""Text files as streams of lines or paragraphs.

`read_lines` reads text with one sentence per line, `read_prose` text whose paragraphs end at blank lines. Memory is
bounded for files of any size and content.
"""

import codecs
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from ncelm.errors import NcelmError
from ncelm.io.compressed import SUFFIXES, open_compressed
from ncelm.io.files import open_regular
from ncelm.text.sentences import BLANK_LINE

MAX_SENTENCE_WORDS = 1_000_000
MAX_LINE_CHARACTERS = 16_000_000  # 64 MB: a str takes up to 4 bytes per character
BLOCK_BYTES = 1 << 20
SPLIT = "split it into sentences, one per line"
STANDARD_INPUT = Path("-")
MAX_PARAGRAPH_CHARACTERS = 4 << 20

# Encodings in which the bytes 10 and 13 are always line ends, so that a file can be cut there without decoding.
_CUTTABLE = re.compile(r"utf-8|ascii|iso8859-\d+|cp125\d|koi8-[a-z]")

OnBytes = Callable[[int], None]  # called with the number of bytes that were just read from disk


# -- reading ---------------------------------------------------------------------------------------------------------


def read_lines(path: Path | str, encoding: str = "utf-8", **options: Any) -> Iterator[str]:
    """Yield lines one by one. The arguments are those of `read_line_blocks`."""
    for lines in read_line_blocks(path, encoding, **options):
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
    r"""Yield lists of lines of a text file, without line ends.

    Lines end at \n, \r\n or \r only. A byte order mark is skipped. Files `.gz`, `.xz` and `.zst` are decompressed.
    The path "-" is standard input, of which lines are yielded as soon as they can be read.

    Args:
        path: the file.
        encoding: of the file.
        start: the offset of the first byte to read (see `byte_ranges`).
        stop: the offset after the last byte to read; None for the end of the file.
        on_bytes: called with the number of bytes of each read from disk.
        keep_blank: yield blank lines too.
    """
    path = Path(path)
    for first, lines in line_blocks(path, encoding, start, stop, on_bytes, MAX_LINE_CHARACTERS):
        block = []
        for number, line in enumerate(lines, first):
            if has_too_many_words(line):
                raise _line_too_long(path, line_name(path, start, number), f"{MAX_SENTENCE_WORDS:,} words")
            if keep_blank or not (line.isspace() or line == ""):
                block.append(line)
        if block:
            yield block


def line_blocks(
    path: Path,
    encoding: str,
    start: int,
    stop: int | None,
    on_bytes: OnBytes | None,
    max_characters: int,
    remedy: str = SPLIT,
) -> Iterator[tuple[int, list[str]]]:
    """Yield lists of all lines of a text file, and the number of the first line of each, counted from 1 at `start`.

    A line of more than `max_characters` is an error, with this remedy.
    """
    first = 1
    rest = ""
    for text in decoded(path, encoding, start, stop, on_bytes):
        lines = (rest + text).split("\n")
        rest = lines.pop()
        if lines:
            yield first, lines
        first += len(lines)
        if len(rest) > max_characters:
            raise _line_too_long(path, line_name(path, start, first), f"{max_characters:,} characters", remedy)
    if rest:
        yield first, [rest]


def read_prose(
    path: Path | str,
    encoding: str = "utf-8",
    *,
    start: int = 0,
    stop: int | None = None,
    on_bytes: OnBytes | None = None,
) -> Iterator[str]:
    """Yield the text of a prose file in chunks of about 1 MB that end with a paragraph.

    A paragraph of more than 4 million characters, as in a file without blank lines, is cut at white space, which may be
    inside a sentence. The arguments are those of `read_line_blocks`.
    """
    yield from prose_chunks(decoded(Path(path), encoding, start, stop, on_bytes))


def prose_chunks(texts: Iterable[str]) -> Iterator[str]:
    """Yield consecutive pieces of a text in chunks that end with a paragraph; see `read_prose`."""
    rest = ""
    for text in texts:
        rest += text.replace("\x1a", " ")  # Ctrl-Z, the end-of-file character of DOS
        cut = max((blank.end() for blank in BLANK_LINE.finditer(rest)), default=0)
        if not cut and len(rest) > MAX_PARAGRAPH_CHARACTERS:
            cut = max(rest.rfind("\n"), rest.rfind(" ")) + 1 or len(rest)
        if cut:
            yield rest[:cut]
            rest = rest[cut:]
    if rest and not rest.isspace():
        yield rest


def byte_ranges(path: Path | str, encoding: str, size: int, *, at_blank_lines: bool) -> list[tuple[int, int | None]]:
    """Return ranges (start, stop) of about `size` bytes that cover a file and can be read independently.

    Ranges end at line ends, or at blank lines for prose. A compressed file, or one in an encoding whose line ends are
    not single bytes, is one range. The stop of the last range is None, the end of the file.
    """
    path = Path(path)
    total = file_size(path)
    if total <= size or path.suffix in SUFFIXES or not _CUTTABLE.fullmatch(_codec(encoding)):
        return [(0, None)]
    cuts = [0]
    with reading(path), open_regular(path) as file:
        while total - cuts[-1] > size:
            cut = _next_cut(file, cuts[-1] + size, rb"\n\r?\n" if at_blank_lines else rb"\n")
            if cut is None or cut >= total:
                break
            cuts.append(cut)
    return list(zip(cuts, [*cuts[1:], None], strict=True))


def shard_range(path: Path | str, encoding: str, number: int, shards: int) -> tuple[int, int | None]:
    """Return (start, stop) of shard `number` of `shards` of a file of lines; all shards together are the file.

    Shards are numbered from 1. Shards of a small file may be empty (start equals stop).
    """
    if str(path) == "-" or Path(path).suffix in SUFFIXES or not _CUTTABLE.fullmatch(_codec(encoding)):
        raise NcelmError(f"{path} cannot be read in shards: give an uncompressed file in UTF-8 or a similar encoding")
    ranges = byte_ranges(path, encoding, max(-(-file_size(Path(path)) // shards), 1), at_blank_lines=False)
    return ranges[number - 1] if number <= len(ranges) else (0, 0)


def file_size(path: Path) -> int:
    """Return the size of a file in bytes; raise an error if it is not a file."""
    with reading(path), open_regular(path) as file:
        return os.fstat(file.fileno()).st_size


def files_below(paths: Iterable[Path]) -> list[Path]:
    """Return the files among `paths` and, sorted, all files below the folders that are not hidden."""

    def fail(error: OSError) -> None:
        raise NcelmError(f"cannot read the folder {error.filename}: {error.strerror}")

    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        below: list[Path] = []
        for folder, folders, names in os.walk(path, onerror=fail):
            folders[:] = [name for name in folders if not name.startswith(".")]
            below += [Path(folder, name) for name in names if not name.startswith(".")]
        if not below:
            raise NcelmError(f"there are no files in the folder {path}")
        found += sorted(below)
    return found


def check_encoding(encoding: str) -> None:
    """Raise an error if Python does not know an encoding."""
    _codec(encoding)


def _codec(encoding: str) -> str:
    """Return Python's name for an encoding."""
    try:
        "".encode(encoding)  # raises LookupError for codecs that are not for text, such as "hex"
        b"\xff".decode(encoding, "replace")  # raises UnicodeError for codecs of host names, such as "idna"
        return codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise NcelmError(f"there is no text encoding {encoding!r}: try utf-8, latin-1, cp1252 or utf-16") from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn exceptions raised while reading `path` into an `NcelmError` of one line."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise NcelmError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise NcelmError(f"{path} is a folder, not a text file") from None
    except EOFError:
        raise NcelmError(f"{path} is truncated (the compressed data ends early): copy it again") from None
    except lzma.LZMAError:
        raise NcelmError(f"{path} is not an xz file, or is damaged: copy it again") from None
    except (gzip.BadGzipFile, zlib.error):
        raise NcelmError(f"{path} is not a gzip file, or is damaged: copy it again") from None
    except OSError as error:
        raise NcelmError(f"cannot read {path}: {error.strerror or error}") from error


def decoded(path: Path, encoding: str, start: int, stop: int | None, on_bytes: OnBytes | None) -> Iterator[str]:
    r"""Yield the text of a file in blocks, in which all line ends are \n."""
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
        except UnicodeError as error:  # raised by some encodings
            raise NcelmError(f"{path} is not {encoding} ({error}): pass the right `encoding`") from None
        if "\0" in text:
            raise _binary(path)
        lines += text.count("\n")
        if text:
            yield text.removeprefix("\ufeff") if first else text
            first = False


def _blocks(path: Path, start: int, stop: int | None, on_bytes: OnBytes | None) -> Iterator[bytes]:
    """Yield the bytes of a file in blocks, and an empty block at the end."""
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise NcelmError("standard input is closed: give a file, or text through a pipe")
        stdin = cast(io.BufferedReader, sys.stdin.buffer)
        while block := stdin.read1(BLOCK_BYTES):  # does not wait for a full block
            yield block
        yield b""
        return
    with reading(path), open_regular(path) as disk:
        disk.seek(start)
        size = os.fstat(disk.fileno()).st_size
        file = open_compressed(disk, path, size)
        left = float("inf") if stop is None else stop - start
        position = start
        while block := file.read(int(min(BLOCK_BYTES, left))):
            left -= len(block)
            if on_bytes:
                on_bytes(disk.tell() - position)
                position = disk.tell()
            yield block
        yield b""


def _next_cut(file: IO[bytes], position: int, pattern: bytes) -> int | None:
    """Return the end of the first match of `pattern` at or after `position`, or None."""
    tail = b""
    file.seek(position)
    while block := file.read(BLOCK_BYTES):
        joined = tail + block
        if found := re.search(pattern, joined):
            return file.tell() - len(joined) + found.end()
        tail = block[-2:]  # a match may begin in one block and end in the next
    return None


def has_too_many_words(line: str) -> bool:
    """Return whether a line has more than `MAX_SENTENCE_WORDS` words."""
    # A word takes at least one character and one blank: the words of short lines need not be counted.
    return len(line) >= 2 * MAX_SENTENCE_WORDS and any(
        count >= MAX_SENTENCE_WORDS for count, _ in enumerate(re.finditer(r"\S+", line))
    )


def line_name(path: Path, start: int, number: int) -> str:
    """Return the name of line `number` after byte `start`, counted from the beginning of the file."""
    if start == 0:
        return f"line {number:,}"
    with reading(path), open_regular(path) as file:
        while start > 0 and (block := file.read(min(BLOCK_BYTES, start))):
            start -= len(block)
            number += block.count(b"\n")
    return f"line {number:,}"


def _line_too_long(path: Path, line: str, limit: str, remedy: str = SPLIT) -> NcelmError:
    return NcelmError(f"{path}, {line}, has more than {limit}: {remedy}")


def _binary(path: Path) -> NcelmError:
    return NcelmError(f"{path} looks like a binary file (it has NUL bytes): give plain text")


def _undecodable(path: Path, encoding: str, start: int, lines: int, error: UnicodeDecodeError) -> NcelmError:
    try:
        good = error.object[: error.start].decode(encoding, "replace")
    except UnicodeError:  # an encoding that cannot replace characters, such as idna
        good = error.object[: error.start].decode("latin-1")
    number = lines + 1 + len(re.findall("\r\n?|\n", good))
    byte = f"byte 0x{error.object[error.start]:02x} at {line_name(path, start, number)}"
    if _codec(encoding) == "utf-8":
        return NcelmError(f"{path} is not UTF-8 ({byte}): convert it or pass `encoding` latin-1")
    return NcelmError(f"{path} is not {encoding} ({byte}): convert it or pass the right `encoding`")
