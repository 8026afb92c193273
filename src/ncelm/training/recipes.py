"""Named settings: complete, frozen configurations for training, each with its reason; the rows of the paper's tables.

A recipe is where a user starts; any option given beside it overrides it. A row is what `reproduce` trains.
"""

from collections.abc import Callable

from ncelm.errors import NcelmError
from ncelm.models.log_bilinear import ModelConfig
from ncelm.training.config import TrainConfig


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


def ptb_quick() -> TrainConfig:
    """The paper's Penn Treebank result in one pass: small minibatches, each with 175 noise words of its own."""
    return TrainConfig(
        model=ModelConfig(context=2),
        shared_noise=True,
        noise_samples=175,
        batch_size=125,
        learning_rate=0.5,
        matrix_rate=0.03,
        adagrad_start=0.1,
        warm_up=800,
        spread=0.05,
        epochs=1,
    )


def _ptb_torch() -> TrainConfig:
    """What suits PyTorch's models: larger minibatches, because each costs PyTorch about a millisecond."""
    changes = {"batch_size": 250, "noise_samples": 250, "learning_rate": 0.4, "matrix_rate": 0.05, "warm_up": 100}
    return ptb_quick().with_changes(**changes)


def ptb_best() -> TrainConfig:
    """The lowest perplexity of a model with two words of context: shared noise, dropout and a small weight penalty."""
    return ptb_shared().with_changes(dropout=0.2, penalty=0.01, epochs=5)


def ptb_lstm() -> TrainConfig:
    """A long short-term memory of 256 units by NCE, in four passes; needs PyTorch."""
    return _ptb_torch().with_changes(
        architecture="lstm",
        dim=256,
        batch_size=700,  # 20 stretches of 35 words
        noise_samples=500,
        learning_rate=0.1,
        matrix_rate=0.5,
        clip=50.0,
        dropout=0.2,
        epochs=4,
    )


def ptb_feed_forward() -> TrainConfig:
    """The neural probabilistic language model of Bengio et al. (2003) by NCE, in one pass; needs PyTorch."""
    return _ptb_torch().with_changes(
        architecture="feed-forward", context=4, hidden=200, learning_rate=0.2, matrix_rate=0.2
    )


def ptb_maximum_entropy() -> TrainConfig:
    """A weight for every n-gram of up to three words, hashed, by NCE, in one pass; needs PyTorch."""
    return _ptb_torch().with_changes(architecture="maximum-entropy", context=2, learning_rate=0.4)


def holmes(context: int = 10, dim: int = 100, context_after: int = 0) -> TrainConfig:
    """Section 5 of the paper, tens of millions of words: diagonal matrices, small minibatches that share noise."""
    # As many noise words as examples: 125 take half the time of 1,000 with 500 noise words and are no worse; 250 are
    # better, and worth their time where a model has room for what they teach.
    batch = 125 if dim < 300 else 250
    return TrainConfig(
        model=ModelConfig(context=context, context_after=context_after, dim=dim, matrices="diagonal"),
        shared_noise=True,
        noise="power",  # rare words are drawn more often than they occur: it is they who decide which word fits
        batch_size=batch,
        noise_samples=batch,
        # the more numbers in a vector, the smaller their gradients and the steps that they can stand
        learning_rate=round(3.0 / dim**0.5, 3),
        adagrad_start=round(100.0 / dim, 3),  # without it words that were seen five times are learned by heart
        warm_up=100,
        matrix_rate=1.0,
        spread=0.02,
        epochs=6,  # perplexity falls but little after the third; which word fits is still being learned
        dropout=max(dim - 100, 0) / 1000,  # large models begin to learn the text by heart in the third epoch
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "default": default,
    "ptb-nce": ptb_nce,
    "ptb-ml": ptb_ml,
    "ptb-fast": ptb_fast,
    "ptb-shared": ptb_shared,
    "ptb-quick": ptb_quick,
    "ptb-best": ptb_best,
    "ptb-lstm": ptb_lstm,
    "ptb-feed-forward": ptb_feed_forward,
    "ptb-maximum-entropy": ptb_maximum_entropy,
    "holmes": holmes,
}


def recipe(name: str) -> TrainConfig:
    """The configuration of this name."""
    if name not in RECIPES:
        raise NcelmError(f"there is no recipe {name!r}: choose one of {', '.join(RECIPES)}")
    return RECIPES[name]()
