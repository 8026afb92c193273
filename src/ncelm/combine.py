"""Combinations of runs: `mix` interpolates language models; `blend` makes ensembles for sentence completion."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ncelm.arguments import check_floats, check_int, check_path, check_paths, check_str
from ncelm.errors import NcelmError
from ncelm.io import run
from ncelm.io.files import atomic_folder, check_not_existing
from ncelm.kernels.threads import Team, check_threads
from ncelm.language_model import LanguageModel, load_scorer
from ncelm.models import description, ensemble, mixture
from ncelm.models.base import Scorer, corpus_view
from ncelm.models.ensemble import Ensemble
from ncelm.models.evaluate import sample_parts
from ncelm.models.load import component_references
from ncelm.models.mixture import Mixture
from ncelm.models.ngram.query import NGramModel
from ncelm.models.questions import GeneratedQuestion, generate_questions
from ncelm.progress import OnProgress, Option, check_progress, shown
from ncelm.text.store import TokenStore, store_or_path

MAX_WORDS = 20_000_000  # of held-out text used to learn mixture weights; bounds the memory
MIN_QUESTIONS = 20  # per component of an ensemble


def mix(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    weights: Sequence[float] | None = None,
    store: TokenStore | Path | str | None = None,
    split: str = "valid",
    threads: int | None = None,
    progress: Option = True,
) -> LanguageModel:
    """Write the run `out`, the linear interpolation of other runs, and return the model.

    Without `weights`, the weights maximize the likelihood of a split of a store, by default the store of the first run
    that has one. `out` refers to its components, which must not be moved. `progress` is explained in `ncelm.progress`;
    a function is called with the number of words scored and their total.
    """
    paths, out = check_paths("runs", runs), check_path("out", out)
    given = None if weights is None else _checked_weights(weights, len(paths))
    _check_others(store, split, threads, progress)
    if len(paths) < 2:
        raise NcelmError("a mixture needs at least two components: give two or more runs")
    check_not_existing(out)
    components = [LanguageModel.load(path, threads) for path in paths]
    for path, component in zip(paths[1:], components[1:], strict=True):
        _check_compatible(paths[0], components[0], path, component)
    origins = [_read_origin(path) for path in paths]
    origin = next((origin for origin in origins if origin.store), origins[0])
    if given is None:
        held_out = description.open_store(store, origin.store, ", or give `weights`")
        with shown(progress, desc="scoring", unit=" words", unit_scale=True) as report:
            mixture_weights = _learned_weights(components, held_out, split, threads, report)
    else:
        mixture_weights = given
    with atomic_folder(out) as folder:
        write_mixture(folder, paths, origin, mixture_weights, split if given is None else "given")
    model = Mixture(tuple(component.model for component in components), mixture_weights)
    return LanguageModel.of(model, origin, threads)


def write_mixture(
    folder: Path, runs: Sequence[Path], origin: description.Origin, weights: np.ndarray, weights_from: str
) -> None:
    """Write the run directory of a mixture of these runs to an existing folder."""
    parts = component_references(folder, runs)
    description.write_description(
        folder, "mixture", origin, parts=parts, weights=weights.tolist(), weights_from=weights_from
    )


def _check_others(store: object, split: object, threads: object, progress: object) -> None:
    """Raise an error for an invalid argument that `mix` and `blend` share."""
    if store is not None:
        store_or_path("store", store)
    check_str("split", split)
    check_threads(threads)
    check_progress(progress)


def _read_origin(path: Path) -> description.Origin:
    return description.read_origin(path, run.read_config(path))


def _check_compatible(first: Path, a: LanguageModel, other: Path, b: LanguageModel) -> None:
    """Raise `NcelmError` unless both models have the same vocabulary, boundary and tokenization."""
    if a.vocabulary.digest != b.vocabulary.digest:
        raise NcelmError(
            f"{first} and {other} have different vocabularies: train both on one store, or import the ARPA file with "
            "`like`"
        )
    if (a.boundary, a.text) != (b.boundary, b.text):
        raise NcelmError(
            f"{first} and {other} have texts prepared with different settings ({a.boundary}, {a.text}; {b.boundary}, "
            f"{b.text}): train both on one store"
        )


def _checked_weights(weights: Sequence[float], components: int) -> np.ndarray:
    """Return the given weights, scaled to a sum of exactly 1."""
    values = np.array(check_floats("weights", weights), np.float64)
    if len(values) != components or not (values >= 0).all() or not 0.999 < values.sum() < 1.001:
        given = " ".join(f"{w:g}" for w in values) or "empty"
        raise NcelmError(
            f"`weights` are {given}: give one for each of the {components} runs, not negative, with a sum of 1"
        )
    return values / float(values.sum())


def _learned_weights(
    components: list[LanguageModel], store: TokenStore, split: str, threads: int | None, progress: OnProgress | None
) -> np.ndarray:
    """Return the weights that maximize the likelihood of a split of a store."""
    for component in components:
        component.check_store(store)
    if split not in store.splits:
        raise NcelmError(
            f"{store.path} has no {split} split to learn weights on: give another `split`, or give `weights`"
        )
    return mixture.learn_weights(score_split(components, store, split, MAX_WORDS, threads, progress))


def score_split(
    components: Sequence[LanguageModel],
    store: TokenStore,
    split: str,
    words: int = MAX_WORDS,
    threads: int | None = None,
    progress: OnProgress | None = None,
) -> np.ndarray:
    """Return log P_i(w|h) of each model for the words of a split, (components, n).

    If the split has more than `words` words, they are those of a sample in blocks that are evenly spaced.
    """
    held_out = store.split(split)
    corpus, words, done = corpus_view(held_out, store), min(held_out.tokens, words, MAX_WORDS), 0
    models = tuple(component.model for component in components)
    logs = np.empty((len(models), words))
    with Team(threads) as team:
        for first, last in sample_parts(words, held_out.tokens):
            logs[:, done : done + last - first] = mixture.log_probabilities(models, corpus, first, last, team)
            done += last - first
            if progress:
                progress(done, words)
    return logs


def blend(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    store: TokenStore | Path | str | None = None,
    split: str = "valid",
    seed: int = 0,
    threads: int | None = None,
    progress: Option = True,
) -> tuple[Ensemble, dict[str, Any]]:
    """Write the run `out`, an ensemble of other runs for sentence completion; return the model and its accuracy.

    The weights are learned on questions generated from a split of a store, by default the store of the first run that
    has one. The accuracy, in percent, is "percent" for the ensemble, by cross-validation, and "parts_percent" for its
    components. `out` refers to its components, which must not be moved. `progress` is explained in `ncelm.progress`; a
    function is called with the number of questions answered and their total.
    """
    paths, out, seed = check_paths("runs", runs), check_path("out", out), check_int("seed", seed, 0)
    _check_others(store, split, threads, progress)
    if len(paths) < 2:
        raise NcelmError("an ensemble needs at least two components: give two or more runs")
    check_not_existing(out)
    origins = [_read_origin(path) for path in paths]
    for path, origin in zip(paths[1:], origins[1:], strict=True):
        if (origin.vocabulary.digest, origin.text) != (origins[0].vocabulary.digest, origins[0].text):
            raise NcelmError(
                f"{paths[0]} and {path} have different vocabularies or tokenizations: train both on one store"
            )
    components = tuple(load_scorer(path, threads) for path in paths)
    held_out = description.open_store(store, next((origin.store for origin in origins if origin.store), None))
    if held_out.vocabulary.digest != origins[0].vocabulary.digest:
        raise NcelmError(f"{held_out.path} has another vocabulary than {paths[0]}: give the store it was trained on")
    questions = generate_questions(held_out, split, _first_ngram(components), seed)
    needed = MIN_QUESTIONS * len(components)
    if len(questions) < needed:
        raise NcelmError(
            f"{held_out.path} has too little {split} text to learn weights on: {len(questions)} questions instead of "
            f"{needed}; give another `split`, or prepare the store with more `valid_sentences`"
        )
    with shown(progress, desc="answering", unit=" questions") as report:
        scores = _scores(components, questions, report)  # (questions, choices, 2 components)
    answers = np.array([question.answer for question in questions])
    weights = ensemble.learn_weights(scores, answers).reshape(-1, 2)
    record = {
        "questions": len(questions),
        "parts_percent": [
            100.0 * float((scores[..., 2 * i].argmax(axis=1) == answers).mean()) for i in range(len(components))
        ],
        "percent": ensemble.cross_validated_accuracy(scores, answers),
    }
    with atomic_folder(out) as folder:
        description.write_description(
            folder,
            "ensemble",
            origins[0],
            parts=component_references(folder, paths),
            weights=weights.tolist(),
            learned_on=record,
        )
    return Ensemble(components, weights, origins[0].vocabulary, origins[0].text), record


def _first_ngram(components: Sequence[Scorer]) -> LanguageModel | None:
    """Return the first n-gram model, which proposes the distractors of questions."""
    for component in components:
        if isinstance(component, LanguageModel) and isinstance(component.model, NGramModel):
            return component
    return None


def _scores(
    components: Sequence[Scorer], questions: list[GeneratedQuestion], progress: OnProgress | None
) -> np.ndarray:
    """Return the centered scores of all choices: (questions, choices, 2 components)."""
    scores = []
    for done, each in enumerate(ensemble.component_scores(components, [question.gap for question in questions]), 1):
        scores.append(each)
        if progress:
            progress(done, len(questions))
    return np.stack(scores)
