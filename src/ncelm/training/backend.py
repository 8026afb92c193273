"""Backends: modules that train models. The loop finds them by name and needs nothing else from them.

`ncelm.training.engine` trains log-bilinear models with compiled code, `ncelm.torch.engine` all models with PyTorch. A
backend is a module with the functions of `Backend`.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np

from ncelm.kernels.records import Order
from ncelm.kernels.threads import Team
from ncelm.models.base import WordModel
from ncelm.models.log_bilinear import LogBilinear, ModelConfig
from ncelm.noise import BigramNoise, Noise
from ncelm.text.store import TokenStore
from ncelm.training.config import EngineName, TrainConfig

BACKENDS: dict[EngineName, str] = {"compiled": "ncelm.training.engine", "torch": "ncelm.torch.engine"}

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]
# By the name of the statistic, then by the name of the parameter: {} for SGD, {"accumulator": {…}} for Adagrad,
# {"momentum": {…}, "accumulator": {…}} for Adam
OptimizerState = dict[str, Arrays]


class TrainedModel(WordModel, Protocol):
    """A model whose parameters can be read and written."""

    def arrays(self) -> Arrays:
        """Return the parameters by name, each once, not as copies."""


class ModelClass(Protocol):
    """The class of a model."""

    def initialise(self, config: ModelConfig, word_probabilities: np.ndarray, seed: int, std: float, /) -> TrainedModel:
        """Return a model with random parameters; biases are log-probabilities of words."""

    def shapes(self, config: ModelConfig, vocabulary_size: int, /) -> Shapes:
        """Return the shapes of the parameters."""

    def from_arrays(self, config: ModelConfig, arrays: Arrays, /) -> TrainedModel:
        """Return the model with these parameters."""


@dataclass(frozen=True)
class ImportanceWeights:
    """Importance weights of one minibatch."""

    effective_samples: float  # effective sample size, mean over the examples
    least_effective_samples: float
    samples: float  # samples drawn for an example, mean
    largest_log_weight: float
    share: float  # the largest weight divided by the sum of the weights of its example
    word: int  # the sample with the largest weight
    context: list[int]  # its context


class Engine(Protocol):
    """An object that runs minibatches."""

    @property
    def planned(self) -> int:
        """The maximum number of minibatches in one call of `run`."""

    def run(self, epoch: int, step: int, table_rates: np.ndarray, matrix_rates: np.ndarray) -> np.ndarray:
        """Train on minibatches `step`, `step + 1`, … of an epoch, one per learning rate; return the loss of each."""

    def weights(self, row: int) -> ImportanceWeights | None:
        """Return the importance weights of a minibatch of the last call, by index; None if they are not recorded."""


class Backend(Protocol):
    """The functions of a backend module."""

    def check(self, config: TrainConfig) -> None:
        """Raise NcelmError for a loss or an optimizer that the backend does not implement."""

    def steps_per_epoch(self, config: TrainConfig, tokens: int) -> int:
        """Return the number of minibatches in an epoch."""

    def memory_bytes(self, config: TrainConfig, vocabulary_size: int, tokens: int) -> int:
        """Return the approximate memory that training needs in addition to the Python process."""

    def carried_shapes(self, config: TrainConfig, tokens: int) -> Shapes:
        """Return the shapes of arrays that a minibatch passes on to the next one, such as the states of an LSTM."""

    def create(
        self,
        model: Any,
        optimizer_state: OptimizerState,
        noise: Noise | BigramNoise,
        store: TokenStore,
        config: TrainConfig,
        team: Team,
        log_normalizers: np.ndarray,
        context_ids: np.ndarray,
        carried: Arrays,
        order: Order | None = None,
    ) -> Engine:
        """Return an engine for the training split of a store. It updates arrays in place.

        Args:
            model: an instance of `model_class`.
            optimizer_state: for each statistic, an array of the shape of each parameter, by its name, and of
                "log_normalizers".
            noise: noise distribution of the store.
            store: token store.
            config: complete configuration.
            team: threads.
            log_normalizers: learned log-normalizers c_h, (contexts,); empty if they are fixed.
            context_ids: index of the context of each training word, (N,) int32; empty if log-normalizers are fixed.
            carried: arrays of the shapes `carried_shapes`.
            order: of the words in an epoch. Default: a random one.
        """


def backend_of(config: TrainConfig) -> Backend:
    """Return the backend of a configuration. It implements the loss and the optimizer."""
    backend = cast(Backend, import_module(BACKENDS[config.backend]))
    backend.check(config)
    return backend


def memory_bytes(config: TrainConfig, vocabulary_size: int, tokens: int) -> int:
    """Return the approximate memory that training needs in addition to the Python process."""
    return backend_of(config).memory_bytes(config, vocabulary_size, tokens)


def model_class(config: TrainConfig) -> ModelClass:
    """Return the class of the model."""
    if config.backend == "compiled":
        return LogBilinear
    return import_module("ncelm.torch.models").ARCHITECTURES[config.model.architecture]


def index_contexts(store: TokenStore, config: TrainConfig) -> tuple[np.ndarray, int]:
    """Return the index of the context of each training word, (N,) int32, and the number of distinct contexts."""
    from ncelm.training.engine import number_contexts

    return number_contexts(store, config.model.context, config.model.context_after)
