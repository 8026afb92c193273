"""Compile kernels ahead of time, for `ncelm compile` and `ncelm fit`.

A kernel is compiled for the types of its arguments. Each target trains or scores a model of a text of a few words, with
arguments of the types that real texts have.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ncelm.kernels.threads import Team
from ncelm.models.base import Mode, corpus_view
from ncelm.models.fit_normalizer import fit
from ncelm.models.log_bilinear import LogBilinear
from ncelm.models.ngram.arpa import read_arpa, write_arpa
from ncelm.models.ngram.estimate import estimate
from ncelm.models.ngram.index import build_index, compile_queries
from ncelm.models.ngram.query import NGramModel
from ncelm.noise import Noise
from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore
from ncelm.training.adaptive import default_config
from ncelm.training.config import TrainConfig
from ncelm.training.loop import train
from ncelm.training.recipes import RECIPES

TEXT = "a b c d\ne f g h\n"
ID_TYPES = (np.uint16, np.uint32)  # of vocabularies of at most 65,536 words, and of larger ones
TINY: dict[str, Any] = {"dim": 4, "batch_size": 8, "epochs": 1}


def targets(everything: bool) -> list[tuple[str, Callable[[], None]]]:
    """The names of what can be compiled, and functions that compile it.

    Args:
        everything: all recipes and n-gram models; otherwise training with default options, and scoring.
    """
    configs = {"default options": default_config(1_000_000, 10_000)}
    if everything:
        configs |= {f"recipe {name}": make() for name, make in RECIPES.items()}
    chosen: dict[Any, str] = {}  # one for each set of kernels
    for name, config in configs.items():
        if config.backend == "compiled":
            chosen.setdefault(_kernel_types(config), name)
    found: list[tuple[str, Callable[[], None]]] = [
        (f"training, {name}", partial(_train, configs[name])) for name in chosen.values()
    ]
    found += [(f"scoring, {matrices} matrices", partial(_score, matrices)) for matrices in ("full", "diagonal")]
    if everything:
        found.append(("n-gram models and ARPA files", _ngram))
        if find_spec("torch"):
            found.append(("PyTorch losses", _torch_losses))
    return found


def _kernel_types(config: TrainConfig) -> tuple[Any, ...]:
    """The properties of a configuration that the types of the training kernel's arguments depend on."""
    loss = config.loss
    return (
        type(loss),
        bool(getattr(loss, "shared_noise", False)),
        bool(getattr(loss, "log_z_penalty", 0.0)),
        getattr(loss, "member", None),
        config.learned_log_normalizers,
        config.noise.name == "bigram",
        type(config.optimizer),
        config.regularization.dropout > 0,
        config.model.matrices,
        config.model.tied_embeddings,
    )


def compile_for(store: TokenStore, folder: Path) -> None:
    """Compile, or load from the cache, what training with default options, n-gram models and scoring need.

    `folder` is for temporary files.
    """
    config = default_config(store.split("train").tokens, len(store.vocabulary))
    kinds = (store.split("train").ids.dtype.type,)
    _train(config, kinds, folder)
    _score(config.model.matrices, kinds, folder)
    with _stores(kinds, folder) as stores:
        _estimate_ngram(stores)


@contextmanager
def _stores(kinds: Sequence[Any] = ID_TYPES, parent: Path | None = None) -> Iterator[list[TokenStore]]:
    """A tiny store with each of these types of ids."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        text = Path(folder) / "text"
        text.write_text(TEXT)
        store = prepare(train=text, valid=text, out=Path(folder) / "store", workers=1, progress=False)
        yield [
            replace(
                store, splits={name: replace(split, ids=split.ids.astype(kind)) for name, split in store.splits.items()}
            )
            for kind in kinds
        ]


def _train(config: TrainConfig, kinds: Sequence[Any] = ID_TYPES, parent: Path | None = None) -> None:
    samples = {"noise_samples": 4} if config.sampled else {}
    with _stores(kinds, parent) as stores, tempfile.TemporaryDirectory(dir=parent) as folder:
        for i, store in enumerate(stores):
            tiny = config.with_changes(**TINY, **samples)
            train(store, Path(folder) / f"run{i}", tiny, threads=1, progress=False)


def _score(matrices: str, kinds: Sequence[Any] = ID_TYPES, parent: Path | None = None) -> None:
    config = TrainConfig().with_changes(matrices=matrices, **TINY).model
    with _stores(kinds, parent) as stores, Team(1) as team:
        unigram = Noise.from_counts(stores[0].vocabulary.counts).probabilities
        model = LogBilinear.initialise(config, unigram, 0, 0.1)
        for store in stores:
            corpus = corpus_view(store.split("valid"), store)
            model = replace(model, normalizer=fit(model, corpus, corpus, 2, 4, 0, team))
            for mode in get_args(Mode):
                model.score_positions(corpus, 0, corpus.ids.size, team, mode)
        model.predict(np.zeros((1, config.positions), np.int64))
        list(model.next_distributions([np.zeros(1, np.int64)], 0, team))
        model.draw_next([np.zeros(1, np.int64)], 0, (), 1.0, np.zeros(1), team)


def _estimate_ngram(stores: list[TokenStore]) -> NGramModel:
    """Return a model of the first store after it has scored all of them."""
    model, _ = estimate(stores[0], 2)
    with Team(1) as team:
        for store in stores:
            corpus = corpus_view(store.split("valid"), store)
            model.score_positions(corpus, 0, corpus.ids.size, team)
    model.log_probabilities_after([0])
    return model


def _ngram() -> None:
    with _stores() as stores, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.arpa"
        model = _estimate_ngram(stores)
        write_arpa(path, model, stores[0].vocabulary)
        read_arpa(path)
        compile_queries(build_index(model, stores[0].vocabulary, stores[0].pad_id))


def _torch_losses() -> None:
    torch, losses = import_module("torch"), import_module("ncelm.torch")
    for bias in (True, False):
        loss = losses.NCELoss(4, 8, np.ones(8), 2, bias=bias, sparse=True)
        loss(torch.ones(2, 4, requires_grad=True), torch.arange(2)).backward()
        losses.SparseSGD(loss.parameters(), lr=0.1).step()
