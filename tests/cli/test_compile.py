"""`ncelm compile`, with stubs for the kernels."""

import sys
from types import ModuleType

import pytest


@pytest.fixture
def kernels(monkeypatch, tmp_path):
    """Stubs of the two modules that the command calls; a list of what was compiled."""
    compiled = []
    compile_module, warm_up = ModuleType("ncelm.kernels.compile"), ModuleType("ncelm.kernels.warm_up")
    compile_module.cache_directory = lambda: tmp_path
    compile_module.on_compile = lambda callback: None
    names = {False: ["training", "scoring"], True: ["training", "scoring", "n-grams"]}
    warm_up.targets = lambda all: [(name, lambda name=name: compiled.append(name)) for name in names[all]]
    monkeypatch.setitem(sys.modules, "ncelm.kernels.compile", compile_module)
    monkeypatch.setitem(sys.modules, "ncelm.kernels.warm_up", warm_up)
    return compiled


def test_the_default_kernels(output, kernels, tmp_path):
    lines = output(["compile"]).splitlines()
    assert kernels == ["training", "scoring"]
    assert [line.split()[-1] for line in lines[:2]] == kernels
    assert lines[2].startswith(f"{tmp_path}: 2 kernels, ")


def test_all_kernels(answer, kernels, tmp_path):
    result = answer(["compile", "--all"])
    assert kernels == ["training", "scoring", "n-grams"]
    assert [each["name"] for each in result["compiled"]] == kernels
    assert result["cache"] == str(tmp_path)
    assert result["seconds"] == pytest.approx(sum(each["seconds"] for each in result["compiled"]), abs=0.01)


def test_without_a_cache(kernels, capsys):
    from ncelm.cli.main import main

    sys.modules["ncelm.kernels.compile"].cache_directory = lambda: None
    assert main(["compile", "--json"]) == 2
    assert "NUMBA_CACHE_DIR" in capsys.readouterr().err
