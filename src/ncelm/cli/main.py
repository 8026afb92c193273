"""The command line: parse the words, run the verb, and answer whatever goes wrong in one line."""

import _thread
import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from typing import Annotated, Any

import tyro
from tyro.conf import subcommand

from ncelm import __version__
from ncelm.cli.verbs import Evaluate, Export, Neighbors, Prepare, Score, Train
from ncelm.cli.verbs_paper import Complete, Demo, Reproduce
from ncelm.cli.verbs_rivals import Blend, Lsa, Mix, Ngram, Pmi
from ncelm.errors import NcelmError
from ncelm.training.recipes import recipe

_DESCRIPTION = "Neural language models that train in minutes on an ordinary CPU, by noise-contrastive estimation."


def main(arguments: list[str] | None = None) -> int:
    """The command line: 0 if all went well, 2 for a user's mistake, 130 for Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _prepare_output()
    if not arguments:
        arguments = ["--help"]
    if arguments in (["--version"], ["-V"]):
        print(f"ncelm {__version__}")
        return 0
    with _ctrl_c_is_heard() as interrupted:
        try:
            return _answer(arguments)
        except Exception:
            if interrupted.is_set():  # the compiler was torn apart
                return _stopped()
            raise


def _answer(arguments: list[str]) -> int:
    """Run a command; whatever goes wrong is one line."""
    try:
        command = _parse(arguments)
        command.run()
        sys.stdout.flush()
    except NcelmError as error:
        return _fail(str(error))
    except KeyboardInterrupt as stop:
        return _stopped(str(stop))
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _drop_output()
        return 0
    except MemoryError as error:
        return _fail(
            f"not enough memory ({str(error) or 'none is left'}): use fewer dimensions or a smaller vocabulary"
        )
    except OSError as error:  # such as a full disk behind standard output
        _drop_output()
        return _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    return 0


def _stopped(why: str = "") -> int:
    print(f"ncelm: {why or 'stopped by Ctrl-C'}", file=sys.stderr)
    return 130


@contextmanager
def _ctrl_c_is_heard() -> Iterator[threading.Event]:
    """Let no Ctrl-C be lost that arrives while compiled code calls back, as LLVM does: say it again a little later."""
    interrupted, former = threading.Event(), sys.unraisablehook

    def hook(lost: Any) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            interrupted.set()
            again = threading.Timer(0.1, _thread.interrupt_main)
            again.daemon = True
            again.start()
        else:
            former(lost)

    sys.unraisablehook = hook
    try:
        yield interrupted
    finally:
        sys.unraisablehook = former


def _prepare_output() -> None:
    """Nothing that is printed may end in a traceback: not for want of a stream, nor of a letter in its encoding."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """What is left in the buffer cannot be written: let Python not try again when it ends."""
    with suppress(OSError, ValueError):  # a stream that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(arguments: list[str]) -> Any:
    """The command to run."""
    # a recipe named on the command line decides the defaults of `train`, and so the text of its help
    name = _recipe_named(arguments) if arguments[0] == "train" else "default"
    train_default = Train(tyro.MISSING, tyro.MISSING, recipe=name, config=recipe(name))
    command: Any = (
        Annotated[Prepare, subcommand("prepare")]
        | Annotated[Train, subcommand("train", default=train_default)]
        | Annotated[Evaluate, subcommand("evaluate")]
        | Annotated[Score, subcommand("score")]
        | Annotated[Complete, subcommand("complete")]
        | Annotated[Ngram, subcommand("ngram")]
        | Annotated[Lsa, subcommand("lsa")]
        | Annotated[Pmi, subcommand("pmi")]
        | Annotated[Mix, subcommand("mix")]
        | Annotated[Blend, subcommand("blend")]
        | Annotated[Neighbors, subcommand("neighbors")]
        | Annotated[Export, subcommand("export")]
        | Annotated[Demo, subcommand("demo")]
        | Annotated[Reproduce, subcommand("reproduce")]
    )
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(
                command, prog="ncelm", args=arguments, description=_DESCRIPTION, config=(tyro.conf.FlagCreatePairsOff,)
            )
    except SystemExit as stop:
        if stop.code:
            raise NcelmError(_one_line(said.getvalue())) from None
        raise


def _one_line(box: str) -> str:
    """What a box of the parser says, without its frame: a line is enough."""
    lines = [line.strip("│╭╮╰╯─┌┐└┘ ") for line in box.splitlines()]
    # behind the first rule are suggestions, which may be many
    first = next((i for i, line in enumerate(box.splitlines()) if line.startswith("│ ──")), len(lines))
    said = " ".join(line for line in lines[1:first] if line)
    return f"{said or ' '.join(line for line in lines if line)}: see `ncelm --help`, or --help of the verb"


def _recipe_named(arguments: list[str]) -> str:
    name = "default"
    for this, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if this == "--recipe":
            name = following
        elif this.startswith("--recipe="):
            name = this.removeprefix("--recipe=")
    return name


def _fail(message: str) -> int:
    print("ncelm: " + " ".join(message.split()), file=sys.stderr)
    return 2
