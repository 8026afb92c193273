"""The result of `filter_documents`: counts, deciles and a histogram."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ncelm.filtering.scoring import WIDTH, Job, bin_center
from ncelm.filtering.state import State

INTERVALS = 20  # of the histogram, about
OUTER = 0.001  # the share of the documents at each end of the histogram that one interval has


@dataclass(frozen=True)
class FilterResult:
    """The result of `filter_documents`."""

    out: Path
    outputs: dict[str, Path]  # files by bucket
    documents: dict[str, int]  # by bucket
    thresholds: list[float]  # largest values of all buckets but the last
    measure: str  # of documents: perplexity, pseudo_perplexity (of unnormalised scores) or cross_entropy_difference
    modes: list[str]  # in which the models were scored
    tokens: int
    unknown: int  # tokens scored as <unk>
    empty: int  # documents without words
    broken: int  # rows that were skipped
    named: list[str]  # the first of them
    deciles: list[float]  # of the measure
    histogram: list[tuple[float, float, int]]  # from, to, documents
    seconds: float

    @property
    def total(self) -> int:
        """The number of all documents."""
        return sum(self.documents.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        paths = {name: str(path) for name, path in self.outputs.items()}
        return {**asdict(self), "out": str(self.out), "outputs": paths, "total": self.total}


def result_of_state(out: Path, job: Job, state: State) -> FilterResult:
    """Return the result of a call with this state."""
    bins = sorted((int(number), count) for number, count in state.histogram.items())
    plain = (lambda x: x) if job.contrast else math.exp
    return FilterResult(
        out=out,
        outputs={bucket: out / name for bucket, name in zip(job.written, state.outputs, strict=True)},
        documents=state.documents,
        thresholds=state.thresholds or [],
        measure="cross_entropy_difference"
        if job.contrast
        else ("perplexity" if state.normalised else "pseudo_perplexity"),
        modes=state.modes,
        tokens=state.tokens,
        unknown=state.unknown,
        empty=state.empty,
        broken=state.broken,
        named=state.named,
        deciles=[plain(x) for x in _deciles(bins)],
        histogram=[(plain(low), plain(high), count) for low, high, count in _coarse(bins)],
        seconds=state.seconds,
    )


def _deciles(bins: list[tuple[int, int]]) -> list[float]:
    """Return nine deciles of a histogram, accurate to half an interval; none of an empty one."""
    total, found, seen = sum(count for _, count in bins), list[float](), 0
    for number, count in bins:
        seen += count
        while len(found) < 9 and seen >= total * (len(found) + 1) / 10:
            found.append(bin_center(number))
    return found


def _coarse(bins: list[tuple[int, int]], most: int = INTERVALS) -> list[tuple[float, float, int]]:
    """Return a histogram with at most about `most` equal intervals; the documents at its ends share one."""
    total, seen, inner = sum(count for _, count in bins), 0, list[int]()
    for number, count in bins:
        seen += count
        if seen >= OUTER * total and seen - count <= (1 - OUTER) * total:
            inner.append(number)
    if not inner:
        return []
    step = max(math.ceil((inner[-1] + 1 - inner[0]) / most), 1)
    counts: dict[int, int] = {}
    for number, count in bins:
        place = (min(max(number, inner[0]), inner[-1]) - inner[0]) // step
        counts[place] = counts.get(place, 0) + count
    edge = bin_center(inner[0]) - WIDTH / 2
    last = max(counts)
    return [(edge + i * step * WIDTH, edge + (i + 1) * step * WIDTH, counts.get(i, 0)) for i in range(last + 1)]
