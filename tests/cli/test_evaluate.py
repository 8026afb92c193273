"""`ncelm evaluate`: splits, files, errors."""

import io

import pytest


def test_splits_and_files(answer, output, folder):
    by_split = answer(["evaluate", folder / "run", "--split", "test"])
    assert {"perplexity", "tokens", "log_z_mean", "log_z_std"} <= set(by_split)
    assert f"perplexity {by_split['perplexity']:.2f}" in output(["evaluate", folder / "run"])
    assert answer(["evaluate", folder / "run", "--file", folder / "text"])["tokens"] == by_split["tokens"]


def test_standard_input(answer, folder, monkeypatch):
    text = io.TextIOWrapper(io.BytesIO((folder / "text").read_bytes()))
    monkeypatch.setattr("sys.stdin", text)
    by_pipe = answer(["evaluate", folder / "run", "--file", "-"])
    assert by_pipe == answer(["evaluate", folder / "run", "--file", folder / "text"])


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        ("nothing", "no run"),
        ("store", "not a run"),
        ("run --split dev", "no dev split"),
        ("run --file text --split valid", "not both"),
        ("run --threads 0", "--threads is 0"),
        ("run --store nothing", "no token store"),
        ("run --file text --encoding klingon", "klingon"),
    ],
)
def test_errors(fails, folder, monkeypatch, words, fragment):
    monkeypatch.chdir(folder)
    fails(["evaluate", *words.split()], fragment)


def test_an_infinite_perplexity_is_null(answer, output, tmp_path):
    (tmp_path / "a.arpa").write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n-5000\t</s>\n0\ta\n\n\\end\\\n")
    output(["ngram", "from-arpa", tmp_path / "a.arpa", "--out", tmp_path / "run"])
    (tmp_path / "text").write_text("a\n")
    result = answer(["evaluate", tmp_path / "run", "--file", tmp_path / "text"])
    assert result["perplexity"] is None
    assert result["log_probability"] < -5000
    assert "perplexity inf" in output(["evaluate", tmp_path / "run", "--file", tmp_path / "text"])
