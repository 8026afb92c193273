"""Neural language models that train in minutes on an ordinary CPU, by noise-contrastive estimation.

    import ncelm

    lm = ncelm.fit(["my_text.txt"], "model", minutes=10)  # the best model of a text; or step by step:

    store = ncelm.prepare(["my_text.txt"], out="store", lowercase=True, min_count=2, punkt="train")
    ncelm.train(store, "run", context=4, dim=100)
    lm = ncelm.load("run")
    lm.score("a sentence to score")
    ncelm.filter_documents("run", ["pages.jsonl"], "filtered")  # documents by perplexity

    ncelm.train_ngram(store, "ngram", order=5)
    ncelm.mix(["ngram", "run"], "mixed")

`ncelm.train_lsa`, `train_pmi`, `fit_normalizer`, `blend`, `import_arpa` and `export_arpa` are other commands;
`ncelm.completion` has sentence completion, `ncelm.models.vectors` the export of word vectors, `ncelm.paper` the tables
of the paper.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ncelm.arpa import export_arpa, import_arpa
    from ncelm.combine import blend, mix
    from ncelm.errors import NcelmError
    from ncelm.filtering.result import FilterResult
    from ncelm.filtering.run import filter_documents
    from ncelm.fitting.fit import fit
    from ncelm.language_model import LanguageModel, SentenceScore, Tokens, WordScore, load_scorer
    from ncelm.models.evaluate import Evaluation
    from ncelm.models.fit_normalizer import fit_normalizer
    from ncelm.models.log_bilinear import LogBilinear, ModelConfig
    from ncelm.models.lsa import Lsa, train_lsa
    from ncelm.models.ngram.estimate import train_ngram
    from ncelm.models.ngram.query import NGramModel
    from ncelm.models.pmi import Pmi, train_pmi
    from ncelm.noise import Noise
    from ncelm.report import report_data, write_report
    from ncelm.text.prepare import prepare
    from ncelm.text.store import TokenStore
    from ncelm.text.vocabulary import Vocabulary
    from ncelm.training.config import TrainConfig
    from ncelm.training.loop import Progress, train
    from ncelm.training.recipes import recipe

    load = LanguageModel.load

# The module of each public name, imported when the name is first used: `import ncelm` must not import Numba.
_HOMES = {
    "Evaluation": "models.evaluate",
    "FilterResult": "filtering.result",
    "LanguageModel": "language_model",
    "LogBilinear": "models.log_bilinear",
    "Lsa": "models.lsa",
    "ModelConfig": "models.log_bilinear",
    "NGramModel": "models.ngram.query",
    "NcelmError": "errors",
    "Noise": "noise",
    "Pmi": "models.pmi",
    "Progress": "training.loop",
    "SentenceScore": "language_model",
    "TokenStore": "text.store",
    "Tokens": "language_model",
    "TrainConfig": "training.config",
    "Vocabulary": "text.vocabulary",
    "WordScore": "language_model",
    "blend": "combine",
    "export_arpa": "arpa",
    "filter_documents": "filtering.run",
    "fit": "fitting.fit",
    "fit_normalizer": "models.fit_normalizer",
    "import_arpa": "arpa",
    "load_scorer": "language_model",
    "mix": "combine",
    "prepare": "text.prepare",
    "recipe": "training.recipes",
    "report_data": "report",
    "train": "training.loop",
    "train_lsa": "models.lsa",
    "train_ngram": "models.ngram.estimate",
    "train_pmi": "models.pmi",
    "write_report": "report",
}

__all__ = [
    "Evaluation",
    "FilterResult",
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
    "Tokens",
    "TrainConfig",
    "Vocabulary",
    "WordScore",
    "blend",
    "export_arpa",
    "filter_documents",
    "fit",
    "fit_normalizer",
    "import_arpa",
    "load",
    "load_scorer",
    "mix",
    "prepare",
    "recipe",
    "report_data",
    "train",
    "train_lsa",
    "train_ngram",
    "train_pmi",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name == "load":
        return import_module("ncelm.language_model").LanguageModel.load
    if name in _HOMES:
        return getattr(import_module(f"ncelm.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'ncelm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
