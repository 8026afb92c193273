"""Zstandard and xz files: several frames, damage, truncation, and the limit of expansion."""

import io
import lzma
import random
from contextlib import suppress

import pytest

from ncelm.errors import MissingExtraError, NcelmError
from ncelm.io import compressed
from ncelm.io.compressed import open_compressed
from ncelm.text.readers import read_lines

zstandard = pytest.importorskip("zstandard")

TEXT = "".join(f"line {n} of a text\n" for n in range(20_000)).encode()


def read(content: bytes, name: str = "a.zst") -> bytes:
    return open_compressed(io.BytesIO(content), name, len(content)).read()


def test_frames():
    packed = zstandard.compress(TEXT)
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    assert read(packed) == TEXT
    assert read(packed + skippable + packed + zstandard.compress(b"") + packed) == TEXT * 3
    assert read(b"") == read(zstandard.compress(b"")) == b""
    with io.BytesIO() as file:  # a frame of unknown size
        with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as writer:
            for start in range(0, len(TEXT), 777):
                writer.write(TEXT[start : start + 777])
                writer.flush()
        assert read(file.getvalue()) == TEXT


def test_other_names_are_not_decompressed():
    assert read(b"plain", "a.txt") == b"plain"


def test_every_truncation_is_an_error():
    packed = zstandard.compress(TEXT)
    for length in (1, 3, 4, 10, len(packed) // 2, *range(len(packed) - 5, len(packed))):
        with pytest.raises(NcelmError, match=r"a\.zst is truncated"):
            read(packed[:length])


def test_damage_is_detected():
    """Frames have checksums here, as those of the command `zstd` have."""
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
    generator = random.Random(0)
    for _ in range(200):
        damaged = bytearray(packed)
        damaged[generator.randrange(len(packed))] ^= 1 << generator.randrange(8)
        with suppress(NcelmError):
            assert read(bytes(damaged)) == TEXT  # a bit without a meaning
    for junk in (b"plain text", packed + b"\0", packed + b"plain text"):
        with pytest.raises(NcelmError, match="not a zstd file, or is damaged"):
            read(junk)


def test_a_large_window_is_refused():
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    with io.BytesIO() as file:
        with zstandard.ZstdCompressor(compression_params=parameters).stream_writer(file, closefd=False) as writer:
            writer.write(TEXT)
        with pytest.raises(NcelmError, match="needs much memory to decompress"):
            read(file.getvalue())


def test_expansion_is_limited(monkeypatch):
    monkeypatch.setattr(compressed, "FREE_BYTES", 1 << 20)
    with pytest.raises(NcelmError, match="expands to more than 250 times its size"):
        read(zstandard.compress(bytes(10 << 20)))


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match=r"zstandard is needed to read a\.zst: pip install 'ncelm\[zstd\]'"):
        read(b"")


# -- xz --------------------------------------------------------------------------------------------------------------


def test_xz_streams_and_padding():
    packed = lzma.compress(TEXT)
    assert read(packed, "a.xz") == TEXT
    assert read(packed + b"\0" * 8 + packed + lzma.compress(b""), "a.xz") == TEXT * 2
    assert read(b"", "a.xz") == read(lzma.compress(b""), "a.xz") == b""


def test_xz_truncation_and_damage(tmp_path):
    packed = lzma.compress(TEXT)
    for name, content, message in (
        ("short", packed[:-20], "is truncated"),
        ("junk", b"plain text, and more", "is not an xz file, or is damaged"),
        ("flipped", packed[:50] + bytes([packed[50] ^ 255]) + packed[51:], "is not an xz file, or is damaged"),
        ("more", packed + b"junk, and more of it", "is not an xz file, or is damaged"),
    ):
        path = tmp_path / f"{name}.txt.xz"
        path.write_bytes(content)
        with pytest.raises(NcelmError, match=message):
            list(read_lines(path))


def test_xz_expansion_is_limited(monkeypatch):
    monkeypatch.setattr(compressed, "FREE_BYTES", 1 << 20)
    with pytest.raises(NcelmError, match="expands to more than"):
        read(lzma.compress(bytes(100 << 20)), "a.xz")
