"""The token store: validation when it is opened, and contexts and targets."""

import hashlib
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import change_json

from ncelm.errors import NcelmError
from ncelm.text import store as store_module
from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore, contexts_and_targets, open_part


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
            ({"version": 4}, "newer ncelm"),
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
            ({"splits": {"train": {"tokens": 10**30, "sentences": 3, "unknown": 3}}}, "no checksums of train"),
            (
                {"splits": {"train": {"tokens": 15, "sentences": 3, "unknown": 3}, "../x": {}}},
                "unknown splits",
            ),
        ],
    )
    def test_changed_json(self, store, change, message):
        change_json(store / "store.json", change)
        self.check_error(store, message)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"tokens": 10**30}, "another number of checksums of train"),
            ({"tokens": 14}, "longer than store.json says"),
            ({"tokens": 16}, "truncated"),
            ({"part_ids": 0}, "no checksums"),
            ({"part_ids": -4}, "no checksums"),
            ({"part_ids": 4.0}, "no checksums"),
            ({"part_ids": True}, "no checksums"),
            ({"part_ids": "4"}, "no checksums"),
            ({"part_ids": 10**30}, "no checksums"),
            ({"part_ids": 4}, "another number of checksums"),
            ({"part_sha256": None}, "no checksums"),
            ({"part_sha256": []}, "another number of checksums"),
            ({"part_sha256": "x"}, "no checksums"),
            ({"part_sha256": {"0": "x"}}, "no checksums"),
            ({"part_sha256": ["x"]}, "train.ids is damaged"),
            ({"part_sha256": [None]}, "train.ids is damaged"),
            ({"part_sha256": [["x"]]}, "train.ids is damaged"),
        ],
        ids=str,
    )
    def test_changed_checksums(self, store, change, message):
        splits = json.loads((store / "store.json").read_text())["splits"]
        change_json(store / "store.json", {"splits": splits | {"train": splits["train"] | change}})
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


class TestParts:
    """Checksums by parts, and the part of a worker. 103 training words are in 13 parts of 8 words."""

    SIZE = 3  # workers: words 0 to 33, 34 to 67 and 68 to 101 of the text; the last worker reads word 102 too

    @pytest.fixture
    def store(self, tmp_path, monkeypatch):
        monkeypatch.setattr(store_module, "PART_IDS", 8)
        (tmp_path / "text").write_text("a b c\nb c\n" * 14 + "a b c d\n")
        return prepare(train=tmp_path / "text", valid=tmp_path / "text", out=tmp_path / "store")

    def damage(self, path, position):
        ids = np.fromfile(path / "train.ids", dtype="<u2")
        ids[position] = 2 if ids[position] != 2 else 3
        ids.tofile(path / "train.ids")

    def test_each_part_has_its_checksum(self, store):
        described = json.loads((store.path / "store.json").read_text())["splits"]["train"]
        content = (store.path / "train.ids").read_bytes()
        assert (described["tokens"], described["part_ids"], "sha256" in described) == (103, 8, False)
        digests = [hashlib.sha256(content[first : first + 16]).hexdigest() for first in range(0, 206, 16)]
        assert described["part_sha256"] == digests

    def test_blocks_of_any_length_give_the_same_checksums(self, store, tmp_path):
        ids = np.array(store.split("train").ids).astype(np.int64)
        for block in (1, 3, 8, 50, 103):
            with store_module.SplitWriter(tmp_path, "again", np.dtype("<u2")) as writer:
                for first in range(0, len(ids), block):
                    writer.write(ids[first : first + block])
            described = json.loads((store.path / "store.json").read_text())["splits"]["train"]
            assert writer.description()["part_sha256"] == described["part_sha256"]

    def test_workers_have_all_of_the_text_once(self, store):
        whole = store.split("train")
        opened = [open_part(store.path, rank, self.SIZE) for rank in range(self.SIZE)]
        parts = [part.split("train") for part, _ in opened]
        np.testing.assert_array_equal(np.concatenate([part.ids for part in parts]), whole.ids[:102])
        assert [part.start for part in parts] == [rank * 102 // self.SIZE for rank in range(self.SIZE)]
        assert [(part.tokens, part.total_tokens) for part in parts] == [(34, 103)] * 3
        total = sum(counts for _, counts in opened)
        np.testing.assert_array_equal(total, store.vocabulary.counts)
        for part, counts in opened:
            part.check_counts(total)
            with pytest.raises(NcelmError, match="has counts that differ from the training text"):
                part.check_counts(counts)
            assert part.fingerprint == store.fingerprint
            np.testing.assert_array_equal(part.split("valid").ids, store.split("valid").ids)
            assert not part.split("train").ids.flags.writeable

    def test_memory_mapped_parts(self, store, monkeypatch):
        monkeypatch.setattr(store_module, "total_memory", lambda: 4)
        for rank in range(self.SIZE):
            part, _ = open_part(store.path, rank, self.SIZE)
            assert part.is_mapped
            np.testing.assert_array_equal(part.split("train").ids, store.split("train").ids[rank * 34 :][:34])

    @pytest.mark.parametrize(
        ("position", "owners"),
        [(0, {0}), (31, {0}), (32, {0, 1}), (36, {0, 1}), (39, {0, 1}), (40, {1}), (66, {1, 2}), (80, {2}), (102, {2})],
    )
    def test_damage_is_noticed_by_the_workers_that_read_it(self, store, position, owners):
        opened = [open_part(store.path, rank, self.SIZE)[0] for rank in range(self.SIZE)]
        self.damage(store.path, position)
        for rank in range(self.SIZE):
            if rank in owners:
                with pytest.raises(NcelmError, match=r"train\.ids is damaged"):
                    open_part(store.path, rank, self.SIZE)
                with pytest.raises(NcelmError, match=r"train\.ids was changed while it was in use"):
                    opened[rank].check_unchanged()
            else:
                open_part(store.path, rank, self.SIZE)
                opened[rank].check_unchanged()
        with pytest.raises(NcelmError, match=r"train\.ids is damaged"):
            TokenStore.open(store.path)

    def test_a_wrong_length_is_noticed_by_all_workers(self, store):
        content = (store.path / "train.ids").read_bytes()
        for bad in (content[:-2], content + content[:2]):
            (store.path / "train.ids").write_bytes(bad)
            for rank in range(self.SIZE):
                with pytest.raises(NcelmError, match=r"train\.ids is (truncated|longer)"):
                    open_part(store.path, rank, self.SIZE)

    def test_more_workers_than_words(self, store):
        assert open_part(store.path, 102, 103)[0].split("train").tokens == 1
        with pytest.raises(NcelmError, match="103 words of training text, too few for 104 workers"):
            open_part(store.path, 0, 104)

    @pytest.mark.parametrize("change", [{"unknown": 5}, {"sentences": 28}], ids=str)
    def test_numbers_in_store_json_that_differ_from_the_vocabulary(self, store, change):
        splits = json.loads((store.path / "store.json").read_text())["splits"]
        splits["train"] |= change
        change_json(store.path / "store.json", {"splits": splits})
        with pytest.raises(NcelmError, match=r"sizes of train that differ from vocab\.txt"):
            open_part(store.path, 1, self.SIZE)

    @pytest.mark.parametrize("version", [1, 2])
    def test_earlier_versions(self, store, version):
        """They have one checksum for all ids. The fingerprint is that of the former ncelm."""
        content = json.loads((store.path / "store.json").read_text())
        for name, described in content["splits"].items():
            del described["part_ids"], described["part_sha256"]
            described["sha256"] = hashlib.sha256((store.path / f"{name}.ids").read_bytes()).hexdigest()
        change_json(store.path / "store.json", {"version": version, "splits": content["splits"]})
        relevant = {key: content[key] for key in ("boundary", "vocabulary_digest", "text", "splits")}
        opened = TokenStore.open(store.path)
        assert opened.fingerprint == hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()
        np.testing.assert_array_equal(opened.split("train").ids, store.split("train").ids)
        part, _ = open_part(store.path, 1, self.SIZE)
        np.testing.assert_array_equal(part.split("train").ids, store.split("train").ids[34:68])
        self.damage(store.path, 0)
        for damaged in (lambda: TokenStore.open(store.path), lambda: open_part(store.path, 1, self.SIZE)):
            with pytest.raises(NcelmError, match=r"train\.ids is damaged"):
                damaged()


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
