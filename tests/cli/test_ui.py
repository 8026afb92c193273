"""Shards, counts, the message about compilation."""

import sys
from types import ModuleType

import pytest

from ncelm.cli import ui
from ncelm.errors import NcelmError


def test_parse_shard():
    assert ui.parse_shard("2/8") == (2, 8)


@pytest.mark.parametrize("text", ["", "2", "0/2", "3/2", "a/b", "1/2/3", "-1/2", "1/1000001"])
def test_bad_shards(text):
    with pytest.raises(NcelmError, match=r"--shard is .*such as 2/8"):
        ui.parse_shard(text)


def test_count():
    assert [ui.count(n, "word") for n in (0, 1, 2)] == ["0 words", "1 word", "2 words"]


def test_the_first_compilation_is_announced(monkeypatch, capsys):
    callbacks = []
    module = ModuleType("ncelm.kernels.compile")
    module.on_compile = callbacks.append
    monkeypatch.setitem(sys.modules, "ncelm.kernels.compile", module)
    ui.announce_compilation.cache_clear()
    ui.announce_compilation()
    ui.announce_compilation()
    (callback,) = callbacks
    assert capsys.readouterr().err == ""
    callback("score")
    callback("steps")
    assert capsys.readouterr().err == "ncelm: compiling … (once per machine)\n"
    ui.announce_compilation.cache_clear()
