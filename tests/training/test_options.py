"""The registry of flat options, and conversion between flat options and the nested configuration."""

from dataclasses import fields

import pytest

from ncelm.errors import NcelmError
from ncelm.models.log_bilinear import ModelConfig
from ncelm.training.config import (
    NCE,
    PARTS,
    UNIONS,
    Adagrad,
    Adam,
    BigramNoise,
    ContrastiveFamily,
    Halve,
    ImportanceSampling,
    Linear,
    MaximumLikelihood,
    PowerNoise,
    Ranking,
    Sgd,
    TrainConfig,
)
from ncelm.training.options import OPTIONS, flag, from_flat, goes_with, to_flat
from ncelm.training.recipes import RECIPES, recipe


def test_every_field_of_the_configuration_is_an_option():
    paths = {option.path for option in OPTIONS.values()}
    assert len(paths) == len(OPTIONS)
    expected = {(each.name,) for each in fields(TrainConfig) if each.name not in PARTS}
    for slot, alternatives in UNIONS.items():
        expected |= {(slot, each.name) for alternative in alternatives.values() for each in fields(alternative)}
    for slot, part in PARTS.items():
        expected |= {(slot, each.name) for each in fields(part)}
    assert paths == expected


def test_names_flags_and_types():
    assert set(OPTIONS) == {
        "architecture", "context", "context_after", "dim", "matrices", "tied_embeddings", "hidden", "features",
        "loss", "noise_samples", "shared_noise", "log_normalizers", "log_z_penalty", "family_member",
        "min_effective_samples", "max_samples", "noise", "noise_power", "bigram_smoothing",
        "optimizer", "initial_accumulator", "warmup_steps", "adam_beta1", "adam_beta2", "adam_epsilon",
        "schedule", "epochs", "patience", "min_improvement", "learning_rate", "matrix_lr_scale", "batch_size",
        "weight_decay", "weight_decay_per_epoch", "dropout", "clip_norm", "init_std", "init_from", "bptt_length",
        "sync_interval", "seed", "engine", "validation_interval", "validation_words", "final_validation_words",
    }  # fmt: skip
    assert flag("noise_samples") == "--noise-samples"
    assert flag("architecture") == "--model"
    assert flag("checkpoint_minutes") == "--checkpoint-minutes"
    assert OPTIONS["learning_rate"].aliases == ("--lr",)
    assert {option.type for option in OPTIONS.values()} == {bool, int, float, str}
    assert OPTIONS["loss"].choices == ("nce", "ranking", "ml", "importance", "family")
    assert OPTIONS["matrices"].choices == ("full", "diagonal")
    assert OPTIONS["init_from"].choices == ()
    assert OPTIONS["noise_samples"].goes_with == {"loss": ("nce", "ranking", "importance", "family")}
    assert OPTIONS["noise_power"].goes_with["noise"] == ("power",)
    assert OPTIONS["epochs"].goes_with == {}


def test_the_most_common_groups_come_first():
    groups = list(dict.fromkeys(option.group for option in OPTIONS.values()))
    assert groups[:3] == ["model", "loss and noise", "optimizer and schedule"]
    for option in OPTIONS.values():
        assert option.help.endswith(".")
        assert option.help[0].isupper()


@pytest.mark.parametrize("name", RECIPES)
def test_flat_options_round_trip(name):
    config = recipe(name)
    flat = to_flat(config)
    assert from_flat(flat, config) == config
    assert from_flat(flat) == config
    assert set(flat) <= set(OPTIONS)
    if config.sampled:
        assert flat["noise_samples"] == config.loss.samples


def test_flat_options_leave_out_what_does_not_go_with_the_configuration():
    assert {"noise", "noise_samples", "max_samples", "min_improvement"}.isdisjoint(
        to_flat(TrainConfig(loss=MaximumLikelihood()))
    )
    flat = to_flat(TrainConfig(optimizer=Adam(), schedule=Halve()))
    assert {"adam_beta1", "warmup_steps", "min_improvement"} <= set(flat)
    assert "initial_accumulator" not in flat


def test_options_set_nested_fields():
    config = TrainConfig().with_changes(
        dim=7, noise_samples=3, noise="power", noise_power=0.5, optimizer="adam", adam_beta1=0.5, schedule="halve",
        patience=2, dropout=0.1, init_std=0.2, init_from="run", sync_interval=9, seed=4,
    )  # fmt: skip
    assert config.model.dim == 7
    assert config.loss == NCE(samples=3)
    assert config.noise == PowerNoise(0.5)
    assert config.optimizer == Adam(beta1=0.5)
    assert config.schedule == Halve(patience=2)
    assert config.regularization.dropout == 0.1
    assert (config.init.std, config.init.run) == (0.2, "run")
    assert config.distributed.sync_interval == 9
    assert config.seed == 4


def test_nested_fields_can_be_given_as_a_whole():
    config = TrainConfig().with_changes(loss=Ranking(samples=3), model=ModelConfig(dim=5), context=1, noise_samples=4)
    assert config.loss == Ranking(samples=4)
    assert config.model == ModelConfig(dim=5, context=1)
    with pytest.raises(NcelmError, match="`model` is 'lstm': give a ModelConfig"):
        TrainConfig().with_changes(model="lstm")


def test_another_alternative_keeps_shared_fields_and_has_defaults_for_others():
    nce = TrainConfig(
        loss=NCE(samples=7, log_normalizers="learned", log_z_penalty=0.5), schedule=Halve(epochs=9, patience=1)
    )
    assert nce.with_changes(loss="family").loss == ContrastiveFamily(samples=7, log_normalizers="learned")
    assert nce.with_changes(loss="ranking").loss == Ranking(samples=7, log_z_penalty=0.5)
    assert nce.with_changes(loss="importance").loss == ImportanceSampling(samples=7)
    assert nce.with_changes(loss="ml").loss == MaximumLikelihood()
    assert nce.with_changes(loss="ml").with_changes(loss="nce").loss == NCE()
    assert nce.with_changes(schedule="linear").schedule == Linear(epochs=9, patience=1)
    assert nce.with_changes(loss="nce") == nce
    shared = TrainConfig(loss=NCE(samples=50, shared_noise=True))
    assert shared.with_changes(loss="ranking").loss == Ranking(samples=50, shared_noise=True)
    adagrad = TrainConfig(optimizer=Adagrad(initial_accumulator=0.5, warmup_steps=99))
    assert adagrad.with_changes(optimizer="adam").optimizer == Adam(warmup_steps=99)
    assert adagrad.with_changes(optimizer="sgd").optimizer == Sgd()
    bigram = TrainConfig(noise=BigramNoise(smoothing=5.0))
    assert bigram.with_changes(noise="bigram").noise == BigramNoise(smoothing=5.0)
    assert bigram.with_changes(loss="ml").noise == BigramNoise(smoothing=5.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "ml", "noise_samples": 5}, "`noise_samples` goes with `loss` nce, ranking, importance or family"),
        ({"loss": "ml", "noise": "uniform"}, "`noise` goes with `loss` nce, ranking, importance or family, not ml"),
        ({"loss": "ml", "shared_noise": True}, "`shared_noise` goes with `loss` nce or ranking, not ml"),
        ({"loss": "importance", "log_normalizers": "learned"}, "`log_normalizers` goes with `loss` nce or family, not"),
        ({"loss": "family", "log_z_penalty": 0.1}, "`log_z_penalty` goes with `loss` nce or ranking, not family"),
        ({"family_member": "root"}, "`family_member` goes with `loss` family, not nce"),
        ({"max_samples": 50}, "`max_samples` goes with `loss` importance, not nce"),
        ({"noise_power": 0.5}, "`noise_power` goes with `noise` power, not unigram"),
        ({"noise": "power", "bigram_smoothing": 5.0}, "`bigram_smoothing` goes with `noise` bigram, not power"),
        ({"optimizer": "sgd", "warmup_steps": 5}, "`warmup_steps` goes with `optimizer` adagrad or adam, not sgd"),
        ({"adam_beta1": 0.5}, "`adam_beta1` goes with `optimizer` adam, not adagrad"),
        ({"optimizer": "adam", "initial_accumulator": 0.1}, "`initial_accumulator` goes with `optimizer` adagrad"),
        ({"min_improvement": 0.1}, "`min_improvement` goes with `schedule` halve, not linear"),
        ({"shared_noise": True, "noise": "bigram"}, "`shared_noise` goes with any `noise` but bigram"),
        ({"shared_noise": True, "log_normalizers": "learned"}, "`shared_noise` goes with `log_normalizers` fixed"),
        ({"noise": "bigram", "context": 0, "context_after": 2}, "`noise` bigram depends"),
        ({"loss": "importance", "min_effective_samples": 50.0, "max_samples": 10}, "`min_effective_samples` is 50"),
        ({"loss": "importance", "min_effective_samples": 5.0, "max_samples": 10}, "`max_samples` is 10"),
        ({"loss": "is"}, "`loss` is 'is': give one of nce, ranking, ml, importance, family"),
        ({"noise": None}, "`noise` is None: give one of"),
        ({"optimizer": 3}, "`optimizer` is 3: give one of sgd, adagrad, adam"),
        ({"schedule": "cosine"}, "`schedule` is 'cosine': give one of linear, halve"),
        ({"dims": 3}, "there is no training option 'dims'"),
        ({"estimator": "nce"}, "there is no training option 'estimator'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)  # fmt: skip
def test_options_that_do_not_go_together_are_errors(options, message):
    with pytest.raises(NcelmError, match=message):
        TrainConfig().with_changes(**options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("noise_samples", 0), ("epochs", 0), ("batch_size", 0), ("learning_rate", 0.0), ("learning_rate", float("nan")),
        ("seed", -1), ("weight_decay", -1.0), ("dim", 0), ("context", -1), ("context", 0), ("init_std", -0.1),
        ("initial_accumulator", -1.0), ("warmup_steps", 0), ("weight_decay_per_epoch", -1.0),
        ("dim", 3.0), ("batch_size", 10.5), ("tied_embeddings", "no"), ("learning_rate", 1e300),
        ("loss", "is"), ("noise", "trigram"), ("dropout", 1.0), ("log_normalizers", "free"), ("optimizer", "rmsprop"),
        ("schedule", "cosine"), ("matrices", "none"), ("engine", "gpu"), ("log_z_penalty", -0.5),
    ],
)  # fmt: skip
def test_invalid_values_are_errors_that_name_the_option(option, value):
    with pytest.raises(NcelmError, match=f"^`{option}` "):
        TrainConfig().with_changes(**{option: value})


@pytest.mark.parametrize(
    ("chosen", "option", "value"),
    [
        ({"noise": "power"}, "noise_power", 1000.0), ({"noise": "bigram"}, "bigram_smoothing", 0.0),
        ({"loss": "family"}, "family_member", "cube"), ({"loss": "importance"}, "max_samples", 0),
        ({"loss": "importance"}, "min_effective_samples", -1.0), ({"schedule": "halve"}, "patience", 0),
        ({"optimizer": "adam"}, "adam_beta2", 1.0),
    ],
)  # fmt: skip
def test_invalid_values_of_other_alternatives_are_errors_that_name_the_option(chosen, option, value):
    with pytest.raises(NcelmError, match=f"^`{option}` is"):
        TrainConfig().with_changes(**chosen, **{option: value})


def test_goes_with():
    chosen = {"loss": "nce", "noise": "power", "optimizer": "sgd", "schedule": "linear"}
    assert goes_with(OPTIONS["noise_power"], chosen)
    assert not goes_with(OPTIONS["noise_power"], chosen | {"noise": "unigram"})
    assert not goes_with(OPTIONS["noise_power"], chosen | {"loss": "ml"})
    assert goes_with(OPTIONS["dim"], chosen)
