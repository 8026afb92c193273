"""The token store: a text as word ids, and the contexts and targets in it.

A store is a folder made by `ncelm.prepare`:

    store.json         format, settings, the size of each split, and the SHA-256 of each part of its ids
    vocab.txt          the vocabulary of the training split
    punkt.json         the sentence model, if the text was prose
    tokenizer.json     the subword tokenizer, if there is one; tokenizer.model if it is of SentencePiece
    train.ids          word ids, little-endian uint16 or uint32; the id of </s> follows every sentence
    train.sentences    offsets of the sentences in train.ids and the number of ids, little-endian uint64
    valid.*, test.*    the same for the other splits, if there are any

A store is read into memory when it is opened, and verified there: training does not see changes of the files. A store
that takes more than a quarter of the memory is memory-mapped instead. Each of several workers reads and verifies only
the parts that have its words of the training split (`open_part`).

The boundary is "stream", where the text is one stream and contexts extend across `</s>`, or "sentence", where a context
is confined to its sentence.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ncelm import __version__
from ncelm.arguments import INT64_MAX, check_choice, check_ids, check_int, check_path, check_str
from ncelm.errors import NcelmError
from ncelm.io.files import open_regular, read_json, write_json
from ncelm.io.machine import local_world_size, total_memory
from ncelm.text.sentences import SentenceSplitter
from ncelm.text.settings import TextSettings, TextSize
from ncelm.text.vocabulary import Vocabulary

Boundary = Literal["stream", "sentence"]
SPLITS = ("train", "valid", "test")
FORMAT = "ncelm-store"
VERSION = 3  # version 1 had no checksum of store.json, version 2 one checksum for all ids of a split
PART_IDS = 1 << 22  # ids that have a checksum of their own
MEMORY_SHARE = 4  # stores that take more than this part of the memory are memory-mapped
_BLOCK_IDS = 1 << 22
_OFFSET = np.dtype("<u8")


@dataclass(frozen=True)
class _File:
    """A file of an open store, as it was when it was read."""

    path: Path
    size: int
    modified: int  # nanoseconds
    inode: int
    parts: tuple[tuple[int, int, str], ...]  # that were read: first and last byte, SHA-256

    @classmethod
    def of(cls, file: io.BufferedReader, path: Path, parts: tuple[tuple[int, int, str], ...]) -> "_File":
        """Return the description of an open file."""
        found = os.fstat(file.fileno())
        return cls(path, found.st_size, found.st_mtime_ns, found.st_ino, parts)

    def is_unchanged(self) -> bool:
        """Return whether the parts have the content that they had. They are read only if size or time have changed."""
        try:
            with open_regular(self.path) as file:
                now = _File.of(file, self.path, self.parts)
                return self == now or (self.size == now.size and all(_has_digest(file, *part) for part in self.parts))
        except (OSError, NcelmError):
            return False


def _has_digest(file: io.BufferedReader, first: int, last: int, sha256: str) -> bool:
    """Return whether the bytes first..last - 1 of a file have this digest."""
    file.seek(first)
    digest = hashlib.sha256()
    while first < last and (block := file.read(min(last - first, _BLOCK_IDS))):
        digest.update(block)
        first += len(block)
    return digest.hexdigest() == sha256


@dataclass(frozen=True, eq=False)
class Split:
    """The ids and the sentence offsets of the training, validation or test text, or of a worker's part of it."""

    name: str
    ids: npt.NDArray[np.unsignedinteger]  # (tokens,) uint16 or uint32
    sentences: npt.NDArray[np.uint64]  # (n_sentences + 1,) offsets into ids
    unknown: int  # number of tokens <unk>
    files: tuple["_File", ...] = ()  # from which it was read
    size: TextSize | None = None  # words and bytes of the text; None for a store of ncelm 0.1, or a part of a split
    whole: int | None = None  # number of ids of the whole split, if this is a worker's part of it
    start: int = 0  # position of the first id in the whole split

    def __repr__(self) -> str:
        return f"Split({self.name}, {self.tokens:,} tokens, {self.n_sentences:,} sentences)"

    @property
    def tokens(self) -> int:
        """The number of ids, including the `</s>` after each sentence."""
        return len(self.ids)

    @property
    def total_tokens(self) -> int:
        """The number of ids of the whole split, of which this may be a part."""
        return self.tokens if self.whole is None else self.whole

    @property
    def n_sentences(self) -> int:
        """The number of sentences."""
        return len(self.sentences) - 1


@dataclass(frozen=True, eq=False)
class TokenStore:
    """An open token store."""

    path: Path
    boundary: Boundary
    vocabulary: Vocabulary
    text: TextSettings
    punkt: str | None  # "english" or "train" for prose, None for text with one sentence per line
    splits: dict[str, Split]
    fingerprint: str  # digest of ids, vocabulary, boundary and tokenizer
    blank_lines: dict[str, int] | None = None  # in the text of each split; None for a store of ncelm 0.1

    def __repr__(self) -> str:
        splits = ", ".join(f"{name} {split.tokens:,} tokens" for name, split in self.splits.items())
        return f"TokenStore({self.path.name}: {splits}, {len(self.vocabulary):,} words)"

    @classmethod
    def open(cls, path: "Path | str | TokenStore") -> "TokenStore":
        """Return the store at `path` after a validation of all its files. An open store is returned unchanged."""
        if isinstance(path, TokenStore):
            return path
        store, counts = open_part(check_path("path", path, "a TokenStore or a path"), 0, 1)
        store.check_counts(counts)
        return store

    def check_counts(self, counts: npt.NDArray[np.integer | np.floating]) -> None:
        """Raise an error unless the words occur this often, (V,), by vocab.txt."""
        if not np.array_equal(counts, self.vocabulary.counts):
            raise NcelmError(
                f"{self.path / 'vocab.txt'} has counts that differ from the training text: prepare the store again"
            )

    def split(self, name: str) -> Split:
        """Return a split; raise an error that lists the existing ones if it does not exist."""
        if check_str("name", name) not in self.splits:
            raise NcelmError(f"{self.path} has no {name} split: it has {', '.join(self.splits)}")
        return self.splits[name]

    @property
    def is_mapped(self) -> bool:
        """Whether a split is memory-mapped, so that changes of its files are seen."""
        return any(isinstance(split.ids, np.memmap) for split in self.splits.values())

    def check_unchanged(self) -> None:
        """Raise an error if a file of the store has changed since the store was opened."""
        for split in self.splits.values():
            for file in split.files:
                if not file.is_unchanged():
                    raise NcelmError(f"{file.path} was changed while it was in use: restore it, or prepare it again")

    @property
    def pad_id(self) -> int:
        """The id at context positions outside the text, or outside the sentence for the boundary "sentence"."""
        stream = self.boundary == "stream"
        return self.vocabulary.end_id if stream else self.vocabulary.out_of_sentence_id

    def sentence_splitter(self) -> SentenceSplitter | None:
        """Return the sentence model of the text; None if the text had one sentence per line."""
        return SentenceSplitter.load(self.path) if self.punkt else None


def open_part(path: Path, rank: int, size: int) -> tuple[TokenStore, npt.NDArray[np.int64]]:
    """Return the store with the training split of worker `rank` of `size`, and how often each word occurs in it, (V,).

    The split is one of `size` equal parts of the training text, without its sentence offsets. The last `size` - 1 words
    of the text may be in no part; the counts of the last worker include them. The sum of the counts of all workers must
    pass `TokenStore.check_counts`. Only the parts of the file that overlap this part are read and verified.
    """
    about = read_description(path)
    unknown_types = about.get("unknown_types")  # absent in earlier stores
    valid = unknown_types is None or (type(unknown_types) is int and 0 <= unknown_types <= INT64_MAX)
    _require(valid, path, "no number of unknown words")
    vocabulary = Vocabulary.load(path / "vocab.txt", unknown_types)
    dtype = id_dtype(len(vocabulary))
    described = about.get("splits")
    for holds, fault in (
        (about.get("vocabulary_size") == len(vocabulary), "the size of vocab.txt is another one"),
        (about.get("vocabulary_digest") == vocabulary.digest, "the digest of vocab.txt is another one"),
        (about.get("boundary") in get_args(Boundary), "no boundary"),
        (about.get("dtype") == dtype.name, "the dtype is wrong"),
        (about.get("punkt") in (None, "english", "train"), "punkt is wrong"),
        (isinstance(described, dict) and "train" in described, "no training split"),
        (isinstance(described, dict) and set(described) <= set(SPLITS), "unknown splits"),
        (_are_counts(about.get("blank_lines")), "wrong numbers of blank lines"),
    ):
        _require(holds, path, fault)
    assert isinstance(described, dict)
    splits, counts = {}, vocabulary.counts
    for name in (name for name in SPLITS if name in described):
        part = (rank, size) if name == "train" else (0, 1)
        splits[name], found = _open_split(path, name, described[name], about["version"], dtype, vocabulary, *part)
        counts = found if name == "train" else counts
    store = TokenStore(
        path=path,
        boundary=about["boundary"],
        vocabulary=vocabulary,
        text=_text_settings(path, about.get("text"), vocabulary),
        punkt=about.get("punkt"),
        splits=splits,
        fingerprint=_fingerprint(about),
        blank_lines=about.get("blank_lines"),
    )
    return store, counts


def part_of(split: Split, path: Path, rank: int, size: int) -> Split:
    """Return the part of worker `rank` of a training split; `path` is that of its store."""
    own = _part_range(path, split.tokens, rank, size)
    ids, offsets = split.ids[own.start : own.stop], np.array([0, len(own)], np.uint64)
    return Split(split.name, ids, offsets, split.unknown, split.files, whole=split.tokens, start=own.start)


def _part_range(path: Path, tokens: int, rank: int, size: int) -> range:
    """Return the positions in a training split of the part of a worker: a contiguous one of `size` equal parts."""
    length = tokens // size
    if length == 0:
        raise NcelmError(f"{path} has {tokens} words of training text, too few for {size} workers: start fewer workers")
    return range(rank * length, (rank + 1) * length)


def store_or_path(name: str, value: object) -> TokenStore | Path:
    """Return an argument that is an open token store or the path of one. The path is not opened."""
    return value if isinstance(value, TokenStore) else check_path(name, value, "a TokenStore or a path")


def contexts_and_targets(
    ids: npt.NDArray[np.integer],
    positions: npt.ArrayLike,
    before: int,
    after: int,
    boundary: Boundary,
    end_id: int,
    pad_id: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the contexts (B, before + after) and the targets (B,) of B positions.

    A context is the `before` words before the target, in the order of the text, and the `after` words after it.
    Positions outside `ids` hold `pad_id`. With boundary "sentence", the nearest `</s>` on each side of the target and
    all positions beyond it hold `pad_id` too. A target `</s>` belongs to the sentence that it ends: its right context
    is padding.

    This is the reference implementation of the compiled loop in `ncelm.kernels`.
    """
    ids, where = check_ids("ids", ids), check_ids("positions", positions).astype(np.int64)  # (B,)
    before, after = check_int("before", before, 0), check_int("after", after, 0)
    check_choice("boundary", boundary, get_args(Boundary))
    check_int("end_id", end_id)
    check_int("pad_id", pad_id)
    if where.size and (where.min() < 0 or where.max() >= len(ids)):
        raise IndexError(f"`positions` must lie between 0 and {len(ids) - 1}")
    targets = ids[where].astype(np.int64)  # (B,)
    contexts = np.empty((len(where), before + after), dtype=np.int64)  # (B, before + after)
    left = [(before - distance, -distance) for distance in range(1, before + 1)]
    right = [(before + distance - 1, distance) for distance in range(1, after + 1)]
    ended = (boundary == "sentence") & (targets == end_id)
    for walk, inside in ((left, np.ones(len(where), bool)), (right, ~ended)):
        for column, step in walk:
            neighbour = where + step
            inside &= (neighbour >= 0) & (neighbour < len(ids))
            words = ids[np.clip(neighbour, 0, len(ids) - 1)]  # (B,)
            if boundary == "sentence":
                inside &= words != end_id
            contexts[:, column] = np.where(inside, words, pad_id)
    return contexts, targets


def read_description(path: Path) -> dict[str, Any]:
    """Return the content of store.json; only its format, version and checksum are verified."""
    return read_json(path / "store.json", "token store", FORMAT, VERSION, checksum_since=2)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the options of `prepare` with which a store was made; empty if they are not recorded."""
    settings = read_description(path).get("settings")
    return settings if isinstance(settings, dict) else {}


# -- writing ---------------------------------------------------------------------------------------------------------


class SplitWriter:
    """A context manager that writes the two files of a split."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype[np.unsignedinteger]) -> None:
        self.tokens = self.sentences = self.unknown = 0
        self.size = TextSize(0, 0)
        self._dtype = dtype
        self._parts: list[Any] = []  # digests of the ids of each part
        self._paths = (folder / f"{name}.ids", folder / f"{name}.sentences")

    def __enter__(self) -> "SplitWriter":
        self._ids, self._offsets = (path.open("wb") for path in self._paths)
        self._offsets.write(bytes(_OFFSET.itemsize))  # the offset of the first sentence
        return self

    def write(self, ids: npt.NDArray[np.integer]) -> None:
        """Append ids. An id of `</s>` ends a sentence."""
        stored = ids.astype(self._dtype, copy=False)  # (n,)
        self._ids.write(stored.data)
        first = 0
        while first < len(stored):
            done = (self.tokens + first) % PART_IDS  # ids of the part
            if done == 0:
                self._parts.append(hashlib.sha256())
            piece = stored[first : first + PART_IDS - done]
            self._parts[-1].update(piece.data)
            first += len(piece)
        ends = np.flatnonzero(ids == Vocabulary.end_id) + 1 + self.tokens
        self._offsets.write(ends.astype(_OFFSET).data)
        self.tokens += len(ids)
        self.sentences += len(ends)
        self.unknown += int(np.count_nonzero(ids == Vocabulary.unknown_id))

    def add_size(self, size: TextSize) -> None:
        """Count the text of which ids were written."""
        self.size = TextSize(self.size.words + size.words, self.size.bytes + size.bytes)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        with self._ids, self._offsets:
            for file in (self._ids, self._offsets):
                file.flush()
                os.fsync(file.fileno())

    def description(self) -> dict[str, Any]:
        """Return the entry of the split in store.json."""
        return {
            "tokens": self.tokens,
            "sentences": self.sentences,
            "unknown": self.unknown,
            "words": self.size.words,
            "bytes": self.size.bytes,
            "part_ids": PART_IDS,
            "part_sha256": [digest.hexdigest() for digest in self._parts],
        }


def write_description(
    folder: Path,
    *,
    boundary: Boundary,
    vocabulary: Vocabulary,
    text: TextSettings,
    punkt: str | None,
    splits: dict[str, SplitWriter],
    blank_lines: dict[str, int],
    settings: dict[str, Any],
) -> None:
    """Write store.json. `settings` are the remaining options of `prepare`, for information only."""
    about = {
        "format": FORMAT,
        "version": VERSION,
        "boundary": boundary,
        "dtype": id_dtype(len(vocabulary)).name,
        "vocabulary_size": len(vocabulary),
        "vocabulary_digest": vocabulary.digest,
        "unknown_types": vocabulary.unknown_types,
        "text": text.save(folder),
        "punkt": punkt,
        "splits": {name: split.description() for name, split in splits.items()},
        "blank_lines": blank_lines,
        "prepared_with": __version__,
        "settings": settings,
    }
    write_json(folder / "store.json", about)


def id_dtype(vocabulary_size: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest little-endian type for the ids of a vocabulary."""
    return np.dtype("<u2") if vocabulary_size <= 65535 else np.dtype("<u4")


# -- validation ------------------------------------------------------------------------------------------------------


def _require(holds: bool, path: Path, fault: str) -> None:
    if not holds:
        raise NcelmError(f"{path / 'store.json'} is damaged ({fault}): prepare the store again")


def _are_counts(value: object) -> bool:
    """Return whether a value from a JSON document is None or has numbers of splits."""
    if value is None:
        return True
    return (
        isinstance(value, dict) and set(value) <= set(SPLITS) and all(type(n) is int and n >= 0 for n in value.values())
    )


def _open_split(
    path: Path,
    name: str,
    described: object,
    version: int,
    dtype: np.dtype[np.unsignedinteger],
    vocabulary: Vocabulary,
    rank: int,
    size: int,
) -> tuple[Split, npt.NDArray[np.int64]]:
    """Return a split, or the part of it of a worker, and the number of occurrences of each word, (V,)."""
    numbers = [described.get(key) for key in ("tokens", "sentences", "unknown")] if isinstance(described, dict) else []
    _require(bool(numbers) and all(type(number) is int for number in numbers), path, f"no sizes of {name}")
    tokens, sentences, unknown = (number for number in numbers if number is not None)
    _require(0 < sentences <= tokens and 0 <= unknown <= tokens, path, f"impossible sizes of {name}")
    assert isinstance(described, dict)
    part_ids, expected = _part_digests(path, name, described, version, tokens)
    own = _part_range(path, tokens, rank, size)
    counted = range(own.start, tokens if rank == size - 1 else own.stop)
    # Compiled code uses ids and offsets as indices without bounds checks: all must be valid.
    counts = np.zeros(len(vocabulary), np.int64)

    def check(first: int, block: npt.NDArray[Any]) -> None:
        if block.max() >= len(vocabulary):
            raise NcelmError(f"{path / name}.ids is damaged: prepare the store again")
        block = block[max(counted.start - first, 0) : max(counted.stop - first, 0)]
        np.add(counts, np.bincount(block, minlength=len(vocabulary)), out=counts)

    ids, ids_file = _read(path / f"{name}.ids", dtype, tokens, counted, part_ids, expected, check)
    ids = ids[: len(own)]
    if size > 1:  # the sum of all counts will be compared with the vocabulary
        given = (vocabulary.counts[Vocabulary.end_id], vocabulary.counts[Vocabulary.unknown_id])
        _require(given == (sentences, unknown), path, f"sizes of {name} that differ from vocab.txt")
        offsets = np.array([0, len(own)], np.uint64)
        return Split(name, ids, offsets, unknown, (ids_file,), whole=tokens, start=own.start), counts
    length = sentences + 1
    offsets, offsets_file = _read(path / f"{name}.sentences", _OFFSET, length, range(length), length)
    blocks = [offsets[first : first + _BLOCK_IDS + 1] for first in range(0, sentences, _BLOCK_IDS)]
    # Together with the number of </s>, this determines the offsets.
    if offsets[0] != 0 or offsets[-1] != tokens or not all(bool(np.all(some[:-1] < some[1:])) for some in blocks):
        raise NcelmError(f"{path / name}.sentences is damaged: prepare the store again")
    ended = all(bool(np.all(ids[some[1:] - np.uint64(1)] == Vocabulary.end_id)) for some in blocks)
    if counts[Vocabulary.end_id] != sentences or not ended:
        raise NcelmError(f"{path / name}.ids is damaged: prepare the store again")
    _require(counts[Vocabulary.unknown_id] == unknown, path, f"wrong number of unknown words of {name}")
    files = (ids_file, offsets_file)
    return Split(name, ids, offsets, unknown, files, _text_size(path, name, described)), counts


def _part_digests(
    path: Path, name: str, described: dict[str, Any], version: int, tokens: int
) -> tuple[int, list[object]]:
    """Return the number of ids in a part of a split, and the SHA-256 of each part."""
    if version < 3:  # all ids are one part
        return tokens, [described.get("sha256")]
    part_ids, digests = described.get("part_ids"), described.get("part_sha256")
    valid = type(part_ids) is int and 0 < part_ids <= PART_IDS
    _require(valid and isinstance(digests, list), path, f"no checksums of {name}")
    assert isinstance(part_ids, int)
    assert isinstance(digests, list)
    _require(len(digests) == -(-tokens // part_ids), path, f"another number of checksums of {name}")
    return part_ids, digests


def _text_size(path: Path, name: str, described: dict[str, Any]) -> TextSize | None:
    """Return the size of the text of a split; None if store.json does not have it."""
    numbers = [described.get(key) for key in ("words", "bytes")]
    if numbers == [None, None]:
        return None
    _require(all(type(n) is int and 0 <= n <= INT64_MAX for n in numbers), path, f"no size of the text of {name}")
    words, size = (int(number or 0) for number in numbers)
    _require(words <= size and size > 0, path, f"an impossible size of the text of {name}")
    return TextSize(words, size)


def _read(
    path: Path,
    dtype: np.dtype[Any],
    length: int,
    own: range,
    part: int,
    expected: list[object] | None = None,
    check: Callable[[int, npt.NDArray[Any]], None] | None = None,
) -> tuple[npt.NDArray[Any], _File]:
    """Return the numbers at the positions `own` of a file of exactly `length` numbers, read-only, and the file.

    The file consists of parts of `part` numbers. Those that overlap `own` are read. They must have the SHA-256
    `expected`, and `check` gets the position and the content of each block of them.
    """
    damaged = "{} is {}: prepare the store again"
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != length * dtype.itemsize:
                fault = "truncated" if size < length * dtype.itemsize else "longer than store.json says"
                raise NcelmError(damaged.format(path, fault))
            needed = len(own) * dtype.itemsize * local_world_size()
            mapped = needed > (total_memory() or needed) // MEMORY_SHARE
            if mapped:
                numbers = np.memmap(file, dtype, "r", shape=(length,))[own.start : own.stop]
            else:
                numbers = np.empty(len(own), dtype)
            buffer, read = np.empty(min(_BLOCK_IDS, part, length), dtype), []
            for index in range(own.start // part, -(-own.stop // part)):
                start, stop = index * part, min((index + 1) * part, length)
                file.seek(start * dtype.itemsize)
                digest = hashlib.sha256()
                for first in range(start, stop, len(buffer)):
                    block = buffer[: stop - first]
                    if file.readinto(block.data.cast("B")) != block.nbytes:
                        raise NcelmError(damaged.format(path, "truncated"))
                    digest.update(block.data)
                    if check:
                        check(first, block)
                    if not mapped:
                        low, high = max(first, own.start), min(first + len(block), own.stop)
                        numbers[low - own.start : high - own.start] = block[low - first : high - first]
                sha256 = digest.hexdigest()
                if expected is not None and expected[index] != sha256:
                    raise NcelmError(damaged.format(path, "damaged"))
                read.append((start * dtype.itemsize, stop * dtype.itemsize, sha256))
            numbers.flags.writeable = False
            return numbers, _File.of(file, path, tuple(read))
    except FileNotFoundError:
        raise NcelmError(f"{path} is missing: prepare the store again") from None
    except OSError as error:
        raise NcelmError(f"cannot read {path}: {error.strerror or error}") from error


def _text_settings(path: Path, content: object, vocabulary: Vocabulary) -> TextSettings:
    try:
        settings = TextSettings.load(path, content)
    except ValueError:
        raise NcelmError(f"{path / 'store.json'} is damaged (wrong text settings): prepare the store again") from None
    check_pieces(path, settings, vocabulary)
    return settings


def check_pieces(path: Path, text: TextSettings, vocabulary: Vocabulary) -> None:
    """Raise an error if a subword tokenizer is not that of the vocabulary of a store or run."""
    if not text.pieces:
        return
    known = sum(name in vocabulary for name in text.pieces.names)
    if 2 * known < len(vocabulary) - 2:  # an ARPA file of pieces may have some other words
        raise NcelmError(
            f"the tokenizer of {path} does not match the model: only {known:,} of the {len(vocabulary):,} words of the "
            "vocabulary are pieces of it; give the tokenizer with which the text of the model was tokenized"
        )


def _fingerprint(about: dict[str, Any]) -> str:
    relevant = {key: about[key] for key in ("boundary", "vocabulary_digest", "text", "splits")}
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()
