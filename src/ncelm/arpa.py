"""ARPA files: the text form in which n-gram models travel between SRILM, KenLM and others.

    \\data\\
    ngram 1=3
    …
    \\1-grams:
    -1.2041200 the -0.3010300
    …
    \\end\\

A line has log10 P, the words, and log10 of the back-off weight where the n-gram is the history of a longer one. What is read
can be written again without loss: numbers are kept as they are, to the precision of float32.
"""

import gzip
import math
import zlib
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from ncelm.errors import NcelmError
from ncelm.files import write_whole
from ncelm.ngram import LEAST, MOST_ORDERS, NGramModel
from ncelm.vocabulary import END, UNKNOWN, Vocabulary

BEGIN = "<s>"
BATCH = 100_000  # n-grams written at a time
LONGEST_LINE = 1 << 20  # bytes


# -- writing -----------------------------------------------------------------------------------------------------------


def write_arpa(
    path: Path, model: NGramModel, vocabulary: Vocabulary, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write a model as an ARPA file, packed if its name ends with .gz."""
    spell = np.array([*vocabulary.words, BEGIN], dtype=object)
    done, total = 0, sum(model.counts)
    with write_whole(path) as raw, _packer(raw, path) as file:
        file.write("\\data\\\n" + "".join(f"ngram {n}={count}\n" for n, count in enumerate(model.counts, 1)))
        for n, first, words in _batches(model):
            if first == 0:
                file.write(f"\n\\{n}-grams:\n")
            start = sum(model.counts[: n - 1]) + first
            logs = model.log_probabilities[start : start + len(words)].tolist()
            texts = (" ".join(row) for row in spell[words].tolist())
            if n < model.order:
                backoffs = model.log_backoffs[start : start + len(words)].tolist()
                lines = (f"{_number(p)}\t{t}\t{_number(b)}\n" for p, t, b in zip(logs, texts, backoffs, strict=True))
            else:
                lines = (f"{_number(p)}\t{t}\n" for p, t in zip(logs, texts, strict=True))
            file.write("".join(lines))
            done += len(words)
            if progress:
                progress(done, total)
        file.write("\n\\end\\\n")


def _batches(model: NGramModel) -> Iterator[tuple[int, int, np.ndarray]]:
    """All n-grams, order by order, some at a time: order, rank of the first, words (n-grams, n)."""
    begins = np.cumsum((0, *model.counts))
    for n, count in enumerate(model.counts, 1):
        for first in range(0, count, BATCH):
            places = np.arange(first, min(first + BATCH, count)) + begins[n - 1]
            columns = [model.words[places]]
            for m in range(n - 1, 0, -1):  # up the trie: the history of each
                level = model.children[begins[m - 1] : begins[m]]
                places = np.searchsorted(level, places, side="right") - 1 + begins[m - 1]
                columns.append(model.words[places])
            yield n, first, np.stack(columns[::-1], axis=1)


def _number(value: float) -> str:
    """The shortest decimal that is this float32."""
    return str(np.float32(value))


class _packer:
    """A text file on top of a binary one, packed if the name says so."""

    def __init__(self, raw: IO[bytes], path: Path) -> None:
        # no time in the header: the same model gives the same bytes
        self.packed = gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) if path.suffix == ".gz" else None
        self.raw = raw

    def __enter__(self) -> "_packer":
        return self

    def write(self, text: str) -> None:
        (self.packed or self.raw).write(text.encode())

    def __exit__(self, *error: object) -> None:
        if self.packed:
            self.packed.close()


# -- reading -----------------------------------------------------------------------------------------------------------


def read_arpa(path: Path, progress: Callable[[int, int], None] | None = None) -> tuple[NGramModel, Vocabulary]:
    """Read an ARPA file, packed or not, and check everything a query relies on."""
    with _Lines(path) as lines:
        counts = _read_counts(lines)
        names: dict[str, int] = {}  # words in the order of the 1-grams
        sections = []
        for n, count in enumerate(counts, 1):
            sections.append(_read_section(lines, n, count, names))
            if progress:
                progress(n, len(counts))
        if lines.here != "\\end\\":
            raise lines.error(f"{lines.here[:40]!r} stands where \\end\\ should")
    return _assemble(path, sections, names)


class _Lines:
    """The lines of a file that are not blank, one at a time, with their numbers."""

    def __init__(self, path: Path) -> None:
        self.path, self.number, self.here = path, 0, ""

    def __enter__(self) -> "_Lines":
        try:
            self._file: IO[bytes] = self.path.open("rb")
            if self._file.read(2) == b"\x1f\x8b":
                self._file.close()
                self._file = gzip.open(self.path, "rb")
            else:
                self._file.seek(0)
        except OSError as error:
            raise NcelmError(f"{self.path} cannot be read: {error.strerror or error}") from error
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def next(self) -> str:
        """Go to the next line and return it."""
        while True:
            try:
                line = self._file.readline(LONGEST_LINE + 1)
            except (OSError, EOFError, zlib.error) as error:
                raise NcelmError(f"{self.path} is damaged or cut short: {error}") from error
            self.number += 1
            if not line:
                raise self.error("the file ends before \\end\\: it was cut short, or it is no ARPA file")
            if len(line) > LONGEST_LINE or b"\0" in line:
                raise self.error("this is no text: an ARPA file was expected")
            try:
                self.here = line.decode().strip()
            except UnicodeDecodeError:
                raise self.error("this is not UTF-8") from None
            if self.here:
                return self.here

    def error(self, what: str) -> NcelmError:
        """What is wrong at this line."""
        return NcelmError(f"{self.path}, line {self.number}: {what}")


def _read_counts(lines: _Lines) -> list[int]:
    """The header: how many n-grams of each order follow. Leaves `lines` at the first section."""
    while lines.next() != "\\data\\":  # whatever stands before is a comment
        if lines.number > 1000:
            raise lines.error("there is no \\data\\ at the beginning: this is no ARPA file")
    counts: list[int] = []
    while (line := lines.next()).startswith("ngram "):
        order, equals, count = line.removeprefix("ngram ").replace(" ", "").partition("=")
        if not (equals and order.isdecimal() and count.isdecimal() and int(order) == len(counts) + 1):
            raise lines.error(f"{line[:40]!r} stands where 'ngram {len(counts) + 1}=…' should")
        counts.append(int(count))
    if not 1 <= len(counts) <= MOST_ORDERS:
        raise lines.error(f"the header names {len(counts)} orders: ncelm reads 1 to {MOST_ORDERS}")
    return counts


class _Section(NamedTuple):
    """The n-grams of one order as they stand in the file."""

    words: np.ndarray  # (G_n, n) int32
    log_probabilities: np.ndarray  # (G_n,) float32
    log_backoffs: np.ndarray  # (G_n,) float32, NaN where there is none


def _read_section(lines: _Lines, n: int, count: int, names: dict[str, int]) -> _Section:
    """The n-grams of one order. Leaves `lines` at what follows them."""
    if lines.here != f"\\{n}-grams:":
        raise lines.error(f"{lines.here[:40]!r} stands where \\{n}-grams: should")
    # arrays of the file's own numbers, not lists made at the header's word: never trust a count
    words, logs, backoffs = array("i"), array("f"), array("f")
    while not (line := lines.next()).startswith("\\"):
        fields = line.split()
        if not n + 1 <= len(fields) <= n + 2:
            raise lines.error(f"a {n}-gram is a number, {n} words and perhaps a back-off weight, not {len(fields)} fields")
        try:
            log_p = float(fields[0])
            backoff = float(fields[n + 1]) if len(fields) == n + 2 else math.nan
        except ValueError:
            raise lines.error(f"{fields[0][:20]!r} or {fields[-1][:20]!r} is not a number") from None
        if not log_p <= 0.0 or math.isinf(backoff):
            raise lines.error(f"{fields[0]} is not the logarithm of a probability, or {fields[-1]} of a weight")
        if n == 1:
            if fields[1] in names:
                raise lines.error(f"{fields[1]!r} is there twice")
            names[fields[1]] = len(names)
        for word in fields[1 : n + 1]:
            if word not in names:
                raise lines.error(f"{word!r} is not among the 1-grams")
            words.append(names[word])
        logs.append(max(log_p, float(LEAST)))
        backoffs.append(backoff)
    if len(logs) != count:
        raise lines.error(f"there are {len(logs):,} {n}-grams, but the header says {count:,}")
    return _Section(np.array(words, np.int32).reshape(-1, n), np.array(logs, np.float32), np.array(backoffs, np.float32))


def _assemble(path: Path, sections: list[_Section], names: dict[str, int]) -> tuple[NGramModel, Vocabulary]:
    """Sort the n-grams into a trie."""
    if END not in names:
        raise NcelmError(f"{path} has no {END} among its 1-grams: it is no model of sentences")
    words = [UNKNOWN, END, *(name for name in names if name not in (UNKNOWN, END, BEGIN))]
    vocabulary = Vocabulary(words, np.zeros(len(words), np.int64))
    begin, size = len(words), len(words) + 1
    renumber = np.array([begin if name == BEGIN else vocabulary.id(name) for name in names])
    logs, backoffs = np.full(size, LEAST), np.zeros(size, np.float32)  # <unk> and <s> may be missing
    logs[renumber[sections[0].words[:, 0]]] = sections[0].log_probabilities
    backoffs[renumber[sections[0].words[:, 0]]] = sections[0].log_backoffs
    all_words, all_logs, all_backoffs, children = [np.arange(size, dtype=np.int32)], [logs], [backoffs], []
    keys: list[np.ndarray] = []  # of each order above 1, sorted: rank of the history, last word
    for n, section in enumerate(sections[1:], 2):
        ids = renumber[section.words].astype(np.int64)  # (G_n, n)
        ranks = ids[:, 0]
        for m in range(2, n + 1):
            key = ranks * size + ids[:, m - 1]
            if m == n:
                break
            ranks = np.minimum(np.searchsorted(keys[m - 2], key), keys[m - 2].size - 1)
            missing = np.flatnonzero(keys[m - 2][ranks] != key)
            if missing.size:
                spelled = " ".join((*words, BEGIN)[i] for i in ids[missing[0]])
                raise NcelmError(f"{path}: the {n}-gram {spelled!r} is there, but not its first {m} words as a {m}-gram")
        order = np.argsort(key, kind="stable")
        key = key[order]
        twice = np.flatnonzero(key[1:] == key[:-1])
        if twice.size:
            spelled = " ".join((*words, BEGIN)[i] for i in ids[order[twice[0]]])
            raise NcelmError(f"{path}: the {n}-gram {spelled!r} is there twice")
        bounds = np.searchsorted(key, np.arange(all_words[-1].size + 1, dtype=np.int64) * size)
        lost = np.flatnonzero((np.diff(bounds) > 0) & np.isnan(all_backoffs[-1]))
        if lost.size:
            raise NcelmError(
                f"{path}: {lost.size:,} {n - 1}-grams have no back-off weight, though longer n-grams begin with them"
            )
        keys.append(key)
        children.append(bounds[:-1])
        all_words.append((key % size).astype(np.int32))
        all_logs.append(section.log_probabilities[order])
        all_backoffs.append(section.log_backoffs[order])
    counts = tuple(len(level) for level in all_words)
    begins = np.cumsum((0, *counts))
    model = NGramModel(
        counts=counts,
        words=np.concatenate(all_words),
        children=np.concatenate([*(level + begins[n] for n, level in enumerate(children, 1)), begins[-1:]]),
        log_probabilities=np.concatenate(all_logs),
        log_backoffs=np.nan_to_num(np.concatenate([*all_backoffs[:-1], np.zeros(0, np.float32)])),
    )
    return model, vocabulary
