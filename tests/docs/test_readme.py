"""README.md: every command and every line of Python is executed; its size and its links."""

import re

import pytest
from tests.docs.blocks import ROOT, blocks_of, check_command, fences_of

README = ROOT / "README.md"


def test_every_block_is_executed(reader):
    for block in blocks_of(README):
        if block.not_run:
            for command in block.commands:
                check_command(command)
        else:
            reader.execute(block)


def test_only_installation_is_not_executed():
    assert [block.commands[0].split("#")[0].strip() for block in blocks_of(README) if block.not_run] == ["make demo"]


def test_all_blocks_are_found():
    assert len(fences_of(README)) == len(blocks_of(README)) >= 7


def test_it_is_short():
    text = README.read_text()
    assert text.count("\n") <= 150
    assert len(re.findall(r"^!\[", text, re.M)) == 1  # one figure
    (python,) = [block for block in blocks_of(README) if block.language == "python"]
    assert len([line for line in python.code.splitlines() if line]) <= 12


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)[^)]*\)", README.read_text()))))
def test_links_exist(target):
    assert "://" in target or (ROOT / target).exists()
