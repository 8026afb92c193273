"""Estimates of log-normalizers: log Z(h) at the cost of a few hundred words instead of the whole vocabulary.

log Z(h) = log Σ_w exp(q̂ᵀ q_w + b_w) is a log-sum-exp of V linear functions of q̂. It is estimated by one of K functions,

    log Ẑ(h) = log Σ_k exp(a_kᵀ q̂ + b_k),

the units. They start as the K most frequent words and are fitted by least squares to exact values of log Z of contexts
of a text (`ncelm.models.fit_normalizer`). docs/experiments.md compares this with other methods.

A normalizer belongs to the parameters that it was fitted to. Its file, normalizer.safetensors in the run directory,
has the checksum of model.safetensors; it is not used with other parameters.
"""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.io.files import is_finite_number
from ncelm.kernels import records

MAX_UNITS = 65_536


@dataclass(frozen=True)
class NormalizerError:
    """The error log Ẑ(h) − log Z(h) in held-out contexts, in nats."""

    contexts: int  # number of contexts
    mean: float
    std: float
    largest: float  # largest absolute value

    @classmethod
    def of(cls, errors: np.ndarray) -> "NormalizerError":
        """Return the statistics of errors, (n,)."""
        return cls(errors.size, float(errors.mean()), float(errors.std()), float(np.abs(errors).max()))

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.std:.4f} nats per word ({self.contexts:,} held-out contexts)"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Any) -> "NormalizerError":
        """Return the error in a file. The content is not trusted: ValueError if it is not such an error."""
        if not isinstance(content, dict) or set(content) != {each.name for each in fields(cls)}:
            raise ValueError("other fields")
        contexts, *numbers = (content[each.name] for each in fields(cls))
        if type(contexts) is not int or contexts < 1 or not all(map(is_finite_number, numbers)):
            raise ValueError("impossible values")
        return cls(contexts, *map(float, numbers))


@dataclass(frozen=True, eq=False)
class Normalizer:
    """An estimate of the log-normalizers of a log-bilinear model."""

    vectors: np.ndarray  # a_k, (K, d) float32
    biases: np.ndarray  # b_k, (K,) float32
    error: NormalizerError

    def __repr__(self) -> str:
        return f"Normalizer({len(self.biases)} units, error {self.error})"

    @property
    def units(self) -> records.NormalizerUnits:
        """The units in the form that compiled code accepts."""
        return records.NormalizerUnits(records.read_only(self.vectors), records.read_only(self.biases))

    def save(self, folder: Path) -> None:
        """Write the normalizer of the model in a run directory."""
        parameters = _current_parameters(folder)
        if not isinstance(parameters, str):
            raise NcelmError(f"{folder / run.MODEL} has no checksum, to which a normalizer refers: train it again")
        array_files.write_arrays(
            folder / run.NORMALIZER,
            {"vectors": self.vectors, "biases": self.biases},
            {
                "kind": "normalizer",
                "units": len(self.biases),
                "parameters": parameters,
                "error": self.error.as_dict(),
            },
        )


def read_error(folder: Path) -> NormalizerError | None:
    """Return the error of the normalizer in a run directory; None if there is none for its parameters."""
    header = _read_header(folder)
    if header is None or header["parameters"] != _current_parameters(folder):
        return None
    return NormalizerError.from_dict(header["error"])


def load(folder: Path, dim: int) -> Normalizer | None:
    """Return the normalizer of the model in a run directory; None if there is none for its parameters.

    The file is not trusted.
    """
    header = _read_header(folder)
    if header is None:
        return None
    units = header["units"]
    arrays, verified = array_files.read_arrays(folder / run.NORMALIZER, {"vectors": (units, dim), "biases": (units,)})
    if verified["parameters"] != _current_parameters(folder):
        return None  # the model has been trained further since
    return Normalizer(arrays["vectors"], arrays["biases"], NormalizerError.from_dict(verified["error"]))


def _read_header(folder: Path) -> dict[str, Any] | None:
    """Return the header of the normalizer in a run directory, after validation; None if there is no such file."""
    path = folder / run.NORMALIZER
    if not path.exists():
        return None
    header = array_files.read_header(path)
    units = header.get("units")
    try:
        NormalizerError.from_dict(header.get("error"))
        if header.get("kind") != "normalizer" or not isinstance(header.get("parameters"), str):
            raise ValueError("not a normalizer")
        if type(units) is not int or not 1 <= units <= MAX_UNITS:
            raise ValueError("impossible number of units")
    except ValueError as error:
        raise NcelmError(f"{path} is damaged: delete it, or make it again with `ncelm normalizer`") from error
    return header


def _current_parameters(folder: Path) -> object:
    """Return the checksum in the header of the parameters of a run; None in a file of version 1."""
    return array_files.read_header(folder / run.MODEL).get("checksum")
