"""Files and folders that are written whole or not at all, and JSON that is read with suspicion."""

import errno
import fcntl
import glob
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ncelm.errors import NcelmError

_PARTIAL = re.compile(r"^\.(.+)\.\d+\.partial$")


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals while writing `path` into one clear line."""
    path = Path(*(_PARTIAL.sub(r"\1", part) for part in path.parts))  # the name it was to have
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NcelmError(
                f"no space left on the disk while writing {path}: nothing was changed there; "
                "free some space and run the same command again"
            ) from error
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise NcelmError(f"cannot write {path}: {reason}") from error


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open `path` for writing so that it appears complete or keeps its former content.

    The bytes go to a temporary name beside it, reach the disk, and are then renamed.
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
    """Yield a temporary folder that becomes `path` when the block ends well, and vanishes when it does not.

    A `path` that exists already is refused before any work is done.
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
    """Remove what killed processes left when they were making `path`."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        number = partial.name.removesuffix(".partial").rpartition(".")[2]
        if not number.isdigit():
            continue
        try:
            if int(number) != os.getpid():
                os.kill(int(number), 0)  # asks only whether there is such a process
                continue
        except (ProcessLookupError, OverflowError):
            pass
        except PermissionError:
            continue  # somebody else's, and alive
        shutil.rmtree(partial, ignore_errors=True)


def check_not_existing(path: Path) -> None:
    """Raise if there is something at `path` already: ncelm never overwrites a user's folder."""
    if path.exists() or path.is_symlink():
        raise NcelmError(f"{path} exists already: choose another name or remove it first")


@contextmanager
def exclusive_lock(path: Path, otherwise: str) -> Iterator[None]:
    """Hold a lock on the file `path`; if another process has it, raise an error that says `otherwise`."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NcelmError(otherwise) from None
        except OSError:
            pass  # a file system without locks
        yield


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` as indented JSON, whole or not at all."""
    with atomic_write(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path, what: str, kind: str, newest_version: int) -> dict[str, Any]:
    """Read the JSON description of one of our folders and check that we can understand it.

    `what` names the folder for the user ("token store"); `kind` is the value the field "format" must have;
    a "version" above `newest_version` was written by a newer ncelm.
    """
    folder = path.parent
    if not folder.exists():
        raise NcelmError(f"there is no {what} at {folder}")
    try:
        content = json.loads(read_bytes(path, lambda: f"{folder} is not a {what}: it has no {path.name}"))
    except (ValueError, RecursionError) as error:
        raise NcelmError(f"{path} is damaged (not JSON): make the {what} anew") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise NcelmError(f"{folder} is not a {what}: {path.name} does not say that it is one")
    version = content.get("version")
    if not isinstance(version, int) or version < 1:
        raise NcelmError(f"{path} is damaged (no version): make the {what} anew")
    if version > newest_version:
        raise NcelmError(
            f"{folder} was written by a newer ncelm ({what} version {version}; this ncelm reads up to "
            f"{newest_version}): upgrade ncelm"
        )
    return content


def read_bytes(path: Path, missing: Callable[[], str] | None = None) -> bytes:
    """Read a file, turning the operating system's refusals into one clear line."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NcelmError(missing() if missing else f"there is no file {path}") from None
    except OSError as error:
        raise NcelmError(f"cannot read {path}: {os.strerror(error.errno or 0)}") from error
