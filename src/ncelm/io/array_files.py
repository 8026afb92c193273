"""Array files: named arrays and a JSON header in one safetensors file, validated when read."""

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
DTYPES = {"float32": "F32", "int32": "I32", "int64": "I64"}  # as safetensors names them
LONGEST_HEADER = 100_000  # bytes of JSON before the arrays of a file


def write_arrays(path: Path, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Write arrays and a JSON header as one safetensors file, whole or not at all: same content, same bytes."""
    # one metadata field only: safetensors keeps several in no fixed order
    content = save_safetensors(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        {"ncelm": json.dumps({"version": VERSION, **header}, sort_keys=True)},
    )
    with atomic_write(path) as file:
        file.write(content)


def read_arrays(
    path: Path, shapes: dict[str, tuple[int, ...]], optional: Collection[str] = ()
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read a file of write_arrays; every array must be float32, have its expected shape and hold only numbers.

    What is `optional` may be there too, and is for the caller to look at.
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
        sums = name.startswith("squares.")  # of a whole training: they may well be large
        if not (np.isfinite(arrays[name]).all() if sums else all_bounded(arrays[name])):
            raise NcelmError(
                f"{path} has numbers in {name} that are not finite, or enormous: restore it from a copy or train again"
            )
    if unknown := sorted(set(arrays) - set(shapes) - set(optional)):
        raise NcelmError(f"{path} does not fit its {CONFIG}: it has {', '.join(unknown)} too; restore it from a copy")
    return arrays, header


def write_mapped(path: Path, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """The same kind of file as write_arrays, for arrays too large to be held twice."""
    entries: dict[str, Any] = {"__metadata__": {"ncelm": json.dumps({"version": VERSION, **header}, sort_keys=True)}}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        entries[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [begin, end]}
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)  # arrays begin at a multiple of 8
    with atomic_write(path) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).data)


def map_arrays(path: Path, kinds: dict[str, str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Map the arrays of write_mapped into memory, without reading them: vectors of these types, and nothing else."""
    damaged = NcelmError(f"{path} is damaged or not an ncelm file: restore it from a copy or make it again")
    try:
        size, file = path.stat().st_size, path.open("rb")
    except OSError as error:
        raise NcelmError(f"cannot read {path}: {error.strerror or error}") from error
    with file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, LONGEST_HEADER):
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


def all_bounded(array: np.ndarray) -> bool:
    """Are these parameters of a model that has not diverged? (Larger ones overflow in a score.)"""
    return bool(np.all(np.abs(array) < 1e4))  # not so for NaN


def _metadata(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file that the safetensors library has already accepted."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length])["__metadata__"]
