"""Ensembles: questions of our own, weights that are the best, parts of any kind."""

import json

import numpy as np
import pytest
from tests.helpers import random_lines, store_of, two_topics

from ncelm import load
from ncelm.cli.main import main
from ncelm.combine import blend, make_questions
from ncelm.completion import Question, rank, rank_both
from ncelm.errors import NcelmError
from ncelm.language_model import load_scorer
from ncelm.models.ensemble import cross_validated, learn_weights
from ncelm.models.lsa import train_lsa
from ncelm.models.ngram.model import train_ngram
from ncelm.text.store import TokenStore
from ncelm.training.loop import train


def long_sentences(seed, n=1500):
    """Two sentences of a topic at a time, so that questions can be made of them."""
    lines = two_topics(seed, n + 2)  # topics take turns
    return [f"{a} {b}" for a, b in zip(lines, lines[2:], strict=False)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("ensemble")
    store = store_of(path, long_sentences(0, 500))
    train_ngram(store, path / "ngram", order=2)
    train_lsa(store, path / "lsa", dim=2)
    train(store, path / "nce", epochs=3, context=3, dim=8, batch_size=50, noise_samples=10)
    return path


def test_questions_are_made_of_rare_words(folder):
    store = TokenStore.open(folder / "store")
    questions = make_questions(store, "valid", load(folder / "ngram"))
    assert len(questions) > 100
    sentences = {" ".join(line.split()) for line in long_sentences(0, 500)}
    for blank, answer in questions[:50]:
        assert len(blank.choices) == 5
        assert len({choice[0] for choice in blank.choices}) == 5
        assert " ".join([*blank.before, *blank.choices[answer], *blank.after]) in sentences
        for (word,) in blank.choices:
            assert 20 <= store.vocabulary.counts[store.vocabulary.id(word)] <= 5000
    again = make_questions(store, "valid", load(folder / "ngram"))
    assert again == questions
    assert make_questions(store, "valid", load(folder / "ngram"), seed=1) != questions
    assert make_questions(store, "valid", None)  # by frequency alone


def test_weights_are_those_of_the_one_who_made_the_answers():
    """Answers drawn from a softmax with known weights give these weights back."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(20_000, 5, 3)) * [1.0, 3.0, 0.5]
    true = np.array([0.8, 0.2, 2.0])
    totals = scores @ true + rng.gumbel(size=(20_000, 5))
    weights = learn_weights(scores, totals.argmax(axis=1))
    np.testing.assert_allclose(weights, true, atol=0.06)
    against = scores * [1.0, -1.0, 1.0]  # one who says the opposite is not believed, nor turned round
    np.testing.assert_array_equal(learn_weights(against, totals.argmax(axis=1)) > 0.0, [True, False, True])
    assert cross_validated(scores[:2000], totals[:2000].argmax(axis=1)) > 45


def test_an_ensemble_is_the_weighted_sum(folder, tmp_path):
    names = ["ngram", "lsa", "nce"]
    model, record = blend([folder / name for name in names], tmp_path / "out")
    assert record["questions"] > 100
    assert record["percent"] >= max(record["parts_percent"]) - 5
    question = Question("1", "the ship and _____ storm the and sail", ("wave", "bread", "oven", "knife", "cook"))
    (ranking,) = rank(model, [question])
    expected = np.zeros(5)
    for name, weights in zip(names, model.weights, strict=True):
        for each, weight in zip(rank_both(load_scorer(folder / name), [question]).values(), weights, strict=False):
            scores = np.array(each[0].scores)
            expected += (weight if name == "nce" else sum(weights)) * (scores - scores.mean())
    np.testing.assert_allclose(ranking.scores, expected, atol=1e-5)
    (again,) = rank(load_scorer(tmp_path / "out"), [question])
    np.testing.assert_allclose(again.scores, ranking.scores, atol=1e-6)
    assert len(model.likeliest(["the", "ship"], ["sail"], 3)) == 3


def test_the_command(folder, tmp_path, capsys):
    runs = [str(folder / name) for name in ("ngram", "lsa")]
    assert main(["blend", *runs, "--out", str(tmp_path / "out"), "--json"]) == 0
    assert [len(each) for each in json.loads(capsys.readouterr().out)["weights"]] == [2, 2]
    sentence, choices = "ship wave storm the and _____ sail anchor the and", ("bread", "captain", "butter")
    assert main(["complete", str(tmp_path / "out"), sentence, "--choices", ",".join(choices), "--json"]) == 0
    words = json.loads(capsys.readouterr().out)["words"]
    (ranking,) = rank(load_scorer(tmp_path / "out"), [Question("1", sentence, choices)])
    assert [word["word"] for word in words] == [choices[i] for i in ranking.order]
    for verb in ("evaluate", "score"):
        assert main([verb, str(tmp_path / "out")]) == 2
        assert "is an ensemble, which gives words no probabilities" in capsys.readouterr().err


def test_mistakes(folder, tmp_path):
    with pytest.raises(NcelmError, match="at least two parts"):
        blend([folder / "ngram"], tmp_path / "out")
    store_of(tmp_path, random_lines(1))
    train_ngram(tmp_path / "store", tmp_path / "other", order=2)
    with pytest.raises(NcelmError, match="different words"):
        blend([folder / "ngram", tmp_path / "other"], tmp_path / "out")
    with pytest.raises(NcelmError, match="has another vocabulary"):
        blend([folder / "ngram", folder / "lsa"], tmp_path / "out", store=tmp_path / "store")
    train_lsa(tmp_path / "store", tmp_path / "lsa", dim=2)
    short = [tmp_path / "other", tmp_path / "lsa"]
    with pytest.raises(NcelmError, match="too little valid text"):
        blend(short, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    blend([folder / "ngram", folder / "lsa"], tmp_path / "out")
    content = json.loads((tmp_path / "out/config.json").read_text())
    (tmp_path / "out/config.json").write_text(json.dumps(content | {"weights": [["a", 1.0], [1.0, 1.0]]}))
    with pytest.raises(NcelmError, match="damaged"):
        load_scorer(tmp_path / "out")
    with pytest.raises(NcelmError, match="exists already"):
        blend([folder / "ngram", folder / "lsa"], tmp_path / "out")
