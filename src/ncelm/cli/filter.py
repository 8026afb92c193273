"""`ncelm filter`: documents by the probability that a model gives them."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ncelm.cli.parser import number, whole_number
from ncelm.cli.ui import add_json, add_run, announce_compilation, print_json, warn
from ncelm.errors import NcelmError

if TYPE_CHECKING:
    from ncelm.filtering.result import FilterResult

BAR = 40  # characters of the longest bar of the histogram


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm filter RUN FILE... --out DIR [options]"
    parser.description = """\
Add the perplexity to each document, and split documents into head, middle and
tail by it, or keep a part of them. Documents are rows of JSON lines, Parquet,
CSV or TSV files, or lines of plain text; all but Parquet may be compressed
(.gz, .xz, .zst). Give files, directories, patterns, or - for standard input.

Documents keep their order. All cores are used, in bounded memory. After an
interruption, --resume continues; the result has the same bytes."""
    parser.epilog = """\
examples:
  ncelm filter run pages.jsonl --out filtered
  ncelm filter run pages/ --out filtered --keep 50 --html
  ncelm filter good pages.parquet --contrast bad --out filtered --keep 30
  zcat pages.jsonl.gz | ncelm filter run - --out filtered --threshold 400"""
    add_run(parser)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="Files, directories, patterns, or -.")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="The directory to make. It must not exist, except with "
        "--resume.",
    )  # fmt: skip
    parser.add_argument("--column", default="text", metavar="NAME", help="The column that has the text.")
    add_json(parser)

    buckets = parser.add_argument_group("which documents are kept")
    buckets.add_argument("--keep", type=number, metavar="PERCENT", help="Keep this share of the documents, the best.")
    buckets.add_argument("--threshold", type=number, metavar="X", help="Keep documents with a perplexity up to X.")
    buckets.add_argument(
        "--split",
        metavar="P,Q",
        help="Write head, middle and tail: documents below percentile P, below Q, and the others [default: 30,60].",
    )
    buckets.add_argument("--score-only", action="store_true", help="Write all documents to one file.")
    buckets.add_argument("--rejected", action="store_true", help="With --keep or --threshold: write the others, too.")
    buckets.add_argument(
        "--calibrate",
        type=whole_number,
        default=10_000,
        metavar="N",
        help="Estimate percentiles on a sample of N documents.",
    )
    buckets.add_argument(
        "--thresholds-from", type=Path, metavar="DIR", help="Use the thresholds of another output directory instead."
    )
    buckets.add_argument(
        "--max-unknown",
        type=number,
        metavar="SHARE",
        help="Documents with a larger share of unknown words, such as 0.3, are in the last bucket.",
    )

    scoring = parser.add_argument_group("scores")
    scoring.add_argument(
        "--contrast",
        type=Path,
        metavar="RUN",
        help="A model of general text, or of bad text. Documents are compared by their cross-entropy per word under "
        "the first model minus that under this one.",
    )
    scoring.add_argument(
        "--mode",
        choices=("auto", "exact", "fast", "unnormalised"),
        default="auto",
        help="How scores are normalised, as in `ncelm score`. auto is fast if the model has a normalizer, exact for "
        "n-gram models, and otherwise unnormalised.",
    )
    scoring.add_argument(
        "--sentences",
        choices=("auto", "lines", "punkt"),
        default="auto",
        help="Whether each line of a document is a sentence, or Punkt finds sentences; auto is as in the training "
        "text.",
    )

    output = parser.add_argument_group("output")
    output.add_argument("--format", choices=("jsonl", "text"), default="jsonl", help="JSON lines, or the text only.")
    output.add_argument("--compress", choices=("none", "gz", "zst"), default="none", help="Compress the output.")
    output.add_argument("--prefix", default="", metavar="TEXT", help="Prefix of the names of new fields.")
    output.add_argument("--html", action="store_true", help="Write a page with a histogram and examples: filter.html.")

    running = parser.add_argument_group("running")
    running.add_argument("--skip-broken", action="store_true", help="Skip rows that cannot be read, and count them.")
    running.add_argument("--resume", action="store_true", help="Continue an interrupted run, or start.")
    running.add_argument("--workers", type=whole_number, metavar="N", help="Processes [default: one per core].")


def run(arguments: argparse.Namespace) -> None:
    """Filter and print a summary."""
    from ncelm.filtering.run import filter_documents

    announce_compilation()
    options = {name: value for name, value in vars(arguments).items() if name != "json"}
    if arguments.split is not None:
        try:
            options["split"] = tuple(float(part) for part in arguments.split.split(","))
        except ValueError:
            raise NcelmError(f"--split is {arguments.split!r}: give two percentages, such as 30,60") from None
    result = filter_documents(**options)
    if arguments.json:
        print_json(result.as_dict())
        return
    _print(result)
    if result.broken:
        warn(f"{result.broken:,} rows could not be read; the first: {result.named[0]}")


def _print(result: "FilterResult") -> None:
    """Print counts and a histogram."""
    measure = result.measure.replace("_", " ")
    print(f"{result.out}: {result.total:,} documents, {result.tokens:,} tokens in {result.seconds:.1f} s")
    limits = [f"{measure} up to {limit:,.6g}" for limit in result.thresholds]
    limits += [f"above {result.thresholds[-1]:,.6g}" if result.thresholds else "all"]
    for (bucket, documents), limit in zip(result.documents.items(), limits, strict=True):
        share = 100 * documents / max(result.total, 1)
        where = result.outputs[bucket].name if bucket in result.outputs else "not written"
        print(f"  {bucket:8} {documents:>12,} documents, {share:5.1f} %  ({limit}; {where})")
    if result.empty:
        print(f"  {result.empty:,} documents have no words")
    most = max((count for *_, count in result.histogram), default=1)
    if result.histogram:
        print(f"{measure} of documents:")
    for low, high, count in result.histogram:
        print(f"  {low:>9.4g} – {high:<9.4g} {count:>12,}  {'█' * round(BAR * count / most)}")
