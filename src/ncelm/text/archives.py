"""Extraction of texts from tar archives, and of works from Project Gutenberg files."""

import gzip
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from lzma import LZMAError
from pathlib import Path
from typing import IO

from ncelm.errors import NcelmError
from ncelm.io.compressed import ExpansionLimit, open_compressed
from ncelm.io.files import atomic_write, open_regular, read_bytes, write_errors
from ncelm.text.gutenberg import strip_boilerplate
from ncelm.text.tables import table_suffix

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")
MAX_MEMBER_BYTES = 1 << 30  # of one file in an archive; a larger one is not a text but an attack
MAX_WORK_BYTES = 100 << 20  # of one Project Gutenberg file, which is held in memory
REPORT = "works.tsv"
_BLOCK_BYTES = 1 << 20

Progress = Callable[[int, int], None]  # called with the number of bytes read so far, and of all bytes


@dataclass(frozen=True)
class WorkReport:
    """One line of the report: what was removed from a Project Gutenberg file."""

    file: str
    encoding: str
    characters: int  # kept
    header_lines: int  # removed
    footer_lines: int
    header_mark: str  # the last line of the header; empty if no header was found
    footer_mark: str  # the first line of the footer
    first_line: str  # of the work
    last_line: str
    skipped: str = ""  # the reason if the file was skipped


def is_archive(path: Path) -> bool:
    """Return whether the name of a file is that of a tar archive."""
    return path.name.lower().endswith(ARCHIVES)


@dataclass(frozen=True)
class Extracted:
    """A copy of a text."""

    name: str  # of the file, or of the archive and the file in it
    path: Path  # of the copy


def extract_texts(
    paths: list[Path],
    out: Path,
    *,
    gutenberg: bool,
    encoding: str,
    skip_broken: bool,
    progress: Progress | None = None,
) -> tuple[list[Extracted], list[WorkReport]]:
    """Copy all files, and all files in archives, to a folder; return the copies, sorted by name, and the reports.

    Args:
        paths: files and tar archives.
        out: the folder.
        gutenberg: remove headers and footers, convert to UTF-8, and report on each file.
        encoding: with `gutenberg`, the encoding of the files; those that cannot be decoded are read as latin-1.
        skip_broken: with `gutenberg`, skip files that are empty or binary instead of raising an error.
        progress: called with the number of bytes read so far, and of all bytes.
    """
    total, done = sum(path.stat().st_size for path in paths), 0
    found: list[Extracted] = []
    reports = []
    for path, shown in zip(paths, _distinct_names(paths), strict=True):
        with _reading(path), open_regular(path) as raw:
            for name, file in _files_of(path, shown, raw):
                target = out / f"{len(found)}{'.txt' if gutenberg else table_suffix(name)}"
                with _reading_member(path, name):
                    if gutenberg:
                        reports.append(_strip(name, file, target, encoding, skip_broken))
                    else:
                        _copy(file, target)
                if target.exists():
                    found.append(Extracted(name, target))
                if progress:
                    progress(done + raw.tell(), total)
        done += path.stat().st_size
    if not found:
        raise NcelmError(f"there are no texts in {', '.join(map(str, paths[:3]))}: give files, folders or tar archives")
    return sorted(found, key=lambda each: each.name), sorted(reports, key=lambda report: report.file)


def _distinct_names(paths: list[Path]) -> list[str]:
    """Return a name for each path: its last component where that is unique, otherwise the whole path."""
    names = [path.name for path in paths]
    return [path.name if names.count(path.name) == 1 else str(path) for path in paths]


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn exceptions raised while reading `path` into an `NcelmError` of one line."""
    try:
        yield
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, LZMAError, zlib.error, ValueError, OverflowError) as error:
        # tarfile raises ValueError for numbers in its headers that are none
        what = "not a tar archive" if is_archive(path) else "not a gzip file"
        raise NcelmError(f"{path} is damaged or {what} ({error}): copy it again") from error
    except OSError as error:
        raise NcelmError(f"cannot read {path}: {error.strerror or error}") from error


@contextmanager
def _reading_member(path: Path, name: str) -> Iterator[None]:
    """Name the file in an archive, and not the archive, if it is a damaged gzip file."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        if not name.endswith(".gz") or not is_archive(path):
            raise
        raise NcelmError(f"{name} is damaged or not a gzip file ({error}): make the archive again") from error


def _files_of(path: Path, shown: str, raw: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name and the content of a file, or of each file in an archive, which has the name `shown`."""
    size = os.fstat(raw.fileno()).st_size
    if is_archive(path):
        limit = ExpansionLimit(path, size)
        with tarfile.open(fileobj=raw) as archive:
            for member, content in _members(path, archive):
                limit.add(member.size)
                name = f"{shown}/{member.name}"
                yield name, open_compressed(content, name, member.size)
    else:
        yield str(path), open_compressed(raw, path, size)


def _members(path: Path, archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Yield each file in an archive that is not hidden, and its content.

    The names are used in messages only, never as paths: an archive cannot write outside of the folder.
    """
    names: set[str] = set()
    for member in archive:
        hidden = any(part.startswith((".", "__MACOSX")) for part in Path(member.name).parts)
        if hidden or not member.isfile():
            continue
        if member.size > MAX_MEMBER_BYTES:
            raise NcelmError(
                f"{path}: {member.name!r} has {member.size:,} bytes, more than {MAX_MEMBER_BYTES:,}: it is not a text"
            )
        if member.name in names:  # an older version, if files were appended to the archive
            raise NcelmError(f"{path} has two files named {member.name!r}: unpack it and give the folder")
        names.add(member.name)
        content = archive.extractfile(member)
        assert content is not None
        yield member, content
    _check_end(path, archive)


def _check_end(path: Path, archive: tarfile.TarFile) -> None:
    """Raise `NcelmError` unless an archive ends with zeros: tarfile takes a damaged header for the end."""
    file = archive.fileobj
    assert file is not None
    file.seek(archive.offset)
    blocks = 0
    while block := file.read(_BLOCK_BYTES):
        if block.count(0) != len(block):
            raise NcelmError(f"{path} is damaged (there is data after the last readable file): copy it again")
        blocks += len(block) // tarfile.BLOCKSIZE
    if not blocks:
        raise NcelmError(f"{path} is truncated (the end of the archive is missing): copy it again")


def _copy(file: IO[bytes], target: Path) -> None:
    while block := file.read(_BLOCK_BYTES):
        with write_errors(target), target.open("ab") as out:
            out.write(block)


def _strip(name: str, file: IO[bytes], target: Path, encoding: str, skip_broken: bool) -> WorkReport:
    """Write one work to `target` in UTF-8, without header and footer, and return its report."""
    content = file.read(MAX_WORK_BYTES + 1)
    fault = _fault(content)
    text = ""
    if not fault:
        text, encoding = _decode(content, encoding)
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        text = text.replace("\x1a", "\n")  # the end-of-file character of DOS, where files were concatenated
    work = strip_boilerplate(text)
    if not fault and not work.text.strip():
        fault = "nothing is left after header and footer are removed"
    if fault and not skip_broken:
        raise NcelmError(f"{name}: {fault}: remove it, or pass `skip_broken`")
    lines = [line for line in (work.text[:2000].splitlines() or [""]) if line.strip()]
    last = [line for line in (work.text[-2000:].splitlines() or [""]) if line.strip()]
    if not fault:
        with write_errors(target):
            target.write_bytes(work.text.encode())
    return WorkReport(
        name,
        encoding,
        len(work.text),
        work.header_lines,
        work.footer_lines,
        work.header_mark,
        work.footer_mark,
        lines[0] if lines else "",
        last[-1] if last else "",
        fault,
    )


def _fault(content: bytes) -> str:
    """Return the reason why a file cannot be used; empty if it can."""
    if not content.strip():
        return "the file is empty"
    if len(content) > MAX_WORK_BYTES:
        return f"the file is larger than {MAX_WORK_BYTES >> 20} MB"
    if b"\0" in content:
        return "the file is binary (it has NUL bytes)"
    return ""


def _decode(content: bytes, encoding: str) -> tuple[str, str]:
    """Return the text and its encoding: `encoding`, or latin-1 if the content cannot be decoded by it."""
    try:
        return content.decode(encoding), encoding
    except UnicodeDecodeError:
        return content.decode("latin-1"), "latin-1"


# -- the report --------------------------------------------------------------------------------------------------------


def write_report(path: Path, reports: list[WorkReport]) -> None:
    """Write tab-separated values: one line per work, after a line with the names of the fields."""
    rows = [[field.name for field in fields(WorkReport)], *(map(str, astuple(report)) for report in reports)]
    text = "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
    with atomic_write(path) as file:
        file.write(text.encode(errors="backslashreplace"))  # the name of a file may not be valid Unicode


def summary(store: Path) -> dict[str, int]:
    """Return the number of works in a store, of those without header or footer, and of those skipped."""
    lines = read_bytes(store / REPORT).decode(errors="replace").splitlines() or [""]
    names = lines[0].split("\t")
    rows = [dict(zip(names, line.split("\t"), strict=False)) for line in lines[1:]]
    kept = [row for row in rows if not row.get("skipped")]
    return {
        "works": len(kept),
        "without_header": sum(not row.get("header_mark") for row in kept),
        "without_footer": sum(not row.get("footer_mark") for row in kept),
        "skipped": len(rows) - len(kept),
    }
