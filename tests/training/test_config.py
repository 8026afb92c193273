"""The nested configuration: validation by each dataclass, combinations, dictionaries that are not trusted."""

import json
import math
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields

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
    Distributed,
    Halve,
    ImportanceSampling,
    Init,
    Linear,
    MaximumLikelihood,
    PowerNoise,
    Ranking,
    Regularization,
    Sgd,
    TrainConfig,
    UniformNoise,
    UnigramNoise,
)
from ncelm.training.recipes import RECIPES, recipe

NAN = math.nan


def test_defaults():
    config = TrainConfig()
    assert config.model == ModelConfig(context=4, dim=100)
    assert config.loss == NCE(samples=25, shared_noise=False, log_normalizers="fixed", log_z_penalty=0.0)
    assert config.noise == UnigramNoise()
    assert config.optimizer == Adagrad(initial_accumulator=0.0, warmup_steps=20)
    assert config.schedule == Linear(epochs=5)
    assert config.regularization == Regularization(0.0, 0.0, 0.0, 0.0)
    assert config.init == Init(std=0.1, run="")
    assert config.distributed == Distributed(sync_interval=0)
    assert (config.learning_rate, config.matrix_lr_scale, config.batch_size) == (0.1, 0.1, 1000)
    assert (config.bptt_length, config.seed, config.engine) == (35, 0, "compiled")
    assert Adam() == Adam(beta1=0.9, beta2=0.999, epsilon=1e-8, warmup_steps=20)


def test_tags():
    assert list(UNIONS["loss"]) == ["nce", "ranking", "ml", "importance", "family"]
    assert list(UNIONS["noise"]) == ["unigram", "uniform", "power", "bigram"]
    assert list(UNIONS["optimizer"]) == ["sgd", "adagrad", "adam"]
    assert list(UNIONS["schedule"]) == ["linear", "halve"]


def test_configurations_are_frozen_and_hashable():
    config = TrainConfig()
    with pytest.raises(FrozenInstanceError):
        config.seed = 1
    with pytest.raises(FrozenInstanceError):
        config.loss.samples = 1
    assert hash(config) == hash(TrainConfig())


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: NCE(samples=0), "noise_samples"),
        (lambda: NCE(samples=True), "noise_samples"),
        (lambda: NCE(samples=2.0), "noise_samples"),
        (lambda: NCE(shared_noise=1), "shared_noise"),
        (lambda: NCE(log_normalizers="free"), "log_normalizers"),
        (lambda: NCE(log_z_penalty=-1.0), "log_z_penalty"),
        (lambda: NCE(log_z_penalty=NAN), "log_z_penalty"),
        (lambda: NCE(log_z_penalty=True), "log_z_penalty"),
        (lambda: Ranking(samples=-1), "noise_samples"),
        (lambda: Ranking(log_z_penalty=math.inf), "log_z_penalty"),
        (lambda: ImportanceSampling(max_samples=0), "max_samples"),
        (lambda: ImportanceSampling(min_effective_samples=-1.0), "min_effective_samples"),
        (lambda: ImportanceSampling(min_effective_samples=50.0, max_samples=10), "min_effective_samples"),
        (lambda: ImportanceSampling(min_effective_samples=5.0, max_samples=10), "max_samples"),
        (lambda: ContrastiveFamily(member="cube"), "family_member"),
        (lambda: ContrastiveFamily(member=["root"]), "family_member"),
        (lambda: PowerNoise(power=1000.0), "noise_power"),
        (lambda: PowerNoise(power="0.75"), "noise_power"),
        (lambda: BigramNoise(smoothing=0.0), "bigram_smoothing"),
        (lambda: Adagrad(initial_accumulator=-1.0), "initial_accumulator"),
        (lambda: Adagrad(warmup_steps=0), "warmup_steps"),
        (lambda: Adam(beta1=1.0), "adam_beta1"),
        (lambda: Adam(beta2=-0.1), "adam_beta2"),
        (lambda: Adam(beta2=NAN), "adam_beta2"),
        (lambda: Adam(epsilon=0.0), "adam_epsilon"),
        (lambda: Adam(warmup_steps=1.5), "warmup_steps"),
        (lambda: Linear(epochs=0), "epochs"),
        (lambda: Halve(epochs=None), "epochs"),
        (lambda: Halve(patience=0), "patience"),
        (lambda: Halve(min_improvement=-0.1), "min_improvement"),
        (lambda: Regularization(dropout=1.0), "dropout"),
        (lambda: Regularization(weight_decay=-1.0), "weight_decay"),
        (lambda: Regularization(weight_decay_per_epoch=NAN), "weight_decay_per_epoch"),
        (lambda: Regularization(clip_norm=-1), "clip_norm"),
        (lambda: Init(std=-0.1), "init_std"),
        (lambda: Init(std=0), "init_std"),
        (lambda: Init(run=3), "init_from"),
        (lambda: Init(run="a\0b"), "init_from"),
        (lambda: Distributed(sync_interval=-1), "sync_interval"),
        (lambda: TrainConfig(learning_rate=0.0), "learning_rate"),
        (lambda: TrainConfig(learning_rate=NAN), "learning_rate"),
        (lambda: TrainConfig(learning_rate=1e300), "learning_rate"),
        (lambda: TrainConfig(learning_rate=True), "learning_rate"),
        (lambda: TrainConfig(matrix_lr_scale=-1.0), "matrix_lr_scale"),
        (lambda: TrainConfig(batch_size=10.5), "batch_size"),
        (lambda: TrainConfig(batch_size=True), "batch_size"),
        (lambda: TrainConfig(bptt_length=0), "bptt_length"),
        (lambda: TrainConfig(seed=-1), "seed"),
        (lambda: TrainConfig(seed=2**63), "seed"),
        (lambda: TrainConfig(engine="gpu"), "engine"),
        (lambda: TrainConfig(loss="nce"), "loss"),
        (lambda: TrainConfig(noise=NCE()), "noise"),
        (lambda: TrainConfig(model={}), "model"),
        (lambda: TrainConfig(init=None), "init"),
        (lambda: ModelConfig(dim=0), "dim"),
        (lambda: ModelConfig(dim=3.0), "dim"),
        (lambda: ModelConfig(dim=True), "dim"),
        (lambda: ModelConfig(context=-1), "context"),
        (lambda: ModelConfig(context=0), "context"),
        (lambda: ModelConfig(tied_embeddings="no"), "tied_embeddings"),
        (lambda: ModelConfig(matrices="none"), "matrices"),
        (lambda: ModelConfig(architecture=["lstm"]), "architecture"),
        (lambda: ModelConfig(features=0), "features"),
    ],
)
def test_invalid_values_are_errors_that_name_the_option(make, option):
    with pytest.raises(NcelmError, match=rf"^`{option}` ") as caught:
        make()
    assert "\n" not in str(caught.value)


def test_integers_are_valid_floats():
    assert TrainConfig(learning_rate=1).learning_rate == 1
    assert Regularization(dropout=0).dropout == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NCE(shared_noise=True, log_normalizers="learned"), "`shared_noise` goes with `log_normalizers` fixed"),
        (
            lambda: TrainConfig(loss=NCE(shared_noise=True), noise=BigramNoise()),
            "`shared_noise` goes with any `noise` but bigram",
        ),
        (
            lambda: TrainConfig(loss=Ranking(shared_noise=True), noise=BigramNoise()),
            "`shared_noise` goes with any `noise` but bigram",
        ),
        (
            lambda: TrainConfig(model=ModelConfig(context=0, context_after=2), noise=BigramNoise()),
            "`noise` bigram depends on the previous word",
        ),
        (
            lambda: TrainConfig(model=ModelConfig(architecture="lstm"), bptt_length=2000),
            "`bptt_length` is 2000: give at most `batch_size`",
        ),
        (
            lambda: TrainConfig(model=ModelConfig(architecture="maximum-entropy"), init=Init(run="x")),
            "leave `init_from` out",
        ),
        (lambda: TrainConfig(engine="torch", loss=ContrastiveFamily()), "`loss` family goes with"),
        (lambda: TrainConfig(engine="torch", loss=NCE(log_normalizers="learned")), "`log_normalizers` learned goes"),
        (
            lambda: TrainConfig(engine="torch", loss=ImportanceSampling(min_effective_samples=30.0)),
            "`min_effective_samples` goes with",
        ),
        (
            lambda: TrainConfig(engine="torch", regularization=Regularization(weight_decay=0.1)),
            "`weight_decay` goes with `architecture` log-bilinear and `engine` compiled only",
        ),
    ],
)
def test_combinations_that_types_do_not_exclude_are_checked(make, message):
    with pytest.raises(NcelmError, match=message):
        make()


def test_bigram_noise_needs_no_context_if_it_is_not_used():
    config = TrainConfig(model=ModelConfig(context=0, context_after=2), noise=BigramNoise(), loss=MaximumLikelihood())
    assert not config.sampled


def test_the_backend_follows_from_the_engine_and_the_architecture():
    assert TrainConfig().backend == "compiled"
    assert TrainConfig(engine="torch").backend == "torch"
    assert TrainConfig(model=ModelConfig(architecture="lstm")).backend == "torch"


# -- dictionaries ----------------------------------------------------------------------------------------------------

CONFIGS = {name: recipe(name) for name in RECIPES} | {
    "ranking": TrainConfig(loss=Ranking(samples=3, log_z_penalty=0.1), noise=UniformNoise(), optimizer=Adam(beta1=0.5)),
    "family": TrainConfig(loss=ContrastiveFamily(member="root", log_normalizers="learned"), noise=BigramNoise(10.0)),
    "importance": TrainConfig(loss=ImportanceSampling(min_effective_samples=30.0), optimizer=Sgd(), schedule=Halve()),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_dictionaries_round_trip_through_json(name):
    config = CONFIGS[name]
    content = json.loads(json.dumps(config.to_dict()))
    assert content["loss"]["name"] == config.loss.name
    assert TrainConfig.from_dict(content) == config


def test_missing_fields_have_defaults():
    assert TrainConfig.from_dict({}) == TrainConfig()
    assert TrainConfig.from_dict({"loss": {"name": "ranking"}, "model": {"dim": 7}}) == TrainConfig(
        model=ModelConfig(dim=7), loss=Ranking()
    )


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        "nce",
        {"loss": None},
        {"loss": "nce"},
        {"loss": {}},
        {"loss": {"samples": 3}},
        {"loss": {"name": "sgd"}},
        {"loss": {"name": ["nce"]}},
        {"loss": {"name": "nce", "samples": "3"}},
        {"loss": {"name": "nce", "samples": 10**400}},
        {"loss": {"name": "nce", "member": "root"}},
        {"loss": {"name": "ml", "samples": 3}},
        {"loss": {"name": "nce", "shared_noise": True, "log_normalizers": "learned"}},
        {"loss": {"name": "nce", "shared_noise": True}, "noise": {"name": "bigram"}},
        {"noise": {"name": "power", "power": None}},
        {"optimizer": {"name": "adagrad", "__class__": 1}},
        {"schedule": {"name": "linear", "epochs": 1e9}},
        {"model": []},
        {"model": {"dim": True}},
        {"model": {"shared_tables": True}},
        {"regularization": {"dropout": NAN}},
        {"init": {"run": []}},
        {"distributed": {"sync_interval": {}}},
        {"learning_rate": "0.1"},
        {"seed": 1.0},
        {"estimator": "nce"},
        {"dim": 3},
    ],
    ids=str,
)
def test_damaged_dictionaries_are_errors(content):
    with pytest.raises(NcelmError, match="configuration is damaged") as caught:
        TrainConfig.from_dict(content)
    assert "\n" not in str(caught.value)


def test_model_configurations_of_version_1_are_read():
    assert ModelConfig.from_dict({"dim": 7, "shared_tables": True}) == ModelConfig(dim=7, tied_embeddings=True)
    for content in (None, {"size": 3}, {"dim": "7"}):
        with pytest.raises(NcelmError):
            ModelConfig.from_dict(content)


def test_every_nested_field_is_a_union_or_a_part():
    nested = {each.name for each in fields(TrainConfig) if each.default_factory.__class__ is type}
    assert nested == set(UNIONS) | set(PARTS)


def test_configurations_are_imported_without_numba():
    code = "import sys, ncelm.training.options, ncelm.training.recipes; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
