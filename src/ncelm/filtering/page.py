"""A page about a filtered corpus: counts, a histogram, and examples of documents, without scripts."""

import math
from bisect import bisect_left
from importlib.resources import files
from pathlib import Path
from string import Template

from ncelm import __version__
from ncelm.filtering.result import FilterResult
from ncelm.filtering.scoring import Job, bin_center
from ncelm.filtering.state import State
from ncelm.io.files import atomic_write
from ncelm.report.charts import Series, line_chart, number
from ncelm.report.markup import Markup, element, join, table, text

MARK = "<!doctype html>\n<!-- ncelm filter -->\n"
PER_DECILE = 5  # documents shown
LABELS = {
    "perplexity": "perplexity",
    "pseudo_perplexity": "pseudo-perplexity (unnormalised scores)",
    "cross_entropy_difference": "difference of cross-entropies, nats per word",
}


def write_page(path: Path, result: FilterResult, job: Job, state: State) -> None:
    """Write the page."""
    template = Template(files("ncelm.report").joinpath("template.html").read_text("utf-8"))
    style = files("ncelm.report").joinpath("style.css").read_text("utf-8")
    title = f"{result.out.name}: filtered documents"
    body = join([element("h1", title), _summary(result, job), _histogram(result), _examples(result, job, state)])
    foot = element("p", f"Written by ncelm {__version__}.")
    content = MARK + template.substitute(title=text(title), style=style, body=body, foot=foot)
    with atomic_write(path) as file:
        file.write(content.encode("utf-8", "backslashreplace"))


def _summary(result: FilterResult, job: Job) -> Markup:
    total = max(result.total, 1)
    limits = [f"≤ {number(limit)}" for limit in result.thresholds]
    limits += ["all" if not limits else f"> {number(result.thresholds[-1])}"]
    rows: list[list[object]] = [
        [bucket, f"{count:,}", f"{100 * count / total:.1f} %", limit]
        for (bucket, count), limit in zip(result.documents.items(), limits, strict=True)
    ]
    models = str(job.run) + (f", in contrast to {job.contrast}" if job.contrast else "")
    counts = (
        f"{result.tokens:,} tokens, of which {result.unknown:,} are unknown words; {result.empty:,} documents without "
        f"words; {result.broken:,} rows that could not be read."
    )
    lines = [
        element("p", f"Model: {models}. Measure: {LABELS[result.measure]}; lower is better."),
        table(["bucket", "documents", "share", LABELS[result.measure]], rows, "Buckets", frozenset({1, 2, 3})),
        element("p", counts),
    ]
    return join(lines)


def _histogram(result: FilterResult) -> Markup:
    points = [((low + high) / 2, float(count)) for low, high, count in result.histogram]
    chart = line_chart("Documents", LABELS[result.measure], "documents", [Series("documents", points)], from_zero=True)
    return join([element("h2", "Distribution"), chart]) if chart else Markup("")


def _examples(result: FilterResult, job: Job, state: State) -> Markup:
    """Return examples of each tenth of the documents, the best first."""
    if len(result.deciles) < 9:
        return Markup("")
    tenths: list[list[list[object]]] = [[] for _ in range(10)]
    for name, found in sorted(state.examples.items(), key=lambda item: int(item[0])):
        center = bin_center(int(name))
        # deciles are centers of intervals: equal values belong to the tenth below
        tenth = bisect_left(result.deciles, center if job.contrast else math.exp(center))
        tenths[tenth] += found
    parts = [element("h2", "Examples"), element("p", "The beginnings of some documents of each tenth, the best first.")]
    for i, some in enumerate(tenths):
        step = max(len(some) / PER_DECILE, 1.0)
        chosen = [some[int(k * step)] for k in range(min(PER_DECILE, len(some)))]
        rows: list[list[object]] = [[number(float(str(value))), element("bdi", shown)] for _, value, shown in chosen]
        parts += [element("h3", f"Tenth {i + 1}"), table([LABELS[result.measure], "document"], rows, f"Tenth {i + 1}")]
    return join(parts)
