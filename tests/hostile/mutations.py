"""Structure-aware mutations of bytes, JSON documents and array files."""

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from ncelm.io.array_files import checksum
from ncelm.io.files import json_checksum

# -- bytes -----------------------------------------------------------------------------------------------------------


def damage(random: Random, content: bytes) -> bytes:
    """Return the content after damage as by a bad disk, a bad network or an interrupted copy."""
    data, size = bytearray(content), len(content)
    at = random.randrange(size) if size else 0
    length = min(random.choice((1, 2, 8, 64, 512)), max(size - at, 1))
    match random.randrange(12):
        case 0 | 1 | 2 if size:  # one bit
            data[at] ^= 1 << random.randrange(8)
        case 3 if size:  # one byte
            data[at] = random.randrange(256)
        case 4 if size:  # one printable character
            data[at] = random.choice(b'0123456789 \t\n"{}[],:.-e\\')
        case 5:  # truncated
            del data[at:]
        case 6:  # a block is missing
            del data[at : at + length]
        case 7:  # a block of zeros
            data[at : at + length] = bytes(len(data[at : at + length]))
        case 8:  # a block is repeated
            data[at:at] = data[at : at + length]
        case 9:  # bytes are inserted
            data[at:at] = random.randbytes(length)
        case 10:  # two blocks are exchanged
            other = random.randrange(size) if size else 0
            first, second = data[at : at + length], data[other : other + length]
            data[at : at + length], data[other : other + length] = second, first
        case _:  # appended
            data += random.choice((b"\0", b"\n", b" ", b"x", bytes(100), content[:50]))
    return bytes(data)


# -- JSON ------------------------------------------------------------------------------------------------------------

HUGE = 10**400
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53 + 1, 2**62, 2**63 - 1),
    *(2**63, -(2**63), 2**64, HUGE, -HUGE, 0.0, -0.0, 0.5, 1.0, -1.0, 1e-320, 1e308, -1e308, float("nan")),
    *(
        float("inf"),
        float("-inf"),
        "",
        " ",
        "a",
        "0",
        "1",
        "true",
        "null",
        "\0",
        "\ud800",
        "x" * 100_000,
        "../../..",
        "/",
    ),
    *("/dev/zero", "/dev/stdin", "~", "\n", "é", "float32", "<s>", "</s>", "<unk>", "log-bilinear", "ngram", "lstm"),
    *("mixture", "stream", "sentence", "treebank", "train", [], {}, [[]], [None], {"": None}, [0] * 1000, [[0.5, 0.5]]),
    *({"path": "/", "fingerprint": None}, ["a", "b"], {"name": "nce"}, {"name": "sgd"}),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def parent_of(document: Any, path: tuple[Any, ...]) -> Any:
    """Return the object or list that holds the value at a path."""
    for key in path[:-1]:
        document = document[key]
    return document


def mutate_json(random: Random, document: Any) -> Any:
    """Return a document in which one value is changed, removed, added, moved or renamed."""
    document = copy.deepcopy(document)
    paths = list(places(document))
    if not paths:
        return random.choice(HOSTILE)
    path = random.choice(paths)
    holder, key = parent_of(document, path), path[-1]
    match random.randrange(12):
        case 0 | 1 | 2 | 3 | 4:
            holder[key] = copy.deepcopy(random.choice(HOSTILE))
        case 5 | 6:
            holder[key] = _nearby(random, holder[key])
        case 7:
            del holder[key]
        case 8 if isinstance(holder, dict):
            holder[random.choice((f"{key} ", key.upper(), f"x{key}", ""))] = holder.pop(key)
        case 9:
            other = random.choice(paths)
            holder[key] = copy.deepcopy(parent_of(document, other)[other[-1]])
        case 10:
            holder[key] = [holder[key]] if random.random() < 0.5 else {"x": holder[key]}
        case _:
            extra = copy.deepcopy(random.choice(HOSTILE))
            if isinstance(holder, dict):
                holder[random.choice(("x", "checksum", "path", "weights", "dim", "kind"))] = extra
            else:
                holder.insert(random.randrange(len(holder) + 1), extra)
    return document


def _nearby(random: Random, value: Any) -> Any:
    """Return a value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice(
            (value + 1, value - 1, -value, 2 * value, value * 10**9, float(max(min(value, 10**300), -(10**300))))
        )
    if isinstance(value, float):
        return random.choice((value * 1.001, -value, value + 1.0, value * 1e300, np.nextafter(value, 9).item(), 5e-324))
    if isinstance(value, str):
        return random.choice(
            (value[:-1], value + "x", value.upper(), value[::-1], value * 3, value.encode(errors="surrogatepass").hex())
        )
    if isinstance(value, list):
        return random.choice((value[::-1], value[:-1], value * 2, [*value, 0], value[1:]))
    if isinstance(value, dict):
        return dict(list(value.items())[:-1])
    return 0


def mutate_json_text(random: Random, text: str) -> str:
    """Return a JSON text that is unusual or invalid: duplicate keys, deep nesting, other literals."""
    at = random.choice([i for i, character in enumerate(text) if character in ",{"] or [0])
    key = random.choice(('"version"', '"format"', '"kind"', '"checksum"', '"x"', '"dim"', '"weights"'))
    match random.randrange(10):
        case 0:  # a duplicate key
            value = random.choice(("1", "2", "null", '"ngram"', "[]", "1e999"))
            return f"{text[: at + 1]}{key}: {value}{'' if text[at] == ',' else ','}{text[at + 1 :]}".replace("}}", "}")
        case 1:  # deep nesting
            depth = random.choice((10, 900, 1100, 100_000))
            opening, closing = random.choice((("[", "]"), ('{"a":', "}")))
            return text[: at + 1] + f"{key}: {opening * depth}0{closing * depth}," + text[at + 1 :]
        case 2:  # numbers
            number = random.choice(("1e999", "-1e999", "NaN", "Infinity", "-Infinity", "1" * 5000, "01", "0x10", "1_0"))
            return text[: at + 1] + f"{key}: {number}," + text[at + 1 :]
        case 3:
            return random.choice(("", "{}", "[]", "null", "0", '"ncelm-run"', "\ufeff" + text, text + text, text + ","))
        case 4:
            return text.replace('"', "'")
        case 5:  # the same content in other characters
            return json.dumps(json.loads(text), indent=random.choice((None, 0, 7)), sort_keys=True)
        case 6:
            return text.replace("a", "\\u0061", 1).replace("e", random.choice(("\\ud800", "\\u0065", "é")), 1)
        case 7:
            return text[: at + 1] + "/* comment */" + text[at + 1 :]
        case 8:
            return text[:at] + " \r\n\t" * random.choice((1, 1000)) + text[at:]
        case _:
            return text[:at] + random.choice(("\0", "\x1f", "\u2028", "\ud83d")) + text[at:]


def encode_json(document: Any) -> bytes:
    """Return a document as bytes. Lone surrogates become escapes, numbers that are not finite their usual names."""
    return (json.dumps(document, indent=2) + "\n").encode()


def with_checksum(document: Any) -> Any:
    """Return a JSON file of ncelm with its correct checksum, as an attacker writes it."""
    if not isinstance(document, dict):
        return document
    return {**document, "checksum": json_checksum(document)}


# -- array files -----------------------------------------------------------------------------------------------------

DTYPES = {
    "F32": "<f4", "F64": "<f8", "F16": "<f2", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
    "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?",
}  # fmt: skip
_NAMES = {np.dtype(code): name for name, code in DTYPES.items()}


@dataclass
class ArrayFile:
    """The content of a safetensors file of ncelm."""

    arrays: dict[str, np.ndarray]
    header: dict[str, Any]  # with the checksum

    @classmethod
    def parse(cls, content: bytes) -> "ArrayFile":
        """Return the content of a valid file."""
        length = int.from_bytes(content[:8], "little")
        entries, body = json.loads(content[8 : 8 + length]), content[8 + length :]
        header = json.loads(entries.pop("__metadata__")["ncelm"])
        arrays = {}
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = entry["data_offsets"]
            arrays[name] = np.frombuffer(body[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"]).copy()
        return cls(arrays, header)

    def sign(self) -> None:
        """Write the correct checksum into the header."""
        if isinstance(self.header, dict):
            self.header["checksum"] = checksum(self.arrays, self.header)

    def entries(self) -> dict[str, Any]:
        """Return the JSON in front of the arrays."""
        entries: dict[str, Any] = {"__metadata__": {"ncelm": json.dumps(self.header, sort_keys=True)}}
        end = 0
        for name, array in self.arrays.items():
            begin, end = end, end + array.nbytes
            entries[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
        return entries

    def content(self, entries: Any = None) -> bytes:
        """Return the file, with these entries instead of its own."""
        head = json.dumps(self.entries() if entries is None else entries).encode()
        head += b" " * (-len(head) % 8)
        body = b"".join(array.tobytes() for array in self.arrays.values())
        return len(head).to_bytes(8, "little") + head + body


INTEGERS = (-1, 0, 1, 2, 127, 2**31 - 1, -(2**31), 2**31, 2**32, 2**62, 2**63 - 1, -(2**63))
FLOATS = (
    *(np.nan, np.inf, -np.inf, 1e38, -1e38, 3.4e38, 9999.9, -9999.9, 1e4, -1e4, 100.0, -100.0, 0.0, -0.0, 1e-45, 1.0),
    *(-99.0, 5.0, 1e-3, -1e-3),
)


def mutate_arrays(random: Random, file: ArrayFile) -> None:
    """Change one array of a file: its values, shape or type; or remove, rename or add an array."""
    name = random.choice(list(file.arrays))
    array = file.arrays[name]
    match random.randrange(16):
        case 0 | 1 | 2 | 3 | 4 | 5 if array.size:
            file.arrays[name] = _changed_values(random, array)
        case 6 if array.size and array.ndim:
            file.arrays[name] = random.choice((array[::-1], array[:-1], np.concatenate([array, array[:1]]))).copy()
        case 7:
            file.arrays[name] = array.reshape(random.choice(((-1,), (1, *array.shape), (*array.shape, 1))))
        case 8:
            file.arrays[name] = np.zeros(random.choice(((), (0,), (0, 4), (1,), (1, 1, 1, 1), (2, 0))), array.dtype)
        case 9:
            with np.errstate(all="ignore"):
                file.arrays[name] = np.nan_to_num(array).astype(DTYPES[random.choice(list(DTYPES))])
        case 10:
            del file.arrays[name]
        case 11:
            arrays = {
                (random.choice((name + "x", "", "words", "vectors")) if n == name else n): a
                for n, a in file.arrays.items()
            }
            file.arrays = arrays
        case 12:
            file.arrays["extra"] = np.zeros(3, np.float32)
        case 13 if array.ndim > 1:
            file.arrays[name] = np.ascontiguousarray(array.T)
        case 14:  # the values of another array
            other = random.choice(list(file.arrays))
            file.arrays[name], file.arrays[other] = file.arrays[other], array
        case _ if array.size:
            file.arrays[name] = np.full_like(array, _value(random, array))


def _value(random: Random, array: np.ndarray) -> Any:
    """Return a hostile value of the type of an array."""
    if array.dtype.kind == "f":
        return np.array(random.choice(FLOATS)).astype(array.dtype)
    if array.dtype.kind == "b":
        return random.random() < 0.5
    limits = np.iinfo(array.dtype)
    near = int(array.max()) + random.choice((-1, 0, 1, 2)) if array.size else 0
    return min(max(random.choice((*INTEGERS, near, near, near, array.size)), limits.min), limits.max)


def _changed_values(random: Random, array: np.ndarray) -> np.ndarray:
    """Return an array of the same shape and type with other values."""
    array = array.copy()
    flat = array.reshape(-1)
    places = [random.randrange(flat.size) for _ in range(random.choice((1, 1, 1, 2, 10)))]
    if random.random() < 0.3:  # ends are special
        places[0] = random.choice((0, flat.size - 1))
    match random.randrange(6) if array.dtype.kind != "b" else 0:
        case 0 | 1 | 2:
            with np.errstate(all="ignore"):
                for place in places:
                    flat[place] = _value(random, array)
        case 3:
            for place in places:
                other = random.randrange(flat.size)
                flat[place], flat[other] = flat[other], flat[place]
        case 4:
            with np.errstate(all="ignore"):
                step = (
                    np.array(random.choice((1, -1, 3)), array.dtype) if array.dtype.kind != "u" else array.dtype.type(1)
                )
                for place in places:
                    flat[place] += step
        case _:
            begin, end = sorted((random.randrange(flat.size + 1), random.randrange(flat.size + 1)))
            values = flat[begin:end].copy()
            flat[begin:end] = np.sort(values) if random.random() < 0.5 else values[::-1]
    return array


def mutate_entries(random: Random, file: ArrayFile) -> bytes:
    """Return a file whose head does not fit its body: lengths, offsets, shapes, types, metadata."""
    entries = file.entries()
    content = file.content()
    names = [name for name in entries if name != "__metadata__"]
    entry = entries[random.choice(names)]
    match random.randrange(10):
        case 0:  # the length of the head
            length = int.from_bytes(content[:8], "little")
            other = random.choice((0, 1, length - 1, length + 1, length + 8, 2**31, 2**63, 2**64 - 1, len(content)))
            return max(other, 0).to_bytes(8, "little") + content[8:]
        case 1:
            entry["shape"] = random.choice(
                (
                    [],
                    [-1],
                    [2**62],
                    [2**32, 2**32],
                    [HUGE],
                    [1.5],
                    ["4"],
                    None,
                    [[4]],
                    [True],
                    [0],
                    entry["shape"] + [1],
                )
            )
        case 2:
            begin, end = entry["data_offsets"]
            entry["data_offsets"] = random.choice(
                (
                    [end, begin],
                    [begin, end + 4],
                    [begin + 4, end],
                    [-8, end],
                    [0, 0],
                    [0, 2**63],
                    [0, HUGE],
                    [begin],
                    [begin, end, end],
                    None,
                    "x",
                    [float(begin), end],
                    [0, end - begin],
                    [begin - 8, end - 8],
                )
            )
        case 3:
            entry["dtype"] = random.choice((*DTYPES, "BF16", "F8_E4M3", "object", "", None, 3, "f32"))
        case 4:  # entries in another order, with the offsets that they have
            items = list(entries.items())
            random.shuffle(items)
            entries = dict(items)
        case 5:
            entries[random.choice(names)] = random.choice(HOSTILE[:60])
        case 6:
            entries["__metadata__"] = random.choice(
                ({}, None, [], {"ncelm": 3}, {"ncelm": "{}"}, {"ncelm": "[]"}, {"x": "y"})
            )
        case 7:
            entries = mutate_json(random, entries)
        case 8:
            del entries[random.choice(names)]
        case _:  # several arrays in the same place
            for name in names:
                entries[name]["data_offsets"] = entries[names[0]]["data_offsets"]
    return file.content(entries)
