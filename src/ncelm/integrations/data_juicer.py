"""The operator `ncelm_perplexity_filter` of Data-Juicer.

In Python, import this module and use the class. In a recipe, name the file of this module
(`python -c "import ncelm.integrations.data_juicer as m; print(m.__file__)"`) under `custom_operator_paths`:

    custom_operator_paths: ["…/ncelm/integrations/data_juicer.py"]
    process:
      - ncelm_perplexity_filter:
          model: run
          max_ppl: 300
"""

import math
from collections.abc import Iterator
from typing import Any

from ncelm.errors import MissingExtraError
from ncelm.integrations.documents import DocumentScorer, Limits

try:
    from data_juicer.ops.base_op import OPERATORS, Filter
    from data_juicer.utils.constant import Fields
except ImportError as error:
    raise MissingExtraError("Data-Juicer is not installed: pip install py-data-juicer") from error

NAME, STATISTIC = "ncelm_perplexity_filter", "ncelm_perplexity"


@OPERATORS.register_module(NAME, force=True)  # a recipe loads this file, which may have been imported already
class NcelmPerplexityFilter(Filter):
    """Keeps samples with a perplexity in a range. Their statistics have it as "ncelm_perplexity".

    It is 0 for samples without words, as in Data-Juicer's own perplexity filter; they are not kept. (The field
    "perplexity" is that of the other filter, which may be in the same recipe.)
    """

    _batched_op = True

    def __init__(
        self,
        model: str = "",
        min_ppl: float = 0.0,
        max_ppl: float = math.inf,
        threads: int = 1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Create an operator.

        Args:
            model: a run or an ARPA file.
            min_ppl: the lowest perplexity of samples that are kept.
            max_ppl: the highest perplexity of samples that are kept.
            threads: of a neural model.
            args: those of all filters of Data-Juicer.
            kwargs: those of all filters of Data-Juicer, such as `text_key`.
        """
        super().__init__(*args, **kwargs)
        self.limits = Limits(min_ppl, max_ppl)  # checks them
        self.scorer = DocumentScorer(model, threads)

    def compute_stats_batched(self, samples: Any, context: bool = False) -> Any:
        """Add the perplexity to the statistics of samples that do not have it yet."""
        rows = [i for i, stats in enumerate(samples[Fields.stats]) if STATISTIC not in stats]
        scores = self.scorer.scores([samples[self.text_key][i] or "" for i in rows])
        for i, score in zip(rows, scores, strict=True):
            samples[Fields.stats][i][STATISTIC] = 0.0 if math.isnan(score.perplexity) else score.perplexity
        return samples

    def process_batched(self, samples: Any) -> Iterator[bool]:
        """Return whether each sample is kept."""
        for stats in samples[Fields.stats]:
            perplexity, limits = stats[STATISTIC], self.limits
            in_range = self.get_keep_boolean(perplexity, limits.min_perplexity, limits.max_perplexity)
            yield bool(in_range) and perplexity > 0.0
