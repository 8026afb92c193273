"""Fixtures of the tests of the documentation: a reader with the files that the pages mention."""

import json
import shutil
import sysconfig
from pathlib import Path

import pytest
from tests.docs.blocks import Reader
from tests.helpers import random_lines

from ncelm.paper import demo

CHARACTERS = 150_000  # of the text: enough for a model, and little enough for a test
MODULES = ("_pydecimal.py", "argparse.py", "subprocess.py", "logging/__init__.py", "pydoc_data/topics.py")


@pytest.fixture(scope="session")
def python_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text that the first tutorial suggests, from a part of Python's library: parsing all of it takes seconds."""
    folder = tmp_path_factory.mktemp("text")
    library = Path(sysconfig.get_paths()["stdlib"])
    for module in MODULES:
        (folder / module).parent.mkdir(exist_ok=True)
        shutil.copy(library / module, folder / module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo.sysconfig, "get_paths", lambda: {"stdlib": str(folder)})
        demo.write_text(folder / "my_text.txt")
    return (folder / "my_text.txt").read_text()[:CHARACTERS].rpartition("\n\n")[0]


@pytest.fixture
def reader(tmp_path: Path, python_text: str, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """A reader in a folder with a text, sentences to score, and a small corpus in the place of the Penn Treebank."""
    monkeypatch.setattr(demo, "write_text", lambda path: path.write_text(python_text) and None)
    monkeypatch.setattr("ncelm.progress.LOG_SECONDS", 1e9)
    (tmp_path / "my_text.txt").write_text(python_text)
    (tmp_path / "sentences.txt").write_text("This is a sentence.\nReturn a list of strings.\n")
    documents = (json.dumps({"text": text}) + "\n" for text in python_text[:20_000].split("\n\n"))
    (tmp_path / "corpus.jsonl").write_text("".join(documents))
    (tmp_path / "corpus.txt").write_text(python_text[:5000])
    (tmp_path / "ptb").mkdir()
    for number, split in enumerate(("train", "valid", "test")):
        (tmp_path / f"ptb/ptb.{split}.txt").write_text("\n".join(random_lines(number)) + "\n")
    return Reader(tmp_path)
