"""Steps of a datatrove pipeline: a filter by perplexity, and statistics of perplexities.

from ncelm.integrations.datatrove import PerplexityFilter

pipeline = [JsonlReader("corpus/"), PerplexityFilter("run", max_perplexity=300), JsonlWriter("kept/")]
LocalPipelineExecutor(pipeline, tasks=8, workers=8).run()
"""

import math
from pathlib import Path
from typing import Any

from ncelm.errors import MissingExtraError
from ncelm.integrations.documents import DocumentScorer, Limits

try:
    from datatrove.data import Document
    from datatrove.pipeline.filters.base_filter import BaseFilter
    from datatrove.pipeline.stats.base import BaseStats
except ImportError as error:
    raise MissingExtraError("datatrove is not installed: pip install datatrove") from error


class PerplexityFilter(BaseFilter):
    """Keeps documents with a perplexity in a range, and adds it to their metadata as "ncelm_perplexity".

    A document that is dropped has one of the reasons "empty", "unknown_words", "low_perplexity", "high_perplexity".
    """

    name = "ncelm perplexity"

    def __init__(
        self,
        model: Path | str,
        min_perplexity: float = 0.0,
        max_perplexity: float = math.inf,
        max_unknown: float = 1.0,
        exclusion_writer: Any = None,
        batch_size: int = 256,
        threads: int | None = 1,
    ) -> None:
        """Create a step.

        Args:
            model: a run or an ARPA file.
            min_perplexity: of documents that are kept.
            max_perplexity: of documents that are kept.
            max_unknown: the largest share of unknown words of documents that are kept.
            exclusion_writer: a writer of datatrove for the others.
            batch_size: documents that are scored in one call.
            threads: of a neural model; None for all cores.
        """
        super().__init__(exclusion_writer, batch_size)
        self.limits = Limits(min_perplexity, max_perplexity, max_unknown)
        self.scorer = DocumentScorer(model, threads)

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """Return whether a document is kept, or False and the reason."""
        return self.filter_batch([doc])[0]

    def filter_batch(self, batch: list[Document]) -> list[bool | tuple[bool, str]]:
        """Return `filter` of each document of a batch."""
        results: list[bool | tuple[bool, str]] = []
        for document, score in zip(batch, self.scorer.scores([each.text for each in batch]), strict=True):
            if not math.isnan(score.perplexity):
                document.metadata["ncelm_perplexity"] = score.perplexity
            reason = self.limits.reason(score)
            results.append(True if reason is None else (False, reason))
        return results


class PerplexityStats(BaseStats):
    """Statistics of the perplexity, "ncelm_perplexity", and of the share of unknown words, "ncelm_unknown".

    Both are 0 for a document without words, as in the other statistics of datatrove.
    """

    name = "ncelm perplexity statistics"

    def __init__(self, output_folder: Any, model: Path | str, threads: int | None = 1, **options: Any) -> None:
        """Create a step.

        Args:
            output_folder: of the statistics.
            model: a run or an ARPA file.
            threads: of a neural model; None for all cores.
            options: those of datatrove's `BaseStats`, such as `groups_to_compute`.
        """
        super().__init__(output_folder, **options)
        self.scorer = DocumentScorer(model, threads)

    def extract_stats(self, doc: Document) -> dict[str, int | float]:
        """Return the statistics of a document."""
        score = self.scorer.score(doc.text)
        perplexity = 0.0 if math.isnan(score.perplexity) else score.perplexity
        return {"ncelm_perplexity": perplexity, "ncelm_unknown": score.unknown}
