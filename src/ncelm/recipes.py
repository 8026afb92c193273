"""Named settings: complete, frozen configurations for training, each with its reason.

A recipe is where a user starts; any option given beside it overrides it.
"""

from collections.abc import Callable

from ncelm.errors import NcelmError
from ncelm.model import ModelConfig
from ncelm.training import TrainConfig


def default() -> TrainConfig:
    """A good first model for any text: four words of context, Adagrad, five passes, safe rates."""
    return TrainConfig()


def ptb_nce() -> TrainConfig:
    """Table 1 of the paper, NCE, k = 25: plain SGD, rates halved when validation perplexity stops falling."""
    return TrainConfig(
        model=ModelConfig(context=2),
        optimizer="sgd",
        learning_rate=0.01,
        matrix_rate=0.03,
        schedule="halve",
        min_improvement=0.01,
        epochs=50,
    )


def ptb_ml() -> TrainConfig:
    """Table 1 of the paper, exact maximum likelihood: the rival that NCE is measured against."""
    return ptb_nce().with_changes(estimator="ml")


def ptb_fast() -> TrainConfig:
    """The paper's Penn Treebank result in two passes over the text: Adagrad with a linearly falling rate."""
    return TrainConfig(
        model=ModelConfig(context=2), learning_rate=0.16, matrix_rate=0.2, noise_samples=50, spread=0.02, epochs=2
    )


def ptb_shared() -> TrainConfig:
    """The same with 1,000 noise words that serve a whole minibatch, so that scores are matrix products."""
    return ptb_fast().with_changes(shared_noise=True, noise_samples=1000)


def ptb_best() -> TrainConfig:
    """The lowest perplexity of a model with two words of context: shared noise, dropout and a small weight penalty."""
    return ptb_shared().with_changes(dropout=0.2, penalty=0.01, epochs=5)


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "default": default,
    "ptb-nce": ptb_nce,
    "ptb-ml": ptb_ml,
    "ptb-fast": ptb_fast,
    "ptb-shared": ptb_shared,
    "ptb-best": ptb_best,
}


def recipe(name: str) -> TrainConfig:
    """The configuration of this name."""
    if name not in RECIPES:
        raise NcelmError(f"there is no recipe {name!r}: choose one of {', '.join(RECIPES)}")
    return RECIPES[name]()
