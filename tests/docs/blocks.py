"""The code blocks of Markdown pages: find them, and execute them as a reader would who copies them one after another.

A block that cannot be executed has a comment before it that states the reason: `<!-- not run: needs four machines -->`.
Its commands are parsed only.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers import parse_command

import ncelm
from ncelm.cli.main import main

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)
# A time budget that is enough for the small texts of the tests
_MINUTES = re.compile(r"(--minutes |minutes=)[\d.]+")
MINUTES = "0.05"


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: Path
    line: int
    language: str  # python, or sh
    code: str
    not_run: str | None  # why it is not executed

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The command lines of a block in the language sh, without comments."""
        lines = self.code.replace("\\\n", " ").splitlines()
        return [line for line in lines if shlex.split(line, comments=True)]


def blocks_of(page: Path) -> list[Block]:
    """Return all code blocks of a page in Python or sh. Blocks in other languages, such as JSON, show data."""
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, match.start("code")) + 1, match["language"], match["code"], match["reason"])
        for match in _FENCE.finditer(text)
        if match["language"] in ("python", "sh")
    ]


def fences_of(page: Path) -> list[str]:
    """Return the language of every code block of a page, also of those that the pattern of blocks does not match."""
    return re.findall(r"^```(\w*)$", page.read_text(), re.M)[::2]


def simple_commands(line: str) -> list[list[str]]:
    """Return the words of each command of a line, `a | b > file; c` for example, without comments and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|;&"):
            commands.append([])
        elif set(word) <= set("<>"):
            next(lexer)  # the name of the file
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


def check_command(line: str) -> None:
    """Raise an error if a command line is wrong: options of ncelm, targets of make."""
    for program, *words in simple_commands(line):
        if program == "make":
            makefile = (ROOT / "Makefile").read_text()
            for target in words:
                assert re.search(rf"^{target}:", makefile, re.M), f"the Makefile has no target {target}"
        elif program == "torchrun":
            parse_command(shlex.join(["ncelm", *words[words.index("ncelm") + 1 :]]))
        elif program == "ncelm":
            parse_command(shlex.join([program, *words]))


class Reader:
    """Someone who executes the blocks of a page in a folder, with one Python session for all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}
        programs = folder / ".programs"
        programs.mkdir()
        (programs / "ncelm").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ncelm "$@"\n')
        (programs / "ncelm").chmod(0o755)
        source = Path(ncelm.__file__).parents[1]
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = os.environ | {"PATH": path, "PYTHONPATH": str(source)}

    def execute(self, block: Block) -> None:
        """Execute a block; raise an error that names its place if it fails."""
        try:
            with _inside(self.folder):
                if block.language == "python":
                    code = "\n" * (block.line - 1) + _MINUTES.sub(rf"\g<1>{MINUTES}", block.code)
                    exec(compile(code, str(block.page), "exec"), self.names)
                else:
                    for command in block.commands:
                        self._run(_MINUTES.sub(rf"\g<1>{MINUTES}", command))
        except Exception as error:
            raise AssertionError(f"{block}: {error!r}") from error

    def _run(self, command: str) -> None:
        """Run a command line: one of ncelm in this process, which is faster, others in a shell."""
        words = shlex.split(command, comments=True)
        if words[0] != "ncelm" or len(simple_commands(command)) > 1 or "<" in words:
            done = subprocess.run(["sh", "-e", "-c", command], env=self.environment, capture_output=True, text=True)
            assert done.returncode == 0, f"`{command}` failed: {done.stderr[-2000:]}"
            return
        if ">" in words:
            *words, _, name = words
            with Path(name).open("w") as file, redirect_stdout(file):
                code = main(words[1:])
        else:
            code = main(words[1:])
        assert code == 0, f"`{command}` failed with exit code {code}"


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder."""
    former = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(former)
