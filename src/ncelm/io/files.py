"""Atomic files and folders, locks, and validated JSON files."""

import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ncelm.errors import NcelmError

MAX_NUMBER = 1e30  # in JSON documents; no loss, time or perplexity is larger
# Temporary names: .NAME.TOKEN.ncelm-partial. The token is random: process ids repeat in containers that share a folder.
_PARTIAL = re.compile(r"^\.(.+)\.[0-9a-f]{16}\.ncelm-partial$")


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
    with write_errors(path):
        _remove_abandoned(path.parent)
        partial = _partial_name(path)
        with _temporary(partial, lambda: partial.touch(exist_ok=False)):
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
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path.parent)
        partial = _partial_name(path)
        with _temporary(partial, partial.mkdir):
            try:
                yield partial
                check_not_existing(path)
                partial.rename(path)
            finally:
                shutil.rmtree(partial, ignore_errors=True)


def _partial_name(path: Path) -> Path:
    """Return a new temporary name for `path`, in the same folder."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.ncelm-partial")


# A temporary file or folder has a shared lock (flock) while it is used. The operating system releases the lock when
# the process ends, however it ends. What can be locked exclusively was abandoned. So that a new one is not taken for
# abandoned, it is created under a shared lock of the folder, and others are removed under an exclusive one.


@contextmanager
def _temporary(partial: Path, create: Callable[[], object]) -> Iterator[None]:
    """Create a temporary file or folder, and lock it while the block runs."""
    with _locked(partial.parent, shared=True):
        create()
        descriptor = _lock(partial, shared=True)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    """Remove the temporary files and folders in `folder` that a killed process has left."""
    try:
        abandoned = [Path(entry.path) for entry in os.scandir(folder) if _PARTIAL.match(entry.name)]
    except OSError:
        return
    if not abandoned:
        return
    with _locked(folder) as is_locked:
        for partial in abandoned if is_locked else []:
            with _locked(partial) as is_free:
                if is_free and partial.is_dir() and not partial.is_symlink():
                    shutil.rmtree(partial, ignore_errors=True)
                elif is_free:
                    with suppress(OSError):
                        partial.unlink()


@contextmanager
def _locked(path: Path, shared: bool = False) -> Iterator[bool]:
    """Lock a file or folder while the block runs, if it can be locked; yield whether it is."""
    descriptor = _lock(path, shared)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(path: Path, shared: bool = False) -> int | None:
    """Return a descriptor with a lock on a file or folder; None if it is locked by others or cannot be locked.

    A shared lock waits for exclusive ones to be released.
    """
    try:
        import fcntl
    except ImportError:  # Windows: a killed process leaves its temporary files
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked, or a file system without locks
        os.close(descriptor)
        return None
    return descriptor


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


def is_locked(path: Path) -> bool:
    """Return whether another process holds the lock file `path`. False where locks are not supported."""
    if not path.exists():
        return False
    try:
        import fcntl

        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False


# -- JSON ------------------------------------------------------------------------------------------------------------


def parse_json(content: bytes | str) -> Any:
    """Return the value of a JSON document from a file, which is not trusted. Raise ValueError for any problem."""
    try:
        return json.loads(content, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("the document is nested too deeply") from None


def is_finite_number(value: object) -> bool:
    """Return whether a value from a JSON document is a number that can be used: it is finite, and so are sums of it.

    (An int may be 10**400, which no float can hold.)
    """
    return type(value) in (int, float) and abs(value) <= MAX_NUMBER  # type: ignore[arg-type]


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` as indented JSON with a checksum, atomically."""
    with atomic_write(path) as file:
        file.write((json.dumps({**content, "checksum": json_checksum(content)}, indent=2) + "\n").encode())


def json_checksum(content: dict[str, Any]) -> str:
    """Return the SHA-256 digest of the content of a JSON file, without its field "checksum"."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_json(path: Path, what: str, kind: str, newest_version: int, checksum_since: int = 1) -> dict[str, Any]:
    """Return the content of the JSON file that describes a folder written by ncelm, without its checksum.

    Args:
        path: the file.
        what: the name of the folder in error messages, such as "token store".
        kind: the required value of the field "format".
        newest_version: the highest value of the field "version" that the caller can read.
        checksum_since: the first version whose files have a checksum.
    """
    folder = path.parent
    if not folder.exists():
        raise NcelmError(f"there is no {what} at {folder}")
    try:
        content = parse_json(read_bytes(path, lambda: f"{folder} is not a {what}: it has no {path.name}"))
    except ValueError as error:
        raise NcelmError(f"{path} is damaged (not JSON): create the {what} again") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise NcelmError(f"{folder} is not a {what}: the format in {path.name} is not {kind!r}")
    version = content.get("version")
    if type(version) is not int or version < 1:
        raise NcelmError(f"{path} is damaged (no version): create the {what} again")
    if version > newest_version:
        raise NcelmError(
            f"{folder} was written by a newer ncelm ({what} version {version}; this ncelm reads up to "
            f"{newest_version}): upgrade ncelm"
        )
    if (version >= checksum_since or "checksum" in content) and content.get("checksum") != json_checksum(content):
        raise NcelmError(
            f"{path} is damaged or was edited (its checksum is wrong): restore it from a copy, or create the {what} "
            "again"
        )
    content.pop("checksum", None)
    return content


# -- reading ---------------------------------------------------------------------------------------------------------


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading. Raise `NcelmError` for a pipe or a device, which may block or never end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise NcelmError(f"{path} is a pipe or a device, not a file: save its content to a file first")


def file_digest(path: Path) -> str:
    """Return the SHA-256 digest of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bytes(path: Path, missing: Callable[[], str] | None = None) -> bytes:
    """Return the content of a file. `missing` returns the error message for a file that does not exist."""
    try:
        with open_regular(path) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise NcelmError(missing() if missing else f"there is no file {path}") from None
    except OSError as error:
        raise NcelmError(f"cannot read {path}: {error.strerror or error}") from error
