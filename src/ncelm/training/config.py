"""The configuration of a training run: nested, frozen dataclasses that validate themselves.

    TrainConfig(
        model=ModelConfig(context=2, dim=100),
        loss=NCE(samples=50),
        noise=PowerNoise(power=0.75),
        optimizer=Adagrad(warmup_steps=100),
        schedule=Linear(epochs=2),
        learning_rate=0.16,
    )

The loss, the noise distribution, the optimizer and the learning-rate schedule are tagged unions: each alternative has
only the fields that it uses, and a class attribute `name`, its tag. `TrainConfig().with_changes(dim=50, loss="ml")`
sets the same fields by flat names, which `ncelm.training.options` lists. Errors use the flat names, in backticks.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from ncelm.arguments import check, check_choice, check_float, check_int, check_type, set_checked
from ncelm.errors import NcelmError
from ncelm.models.log_bilinear import ModelConfig
from ncelm.training.parts import (
    NCE,
    Adagrad,
    Adam,
    BigramNoise,
    ContrastiveFamily,
    Distributed,
    Halve,
    ImportanceSampling,
    Init,
    Linear,
    Loss,
    MaximumLikelihood,
    NoiseDistribution,
    Optimizer,
    PowerNoise,
    Ranking,
    Regularization,
    Schedule,
    Sgd,
    UniformNoise,
    UnigramNoise,
    Validation,
)

__all__ = [
    "NCE",
    "PARTS",
    "UNIONS",
    "Adagrad",
    "Adam",
    "BigramNoise",
    "ContrastiveFamily",
    "Distributed",
    "EngineName",
    "Halve",
    "ImportanceSampling",
    "Init",
    "Linear",
    "Loss",
    "MaximumLikelihood",
    "ModelConfig",
    "NoiseDistribution",
    "Optimizer",
    "PowerNoise",
    "Ranking",
    "Regularization",
    "Schedule",
    "Sgd",
    "TrainConfig",
    "UniformNoise",
    "UnigramNoise",
    "Validation",
]

EngineName = Literal["compiled", "torch"]

# The alternatives of each tagged union, by the field of TrainConfig and by tag
UNIONS: dict[str, dict[str, type]] = {
    slot: {alternative.name: alternative for alternative in get_args(union)}
    for slot, union in (
        ("loss", Loss),
        ("noise", NoiseDistribution),
        ("optimizer", Optimizer),
        ("schedule", Schedule),
    )
}
# The other nested fields
PARTS: dict[str, type] = {
    "model": ModelConfig,
    "regularization": Regularization,
    "validation": Validation,
    "init": Init,
    "distributed": Distributed,
}


@dataclass(frozen=True)
class TrainConfig:
    """Everything that determines the trained model. The number of threads does not."""

    model: ModelConfig = field(default_factory=ModelConfig)
    loss: Loss = field(default_factory=NCE)
    noise: NoiseDistribution = field(default_factory=UnigramNoise)  # maximum likelihood does not use it
    optimizer: Optimizer = field(default_factory=Adagrad)
    schedule: Schedule = field(default_factory=Linear)
    regularization: Regularization = field(default_factory=Regularization)
    validation: Validation = field(default_factory=Validation)
    init: Init = field(default_factory=Init)
    distributed: Distributed = field(default_factory=Distributed)
    learning_rate: float = 0.1  # of word vectors and biases; gradients are summed over a minibatch
    matrix_lr_scale: float = 0.1  # learning rate of context matrices and layers, as a fraction of learning_rate
    batch_size: int = 1000
    bptt_length: int = 35  # LSTM: truncated back-propagation through time
    seed: int = 0
    engine: EngineName = "compiled"  # for log-bilinear models; all others need PyTorch

    def __post_init__(self) -> None:
        for slot, alternatives in UNIONS.items():
            value, names = getattr(self, slot), ", ".join(each.__name__ for each in alternatives.values())
            valid = isinstance(value, tuple(alternatives.values()))
            check_type(slot, value, valid, f"a {names}; with_changes also takes a name")
        for slot, part in PARTS.items():
            check_type(slot, getattr(self, slot), isinstance(getattr(self, slot), part), f"a {part.__name__}")
        set_checked(self, "learning_rate", check_float("learning_rate", self.learning_rate, 0, 1e6, positive=True))
        set_checked(self, "matrix_lr_scale", check_float("matrix_lr_scale", self.matrix_lr_scale, 0, 1e6))
        set_checked(self, "batch_size", check_int("batch_size", self.batch_size, 1, 1_000_000))
        set_checked(self, "bptt_length", check_int("bptt_length", self.bptt_length, 1, 1_000_000))
        set_checked(self, "seed", check_int("seed", self.seed, 0, 2**63 - 1))
        check_choice("engine", self.engine, get_args(EngineName))
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Check what the types of the fields do not exclude."""
        architecture, bigram = self.model.architecture, isinstance(self.noise, BigramNoise)
        if architecture == "lstm":
            check("bptt_length", self.bptt_length, self.bptt_length <= self.batch_size, "at most `batch_size`")
        if self.init.run and architecture == "maximum-entropy":
            raise NcelmError("a maximum-entropy model has no word vectors: leave `init_from` out")
        if bigram and getattr(self.loss, "shared_noise", False):
            raise NcelmError("`shared_noise` goes with any `noise` but bigram: change one of them")
        if bigram and self.sampled and self.model.context == 0:
            raise NcelmError("`noise` bigram depends on the previous word: set `context` to at least 1")
        if self.backend == "torch":
            self._check_torch()

    def _check_torch(self) -> None:
        for option, used in (
            ("`loss` family", isinstance(self.loss, ContrastiveFamily)),
            ("`log_normalizers` learned", self.learned_log_normalizers),
            ("`min_effective_samples`", isinstance(self.loss, ImportanceSampling) and self.loss.adaptive),
            ("`weight_decay`", self.regularization.weight_decay > 0),
            ("`weight_decay_per_epoch`", self.regularization.weight_decay_per_epoch > 0),
        ):
            if used:
                raise NcelmError(f"{option} goes with `architecture` log-bilinear and `engine` compiled only")

    @property
    def backend(self) -> EngineName:
        """The engine that trains the model: PyTorch for all architectures but the log-bilinear one."""
        return self.engine if self.model.architecture == "log-bilinear" else "torch"

    @property
    def sampled(self) -> bool:
        """Whether the loss uses noise samples."""
        return not isinstance(self.loss, MaximumLikelihood)

    @property
    def learned_log_normalizers(self) -> bool:
        """Whether there is a learned log-normalizer c_h per context."""
        return getattr(self.loss, "log_normalizers", "fixed") == "learned"

    def with_changes(self, **changes: Any) -> "TrainConfig":
        """Return a copy with some options changed, by flat name: with_changes(dim=50, loss="ml", epochs=3).

        A nested field may be replaced as a whole: with_changes(loss=NCE(samples=50)). See `options.from_flat`.
        """
        from ncelm.training.options import from_flat

        return from_flat(changes, self)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as nested dictionaries for JSON; unions have their tag as "name"."""
        content: dict[str, Any] = {}
        for slot in fields(self):
            value = getattr(self, slot.name)
            if slot.name in UNIONS:
                content[slot.name] = {"name": value.name, **vars(value)}
            else:
                content[slot.name] = dict(vars(value)) if slot.name in PARTS else value
        return content

    @classmethod
    def from_dict(cls, content: Any) -> "TrainConfig":
        """Return the configuration that `to_dict` wrote. The content is not trusted; missing fields have defaults."""
        given = dict(_dictionary("configuration", content))
        for slot, alternatives in UNIONS.items():
            if slot in given:
                values = dict(_dictionary(slot, given[slot]))
                name = values.pop("name", None)
                if not isinstance(name, str) or name not in alternatives:
                    raise _damaged(f"{slot} has no known name")
                given[slot] = _build(alternatives[name], slot, values)
        for slot, part in PARTS.items():
            if slot in given:
                given[slot] = _build(part, slot, _dictionary(slot, given[slot]))
        return _build(cls, "configuration", given)


def _build(kind: type, where: str, values: dict[str, Any]) -> Any:
    """Return an instance of a dataclass with values that are not trusted."""
    unknown = sorted(set(values) - {each.name for each in fields(kind)})
    if unknown:
        raise _damaged(f"{where} has an unknown field {unknown[0][:40]!r}")
    try:
        return kind(**values)
    except (NcelmError, TypeError, ValueError, OverflowError) as error:
        raise _damaged(str(error)) from error


def _dictionary(where: str, content: Any) -> dict[str, Any]:
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise _damaged(f"{where} is not an object")
    return content


def _damaged(reason: str) -> NcelmError:
    return NcelmError(f"the training configuration is damaged: {reason}")
