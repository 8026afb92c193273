"""Validation on a sample by several workers."""

import numpy as np
import pytest

from ncelm.kernels.threads import Team
from ncelm.models.evaluate import EvaluationSums, evaluate_split
from ncelm.models.log_bilinear import LogBilinear, ModelConfig
from ncelm.noise import Noise
from ncelm.training.validation import evaluate_sample


@pytest.fixture(scope="module")
def model(small_store):
    """A model with random parameters."""
    unigram = Noise.from_counts(small_store.vocabulary.counts).probabilities
    return LogBilinear.initialise(ModelConfig(context=3, dim=10), unigram, 5, 0.5)


@pytest.mark.parametrize("words", [1, 77, 1000, None])
def test_several_workers_have_the_result_of_one(small_store, model, words):
    words = words or small_store.split("valid").tokens
    with Team(1) as team:
        one = evaluate_sample(model, small_store, "valid", words, team)
        for size in (2, 3):
            shares = [evaluate_sample(model, small_store, "valid", words, team, rank, size) for rank in range(size)]
            together = EvaluationSums.from_array(sum(share.as_array() for share in shares))
            assert together.tokens == one.tokens == words
            assert max(share.tokens for share in shares) - min(share.tokens for share in shares) <= 1
            np.testing.assert_allclose(together.as_array(), one.as_array(), rtol=1e-12)
            assert together.result().perplexity == pytest.approx(one.result().perplexity, rel=1e-12)


def test_a_sample_of_all_words_is_the_split(small_store, model):
    with Team(1) as team:
        sample = evaluate_sample(model, small_store, "valid", small_store.split("valid").tokens, team)
        assert sample.result().perplexity == evaluate_split(model, small_store, "valid", team).perplexity
