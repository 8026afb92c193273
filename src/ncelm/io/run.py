"""The run directory: what a model leaves behind, read back with suspicion.

    config.json          what kind of model it is, of what text, with which options
    vocab.txt            words and their training counts
    model.safetensors    the parameters: of a trained model the best so far; a mixture has none of its own
    checkpoint.safetensors   `train`: everything needed to go on: parameters, optimiser, place in the corpus
    metrics.jsonl        one line for each epoch

Every file is replaced whole. Nothing is ever unpickled.
"""

from pathlib import Path
from typing import Any, Literal, get_args

from ncelm.errors import NcelmError
from ncelm.io.files import read_json

VERSION = 1
Kind = Literal["log-bilinear", "feed-forward", "lstm", "maximum-entropy", "ngram", "mixture", "lsa", "pmi", "ensemble"]
CONFIG, VOCABULARY, MODEL, CHECKPOINT, METRICS = (
    "config.json",
    "vocab.txt",
    "model.safetensors",
    "checkpoint.safetensors",
    "metrics.jsonl",
)


def read_config(run: Path) -> dict[str, Any]:
    """The description of a run, checked for kind and version."""
    content = read_json(run / CONFIG, "run", "ncelm-run", VERSION)
    kind = content.setdefault("kind", "log-bilinear")  # the first runs did not say
    if kind not in get_args(Kind):
        raise NcelmError(f"{run} holds a model of an unknown kind, {str(kind)[:40]!r}: upgrade ncelm")
    return content


def damaged_config(run: Path) -> NcelmError:
    """What to say of a config.json that makes no sense."""
    return NcelmError(f"{run / CONFIG} is damaged: restore it from a copy or train again")
