"""Files out of archives, works of Project Gutenberg out of their wrappings: plain files, for `tokenising` to read."""

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from lzma import LZMAError
from pathlib import Path
from typing import IO, cast

from ncelm.errors import NcelmError
from ncelm.io.files import atomic_write, read_bytes, write_errors
from ncelm.text.gutenberg import strip

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")
MOST_BYTES = 1 << 30  # of one file in an archive: more is no text of anybody's, but a trap
MOST_WORK_BYTES = 100 << 20  # of one work of Project Gutenberg, which is read whole
REPORT = "works.tsv"
_BLOCK = 1 << 20

OnBytes = Callable[[int, int], None]  # hears how many bytes of how many have been read


@dataclass(frozen=True)
class WorkReport:
    """What was done to one file, for a person to check."""

    file: str
    encoding: str
    characters: int  # kept
    header_lines: int  # taken off
    footer_lines: int
    header_mark: str  # the line by which the header was known; empty if none was found
    footer_mark: str
    first_line: str  # of what was kept
    last_line: str
    skipped: str = ""  # why the file was left out


def is_archive(path: Path) -> bool:
    """Does its name say so?"""
    return path.name.lower().endswith(ARCHIVES)


def unpack(
    paths: list[Path],
    out: Path,
    *,
    gutenberg: bool,
    encoding: str,
    skip_broken: bool,
    progress: OnBytes | None = None,
) -> tuple[list[Path], list[WorkReport]]:
    """Write every file, and every file of every archive, to the folder `out`; return them in the order of their names.

    With `gutenberg` they are stripped and become UTF-8, and each has its report; otherwise they are as they were.
    """
    total, before = sum(path.stat().st_size for path in paths), 0
    found: dict[str, Path] = {}
    reports = []
    for path in paths:
        with _reading(path), path.open("rb") as raw:
            for name, file in _files_of(path, raw):
                target = out / f"{len(found)}{'.txt' if gutenberg else Path(name).suffix}"  # .gz is unpacked later
                if gutenberg:
                    reports.append(_unwrap(name, file, target, encoding, skip_broken))
                else:
                    _copy(file, target)
                if target.exists():
                    found[name] = target
                if progress:
                    progress(before + raw.tell(), total)
        before += path.stat().st_size
    if not found:
        raise NcelmError(f"there are no texts in {', '.join(map(str, paths[:3]))}: give files, folders or tar archives")
    return [found[name] for name in sorted(found)], sorted(reports, key=lambda report: report.file)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what can go wrong while reading `path` into one clear line."""
    try:
        yield
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, LZMAError, zlib.error) as error:
        what = "no tar archive" if is_archive(path) else "not packed by gzip"
        raise NcelmError(f"{path} is damaged or {what} ({error}): copy it again") from error
    except OSError as error:
        raise NcelmError(f"cannot read {path}: {error.strerror or error}") from error


def _files_of(path: Path, raw: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """A file itself, or the files of an archive: name and content."""
    if is_archive(path):
        with tarfile.open(fileobj=raw) as archive:
            yield from _members(path, archive)
    else:
        yield str(path), cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw


def _members(path: Path, archive: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    """The files of an archive that are not hidden, as they come: nothing is extracted by its own name."""
    for member in archive:
        hidden = any(part.startswith((".", "__MACOSX")) for part in Path(member.name).parts)
        if hidden or not member.isfile():
            continue
        if member.size > MOST_BYTES:
            raise NcelmError(f"{path}: {member.name!r} has {member.size:,} bytes: that is no text")
        content = archive.extractfile(member)
        assert content is not None
        yield f"{path.name}/{member.name}", content


def _copy(file: IO[bytes], target: Path) -> None:
    while block := file.read(_BLOCK):
        with write_errors(target), target.open("ab") as out:
            out.write(block)


def _unwrap(name: str, file: IO[bytes], target: Path, encoding: str, skip_broken: bool) -> WorkReport:
    """Strip one work of Project Gutenberg and write it as UTF-8."""
    content = file.read(MOST_WORK_BYTES + 1)
    fault = _fault(content)
    text = ""
    if not fault:
        text, encoding = _decode(content, encoding)
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        text = text.replace("\x1a", "\n")  # DOS's end of file, where files were put together
    work = strip(text)
    if not fault and not work.text.strip():
        fault = "nothing is left when header and footer are taken off"
    if fault and not skip_broken:
        raise NcelmError(f"{name}: {fault}: take it away, or pass --skip-broken")
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
    """What is wrong with a file, if anything."""
    if not content.strip():
        return "the file is empty"
    if len(content) > MOST_WORK_BYTES:
        return f"the file is larger than {MOST_WORK_BYTES >> 20} MB, which no work is"
    if b"\0" in content:
        return "the file is binary (it has NUL bytes)"
    return ""


def _decode(content: bytes, encoding: str) -> tuple[str, str]:
    """By the encoding, and where it does not fit, by latin-1, in which the old files are; and which it was."""
    try:
        return content.decode(encoding), encoding
    except UnicodeDecodeError:
        return content.decode("latin-1"), "latin-1"


# -- the report --------------------------------------------------------------------------------------------------------


def write_report(path: Path, reports: list[WorkReport]) -> None:
    """Write a line for each work, with tabs between fields; the first line names them."""
    rows = [[field.name for field in fields(WorkReport)], *(map(str, astuple(report)) for report in reports)]
    with atomic_write(path) as file:
        file.write("".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows).encode())


def summary(store: Path) -> dict[str, int]:
    """How many works a store was made from, and how many of them had no header, no footer, or were skipped."""
    lines = read_bytes(store / REPORT).decode().splitlines()
    names = lines[0].split("\t")
    rows = [dict(zip(names, line.split("\t"), strict=False)) for line in lines[1:]]
    kept = [row for row in rows if not row.get("skipped")]
    return {
        "works": len(kept),
        "without_header": sum(not row.get("header_mark") for row in kept),
        "without_footer": sum(not row.get("footer_mark") for row in kept),
        "skipped": len(rows) - len(kept),
    }
