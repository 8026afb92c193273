"""`ncelm demo`: train and compare two models."""

import argparse
import sys
from pathlib import Path

from ncelm.cli.ui import add_json, add_threads, announce_compilation, print_json
from ncelm.progress import TrainingBar, progress_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm demo [options]"
    parser.description = """\
Train a model by NCE and one by maximum likelihood, and compare them. The text
is the prose in the documentation of the Python standard library. Takes about a
minute, most of it maximum likelihood, and longer the first time, when kernels
are compiled."""
    parser.epilog = """\
example:
  ncelm demo --out demo"""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo"),
        metavar="DIR",
        help="The directory for the store, both runs and the plot. It must not exist.",
    )
    add_threads(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the demonstration."""
    from ncelm.paper.demo import demo

    def say(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    announce_compilation()
    with progress_bar(unit=" words", unit_scale=True, leave=False) as bar:
        result = demo(arguments.out, arguments.threads, say, TrainingBar(bar))
    if arguments.json:
        print_json(result)
