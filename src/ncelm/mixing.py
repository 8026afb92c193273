"""Mix runs into one: weights by EM on held-out text, or given."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ncelm import run
from ncelm.corpus import TokenStore
from ncelm.engine import corpus_view
from ncelm.errors import NcelmError
from ncelm.evaluate import CHUNK
from ncelm.files import new_folder, refuse_existing
from ncelm.language_model import LanguageModel, part_descriptions
from ncelm.mixture import Mixture, learn_weights, log_probabilities
from ncelm.threads import Team

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
    refuse_existing(out)
    parts = [LanguageModel.load(path, threads) for path in paths]
    for path, part in zip(paths[1:], parts[1:], strict=True):
        _check_alike(paths[0], parts[0], path, part)
    origins = [run.read_origin(path, run.read_config(path)) for path in paths]
    origin = next((origin for origin in origins if origin.store), origins[0])
    if weights is None:
        shares = _learned(parts, run.open_store(store, origin.store, ", or give --weights"), split, threads, progress)
    else:
        shares = _given(weights, parts)
    with new_folder(out) as folder:
        run.write_description(
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
