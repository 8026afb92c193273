"""A model, documents, and their expected scores."""

from pathlib import Path
from typing import NamedTuple

import pytest

import ncelm
from ncelm.models.ngram.estimate import train_ngram

GOOD = "w1 w2 w3 w4\n\nw5 w6 w7 w8 w9\n"
BAD = "w1 w1 w9 w4 w4 w2 w2"
UNKNOWN = "w1 w2 zebra zebra"
DOCUMENTS = [GOOD, BAD, "", " \n ", UNKNOWN, "w3 w4 w5"]


class Expected(NamedTuple):
    """The path of a model, and perplexities of the documents; None without words."""

    model: Path
    perplexities: list[float | None]


@pytest.fixture(scope="session")
def expected(cycle_store, tmp_path_factory) -> Expected:
    """An n-gram model of a cycle of 20 words, and what `ncelm.load` says of the documents."""
    run = tmp_path_factory.mktemp("integrations") / "run"
    train_ngram(cycle_store, run, order=3)
    lm = ncelm.load(run)
    lines = [[line for line in text.split("\n") if line.strip()] for text in DOCUMENTS]
    return Expected(run, [lm.perplexity(each) if each else None for each in lines])
