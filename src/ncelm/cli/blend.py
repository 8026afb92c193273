"""`ncelm blend`: an ensemble for sentence completion."""

import argparse

from ncelm.cli.parser import whole_number
from ncelm.cli.ui import (
    add_json,
    add_out,
    add_runs,
    add_store_option,
    add_threads,
    announce_compilation,
    print_json,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm blend RUN RUN... --out RUN [options]"
    parser.description = """\
Combine models of any kind, including LSA and PMI, for `ncelm complete`.
The score of a word is a weighted sum of the normalized and unnormalized scores
of the models. Weights are learned on questions generated from held-out text:
the answer is a rare word of a sentence; the distractors are rare words drawn
from an n-gram model, if one is among the runs. The new run refers to the given
runs, which must stay in place."""
    parser.epilog = """\
example:
  ncelm blend ngram run lsa pmi --out ensemble"""
    add_runs(parser)
    add_out(parser)
    add_store_option(parser)
    parser.add_argument(
        "--split", default="valid", metavar="NAME", help="The split of the token store for the questions."
    )
    parser.add_argument("--seed", type=whole_number, default=0, metavar="N", help="Seed of the questions.")
    add_threads(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Learn the weights and print the accuracy on the questions."""
    from ncelm.combine import blend

    announce_compilation()
    model, record = blend(
        arguments.runs,
        arguments.out,
        store=arguments.store,
        split=arguments.split,
        seed=arguments.seed,
        threads=arguments.threads,
    )
    if arguments.json:
        print_json({"run": str(arguments.out), "weights": model.weights.tolist(), **record})
        return
    for path, weights, percent in zip(arguments.runs, model.weights.tolist(), record["parts_percent"], strict=True):
        print(f"{percent:5.1f} %  {path}, weights {' '.join(f'{weight:.4f}' for weight in weights)}")
    print(
        f"{arguments.out}: {record['percent']:.1f} % correct of {record['questions']:,} questions generated from the "
        f"{arguments.split} split, by cross-validation"
    )
