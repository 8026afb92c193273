"""`ncelm lsa`: word vectors by latent semantic analysis."""

import argparse

from ncelm.cli.parser import whole_number
from ncelm.cli.ui import add_action, add_json, add_out, add_store, print_json, read_metrics


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm lsa train STORE --out RUN [options]"
    parser.description = """\
Train word vectors by latent semantic analysis: a truncated singular value
decomposition of the word-by-sentence matrix of the training text. `neighbors`,
`export`, `complete` and `train --init-from` accept RUN. `evaluate` and `score`
do not: LSA assigns no probabilities."""
    parser.epilog = """\
example:
  ncelm lsa train store --out lsa --dim 300"""
    add_action(parser)
    add_store(parser)
    add_out(parser)
    parser.add_argument(
        "--dim", type=whole_number, default=300, metavar="N", help="Dimensions of the vectors: singular values to keep."
    )
    parser.add_argument(
        "--seed",
        type=whole_number,
        default=0,
        metavar="N",
        help="Seed of the starting vector of the decomposition, which does not change the result.",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Train and print the size of the model."""
    from ncelm.models.lsa import train_lsa

    lsa = train_lsa(arguments.store, arguments.out, arguments.dim, arguments.seed)
    (record,) = read_metrics(arguments.out)
    count, dim = lsa.unit_vectors.shape
    if arguments.json:
        print_json({"run": str(arguments.out), "vectors": count, "dim": dim, "seconds": record["seconds"]})
    else:
        print(f"{arguments.out}: {count:,} vectors of {dim} dimensions, {record['seconds']:.1f} s")
