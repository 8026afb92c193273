"""Loading of runs of every kind.

`WORD_MODELS` and `SCORERS` are the registries of models: kind of the run → function that loads its model. The module of
PyTorch models is imported by name, because PyTorch is optional and `ncelm.torch` imports this package.

Mixtures and ensembles consist of other runs, their components. Their config.json has, in the field "parts", the path
and a checksum of each. A run that occurs several times in nested components is loaded once.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from ncelm.arguments import check_choice, check_path
from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.io.files import read_bytes
from ncelm.models import description, normalizer
from ncelm.models.base import Scorer, Table, WordModel
from ncelm.models.ensemble import Ensemble
from ncelm.models.log_bilinear import Architecture, LogBilinear, ModelConfig
from ncelm.models.lsa import Lsa
from ncelm.models.mixture import Mixture
from ncelm.models.ngram import query
from ncelm.models.pmi import Pmi
from ncelm.models.vectors import word_vectors
from ncelm.text.vocabulary import Vocabulary

TORCH_MODELS = "ncelm.torch.models"  # has the classes of PyTorch models in ARCHITECTURES, by kind

AsScorer = Callable[[WordModel, description.Origin], Scorer]  # `LanguageModel`, which is above this package
Loaded = dict[Path, Any]  # the models of one call that have been loaded, by path
# of path, content of config.json, vocabulary size, and other runs of the same call
WordModelLoader = Callable[[Path, dict[str, Any], int, Loaded], WordModel]
ScorerLoader = Callable[[Path, AsScorer, Loaded], Scorer]
MAX_DEPTH = 20  # of mixtures of mixtures
MAX_COMPONENTS = 1000  # of a mixture or an ensemble, those of its components included


def load_word_model(path: Path | str) -> tuple[WordModel, description.Origin]:
    """Return the word model of a run, and the origin of its text."""
    path = check_path("path", path)
    check_component_count(path)
    return _load_word_model(path, {})


def _load_word_model(path: Path, loaded: Loaded) -> tuple[WordModel, description.Origin]:
    if path in loaded:
        return loaded[path]
    content = run.read_config(path)
    origin = description.read_origin(path, content)
    kind = content["kind"]
    if kind not in WORD_MODELS:
        raise NcelmError(
            f"{path} is a model of kind {kind}, which has no probabilities of words: use it with `ncelm complete`"
            + (" or `ncelm neighbors`" if kind == "lsa" else "")
        )
    loaded[path] = WORD_MODELS[kind](path, content, len(origin.vocabulary), loaded), origin
    return loaded[path]


def load_scorer(path: Path | str, as_scorer: AsScorer) -> Scorer:
    """Return the model of a run of any kind; `as_scorer` converts a word model to a scorer."""
    path = check_path("path", path)
    check_component_count(path)
    return _load_scorer(path, as_scorer, {})


def _load_scorer(path: Path, as_scorer: AsScorer, loaded: Loaded) -> Scorer:
    kind = run.read_config(path)["kind"]
    if kind not in SCORERS:
        return as_scorer(*_load_word_model(path, loaded))
    if path not in loaded:
        loaded[path] = SCORERS[kind](path, as_scorer, loaded)
    return loaded[path]


def load_vectors(path: Path | str, table: Table = "context") -> tuple[np.ndarray, Vocabulary]:
    """Return the word vectors of a run, (V, d) float32, and its vocabulary."""
    path = check_path("path", path)
    check_choice("table", table, get_args(Table))
    kind = run.read_config(path)["kind"]
    if kind == "lsa":
        lsa = Lsa.load(path)
        return lsa.vectors(table), lsa.vocabulary
    if kind in SCORERS:
        raise NcelmError(f"{path} is a model of kind {kind}, which has no word vectors: give a run of `train` or `lsa`")
    model, origin = load_word_model(path)
    return word_vectors(model, table), origin.vocabulary


# -- kinds of models -----------------------------------------------------------------------------------------------


def _load_log_bilinear(path: Path, content: dict[str, Any], vocabulary_size: int, loaded: Loaded) -> WordModel:
    model = cast(LogBilinear, _load_parameters(LogBilinear, path, content, vocabulary_size))
    return replace(model, normalizer=normalizer.load(path, model.config.dim))


def _load_torch_model(
    kind: str, path: Path, content: dict[str, Any], vocabulary_size: int, loaded: Loaded
) -> WordModel:
    return _load_parameters(import_module(TORCH_MODELS).ARCHITECTURES[kind], path, content, vocabulary_size)


def _load_parameters(model_class: Any, path: Path, content: dict[str, Any], vocabulary_size: int) -> WordModel:
    """Return the model of a class with methods `shapes` and `from_arrays`, from its configuration and parameters."""
    try:
        config = ModelConfig.from_dict(content["config"]["model"])
    except (KeyError, TypeError, NcelmError) as error:
        raise run.damaged_config(path) from error
    if not (path / run.MODEL).exists():
        raise NcelmError(f"{path} has no {run.MODEL}: if training was stopped in the first epoch, resume it")
    arrays = array_files.read_parameters(path / run.MODEL, model_class.shapes(config, vocabulary_size))
    model: WordModel = model_class.from_arrays(config, arrays)
    return model


def _load_ngram(path: Path, content: dict[str, Any], vocabulary_size: int, loaded: Loaded) -> WordModel:
    if not (path / run.MODEL).exists():
        raise NcelmError(f"{path} has no {run.MODEL}: restore it from a copy or train again")
    return query.load(path / run.MODEL, vocabulary_size)


def _load_mixture(path: Path, content: dict[str, Any], vocabulary_size: int, loaded: Loaded) -> WordModel:
    weights, folders = content.get("weights"), component_folders(path, content)
    if not (isinstance(weights, list) and len(weights) == len(folders)):
        raise run.damaged_config(path)
    if not all(type(weight) is float and 0.0 <= weight <= 1.0 for weight in weights) or abs(sum(weights) - 1) > 1e-6:
        raise run.damaged_config(path)
    models, origins = zip(*(_load_word_model(folder, loaded) for folder in folders), strict=True)
    if any(len(origin.vocabulary) != vocabulary_size for origin in origins):
        raise NcelmError(f"the components of {path} have other vocabularies than the run: make it again")
    return Mixture(models, np.array(weights, np.float64))


def _load_lsa(path: Path, as_scorer: AsScorer, loaded: Loaded) -> Scorer:
    return Lsa.load(path)


def _load_pmi(path: Path, as_scorer: AsScorer, loaded: Loaded) -> Scorer:
    return Pmi.load(path)


def _load_ensemble(path: Path, as_scorer: AsScorer, loaded: Loaded) -> Scorer:
    content, origin = description.read_kind(path, "ensemble")
    weights, folders = content.get("weights"), component_folders(path, content)
    if not (isinstance(weights, list) and len(weights) == len(folders) and all(map(_is_pair, weights))):
        raise run.damaged_config(path)
    components = tuple(_load_scorer(folder, as_scorer, loaded) for folder in folders)
    return Ensemble(components, np.array(weights), origin.vocabulary, origin.text)


def _is_pair(weights: object) -> bool:
    return (
        isinstance(weights, list)
        and len(weights) == 2
        and all(type(weight) is float and math.isfinite(weight) for weight in weights)
    )


WORD_MODELS: dict[str, WordModelLoader] = {
    "log-bilinear": _load_log_bilinear,
    "feed-forward": partial(_load_torch_model, "feed-forward"),
    "lstm": partial(_load_torch_model, "lstm"),
    "maximum-entropy": partial(_load_torch_model, "maximum-entropy"),
    "ngram": _load_ngram,
    "mixture": _load_mixture,
}
SCORERS: dict[str, ScorerLoader] = {"lsa": _load_lsa, "pmi": _load_pmi, "ensemble": _load_ensemble}


# -- components of mixtures and ensembles ----------------------------------------------------------------------------


def component_references(folder: Path, paths: Sequence[Path]) -> list[dict[str, str]]:
    """Return the field "parts" of a mixture or an ensemble in `folder` of these runs: their paths and checksums."""
    return [{"path": run.reference(folder, path), "checksum": run_checksum(path)} for path in paths]


def component_folders(path: Path, content: dict[str, Any]) -> list[Path]:
    """Return the runs of which the run `path` consists, after checking that they exist and have not changed.

    A run cannot contain itself: the checksums of its components are part of its own checksum.
    """
    components = content.get("parts")
    if not isinstance(components, list) or not components:
        raise run.damaged_config(path)
    folders = []
    for component in components:
        try:
            folder = run.referenced(path, component["path"])
            checksum, former = component.get("checksum"), component.get("sha256")
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            raise run.damaged_config(path) from error
        if not folder.exists():
            raise NcelmError(f"{folder}, a component of {path}, does not exist: restore it, or make {path} again")
        found = run_checksum(folder) if checksum is not None else _run_digest(folder)
        if found != (former if checksum is None else checksum):
            raise NcelmError(f"{folder} has changed since {path} was made of it: make {path} again")
        folders.append(folder)
    return folders


def check_component_count(path: Path) -> None:
    """Raise an error if a run has more than `MAX_COMPONENTS` components: each of them would be evaluated."""
    counts: dict[Path, int] = {}

    def count(folder: Path, depth: int) -> int:
        if folder not in counts:
            content = run.read_config(folder)
            combined = content["kind"] in ("mixture", "ensemble")
            if depth > MAX_DEPTH:
                raise NcelmError(f"{path} is nested more than {MAX_DEPTH} levels deep: combine the components directly")
            parts = component_folders(folder, content) if combined else []
            counts[folder] = sum(count(part, depth + 1) for part in parts) if combined else 1
        return counts[folder]

    if count(path, 0) > MAX_COMPONENTS:
        raise NcelmError(f"{path} has more than {MAX_COMPONENTS:,} components: combine fewer models")


def run_checksum(path: Path) -> str:
    """Return the checksum of a run: of config.json and of the checksum in the header of its parameters.

    The parameters themselves are verified when they are loaded.
    """
    digest = hashlib.sha256(read_bytes(path / run.CONFIG))
    if run.read_config(path)["kind"] not in ("mixture", "ensemble"):
        header = array_files.read_header(path / run.MODEL)
        # files of version 1 have no checksum
        digest.update(str(header["checksum"]).encode() if "checksum" in header else read_bytes(path / run.MODEL))
    return digest.hexdigest()


def _run_digest(path: Path) -> str:
    """Return the digest by which mixtures and ensembles of version 2 refer to their components."""
    digest = hashlib.sha256(read_bytes(path / run.CONFIG))
    if run.read_config(path)["kind"] in get_args(Architecture):
        digest.update(read_bytes(path / run.MODEL))
    return digest.hexdigest()
