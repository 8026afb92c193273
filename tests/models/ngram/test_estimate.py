"""N-gram estimation: against a reference implementation and a known process, discounts, pruning, errors."""

import json
from itertools import pairwise

import numpy as np
import pytest
from tests.helpers import random_lines, store_of, word_distribution

from ncelm import load
from ncelm.errors import NcelmError
from ncelm.io import machine
from ncelm.kernels.threads import Team
from ncelm.losses import reference
from ncelm.models.base import corpus_view
from ncelm.models.evaluate import evaluate_split
from ncelm.models.ngram.estimate import Discounts, estimate, train_ngram
from ncelm.text.prepare import prepare


def marked_sentences(store, name="train"):
    """Return a split as the reference needs it: with <s> before each sentence, or before the whole text."""
    split = store.split(name)
    ids = split.ids.tolist()
    if store.boundary == "stream":
        return [[store.pad_id, *ids]]
    return [[store.pad_id, *ids[a:b]] for a, b in pairwise(split.sentences.tolist())]


# -- correctness -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("boundary", ["sentence", "stream"])
@pytest.mark.parametrize(
    ("order", "min_counts"), [(1, [1]), (2, [1]), (3, [1]), (5, [1]), (2, [1, 3]), (4, [1, 1, 2]), (4, [1, 2, 2, 3])]
)
def test_the_estimate_is_that_of_the_reference(tmp_path, boundary, order, min_counts):
    store = store_of(tmp_path, random_lines(order), boundary, min_count=3)
    model, discounts = estimate(store, order, min_counts)
    sentences = marked_sentences(store)
    thresholds = [*min_counts, *[min_counts[-1]] * order]
    slow = reference.kneser_ney(sentences, order, len(store.vocabulary), [d.amounts for d in discounts], thresholds)
    rng = np.random.default_rng(0)
    for _ in range(30):
        sentence = sentences[int(rng.integers(len(sentences)))]
        end = int(rng.integers(1, len(sentence)))
        history = sentence[max(0, end - order - 1) : end]
        if rng.random() < 0.3:  # a history that does not occur
            history = [*history, int(rng.integers(1, len(store.vocabulary)))]
        expected = [slow(word, history) for word in range(len(store.vocabulary))]
        np.testing.assert_allclose(word_distribution(model, history), expected, rtol=2e-5)


def test_scores_of_a_real_text_are_those_of_the_reference(small_store):
    model, discounts = estimate(small_store, 3)
    assert not any(discount.fallback for discount in discounts)
    amounts = [discount.amounts for discount in discounts]
    slow = reference.kneser_ney(marked_sentences(small_store), 3, len(small_store.vocabulary), amounts, [1, 1, 1])
    expected = [
        np.log(slow(words[i], words[max(0, i - 2) : i]))
        for words in marked_sentences(small_store, "test")[:15]
        for i in range(1, len(words))
    ]
    with Team(1) as team:
        corpus = corpus_view(small_store.split("test"), small_store)
        scores, _ = model.score_positions(corpus, 0, len(expected), team)
    np.testing.assert_allclose(scores, expected, atol=1e-5)


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


def test_a_known_distribution_is_recovered(tmp_path):
    """A long text of a bigram process gives the probabilities of the process."""
    rng = np.random.default_rng(5)
    follow = rng.dirichlet(np.full(4, 2.0), size=4)  # P(next | previous), (4, 4)
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


def test_discounts_are_those_of_chen_and_goodman():
    counts = np.repeat([1, 2, 3, 4, 9], [100, 40, 20, 10, 30])
    y = 100 / 180
    expected = (1 - 2 * y * 40 / 100, 2 - 3 * y * 20 / 40, 3 - 4 * y * 10 / 20)
    discounts = Discounts.estimate(counts)
    assert discounts.amounts == pytest.approx(expected)
    assert not discounts.fallback
    for degenerate in ([1, 1, 1], [2, 2, 3, 3], [1, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4], [5, 6, 7]):
        assert Discounts.estimate(np.array(degenerate)) == Discounts((0.5, 1.0, 1.5), fallback=True)


def test_penn_treebank_has_the_perplexity_of_lmplz(shared_data, tmp_path):
    """The perplexities are those of models that KenLM's lmplz has estimated."""
    texts = {name: shared_data / f"ptb/ptb.{name}.txt" for name in ("train", "valid", "test")}
    store = prepare(**texts, out=tmp_path / "store", boundary="sentence")
    for order, perplexity in ((3, 148.281), (5, 141.186)):
        model, discounts = estimate(store, order)
        with Team() as team:
            assert evaluate_split(model, store, "test", team).perplexity == pytest.approx(perplexity, abs=1e-3)
        assert not any(discount.fallback for discount in discounts)


def test_the_same_text_gives_the_same_bytes(tmp_path):
    store = store_of(tmp_path, random_lines(4, sentences=800, words=40))
    for name in ("a", "b"):
        train_ngram(store, tmp_path / name, order=4)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_a_pruned_model_has_fewer_ngrams(tmp_path):
    store = store_of(tmp_path, random_lines(1, sentences=600, words=40))
    full, _ = estimate(store, 4)
    pruned, _ = estimate(store, 4, [1, 1, 2])
    assert pruned.counts[:2] == full.counts[:2]
    assert all(a < b for a, b in zip(pruned.counts[2:], full.counts[2:], strict=True))


def test_a_text_of_one_sentence(tmp_path):
    store = store_of(tmp_path, ["the cat sat"])
    record = train_ngram(store, tmp_path / "run", order=4)
    assert all(discount["fallback"] for discount in record["discounts"])
    assert word_distribution(load(tmp_path / "run").model, [store.pad_id]).sum() == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(NcelmError, match="no sentence of the text has 6 words"):
        train_ngram(store, tmp_path / "other", order=6)
    assert not (tmp_path / "other").exists()


def test_metrics_and_progress(tmp_path):
    store, steps = store_of(tmp_path, random_lines(2)), []
    record = train_ngram(store, tmp_path / "run", 3, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(i, 6) for i in range(1, 7)]
    (line,) = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == json.loads(json.dumps(record))
    assert record["valid_perplexity"] == load(tmp_path / "run").evaluate_split(store, "valid").perplexity


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, -1, 11, 20])
def test_impossible_orders(tmp_path, order):
    store = store_of(tmp_path, random_lines(1))
    with pytest.raises(NcelmError, match=f"`order` is {order}: give a whole number from 1 to 10"):
        train_ngram(store, tmp_path / "run", order)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("min_counts", [[], [2], [1, 3, 2], [0, 1]])
def test_impossible_min_counts(tmp_path, min_counts):
    with pytest.raises(NcelmError, match="`min_counts` are"):
        train_ngram(store_of(tmp_path, random_lines(1)), tmp_path / "run", 3, min_counts)


def test_min_counts_that_leave_nothing(tmp_path):
    with pytest.raises(NcelmError, match="no 2-gram occurs 1000000 times"):
        train_ngram(store_of(tmp_path, random_lines(1)), tmp_path / "run", 3, [1, 1_000_000])


def test_too_little_memory(tmp_path, monkeypatch):
    store = store_of(tmp_path, random_lines(1))
    monkeypatch.setattr(machine, "total_memory", lambda: 1000)
    with pytest.raises(NcelmError, match="GB of memory"):
        train_ngram(store, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_existing_run_is_not_changed(tmp_path):
    store = store_of(tmp_path, random_lines(2))
    train_ngram(store, tmp_path / "run", order=2)
    before = (tmp_path / "run/config.json").stat().st_mtime_ns
    with pytest.raises(NcelmError, match="exists already"):
        train_ngram(store, tmp_path / "run", order=3)
    assert (tmp_path / "run/config.json").stat().st_mtime_ns == before
