"""The parts of a training configuration: losses, noise distributions, optimizers, schedules and the rest.

Each class is a frozen dataclass that validates itself; errors name options by their flat names, in backticks. The
alternatives of a tagged union have a class attribute `name`.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from ncelm.arguments import check, check_bool, check_choice, check_float, check_int, check_str, set_checked
from ncelm.errors import NcelmError
from ncelm.losses.functions import Member

LogNormalizers = Literal["fixed", "learned"]


# -- validation ------------------------------------------------------------------------------------------------------


def _set_samples(loss: object, samples: object) -> None:
    set_checked(loss, "samples", check_int("noise_samples", samples, 1, 100_000))


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
        _set_samples(self, self.samples)
        check_bool("shared_noise", self.shared_noise)
        check_choice("log_normalizers", self.log_normalizers, get_args(LogNormalizers))
        set_checked(self, "log_z_penalty", check_float("log_z_penalty", self.log_z_penalty, 0, 1e6))
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
        _set_samples(self, self.samples)
        check_bool("shared_noise", self.shared_noise)
        set_checked(self, "log_z_penalty", check_float("log_z_penalty", self.log_z_penalty, 0, 1e6))


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
        _set_samples(self, self.samples)
        set_checked(self, "max_samples", check_int("max_samples", self.max_samples, 1, 100_000))
        set_checked(
            self, "min_effective_samples", check_float("min_effective_samples", self.min_effective_samples, 0, 100_000)
        )
        effective = self.min_effective_samples
        check("min_effective_samples", effective, effective <= self.max_samples, "a number from 0 to `max_samples`")
        check("max_samples", self.max_samples, self.samples <= self.max_samples or not self.adaptive,
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
        check_choice("family_member", self.member, get_args(Member))
        _set_samples(self, self.samples)
        check_choice("log_normalizers", self.log_normalizers, get_args(LogNormalizers))


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
        set_checked(self, "power", check_float("noise_power", self.power, 0, 10))


@dataclass(frozen=True)
class BigramNoise:
    """Pn(w|v) is the bigram distribution of the training text, smoothed with the unigram distribution."""

    name: ClassVar[str] = "bigram"
    smoothing: float = 1000.0  # α: weight of the unigram distribution, in counts

    def __post_init__(self) -> None:
        set_checked(self, "smoothing", check_float("bigram_smoothing", self.smoothing, 0, 1e6, positive=True))


NoiseDistribution = UnigramNoise | UniformNoise | PowerNoise | BigramNoise


# -- optimizers: `statistics` names the arrays that they keep per parameter ------------------------------------------


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent."""

    name: ClassVar[str] = "sgd"
    statistics: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Adagrad:
    """Adagrad: each coordinate's gradient is divided by the root of its accumulated squares."""

    name: ClassVar[str] = "adagrad"
    statistics: ClassVar[tuple[str, ...]] = ("accumulator",)
    initial_accumulator: float = 0.0
    warmup_steps: int = 20

    def __post_init__(self) -> None:
        set_checked(self, "initial_accumulator", check_float("initial_accumulator", self.initial_accumulator, 0, 1e6))
        set_checked(self, "warmup_steps", check_int("warmup_steps", self.warmup_steps, 1, 1_000_000_000))


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba 2015): running means of gradients and of their squares."""

    name: ClassVar[str] = "adam"
    statistics: ClassVar[tuple[str, ...]] = ("momentum", "accumulator")
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    warmup_steps: int = 20

    def __post_init__(self) -> None:
        for field, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            set_checked(self, field, check_float(f"adam_{field}", beta, 0, 1))
            check(f"adam_{field}", beta, beta < 1, "a number from 0 to less than 1")
        set_checked(self, "epsilon", check_float("adam_epsilon", self.epsilon, 0, 1, positive=True))
        set_checked(self, "warmup_steps", check_int("warmup_steps", self.warmup_steps, 1, 1_000_000_000))


Optimizer = Sgd | Adagrad | Adam


# -- learning-rate schedules -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Linear:
    """The learning rate decays linearly to zero over all epochs; early stopping if `patience` is given."""

    name: ClassVar[str] = "linear"
    epochs: float = 5  # 2.5: training ends in the middle of the third epoch
    patience: int = 0  # epochs without improvement before training stops; 0: never

    def __post_init__(self) -> None:
        epochs = check_float("epochs", self.epochs, 0, 1_000_000, positive=True)
        set_checked(self, "epochs", int(epochs) if epochs.is_integer() else epochs)
        set_checked(self, "patience", check_int("patience", self.patience, 0, 1_000_000_000))


@dataclass(frozen=True)
class Halve:
    """The learning rate is halved when validation perplexity stops falling; early stopping."""

    name: ClassVar[str] = "halve"
    epochs: int = 5  # at most
    patience: int = 3  # epochs without improvement before training stops
    min_improvement: float = 0.001  # relative decrease of validation perplexity that counts as an improvement

    def __post_init__(self) -> None:
        epochs: float = self.epochs
        whole = isinstance(epochs, float) and epochs.is_integer()
        set_checked(self, "epochs", check_int("epochs", int(epochs) if whole else epochs, 1, 1_000_000))
        set_checked(self, "patience", check_int("patience", self.patience, 1, 1_000_000_000))
        set_checked(self, "min_improvement", check_float("min_improvement", self.min_improvement, 0, 1))


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
            set_checked(self, name, check_float(name, getattr(self, name), 0, 1e6))
        set_checked(self, "dropout", check_float("dropout", self.dropout, 0, 0.9))


@dataclass(frozen=True)
class Validation:
    """Validation during training, on a sample of the validation text, and at the end."""

    interval: int = 1  # epochs between two validations
    words: int = 0  # words of the validation text that are evaluated; 0: as many as take little time
    final_words: int = 0  # words that are evaluated at the end; 0: all

    def __post_init__(self) -> None:
        set_checked(self, "interval", check_int("validation_interval", self.interval, 1, 1_000_000))
        set_checked(self, "words", check_int("validation_words", self.words, 0, 1_000_000_000_000))
        set_checked(self, "final_words", check_int("final_validation_words", self.final_words, 0, 1_000_000_000_000))


@dataclass(frozen=True)
class Init:
    """Initial word vectors."""

    std: float = 0.1  # standard deviation of random initial values
    run: str = ""  # path of a run whose word vectors, cut to `dim` and scaled to length 1, replace random ones

    def __post_init__(self) -> None:
        set_checked(self, "std", check_float("init_std", self.std, 0, 1e6, positive=True))
        check_str("init_from", self.run, "the path of a run, as a str")
        check("init_from", self.run, "\0" not in self.run, "a path without a NUL character")


@dataclass(frozen=True)
class Distributed:
    """Training with several processes (torchrun)."""

    sync_interval: int = 0  # words of text between two synchronisations; 0: a default that depends on the text

    def __post_init__(self) -> None:
        set_checked(self, "sync_interval", check_int("sync_interval", self.sync_interval, 0, 1_000_000_000))
