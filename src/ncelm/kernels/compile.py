"""How kernels are compiled: `kernel`, `c_kernel` and `inline`, dispatch on types, and the compile cache.

A `kernel` is called from Python, a `c_kernel` by its address; their machine code is kept in a cache on disk. An
`inline` function is called by kernels only: its intermediate code is linked into each kernel that calls it and is
optimised there, once. Numba would optimise it, generate machine code and build two wrappers for every such function,
and then optimise it again inside every caller: three quarters of the compile time (docs/experiments.md). It also means
that a kernel contains all the code it runs, so that a kernel that was just compiled and one from the cache give the
same bits.

The cache directory is named after a digest of all files of this package, because a kernel spans several of them and
Numba itself looks only at the file that defines the function.
"""

import hashlib
import os
import sys
import threading
import warnings
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding as llvm
from numba import njit, types
from numba.core import caching
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering
from numba.extending import intrinsic, overload

CACHE_VARIABLE = "NCELM_CACHE_DIR"
# Reassociation lets LLVM turn sums into vector instructions. NaN and infinity keep their meaning: a run that diverges
# must be detected.
FAST_MATH = {"reassoc", "contract", "arcp", "nsz"}
_OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False, "no_cfunc_wrapper": True}

# -- inline functions --------------------------------------------------------------------------------------------------


class _InlineLibrary(JITCodeLibrary):
    """Intermediate code that is linked into its callers: not optimised and not turned into machine code by itself."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _InlineLowering(NativeLowering):
    """Lower to intermediate code and stop there."""

    _name = "ncelm_inline_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _InlineLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        description, call_helper, _, environment = state.cr
        state.library.finalize()
        # Numba identifies a compiled function by its Python entry point. There is none here; this built-in method is
        # unique to its empty dictionary and raises KeyError if Python calls it.
        entry_point: Any = {}.popitem
        state.targetctx.insert_user_function(entry_point, description, [state.library])
        state["cr"] = _LowerResult(description, call_helper, cfunc=entry_point, env=environment)
        return True


class _InlineCompiler(Compiler):
    def define_pipelines(self) -> list[Any]:
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [
                (_InlineLowering if each is NativeLowering else each, name) for each, name in pipeline.passes
            ]
            pipeline._finalized = False
            pipeline.finalize()
        return pipelines


def inline(function: Callable[..., Any] | None = None, *, fastmath: bool = True) -> Any:
    """Decorator: compile as part of every kernel that calls it. It cannot be called from Python."""
    decorator = njit(
        pipeline_class=_InlineCompiler,
        fastmath=FAST_MATH if fastmath else False,
        forceinline=True,
        no_cpython_wrapper=True,
        **_OPTIONS,
    )
    return decorator if function is None else decorator(function)


def callable_from_python(function: Any) -> Any:
    """A version of an `inline` function that Python can call: for tests. It is compiled anew in every process."""
    return njit(fastmath=FAST_MATH, **_OPTIONS)(function.py_func)


# -- dispatch on types -------------------------------------------------------------------------------------------------


def generic(stub: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: a function with one implementation for each type of its first argument, chosen when it is compiled.

    The types are NamedTuple classes, or NoneType for None. See `implements`.
    """
    implementations: dict[Any, Callable[..., Any]] = {}
    stub.implementations = implementations  # type: ignore[attr-defined]
    names = stub.__code__.co_varnames[: stub.__code__.co_argcount]

    def choose(first: Any) -> Callable[..., Any] | None:
        kind = type(None) if isinstance(first, types.NoneType) else getattr(first, "instance_class", None)
        return implementations.get(kind)

    # Numba compares the names of the arguments, so that the function that chooses must have those of the stub
    source = f"def typed({', '.join(names)}):\n    return choose({names[0]})\n"
    scope: dict[str, Any] = {"choose": choose}
    exec(source, scope)
    overload(
        stub,
        jit_options={"pipeline_class": _InlineCompiler, "fastmath": FAST_MATH, "forceinline": True, **_OPTIONS},
    )(scope["typed"])
    return stub


def implements(stub: Callable[..., Any], *kinds: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: this is `stub` (see `generic`) for first arguments of these types."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for kind in kinds:
            stub.implementations[kind] = function  # type: ignore[attr-defined]
        return function

    return register


# -- the cache ---------------------------------------------------------------------------------------------------------

_listeners: list[Callable[[str], None]] = []


def on_compile(listener: Callable[[str], None]) -> None:
    """Call `listener` with the name of a kernel whenever its compilation begins."""
    _listeners.append(listener)


@cache
def cache_directory() -> Path | None:
    """The directory of compiled kernels, or None (after one warning) if it cannot be written to.

    It lies below NCELM_CACHE_DIR or, without that, NUMBA_CACHE_DIR or the user's cache directory.
    """
    digest = hashlib.sha256(f"{numba.__version__} {llvm.llvm_version_info} {sys.version_info[:2]}".encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    try:
        folder = _cache_root() / digest.hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        reason = getattr(error, "strerror", None) or error
        warnings.warn(
            f"compiled kernels cannot be cached ({reason}): they are compiled again in every process; set "
            f"{CACHE_VARIABLE} to a writable directory",
            stacklevel=2,
        )
        return None
    return folder


def _cache_root() -> Path:
    for variable, folder in ((CACHE_VARIABLE, ""), ("NUMBA_CACHE_DIR", "ncelm"), ("XDG_CACHE_HOME", "ncelm")):
        if os.environ.get(variable):
            return Path(os.environ[variable]) / folder
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "ncelm" / "cache"
    home = Path.home()
    return home / "Library" / "Caches" / "ncelm" if sys.platform == "darwin" else home / ".cache" / "ncelm"


class _Locator(caching._CacheLocator):
    """Tells Numba where the cache of a kernel is."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        self._lineno, self._py_file = py_func.__code__.co_firstlineno, py_file

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        return cls(py_func, py_file)

    def get_cache_path(self) -> str:
        return str(cache_directory())

    def get_source_stamp(self) -> str:
        return ""  # the directory is named after the sources

    def get_disambiguator(self) -> str:
        return str(self._lineno)


class _CacheContent(caching.CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class _KernelCache(caching.FunctionCache):
    """Numba's cache of one function, which never fails: what cannot be read is compiled, what cannot be written is not
    kept.
    """

    _impl_class = _CacheContent

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            found = super().load_overload(sig, target_context)
            expected = tuple(getattr(sig, "args", sig))  # of a `c_kernel` Numba gives the signature
            if found is not None and found.signature.args != expected:  # two processes saved at the same time
                found = None
        except Exception:  # a damaged file of the cache: any exception may come out of it
            found = None
        if found is None:
            for listener in _listeners:
                listener(self._py_func.__name__)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            try:
                super().save_overload(sig, data)
            except OSError:
                raise
            except Exception:  # a damaged index, which Numba reads before it adds an entry
                self.flush()
                super().save_overload(sig, data)
        except OSError as error:
            warnings.warn(f"compiled kernels could not be cached: {error.strerror or error}", stacklevel=2)


class _NoCache(caching.NullCache):
    def __init__(self, name: str) -> None:
        self._kernel = name

    def load_overload(self, sig: Any, target_context: Any) -> None:
        for listener in _listeners:
            listener(self._kernel)


def _in_another_thread(compile: Callable[..., Any]) -> Callable[..., Any]:
    """Let the main thread wait for a compilation in another thread, so that it answers Ctrl-C meanwhile.

    LLVM takes seconds for a kernel, during which Python handles no signal. An interrupted compilation goes on in the
    background and is discarded when the process ends.
    """

    def compile_and_wait(signature: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return compile(signature)
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append((compile(signature), None))
            except BaseException as error:
                outcome.append((None, error))

        thread = threading.Thread(target=work, name="ncelm-compile", daemon=True)
        thread.start()
        thread.join()
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    return compile_and_wait


def kernel(function: Callable[..., Any] | None = None, *, fastmath: bool = True) -> Any:
    """Decorator: compile a function that Python calls, and keep its machine code in the cache."""

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = njit(fastmath=FAST_MATH if fastmath else False, **_OPTIONS)(function)
        dispatcher._cache = _NoCache(function.__name__) if cache_directory() is None else _KernelCache(function)
        dispatcher.compile = _in_another_thread(dispatcher.compile)
        return dispatcher

    return compiled if function is None else compiled(function)


# -- kernels for C -----------------------------------------------------------------------------------------------------

Kinds = tuple[types.Array, ...]


class CKernel:
    """A compiled function `void f(int64_t *memory)`, which threads that do not hold Python's lock can call.

    Args:
        function: takes the memory as an array of int64, and then the arrays that are described in it.
        header: numbers at the beginning of the memory that are not descriptions.
        kinds: types of the arrays, of one or two dimensions. Three numbers describe each: address, rows and columns.
    """

    def __init__(self, function: Callable[..., Any], header: int, kinds: Kinds) -> None:
        self.name = function.__name__
        self.dtypes = tuple(kind.dtype.name for kind in kinds)
        # the cache identifies a function by its name, module and line, and cannot keep closures
        scope = {"function": inline(function), "described": _described(header, kinds), "__name__": function.__module__}
        exec(f"def {self.name}(memory):\n    function(*described(memory))\n", scope)
        self._entry: Any = scope[self.name]

    @cached_property
    def address(self) -> int:
        """The address of the machine code, which is compiled or read from the cache at first use."""
        signature = types.void(types.CPointer(types.int64))
        options = {"nopython": True, "fastmath": FAST_MATH, "error_model": "numpy", "boundscheck": False}
        callback: Any = CFunc(self._entry, (signature.args, signature.return_type), {}, options)
        callback._cache = _NoCache(self.name) if cache_directory() is None else _KernelCache(self._entry)
        _in_another_thread(lambda _: callback.compile())(None)
        self._callback = callback  # keeps the machine code alive
        return int(callback.address)


def c_kernel(header: int, *kinds: types.Array) -> Callable[[Callable[..., Any]], CKernel]:
    """Decorator: compile a function that is called by its address. See `CKernel`."""
    return lambda function: CKernel(function, header, kinds)


def _described(header: int, kinds: Kinds) -> Any:
    """Return a function of the memory: a tuple of its header, as an array, and of the arrays described in it."""
    result = types.Tuple((types.Array(types.int64, 1, "C"), *kinds))

    @intrinsic
    def described(typing_context: Any, memory: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            (memory,) = arguments
            size = context.get_value_type(types.intp)

            def array_of(kind: types.Array, address: Any, shape: list[Any]) -> Any:
                array = context.make_array(kind)(context, builder)
                width = size(kind.dtype.bitwidth // 8)
                context.populate_array(
                    array,
                    data=builder.inttoptr(address, array.data.type),
                    shape=shape,
                    strides=[builder.mul(width, shape[1]), width] if kind.ndim == 2 else [width],
                    itemsize=width,
                    meminfo=None,  # no reference counts: the caller keeps the arrays alive
                )
                return array._getvalue()

            found = [array_of(result[0], builder.ptrtoint(memory, size), [size(header)])]
            for number, kind in enumerate(kinds):
                start = header + 3 * number
                words = [builder.load(builder.gep(memory, [size(start + each)])) for each in range(3)]
                found.append(array_of(kind, words[0], words[1 : 1 + kind.ndim]))
            return context.make_tuple(builder, result, found)

        return result(memory), generate

    return described
