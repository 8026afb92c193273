"""The run directory: the files of a model.

    config.json               kind of model, token store, options
    vocab.txt                 words and their training counts
    model.safetensors         parameters; the best so far if the model is trained by epochs; absent for a mixture
    normalizer.safetensors    fast estimates of the log-normalizers, see ncelm.models.normalizer
    checkpoint.safetensors    `train`: the state to resume from: parameters, optimizer, position in the corpus
    metrics.jsonl             `train`: one record per epoch
    train.lock                exists while a process trains the model

A model of `ncelm fit` is a mixture that contains its components and its token store; see ncelm.fit:

    fit.json                  stages, choices, results
    report.html               the report
    store, neural, ngram      the token store, and the run directories of the components

All files are written atomically, and validated when they are read. No file is pickled.
"""

import os
from pathlib import Path
from typing import Any, Literal, get_args

from ncelm.arguments import check_path
from ncelm.errors import NcelmError
from ncelm.io.files import json_checksum, parse_json, read_bytes, read_json

# Version 1 had a flat training configuration, see ncelm.training.migrate; versions 1 and 2 had no checksum.
VERSION = 3
Kind = Literal["log-bilinear", "feed-forward", "lstm", "maximum-entropy", "ngram", "mixture", "lsa", "pmi", "ensemble"]
CONFIG = "config.json"
VOCABULARY = "vocab.txt"
MODEL = "model.safetensors"
NORMALIZER = "normalizer.safetensors"
CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.jsonl"
LOCK = "train.lock"
FIT = "fit.json"


def read_config(run: Path) -> dict[str, Any]:
    """Return the content of config.json. The kind of model and the version are valid."""
    if not (run / CONFIG).exists() and (run / FIT).exists():
        raise NcelmError(f"{run} is not finished: continue with `ncelm fit --out {run} --resume`")
    content = read_json(run / CONFIG, "run", "ncelm-run", VERSION, checksum_since=3)
    kind = content.setdefault("kind", "log-bilinear")  # absent in the first runs
    if kind not in get_args(Kind):
        raise NcelmError(f"{run} holds a model of an unknown kind, {str(kind)[:40]!r}: upgrade ncelm")
    return content


def reference(run: Path, target: Path) -> str:
    """Return the path by which config.json of a run refers to a store or to another run.

    It is relative to the run if both are in one folder of `ncelm fit`, which can be moved; otherwise it is absolute.
    """
    run, target = run.resolve(), target.resolve()
    for folder in (run, run.parent):
        if (folder / FIT).is_file() and target.is_relative_to(folder):
            return Path(os.path.relpath(target, run)).as_posix()
    return str(target)


def referenced(run: Path, path: str) -> Path:
    """Return the place of a store or of another run to which config.json of a run refers."""
    return Path(os.path.realpath(check_path("path", run / path)))


def identity(run: Path) -> str | None:
    """Return a digest of what config.json says about the model; None if there is no such file.

    Array files carry it, so that the file of another run is not taken for one of this run. The place of
    the token store and the version of ncelm do not count.
    """
    try:
        content = parse_json(read_bytes(run / CONFIG))
    except (NcelmError, ValueError):
        return None
    if not isinstance(content, dict):
        return None
    store = content.get("store")
    content["store"] = store.get("fingerprint") if isinstance(store, dict) else None
    return json_checksum({name: value for name, value in content.items() if name not in ("ncelm", "version")})


def damaged_config(run: Path) -> NcelmError:
    """Return the error for a config.json with invalid content."""
    return NcelmError(f"{run / CONFIG} is damaged: restore it from a copy or train again")
