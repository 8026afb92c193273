"""The vocabulary: order, limits, and invalid files."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncelm.errors import NcelmError
from ncelm.text.vocabulary import END, RESERVED, UNKNOWN, Vocabulary

words = st.text(min_size=1, max_size=4).filter(lambda word: word.split() == [word])
words = words.filter(lambda word: not any("\ud800" <= c <= "\udfff" for c in word))
word_counts = st.dictionaries(words | st.sampled_from(sorted(RESERVED)), st.integers(0, 5), max_size=30)


def small() -> Vocabulary:
    return Vocabulary.from_counts({"b": 2, "a": 2, "c": 5, "rare": 1}, sentences=4, min_count=2)


@given(word_counts, st.integers(0, 99), st.integers(1, 4), st.none() | st.integers(4, 20))
def test_order_and_limits(counts, sentences, min_count, max_size):
    vocabulary = Vocabulary.from_counts(counts, sentences, min_count, max_size)
    ordinary = vocabulary.words[2:]
    assert vocabulary.words[:2] == (UNKNOWN, END)
    assert sorted(ordinary, key=lambda word: (-counts[word], word)) == list(ordinary)
    assert not RESERVED & set(ordinary)
    assert all(counts[word] >= min_count for word in ordinary)
    left = [counts[w] for w in counts if w not in vocabulary and w not in RESERVED and counts[w] >= min_count]
    if left:  # removed because of the size: less frequent than all others
        assert len(vocabulary) == max_size
        assert max(left) <= min(counts[word] for word in ordinary)
    assert max_size is None or len(vocabulary) <= max_size
    assert vocabulary.counts[1] == sentences
    assert vocabulary.counts.sum() == sum(counts.values()) + sentences


@given(word_counts)
def test_round_trip(tmp_path_factory, counts):
    vocabulary = Vocabulary.from_counts(counts, 7)
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    vocabulary.save(path)
    again = Vocabulary.load(path)
    assert again.words == vocabulary.words
    assert again.counts.tolist() == vocabulary.counts.tolist()
    assert again.digest == vocabulary.digest
    ids = vocabulary.encode(list(counts))
    for word, id in zip(counts, ids.tolist(), strict=True):
        assert id == (0 if word in RESERVED or not counts[word] else vocabulary.words.index(word))


def test_lookups():
    vocabulary = small()
    assert vocabulary.words == ("<unk>", "</s>", "c", "a", "b")
    assert vocabulary.counts.tolist() == [1, 4, 5, 2, 2]
    assert vocabulary.counts.dtype == np.int64
    assert [vocabulary.id(word) for word in ("a", "rare", "</s>", "<unk>")] == [3, 0, 1, 0]
    assert vocabulary.word(4) == "b"
    assert "a" in vocabulary
    assert "rare" not in vocabulary
    assert (vocabulary.unknown_id, vocabulary.end_id, vocabulary.out_of_sentence_id) == (0, 1, 5)
    assert vocabulary.encode([]).tolist() == []
    for id in (-1, 5):
        with pytest.raises(IndexError):
            vocabulary.word(id)


def test_reserved_words_in_the_text_are_unknown():
    counts = {"<unk>": 1, "</s>": 2, "<s>": 4, "a": 8, "b": 16}
    vocabulary = Vocabulary.from_counts(counts, sentences=3)
    assert vocabulary.words == ("<unk>", "</s>", "b", "a")
    assert vocabulary.counts.tolist() == [7, 3, 16, 8]
    assert vocabulary.encode(["<unk>", "</s>", "<s>", "a"]).tolist() == [0, 0, 0, 3]


def test_the_number_of_unknown_words():
    assert small().unknown_types == 1
    counts = {f"w{i}": 1 for i in range(30)} | {"a": 5, "b": 5, "c": 6, "never": 0}
    assert Vocabulary.from_counts(counts, 3).unknown_types == 0
    assert Vocabulary.from_counts(counts, 3, min_count=2).unknown_types == 30
    assert Vocabulary.from_counts(counts, 3, max_size=4).unknown_types == 31
    # a token <s> or </s> of the text is one word; a token <unk> stands for several, whose number is estimated
    assert Vocabulary.from_counts(counts | {"<s>": 9, "</s>": 9}, 3, min_count=2).unknown_types == 32
    expected = 30 + round(100 * (1 - 1 / 5) / (1 / 2 + 1 / 3 + 1 / 4 + 1 / 5))
    assert Vocabulary.from_counts(counts | {"<unk>": 100}, 3, min_count=2).unknown_types == expected


def test_the_number_of_unknown_words_is_that_of_the_caller_or_estimated(tmp_path):
    words, counts = ["<unk>", "</s>", "a", "b", "c"], [40, 9, 2, 2, 7]
    assert Vocabulary(words, counts).unknown_types == 40  # of words that occur once
    assert Vocabulary(words, counts, 25).unknown_types == 25
    Vocabulary(words, counts).save(tmp_path / "vocab.txt")
    assert Vocabulary.load(tmp_path / "vocab.txt").unknown_types == 40
    assert Vocabulary.load(tmp_path / "vocab.txt", 25).unknown_types == 25
    assert Vocabulary(words, [0, 9, 2, 2, 7]).unknown_types == 0
    assert Vocabulary(words[:2], [3, 1]).unknown_types == 3
    assert Vocabulary(words, [1, 0, 0, 0, 0]).unknown_types == 1
    assert Vocabulary(words, [10**17, 0, 10**18 - 1, 10**18 - 1, 0]).unknown_types > 10**15
    for wrong in (-1, 1.5, "3"):
        with pytest.raises(NcelmError, match="`unknown_types` is "):
            Vocabulary(words, counts, wrong)


@pytest.mark.parametrize("min_count", [2, 3, 5, 10])
def test_the_estimate_on_a_real_text(small_text, min_count):
    """Within 20 % of the true number, for a text in which unknown words are already replaced by <unk>."""
    counts = Counter(small_text.read_text().lower().split())
    rare = {word: count for word, count in counts.items() if count < min_count}
    replaced = {word: count for word, count in counts.items() if word not in rare} | {"<unk>": sum(rare.values())}
    assert Vocabulary.from_counts(replaced, 1).unknown_types == pytest.approx(len(rare), rel=0.2)
    assert Vocabulary.from_counts(counts, 1, min_count).unknown_types == len(rare)


def test_digest_depends_on_words_alone():
    one = Vocabulary(["<unk>", "</s>", "a", "b"], [0, 1, 2, 3])
    assert one.digest == Vocabulary(["<unk>", "</s>", "a", "b"], [9, 9, 9, 9]).digest
    assert one.digest != Vocabulary(["<unk>", "</s>", "b", "a"], [0, 1, 2, 3]).digest


@pytest.mark.parametrize(("min_count", "max_size"), [(0, None), (-1, 10), (1, 3), (1, 0)])
def test_impossible_limits(min_count, max_size):
    with pytest.raises(NcelmError, match="at least"):
        Vocabulary.from_counts({"a": 1}, 1, min_count, max_size)


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        (["a", "b"], [1, 1]),
        (["<unk>"], [1]),
        (["<unk>", "</s>", "a", "a"], [1, 1, 1, 1]),
        (["<unk>", "</s>", "a b"], [1, 1, 1]),
        (["<unk>", "</s>", ""], [1, 1, 1]),
        (["<unk>", "</s>", "<s>"], [1, 1, 1]),
        (["<unk>", "</s>", "\ud800"], [1, 1, 1]),
        (["<unk>", "</s>", "a"], [1, 1]),
        (["<unk>", "</s>", "a"], [1, 1, -1]),
    ],
)
def test_impossible_vocabularies(words, counts):
    with pytest.raises(NcelmError):
        Vocabulary(words, counts)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"<unk>\t1\n", "truncated"),
        (b"<unk>\t1\n</s>\t2\na\t3", "truncated in line 3"),
        (b"<unk>\t1\n</s>\t2\na\t3\na\t4\n", "line 4: the word 'a' occurs twice"),
        (b"</s>\t1\n<unk>\t2\n", "line 1: a vocabulary begins with <unk> and </s>"),
        (b"<unk>\t1\nthe\t2\n", "line 2: a vocabulary begins"),
        (b"<unk>\t1\n</s>\t2\na\n", "line 3: expected a word, a tab and a count"),
        (b"<unk>\t1\n</s>\t2\na\t-3\n", "line 3: expected"),
        (b"<unk>\t1\n</s>\t2\na\t1.5\n", "line 3: expected"),
        (b"<unk>\t1\n</s>\t2\na\t9999999999999999999\n", "line 3: expected"),
        (b"<unk>\t1\n</s>\t2\na\t1\t1\n", "line 3: expected"),
        ("<unk>\t1\n</s>\t2\na\t\u0663\n".encode(), "line 3: expected"),
        (b"<unk>\t1\n</s>\t2\n\t5\n", "line 3: '' is not a word"),
        (b"<unk>\t1\n</s>\t2\na b\t5\n", "line 3: 'a b' is not a word"),
        (b"<unk>\t1\n</s>\t2\n<s>\t5\n", "line 3: '<s>' is not a word"),
        (b"<unk>\t1\n</s>\t2\ncaf\xe9\t5\n", "line 3 is not UTF-8"),
    ],
)
def test_bad_files(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(NcelmError, match=message) as caught:
        Vocabulary.load(path)
    assert str(path) in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(NcelmError, match="there is no file"):
        Vocabulary.load(tmp_path / "vocab.txt")
