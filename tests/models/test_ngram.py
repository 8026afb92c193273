"""N-grams: the estimate against its definition, sums of probabilities, the file on disk, texts that are too small."""

import json
import struct
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from tests.helpers import random_lines, store_of, word_distribution

from ncelm import load
from ncelm.errors import NcelmError
from ncelm.io import machine
from ncelm.kernels.threads import Team
from ncelm.losses import reference
from ncelm.models.base import Blank, corpus_view
from ncelm.models.evaluate import evaluate_split
from ncelm.models.ngram import model as ngram
from ncelm.models.ngram.model import Discounts, estimate, train_ngram
from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore


def marked_sentences(store):
    """The training text as the reference takes it: with a mark before each sentence, or before the whole text."""
    split = store.split("train")
    ids = split.ids.tolist()
    if store.boundary == "stream":
        return [[store.pad_id, *ids]]
    bounds = split.sentences.tolist()
    return [[store.pad_id, *ids[a:b]] for a, b in pairwise(bounds)]


# -- right ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("boundary", ["sentence", "stream"])
@pytest.mark.parametrize(
    ("order", "min_counts"), [(1, [1]), (2, [1]), (3, [1]), (5, [1]), (2, [1, 3]), (4, [1, 1, 2]), (4, [1, 2, 2, 3])]
)
def test_the_estimate_is_the_definition(tmp_path, boundary, order, min_counts):
    store = store_of(tmp_path, random_lines(order), boundary, min_count=3)
    model, discounts = estimate(store, order, min_counts)
    sentences = marked_sentences(store)
    least = [*min_counts, *[min_counts[-1]] * order]
    slow = reference.kneser_ney(sentences, order, len(store.vocabulary), [d.amounts for d in discounts], least)
    rng = np.random.default_rng(0)
    for _ in range(30):
        sentence = sentences[int(rng.integers(len(sentences)))]
        end = int(rng.integers(1, len(sentence)))
        history = sentence[max(0, end - order - 1) : end]
        if rng.random() < 0.3:  # something that was never seen
            history = [*history, int(rng.integers(1, len(store.vocabulary)))]
        expected = [slow(word, history) for word in range(len(store.vocabulary))]
        np.testing.assert_allclose(word_distribution(model, history), expected, rtol=2e-5)


@pytest.mark.parametrize("boundary", ["sentence", "stream"])
def test_scores_of_positions_are_probabilities_after_what_stands_before(tmp_path, boundary, monkeypatch):
    monkeypatch.setattr(ngram.ngram_kernels, "BLOCK", 7)
    store = store_of(tmp_path, random_lines(7), boundary)
    model, _ = estimate(store, 4)
    split = store.split("test")
    corpus = corpus_view(split, store)
    with Team(1) as one, Team(2) as two:
        scores, log_z = model.score_positions(corpus, 0, split.tokens, one)
        middle, _ = model.score_positions(corpus, 100, 200, two)
        again, _ = model.score_positions(corpus, 0, split.tokens, two)
    np.testing.assert_array_equal(scores, again)
    np.testing.assert_array_equal(scores[100:200], middle)
    assert not log_z.any()
    ids = split.ids.tolist()
    for position in range(0, split.tokens, 11):
        history = [store.pad_id, *ids[:position]]
        if boundary == "sentence":
            start = int(split.sentences[np.searchsorted(split.sentences, position, side="right") - 1])
            history = [store.pad_id, *ids[start:position]]
        expected = np.log(word_distribution(model, history[-4:])[ids[position]])
        assert scores[position] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("order", "min_counts"), [(1, [1]), (2, [1]), (3, [1]), (4, [1]), (6, [1]), (5, [1, 1, 2])])
def test_every_distribution_sums_to_one(tmp_path, order, min_counts):
    store = store_of(tmp_path, random_lines(3, sentences=500, words=60))
    model, _ = estimate(store, order, min_counts)
    rng = np.random.default_rng(1)
    ids = store.split("train").ids
    for n in range(order + 1):
        for _ in range(20):
            at = int(rng.integers(0, ids.size - n))
            seen = ids[at : at + n].tolist()
            for history in (seen, [store.pad_id, *seen][: n + 1], rng.integers(0, len(store.vocabulary), n).tolist()):
                assert word_distribution(model, history).sum() == pytest.approx(1.0, abs=1e-6)


def test_it_recovers_a_known_distribution(tmp_path):
    """From enough text of a bigram process, the probabilities of that process."""
    rng = np.random.default_rng(5)
    follow = rng.dirichlet(np.full(4, 2.0), size=4)
    lines, word = [], 0
    for _ in range(400):
        line = []
        for _ in range(100):
            word = int(rng.choice(4, p=follow[word]))
            line.append(f"w{word}")
        lines.append(" ".join(line))
    store = store_of(tmp_path, lines, "stream")
    model, _ = estimate(store, 2)
    own = [store.vocabulary.id(f"w{i}") for i in range(4)]
    for i in range(4):
        np.testing.assert_allclose(word_distribution(model, [own[i]])[own] / 0.99, follow[i], atol=0.02)


def test_discounts_are_chen_and_goodman_s():
    counts = np.repeat([1, 2, 3, 4, 9], [100, 40, 20, 10, 30])
    y = 100 / 180
    expected = (1 - 2 * y * 40 / 100, 2 - 3 * y * 20 / 40, 3 - 4 * y * 10 / 20)
    discounts = Discounts.estimate(counts)
    assert discounts.amounts == pytest.approx(expected)
    assert not discounts.fallback
    for degenerate in ([1, 1, 1], [2, 2, 3, 3], [1, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4], [5, 6, 7]):
        assert Discounts.estimate(np.array(degenerate)) == Discounts((0.5, 1.0, 1.5), fallback=True)


def test_penn_treebank_is_as_lmplz_has_it(shared_data, tmp_path):
    texts = {name: shared_data / f"ptb/ptb.{name}.txt" for name in ("train", "valid", "test")}
    store = prepare(**texts, out=tmp_path / "store", boundary="sentence")
    for order, perplexity in ((3, 148.281), (5, 141.186)):
        model, discounts = estimate(store, order)
        with Team() as team:
            assert evaluate_split(model, store, "test", team).perplexity == pytest.approx(perplexity, abs=1e-3)
        assert not any(discount.fallback for discount in discounts)
    ids = store.split("test").ids
    for at in range(0, 80_000, 4_000):
        for n in range(5):
            assert word_distribution(model, ids[at : at + n].tolist()).sum() == pytest.approx(1.0, abs=1e-6)


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_folder(tmp_path):
    store_of(tmp_path, random_lines(2))
    train_ngram(tmp_path / "store", tmp_path / "run", order=3)
    return tmp_path / "run"


def test_a_run_gives_the_verbs_of_a_language_model(run_folder):
    lm = load(run_folder)
    store = TokenStore.open(run_folder.parent / "store")
    (record,) = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    assert record["valid_perplexity"] == lm.evaluate_split(store, "valid").perplexity
    assert lm.evaluate_split(store, "test").perplexity == pytest.approx(lm.perplexity(random_lines(2)))
    words = lm.full_scores("w1 zebra w2")
    assert [word.unknown for word in words] == [False, True, False, False]
    assert lm.score("w1 zebra w2") == pytest.approx(sum(word.log_probability for word in words))
    w1, end = lm.vocabulary.id("w1"), lm.vocabulary.end_id
    start = word_distribution(lm.model, [lm.vocabulary.out_of_sentence_id])
    assert lm.full_scores("w1")[0].log_probability == pytest.approx(np.log(start[w1]), abs=1e-5)
    after = word_distribution(lm.model, [lm.vocabulary.out_of_sentence_id, w1])
    assert lm.full_scores("w1")[1].log_probability == pytest.approx(np.log(after[end]), abs=1e-5)
    assert not lm.two_sided
    with pytest.raises(NcelmError, match="no word vectors"):
        lm.neighbors("w1")


def test_choices_are_scored_by_the_whole_sentence(run_folder):
    lm = load(run_folder)
    ((scores, _),) = lm.choice_scores([Blank(["w1"], [["w2"], ["w3", "w6"]], ["w4", "w5"])])
    assert scores == pytest.approx([lm.score("w1 w2 w4 w5"), lm.score("w1 w3 w6 w4 w5")])


def test_the_file_is_mapped_and_says_the_same(run_folder):
    model = load(run_folder).model
    estimated, _ = estimate(TokenStore.open(run_folder.parent / "store"), 3)
    for name in ngram.ARRAYS:
        assert isinstance(getattr(model, name), np.memmap)
        np.testing.assert_array_equal(getattr(model, name), getattr(estimated, name))


def test_a_stream_is_scored_like_the_middle_of_it(tmp_path):
    """A sentence by itself begins after </s>, as all but the first sentence of a stream do."""
    store_of(tmp_path, random_lines(2), "stream")
    train_ngram(tmp_path / "store", tmp_path / "run", order=2)
    lm = load(tmp_path / "run")
    after_end = word_distribution(lm.model, [lm.vocabulary.end_id])[lm.vocabulary.id("w1")]
    assert lm.full_scores("w1")[0].log_probability == pytest.approx(np.log(after_end), abs=1e-5)


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, -1, 11, 20])
def test_impossible_orders(tmp_path, order):
    store = store_of(tmp_path, random_lines(1))
    with pytest.raises(NcelmError, match=f"--order is {order}: give a number from 1 to 10"):
        train_ngram(store, tmp_path / "run", order)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("min_counts", [[], [2], [1, 3, 2], [0, 1]])
def test_impossible_min_counts(tmp_path, min_counts):
    with pytest.raises(NcelmError, match="--min-counts are"):
        train_ngram(store_of(tmp_path, random_lines(1)), tmp_path / "run", 3, min_counts)


def test_min_counts_that_leave_nothing(tmp_path):
    with pytest.raises(NcelmError, match="no 2-gram was seen 1000000 times"):
        train_ngram(store_of(tmp_path, random_lines(1)), tmp_path / "run", 3, [1, 1_000_000])


def test_a_pruned_model_is_a_model_like_any_other(tmp_path):
    store = store_of(tmp_path, random_lines(1, sentences=600, words=40))
    train_ngram(store, tmp_path / "all", 4)
    train_ngram(store, tmp_path / "pruned", 4, [1, 1, 2])
    all_of_them, pruned = load(tmp_path / "all").model, load(tmp_path / "pruned").model
    assert pruned.counts[:2] == all_of_them.counts[:2]
    assert all(a < b for a, b in zip(pruned.counts[2:], all_of_them.counts[2:], strict=True))


def test_a_corpus_of_one_sentence(tmp_path):
    store = store_of(tmp_path, ["the cat sat"])
    record = train_ngram(store, tmp_path / "run", order=4)
    assert all(discount["fallback"] for discount in record["discounts"])
    assert word_distribution(load(tmp_path / "run").model, [store.pad_id]).sum() == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(NcelmError, match="no sentence of the text has 6 words"):
        train_ngram(store, tmp_path / "other", order=6)
    assert not (tmp_path / "other").exists()


def test_too_little_memory_is_said_before_the_start(tmp_path, monkeypatch):
    store = store_of(tmp_path, random_lines(1))
    monkeypatch.setattr(machine, "total_memory", lambda: 1000)
    with pytest.raises(NcelmError, match="GB of memory and this machine has"):
        train_ngram(store, tmp_path / "run")


def test_an_existing_run_is_not_touched(run_folder):
    with pytest.raises(NcelmError, match="exists already"):
        train_ngram(run_folder.parent / "store", run_folder)


def test_damaged_files(run_folder):
    path = run_folder / "model.safetensors"
    whole = path.read_bytes()
    header_length = struct.unpack("<Q", whole[:8])[0]
    for at in (0, 5, 8 + header_length // 2, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at])
        with pytest.raises(NcelmError, match="damaged"):
            load(run_folder)
    first = 8 + header_length
    children = np.frombuffer(whole, np.int64, count=20, offset=first)
    for place, value in ((0, -1), (3, 10**15), (4, int(children[2]) - 1)):
        broken = bytearray(whole)
        struct.pack_into("<q", broken, first + 8 * place, value)
        path.write_bytes(bytes(broken))
        with pytest.raises(NcelmError, match="damaged"):
            load(run_folder)
    path.write_bytes(whole[:-4] + struct.pack("<f", float("nan")))
    with pytest.raises(NcelmError, match="damaged"):
        load(run_folder)
    path.write_bytes(b"\xff" * 8 + whole[8:])  # a length that no file has
    with pytest.raises(NcelmError, match="damaged"):
        load(run_folder)
    path.write_bytes(whole)
    assert load(run_folder)


def test_random_damage_never_crashes(run_folder):
    """Whatever the bytes, a file is refused, or answers with numbers."""
    path = run_folder / "model.safetensors"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            broken[int(rng.integers(len(broken)))] = int(rng.integers(256))
        path.write_bytes(bytes(broken))
        with suppress(NcelmError):
            assert np.isfinite(load(run_folder).score("w1 w2 w3 w4"))


def test_the_model_s_vocabulary_must_be_its_own(run_folder):
    vocabulary = (run_folder / "vocab.txt").read_text().splitlines(keepends=True)
    (run_folder / "vocab.txt").write_text("".join(vocabulary[:-1]))
    with pytest.raises(NcelmError, match="not the vocabulary of this model"):
        load(run_folder)
