"""Functions of batches of documents, for `map` and `filter` of Hugging Face `datasets`.

    from ncelm.integrations.batches import AddPerplexity, PerplexityFilter

    dataset = dataset.map(AddPerplexity("run"), batched=True, num_proc=8)
    dataset = dataset.filter(PerplexityFilter("run", max_perplexity=300), batched=True, num_proc=8)

A batch is a mapping of column names to lists or arrays of one value per document. `datasets` caches results by the
content of the function: a changed model has another checksum, and is applied again.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ncelm.arguments import check_str
from ncelm.errors import NcelmError
from ncelm.integrations.documents import DocumentScore, DocumentScorer, Limits


class AddPerplexity:
    """Returns two columns for each batch: the perplexity and the share of unknown words of each document.

    The perplexity of a document without words is None.
    """

    def __init__(
        self, model: Path | str, column: str = "text", prefix: str = "ncelm_", threads: int | None = 1
    ) -> None:
        """Create a function for `map`.

        Args:
            model: a run or an ARPA file.
            column: that of the text.
            prefix: of the names of the new columns, "perplexity" and "unknown".
            threads: of a neural model; None for all cores.
        """
        self.column, self.prefix = check_str("column", column), check_str("prefix", prefix)
        self.scorer = DocumentScorer(model, threads)

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return the new columns of a batch; `map` adds them to the others."""
        scores = _scores(self.scorer, batch, self.column)
        return {
            f"{self.prefix}perplexity": [None if math.isnan(each.perplexity) else each.perplexity for each in scores],
            f"{self.prefix}unknown": [each.unknown for each in scores],
        }


class PerplexityFilter:
    """Returns for each document of a batch whether it is kept. Documents without words are not."""

    def __init__(
        self,
        model: Path | str,
        column: str = "text",
        min_perplexity: float = 0.0,
        max_perplexity: float = math.inf,
        max_unknown: float = 1.0,
        threads: int | None = 1,
    ) -> None:
        """Create a function for `filter`.

        Args:
            model: a run or an ARPA file.
            column: that of the text.
            min_perplexity: of documents that are kept.
            max_perplexity: of documents that are kept.
            max_unknown: the largest share of unknown words of documents that are kept.
            threads: of a neural model; None for all cores.
        """
        self.column, self.limits = check_str("column", column), Limits(min_perplexity, max_perplexity, max_unknown)
        self.scorer = DocumentScorer(model, threads)

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> list[bool]:
        """Return whether each document is kept."""
        return [self.limits.reason(score) is None for score in _scores(self.scorer, batch, self.column)]


def _scores(scorer: DocumentScorer, batch: Mapping[str, Sequence[Any]], column: str) -> list[DocumentScore]:
    """Return the scores of the documents of a batch. A missing text (None) has no words."""
    if column not in batch:
        raise NcelmError(f"the data has no column {column!r}: give one of {', '.join(map(str, batch))} as `column`")
    texts = ["" if text is None else text for text in batch[column]]
    if not set(map(type, texts)) <= {str}:
        texts = [_text(text, column) for text in texts]
    return scorer.scores(texts)


def _text(value: object, column: str) -> str:
    if isinstance(value, str):
        return str(value)  # also a subclass, such as that of NumPy
    raise NcelmError(f"the column {column!r} has a value of type {type(value).__name__}: give a column of texts")
