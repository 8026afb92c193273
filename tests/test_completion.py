"""Sentence completion: questions in both formats, scores of choices, accuracy, errors."""

import json

import numpy as np
import pytest
from tests.helpers import SEA, refused, store_of, two_topics

from ncelm import load
from ncelm.cli.main import main
from ncelm.completion import (
    Accuracy,
    Question,
    Ranking,
    accuracy,
    most_likely,
    rank,
    rank_both,
    read_answers,
    read_questions,
)
from ncelm.errors import NcelmError
from ncelm.language_model import load_scorer
from ncelm.models.lsa import train_lsa
from ncelm.models.mixture import Mixture
from ncelm.models.ngram.estimate import train_ngram
from ncelm.text.settings import TextSettings
from ncelm.training.loop import train

CSV = """id,question,a),b),c),d),e)
1,the ship and the _____ .,oven,bread,sail,butter,knife
2,"a cook , with _____ , and bread",sail,wave,storm,butter,captain
"""
ANSWERS = "id,answer\n1,c\n2,d\n"
MACHINE = """1a) the ship and the [oven] .
1b) the ship and the [bread] .
1c) the ship and the [sail] .
1d) the ship and the [butter] .
1e) the ship and the [knife] .
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion")
    store = store_of(path, two_topics(sentences=600))
    train_ngram(store, path / "ngram", order=3)
    train_lsa(store, path / "lsa", dim=4)
    quick = {"epochs": 4, "dim": 10, "batch_size": 50, "noise_samples": 20}
    train(store, path / "left", context=3, **quick)
    train(store, path / "both", context=3, context_after=3, **quick)
    (path / "questions.csv").write_text(CSV)
    (path / "answers.csv").write_text(ANSWERS)
    return path


def test_both_formats_of_questions(tmp_path, folder):
    from_csv = read_questions(folder / "questions.csv")
    (tmp_path / "machine").write_text(MACHINE)
    assert read_questions(tmp_path / "machine") == from_csv[:1]
    assert from_csv[1].choices == ("sail", "wave", "storm", "butter", "captain")
    (tmp_path / "answers").write_text("1c) the ship and the [sail] .\n2d) whatever\n")
    for answers in (tmp_path / "answers", folder / "answers.csv"):
        assert read_answers(answers, from_csv) == {"1": "c", "2": "d"}


def test_a_question_is_tokenized_like_the_training_text():
    settings = TextSettings("treebank", lowercase=True)
    gap = Question("1", "It was Mr. _____ , the woman's friend.", ("Holmes", "haven't")).gap(settings)
    assert gap.before == ["it", "was", "mr."]
    assert gap.after == [",", "the", "woman", "'s", "friend", "."]
    assert gap.choices == [["holmes"], ["have", "n't"]]
    assert Question("1", "the _____'s hat", ("man",)).gap(settings).after == ["'s", "hat"]


@pytest.mark.parametrize("name", ["ngram", "lsa", "left", "both"])
def test_every_kind_of_model_ranks_the_choices(folder, name):
    scorer = load_scorer(folder / name)
    questions = read_questions(folder / "questions.csv")
    rankings = rank(scorer, questions)
    assert [ranking.id for ranking in rankings] == ["1", "2"]
    assert all(sorted(ranking.order) == [0, 1, 2, 3, 4] for ranking in rankings)
    if name == "lsa":
        assert accuracy(rankings, {"1": "c", "2": "d"}).correct == 2


def test_one_sided_models_choose_by_the_sentence_and_two_sided_ones_by_the_word(folder):
    question = Question("1", "the ship and _____ sail", ("storm", "bread"))
    left, both = load(folder / "left"), load(folder / "both")
    (ranking,) = rank(left, [question])
    assert ranking.scores == pytest.approx(
        [left.score("the ship and storm sail"), left.score("the ship and bread sail")]
    )
    (ranking,) = rank(both, [question])
    words = [both.full_scores(f"the ship and {word} sail")[3].log_probability for word in question.choices]
    assert ranking.scores == pytest.approx(words)


def test_models_with_context_after_the_word_choose_by_the_sentence(folder, tmp_path):
    store = store_of(tmp_path, two_topics(sentences=600))
    train(store, tmp_path / "after", context=0, context_after=2, dim=4, epochs=1)
    lm = load(tmp_path / "after")
    assert lm.model.sides == "after"
    assert not lm.two_sided
    (ranking,) = rank(lm, [Question("1", "the ship and _____ sail", ("storm", "bread"))])
    assert ranking.scores == pytest.approx([lm.score("the ship and storm sail"), lm.score("the ship and bread sail")])
    mixture = Mixture((lm.model, load(folder / "left").model), np.array([0.5, 0.5]))
    assert mixture.sides == "both"


def test_unnormalised_scores_have_no_log_normalizers(folder):
    question = Question("1", "the ship and _____ sail", ("storm", "bread"))
    lm = load(folder / "left")
    both = rank_both(lm, [question])
    assert set(both) == {"normalised", "unnormalised"}
    (batch,) = lm._scored_batches([["the", "ship", "and", "storm", "sail"]])
    assert both["unnormalised"][0].scores[0] == pytest.approx(float(batch.scores.sum()), rel=1e-5)
    assert both["normalised"][0].scores[0] == pytest.approx(float(batch.log_probabilities.sum()), rel=1e-5)
    assert set(rank_both(load(folder / "ngram"), [question])) == {"normalised"}


@pytest.mark.parametrize("name", ["ngram", "left", "both"])
def test_the_most_likely_words_are_those_with_the_highest_scores(folder, name):
    lm = load(folder / name)
    found = most_likely(lm, "ship sail _____ the and", 5)
    question = Question("1", "ship sail _____ the and", lm.vocabulary.words[2:])
    (ranking,) = rank(lm, [question])
    best = [(question.choices[i], ranking.scores[i]) for i in ranking.order[:5]]
    assert [word for word, _ in found] == [word for word, _ in best]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in best], atol=1e-4)


def test_the_most_similar_words(folder):
    assert {word for word, _ in most_likely(load_scorer(folder / "lsa"), "ship and _____ storm", 5)} == set(SEA)


def test_accuracy_and_its_interval():
    rankings = [Ranking(str(i), ("x", "y"), (0.0, float(i % 2))) for i in range(1040)]
    answers = {str(i): "b" if i < 520 else "a" for i in range(1040)}
    found = accuracy(rankings, answers)
    assert found == Accuracy(520, 1040)
    assert found.percent == 50.0
    np.testing.assert_allclose(found.interval, (46.97, 53.03), atol=0.01)
    np.testing.assert_allclose(Accuracy(0, 10).interval, (0, 27.75), atol=0.01)
    assert Ranking("1", ("a", "b"), (1.0, 1.0)).letter == "a"  # ties keep their order


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command(folder, capsys):
    run, questions = str(folder / "left"), str(folder / "questions.csv")
    assert main(["complete", run, questions, "--answers", str(folder / "answers.csv"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["normalised"]["questions"] == answer["unnormalised"]["questions"] == 2
    assert [each["id"] for each in answer["answers"]] == ["1", "2"]
    assert main(["complete", run, questions, "--answers", str(folder / "answers.csv"), "--each"]) == 0
    out = capsys.readouterr().out
    assert "% correct" in out
    assert "the ship and the [" in out
    assert main(["complete", run, questions]) == 0
    assert "%" not in capsys.readouterr().out
    for kind in ("ngram", "lsa"):  # where scores are probabilities, or nothing is to be normalised
        assert main(["complete", str(folder / kind), questions, "--unnormalised"]) == 0
        assert "the ship and the [" in capsys.readouterr().out
    assert main(["complete", run, "the ship _____ sail", "--choices", "and,zebra"]) == 0
    out = capsys.readouterr().out
    assert "zebra" in out
    assert "<unk>" in out
    assert main(["complete", run, "the ship _____ sail", "--json", "--count", "3"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["words"]) == 3
    assert answer["unknown"] == []


def test_choices_with_unknown_words_are_reported(folder, tmp_path, capsys):
    questions = tmp_path / "questions.csv"
    questions.write_text(CSV.replace("knife", "zebra"))
    assert main(["complete", str(folder / "ngram"), str(questions)]) == 0
    captured = capsys.readouterr()
    assert "zebra <unk>" in captured.out
    assert captured.err.count("\n") == 1
    assert "1 choice of" in captured.err
    assert "'zebra'" in captured.err
    assert main(["complete", str(folder / "ngram"), str(questions), "--json"]) == 0
    assert [each["unknown"] for each in json.loads(capsys.readouterr().out)["answers"]] == [["zebra"], []]
    assert main(["complete", str(folder / "ngram"), str(folder / "questions.csv")]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CSV.replace("_____", "gap", 1), "question 1 has no gaps (_____) instead of one"),
        (CSV.replace("ship", "_____", 1), "question 1 has 2 gaps"),
        (CSV.replace(",knife", "", 1), "5 choices, found 4 choices"),
        (CSV.replace(",knife", ",knife,fork", 1), "5 choices, found 6 choices"),
        (CSV.replace(",knife", ",big knife", 1), "the choice 'big knife' is not one word"),
        (CSV.replace(",knife", ",", 1), "has an empty choice"),
        (CSV.replace("\n2,", "\n1,"), "question 1 is a duplicate"),
        ("", "is empty"),
        ("id,question,a),b),c),d),e)\n", "has no questions"),
        (MACHINE.replace("1c)", "1b)"), "expected five lines, a) to e)"),
        (MACHINE.replace("[sail]", "sail"), "0 words in brackets"),
        (MACHINE.replace("ship", "boat", 1), "differ in more than the word"),
        ("\0\1", "binary"),
    ],
)
def test_bad_questions(folder, tmp_path, capsys, content, message):
    (tmp_path / "questions").write_text(content)
    refused(capsys, ["complete", folder / "ngram", tmp_path / "questions"], message)


def test_bad_answers_and_options(folder, tmp_path, capsys):
    questions = folder / "questions.csv"
    (tmp_path / "answers").write_text("1,c\n")
    refused(
        capsys, ["complete", folder / "ngram", questions, "--answers", tmp_path / "answers"], "no answer to question 2"
    )
    (tmp_path / "answers").write_text("1,c\n2,x\n")
    refused(capsys, ["complete", folder / "ngram", questions, "--answers", tmp_path / "answers"], "line 2", "a to e")
    refused(capsys, ["complete", folder / "ngram", tmp_path / "nothing"], "there is no file")
    refused(capsys, ["complete", folder / "ngram", "a sentence without a gap " * 20], "mark its gap with _____")
    refused(capsys, ["complete", folder / "ngram", questions, "--choices", "a,b"], "--choices goes with a sentence")
    refused(capsys, ["complete", folder / "ngram", "a __ b __ c", "--choices", "a,b"], "the sentence has 2 gaps")
    refused(
        capsys,
        ["complete", folder / "ngram", "a __ b", "--count", "0"],
        "--count is 0: give a whole number, at least 1",
    )
    refused(
        capsys,
        ["complete", folder / "ngram", "a __ b", "--answers", tmp_path / "answers"],
        "--answers goes with a file",
    )


def test_the_questions_of_the_challenge(shared_data):
    questions = read_questions(shared_data / "msrscc/testing_data.csv")
    answers = read_answers(shared_data / "msrscc/test_answer.csv", questions)
    assert len(questions) == len(answers) == 1040
    with pytest.raises(NcelmError, match="has no answer"):
        read_answers(shared_data / "msrscc/test_answer.csv", [Question("5000", "_____", ("a",) * 5)])
