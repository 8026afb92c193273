"""`ncelm train`: recipes and flags, errors that name flags, full disks."""

import errno
import io
import json
import os
import re

import pytest

from ncelm.cli.main import main
from ncelm.cli.parser import Parser
from ncelm.cli.train import add_arguments, recipe_named
from ncelm.training.options import OPTIONS
from ncelm.training.recipes import RECIPES, recipe


def config_of(run):
    return json.loads((run / "config.json").read_text())["config"]


def given(*words):
    """The options that a command line gives, and their values."""
    words = ["store", "--out", "run", *words]
    parser = Parser(prog="ncelm train", words=words)
    add_arguments(parser)
    arguments = vars(parser.parse(words))
    return {name: arguments[name] for name in OPTIONS if arguments[name] is not None}


# -- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "name"),
    [("", None), ("store --recipe ptb-ml", "ptb-ml"), ("--recipe=ptb-ml store", "ptb-ml"),
     ("--recipe a --recipe b", "b"), ("--recipe", None), ("--recipe --help", None)],
)  # fmt: skip
def test_recipe_named(words, name):
    assert recipe_named(words.split()) == name


@pytest.mark.parametrize("name", RECIPES)
def test_the_help_shows_the_defaults_of_the_recipe(output, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "102")
    text = " ".join(output(["train", "--recipe", name, "--help"]).split())
    config = recipe(name)
    assert f"recipe {name}." in text
    assert f"--dim N Dimension of the word vectors [default: {config.model.dim}]." in text
    assert f"[default: {config.learning_rate}]. Gradients are summed" in text
    assert f"[default: {'on' if getattr(config.loss, 'shared_noise', False) else 'off'}]. With --loss" in text
    for other in RECIPES:
        assert f" {other} " in text


def test_an_unknown_recipe(fails):
    fails(["train", "store", "--out", "x", "--recipe", "nce"], "no recipe 'nce'", "ptb-fast")
    fails(["train", "--recipe", "nce", "--help"], "no recipe 'nce'")


# -- flags -----------------------------------------------------------------------------------------------------------


def test_every_option_has_a_flag():
    assert given() == {}
    for option in OPTIONS.values():
        for flag in (option.flag, *option.aliases):
            if option.type is bool:
                assert given(flag) == {option.name: True}
                assert given("--no-" + flag.removeprefix("--")) == {option.name: False}
            else:
                value = option.choices[-1] if option.choices else "7"
                assert given(flag, value) == {option.name: option.type(value)}
                assert isinstance(given(flag, value)[option.name], option.type)


def test_lr_is_the_learning_rate():
    assert given("--lr", "1e-3") == given("--learning-rate", "0.001") == {"learning_rate": 0.001}


def test_train_with_a_recipe_and_overrides(answer, folder, tmp_path, quick):
    arguments = ["train", folder / "store", "--out", tmp_path / "run", "--recipe", "ptb-ml", *quick]
    result = answer(arguments)
    assert result["finished"]
    config = config_of(tmp_path / "run")
    assert (config["loss"]["name"], config["schedule"]["epochs"], config["model"]["dim"]) == ("ml", 2, 8)
    assert answer([*arguments, "--resume"]) == result  # it is finished


def test_flags_turn_off_what_a_recipe_turns_on(answer, folder, tmp_path, quick):
    arguments = ["train", folder / "store", "--out", tmp_path / "run", "--recipe", "ptb-quick", *quick]
    answer([*arguments, "--no-shared-noise", "--noise-samples", "5", "--lr", "0.1"])
    config = config_of(tmp_path / "run")
    assert config["loss"]["shared_noise"] is False
    assert config["learning_rate"] == 0.1


def test_text_output(output, folder, tmp_path, quick):
    out = output(["train", folder / "store", "--out", tmp_path / "run", *quick])
    assert out.startswith(f"{tmp_path / 'run'}: validation perplexity ")
    assert "2 epochs" in out


def test_the_need_for_memory_on_a_terminal(folder, tmp_path, quick, monkeypatch):
    monkeypatch.setattr("sys.stderr", stream := io.StringIO())
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    assert main(["train", str(folder / "store"), "--out", str(tmp_path / "run"), *quick]) == 0
    first, *_ = stream.getvalue().splitlines()
    assert re.fullmatch(r"ncelm: for 800 words and a vocabulary of 11: .*; about \d+ MB of memory", first)
    assert "epoch 2/2" in stream.getvalue()


# -- errors ----------------------------------------------------------------------------------------------------------


def test_missing_and_foreign_folders(fails, folder, tmp_path):
    fails(["train", tmp_path / "nothing", "--out", tmp_path / "run"], "no token store")
    fails(["train", folder / "run", "--out", tmp_path / "run"], "not a token store")
    fails(["train", folder / "store", "--out", folder / "run"], "exists already", "--resume")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        ("--noise-samples 0", ["--noise-samples is 0"]),
        ("--dim -3", ["--dim is -3"]),
        ("--lr nan", ["--learning-rate is nan"]),
        ("--lr -1e-3", ["--learning-rate is -0.001"]),
        ("--threads 0", ["--threads is 0"]),
        ("--checkpoint-minutes -1", ["--checkpoint-minutes is -1"]),
        ("--loss xyz", ["argument --loss: invalid choice: 'xyz'", "nce"]),
        ("--patience -1", ["--patience is -1"]),
        ("--minutes 0", ["--minutes is 0"]),
        ("--minutes 1 --recipe ptb-fast", ["--minutes goes with adaptive defaults"]),
        ("--loss ml --noise-samples 3", ["--noise-samples goes with --loss nce"]),
        ("--shared-noise --noise bigram", ["--shared-noise", "--noise"]),
        ("--model lstm --context-after 3", ["--model lstm", "--context-after"]),
    ],
    ids=str,
)
def test_wrong_options(fails, folder, tmp_path, words, fragments):
    line = fails(["train", folder / "store", "--out", tmp_path / "run", *words.split()], *fragments)
    assert "_" not in line.replace(str(folder), "").replace(str(tmp_path), "")
    assert not (tmp_path / "run").exists()


def test_a_full_disk(fails, folder, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    fails(["train", folder / "store", "--out", tmp_path / "run"], "no space left")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_during_training_loses_nothing(fails, folder, tmp_path, monkeypatch, quick):
    train = ["train", str(folder / "store"), "--out", str(tmp_path / "run"), *quick, "--epochs", "4"]
    writes, real = 0, os.fsync

    def filling(descriptor):
        nonlocal writes
        writes += 1
        if writes > 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", filling)
        fails(train, "no space left")
    assert main([*train, "--resume"]) == 0  # there is space again
    whole = ["train", str(folder / "store"), "--out", str(tmp_path / "whole"), *quick, "--epochs", "4"]
    assert main(whole) == 0
    assert (tmp_path / "run/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
