"""The token store: what `prepare` makes of texts, what `open` refuses, and (context, target) pairs."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ncelm.cli.main import main
from ncelm.errors import NcelmError
from ncelm.text import prepare as preparing
from ncelm.text import tokenize_files as tokenising
from ncelm.text.prepare import prepare
from ncelm.text.settings import TextSettings
from ncelm.text.store import TokenStore, contexts_and_targets

PROSE = """Mr. Smith went to Washington. He met Dr. Jones there, and Mr. Brown.
They spoke for hours.

It was late. Mr. Smith said that Dr. Jones was right! Was he? Nobody knew, said Mr. Brown. Then he left.

"""
PROSE = PROSE * 40


@pytest.fixture
def three(tmp_path):
    """A folder with train, valid and test files of a few sentences."""
    (tmp_path / "train").write_text("the cat sat\nthe dog sat down\n\n<unk> the </s> <s> end\n")
    (tmp_path / "valid").write_text("the bird sat\n")
    (tmp_path / "test").write_text("a dog\n\n")
    return tmp_path


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

    def test_penn_treebank(self, shared_data, tmp_path):
        ptb = {split: shared_data / "ptb" / f"ptb.{split}.txt" for split in ("train", "valid", "test")}
        started = time.monotonic()
        store = prepare(out=tmp_path / "store", **ptb)
        assert time.monotonic() - started < 10
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
    def test_sentences_come_back(self, tmp_path_factory, sentences, min_count, valid, test, seed, block):
        folder = tmp_path_factory.mktemp("random")
        (folder / "train").write_text("\n".join(map(" ".join, sentences)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(preparing, "BLOCK", block)  # blocks that cut sentences in two
            patch.setattr(tokenising, "LINES_UNIT", 30)
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
        # In each split sentences keep their order, and together they are the text.
        known = set(store.vocabulary.words)
        expected = [[word if word in known else "<unk>" for word in sentence] for sentence in sentences]
        assert Counter(map(tuple, expected)) == Counter(tuple(s) for part in parts.values() for s in part)
        for part in parts.values():
            rest = iter(expected)
            assert all(sentence in rest for sentence in part)
        train_counts = Counter(word for sentence in parts["train"] for word in sentence)
        for word, count in zip(store.vocabulary.words[2:], store.vocabulary.counts[2:], strict=True):
            assert count == train_counts[word] >= min_count

    def test_number_of_workers_does_not_matter(self, tmp_path, monkeypatch):
        generator = np.random.default_rng(0)
        lines = [" ".join(f"w{n}" for n in generator.zipf(1.5, 9) if n < 500) for _ in range(3000)]
        (tmp_path / "a").write_text("\n".join(lines[:2500]))
        with gzip.open(tmp_path / "b.gz", "wt") as file:
            file.write("\r\n".join(lines[2500:]))
        monkeypatch.setattr(tokenising, "LINES_UNIT", 20_000)
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

    def test_seed_chooses_the_sentences(self, tmp_path):
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
        monkeypatch.setattr(tokenising, "PROSE_UNIT", 1000)
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

    def test_scripts_need_no_main_guard(self, three):
        script = three / "script.py"
        script.write_text(
            "from ncelm.text.prepare import prepare\n"
            "store = prepare(out='store', train='train', valid='valid', test='test', workers=3)\n"
            "print('prepared', len(store.vocabulary))\n"
        )
        done = subprocess.run([sys.executable, script], cwd=three, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("prepared 8\n", "")

    def test_ctrl_c_leaves_nothing(self, three):
        os.mkfifo(three / "pipe")  # a worker that opens it waits for ever
        heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # by nohup too
        script = "from ncelm.text.prepare import prepare; prepare(out='store', train=['pipe', 'train'], workers=2)"
        process = subprocess.Popen([sys.executable, "-c", f"{heard}; {script}"], cwd=three, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not list(three.glob(".store.*/spills/1.words")):  # until the other worker has done its part
            assert time.monotonic() < deadline
            time.sleep(0.02)
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        children = workers.read_text().split() if workers.exists() else []
        assert len(children) == 2 or not children
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) != 0
        assert nothing_left(three, "train", "valid", "test", "pipe")
        assert not any(Path(f"/proc/{child}").exists() for child in children)


class TestPrepareRefuses:
    def refused(self, folder: Path, message: str, **arguments) -> None:
        before = {path.name for path in folder.iterdir()}
        with pytest.raises(NcelmError, match=message) as caught:
            prepare(**{"out": folder / "store", **arguments})
        assert "\n" not in str(caught.value)
        assert {path.name for path in folder.iterdir()} == before

    def test_existing_output(self, three):
        (three / "store").mkdir()
        self.refused(three, "store exists already", train=three / "train")

    @pytest.mark.parametrize("workers", [1, 2])
    def test_bad_files(self, three, workers):
        def refused(message, content):
            (three / "bad").write_bytes(content)
            self.refused(three, message, train=[three / "train", three / "bad"], workers=workers)

        refused("bad looks like a binary file", b"\x7fELF\0")
        refused(r"bad is not UTF-8 \(byte 0xe9 at line 2\)", b"x\ncaf\xe9\n")
        refused("bad, line 1, has more than .* words", b"a " * 2_000_002 + b"\n")
        self.refused(three, "there is no file .*nothing", train=three / "nothing", workers=workers)
        self.refused(three, "is a folder", train=three, workers=workers)

    def test_empty(self, three):
        (three / "empty").write_text("\n \n\r\n")
        (three / "folder").mkdir()
        self.refused(three, "no words in the train text", train=three / "empty")
        self.refused(three, "no words in the valid text", train=three / "train", valid=three / "empty")
        self.refused(three, "no words in the train text", texts=three / "empty", punkt="train")
        self.refused(three, "no files in the folder", texts=three / "folder")

    def test_nothing_to_learn(self, three):
        (three / "one").write_text("a a a <unk>\na </s>")
        self.refused(three, "the vocabulary has only one word .*: lower --min-count", train=three / "one")
        self.refused(three, "the vocabulary has no words", train=three / "train", min_count=10)

    def test_contradictions(self, three):
        train = three / "train"
        self.refused(three, "either prose .* or --train")
        self.refused(three, "either prose .* or --train", texts=train, train=train)
        self.refused(three, "go with --train", texts=train, valid=train)
        self.refused(three, "not both", train=train, valid=train, valid_sentences=1)
        self.refused(three, "cannot take 2 validation and 1 test", train=train, valid_sentences=2, test_sentences=1)
        self.refused(three, "--test-sentences is -1", train=train, test_sentences=-1)
        self.refused(three, "--min-count is 0", train=train, min_count=0)
        self.refused(three, "--vocabulary-size is 3", train=train, vocabulary_size=3)
        self.refused(three, "--workers is 0", train=train, workers=0)
        self.refused(three, "--seed is -1", train=train, seed=-1)
        self.refused(three, "--boundary is 'page'", train=train, boundary="page")
        self.refused(three, "--punkt is 'german'", texts=train, punkt="german")
        self.refused(three, "no text encoding 'klingon'", train=train, encoding="klingon")

    def test_missing_sentence_model(self, three, monkeypatch):
        import nltk.data

        monkeypatch.setattr(nltk.data, "path", [str(three)])
        self.refused(three, "nltk.downloader punkt_tab", texts=three / "train")

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed .*memory.* --workers 1"),
            ("raise RuntimeError('oh no')", "stopped .RuntimeError: oh no.: .*--workers 1"),
            ("import sys; sys.stdin.readline(); print('hello')", "stopped .exit code 0"),
        ],
    )
    def test_dying_workers(self, three, monkeypatch, code, message):
        monkeypatch.setattr(tokenising, "WORKER", code)
        self.refused(three, message, train=[three / "train"] * 3, workers=2)

    def test_full_disk(self, three, monkeypatch):
        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(preparing.SplitWriter, "write", full)
        self.refused(three, "no space left on the disk", train=three / "train")


class TestOpenRefuses:
    @pytest.fixture
    def store(self, three):
        return prepare(out=three / "store", train=three / "train", valid=three / "valid").path

    def refused(self, path, message):
        with pytest.raises(NcelmError, match=message) as caught:
            TokenStore.open(path)
        assert "\n" not in str(caught.value)

    def test_absent_split(self, store):
        with pytest.raises(NcelmError, match="has no test split: it has train, valid"):
            TokenStore.open(store).split("test")

    def test_foreign_folders(self, store, tmp_path):
        self.refused(tmp_path / "nowhere", "there is no token store")
        self.refused(tmp_path, "is not a token store")
        self.refused(tmp_path / "train", "is not a token store")
        (store / "store.json").write_text('{"format": "another"}')
        self.refused(store, "is not a token store")

    @pytest.mark.parametrize("name", ["train.ids", "train.sentences", "valid.ids", "vocab.txt"])
    def test_wrong_files(self, store, name):
        path = store / name
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        self.refused(store, f"{name} is truncated")
        path.write_bytes(b"")
        self.refused(store, f"{name} is (truncated|empty)")
        path.write_bytes(content + content)
        self.refused(store, "longer|twice")
        path.write_bytes(b"\xff" * len(content))
        self.refused(store, "damaged|UTF-8")
        path.unlink()
        self.refused(store, f"{name} is missing|there is no file")

    def test_garbage_json(self, store):
        path = store / "store.json"
        for content in (b"", b"{", b"\xff\0"):
            path.write_bytes(content)
            self.refused(store, "damaged")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 2}, "newer ncelm"),
            ({"version": None}, "damaged"),
            ({"boundary": "page"}, "no boundary"),
            ({"boundary": ["stream"]}, "no boundary"),
            ({"dtype": "uint32"}, "dtype"),
            ({"vocabulary_size": 5}, "vocab.txt"),
            ({"vocabulary_digest": "x"}, "vocab.txt"),
            ({"punkt": "german"}, "punkt"),
            ({"text": None}, "text settings"),
            ({"text": {"tokenizer": "x", "lowercase": False}}, "text settings"),
            ({"splits": {}}, "no training split"),
            ({"splits": []}, "no training split"),
            ({"splits": {"train": 3}}, "no sizes of train"),
            ({"splits": {"train": {"tokens": 15, "sentences": "3", "unknown": 3}}}, "no sizes"),
            ({"splits": {"train": {"tokens": -15, "sentences": 3, "unknown": 3}}}, "impossible sizes"),
            ({"splits": {"train": {"tokens": 15, "sentences": 3, "unknown": 16}}}, "impossible sizes"),
            ({"splits": {"train": {"tokens": 10**30, "sentences": 3, "unknown": 3}}}, "truncated"),
            (
                {"splits": {"train": {"tokens": 15, "sentences": 3, "unknown": 3}, "../x": {}}},
                "unknown splits",
            ),
        ],
    )
    def test_changed_json(self, store, change, message):
        path = store / "store.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        self.refused(store, message)

    def test_numbers_that_would_lead_astray(self, store):
        ids = np.fromfile(store / "train.ids", dtype="<u2")
        for position, id in ((0, 8), (3, 2)):  # beyond the vocabulary; a sentence without its end
            bad = ids.copy()
            bad[position] = id
            bad.tofile(store / "train.ids")
            self.refused(store, "train.ids is damaged")
        ids.tofile(store / "train.ids")
        offsets = np.fromfile(store / "train.sentences", dtype="<u8")
        offsets[1] = 2**63
        offsets.tofile(store / "train.sentences")
        self.refused(store, "train.sentences is damaged")

    def test_another_vocabulary(self, store):
        path = store / "vocab.txt"
        path.write_text(path.read_text().replace("the\t3", "the\t4"))
        self.refused(store, "has counts that are not those of the training text")


class TestContexts:
    IDS = np.array([5, 6, 1, 7, 8, 9, 1], dtype=np.uint16)  # "5 6 </s> 7 8 9 </s>"

    def test_stream(self):
        contexts, targets = contexts_and_targets(self.IDS, [0, 2, 4, 6], 3, 2, "stream", end_id=1, pad_id=1)
        assert targets.tolist() == [5, 1, 8, 1]
        assert contexts.tolist() == [[1, 1, 1, 6, 1], [1, 5, 6, 7, 8], [6, 1, 7, 9, 1], [7, 8, 9, 1, 1]]
        assert contexts.dtype == targets.dtype == np.int64

    def test_sentence(self):
        contexts, targets = contexts_and_targets(self.IDS, [0, 2, 4, 3, 6], 3, 2, "sentence", end_id=1, pad_id=10)
        assert targets.tolist() == [5, 1, 8, 7, 1]
        assert contexts.tolist() == [
            [10, 10, 10, 6, 10],
            [10, 5, 6, 10, 10],
            [10, 10, 7, 9, 10],
            [10, 10, 10, 8, 9],
            [7, 8, 9, 10, 10],
        ]

    @given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.integers(0, 4), st.integers(0, 4))
    def test_another_way_to_say_it(self, ids, before, after):
        array = np.array(ids, dtype=np.uint16)
        everywhere = np.arange(len(ids))
        padded = [1] * before + ids + [1] * after
        contexts, _ = contexts_and_targets(array, everywhere, before, after, "stream", 1, 1)
        for p in everywhere.tolist():
            assert contexts[p].tolist() == padded[p : p + before] + padded[p + before + 1 : p + before + 1 + after]
        contexts, _ = contexts_and_targets(array, everywhere, before, after, "sentence", 1, 9)
        text = "".join(map(str, ids))
        for p in everywhere.tolist():
            left = re.split("1", text[:p])[-1]
            right = "" if text[p] == "1" else re.split("1", text[p + 1 :])[0]
            row = ("9" * before + left)[len(left) :] + (right + "9" * after)[:after]
            assert "".join(map(str, contexts[p])) == row

    def test_edges(self):
        contexts, targets = contexts_and_targets(self.IDS, [], 2, 1, "stream", 1, 1)
        assert (contexts.shape, targets.shape) == ((0, 3), (0,))
        for position in (-1, 7):
            with pytest.raises(IndexError):
                contexts_and_targets(self.IDS, [position], 2, 0, "stream", 1, 1)


def test_a_flipped_bit_is_seen(tmp_path):
    (tmp_path / "text").write_text("a b c a\nb c a b\n" * 20)
    store = prepare(train=tmp_path / "text", test=tmp_path / "text", out=tmp_path / "store")
    ids = np.array(store.split("test").ids)
    ids[0] = 2 if ids[0] != 2 else 3  # a word, but another one
    (tmp_path / "store" / "test.ids").write_bytes(ids.tobytes())
    with pytest.raises(NcelmError, match=r"test\.ids is damaged"):
        TokenStore.open(tmp_path / "store")


def test_counts_that_are_not_those_of_the_text_are_seen(tmp_path):
    (tmp_path / "text").write_text("a a a b b c\n" * 20)
    prepare(train=tmp_path / "text", out=tmp_path / "store")
    vocab = tmp_path / "store" / "vocab.txt"
    vocab.write_text(vocab.read_text().replace("a\t60", "a\t59").replace("c\t20", "c\t21"))
    with pytest.raises(NcelmError, match="counts that are not those"):
        TokenStore.open(tmp_path / "store")


class TestParts:
    """A text that several machines have tokenised, each a part of it."""

    @pytest.fixture
    def works(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tokenising, "PROSE_UNIT", 2000)
        for name in ("one", "two", "three"):
            (tmp_path / name).write_text(PROSE + f"Then {name} came. And {name} was late.\n" * 9)
        return [tmp_path / name for name in ("one", "two", "three")]

    OPTIONS = {"lowercase": True, "punkt": "train", "workers": 1}  # noqa: RUF012

    @pytest.mark.parametrize("parts", [1, 3, 50])
    def test_the_store_is_the_same_as_in_one_go(self, works, tmp_path, parts):
        whole = prepare(works, out=tmp_path / "whole", min_count=2, **self.OPTIONS)
        for number in reversed(range(1, parts + 1)):
            part = preparing.prepare_part(number, parts, works, out=tmp_path / "store", **self.OPTIONS)
            assert part == tmp_path / f"store.part-{number}-of-{parts}"
        store = prepare(works, out=tmp_path / "store", min_count=2, parts=parts, **self.OPTIONS)
        for path in whole.path.iterdir():
            assert (store.path / path.name).read_bytes() == path.read_bytes()
        assert nothing_left(tmp_path, "one", "two", "three", "whole", "store")

    def test_parts_that_do_not_fit_are_refused(self, works, tmp_path):
        def join(**changes):
            return prepare(works, out=tmp_path / "store", parts=2, **(self.OPTIONS | changes))

        with pytest.raises(NcelmError, match=r"store.part-1-of-2 is missing: make it first, with --shard 1/2"):
            join()
        for number in (1, 2):
            preparing.prepare_part(number, 2, works, out=tmp_path / "store", **self.OPTIONS)
        with pytest.raises(NcelmError, match="another text or with other options"):
            join(lowercase=False)
        with pytest.raises(NcelmError, match="exists already"):
            preparing.prepare_part(1, 2, works, out=tmp_path / "store", **self.OPTIONS)
        with pytest.raises(NcelmError, match="part 3 of 2 does not exist"):
            preparing.prepare_part(3, 2, works, out=tmp_path / "store", **self.OPTIONS)
        (numbers, *_) = sorted((tmp_path / "store.part-1-of-2").rglob("*.numbers"))
        numbers.write_bytes(numbers.read_bytes()[:-8] + b"\xff" * 8)
        with pytest.raises(NcelmError, match="part-1-of-2 is damaged: make the part anew"):
            join()
        numbers.unlink()
        with pytest.raises(NcelmError, match="make the part anew"):
            join()
        assert not (tmp_path / "store").exists()
        assert (tmp_path / "store.part-2-of-2").exists()

    def test_on_the_command_line(self, works, tmp_path, capsys):
        command = ["prepare", *map(str, works), "--out", str(tmp_path / "store"), "--punkt", "train"]
        for number in (1, 2):
            assert main([*command, "--shard", f"{number}/2"]) == 0
            assert f"part {number}/2 is done" in capsys.readouterr().out
        assert main([*command, "--join", "2", "--shard", "1/2"]) == 2
        assert main([*command, "--shard", "3/2"]) == 2
        assert "the first is 1/8" in capsys.readouterr().err
        assert main([*command, "--join", "2"]) == 0
        assert TokenStore.open(tmp_path / "store").split("train").tokens > 1000
