"""Mixtures: weights by EM, interpolated probabilities."""

import numpy as np
import pytest

from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.models.mixture import Mixture, learn_weights


class Constant:
    """A word model with a fixed distribution, whatever the context."""

    def __init__(self, probabilities, sides="before", log_z=0.0):
        self.probabilities, self.sides, self.log_z = np.asarray(probabilities), sides, log_z

    def score_positions(self, corpus, first, last, team, mode="exact"):
        log_z = np.full(last - first, self.log_z)
        return np.log(self.probabilities)[corpus.ids[first:last]] + log_z, log_z

    def distribution(self, before, after, pad_id):
        return np.log(self.probabilities)


@pytest.mark.parametrize("weights", [[0.3, 0.7], [1.0, 0.0], [0.5, 0.5]])
def test_probabilities_are_the_weighted_mean(weights):
    a, b = np.array([0.5, 0.25, 0.25]), np.array([0.1, 0.1, 0.8])
    mixture = Mixture((Constant(a), Constant(b, log_z=2.5)), np.array(weights))
    expected = weights[0] * a + weights[1] * b
    np.testing.assert_allclose(np.exp(mixture.distribution(np.zeros(0), np.zeros(0), 3)), expected)
    ids = np.array([0, 1, 2, 2, 1], np.uint32)
    with Team(1) as team:
        scores, log_z = mixture.score_positions(records.Corpus(ids, 0, True, 1, 3), 1, 5, team)
    np.testing.assert_allclose(np.exp(scores), expected[ids[1:]])
    assert not log_z.any()


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        (["before", "before"], "before"),
        (["after", "after"], "after"),
        (["before", "after"], "both"),
        (["before", "both"], "both"),
    ],
)
def test_sides_are_those_of_all_components(sides, expected):
    assert Mixture(tuple(Constant([1.0], side) for side in sides), np.array([0.5, 0.5])).sides == expected


def test_em_finds_the_weights_of_a_known_mixture():
    """Words drawn from 0.7 A + 0.3 B give weights near 0.7 and 0.3."""
    rng = np.random.default_rng(0)
    a, b = rng.dirichlet(np.ones(50) * 0.3), rng.dirichlet(np.ones(50) * 0.3)
    words = rng.choice(50, size=200_000, p=0.7 * a + 0.3 * b)
    weights = learn_weights(np.log(np.stack([a[words], b[words]]) + 1e-300))
    np.testing.assert_allclose(weights, [0.7, 0.3], atol=0.01)


def test_em_maximizes_the_likelihood():
    rng = np.random.default_rng(1)
    logs = np.log(rng.dirichlet(np.ones(3), size=2000).T)  # (3, n)
    weights = learn_weights(logs)

    def likelihood(w):
        return np.logaddexp.reduce(logs + np.log(w)[:, None], axis=0).mean()

    for direction in np.eye(3):
        moved = 0.99 * weights + 0.01 * direction
        assert likelihood(moved) < likelihood(weights)


def test_a_useless_component_has_no_weight():
    logs = np.stack([np.full(1000, -1.0), np.full(1000, -50.0)])
    np.testing.assert_allclose(learn_weights(logs), [1.0, 0.0], atol=1e-6)
