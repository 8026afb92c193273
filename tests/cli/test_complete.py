"""`ncelm complete`; tests/test_completion.py has the formats of questions and the accuracy."""

import pytest

QUESTIONS = """\
id,question,a),b),c),d),e)
1,the _____ sat on the mat,cat,log,on,zebra,and
2,the dog sat _____ the log,mat,on,cat,a,dog
"""


@pytest.fixture
def questions(tmp_path):
    (tmp_path / "questions.csv").write_text(QUESTIONS)
    (tmp_path / "answers.csv").write_text("id,answer\n1,a\n2,b\n")
    return tmp_path / "questions.csv"


def test_a_sentence(answer, output, folder):
    sentence = "the _____ sat on the mat"
    result = answer(["complete", folder / "run", sentence, "--choices", "on, cat,zebra"])
    assert {word["word"] for word in result["words"]} == {"on", "cat", "zebra"}
    assert result["unknown"] == ["zebra"]
    assert result["unknown_policy"] == "exclude"  # <unk> does not occur in the text
    assert result["unknown_types"] == 0
    assert result["words"][-1] == {"word": "zebra", "score": None}
    result = answer(["complete", folder / "run", sentence, "--choices", "cat,zebra", "--unknown", "token"])
    assert result["unknown_policy"] == "token"
    assert all(isinstance(word["score"], float) for word in result["words"])
    assert "zebra  excluded  <unk>" in output(["complete", folder / "run", sentence, "--choices", "cat,zebra"])
    lines = output(["complete", folder / "run", sentence, "--count", "3"]).splitlines()
    assert len(lines) == 3
    assert "<unk>" in output(["complete", folder / "run", sentence, "--choices", "zebra"])
    assert len(answer(["complete", folder / "run", "- _____ sat -", "--count", "2"])["words"]) == 2


def test_a_file_of_questions(capsys, folder, questions):
    from ncelm.cli.main import main

    command = ["complete", str(folder / "run"), str(questions)]
    assert main([*command, "--answers", str(questions.with_name("answers.csv")), "--each"]) == 0
    captured = capsys.readouterr()
    assert "% correct" in captured.out
    assert "95 % confidence interval" in captured.out
    assert captured.out.count("sat") == 2
    assert f"ranked after all others: 1 choice of {questions}, such as 'zebra'" in captured.err
    assert main([*command, "--unknown", "token"]) == 0
    assert f"scored as <unk>: 1 choice of {questions}, such as 'zebra'" in capsys.readouterr().err
    assert main([*command, "--unnormalised"]) == 0
    assert "correct" not in capsys.readouterr().out


def test_errors(fails, folder, questions):
    run = folder / "run"
    fails(["complete", run, "no gap here"], "there is no file 'no gap here'", "mark its gap with _____")
    fails(["complete", run, "a _____ b", "--answers", questions], "--answers goes with a file")
    fails(["complete", run, questions, "--choices", "a,b"], "--choices goes with a sentence")
    fails(["complete", run, "a _____ b", "--count", "0"], " is 0: ")
    fails(["complete", run, "a _____ b", "--unknown", "guess"], "--unknown", "distribute", "token")
    fails(["complete", run, "a _____ b _____", "--choices", "a,b"], "the sentence has 2 gaps", "separated by ';'")
