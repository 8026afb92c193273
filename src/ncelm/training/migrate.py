"""Runs of format version 1: a flat configuration and checkpoints with other names."""

from typing import Any

from ncelm.errors import NcelmError
from ncelm.models.log_bilinear import ModelConfig
from ncelm.training.config import TrainConfig
from ncelm.training.options import OPTIONS, from_flat, goes_with

# Flat options of version 1 that have another name now; those of the model have the same, but for `shared_tables`
_OPTIONS = {
    "estimator": "loss",
    "member": "family_member",
    "constants": "log_normalizers",
    "effective_samples": "min_effective_samples",
    "adagrad_start": "initial_accumulator",
    "warm_up": "warmup_steps",
    "matrix_rate": "matrix_lr_scale",
    "penalty": "weight_decay",
    "prior": "weight_decay_per_epoch",
    "unroll": "bptt_length",
    "clip": "clip_norm",
    "exchange_words": "sync_interval",
    "spread": "init_std",
    "start_from": "init_from",
}
_SAME = (
    "noise", "noise_power", "noise_samples", "bigram_smoothing", "shared_noise", "max_samples", "optimizer",
    "learning_rate", "schedule", "epochs", "patience", "min_improvement", "batch_size", "dropout", "seed", "engine",
)  # fmt: skip
_SCHEDULE_STATE = {
    "rate": "learning_rate",
    "last_perplexity": "last_perplexity",
    "best_perplexity": "best_perplexity",
    "without_improvement": "epochs_without_improvement",
}
_WEIGHT_SUMMARY = (
    "first_step", "steps", "sum_effective_samples", "least_effective_samples", "sum_samples", "largest_log_weight",
)  # fmt: skip

_WEIGHT_RECORD = ("step", "effective_samples", "least_effective_samples", "samples", "largest_log_weight")


def config_from_version_1(content: Any) -> TrainConfig:
    """Return the configuration of a run of version 1. The content is not trusted; options that it lacks have defaults.

    Version 1 stored all options, also those that do not go with the loss, the noise, the optimizer or the schedule.
    """
    if not isinstance(content, dict):
        raise NcelmError("the training configuration is damaged: it is not an object")
    names = _OPTIONS | {name: name for name in _SAME}
    if unknown := sorted(set(content) - set(names) - {"model"}, key=str):
        raise NcelmError(f"the training configuration is damaged: it has an unknown option {str(unknown[0])[:40]!r}")
    flat = {names[name]: value for name, value in content.items() if name != "model"}
    chosen = {"loss": "nce", "noise": "unigram", "optimizer": "adagrad", "schedule": "linear"}
    chosen |= {slot: str(flat[slot]) for slot in chosen if slot in flat}
    used = {name: value for name, value in flat.items() if name in chosen or goes_with(OPTIONS[name], chosen)}
    if chosen["loss"] == "ml":
        used.pop("noise", None)
    if chosen["schedule"] == "linear":  # had no early stopping
        used.pop("patience", None)
    try:
        return from_flat({"model": ModelConfig.from_dict(content.get("model", {})), **used})
    except NcelmError as error:
        raise NcelmError(f"the training configuration is damaged: {error}") from error


def state_from_version_1(content: dict[str, Any]) -> dict[str, Any]:
    """Return the state in a checkpoint of version 1 as a state of version 2. The content is not trusted."""
    state = {"weights": [], "workers": 1, **content}  # absent in the first runs
    state["schedule"] = {new: state.pop(old) for old, new in _SCHEDULE_STATE.items()}
    state["weights"] = [dict(zip(_WEIGHT_SUMMARY, line, strict=True)) for line in state["weights"]]
    return state


def upgrade_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of metrics with the field names of version 2; those of version 2 are returned unchanged."""
    names = {"constants_mean": "log_normalizers_mean", "constants_std": "log_normalizers_std"}
    upgraded = {names.get(name, name): value for name, value in record.items()}
    if "weights" in upgraded:
        upgraded["weights"] = [
            dict(zip(_WEIGHT_RECORD, line, strict=True)) if isinstance(line, list) else line
            for line in upgraded["weights"]
        ]
    return upgraded


def name_in_version_1(name: str) -> str:
    """Return the name of an array in checkpoints of version 1: squares.biases for accumulator.biases."""
    if name.startswith("accumulator."):
        return f"squares.{name_in_version_1(name.removeprefix('accumulator.'))}"
    return "constants" if name == "log_normalizers" else name
