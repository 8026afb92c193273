"""Models and documents for the tests of filtering."""

import json
from pathlib import Path

import pytest

import ncelm

ANIMALS = ["cat", "dog", "bird", "fish", "horse"]
SENTENCES = [f"the {a} sees the {b} and the {c}" for a in ANIMALS for b in ANIMALS for c in ANIMALS]


def documents(count: int = 300) -> list[str]:
    """Return documents of two sentences: like the training text, in a wrong order, or of unknown words."""
    found = []
    for i in range(count):
        first, second = SENTENCES[i % len(SENTENCES)], SENTENCES[7 * i % len(SENTENCES)]
        if i % 3 == 1:
            first, second = (" ".join(reversed(text.split())) for text in (first, second))
        if i % 3 == 2:
            first = f"qwerty{i} {first} zxcvb"
        found.append(f"{first}\n{second}")
    return found


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an n-gram model and a neural model of `SENTENCES`, and an n-gram model of reversed ones."""
    folder = tmp_path_factory.mktemp("models")
    common = {"boundary": "sentence", "progress": False}
    store = ncelm.prepare(train_lines=[*SENTENCES, "<unk> <unk>"], out=folder / "store", **common)
    ncelm.train_ngram(store, folder / "ngram", order=3, progress=False)
    ncelm.train(store, folder / "neural", dim=8, epochs=1, progress=False)
    reverse = [" ".join(reversed(sentence.split())) for sentence in SENTENCES]
    other = ncelm.prepare(train_lines=[*reverse, "<unk> <unk>"], out=folder / "reversed_store", **common)
    ncelm.train_ngram(other, folder / "reversed", order=3, progress=False)
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A file of JSON lines with `documents`."""
    path = tmp_path / "corpus.jsonl"
    lines = (json.dumps({"id": i, "text": text}) for i, text in enumerate(documents()))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks also for a short text."""
    monkeypatch.setattr("ncelm.filtering.blocks.BLOCK_BYTES", 2000)
