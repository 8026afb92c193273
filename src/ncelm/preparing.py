"""From text files to a token store, on all cores and in bounded memory.

The text is cut into units: files, or parts of large files. Worker processes tokenise one unit after another;
each unit's words are numbered as they turn up and its numbers are spilled to disk (0 ends a sentence), its
words beside them. Then this process picks the validation and test sentences, counts the training words,
makes the vocabulary, and streams the units, in their order, through a table from numbers to ids. Units do
not depend on the number of workers, so neither does the store.
"""

import itertools
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ncelm.corpus import SPLITS, Boundary, SplitWriter, TokenStore, id_type, write_description
from ncelm.errors import NcelmError
from ncelm.files import new_folder, write_errors
from ncelm.text import (
    PUNKT_TRAINING_CHARACTERS,
    OnBytes,
    SentenceSplitter,
    TextSettings,
    byte_ranges,
    check_encoding,
    file_size,
    read_lines,
    read_prose,
)
from ncelm.vocabulary import Vocabulary, check_cut

Paths = Path | str | Sequence[Path | str] | None
HeldOut = dict[str, npt.NDArray[np.int64]]  # split -> sentences of the training text, sorted
Punkt = Literal["english", "train"]

# Prose takes ten times longer than lines: smaller units keep all cores busy to the end.
LINES_UNIT, PROSE_UNIT = 32 << 20, 8 << 20  # bytes
# Bytes that are read in the time that starting a process takes.
LINES_WORTH_A_PROCESS, PROSE_WORTH_A_PROCESS = 8 << 20, 1 << 20
SPILLS = "spills"  # a folder in the store in the making
WORKER = "from ncelm.preparing import work; work()"  # what a worker process runs
BLOCK = 1 << 20  # numbers handled at a time


def prepare(
    texts: Paths = None,
    *,
    out: Path | str,
    train: Paths = None,
    valid: Paths = None,
    test: Paths = None,
    boundary: Boundary | None = None,
    lowercase: bool = False,
    min_count: int = 1,
    vocabulary_size: int | None = None,
    valid_sentences: int | None = None,
    test_sentences: int | None = None,
    seed: int = 0,
    punkt: Literal["english", "train"] = "english",
    encoding: str = "utf-8",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TokenStore:
    """Make a token store at `out` and open it.

    Args:
        texts: files or folders of prose: Punkt finds the sentences, the Treebank tokenizer the words.
        out: the store's folder, which must not exist.
        train: instead of `texts`, files with one sentence a line and blanks between words.
        valid: files like those of `train`, for validation.
        test: likewise, for testing.
        boundary: whether contexts run on over sentence ends ("stream", the default for `train`) or stay
            within the sentence ("sentence", the default for prose).
        lowercase: turn all words to lower case.
        min_count: words rarer than this in the training text become `<unk>`.
        vocabulary_size: keep at most so many words, counting `<unk>` and `</s>`; None keeps all.
        valid_sentences: take so many sentences out of the training text at random, for validation. By default
            none for `train`, and for prose one in twenty, at most 500.
        test_sentences: likewise, for testing.
        seed: which sentences those are.
        punkt: NLTK's "english" sentence model, or "train" one on the text itself.
        encoding: of the files.
        workers: processes to tokenise with; by default one for each core.
        progress: called with the bytes read so far and the bytes in all.
    """
    out = Path(out)
    files = _files(texts, train, valid, test)
    prose = not _several(train)
    text = TextSettings("treebank" if prose else "whitespace", lowercase)
    boundary = boundary or ("sentence" if prose else "stream")
    _check(files, boundary, punkt, encoding, seed, workers, valid_sentences, test_sentences)
    check_cut(min_count, vocabulary_size)
    with new_folder(out) as folder:
        (folder / SPILLS).mkdir()
        if prose:
            _sentence_splitter(punkt, files["train"], encoding).save(folder)
        units = _units(files, encoding, text, folder)
        sentences = _tokenise(units, workers, progress)
        found = Counter(dict.fromkeys(files, 0))
        for unit, count in zip(units, sentences, strict=True):
            found[unit.split] += count
        for split in files:
            if not found[split]:
                raise NcelmError(f"there are no words in the {split} text ({files[split][0]}): give another")
        default = min(found["train"] // 20, 500) if prose else 0
        held_out = _held_out(
            found["train"],
            default if valid_sentences is None else valid_sentences,
            default if test_sentences is None else test_sentences,
            seed,
        )
        # Training units come first, so that their sentences are numbered from 0 on.
        firsts = itertools.accumulate([0, *sentences[:-1]])
        spills = [_Spill(*one, held_out) for one in zip(units, firsts, sentences, strict=True)]
        vocabulary = _vocabulary(spills, min_count, vocabulary_size)
        vocabulary.save(folder / "vocab.txt")
        write_description(
            folder,
            boundary=boundary,
            vocabulary=vocabulary,
            text=text,
            punkt=punkt if prose else None,
            splits=_write_splits(folder, spills, vocabulary),
            settings={
                "min_count": min_count,
                "vocabulary_size": vocabulary_size,
                "valid_sentences": valid_sentences,
                "test_sentences": test_sentences,
                "seed": seed,
                "encoding": encoding,
            },
        )
        shutil.rmtree(folder / SPILLS)
    return TokenStore.open(out)


# ---------------------------------------------------------------------------------------------------------
# What the user asked for


def _several(paths: Paths) -> list[Path]:
    return [Path(paths)] if isinstance(paths, Path | str) else [Path(path) for path in paths or ()]


def _files(texts: Paths, train: Paths, valid: Paths, test: Paths) -> dict[str, list[Path]]:
    """Return the files of each split that has any, all of them there."""
    if bool(_several(texts)) == bool(_several(train)):
        raise NcelmError("give either prose (files or folders) or --train files with one sentence a line")
    if _several(texts) and (_several(valid) or _several(test)):
        raise NcelmError(
            "--valid and --test files go with --train; for prose, use --valid-sentences and so on"
        )
    given = {
        "train": _several(train) or _all_files(_several(texts)),
        "valid": _several(valid),
        "test": _several(test),
    }
    for path in (path for paths in given.values() for path in paths):
        file_size(path)
    return {split: paths for split, paths in given.items() if paths}


def _all_files(paths: Iterable[Path]) -> list[Path]:
    """Return files as they are and, for folders, all files below that are not hidden, sorted."""

    def refuse(error: OSError) -> None:
        raise NcelmError(f"cannot read the folder {error.filename}: {error.strerror}")

    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        below: list[Path] = []
        for folder, folders, names in os.walk(path, onerror=refuse):
            folders[:] = [name for name in folders if not name.startswith(".")]
            below += [Path(folder, name) for name in names if not name.startswith(".")]
        if not below:
            raise NcelmError(f"there are no files in the folder {path}")
        found += sorted(below)
    return found


def _check(
    files: dict[str, list[Path]],
    boundary: Boundary,
    punkt: Punkt,
    encoding: str,
    seed: int,
    workers: int | None,
    valid_sentences: int | None,
    test_sentences: int | None,
) -> None:
    """Refuse, before any work, choices that cannot be followed."""
    check_encoding(encoding)
    for name, choice, choices in (
        ("boundary", boundary, get_args(Boundary)),
        ("punkt", punkt, get_args(Punkt)),
    ):
        if choice not in choices:
            raise NcelmError(f"--{name} is {choice!r}: it must be {' or '.join(choices)}")
    if seed < 0:
        raise NcelmError(f"--seed is {seed}: it must not be negative")
    if workers is not None and workers < 1:
        raise NcelmError(f"--workers is {workers}: it must be at least 1")
    for split, sentences in (("valid", valid_sentences), ("test", test_sentences)):
        if sentences is not None and split in files:
            raise NcelmError(f"give either --{split} files or --{split}-sentences, not both")
        if sentences is not None and sentences < 0:
            raise NcelmError(f"--{split}-sentences is {sentences}: it must not be negative")


def _sentence_splitter(punkt: Punkt, files: list[Path], encoding: str) -> SentenceSplitter:
    """Return the English model, or one trained on an equal share of every file."""
    if punkt == "english":
        return SentenceSplitter.english()
    share = max(PUNKT_TRAINING_CHARACTERS // len(files), 1000)

    def chunks() -> Iterator[str]:
        for path in files:
            left = share
            for chunk in read_prose(path, encoding):
                yield chunk[:left]
                left -= len(chunk)
                if left <= 0:
                    break

    return SentenceSplitter.train(chunks())


# ---------------------------------------------------------------------------------------------------------
# One unit: text to numbers


@dataclass(frozen=True)
class Unit:
    """A file, or a part of one, for one worker to tokenise."""

    number: int
    split: str
    path: str
    start: int
    stop: int | None
    bytes: int
    encoding: str
    text: TextSettings
    folder: str  # of the store in the making, where punkt.json is and the spilled numbers go

    @property
    def numbers_file(self) -> Path:
        """Where the unit's sentences are spilled, as numbers, with a 0 after each."""
        return Path(self.folder, SPILLS, f"{self.number}.numbers")

    @property
    def words_file(self) -> Path:
        """Where the words are, one a line, in the order of their numbers, from 1."""
        return Path(self.folder, SPILLS, f"{self.number}.words")


def _units(files: dict[str, list[Path]], encoding: str, text: TextSettings, folder: Path) -> list[Unit]:
    prose = text.tokenizer == "treebank"
    units: list[Unit] = []
    for split, paths in files.items():
        for path in paths:
            for start, stop in byte_ranges(
                path, encoding, PROSE_UNIT if prose else LINES_UNIT, at_blank_lines=prose
            ):
                size = (file_size(path) if stop is None else stop) - start
                units.append(
                    Unit(len(units), split, str(path), start, stop, size, encoding, text, str(folder))
                )
    return units


class _Numbers(dict[str, int]):
    """Numbers words 1, 2, 3, … in the order in which they are asked for."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self) + 1
        return number


def tokenise_unit(unit: Unit, splitter: SentenceSplitter | None, on_bytes: OnBytes | None) -> int:
    """Spill a unit's sentences as numbers and return how many sentences there are."""
    sentences = 0
    numbers = _Numbers()
    buffer = array("I")
    with write_errors(unit.numbers_file), unit.numbers_file.open("wb") as file:
        for sentence in _sentences(unit, splitter, on_bytes):
            words = unit.text.words(sentence)
            if not words:
                continue
            buffer.extend(map(numbers.__getitem__, words))
            buffer.append(0)
            sentences += 1
            if len(buffer) >= BLOCK:
                buffer.tofile(file)
                del buffer[:]
        buffer.tofile(file)
        unit.words_file.write_bytes("\n".join(numbers).encode("utf-8", "surrogatepass"))
    return sentences


def _sentences(unit: Unit, splitter: SentenceSplitter | None, on_bytes: OnBytes | None) -> Iterator[str]:
    where: Any = {"start": unit.start, "stop": unit.stop, "on_bytes": on_bytes}
    if splitter is None:
        yield from read_lines(unit.path, unit.encoding, **where)
    else:
        for chunk in read_prose(unit.path, unit.encoding, **where):
            yield from splitter.sentences(chunk)


def _splitter_of(unit: Unit) -> SentenceSplitter | None:
    return SentenceSplitter.load(Path(unit.folder)) if unit.text.tokenizer == "treebank" else None


# ---------------------------------------------------------------------------------------------------------
# All units, in this process or in several


def _tokenise(
    units: list[Unit], workers: int | None, progress: Callable[[int, int], None] | None
) -> list[int]:
    """Tokenise all units and return how many sentences each has."""
    total = sum(unit.bytes for unit in units)
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(min(done, total), total)

    if workers is None:
        worth = PROSE_WORTH_A_PROCESS if units[0].text.tokenizer == "treebank" else LINES_WORTH_A_PROCESS
        workers = min(_cores(), 1 + total // worth)
    workers = min(workers, len(units))
    if workers == 1:
        splitter = _splitter_of(units[0])
        return [tokenise_unit(unit, splitter, on_bytes) for unit in units]
    return _in_processes(units, workers, on_bytes)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_processes(units: list[Unit], workers: int, on_bytes: OnBytes) -> list[int]:
    """Tokenise units in worker processes, each fed by a thread of this one.

    The processes are plain commands and not `multiprocessing`, which would run the user's script once more in
    each of them, and so needs scripts written for it.
    """
    todo: queue.SimpleQueue[Unit] = queue.SimpleQueue()
    for unit in units:
        todo.put(unit)
    news: queue.SimpleQueue[Any] = queue.SimpleQueue()  # from the threads: what `_feed` says
    sentences = [0] * len(units)
    processes: list[subprocess.Popen[str]] = []
    threads: list[threading.Thread] = []
    try:
        for number in range(workers):
            log = Path(units[0].folder, SPILLS, f"worker-{number}.log")
            processes.append(_start_worker(log))
            threads.append(threading.Thread(target=_feed, args=(processes[-1], log, todo, news), daemon=True))
            threads[-1].start()
        running = workers
        while running:
            kind, value = news.get()
            if kind == "bytes":
                on_bytes(value)
            elif kind == "done":
                number, sentences[number] = value
            elif kind == "failed":
                raise value
            else:
                running -= 1
        return sentences
    finally:  # also on Ctrl-C: no worker outlives this call
        for process in processes:
            process.kill()
        for thread in threads:
            thread.join()
        for process in processes:
            with process:  # closes the pipes and waits
                pass


def _start_worker(log: Path) -> "subprocess.Popen[str]":
    with log.open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            encoding="ascii",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the workers
        )


def _feed(
    process: "subprocess.Popen[str]",
    log: Path,
    todo: "queue.SimpleQueue[Unit]",
    news: "queue.SimpleQueue[Any]",
) -> None:
    """Hand units to one worker until none are left, and pass on what it answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        while True:
            unit = todo.get_nowait()
            print(json.dumps(asdict(unit)), file=process.stdin, flush=True)
            kind = ""
            while kind != "done":
                kind, value = json.loads(process.stdout.readline())
                news.put(("failed", NcelmError(value)) if kind == "error" else (kind, value))
    except queue.Empty:
        news.put(("idle", None))
    except (OSError, ValueError):  # no answer, and perhaps nobody to hear the question
        news.put(("failed", _death(process, log)))


def _death(process: "subprocess.Popen[str]", log: Path) -> NcelmError:
    try:
        code = process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        code = 0
    if code < 0:
        return NcelmError(
            f"a worker process was killed (signal {-code}), perhaps for want of memory: "
            "try again with --workers 1"
        )
    said = log.read_text(errors="replace").split("\n")[-2:]
    return NcelmError(
        f"a worker process stopped ({said[0] or f'exit code {code}'}): try again with --workers 1"
    )


def work() -> None:
    """Be a worker process: read one unit a line, answer in lines of [kind, value]."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints must not pass for an answer

    def answer(kind: str, value: Any) -> None:
        print(json.dumps([kind, value]), file=answers, flush=True)

    splitter = None
    for line in sys.stdin:
        fields = json.loads(line)
        unit = Unit(**{**fields, "text": TextSettings(**fields["text"])})
        try:
            splitter = splitter or _splitter_of(unit)
            sentences = tokenise_unit(unit, splitter, lambda count: answer("bytes", count))
            answer("done", [unit.number, sentences])
        except NcelmError as error:
            answer("error", str(error))
        except MemoryError:
            answer("error", f"there is not enough memory to prepare {unit.path}: try again with --workers 1")


# ---------------------------------------------------------------------------------------------------------
# From numbers to ids


class _Spill:
    """A tokenised unit: numbers on disk, and which of its sentences are held out for which split."""

    def __init__(self, unit: Unit, first: int, sentences: int, held_out: HeldOut) -> None:
        """Take the number of the unit's first sentence among all sentences, and how many it has."""
        self.unit = unit
        self.held_out = {}
        if unit.split == "train":
            for split, chosen in held_out.items():
                low, high = np.searchsorted(chosen, (first, first + sentences))
                if low < high:
                    self.held_out[split] = chosen[low:high] - first

    def words(self) -> list[str]:
        """Return the word of each number, from number 1 on."""
        return self.unit.words_file.read_bytes().decode("utf-8", "surrogatepass").split()

    def parts(self) -> Iterator[tuple[str, npt.NDArray[np.uint32]]]:
        """Yield all numbers in their order, in blocks, each with the split it belongs to."""
        sentence = 0  # the one that the block begins in
        with self.unit.numbers_file.open("rb") as file:
            while (block := np.fromfile(file, dtype=np.uint32, count=BLOCK)).size:
                rest = np.ones(block.size, dtype=bool)
                if self.held_out:
                    ends = block == 0
                    sentences = sentence + np.cumsum(ends) - ends  # (n,) the sentence that each number is in
                    sentence += int(np.count_nonzero(ends))
                for split, chosen in self.held_out.items():
                    place = np.searchsorted(chosen, sentences)  # (n,)
                    here = chosen[np.minimum(place, chosen.size - 1)] == sentences
                    rest &= ~here
                    yield split, block[here]
                yield self.unit.split, block[rest]


def _held_out(sentences: int, valid: int, test: int, seed: int) -> HeldOut:
    """Pick sentences of the training text at random for the other splits."""
    if valid + test >= sentences:
        raise NcelmError(
            f"cannot take {valid:,} validation and {test:,} test sentences out of {sentences:,}: "
            "lower --valid-sentences and --test-sentences or give more text"
        )
    chosen = np.random.default_rng(seed).choice(sentences, valid + test, replace=False)
    picked = {"valid": np.sort(chosen[:valid]), "test": np.sort(chosen[valid:])}
    return {split: which for split, which in picked.items() if which.size}


def _vocabulary(spills: list[_Spill], min_count: int, max_size: int | None) -> Vocabulary:
    """Count the training words and make the vocabulary."""
    counts: Counter[str] = Counter()
    sentences = 0
    for spill in (spill for spill in spills if spill.unit.split == "train"):
        words = spill.words()
        tally = np.zeros(len(words) + 1, dtype=np.int64)
        for split, numbers in spill.parts():
            if split == "train":
                tally += np.bincount(numbers, minlength=tally.size)
        sentences += int(tally[0])
        for word, count in zip(words, tally[1:].tolist(), strict=True):
            counts[word] += count
    vocabulary = Vocabulary.from_counts(counts, sentences, min_count, max_size)
    if len(vocabulary) < 4:
        many = "only one word" if len(vocabulary) == 3 else "no words"
        raise NcelmError(
            f"the vocabulary has {many} beside <unk> and </s>: lower --min-count or give more text"
        )
    return vocabulary


def _write_splits(folder: Path, spills: list[_Spill], vocabulary: Vocabulary) -> dict[str, SplitWriter]:
    """Write the ids of every split that has sentences."""
    present = {spill.unit.split for spill in spills}.union(*(spill.held_out for spill in spills))
    with ExitStack() as stack:
        dtype = id_type(len(vocabulary))
        writers = {
            split: stack.enter_context(SplitWriter(folder, split, dtype))
            for split in SPLITS
            if split in present
        }
        for spill in spills:
            ids = np.concatenate(([vocabulary.end_id], vocabulary.encode(spill.words())))  # number -> id
            for split, numbers in spill.parts():
                writers[split].write(ids[numbers])
    return writers
