"""The registry of training options: flat names for the fields of the nested configuration.

`ncelm.train(store, out, noise_samples=50)`, `TrainConfig.with_changes(noise_samples=50)` and the flag
`--noise-samples 50` are the same option. `OPTIONS` lists all options, by group; the command line builds its flags from
it. Types, choices and the alternatives that an option goes with are read from the dataclasses of the configuration.

Errors name options in backticks, "`noise_samples` is 0: give …"; the command line replaces these names by flags.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ncelm.arguments import check_choice, check_type, shown
from ncelm.errors import ArgumentTypeError, NcelmError
from ncelm.training.config import PARTS, UNIONS, TrainConfig


@dataclass(frozen=True)
class Option:
    """A training option."""

    name: str  # flat name, a keyword of `ncelm.train`
    path: tuple[str, ...]  # of its field in TrainConfig; of a tagged union ("loss",) the option is the tag
    type: type  # bool, int, float or str
    choices: tuple[str, ...]  # allowed values of a str option; empty: any
    help: str
    group: str
    goes_with: dict[str, tuple[str, ...]]  # unions (loss, noise, optimizer, schedule) and the tags that have the option
    aliases: tuple[str, ...] = ()  # further flags

    @property
    def flag(self) -> str:
        """The flag of the command line, such as --noise-samples."""
        return _FLAGS.get(self.name, "--" + self.name.replace("_", "-"))


# Flags that differ from the names of their options
_FLAGS = {"architecture": "--model"}
# Group, then name, path and help of each option, the most common ones first
_DECLARED: dict[str, tuple[tuple[str, str, str], ...]] = {
    "model": (
        ("context", "model.context", "Number of context words before the predicted word."),
        ("dim", "model.dim", "Dimension of the word vectors."),
        ("matrices", "model.matrices",
         "Context matrices: full (section 4 of the paper) or diagonal (section 5; much faster for large dimensions)."),
        ("context_after", "model.context_after",
         "Number of context words after the predicted word. A model with context on both sides fills gaps; its scores "
         "of sentences are not probabilities."),
        ("tied_embeddings", "model.tied_embeddings", "Use one table for context vectors and target vectors."),
        ("architecture", "model.architecture",
         "Architecture of the model. All but log-bilinear need PyTorch (the extra `torch`)."),
    ),
    "loss and noise": (
        ("loss", "loss",
         "Training objective: noise-contrastive estimation (nce), ranking NCE (ranking), exact maximum likelihood (ml; "
         "slow), importance sampling (importance; unstable), or another contrastive estimator (family)."),
        ("noise_samples", "loss.samples",
         "Number of noise samples k per target word, or per minibatch with --shared-noise."),
        ("shared_noise", "loss.shared_noise",
         "Share one set of noise samples among all words of a minibatch: many more samples at the same cost."),
        ("noise", "noise",
         "Noise distribution: word frequencies (unigram), the same for all words (uniform), a power of the "
         "frequencies (power), or bigrams of the training text (bigram)."),
        ("noise_power", "noise.power", "Exponent of the word frequencies."),
        ("bigram_smoothing", "noise.smoothing",
         "Weight of the unigram distribution in smoothed bigram noise, in counts."),
        ("log_normalizers", "loss.log_normalizers",
         "Log-normalizers of NCE: fixed to zero, or one learned parameter per distinct training context."),
        ("log_z_penalty", "loss.log_z_penalty",
         "Coefficient of a penalty on the squared log-normalizer, which is estimated from the noise samples."),
        ("family_member", "loss.member",
         "Estimator of the family of Pihlaja, Gutmann and Hyvärinen (2010)."),
        ("min_effective_samples", "loss.min_effective_samples",
         "Draw samples until the effective sample size is at least this; 0 draws exactly --noise-samples."),
        ("max_samples", "loss.max_samples", "Maximum number of samples with --min-effective-samples."),
    ),
    "optimizer and schedule": (
        ("epochs", "schedule.epochs",
         "Number of epochs, which may have a fraction; with --schedule halve the maximum number."),
        ("learning_rate", "learning_rate",
         "Learning rate of word vectors and biases. Gradients are summed over a minibatch."),
        ("batch_size", "batch_size", "Number of words in a minibatch."),
        ("optimizer", "optimizer", "Optimizer. Adagrad and Adam need fewer epochs than SGD."),
        ("schedule", "schedule",
         "Learning-rate schedule: linear decay to zero over all epochs (linear), or halved when validation "
         "perplexity stops falling, with early stopping (halve)."),
        ("matrix_lr_scale", "matrix_lr_scale",
         "Learning rate of context matrices and hidden layers, as a fraction of --learning-rate."),
        ("warmup_steps", "optimizer.warmup_steps",
         "Number of updates in which the learning rate rises linearly to its value."),
        ("initial_accumulator", "optimizer.initial_accumulator",
         "Initial value of Adagrad's accumulators. A larger value shortens the first updates of rare words."),
        ("adam_beta1", "optimizer.beta1", "Decay rate of Adam's first-moment estimates."),
        ("adam_beta2", "optimizer.beta2", "Decay rate of Adam's second-moment estimates."),
        ("adam_epsilon", "optimizer.epsilon", "Term added to the denominator of Adam's updates."),
        ("patience", "schedule.patience",
         "Early stopping: stop after this number of successive validations without improvement of validation "
         "perplexity; with --schedule linear 0 for never."),
        ("min_improvement", "schedule.min_improvement",
         "Relative decrease of validation perplexity that counts as an improvement."),
        ("seed", "seed", "Seed of all random numbers. The same seed gives the same model."),
    ),
    "regularization": (
        ("dropout", "regularization.dropout", "Dropout probability of the coordinates of the predicted vector."),
        ("weight_decay", "regularization.weight_decay", "L2 weight decay, applied to a row whenever it is updated."),
        ("weight_decay_per_epoch", "regularization.weight_decay_per_epoch",
         "L2 weight decay divided by the expected number of updates of a row in an epoch, so that rows of rare "
         "and of frequent words decay alike."),
    ),
    "validation": (
        ("validation_interval", "validation.interval", "Number of epochs between two validations."),
        ("validation_words", "validation.words",
         "Number of words of the validation text that are evaluated during training; 0 for as many as take less than "
         "a tenth of the time."),
        ("final_validation_words", "validation.final_words",
         "Number of words of the validation text that are evaluated at the end; 0 for all."),
    ),
    "initialisation": (
        ("init_std", "init.std", "Standard deviation of the initial word vectors."),
        ("init_from", "init.run",
         "Initial word vectors from a run on the same token store (of `lsa train` or `train`), cut to --dim dimensions "
         "and scaled to length 1."),
    ),
    "PyTorch": (
        ("engine", "engine", "What trains a log-bilinear model: compiled code, or PyTorch (slower)."),
        ("hidden", "model.hidden", "Hidden units of a feed-forward network or an LSTM; 0 for the value of --dim."),
        ("features", "model.features", "Number of weights of a maximum-entropy model, to which n-grams are hashed."),
        ("bptt_length", "bptt_length", "Truncated back-propagation through time: words per segment of an LSTM."),
        ("clip_norm", "regularization.clip_norm",
         "Gradient clipping: maximum norm of the gradients of hidden layers; 0 for none."),
    ),
    "distributed": (
        ("sync_interval", "distributed.sync_interval",
         "Words of text, of all workers, between two synchronisations at the initial learning rate; 0 for a default "
         "that depends on the text and the number of workers. A minibatch of a worker is at most its part of it."),
    ),
}  # fmt: skip
_ALIASES = {"learning_rate": ("--lr",)}


def _option(name: str, path: tuple[str, ...], help: str, group: str) -> Option:
    """Return an option; its type, choices and alternatives are those of the dataclass field."""
    goes_with: dict[str, tuple[str, ...]] = {}
    slot, *rest = path
    if slot == "noise":
        goes_with["loss"] = tuple(name for name in UNIONS["loss"] if name != "ml")
    if slot in UNIONS and not rest:
        return Option(name, path, str, tuple(UNIONS[slot]), help, group, goes_with)
    owners: list[type] = [TrainConfig]
    if slot in UNIONS:
        owners = [each for each in UNIONS[slot].values() if path[-1] in {f.name for f in fields(each)}]
        if len(owners) < len(UNIONS[slot]):
            goes_with[slot] = tuple(tag for tag, each in UNIONS[slot].items() if each in owners)
    elif slot in PARTS:
        owners = [PARTS[slot]]
    kind = get_type_hints(owners[0])[path[-1]]
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    return Option(name, path, str if choices else kind, choices, help, group, goes_with, _ALIASES.get(name, ()))


OPTIONS: dict[str, Option] = {
    name: _option(name, tuple(path.split(".")), help, group)
    for group, declared in _DECLARED.items()
    for name, path, help in declared
}


def flag(name: str) -> str:
    """Return the flag of an option or of another parameter: flag("noise_samples") is "--noise-samples"."""
    return OPTIONS[name].flag if name in OPTIONS else "--" + name.replace("_", "-")


def to_flat(config: TrainConfig) -> dict[str, Any]:
    """Return the options of a configuration by flat name, without those that do not go with its alternatives."""
    flat: dict[str, Any] = {}
    chosen = {slot: getattr(config, slot).name for slot in UNIONS}
    for option in OPTIONS.values():
        if goes_with(option, chosen):
            value: Any = config
            for name in option.path:
                value = getattr(value, name)
            flat[option.name] = value.name if option.path[0] in UNIONS and len(option.path) == 1 else value
    return flat


def from_flat(flat: Mapping[str, Any], base: TrainConfig | None = None) -> TrainConfig:
    """Return `base` with the options in `flat` changed.

    A new loss, noise, optimizer or schedule keeps the fields that it shares with the former one, if they were changed
    there; its other fields have defaults. An option that does not go with the alternatives chosen is an error. A nested
    field may be given as a whole: model=ModelConfig(…), loss=NCE(…).
    """
    base = base or TrainConfig()
    whole = {name: value for name, value in flat.items() if name in PARTS or _is_alternative(name, value)}
    changes = {name: value for name, value in flat.items() if name not in whole}
    for name in changes:
        if name not in OPTIONS:
            raise ArgumentTypeError(f"there is no training option {shown(name)}: see `ncelm.training.options`")
    for slot, part in PARTS.items():
        if slot in whole:
            check_type(slot, whole[slot], isinstance(whole[slot], part), f"a {part.__name__}")
    slots = {slot: whole.get(slot, getattr(base, slot)) for slot in (*UNIONS, *PARTS)}
    for slot in UNIONS:
        if slot in changes:
            slots[slot] = _switched(slot, slots[slot], changes[slot])
    chosen = {slot: value.name for slot, value in slots.items() if slot in UNIONS}
    nested: dict[str, dict[str, Any]] = {slot: {} for slot in slots}
    top: dict[str, Any] = {}
    for name, value in changes.items():
        option = OPTIONS[name]
        _check_goes_with(option, chosen)
        if len(option.path) == 2:
            nested[option.path[0]][option.path[1]] = value
        elif name not in UNIONS:
            top[name] = value
    parts = {slot: replace(value, **nested[slot]) for slot, value in slots.items()}
    return replace(base, **parts, **top)


def _is_alternative(slot: str, value: Any) -> bool:
    """Whether this is a nested field given as a whole: loss=NCE(…)."""
    return slot in UNIONS and isinstance(value, tuple(UNIONS[slot].values()))


def _switched(slot: str, former: Any, tag: Any) -> Any:
    """Return the alternative with this tag, with the fields that were changed in the former one and that it shares."""
    alternative = UNIONS[slot][check_choice(slot, tag, UNIONS[slot])]
    default = type(former)()
    shared = {each.name for each in fields(alternative)} & set(vars(former))
    changed = {name for name in shared if getattr(former, name) != getattr(default, name)}
    return alternative(**{name: getattr(former, name) for name in changed})


def goes_with(option: Option, chosen: Mapping[str, str]) -> bool:
    """Return whether an option goes with these tags of loss, noise, optimizer and schedule."""
    return all(chosen[slot] in tags for slot, tags in option.goes_with.items())


def _check_goes_with(option: Option, chosen: Mapping[str, str]) -> None:
    for slot, tags in option.goes_with.items():
        if chosen[slot] not in tags:
            listed = " or ".join(filter(None, [", ".join(tags[:-1]), tags[-1]]))
            raise NcelmError(f"`{option.name}` goes with `{slot}` {listed}, not {chosen[slot]}")
