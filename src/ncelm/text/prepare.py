"""From text files to a token store, on all cores and in bounded memory.

`tokenising` has the text cut into units and spilled to disk as numbers. Then this process picks the validation
and test sentences, counts the training words, makes the vocabulary, and streams the units, in their order,
through a table from numbers to ids. Units do not depend on the number of workers, so neither does the store.
"""

import hashlib
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ncelm.errors import NcelmError
from ncelm.io.files import atomic_folder, check_not_existing, read_json, write_json
from ncelm.text.archives import REPORT, is_archive, unpack, write_report
from ncelm.text.readers import check_encoding, file_size, read_prose
from ncelm.text.sentences import PUNKT_TRAINING_CHARACTERS, SentenceSplitter
from ncelm.text.settings import TextSettings
from ncelm.text.store import SPLITS, Boundary, SplitWriter, TokenStore, id_dtype, write_description
from ncelm.text.tokenize_files import BLOCK, SPILLS, Unit, make_units, tokenise
from ncelm.text.vocabulary import Vocabulary, check_limits

Paths = Path | str | Sequence[Path | str] | None
HeldOut = dict[str, npt.NDArray[np.int64]]  # split -> sentences of the training text, sorted
Punkt = Literal["english", "train"]
PART = "part.json"  # describes a part of a text that was tokenised by itself


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
    gutenberg: bool = False,
    skip_broken: bool = False,
    workers: int | None = None,
    parts: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TokenStore:
    """Make a token store at `out` and open it.

    Args:
        texts: files, folders or tar archives of prose: Punkt finds the sentences, the Treebank tokenizer the words.
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
        gutenberg: the texts are works of Project Gutenberg: take off headers and footers, and write a report of what
            was taken off, works.tsv, into the store. A file that is not in `encoding` is read as latin-1.
        skip_broken: with `gutenberg`, leave a work that is empty or binary out, instead of refusing it.
        workers: processes to tokenise with; by default one for each core.
        parts: the text was tokenised in so many parts by `prepare_part`: put them together instead.
        progress: called with the bytes read so far and the bytes in all.
    """
    job = _Job.of(texts, train, valid, test, boundary, lowercase, punkt, encoding, gutenberg, skip_broken)
    out = Path(out)
    _check_numbers(job.files, seed, workers, valid_sentences, test_sentences)
    check_limits(min_count, vocabulary_size)
    done = _part_folders(out, parts) if parts is not None else []
    with atomic_folder(out) as folder:
        units = job.units(folder, progress)
        sentences = _joined(job, units, done) if done else tokenise(units, workers, progress)
        found = Counter(dict.fromkeys(job.files, 0))
        for unit, count in zip(units, sentences, strict=True):
            found[unit.split] += count
        for split in job.files:
            if not found[split]:
                raise NcelmError(f"there are no words in the {split} text ({job.files[split][0]}): give another")
        default = min(found["train"] // 20, 500) if job.prose else 0
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
            boundary=job.boundary,
            vocabulary=vocabulary,
            text=job.text,
            punkt=punkt if job.prose else None,
            splits=_write_splits(folder, spills, vocabulary),
            settings={
                "min_count": min_count,
                "vocabulary_size": vocabulary_size,
                "valid_sentences": valid_sentences,
                "test_sentences": test_sentences,
                "seed": seed,
                "encoding": encoding,
                "gutenberg": gutenberg,
            },
        )
        shutil.rmtree(folder / SPILLS)
    for part in done:
        shutil.rmtree(part)
    return TokenStore.open(out)


def prepare_part(
    number: int,
    parts: int,
    texts: Paths = None,
    *,
    out: Path | str,
    train: Paths = None,
    valid: Paths = None,
    test: Paths = None,
    boundary: Boundary | None = None,
    lowercase: bool = False,
    punkt: Punkt = "english",
    encoding: str = "utf-8",
    gutenberg: bool = False,
    skip_broken: bool = False,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Tokenise the number-th of so many parts of a text, for `prepare(…, parts=parts)` to put together.

    For texts that several machines are to work on, which see the same files. What is left in a folder beside `out`,
    which is returned, is gone when the store is made; the store is the same as if it had been made in one go.
    """
    if not 1 <= number <= parts:
        raise NcelmError(f"part {number} of {parts} does not exist: parts are numbered from 1")
    job = _Job.of(texts, train, valid, test, boundary, lowercase, punkt, encoding, gutenberg, skip_broken)
    _check_numbers(job.files, 0, workers)
    check_not_existing(Path(out))
    place = _part_folder(Path(out), number, parts)
    with atomic_folder(place) as folder:
        units = job.units(folder, progress)
        mine = units[number - 1 :: parts]
        sentences = tokenise(mine, workers, progress) if mine else []
        plan = job.plan_digest(units)
        write_json(folder / PART, {"format": "ncelm-part", "version": 1, "plan": plan, "sentences": sentences})
        job.remove_unpacked(units)
    return place


@dataclass(frozen=True)
class _Job:
    """Which text is to be read, and how."""

    files: dict[str, list[Path]]  # of each split
    text: TextSettings
    boundary: Boundary
    punkt: Punkt
    encoding: str
    gutenberg: bool
    skip_broken: bool

    @classmethod
    def of(
        cls,
        texts: Paths,
        train: Paths,
        valid: Paths,
        test: Paths,
        boundary: Boundary | None,
        lowercase: bool,
        punkt: Punkt,
        encoding: str,
        gutenberg: bool,
        skip_broken: bool,
    ) -> "_Job":
        files, prose = _files(texts, train, valid, test), not _several(train)
        boundary = boundary or ("sentence" if prose else "stream")
        _check(boundary, punkt, encoding)
        if (gutenberg or skip_broken) and not (prose and gutenberg):
            raise NcelmError(
                "--gutenberg goes with prose (files, folders or tar archives), and --skip-broken with --gutenberg"
            )
        text = TextSettings("treebank" if prose else "whitespace", lowercase)
        return cls(files, text, boundary, punkt, encoding, gutenberg, skip_broken)

    @property
    def prose(self) -> bool:
        """Are there sentences to be found?"""
        return self.text.tokenizer == "treebank"

    def units(self, folder: Path, progress: Callable[[int, int], None] | None) -> list[Unit]:
        """The text, out of its archives and wrappings, in units; `folder` gets what was unpacked and learned."""
        (folder / SPILLS).mkdir()
        files, encoding = dict(self.files), self.encoding
        if self.prose and (self.gutenberg or any(map(is_archive, files["train"]))):
            files["train"], reports = unpack(
                files["train"],
                folder / SPILLS,
                gutenberg=self.gutenberg,
                encoding=encoding,
                skip_broken=self.skip_broken,
                progress=progress,
            )
            if self.gutenberg:
                encoding = "utf-8"  # they are now
                write_report(folder / REPORT, reports)
        if self.prose:
            _sentence_splitter(self.punkt, files["train"], encoding).save(folder)
        return make_units(files, encoding, self.text, folder)

    def plan_digest(self, units: list[Unit]) -> str:
        """Equal for those who have cut the same text in the same way."""
        each = [(unit.split, Path(unit.path).name, unit.start, unit.bytes, unit.encoding) for unit in units]
        plan = json.dumps([each, asdict(self.text), self.punkt if self.prose else None, self.gutenberg])
        return hashlib.sha256(plan.encode()).hexdigest()

    def remove_unpacked(self, units: list[Unit]) -> None:
        """Of a part only the numbers are needed."""
        for unit in units:
            if Path(unit.path).is_relative_to(Path(unit.folder)):
                Path(unit.path).unlink(missing_ok=True)


def _part_folder(out: Path, number: int, parts: int) -> Path:
    return out.with_name(f"{out.name}.part-{number}-of-{parts}")


def _part_folders(out: Path, parts: int) -> list[Path]:
    """The folders of all parts, which must be there."""
    if parts < 1:
        raise NcelmError(f"there cannot be {parts} parts: give at least 1")
    folders = [_part_folder(out, number, parts) for number in range(1, parts + 1)]
    for number, folder in enumerate(folders, 1):
        if not folder.is_dir():
            raise NcelmError(f"{folder} is missing: make it first, with --shard {number}/{parts}")
    return folders


def _joined(job: _Job, units: list[Unit], parts: list[Path]) -> list[int]:
    """Take over what was tokenised in parts; return how many sentences each unit has."""
    sentences = [0] * len(units)
    for number, part in enumerate(parts):
        content, mine = read_json(part / PART, "part of a text", "ncelm-part", 1), units[number :: len(parts)]
        counts = content.get("sentences")
        if content.get("plan") != job.plan_digest(units):
            raise NcelmError(f"{part} was made of another text or with other options: make it anew")
        if not (isinstance(counts, list) and len(counts) == len(mine) and all(type(n) is int for n in counts)):
            raise NcelmError(f"{part / PART} is damaged: make the part anew")
        for unit, count in zip(mine, counts, strict=True):
            sentences[unit.number] = count
            for file in (unit.numbers_file, unit.words_file):
                try:
                    shutil.copyfile(part / SPILLS / file.name, file)
                except OSError as error:
                    raise NcelmError(f"{part / SPILLS / file.name} cannot be read: make the part anew") from error
            numbers = np.memmap(unit.numbers_file, np.uint32, "r") if count else np.zeros(0, np.uint32)
            words = unit.words_file.read_bytes().count(b"\n") + 1
            if np.count_nonzero(numbers == 0) != count or (numbers.size and numbers.max() > words):
                raise NcelmError(f"{part} is damaged: make the part anew")
    return sentences


# ---------------------------------------------------------------------------------------------------------
# What the user asked for


def _several(paths: Paths) -> list[Path]:
    return [Path(paths)] if isinstance(paths, Path | str) else [Path(path) for path in paths or ()]


def _files(texts: Paths, train: Paths, valid: Paths, test: Paths) -> dict[str, list[Path]]:
    """Return the files of each split that has any, all of them there."""
    if bool(_several(texts)) == bool(_several(train)):
        raise NcelmError("give either prose (files or folders) or --train files with one sentence a line")
    if _several(texts) and (_several(valid) or _several(test)):
        raise NcelmError("--valid and --test files go with --train; for prose, use --valid-sentences and so on")
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


def _check(boundary: Boundary, punkt: Punkt, encoding: str) -> None:
    """Refuse, before any work, choices that cannot be followed."""
    check_encoding(encoding)
    for name, choice, choices in (
        ("boundary", boundary, get_args(Boundary)),
        ("punkt", punkt, get_args(Punkt)),
    ):
        if choice not in choices:
            raise NcelmError(f"--{name} is {choice!r}: it must be {' or '.join(choices)}")


def _check_numbers(
    files: dict[str, list[Path]],
    seed: int,
    workers: int | None,
    valid_sentences: int | None = None,
    test_sentences: int | None = None,
) -> None:
    """The same for numbers."""
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
        raise NcelmError(f"the vocabulary has {many} beside <unk> and </s>: lower --min-count or give more text")
    return vocabulary


def _write_splits(folder: Path, spills: list[_Spill], vocabulary: Vocabulary) -> dict[str, SplitWriter]:
    """Write the ids of every split that has sentences."""
    present = {spill.unit.split for spill in spills}.union(*(spill.held_out for spill in spills))
    with ExitStack() as stack:
        dtype = id_dtype(len(vocabulary))
        writers = {
            split: stack.enter_context(SplitWriter(folder, split, dtype)) for split in SPLITS if split in present
        }
        for spill in spills:
            ids = np.concatenate(([vocabulary.end_id], vocabulary.encode(spill.words())))  # number -> id
            for split, numbers in spill.parts():
                writers[split].write(ids[numbers])
    return writers
