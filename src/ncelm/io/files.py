"""Atomic files and folders, locks, and validated JSON files."""

import errno
import glob
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ncelm.errors import NcelmError

_PARTIAL = re.compile(r"^\.(.+)\.\d+\.partial$")  # temporary names: .NAME.PID.partial


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` raised while writing `path` into an `NcelmError` of one line."""
    path = Path(*(_PARTIAL.sub(r"\1", part) for part in path.parts))  # name the final path, not the temporary one
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
            raise NcelmError(
                f"no space left on the disk while writing {path}: nothing was changed there; "
                "free some space and run the same command again"
            ) from error
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise NcelmError(f"cannot write {path}: {reason}") from error


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open `path` for writing. If the block fails, the file keeps its previous content.

    The bytes are written to a temporary file in the same folder, flushed to disk, and then renamed.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with write_errors(path):
        try:
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `path` when the block succeeds, and removed when it fails.

    Raises an error at once if `path` exists.
    """
    check_not_existing(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        partial.mkdir()
        try:
            yield partial
            check_not_existing(path)
            partial.rename(path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _remove_abandoned(path: Path) -> None:
    """Remove temporary folders of `path` whose process has ended."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        pid = partial.name.removesuffix(".partial").rpartition(".")[2]
        if pid.isdigit() and (int(pid) == os.getpid() or not _is_running(int(pid))):
            shutil.rmtree(partial, ignore_errors=True)


def _is_running(pid: int) -> bool:
    import psutil

    try:
        return psutil.pid_exists(pid)
    except OverflowError:
        return False


def check_not_existing(path: Path) -> None:
    """Raise an error if `path` exists: ncelm never overwrites a folder."""
    if path.exists() or path.is_symlink():
        raise NcelmError(f"{path} exists already: choose another name or remove it first")


@contextmanager
def exclusive_lock(path: Path, message: str) -> Iterator[None]:
    """Hold an exclusive lock on the lock file `path`; raise an error with `message` if another process holds it.

    The operating system releases the lock when the process ends, so that the lock file of a killed process does not
    block the next one. On a file system without locks the block runs unlocked.
    """
    from filelock import FileLock, Timeout

    # Without flock, filelock would test for the existence of the file instead, and print a warning.
    lock = FileLock(path, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise NcelmError(message) from None
    except OSError:
        pass
    try:
        yield
    finally:
        # Removed while it is locked: a process that has just opened it notices, and creates another one.
        with suppress(OSError):
            path.unlink(missing_ok=True)
        lock.release()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` as indented JSON, atomically."""
    with atomic_write(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path, what: str, kind: str, newest_version: int) -> dict[str, Any]:
    """Return the content of the JSON file that describes a folder written by ncelm.

    Args:
        path: the file.
        what: the name of the folder in error messages, such as "token store".
        kind: the required value of the field "format".
        newest_version: the highest value of the field "version" that the caller can read.
    """
    folder = path.parent
    if not folder.exists():
        raise NcelmError(f"there is no {what} at {folder}")
    try:
        content = json.loads(read_bytes(path, lambda: f"{folder} is not a {what}: it has no {path.name}"))
    except (ValueError, RecursionError) as error:
        raise NcelmError(f"{path} is damaged (not JSON): create the {what} again") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise NcelmError(f"{folder} is not a {what}: the format in {path.name} is not {kind!r}")
    version = content.get("version")
    if not isinstance(version, int) or version < 1:
        raise NcelmError(f"{path} is damaged (no version): create the {what} again")
    if version > newest_version:
        raise NcelmError(
            f"{folder} was written by a newer ncelm ({what} version {version}; this ncelm reads up to "
            f"{newest_version}): upgrade ncelm"
        )
    return content


def read_bytes(path: Path, missing: Callable[[], str] | None = None) -> bytes:
    """Return the content of a file. `missing` returns the error message for a file that does not exist."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NcelmError(missing() if missing else f"there is no file {path}") from None
    except OSError as error:
        raise NcelmError(f"cannot read {path}: {error.strerror or error}") from error
