"""Preparation: the store of a text, invalid arguments, and texts that are tokenized in parts."""

import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.helpers import PROSE, change_json, make_tar

from ncelm.cli.main import main
from ncelm.errors import NcelmError
from ncelm.io.files import write_json
from ncelm.text import prepare as prepare_module
from ncelm.text import tokenize_files
from ncelm.text.prepare import prepare, prepare_part
from ncelm.text.sentences import SentenceSplitter
from ncelm.text.settings import TextSettings
from ncelm.text.store import TokenStore, read_settings


def sentences_of(store: TokenStore, split: str) -> list[list[str]]:
    part = store.split(split)
    sentences = []
    for start, stop in zip(part.sentences[:-1], part.sentences[1:], strict=True):
        *words, end = (store.vocabulary.word(int(id)) for id in part.ids[start:stop])
        assert end == "</s>"
        sentences.append(words)
    return sentences


def nothing_left(folder: Path, *names: str) -> bool:
    return {path.name for path in folder.iterdir()} == set(names)


class TestPrepare:
    def test_files(self, three):
        store = prepare(out=three / "store", train=three / "train", valid=str(three / "valid"), test=[three / "test"])
        assert store.vocabulary.words == ("<unk>", "</s>", "the", "sat", "cat", "dog", "down", "end")
        assert store.vocabulary.counts.tolist() == [3, 3, 3, 2, 1, 1, 1, 1]
        assert sentences_of(store, "train") == [
            ["the", "cat", "sat"],
            ["the", "dog", "sat", "down"],
            ["<unk>", "the", "<unk>", "<unk>", "end"],
        ]
        assert sentences_of(store, "valid") == [["the", "<unk>", "sat"]]
        assert sentences_of(store, "test") == [["<unk>", "dog"]]
        assert [(s.tokens, s.n_sentences, s.unknown) for s in store.splits.values()] == [
            (15, 3, 3),
            (4, 1, 1),
            (3, 1, 1),
        ]
        assert (store.boundary, store.pad_id, store.text, store.punkt) == ("stream", 1, TextSettings(), None)
        assert store.sentence_splitter() is None
        assert sorted(path.name for path in store.path.iterdir()) == [
            "store.json", "test.ids", "test.sentences", "train.ids", "train.sentences",
            "valid.ids", "valid.sentences", "vocab.txt",
        ]  # fmt: skip
        with pytest.raises(ValueError, match="read-only"):
            store.split("train").ids[0] = 0

    def test_a_real_text(self, small_store, small_text):
        store = small_store
        assert len(store.vocabulary) == 1530
        assert [(s.tokens, s.n_sentences, s.unknown) for s in store.splits.values()] == [
            (41_015, 1902, 1140),
            (4167, 200, 251),
            (4022, 200, 177),
        ]
        assert store.vocabulary.words[2:7] == ("the", ",", ".", "and", "to")
        splitter = store.sentence_splitter()
        assert splitter is not None
        sentences = [tuple(store.text.words(s)) for s in splitter.sentences(small_text.read_text())]
        known = set(store.vocabulary.words)
        expected = Counter(tuple(w if w in known else "<unk>" for w in s) for s in sentences if s)
        assert Counter(tuple(s) for split in store.splits for s in sentences_of(store, split)) == expected

    def test_penn_treebank(self, shared_data, tmp_path):
        """The published numbers of tokens."""
        ptb = {split: shared_data / "ptb" / f"ptb.{split}.txt" for split in ("train", "valid", "test")}
        store = prepare(out=tmp_path / "store", **ptb)
        assert len(store.vocabulary) == 10_000
        assert [split.tokens for split in store.splits.values()] == [929_589, 73_760, 82_430]
        assert store.vocabulary.counts[store.vocabulary.unknown_id] == store.split("train").unknown == 45_020

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6), min_size=1, max_size=40),
        st.integers(1, 3),
        st.integers(0, 5),
        st.integers(0, 5),
        st.integers(0, 3),
        st.integers(1, 9),
    )
    def test_the_store_holds_all_sentences(self, tmp_path_factory, sentences, min_count, valid, test, seed, block):
        folder = tmp_path_factory.mktemp("random")
        (folder / "train").write_text("\n".join(map(" ".join, sentences)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prepare_module, "BLOCK_TOKENS", block)  # smaller than a sentence
            patch.setattr(tokenize_files, "LINES_UNIT_BYTES", 30)
            choices = {
                "train": folder / "train",
                "min_count": min_count,
                "valid_sentences": valid,
                "test_sentences": test,
                "seed": seed,
            }
            if valid + test >= len(sentences):
                with pytest.raises(NcelmError, match="cannot take"):
                    prepare(out=folder / "store", **choices)
                assert nothing_left(folder, "train")
                return
            try:
                store = prepare(out=folder / "store", **choices)
            except NcelmError as error:
                if "the vocabulary has" not in str(error):
                    raise
                assume(False)
        assert (valid > 0, test > 0) == ("valid" in store.splits, "test" in store.splits)
        parts = {split: sentences_of(store, split) for split in store.splits}
        assert [len(parts.get(split, [])) for split in ("valid", "test")] == [valid, test]
        # Sentences keep their order in each split; the splits together are the text.
        known = set(store.vocabulary.words)
        expected = [[word if word in known else "<unk>" for word in sentence] for sentence in sentences]
        assert Counter(map(tuple, expected)) == Counter(tuple(s) for part in parts.values() for s in part)
        for part in parts.values():
            rest = iter(expected)
            assert all(sentence in rest for sentence in part)
        train_counts = Counter(word for sentence in parts["train"] for word in sentence)
        for word, count in zip(store.vocabulary.words[2:], store.vocabulary.counts[2:], strict=True):
            assert count == train_counts[word] >= min_count

    def test_the_store_does_not_depend_on_the_number_of_workers(self, tmp_path, monkeypatch):
        generator = np.random.default_rng(0)
        lines = [" ".join(f"w{n}" for n in generator.zipf(1.5, 9) if n < 500) for _ in range(3000)]
        (tmp_path / "a").write_text("\n".join(lines[:2500]))
        with gzip.open(tmp_path / "b.gz", "wt") as file:
            file.write("\r\n".join(lines[2500:]))
        monkeypatch.setattr(tokenize_files, "LINES_UNIT_BYTES", 20_000)
        stores = [
            prepare(
                out=tmp_path / f"store{workers}",
                train=[tmp_path / "a", tmp_path / "b.gz"],
                valid_sentences=200,
                min_count=2,
                workers=workers,
            )
            for workers in (1, 2, 3)
        ]
        assert len({store.fingerprint for store in stores}) == 1
        for name in ("train.ids", "train.sentences", "valid.ids", "vocab.txt", "store.json"):
            assert len({(store.path / name).read_bytes() for store in stores}) == 1
        shown = [w for line in lines for w in line.split()]
        assert sum(split.tokens - split.n_sentences for split in stores[0].splits.values()) == len(shown)

    def test_the_seed_determines_the_sentences(self, tmp_path):
        (tmp_path / "a").write_text("".join(f"x y {n}\n" for n in range(100)))
        stores = [
            prepare(out=tmp_path / f"s{n}", train=tmp_path / "a", test_sentences=10, seed=seed)
            for n, seed in enumerate((0, 0, 1))
        ]
        assert stores[0].fingerprint == stores[1].fingerprint != stores[2].fingerprint

    def test_prose(self, tmp_path):
        (tmp_path / "books" / "more").mkdir(parents=True)
        (tmp_path / "books" / ".hidden").mkdir()
        (tmp_path / "books" / "b.txt").write_text(PROSE)
        (tmp_path / "books" / "more" / "a.txt").write_bytes(PROSE.replace("\n", "\r\n").encode())
        (tmp_path / "books" / "empty.txt").touch()
        for hidden in (".junk", ".hidden/junk"):
            (tmp_path / "books" / hidden).write_bytes(b"\0")
        seen = []
        stores = [
            prepare(
                tmp_path / "books",
                out=tmp_path / f"store{workers}",
                punkt="train",
                lowercase=True,
                workers=workers,
                progress=lambda done, total: seen.append((done, total)),
            )
            for workers in (1, 2)
        ]
        store = stores[0]
        assert store.fingerprint == stores[1].fingerprint
        assert (store.boundary, store.punkt) == ("sentence", "train")
        assert store.pad_id == store.vocabulary.out_of_sentence_id == len(store.vocabulary)
        assert store.text == TextSettings("treebank", lowercase=True)
        splitter = store.sentence_splitter()
        assert splitter is not None
        assert splitter.sentences("Mr. Smith met Dr. Jones! Did he?") == [
            "Mr. Smith met Dr. Jones!",
            "Did he?",
        ]
        expected = [tuple(store.text.words(sentence)) for sentence in splitter.sentences(PROSE)] * 2
        found = [tuple(sentence) for split in store.splits for sentence in sentences_of(store, split)]
        assert Counter(found) == Counter(expected)
        assert store.split("valid").n_sentences == store.split("test").n_sentences == len(expected) // 20
        total = 2 * len(PROSE) + PROSE.count("\n")
        assert seen[-1] == (total, total)
        assert prepare(
            [tmp_path / "books"], out=tmp_path / "all", punkt="train", valid_sentences=0, test_sentences=0
        ).splits.keys() == {"train"}

    def test_prose_in_parts(self, tmp_path, monkeypatch):
        (tmp_path / "a").write_text(PROSE)
        whole = prepare(tmp_path / "a", out=tmp_path / "whole", punkt="train")
        monkeypatch.setattr(tokenize_files, "PROSE_UNIT_BYTES", 1000)
        parts = prepare(tmp_path / "a", out=tmp_path / "parts", punkt="train")
        assert parts.fingerprint == whole.fingerprint

    def test_large_vocabulary(self, tmp_path):
        (tmp_path / "a").write_text(" ".join(map(str, range(65_533))))
        small = prepare(out=tmp_path / "small", train=tmp_path / "a")
        assert (len(small.vocabulary), small.split("train").ids.dtype) == (65_535, np.uint16)
        (tmp_path / "a").write_text(" ".join(map(str, range(65_534))))
        large = prepare(out=tmp_path / "large", train=tmp_path / "a")
        assert (len(large.vocabulary), large.split("train").ids.dtype) == (65_536, np.uint32)
        assert large.split("train").ids.max() == 65_535


class TestErrors:
    def check_error(self, folder: Path, message: str, **arguments) -> None:
        before = {path.name for path in folder.iterdir()}
        with pytest.raises(NcelmError, match=message) as caught:
            prepare(**{"out": folder / "store", **arguments})
        assert "\n" not in str(caught.value)
        assert {path.name for path in folder.iterdir()} == before

    def test_existing_output(self, three):
        (three / "store").mkdir()
        self.check_error(three, "store exists already", train=three / "train")

    @pytest.mark.parametrize("workers", [1, 2])
    def test_bad_files(self, three, workers):
        def check_bad(message, content):
            (three / "bad").write_bytes(content)
            self.check_error(three, message, train=[three / "train", three / "bad"], workers=workers)

        check_bad("bad looks like a binary file", b"\x7fELF\0")
        check_bad(r"bad is not UTF-8 \(byte 0xe9 at line 2\)", b"x\ncaf\xe9\n")
        check_bad("bad, line 1, has more than .* words", b"a " * 2_000_002 + b"\n")
        self.check_error(three, "there is no file .*nothing", train=three / "nothing", workers=workers)
        self.check_error(three, "is a folder", train=three, workers=workers)

    def test_empty(self, three):
        (three / "empty").write_text("\n \n\r\n")
        (three / "folder").mkdir()
        self.check_error(three, "no words in the train text", train=three / "empty")
        self.check_error(three, "no words in the valid text", train=three / "train", valid=three / "empty")
        self.check_error(three, "no words in the train text", files=three / "empty", punkt="train")
        self.check_error(three, "no files in the folder", files=three / "folder")

    def test_too_few_words(self, three):
        (three / "one").write_text("a a a <unk>\na </s>")
        self.check_error(three, "the vocabulary has only one word .*: lower `min_count`", train=three / "one")
        self.check_error(three, "the vocabulary has no words", train=three / "train", min_count=10)

    def test_invalid_arguments(self, three):
        train = three / "train"
        self.check_error(three, "either prose .* or `train`")
        self.check_error(three, "either prose .* or `train`", files=train, train=train)
        self.check_error(three, "go with `train`", files=train, valid=train)
        self.check_error(three, "not both", train=train, valid=train, valid_sentences=1)
        self.check_error(three, "cannot take 2 validation and 1 test", train=train, valid_sentences=2, test_sentences=1)
        self.check_error(three, "`test_sentences` is -1", train=train, test_sentences=-1)
        self.check_error(three, "`min_count` is 0", train=train, min_count=0)
        self.check_error(three, "`vocabulary_size` is 3", train=train, vocabulary_size=3)
        self.check_error(three, "`workers` is 0", train=train, workers=0)
        self.check_error(three, "`seed` is -1", train=train, seed=-1)
        self.check_error(three, "`boundary` is 'page'", train=train, boundary="page")
        self.check_error(three, "`punkt` is 'german'", files=train, punkt="german")
        self.check_error(three, "no text encoding 'klingon'", train=train, encoding="klingon")

    def test_missing_sentence_model(self, three, monkeypatch):
        import nltk.data

        monkeypatch.setattr(nltk.data, "path", [str(three)])
        self.check_error(three, "nltk.downloader punkt_tab", files=three / "train")

    def test_full_disk(self, three, monkeypatch):
        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(prepare_module.SplitWriter, "write", full)
        self.check_error(three, "no space left on the disk", train=three / "train")


class TestTables:
    """Files of JSON lines, Parquet and CSV, with a column; compressed plain text."""

    OPTIONS = {"punkt": "train", "workers": 1}  # noqa: RUF012

    @pytest.fixture
    def rows(self, monkeypatch):
        splitter = SentenceSplitter.train([PROSE])  # once: it takes most of the time
        monkeypatch.setattr(SentenceSplitter, "train", lambda chunks: splitter if list(chunks) else None)
        return [f"{paragraph}\n\nThis was text {n}." for n, paragraph in enumerate(PROSE.split("\n\n"))]

    @staticmethod
    def json_lines(rows) -> str:
        return "".join(json.dumps({"id": n, "text": row, "title": "A title."}) + "\n" for n, row in enumerate(rows))

    def test_a_folder_of_tables(self, rows, tmp_path, monkeypatch):
        monkeypatch.setattr(tokenize_files, "PROSE_UNIT_BYTES", 1000)
        parquet = pytest.importorskip("pyarrow.parquet")
        zstandard = pytest.importorskip("zstandard")
        (tmp_path / "tables").mkdir()
        tables = tmp_path / "tables"
        (tables / "a.jsonl").write_text(self.json_lines(rows[:40]))
        parquet.write_table(
            pytest.importorskip("pyarrow").table({"text": rows[40:60]}), tables / "b.parquet", row_group_size=5
        )
        (tables / "c.ndjson.gz").write_bytes(gzip.compress(self.json_lines(rows[60:70]).encode()))
        (tables / "d.jsonl.zst").write_bytes(zstandard.compress(self.json_lines(rows[70:]).encode()))
        expected = prepare(texts=rows, out=tmp_path / "memory", **self.OPTIONS)
        seen = []
        for workers in (1, 2):
            store = prepare(
                tables,
                out=tmp_path / f"store{workers}",
                column="text",
                punkt="train",
                workers=workers,
                progress=lambda *at: seen.append(at),
            )
            assert store.fingerprint == expected.fingerprint
            assert store.blank_lines == expected.blank_lines
            total = sum(path.stat().st_size for path in tables.iterdir())
            assert seen[-1] == (total, total)
        about = json.loads((store.path / "store.json").read_text())
        assert (about["settings"]["column"], about["settings"]["blank_lines"]) == ("text", "skip")
        with pytest.raises(NcelmError, match=r"a\.jsonl is JSON, not plain text: pass `column` text"):
            prepare(tables, out=tmp_path / "plain", **self.OPTIONS)
        (tables / "README.md").write_text("These are tables.\n")
        with pytest.raises(NcelmError, match=r"README\.md is not JSON lines, .*: `column` is for these"):
            prepare(tables, out=tmp_path / "plain", column="text", **self.OPTIONS)

    def test_parts(self, rows, tmp_path, monkeypatch):
        monkeypatch.setattr(tokenize_files, "PROSE_UNIT_BYTES", 1000)
        (tmp_path / "a.jsonl").write_text(self.json_lines(rows))
        (tmp_path / "b.csv").write_text('text\n"It was late.\n\nNobody came."\n')
        files = [tmp_path / "a.jsonl", tmp_path / "b.csv"]
        whole = prepare(files, out=tmp_path / "whole", column="text", **self.OPTIONS)
        for number in (1, 2, 3):
            prepare_part(number, 3, files, out=tmp_path / "store", column="text", **self.OPTIONS)
        with pytest.raises(NcelmError, match="another text or with other options"):
            prepare(tmp_path / "a.jsonl", out=tmp_path / "store", parts=3, column="title", **self.OPTIONS)
        store = prepare(files, out=tmp_path / "store", parts=3, column="text", **self.OPTIONS)
        for path in whole.path.iterdir():
            assert (store.path / path.name).read_bytes() == path.read_bytes()
        assert store.blank_lines == {"train": len(rows) + 1 + 1}  # the last row begins with one, too

    def test_archives(self, rows, tmp_path):
        packed = gzip.compress(self.json_lines(rows[40:]).encode())
        members = {"a.jsonl": self.json_lines(rows[:40]).encode(), "b.jsonl.gz": packed}
        archive = make_tar(tmp_path / "tables.tar", members, "w")
        expected = prepare(texts=rows, out=tmp_path / "memory", **self.OPTIONS)
        store = prepare(archive, out=tmp_path / "store", column="text", **self.OPTIONS)
        assert store.fingerprint == expected.fingerprint
        with pytest.raises(NcelmError, match=r"^tables\.tar/a\.jsonl is JSON, not plain text"):
            prepare(archive, out=tmp_path / "other", **self.OPTIONS)
        with pytest.raises(NcelmError, match=r"^tables\.tar/a\.jsonl, line 1: there is no column 'body'"):
            prepare(archive, out=tmp_path / "other", column="body", **self.OPTIONS)
        with pytest.raises(NcelmError, match=r"`gutenberg` goes with prose .* without `column`"):
            prepare(archive, out=tmp_path / "other", column="text", gutenberg=True, **self.OPTIONS)

    @pytest.mark.parametrize("workers", [1, 2])
    def test_damaged_tables(self, tmp_path, workers):
        (tmp_path / "a.jsonl").write_text('{"text": "the cat sat"}\n')
        (tmp_path / "b.jsonl").write_text('{"text": "the dog sat"}\n{"text": "the\n')
        with pytest.raises(NcelmError, match=r"b\.jsonl, line 2: not a JSON object \(Unterminated string"):
            prepare(train=sorted(tmp_path.iterdir()), out=tmp_path / "store", column="text", workers=workers)
        assert nothing_left(tmp_path, "a.jsonl", "b.jsonl")

    def test_tokenized_lines(self, three):
        for split in ("train", "valid", "test"):
            lines = (three / split).read_text().removesuffix("\n").split("\n")
            (three / f"{split}.jsonl").write_text(self.json_lines(lines))
        expected = prepare(out=three / "plain", **{split: three / split for split in ("train", "valid", "test")})
        tables = {split: three / f"{split}.jsonl" for split in ("train", "valid", "test")}
        store = prepare(out=three / "store", column="text", **tables)
        assert (store.fingerprint, store.blank_lines) == (expected.fingerprint, expected.blank_lines)

    def test_zstd(self, three):
        zstandard = pytest.importorskip("zstandard")
        packed = zstandard.compress((three / "train").read_bytes())
        (three / "train.zst").write_bytes(packed)
        plain, store = (prepare(train=three / name, out=three / f"of {name}") for name in ("train", "train.zst"))
        assert store.fingerprint == plain.fingerprint
        (three / "train.zst").write_bytes(packed[:-1])
        with pytest.raises(NcelmError, match=r"train\.zst is truncated"):
            prepare(train=three / "train.zst", out=three / "store")
        (three / "prose.txt.zst").write_bytes(zstandard.compress(PROSE.encode()))
        prepare(three / "prose.txt.zst", out=three / "prose", punkt="train")


class TestBlankLines:
    def test_tokenized(self, three, monkeypatch):
        (three / "train").write_bytes(b"\n\nthe cat sat\n \t\nthe dog sat\r\n\r\n\nthe end\n\n")
        for size in (1, 10**6):  # ranges of bytes
            monkeypatch.setattr(tokenize_files, "LINES_UNIT_BYTES", size)
            stores = {
                mode: prepare(train=three / "train", test=three / "test", out=three / f"{mode}{size}", blank_lines=mode)
                for mode in ("skip", "keep")
            }
            for store in stores.values():
                assert store.blank_lines == {"train": 6, "test": 1}
            words = [["the", "cat", "sat"], ["the", "dog", "sat"], ["the", "end"]]
            assert sentences_of(stores["skip"], "train") == words
            assert sentences_of(stores["keep"], "train") == [[], [], words[0], [], words[1], [], [], words[2], []]
            assert sentences_of(stores["keep"], "test")[1:] == [[]]
            assert stores["keep"].vocabulary.counts[1] == 9
        assert (
            prepare(train=three / "train", out=three / "default").fingerprint
            == prepare(train=three / "train", out=three / "skip", blank_lines="skip").fingerprint
        )

    def test_kept_lines_can_be_held_out(self, three):
        (three / "train").write_text("the cat sat\n\n" * 50)
        store = prepare(
            train=three / "train", out=three / "store", blank_lines="keep", valid_sentences=30, boundary="sentence"
        )
        assert [split.n_sentences for split in store.splits.values()] == [70, 30]
        assert 0 < sentences_of(store, "valid").count([]) < 30

    def test_prose(self, tmp_path, monkeypatch):
        (tmp_path / "a").write_text("\n" + "It was late\n\n \nand dark.\n\n" * 500)
        for size in (100, 10**6):
            monkeypatch.setattr(tokenize_files, "PROSE_UNIT_BYTES", size)
            store = prepare(tmp_path / "a", out=tmp_path / f"store{size}", punkt="train")
            assert store.blank_lines == {"train": 1501}
            assert sum(split.n_sentences for split in store.splits.values()) == 1000
        with pytest.raises(NcelmError, match="`blank_lines` keep is for tokenized text, given with `train`"):
            prepare(tmp_path / "a", out=tmp_path / "other", blank_lines="keep")

    def test_parts(self, three):
        part = {"train": three / "train", "out": three / "store", "blank_lines": "keep"}
        prepare_part(1, 1, **part)
        with pytest.raises(NcelmError, match="another text or with other options"):
            prepare(**part | {"blank_lines": "skip"}, parts=1)
        change_json(three / "store.part-1-of-1/part.json", {"blank_lines": [-1]})
        with pytest.raises(NcelmError, match=r"part\.json is damaged"):
            prepare(**part, parts=1)
        change_json(three / "store.part-1-of-1/part.json", {"blank_lines": [1]})
        store = prepare(**part, parts=1)
        assert store.blank_lines == {"train": 1}
        assert sentences_of(store, "train")[2] == []

    def test_stores_without_the_number(self, three):
        store = prepare(train=three / "train", out=three / "store")
        about = json.loads((store.path / "store.json").read_text())
        del about["blank_lines"]
        (store.path / "store.json").unlink()
        write_json(store.path / "store.json", {name: value for name, value in about.items() if name != "checksum"})
        again = TokenStore.open(store.path)
        assert (again.blank_lines, again.fingerprint) == (None, store.fingerprint)
        for wrong in (3, {"train": 1.5}, {"other": 1}, [1], {"train": -1}):
            change_json(store.path / "store.json", {"blank_lines": wrong})
            with pytest.raises(NcelmError, match=r"store\.json is damaged \(wrong numbers of blank lines\)"):
                TokenStore.open(store.path)


class TestParts:
    """A text that several machines tokenize, one part each."""

    @pytest.fixture
    def works(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tokenize_files, "PROSE_UNIT_BYTES", 2000)
        splitter = SentenceSplitter.train([PROSE])  # once for all parts: it takes most of the time
        monkeypatch.setattr(SentenceSplitter, "train", lambda _: splitter)
        for name in ("one", "two", "three"):
            (tmp_path / name).write_text(PROSE + f"Then {name} came. And {name} was late.\n" * 9)
        return [tmp_path / name for name in ("one", "two", "three")]

    OPTIONS = {"lowercase": True, "punkt": "train", "workers": 1}  # noqa: RUF012

    @pytest.mark.parametrize("parts", [1, 3, 50])
    def test_the_store_is_the_same_as_without_parts(self, works, tmp_path, parts):
        whole = prepare(works, out=tmp_path / "whole", min_count=2, **self.OPTIONS)
        for number in reversed(range(1, parts + 1)):
            part = prepare_part(number, parts, works, out=tmp_path / "store", **self.OPTIONS)
            assert part == tmp_path / f"store.part-{number}-of-{parts}"
        store = prepare(works, out=tmp_path / "store", min_count=2, parts=parts, **self.OPTIONS)
        for path in whole.path.iterdir():
            assert (store.path / path.name).read_bytes() == path.read_bytes()
        assert nothing_left(tmp_path, "one", "two", "three", "whole", "store")

    def test_wrong_parts_are_rejected(self, works, tmp_path):
        def join(**changes):
            return prepare(works, out=tmp_path / "store", parts=2, **(self.OPTIONS | changes))

        with pytest.raises(NcelmError, match=r"store.part-1-of-2 is missing: make it first, with .* --shard 1/2"):
            join()
        for number in (1, 2):
            prepare_part(number, 2, works, out=tmp_path / "store", **self.OPTIONS)
        with pytest.raises(NcelmError, match="another text or with other options"):
            join(lowercase=False)
        with pytest.raises(NcelmError, match="exists already"):
            prepare_part(1, 2, works, out=tmp_path / "store", **self.OPTIONS)
        with pytest.raises(NcelmError, match="part 3 of 2 does not exist"):
            prepare_part(3, 2, works, out=tmp_path / "store", **self.OPTIONS)
        (numbers, *_) = sorted((tmp_path / "store.part-1-of-2").rglob("*.numbers"))
        numbers.write_bytes(numbers.read_bytes()[:-8] + b"\xff" * 8)
        with pytest.raises(NcelmError, match=r"part-1-of-2.*\.numbers is damaged: make the part again"):
            join()
        content = json.loads((tmp_path / "store.part-1-of-2/part.json").read_text())
        content["sha256"][numbers.name] = hashlib.sha256(numbers.read_bytes()).hexdigest()
        change_json(tmp_path / "store.part-1-of-2/part.json", content)
        with pytest.raises(NcelmError, match="part-1-of-2 is damaged: make the part again"):
            join()
        numbers.write_bytes(numbers.read_bytes() + b"x")
        with pytest.raises(NcelmError, match=r"\.numbers is damaged: make the part again"):
            join()
        numbers.unlink()
        with pytest.raises(NcelmError, match="make the part again"):
            join()
        assert not (tmp_path / "store").exists()
        assert (tmp_path / "store.part-2-of-2").exists()

    def test_on_the_command_line(self, works, tmp_path, capsys):
        command = ["prepare", *map(str, works), "--out", str(tmp_path / "store"), "--punkt", "train"]
        for number in (1, 2):
            assert main([*command, "--shard", f"{number}/2"]) == 0
            assert f"shard {number}/2 is done" in capsys.readouterr().out
        assert main([*command, "--join", "2", "--shard", "1/2"]) == 2
        assert main([*command, "--shard", "3/2"]) == 2
        assert "the first is 1/8" in capsys.readouterr().err
        assert main([*command, "--join", "2"]) == 0
        assert TokenStore.open(tmp_path / "store").split("train").tokens > 1000


# -- choices that depend on the text, and a limited time -----------------------------------------------------------


def test_automatic_counts(tmp_path):
    lines = ["a b c", "a b", "c a rare"] * 30 + ["once"]
    store = prepare(train_lines=lines, out=tmp_path / "a", min_count="auto", valid_sentences="auto", test_sentences=3)
    assert "once" not in store.vocabulary
    assert [store.split(name).n_sentences for name in ("train", "valid", "test")] == [84, 4, 3]
    assert read_settings(tmp_path / "a")["min_count"] == 2
    store = prepare(train_lines=[*lines, "<unk>"], out=tmp_path / "b", min_count="auto")
    assert "once" in store.vocabulary
    assert "valid" not in store.splits


def test_a_limited_time(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenize_files, "LEAST_PART_BYTES", 100)
    monkeypatch.setattr(tokenize_files, "MEASURED_BYTES", 1000)
    text = tmp_path / "text"
    text.write_text(PROSE)
    options = {"punkt": "train", "workers": 1, "valid_sentences": 2}
    whole = prepare(text, out=tmp_path / "whole", **options)
    all_of_it = prepare(text, out=tmp_path / "slow", seconds=1e6, **options)
    assert all_of_it.fingerprint == whole.fingerprint
    settings = read_settings(tmp_path / "slow")
    assert settings["bytes_used"] == settings["bytes"] == len(PROSE)
    monkeypatch.setattr(tokenize_files, "_bytes_per_second", lambda units: len(PROSE))
    part = prepare(text, out=tmp_path / "part", seconds=1.0, **options)
    used = read_settings(tmp_path / "part")["bytes_used"]
    assert 0.1 * len(PROSE) < used < 0.75 * len(PROSE)
    assert 0 < part.split("train").tokens < 0.8 * whole.split("train").tokens
    with pytest.raises(NcelmError, match="`seconds` does not go with `parts`"):
        prepare(text, out=tmp_path / "x", seconds=1.0, parts=2)


def test_the_rate_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenize_files, "MEASURED_BYTES", 1000)
    (tmp_path / "text").write_text("a b c\n" * 5000)
    store = prepare(train=tmp_path / "text", out=tmp_path / "store", seconds=100.0)
    assert store.split("train").n_sentences == 5000
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == [
        "store.json", "train.ids", "train.sentences", "vocab.txt",
    ]  # fmt: skip


@pytest.mark.parametrize(("sizes", "limit", "chosen"), [([5], 1, [0]), ([1, 1], 2, [0, 1]), ([9, 1, 1], 2, [1, 2])])
def test_evenly_spaced(sizes, limit, chosen):
    assert tokenize_files.evenly_spaced(sizes, limit) == chosen
