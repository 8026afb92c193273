"""Several models choose a word together: a weighted sum of what they say, the weights learned on questions of our own.

The questions are made from held-out text as those of the challenge were (Zweig & Burges 2011): a rare word of a
sentence is the answer; of other rare words that an n-gram model might have put in its place, those that make its
likeliest sentences are the distractors. P(choice) is a softmax over Σ_i λ_i s_i(choice), where s_i are the models'
scores, normalised and not, and the λ ≥ 0 that make the answers likeliest are found by convex optimisation. (Below zero
they would learn of our questions, whose distractors an n-gram model likes, not to believe n-gram models.)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from ncelm import run
from ncelm.corpus import TokenStore
from ncelm.errors import NcelmError
from ncelm.files import new_folder, refuse_existing
from ncelm.language_model import LanguageModel, load_scorer, part_descriptions, part_folders
from ncelm.ngram import NGramModel
from ncelm.scoring import Blank, Scorer
from ncelm.text import TextSettings
from ncelm.vocabulary import Vocabulary

RARE = (20, 5000)  # answers and distractors occur so often in the training text
DISTRACTORS = 4
CANDIDATES = 6  # are drawn for the distractors: of Holmes, a 5-gram gets as many right as of the challenge, 38.6 %
PER_SENTENCE = 6  # questions, at most
SHORTEST = 8  # words of a sentence that questions are made from
PENALTY = 1e-4  # λ² of standardised scores: keeps parts that say the same from pulling against each other


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Models of any kind, each with its weights."""

    parts: tuple[Scorer, ...]
    weights: np.ndarray  # λ, (parts, 2) float64: of normalised scores, and of those that are not
    vocabulary: Vocabulary
    text: TextSettings

    def choice_scores(self, blanks: Iterable[Blank]) -> Iterator[tuple[list[float], list[float]]]:
        """The weighted sum of what the parts say of each choice. There is nothing left to normalise."""
        for said in _said(self.parts, list(blanks)):
            scores = (said @ self.weights.ravel()).tolist()
            yield scores, scores

    def likeliest(self, before: list[str], after: list[str], n: int = 10) -> list[tuple[str, float]]:
        """Of what each part would have said, the n best by all of them."""
        words = list(dict.fromkeys(word for part in self.parts for word, _ in part.likeliest(before, after, 10 * n)))
        ((scores, _),) = self.choice_scores([Blank(before, [[word] for word in words], after)])
        order = sorted(range(len(words)), key=lambda i: -scores[i])[:n]
        return [(words[i], scores[i]) for i in order]

    def vectors(self, table: str = "context") -> np.ndarray:
        """There are none."""
        raise NcelmError("this model has no word vectors of its own: ask one of its parts")

    def neighbors(self, word: str, n: int = 10, table: str = "context") -> list[tuple[str, float]]:
        """There are none."""
        raise NcelmError("this model has no word vectors of its own: ask one of its parts")


def _said(parts: Sequence[Scorer], blanks: list[Blank]) -> Iterator[np.ndarray]:
    """For each blank (choices, 2 parts): both scores of each part, less their means over the choices."""
    for answers in zip(*(part.choice_scores(blanks) for part in parts), strict=True):
        said = np.concatenate(answers).T
        yield said - said.mean(axis=0)


def load_ensemble(path: Path | str, threads: int | None = None) -> Ensemble:
    """Read a run of `blend`."""
    path = Path(path)
    content = run.read_config(path)
    origin = run.read_origin(path, content)
    folders = part_folders(path, content)
    weights = content.get("weights")
    if not (isinstance(weights, list) and len(weights) == len(folders) and all(map(_two_numbers, weights))):
        raise run.damaged_config(path)
    parts = tuple(load_scorer(folder, threads) for folder in folders)
    return Ensemble(parts, np.array(weights), origin.vocabulary, origin.text)


def _two_numbers(weights: object) -> bool:
    return isinstance(weights, list) and len(weights) == 2 and all(type(weight) is float for weight in weights)


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


def learn_weights(scores: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """λ ≥ 0, (n,), that make the right answers likeliest: scores (questions, choices, n), answers (questions,)."""
    scale = np.maximum(scores.std(axis=(0, 1)), 1e-12)
    scaled, rows = scores / scale, np.arange(len(answers))

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        """−log P(answer), mean over the questions, and its gradient."""
        totals = scaled @ weights  # (questions, choices)
        shares = np.exp(totals - totals.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        value = -np.log(shares[rows, answers]).mean() + PENALTY * float(weights @ weights)
        shares[rows, answers] -= 1.0
        return value, np.einsum("qc,qcp->p", shares, scaled) / len(answers) + 2 * PENALTY * weights

    n = scores.shape[2]
    found = minimize(loss, np.full(n, 1.0 / n), jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * n)
    return found.x / scale


def cross_validated(scores: np.ndarray, answers: np.ndarray, folds: int = 5) -> float:
    """Percent right when the weights for each fifth of the questions are learned on the others."""
    fold, right = np.arange(len(answers)) % folds, 0
    for this in range(folds):
        weights = learn_weights(scores[fold != this], answers[fold != this])
        right += int(np.count_nonzero((scores[fold == this] @ weights).argmax(axis=1) == answers[fold == this]))
    return 100.0 * right / len(answers)


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
    refuse_existing(out)
    origins = [run.read_origin(path, run.read_config(path)) for path in paths]
    for path, origin in zip(paths[1:], origins[1:], strict=True):
        if (origin.vocabulary.digest, origin.text) != (origins[0].vocabulary.digest, origins[0].text):
            raise NcelmError(f"{paths[0]} and {path} are models of different words: train both on one store")
    parts = tuple(load_scorer(path, threads) for path in paths)
    text = run.open_store(store, next((origin.store for origin in origins if origin.store), None))
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
    for answered, numbers in enumerate(_said(parts, [blank for blank, _ in questions]), 1):
        said.append(numbers)
        if progress:
            progress(answered, len(questions))
    scores = np.stack(said)  # (questions, choices, 2 parts)
    answers = np.array([answer for _, answer in questions])
    weights, origin = learn_weights(scores, answers).reshape(-1, 2), origins[0]
    alone = [100.0 * float((scores[..., 2 * i].argmax(axis=1) == answers).mean()) for i in range(len(parts))]
    record = {"questions": len(questions), "parts_percent": alone, "percent": cross_validated(scores, answers)}
    with new_folder(out) as folder:
        run.write_description(
            folder,
            "ensemble",
            origin,
            parts=part_descriptions(paths),
            weights=weights.tolist(),
            learned_on=record,
        )
    return Ensemble(parts, weights, origin.vocabulary, origin.text), record
