"""Text files, and text in memory, to a token store, on all cores and in bounded memory.

Text in memory is first written to a file (`in_memory`). `tokenize_files` cuts the text into units and writes their
local ids to disk. Then this process chooses the validation and test sentences, counts the training words, makes the
vocabulary, and maps the local ids of all units, in order, to word ids. Units do not depend on the number of workers, so
the store does not depend on it either.
"""

import hashlib
import itertools
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ncelm.arguments import (
    check_bool,
    check_choice,
    check_float,
    check_int,
    check_iterable,
    check_path,
    check_str,
)
from ncelm.errors import ArgumentError, NcelmError
from ncelm.io.files import atomic_folder, check_not_existing, file_digest, read_json, write_json
from ncelm.progress import Option, check_progress, shown
from ncelm.text.archives import REPORT, Extracted, extract_texts, is_archive, write_report
from ncelm.text.in_memory import COLUMN, check_strings_in_memory, write_strings
from ncelm.text.normalize import Normalization, ccnet_normalized
from ncelm.text.pieces import TRAINING_CHARACTERS, Pieces, Training, train_pieces
from ncelm.text.readers import check_encoding, file_size, files_below
from ncelm.text.sentences import PUNKT_TRAINING_CHARACTERS, SentenceSplitter
from ncelm.text.settings import TextSettings, TextSize
from ncelm.text.store import SPLITS, Boundary, SplitWriter, TokenStore, id_dtype, write_description
from ncelm.text.tables import check_plain_text
from ncelm.text.tokenize_files import (
    BLOCK_TOKENS,
    SPILLS,
    Counts,
    TextFile,
    Unit,
    limit_units,
    make_units,
    tokenize_units,
)
from ncelm.text.vocabulary import UNKNOWN, Vocabulary

Paths = Path | str | Sequence[Path | str] | None
Strings = Iterable[str] | None  # in memory
HeldOut = dict[str, npt.NDArray[np.int64]]  # split: sorted indices of sentences of the training text
Punkt = Literal["english", "train"]
BlankLines = Literal["skip", "keep"]
MAX_WORKERS, MAX_PARTS = 1024, 100_000
SHOWN_CHARACTERS = 300  # of the name of a file that does not exist, which may be a text
# With a limited time: the least share of it for tokenization, the share for the training of Punkt, and its speed
LEAST_SHARE, PUNKT_SHARE, PUNKT_CHARACTERS_PER_SECOND = 0.2, 0.2, 300_000
PART = "part.json"  # the description of a part of a text
PART_VERSION = 3  # version 1 had no numbers of blank lines, version 2 no sizes of sentences
_BAR = {"desc": "reading", "unit": "B", "unit_scale": True}  # options of the progress bar


def prepare(
    files: Paths = None,
    *,
    out: Path | str,
    texts: Strings = None,
    train: Paths = None,
    valid: Paths = None,
    test: Paths = None,
    train_lines: Strings = None,
    valid_lines: Strings = None,
    test_lines: Strings = None,
    column: str | None = None,
    blank_lines: Literal["skip", "keep"] = "skip",
    boundary: Boundary | None = None,
    lowercase: bool = False,
    tokenizer: Path | str | None = None,
    normalize: Literal["none", "ccnet"] = "none",
    min_count: int | Literal["auto"] = 1,
    vocabulary_size: int | None = None,
    valid_sentences: int | Literal["auto"] | None = None,
    test_sentences: int | Literal["auto"] | None = None,
    seed: int = 0,
    punkt: Literal["english", "train"] = "english",
    encoding: str = "utf-8",
    gutenberg: bool = False,
    skip_broken: bool = False,
    workers: int | None = None,
    parts: int | None = None,
    seconds: float | None = None,
    progress: Option = True,
) -> TokenStore:
    """Write a token store to `out` and return it.

    The text is prose or tokenized, and in files or in memory:

    | text      | names of files            | strings in memory                          |
    |-----------|---------------------------|--------------------------------------------|
    | prose     | `files`                   | `texts`                                    |
    | tokenized | `train`, `valid`, `test`  | `train_lines`, `valid_lines`, `test_lines` |

    Punkt splits prose into sentences, and the Treebank tokenizer splits sentences into words. Tokenized text has one
    sentence per line and blanks between words.

    A parameter takes either names of files or text, never both: a string in `files` is always the name of a file, and
    a string in `texts` is always text. Strings in memory may be in a list or an iterator, which is read once and in
    bounded memory, in a pandas Series, in an Arrow array, or in a column of a Hugging Face dataset.

    A blank line of prose ends a paragraph, and so a sentence. Blank lines of tokenized text are skipped, or kept as
    empty sentences (`blank_lines`). `TokenStore.blank_lines` has their number.

    Args:
        files: files, folders or tar archives of prose.
        out: the folder of the store, which must not exist.
        texts: instead of `files`, documents of prose. Sentences do not extend across documents.
        train: files of tokenized text, the training split.
        valid: with `train` or `train_lines`, files of the validation split.
        test: the same for the test split.
        train_lines: instead of `train`, strings of one or more lines of tokenized text.
        valid_lines: instead of `valid`, the same for the validation split.
        test_lines: instead of `test`, the same for the test split.
        column: all files are tables (JSON lines, Parquet, CSV or TSV) with the text in this column: each row has a
            document of prose, or one or more lines of tokenized text. None if the files are plain text.
        blank_lines: "skip" blank lines of tokenized text, or "keep" each as an empty sentence, which is only `</s>`.
        boundary: "stream" if contexts extend across sentence ends (the default for tokenized text), "sentence" if they
            do not (the default for prose).
        lowercase: convert words to lower case.
        tokenizer: a subword tokenizer, in place of words: a file of Hugging Face `tokenizers` (tokenizer.json), a
            SentencePiece model, or "train:bpe:32000" or "train:unigram:32000" for one that is trained on the text. The
            store and its models contain the file. All pieces are in the vocabulary: `min_count` and `vocabulary_size`
            do not apply. Trained tokenizers have a piece for each byte, so that no text is unknown.
        normalize: "ccnet" for the text normalisation of CCNet: lower case, digits become 0, no accents, ASCII
            punctuation.
        min_count: words with fewer occurrences in the training text become `<unk>`. "auto" for a number from 2 to 10
            that grows with the text, or 1 if the text has words `<unk>`.
        vocabulary_size: the largest size of the vocabulary, including `<unk>` and `</s>`; None for no limit.
        valid_sentences: the number of random sentences of the training text that are moved to the validation split.
            The default is 0 for tokenized text and "auto" for prose: 5 %, but at most 500.
        test_sentences: the same for the test split.
        seed: of the choice of these sentences.
        punkt: "english" for NLTK's sentence model, "train" for a model trained on the text.
        encoding: of the files.
        gutenberg: the files are works of Project Gutenberg. Headers and footers are removed; works.tsv in the store
            lists what was removed. Files that are not in `encoding` are read as latin-1.
        skip_broken: with `gutenberg`, skip works that are empty or binary instead of raising an error.
        workers: the number of processes; one per core by default.
        parts: make the store from this number of parts, which `prepare_part` has tokenized.
        seconds: the time, approximately. If the training text would take longer, evenly spaced parts of it are used.
            The store then depends on the speed of the machine. None for no limit.
        progress: True for a bar or lines in a log, False for none (see `ncelm.progress`), or a function that is called
            with the number of bytes read so far, and of all bytes.

    >>> import tempfile, ncelm
    >>> folder = tempfile.TemporaryDirectory()
    >>> documents = ["It was late. The cat slept.", "Who saw the cat? Nobody saw it."]
    >>> store = ncelm.prepare(texts=documents, out=f"{folder.name}/prose", punkt="train")
    >>> store.split("train").n_sentences
    4
    >>> lines = (f"{animal} slept" for animal in ["the cat", "the dog", "nobody"])
    >>> ncelm.prepare(train_lines=lines, out=f"{folder.name}/tokenized").split("train")
    Split(train, 11 tokens, 3 sentences)
    >>> folder.cleanup()
    """
    out, seed = check_path("out", out), check_int("seed", seed, 0)
    least = None if _is_auto(min_count) else check_int("min_count", min_count, 1)
    vocabulary_size = _check_number("vocabulary_size", vocabulary_size, 4)  # <unk>, </s> and two words
    if not _is_auto(valid_sentences):
        valid_sentences = _check_number("valid_sentences", valid_sentences, 0)
    if not _is_auto(test_sentences):
        test_sentences = _check_number("test_sentences", test_sentences, 0)
    workers = None if workers is None else check_int("workers", workers, 1, MAX_WORKERS)
    parts = None if parts is None else check_int("parts", parts, 1, MAX_PARTS)
    seconds = None if seconds is None else check_float("seconds", seconds, 0, positive=True)
    check_progress(progress)
    began = time.monotonic()
    strings = {"texts": texts, "train_lines": train_lines, "valid_lines": valid_lines, "test_lines": test_lines}
    paths = {"files": files, "train": train, "valid": valid, "test": test}
    options = (column, blank_lines, boundary, lowercase, tokenizer, normalize, punkt, encoding, gutenberg, skip_broken)
    source = _Source.of(paths, strings, *options)
    if tokenizer is not None and (vocabulary_size is not None or least not in (None, 1)):
        name = "min_count" if vocabulary_size is None else "vocabulary_size"
        raise NcelmError(f"`{name}` is for words: with `tokenizer`, all pieces are in the vocabulary; leave it out")
    if parts is not None:
        source.check_shared()
    for split, sentences_given in (("valid", valid_sentences), ("test", test_sentences)):
        if sentences_given is not None and split in source.splits:
            raise NcelmError(f"give either `{split}` text or `{split}_sentences`, not both")
    if parts is not None and seconds is not None:
        raise NcelmError("`seconds` does not go with `parts`: leave one of them out")
    if parts is not None and source.strings:
        raise NcelmError("text in memory cannot be prepared in `parts`: write it to files, and prepare those")
    done = _part_folders(out, parts) if parts is not None else []
    with atomic_folder(out) as folder:
        with shown(progress, **_BAR) as report:
            units, extracted = source.units(folder, report, seconds)
            text_bytes = sum(unit.range.bytes for unit in units)
            with _original_names(extracted):
                if seconds is not None:
                    left = max(seconds - (time.monotonic() - began), LEAST_SHARE * seconds)
                    units = limit_units(units, workers, left)
                counts = _join_parts(source, units, done) if done else tokenize_units(units, workers, report)
        sentences = [each.sentences for each in counts]
        found, blank = (Counter(dict.fromkeys(source.splits, 0)) for _ in range(2))
        for unit, count in zip(units, counts, strict=True):
            found[unit.split] += count.sentences
            blank[unit.split] += count.blank_lines
        for split, text_name in source.splits.items():
            if not any(unit.split == split and unit.words_file.stat().st_size for unit in units):
                raise NcelmError(f"there are no words in the {split} text ({text_name}): give another text")
        valid_number, test_number = (
            _held_out_sentences(found["train"], source.prose and split not in source.splits, given)
            for split, given in (("valid", valid_sentences), ("test", test_sentences))
        )
        held_out = _held_out(found["train"], valid_number, test_number, seed)
        # The units of the training split come first: their sentences are numbered from 0.
        firsts = itertools.accumulate([0, *sentences[:-1]])
        spills = [_Spill(*one, held_out) for one in zip(units, firsts, sentences, strict=True)]
        text = units[0].text
        vocabulary, least = _vocabulary(spills, least, vocabulary_size, text.pieces)
        vocabulary.save(folder / "vocab.txt")
        write_description(
            folder,
            boundary=source.boundary,
            vocabulary=vocabulary,
            text=text,
            punkt=punkt if source.prose else None,
            splits=_write_splits(folder, spills, vocabulary),
            blank_lines=dict(blank),
            settings={
                "min_count": least,
                "vocabulary_size": vocabulary_size,
                "valid_sentences": valid_sentences,
                "test_sentences": test_sentences,
                "seed": seed,
                "encoding": encoding,
                "column": column,
                "blank_lines": blank_lines,
                "gutenberg": gutenberg,
                "tokenizer": None if tokenizer is None else str(tokenizer),
                "bytes": text_bytes,
                "bytes_used": sum(unit.range.bytes for unit in units),
            },
        )
        shutil.rmtree(folder / SPILLS)
    for part in done:
        shutil.rmtree(part)
    return TokenStore.open(out)


def prepare_part(
    number: int,
    parts: int,
    files: Paths = None,
    *,
    out: Path | str,
    train: Paths = None,
    valid: Paths = None,
    test: Paths = None,
    column: str | None = None,
    blank_lines: BlankLines = "skip",
    boundary: Boundary | None = None,
    lowercase: bool = False,
    tokenizer: Path | str | None = None,
    normalize: Normalization = "none",
    punkt: Punkt = "english",
    encoding: str = "utf-8",
    gutenberg: bool = False,
    skip_broken: bool = False,
    workers: int | None = None,
    progress: Option = True,
) -> Path:
    """Tokenize part `number` of `parts` of a text and return the folder of the part, next to `out`.

    Several machines that share the files can tokenize one part each. `prepare(…, parts=parts)` with the same arguments
    then makes the store, which is the same as without parts, and removes the folders. Parts are numbered from 1. The
    text must be in files.
    """
    out, parts = check_path("out", out), check_int("parts", parts, 1, MAX_PARTS)
    if check_int("number", number, 1) > parts:
        raise NcelmError(f"part {number} of {parts} does not exist: `number` is at most the number of `parts`")
    workers = None if workers is None else check_int("workers", workers, 1, MAX_WORKERS)
    check_progress(progress)
    paths = {"files": files, "train": train, "valid": valid, "test": test}
    options = (column, blank_lines, boundary, lowercase, tokenizer, normalize, punkt, encoding, gutenberg, skip_broken)
    source = _Source.of(paths, {}, *options)
    source.check_shared()
    check_not_existing(out)
    path = _part_folder(out, number, parts)
    with atomic_folder(path) as folder:
        with shown(progress, **_BAR) as report:
            units, extracted = source.units(folder, report)
            own_units = units[number - 1 :: parts]
            with _original_names(extracted):
                counts = tokenize_units(own_units, workers, report) if own_units else []
        spills = (file for unit in own_units for file in unit.files)
        content = {
            "plan": source.plan_digest(units),
            "sentences": [each.sentences for each in counts],
            "blank_lines": [each.blank_lines for each in counts],
            "sha256": {file.name: file_digest(file) for file in spills},
        }
        write_json(folder / PART, {"format": "ncelm-part", "version": PART_VERSION, **content})
        source.remove_extracted(units)
    return path


@dataclass(frozen=True)
class _Source:
    """The text and how to read it."""

    files: dict[str, list[Path]]  # by split
    strings: dict[str, tuple[str, Iterable[str]]]  # text in memory, by split, with the name of the parameter
    text: TextSettings
    training: Training | None  # of the tokenizer, on the text
    prose: bool  # to be split into sentences
    column: str | None
    keep_blank: bool
    boundary: Boundary
    punkt: Punkt
    encoding: str
    gutenberg: bool
    skip_broken: bool

    @classmethod
    def of(
        cls,
        paths: dict[str, Paths],
        strings: dict[str, Strings],
        column: str | None,
        blank_lines: BlankLines,
        boundary: Boundary | None,
        lowercase: bool,
        tokenizer: Path | str | None,
        normalize: Normalization,
        punkt: Punkt,
        encoding: str,
        gutenberg: bool,
        skip_broken: bool,
    ) -> "_Source":
        """Return the source for arguments of `prepare`, which are validated. `paths` and `strings` are by parameter."""
        found = {name: _as_paths(name, value) for name, value in paths.items()}
        memory = {
            name: check_strings_in_memory(name, value, lines=name != "texts")
            for name, value in strings.items()
            if value is not None
        }
        given = {name for name, value in found.items() if value} | set(memory)
        _check_combination(given)
        prose = not given.isdisjoint({"files", "texts"})
        if boundary is None:
            boundary = "sentence" if prose else "stream"
        check_choice("boundary", boundary, get_args(Boundary))
        for name, value in (("lowercase", lowercase), ("gutenberg", gutenberg), ("skip_broken", skip_broken)):
            check_bool(name, value)
        check_choice("punkt", punkt, get_args(Punkt))
        check_encoding(check_str("encoding", encoding))
        if check_choice("blank_lines", blank_lines, get_args(BlankLines)) == "keep" and prose:
            raise NcelmError(
                "`blank_lines` keep is for tokenized text, given with `train`: in prose, blank lines end paragraphs"
            )
        if column is not None and check_str("column", column, "a string or None") and not any(found.values()):
            raise NcelmError("`column` is for files: for text in memory, pass the strings of the column")
        if (gutenberg or skip_broken) and not (found.get("files") and gutenberg and column is None):
            raise NcelmError(
                "`gutenberg` goes with prose (files, folders or tar archives) without `column`, and `skip_broken` with "
                "`gutenberg`"
            )
        check_choice("normalize", normalize, get_args(Normalization))
        training = None if tokenizer is None else Training.parse(str(check_path("tokenizer", tokenizer)))
        if tokenizer is None or training:
            text = TextSettings("treebank" if prose else "whitespace", lowercase, normalize)
        else:
            text = TextSettings.of(Pieces.read(Path(tokenizer)), lowercase, normalize)
        files = {split: files_below(found["files"]) if split == "train" and prose else found[split] for split in SPLITS}
        for path in (path for some in files.values() for path in some):
            file_size(path)
        return cls(
            {split: some for split, some in files.items() if some},
            {_PARAMETERS[name]: (name, values) for name, values in memory.items()},
            text,
            training,
            prose,
            column,
            blank_lines == "keep",
            boundary,
            punkt,
            encoding,
            gutenberg,
            skip_broken,
        )

    def check_shared(self) -> None:
        """Raise an error if parts of the text, prepared one by one, would have different tokenizers."""
        if self.training:
            raise NcelmError(
                "parts of a text need one `tokenizer`: prepare a sample of it first, and give its tokenizer.json"
            )

    def trained_text(self, files: list[TextFile]) -> TextSettings:
        """Return the settings of the text, with a tokenizer trained on an equal share of every file."""
        if not self.training:
            return self.text

        def lines() -> Iterator[str]:
            for chunk in _shares(files, TRAINING_CHARACTERS):
                for line in chunk.split("\n"):
                    line = ccnet_normalized(line) if self.text.normalization == "ccnet" else line
                    yield line.lower() if self.text.lowercase else line

        return TextSettings.of(train_pieces(self.training, lines()), self.text.lowercase, self.text.normalization)

    @property
    def splits(self) -> dict[str, str]:
        """A name for the text of each split that has any."""
        names = {split: str(some[0]) for split, some in self.files.items()}
        names |= {split: f"`{name}`" for split, (name, _) in self.strings.items()}
        return {split: names[split] for split in SPLITS if split in names}

    def units(
        self, folder: Path, progress: Callable[[int, int], None] | None, seconds: float | None = None
    ) -> tuple[list[Unit], list[Extracted]]:
        """Return the units of the text. Extracted files and the sentence model are written to `folder`."""
        (folder / SPILLS).mkdir()
        files = {split: [TextFile(path, self.encoding, self.column) for path in some]
                 for split, some in self.files.items()}  # fmt: skip
        extracted: list[Extracted] = []
        if self.prose and self.files and (self.gutenberg or any(map(is_archive, self.files["train"]))):
            extracted, reports = extract_texts(
                self.files["train"],
                folder / SPILLS,
                gutenberg=self.gutenberg,
                encoding=self.encoding,
                skip_broken=self.skip_broken,
                progress=progress,
            )
            encoding = "utf-8" if self.gutenberg else self.encoding  # of the extracted files
            files["train"] = [TextFile(each.path, encoding, self.column) for each in extracted]
            if self.gutenberg:
                write_report(folder / REPORT, reports)
        for split, (name, values) in self.strings.items():
            path = folder / SPILLS / f"{name}.jsonl"
            write_strings(name, values, path, lines=not self.prose)
            files[split] = [TextFile(path, "utf-8", COLUMN)]
            extracted.append(Extracted(f"`{name}`", path))
        with _original_names(extracted):
            for file in (file for some in files.values() for file in some if file.column is None):
                check_plain_text(file.path, file.encoding)
            in_order = {split: files[split] for split in SPLITS if split in files}
            text = self.trained_text(files["train"])
            units = make_units(in_order, text, self.prose, self.keep_blank, folder)
            if self.prose:
                _sentence_splitter(self.punkt, files["train"], seconds).save(folder)
        return units, extracted

    def plan_digest(self, units: list[Unit]) -> str:
        """Return a digest that is equal if the same text was cut into the same units."""
        each = [(unit.split, unit.file.path.name, *unit.range, *unit.file[1:]) for unit in units]
        options = [self.text.as_dict(), self.punkt if self.prose else None, self.gutenberg, self.keep_blank]
        return hashlib.sha256(json.dumps([each, *options]).encode()).hexdigest()

    def remove_extracted(self, units: list[Unit]) -> None:
        """Remove extracted files. Only the local ids of a part are needed later."""
        for unit in units:
            if unit.file.path.is_relative_to(Path(unit.folder)):
                unit.file.path.unlink(missing_ok=True)


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


def _join_parts(source: _Source, units: list[Unit], parts: list[Path]) -> list[Counts]:
    """Copy the local ids of all parts and return the counts of each unit."""
    all_counts = [Counts(0, 0)] * len(units)
    for number, part in enumerate(parts):
        content = read_json(part / PART, "part of a text", "ncelm-part", PART_VERSION)
        own_units = units[number :: len(parts)]
        counts: Any = content.get("sentences")
        blank: Any = content.get("blank_lines")
        digests = content.get("sha256")
        if content.get("plan") != source.plan_digest(units):
            raise NcelmError(f"{part} was made from another text or with other options: make it again")
        if not (_are_counts(counts, len(own_units)) and _are_counts(blank, len(own_units))):
            raise NcelmError(f"{part / PART} is damaged: make the part again")
        for unit, *count in zip(own_units, counts, blank, strict=True):
            all_counts[unit.number] = Counts(*count)
            for file in unit.files:
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
            sizes = unit.sizes_file.stat().st_size // 8
            if not sizes == np.count_nonzero(numbers == 0) == count[0] or (numbers.size and numbers.max() > words):
                raise NcelmError(f"{part} is damaged: make the part again")  # also if its digests are right
    return all_counts


def _are_counts(value: object, length: int) -> bool:
    """Return whether a value from a JSON document is a list of counts, one of each unit."""
    return isinstance(value, list) and len(value) == length and all(type(n) is int and 0 <= n < 2**63 for n in value)


# -- arguments -------------------------------------------------------------------------------------------------------


_PARAMETERS = {"texts": "train", "train_lines": "train", "valid_lines": "valid", "test_lines": "test"}  # split of each


def _as_paths(name: str, value: object) -> list[Path]:
    """Return the paths of an argument that is one path, several, or None. The first that does not exist is an error."""
    if value is None:
        return []
    one = isinstance(value, str | os.PathLike)
    text_itself = f"text itself is passed as `{'texts' if name == 'files' else name + '_lines'}`"
    paths = []
    for each in [value] if one else check_iterable(name, value, "a path or a list of paths"):
        try:
            path = check_path(name, each, "a path" if one else "a list of paths")
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            text = str(each) if len(str(each)) <= SHOWN_CHARACTERS else str(each)[:SHOWN_CHARACTERS] + "…"
            raise NcelmError(f"there is no file {text}: check its name; {text_itself}") from None
        except ArgumentError as error:  # a name that no file can have
            raise ArgumentError(f"{error}; {text_itself}") from None
        except OSError:  # such as a folder without permission: reported when the file is opened
            pass
        paths.append(path)
    return paths


def _check_combination(given: set[str]) -> None:
    """Raise an error unless the parameters that were given go together."""
    if len(given & {"files", "texts", "train", "train_lines"}) != 1:
        memory = "" if given.isdisjoint(_PARAMETERS) else ", or text in memory, either `texts` or `train_lines`"
        raise NcelmError(f"give either prose (files or folders) or `train` files with one sentence per line{memory}")
    for split in ("valid", "test"):
        if {split, f"{split}_lines"} <= given:
            raise NcelmError(f"give either `{split}` or `{split}_lines`, not both")
    if given & {"files", "texts"} and len(given) > 1:
        raise NcelmError("`valid` and `test` go with `train`: for prose, pass `valid_sentences` and `test_sentences`")


def _check_number(name: str, value: object, low: int) -> int | None:
    """Return a whole number, at least `low`, or None."""
    return None if value is None else check_int(name, value, low)


def _is_auto(value: object) -> bool:
    return isinstance(value, str) and value == "auto"


def _sentence_splitter(punkt: Punkt, files: list[TextFile], seconds: float | None) -> SentenceSplitter:
    """Return the English model, or a model trained on an equal share of every file, in a part of the `seconds`."""
    if punkt == "english":
        return SentenceSplitter.english()
    characters = PUNKT_TRAINING_CHARACTERS
    if seconds is not None:
        characters = min(characters, int(PUNKT_SHARE * seconds * PUNKT_CHARACTERS_PER_SECOND))
    return SentenceSplitter.train(_shares(files, characters))


def _shares(files: list[TextFile], characters: int) -> Iterator[str]:
    """Yield the beginning of every file, in chunks: together about this number of characters."""
    share = max(characters // len(files), 1000)
    for file in files:
        left = share
        for chunk in file.prose():
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                break


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

    def sizes(self) -> Iterator[tuple[str, TextSize]]:
        """Yield the split and the size of the text of each part of the unit."""
        sizes = np.fromfile(self.unit.sizes_file, np.uint32).reshape(-1, 2)  # (sentences, 2)
        total = sizes.sum(axis=0, dtype=np.int64)
        for split, chosen in self.held_out.items():
            own = sizes[chosen].sum(axis=0, dtype=np.int64)
            total -= own
            yield split, TextSize(*own.tolist())
        yield self.unit.split, TextSize(*total.tolist())

    def blocks(self) -> Iterator[tuple[str, npt.NDArray[np.uint32]]]:
        """Yield blocks of local ids with the split that they belong to, in order."""
        sentence = 0  # index of the sentence in which the block begins
        with self.unit.numbers_file.open("rb") as file:
            while (block := np.fromfile(file, dtype=np.uint32, count=BLOCK_TOKENS)).size:
                if not self.held_out:
                    yield self.unit.split, block
                    continue
                rest, ends = np.ones(block.size, dtype=bool), block == 0
                sentences = sentence + np.cumsum(ends) - ends  # (n,) index of the sentence of each token
                sentence += int(np.count_nonzero(ends))
                for split, chosen in self.held_out.items():
                    nearest = np.minimum(np.searchsorted(chosen, sentences), chosen.size - 1)  # (n,)
                    is_chosen = chosen[nearest] == sentences  # (n,)
                    rest &= ~is_chosen
                    yield split, block[is_chosen]
                yield self.unit.split, block[rest]


def _held_out_sentences(sentences: int, prose: bool, given: int | str | None) -> int:
    """Return how many of these sentences are moved to a split, given the argument of `prepare`."""
    if isinstance(given, int):
        return given
    return min(sentences // 20, 500) if prose or given == "auto" else 0


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


def default_min_count(words: int) -> int:
    """Return the least count of a word in the vocabulary of a text of this size: the larger the text, the higher.

    >>> [default_min_count(words) for words in (10_000, 1_000_000, 10_000_000, 50_000_000, 1_000_000_000)]
    [2, 2, 4, 5, 10]
    """
    return int(np.clip(round(2 * (words / 1e6) ** 0.25), 2, 10))


def _vocabulary(
    spills: list[_Spill], min_count: int | None, max_size: int | None, pieces: Pieces | None
) -> tuple[Vocabulary, int]:
    """Return the vocabulary of the training text, and the least count of its words, which is chosen if it is None."""
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
    if min_count is None:
        min_count = 1 if counts[UNKNOWN] or pieces else default_min_count(sum(counts.values()))
    vocabulary = Vocabulary.from_counts(counts, sentences, min_count, max_size, list(pieces.names) if pieces else ())
    if len(vocabulary) < 4:
        words_left = "only one word" if len(vocabulary) == 3 else "no words"
        raise NcelmError(f"the vocabulary has {words_left} except <unk> and </s>: lower `min_count` or give more text")
    return vocabulary, min_count


def _write_splits(folder: Path, spills: list[_Spill], vocabulary: Vocabulary) -> dict[str, SplitWriter]:
    """Write the word ids of every split that has sentences and return the writers."""
    present = {spill.unit.split for spill in spills}.union(*(spill.held_out for spill in spills))
    with ExitStack() as stack:
        dtype = id_dtype(len(vocabulary))
        writers = {
            split: stack.enter_context(SplitWriter(folder, split, dtype)) for split in SPLITS if split in present
        }
        for spill in spills:
            ids = np.append(vocabulary.end_id, vocabulary.encode(spill.words())).astype(dtype)  # of each local id
            for split, local_ids in spill.blocks():
                writers[split].write(ids[local_ids])
            for split, size in spill.sizes():
                writers[split].add_size(size)
    return writers
