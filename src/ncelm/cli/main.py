"""The command line: parse, run the command, and turn every problem into one line and an exit code."""

import _thread
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, TextIO

from ncelm import __version__
from ncelm.errors import NcelmError, Terminated
from ncelm.io.signals import raise_terminated

# The module of a command is imported only when it runs
COMMANDS = {
    "train models": {
        "fit": "make the best model of a text: all steps in one command",
        "prepare": "turn text into a token store",
        "train": "train a neural language model on a token store",
        "ngram": "train n-gram models; read and write ARPA files",
        "lsa": "train word vectors by latent semantic analysis",
        "pmi": "make a co-occurrence index for sentence completion",
        "normalizer": "fit the estimate that fast scores need",
        "mix": "interpolate language models linearly",
        "blend": "combine models of any kind for sentence completion",
    },
    "use models": {
        "evaluate": "measure the perplexity of a text",
        "score": "print log-probabilities of sentences",
        "filter": "add perplexities to documents; keep or split by percentile",
        "complete": "fill the gap in sentences",
        "generate": "write random or likely sentences",
        "serve": "answer requests over HTTP; an interactive page",
        "report": "write an HTML page about runs: curves, settings, samples",
        "neighbors": "show the words with the nearest vectors",
        "export": "write word vectors for other tools",
    },
    "experiments and installation": {
        "reproduce": "train the rows of a table of the paper and compare",
        "demo": "train and compare two models on a small text",
        "compile": "compile the kernels ahead of time",
        "doctor": "check the machines of a cluster before training",
    },
}
NAMES = [name for group in COMMANDS.values() for name in group]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 0, 2 for an error that the user can correct, 130 for Ctrl-C, or 143 for SIGTERM."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _prepare_output()
    with _terminated_by_sigterm(), _interrupts_kept(), warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _run(arguments)


def _run(words: Sequence[str]) -> int:
    """Run a command; print an error as one line; return the exit code."""
    parser: Any = None
    try:
        if not words or words[0] in ("-h", "--help"):
            print(_help())
        elif words[0] in ("-V", "--version"):
            print(f"ncelm {__version__}")
        else:
            from ncelm.cli.parser import Parser
            from ncelm.io.machine import check_address_space

            command = _module_of(words[0])
            check_address_space()  # before NumPy is imported: it limits the memory of OpenBLAS
            parser = Parser(prog=f"ncelm {words[0]}", words=words[1:])
            command.add_arguments(parser)
            parser.add_help_option()
            try:
                arguments = parser.parse(words[1:])
            except SystemExit:  # --help has been printed
                arguments = None
            if arguments:
                command.run(arguments)
        sys.stdout.flush()
    except (NcelmError, KeyboardInterrupt) as error:
        message = parser.with_flags(str(error)) if parser else str(error)
        return _stopped(error, message) if isinstance(error, KeyboardInterrupt) else _fail(message)
    except BrokenPipeError:  # the reader, such as `head`, has finished
        _drop_output(sys.stdout)
        return 0
    except MemoryError as error:
        return _fail(
            f"not enough memory ({str(error) or 'none is left'}): use fewer dimensions or a smaller vocabulary"
        )
    except ImportError as error:
        from ncelm.io.machine import address_space_limit

        if address_space_limit() is None:
            raise
        return _fail(f"a library cannot be loaded ({error}): raise the limit of the address space (ulimit -v)")
    except OSError as error:  # such as a full disk behind standard output
        _drop_output(sys.stdout)
        return _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    return 0


def _module_of(name: str) -> Any:
    """Return the module of a command."""
    if name not in NAMES:
        from ncelm.cli.parser import nearest

        what = "option" if name.startswith("-") else "command"
        raise NcelmError(f"there is no {what} {name}{nearest(name, NAMES)}: see `ncelm --help`")
    return import_module(f"ncelm.cli.{name}")


def _help() -> str:
    """Return the text of `ncelm --help`: all commands, on one screen of 24 lines. The last group has no summaries."""
    lines = [
        "Neural language models that train in minutes on a CPU.",
        "usage: ncelm COMMAND [options]   `ncelm COMMAND --help` describes the command",
    ]
    *groups, (last, others) = COMMANDS.items()
    for group, commands in groups:
        lines += [f"{group}:", *(f"  {name:11}{summary}" for name, summary in commands.items())]
    return "\n".join([*lines, f"{last}:", f"  {'  '.join(others)}"])


def _stopped(error: KeyboardInterrupt, message: str) -> int:
    terminated = isinstance(error, Terminated)
    _print_error(message or f"stopped by {'SIGTERM' if terminated else 'Ctrl-C'}")
    return 143 if terminated else 130


def _fail(message: str) -> int:
    _print_error(" ".join(message.split()))
    return 2


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as one line; the arguments are those of `warnings.showwarning`."""
    _print_error(" ".join(str(message).split()))


def _print_error(message: str) -> None:
    """Print one line to standard error, if it can be written."""
    try:
        print(f"ncelm: {message}", file=sys.stderr, flush=True)
    except OSError:  # such as a full disk; Python would try again at exit, and change the exit code
        _drop_output(sys.stderr)


@contextmanager
def _terminated_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` in the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Repeat a Ctrl-C or SIGTERM that was lost because it arrived in a destructor or in a callback of C code."""
    former = sys.unraisablehook

    def hook(lost: Any) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            number = signal.SIGTERM if issubclass(lost.exc_type, Terminated) else signal.SIGINT
            again = threading.Timer(0.1, _thread.interrupt_main, [number])
            again.daemon = True
            again.start()
        else:
            former(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = former


def _prepare_output() -> None:
    """Make printing safe: replace closed streams, and escape characters that an encoding lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output(stream: TextIO) -> None:
    """Discard what is left in the buffer of a stream, so that Python does not write it when it exits."""
    with suppress(OSError, ValueError):  # a stream without a file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
