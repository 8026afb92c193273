"""How `fit` divides the available time. All functions are pure; times are in seconds.

The costs are measured on one processor with AVX2, and rounded up. They decide only which part of a large text is used
when the time is short.
"""

import math
from dataclasses import dataclass

PREPARE_SHARE = 0.3  # of the time, at most, for preparing the text
NGRAM_SHARE = 0.15  # the same for the n-gram model
EVALUATION_SHARE = 0.1  # the same for the weights of the mixture and the evaluation
LEAST_TRAINING_SHARE = 0.2  # of the time, at least, for training, even if the rest took longer than planned
NGRAM_SECONDS_PER_WORD = 0.9e-6  # of estimation, for order 5
NGRAM_BYTES_PER_WORD = 400  # of memory: twice what estimation takes, because other processes need some, too
SECONDS_PER_COST = 1.3e-9  # of exact scoring with one thread, per unit of `training.validation.score_cost`
REPORT_WORDS, REPORT_SECONDS = 8_000, 0.7  # of a report: words that are scored, and everything else
LEAST_WORDS = 10_000  # that are scored, of a sample: weights and perplexities of fewer words are unreliable


@dataclass(frozen=True)
class HeldOut:
    """Numbers of words of the validation and the test text."""

    valid: int
    test: int  # 0 without such a text


def prepare_seconds(total: float | None) -> float | None:
    """Return the time for preparing the text; None without a limit."""
    return None if total is None else PREPARE_SHARE * total


def ngram_words(total: float | None, words: int, memory: int | None = None) -> int:
    """Return the number of words of the training text that the n-gram model is estimated from.

    `memory` is that of the machine, in bytes.

    >>> ngram_words(60, 1_000_000), ngram_words(60, 50_000_000), ngram_words(None, 50_000_000)
    (1000000, 10000000, 50000000)
    >>> ngram_words(None, 50_000_000, 4_000_000_000)
    10000000
    """
    if memory is not None:
        words = min(words, round(memory / NGRAM_BYTES_PER_WORD))
    return words if total is None else min(words, round(NGRAM_SHARE * total / NGRAM_SECONDS_PER_WORD))


def training_seconds(total: float, used: float, word_seconds: float, held_out: HeldOut) -> float:
    """Return the time for training, if `used` is over and exact scoring takes `word_seconds` for a word."""
    evaluation = min((held_out.valid + held_out.test) * word_seconds, EVALUATION_SHARE * total)
    left = total - used - evaluation - report_seconds(word_seconds)
    return max(left, LEAST_TRAINING_SHARE * total)


def report_seconds(word_seconds: float) -> float:
    """Return the time of a report."""
    return REPORT_SECONDS + REPORT_WORDS * word_seconds


def scored_words(total: float | None, used: float, word_seconds: float, held_out: HeldOut) -> HeldOut:
    """Return how many words of each text are scored in the time that is left after training.

    If all of them would take too long, both texts are reduced by the same factor, but not below `LEAST_WORDS`.
    """
    if total is None:
        return held_out
    left = max(total - used - report_seconds(word_seconds), 0.0)
    needed = (held_out.valid + held_out.test) * word_seconds
    share = 1.0 if needed <= left else left / needed
    return HeldOut(_part(held_out.valid, share), _part(held_out.test, share))


def _part(words: int, share: float) -> int:
    return words if share >= 1.0 else min(words, max(math.floor(words * share), LEAST_WORDS))
