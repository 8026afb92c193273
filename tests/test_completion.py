"""Sentence completion: questions in all formats, scores of choices, accuracy, errors.

tests/test_completion_unknown.py has the policies for unknown words.
"""

import json
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from tests.helpers import SEA, refused, store_of, two_topics

from ncelm import completion, load
from ncelm.cli.main import main
from ncelm.completion import (
    Accuracy,
    Question,
    Ranking,
    accuracy,
    answer_letter,
    given_answers,
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


JSON_LINES = """\
{"id": 1, "question": "the ship and the _____ .", "choices": ["oven", "bread", "sail"], "answer": "c"}
{"id": "x", "question": "the _____ of the _____", "choices": [["cook", "ship"], ["captain", "ship"]], "answer": "b"}
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
    assert "ranked after all others: 1 choice of" in captured.err  # <unk> does not occur in the text of this model
    assert "'zebra'" in captured.err
    assert main(["complete", str(folder / "ngram"), str(questions), "--json"]) == 0
    assert [each["unknown"] for each in json.loads(capsys.readouterr().out)["answers"]] == [["zebra"], []]
    assert main(["complete", str(folder / "ngram"), str(folder / "questions.csv")]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CSV.replace("_____", "gap", 1), ", line 2: question 1 has no gaps: mark them with _____"),
        (CSV.replace("ship", "_____", 1), ", line 2: question 1 has 2 gaps, and the choice 'oven' has words for 1"),
        (CSV.replace("ship", "_____", 1).replace("oven", "a; b; c"), "the choice 'a; b; c' has words for 3"),
        (CSV.replace("ship", "_____", 1).replace("oven", "a;"), ", line 2: question 1 has an empty choice"),
        (CSV.replace(",knife", ",knife,fork", 1), ", line 2: found 8 cells, but the header has 7"),
        (CSV.replace(",bread", ",", 1), ", line 2: question 1 has an empty choice"),
        (CSV.replace("oven,bread,sail,butter,knife", "oven,,,,"), ", line 2: question 1 has fewer than two choices"),
        (CSV.replace("\n2,", "\n1,"), ", line 3: question 1 is a duplicate"),
        (CSV.replace("\n2,", "\n,"), ", line 3: the question has no id"),
        (CSV.replace('bread",', "bread,"), ", line 3 is not CSV: unexpected end of data"),
        (CSV.replace("\n2,", "\n\n\n2x").replace('2x"', '2,"x"'), ", line 5 is not CSV"),
        (CSV.replace("b)", "x)"), ", line 1: the header is 'id,question,a),x),c),d),e)'"),
        (CSV.replace(",a),b),c),d),e)", ",answer"), ", line 1: the header is 'id,question,answer'"),
        (CSV.replace("e)", "answer").replace("knife", "e"), ", line 2: the answer is 'e': give a letter from a to d"),
        (CSV.replace("e)", "answer").replace(",knife", ""), ", line 2: found 6 of 7 cells"),
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("id,question,a),b),c),d),e)\n", "has no questions"),
        ("1\n", ", line 1: question 1 has fewer than two choices"),
        (JSON_LINES + "{", ", line 3: expected a JSON object"),
        (JSON_LINES + "[]", ", line 3: expected a JSON object"),
        (JSON_LINES + "[" * 100_000, ", line 3: expected a JSON object"),
        (JSON_LINES.replace('"choices"', '"choice"'), ', line 1: expected "choices"'),
        (JSON_LINES.replace('"sail"', "3"), ', line 1: "choices" is 3: give text'),
        (JSON_LINES.replace('"sail"', '"\\ud800"'), ', line 1: "choices" is '),
        (JSON_LINES.replace('"id": 1', '"id": 1.5'), ', line 1: "id" is 1.5: give text'),
        (JSON_LINES.replace('"id": 1, ', ""), ', line 1: "id" is None: give text'),
        (JSON_LINES.replace("_____ .", "end"), ", line 1: question 1 has no gaps"),
        (JSON_LINES.replace('"c"', '"f"'), ", line 1: the answer is 'f': give a letter from a to c"),
        (JSON_LINES.replace('"c"', "2"), ', line 1: "answer" is 2'),
        (JSON_LINES.replace('"sail"', '["New", "York"]'), ", line 1: \"choices\" has ['New', 'York']: give one string"),
        (JSON_LINES.replace('"captain", ', '"cap;tain", '), ", line 2: a choice for several gaps has a semicolon"),
        (JSON_LINES.replace(', "answer": "c"', ""), "question 1 has no answer, but others have"),
        (MACHINE.replace("1c)", "1b)"), ", line 1: expected five lines, a) to e)"),
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
    (tmp_path / "answers").write_text("1,c\n\n1,c\n")
    refused(
        capsys, ["complete", folder / "ngram", questions, "--answers", tmp_path / "answers"], "line 3", "two answers"
    )
    (tmp_path / "answers").write_text("1\n")
    refused(
        capsys, ["complete", folder / "ngram", questions, "--answers", tmp_path / "answers"], "line 1: expected the"
    )
    refused(capsys, ["complete", folder / "ngram", tmp_path / "nothing"], "there is no file")
    refused(capsys, ["complete", folder / "ngram", "a sentence without a gap " * 20], "mark its gap with _____")
    refused(capsys, ["complete", folder / "ngram", questions, "--choices", "a,b"], "--choices goes with a sentence")
    refused(capsys, ["complete", folder / "ngram", "a __ b __ c", "--choices", "a,b"], "the sentence has 2 gaps")
    refused(capsys, ["complete", folder / "ngram", "a __, b"], "a gap is attached to a word")
    refused(
        capsys, ["complete", folder / "ngram", "__ " * 9], "the sentence has 9 gaps: words are proposed for at most 8"
    )
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


def test_the_number_of_choices_may_differ(tmp_path, folder):
    path = tmp_path / "questions.csv"
    path.write_text("id,question,a),b),c)\n1,the _____ and,oven,New York,sail\n\n2,_____ the,a,b,\n3,_____ ;,x y,;\n")
    questions = read_questions(path)
    assert [question.choices for question in questions] == [("oven", "New York", "sail"), ("a", "b"), ("x y", ";")]
    assert questions[0].gap(TextSettings()).choices == [["oven"], ["New", "York"], ["sail"]]
    rankings = rank(load_scorer(folder / "ngram"), questions)
    assert [len(ranking.scores) for ranking in rankings] == [3, 2, 2]
    path.write_text("1,_____ a," + ",".join(f"w{i}" for i in range(30)) + "\n")  # no header
    (question,) = read_questions(path)
    scores = tuple(float(i == 27) for i in range(30))
    assert Ranking("1", question.choices, scores).letter == "ab"
    (tmp_path / "answers.csv").write_text("1,w27\n")
    assert read_answers(tmp_path / "answers.csv", [question]) == {"1": "ab"}


def test_json_lines_with_answers(tmp_path, folder, capsys):
    path = tmp_path / "questions.jsonl"
    path.write_text(JSON_LINES)
    one, two = read_questions(path)
    assert one == Question("1", "the ship and the _____ .", ("oven", "bread", "sail"), "c")
    assert two == Question("x", "the _____ of the _____", ("cook; ship", "captain; ship"), "b")
    assert two == Question("x", "the _____ of the _____", [["cook", "ship"], ("captain", "ship")], "captain;ship")
    assert given_answers([one, two]) == {"1": "c", "x": "b"}
    assert main(["complete", str(folder / "lsa"), str(path), "--each"]) == 0
    out = capsys.readouterr().out
    assert "100.0 % correct (2 of 2" in out
    assert "the [captain] of the [ship]" in out
    (tmp_path / "answers.jsonl").write_text('{"id": 1, "answer": "bread"}\n{"id": "x", "answer": ["cook", "ship"]}\n')
    assert read_answers(tmp_path / "answers.jsonl", [one, two]) == {"1": "b", "x": "a"}
    assert main(["complete", str(folder / "lsa"), str(path), "--answers", str(tmp_path / "answers.jsonl")]) == 0
    assert "0.0 % correct (0 of 2" in capsys.readouterr().out


def test_a_csv_file_with_answers(tmp_path):
    path = tmp_path / "questions.csv"
    path.write_text('id,question,a),b),c),answer\n1,the _____,x,y,,b\n2,the _____,x,y,"z, z","z, z"\n')
    assert [question.answer for question in read_questions(path)] == ["b", "c"]


@pytest.mark.parametrize(
    ("answer", "expected"), [("b", "b"), ("B)", "b"), (" the  cat ", "a"), ("d", "d"), ("c)", "c")]
)
def test_answers_are_letters_or_choices(answer, expected):
    assert answer_letter(answer, ["the cat", "dog", "b c", "d"]) == expected


def test_an_answer_that_is_a_letter_and_another_choice_is_an_error():
    with pytest.raises(ValueError, match=r"a letter and also the choice c\)"):
        answer_letter("a", ["the", "an", "a"])
    assert [answer_letter(text, ["the", "an", "a"]) for text in ("a)", "c", "an")] == ["a", "c", "b"]
    with pytest.raises(ValueError, match="from a to b"):
        accuracy([Ranking("1", ("x", "y"), (0.0, 1.0))], {"1": "z"})
    assert accuracy([Ranking("1", ("x", "y"), (0.0, 1.0))], {"1": "y"}).correct == 1


@pytest.mark.parametrize("text", ["docs", "docstring", "help"])
def test_the_documented_examples_are_valid(tmp_path, capsys, text):
    """The indented examples of the documentation, by format."""
    if text == "help":
        assert main(["complete", "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
    elif text == "docs":
        lines = (Path(__file__).parents[1] / "docs/questions.md").read_text().splitlines()
    else:
        lines = completion.__doc__.splitlines()
    indented = [line.strip() if line.startswith("  ") else "" for line in lines]
    start = next(i for i, line in enumerate(indented) if line.startswith("id,question,"))
    csv_lines = list(takewhile(lambda line: line and not line.startswith("{"), indented[start:]))
    (tmp_path / "questions.csv").write_text("\n".join(csv_lines))
    assert len(read_questions(tmp_path / "questions.csv")) == len(csv_lines) - 1 > 0
    json_lines = [line for line in indented if line.startswith("{")]
    (tmp_path / "questions.jsonl").write_text("\n".join(json_lines))
    assert len(read_questions(tmp_path / "questions.jsonl")) == len(json_lines) > 0


# -- several gaps -----------------------------------------------------------------------------------------------------


def test_several_gaps_are_tokenized():
    question = Question("1", "Mr. _____ 's friend, _____ .", [["Dr. Watson", "haven't"], "A; B C"])
    gap = question.gap(TextSettings("treebank"))
    assert gap.before == ["Mr."]
    assert gap.between == [["'s", "friend", ","]]
    assert gap.after == ["."]
    assert gap.choices == [[["Dr.", "Watson"], ["have", "n't"]], [["A"], ["B", "C"]]]
    assert gap.filled(gap.fillers()[1]) == (["Mr.", "A", "'s", "friend", ",", "B", "C", "."], [1, 5, 6])
    settings = TextSettings("treebank")
    # a full stop is split off at the end of a sentence only
    assert Question("1", "with _____ and", ("Mr.",)).gap(settings).choices == [["Mr."]]
    assert Question("1", "with _____", ("Watson.",)).gap(settings).choices == [["Watson", "."]]
    with pytest.raises(ValueError, match="words without semicolons"):
        Question("1", "_____ and _____", [["a;b", "c"]])


def test_scores_of_several_gaps_are_those_of_the_sentence_or_of_the_words(folder):
    question = Question("1", "the _____ and _____ sail", ("storm; ship", "bread the; oven"))
    left, both = load(folder / "left"), load(folder / "both")
    sentences = ["the storm and ship sail", "the bread the and oven sail"]
    (ranking,) = rank(left, [question])
    assert ranking.scores == pytest.approx([left.score(sentence) for sentence in sentences], rel=1e-5)
    (ranking,) = rank(both, [question])
    for score, sentence, places in zip(ranking.scores, sentences, ([1, 3], [1, 2, 4]), strict=True):
        words = both.full_scores(sentence)
        assert score == pytest.approx(sum(words[i].log_probability for i in places), rel=1e-5)


@pytest.mark.parametrize("name", ["ngram", "left", "both", "lsa"])
def test_the_most_likely_words_for_several_gaps(folder, name):
    """The beam search finds the best of all pairs of words."""
    scorer, sentence = load_scorer(folder / name), "ship _____ storm _____ and"
    found = most_likely(scorer, sentence, 3)
    words = scorer.vocabulary.words[2:]
    question = Question("1", sentence, [[a, b] for a in words for b in words])
    (ranking,) = rank(scorer, [question])
    assert found[0][0] in [question.choices[i] for i in ranking.order[:3]]
    assert found[0][1] == pytest.approx(max(ranking.scores), abs=1e-4)
    scores = [score for _, score in found]
    assert scores == sorted(scores, reverse=True)
    assert len({each for each, _ in found}) == 3


def test_several_gaps_on_the_command_line(folder, capsys):
    command = ["complete", str(folder / "lsa"), "the _____ and the _____"]
    assert main([*command, "--choices", "ship;sail, ship;oven", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [each["word"] for each in answer["words"]] == ["ship;sail", "ship;oven"]
    assert answer["unknown"] == []
    assert main([*command, "--count", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "; " in lines[0]


def test_the_questions_of_the_challenge(shared_data):
    questions = read_questions(shared_data / "msrscc/testing_data.csv")
    answers = read_answers(shared_data / "msrscc/test_answer.csv", questions)
    assert len(questions) == len(answers) == 1040
    with pytest.raises(NcelmError, match="has no answer"):
        read_answers(shared_data / "msrscc/test_answer.csv", [Question("5000", "_____", ("a",) * 5)])
