"""Validation during training: a sample of the validation text that is evaluated in a small part of the time.

An exact perplexity sums over the vocabulary for every word, so that a word of the validation text takes as long as ten
to a hundred words of training. The sample is a function of the configuration and of the text. It does not depend on
measured times: one seed gives the same model.
"""

import numpy as np

from ncelm.kernels.threads import Team
from ncelm.models.base import WordModel, corpus_view
from ncelm.models.evaluate import BLOCK, Evaluation, EvaluationSums, sample_parts
from ncelm.text.store import TokenStore
from ncelm.training.config import MaximumLikelihood, TrainConfig

SHARE = 0.05  # of the training time, as estimated; the estimates are correct up to a factor of two
MIN_WORDS = 1000  # of a sample

# Nanoseconds on one thread of a processor with AVX2. Only their ratios count.
SCORE_PER_PRODUCT, SCORE_PER_WORD = 0.04, 0.6  # of exact scoring, per multiplication and per word of the vocabulary
TRAIN_PER_PRODUCT, TRAIN_PER_WORD = 0.15, 1000.0  # of training, per multiplication and per word of text
PYTORCH_FACTOR = 3.0  # training with PyTorch takes longer by this factor


def sample_size(config: TrainConfig, vocabulary_size: int, train_words: int, valid_words: int) -> int:
    """Return the number of words of a validation text that are evaluated after an epoch of `train_words` words."""
    if config.validation.words:
        return min(config.validation.words, valid_words)
    trained = train_words * config.validation.interval * train_cost(config, vocabulary_size)
    affordable = int(SHARE * trained / score_cost(config, vocabulary_size))
    words = max(affordable, MIN_WORDS)
    return words - words % BLOCK if words < 0.8 * valid_words else valid_words


def score_cost(config: TrainConfig, vocabulary_size: int) -> float:
    """Return the estimated time of one exact log-probability, in nanoseconds on one thread."""
    return vocabulary_size * (SCORE_PER_PRODUCT * config.model.dim + SCORE_PER_WORD)


def train_cost(config: TrainConfig, vocabulary_size: int) -> float:
    """Return the estimated time of training on one word, in nanoseconds on one thread."""
    model, loss = config.model, config.loss
    samples = getattr(loss, "samples", 0)
    if isinstance(loss, MaximumLikelihood):
        return 3 * score_cost(config, vocabulary_size)
    # shared noise: scores are matrix products. Forward, and two products backward
    scored = samples if getattr(loss, "shared_noise", False) else 4 * samples
    context = model.positions * (model.dim if model.matrices == "full" else 1)
    cost = TRAIN_PER_WORD + TRAIN_PER_PRODUCT * model.dim * (scored + context + 2 * model.positions)
    return cost * (PYTORCH_FACTOR if config.backend == "torch" else 1.0)


def evaluate_sample(model: WordModel, store: TokenStore, name: str, words: int, team: Team) -> Evaluation:
    """Return the perplexity of a model on a sample of a split; on all of it if `words` is its size."""
    split = store.split(name)
    corpus, sums, sentences, unknown = corpus_view(split, store), EvaluationSums(), 0, 0
    for first, last in sample_parts(words, split.tokens):
        sums.add(*model.score_positions(corpus, first, last, team))
        ids = np.asarray(corpus.ids[first:last])
        sentences += int(np.count_nonzero(ids == store.vocabulary.end_id))
        unknown += int(np.count_nonzero(ids == store.vocabulary.unknown_id))
    return sums.result(sentences, unknown)
