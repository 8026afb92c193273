"""`ncelm export`: word vectors in the formats of other tools."""

import argparse
from pathlib import Path

from ncelm.cli.ui import add_json, add_run, add_table, print_json

FORMATS = ("word2vec", "word2vec-binary", "glove")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm export RUN FILE [options]"
    parser.description = """\
Write the word vectors of a model to a file that other tools read, such as
gensim."""
    parser.epilog = """\
example:
  ncelm export run vectors.bin --to word2vec-binary"""
    add_run(parser, "fit, train or lsa")
    parser.add_argument("file", type=Path, metavar="FILE", help="The file to write. It must not exist.")
    parser.add_argument(
        "--to",
        choices=FORMATS,
        default="word2vec",
        help="The format: the text or the binary format of word2vec, or that of GloVe (text without a header).",
    )
    add_table(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the file."""
    from ncelm.language_model import load_scorer
    from ncelm.models.vectors import export_vectors

    count, dim = export_vectors(load_scorer(arguments.run), arguments.file, arguments.to, arguments.table)
    if arguments.json:
        print_json({"file": str(arguments.file), "vectors": count, "dim": dim})
    else:
        print(f"{arguments.file}: {count:,} vectors of {dim} dimensions")
