"""A filter of NeMo Curator by perplexity.

from ncelm.integrations.nemo_curator import PerplexityFilter
from nemo_curator.stages.text.filters import ScoreFilter

pipeline.add_stage(ScoreFilter(PerplexityFilter("run", max_perplexity=300), score_field="perplexity"))
"""

import math
from pathlib import Path

from ncelm.errors import MissingExtraError
from ncelm.integrations.documents import DocumentScore, DocumentScorer, Limits

try:
    from nemo_curator.stages.text.filters.doc_filter import DocumentFilter
except ImportError as error:
    raise MissingExtraError("NeMo Curator is not installed: pip install nemo-curator") from error


class PerplexityFilter(DocumentFilter):
    """Scores documents by their perplexity and keeps those in a range. The score of one without words is NaN."""

    def __init__(
        self,
        model: Path | str,
        min_perplexity: float = 0.0,
        max_perplexity: float = math.inf,
        threads: int | None = 1,
    ) -> None:
        """Create a filter.

        Args:
            model: a run or an ARPA file.
            min_perplexity: of documents that are kept.
            max_perplexity: of documents that are kept.
            threads: of a neural model; None for all cores.
        """
        super().__init__()
        self.limits = Limits(min_perplexity, max_perplexity)
        self.scorer = DocumentScorer(model, threads)
        self._name = "ncelm_perplexity"

    def load_model(self) -> None:
        """Load the model. NeMo Curator calls this once in each worker process, which is an actor because of it."""
        self.scorer.load()

    def score_document(self, text: str) -> float:
        """Return the perplexity of a document."""
        return self.scorer.score(text).perplexity

    def keep_document(self, score: float) -> bool:
        """Return whether a document with this perplexity is kept."""
        return self.limits.reason(DocumentScore(score, 0.0)) is None
