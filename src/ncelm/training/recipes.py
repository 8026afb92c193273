"""Named, complete configurations of the paper's experiments. Any option given with a recipe overrides it.

Without a recipe, the configuration is chosen from the size of the text (`ncelm.training.adaptive`). The rows of the
paper's tables are in `ncelm.paper.rows`.
"""

from collections.abc import Callable

from ncelm.arguments import check_str
from ncelm.errors import NcelmError
from ncelm.models.log_bilinear import ModelConfig
from ncelm.training.config import NCE, Adagrad, Halve, Init, Linear, PowerNoise, Regularization, Sgd, TrainConfig


def ptb_nce() -> TrainConfig:
    """Table 1 of the paper, NCE with k = 25: SGD, learning rate halved when validation perplexity stops falling."""
    return TrainConfig(
        model=ModelConfig(context=2),
        optimizer=Sgd(),
        schedule=Halve(epochs=50, min_improvement=0.01),
        learning_rate=0.01,
        matrix_lr_scale=0.03,
    )


def ptb_ml() -> TrainConfig:
    """Table 1 of the paper, exact maximum likelihood: the baseline of NCE."""
    return ptb_nce().with_changes(loss="ml")


def ptb_fast() -> TrainConfig:
    """Two epochs of Adagrad with linear decay that reach the paper's perplexity on the Penn Treebank."""
    return TrainConfig(
        model=ModelConfig(context=2),
        loss=NCE(samples=50),
        schedule=Linear(epochs=2),
        init=Init(std=0.02),
        learning_rate=0.16,
        matrix_lr_scale=0.2,
    )


def ptb_shared() -> TrainConfig:
    """As ptb-fast, with 1,000 noise samples shared by a minibatch, so that scores are matrix products."""
    return ptb_fast().with_changes(shared_noise=True, noise_samples=1000)


def ptb_quick() -> TrainConfig:
    """The paper's perplexity on the Penn Treebank in one epoch: minibatches of 125 words with 175 noise samples."""
    return TrainConfig(
        model=ModelConfig(context=2),
        loss=NCE(samples=175, shared_noise=True),
        optimizer=Adagrad(initial_accumulator=0.1, warmup_steps=800),
        schedule=Linear(epochs=1),
        init=Init(std=0.05),
        learning_rate=0.5,
        matrix_lr_scale=0.03,
        batch_size=125,
    )


def _ptb_torch() -> TrainConfig:
    """As ptb-quick with larger minibatches, because PyTorch has an overhead of about a millisecond per minibatch."""
    return ptb_quick().with_changes(
        batch_size=250, noise_samples=250, learning_rate=0.4, matrix_lr_scale=0.05, warmup_steps=100
    )


def ptb_best() -> TrainConfig:
    """Lowest perplexity with two context words: shared noise, dropout and a small weight decay."""
    return ptb_shared().with_changes(dropout=0.2, weight_decay=0.01, epochs=5)


def ptb_lstm() -> TrainConfig:
    """An LSTM with 256 units, four epochs of NCE; needs PyTorch."""
    return _ptb_torch().with_changes(
        architecture="lstm",
        dim=256,
        batch_size=700,  # 20 segments of 35 words
        noise_samples=500,
        learning_rate=0.1,
        matrix_lr_scale=0.5,
        clip_norm=50.0,
        dropout=0.2,
        epochs=4,
    )


def ptb_feed_forward() -> TrainConfig:
    """The neural probabilistic language model of Bengio et al. (2003), one epoch of NCE; needs PyTorch."""
    return _ptb_torch().with_changes(
        architecture="feed-forward", context=4, hidden=200, learning_rate=0.2, matrix_lr_scale=0.2
    )


def ptb_maximum_entropy() -> TrainConfig:
    """A maximum-entropy model with hashed n-grams of up to three words, one epoch of NCE; needs PyTorch."""
    return _ptb_torch().with_changes(architecture="maximum-entropy", context=2, learning_rate=0.4)


def holmes(context: int = 10, dim: int = 100, context_after: int = 0) -> TrainConfig:
    """Section 5 of the paper, tens of millions of words: diagonal matrices, small minibatches with shared noise."""
    # As many noise samples as words in a minibatch. 125 take half the time of 1,000 words with 500 samples and give the
    # same accuracy; 250 give a higher accuracy to large models.
    batch = 125 if dim < 300 else 250
    return TrainConfig(
        model=ModelConfig(context=context, context_after=context_after, dim=dim, matrices="diagonal"),
        loss=NCE(samples=batch, shared_noise=True),
        noise=PowerNoise(),  # rare words, on which sentence completion depends, are drawn more often than they occur
        optimizer=Adagrad(
            initial_accumulator=round(100.0 / dim, 3),  # reduces overfitting to words with few occurrences
            warmup_steps=100,
        ),
        schedule=Linear(epochs=6),  # accuracy of sentence completion still rises when perplexity has nearly converged
        regularization=Regularization(dropout=max(dim - 100, 0) / 1000),  # large models overfit from the third epoch
        init=Init(std=0.02),
        learning_rate=round(3.0 / dim**0.5, 3),  # gradients per coordinate are smaller in larger dimensions
        matrix_lr_scale=1.0,
        batch_size=batch,
    )


PREFIX = "paper/"
RECIPES: dict[str, Callable[[], TrainConfig]] = {
    PREFIX + name: make
    for name, make in {
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
    }.items()
}


def recipe(name: str) -> TrainConfig:
    """Return the configuration of this name; "ptb-fast" is short for "paper/ptb-fast"."""
    full = PREFIX + check_str("name", name).removeprefix(PREFIX)
    if full not in RECIPES:
        raise NcelmError(
            f"there is no recipe {name!r}: choose one of {', '.join(RECIPES)}, or none for options that are chosen "
            "from the text"
        )
    return RECIPES[full]()
