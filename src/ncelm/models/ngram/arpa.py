"""ARPA files: the text format of n-gram models of SRILM, KenLM and other tools.

    \\data\\
    ngram 1=3
    …
    \\1-grams:
    -1.20412    the    -0.30103
    …
    \\end\\

A line has log10 P, the words, and, if longer n-grams start with these words, log10 of the back-off weight. Reading and
writing a file preserves its numbers to the precision of float32.

Compiled code (`ncelm.kernels.arpa`) writes and reads regular lines. Other lines are parsed in Python, which also
produces the error messages.
"""

import gzip
import math
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, cast

import numpy as np

from ncelm.errors import NcelmError
from ncelm.io.compressed import open_gzip
from ncelm.io.files import atomic_write, check_not_existing, open_regular
from ncelm.models.ngram.query import LOG_MISSING, LOG_ZERO, MAX_LOG, MAX_ORDER, NGramModel
from ncelm.text.vocabulary import END, UNKNOWN, Vocabulary

if TYPE_CHECKING:
    from ncelm.kernels.arpa import Spelling

BEGIN = "<s>"
BATCH = 1 << 17  # n-grams written or read in one call
BLOCK_BYTES = 1 << 23
MAX_LINE_BYTES = 1 << 20
MAX_HEADER_LINES = 1000  # before \data\
MAX_BLANK_LINES = 1000  # in succession

OnNgrams = Callable[[int, int], None]  # called with the number of n-grams done and their total


# -- writing -----------------------------------------------------------------------------------------------------------


def write_arpa(path: Path, model: NGramModel, vocabulary: Vocabulary, progress: OnNgrams | None = None) -> None:
    """Write a model to a new ARPA file, compressed if its name ends with .gz."""
    from ncelm.kernels import arpa as kernels

    check_not_existing(path)
    letters, bounds, _ = _spelling([*(word.encode() for word in vocabulary.words), BEGIN.encode()])
    lengths = np.diff(bounds)  # bytes of each word, (V + 1,)
    done, total = 0, sum(model.counts)
    with atomic_write(path) as raw, _compressed(raw, path) as file:
        file.write(b"\\data\\\n" + b"".join(b"ngram %d=%d\n" % each for each in enumerate(model.counts, 1)))
        for n, first, words in _batches(model):
            if first == 0:
                file.write(b"\n\\%d-grams:\n" % n)
            start = sum(model.counts[: n - 1]) + first
            here = slice(start, start + len(words))
            backoffs = model.log_backoffs[here] if n < model.order else np.zeros(0, np.float32)
            separators_and_numbers = (2 * kernels.LONGEST_NUMBER + 3 + n) * len(words)
            out = np.empty(int(lengths[words].sum()) + separators_and_numbers, np.uint8)
            size = kernels.write_ngrams(words, model.log_probabilities[here], backoffs, letters, bounds, out)
            file.write(out[:size].data)
            done += len(words)
            if progress:
                progress(done, total)
        file.write(b"\n\\end\\\n")


def _batches(model: NGramModel) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield all n-grams in batches: their order n, the rank of the first, and their words, (batch, n)."""
    starts = np.cumsum((0, *model.counts))
    for n, count in enumerate(model.counts, 1):
        for first in range(0, count, BATCH):
            positions = np.arange(first, min(first + BATCH, count)) + starts[n - 1]
            words = np.empty((positions.size, n), np.int32)
            words[:, n - 1] = model.words[positions]
            for m in range(n - 1, 0, -1):  # up the trie, to the history of each n-gram
                level = model.children[starts[m - 1] : starts[m]]
                positions = np.searchsorted(level, positions, side="right") - 1 + starts[m - 1]
                words[:, m - 1] = model.words[positions]
            yield n, first, words


@contextmanager
def _compressed(raw: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """Yield the file, or a gzip file on top of it if the path ends with .gz."""
    if path.suffix != ".gz":
        yield raw
        return
    # mtime=0: the same model gives the same bytes
    with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0, compresslevel=6) as file:
        yield cast(IO[bytes], file)


def _spelling(words: list[bytes]) -> "Spelling":
    """Return words in the form that compiled code accepts, with a hash table."""
    from ncelm.kernels import arpa as kernels

    bounds = np.cumsum([0, *map(len, words)], dtype=np.int64)
    letters = np.frombuffer(b"".join(words), np.uint8)
    slots = np.full(1 << (2 * len(words)).bit_length(), -1, np.int32)
    kernels.fill_slots(letters, bounds, slots)
    return kernels.Spelling(letters, bounds, slots)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_arpa(
    path: Path, like: Vocabulary | None = None, progress: OnNgrams | None = None
) -> tuple[NGramModel, Vocabulary]:
    """Return the model and the vocabulary of an ARPA file, compressed (gzip) or not. The file is validated.

    With `like`, which must have the words of the file, words have the ids that they have there.
    """
    with _Lines.open(path) as lines:
        counts = _read_counts(lines)
        names: list[bytes] = []  # words in the order of the 1-grams
        sections = [_read_words(lines, counts[0], names)]
        spelling, ids = _spelling(names), {name: i for i, name in enumerate(names)}
        for n, count in enumerate(counts[1:], 2):
            report = partial(_report, progress, sum(counts[: n - 1]), sum(counts))
            sections.append(_read_section(lines, n, count, spelling, ids, report))
        if lines.current != b"\\end\\":
            raise lines.error(f"expected \\end\\, found {_quoted(lines.current)}")
    return _assemble(path, sections, [name.decode() for name in names], like)


def _report(progress: OnNgrams | None, before: int, total: int, done: int) -> None:
    if progress:
        progress(min(before + done, total), total)


class _Lines:
    """The non-blank lines of a file, one at a time, with their numbers."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self._file = path, file
        self.block, self.at = b"", 0  # bytes read, and the position of the next line in them
        self.number, self.current = 0, b""  # the current line

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["_Lines"]:
        """Open a file, compressed or not."""
        try:
            with open_regular(path) as raw:
                compressed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                size = os.fstat(raw.fileno()).st_size
                yield cls(path, open_gzip(raw, path, size) if compressed else raw)
        except FileNotFoundError:
            raise NcelmError(f"there is no file {path}: give the path of an ARPA file") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise NcelmError(f"{path} is damaged or truncated ({error}): copy it again") from error
        except OSError as error:
            raise NcelmError(f"cannot read {path}: {error.strerror or error}") from error

    def ends_within_line(self) -> bool:
        """Return whether the block ends within a line that is not too long."""
        return self.block.find(b"\n", self.at) < 0 and len(self.block) - self.at <= MAX_LINE_BYTES

    def read_block(self) -> bool:
        """Read the next block of the file; return whether there was one."""
        new = self._file.read(BLOCK_BYTES)
        self.block, self.at = self.block[self.at :] + new, 0
        return bool(new)

    def next(self) -> bytes:
        """Advance to the next non-blank line and return it without surrounding white space."""
        for _ in range(MAX_BLANK_LINES + 1):
            while (end := self.block.find(b"\n", self.at)) < 0:
                if len(self.block) - self.at > MAX_LINE_BYTES:
                    raise self.error("this is not a text file: give an ARPA file")
                if not self.read_block():
                    end = len(self.block)
                    break
            line = self.block[self.at : end]
            self.number += 1
            if not line and end == len(self.block):
                raise self.error("the file ends before \\end\\: it is truncated, or not an ARPA file")
            self.at = min(end + 1, len(self.block))
            if b"\0" in line:
                raise self.error("this is not a text file: give an ARPA file")
            self.current = line.removeprefix(b"\xef\xbb\xbf").strip() if self.number == 1 else line.strip()
            if self.current:
                return self.current
        raise self.error(f"there are more than {MAX_BLANK_LINES:,} blank lines: this is not an ARPA file")

    def error(self, problem: str) -> NcelmError:
        """Return the error for a problem in the current line."""
        return NcelmError(f"{self.path}, line {self.number:,}: {problem}")


def _quoted(field: bytes) -> str:
    """Return the start of a field, for an error message."""
    return repr(field[:40].decode(errors="replace"))


def _read_counts(lines: _Lines) -> list[int]:
    """Return the number of n-grams of each order, from the header. `lines` is then at the first section."""
    while lines.next() != b"\\data\\":  # lines before it are comments
        if lines.number > MAX_HEADER_LINES:
            raise lines.error("there is no \\data\\ at the beginning: this is not an ARPA file")
    counts: list[int] = []
    while (line := lines.next()).startswith(b"ngram "):
        order, equals, count = line.removeprefix(b"ngram ").replace(b" ", b"").partition(b"=")
        if order != b"%d" % (len(counts) + 1) or not equals or not count.isdigit() or len(count) > 15:
            raise lines.error(f"expected 'ngram {len(counts) + 1}=…', found {_quoted(line)}")
        counts.append(int(count))
    if not 1 <= len(counts) <= MAX_ORDER:
        raise lines.error(f"the header has {len(counts)} orders: ncelm reads 1 to {MAX_ORDER}")
    return counts


class _Section(NamedTuple):
    """The n-grams of one order as they are in the file."""

    words: np.ndarray  # (G_n, n) int32
    log_probabilities: np.ndarray  # (G_n,) float32
    log_backoffs: np.ndarray  # (G_n,) float32, NaN where there is none


def _read_words(lines: _Lines, count: int, names: list[bytes]) -> _Section:
    """Return the 1-grams and append the words to `names`. `lines` is then at the next section."""
    _expect_section(lines, 1)
    logs: list[float] = []
    backoffs, known = [], set()
    while not (line := lines.next()).startswith(b"\\"):
        if len(logs) == count:
            raise _too_many(lines, 1, count)
        log_p, (word,), backoff = _parse(lines, line, 1)
        try:
            is_one_word = word.decode().split() == [word.decode()]
        except UnicodeDecodeError:
            raise lines.error(f"the word {_quoted(word)} is not UTF-8: convert the file first") from None
        if not is_one_word:
            raise lines.error(f"the word {_quoted(word)} contains a blank")
        if word in known:
            raise lines.error(f"the word {_quoted(word)} is a duplicate")
        known.add(word)
        names.append(word)
        logs.append(log_p)
        backoffs.append(backoff)
    _check_count(lines, 1, len(logs), count)
    return _Section(
        np.arange(count, dtype=np.int32)[:, None], np.array(logs, np.float32), np.array(backoffs, np.float32)
    )


def _read_section(
    lines: _Lines, n: int, count: int, spelling: "Spelling", ids: dict[bytes, int], progress: Callable[[int], None]
) -> _Section:
    """Return the n-grams of an order above 1. `lines` is then at the next section."""
    from ncelm.kernels import arpa as kernels

    _expect_section(lines, n)
    progress(0)
    pieces: list[_Section] = []  # memory depends on the size of the file, not on the count in its header
    done = 0
    while True:
        piece = _Section(np.empty((BATCH, n), np.int32), np.empty(BATCH, np.float32), np.empty(BATCH, np.float32))
        at, rows = kernels.read_ngrams(np.frombuffer(lines.block, np.uint8), lines.at, spelling, *piece)
        lines.at, lines.number = int(at), lines.number + rows
        if rows:
            # copied, because a slice would keep the whole piece in memory
            pieces.append(piece if rows == BATCH else _Section(*(array[:rows].copy() for array in piece)))
        elif lines.ends_within_line() and lines.read_block():
            continue
        else:
            line = lines.next()
            if line.startswith(b"\\"):
                break
            log_p, words, backoff = _parse(lines, line, n)
            for word in words:
                if word not in ids:
                    raise lines.error(f"the word {_quoted(word)} is not among the 1-grams")
            row = np.array([[ids[word] for word in words]], np.int32)
            pieces.append(_Section(row, np.array([log_p], np.float32), np.array([backoff], np.float32)))
            rows = 1
        done += rows
        if done > count:
            raise _too_many(lines, n, count)
        progress(done)
    _check_count(lines, n, done, count)
    return _Section(*(np.concatenate(arrays) for arrays in zip(*pieces, strict=True)))


def _expect_section(lines: _Lines, n: int) -> None:
    if lines.current != b"\\%d-grams:" % n:
        raise lines.error(f"expected \\{n}-grams:, found {_quoted(lines.current)}")


def _too_many(lines: _Lines, n: int, count: int) -> NcelmError:
    return lines.error(f"there are more {n}-grams than the header says, {count:,}")


def _check_count(lines: _Lines, n: int, found: int, count: int) -> None:
    if found != count:
        raise lines.error(f"there are {found:,} {n}-grams, but the header says {count:,}")
    if found == 0:
        raise lines.error(f"there are no {n}-grams: a model has at least one of each order")


def _parse(lines: _Lines, line: bytes, n: int) -> tuple[float, list[bytes], float]:
    """Return log10 P, the words, and log10 of the back-off weight (NaN if there is none) of a line of n-grams."""
    fields = line.split()
    if not n + 1 <= len(fields) <= n + 2:
        words = "1 word" if n == 1 else f"{n} words"
        raise lines.error(
            f"expected a number, {words} without blanks inside, and optionally a back-off weight, found "
            f"{len(fields)} fields"
        )
    try:
        log_p = float(fields[0])
        backoff = float(fields[n + 1]) if len(fields) == n + 2 else math.nan
    except ValueError:
        raise lines.error(f"{_quoted(fields[0])} or {_quoted(fields[-1])} is not a number") from None
    log_p = float(LOG_ZERO) if log_p == -math.inf else log_p
    if not -MAX_LOG < log_p <= 0.0:
        raise lines.error(f"{_quoted(fields[0])} is not the logarithm of a probability: it must be at most 0")
    if len(fields) == n + 2 and not abs(backoff) < MAX_LOG:
        raise lines.error(f"{_quoted(fields[-1])} is not the logarithm of a back-off weight")
    return log_p, fields[1 : n + 1], backoff


def _assemble(
    path: Path, sections: list[_Section], names: list[str], like: Vocabulary | None
) -> tuple[NGramModel, Vocabulary]:
    """Return the n-grams of all sections as a trie, and the vocabulary."""
    if "<UNK>" in names and UNKNOWN not in names:  # the spelling of some tools
        names[names.index("<UNK>")] = UNKNOWN
    if END not in names:
        raise NcelmError(f"{path} has no {END} among its 1-grams: give a model of sentences")
    vocabulary = like or Vocabulary(
        words := [UNKNOWN, END, *(name for name in names if name not in (UNKNOWN, END, BEGIN))],
        np.zeros(len(words), np.int64),
    )
    if like:
        _check_same_words(path, names, like)
    begin_id = len(vocabulary)
    size = begin_id + 1  # ids are below this
    spell = (*vocabulary.words, BEGIN)
    new_ids = np.array([begin_id if name == BEGIN else vocabulary.id(name) for name in names])
    logs, backoffs = np.full(size, LOG_ZERO), np.zeros(size, np.float32)  # <unk> and <s> may be missing
    logs[vocabulary.unknown_id] = LOG_MISSING
    logs[new_ids] = sections[0].log_probabilities
    backoffs[new_ids] = sections[0].log_backoffs
    all_words, all_logs, all_backoffs, children = [np.arange(size, dtype=np.int32)], [logs], [backoffs], []
    keys: list[np.ndarray] = []  # of each order above 1, sorted: rank of the history * size + last word
    for n, section in enumerate(sections[1:], 2):
        ids = new_ids[section.words]  # (G_n, n)
        ranks = ids[:, 0]
        for m in range(2, n):
            key = ranks * size + ids[:, m - 1]
            ranks = np.minimum(np.searchsorted(keys[m - 2], key), keys[m - 2].size - 1)
            missing = np.flatnonzero(keys[m - 2][ranks] != key)
            if missing.size:
                spelled = " ".join(spell[i] for i in ids[missing[0]])
                raise NcelmError(f"{path}: the first {m} words of the {n}-gram {spelled!r} are not among the {m}-grams")
        key = ranks * size + ids[:, n - 1]
        order = np.argsort(key, kind="stable")
        key = key[order]
        duplicates = np.flatnonzero(key[1:] == key[:-1])
        if duplicates.size:
            spelled = " ".join(spell[i] for i in ids[order[duplicates[0]]])
            raise NcelmError(f"{path}: the {n}-gram {spelled!r} is a duplicate")
        bounds = np.searchsorted(key, np.arange(all_words[-1].size + 1, dtype=np.int64) * size)
        without_backoff = np.count_nonzero((np.diff(bounds) > 0) & np.isnan(all_backoffs[-1]))
        if without_backoff:
            raise NcelmError(
                f"{path}: {without_backoff:,} {n - 1}-grams have no back-off weight, but longer n-grams start with them"
            )
        keys.append(key)
        children.append(bounds[:-1])
        all_words.append((key % size).astype(np.int32))
        all_logs.append(section.log_probabilities[order])
        all_backoffs.append(section.log_backoffs[order])
    counts = tuple(len(level) for level in all_words)
    starts = np.cumsum((0, *counts))
    model = NGramModel(
        counts=counts,
        words=np.concatenate(all_words),
        children=np.concatenate([*(level + starts[n] for n, level in enumerate(children, 1)), starts[-1:]]),
        log_probabilities=np.concatenate(all_logs),
        log_backoffs=np.nan_to_num(np.concatenate([*all_backoffs[:-1], np.zeros(0, np.float32)])),
    )
    return model, vocabulary


def _check_same_words(path: Path, names: list[str], vocabulary: Vocabulary) -> None:
    """Raise `NcelmError` if the words of a file are not those of a vocabulary, except for <unk> and <s>."""
    in_file, expected = set(names) - {BEGIN}, set(vocabulary.words)
    for difference, what in ((in_file - expected, "additional"), (expected - in_file - {UNKNOWN}, "missing")):
        if difference:
            raise NcelmError(
                f"{path} does not have the words of `like`: {len(difference):,} are {what}, such as "
                f"{min(difference)!r}: leave `like` out, or give the store or run that the file was made from"
            )
