"""Sentence-completion questions generated from held-out text, in the manner of the MSR challenge (Zweig & Burges 2011).

A rare word of a sentence is the correct answer. Candidates for the distractors are other rare words, drawn from the
distribution of an n-gram model; those with the highest sentence probabilities become the distractors.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from ncelm.arguments import check_int, check_str, check_type
from ncelm.models.base import Gap, Scorer, WordModel, check_scorer
from ncelm.text.store import TokenStore
from ncelm.text.vocabulary import Vocabulary

RARE = (20, 5000)  # training counts of answers and distractors
DISTRACTORS = 4
CANDIDATES = 6  # for the distractors. On Holmes a 5-gram model then has the accuracy it has on the challenge, 38.6 %
QUESTIONS_PER_SENTENCE = 6  # at most
MIN_WORDS = 8  # of a sentence


class ProposalModel(Scorer, Protocol):
    """A scorer based on a word model, such as a `LanguageModel`."""

    @property
    def model(self) -> WordModel:
        """The word model."""


class GeneratedQuestion(NamedTuple):
    """A gap with choices, and the index of the correct choice."""

    gap: Gap
    answer: int


def generate_questions(
    store: TokenStore, split: str, proposal: ProposalModel | None, seed: int = 0
) -> list[GeneratedQuestion]:
    """Return questions from the sentences of a split.

    Distractors are drawn from the distribution of `proposal` after the words before the gap, or, if it is None, from
    the word frequencies.
    """
    check_type("store", store, isinstance(store, TokenStore), "an open token store")
    if proposal is not None:
        check_scorer("proposal", proposal)
        check_type("proposal", proposal, hasattr(proposal, "model"), "a language model or None")
    held_out, seed = store.split(check_str("split", split)), check_int("seed", seed, 0)
    words, rng = store.vocabulary, np.random.default_rng(seed)
    is_alphabetic = np.array([word.isalpha() and len(word) > 2 for word in words.words])
    is_rare = is_alphabetic & (words.counts >= RARE[0]) & (words.counts <= RARE[1])  # (V,)
    drafts = []  # gaps, whose choices are the answer and then the candidates
    for begin, end in pairwise(held_out.sentences.astype(np.int64).tolist()):
        ids = held_out.ids[begin : end - 1].astype(np.int64)
        places = [i for i in range(ids.size) if is_rare[ids[i]]] if ids.size >= MIN_WORDS else []
        rng.shuffle(places)
        for place in places[:QUESTIONS_PER_SENTENCE]:
            weights = np.where(is_rare, _probabilities(proposal, words, ids[:place], store.pad_id), 0.0)  # (V,)
            weights[ids[place]] = 0.0
            available = int(np.count_nonzero(weights))
            if available < DISTRACTORS:
                continue
            drawn = min(CANDIDATES if proposal else DISTRACTORS, available)
            candidates = rng.choice(len(words), drawn, replace=False, p=weights / weights.sum())
            before, *choices, after = (
                [words.word(int(i)) for i in some]
                for some in (ids[:place], [ids[place]], *candidates[:, None], ids[place + 1 :])
            )
            drafts.append(Gap(before, choices, after))
    questions = []
    for draft, distractors in zip(drafts, _distractors(proposal, drafts), strict=True):
        order = rng.permutation([0, *distractors]).tolist()
        choices = [draft.choices[i] for i in order]
        questions.append(GeneratedQuestion(Gap(draft.before, choices, draft.after), order.index(0)))
    return questions


def _distractors(proposal: ProposalModel | None, drafts: list[Gap]) -> Iterator[list[int]]:
    """Return the indices of the choices of each draft that become distractors; choice 0 is the answer."""
    if proposal is None:
        yield from ([*range(1, 1 + DISTRACTORS)] for _ in drafts)
        return
    for scores in proposal.choice_scores(drafts):
        yield (np.argsort(-np.array(scores.normalised[1:]), kind="stable")[:DISTRACTORS] + 1).tolist()


def _probabilities(proposal: ProposalModel | None, words: Vocabulary, before: np.ndarray, pad_id: int) -> np.ndarray:
    """Return the weight of each word as a candidate after the words `before`, (V,)."""
    if proposal is None:
        return words.counts.astype(np.float64)
    weights: np.ndarray = np.exp(proposal.model.distribution(before, before[:0], pad_id))
    return weights
