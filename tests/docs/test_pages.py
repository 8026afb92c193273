"""All pages: valid commands and Python, an equation for each function of the theory, no page outside the navigation."""

import ast
import inspect
import re
import tomllib

import pytest
from tests.docs.blocks import ROOT, blocks_of, check_command, simple_commands

from ncelm.errors import NcelmError
from ncelm.losses import reference

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*DOCS.rglob("*.md"), ROOT / "README.md"])
LOGS = {"docs/experiments.md"}  # entries keep the commands of their time


def indented_commands(page: str) -> list[str]:
    """Return the commands in indented blocks of a page."""
    return re.findall(r"^    (ncelm [^\n]*)$", (ROOT / page).read_text(), re.M)


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_python_are_valid(page):
    for block in blocks_of(ROOT / page):
        if block.language == "python":
            ast.parse(block.code)
        else:
            for command in block.commands:
                check_command(command)
    if page not in LOGS:
        for command in indented_commands(page):
            check_command(command)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("ncelm train store --out run --minuts 5", "--minuts"),
        ("cat text | ncelm scroe run", "scroe"),
        ("ncelm score run text --shart 1/2 > scores", "--shart"),
        ("torchrun --nproc-per-node 2 -m ncelm train store --outt run", "--outt"),
        ("make dmeo", "dmeo"),
    ],
)
def test_a_wrong_command_is_found(line, fault):
    with pytest.raises((NcelmError, AssertionError), match=fault):
        check_command(line)


def test_quoted_characters_do_not_separate_commands():
    assert simple_commands('ncelm complete run "a; b | c" --choices "x;y" > file  # d; e') == [
        ["ncelm", "complete", "run", "a; b | c", "--choices", "x;y"]
    ]


@pytest.mark.parametrize("number", range(1, 16))
def test_the_theory_has_every_equation_and_its_function(number):
    text = (DOCS / "theory.md").read_text()
    assert rf"\tag{{{number}}}" in text
    functions = [
        name for name, _ in inspect.getmembers(reference, inspect.isfunction) if name.startswith(f"eq{number}_")
    ]
    assert functions
    assert all(f"`{name}`" in text for name in functions)


def navigation(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    entries = entry.values() if isinstance(entry, dict) else entry
    return [page for each in entries for page in navigation(each)]


def test_every_page_is_in_the_navigation():
    config = tomllib.loads((ROOT / "zensical.toml").read_text())
    listed = navigation(config["project"]["nav"])
    assert len(listed) == len(set(listed))
    assert {f"docs/{page}" for page in listed} == set(PAGES) - {"README.md"}
