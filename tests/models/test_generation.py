"""Generation: filters, random draws of a known distribution, beam search, Gibbs sampling."""

from itertools import pairwise, product

import numpy as np
import pytest
from scipy import stats

from ncelm.errors import ArgumentError, NcelmError
from ncelm.kernels.threads import Team
from ncelm.models import generation
from ncelm.models.generation import Sampling, WordIds

END, UNKNOWN, SIZE = 0, 1, 6
IDS = WordIds(SIZE, END, SIZE, (UNKNOWN,))
NOTHING = np.zeros(0, np.int64)


class Chain:
    """A model in which a word depends on the word before it; the end of the sentence has the probability 0.2."""

    sides = "before"

    def __init__(self, seed=0):
        random = np.random.default_rng(seed)
        self.follow = random.dirichlet(np.ones(SIZE), size=SIZE + 1)  # P(w|v); the last row is at the beginning
        self.follow[:, END] = 0.0
        self.follow *= 0.8 / self.follow.sum(axis=1, keepdims=True)
        self.follow[:, END] = 0.2

    def distribution(self, before, after, pad_id):
        return np.log(self.follow[before[-1] if len(before) else pad_id])


class Pairs:
    """A model of both sides: two neighbouring words have the weights of a matrix."""

    sides = "both"

    def __init__(self):
        self.weights = np.random.default_rng(1).uniform(0.1, 2.0, size=(SIZE + 1, SIZE + 1))

    def distribution(self, before, after, pad_id):
        left, right = before[-1] if len(before) else pad_id, after[0] if len(after) else pad_id
        weights = self.weights[left, :SIZE] * self.weights[:SIZE, right]
        return np.log(weights / weights.sum())


def sampled(model, prompts, sampling=Sampling(), max_words=50, seed=0):  # noqa: B008
    with Team(1) as team:
        return list(generation.sample(model, prompts, IDS, sampling, max_words, seed, team))


# -- filters ---------------------------------------------------------------------------------------------------------

LOGS = np.log([0.4, 0.05, 0.3, 0.05, 0.15, 0.05])


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"top_k": 2}, [0, 2]),
        ({"top_k": 4}, [0, 1, 2, 4]),  # of equal words the first
        ({"top_k": 100}, [0, 1, 2, 3, 4, 5]),
        ({"top_p": 0.4}, [0]),
        ({"top_p": 0.41}, [0, 2]),
        ({"top_p": 0.71}, [0, 2, 4]),
        ({"min_p": 0.5}, [0, 2]),
        ({"min_p": 1.0}, [0]),
        ({"temperature": 0.0}, [0]),
        ({"repetition_penalty": 100.0, "temperature": 0.0}, [4]),  # 0 and 2 are in the sentence
        ({"top_k": 3, "min_p": 0.5}, [0, 2]),
    ],
    ids=str,
)
def test_filters(options, kept):
    weights = Sampling(**options).weights(LOGS, np.array([0, 2, 2]))
    assert np.flatnonzero(weights).tolist() == kept


def test_temperature():
    weights = Sampling(temperature=0.5).weights(LOGS, NOTHING)
    np.testing.assert_allclose(weights / weights.sum(), np.exp(2 * LOGS) / np.exp(2 * LOGS).sum())


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"min_p": -0.1}, {"top_k": -1}, {"repetition_penalty": 0.5}],
    ids=str,
)
def test_invalid_options(options):
    with pytest.raises(ArgumentError, match=f"`{next(iter(options))}`"):
        Sampling(**options)


# -- random sentences ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.3}, {"top_k": 3, "temperature": 2}]
)
def test_words_have_their_probabilities(options):
    """Chi-square test of the first word of 4,000 sentences, and no word outside of the set."""
    sampling, model = Sampling(**options), Chain()
    words = sampled(model, [np.array([3])] * 4000, sampling, max_words=1)
    logs = model.distribution(np.array([3]), NOTHING, SIZE).copy()
    logs[UNKNOWN] = -np.inf
    weights = sampling.weights(logs, np.array([3]))
    counts = np.bincount([word.id for word in words], minlength=SIZE)
    assert counts[weights == 0].sum() == 0
    expected = 4000 * weights[weights > 0] / weights.sum()
    assert stats.chisquare(counts[weights > 0], expected).pvalue > 1e-3
    for word in words[:20]:
        assert word.log_probability == pytest.approx(np.log(model.follow[3, word.id]))


def test_sentences_end():
    words = sampled(Chain(), [NOTHING] * 500)
    lengths = np.bincount([word.sentence for word in words])
    assert 4.0 < lengths.mean() < 6.0  # 5 are expected
    assert sum(word.id == END for word in words) == 500
    assert UNKNOWN not in {word.id for word in words}
    assert max(np.bincount([word.sentence for word in sampled(Chain(), [NOTHING] * 50, max_words=2)])) == 2


def test_a_sentence_does_not_depend_on_the_others(monkeypatch):
    prompts = [np.array([i % 4 + 2]) for i in range(20)]
    words = sampled(Chain(), prompts)
    alone = sampled(Chain(), prompts[:3])
    assert sorted(word for word in words if word.sentence < 3) == sorted(alone)
    monkeypatch.setattr(generation, "BATCH_NUMBERS", 7 * SIZE)  # batches of seven sentences
    assert sorted(sampled(Chain(), prompts)) == sorted(words)
    assert sorted(sampled(Chain(), prompts, seed=1)) != sorted(words)


def test_models_that_read_backwards_are_refused():
    with pytest.raises(NcelmError, match="cannot continue a text"):
        sampled(Pairs(), [NOTHING])


# -- beam search -----------------------------------------------------------------------------------------------------


def test_a_wide_beam_finds_the_most_probable_sentences():
    model, words = Chain(), [2, 3, 4, 5]
    with Team(1) as team:
        found = generation.beam_search(model, np.array([2]), IDS, 200, 4, team)
    every = []
    for length in range(4):
        for ids in product(words, repeat=length):
            path = [2, *ids, END]
            every.append((sum(np.log(model.follow[a, b]) for a, b in pairwise(path)), path[1:-1]))
    every.sort(key=lambda each: -each[0])
    finished = [each for each in found if each.finished]
    for (total, ids), each in zip(every[:10], finished[:10], strict=True):
        assert each.log_probability == pytest.approx(total)
        assert each.ids.tolist() == [2, *ids]
    assert [each.log_probability for each in found] == sorted((each.log_probability for each in found), reverse=True)


def test_a_beam_of_one_is_greedy():
    model = Chain()
    model.follow[:, END] = 1e-6
    with Team(1) as team:
        (found,) = generation.beam_search(model, NOTHING, IDS, 1, 5, team)
    ids = []
    for _ in range(5):
        logs = model.distribution(np.array(ids, np.int64), NOTHING, SIZE).copy()
        logs[UNKNOWN] = -np.inf
        ids.append(int(np.argmax(logs)))
    assert found.ids.tolist() == ids
    assert not found.finished


# -- gaps ------------------------------------------------------------------------------------------------------------


def test_gibbs_sampling_recovers_the_joint_distribution():
    """Two neighbouring gaps: chi-square test of the pairs of words."""
    model, words = Pairs(), [2, 3, 4, 5]
    sentence, counts = np.array([2, 0, 0, 3]), np.zeros((SIZE, SIZE))
    for i in range(3000):
        random = generation.random_stream(0, i)
        filled = generation.fill_gaps(model, sentence, [1, 2], IDS, Sampling(), 10, random)
        counts[filled[1], filled[2]] += 1
    weights = model.weights
    joint = np.array([[weights[2, a] * weights[a, b] * weights[b, 3] for b in words] for a in words])
    expected = 3000 * joint / joint.sum()
    assert counts.sum() == counts[2:, 2:].sum() == 3000
    assert stats.chisquare(counts[2:, 2:].ravel(), expected.ravel()).pvalue > 1e-3


def test_gibbs_sampling_needs_both_sides():
    with pytest.raises(NcelmError, match="sees both sides"):
        generation.fill_gaps(Chain(), np.array([0]), [0], IDS, Sampling(), 1, generation.random_stream(0, 0))
