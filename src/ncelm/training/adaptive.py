"""Adaptive defaults: a configuration chosen from the size of the text, the vocabulary and the time that is available.

`choose` returns what `train` uses without a recipe or a configuration. The rules are functions of the number of words N
of the training text, fitted to searches (docs/experiments.md has the searches, docs/results/defaults.md the distance to
their best results):

    dimension        200 · (N / 10⁶)^0.25, a multiple of 50 from 50 to 300
    epochs           4 · (10⁶ / N)^0.4, from 3 to 12
    dropout          0.25 − 0.3 · log₁₀(N / 10⁶) + 0.1 · log₂(dimension / 200), from 0.05 to 0.6
    weight decay     2 · (10⁶ / N)^0.5 per epoch, from 0.3 to 6
    learning rate    3 / √dimension, with an initial accumulator of 100 / dimension

Ten context words, diagonal matrices, and minibatches of 125 words that share 125 noise samples suit all sizes.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ncelm.arguments import check_float
from ncelm.distributed.collective import SingleProcess
from ncelm.kernels.threads import Team
from ncelm.models.log_bilinear import Matrices, ModelConfig
from ncelm.text.store import TokenStore
from ncelm.training import recipes
from ncelm.training.backend import memory_bytes
from ncelm.training.config import (
    NCE,
    Adagrad,
    BigramNoise,
    Halve,
    Init,
    Linear,
    PowerNoise,
    Ranking,
    Regularization,
    TrainConfig,
)
from ncelm.training.options import to_flat
from ncelm.training.setup import Setup
from ncelm.training.start import initial_snapshot
from ncelm.training.validation import evaluate_sample, sample_size, train_cost

DIMENSIONS = (50, 100, 150, 200, 250, 300)
BATCH_SIZE = 125  # and as many noise samples, which the words of a minibatch share
MEASURED_SECONDS, MEASURED_VALIDATION = 0.5, 500  # seconds of training, and words, to find a throughput
MIN_EPOCHS = 0.02
MOST_EPOCHS = 1.5  # with enough time, as a multiple of the default
RESERVE = 0.03  # of the available time, for what is not measured: checkpoints, files
FINAL_SHARE, MIN_FINAL_WORDS = 0.05, 1000  # of the available time, and words, for the evaluation at the end
WORDS_PER_DIMENSION = 15.0  # and per square root of the number of words of the text
TORCH_BATCH_SIZE = 250  # PyTorch has an overhead of about a millisecond per minibatch
FULL_MATRIX_LR_SCALE = 0.03
REFERENCE = TrainConfig(noise=PowerNoise())  # options that are given are checked against it


@dataclass(frozen=True)
class Choice:
    """A configuration and the reason for it."""

    config: TrainConfig
    explanation: str  # one line; empty for a run that is resumed


def choose(store: TokenStore, *, minutes: float | None = None, threads: int | None = None, **changes: Any) -> Choice:
    """Return the default configuration for a token store.

    Args:
        store: token store.
        minutes: time for training, validation included; None for as long as the model improves substantially. The
            throughput of this machine is measured. Little time gives fewer epochs and dimensions and less dropout, much
            time up to half as many epochs again.
        threads: number of threads of training; all cores by default.
        changes: options by flat name that are given; the others are chosen.
    """
    tokens, vocabulary_size = store.split("train").total_tokens, len(store.vocabulary)
    if minutes is None:
        config = default_config(tokens, vocabulary_size, **changes)
        return Choice(config, _explain(config, tokens, vocabulary_size, changes))
    seconds = 60.0 * check_float("minutes", minutes, 0, 1e6, positive=True)
    config, rate = _within(store, seconds, threads, changes)
    explained = _explain(config, tokens, vocabulary_size, changes)
    return Choice(config, f"{explained}; {rate:,.0f} words/s measured, {minutes:g} min")


# -- rules -----------------------------------------------------------------------------------------------------------


def default_config(tokens: int, vocabulary_size: int, **changes: Any) -> TrainConfig:
    """Return the configuration for a training text of `tokens` words, without a limit of time.

    Args:
        tokens: words of the training text.
        vocabulary_size: V.
        changes: options by flat name that are given; the others are chosen, and go with the given ones.
    """
    given = REFERENCE.with_changes(**changes)  # invalid options are errors here
    tokens = max(tokens, 1)
    if given.model.architecture != "log-bilinear":
        base = _torch_config(given, tokens)
    elif _noise_is_shared(given, changes):
        dim = given.model.dim if _is_given("dim", "model", changes) else default_dim(tokens)
        matrices = given.model.matrices if _is_given("matrices", "model", changes) else "diagonal"
        base = log_bilinear_config(tokens, dim, matrices)
    else:
        base = _per_example_config(tokens)
    if given.backend == "torch":  # which does not implement weight decay
        base = base.with_changes(weight_decay_per_epoch=0.0, batch_size=max(base.batch_size, TORCH_BATCH_SIZE))
    return _with_optimizer(base, given.optimizer.name).with_changes(**changes)


def log_bilinear_config(tokens: int, dim: int, matrices: Matrices = "diagonal") -> TrainConfig:
    """Return the configuration of a log-bilinear model with shared noise."""
    return TrainConfig(
        model=ModelConfig(context=10 if matrices == "diagonal" else 4, dim=dim, matrices=matrices),
        loss=NCE(samples=BATCH_SIZE, shared_noise=True),
        noise=PowerNoise(),
        optimizer=Adagrad(initial_accumulator=round(100.0 / dim, 3), warmup_steps=_warmup_steps(tokens)),
        schedule=Linear(_epochs(tokens), patience=2),
        regularization=Regularization(dropout=_dropout(tokens, dim), weight_decay_per_epoch=_weight_decay(tokens)),
        init=Init(std=0.02),
        learning_rate=round(3.0 / math.sqrt(dim), 3),
        matrix_lr_scale=1.0 if matrices == "diagonal" else FULL_MATRIX_LR_SCALE,
        batch_size=BATCH_SIZE,
    )


def default_dim(tokens: int) -> int:
    """Return the dimension of word vectors for a text of this size: a multiple of 50."""
    return int(np.clip(50 * round(4 * (tokens / 1e6) ** 0.25), DIMENSIONS[0], DIMENSIONS[-1]))


def _epochs(tokens: int) -> int:
    """Return the number of epochs: small texts need more."""
    return int(np.clip(round(4 * (1e6 / tokens) ** 0.4), 3, 12))


def _dropout(tokens: int, dim: int) -> float:
    """Return the dropout probability: more for large models of small texts."""
    return round(float(np.clip(0.25 - 0.3 * math.log10(tokens / 1e6) + 0.1 * math.log2(dim / 200), 0.05, 0.6)), 2)


def _weight_decay(tokens: int) -> float:
    """Return the weight decay per epoch: more for small texts."""
    return float(f"{np.clip(2 * math.sqrt(1e6 / tokens), 0.3, 6):.2g}")


def _warmup_steps(tokens: int) -> int:
    """Return the number of warm-up steps: a tenth of an epoch, from 20 to 100; a fifth of training in tiny texts."""
    steps = tokens / BATCH_SIZE
    return int(np.clip(steps / 10, max(min(steps * _epochs(tokens) / 5, 20), 1), 100))


def _is_given(option: str, part: str, changes: dict[str, Any]) -> bool:
    """Return whether an option is given, by itself or in a part of the configuration that is given as a whole."""
    return option in changes or part in changes


def _noise_is_shared(given: TrainConfig, changes: dict[str, Any]) -> bool:
    """Return whether the words of a minibatch can share noise samples, unless noise per example is requested."""
    if "shared_noise" in changes or isinstance(changes.get("loss"), NCE | Ranking):
        return bool(getattr(given.loss, "shared_noise", False))
    possible = isinstance(given.loss, NCE | Ranking) and not given.learned_log_normalizers
    return possible and not isinstance(given.noise, BigramNoise)


def _per_example_config(tokens: int) -> TrainConfig:
    """Return the configuration of a log-bilinear model with noise of each word, or with exact likelihood."""
    return recipes.ptb_fast().with_changes(context=4, noise_samples=25, epochs=_epochs(tokens), patience=2)


def _torch_config(given: TrainConfig, tokens: int) -> TrainConfig:
    """Return the configuration of a PyTorch model: that of the recipe for the Penn Treebank, with other epochs."""
    names = {"lstm": recipes.ptb_lstm, "feed-forward": recipes.ptb_feed_forward}
    config = names.get(given.model.architecture, recipes.ptb_maximum_entropy)()
    if isinstance(given.noise, BigramNoise):
        config = config.with_changes(shared_noise=False, noise_samples=25)
    return config.with_changes(epochs=config.schedule.epochs if tokens > 500_000 else _epochs(tokens), patience=2)


def _with_optimizer(base: TrainConfig, name: str) -> TrainConfig:
    """Return the configuration with an optimizer and a learning rate that goes with it."""
    rates = {"sgd": 0.02, "adam": 0.001}
    return base.with_changes(optimizer=name, learning_rate=rates[name]) if name in rates else base


# -- time ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Throughput:
    """Measured speed of a configuration on this machine."""

    words_per_second: float  # of training
    seconds_per_validated_word: float


def measure(store: TokenStore, config: TrainConfig, threads: int | None = None) -> Throughput:
    """Return the throughput of a configuration. A model is trained for a moment and discarded."""
    setup = Setup.create(store, Path(), config, (), SingleProcess())
    snapshot = initial_snapshot(setup)
    with Team(threads) as team:
        engine = setup.backend.create(
            snapshot.model,
            snapshot.optimizer_state,
            setup.noise(),
            store,
            config,
            team,
            snapshot.log_normalizers,
            setup.context_ids,
            snapshot.carried,
        )
        n = min(engine.planned, setup.steps_per_epoch)
        rates, steps, began, seconds = np.zeros(n), 0, 0.0, 0.0
        while seconds < MEASURED_SECONDS:
            engine.run(0, 0, rates, rates)
            # the first call reads parameters and text into the caches
            steps, began = (steps + n, began) if began else (0, time.perf_counter())
            seconds = time.perf_counter() - began if steps else 0.0
        words, validated = steps * config.batch_size, 0.0
        if "valid" in store.splits:
            sample = min(MEASURED_VALIDATION, store.split("valid").tokens)
            evaluate_sample(snapshot.model, store, "valid", min(sample, 10), team)  # compiles
            began = time.perf_counter()
            evaluate_sample(snapshot.model, store, "valid", sample, team)
            validated = (time.perf_counter() - began) / sample
    return Throughput(words / seconds, validated)


def _within(
    store: TokenStore, seconds: float, threads: int | None, changes: dict[str, Any]
) -> tuple[TrainConfig, float]:
    """Return the configuration for a limited time, and the throughput in words per second."""
    began = time.perf_counter()
    tokens, vocabulary_size = store.split("train").tokens, len(store.vocabulary)
    config = default_config(tokens, vocabulary_size, **changes)
    found = measure(store, config, threads)
    if not _is_given("dim", "model", changes) and config.model.architecture == "log-bilinear":
        dim = affordable_dim(config, tokens, found.words_per_second * seconds)
        if dim != config.model.dim:
            config = default_config(tokens, vocabulary_size, **changes | {"dim": dim})
            found = measure(store, config, threads)
    valid_words = store.split("valid").tokens if "valid" in store.splits else 0
    final_words = valid_words
    if found.seconds_per_validated_word * valid_words > FINAL_SHARE * seconds:
        final_words = max(int(FINAL_SHARE * seconds / found.seconds_per_validated_word), MIN_FINAL_WORDS)
        config = config.with_changes(final_validation_words=final_words)
    left = seconds * (1.0 - RESERVE) - (time.perf_counter() - began) - final_words * found.seconds_per_validated_word
    sample = sample_size(config, vocabulary_size, tokens, valid_words) if valid_words else 0
    epoch_seconds = tokens / found.words_per_second + sample * found.seconds_per_validated_word
    epochs = min(max(left / epoch_seconds, MIN_EPOCHS), MOST_EPOCHS * config.schedule.epochs)
    if not _is_given("epochs", "schedule", changes):
        whole = isinstance(config.schedule, Halve)
        config = with_epochs(config, max(int(epochs), 1) if whole else float(f"{epochs:.3g}"), changes)
    return config, found.words_per_second


def affordable_dim(config: TrainConfig, tokens: int, words: float) -> int:
    """Return the dimension with which training on `words` words gives the best model.

    `words` is what the configuration can train on in the available time; smaller dimensions can train on more.
    """
    affordable = DIMENSIONS[0]
    for dim in DIMENSIONS:
        cost = train_cost(config.with_changes(dim=dim), 1) / train_cost(config, 1)
        if words / cost >= WORDS_PER_DIMENSION * dim * math.sqrt(tokens):
            affordable = dim
    return min(affordable, config.model.dim)


def with_epochs(config: TrainConfig, epochs: float, changes: dict[str, Any]) -> TrainConfig:
    """Return a configuration with other epochs: a model that sees each word less often needs less dropout."""
    dropout, share = config.regularization.dropout, min(epochs / config.schedule.epochs, 1.0)
    if _is_given("dropout", "regularization", changes) or dropout == 0.0:
        return config.with_changes(epochs=epochs)
    return config.with_changes(epochs=epochs, dropout=round(max(dropout * share, 0.02), 3))


# -- explanation -----------------------------------------------------------------------------------------------------


def _explain(config: TrainConfig, tokens: int, vocabulary_size: int, changes: dict[str, Any]) -> str:
    """Return one line that describes a choice, and the size that it depends on."""
    flat = to_flat(config)
    parts: list[str] = [] if config.model.architecture == "log-bilinear" else [config.model.architecture]
    if config.model.architecture != "lstm":
        parts.append(f"{config.model.positions} context word{'s' if config.model.positions != 1 else ''}")
    if config.model.architecture != "maximum-entropy":
        parts.append(f"{flat['dim']} dimensions")
    parts.append(f"minibatches of {config.batch_size}")
    if config.sampled:
        shared = "shared " if flat.get("shared_noise") else ""
        parts.append(f"{flat['noise_samples']} {shared}noise samples")
    parts.append(f"{config.optimizer.name} with learning rate {config.learning_rate:g}")
    if config.regularization.dropout:
        parts.append(f"dropout {config.regularization.dropout:g}")
    decay = config.regularization.weight_decay_per_epoch or config.regularization.weight_decay
    if decay:
        parts.append(f"weight decay {decay:g}")
    epochs = f"{config.schedule.epochs:g} epoch{'s' if config.schedule.epochs != 1 else ''}"
    given = f" (given: {', '.join(sorted(changes))})" if changes else ""
    memory = memory_bytes(config, vocabulary_size, tokens) / 1e6
    return (
        f"for {tokens:,} words and a vocabulary of {vocabulary_size:,}: {', '.join([*parts, epochs])}{given}; about "
        f"{memory:,.0f} MB of memory"
    )
