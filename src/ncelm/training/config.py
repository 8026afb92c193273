"""The configuration of a training run."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from ncelm.errors import NcelmError
from ncelm.kernels import records
from ncelm.kernels import steps as kernels
from ncelm.losses.functions import Member
from ncelm.models.log_bilinear import LogBilinear, ModelConfig
from ncelm.noise import NoiseKind
from ncelm.training.engine import Sizes

Estimator = Literal["nce", "ml", "importance", "family"]
Constants = Literal["fixed", "learned"]
Optimizer = Literal["sgd", "adagrad"]
Schedule = Literal["linear", "halve"]
EngineKind = Literal["compiled", "torch"]


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what is learned. The number of threads is not among it: it changes no bit."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """The shape of the model."""
    estimator: Estimator = "nce"
    """How to learn: noise-contrastive estimation; exact maximum likelihood (slow: it sums over the vocabulary);
    importance sampling (unstable: a baseline); or a member of the family of estimators that NCE belongs to."""
    member: Member = "nce"
    """For --estimator family: which one (Pihlaja et al. 2010)."""
    noise: NoiseKind = "unigram"
    """Where noise words come from: word frequencies, all words alike, frequencies to a power, or what follows
    the word before (smoothed with word frequencies)."""
    noise_power: float = 0.75
    """The power, for --noise power."""
    noise_samples: int = 25
    """Noise words for each word of the text: the paper's k."""
    bigram_smoothing: float = 1000.0
    """For --noise bigram: after a word seen n times, word frequencies weigh so much beside its n followers."""
    shared_noise: bool = False
    """The --noise-samples noise words serve all words of a minibatch: far more of them for the same time."""
    constants: Constants = "fixed"
    """NCE's normalising constants: fixed to 1, or learned, one for each context of the training text."""
    effective_samples: float = 0.0
    """Importance sampling: draw more noise words until the effective sample size is this; 0 for --noise-samples."""
    max_samples: int = 1000
    """Importance sampling: but never more than so many."""
    optimizer: Optimizer = "adagrad"
    """Plain stochastic gradient descent, or Adagrad, which needs fewer epochs."""
    adagrad_start: float = 0.0
    """Adagrad's sums of squares start at this: the more, the smaller the first steps of rare words."""
    warm_up: int = 20
    """Adagrad: updates in which the rate rises to what it is. The higher the rate, the more should they be."""
    learning_rate: float = 0.1
    """Step size for word vectors and biases; gradients are summed over a minibatch."""
    matrix_rate: float = 0.1
    """Step size for context matrices, as a fraction of --learning-rate."""
    schedule: Schedule = "linear"
    """Learning rates fall linearly to zero over all epochs, or are halved when validation perplexity stops falling."""
    epochs: int = 5
    """Passes over the training text: exactly so many with --schedule linear, at most so many with halve."""
    patience: int = 3
    """With --schedule halve: stop after so many epochs in a row without improvement of validation perplexity."""
    min_improvement: float = 0.001
    """What counts as an improvement: this fraction of the perplexity. Less halves the rates (--schedule halve)."""
    batch_size: int = 1000
    """Words of text in one minibatch."""
    penalty: float = 0.0
    """Weight penalty λ: λ times a row is taken from its gradient whenever the row is updated."""
    prior: float = 0.0
    """Weight penalty shared out over the updates of an epoch: rare words are pulled to zero as frequent ones are."""
    dropout: float = 0.0
    """Each number of a predicted vector is left out with this probability, in training only."""
    unroll: int = 35
    """A long short-term memory learns from so many words at a time; --batch-size words are several such stretches."""
    clip: float = 0.0
    """PyTorch: gradients of layers (not of word vectors) are shortened to this norm; 0 leaves them as they are."""
    exchange_words: int = 0
    """Several workers: after so many words of text they tell each other what they have learned of frequent words, and
    after twice as many (more, if the vocabulary is large) what they have learned of all. Fewer are better for the
    model, more for the network; 0 stands for a 500th of the text, but 10,000, or a 90th, of a small one."""
    spread: float = 0.1
    """Standard deviation of the word vectors at the start."""
    start_from: str = ""
    """A run (of `lsa train`, or another model of the same words) whose word vectors, cut to --dim numbers and to length
    1, are the start, instead of random ones: rare words, of which a text tells little, begin beside their like."""
    seed: int = 0
    """One seed, one result."""
    engine: EngineKind = "compiled"
    """What trains a log-bilinear model: the compiled code, or PyTorch, slowly. All other models need PyTorch."""

    def __post_init__(self) -> None:
        def check(name: str, fine: bool, wanted: str) -> None:
            if not fine:
                raise NcelmError(f"--{name.replace('_', '-')} is {getattr(self, name)}: give {wanted}")

        choices = {
            "estimator": Estimator,
            "member": Member,
            "noise": NoiseKind,
            "constants": Constants,
            "optimizer": Optimizer,
            "schedule": Schedule,
            "engine": EngineKind,
        }
        for name, kind in choices.items():
            check(name, getattr(self, name) in get_args(kind), f"one of {', '.join(get_args(kind))}")
        whole = ("noise_samples", "max_samples", "epochs", "batch_size", "patience", "seed", "warm_up", "unroll")
        for name in (*whole, "exchange_words"):
            check(name, type(getattr(self, name)) is int, "a whole number")
        check("noise_samples", 1 <= self.noise_samples <= 100_000, "a number from 1 to 100,000")
        check("epochs", 1 <= self.epochs <= 1_000_000, "a number from 1 to 1,000,000")
        check("batch_size", 1 <= self.batch_size <= 1_000_000, "a number from 1 to 1,000,000")
        check("patience", self.patience >= 1, "at least 1")
        check("unroll", 1 <= self.unroll <= 1_000_000, "a number from 1 to 1,000,000")
        if self.model.architecture == "lstm":
            check("unroll", self.unroll <= self.batch_size, "a number from 1 to --batch-size")
        check("warm_up", 1 <= self.warm_up <= 1_000_000_000, "a number from 1 to 10⁹")
        check("exchange_words", 0 <= self.exchange_words <= 1_000_000_000, "a number from 0 to 10⁹")
        check("seed", 0 <= self.seed < 2**63, "a number from 0 to 2⁶³ − 1")
        for name in ("learning_rate", "spread"):
            check(name, 0 < getattr(self, name) <= 1e6, "a positive number, at most 1e6")
        for name in ("matrix_rate", "penalty", "prior", "min_improvement", "adagrad_start", "clip"):
            check(name, 0 <= getattr(self, name) <= 1e6, "a number from 0 to 1e6")
        check("noise_power", 0 <= self.noise_power <= 10, "a number from 0 to 10")
        check("bigram_smoothing", 0 < self.bigram_smoothing <= 1e6, "a positive number, at most 1e6")
        check("effective_samples", 0 <= self.effective_samples <= self.max_samples, "a number from 0 to --max-samples")
        check("max_samples", self.noise_samples <= self.max_samples or not self.effective_samples,
              f"at least the {self.noise_samples} of --noise-samples")  # fmt: skip
        check("max_samples", 1 <= self.max_samples <= 100_000, "a number from 1 to 100,000")
        check("dropout", 0 <= self.dropout <= 0.9, "a probability from 0 to 0.9")
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Some options make sense only together."""
        if self.shared_noise and (self.estimator != "nce" or self.noise == "bigram" or self.constants == "learned"):
            raise NcelmError(
                "--shared-noise goes with --estimator nce, --constants fixed and any noise but bigram: "
                "change these, or add --no-shared-noise"
            )
        if self.constants == "learned" and self.estimator not in ("nce", "family"):
            raise NcelmError(f"--constants learned goes with --estimator nce or family, not {self.estimator}")
        if self.noise == "bigram" and self.estimator != "ml" and self.model.context == 0:
            raise NcelmError("--noise bigram needs to see the word before: give a --context of at least 1")
        if self.by_torch:
            for name, fine in (
                ("estimator family", self.estimator != "family"),
                ("constants learned", self.constants == "fixed"),
                ("effective-samples", not self.effective_samples),
                ("penalty", not self.penalty),
                ("prior", not self.prior),
            ):
                if not fine:
                    raise NcelmError(f"--{name} goes with --model log-bilinear and --engine compiled only")

    @property
    def by_torch(self) -> bool:
        """Does PyTorch train it?"""
        return self.engine == "torch" or self.model.architecture != "log-bilinear"

    def model_class(self) -> Any:
        """What makes such a model, or tells the shapes of its parameters."""
        if not self.by_torch:
            return LogBilinear
        from ncelm.torch.models import ARCHITECTURES

        return ARCHITECTURES[self.model.architecture]

    def memory_bytes(self, vocabulary_size: int, tokens: int) -> int:
        """About what training will take beside the Python process."""
        if not self.by_torch:
            return self.sizes(vocabulary_size, tokens).memory_bytes
        from ncelm.torch.engine import memory_bytes

        return memory_bytes(self, vocabulary_size)

    def with_changes(self, **changes: Any) -> "TrainConfig":
        """A copy with some fields changed; fields of the model can be named directly."""
        of_model = {name: changes.pop(name) for name in list(changes) if name in ModelConfig.__dataclass_fields__}
        unknown = set(changes) - set(TrainConfig.__dataclass_fields__)
        if unknown:
            raise NcelmError(f"there is no training option {sorted(unknown)[0]!r}")
        return replace(self, model=replace(changes.pop("model", self.model), **of_model), **changes)

    def sizes(self, vocabulary_size: int, tokens: int) -> Sizes:
        """What decides the memory that training takes, on a training text of so many tokens."""
        exact = self.estimator == "ml"
        adaptive = self.estimator == "importance" and self.effective_samples > 0
        samples = self.max_samples if adaptive else self.noise_samples
        return Sizes(
            vocabulary=vocabulary_size,
            dim=self.model.dim,
            positions=self.model.positions,
            diagonal=self.model.matrices == "diagonal",
            shared=self.model.shared_tables,
            batch=self.batch_size,
            samples=1 if exact or self.shared_noise else samples + 1,
            exact=exact,
            adagrad=self.optimizer == "adagrad",
            shared_samples=samples if self.shared_noise else 0,
            bigram_words=tokens if self.noise == "bigram" and not exact else 0,
            numbered_words=tokens if self.constants == "learned" else 0,
        )

    @property
    def method(self) -> records.Method:
        """How examples become a gradient, as the compiled code takes it."""
        member = kernels.MEMBERS.index(self.member if self.estimator == "family" else "nce")
        if self.estimator == "importance":
            member = kernels.IMPORTANCE_SAMPLING
        return records.Method(member, self.noise_samples, float(self.effective_samples), float(self.dropout))
