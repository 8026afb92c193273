"""filter.json: what an unfinished call of `filter_documents` has done, and the result of a finished one."""

import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from ncelm.errors import NcelmError
from ncelm.filtering.scoring import BINS, EXAMPLES_PER_BIN, KEPT_BROKEN, Result
from ncelm.io.files import is_finite_number, open_regular, read_json, write_errors, write_json

FILE, FORMAT, VERSION = "filter.json", "ncelm-filter", 1
UNFINISHED = ".unfinished"  # suffix of an output file
_BLOCK = 1 << 20


@dataclass
class Output:
    """A file that documents are written to."""

    bytes: int = 0
    crc32: int = 0


@dataclass
class State:
    """How far a call has come."""

    options: dict[str, Any]  # that determine the output
    inputs: list[list[Any]]  # path, kind, size and time of modification of each file
    thresholds: list[float] | None = None
    modes: list[str] = field(default_factory=list)
    normalised: bool = True
    source: int = 0  # the file to be read next
    position: int = 0  # in it
    lines: int = 0  # before that position
    read: int = 0  # bytes of all files, for progress
    outputs: dict[str, Output] = field(default_factory=dict)  # by name of the file
    documents: dict[str, int] = field(default_factory=dict)  # by bucket
    tokens: int = 0
    unknown: int = 0
    empty: int = 0
    broken: int = 0
    named: list[str] = field(default_factory=list)  # the first broken rows
    histogram: dict[str, int] = field(default_factory=dict)  # documents by interval
    examples: dict[str, list[list[Any]]] = field(default_factory=dict)  # by interval
    seconds: float = 0.0
    finished: bool = False

    def add(self, path: Path, unit: str, result: Result) -> None:
        """Add the result of a block."""
        for name, count in result.documents.items():
            self.documents[name] = self.documents.get(name, 0) + count
        self.tokens += result.tokens
        self.unknown += result.unknown
        self.empty += result.empty
        self.broken += result.broken
        self.named += [f"{path}, {unit} {number:,}: {reason}" for number, reason in result.named]
        del self.named[KEPT_BROKEN:]
        for number, count in result.histogram.items():
            self.histogram[str(number)] = self.histogram.get(str(number), 0) + count
        for number, found in result.examples.items():
            kept = [*self.examples.get(str(number), []), *map(list, found)]
            self.examples[str(number)] = sorted(kept)[:EXAMPLES_PER_BIN]

    # -- the file -----------------------------------------------------------------------------------------------------

    def write(self, folder: Path) -> None:
        """Write filter.json."""
        write_json(folder / FILE, {"format": FORMAT, "version": VERSION, **asdict(self)})

    @classmethod
    def load(cls, folder: Path) -> "State":
        """Return the state in filter.json. The content is validated."""
        content = read_json(folder / FILE, "filtered corpus", FORMAT, VERSION)
        damaged = NcelmError(f"{folder / FILE} is damaged: remove {folder} and filter again")
        try:
            state = cls(**{name: value for name, value in content.items() if name not in ("format", "version")})
            outputs: dict[str, Any] = dict(state.outputs)
            state.outputs = {str(name): Output(**output) for name, output in outputs.items()}
            if not state._is_valid():
                raise ValueError
        except (TypeError, ValueError, AttributeError, KeyError):
            raise damaged from None
        return state

    def _is_valid(self) -> bool:
        counts = [self.source, self.position, self.lines, self.read, self.tokens, self.unknown, self.empty, self.broken]
        counts += [*self.documents.values(), *self.histogram.values()]  # another type raises AttributeError
        for output in self.outputs.values():
            counts += [output.bytes, output.crc32]
        examples = [each for some in self.examples.values() for each in some]
        dicts = (self.options, self.documents, self.histogram, self.examples)
        lists = (self.inputs, self.modes, self.named, [] if self.thresholds is None else self.thresholds)
        return (
            all(isinstance(each, dict) for each in dicts)
            and all(isinstance(each, list) for each in lists)
            and all(type(count) is int and 0 <= count < 2**63 for count in counts)
            and all(Path(name).name == name for name in self.outputs)
            and all(name.isdecimal() and int(name) < BINS for name in (*self.histogram, *self.examples))
            and all(len(each) == 3 and is_finite_number(each[1]) and isinstance(each[2], str) for each in examples)
            and (self.thresholds is None or all(map(is_finite_number, self.thresholds)))
            and all(isinstance(text, str) for text in (*self.named, *self.modes))
            and is_finite_number(self.seconds)
            and {type(self.finished), type(self.normalised)} == {bool}
        )


class Outputs:
    """The open output files of a call. They have a suffix until the call is finished."""

    def __init__(self, folder: Path, state: State, files: dict[str, IO[bytes]]) -> None:
        self._folder, self._state, self._files = folder, state, files

    def write(self, name: str, data: bytes) -> None:
        """Append to a file."""
        with write_errors(self._folder / name):
            self._files[name].write(data)
        output = self._state.outputs[name]
        output.bytes += len(data)
        output.crc32 = zlib.crc32(data, output.crc32)

    def save(self) -> None:
        """Write everything to disk, then the state: it is never ahead of the files."""
        for name, file in self._files.items():
            with write_errors(self._folder / name):
                file.flush()
                os.fsync(file.fileno())
        self._state.write(self._folder)

    def finish(self) -> None:
        """Give the files their names."""
        for name in self._files:
            with write_errors(self._folder / name):
                (self._folder / (name + UNFINISHED)).replace(self._folder / name)
        self._state.finished = True
        self._state.write(self._folder)


@contextmanager
def open_outputs(folder: Path, state: State) -> Iterator[Outputs]:
    """Open the output files of a state, without what was written after it."""
    with ExitStack() as stack:
        files: dict[str, IO[bytes]] = {}
        for name, output in state.outputs.items():
            path = folder / (name + UNFINISHED)
            with write_errors(path):
                if (folder / name).exists():  # stopped while the files got their names
                    (folder / name).replace(path)
                if not output.bytes:
                    path.write_bytes(b"")
                elif not path.exists() or _crc32(path, output.bytes) != output.crc32:
                    raise NcelmError(f"{path} is not what was written before: remove {folder} and filter again")
                os.truncate(path, output.bytes)
                files[name] = stack.enter_context(path.open("ab"))
        yield Outputs(folder, state, files)


def _crc32(path: Path, size: int) -> int | None:
    """Return the checksum of the first bytes of a file; None if it is shorter."""
    found = 0
    with open_regular(path) as file:
        while size:
            block = file.read(min(size, _BLOCK))
            if not block:
                return None
            found, size = zlib.crc32(block, found), size - len(block)
    return found
