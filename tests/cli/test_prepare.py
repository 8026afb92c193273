"""`ncelm prepare`: prose and tokenized text, bad texts, full disks."""

import errno
import json
import os
import shutil

import pytest


def test_prose(answer, tmp_path):
    (tmp_path / "prose.txt").write_text("It was late. The cat slept!\n\nWho saw it? Nobody did.\n" * 20)
    arguments = ["prepare", tmp_path / "prose.txt", "--out", tmp_path / "store", "--punkt", "train", "--lowercase"]
    result = answer([*arguments, "--valid-sentences", "5", "--test-sentences", "7"])
    assert result["splits"]["valid"]["sentences"] == 5
    assert result["splits"]["test"]["sentences"] == 7


def test_options_may_come_first_and_be_repeated(answer, folder, tmp_path):
    (tmp_path / "prose.txt").write_text("It was late. The cat slept!\n" * 40)
    command = ["prepare", "--punkt", "train", "--out", tmp_path / "a", "--lowercase", tmp_path / "prose.txt"]
    assert "</s>" not in answer(command)
    text = folder / "text"
    one = answer(["prepare", "--train", text, text, "--out", tmp_path / "b"])
    other = answer(["prepare", "--train", text, "--train", text, "--out", tmp_path / "c"])
    assert one["splits"] == other["splits"]


def test_text_output(output, capsys, folder, tmp_path):
    text = folder / "text"
    (tmp_path / "rare").write_text("the cat sat on the mat\nthe dog sat\n" * 9 + "zebra\n")
    out = output(["prepare", "--train", tmp_path / "rare", "--valid", text, "--out", tmp_path / "a", "--min-count", 2])
    assert "vocabulary of 8 words, boundary stream" in out
    assert "1.0 % unknown" in out
    from ncelm.cli.main import main

    assert main(["prepare", "--train", str(text), "--out", str(tmp_path / "b")]) == 0
    assert "consider --min-count 2" in capsys.readouterr().err


def test_gutenberg(output, answer, tmp_path):
    work = "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n" + "The cat sat. The dog ran.\n\n" * 30
    (tmp_path / "works").mkdir()
    (tmp_path / "works" / "a.txt").write_text(work)
    command = ["prepare", tmp_path / "works", "--gutenberg", "--min-count", 1, "--punkt", "train", "--out"]
    assert answer([*command, tmp_path / "a"])["works"]["works"] == 1


def test_tables(output, answer, fails, tmp_path):
    rows = [{"id": n, "text": f"It was late. Cat {n} slept!\n\nNobody saw it."} for n in range(20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "prose.txt").write_text("\n\n".join(row["text"] for row in rows))
    command = ["prepare", tmp_path / "a.jsonl", "--punkt", "train", "--out", tmp_path / "store"]
    fails(command, "a.jsonl is JSON, not plain text: pass --column text (its columns are id, text)")
    fails([*command, "--column", "body"], "line 1: there is no column 'body': pass --column with one of id, text")
    fails([*command, "--column", "id"], "line 1: the value of 'id' is 0, not a string")
    tables = answer([*command, "--column", "text"])
    plain = answer(["prepare", tmp_path / "prose.txt", "--punkt", "train", "--out", tmp_path / "plain"])
    assert tables["splits"] == plain["splits"]
    assert tables["blank_lines"] == {"train": 20}
    command[-1] = tmp_path / "shards"
    for shard in ("1/2", "2/2"):
        output([*command, "--column", "text", "--shard", shard])
    assert answer([*command, "--column", "text", "--join", "2"])["splits"] == tables["splits"]
    fails(["prepare", tmp_path / "prose.txt", "--column", "text", "--out", tmp_path / "x"], "--column is for these")
    fails(["prepare", tmp_path / "a.jsonl", "--column", "text", "--gutenberg", "--out", tmp_path / "x"], "--column")


def test_parquet(answer, fails, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(
        pyarrow.table({"id": [1, 2], "body": ["the cat sat", "the dog\n\nsat"]}), tmp_path / "a.parquet"
    )
    command = ["prepare", "--train", tmp_path / "a.parquet", "--out", tmp_path / "store"]
    fails(command, "a.parquet is a Parquet file, not plain text: pass --column NAME (its columns are id, body)")
    fails([*command, "--column", "text"], "there is no column 'text': pass --column with one of id, body")
    fails([*command, "--column", "id"], "the column 'id' has values of type int64")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    fails(["prepare", "--train", tmp_path / "cut.parquet", "--column", "body", "--out", tmp_path / "x"], "is damaged")
    result = answer([*command, "--column", "body"])
    assert (result["splits"]["train"]["sentences"], result["blank_lines"]) == (3, {"train": 1})


def test_blank_lines(capsys, answer, fails, tmp_path):
    (tmp_path / "text").write_text("the cat sat\n\nthe dog sat\n\n \n")
    command = ["prepare", "--train", tmp_path / "text", "--out"]
    assert answer([*command, tmp_path / "a"])["blank_lines"] == {"train": 3}
    kept = answer([*command, tmp_path / "b", "--blank-lines", "keep"])
    assert (kept["splits"]["train"]["sentences"], kept["splits"]["train"]["tokens"]) == (5, 11)
    from ncelm.cli.main import main

    def summary(*arguments) -> str:
        assert main([str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out

    assert "  3 blank lines in the text (skipped)\n" in summary(*command, tmp_path / "c")
    shown = summary(*command, tmp_path / "d", "--blank-lines", "keep")
    assert "  3 blank lines in the text (kept as empty sentences)\n" in shown
    (tmp_path / "prose").write_text("It was late.\n\nThe cat slept.\n")
    prose = ["prepare", tmp_path / "prose", "--punkt", "train", "--out", tmp_path / "e"]
    fails([*prose, "--blank-lines", "keep"], "--blank-lines keep is for tokenized text, given with --train")
    assert "  1 blank line in the text (ends of paragraphs)\n" in summary(*prose)


def test_missing_files(fails, tmp_path):
    """The command line has no text in memory: the error does not mention it."""
    (tmp_path / "text").write_text("the cat sat\n")
    for arguments in (["It was late."], ["--train", "nothing"], ["--train", tmp_path / "text", "--test", "nothing"]):
        error = fails(["prepare", *arguments, "--out", tmp_path / "store"], "there is no file")
        assert "`" not in error
    assert "`" not in fails(["prepare", "--out", tmp_path / "store"], "give either prose (files or folders) or --train")


def test_help(output, folder, tmp_path, monkeypatch):
    """The lines of usage and the examples can be copied."""
    text = " ".join(output(["prepare", "--help"]).split())
    monkeypatch.chdir(tmp_path)
    lines = (folder / "text").read_text()
    for name in ("train.txt", "valid.txt", "test.txt", "FILE"):
        (tmp_path / name).write_text(lines)
    (tmp_path / "texts").mkdir()
    for name in ("texts/a", "TEXT..."):
        (tmp_path / name).write_text("It was late. The cat slept!\n\n" * 50)
    (tmp_path / "pages.jsonl").write_text('{"text": "It was late. The cat slept!"}\n' * 50)
    for command in (
        "ncelm prepare TEXT... --out STORE",
        "ncelm prepare --train FILE --valid FILE --test FILE --out STORE",
        "ncelm prepare texts/ --out store --lowercase --min-count 5 --punkt train",
        "ncelm prepare pages.jsonl --column text --out store --punkt train",
        "ncelm prepare --train train.txt --valid valid.txt --test test.txt --out store",
    ):
        assert command in text
        more = ["--punkt", "train", "--min-count", "2"]
        output([*command.split()[1:], *([] if "--min-count" in command else more), "--json"])
        shutil.rmtree(tmp_path / command.split("--out ")[1].split()[0])


def test_existing_output(fails, folder):
    fails(["prepare", "--train", folder / "text", "--out", folder / "store"], "exists already")


@pytest.mark.parametrize(
    ("content", "fragment"),
    [(None, "there is no file"), (b"", "no words"), (b"\x00\x01\x02" * 99, "binary"), (b"caf\xe9\n", "not UTF-8"),
     (b"a a a a\na a\n", "vocabulary"), (b"x " * 10_000_000, "sentence")],
    ids=["missing", "empty", "binary", "latin-1", "one word", "ten million words"],
)  # fmt: skip
def test_bad_text(fails, folder, tmp_path, content, fragment):
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    fails(["prepare", "--train", path, "--out", tmp_path / "store"], fragment)
    assert not (tmp_path / "store").exists()
    assert [p.name for p in tmp_path.iterdir()] == (["text"] if content is not None else [])
    if fragment not in ("no words", "vocabulary"):
        fails(["score", folder / "run", path], fragment)


def test_a_pipe_is_no_file(fails, tmp_path):
    read, write = os.pipe()
    fails(["prepare", "--train", f"/dev/fd/{read}", "--out", tmp_path / "store"], "is a pipe")
    os.close(read)
    os.close(write)


def test_a_full_disk(fails, folder, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    fails(["prepare", "--train", folder / "text", "--out", tmp_path / "store"], "no space left")
    assert list(tmp_path.iterdir()) == []


def test_shards(answer, output, fails, folder, tmp_path):
    """The store made from shards is the store made at once."""
    (tmp_path / "a.txt").write_text("It was late. The cat slept!\n\n" * 30)
    (tmp_path / "b.txt").write_text("Who saw it? Nobody did.\n\n" * 30)
    command = ["prepare", tmp_path / "a.txt", tmp_path / "b.txt", "--punkt", "train", "--out"]
    command += [tmp_path / "parts"]
    for shard in ("1/2", "2/2"):
        assert f"shard {shard} is done" in output([*command, "--shard", shard])
    fails([*command, "--shard", "1/2", "--join", "2"], "not both")
    joined = answer([*command, "--join", "2"])
    whole = answer([*command[:-1], tmp_path / "whole"])
    assert joined["splits"] == whole["splits"]
