"""Array files: named arrays and a JSON header in one safetensors file, validated when read.

`write_arrays` and `read_arrays` hold all arrays in memory. `write_mapped` and `map_arrays` are for arrays that do not
fit into memory twice. The file format is the same.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from ncelm.errors import NcelmError
from ncelm.io.files import atomic_write, read_bytes
from ncelm.io.run import CONFIG, VOCABULARY

VERSION = 1  # of the file format
DTYPES = {"float32": "F32", "int32": "I32", "int64": "I64"}  # NumPy's names and those of safetensors
MAX_HEADER_BYTES = 100_000  # of JSON before the arrays
MAX_PARAMETER = 1e4  # parameters above this overflow in a score: the model has diverged
# Prefixes of optimizer statistics, which may exceed MAX_PARAMETER; checkpoints of version 1 have "squares."
STATISTICS = ("squares.", "accumulator.", "momentum.")


def write_arrays(path: Path, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Write arrays and a JSON header as one safetensors file, atomically. Equal content gives equal bytes."""
    # One metadata field only: safetensors writes several in no fixed order.
    content = save_safetensors(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        {"ncelm": json.dumps({"version": VERSION, **header}, sort_keys=True)},
    )
    with atomic_write(path) as file:
        file.write(content)


def read_arrays(
    path: Path, shapes: dict[str, tuple[int, ...]], optional: Collection[str] = ()
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the header of a file written by `write_arrays`.

    Args:
        path: the file.
        shapes: the arrays that the file must have. Each must be float32, of this shape, finite and bounded.
        optional: names of arrays that the file may have in addition; they are not validated.
    """
    content = read_bytes(path)
    damaged = f"{path} is damaged or not an ncelm file"
    try:
        arrays = load_safetensors(content)
        header = json.loads(_metadata(content)["ncelm"])
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise NcelmError(f"{damaged}: restore it from a copy or train again") from error
    if not isinstance(header, dict) or not isinstance(header.get("version"), int):
        raise NcelmError(f"{damaged}: restore it from a copy or train again")
    if header["version"] > VERSION:
        raise NcelmError(f"{path} was written by a newer ncelm (version {header['version']}): upgrade ncelm")
    for name, shape in shapes.items():
        if name not in arrays:
            raise NcelmError(f"{damaged}: it has no {name}; restore it from a copy or train again")
        if arrays[name].shape != shape or arrays[name].dtype != np.float32:
            raise NcelmError(
                f"{path} does not fit its {CONFIG} and {VOCABULARY}: {name} is {arrays[name].dtype} "
                f"{arrays[name].shape}, not float32 {shape}; restore them from a copy or train again"
            )
        limit = np.inf if name.startswith(STATISTICS) else MAX_PARAMETER
        if not all_bounded(arrays[name], limit):
            raise NcelmError(
                f"{path} has values in {name} that are not finite or too large: restore it from a copy or train again"
            )
    if unknown := sorted(set(arrays) - set(shapes) - set(optional)):
        raise NcelmError(f"{path} does not fit its {CONFIG}: it also has {', '.join(unknown)}; restore it from a copy")
    return arrays, header


def read_header(path: Path) -> dict[str, Any]:
    """Return the header of a file written by `write_arrays`, without its arrays."""
    damaged = NcelmError(f"{path} is damaged or not an ncelm file: restore it from a copy or train again")
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(path.stat().st_size - 8, MAX_HEADER_BYTES):
                raise damaged
            header = json.loads(json.loads(file.read(length))["__metadata__"]["ncelm"])
    except OSError as error:
        raise NcelmError(f"cannot read {path}: {error.strerror or error}") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise damaged from error
    if not isinstance(header, dict):
        raise damaged
    return header


def write_mapped(path: Path, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Write arrays and a JSON header like `write_arrays`, without a second copy of the arrays in memory."""
    entries: dict[str, Any] = {"__metadata__": {"ncelm": json.dumps({"version": VERSION, **header}, sort_keys=True)}}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        entries[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [begin, end]}
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)  # aligns the arrays to 8 bytes
    with atomic_write(path) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).data)


def map_arrays(path: Path, kinds: dict[str, str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the memory-mapped arrays and the header of a file written by `write_mapped`.

    Args:
        path: the file.
        kinds: name and dtype of every array, in the order of the file. All are one-dimensional.
    """
    damaged = NcelmError(f"{path} is damaged or not an ncelm file: restore it from a copy or create it again")
    try:
        size, file = path.stat().st_size, path.open("rb")
    except OSError as error:
        raise NcelmError(f"cannot read {path}: {error.strerror or error}") from error
    with file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise damaged
        try:
            entries = json.loads(file.read(length))
            header = json.loads(entries.pop("__metadata__")["ncelm"])
            if type(header["version"]) is not int:
                raise damaged
            if header["version"] > VERSION:
                raise NcelmError(f"{path} was written by a newer ncelm (version {header['version']}): upgrade ncelm")
            arrays, end = {}, 0
            for name, kind in kinds.items():
                entry = entries.pop(name)
                (count,), offsets = entry["shape"], entry["data_offsets"]
                begin, end = end, end + count * np.dtype(kind).itemsize
                place = 8 + length + begin
                if entry["dtype"] != DTYPES[kind] or offsets != [begin, end] or count < 0 or 8 + length + end > size:
                    raise damaged
                arrays[name] = np.memmap(path, kind, "r", place, (count,)) if count else np.zeros(0, kind)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged from error
    if entries or 8 + length + end != size:
        raise damaged
    return arrays, header


def all_bounded(array: np.ndarray, limit: float = MAX_PARAMETER) -> bool:
    """Return whether all values are finite and below `limit` in magnitude."""
    return bool(np.all(np.abs(array) < limit))  # False for NaN


def _metadata(content: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file that the safetensors library has already accepted."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length])["__metadata__"]
