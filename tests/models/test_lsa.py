"""LSA: the matrix and its decomposition against dense algebra, similarities, files, errors."""

import numpy as np
import pytest
from tests.helpers import KITCHEN, SEA, change_json, random_lines, store_of, two_topics

from ncelm import load
from ncelm.errors import NcelmError
from ncelm.io import machine
from ncelm.models.base import Gap
from ncelm.models.lsa import Lsa, decompose, train_lsa, weighted_counts
from ncelm.text.store import TokenStore


@pytest.fixture
def topics(tmp_path):
    store_of(tmp_path, two_topics())
    train_lsa(tmp_path / "store", tmp_path / "run", dim=2)
    return tmp_path


def test_the_matrix_has_log_entropy_weights(tmp_path):
    store = store_of(tmp_path, ["a b a", "b c", "c a <unk>"])
    matrix = weighted_counts(store).toarray()
    counts = np.zeros((len(store.vocabulary), 3))
    for document, line in enumerate(["a b a", "b c", "c a"]):
        for word in line.split():
            counts[store.vocabulary.id(word), document] += 1
    expected = np.zeros_like(counts)
    for word, row in enumerate(counts):
        if row.sum():
            share = row[row > 0] / row.sum()
            weight = 1 + (share * np.log(share)).sum() / np.log(3)
            expected[word] = np.log1p(row) * weight
    np.testing.assert_allclose(matrix, expected, atol=1e-6)


def test_the_decomposition_is_the_singular_value_decomposition(tmp_path):
    store = store_of(tmp_path, random_lines(1, sentences=200, words=30))
    matrix, products = weighted_counts(store), []
    vectors = decompose(matrix, 5, seed=0, progress=products.append)
    assert products == list(range(1, len(products) + 1))
    left, _, _ = np.linalg.svd(matrix.toarray(), full_matrices=False)
    exact = left[:, :5]
    exact /= np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-9)
    np.testing.assert_allclose(vectors[2:] @ vectors[2:].T, exact[2:] @ exact[2:].T, atol=2e-3)
    assert not vectors[:2].any()  # <unk> and </s>
    other = decompose(matrix, 5, seed=1)  # signs may differ, angles may not
    np.testing.assert_allclose(other @ other.T, vectors @ vectors.T, atol=2e-3)


def test_words_of_one_topic_are_neighbors(topics):
    model = Lsa.load(topics / "run")
    for topic in (SEA, KITCHEN):
        assert {word for word, _ in model.neighbors(topic[0], 4)} == set(topic[1:])


def test_the_score_is_the_total_similarity(topics):
    model = Lsa.load(topics / "run")
    (scores,) = model.choice_scores([Gap(["the", "captain"], [["wave"], ["butter"], ["wave", "storm"]], ["sail"])])
    vectors, id = model.vectors(), model.vocabulary.id

    def by_hand(word):
        return sum(float(vectors[id(word)] @ vectors[id(other)]) for other in ("the", "captain", "sail"))

    expected = [by_hand("wave"), by_hand("butter"), by_hand("wave") + by_hand("storm")]
    assert scores.normalised == pytest.approx(expected, abs=1e-5)
    assert scores.unnormalised == scores.normalised
    assert expected[0] > expected[1] + 1
    (unknown,) = model.choice_scores([Gap(["the"], [["zebra"]], [])])
    assert unknown.normalised == [0.0]
    assert {word for word, _ in model.most_likely(["the", "ship"], ["and", "sail"], 5)} == set(SEA)


def test_several_gaps_have_the_similarity_of_the_words_in_different_gaps(topics):
    model = Lsa.load(topics / "run")
    choices = [[["wave"], ["storm"]], [["wave"], ["butter", "zebra"]]]
    (scores,) = model.choice_scores([Gap(["the"], choices, ["sail"], [["and", "captain"]])])

    def cosine(a, b):
        return float(model.vectors()[model.vocabulary.id(a)] @ model.vectors()[model.vocabulary.id(b)])

    for score, (a, b) in zip(scores.normalised, (("wave", "storm"), ("wave", "butter")), strict=True):
        others = ("the", "and", "captain", "sail")
        assert score == pytest.approx(sum(cosine(w, o) for w in (a, b) for o in others) + cosine(a, b), abs=1e-5)


def test_what_is_written_is_read(topics):
    again = Lsa.load(topics / "run")
    trained = train_lsa(TokenStore.open(topics / "store"), topics / "again", dim=2)
    np.testing.assert_array_equal(again.unit_vectors, trained.unit_vectors)
    assert (topics / "run/model.safetensors").read_bytes() == (topics / "again/model.safetensors").read_bytes()


# -- errors ----------------------------------------------------------------------------------------------------------


def test_lsa_is_not_a_language_model(topics):
    with pytest.raises(NcelmError, match="has no probabilities of words: use it with `ncelm complete` or"):
        load(topics / "run")


@pytest.mark.parametrize("dim", [0, -3, 14, 10_000])
def test_impossible_dimensions(topics, dim):
    with pytest.raises(NcelmError, match=f"`dim` is {dim}: give a number from 1 to 13"):
        train_lsa(topics / "store", topics / "other", dim=dim)
    assert not (topics / "other").exists()


def test_texts_without_information(tmp_path):
    store = store_of(tmp_path, ["a b c d"] * 7)
    with pytest.raises(NcelmError, match="uniformly distributed"):
        train_lsa(store, tmp_path / "run", dim=2)
    (tmp_path / "one").mkdir()
    with pytest.raises(NcelmError, match="too few sentences"):
        train_lsa(store_of(tmp_path / "one", ["a b c d"]), tmp_path / "run", dim=1)
    with pytest.raises(NcelmError, match="`seed` is -1"):
        train_lsa(store, tmp_path / "run", dim=1, seed=-1)


def test_a_word_without_a_vector(topics):
    with pytest.raises(NcelmError, match="has no vector"):
        Lsa.load(topics / "run").neighbors("<unk>")


def test_too_little_memory(topics, monkeypatch):
    monkeypatch.setattr(machine, "total_memory", lambda: 1000)
    with pytest.raises(NcelmError, match="GB of memory"):
        train_lsa(topics / "store", topics / "other", dim=2)


def test_damaged_runs(topics):
    with pytest.raises(NcelmError, match="exists already"):
        train_lsa(topics / "store", topics / "run", dim=2)
    path = topics / "run/model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(NcelmError, match="damaged"):
        Lsa.load(topics / "run")
    change_json(topics / "run/config.json", {"dim": "four"})
    with pytest.raises(NcelmError, match="damaged"):
        Lsa.load(topics / "run")
    change_json(topics / "run/config.json", {"kind": "pmi"})
    with pytest.raises(NcelmError, match="is a model of kind pmi, not lsa"):
        Lsa.load(topics / "run")
