"""Runs of all kinds, and a parser that checks HTML."""

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

import ncelm

VOID = {"meta"}
HOSTILE = ("<script>alert(1)</script>", "<img/src=x/onerror=alert(1)>", '"onmouseover="alert(1)', "a&amp;b", "</table>")


@pytest.fixture(scope="session")
def runs(small_store, tmp_path_factory) -> dict[str, Path]:
    """Small runs of each kind on one store. Tests must not change them."""
    folder = tmp_path_factory.mktemp("runs")
    quiet, config = {"progress": False}, ncelm.TrainConfig()
    ncelm.train(small_store, folder / "neural", config, epochs=3, dim=8, watch=["test"], **quiet)
    ncelm.train(small_store, folder / "other", config, epochs=2, dim=6, loss="ml", **quiet)
    ncelm.train_ngram(small_store, folder / "ngram", order=3, min_counts=(1, 1, 2), **quiet)
    ncelm.train_lsa(small_store, folder / "lsa", dim=5, **quiet)
    ncelm.train_pmi(small_store, folder / "pmi")
    ncelm.mix([folder / "ngram", folder / "neural"], folder / "mixture", **quiet)
    ncelm.blend([folder / "neural", folder / "lsa"], folder / "ensemble", **quiet)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory) -> Path:
    """A run whose words, folder and store have names that must be escaped."""
    folder = tmp_path_factory.mktemp("hostile")
    lines = [" ".join(("the", HOSTILE[i % len(HOSTILE)], "is", HOSTILE[(i * 3) % len(HOSTILE)])) for i in range(300)]
    (folder / "text").write_text("\n".join(lines))
    text = folder / "text"
    store = ncelm.prepare(train=text, valid=text, out=folder / "<i>store", boundary="sentence", progress=False)
    ncelm.train(store, folder / "<b>&run", ncelm.TrainConfig(), epochs=2, dim=4, progress=False)
    return folder / "<b>&run"


class Page(HTMLParser):
    """A page: its elements, attributes and text. Elements must be balanced."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.open, self.words = Counter(), [], [], []
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


@pytest.fixture(scope="session")
def parse():
    return Page
