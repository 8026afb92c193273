"""Consistency: losses and optimizers of the compiled engine recover a known distribution from a text."""

import numpy as np
import pytest
from tests.helpers import store_of
from tests.kernels.configurations import configured

from ncelm.kernels.threads import Team
from ncelm.models.log_bilinear import LogBilinear
from ncelm.noise import Noise
from ncelm.training.engine import create
from ncelm.training.setup import noise_distribution

WORDS, LENGTH, EPOCHS = 6, 60_000, 4
SHIFT = 1.5  # of all initial scores: log Z(h) starts there, not at 0


@pytest.fixture(scope="module")
def chain():
    """P(next word | word), (WORDS, WORDS)."""
    return np.random.default_rng(1).dirichlet(np.full(WORDS, 0.7), size=WORDS)


@pytest.fixture(scope="module")
def store(chain, tmp_path_factory):
    """A text of this Markov chain, which the model can represent."""
    limits, words = np.cumsum(chain, axis=1), [0]
    for u in np.random.default_rng(2).random(LENGTH - 1):
        words.append(min(int(np.searchsorted(limits[words[-1]], u)), WORDS - 1))
    lines = [" ".join(f"w{word}" for word in words[i : i + 1000]) for i in range(0, LENGTH, 1000)]
    return store_of(tmp_path_factory.mktemp("chain"), lines, boundary="stream", workers=1)


def trained(store, config):
    """Return s(w, h) of a trained model for the words of the chain, (WORDS, WORDS)."""
    unigram = Noise.from_counts(store.vocabulary.counts).probabilities
    model = LogBilinear.initialise(config.model, unigram, 0, 0.1)
    model.biases[:] += np.float32(SHIFT)
    arrays = model.arrays()
    state = {
        statistic: {name: np.zeros_like(a) for name, a in arrays.items()} for statistic in config.optimizer.statistics
    }
    with Team(2) as team:
        engine = create(model, state, noise_distribution(store, config), store, config, team)
        steps = EPOCHS * engine.steps_per_epoch
        rates = config.learning_rate * (1.0 - np.arange(steps) / steps)
        for epoch in range(EPOCHS):
            for first in range(0, engine.steps_per_epoch, engine.planned):
                last = min(first + engine.planned, engine.steps_per_epoch)
                part = rates[epoch * engine.steps_per_epoch :][first:last]
                assert np.isfinite(engine.run(epoch, first, part, part)).all()
    ids = np.array([store.vocabulary.id(f"w{word}") for word in range(WORDS)])
    return model.scores(ids[:, None])[:, ids].astype(np.float64)


# A kernel, its options, and whether it determines Z(h).
CASES = {
    "nce, adam": ({"learning_rate": 0.01}, True),
    "ranking": ({}, False),
    "shared ranking, tied": ({"learning_rate": 0.006, "noise_samples": 50}, False),
    "penalized ranking, tied": ({}, True),
    "shared penalty, diagonal": ({"learning_rate": 0.01, "noise_samples": 50}, True),
}


@pytest.mark.parametrize("kernel", CASES)
def test_a_known_distribution_is_recovered(store, chain, kernel):
    """P(w|h) is found. Z(h) is 1 with NCE and with the penalty; ranking alone does not determine it."""
    options, self_normalized = CASES[kernel]
    options = {"context": 1, "dim": 12, "batch_size": 200, "noise_samples": 20} | options
    scores = trained(store, configured(kernel, **options))
    log_z = np.log(np.exp(scores).sum(axis=1))
    log_p = scores - log_z[:, None]
    divergence = np.sum(chain * (np.log(np.maximum(chain, 1e-12)) - log_p), axis=1)
    assert divergence.max() < 0.01
    if self_normalized:
        assert np.abs(log_z).max() < 0.05
    else:
        assert log_z.min() > 1.0
