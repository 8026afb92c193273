"""Ensembles: weighted sums of scores, weights learned from answers."""

import numpy as np
import pytest

from ncelm.errors import NcelmError
from ncelm.models.base import ChoiceScores, Gap
from ncelm.models.ensemble import Ensemble, cross_validated_accuracy, learn_weights
from ncelm.text.settings import TextSettings
from ncelm.text.vocabulary import Vocabulary

WORDS = ["<unk>", "</s>", "a", "bb", "ccc", "dddd"]
VOCABULARY = Vocabulary(WORDS, np.zeros(len(WORDS), np.int64))


class Length:
    """A scorer that prefers long words, and, in unnormalised scores, short ones."""

    def __init__(self, factor=1.0, log_unknown_types=None):
        self.factor = factor
        self.log_unknown_types = log_unknown_types

    def choice_scores(self, gaps):
        for gap in gaps:
            lengths = [self.factor * sum(map(len, choice)) for choice in gap.choices]
            yield ChoiceScores(lengths, [-length for length in lengths])

    def most_likely(self, before, after, n=10):
        return [(word, len(word)) for word in sorted(WORDS[2:], key=len, reverse=True)[:n]]


def test_scores_are_weighted_sums_of_centered_scores():
    weights = np.array([[2.0, 0.5], [0.0, 0.25]])
    model = Ensemble((Length(), Length(10.0)), weights, VOCABULARY, TextSettings())
    (scores,) = model.choice_scores([Gap([], [["a"], ["ccc"]], [])])
    # normalised: lengths 1 and 3, centered -1 and 1; weights 2 - 0.5 for the first and -10 * 0.25 for the second
    assert scores.normalised == pytest.approx([-(2 - 0.5 - 2.5), 2 - 0.5 - 2.5])
    assert scores.unnormalised == scores.normalised


def test_unknown_words():
    weights = np.array([[2.0, 0.5], [0.0, 0.25]])
    for logs, expected in (((3.0, 4.0), 2.5 * 3.0 + 0.25 * 4.0), ((3.0, None), None)):
        components = tuple(Length(log_unknown_types=value) for value in logs)
        assert Ensemble(components, weights, VOCABULARY, TextSettings()).log_unknown_types == expected


def test_most_likely_words():
    model = Ensemble((Length(),), np.array([[1.0, 0.0]]), VOCABULARY, TextSettings())
    assert [word for word, _ in model.most_likely([], [], 2)] == ["dddd", "ccc"]


def test_there_are_no_vectors():
    model = Ensemble((Length(),), np.array([[1.0, 0.0]]), VOCABULARY, TextSettings())
    for query in (model.vectors, lambda: model.neighbors("a")):
        with pytest.raises(NcelmError, match="an ensemble has no word vectors"):
            query()


def test_weights_that_generated_the_answers_are_recovered():
    """Answers drawn from a softmax with known weights."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(20_000, 5, 3)) * [1.0, 3.0, 0.5]
    true = np.array([0.8, 0.2, 2.0])
    answers = (scores @ true + rng.gumbel(size=(20_000, 5))).argmax(axis=1)
    np.testing.assert_allclose(learn_weights(scores, answers), true, atol=0.06)
    opposite = scores * [1.0, -1.0, 1.0]  # a weight is never negative
    np.testing.assert_array_equal(learn_weights(opposite, answers) > 0.0, [True, False, True])


def test_cross_validated_accuracy_is_that_of_held_out_answers():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2000, 5, 2))
    answers = (scores @ np.array([1.0, 2.0])).argmax(axis=1)
    assert cross_validated_accuracy(scores, answers) > 95.0
    assert cross_validated_accuracy(scores, rng.integers(5, size=2000)) == pytest.approx(20.0, abs=4.0)
