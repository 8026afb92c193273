"""Decompression with a limit: a small file must not turn into terabytes."""

import gzip
import io
import lzma
from pathlib import Path
from typing import IO, Any, cast

from ncelm.errors import MissingExtraError, NcelmError

SUFFIXES = (".gz", ".xz", ".zst")
MAX_RATIO = 250  # decompressed to compressed bytes; text has 3 to 20
FREE_BYTES = 1 << 30  # decompressed bytes to which the limit does not apply
# Compressed bytes that zstd decompresses at a time. A block of 4 bytes can become 128 KiB, so this is at most 32 MiB.
_ZSTD_BYTES = 1 << 10
_XZ_BYTES = 1 << 16
_XZ_MEMORY = 1 << 28  # of the decompressor; xz -9 needs 65 MiB


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
    """A decompressed file that counts what it returns."""

    def __init__(self, file: "gzip.GzipFile | _XzReader | _ZstdReader", limit: ExpansionLimit) -> None:
        self._file, self._expansion = file, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._file.readinto(buffer)
        self._expansion.add(count)
        return count


class _XzReader:
    """The decompressed content of an xz file, which may have several streams, in bounded memory."""

    def __init__(self, raw: IO[bytes], path: Path | str) -> None:
        self._raw, self._path = raw, path
        self._stream: lzma.LZMADecompressor | None = None  # that is not finished
        self._compressed = b""  # read, and not yet decompressed

    def readinto(self, buffer: memoryview) -> int:
        """Write decompressed bytes to `buffer` and return their number, 0 at the end of the file."""
        while True:
            needs = self._stream is None or self._stream.needs_input
            if needs and not self._compressed:
                self._compressed = self._raw.read(_XZ_BYTES)
                if not self._compressed.strip(b"\0") and self._stream is None:  # padding, or the end of the file
                    if not self._compressed:
                        return 0
                    self._compressed = b""
                    continue
                if not self._compressed:
                    raise EOFError
            if self._stream is None:
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
                self._compressed = self._compressed.lstrip(b"\0")
            content = self._stream.decompress(self._compressed, len(buffer))
            self._compressed = b""
            if self._stream.eof:
                self._compressed, self._stream = self._stream.unused_data.lstrip(b"\0"), None
            if content:
                buffer[: len(content)] = content
                return len(content)


class _ZstdReader:
    """The decompressed content of a zstd file, which may have several frames.

    `zstandard.ZstdDecompressor.stream_reader` takes a truncated file for a shorter one, so that it is not used.
    """

    def __init__(self, raw: IO[bytes], path: Path | str) -> None:
        try:
            import zstandard
        except ImportError:
            raise MissingExtraError(f"zstandard is needed to read {path}: pip install 'ncelm[zstd]'") from None
        self._raw, self._path, self._library = raw, path, zstandard
        self._frame: Any = None  # the decompressor of a frame that is not finished
        self._compressed = b""  # read, and not yet decompressed
        self._content = memoryview(b"")  # decompressed, and not yet returned

    def readinto(self, buffer: memoryview) -> int:
        """Write decompressed bytes to `buffer` and return their number, 0 at the end of the file."""
        while not self._content and self._decompress():
            pass
        count = min(len(buffer), len(self._content))
        buffer[:count] = self._content[:count]
        self._content = self._content[count:]
        return count

    def _decompress(self) -> bool:
        """Decompress the next bytes; return False at the end of the file."""
        block = self._compressed or self._raw.read(_ZSTD_BYTES)
        if not block:
            if self._frame is not None:
                raise NcelmError(f"{self._path} is truncated (the compressed data ends early): copy it again")
            return False
        if self._frame is None:
            self._frame = self._library.ZstdDecompressor().decompressobj()
        try:
            self._content = memoryview(self._frame.decompress(block))
        except self._library.ZstdError as error:
            if "memory" in str(error):  # a window of more than 128 MiB, from `zstd --long=28` or more
                raise NcelmError(
                    f"{self._path} needs much memory to decompress ({error}): decompress it first"
                ) from None
            raise NcelmError(f"{self._path} is not a zstd file, or is damaged: copy it again") from None
        self._compressed = b""
        if self._frame.eof:
            self._compressed, self._frame = self._frame.unused_data, None
        return True


def open_compressed(raw: IO[bytes], path: Path | str, compressed: int) -> IO[bytes]:
    """Return the content of an open file of `compressed` bytes, decompressed if its name ends with .gz, .xz or .zst."""
    if str(path).endswith(".gz"):
        return open_gzip(raw, path, compressed)
    if str(path).endswith(".xz"):
        limited = _LimitedReader(_XzReader(raw, path), ExpansionLimit(path, compressed))
        return cast(IO[bytes], io.BufferedReader(limited, 1 << 20))
    return open_zstd(raw, path, compressed) if str(path).endswith(".zst") else raw


def open_zstd(raw: IO[bytes], path: Path | str, compressed: int) -> IO[bytes]:
    """Return the decompressed content of an open zstd file of `compressed` bytes, which has the name `path`."""
    reader = _LimitedReader(_ZstdReader(raw, path), ExpansionLimit(path, compressed))
    return cast(IO[bytes], io.BufferedReader(reader, 1 << 20))


def open_gzip(raw: IO[bytes], path: Path | str, compressed: int) -> IO[bytes]:
    """Return the decompressed content of an open gzip file of `compressed` bytes, which has the name `path`."""
    reader = _LimitedReader(gzip.GzipFile(fileobj=raw), ExpansionLimit(path, compressed))
    return cast(IO[bytes], io.BufferedReader(reader, 1 << 20))
