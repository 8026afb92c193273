"""`ncelm ngram`: train n-gram models; write and read ARPA files."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ncelm.cli.parser import Parser, whole_number
from ncelm.cli.ui import (
    add_json,
    add_out,
    add_run,
    add_store,
    announce_compilation,
    print_json,
    warn,
)
from ncelm.progress import on_terminal

if TYPE_CHECKING:
    from ncelm.language_model import LanguageModel


def add_arguments(parser: Parser) -> None:
    """Add the three commands and their arguments."""
    parser.usage = """\
ncelm ngram train STORE --out RUN [options]
       ncelm ngram to-arpa RUN FILE [options]
       ncelm ngram from-arpa FILE --out RUN [options]"""
    parser.description = """\
N-gram models with interpolated modified Kneser–Ney smoothing.

commands:
  train      estimate a model from the training text of a token store
  to-arpa    write a model as an ARPA file
  from-arpa  make a model from an ARPA file

`ncelm ngram train --help` describes the options of `train`, and so on."""
    parser.epilog = """\
examples:
  ncelm ngram train store --order 5 --out ngram
  ncelm ngram to-arpa ngram ngram.arpa.gz
  ncelm ngram from-arpa other.arpa --out other --like store"""
    commands = parser.add_subparsers(
        dest="command",
        metavar="COMMAND",
        required=True,
        help=argparse.SUPPRESS,
        parser_class=Parser,
        prog=parser.prog,
    )
    for name, add in (
        ("train", _add_train_arguments),
        ("to-arpa", _add_to_arpa_arguments),
        ("from-arpa", _add_from_arpa_arguments),
    ):
        command = commands.add_parser(name)
        add(command)
        command.add_help_option()


def _add_train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "ncelm ngram train STORE --out RUN [options]"
    parser.description = """\
Estimate an n-gram model from the training text of a store, with interpolated
modified Kneser–Ney smoothing. 50 million words take a minute or two. If a text
is too small to estimate the discounts (Chen & Goodman 1999), 0.5, 1 and 1.5
are used, with a warning. `evaluate`, `score` and `mix` accept RUN."""
    add_store(parser)
    add_out(parser)
    parser.add_argument(
        "--order",
        type=whole_number,
        default=5,
        metavar="N",
        help="The length of the longest n-grams, from 1 to 10. With 5, the context is four words.",
    )
    parser.add_argument(
        "--min-counts",
        type=whole_number,
        nargs="+",
        default=[1],
        metavar="N",
        help="Leave out n-grams that occur less often: one number for each order, the last for all higher orders "
        "[default: 1]. `1 1 2`, the default of SRILM, gives a much smaller model.",
    )
    add_json(parser)


def _add_to_arpa_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "ncelm ngram to-arpa RUN FILE [options]"
    parser.description = """\
Write an n-gram model as an ARPA file, which KenLM, SRILM and other tools read.
Logarithms in the file are to base 10."""
    add_run(parser, "ngram")
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="The file to write, compressed if it ends in .gz. It must not exist."
    )
    add_json(parser)


def _add_from_arpa_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "ncelm ngram from-arpa FILE --out RUN [options]"
    parser.description = """\
Make a model from an ARPA file of any tool. The file is validated: counts,
sections, numbers, and that the prefix of every n-gram is present. If it has no
<unk>, unknown words have a probability of 10^-99."""
    parser.add_argument("file", type=Path, metavar="FILE", help="The ARPA file, which may be compressed (gzip).")
    add_out(parser)
    parser.add_argument(
        "--like",
        type=Path,
        metavar="PATH",
        help="A store or run with the same words. The model uses its word ids and its tokenization, so that it can be "
        "evaluated on that store and mixed with its models.",
    )
    parser.add_argument(
        "--lowercase",
        action="store_true",
        help="Convert text to lower case before it is scored. Without --like, words are separated by blanks.",
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="The words of the ARPA file are pieces of this tokenizer: a tokenizer.json of Hugging Face, or a "
        "SentencePiece model.",
    )
    parser.add_argument(
        "--normalize",
        choices=("none", "ccnet"),
        default="none",
        help="Normalise text before it is scored, as in CCNet.",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run one of the three commands."""
    announce_compilation()
    {"train": _train, "to-arpa": _to_arpa, "from-arpa": _from_arpa}[arguments.command](arguments)


def _train(arguments: argparse.Namespace) -> None:
    from ncelm.models.ngram.estimate import FALLBACK_DISCOUNTS, memory_bytes, train_ngram
    from ncelm.text.store import TokenStore

    store = TokenStore.open(arguments.store)
    if on_terminal():
        most = memory_bytes(store.split("train"), arguments.order)
        print(f"{store.split('train').tokens:,} tokens; at most {most / 1e6:,.0f} MB of memory", file=sys.stderr)
    record = train_ngram(store, arguments.out, arguments.order, tuple(arguments.min_counts))
    fallback = [str(n) for n, discount in enumerate(record["discounts"], 1) if discount["fallback"]]
    if fallback:
        warn(
            f"too few n-grams of order {', '.join(fallback)} to estimate discounts from: "
            f"{', '.join(f'{d:g}' for d in FALLBACK_DISCOUNTS)} are used"
        )
    if arguments.json:
        print_json({"run": str(arguments.out), **record})
        return
    quality = f"validation perplexity {record['valid_perplexity']:.2f}, " if "valid_perplexity" in record else ""
    print(
        f"{arguments.out}: {quality}{sum(record['ngrams']):,} n-grams "
        f"({', '.join(f'{count:,}' for count in record['ngrams'])}), {record['seconds']:.1f} s"
    )


def _to_arpa(arguments: argparse.Namespace) -> None:
    from ncelm.arpa import export_arpa

    lm = export_arpa(arguments.run, arguments.file)
    if lm.boundary == "stream":
        warn(
            "the contexts of this model extend across sentence ends, so it has no <s>: in other tools start a sentence "
            "after </s>, or prepare the text with --boundary sentence"
        )
    counts = _ngram_counts(lm)
    if arguments.json:
        print_json({"file": str(arguments.file), "ngrams": counts})
    else:
        print(f"{arguments.file}: {sum(counts):,} n-grams of order 1 to {len(counts)}")


def _from_arpa(arguments: argparse.Namespace) -> None:
    from ncelm.arpa import import_arpa

    lm = import_arpa(
        arguments.file,
        arguments.out,
        arguments.like,
        arguments.lowercase,
        tokenizer=arguments.tokenizer,
        normalize=arguments.normalize,
    )
    counts = _ngram_counts(lm)
    if arguments.json:
        print_json({"run": str(arguments.out), "vocabulary": len(lm.vocabulary), "ngrams": counts})
    else:
        print(f"{arguments.out}: {sum(counts):,} n-grams of order 1 to {len(counts)}, {len(lm.vocabulary):,} words")


def _ngram_counts(lm: "LanguageModel") -> list[int]:
    """Return the number of n-grams of each order."""
    from ncelm.models.ngram.query import NGramModel

    assert isinstance(lm.model, NGramModel)
    return list(lm.model.counts)
