"""`ncelm score`: one result for every line, standard input, shards."""

import io
import json
import subprocess
import sys

import pytest
from tests.helpers import without_compilation


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "lines").write_text("the cat sat\n\nthe zebra sat\n")
    return tmp_path / "lines"


def test_every_line_has_a_result(output, folder, lines):
    score = ["score", folder / "run", lines]
    plain = [float(line) for line in output(score).splitlines()]
    assert len(plain) == 3
    full = [json.loads(line) for line in output([*score, "--json", "--per-word"]).splitlines()]
    assert [line["log_probability"] for line in full] == pytest.approx(plain, abs=1e-5)
    assert [w["unknown"] for w in full[2]["words"]] == [False, True, False, False]
    totals = [json.loads(line) for line in output([*score, "--json"]).splitlines()]
    assert [(line["tokens"], line["unknown"]) for line in totals] == [(4, 0), (1, 0), (4, 1)]


def test_unnormalised_scores(output, folder, lines):
    plain = [float(line) for line in output(["score", folder / "run", lines]).splitlines()]
    bare = [float(line) for line in output(["score", folder / "run", lines, "--unnormalised"]).splitlines()]
    assert bare != plain
    assert bare == pytest.approx(plain, abs=3.0)  # NCE makes Z about 1


def test_words_without_the_end(output, folder, lines):
    words = output(["score", folder / "run", lines, "--per-word", "--no-end"]).splitlines()
    assert "zebra" in words[2]
    assert "<unk>" in words[2]
    assert "</s>" not in words[0]


def test_options_between_arguments(output, folder, lines):
    assert output(["score", folder / "run", "--no-end", lines]) == output(["score", folder / "run", lines, "--no-end"])


def test_standard_input(folder):
    command = [sys.executable, "-m", "ncelm", "score", str(folder / "run")]
    done = subprocess.run(command, input="the cat\na dog\n", capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2
    assert without_compilation(done.stderr) == ""


@pytest.mark.parametrize(
    ("content", "encoding", "fragment"),
    [(b"the \xff cat\n", "utf-8", "not UTF-8"), (b"the cat\n", "utf-16", "not utf-16")],
)
def test_bad_bytes_on_standard_input(fails, folder, monkeypatch, content, encoding, fragment):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    fails(["score", folder / "run", "--encoding", encoding], fragment)


@pytest.mark.parametrize("options", [[], ["--unnormalised"], ["--per-word"], ["--json"], ["--threads", "2"]], ids=str)
def test_shards(output, fails, folder, tmp_path, options):
    """The results of the shards, concatenated, are those of the whole file."""
    text = tmp_path / "text"
    text.write_text("the cat sat\n\na dog and a log\n" * 20)
    whole = output(["score", folder / "run", text, *options])
    for shards in (2, 3, 7):
        command = ["score", folder / "run", text, *options, "--shard"]
        parts = [output([*command, f"{number}/{shards}"]) for number in range(1, shards + 1)]
        assert "".join(parts) == whole
    fails(["score", folder / "run", text, "--shard", "4/3"], "--shard is '4/3'", "such as 2/8")
    fails(["score", folder / "run", "--shard", "1/3"], "cannot be read in")


def test_errors(fails, folder):
    fails(["score", folder / "text"], "run")


def test_a_sentence_or_a_table_in_place_of_a_text(fails, folder, tmp_path):
    fails(["score", folder / "run", "the cat sat"], "there is no file the cat sat", "echo")
    fails(["score", folder / "run", tmp_path / "nothing"], "there is no file", "check its name")
    for name in ("pages.jsonl", "pages.txt"):
        (tmp_path / name).write_text('{"text": "the cat sat"}\n' * 3)
        fails(["score", folder / "run", tmp_path / name], "is a table (jsonl)")
        fails(["evaluate", folder / "run", "--file", tmp_path / name], "is a table (jsonl)")
