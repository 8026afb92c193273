"""Read the model of a run directory, of any kind."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.io.files import read_bytes
from ncelm.models import description
from ncelm.models.base import WordModel
from ncelm.models.log_bilinear import Architecture, LogBilinear, ModelConfig
from ncelm.models.mixture import Mixture
from ncelm.models.ngram import model as ngram


def read_model(path: Path, content: dict[str, Any], vocabulary_size: int) -> WordModel:
    """The parameters of a run, whatever kind of model it is."""
    kind = content["kind"]
    if kind in ("lsa", "pmi", "ensemble"):
        what = {"lsa": "an LSA model", "pmi": "a PMI model", "ensemble": "an ensemble"}[kind]
        raise NcelmError(
            f"{path} is {what}, which gives words no probabilities: it can be asked "
            + ("for neighbors, and " if kind == "lsa" else "")
            + "for the word that fits into a sentence"
        )
    if kind == "mixture":
        return _read_mixture(path, content)
    if not (path / run.MODEL).exists():
        what = (
            "if training was stopped in its first epoch, go on with --resume"
            if kind in get_args(Architecture)
            else "make it anew"
        )
        raise NcelmError(f"{path} has no {run.MODEL}: {what}")
    if kind == "ngram":
        return ngram.load(path / run.MODEL, vocabulary_size)
    try:
        config = ModelConfig.from_dict(content["config"]["model"])
    except (KeyError, TypeError, NcelmError) as error:
        raise run.damaged_config(path) from error
    model_class: Any = LogBilinear
    if kind != "log-bilinear":
        from ncelm.torch.models import ARCHITECTURES

        model_class = ARCHITECTURES[kind]
    arrays, _ = array_files.read_arrays(path / run.MODEL, model_class.shapes(config, vocabulary_size))
    return model_class.from_arrays(config, arrays)


def _read_mixture(path: Path, content: dict[str, Any]) -> Mixture:
    """A mixture names its parts, which are runs of their own."""
    weights, folders = content.get("weights"), part_folders(path, content)
    if not (isinstance(weights, list) and len(weights) == len(folders)):
        raise run.damaged_config(path)
    if not all(type(weight) is float and 0.0 <= weight <= 1.0 for weight in weights) or abs(sum(weights) - 1) > 1e-6:
        raise run.damaged_config(path)
    models = tuple(_part(folder) for folder in folders)
    return Mixture(models, np.array(weights, np.float64))


def _part(folder: Path) -> WordModel:
    content = run.read_config(folder)
    return read_model(folder, content, len(description.read_origin(folder, content).vocabulary))


def part_descriptions(paths: Sequence[Path]) -> list[dict[str, str]]:
    """What a mixture or an ensemble says of the runs that it is made of."""
    return [{"path": str(path.resolve()), "sha256": run_digest(path)} for path in paths]


def part_folders(path: Path, content: dict[str, Any]) -> list[Path]:
    """The runs that a mixture or an ensemble is made of, if they are still what they were.

    The digest of a part was known before the whole was written, so that nothing can be a part of itself.
    """
    parts = content.get("parts")
    if not isinstance(parts, list) or not parts:
        raise run.damaged_config(path)
    folders = []
    for part in parts:
        try:
            folder, digest = (path / part["path"]).resolve(), part["sha256"]
        except (KeyError, TypeError, ValueError) as error:
            raise run.damaged_config(path) from error
        if not folder.exists():
            raise NcelmError(f"{path} is made of others, of which {folder} is gone: put it back, or make {path} anew")
        if run_digest(folder) != digest:
            raise NcelmError(f"{folder} is not the run it was when {path} was made of it: make {path} anew")
        folders.append(folder)
    return folders


def run_digest(path: Path) -> str:
    """A fingerprint of a run: of its config.json, and of its parameters where that does not determine them.

    (An n-gram model, which may be of gigabytes, is determined by its text and order, or by the ARPA file it came from.)
    """
    digest = hashlib.sha256(read_bytes(path / run.CONFIG))
    if run.read_config(path)["kind"] in get_args(Architecture):
        digest.update(read_bytes(path / run.MODEL))
    return digest.hexdigest()
