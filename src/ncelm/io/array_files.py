"""Array files: named arrays and a JSON header in one safetensors file, validated when read.

`write_arrays` and `read_arrays` hold all arrays in memory. `write_mapped` and `map_arrays` are for arrays that do not
fit into memory twice. The file format is the same. The header has a checksum of all arrays and of itself.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from ncelm.errors import NcelmError
from ncelm.io.files import atomic_write, open_regular, parse_json, read_bytes
from ncelm.io.run import CONFIG, VOCABULARY, identity

VERSION = 2  # of the file format; version 1 had no checksum
DTYPES = {"float32": "F32", "int32": "I32", "int64": "I64"}  # NumPy's names and those of safetensors
MAX_HEADER_BYTES = 100_000  # of JSON before the arrays
_CHECKSUM_ITEMS = 1 << 24  # hashed in one call
MAX_PARAMETER = 1e4  # parameters above this overflow in a score: the model has diverged
# Prefixes of optimizer statistics, which may exceed MAX_PARAMETER; checkpoints of version 1 have "squares."
STATISTICS = ("squares.", "accumulator.", "momentum.")


def write_arrays(path: Path, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Write arrays and a JSON header as one safetensors file, atomically. Equal content gives equal bytes."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content = save_safetensors(arrays, _metadata_of(path, arrays, header))
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
        header = _checked_header(path, _metadata(content)["ncelm"])
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise NcelmError(f"{damaged}: restore it from a copy or train again") from error
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
    _verify(path, arrays, header)
    return arrays, header


def read_parameters(path: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return the arrays of a model file. A checkpoint, which may have the same arrays, is refused."""
    arrays, header = read_arrays(path, shapes)
    if "checkpoint" in header:
        raise NcelmError(f"{path} is a checkpoint, not a model: restore it from a copy or train again")
    return arrays


def read_header(path: Path) -> dict[str, Any]:
    """Return the header of a file written by `write_arrays`, without its arrays. Its checksum is not verified."""
    damaged = NcelmError(f"{path} is damaged or not an ncelm file: restore it from a copy or train again")
    try:
        with open_regular(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(path.stat().st_size - 8, MAX_HEADER_BYTES):
                raise damaged
            return _checked_header(path, parse_json(file.read(length))["__metadata__"]["ncelm"])
    except OSError as error:
        raise NcelmError(f"cannot read {path}: {error.strerror or error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise damaged from error


def write_mapped(path: Path, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Write arrays and a JSON header like `write_arrays`, without a second copy of the arrays in memory."""
    entries: dict[str, Any] = {"__metadata__": _metadata_of(path, arrays, header)}
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
    """Return the memory-mapped arrays and the header of a file written by `write_mapped`, after verification.

    Args:
        path: the file.
        kinds: name and dtype of every array, in the order of the file. All are one-dimensional.
    """
    damaged = NcelmError(f"{path} is damaged or not an ncelm file: restore it from a copy or create it again")
    try:
        size, file = path.stat().st_size, open_regular(path)
    except OSError as error:
        raise NcelmError(f"cannot read {path}: {error.strerror or error}") from error
    with file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise damaged
        try:
            entries = parse_json(file.read(length))
            header = _checked_header(path, entries.pop("__metadata__")["ncelm"])
            arrays, end = {}, 0
            for name, kind in kinds.items():
                entry = entries.pop(name)
                (count,), offsets = entry["shape"], entry["data_offsets"]
                begin, end = end, end + count * np.dtype(kind).itemsize
                place = 8 + length + begin
                if type(count) is not int or count < 0 or 8 + length + end > size:
                    raise damaged
                if entry["dtype"] != DTYPES[kind] or offsets != [begin, end]:
                    raise damaged
                arrays[name] = np.memmap(file, kind, "r", place, (count,)) if count else np.zeros(0, kind)
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            raise damaged from error
    if entries or 8 + length + end != size:
        raise damaged
    _verify(path, arrays, header)
    return arrays, header


def all_bounded(array: np.ndarray, limit: float = MAX_PARAMETER) -> bool:
    """Return whether all values are finite and below `limit` in magnitude."""
    return array.size == 0 or bool(array.max() < limit and array.min() > -limit)  # False for NaN


# -- checksums -------------------------------------------------------------------------------------------------------


def checksum(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> str:
    """Return a digest of a header, without its field "checksum", and of all arrays.

    XXH3 detects damage at the speed of the memory (docs/experiments.md). It is no protection against an attacker,
    who can as well write a new checksum.
    """
    rest = {name: value for name, value in header.items() if name != "checksum"}
    digest = xxhash.xxh3_128(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        flat = array.reshape(-1)
        for first in range(0, flat.size, _CHECKSUM_ITEMS):  # between two blocks, Ctrl-C is answered
            digest.update(flat[first : first + _CHECKSUM_ITEMS].data)
    return digest.hexdigest()


def _verify(path: Path, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Raise `NcelmError` if the checksum of a file is wrong. Files of version 1 have none."""
    if (header["version"] > 1 or "checksum" in header) and header.get("checksum") != checksum(arrays, header):
        raise NcelmError(f"{path} is damaged (its checksum is wrong): restore it from a copy or train again")
    if header.get("run") not in (None, identity(path.parent)):
        raise NcelmError(f"{path} is a file of another run: restore it from a copy or train again")


def _metadata_of(path: Path, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> dict[str, str]:
    """Return the metadata of a safetensors file: one field, because safetensors writes several in no fixed order."""
    run = identity(path.parent)
    header = {"version": VERSION, **header, **({"run": run} if run else {})}
    return {"ncelm": json.dumps({**header, "checksum": checksum(arrays, header)}, sort_keys=True, allow_nan=False)}


def _checked_header(path: Path, content: str) -> dict[str, Any]:
    """Return the header of a file from its metadata. Raise ValueError or TypeError if it is not a header."""
    header = parse_json(content)
    if not isinstance(header, dict) or type(header.get("version")) is not int:
        raise ValueError("no header")
    if header["version"] > VERSION:
        raise NcelmError(f"{path} was written by a newer ncelm (version {header['version']}): upgrade ncelm")
    return header


def _metadata(content: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file that the safetensors library has already accepted."""
    length = int.from_bytes(content[:8], "little")
    return parse_json(content[8 : 8 + length])["__metadata__"]
