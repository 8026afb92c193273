"""PMI: scores against the definition, files, errors."""

import math

import numpy as np
import pytest
from tests.helpers import SEA, random_lines, store_of, two_topics

from ncelm import load
from ncelm.errors import NcelmError
from ncelm.io import array_files, machine, run
from ncelm.models import pmi
from ncelm.models.base import Gap
from ncelm.models.pmi import Pmi, train_pmi


@pytest.fixture
def topics(tmp_path):
    store_of(tmp_path, two_topics())
    train_pmi(tmp_path / "store", tmp_path / "run")
    return tmp_path


def by_hand(lines, word, others):
    """Return the sum of positive PMI, by its definition."""
    sentences = [set(line.split()) for line in lines]
    total = 0.0
    for other in set(others) - {word}:
        together = sum({word, other} <= sentence for sentence in sentences)
        product = sum(word in s for s in sentences) * sum(other in s for s in sentences)
        if together:
            total += max(math.log(together * len(sentences) / product), 0.0)
    return total


@pytest.mark.parametrize("batch", [1, 7, 100_000])
def test_scores_are_those_of_the_definition(tmp_path, monkeypatch, batch):
    monkeypatch.setattr(pmi, "BATCH_SENTENCES", batch)
    lines = random_lines(3, sentences=60, words=12)
    model = train_pmi(store_of(tmp_path, lines), tmp_path / "run")
    words = [word for word in model.vocabulary.words if not word.startswith("<")]
    before, after = words[:2] + words[:1], words[2:4]
    (scores,) = model.choice_scores([Gap(before, [[word] for word in words], after)])
    assert scores.normalised == scores.unnormalised
    expected = [by_hand(lines, word, [*before, *after]) for word in words]
    assert any(expected)
    np.testing.assert_allclose(scores.normalised, expected, atol=1e-9)
    # one choice instead of many, so that the sentences of the other side are counted
    for word, value in zip(words, expected, strict=True):
        (alone,) = model.choice_scores([Gap(before, [[word]], after)])
        assert alone.normalised == pytest.approx([value])
    best = dict(model.most_likely(before, after, 3))
    assert sorted(best.values(), reverse=True) == pytest.approx(sorted(expected, reverse=True)[:3])


def test_the_word_of_the_same_topic_has_the_highest_score(topics):
    model = Pmi.load(topics / "run")
    choices = [["wave"], ["butter"], ["zebra"], ["wave", "storm"], []]
    (scores,) = model.choice_scores([Gap(["the", "captain", "zebra"], choices, ["and", "sail"])])
    sea, kitchen, unknown, two, nothing = scores.normalised
    assert sea > kitchen
    assert unknown == nothing == 0.0
    assert two > sea
    assert {word for word, _ in model.most_likely(["the", "ship"], ["and", "sail"], 3)} <= set(SEA)
    (alone,) = model.choice_scores([Gap([], [["wave"], ["oven"]], [])])
    assert alone.normalised == [0.0, 0.0]


def test_several_gaps_have_the_pmi_of_the_words_in_different_gaps(tmp_path):
    lines = random_lines(3, sentences=60, words=12)
    model = train_pmi(store_of(tmp_path, lines), tmp_path / "run")
    one, two, three, four, five = model.vocabulary.words[2:7]
    choices = [[[two], [three]], [[two, four], [three]], [["zebra"], [three]]]
    (scores,) = model.choice_scores([Gap([one], choices, [], [[five]])])

    def pmi_of(word, *others):
        return by_hand(lines, word, others)

    pair = pmi_of(two, one, five) + pmi_of(three, one, five, two)
    triple = pmi_of(two, one, five) + pmi_of(four, one, five) + pmi_of(three, one, five, two, four)
    assert scores.normalised == pytest.approx([pair, triple, pmi_of(three, one, five)])


def test_the_same_text_gives_the_same_bytes(topics):
    train_pmi(topics / "store", topics / "again")
    assert (topics / "run/model.safetensors").read_bytes() == (topics / "again/model.safetensors").read_bytes()


# -- errors ----------------------------------------------------------------------------------------------------------


def test_pmi_is_not_a_language_model(topics):
    with pytest.raises(NcelmError, match="is a model of kind pmi, which has no probabilities of words"):
        load(topics / "run")


@pytest.mark.parametrize("name", ["word_begins", "sentences", "sentence_begins", "words"])
@pytest.mark.parametrize("value", [-1, 10**9])
def test_indices_out_of_range(topics, name, value):
    path = topics / "run" / run.MODEL
    arrays, _ = array_files.map_arrays(path, pmi.ARRAYS)
    arrays = {key: np.array(array) for key, array in arrays.items()}
    arrays[name][1] = value
    path.unlink()
    array_files.write_mapped(path, arrays, {"kind": "pmi"})
    with pytest.raises(NcelmError, match="is damaged"):
        Pmi.load(topics / "run")


@pytest.mark.parametrize("name", ["word_begins", "sentence_begins"])
def test_halves_of_the_index_that_disagree(topics, name):
    """A word that no sentence seems to contain, but that is in one, would have infinite PMI."""
    path = topics / "run" / run.MODEL
    arrays, _ = array_files.map_arrays(path, pmi.ARRAYS)
    arrays = {key: np.array(array) for key, array in arrays.items()}
    used = int(np.flatnonzero(np.diff(arrays[name]))[0])
    arrays[name][used + 1] = arrays[name][used]  # the next one gets its entries
    path.unlink()
    array_files.write_mapped(path, arrays, {"kind": "pmi"})
    with pytest.raises(NcelmError, match="is damaged"):
        Pmi.load(topics / "run")


def test_a_truncated_file(topics):
    path = topics / "run/model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(NcelmError, match="is damaged"):
        Pmi.load(topics / "run")


def test_too_little_memory(topics, monkeypatch):
    monkeypatch.setattr(machine, "total_memory", lambda: 1000)
    with pytest.raises(NcelmError, match="PMI of this text"):
        train_pmi(topics / "store", topics / "other")
    assert not (topics / "other").exists()
