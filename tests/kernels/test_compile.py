"""The decorators of kernels, dispatch on types, and the compile cache."""

import ctypes
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numba import njit, types
from numba.core.errors import TypingError

from ncelm.kernels import compile as compiler
from ncelm.kernels.compile import c_kernel, callable_from_python, generic, implements, inline, kernel

VARIABLES = ("NCELM_CACHE_DIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME")


@pytest.fixture
def compiled(monkeypatch):
    """The names of the kernels whose compilation has begun."""
    names = []
    monkeypatch.setattr(compiler, "_listeners", [])
    compiler.on_compile(names.append)
    return names


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty compile cache for the kernels that the test defines; returns its directory."""
    monkeypatch.setenv("NCELM_CACHE_DIR", str(tmp_path / "cache"))
    compiler.cache_directory.cache_clear()
    yield compiler.cache_directory()
    monkeypatch.undo()
    compiler.cache_directory.cache_clear()


def double(x):
    return x + x


def fresh():
    """A kernel as in a new process: it has no code in memory."""
    return kernel(double)


# -- the decorators ----------------------------------------------------------------------------------------------------


def test_a_kernel_calls_inline_functions(cache):
    @inline
    def square(x):
        return x * x

    @kernel
    def sum_of_squares(values):
        total = 0.0
        for value in values:
            total += square(value)
        return total

    assert sum_of_squares(np.arange(4.0)) == 14.0
    assert callable_from_python(square)(3.0) == 9.0


def test_an_inline_function_cannot_be_called_from_python():
    """An exception, not a crash."""

    @inline
    def square(x):
        return x * x

    @inline
    def nothing():
        return 0

    for call in (lambda: square(3.0), nothing):
        with pytest.raises(KeyError):
            call()


def test_nan_and_infinity_keep_their_meaning():
    """In spite of fast-math: a run that diverges must be detected."""

    @inline
    def finite(x):
        return x - x == 0.0

    @njit(fastmath=compiler.FAST_MATH)
    def check(x):
        return finite(x)

    assert [bool(check(x)) for x in (1.0, np.nan, np.inf)] == [True, False, False]


# -- dispatch on types -------------------------------------------------------------------------------------------------


class Metre(NamedTuple):
    value: float


class Foot(NamedTuple):
    value: float


class Mile(NamedTuple):
    value: float


@generic
def metres(length, count):
    """This length this many times, in metres."""


@implements(metres, Metre)
def _metres(length, count):
    return length.value * count


@implements(metres, Foot)
def _from_feet(length, count):
    return length.value * 0.3048 * count


@implements(metres, type(None))
def _no_length(length, count):
    return 0.0


@njit
def in_metres(length, count):
    return metres(length, count)


def test_a_generic_function_is_chosen_by_the_type_of_its_first_argument():
    assert in_metres(Metre(2.0), 3) == 6.0
    assert in_metres(Foot(2.0), 3) == pytest.approx(1.8288)
    assert in_metres(None, 3) == 0.0


def test_a_missing_implementation_is_an_error_that_names_the_function_and_the_type():
    with pytest.raises(TypingError, match=r"(?s)metres.*Mile"):
        in_metres(Mile(1.0), 3)


def test_one_implementation_for_several_types():
    @generic
    def unit(length):
        """1 of this unit."""

    @implements(unit, Metre, Foot)
    def _unit(length):
        return 1.0

    @njit
    def one(length):
        return unit(length)

    assert one(Metre(2.0)) == one(Foot(2.0)) == 1.0


# -- where the cache is ------------------------------------------------------------------------------------------------


def directory():
    return compiler.cache_directory.__wrapped__()


def test_the_cache_lies_where_the_first_variable_says(monkeypatch, tmp_path):
    expected = {
        variable: tmp_path / variable / folder for variable, folder in zip(VARIABLES, ("", *["ncelm"] * 2), strict=True)
    }
    for variable in VARIABLES:
        monkeypatch.setenv(variable, str(tmp_path / variable))
    for variable in VARIABLES:  # each one without those before it
        assert directory().parent == expected[variable]
        assert directory().is_dir()
        monkeypatch.setenv(variable, "")  # as if it were not set
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    assert directory().is_relative_to(tmp_path / "home")
    assert directory().parent.name == "ncelm"


def test_the_directory_is_named_after_the_files_of_the_package(monkeypatch, tmp_path):
    """A kernel spans several files, any of which may change it."""
    monkeypatch.setenv("NCELM_CACHE_DIR", str(tmp_path / "cache"))
    original = directory()
    copy = Path(shutil.copytree(Path(compiler.__file__).parent, tmp_path / "kernels"))
    monkeypatch.setattr(compiler, "__file__", str(copy / "compile.py"))
    assert directory() == original  # the same files elsewhere
    names = {original.name}
    for file in ("losses.py", "simd.py", "compile.py"):
        (copy / file).write_text((copy / file).read_text() + "\n# changed\n")
        names.add(directory().name)
    (copy / "new.py").write_text("x = 1\n")
    names.add(directory().name)
    assert len(names) == 5
    monkeypatch.setattr(compiler.numba, "__version__", "0.0")
    assert directory().name not in names


# -- what the cache does -----------------------------------------------------------------------------------------------


def test_a_kernel_is_compiled_once_for_each_type(cache, compiled):
    first = fresh()
    assert first(1.5) == 3.0
    assert first(2.5) == 5.0
    assert compiled == ["double"]
    assert first(np.ones(2)).tolist() == [2.0, 2.0]
    assert compiled == ["double", "double"]
    again = fresh()
    assert again(1.5) == 3.0
    assert again(np.ones(2)).tolist() == [2.0, 2.0]
    assert compiled == ["double", "double"]  # both were found in the cache
    assert again.stats.cache_hits
    assert len(list(cache.glob("*.nbc"))) == 2


def test_every_listener_is_called(cache, compiled):
    others = []
    compiler.on_compile(others.append)
    fresh()(1.5)
    assert compiled == others == ["double"]


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])  # the index, the code
@pytest.mark.parametrize("damage", [b"", b"nonsense", "half"], ids=["empty", "nonsense", "half"])
def test_a_damaged_file_of_the_cache_is_compiled_again(cache, compiled, suffix, damage):
    fresh()(1.5)
    (file,) = cache.glob(f"*.{suffix}")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] if damage == "half" else damage)
    assert fresh()(1.5) == 3.0
    assert compiled == ["double", "double"]
    assert fresh()(1.5) == 3.0  # and is whole again
    assert compiled == ["double", "double"]


def test_a_missing_file_of_the_cache_is_compiled_again(cache, compiled):
    fresh()(1.5)
    (file,) = cache.glob("*.nbc")
    file.unlink()
    assert fresh()(1.5) == 3.0
    assert compiled == ["double", "double"]


def test_code_for_other_types_is_compiled_again(cache, compiled):
    """Two processes that save at the same time can exchange their files; such code would crash."""
    fresh()(1.5)
    (code,) = cache.glob("*.nbc")
    for_float = code.read_bytes()
    fresh()(np.ones(2))
    (other,) = set(cache.glob("*.nbc")) - {code}
    code.write_bytes(other.read_bytes())
    other.write_bytes(for_float)
    again = fresh()
    assert again(1.5) == 3.0
    assert again(np.ones(2)).tolist() == [2.0, 2.0]
    assert compiled == ["double"] * 4


def test_a_cache_that_disappears_costs_a_warning(cache, compiled):
    function = fresh()
    shutil.rmtree(cache)
    cache.write_text("a file")
    with pytest.warns(UserWarning, match="compiled kernels could not be cached"):
        assert function(1.5) == 3.0


def test_without_a_writable_directory_kernels_are_compiled_in_memory(monkeypatch, tmp_path, compiled):
    (tmp_path / "file").write_text("")  # permissions would not stop root
    monkeypatch.setenv("NCELM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    compiler.cache_directory.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            first, second = fresh(), fresh()
            assert compiler.cache_directory() is None
        (warning,) = caught  # one for all kernels
        assert "cannot be cached (Not a directory)" in str(warning.message)
        assert "NCELM_CACHE_DIR" in str(warning.message)
        assert first(1.5) == first(1.5) == second(1.5) == 3.0
        assert compiled == ["double", "double"]
    finally:
        compiler.cache_directory.cache_clear()


def test_another_process_uses_the_cache(tmp_path):
    """With the real kernels: the second process compiles nothing."""
    code = """
from ncelm.kernels import compile, random
compile.on_compile(print)
print(int(random.step_key(1, 2, 3)))
"""
    environment = {"NCELM_CACHE_DIR": str(tmp_path / "cache"), "PATH": ""}
    outputs = [
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    assert outputs[0].split()[0] == "step_key"
    assert outputs[0].split()[1:] == outputs[1].split()


# -- kernels for C -----------------------------------------------------------------------------------------------------


def scale_rows(header, table, factors):
    """table[i] *= factors[i] for all rows; header[1] becomes the number of rows."""
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            table[i, j] *= factors[i]
    header[1] = factors.size


def call(function, header, *arrays):
    """Call a kernel by its address; return the numbers of the header."""
    words = [0] * header
    for array in arrays:
        words += [array.ctypes.data, *array.shape, *([1] if array.ndim == 1 else [])]
    memory = (ctypes.c_int64 * len(words))(*words)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function.address)(ctypes.addressof(memory))
    return list(memory)[:header]


def fresh_for_c():
    return c_kernel(3, types.Array(types.float32, 2, "C"), types.Array(types.int64, 1, "C"))(scale_rows)


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (5, 7)])
def test_a_kernel_is_called_by_its_address(cache, shape):
    rng = np.random.default_rng(0)
    table, factors = rng.standard_normal(shape).astype(np.float32), np.arange(shape[0])
    expected = table * factors[:, None].astype(np.float32)
    assert call(fresh_for_c(), 3, table, factors) == [0, shape[0], 0]
    np.testing.assert_array_equal(table, expected)


def test_a_kernel_for_c_is_compiled_once(cache, compiled):
    table, factors = np.ones((2, 2), np.float32), np.array([3, 4])
    for _ in range(2):
        call(fresh_for_c(), 3, table, factors)
    assert compiled == ["scale_rows"]
    assert table.tolist() == [[9.0, 9.0], [16.0, 16.0]]


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_file_of_a_kernel_for_c_is_compiled_again(cache, compiled, suffix):
    assert fresh_for_c().address
    (file,) = cache.glob(f"*.{suffix}")
    file.write_bytes(file.read_bytes()[:50])
    assert fresh_for_c().address
    assert compiled == ["scale_rows"] * 2


def test_a_kernel_for_c_is_compiled_in_memory_without_a_cache(monkeypatch, compiled):
    monkeypatch.setattr(compiler, "cache_directory", lambda: None)
    table = np.ones((1, 2), np.float32)
    call(fresh_for_c(), 3, table, np.array([2]))
    assert compiled == ["scale_rows"]
    assert table.tolist() == [[2.0, 2.0]]
