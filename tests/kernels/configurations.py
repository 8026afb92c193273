"""The training kernels that tests compile."""

from ncelm.training.config import TrainConfig

# One compiled kernel each: its types depend on nothing but these options, so that all other tests share them. A kernel
# takes about ten seconds to compile. Together they have every strategy (noise of each example, shared noise, exact
# likelihood) with full and diagonal matrices, tied and untied embeddings, each optimizer and dropout; every pair of
# matrices, ties and optimizers; log-normalizers with each optimizer; bigram noise with importance sampling and with
# other losses. tests/kernels/test_losses.py has all members of the family, and all losses with shared noise.
KERNELS = {
    # those of the recipes, and others that the tests of training use too
    "nce": {},
    "nce, sgd": {"optimizer": "sgd"},
    "nce, adam": {"optimizer": "adam"},
    "ranking": {"loss": "ranking"},
    "importance": {"loss": "importance", "min_effective_samples": 6.0, "max_samples": 18},
    "log-normalizers, bigram": {"log_normalizers": "learned", "noise": "bigram", "bigram_smoothing": 2.5},
    "ml": {"loss": "ml"},
    "ml, sgd": {"loss": "ml", "optimizer": "sgd"},
    "shared": {"shared_noise": True},
    "shared, dropout": {"shared_noise": True, "dropout": 0.3},
    "shared, diagonal": {"shared_noise": True, "matrices": "diagonal"},
    # what these leave out
    "penalty, everything": {
        "matrices": "diagonal",
        "tied_embeddings": True,
        "optimizer": "adam",
        "log_z_penalty": 0.2,
        "log_normalizers": "learned",
        "dropout": 0.3,
    },
    "penalized ranking, tied": {"loss": "ranking", "log_z_penalty": 0.2, "tied_embeddings": True, "noise": "bigram"},
    "importance, bigram": {
        "loss": "importance",
        "min_effective_samples": 3.0,
        "max_samples": 10,
        "noise": "bigram",
        "matrices": "diagonal",
        "tied_embeddings": True,
        "optimizer": "sgd",
    },
    "family, diagonal": {
        "loss": "family",
        "family_member": "root",
        "matrices": "diagonal",
        "optimizer": "sgd",
        "log_normalizers": "learned",
    },
    "shared ranking, tied": {"loss": "ranking", "shared_noise": True, "tied_embeddings": True, "optimizer": "sgd"},
    "shared penalty, diagonal": {
        "shared_noise": True,
        "log_z_penalty": 0.2,
        "matrices": "diagonal",
        "optimizer": "adam",
    },
    "ml, diagonal, tied": {
        "loss": "ml",
        "matrices": "diagonal",
        "tied_embeddings": True,
        "optimizer": "adam",
        "dropout": 0.3,
    },
}


def configured(kernel, **sizes):
    """Return the configuration of a kernel with these sizes; exact maximum likelihood has no noise samples."""
    options = sizes | KERNELS[kernel]
    if options.get("loss") == "ml":
        options = {name: value for name, value in options.items() if not name.startswith("noise")}
    return TrainConfig().with_changes(**options)
