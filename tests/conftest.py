"""Fixtures that several test files share."""

import signal
from pathlib import Path

import numpy as np
import pytest

from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of corpora next to the project; tests that need it are skipped where it does not exist."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the corpora in shared/data, next to the project's folder")
    return folder


@pytest.fixture(scope="session")
def small_text() -> Path:
    """A real text: English prose, 211 KB, 49,000 tokens; tests/fixtures/README.md states its origin."""
    return Path(__file__).parent / "fixtures" / "wizard_of_oz.txt"


@pytest.fixture(scope="session")
def small_store(small_text: Path, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """A token store of `small_text`: lower case, V = 1,530, 41,015 training tokens. Tests must not change it."""
    return prepare(
        [small_text],
        out=tmp_path_factory.mktemp("small") / "store",
        lowercase=True,
        min_count=2,
        punkt="train",
        valid_sentences=200,
        test_sentences=200,
        workers=1,
    )


@pytest.fixture(scope="session")
def cycle_store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """A store of a synthetic text: with probability 0.81 a word is followed by the next word of a cycle of 20."""
    folder = tmp_path_factory.mktemp("cycle")
    random = np.random.default_rng(0)
    for name, sentences in (("train", 400), ("valid", 50), ("test", 50)):
        lines = []
        for _ in range(sentences):
            word, words = random.integers(20), []
            for _ in range(random.integers(3, 12)):
                words.append(f"w{word}")
                word = (word + 1) % 20 if random.random() < 0.8 else random.integers(20)
            lines.append(" ".join(words))
        (folder / name).write_text("\n".join(lines))
    files = {name: folder / name for name in ("train", "valid", "test")}
    return prepare(out=folder / "store", boundary="sentence", **files)


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_not_ignored() -> None:
    """Handle SIGINT also where the shell has started pytest with SIGINT ignored, as it does for background jobs."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
