"""`ncelm prepare`: text to a token store."""

import argparse
from pathlib import Path
from typing import Any

from ncelm.cli.parser import whole_number
from ncelm.cli.ui import add_json, add_out, add_tokenizer, parse_shard, print_json, warn
from ncelm.errors import NcelmError
from ncelm.progress import progress_bar, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = """\
ncelm prepare TEXT... --out STORE [options]
       ncelm prepare --train FILE --valid FILE --test FILE --out STORE [options]"""
    parser.description = """\
Turn text into a token store, which the other commands read.

Prose is split into sentences (Punkt) and words (Penn Treebank rules): give
files, directories or tar archives. Of a directory, all files that are not
hidden are read, at any depth. A blank line ends a paragraph.

Tokenized text has one sentence per line and blanks between words: give it
with --train, --valid and --test. Blank lines are skipped.

Files are plain text or, with --column, tables: JSON lines, Parquet, CSV or
TSV. All but Parquet may be compressed (.gz, .xz, .zst)."""
    parser.epilog = """\
examples:
  ncelm prepare texts/ --out store --lowercase --min-count 5 --punkt train
  ncelm prepare pages.jsonl --column text --out store --punkt train
  ncelm prepare texts/ --out store --tokenizer train:bpe:32000
  ncelm prepare --train train.txt --valid valid.txt --test test.txt --out store
  ncelm prepare works.tar.xz --gutenberg --out store --lowercase --min-count 5"""
    parser.add_argument(
        "files", nargs="*", default=[], type=Path, metavar="TEXT", help="Prose: files, directories or tar archives."
    )
    add_out(parser, "STORE")
    parser.add_argument("--lowercase", action="store_true", help="Convert words to lower case.")
    add_tokenizer(parser)
    parser.add_argument(
        "--min-count",
        type=whole_number,
        default=1,
        metavar="N",
        help="Replace words that occur fewer than N times in the training text by <unk>.",
    )
    parser.add_argument(
        "--vocabulary-size",
        type=whole_number,
        metavar="N",
        help="Keep only the most frequent words, N including <unk> and </s> [default: all].",
    )
    parser.add_argument(
        "--column",
        metavar="NAME",
        help="The files are tables (.jsonl, .ndjson, .json with one object per line, .parquet, .csv, .tsv): read the "
        "text in this column. A row is a document, or one or more lines of tokenized text.",
    )
    add_json(parser)

    prose = parser.add_argument_group("prose")
    prose.add_argument(
        "--punkt",
        choices=("english", "train"),
        default="english",
        help="The model that finds sentence ends: NLTK's English model, which must be installed, or a model trained "
        "on this text.",
    )
    prose.add_argument(
        "--gutenberg",
        action="store_true",
        help="The texts are works of Project Gutenberg: remove headers and footers. STORE/works.tsv lists what was "
        "removed. A work that is not in --encoding is read as latin-1.",
    )
    prose.add_argument(
        "--skip-broken",
        action="store_true",
        help="With --gutenberg: skip works that are empty or binary instead of stopping.",
    )

    tokenized = parser.add_argument_group("tokenized text")
    for split, name in (("train", "Training"), ("valid", "Validation"), ("test", "Test")):
        tokenized.add_argument(
            f"--{split}",
            nargs="+",
            action="extend",
            type=Path,
            metavar="FILE",
            help=f"{name} text, one sentence per line.",
        )
    tokenized.add_argument(
        "--blank-lines",
        choices=("skip", "keep"),
        default="skip",
        help="Skip blank lines, or keep each as an empty sentence, which is only </s>.",
    )

    held_out = parser.add_argument_group("validation and test sentences from the training text")
    held_out.add_argument(
        "--valid-sentences",
        type=whole_number,
        metavar="N",
        help="Number of random sentences for the validation split [default: for prose 5 %% of the text, at most 500; "
        "for tokenized text 0].",
    )
    held_out.add_argument("--test-sentences", type=whole_number, metavar="N", help="The same for the test split.")
    held_out.add_argument(
        "--seed", type=whole_number, default=0, metavar="N", help="Seed of the choice of these sentences."
    )

    reading = parser.add_argument_group("contexts and encoding")
    reading.add_argument(
        "--boundary",
        choices=("stream", "sentence"),
        help="Whether contexts extend across sentence ends (stream, the default for tokenized text, as usual for the "
        "Penn Treebank) or not (sentence, the default for prose).",
    )
    reading.add_argument("--encoding", default="utf-8", metavar="NAME", help="The encoding of the text.")

    processes = parser.add_argument_group("processes")
    processes.add_argument(
        "--workers", type=whole_number, metavar="N", help="Number of processes [default: one per core]."
    )
    processes.add_argument(
        "--shard",
        metavar="I/N",
        help="Tokenize only shard I of N, for job schedulers on machines that share the files. Then run the same "
        "command with --join N.",
    )
    processes.add_argument(
        "--join", type=whole_number, metavar="N", help="Make the store from the N shards made with --shard."
    )


def run(arguments: argparse.Namespace) -> None:
    """Prepare the text and print its statistics."""
    from ncelm.text.archives import REPORT, summary
    from ncelm.text.prepare import prepare, prepare_part

    if arguments.shard and arguments.join is not None:
        raise NcelmError("give --shard to tokenize a shard, or --join when all shards are done, not both")
    out = arguments.out
    for split in ("files", "train", "valid", "test"):
        for path in getattr(arguments, split) or []:
            if not path.exists():
                raise NcelmError(f"there is no file {path}")
    with progress_bar(unit="B", unit_scale=True, desc="reading") as bar:
        options: dict[str, Any] = {
            "files": arguments.files or None,
            "progress": show(bar),
            **{name: getattr(arguments, name) for name in
               ("out", "train", "valid", "test", "column", "blank_lines", "boundary", "lowercase", "tokenizer",
                "normalize", "punkt", "encoding",
                "gutenberg", "skip_broken", "workers")},
        }  # fmt: skip
        if arguments.shard:
            part = prepare_part(*parse_shard(arguments.shard), **options)
        else:
            store = prepare(
                min_count=arguments.min_count,
                vocabulary_size=arguments.vocabulary_size,
                valid_sentences=arguments.valid_sentences,
                test_sentences=arguments.test_sentences,
                seed=arguments.seed,
                parts=arguments.join,
                **options,
            )
    if arguments.shard:
        print_json({"part": str(part)}) if arguments.json else print(f"{part}: shard {arguments.shard} is done")
        return
    splits = {
        name: {"tokens": split.tokens, "sentences": split.n_sentences, "unknown": split.unknown}
        | (split.size._asdict() if split.size else {})
        for name, split in store.splits.items()
    }
    works = summary(out) if arguments.gutenberg else None
    blank = store.blank_lines or {}
    if arguments.json:
        result = {
            "store": str(out),
            "vocabulary": len(store.vocabulary),
            "splits": splits,
            "blank_lines": blank,
        }
        print_json(result | ({"works": works} if works else {}))
        return
    if works:
        print(
            f"{works['works']:,} works, {works['without_header']} without a known header, "
            f"{works['without_footer']} without a known footer, {works['skipped']} skipped: see {out / REPORT}"
        )
    if not splits["train"]["unknown"] and not store.text.pieces:
        warn(
            "the training text contains no unknown words, so a model cannot learn the probability of unknown words: "
            "consider --min-count 2"
        )
    unit = "pieces" if store.text.pieces else "words"
    print(f"{out}: vocabulary of {len(store.vocabulary):,} {unit}, boundary {store.boundary}")
    for name, counts in splits.items():
        unknown = 100 * counts["unknown"] / counts["tokens"]
        print(
            f"  {name:5} {counts['tokens']:>12,} tokens in {counts['sentences']:,} sentences, {unknown:.1f} % unknown"
        )
    if blank_lines := sum(blank.values()):
        kept = "kept as empty sentences" if arguments.blank_lines == "keep" else "skipped"
        meaning = "ends of paragraphs" if store.punkt else kept
        print(f"  {blank_lines:,} blank {'line' if blank_lines == 1 else 'lines'} in the text ({meaning})")
