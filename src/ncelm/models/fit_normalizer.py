"""Fit a normalizer to a trained log-bilinear model: exact log Z(h) of contexts of a text, then least squares by Adam.

The result depends on the model, the text and the seed, not on the number of threads.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ncelm.arguments import check_int, check_path, check_str, check_type
from ncelm.errors import NcelmError
from ncelm.io import run
from ncelm.io.files import exclusive_lock
from ncelm.kernels import records
from ncelm.kernels.threads import Team, check_threads
from ncelm.models import load as model_loading
from ncelm.models.description import Origin, open_store
from ncelm.models.log_bilinear import LogBilinear
from ncelm.models.normalizer import MAX_UNITS, Normalizer, NormalizerError
from ncelm.progress import OnProgress, Option, check_progress, shown
from ncelm.text.readers import read_lines
from ncelm.text.store import TokenStore, store_or_path

UNITS = 384
CONTEXTS = 100_000  # that the units are fitted to
HELD_OUT = 10_000  # contexts that the error is measured in
CORRUPTED = 0.25  # share of the contexts in which words are replaced, for texts unlike the training text
EPOCHS = 10
BATCH = 256
LEARNING_RATE = 0.005
BETAS = 0.9, 0.99  # of Adam
BLOCK = 2_000  # contexts between two calls of the progress function


class Examples(NamedTuple):
    """Contexts with their exact log-normalizers."""

    predicted: np.ndarray  # q̂, (n, d) float32
    log_z: np.ndarray  # log Z(h), (n,) float32


def fit_normalizer(
    path: Path | str,
    store: TokenStore | Path | str | None = None,
    *,
    file: Path | str | None = None,
    encoding: str = "utf-8",
    units: int | None = None,
    contexts: int = CONTEXTS,
    seed: int = 0,
    threads: int | None = None,
    progress: Option = None,
) -> Normalizer:
    """Fit a normalizer to the model of a run, write it to the run directory, and return it.

    Args:
        path: a run directory with a log-bilinear model. Its former normalizer is replaced.
        store: the token store whose training text the units are fitted to; by default the one that the model was
            trained on. The error is measured on its validation text or, if it has none, on the last tenth of the
            training text.
        file: in place of a store, a text with one sentence per line. The error is measured on its last tenth.
        encoding: of `file`.
        units: number of units K: more are slower and more accurate [default: 384]. With as many units as words, the
            normalizer is exact.
        contexts: number of contexts that the units are fitted to.
        seed: of the choice of contexts.
        threads: number of threads; all cores by default. The result does not depend on it.
        progress: True for a progress bar, or a function that is called with the contexts done and their number.
    """
    path, threads = check_path("path", path), check_threads(threads)
    units = UNITS if units is None else check_int("units", units, 1, MAX_UNITS)
    contexts, seed = check_int("contexts", contexts, 1, 10**8), check_int("seed", seed, 0, 2**63)
    store = None if store is None else store_or_path("store", store)
    file = None if file is None else check_path("file", file)
    check_str("encoding", encoding)
    check_progress(progress)
    check_type("store", store, store is None or file is None, "None if `file` is given")
    run.read_config(path)  # before the lock file is made
    with exclusive_lock(path / run.LOCK, f"{path} is being trained by another process: wait until it is finished"):
        model, origin = _load(path)
        if file is None:
            texts = _texts_of_store(open_store(store, origin.store, ", or a text as `file`"), origin)
        else:
            texts = _last_tenth(_ids_of_file(file, encoding, origin))
        text, held_out = (_corpus(ids, origin) for ids in texts)
        with Team(threads) as team, shown(progress, desc="contexts", unit=" contexts") as report:
            fitted = fit(model, text, held_out, units, contexts, seed, team, report)
        fitted.save(path)
    return fitted


def fit_after_training(path: Path, store: TokenStore, team: Team) -> None:
    """Fit a normalizer to the model of a run that the caller has trained and locked, unless there is one already."""
    model, origin = _load(path)
    if model.normalizer is None:
        text, held_out = (_corpus(ids, origin) for ids in _texts_of_store(store, origin))
        fit(model, text, held_out, UNITS, CONTEXTS, 0, team).save(path)


def _load(path: Path) -> tuple[LogBilinear, Origin]:
    model, origin = model_loading.load_word_model(path)
    if not isinstance(model, LogBilinear):
        kind = run.read_config(path)["kind"]
        raise NcelmError(
            f"{path} is a model of kind {kind}: only log-bilinear models have normalizers"
            + ("; give the run of such a component" if kind == "mixture" else "")
        )
    return model, origin


def fit(
    model: LogBilinear,
    text: records.Corpus,
    held_out: records.Corpus,
    units: int,
    contexts: int,
    seed: int,
    team: Team,
    report: OnProgress | None = None,
) -> Normalizer:
    """Return a normalizer of a model, fitted to contexts of `text`; its error is that in contexts of `held_out`."""
    if units >= model.biases.size:
        units, contexts = model.biases.size, 0
    random = np.random.Generator(np.random.Philox(seed))
    chosen = [_draw(model, text, contexts, random, CORRUPTED), _draw(model, held_out, HELD_OUT, random)]
    total, done = sum(map(len, chosen)), 0
    examples = []
    for each in chosen:
        predicted, log_z = model.predict(each), np.empty(len(each), np.float32)
        for first in range(0, len(each), BLOCK):
            log_z[first : first + BLOCK] = model.log_normalizers(predicted[first : first + BLOCK], team)
            done += min(BLOCK, len(each) - first)
            if report is not None:
                report(done, total)
        examples.append(Examples(predicted, log_z))
    training, test = examples
    vectors, biases = model.target_vectors[:units].copy(), model.biases[:units].copy()  # the most frequent words
    if contexts:
        _minimise(vectors, biases, training, random)
    estimate = np.concatenate(
        [log_sum_exp(part, vectors, biases)[0] for part in np.array_split(test.predicted, -(-len(test.log_z) // BLOCK))]
    )
    return Normalizer(vectors, biases, NormalizerError.of(estimate.astype(np.float64) - test.log_z))


def log_sum_exp(predicted: np.ndarray, vectors: np.ndarray, biases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log Σ_k exp(a_kᵀ q̂ + b_k) of each row, (n,), and its derivatives by the scores, (n, K)."""
    scores = predicted @ vectors.T + biases
    largest = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=1, keepdims=True)
    return (largest + np.log(total))[:, 0], weights / total


def _minimise(vectors: np.ndarray, biases: np.ndarray, examples: Examples, random: np.random.Generator) -> None:
    """Minimise the mean squared error of log Ẑ over the units, in place."""
    predicted, log_z = examples
    some = slice(0, 5_000)
    biases += np.mean(log_z[some] - log_sum_exp(predicted[some], vectors, biases)[0])  # the words that are left out
    parameters = (vectors, biases)
    means, squares = ([np.zeros_like(each) for each in parameters] for _ in range(2))
    batches = -(-len(log_z) // BATCH)
    steps, step, (beta1, beta2) = EPOCHS * batches, 0, BETAS
    for _ in range(EPOCHS):
        for batch in np.array_split(random.permutation(len(log_z)), batches):
            step += 1
            q = predicted[batch]
            estimate, weights = log_sum_exp(q, vectors, biases)
            weights *= (estimate - log_z[batch])[:, None] * np.float32(2.0 / len(batch))  # dJ/dscores
            gradients = (weights.T @ q, weights.sum(axis=0))
            rate = LEARNING_RATE * min(step / (0.05 * steps), 1.0) * (1.0 - (step - 1) / steps)
            rate *= (1.0 - beta2**step) ** 0.5 / (1.0 - beta1**step)
            for parameter, gradient, mean, square in zip(parameters, gradients, means, squares, strict=True):
                mean += np.float32(1.0 - beta1) * (gradient - mean)
                square += np.float32(1.0 - beta2) * (gradient * gradient - square)
                parameter -= np.float32(rate) * mean / (np.sqrt(square) + np.float32(1e-8))


# -- contexts ----------------------------------------------------------------------------------------------------------


def _draw(
    model: LogBilinear, text: records.Corpus, count: int, random: np.random.Generator, corrupted: float = 0.0
) -> np.ndarray:
    """Return `count` contexts of a text, (count, c); in some, words are replaced by words of other contexts."""
    from ncelm.kernels import plan

    found = np.empty((count, model.config.positions), np.int64)
    positions = np.sort(random.integers(text.ids.size, size=count))
    plan.contexts_of(text._replace(before=model.config.context), positions, found)
    some = random.permutation(count)[: int(corrupted * count)]
    replace = random.random((len(some), found.shape[1])) < random.random((len(some), 1))  # few words, or many
    found[some] = np.where(replace, text.ids[random.integers(text.ids.size, size=replace.shape)], found[some])
    return found


def _corpus(ids: np.ndarray, origin: Origin) -> records.Corpus:
    """Return a text as `ncelm score` sees it: contexts do not cross sentence ends."""
    vocabulary = origin.vocabulary
    pad_id = vocabulary.end_id if origin.boundary == "stream" else vocabulary.out_of_sentence_id
    return records.Corpus(records.read_only(ids), 0, True, vocabulary.end_id, pad_id)


def _texts_of_store(store: TokenStore, origin: Origin) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of the text to fit to, and of the held-out text."""
    if store.vocabulary.digest != origin.vocabulary.digest:
        raise NcelmError(f"{store.path} has another vocabulary than the model: give the store it was trained on")
    text = store.split("train").ids
    if "valid" in store.splits and store.split("valid").tokens:
        return text, store.split("valid").ids
    return _last_tenth(text)


def _last_tenth(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a text without its last tenth, and the last tenth."""
    if ids.size < 10:
        raise NcelmError("there is too little text to fit a normalizer to: give a text with at least ten words")
    return ids[: -(ids.size // 10)], ids[-(ids.size // 10) :]


def _ids_of_file(file: Path, encoding: str, origin: Origin) -> np.ndarray:
    """Return the ids of a text with one sentence per line."""
    vocabulary = origin.vocabulary
    end = np.array([vocabulary.end_id])
    sentences = (np.append(vocabulary.encode(origin.text.words(line)), end) for line in read_lines(file, encoding))
    return np.concatenate([np.empty(0, np.int64), *sentences]).astype(np.uint32)
