"""Array files: round trips, equal bytes, and validation of damaged and foreign files."""

import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncelm.errors import NcelmError
from ncelm.io import array_files
from ncelm.io.array_files import all_bounded, checksum, map_arrays, read_arrays, read_header, write_arrays, write_mapped

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(0, np.float32)}
SHAPES = {"a": (2, 3), "b": (0,)}
MAPPED = {"n": np.arange(5, dtype=np.int64), "empty": np.zeros(0, np.int32), "x": np.ones(3, np.float32)}
KINDS = {"n": "int64", "empty": "int32", "x": "float32"}


def test_arrays(tmp_path):
    path = tmp_path / "arrays"
    write_arrays(path, ARRAYS, {"kind": "test", "state": {"epoch": 2}})
    arrays, header = read_arrays(path, SHAPES)
    assert header.pop("checksum") == checksum(ARRAYS, {"version": 2, "kind": "test", "state": {"epoch": 2}})
    assert header == {"version": 2, "kind": "test", "state": {"epoch": 2}}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
    first = path.read_bytes()
    write_arrays(path, dict(reversed(ARRAYS.items())), {"state": {"epoch": 2}, "kind": "test"})
    assert path.read_bytes() == first


def test_mapped_arrays_have_the_same_format(tmp_path):
    path = tmp_path / "arrays"
    write_mapped(path, MAPPED, {"kind": "test"})
    arrays, header = map_arrays(path, KINDS)
    assert header.pop("checksum") == checksum(MAPPED, {"version": 2, "kind": "test"})
    assert header == {"version": 2, "kind": "test"}
    for name, array in MAPPED.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert not arrays[name].flags.writeable or not arrays[name].size
    write_mapped(path, ARRAYS, {"kind": "test"})
    arrays, _ = read_arrays(path, SHAPES)
    np.testing.assert_array_equal(arrays["a"], ARRAYS["a"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": ARRAYS["a"]}, "it has no b"),
        (ARRAYS | {"c": ARRAYS["b"]}, "it also has c"),
        (ARRAYS | {"a": ARRAYS["a"].T}, r"a is float32 \(3, 2\), not float32 \(2, 3\)"),
        (ARRAYS | {"a": ARRAYS["a"].astype(np.float64)}, "a is float64"),
        (ARRAYS | {"a": ARRAYS["a"] * np.float32(1e4)}, "not finite or too large"),
        (ARRAYS | {"a": ARRAYS["a"] * np.float32(np.nan)}, "not finite or too large"),
    ],
)
def test_arrays_that_do_not_match(tmp_path, arrays, message):
    write_arrays(tmp_path / "arrays", arrays, {})
    with pytest.raises(NcelmError, match=message):
        read_arrays(tmp_path / "arrays", SHAPES)


def test_optional_arrays_and_accumulators(tmp_path):
    write_arrays(tmp_path / "arrays", ARRAYS | {"c": ARRAYS["a"]}, {})
    assert "c" in read_arrays(tmp_path / "arrays", SHAPES, optional=["c"])[0]
    sums = {"accumulator.a": np.full(2, 1e9, np.float32)}
    write_arrays(tmp_path / "arrays", sums, {})
    np.testing.assert_array_equal(read_arrays(tmp_path / "arrays", {"accumulator.a": (2,)})[0]["accumulator.a"], 1e9)
    write_arrays(tmp_path / "arrays", {"accumulator.a": np.array([1, np.inf], np.float32)}, {})
    with pytest.raises(NcelmError, match="not finite"):
        read_arrays(tmp_path / "arrays", {"accumulator.a": (2,)})


def test_newer_files(tmp_path):
    for write, read, arrays, expected in (
        (write_arrays, read_arrays, ARRAYS, SHAPES),
        (write_mapped, map_arrays, MAPPED, KINDS),
    ):
        write(tmp_path / "arrays", arrays, {"version": 3})
        with pytest.raises(NcelmError, match="newer ncelm"):
            read(tmp_path / "arrays", expected)
        write(tmp_path / "arrays", arrays, {"version": "x"})
        with pytest.raises(NcelmError, match="damaged"):
            read(tmp_path / "arrays", expected)


@given(st.data())
def test_damaged_files_are_errors_or_give_the_same_arrays(tmp_path_factory, data):
    """Truncated files, and files with a changed byte in the header or the arrays."""
    path = tmp_path_factory.mktemp("damaged") / "arrays"
    for write, read, arrays, expected in (
        (write_arrays, read_arrays, ARRAYS, SHAPES),
        (write_mapped, map_arrays, MAPPED, KINDS),
    ):
        write(path, arrays, {"kind": "test"})
        content = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, len(content) - 1))
        path.write_bytes(content[:position])
        with pytest.raises(NcelmError):
            read(path, expected)
        content[position] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        with suppress(NcelmError):
            result, _ = read(path, expected)
            assert set(result) == set(arrays)
            for name, array in arrays.items():
                np.testing.assert_array_equal(result[name], array)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [-5]},
        {"shape": [10**12], "data_offsets": [0, 8 * 10**12]},
        {"shape": [5, 1]},
        {"data_offsets": [8, 48]},
        {"dtype": "F64"},
        {"shape": "x"},
    ],
)
def test_headers_of_mapped_files_are_not_trusted(tmp_path, change):
    path = tmp_path / "arrays"
    write_mapped(path, {"n": MAPPED["n"]}, {})
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + length])
    entries["n"] |= change
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    with pytest.raises(NcelmError, match="damaged"):
        map_arrays(path, {"n": "int64"})


def test_files_of_version_1_have_no_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(array_files, "_metadata_of", lambda *arguments: {"ncelm": json.dumps({"version": 1})})
    write_arrays(tmp_path / "arrays", ARRAYS, {})
    assert read_arrays(tmp_path / "arrays", SHAPES)[1] == {"version": 1}
    monkeypatch.setattr(array_files, "_metadata_of", lambda *arguments: {"ncelm": json.dumps({"version": 2})})
    write_arrays(tmp_path / "arrays", ARRAYS, {})
    with pytest.raises(NcelmError, match="its checksum is wrong"):
        read_arrays(tmp_path / "arrays", SHAPES)


@pytest.mark.parametrize("content", ["[" * 100_000, "NaN", "5", '{"version": 1e400}', "{"])
def test_metadata_is_not_trusted(tmp_path, monkeypatch, content):
    monkeypatch.setattr(array_files, "_metadata_of", lambda *arguments: {"ncelm": content})
    for write, read, arrays, expected in (
        (write_arrays, read_arrays, ARRAYS, SHAPES),
        (write_mapped, map_arrays, MAPPED, KINDS),
    ):
        write(tmp_path / "arrays", arrays, {})
        with pytest.raises(NcelmError, match="damaged"):
            read(tmp_path / "arrays", expected)
        with pytest.raises(NcelmError, match="damaged"):
            read_header(tmp_path / "arrays")


def test_all_bounded():
    assert all_bounded(np.array([-9999.0, 9999.0]))
    assert all_bounded(np.zeros(0))
    for value in (1e4, -1e4, np.inf, -np.inf, np.nan):
        assert not all_bounded(np.array([0.0, value]))
