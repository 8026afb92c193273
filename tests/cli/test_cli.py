"""The command line: every verb, its JSON, and one clear line with exit code 2 for every mistake."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.helpers import refused

from ncelm import __version__
from ncelm.cli.main import main

TEXT = "the cat sat on the mat\nthe dog sat on the log\na cat and a dog\n" * 40
QUICK = ["--epochs", "2", "--dim", "8", "--batch-size", "100"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli")
    (path / "text").write_text(TEXT)
    t = str(path / "text")
    assert main(["prepare", "--train", t, "--valid", t, "--test", t, "--out", str(path / "store")]) == 0
    assert main(["train", str(path / "store"), "--out", str(path / "run"), *QUICK]) == 0
    return path


def answer(capsys):
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


# -- the verbs -------------------------------------------------------------------------------------------------------


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ncelm {__version__}\n"
    verbs = ("prepare", "train", "evaluate", "score", "complete", "ngram train", "ngram to-arpa", "ngram from-arpa",
             "lsa", "mix", "blend", "neighbors", "export", "demo")  # fmt: skip
    for verb in verbs:
        with pytest.raises(SystemExit) as stop:
            main([*verb.split(), "--help"])
        assert stop.value.code == 0
        assert "--json" in capsys.readouterr().out


def test_a_recipe_s_help_shows_its_own_defaults(capsys):
    seen = []
    for name in ("ptb-ml", "ptb-fast"):
        with pytest.raises(SystemExit):
            main(["train", "--recipe", name, "--help"])
        seen.append(capsys.readouterr().out)
    assert seen[0] != seen[1]


def test_prepare_prose_and_json(tmp_path, capsys):
    (tmp_path / "prose.txt").write_text("It was late. The cat slept!\n\nWho saw it? Nobody did.\n" * 20)
    arguments = ["prepare", str(tmp_path / "prose.txt"), "--out", str(tmp_path / "store"), "--punkt", "train"]
    assert main([*arguments, "--lowercase", "--valid-sentences", "5", "--test-sentences", "7", "--json"]) == 0
    result = answer(capsys)
    assert result["splits"]["valid"]["sentences"] == 5
    assert result["splits"]["test"]["sentences"] == 7


def test_train_with_a_recipe_and_overrides(folder, tmp_path, capsys):
    arguments = ["train", str(folder / "store"), "--out", str(tmp_path / "run"), "--recipe", "ptb-ml", *QUICK, "--json"]
    assert main(arguments) == 0
    assert answer(capsys)["finished"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert (config["estimator"], config["epochs"], config["model"]["dim"]) == ("ml", 2, 8)
    assert main([*arguments, "--resume"]) == 0  # finished already: the same answer


def test_evaluate(folder, capsys):
    assert main(["evaluate", str(folder / "run"), "--split", "test", "--json"]) == 0
    by_split = answer(capsys)
    assert {"perplexity", "tokens", "log_z_mean", "log_z_std"} <= set(by_split)
    assert main(["evaluate", str(folder / "run")]) == 0
    assert f"perplexity {by_split['perplexity']:.2f}" in capsys.readouterr().out
    assert main(["evaluate", str(folder / "run"), "--file", str(folder / "text"), "--json"]) == 0
    assert answer(capsys)["tokens"] == by_split["tokens"]


def test_score_answers_every_line(folder, tmp_path, capsys):
    (tmp_path / "lines").write_text("the cat sat\n\nthe zebra sat\n")
    assert main(["score", str(folder / "run"), str(tmp_path / "lines")]) == 0
    plain = [float(line) for line in capsys.readouterr().out.splitlines()]
    assert len(plain) == 3
    assert main(["score", str(folder / "run"), str(tmp_path / "lines"), "--json", "--per-word"]) == 0
    full = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["log_probability"] for line in full] == pytest.approx(plain, abs=1e-5)
    assert [w["unknown"] for w in full[2]["words"]] == [False, True, False, False]
    assert main(["score", str(folder / "run"), str(tmp_path / "lines"), "--json"]) == 0
    totals = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["tokens"], line["unknown"]) for line in totals] == [(4, 0), (1, 0), (4, 1)]
    assert main(["score", str(folder / "run"), str(tmp_path / "lines"), "--unnormalised"]) == 0
    bare = [float(line) for line in capsys.readouterr().out.splitlines()]
    assert bare != plain
    assert bare == pytest.approx(plain, abs=3.0)  # NCE has made Z about 1
    assert main(["score", str(folder / "run"), str(tmp_path / "lines"), "--per-word", "--no-end"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "zebra" in lines[2]
    assert "<unk>" in lines[2]
    assert "</s>" not in lines[0]


def test_score_from_standard_input(folder):
    command = [sys.executable, "-m", "ncelm", "score", str(folder / "run")]
    done = subprocess.run(command, input="the cat\na dog\n", capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""


def test_neighbors_and_export(folder, tmp_path, capsys):
    assert main(["neighbors", str(folder / "run"), "cat", "dog", "--count", "3", "--json"]) == 0
    assert [len(nearest) for nearest in answer(capsys).values()] == [3, 3]
    assert main(["neighbors", str(folder / "run"), "cat"]) == 0
    assert capsys.readouterr().out.startswith("cat: ")
    assert main(["export", str(folder / "run"), "--to", "word2vec", str(tmp_path / "vectors"), "--json"]) == 0
    assert answer(capsys)["dim"] == 8


def test_ngrams_there_and_back_and_mixed(folder, tmp_path, capsys):
    store, ngram, run = str(folder / "store"), str(tmp_path / "ngram"), str(folder / "run")
    assert main(["ngram", "train", store, "--order", "3", "--out", ngram, "--json"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["ngrams"]) == 3
    assert captured.err.count("\n") == 1  # a tiny text
    assert "to estimate discounts from: 0.5, 1, 1.5 are used" in captured.err
    assert main(["evaluate", ngram]) == 0
    assert "log Z" not in capsys.readouterr().out
    arpa, again = str(tmp_path / "a.arpa.gz"), str(tmp_path / "again")
    assert main(["ngram", "to-arpa", ngram, arpa]) == 0
    captured = capsys.readouterr()
    assert "n-grams of order 1 to 3" in captured.out
    assert "knows nothing of <s>" in captured.err  # the store is a stream
    assert main(["ngram", "from-arpa", arpa, "--out", again, "--like", store, "--json"]) == 0
    answer(capsys)
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "ngram/model.safetensors").read_bytes()
    assert main(["mix", ngram, run, "--out", str(tmp_path / "mixed"), "--json"]) == 0
    assert sum(answer(capsys)["weights"]) == pytest.approx(1.0)
    perplexities = []
    for model in (ngram, run, str(tmp_path / "mixed")):
        assert main(["evaluate", model, "--split", "valid", "--json"]) == 0
        perplexities.append(answer(capsys)["perplexity"])
    assert perplexities[2] <= min(perplexities) * (1 + 1e-6)
    assert main(["score", str(tmp_path / "mixed"), str(folder / "text")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 120


def test_lsa(folder, tmp_path, capsys):
    run = str(tmp_path / "lsa")
    assert main(["lsa", "train", str(folder / "store"), "--out", run, "--dim", "3", "--json"]) == 0
    assert answer(capsys)["dim"] == 3
    assert main(["neighbors", run, "cat", "--count", "2", "--json"]) == 0
    assert len(answer(capsys)["cat"]) == 2
    assert main(["export", run, str(tmp_path / "vectors")]) == 0
    capsys.readouterr()
    for verb in ("evaluate", "score"):
        refused(capsys, [verb, run], "is an LSA model, which gives words no probabilities")


# -- mistakes --------------------------------------------------------------------------------------------------------


def test_missing_and_foreign_folders(folder, tmp_path, capsys):
    refused(capsys, ["train", tmp_path / "nothing", "--out", tmp_path / "run"], "no token store")
    refused(capsys, ["train", folder / "run", "--out", tmp_path / "run"], "not a token store")
    refused(capsys, ["evaluate", tmp_path / "nothing"], "no run")
    refused(capsys, ["evaluate", folder / "store"], "not a run")
    refused(capsys, ["score", folder / "text"], "run")
    assert not (tmp_path / "run").exists()


def test_wrong_options(folder, tmp_path, capsys):
    train = ["train", folder / "store", "--out", tmp_path / "run"]
    refused(capsys, [*train, "--noise-samples", "0"], "--noise-samples is 0")
    refused(capsys, [*train, "--recipe", "nce"], "no recipe 'nce'")
    refused(capsys, [*train, "--threads", "0"], "--threads is 0")
    refused(capsys, ["evaluate", folder / "run", "--split", "dev"], "no dev split")
    refused(capsys, ["neighbors", folder / "run", "zebra"], "'zebra'")
    refused(capsys, ["neighbors", folder / "run"], "no word")
    refused(capsys, ["neighbors", folder / "run", "cat", "--count", "0"], "--count is 0")
    assert not (tmp_path / "run").exists()


def test_wrong_options_of_the_rivals(folder, tmp_path, capsys):
    store, out = folder / "store", tmp_path / "out"
    for order in (0, 20):
        refused(capsys, ["ngram", "train", store, "--order", order, "--out", out], f"--order is {order}: give a number")
    refused(capsys, ["ngram", "to-arpa", folder / "run", tmp_path / "a"], "is no n-gram model")
    refused(capsys, ["ngram", "from-arpa", folder / "text", "--out", out], "ends before \\end\\")
    refused(capsys, ["ngram", "from-arpa", tmp_path / "nothing", "--out", out], "there is no file")
    refused(capsys, ["lsa", "train", store, "--out", out, "--dim", "0"], "--dim is 0")
    refused(capsys, ["mix", folder / "run", "--out", out], "at least two parts")
    refused(capsys, ["mix", folder / "run", folder / "run", "--out", out, "--weights", "0.5", "0.6"], "--weights are")
    refused(capsys, ["ngram", "train", store, "--out", folder / "run"], "exists already")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_of_an_ngram_model(folder, tmp_path, capsys, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    refused(capsys, ["ngram", "train", folder / "store", "--out", tmp_path / "run"], "no space left")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["trian"], "trian"),
        (["train"], "STORE"),
        (["train", "store", "--out", "x", "--dims", "3"], "--dims"),
        (["ngram"], "train"),
        (["ngram", "train", "store", "--out", "x", "--order", "five"], "five"),
        (["lsa", "foo"], "foo"),
        (["export", "run", "file", "--to", "foo"], "foo"),
    ],
    ids=str,
)
def test_words_the_parser_does_not_know(capsys, arguments, fragment):
    refused(capsys, arguments, fragment, "--help")


def test_existing_output(folder, tmp_path, capsys):
    refused(capsys, ["train", folder / "store", "--out", folder / "run"], "exists already")
    refused(capsys, ["prepare", "--train", folder / "text", "--out", folder / "store"], "exists already")
    (tmp_path / "vectors").write_text("")
    refused(capsys, ["export", folder / "run", tmp_path / "vectors"], "exists already")


@pytest.mark.parametrize(
    ("content", "fragment"),
    [(None, "there is no file"), (b"", "no words"), (b"\x00\x01\x02" * 99, "binary"), (b"caf\xe9\n", "not UTF-8"),
     (b"a a a a\na a\n", "vocabulary"), (b"x " * 10_000_000, "sentence")],
    ids=["missing", "empty", "binary", "latin-1", "one word", "ten million words"],
)  # fmt: skip
def test_bad_text(folder, tmp_path, capsys, content, fragment):
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    refused(capsys, ["prepare", "--train", path, "--out", tmp_path / "store"], fragment)
    assert not (tmp_path / "store").exists()
    assert [p.name for p in tmp_path.iterdir()] == (["text"] if content is not None else [])
    if fragment not in ("no words", "vocabulary"):
        refused(capsys, ["score", folder / "run", path], fragment)


def test_a_full_disk(folder, tmp_path, capsys, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    refused(capsys, ["train", folder / "store", "--out", tmp_path / "run"], "no space left")
    refused(capsys, ["prepare", "--train", folder / "text", "--out", tmp_path / "store"], "no space left")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_during_training_loses_nothing(folder, tmp_path, capsys, monkeypatch):
    train = ["train", str(folder / "store"), "--out", str(tmp_path / "run"), *QUICK, "--epochs", "4"]
    writes, real = 0, os.fsync

    def filling(descriptor):
        nonlocal writes
        writes += 1
        if writes > 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", filling)
        refused(capsys, train, "no space left")
    assert main([*train, "--resume"]) == 0  # there is room again
    whole = ["train", str(folder / "store"), "--out", str(tmp_path / "whole"), *QUICK, "--epochs", "4"]
    assert main(whole) == 0
    assert (tmp_path / "run/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_ctrl_c_is_answered_with_130_and_a_checkpoint(folder, tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "ncelm", "train", str(folder / "store"), "--out", str(out), "--epochs", "100000"]
    process = subprocess.Popen([*command, "--patience", "100000"], stderr=subprocess.PIPE, text=True)
    while not (out / "model.safetensors").exists():
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.startswith("ncelm: ")
    assert errors.count("\n") == 1
    assert "--resume" in errors
    assert (out / "checkpoint.safetensors").exists()


def test_a_closed_pipe_is_no_error(folder, tmp_path):
    (tmp_path / "lines").write_text("the cat sat\n" * 20_000)
    command = f"{sys.executable} -m ncelm score {folder / 'run'} {tmp_path / 'lines'} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""


def ncelm(arguments, environment=None, **options):
    command = [sys.executable, "-m", "ncelm", *map(str, arguments)]
    environment = os.environ | {"PYTHONUNBUFFERED": ""} | (environment or {})
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = subprocess.run(command, env=environment, **streams | options)
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.parametrize(
    ("content", "encoding", "fragment"),
    [(b"the \xff cat\n", "utf-8", "not UTF-8"), (b"the cat\n", "utf-16", "not utf-16")],
)
def test_bad_bytes_on_standard_input(folder, content, encoding, fragment):
    code, out, err = ncelm(["score", folder / "run", "--encoding", encoding], input=content)
    assert (code, out) == (2, b"")
    assert fragment in err
    assert err.count("\n") == 1


def test_odd_output_streams(folder, tmp_path):
    (tmp_path / "lines").write_text("le caf\u00e9 \U0001f600\n")
    score = ["score", folder / "run", tmp_path / "lines", "--per-word"]
    assert ncelm(score, {"PYTHONIOENCODING": "ascii"})[0] == 0
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        code, _, err = ncelm(["evaluate", folder / "run"], stdout=full)
    assert code == 2
    assert err == "ncelm: No space left on device\n"


def test_output_that_is_closed(folder):
    command = f"{sys.executable} -m ncelm evaluate {folder / 'run'} >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pipe_is_no_file(folder, tmp_path, capsys):
    read, write = os.pipe()
    refused(capsys, ["prepare", "--train", f"/dev/fd/{read}", "--out", tmp_path / "store"], "is a pipe")
    os.close(read)
    os.close(write)


def test_importing_ncelm_is_light():
    """The heavy libraries wait until they are needed, so that `import ncelm` takes well under half a second."""
    code = "import sys, ncelm; print([m for m in ('numba', 'scipy', 'nltk', 'tyro', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_score_in_shards(folder, capsys):
    """What the parts say, one after another, is what the whole says."""
    text = folder / "to-score"
    text.write_text("the cat sat\n\na dog and a log\n" * 20)
    assert main(["score", str(folder / "run"), str(text)]) == 0
    whole = capsys.readouterr().out
    for number in (1, 2, 3):
        assert main(["score", str(folder / "run"), str(text), "--shard", f"{number}/3"]) == 0
    assert capsys.readouterr().out == whole
    refused(capsys, ["score", folder / "run", text, "--shard", "4/3"], "--shard is '4/3'", "such as 2/8")
    refused(capsys, ["score", folder / "run", "--shard", "1/3"], "cannot be read in parts")
