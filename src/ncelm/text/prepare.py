"""Text files to a token store, on all cores and in bounded memory.

`tokenize_files` cuts the text into units and writes their local ids to disk. Then this process chooses the validation
and test sentences, counts the training words, makes the vocabulary, and maps the local ids of all units, in order, to
word ids. Units do not depend on the number of workers, so the store does not depend on it either.
"""

import hashlib
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ncelm.arguments import (
    check_bool,
    check_callable,
    check_choice,
    check_int,
    check_path,
    check_paths,
    check_str,
)
from ncelm.errors import NcelmError
from ncelm.io.files import atomic_folder, check_not_existing, file_digest, read_json, write_json
from ncelm.text.archives import REPORT, Extracted, extract_texts, is_archive, write_report
from ncelm.text.readers import check_encoding, file_size, read_prose
from ncelm.text.sentences import PUNKT_TRAINING_CHARACTERS, SentenceSplitter
from ncelm.text.settings import TextSettings
from ncelm.text.store import SPLITS, Boundary, SplitWriter, TokenStore, id_dtype, write_description
from ncelm.text.tokenize_files import BLOCK_TOKENS, SPILLS, Unit, make_units, tokenize_units
from ncelm.text.vocabulary import Vocabulary

Paths = Path | str | Sequence[Path | str] | None
HeldOut = dict[str, npt.NDArray[np.int64]]  # split: sorted indices of sentences of the training text
Punkt = Literal["english", "train"]
MAX_WORKERS, MAX_PARTS = 1024, 100_000
PART = "part.json"  # the description of a part of a text


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
    """Write a token store to `out` and return it.

    Args:
        texts: files, folders or tar archives of prose. Punkt splits them into sentences, the Treebank tokenizer into
            words.
        out: the folder of the store, which must not exist.
        train: instead of `texts`, files with one sentence per line and blanks between words.
        valid: with `train`, files of the validation split.
        test: with `train`, files of the test split.
        boundary: "stream" if contexts extend across sentence ends (the default for `train`), "sentence" if they do not
            (the default for prose).
        lowercase: convert words to lower case.
        min_count: words with fewer occurrences in the training text become `<unk>`.
        vocabulary_size: the largest size of the vocabulary, including `<unk>` and `</s>`; None for no limit.
        valid_sentences: the number of random sentences of the training text that are moved to the validation split.
            The default is 0 for `train`, and 5 % but at most 500 for prose.
        test_sentences: the same for the test split.
        seed: of the choice of these sentences.
        punkt: "english" for NLTK's sentence model, "train" for a model trained on the text.
        encoding: of the files.
        gutenberg: the texts are works of Project Gutenberg. Headers and footers are removed; works.tsv in the store
            lists what was removed. Files that are not in `encoding` are read as latin-1.
        skip_broken: with `gutenberg`, skip works that are empty or binary instead of raising an error.
        workers: the number of processes; one per core by default.
        parts: make the store from this number of parts, which `prepare_part` has tokenized.
        progress: called with the number of bytes read so far, and of all bytes.
    """
    out, seed, min_count = check_path("out", out), check_int("seed", seed, 0), check_int("min_count", min_count, 1)
    vocabulary_size = _check_number("vocabulary_size", vocabulary_size, 4)  # <unk>, </s> and two words
    valid_sentences = _check_number("valid_sentences", valid_sentences, 0)
    test_sentences = _check_number("test_sentences", test_sentences, 0)
    workers = None if workers is None else check_int("workers", workers, 1, MAX_WORKERS)
    parts = None if parts is None else check_int("parts", parts, 1, MAX_PARTS)
    check_callable("progress", progress)
    source = _Source.of(texts, train, valid, test, boundary, lowercase, punkt, encoding, gutenberg, skip_broken)
    for split, sentences_given in (("valid", valid_sentences), ("test", test_sentences)):
        if sentences_given is not None and split in source.files:
            raise NcelmError(f"give either `{split}` files or `{split}_sentences`, not both")
    done = _part_folders(out, parts) if parts is not None else []
    with atomic_folder(out) as folder:
        units, extracted = source.units(folder, progress)
        with _original_names(extracted):
            sentences = _join_parts(source, units, done) if done else tokenize_units(units, workers, progress)
        found = Counter(dict.fromkeys(source.files, 0))
        for unit, count in zip(units, sentences, strict=True):
            found[unit.split] += count
        for split in source.files:
            if not found[split]:
                raise NcelmError(
                    f"there are no words in the {split} text ({source.files[split][0]}): give another text"
                )
        default = min(found["train"] // 20, 500) if source.prose else 0
        held_out = _held_out(
            found["train"],
            default if valid_sentences is None else valid_sentences,
            default if test_sentences is None else test_sentences,
            seed,
        )
        # The units of the training split come first: their sentences are numbered from 0.
        firsts = itertools.accumulate([0, *sentences[:-1]])
        spills = [_Spill(*one, held_out) for one in zip(units, firsts, sentences, strict=True)]
        vocabulary = _vocabulary(spills, min_count, vocabulary_size)
        vocabulary.save(folder / "vocab.txt")
        write_description(
            folder,
            boundary=source.boundary,
            vocabulary=vocabulary,
            text=source.text,
            punkt=punkt if source.prose else None,
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
    """Tokenize part `number` of `parts` of a text and return the folder of the part, next to `out`.

    Several machines that share the files can tokenize one part each. `prepare(…, parts=parts)` with the same arguments
    then makes the store, which is the same as without parts, and removes the folders. Parts are numbered from 1.
    """
    out, parts = check_path("out", out), check_int("parts", parts, 1, MAX_PARTS)
    if check_int("number", number, 1) > parts:
        raise NcelmError(f"part {number} of {parts} does not exist: `number` is at most the number of `parts`")
    workers = None if workers is None else check_int("workers", workers, 1, MAX_WORKERS)
    check_callable("progress", progress)
    source = _Source.of(texts, train, valid, test, boundary, lowercase, punkt, encoding, gutenberg, skip_broken)
    check_not_existing(out)
    path = _part_folder(out, number, parts)
    with atomic_folder(path) as folder:
        units, extracted = source.units(folder, progress)
        own_units = units[number - 1 :: parts]
        with _original_names(extracted):
            sentences = tokenize_units(own_units, workers, progress) if own_units else []
        files = {file.name: file_digest(file) for unit in own_units for file in (unit.numbers_file, unit.words_file)}
        content = {"plan": source.plan_digest(units), "sentences": sentences, "sha256": files}
        write_json(folder / PART, {"format": "ncelm-part", "version": 1, **content})
        source.remove_extracted(units)
    return path


@dataclass(frozen=True)
class _Source:
    """The text and how to read it."""

    files: dict[str, list[Path]]  # by split
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
    ) -> "_Source":
        """Return the source for arguments of `prepare`, which are validated."""
        given = {"texts": texts, "train": train, "valid": valid, "test": test}
        paths = {name: _as_list(name, value) for name, value in given.items()}
        prose = bool(paths["texts"])
        if boundary is None:
            boundary = "sentence" if prose else "stream"
        check_choice("boundary", boundary, get_args(Boundary))
        for name, value in (("lowercase", lowercase), ("gutenberg", gutenberg), ("skip_broken", skip_broken)):
            check_bool(name, value)
        check_choice("punkt", punkt, get_args(Punkt))
        check_encoding(check_str("encoding", encoding))
        files = _files(**paths)
        if (gutenberg or skip_broken) and not (prose and gutenberg):
            raise NcelmError(
                "`gutenberg` goes with prose (files, folders or tar archives), and `skip_broken` with `gutenberg`"
            )
        text = TextSettings("treebank" if prose else "whitespace", lowercase)
        return cls(files, text, boundary, punkt, encoding, gutenberg, skip_broken)

    @property
    def prose(self) -> bool:
        """Whether the text is to be split into sentences."""
        return self.text.tokenizer == "treebank"

    def units(self, folder: Path, progress: Callable[[int, int], None] | None) -> tuple[list[Unit], list[Extracted]]:
        """Return the units of the text. Extracted files and the sentence model are written to `folder`."""
        (folder / SPILLS).mkdir()
        files, encoding = dict(self.files), self.encoding
        extracted: list[Extracted] = []
        if self.prose and (self.gutenberg or any(map(is_archive, files["train"]))):
            extracted, reports = extract_texts(
                files["train"],
                folder / SPILLS,
                gutenberg=self.gutenberg,
                encoding=encoding,
                skip_broken=self.skip_broken,
                progress=progress,
            )
            files["train"] = [each.path for each in extracted]
            if self.gutenberg:
                encoding = "utf-8"  # of the extracted files
                write_report(folder / REPORT, reports)
        if self.prose:
            with _original_names(extracted):
                _sentence_splitter(self.punkt, files["train"], encoding).save(folder)
        return make_units(files, encoding, self.text, folder), extracted

    def plan_digest(self, units: list[Unit]) -> str:
        """Return a digest that is equal if the same text was cut into the same units."""
        each = [(unit.split, Path(unit.path).name, unit.start, unit.bytes, unit.encoding) for unit in units]
        plan = json.dumps([each, asdict(self.text), self.punkt if self.prose else None, self.gutenberg])
        return hashlib.sha256(plan.encode()).hexdigest()

    def remove_extracted(self, units: list[Unit]) -> None:
        """Remove extracted files. Only the local ids of a part are needed later."""
        for unit in units:
            if Path(unit.path).is_relative_to(Path(unit.folder)):
                Path(unit.path).unlink(missing_ok=True)


@contextmanager
def _original_names(extracted: list[Extracted]) -> Iterator[None]:
    """Replace the name of an extracted file in an error message by that of the original."""
    try:
        yield
    except NcelmError as error:
        for each in extracted:
            if str(each.path) in str(error):
                raise NcelmError(str(error).replace(str(each.path), each.name)) from error
        raise


def _part_folder(out: Path, number: int, parts: int) -> Path:
    return out.with_name(f"{out.name}.part-{number}-of-{parts}")


def _part_folders(out: Path, parts: int) -> list[Path]:
    """Return the folders of all parts, which must exist."""
    folders = [_part_folder(out, number, parts) for number in range(1, parts + 1)]
    for number, folder in enumerate(folders, 1):
        if not folder.is_dir():
            raise NcelmError(f"{folder} is missing: make it first, with `prepare_part` or --shard {number}/{parts}")
    return folders


def _join_parts(source: _Source, units: list[Unit], parts: list[Path]) -> list[int]:
    """Copy the local ids of all parts and return the number of sentences of each unit."""
    sentences = [0] * len(units)
    for number, part in enumerate(parts):
        content, own_units = read_json(part / PART, "part of a text", "ncelm-part", 1), units[number :: len(parts)]
        counts, digests = content.get("sentences"), content.get("sha256")
        if content.get("plan") != source.plan_digest(units):
            raise NcelmError(f"{part} was made from another text or with other options: make it again")
        if not (isinstance(counts, list) and len(counts) == len(own_units) and all(type(n) is int for n in counts)):
            raise NcelmError(f"{part / PART} is damaged: make the part again")
        for unit, count in zip(own_units, counts, strict=True):
            sentences[unit.number] = count
            for file in (unit.numbers_file, unit.words_file):
                try:
                    shutil.copyfile(part / SPILLS / file.name, file)
                except OSError as error:
                    raise NcelmError(f"{part / SPILLS / file.name} cannot be read: make the part again") from error
                if not isinstance(digests, dict) or digests.get(file.name) != file_digest(file):
                    raise NcelmError(f"{part / SPILLS / file.name} is damaged: make the part again")
            numbers = np.fromfile(unit.numbers_file, np.uint32)
            try:
                words = len(unit.words_file.read_bytes().decode("utf-8", "surrogatepass").split())
            except UnicodeDecodeError:
                words = -1
            if np.count_nonzero(numbers == 0) != count or (numbers.size and numbers.max() > words):
                raise NcelmError(f"{part} is damaged: make the part again")  # also if its digests are right
    return sentences


# -- arguments -------------------------------------------------------------------------------------------------------


def _as_list(name: str, paths: object) -> list[Path]:
    """Return the paths of an argument that is one path, several, or None."""
    if paths is None:
        return []
    return [check_path(name, paths)] if isinstance(paths, str | os.PathLike) else check_paths(name, paths)


def _files(texts: list[Path], train: list[Path], valid: list[Path], test: list[Path]) -> dict[str, list[Path]]:
    """Return the existing files of each split that has any."""
    if bool(texts) == bool(train):
        raise NcelmError("give either prose (files or folders) or `train` files with one sentence per line")
    if texts and (valid or test):
        raise NcelmError(
            "`valid` and `test` files go with `train`: for prose, pass `valid_sentences` and `test_sentences`"
        )
    given = {"train": train or _all_files(texts), "valid": valid, "test": test}
    for path in (path for paths in given.values() for path in paths):
        file_size(path)
    return {split: paths for split, paths in given.items() if paths}


def _all_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files among `paths` and, sorted, all files below the folders that are not hidden."""

    def fail(error: OSError) -> None:
        raise NcelmError(f"cannot read the folder {error.filename}: {error.strerror}")

    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        below: list[Path] = []
        for folder, folders, names in os.walk(path, onerror=fail):
            folders[:] = [name for name in folders if not name.startswith(".")]
            below += [Path(folder, name) for name in names if not name.startswith(".")]
        if not below:
            raise NcelmError(f"there are no files in the folder {path}")
        found += sorted(below)
    return found


def _check_number(name: str, value: object, low: int) -> int | None:
    """Return a whole number, at least `low`, or None."""
    return None if value is None else check_int(name, value, low)


def _sentence_splitter(punkt: Punkt, files: list[Path], encoding: str) -> SentenceSplitter:
    """Return the English model, or a model trained on an equal share of every file."""
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


# -- local ids to word ids -------------------------------------------------------------------------------------------


class _Spill:
    """The local ids of a unit on disk, and the sentences of it that are held out for other splits."""

    def __init__(self, unit: Unit, first: int, sentences: int, held_out: HeldOut) -> None:
        """Create a spill. `first` is the index of the first sentence of the unit among all sentences."""
        self.unit = unit
        self.held_out = {}
        if unit.split == "train":
            for split, chosen in held_out.items():
                low, high = np.searchsorted(chosen, (first, first + sentences))
                if low < high:
                    self.held_out[split] = chosen[low:high] - first

    def words(self) -> list[str]:
        """Return the words in the order of their local ids, from 1."""
        return self.unit.words_file.read_bytes().decode("utf-8", "surrogatepass").split()

    def blocks(self) -> Iterator[tuple[str, npt.NDArray[np.uint32]]]:
        """Yield blocks of local ids with the split that they belong to, in order."""
        sentence = 0  # index of the sentence in which the block begins
        with self.unit.numbers_file.open("rb") as file:
            while (block := np.fromfile(file, dtype=np.uint32, count=BLOCK_TOKENS)).size:
                rest = np.ones(block.size, dtype=bool)
                if self.held_out:
                    ends = block == 0
                    sentences = sentence + np.cumsum(ends) - ends  # (n,) index of the sentence of each token
                    sentence += int(np.count_nonzero(ends))
                for split, chosen in self.held_out.items():
                    nearest = np.minimum(np.searchsorted(chosen, sentences), chosen.size - 1)  # (n,)
                    is_chosen = chosen[nearest] == sentences  # (n,)
                    rest &= ~is_chosen
                    yield split, block[is_chosen]
                yield self.unit.split, block[rest]


def _held_out(sentences: int, valid: int, test: int, seed: int) -> HeldOut:
    """Return random sentences of the training text for the other splits."""
    if valid + test >= sentences:
        raise NcelmError(
            f"cannot take {valid:,} validation and {test:,} test sentences out of {sentences:,}: "
            "lower `valid_sentences` and `test_sentences` or give more text"
        )
    chosen = np.random.default_rng(seed).choice(sentences, valid + test, replace=False)
    held_out = {"valid": np.sort(chosen[:valid]), "test": np.sort(chosen[valid:])}
    return {split: indices for split, indices in held_out.items() if indices.size}


def _vocabulary(spills: list[_Spill], min_count: int, max_size: int | None) -> Vocabulary:
    """Return the vocabulary of the training text."""
    counts: Counter[str] = Counter()
    sentences = 0
    for spill in (spill for spill in spills if spill.unit.split == "train"):
        words = spill.words()
        tally = np.zeros(len(words) + 1, dtype=np.int64)  # occurrences of each local id
        for split, local_ids in spill.blocks():
            if split == "train":
                tally += np.bincount(local_ids, minlength=tally.size)
        sentences += int(tally[0])
        for word, count in zip(words, tally[1:].tolist(), strict=True):
            counts[word] += count
    vocabulary = Vocabulary.from_counts(counts, sentences, min_count, max_size)
    if len(vocabulary) < 4:
        words_left = "only one word" if len(vocabulary) == 3 else "no words"
        raise NcelmError(f"the vocabulary has {words_left} except <unk> and </s>: lower `min_count` or give more text")
    return vocabulary


def _write_splits(folder: Path, spills: list[_Spill], vocabulary: Vocabulary) -> dict[str, SplitWriter]:
    """Write the word ids of every split that has sentences and return the writers."""
    present = {spill.unit.split for spill in spills}.union(*(spill.held_out for spill in spills))
    with ExitStack() as stack:
        dtype = id_dtype(len(vocabulary))
        writers = {
            split: stack.enter_context(SplitWriter(folder, split, dtype)) for split in SPLITS if split in present
        }
        for spill in spills:
            ids = np.concatenate(([vocabulary.end_id], vocabulary.encode(spill.words())))  # word id of each local id
            for split, local_ids in spill.blocks():
                writers[split].write(ids[local_ids])
    return writers
