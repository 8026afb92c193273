"""The tutorials: every command and every line of Python is executed, in order, in one folder for each tutorial."""

from typing import Any

import pytest
from tests.docs.blocks import ROOT, Block, blocks_of, check_command, fences_of

FOLDER = ROOT / "docs" / "tutorials"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index")
FIRST = FOLDER / "first-model.md"
NEED_TORCH = {"large-outputs", "several-machines"}
NEED_THE_FIRST_MODEL = {"filter-a-corpus"}
# What is not executed: commands that need data that is not distributed, hours, or several machines
NOT_RUN = {
    "reproduce-the-paper": ["ncelm reproduce table1", "ncelm reproduce table3"],
    "several-machines": ["torchrun --nnodes", "torchrun --nnodes", "for host in", "first=$(scontrol"],
}


def blocks(name: str) -> list[Block]:
    return blocks_of(FOLDER / f"{name}.md")


def one_thread(torch: Any, request: pytest.FixtureRequest) -> None:
    """Let PyTorch use one thread in a test: several spin if other processes use the cores."""
    former = torch.get_num_threads()
    torch.set_num_threads(1)
    request.addfinalizer(lambda: torch.set_num_threads(former))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.serial if name == "several-machines" else ()) for name in PAGES]
)
def test_every_block_is_executed(reader, name, request):
    if name in NEED_TORCH:
        one_thread(pytest.importorskip("torch", reason="needs PyTorch"), request)
    if name in NEED_THE_FIRST_MODEL:
        training = next(block for block in blocks_of(FIRST) if "ncelm fit" in block.code)
        reader.execute(training)
    for block in blocks(name):
        if block.not_run:
            for command in block.commands:
                check_command(command)
        else:
            reader.execute(block)


def test_there_are_five():
    assert len(PAGES) == 5


@pytest.mark.parametrize("name", PAGES)
def test_few_blocks_are_not_executed(name):
    starts = [" ".join(block.code.split()[: len(start.split())]) for block, start in zip(
        [block for block in blocks(name) if block.not_run], NOT_RUN.get(name, []), strict=True)]  # fmt: skip
    assert starts == NOT_RUN.get(name, [])


@pytest.mark.parametrize("name", PAGES)
def test_all_blocks_are_found(name):
    """Blocks in other languages show data."""
    languages = fences_of(FOLDER / f"{name}.md")
    assert set(languages) <= {"sh", "python", "json", "text"}
    assert len([language for language in languages if language in ("sh", "python")]) == len(blocks(name)) > 2
