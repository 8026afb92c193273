"""Neural language models that train in minutes on an ordinary CPU, by noise-contrastive estimation.

    import ncelm

    store = ncelm.prepare(["my_text.txt"], out="store", lowercase=True, min_count=2, punkt="train")
    ncelm.train(store, "run", context=4, dim=100)
    lm = ncelm.load("run")
    lm.score("a sentence to score")

    ncelm.train_ngram(store, "ngram", order=5)
    ncelm.mix(["ngram", "run"], "mixed")

What the command line does is these calls, `train_lsa`, `train_pmi`, `blend`, `import_arpa`, `export_arpa`, and those of
`ncelm.completion`, `ncelm.export`, `ncelm.reproduce`, `ncelm.table3` and `ncelm.demo`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ncelm.arpa import export_arpa, import_arpa
    from ncelm.corpus import TokenStore
    from ncelm.ensemble import blend
    from ncelm.errors import NcelmError
    from ncelm.evaluate import Evaluation
    from ncelm.language_model import LanguageModel, SentenceScore, WordScore, load_scorer
    from ncelm.lsa import Lsa, train_lsa
    from ncelm.mixing import mix
    from ncelm.model import LogBilinear, ModelConfig
    from ncelm.ngram import NGramModel, train_ngram
    from ncelm.noise import Noise
    from ncelm.pmi import Pmi, train_pmi
    from ncelm.preparing import prepare
    from ncelm.recipes import recipe
    from ncelm.training import Progress, TrainConfig, train
    from ncelm.vocabulary import Vocabulary

    load = LanguageModel.load

# Where each public name lives. They are imported when first used: Numba alone takes longer to import than
# `import ncelm` may.
_HOMES = {
    "Evaluation": "evaluate",
    "LanguageModel": "language_model",
    "LogBilinear": "model",
    "Lsa": "lsa",
    "ModelConfig": "model",
    "NGramModel": "ngram",
    "NcelmError": "errors",
    "Noise": "noise",
    "Pmi": "pmi",
    "Progress": "training",
    "SentenceScore": "language_model",
    "TokenStore": "corpus",
    "TrainConfig": "training",
    "Vocabulary": "vocabulary",
    "WordScore": "language_model",
    "blend": "ensemble",
    "export_arpa": "arpa",
    "import_arpa": "arpa",
    "load_scorer": "language_model",
    "mix": "mixing",
    "prepare": "preparing",
    "recipe": "recipes",
    "train": "training",
    "train_lsa": "lsa",
    "train_ngram": "ngram",
    "train_pmi": "pmi",
}

__all__ = [
    "Evaluation",
    "LanguageModel",
    "LogBilinear",
    "Lsa",
    "ModelConfig",
    "NGramModel",
    "NcelmError",
    "Noise",
    "Pmi",
    "Progress",
    "SentenceScore",
    "TokenStore",
    "TrainConfig",
    "Vocabulary",
    "WordScore",
    "blend",
    "export_arpa",
    "import_arpa",
    "load",
    "load_scorer",
    "mix",
    "prepare",
    "recipe",
    "train",
    "train_lsa",
    "train_ngram",
    "train_pmi",
]


def __getattr__(name: str) -> Any:
    if name == "load":
        return import_module("ncelm.language_model").LanguageModel.load
    if name in _HOMES:
        return getattr(import_module(f"ncelm.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'ncelm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
