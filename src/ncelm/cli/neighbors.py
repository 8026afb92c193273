"""`ncelm neighbors`: the words with the nearest vectors."""

import argparse

from ncelm.cli.parser import whole_number
from ncelm.cli.ui import add_json, add_run, add_table, print_json
from ncelm.errors import NcelmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm neighbors RUN WORD... [options]"
    parser.description = """\
Show the words whose vectors are nearest to those of the given words, by cosine
similarity."""
    parser.epilog = """\
example:
  ncelm neighbors run king queen --count 5"""
    add_run(parser, "fit, train or lsa")
    parser.add_argument("words", nargs="*", default=[], metavar="WORD", help="The words to look up.")
    parser.add_argument(
        "--count", dest="n", type=whole_number, default=10, metavar="N", help="The number of neighbors of each word."
    )
    add_table(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Look up and print."""
    if not arguments.words:
        raise NcelmError("no word was given: name at least one, such as `ncelm neighbors RUN king`")
    from ncelm.language_model import load_scorer

    lm = load_scorer(arguments.run)
    found = {word: lm.neighbors(word, arguments.n, arguments.table) for word in arguments.words}
    if arguments.json:
        print_json({word: [{"word": w, "cosine": c} for w, c in nearest] for word, nearest in found.items()})
        return
    for word, nearest in found.items():
        print(f"{word}: " + ", ".join(f"{other} {cosine:.2f}" for other, cosine in nearest))
