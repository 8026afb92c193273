"""ARPA files: the text form in which n-gram models travel between SRILM, KenLM and others.

    \\data\\
    ngram 1=3
    …
    \\1-grams:
    -1.20412    the    -0.30103
    …
    \\end\\

A line has log10 P, the words, and log10 of the back-off weight if longer n-grams begin with this one. What is read can
be written again without loss: numbers stay what they are, to the precision of float32.

Ordinary lines are written and read by compiled code (`arpa_kernels`); whatever looks odd is read again, slowly, by
Python, which can say what is wrong.
"""

import gzip
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np

from ncelm.errors import NcelmError
from ncelm.io.files import atomic_write, check_not_existing
from ncelm.kernels import arpa as arpa_kernels
from ncelm.kernels.arpa import Spelling
from ncelm.models.ngram.model import LEAST, MOST_LOG, MOST_ORDERS, NGramModel
from ncelm.text.vocabulary import END, UNKNOWN, Vocabulary

BEGIN = "<s>"
BATCH = 1 << 17  # n-grams written or read at a time
BLOCK_BYTES = 1 << 23
LONGEST_LINE = 1 << 20  # bytes

OnNgrams = Callable[[int, int], None]  # hears how many n-grams of how many are done


# -- writing -----------------------------------------------------------------------------------------------------------


def write_arpa(path: Path, model: NGramModel, vocabulary: Vocabulary, progress: OnNgrams | None = None) -> None:
    """Write a model as an ARPA file, which must not exist; packed if its name ends with .gz."""
    check_not_existing(path)
    letters, bounds, _ = _spelling([*(word.encode() for word in vocabulary.words), BEGIN.encode()])
    lengths = np.diff(bounds)
    done, total = 0, sum(model.counts)
    with atomic_write(path) as raw, _packed(raw, path) as file:
        file.write(b"\\data\\\n" + b"".join(b"ngram %d=%d\n" % each for each in enumerate(model.counts, 1)))
        for n, first, words in _batches(model):
            if first == 0:
                file.write(b"\n\\%d-grams:\n" % n)
            here = slice(sum(model.counts[: n - 1]) + first, sum(model.counts[: n - 1]) + first + len(words))
            backoffs = model.log_backoffs[here] if n < model.order else np.zeros(0, np.float32)
            line_ends = (2 * arpa_kernels.LONGEST_NUMBER + 3 + n) * len(words)
            out = np.empty(int(lengths[words].sum()) + line_ends, np.uint8)
            size = arpa_kernels.write_ngrams(words, model.log_probabilities[here], backoffs, letters, bounds, out)
            file.write(out[:size].data)
            done += len(words)
            if progress:
                progress(done, total)
        file.write(b"\n\\end\\\n")


def _batches(model: NGramModel) -> Iterator[tuple[int, int, np.ndarray]]:
    """All n-grams, order by order, some at a time: order, rank of the first, words (n-grams, n)."""
    begins = np.cumsum((0, *model.counts))
    for n, count in enumerate(model.counts, 1):
        for first in range(0, count, BATCH):
            places = np.arange(first, min(first + BATCH, count)) + begins[n - 1]
            words = np.empty((places.size, n), np.int32)
            words[:, n - 1] = model.words[places]
            for m in range(n - 1, 0, -1):  # up the trie: the history of each
                level = model.children[begins[m - 1] : begins[m]]
                places = np.searchsorted(level, places, side="right") - 1 + begins[m - 1]
                words[:, m - 1] = model.words[places]
            yield n, first, words


@contextmanager
def _packed(raw: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """The file itself, or a packer on top of it if the name says so."""
    if path.suffix != ".gz":
        yield raw
        return
    # no time in the header: the same model gives the same bytes
    with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0, compresslevel=6) as file:
        yield cast(IO[bytes], file)


def _spelling(words: list[bytes]) -> Spelling:
    bounds = np.cumsum([0, *map(len, words)], dtype=np.int64)
    letters = np.frombuffer(b"".join(words), np.uint8)
    slots = np.full(1 << (2 * len(words)).bit_length(), -1, np.int32)
    arpa_kernels.fill_slots(letters, bounds, slots)
    return Spelling(letters, bounds, slots)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_arpa(
    path: Path, like: Vocabulary | None = None, progress: OnNgrams | None = None
) -> tuple[NGramModel, Vocabulary]:
    """Read an ARPA file, packed or not, and check everything a query relies on.

    With `like`, words get the ids they have there; they must be the same words.
    """
    with _Lines.of(path) as lines:
        counts = _read_counts(lines)
        names: list[bytes] = []  # words in the order of the 1-grams
        sections = [_read_words(lines, counts[0], names)]
        spelling, numbers = _spelling(names), {name: i for i, name in enumerate(names)}
        for n, count in enumerate(counts[1:], 2):
            report = partial(_report, progress, sum(counts[: n - 1]), sum(counts))
            sections.append(_read_section(lines, n, count, spelling, numbers, report))
        if lines.here != b"\\end\\":
            raise lines.error(f"{_shown(lines.here)} stands where \\end\\ should")
    return _assemble(path, sections, [name.decode() for name in names], like)


def _report(progress: OnNgrams | None, before: int, total: int, done: int) -> None:
    if progress:
        progress(min(before + done, total), total)


class _Lines:
    """The lines of a file that are not blank, one at a time, with their numbers."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self._file = path, file
        self.block, self.at = b"", 0  # read, and how far we are in it
        self.number, self.here = 0, b""  # the current line

    @classmethod
    @contextmanager
    def of(cls, path: Path) -> Iterator["_Lines"]:
        """Open a file, packed or not."""
        try:
            with path.open("rb") as raw:
                packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                yield cls(path, cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw)
        except FileNotFoundError:
            raise NcelmError(f"there is no file {path}") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise NcelmError(f"{path} is damaged or cut short ({error}): copy it again") from error
        except OSError as error:
            raise NcelmError(f"cannot read {path}: {error.strerror or error}") from error

    def more(self) -> bool:
        """Read on; is there anything?"""
        new = self._file.read(BLOCK_BYTES)
        self.block, self.at = self.block[self.at :] + new, 0
        return bool(new)

    def next(self) -> bytes:
        """Go to the next line and return it, without blanks around it."""
        while True:
            while (end := self.block.find(b"\n", self.at)) < 0:
                if len(self.block) - self.at > LONGEST_LINE:
                    raise self.error("this is no text: an ARPA file was expected")
                if not self.more():
                    end = len(self.block)
                    break
            line = self.block[self.at : end]
            self.number += 1
            if not line and end == len(self.block):
                raise self.error("the file ends before \\end\\: it was cut short, or it is no ARPA file")
            self.at = min(end + 1, len(self.block))
            if b"\0" in line:
                raise self.error("this is no text: an ARPA file was expected")
            self.here = line.removeprefix(b"\xef\xbb\xbf").strip() if self.number == 1 else line.strip()
            if self.here:
                return self.here

    def error(self, what: str) -> NcelmError:
        """What is wrong at this line."""
        return NcelmError(f"{self.path}, line {self.number:,}: {what}")


def _shown(field: bytes) -> str:
    """A piece of the file, for a message."""
    return repr(field[:40].decode(errors="replace"))


def _read_counts(lines: _Lines) -> list[int]:
    """The header: how many n-grams of each order follow. Leaves `lines` at the first section."""
    while lines.next() != b"\\data\\":  # whatever stands before is a comment
        if lines.number > 1000:
            raise lines.error("there is no \\data\\ at the beginning: this is no ARPA file")
    counts: list[int] = []
    while (line := lines.next()).startswith(b"ngram "):
        order, equals, count = line.removeprefix(b"ngram ").replace(b" ", b"").partition(b"=")
        if order != b"%d" % (len(counts) + 1) or not equals or not count.isdigit() or len(count) > 15:
            raise lines.error(f"{_shown(line)} stands where 'ngram {len(counts) + 1}=…' should")
        counts.append(int(count))
    if not 1 <= len(counts) <= MOST_ORDERS:
        raise lines.error(f"the header names {len(counts)} orders: ncelm reads 1 to {MOST_ORDERS}")
    return counts


class _Section(NamedTuple):
    """The n-grams of one order as they stand in the file."""

    words: np.ndarray  # (G_n, n) int32
    log_probabilities: np.ndarray  # (G_n,) float32
    log_backoffs: np.ndarray  # (G_n,) float32, NaN where there is none


def _read_words(lines: _Lines, count: int, names: list[bytes]) -> _Section:
    """The 1-grams, which name the words. Leaves `lines` at what follows them."""
    _expect_section(lines, 1)
    logs, backoffs, known = [], [], set()
    while not (line := lines.next()).startswith(b"\\"):
        log_p, (word,), backoff = _parse(lines, line, 1)
        try:
            whole = word.decode().split() == [word.decode()]
        except UnicodeDecodeError:
            raise lines.error(f"the word {_shown(word)} is not UTF-8: convert the file first") from None
        if not whole:
            raise lines.error(f"the word {_shown(word)} has a blank in it")
        if word in known:
            raise lines.error(f"the word {_shown(word)} is there twice")
        known.add(word)
        names.append(word)
        logs.append(log_p)
        backoffs.append(backoff)
    _check_count(lines, 1, len(logs), count)
    return _Section(
        np.arange(count, dtype=np.int32)[:, None], np.array(logs, np.float32), np.array(backoffs, np.float32)
    )


def _read_section(
    lines: _Lines, n: int, count: int, spelling: Spelling, numbers: dict[bytes, int], progress: Callable[[int], None]
) -> _Section:
    """The n-grams of an order above 1. Leaves `lines` at what follows them."""
    _expect_section(lines, n)
    progress(0)
    pieces: list[_Section] = []  # as many as the file has, whatever its header says
    done = 0
    while True:
        piece = _Section(np.empty((BATCH, n), np.int32), np.empty(BATCH, np.float32), np.empty(BATCH, np.float32))
        at, rows = arpa_kernels.read_ngrams(np.frombuffer(lines.block, np.uint8), lines.at, spelling, *piece)
        lines.at, lines.number = int(at), lines.number + rows
        if rows:
            # copied: a slice would keep the whole piece
            pieces.append(piece if rows == BATCH else _Section(*(array[:rows].copy() for array in piece)))
        elif lines.block.find(b"\n", lines.at) < 0 and lines.more():
            continue  # only the rest of a line was missing
        else:
            line = lines.next()
            if line.startswith(b"\\"):
                break
            log_p, words, backoff = _parse(lines, line, n)
            for word in words:
                if word not in numbers:
                    raise lines.error(f"the word {_shown(word)} is not among the 1-grams")
            ids = np.array([[numbers[word] for word in words]], np.int32)
            pieces.append(_Section(ids, np.array([log_p], np.float32), np.array([backoff], np.float32)))
            rows = 1
        done += rows
        progress(done)
    _check_count(lines, n, done, count)
    return _Section(*(np.concatenate(arrays) for arrays in zip(*pieces, strict=True)))


def _expect_section(lines: _Lines, n: int) -> None:
    if lines.here != b"\\%d-grams:" % n:
        raise lines.error(f"{_shown(lines.here)} stands where \\{n}-grams: should")


def _check_count(lines: _Lines, n: int, found: int, count: int) -> None:
    if found != count:
        raise lines.error(f"there are {found:,} {n}-grams, but the header says {count:,}")
    if found == 0:
        raise lines.error(f"there are no {n}-grams: a model has at least one of each order")


def _parse(lines: _Lines, line: bytes, n: int) -> tuple[float, list[bytes], float]:
    """A line of the section of n-grams: log P, words, back-off (NaN if there is none)."""
    fields = line.split()
    if not n + 1 <= len(fields) <= n + 2:
        words = "1 word" if n == 1 else f"{n} words"
        raise lines.error(
            f"here should be a number, {words} with no blank inside, and perhaps a back-off weight, not "
            f"{len(fields)} fields"
        )
    try:
        log_p = float(fields[0])
        backoff = float(fields[n + 1]) if len(fields) == n + 2 else math.nan
    except ValueError:
        raise lines.error(f"{_shown(fields[0])} or {_shown(fields[-1])} is not a number") from None
    log_p = float(LEAST) if log_p == -math.inf else log_p
    if not -MOST_LOG < log_p <= 0.0:
        raise lines.error(f"{_shown(fields[0])} is not the logarithm of a probability, 0 or less")
    if len(fields) == n + 2 and not abs(backoff) < MOST_LOG:
        raise lines.error(f"{_shown(fields[-1])} is not the logarithm of a back-off weight")
    return log_p, fields[1 : n + 1], backoff


def _assemble(
    path: Path, sections: list[_Section], names: list[str], like: Vocabulary | None
) -> tuple[NGramModel, Vocabulary]:
    """Sort the n-grams into a trie."""
    if "<UNK>" in names and UNKNOWN not in names:  # as some write it
        names[names.index("<UNK>")] = UNKNOWN
    if END not in names:
        raise NcelmError(f"{path} has no {END} among its 1-grams: it is no model of sentences")
    vocabulary = like or Vocabulary(
        words := [UNKNOWN, END, *(name for name in names if name not in (UNKNOWN, END, BEGIN))],
        np.zeros(len(words), np.int64),
    )
    if like:
        _check_same_words(path, names, like)
    begin = len(vocabulary)
    size = begin + 1
    spell = (*vocabulary.words, BEGIN)
    renumber = np.array([begin if name == BEGIN else vocabulary.id(name) for name in names])
    logs, backoffs = np.full(size, LEAST), np.zeros(size, np.float32)  # <unk> and <s> may be missing
    logs[renumber] = sections[0].log_probabilities
    backoffs[renumber] = sections[0].log_backoffs
    all_words, all_logs, all_backoffs, children = [np.arange(size, dtype=np.int32)], [logs], [backoffs], []
    keys: list[np.ndarray] = []  # of each order above 1, sorted: rank of the history, last word
    for n, section in enumerate(sections[1:], 2):
        ids = renumber[section.words]  # (G_n, n)
        ranks = ids[:, 0]
        for m in range(2, n):
            key = ranks * size + ids[:, m - 1]
            ranks = np.minimum(np.searchsorted(keys[m - 2], key), keys[m - 2].size - 1)
            missing = np.flatnonzero(keys[m - 2][ranks] != key)
            if missing.size:
                spelled = " ".join(spell[i] for i in ids[missing[0]])
                raise NcelmError(
                    f"{path}: the {n}-gram {spelled!r} is there, but its first {m} words are not among the {m}-grams"
                )
        key = ranks * size + ids[:, n - 1]
        order = np.argsort(key, kind="stable")
        key = key[order]
        twice = np.flatnonzero(key[1:] == key[:-1])
        if twice.size:
            spelled = " ".join(spell[i] for i in ids[order[twice[0]]])
            raise NcelmError(f"{path}: the {n}-gram {spelled!r} is there twice")
        bounds = np.searchsorted(key, np.arange(all_words[-1].size + 1, dtype=np.int64) * size)
        lost = np.count_nonzero((np.diff(bounds) > 0) & np.isnan(all_backoffs[-1]))
        if lost:
            raise NcelmError(
                f"{path}: {lost:,} {n - 1}-grams have no back-off weight, though longer n-grams begin with them"
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


def _check_same_words(path: Path, names: list[str], vocabulary: Vocabulary) -> None:
    """Refuse a file whose words are not those of a vocabulary; <unk> and <s> it need not have."""
    there, wanted = set(names) - {BEGIN}, set(vocabulary.words)
    for some, what in ((there - wanted, "it has"), (wanted - there - {UNKNOWN}, "it lacks")):
        if some:
            raise NcelmError(
                f"{path} has not the words of --like: {what} {len(some):,} others, such as {min(some)!r}: leave --like "
                "out, or give the store or run that the file was made from"
            )
