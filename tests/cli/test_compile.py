"""`ncelm compile`, with stubs for the kernels."""

import sys
import warnings
from functools import partial
from types import ModuleType

import pytest


@pytest.fixture
def kernels(monkeypatch, tmp_path):
    """Stubs of the two modules that the command calls; a list of what was compiled."""
    compiled = []
    compile_module, precompile = ModuleType("ncelm.kernels.compile"), ModuleType("ncelm.training.precompile")
    compile_module.cache_directory = lambda: tmp_path
    compile_module.on_compile = lambda callback: None
    names = {False: ["training", "scoring"], True: ["training", "scoring", "n-grams"]}
    precompile.targets = lambda everything: [(name, partial(compiled.append, name)) for name in names[everything]]
    monkeypatch.setitem(sys.modules, "ncelm.kernels.compile", compile_module)
    monkeypatch.setitem(sys.modules, "ncelm.training.precompile", precompile)
    return compiled


def test_the_default_kernels(output, kernels, tmp_path):
    lines = output(["compile"]).splitlines()
    assert kernels == ["training", "scoring"]
    assert [line.split()[-1] for line in lines[:2]] == kernels
    assert lines[2].endswith(f"in total; the cache is {tmp_path}")


def test_all_kernels(answer, kernels, tmp_path):
    result = answer(["compile", "--all"])
    assert kernels == ["training", "scoring", "n-grams"]
    assert list(result["compiled"]) == kernels
    assert result["cache"] == str(tmp_path)
    assert result["seconds"] == pytest.approx(sum(result["compiled"].values()), abs=0.01)


def test_without_a_cache(kernels, fails):
    def cache_directory():
        warnings.warn("kernels cannot be cached", stacklevel=1)

    sys.modules["ncelm.kernels.compile"].cache_directory = cache_directory
    fails(["compile"], "not writable", "NCELM_CACHE_DIR")
    assert kernels == []
