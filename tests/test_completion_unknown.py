"""Sentence completion: choices that are not in the vocabulary."""

import json
import math

import numpy as np
import pytest
from tests.helpers import store_of, two_topics

from ncelm import blend, import_arpa, load, mix
from ncelm.arpa import export_arpa
from ncelm.cli.main import main
from ncelm.completion import Question, accuracy, rank, rank_both, unknown_choices, unknown_policy
from ncelm.errors import NcelmError
from ncelm.language_model import load_scorer
from ncelm.models import questions as generated
from ncelm.models.ensemble import Ensemble
from ncelm.models.lsa import train_lsa
from ncelm.models.ngram.estimate import train_ngram
from ncelm.models.pmi import train_pmi
from ncelm.text.store import TokenStore
from ncelm.training.loop import train

RARE = 900  # words that occur once
WORD_MODELS = ("ngram", "left", "both", "mixture")
QUESTIONS = [
    Question(str(i), f"the {before} and the _____ .", ("sail", "zebra", "storm"), "c")
    for i, before in enumerate(("ship", "captain", "wave", "oven", "bread"))
]


def text_with_rare_words():
    """Return sentences whose last word is rare in three of four sentences."""
    lines = two_topics(sentences=1200)
    return [f"{line} the {'rare' + str(i) if i % 4 else line.split()[0]} ." for i, line in enumerate(lines)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("unknown")
    store = store_of(path, text_with_rare_words(), min_count=2)
    train_ngram(store, path / "ngram", order=3)
    train_lsa(store, path / "lsa", dim=4)
    train_pmi(store, path / "pmi")
    quick = {"epochs": 3, "dim": 10, "batch_size": 50, "noise_samples": 20}
    train(store, path / "left", context=3, **quick)
    train(store, path / "both", context=3, context_after=3, **quick)
    mix([path / "ngram", path / "left"], path / "mixture", weights=[0.5, 0.5])
    return path


def test_the_store_and_the_runs_record_the_number_of_unknown_words(folder):
    assert json.loads((folder / "store/store.json").read_text())["unknown_types"] == RARE
    assert TokenStore.open(folder / "store").vocabulary.unknown_types == RARE
    for name in (*WORD_MODELS, "lsa", "pmi"):
        assert json.loads((folder / name / "config.json").read_text())["unknown_types"] == RARE
        assert load_scorer(folder / name).vocabulary.unknown_types == RARE


@pytest.mark.parametrize("name", WORD_MODELS)
def test_an_unseen_choice_wins_as_a_token_and_loses_by_default(folder, name):
    lm = load(folder / name)
    as_token = rank(lm, QUESTIONS, unknown="token")
    assert {ranking.letter for ranking in as_token} == {"b"}
    default = rank(lm, QUESTIONS)
    assert all(ranking.letter != "b" for ranking in default)
    assert rank(lm, QUESTIONS, unknown="distribute") == default
    assert all(ranking.unknown == ("zebra",) for ranking in default)
    for one, other in zip(as_token, default, strict=True):
        assert other.scores[0::2] == one.scores[0::2]
        assert other.scores[1] == pytest.approx(one.scores[1] - math.log(RARE))
    excluded = rank(lm, QUESTIONS, unknown="exclude")
    for one, other in zip(as_token, excluded, strict=True):
        assert other.scores == (one.scores[0], -math.inf, one.scores[2])
        assert other.order[-1] == 1


@pytest.mark.parametrize("name", WORD_MODELS)
def test_the_probabilities_of_all_words_still_sum_to_one(folder, name):
    """The words of the vocabulary, the end, and all words that <unk> stands for."""
    lm = load(folder / name)
    logs = np.delete(lm.distribution("the ship and the"), lm.vocabulary.unknown_id)
    unseen = lm.distribution("the ship and the")[lm.vocabulary.unknown_id] - lm.log_unknown_types
    assert np.exp(logs).sum() + RARE * np.exp(unseen) == pytest.approx(1.0, abs=1e-5)


def test_each_unknown_token_of_a_choice_counts(folder):
    lm = load(folder / "left")
    question = Question("1", "the _____ and zebra _____ .", ("ship; sail", "ship; unseen", "one two; ship three"))
    (as_token,), (default,) = rank(lm, [question], unknown="token"), rank(lm, [question])
    differences = np.subtract(as_token.scores, default.scores) / math.log(RARE)
    np.testing.assert_allclose(differences, [0, 1, 3], atol=1e-6)  # not the word zebra, which all choices share
    assert default.unknown == ("ship; unseen", "one two; ship three")


def test_unnormalised_scores_have_the_same_policy(folder):
    lm = load(folder / "left")
    as_token, default = rank_both(lm, QUESTIONS, unknown="token"), rank_both(lm, QUESTIONS)
    for kind in ("normalised", "unnormalised"):
        for one, other in zip(as_token[kind], default[kind], strict=True):
            assert one.scores[1] - other.scores[1] == pytest.approx(math.log(RARE))


def test_if_all_choices_are_unknown_none_is_excluded(folder):
    lm = load(folder / "left")
    question = Question("1", "the _____ .", ("zebra", "lion king"))
    (excluded,), (as_token,) = rank(lm, [question], unknown="exclude"), rank(lm, [question], unknown="token")
    assert excluded == as_token
    assert np.isfinite(excluded.scores).all()


@pytest.mark.parametrize("name", ["lsa", "pmi"])
def test_models_without_probabilities_exclude_unknown_choices(folder, name):
    scorer = load_scorer(folder / name)
    assert scorer.log_unknown_types is None
    assert unknown_policy(scorer, "distribute") == "exclude"
    assert unknown_policy(scorer, "token") == "token"
    question = Question("1", "nothing _____ known", ("zebra", "sail"))  # both have the score 0
    assert [ranking.letter for ranking in rank(scorer, [question])] == ["b"]
    assert [ranking.letter for ranking in rank(scorer, [question], unknown="token")] == ["a"]


def test_ensembles(folder, monkeypatch):
    components = tuple(load_scorer(folder / name) for name in ("ngram", "left"))
    weights = np.array([[0.5, 0.25], [2.0, 0.0]])
    ensemble = Ensemble(components, weights, components[0].vocabulary, components[0].text)
    assert ensemble.log_unknown_types == pytest.approx(2.75 * math.log(RARE))
    assert all(ranking.letter == "b" for ranking in rank(ensemble, QUESTIONS, unknown="token"))
    assert all(ranking.letter != "b" for ranking in rank(ensemble, QUESTIONS))
    monkeypatch.setattr(generated, "MIN_WORDS", 4)
    blend([folder / "ngram", folder / "lsa"], folder / "with-lsa")
    with_lsa = load_scorer(folder / "with-lsa")
    assert with_lsa.log_unknown_types is None
    assert rank(with_lsa, QUESTIONS)[0].scores[1] == -math.inf


def test_a_model_without_unknown_words_in_its_text_excludes_them(folder, tmp_path):
    export_arpa(folder / "ngram", tmp_path / "ngram.arpa")
    imported = import_arpa(tmp_path / "ngram.arpa", tmp_path / "imported")  # an ARPA file has no counts
    assert imported.vocabulary.unknown_types == 0
    assert unknown_policy(imported, "distribute") == "exclude"
    like = import_arpa(tmp_path / "ngram.arpa", tmp_path / "like", like=folder / "store")
    assert unknown_policy(like, "distribute") == "distribute"
    assert load(tmp_path / "like").vocabulary.unknown_types == RARE


def test_a_choice_that_is_a_reserved_token_is_unknown(folder):
    lm = load(folder / "left")
    assert unknown_choices(lm, ["<unk>", "</s>", "ship", "zebra"]) == ["<unk>", "</s>", "zebra"]


def test_the_number_is_estimated_for_stores_without_it_and_for_unk_in_the_text(folder, tmp_path):
    from tests.helpers import change_json

    lines = ["<unk>".join(line.split("rare")) for line in text_with_rare_words()]
    lines = [" ".join("<unk>" if word.startswith("<unk>") else word for word in line.split()) for line in lines]
    store = store_of(tmp_path, lines)
    assert 1 < store.vocabulary.unknown_types < RARE
    train_ngram(store, tmp_path / "ngram", order=3)
    lm = load(tmp_path / "ngram")
    assert {ranking.letter for ranking in rank(lm, QUESTIONS, unknown="token")} == {"b"}
    assert all(ranking.letter != "b" for ranking in rank(lm, QUESTIONS))
    change_json(tmp_path / "store/store.json", {"unknown_types": None})
    assert TokenStore.open(tmp_path / "store").vocabulary.unknown_types == store.vocabulary.unknown_types


@pytest.mark.parametrize("wrong", [-1, 1.5, "3", True, 10**30, []])
def test_invalid_numbers_in_files(folder, tmp_path, wrong):
    import shutil

    from tests.helpers import change_json

    for name in ("store", "ngram"):
        shutil.copytree(folder / name, tmp_path / name)
    change_json(tmp_path / "store/store.json", {"unknown_types": wrong})
    with pytest.raises(NcelmError, match=r"store\.json is damaged"):
        TokenStore.open(tmp_path / "store")
    change_json(tmp_path / "ngram/config.json", {"unknown_types": wrong})
    with pytest.raises(NcelmError, match=r"config\.json is damaged"):
        load(tmp_path / "ngram")


def test_the_command(folder, tmp_path, capsys):
    path = tmp_path / "questions.csv"
    rows = [f"{q.id},{q.sentence},{','.join(q.choices)},{q.answer}" for q in QUESTIONS]
    path.write_text("\n".join(["id,question,a),b),c),answer", *rows]))
    command = ["complete", str(folder / "left"), str(path)]
    letters = {}
    for policy in ("distribute", "exclude", "token"):
        assert main([*command, "--unknown", policy, "--json"]) == 0
        captured = capsys.readouterr()
        answer = json.loads(captured.out)
        assert answer["unknown_policy"] == policy
        assert answer["unknown_types"] == RARE
        assert (answer["answers"][0]["scores"]["zebra"] is None) == (policy == "exclude")
        assert captured.err.count("\n") == 1
        letters[policy] = {each["answer"] for each in answer["answers"]}
        assert (
            answer["normalised"]["right"]
            == accuracy(rank(load(folder / "left"), QUESTIONS, unknown=policy), {q.id: "c" for q in QUESTIONS}).correct
        )
    assert letters["token"] == {"b"}
    assert "b" not in letters["distribute"] | letters["exclude"]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert "scored as one of 900 words that <unk> stands for: 5 choices of" in captured.err
    assert main([*command, "--each", "--unknown", "exclude"]) == 0
    assert "b) zebra <unk> excluded" in capsys.readouterr().out


def test_the_policy_is_checked(folder):
    with pytest.raises(ValueError, match=r"`unknown` is 'guess': give one of distribute, exclude, token"):
        rank(load(folder / "ngram"), QUESTIONS, unknown="guess")
