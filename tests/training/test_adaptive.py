"""Adaptive defaults: smooth and bounded rules, valid configurations for all alternatives, no divergence."""

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers import random_lines, store_of

from ncelm.errors import ArgumentError, ArgumentTypeError, NcelmError
from ncelm.training import adaptive
from ncelm.training.adaptive import choose, default_config
from ncelm.training.config import (
    NCE,
    PARTS,
    UNIONS,
    Adam,
    BigramNoise,
    Halve,
    Linear,
    ModelConfig,
    Ranking,
    Regularization,
    TrainConfig,
)
from ncelm.training.loop import train
from ncelm.training.options import to_flat
from ncelm.training.recipes import RECIPES
from ncelm.training.validation import sample_size, score_cost, train_cost

SIZES = [10**exponent for exponent in range(1, 11)]
FINE_SIZES = [int(10 ** (exponent / 8)) for exponent in range(8, 80)]

# Options that are given: other architectures, engines, losses, noise distributions, optimizers and schedules
GIVEN: list[dict[str, Any]] = [
    {},
    {"architecture": "lstm"},
    {"architecture": "lstm", "noise": "bigram"},
    {"architecture": "lstm", "loss": "ml"},
    {"architecture": "lstm", "loss": "importance", "optimizer": "adam"},
    {"architecture": "lstm", "tied_embeddings": True},
    {"architecture": "feed-forward"},
    {"architecture": "feed-forward", "noise": "bigram"},
    {"architecture": "feed-forward", "context_after": 2},
    {"architecture": "maximum-entropy"},
    {"engine": "torch"},
    {"engine": "torch", "noise": "bigram"},
    {"engine": "torch", "loss": "ml", "optimizer": "sgd"},
    {"noise": "bigram"},
    {"noise": "bigram", "shared_noise": False},
    {"noise": "uniform"},
    {"noise_power": 0.5},
    {"loss": "ml"},
    {"loss": "importance"},
    {"loss": "importance", "min_effective_samples": 10.0},
    {"loss": "family"},
    {"loss": "ranking"},
    {"log_normalizers": "learned"},
    {"shared_noise": False},
    {"shared_noise": True, "noise_samples": 10},
    {"optimizer": "adam"},
    {"optimizer": "sgd"},
    {"schedule": "halve"},
    {"matrices": "full"},
    {"tied_embeddings": True},
    {"context": 3, "context_after": 3},
    {"context": 0, "context_after": 3},
    {"dim": 7, "epochs": 0.5, "dropout": 0.0, "learning_rate": 0.01, "batch_size": 10},
    {"model": ModelConfig(context=2, dim=7)},
    {"loss": NCE(samples=3)},
    {"loss": Ranking(samples=4, shared_noise=True)},
    {"noise": BigramNoise(smoothing=10.0)},
    {"optimizer": Adam()},
    {"schedule": Halve(epochs=7)},
    {"schedule": Linear(0.5)},
    {"regularization": Regularization(dropout=0.1)},
]


def _name(given: dict[str, Any]) -> str:
    return ",".join(f"{name}={getattr(value, 'name', value)}" for name, value in given.items()) or "none"


# -- rules -----------------------------------------------------------------------------------------------------------


def test_larger_texts_have_larger_models_and_fewer_epochs():
    configs = [default_config(tokens, 10_000) for tokens in FINE_SIZES]
    dims, epochs = [config.model.dim for config in configs], [config.schedule.epochs for config in configs]
    assert dims == sorted(dims)
    assert epochs == sorted(epochs, reverse=True)
    assert 20 <= dims[0] < dims[-1] <= 500
    assert 1 <= epochs[-1] < epochs[0] <= 20


def test_regularization_falls_with_the_size_of_the_text_and_is_bounded():
    for dim in (50, 100, 200, 400):
        parts = [default_config(tokens, 10_000, dim=dim).regularization for tokens in FINE_SIZES]
        for values in ([part.dropout for part in parts], [part.weight_decay_per_epoch for part in parts]):
            assert values == sorted(values, reverse=True)
        assert all(0.0 < part.dropout <= 0.7 for part in parts)
        assert all(0.0 < part.weight_decay_per_epoch <= 10.0 for part in parts)


def test_rules_are_smooth():
    """A text that is a third larger gets nearly the same configuration."""
    configs = [default_config(tokens, 10_000) for tokens in FINE_SIZES]
    for a, b in pairwise(configs):
        assert abs(a.regularization.dropout - b.regularization.dropout) <= 0.1
        assert a.schedule.epochs - b.schedule.epochs <= 2
        assert b.model.dim - a.model.dim <= 50


@pytest.mark.parametrize("tokens", [0, *SIZES])
@pytest.mark.parametrize("vocabulary_size", [3, 10, 10_000, 1_000_000])
def test_every_size_has_a_configuration(tokens, vocabulary_size):
    config = default_config(tokens, vocabulary_size)
    assert config.schedule.patience > 0
    assert math.isfinite(config.learning_rate)
    assert isinstance(config, TrainConfig)


def test_warm_up_is_a_small_part_of_training():
    for tokens in SIZES:
        config = default_config(tokens, 1000)
        steps = max(tokens / config.batch_size, 1.0) * config.schedule.epochs
        assert config.optimizer.warmup_steps <= max(0.2 * steps, 1)


# -- options that are given --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", GIVEN, ids=_name)
def test_given_options_are_respected_and_the_others_go_with_them(given):
    for tokens in (1000, 1_000_000, 100_000_000):
        config = default_config(tokens, 10_000, **given)
        flat = to_flat(config)
        for name, value in given.items():
            if name in PARTS or not isinstance(value, str | int | float):
                assert getattr(config, name) == value
            elif name in UNIONS:
                assert getattr(config, name).name == value
            else:
                assert flat[name] == value


@pytest.mark.slow
@pytest.mark.parametrize("given", GIVEN, ids=_name)
def test_every_choice_trains(given, cycle_store, tmp_path):
    if default_config(1000, 20, **given).backend == "torch":
        pytest.importorskip("torch", reason="needs the extra `torch`")
    little = {} if isinstance(given.get("schedule"), Halve | Linear) else {"epochs": 2}
    if given.get("architecture") == "maximum-entropy":
        little["features"] = 1000
    record = train(cycle_store, tmp_path / "run", threads=1, progress=False, **little | given)
    assert record["finished"]
    assert record["best_valid_perplexity"] < 25.0  # of 22 words


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"dim": None}, ArgumentTypeError, "`dim` is None"),
        ({"dim": 0}, ArgumentError, "`dim` is 0"),
        ({"loss": np.array(3)}, ArgumentTypeError, r"`loss` is array\(3\)"),
        ({"loss": np.ones(2)}, ArgumentTypeError, "`loss` is array"),
        ({"architecture": np.ones(2)}, ArgumentTypeError, "`architecture` is array"),
        ({"optimizer": ["adam"]}, ArgumentTypeError, "`optimizer` is "),
        ({"shared_noise": 1}, ArgumentTypeError, "`shared_noise` is 1"),
        ({"model": None}, ArgumentTypeError, "`model` is None"),
        ({"size": 3}, ArgumentTypeError, "there is no training option 'size'"),
        ({"noise": "bigram", "shared_noise": True}, NcelmError, "`shared_noise` goes with any `noise` but bigram"),
        ({"engine": "torch", "weight_decay": 0.1}, NcelmError, "`weight_decay` goes with"),
        ({"loss": "ml", "noise_samples": 3}, NcelmError, "`noise_samples` goes with"),
    ],
)
def test_invalid_options_are_errors(given, error, message):
    with pytest.raises(error, match=message):
        default_config(1_000_000, 10_000, **given)


# -- choice for a store ------------------------------------------------------------------------------------------------


def test_choice_and_explanation(small_store):
    choice = choose(small_store, context=3)
    tokens, size = small_store.split("train").tokens, len(small_store.vocabulary)
    assert choice.config == default_config(tokens, size, context=3)
    assert choice.explanation.startswith(f"for {tokens:,} words and a vocabulary of {size:,}: 3 context words, ")
    for part in ("dimensions", "shared noise samples", "learning rate", "dropout", "weight decay", "epochs", "MB of"):
        assert part in choice.explanation
    assert "(given: context)" in choice.explanation
    assert "\n" not in choice.explanation
    assert "given" not in choose(small_store).explanation


@pytest.mark.parametrize("minutes", [0, -1, math.nan, math.inf, "1", True])
def test_invalid_minutes_are_errors(small_store, minutes):
    with pytest.raises((ArgumentError, ArgumentTypeError), match="`minutes` is "):
        choose(small_store, minutes=minutes)


def _fixed_throughput(monkeypatch, words_per_second, seconds_per_validated_word=1e-4):
    throughput = adaptive.Throughput(words_per_second, seconds_per_validated_word)
    monkeypatch.setattr(adaptive, "measure", lambda store, config, threads=None: throughput)


def test_little_time_means_fewer_epochs_and_less_dropout(small_store, monkeypatch):
    default = choose(small_store).config
    _fixed_throughput(monkeypatch, 1000.0)
    minute = choose(small_store, minutes=1.0)
    tokens = small_store.split("train").tokens
    assert minute.config.schedule.epochs == pytest.approx(60_000 / tokens, rel=0.25)
    assert minute.config.schedule.epochs < default.schedule.epochs
    assert minute.config.regularization.dropout <= default.regularization.dropout
    assert minute.config.model.dim <= default.model.dim
    assert minute.explanation.endswith("1,000 words/s measured, 1 min")


def test_much_time_gives_half_as_many_epochs_again(small_store, monkeypatch):
    _fixed_throughput(monkeypatch, 1e6)
    default = choose(small_store).config
    assert choose(small_store, minutes=10.0).config == default.with_changes(epochs=1.5 * default.schedule.epochs)


@pytest.mark.parametrize("minutes", [0.5, 1.0, 3.0, 10.0])
def test_the_time_is_used(minutes, monkeypatch):
    """50 million words, of which the largest model trains on 200,000 in a second."""
    tokens, valid_words, score_seconds = 50_000_000, 100_000, 2e-4
    splits = {
        "train": SimpleNamespace(tokens=tokens, total_tokens=tokens),
        "valid": SimpleNamespace(tokens=valid_words),
    }
    store: Any = SimpleNamespace(splits=splits, split=splits.__getitem__, vocabulary=range(76_000))
    monkeypatch.setattr(
        adaptive, "measure", lambda _, config, __: adaptive.Throughput(2e5 * 300 / config.model.dim, score_seconds)
    )
    config = choose(store, minutes=minutes).config
    trained = config.schedule.epochs * tokens
    sample = sample_size(config, 76_000, int(min(trained, tokens)), valid_words)
    validations = math.ceil(config.schedule.epochs)
    final = config.validation.final_words or valid_words
    seconds = trained * config.model.dim / 300 / 2e5 + (validations * sample + final) * score_seconds
    assert 0.9 * 60 * minutes < seconds < 60 * minutes
    assert (config.model.dim < 300) == (minutes < 3.0)


def test_the_sample_takes_the_same_share_of_pytorch_models():
    words, valid_words, vocabulary = 900_000, 10_000_000, 10_000
    compiled, lstm = (RECIPES[name]() for name in ("paper/ptb-nce", "paper/ptb-lstm"))
    assert (compiled.backend, lstm.backend) == ("compiled", "torch")
    for config in (compiled, lstm):
        scored = sample_size(config, vocabulary, words, valid_words) * score_cost(config, vocabulary)
        assert 0.065 < scored / (words * train_cost(config, vocabulary)) < 0.071
    # measured with PyTorch: 70 to 280 µs per word, where the compiled kernels take 13
    assert score_cost(lstm, vocabulary) > 4 * score_cost(compiled, vocabulary)


def test_given_options_are_kept_with_little_time(small_store, monkeypatch):
    _fixed_throughput(monkeypatch, 1000.0)
    config = choose(small_store, minutes=0.5, epochs=3, dim=30, dropout=0.33).config
    assert (config.schedule.epochs, config.model.dim, config.regularization.dropout) == (3, 30, 0.33)
    assert choose(small_store, minutes=0.5, schedule="halve").config.schedule.epochs >= 1
    assert choose(small_store, minutes=0.5, model=ModelConfig(dim=30)).config.model == ModelConfig(dim=30)


def test_the_throughput_is_measured(small_store):
    found = adaptive.measure(small_store, default_config(1000, 1000, dim=8), 1)
    assert found.words_per_second > 100
    assert 0 < found.seconds_per_validated_word < 0.1


def test_the_affordable_dimension_grows_with_time():
    config = default_config(50_000_000, 76_000)
    dims = [adaptive.affordable_dim(config, 50_000_000, words) for words in (1e5, 1e6, 1e7, 1e8, 1e9, 1e10)]
    assert dims == sorted(dims)
    assert dims[0] < dims[-1] == config.model.dim


# -- no divergence -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("boundary", ["sentence", "stream"])
@pytest.mark.parametrize(
    ("sentences", "words", "given"),
    [
        (3, 4, {}),  # fewer words than a minibatch has
        (300, 12, {}),
        (300, 3, {}),
        (300, 12, {"dim": 300}),
        (300, 12, {"optimizer": "sgd"}),
        (300, 12, {"optimizer": "adam"}),
        (300, 12, {"matrices": "full"}),
        (300, 12, {"tied_embeddings": True}),
        (300, 12, {"epochs": 60, "patience": 0}),
    ],
    ids=str,
)
def test_tiny_texts_do_not_diverge(tmp_path, boundary, sentences, words, given):
    store = store_of(tmp_path, random_lines(0, sentences, words), boundary)
    record = train(store, tmp_path / "run", threads=1, progress=False, **given)
    assert record["finished"]
    assert record["best_valid_perplexity"] < len(store.vocabulary)


@pytest.mark.slow
def test_a_text_in_which_nearly_all_words_are_rare_does_not_diverge(tmp_path):
    rng = np.random.default_rng(0)
    ids = np.concatenate([np.arange(20_000), rng.integers(0, 20_000, 20_000)])
    lines = [" ".join(f"w{i}" for i in ids[first : first + 20]) for first in range(0, ids.size, 20)]
    store = store_of(tmp_path, lines)
    record = train(store, tmp_path / "run", threads=1, progress=False)
    assert record["best_valid_perplexity"] < 2 * len(store.vocabulary)
