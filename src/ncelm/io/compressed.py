"""Decompression with a limit: a small file must not turn into terabytes."""

import gzip
import io
from pathlib import Path
from typing import IO, cast

from ncelm.errors import NcelmError

MAX_RATIO = 250  # decompressed to compressed bytes; text has 3 to 20
FREE_BYTES = 1 << 30  # decompressed bytes to which the limit does not apply


class ExpansionLimit:
    """Counts decompressed bytes, and refuses a file that expands more than any text does."""

    def __init__(self, path: Path | str, compressed: int) -> None:
        self._path, self._limit, self._bytes = path, FREE_BYTES + MAX_RATIO * compressed, 0

    def add(self, count: int) -> None:
        """Count bytes; raise `NcelmError` if there are too many."""
        self._bytes += count
        if self._bytes > self._limit:
            raise NcelmError(
                f"{self._path} expands to more than {MAX_RATIO} times its size and is not a text: decompress it "
                "first if it is one"
            )


class _LimitedReader(io.RawIOBase):
    """A gzip file that counts what it returns."""

    def __init__(self, file: gzip.GzipFile, limit: ExpansionLimit) -> None:
        self._file, self._expansion = file, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._file.readinto(buffer)
        self._expansion.add(count)
        return count


def open_gzip(raw: IO[bytes], path: Path | str, compressed: int) -> IO[bytes]:
    """Return the decompressed content of an open gzip file of `compressed` bytes, which has the name `path`."""
    reader = _LimitedReader(gzip.GzipFile(fileobj=raw), ExpansionLimit(path, compressed))
    return cast(IO[bytes], io.BufferedReader(reader, 1 << 20))
