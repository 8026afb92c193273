"""Validation of the probabilities of an n-gram model that another tool has made."""

import warnings
from pathlib import Path

import numpy as np

from ncelm.errors import NcelmError
from ncelm.models.ngram.query import MAX_EXCESS, NGramModel
from ncelm.text.vocabulary import Vocabulary

SAMPLED = 100  # histories whose distributions are summed
MAX_SUM, MIN_SUM = 1.001, 0.99  # of a distribution: numbers with four digits after the point are precise enough


def check_probabilities(path: Path, model: NGramModel, vocabulary: Vocabulary) -> None:
    """Raise `NcelmError` if a probability exceeds 1, or the sum of a distribution does; warn if a sum is too small.

    All probabilities are checked, and the sums without a history, after <s>, and after `SAMPLED` other histories.
    """
    words = (*vocabulary.words, "<s>")
    histories: list[list[int]] = [[]]
    if model.order > 1:
        _check_backoffs(path, model, words)
        sampled = np.unique(np.random.default_rng(0).integers(0, model.children.size - 1, SAMPLED))
        histories += [[len(vocabulary)], *(words_of(model, position) for position in sampled.tolist())]
    for history in histories:
        total = float(np.exp(model.log_probabilities_after(history)).sum())
        after = f"after {' '.join(words[i] for i in history)!r}" if history else "of single words"
        if total > MAX_SUM:
            raise NcelmError(
                f"{path}: the probabilities {after} add up to {total:.4g}: the model is not normalized; make it again"
            )
        if total < MIN_SUM:
            warnings.warn(
                f"{path}: the probabilities {after} add up to only {total:.4g}: perplexities will be too high",
                stacklevel=2,
            )
            return


def _check_backoffs(path: Path, model: NGramModel, words: tuple[str, ...]) -> None:
    from ncelm.kernels import ngram as kernels

    trie, histories = model.view(), model.children.size - 1
    links, largest = np.empty(histories, np.int64), np.empty(histories, np.float32)
    kernels.fill_links(trie, links, largest)
    by_probability = np.argsort(-model.log_probabilities[: model.counts[0]], kind="stable")
    position, word = kernels.find_excess(trie, links, largest, by_probability, MAX_EXCESS)
    if position >= 0:
        history = " ".join(words[i] for i in words_of(model, int(position)))
        raise NcelmError(
            f"{path}: {words[word]!r} after {history!r} has a probability above 1: the back-off weight of {history!r} "
            "is wrong; make the file again"
        )


def words_of(model: NGramModel, position: int) -> list[int]:
    """Return the words of the n-gram at a position of the trie."""
    starts, words = np.cumsum((0, *model.counts)), []
    order = int(np.searchsorted(starts, position, side="right"))
    while order:
        words.append(int(model.words[position]))
        order -= 1
        if order:
            level = model.children[starts[order - 1] : starts[order]]
            position = int(np.searchsorted(level, position, side="right") - 1 + starts[order - 1])
    return words[::-1]
