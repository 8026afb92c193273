"""PMI: counts and scores against a plain count by hand, what fits into a sentence, and mistakes."""

import json
import math

import numpy as np
import pytest
from tests.helpers import KITCHEN, SEA, random_lines, refused, store_of, two_topics

from ncelm import load
from ncelm.cli.main import main
from ncelm.errors import NcelmError
from ncelm.io import array_files, machine
from ncelm.language_model import load_scorer
from ncelm.models import pmi
from ncelm.models.base import Blank
from ncelm.models.pmi import Pmi, train_pmi


@pytest.fixture
def topics(tmp_path):
    store_of(tmp_path, two_topics())
    train_pmi(tmp_path / "store", tmp_path / "run")
    return tmp_path


def by_hand(lines, word, others):
    """The sum of positive PMI, as its definition says."""
    sentences = [set(line.split()) for line in lines]
    total = 0.0
    for other in set(others) - {word}:
        together = sum({word, other} <= sentence for sentence in sentences)
        apart = sum(word in s for s in sentences) * sum(other in s for s in sentences)
        if together:
            total += max(math.log(together * len(sentences) / apart), 0.0)
    return total


@pytest.mark.parametrize("at_once", [1, 7, 100_000])
def test_scores_are_those_of_the_definition(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(pmi, "AT_ONCE", at_once)
    lines = random_lines(3, sentences=60, words=12)
    model = train_pmi(store_of(tmp_path, lines), tmp_path / "run")
    words = [word for word in model.vocabulary.words if not word.startswith("<")]
    before, after = words[:2] + words[:1], words[2:4]
    ((scores, same),) = model.choice_scores([Blank(before, [[word] for word in words], after)])
    assert scores == same
    expected = [by_hand(lines, word, [*before, *after]) for word in words]
    assert any(expected)
    np.testing.assert_allclose(scores, expected, atol=1e-9)
    # few choices and many, so that either side is asked for its sentences
    for word, value in zip(words, expected, strict=True):
        ((alone, _),) = model.choice_scores([Blank(before, [[word]], after)])
        assert alone == pytest.approx([value])
    best = dict(model.likeliest(before, after, 3))
    assert sorted(best.values(), reverse=True) == pytest.approx(sorted(expected, reverse=True)[:3])


def test_the_choice_that_fits(topics):
    model = load_scorer(topics / "run")
    assert isinstance(model, Pmi)
    choices = [["wave"], ["butter"], ["zebra"], ["wave", "storm"], []]
    ((scores, _),) = model.choice_scores([Blank(["the", "captain", "zebra"], choices, ["and", "sail"])])
    sea, kitchen, unknown, two, nothing = scores
    assert sea > kitchen
    assert unknown == nothing == 0.0
    assert two > sea
    assert {word for word, _ in model.likeliest(["the", "ship"], ["and", "sail"], 3)} <= set(SEA)
    ((alone, _),) = model.choice_scores([Blank([], [["wave"], ["oven"]], [])])
    assert alone == [0.0, 0.0]


def test_the_verb_and_an_ensemble_with_it(topics, capsys):
    out = str(topics / "again")
    assert main(["pmi", "train", str(topics / "store"), "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == 400
    assert (topics / "run/model.safetensors").read_bytes() == (topics / "again/model.safetensors").read_bytes()
    assert main(["complete", out, "the captain and ___", "--choices", f"{SEA[1]},{KITCHEN[1]}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["words"][0]["word"] == SEA[1]
    refused(capsys, ["neighbors", out, "ship"], "a PMI model has no word vectors")
    refused(capsys, ["evaluate", out], "is a PMI model, which gives words no probabilities")
    with pytest.raises(NcelmError, match="gives words no probabilities"):
        load(out)


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["word_begins", "sentences", "sentence_begins", "words"])
@pytest.mark.parametrize("value", [-1, 10**9])
def test_places_outside_are_refused(topics, name, value):
    from ncelm.io import run

    path = topics / "run" / run.MODEL
    arrays, _ = array_files.map_arrays(path, pmi.ARRAYS)
    arrays = {key: np.array(array) for key, array in arrays.items()}
    arrays[name][1] = value
    path.unlink()
    array_files.write_mapped(path, arrays, {"kind": "pmi"})
    with pytest.raises(NcelmError, match="is damaged"):
        load_scorer(topics / "run")


def test_a_truncated_file(topics):
    path = topics / "run/model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(NcelmError, match="is damaged"):
        load_scorer(topics / "run")


def test_too_little_memory_is_said_before_the_start(topics, monkeypatch):
    monkeypatch.setattr(machine, "total_memory", lambda: 1000)
    with pytest.raises(NcelmError, match="PMI of this text would take about"):
        train_pmi(topics / "store", topics / "other")
    assert not (topics / "other").exists()
