"""`ncelm generate`: random and likely sentences, gaps."""

import json

import pytest


def test_sentences(output, folder):
    command = ["generate", folder / "run", "--prompt", "the cat", "--count", "3", "--seed", "1"]
    lines = output(command).splitlines()
    assert len(lines) == 3
    assert all(line.startswith("the cat") for line in lines)
    assert output([*command, "--threads", "1"]).splitlines() == lines
    results = [json.loads(line) for line in output([*command, "--json"]).splitlines()]
    assert [result["text"] for result in results] == lines
    assert all(result["log_probability"] < 0 for result in results)


def test_without_a_prompt(output, folder):
    assert output(["generate", folder / "run", "--max-words", "3"]).count("\n") == 1


def test_streaming(output, folder):
    command = ["generate", folder / "run", "--prompt", "the", "--seed", "2"]
    (line,) = output(command).splitlines()
    assert output([*command, "--stream"]).split() == line.split()
    words = [json.loads(line) for line in output([*command, "--stream", "--json"]).splitlines()]
    assert ["the", *(word["word"] for word in words if word["word"] != "</s>")] == line.split()


def test_beam_search(output, folder):
    lines = output(["generate", folder / "run", "--prompt", "the cat", "--beam", "3", "--json"]).splitlines()
    logs = [json.loads(line)["log_probability"] for line in lines]
    assert len(logs) == 3
    assert logs == sorted(logs, reverse=True)


def test_gaps_of_a_two_sided_model(output, fails, folder, tmp_path, quick):
    run = tmp_path / "both"
    output(["train", folder / "store", "--out", run, "--context", "2", "--context-after", "2", *quick, "--json"])
    command = ["generate", run, "--prompt", "the _____ sat on _____ mat", "--count", "2"]
    for line in output(command).splitlines():
        assert len(line.split()) == 6
        assert line.split()[2:4] == ["sat", "on"]
    fails(["generate", run, "--prompt", "the cat"], "give --prompt with gaps")


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (["--top-p", "0"], "--top-p"),
        (["--temperature", "-1"], "--temperature"),
        (["--count", "0"], "--count"),
        (["--max-words", "0"], "--max-words"),
        (["--repetition-penalty", "0.5"], "--repetition-penalty"),
        (["--beam", "2", "--top-k", "3"], "leave --top-k out"),
        (["--stream", "--count", "3"], "leave --count out"),
        (["--seed", "-1"], "--seed"),
    ],
    ids=str,
)
def test_invalid_options(fails, folder, options, fragment):
    fails(["generate", folder / "run", *options], fragment)
