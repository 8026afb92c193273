"""`ncelm normalizer`: fit the estimate of log-normalizers that fast scores need."""

import argparse
from pathlib import Path

from ncelm.cli.parser import whole_number
from ncelm.cli.ui import (
    add_json,
    add_run,
    add_store_option,
    add_threads,
    announce_compilation,
    check_text_file,
    print_json,
)
from ncelm.errors import NcelmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm normalizer RUN [--store STORE | --file FILE] [options]"
    parser.description = """\
Fit a normalizer to a trained log-bilinear model: an estimate of the sum over
the vocabulary from a few hundred numbers. `ncelm score --mode fast` needs it.
It is written to RUN/normalizer.safetensors, and its error on held-out text is
printed. `ncelm train` fits one by itself to models of large texts."""
    parser.epilog = """\
examples:
  ncelm normalizer run
  ncelm normalizer run --file sentences.txt --units 768"""
    add_run(parser, "train")
    add_store_option(parser)
    parser.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="Fit to this text instead, one sentence per line; the error is that on its last tenth.",
    )
    parser.add_argument("--encoding", default="utf-8", metavar="NAME", help="The encoding of --file.")
    parser.add_argument(
        "--units",
        type=whole_number,
        metavar="N",
        help="Number of terms of the estimate: more are slower and more accurate [default: 384].",
    )
    parser.add_argument(
        "--contexts",
        type=whole_number,
        default=100_000,
        metavar="N",
        help="Number of contexts of the text that the estimate is fitted to.",
    )
    parser.add_argument("--seed", type=whole_number, default=0, metavar="N", help="Seed of the choice of contexts.")
    add_threads(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Fit and print the error."""
    from ncelm.models.fit_normalizer import fit_normalizer

    if arguments.file is not None:
        if arguments.store is not None:
            raise NcelmError("give either --file or --store, not both")
        check_text_file(arguments.file, arguments.encoding)
    announce_compilation()
    fitted = fit_normalizer(
        arguments.run,
        arguments.store,
        file=arguments.file,
        encoding=arguments.encoding,
        units=arguments.units,
        contexts=arguments.contexts,
        seed=arguments.seed,
        threads=arguments.threads,
        progress=True,
    )
    if arguments.json:
        print_json({"run": str(arguments.run), "units": len(fitted.biases), "error": fitted.error.as_dict()})
    else:
        print(f"{arguments.run}: normalizer with {len(fitted.biases):,} units; error of fast scores {fitted.error}")
