"""Validation during training: a sample of the validation text that is evaluated in a small part of the time.

An exact perplexity sums over the vocabulary for every word, so that a word of the validation text takes as long as ten
to a hundred words of training. The sample is a function of the configuration and of the text. It does not depend on
measured times: one seed gives the same model.
"""

from ncelm.kernels.threads import Team
from ncelm.models.base import WordModel, corpus_view
from ncelm.models.evaluate import BLOCK, EvaluationSums, sample_parts, share_of
from ncelm.text.store import TokenStore
from ncelm.training.config import MaximumLikelihood, TrainConfig

SHARE = 0.07  # of the training time, as estimated; estimates are high for scoring, which is faster with AVX-512
MIN_WORDS = 1000  # of a sample
# Relative error of the ratio of two perplexities on a sample of one word: three standard errors, if log P of a word
# changes by 0.5 from one epoch to the next
SAMPLING_ERROR = 1.5

# Nanoseconds on one thread. Only their ratios count. Training: a fit to 75 configurations (docs/experiments.md).
SCORE_PER_PRODUCT, SCORE_PER_WORD = 0.016, 0.3  # exact scoring with AVX2, per multiplication and word of the vocabulary
TRAIN_PER_DIMENSION = 12.0  # of training, per dimension and word of text, and in addition:
PER_POSITION, PER_MATRIX_ROW = 0.45, 0.017  # per context word; per row of its matrix, if it is full
PER_SAMPLE, PER_SHARED_SAMPLE, PER_SHARED_UPDATE = 0.09, 0.025, 2.6  # per noise sample; per update of a shared one
PYTORCH_FACTOR, PYTORCH_SCORE_FACTOR = 3.0, 5.0  # training and scoring with PyTorch take longer by these factors


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
    cost = vocabulary_size * (SCORE_PER_PRODUCT * config.model.dim + SCORE_PER_WORD)
    return cost * (PYTORCH_SCORE_FACTOR if config.backend == "torch" else 1.0)


def train_cost(config: TrainConfig, vocabulary_size: int) -> float:
    """Return the estimated time of training on one word, in nanoseconds on one thread."""
    model, loss = config.model, config.loss
    samples = getattr(loss, "samples", 0)
    if isinstance(loss, MaximumLikelihood):
        return 3 * score_cost(config, vocabulary_size)
    per_dimension = TRAIN_PER_DIMENSION + PER_POSITION * model.positions
    if getattr(loss, "shared_noise", False):  # scores are matrix products
        per_dimension += samples * (PER_SHARED_SAMPLE + PER_SHARED_UPDATE / config.batch_size)
    else:
        per_dimension += samples * PER_SAMPLE
    if model.matrices == "full":
        per_dimension += PER_MATRIX_ROW * model.dim * model.positions
    cost = model.dim * per_dimension
    return cost * (PYTORCH_FACTOR if config.backend == "torch" else 1.0)


def evaluate_sample(
    model: WordModel, store: TokenStore, name: str, words: int, team: Team, rank: int = 0, size: int = 1
) -> EvaluationSums:
    """Return the sums of a model over a sample of a split; over all of it if `words` is its size.

    Each of several workers, `rank` of `size`, evaluates an equal share of the sample.
    """
    split, sums = store.split(name), EvaluationSums()
    corpus = corpus_view(split, store)
    for first, last in share_of(sample_parts(words, split.tokens), rank, size):
        sums.add(*model.score_positions(corpus, first, last, team))
    return sums
