"""The configuration of a training run: nested, frozen dataclasses that validate themselves.

    TrainConfig(
        model=ModelConfig(context=2, dim=100),
        loss=NCE(samples=50),
        noise=PowerNoise(power=0.75),
        optimizer=Adagrad(warmup_steps=100),
        schedule=Linear(epochs=2),
        learning_rate=0.16,
    )

The loss, the noise distribution, the optimizer and the learning-rate schedule are tagged unions: each alternative has only the
fields that it uses, and a class attribute `name`, its tag. `TrainConfig().with_changes(dim=50, loss="ml")` sets the same fields by flat
names, which `ncelm.training.options` lists. Errors use these flat names, in backticks; see `options.with_flags`.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

from ncelm.errors import NcelmError
from ncelm.losses.functions import Member
from ncelm.models.log_bilinear import ModelConfig

LogNormalizers = Literal["fixed", "learned"]
EngineName = Literal["compiled", "torch"]


# -- validation ------------------------------------------------------------------------------------------------------


def _check(option: str, value: object, valid: bool, expected: str) -> None:
    if not valid:
        raise NcelmError(f"`{option}` is {value!r}: give {expected}")


def _check_int(option: str, value: object, low: int, high: int) -> None:
    # bool is a subclass of int
    _check(option, value, type(value) is int and low <= value <= high, f"a whole number from {low:,} to {high:,}")


def _check_float(option: str, value: object, low: float, high: float, positive: bool = False) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    valid = number and low <= value <= high and (value > 0 or not positive)  # type: ignore[operator]
    _check(
        option,
        value,
        valid,
        f"a positive number, at most {high:g}" if positive else f"a number from {low:g} to {high:g}",
    )


def _check_bool(option: str, value: object) -> None:
    _check(option, value, type(value) is bool, "True or False")


def _check_choice(option: str, value: object, choices: tuple[str, ...]) -> None:
    _check(option, value, isinstance(value, str) and value in choices, f"one of {', '.join(choices)}")


def _check_samples(samples: object) -> None:
    _check_int("noise_samples", samples, 1, 100_000)


# -- losses ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NCE:
    """Noise-contrastive estimation: classify words as text or noise (Eq. 7-13)."""

    name: ClassVar[str] = "nce"
    samples: int = 25  # noise samples per target word, or per minibatch with shared_noise: k
    shared_noise: bool = False  # one set of noise samples for all words of a minibatch
    log_normalizers: LogNormalizers = "fixed"  # c_h is 0, or one learned parameter per distinct context
    log_z_penalty: float = 0.0  # coefficient of the squared log-normalizer, estimated from the noise samples

    def __post_init__(self) -> None:
        _check_samples(self.samples)
        _check_bool("shared_noise", self.shared_noise)
        _check_choice("log_normalizers", self.log_normalizers, get_args(LogNormalizers))
        _check_float("log_z_penalty", self.log_z_penalty, 0, 1e6)
        if self.shared_noise and self.log_normalizers == "learned":
            raise NcelmError("`shared_noise` goes with `log_normalizers` fixed, not learned: change one of them")


@dataclass(frozen=True)
class Ranking:
    """Ranking NCE (Ma & Collins 2018): softmax over the target and the noise samples of s(w, h) - log Pn(w)."""

    name: ClassVar[str] = "ranking"
    samples: int = 25
    shared_noise: bool = False
    log_z_penalty: float = 0.0

    def __post_init__(self) -> None:
        _check_samples(self.samples)
        _check_bool("shared_noise", self.shared_noise)
        _check_float("log_z_penalty", self.log_z_penalty, 0, 1e6)


@dataclass(frozen=True)
class MaximumLikelihood:
    """Exact maximum likelihood (Eq. 4): the normalizer is a sum over the vocabulary."""

    name: ClassVar[str] = "ml"


@dataclass(frozen=True)
class ImportanceSampling:
    """Importance sampling of the likelihood gradient (Eq. 5), with a fixed or an adaptive number of samples."""

    name: ClassVar[str] = "importance"
    samples: int = 25
    min_effective_samples: float = 0.0  # draw until the effective sample size is at least this; 0: a fixed number
    max_samples: int = 1000  # upper limit of the adaptive number of samples

    def __post_init__(self) -> None:
        _check_samples(self.samples)
        _check_int("max_samples", self.max_samples, 1, 100_000)
        _check_float("min_effective_samples", self.min_effective_samples, 0, 100_000)
        effective = self.min_effective_samples
        _check("min_effective_samples", effective, effective <= self.max_samples, "a number from 0 to `max_samples`")
        _check("max_samples", self.max_samples, self.samples <= self.max_samples or not self.adaptive,
               f"at least the {self.samples} of `noise_samples`")  # fmt: skip

    @property
    def adaptive(self) -> bool:
        """Whether the number of samples depends on the effective sample size."""
        return self.min_effective_samples > 0


@dataclass(frozen=True)
class ContrastiveFamily:
    """A member of the family of estimators of Pihlaja, Gutmann & Hyvärinen (2010), which includes NCE."""

    name: ClassVar[str] = "family"
    member: Member = "nce"
    samples: int = 25
    log_normalizers: LogNormalizers = "fixed"

    def __post_init__(self) -> None:
        _check_choice("family_member", self.member, get_args(Member))
        _check_samples(self.samples)
        _check_choice("log_normalizers", self.log_normalizers, get_args(LogNormalizers))


Loss = NCE | Ranking | MaximumLikelihood | ImportanceSampling | ContrastiveFamily


# -- noise distributions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnigramNoise:
    """Pn(w) is proportional to the training count of w."""

    name: ClassVar[str] = "unigram"


@dataclass(frozen=True)
class UniformNoise:
    """Pn(w) is the same for all words."""

    name: ClassVar[str] = "uniform"


@dataclass(frozen=True)
class PowerNoise:
    """Pn(w) is proportional to a power of the training count of w."""

    name: ClassVar[str] = "power"
    power: float = 0.75

    def __post_init__(self) -> None:
        _check_float("noise_power", self.power, 0, 10)


@dataclass(frozen=True)
class BigramNoise:
    """Pn(w|v) is the bigram distribution of the training text, smoothed with the unigram distribution."""

    name: ClassVar[str] = "bigram"
    smoothing: float = 1000.0  # α: weight of the unigram distribution, in counts

    def __post_init__(self) -> None:
        _check_float("bigram_smoothing", self.smoothing, 0, 1e6, positive=True)


NoiseDistribution = UnigramNoise | UniformNoise | PowerNoise | BigramNoise


# -- optimizers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent."""

    name: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class Adagrad:
    """Adagrad: each coordinate's gradient is divided by the root of its accumulated squares."""

    name: ClassVar[str] = "adagrad"
    initial_accumulator: float = 0.0
    warmup_steps: int = 20

    def __post_init__(self) -> None:
        _check_float("initial_accumulator", self.initial_accumulator, 0, 1e6)
        _check_int("warmup_steps", self.warmup_steps, 1, 1_000_000_000)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba 2015): running means of gradients and of their squares."""

    name: ClassVar[str] = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    warmup_steps: int = 20

    def __post_init__(self) -> None:
        for option, beta in (("adam_beta1", self.beta1), ("adam_beta2", self.beta2)):
            _check_float(option, beta, 0, 1)
            _check(option, beta, beta < 1, "a number from 0 to less than 1")
        _check_float("adam_epsilon", self.epsilon, 0, 1, positive=True)
        _check_int("warmup_steps", self.warmup_steps, 1, 1_000_000_000)


Optimizer = Sgd | Adagrad | Adam


# -- learning-rate schedules -----------------------------------------------------------------------------------------


def _check_epochs(epochs: object) -> None:
    _check_int("epochs", epochs, 1, 1_000_000)


@dataclass(frozen=True)
class Linear:
    """The learning rate decays linearly to zero over all epochs."""

    name: ClassVar[str] = "linear"
    epochs: int = 5

    def __post_init__(self) -> None:
        _check_epochs(self.epochs)


@dataclass(frozen=True)
class Halve:
    """The learning rate is halved when validation perplexity stops falling; early stopping."""

    name: ClassVar[str] = "halve"
    epochs: int = 5  # at most
    patience: int = 3  # epochs without improvement before training stops
    min_improvement: float = 0.001  # relative decrease of validation perplexity that counts as an improvement

    def __post_init__(self) -> None:
        _check_epochs(self.epochs)
        _check_int("patience", self.patience, 1, 1_000_000_000)
        _check_float("min_improvement", self.min_improvement, 0, 1)


Schedule = Linear | Halve


# -- the rest --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Regularization:
    """Weight decay, dropout and gradient clipping."""

    weight_decay: float = 0.0  # λ: λ times a row is added to its gradient in each update of the row
    weight_decay_per_epoch: float = 0.0  # the same, divided by the expected number of updates of the row in an epoch
    dropout: float = 0.0  # probability of a coordinate of the predicted vector to be zero in training
    clip_norm: float = 0.0  # PyTorch: maximum norm of the gradients of layers (not of embeddings); 0: no clipping

    def __post_init__(self) -> None:
        for name in ("weight_decay", "weight_decay_per_epoch", "clip_norm"):
            _check_float(name, getattr(self, name), 0, 1e6)
        _check_float("dropout", self.dropout, 0, 0.9)


@dataclass(frozen=True)
class Init:
    """Initial word vectors."""

    std: float = 0.1  # standard deviation of random initial values
    run: str = ""  # path of a run whose word vectors, cut to `dim` and scaled to length 1, replace random ones

    def __post_init__(self) -> None:
        _check_float("init_std", self.std, 0, 1e6, positive=True)
        _check("init_from", self.run, isinstance(self.run, str) and "\0" not in self.run, "the path of a run")


@dataclass(frozen=True)
class Distributed:
    """Training with several processes (torchrun)."""

    sync_interval: int = 0  # words of text between two synchronisations; 0: a default that depends on the text

    def __post_init__(self) -> None:
        _check_int("sync_interval", self.sync_interval, 0, 1_000_000_000)


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
            value = getattr(self, slot)
            if not isinstance(value, tuple(alternatives.values())):
                names = ", ".join(alternative.__name__ for alternative in alternatives.values())
                raise NcelmError(
                    f"`{slot}` is {value!r}: give a {names}, or a name to with_changes, such as {slot}={next(iter(alternatives))!r}"
                )
        for slot, part in PARTS.items():
            _check(slot, getattr(self, slot), isinstance(getattr(self, slot), part), f"a {part.__name__}")
        _check_float("learning_rate", self.learning_rate, 0, 1e6, positive=True)
        _check_float("matrix_lr_scale", self.matrix_lr_scale, 0, 1e6)
        _check_int("batch_size", self.batch_size, 1, 1_000_000)
        _check_int("bptt_length", self.bptt_length, 1, 1_000_000)
        _check_int("seed", self.seed, 0, 2**63 - 1)
        _check_choice("engine", self.engine, get_args(EngineName))
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Check what the types of the fields do not exclude."""
        architecture, bigram = self.model.architecture, isinstance(self.noise, BigramNoise)
        if architecture == "lstm":
            _check("bptt_length", self.bptt_length, self.bptt_length <= self.batch_size, "at most `batch_size`")
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
        """Return the configuration that `to_dict` wrote. The content is not trusted; fields that it lacks have defaults."""
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
