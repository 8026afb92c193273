"""Mix runs into one: weights by EM on held-out text, or given."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ncelm.errors import NcelmError
from ncelm.io import run
from ncelm.io.files import atomic_folder, check_not_existing
from ncelm.kernels.threads import Team
from ncelm.language_model import LanguageModel, load_scorer
from ncelm.models import description, ensemble
from ncelm.models.base import Blank, corpus_view
from ncelm.models.ensemble import Ensemble, cross_validated, scores_of_parts
from ncelm.models.evaluate import CHUNK
from ncelm.models.load import part_descriptions
from ncelm.models.mixture import Mixture, learn_weights, log_probabilities
from ncelm.models.ngram.model import NGramModel
from ncelm.text.store import TokenStore
from ncelm.text.vocabulary import Vocabulary

RARE = (20, 5000)  # answers and distractors occur so often in the training text
DISTRACTORS = 4
CANDIDATES = 6  # are drawn for the distractors: of Holmes, a 5-gram gets as many right as of the challenge, 38.6 %
PER_SENTENCE = 6  # questions, at most
SHORTEST = 8  # words of a sentence that questions are made from
MOST_WORDS = 20_000_000  # a text to learn a few weights from need not be longer; all of it is in memory


def mix(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    weights: Sequence[float] | None = None,
    store: TokenStore | Path | str | None = None,
    split: str = "valid",
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LanguageModel:
    """Write a run that is the linear interpolation of others, which must stay where they are.

    Weights are those that make a split of the store likeliest, the store being that of the first run that has one.
    `progress` hears how many words of how many have been scored.
    """
    paths, out = [Path(path) for path in runs], Path(out)
    if len(paths) < 2:
        raise NcelmError("a mixture has at least two parts: name two runs or more")
    check_not_existing(out)
    parts = [LanguageModel.load(path, threads) for path in paths]
    for path, part in zip(paths[1:], parts[1:], strict=True):
        _check_alike(paths[0], parts[0], path, part)
    origins = [description.read_origin(path, run.read_config(path)) for path in paths]
    origin = next((origin for origin in origins if origin.store), origins[0])
    if weights is None:
        shares = _learned(
            parts, description.open_store(store, origin.store, ", or give --weights"), split, threads, progress
        )
    else:
        shares = _given(weights, parts)
    with atomic_folder(out) as folder:
        description.write_description(
            folder,
            "mixture",
            origin,
            parts=part_descriptions(paths),
            weights=shares.tolist(),
            weights_from=split if weights is None else "given",
        )
    model = Mixture(tuple(part.model for part in parts), shares)
    return LanguageModel(model, origin.vocabulary, origin.boundary, origin.text, origin.store, threads)


def _check_alike(first: Path, a: LanguageModel, other: Path, b: LanguageModel) -> None:
    """Only models of the same words in the same text give one another's words probabilities."""
    if a.vocabulary.digest != b.vocabulary.digest:
        raise NcelmError(
            f"{first} and {other} have different vocabularies, so their probabilities are of different words: train "
            "both on one store (an ARPA file read with --like has the store's)"
        )
    if (a.boundary, a.text) != (b.boundary, b.text):
        raise NcelmError(
            f"{first} and {other} read text in different ways ({a.boundary}, {a.text}; {b.boundary}, {b.text}): train "
            "both on one store"
        )


def _given(weights: Sequence[float], parts: list[LanguageModel]) -> np.ndarray:
    shares = np.array(weights, np.float64)
    if len(shares) != len(parts) or not (shares >= 0).all() or not 0.999 < shares.sum() < 1.001:
        raise NcelmError(
            f"--weights are {' '.join(f'{w:g}' for w in weights)}: give one for each of the {len(parts)} runs, none "
            "below 0, that add up to 1"
        )
    return shares / shares.sum()


def _learned(
    parts: list[LanguageModel],
    store: TokenStore,
    split: str,
    threads: int | None,
    progress: Callable[[int, int], None] | None,
) -> np.ndarray:
    for part in parts:
        part.check_store(store)
    if split not in store.splits:
        raise NcelmError(
            f"{store.path} has no {split} split to learn weights on: name another with --split, or give --weights"
        )
    held_out = store.split(split)
    corpus, words = corpus_view(held_out, store), min(held_out.tokens, MOST_WORDS)
    logs = np.empty((len(parts), words))  # (models, n)
    with Team(threads) as team:
        for first in range(0, words, CHUNK):
            last = min(first + CHUNK, words)
            logs[:, first:last] = log_probabilities(tuple(part.model for part in parts), corpus, first, last, team)
            if progress:
                progress(last, words)
    return learn_weights(logs)


# -- ensembles


def make_questions(
    store: TokenStore, split: str, guess: LanguageModel | None, seed: int = 0
) -> list[tuple[Blank, int]]:
    """Questions from the sentences of a split, each with the number of its right answer.

    Distractors are drawn from what `guess` expects after the words before the gap, or by frequency if there is none.
    """
    words, rng = store.vocabulary, np.random.default_rng(seed)
    alphabetic = np.array([word.isalpha() and len(word) > 2 for word in words.words])
    rare = alphabetic & (words.counts >= RARE[0]) & (words.counts <= RARE[1])
    held_out = store.split(split)
    bounds = held_out.sentences.astype(np.int64).tolist()
    drafts = []  # a gap, and words drawn for it: the answer first
    for begin, end in pairwise(bounds):
        ids = held_out.ids[begin : end - 1].astype(np.int64)
        places = [i for i in range(ids.size) if rare[ids[i]]] if ids.size >= SHORTEST else []
        rng.shuffle(places)
        for place in places[:PER_SENTENCE]:
            weights = np.where(rare, _expected(guess, words, ids[:place], store.pad_id), 0.0)
            weights[ids[place]] = 0.0
            there = int(np.count_nonzero(weights))
            if there < DISTRACTORS:
                continue
            drawn = min(CANDIDATES if guess else DISTRACTORS, there)
            others = rng.choice(len(words), drawn, replace=False, p=weights / weights.sum())
            before, *choices, after = (
                [words.word(int(i)) for i in some]
                for some in (ids[:place], [ids[place]], *others[:, None], ids[place + 1 :])
            )
            drafts.append(Blank(before, choices, after))
    questions = []
    for draft, distractors in zip(drafts, _likeliest(guess, drafts), strict=True):
        order = rng.permutation([0, *distractors]).tolist()
        choices = [draft.choices[i] for i in order]
        questions.append((Blank(draft.before, choices, draft.after), order.index(0)))
    return questions


def _likeliest(guess: LanguageModel | None, drafts: list[Blank]) -> Iterator[list[int]]:
    """Which of the words drawn for each gap, after the answer, are to be the distractors."""
    if guess is None:
        yield from ([*range(1, 1 + DISTRACTORS)] for _ in drafts)
        return
    for scores, _ in guess.choice_scores(drafts):
        yield (np.argsort(-np.array(scores[1:]), kind="stable")[:DISTRACTORS] + 1).tolist()


def _expected(guess: LanguageModel | None, words: Vocabulary, before: np.ndarray, pad_id: int) -> np.ndarray:
    if guess is None:
        return words.counts.astype(np.float64)
    return np.exp(guess.model.distribution(before, before[:0], pad_id))


def blend(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    store: TokenStore | Path | str | None = None,
    split: str = "valid",
    seed: int = 0,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Ensemble, dict[str, Any]]:
    """Write a run that lets others choose together, which must stay where they are; return it, and how well it does.

    The weights are learned on questions made from a split of the store. The second answer tells how many of them each
    part gets right by itself, and the ensemble, by cross-validation. `progress` is called with the
    questions that all parts have answered, and their number.
    """
    paths, out = [Path(path) for path in runs], Path(out)
    if len(paths) < 2:
        raise NcelmError("an ensemble has at least two parts: name two runs or more")
    check_not_existing(out)
    origins = [description.read_origin(path, run.read_config(path)) for path in paths]
    for path, origin in zip(paths[1:], origins[1:], strict=True):
        if (origin.vocabulary.digest, origin.text) != (origins[0].vocabulary.digest, origins[0].text):
            raise NcelmError(f"{paths[0]} and {path} are models of different words: train both on one store")
    parts = tuple(load_scorer(path, threads) for path in paths)
    text = description.open_store(store, next((origin.store for origin in origins if origin.store), None))
    if text.vocabulary.digest != origins[0].vocabulary.digest:
        raise NcelmError(f"{text.path} has another vocabulary than {paths[0]}: give the store that it was trained on")
    ngrams = (part for part in parts if isinstance(part, LanguageModel) and isinstance(part.model, NGramModel))
    questions = make_questions(text, split, next(ngrams, None), seed)
    if len(questions) < 20 * len(parts):
        raise NcelmError(
            f"{text.path} has too little {split} text to learn weights on: {len(questions)} questions, and "
            f"{20 * len(parts)} are needed; name another --split, or prepare it with more --valid-sentences"
        )
    said = []
    for answered, numbers in enumerate(scores_of_parts(parts, [blank for blank, _ in questions]), 1):
        said.append(numbers)
        if progress:
            progress(answered, len(questions))
    scores = np.stack(said)  # (questions, choices, 2 parts)
    answers = np.array([answer for _, answer in questions])
    weights, origin = ensemble.learn_weights(scores, answers).reshape(-1, 2), origins[0]
    alone = [100.0 * float((scores[..., 2 * i].argmax(axis=1) == answers).mean()) for i in range(len(parts))]
    record = {"questions": len(questions), "parts_percent": alone, "percent": cross_validated(scores, answers)}
    with atomic_folder(out) as folder:
        description.write_description(
            folder,
            "ensemble",
            origin,
            parts=part_descriptions(paths),
            weights=weights.tolist(),
            learned_on=record,
        )
    return Ensemble(parts, weights, origin.vocabulary, origin.text), record
