"""The run directory: what a model leaves behind, read back with suspicion.

    config.json          what kind of model it is, of what text, with which options
    vocab.txt            words and their training counts
    model.safetensors    the parameters: of a trained model the best so far; a mixture has none of its own
    checkpoint.safetensors   `train`: everything needed to go on: parameters, optimiser, place in the corpus
    metrics.jsonl        one line for each epoch

Every file is replaced whole. Nothing is ever unpickled.
"""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from ncelm import __version__
from ncelm.corpus import Boundary, TokenStore
from ncelm.errors import NcelmError
from ncelm.files import read_bytes, read_json, write_json, write_whole
from ncelm.text import TextSettings
from ncelm.vocabulary import Vocabulary

VERSION = 1
Kind = Literal["log-bilinear", "feed-forward", "lstm", "maximum-entropy", "ngram", "mixture", "lsa", "pmi", "ensemble"]
DTYPES = {"float32": "F32", "int32": "I32", "int64": "I64"}  # as safetensors names them
LONGEST_HEADER = 100_000  # bytes of JSON before the arrays of a file
CONFIG, VOCABULARY, MODEL, CHECKPOINT, METRICS = (
    "config.json",
    "vocab.txt",
    "model.safetensors",
    "checkpoint.safetensors",
    "metrics.jsonl",
)


@dataclass(frozen=True, eq=False)
class Origin:
    """The text that a model is a model of: its words, and how lines become words."""

    vocabulary: Vocabulary
    boundary: Boundary
    text: TextSettings
    store: Path | None  # where the token store was, if there was one
    fingerprint: str | None  # of the store

    @classmethod
    def of(cls, store: TokenStore) -> "Origin":
        """A store as the origin of a model."""
        return cls(store.vocabulary, store.boundary, store.text, store.path.resolve(), store.fingerprint)


def describe(kind: Kind, origin: Origin, **more: Any) -> dict[str, Any]:
    """The content of config.json: what all kinds of model say, and what only this one does."""
    return {
        "format": "ncelm-run",
        "version": VERSION,
        "ncelm": __version__,
        "kind": kind,
        "store": {"path": str(origin.store), "fingerprint": origin.fingerprint} if origin.store else None,
        "vocabulary_digest": origin.vocabulary.digest,
        "boundary": origin.boundary,
        "text": asdict(origin.text),
        **more,
    }


def write_description(folder: Path, kind: Kind, origin: Origin, **more: Any) -> None:
    """Write config.json and vocab.txt."""
    write_json(folder / CONFIG, describe(kind, origin, **more))
    origin.vocabulary.save(folder / VOCABULARY)


def read_config(run: Path) -> dict[str, Any]:
    """The description of a run, checked for kind and version."""
    content = read_json(run / CONFIG, "run", "ncelm-run", VERSION)
    kind = content.setdefault("kind", "log-bilinear")  # the first runs did not say
    if kind not in get_args(Kind):
        raise NcelmError(f"{run} holds a model of an unknown kind, {str(kind)[:40]!r}: upgrade ncelm")
    return content


def read_origin(run: Path, content: dict[str, Any]) -> Origin:
    """What a run's config.json, `content`, and vocab.txt say of its text."""
    boundary: Any = content.get("boundary")
    text, store = content.get("text"), content.get("store")
    try:
        if boundary not in get_args(Boundary) or not isinstance(text, dict):
            raise TypeError
        settings = TextSettings(**text)
        path = Path(store["path"]) if store is not None else None
        fingerprint = store["fingerprint"] if store is not None else None
    except (KeyError, TypeError, ValueError, NcelmError) as error:
        raise damaged_config(run) from error
    vocabulary = Vocabulary.load(run / VOCABULARY)
    if content.get("vocabulary_digest") != vocabulary.digest:
        raise NcelmError(f"{run / VOCABULARY} is not the vocabulary of this model: restore it from a copy")
    return Origin(vocabulary, boundary, settings, path, fingerprint)


def read_kind(run: Path, kind: Kind) -> tuple[dict[str, Any], Origin]:
    """config.json of a run, which must be of this kind, and what it says of its text."""
    content = read_config(run)
    if content["kind"] != kind:
        raise NcelmError(f"{run} holds a model of another kind than {kind.upper()}: {content['kind']}")
    return content, read_origin(run, content)


def damaged_config(run: Path) -> NcelmError:
    """What to say of a config.json that makes no sense."""
    return NcelmError(f"{run / CONFIG} is damaged: restore it from a copy or train again")


def open_store(given: TokenStore | Path | str | None, recorded: Path | None, otherwise: str = "") -> TokenStore:
    """The token store that the user gave or, without one, the one that a run remembers.

    `otherwise` tells what else the user could do if there is none.
    """
    if isinstance(given, TokenStore):
        return given
    if given is None and recorded is None:
        raise NcelmError(f"this model names no token store: say which with --store{otherwise}")
    if given is None and recorded is not None and not recorded.exists():
        raise NcelmError(f"the token store is no longer at {recorded}: say where with --store{otherwise}")
    return TokenStore.open(given or recorded or Path())


def write_arrays(path: Path, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Write arrays and a JSON header as one safetensors file, whole or not at all: same content, same bytes."""
    # one metadata field only: safetensors keeps several in no fixed order
    content = save_safetensors(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        {"ncelm": json.dumps({"version": VERSION, **header}, sort_keys=True)},
    )
    with write_whole(path) as file:
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
        if not (np.isfinite(arrays[name]).all() if sums else usable(arrays[name])):
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
    with write_whole(path) as file:
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


def usable(array: np.ndarray) -> bool:
    """Are these parameters of a model that has not diverged? (Larger ones overflow in a score.)"""
    return bool(np.all(np.abs(array) < 1e4))  # not so for NaN


def _metadata(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file that the safetensors library has already accepted."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length])["__metadata__"]


@dataclass
class Metrics:
    """metrics.jsonl: lines are only ever added, except that a resumed run drops those it will write again."""

    path: Path

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    def cut(self, size: int) -> None:
        """Forget all but the first `size` bytes."""
        if self.size < size:
            raise NcelmError(
                f"{self.path} is gone or was cut short: restore it from a copy, or train with another --out"
            )
        if self.size > size:
            content = read_bytes(self.path)[:size]
            with write_whole(self.path) as file:
                file.write(content)

    def add(self, record: dict[str, Any]) -> None:
        """Append one line."""
        content = read_bytes(self.path) if self.path.exists() else b""
        with write_whole(self.path) as file:
            file.write(content + (json.dumps(record, allow_nan=False) + "\n").encode())

    def read(self) -> list[dict[str, Any]]:
        """All records."""
        if not self.path.exists():
            return []
        try:
            return [json.loads(line) for line in read_bytes(self.path).decode().splitlines()]
        except ValueError:
            raise NcelmError(f"{self.path} is damaged: every line of it should be JSON") from None
