"""Scores and filters for Ray Data, on one machine or a cluster.

    import ray
    from ncelm.integrations.ray import add_perplexity, filter_perplexity

    corpus = ray.data.read_parquet("corpus/")
    filter_perplexity(corpus, "run", max_perplexity=300, workers=8).write_parquet("kept/")

Each worker is an actor that loads the model once. The model must be at the same path on all machines; its checksum is
verified. The result of a document depends only on the document, so that it is the same for any number of workers. Ray
starts a new worker in place of one that is killed, and gives it the batches that have no result yet. The order of the
documents is that of the input if `ray.data.DataContext.get_current().execution_options.preserve_order` is set.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ncelm.arguments import check_int
from ncelm.integrations.batches import AddPerplexity, PerplexityFilter

if TYPE_CHECKING:
    from ray.data import Dataset


class _Keep:
    """Returns the documents of a batch that are kept."""

    def __init__(self, keep: PerplexityFilter) -> None:
        self.keep = keep

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        kept = np.array(self.keep(batch), np.bool_)  # type: ignore[arg-type]
        return {name: values[kept] for name, values in batch.items()}


class _Add:
    """Returns batches with the perplexity; NaN for a document without words."""

    def __init__(self, add: AddPerplexity) -> None:
        self.add = add

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        new = self.add(batch)  # type: ignore[arg-type]
        return {**batch, **{name: np.array(values, np.float64) for name, values in new.items()}}


def add_perplexity(
    dataset: "Dataset", model: Path | str, *, workers: int = 1, batch_size: int = 1024, **options: Any
) -> "Dataset":
    """Return a dataset with two more columns: the perplexity and the share of unknown words of each document.

    Args:
        dataset: of Ray Data, with a column of texts.
        model: a run or an ARPA file.
        workers: number of actors, each with the model in its memory.
        batch_size: documents that are scored in one call.
        options: those of `ncelm.integrations.batches.AddPerplexity`.
    """
    return _map(dataset, _Add, AddPerplexity(model, **options), workers, batch_size)


def filter_perplexity(
    dataset: "Dataset", model: Path | str, *, workers: int = 1, batch_size: int = 1024, **options: Any
) -> "Dataset":
    """Return the documents of a dataset that are kept.

    Args:
        dataset: of Ray Data, with a column of texts.
        model: a run or an ARPA file.
        workers: number of actors, each with the model in its memory.
        batch_size: documents that are scored in one call.
        options: those of `ncelm.integrations.batches.PerplexityFilter`, such as `max_perplexity`.
    """
    return _map(dataset, _Keep, PerplexityFilter(model, **options), workers, batch_size)


def _map(dataset: "Dataset", kind: type, function: object, workers: int, batch_size: int) -> "Dataset":
    return dataset.map_batches(
        kind,
        fn_constructor_args=(function,),
        batch_size=check_int("batch_size", batch_size, 1),
        batch_format="numpy",
        concurrency=check_int("workers", workers, 1),
    )
