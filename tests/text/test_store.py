"""The token store: validation when it is opened, and contexts and targets."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import change_json

from ncelm.errors import NcelmError
from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore, contexts_and_targets


class TestOpen:
    @pytest.fixture
    def store(self, three):
        return prepare(out=three / "store", train=three / "train", valid=three / "valid").path

    def check_error(self, path, message):
        with pytest.raises(NcelmError, match=message) as caught:
            TokenStore.open(path)
        assert "\n" not in str(caught.value)

    def test_absent_split(self, store):
        with pytest.raises(NcelmError, match="has no test split: it has train, valid"):
            TokenStore.open(store).split("test")

    def test_other_folders(self, store, tmp_path):
        self.check_error(tmp_path / "nowhere", "there is no token store")
        self.check_error(tmp_path, "is not a token store")
        self.check_error(tmp_path / "train", "is not a token store")
        (store / "store.json").write_text('{"format": "another"}')
        self.check_error(store, "is not a token store")

    @pytest.mark.parametrize("name", ["train.ids", "train.sentences", "valid.ids", "vocab.txt"])
    def test_wrong_files(self, store, name):
        path = store / name
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        self.check_error(store, f"{name} is truncated")
        path.write_bytes(b"")
        self.check_error(store, f"{name} is (truncated|empty)")
        path.write_bytes(content + content)
        self.check_error(store, "longer|twice")
        path.write_bytes(b"\xff" * len(content))
        self.check_error(store, "damaged|UTF-8")
        path.unlink()
        self.check_error(store, f"{name} is missing|there is no file")

    def test_garbage_json(self, store):
        path = store / "store.json"
        for content in (b"", b"{", b"\xff\0"):
            path.write_bytes(content)
            self.check_error(store, "damaged")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 3}, "newer ncelm"),
            ({"version": None}, "damaged"),
            ({"boundary": "page"}, "no boundary"),
            ({"boundary": ["stream"]}, "no boundary"),
            ({"dtype": "uint32"}, "dtype"),
            ({"vocabulary_size": 5}, "size of vocab.txt"),
            ({"vocabulary_digest": "x"}, "digest of vocab.txt"),
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
        change_json(store / "store.json", change)
        self.check_error(store, message)

    def test_invalid_ids_and_offsets(self, store):
        ids = np.fromfile(store / "train.ids", dtype="<u2")
        for position, id in ((0, 8), (3, 2)):  # not in the vocabulary; a sentence without </s>
            bad = ids.copy()
            bad[position] = id
            bad.tofile(store / "train.ids")
            self.check_error(store, "train.ids is damaged")
        ids.tofile(store / "train.ids")
        offsets = np.fromfile(store / "train.sentences", dtype="<u8")
        offsets[1] = 2**63
        offsets.tofile(store / "train.sentences")
        self.check_error(store, "train.sentences is damaged")

    def test_another_vocabulary(self, store):
        path = store / "vocab.txt"
        path.write_text(path.read_text().replace("the\t3", "the\t4"))
        self.check_error(store, "has counts that differ from the training text")


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
    def test_windows_of_padded_text(self, ids, before, after):
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


def test_a_changed_id_is_detected(tmp_path):
    (tmp_path / "text").write_text("a b c a\nb c a b\n" * 20)
    store = prepare(train=tmp_path / "text", test=tmp_path / "text", out=tmp_path / "store")
    ids = np.array(store.split("test").ids)
    ids[0] = 2 if ids[0] != 2 else 3  # a word, but another one
    (tmp_path / "store" / "test.ids").write_bytes(ids.tobytes())
    with pytest.raises(NcelmError, match=r"test\.ids is damaged"):
        TokenStore.open(tmp_path / "store")


def test_changed_counts_are_detected(tmp_path):
    (tmp_path / "text").write_text("a a a b b c\n" * 20)
    prepare(train=tmp_path / "text", out=tmp_path / "store")
    vocab = tmp_path / "store" / "vocab.txt"
    vocab.write_text(vocab.read_text().replace("a\t60", "a\t59").replace("c\t20", "c\t21"))
    with pytest.raises(NcelmError, match="counts that differ"):
        TokenStore.open(tmp_path / "store")
