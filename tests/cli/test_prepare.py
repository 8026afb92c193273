"""`ncelm prepare`: prose and tokenized text, bad texts, full disks."""

import errno
import os

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
