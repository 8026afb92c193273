"""Text in memory: every kind of collection, what could be mistaken for one, and invalid elements."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests.helpers import PROSE

from ncelm.errors import ArgumentError, ArgumentTypeError, NcelmError
from ncelm.text import in_memory
from ncelm.text.in_memory import write_strings
from ncelm.text.prepare import prepare, prepare_part
from ncelm.text.sentences import SentenceSplitter

LINES = ["the cat sat", "the dog sat", "", "a cat\n", "\n", "two\nlines here\r\n"] * 5
DOCUMENTS = PROSE.split("\n\n")


class Series:
    """Iterates like a pandas Series or a column of a Hugging Face dataset."""

    def __init__(self, values):
        self.values = values

    def __iter__(self):
        return iter(self.values)

    def __len__(self):
        return len(self.values)


class Scalar:
    """An element of an Arrow array."""

    def __init__(self, value):
        self.value = value

    def as_py(self):
        return self.value


def arrow(values):
    return pytest.importorskip("pyarrow").array(values)


def chunked(values):
    return pytest.importorskip("pyarrow").chunked_array([values[:3], values[3:]])


def pandas(values):
    return pytest.importorskip("pandas").Series(values)


COLLECTIONS = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "generator": lambda values: (value for value in values),
    "dict values": lambda values: dict(enumerate(values)).values(),
    "NumPy": np.array,
    "series": Series,
    "scalars": lambda values: [Scalar(value) for value in values],
    "Arrow": arrow,
    "chunked": chunked,
    "pandas": pandas,
}


@pytest.fixture(autouse=True)
def _quick_punkt(monkeypatch):
    """Train Punkt on a part of the text: it takes most of the time."""
    original = SentenceSplitter.train
    monkeypatch.setattr(SentenceSplitter, "train", lambda chunks: original(chunk[:2000] for chunk in chunks))


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_lines_equal_those_of_a_file(tmp_path, kind):
    (tmp_path / "text").write_text("".join(line.removesuffix("\n") + "\n" for line in LINES))
    for mode in ("skip", "keep"):
        expected = prepare(train=tmp_path / "text", out=tmp_path / f"file-{mode}", blank_lines=mode)
        store = prepare(train_lines=COLLECTIONS[kind](LINES), out=tmp_path / mode, blank_lines=mode, workers=1)
        assert store.fingerprint == expected.fingerprint
        assert store.blank_lines == expected.blank_lines == {"train": 10}


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_documents_equal_those_of_a_file(tmp_path, kind):
    (tmp_path / "text").write_text("\n\n".join(DOCUMENTS))
    expected = prepare(tmp_path / "text", out=tmp_path / "file", punkt="train")
    store = prepare(texts=COLLECTIONS[kind](DOCUMENTS), out=tmp_path / "store", punkt="train", workers=1)
    assert store.fingerprint == expected.fingerprint
    assert {path.name for path in tmp_path.iterdir()} == {"text", "file", "store"}
    assert {path.name for path in store.path.iterdir()} == {path.name for path in expected.path.iterdir()}


def test_all_splits(tmp_path):
    (tmp_path / "valid").write_text("the cat\n")
    store = prepare(train_lines=LINES, valid=tmp_path / "valid", test_lines=iter(LINES), out=tmp_path / "a")
    assert [split.n_sentences for split in store.splits.values()] == [25, 1, 25]
    assert store.blank_lines == {"train": 10, "valid": 0, "test": 10}
    store = prepare(train=tmp_path / "valid", valid_lines=LINES, out=tmp_path / "b")
    assert [split.n_sentences for split in store.splits.values()] == [1, 25]
    store = prepare(train_lines=LINES, out=tmp_path / "c", valid_sentences=5)
    assert [split.n_sentences for split in store.splits.values()] == [20, 5]


def test_sentences_do_not_extend_across_documents(tmp_path):
    texts = ["One sentence without an end", "and another one", "Two here. And three\nlines.\n\nNo end"]
    store = prepare(texts=texts, out=tmp_path / "store", punkt="train", valid_sentences=0, test_sentences=0)
    assert store.split("train").n_sentences == 5
    assert store.blank_lines == {"train": 1}


def test_one_long_string(tmp_path, monkeypatch):
    """A whole text in one string is cut at blank lines."""
    monkeypatch.setattr(in_memory, "_PIECE_CHARACTERS", 1000)
    text = PROSE.replace("\n", "\r\n")
    (tmp_path / "text").write_bytes(text.encode())
    write_strings("texts", [text], tmp_path / "a.jsonl", lines=False)
    rows = [json.loads(line)["text"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(rows) > 5
    assert "".join(rows) == PROSE
    expected = prepare(tmp_path / "text", out=tmp_path / "file", punkt="train")
    store = prepare(texts=[text], out=tmp_path / "store", punkt="train")
    assert (store.fingerprint, store.blank_lines) == (expected.fingerprint, expected.blank_lines)


def test_workers_and_progress(tmp_path, monkeypatch):
    monkeypatch.setattr("ncelm.text.tokenize_files.LINES_UNIT_BYTES", 1000)
    seen = []
    lines = [f"line {n} of many" for n in range(1000)]
    stores = [
        prepare(
            train_lines=iter(lines),
            out=tmp_path / f"store{workers}",
            workers=workers,
            progress=lambda *at: seen.append(at),
        )
        for workers in (1, 2)
    ]
    assert stores[0].fingerprint == stores[1].fingerprint
    assert stores[0].split("train").n_sentences == 1000
    assert seen[-1][0] == seen[-1][1] > 20_000


def test_memory_is_bounded(tmp_path):
    tracemalloc.start()
    write_strings("texts", (f"{n} " * 100 for n in range(20_000)), tmp_path / "a.jsonl", lines=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "a.jsonl").stat().st_size > 10_000_000
    assert peak < 5_000_000


class TestErrors:
    def check(self, folder: Path, error: type, message: str, **arguments) -> None:
        before = {path.name for path in folder.iterdir()}
        with pytest.raises(error, match=message) as caught:
            prepare(**{"out": folder / "store", "punkt": "train", **arguments})
        assert "\n" not in str(caught.value)
        assert {path.name for path in folder.iterdir()} == before

    @pytest.mark.parametrize(
        ("value", "fault"),
        [
            (None, "is None, not a string"),
            (float("nan"), "is nan, not a string"),
            (b"bytes", "is b'bytes', not a string"),
            (3, "is 3, not a string"),
            (["a", "b"], "is .*, not a string"),
            ({"text": "a"}, r'not a string: give one column, such as dataset\["text"\]'),
            (Path("a"), "not a string: pass names of files as `files` or `train`"),
            (Scalar(None), "is None, not a string"),
            ("a\0", "has a NUL character.*: correct or remove it"),
            ("a\ud800", "has half of a surrogate pair"),
        ],
        ids=["none", "nan", "bytes", "number", "list", "row", "path", "arrow-null", "nul", "surrogate"],
    )
    @pytest.mark.parametrize("name", ["texts", "train_lines"])
    def test_elements(self, tmp_path, name, value, fault):
        kind = ArgumentError if isinstance(value, str) else ArgumentTypeError
        self.check(
            tmp_path, kind, rf"^`{name}`, element 1,234, .*{fault}", **{name: [*["It was late."] * 1234, value, "x"]}
        )

    @pytest.mark.parametrize("name", ["texts", "train_lines"])
    def test_what_is_no_collection(self, tmp_path, name):
        files = "files" if name == "texts" else "train"
        self.check(tmp_path, ArgumentTypeError, f"`{name}` is 'a.txt', one string: .* as `{files}`", **{name: "a.txt"})
        for value in (b"text", 3, {"a": "b"}, np.array("a"), Path("a.txt")):
            self.check(tmp_path, ArgumentTypeError, f"`{name}` is .*: give a list or an iterator", **{name: value})
        self.check(tmp_path, ArgumentTypeError, f"`{name}` is a set", **{name: {"a", "b"}})

    def test_tables(self, tmp_path):
        """A DataFrame iterates over the names of its columns."""

        class Table(Series):
            columns = ("a", "b")

        self.check(tmp_path, ArgumentTypeError, r'is a table: .* such as table\["text"\]', texts=Table(["a", "b"]))
        arrow_table = pytest.importorskip("pyarrow").table({"a": ["b"]})
        self.check(tmp_path, ArgumentTypeError, "is a table", train_lines=arrow_table)
        frame = pytest.importorskip("pandas").DataFrame({"text": ["a"]})
        self.check(tmp_path, ArgumentTypeError, "is a table", texts=frame)

    def test_an_open_file(self, tmp_path):
        (tmp_path / "text").write_text("the cat\nsat here\n")
        with (tmp_path / "text").open() as file:
            self.check(tmp_path, ArgumentTypeError, "is an open file, whose lines are no documents", texts=file)
            assert prepare(train_lines=file, out=tmp_path / "ok").split("train").n_sentences == 2

    def test_names_of_files(self, tmp_path):
        (tmp_path / "text").write_text("It was late.\n")
        name = str(tmp_path / "text")
        self.check(tmp_path, ArgumentError, "`texts` begins with .*, the name of a file: .* `files`", texts=[name])
        self.check(tmp_path, ArgumentError, "the name of a file", train_lines=iter([name] * 9))
        prepare(texts=[name, "It was late, and the cat slept."], out=tmp_path / "ok", punkt="train")

    def test_text_as_names_of_files(self, tmp_path):
        """Sentences where names of files are expected."""
        sentences = ["It was late.", "The cat slept."]
        message = "there is no file It was late.: check its name; text itself is passed as `{}`"
        self.check(tmp_path, NcelmError, message.format("texts"), files=sentences)
        self.check(tmp_path, NcelmError, message.format("texts"), files="It was late.")
        self.check(tmp_path, NcelmError, message.format("texts"), files=iter(sentences))
        self.check(tmp_path, NcelmError, message.format("train_lines"), train=sentences)
        self.check(tmp_path, NcelmError, message.format("valid_lines"), train_lines=sentences, valid=sentences)
        self.check(tmp_path, NcelmError, "there is no file (a/){150}…: ", files=["a/" * 1000])
        for text in ("word " * 1000, "", "a\0"):
            self.check(tmp_path, ArgumentError, "`files` is .*; text itself is passed as `texts`", files=[text])

        def endless():
            while True:
                yield "It was late."

        self.check(tmp_path, NcelmError, "there is no file It was late.", files=endless())

    def test_json(self, tmp_path):
        rows = ['{"text": "It was late."}'] * 9
        for name in ("texts", "train_lines"):
            self.check(tmp_path, ArgumentError, f"`{name}` has JSON objects, not text: .*`column`", **{name: rows})
        prepare(texts=[rows[0], "It was late, and dark."], out=tmp_path / "ok", punkt="train")

    def test_combinations(self, tmp_path):
        (tmp_path / "a").write_text("the cat\n")
        texts = ["It was late."]
        for arguments in ({"texts": texts, "files": tmp_path / "a"}, {"texts": texts, "train_lines": texts},
                          {"train": tmp_path / "a", "train_lines": texts}, {"valid_lines": texts}):  # fmt: skip
            self.check(tmp_path, NcelmError, "give either prose .* `texts` or `train_lines`", **arguments)
        lines = {"train_lines": texts, "valid": tmp_path / "a", "valid_lines": texts}
        self.check(tmp_path, NcelmError, "either `valid` or `valid_lines`, not both", **lines)
        self.check(tmp_path, NcelmError, "go with `train`: for prose", texts=texts, test_lines=texts)
        lines = {"train_lines": texts, "valid_lines": texts, "valid_sentences": 1}
        self.check(tmp_path, NcelmError, "either `valid` text or `valid_sentences`, not both", **lines)
        self.check(tmp_path, NcelmError, "`column` is for files", texts=texts, column="text")
        self.check(tmp_path, NcelmError, "`gutenberg` goes with prose", texts=texts, gutenberg=True)
        self.check(tmp_path, NcelmError, "`blank_lines` keep is for tokenized text", texts=texts, blank_lines="keep")
        self.check(tmp_path, NcelmError, "text in memory cannot be prepared in `parts`", texts=texts, parts=2)
        with pytest.raises(NcelmError, match="there is no file It was late"):
            prepare_part(1, 2, texts, out=tmp_path / "store")

    def test_empty(self, tmp_path):
        for texts in ([], [""], iter(["", " \n\n"])):
            self.check(tmp_path, NcelmError, r"no words in the train text \(`texts`\)", texts=texts)
        for mode in ("skip", "keep"):
            lines = {"train_lines": ["a b"], "valid_lines": ["\n", " "], "blank_lines": mode}
            self.check(tmp_path, NcelmError, r"no words in the valid text \(`valid_lines`\)", **lines)

    def test_long_lines(self, tmp_path):
        self.check(tmp_path, ArgumentError, r"train_lines\[1\] has more than", train_lines=["a", "b " * 1_000_001])

    def test_errors_of_the_iterator(self, tmp_path):
        def fails(error):
            yield "It was late."
            raise error

        offline = OSError(101, "Network is unreachable")
        self.check(tmp_path, NcelmError, "`texts` cannot be read after 1 strings: .*Network", texts=fails(offline))
        self.check(tmp_path, KeyError, "mine", texts=fails(KeyError("mine")))
