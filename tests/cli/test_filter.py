"""`ncelm filter`, and `--tokenizer` of other commands."""

import io
import json
import sys

import pytest

LINES = ["the cat sat on the mat", "mat the on sat cat the", "a cat and a dog", "the dog sat on the log"] * 10


@pytest.fixture
def pages(tmp_path):
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps({"body": line}) + "\n" for line in LINES))
    return tmp_path / "pages.jsonl"


def test_summary_and_json(folder, pages, tmp_path, output, answer):
    shown = output(["filter", folder / "run", pages, "--column", "body", "--out", tmp_path / "a", "--workers", 1])
    assert "40 documents" in shown
    assert "head" in shown
    assert "pseudo perplexity of documents:" in shown
    assert "█" in shown
    command = ["filter", folder / "run", pages, "--column", "body", "--out", tmp_path / "b", "--keep", 50]
    result = answer([*command, "--mode", "exact", "--rejected", "--html", "--workers", 1])
    assert result["measure"] == "perplexity"
    assert result["total"] == 40 == sum(result["documents"].values())
    assert set(result["outputs"]) == {"kept", "rejected"}
    assert (tmp_path / "b" / "filter.html").exists()


def test_standard_input(folder, pages, tmp_path, output, fails, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pages.read_bytes())))
    command = ["filter", folder / "run", "-", "--column", "body", "--workers", 1, "--out"]
    assert "40 documents" in output([*command, tmp_path / "a", "--threshold", 1000])
    fails([*command, tmp_path / "b"], "standard input cannot be read twice", "--threshold")


def test_errors_name_flags(folder, pages, tmp_path, fails):
    command = ["filter", folder / "run", pages, "--out", tmp_path / "out", "--workers", 1]
    fails([*command, "--threshold", 5], "line 1", "there is no column 'text'", "--column", "--skip-broken")
    fails([*command, "--split", "x"], "--split", "30,60")
    fails([*command, "--keep", 5, "--threshold", 5], "either --keep or --threshold")
    assert not (tmp_path / "out").exists()


def test_broken_rows_are_counted(folder, pages, tmp_path, capsys):
    from ncelm.cli.main import main

    pages.write_text(pages.read_text() + "{\n")
    arguments = ["filter", folder / "run", pages, "--column", "body", "--out", tmp_path / "a", "--threshold", 99]
    assert main([*map(str, arguments), "--skip-broken", "--workers", "1"]) == 0
    assert "1 rows could not be read; the first: " in capsys.readouterr().err


def test_tokenizer(folder, tmp_path, output, answer, fails, quick):
    pytest.importorskip("tokenizers")
    text = folder / "text"
    prepare = ["prepare", "--train", text, "--valid", text, "--test", text]
    result = answer([*prepare, "--out", tmp_path / "store", "--tokenizer", "train:bpe:260"])
    assert result["vocabulary"] <= 262
    assert result["splits"]["test"]["words"] == 680
    answer(["train", tmp_path / "store", "--out", tmp_path / "run", *quick])
    found = answer(["evaluate", tmp_path / "run"])
    assert found["bits_per_byte"] > 0
    assert found["word_perplexity"] > found["perplexity"]
    assert "bits per byte" in output(["evaluate", tmp_path / "run"])
    assert "Ġ" not in output(["generate", tmp_path / "run", "--prompt", "the cat", "--stream"])
    fails([*prepare, "--out", tmp_path / "b", "--tokenizer", tmp_path / "none"], "there is no tokenizer")
    fails([*prepare, "--out", tmp_path / "b", "--tokenizer", text], "is not a SentencePiece model, or is damaged")
    fails(
        [*prepare, "--out", tmp_path / "b", "--tokenizer", "train:bpe:260", "--min-count", 2],
        "--min-count",
        "--tokenizer",
    )
