"""`ncelm mix`: linear interpolation of language models."""

import argparse

from ncelm.cli.parser import number
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
    parser.usage = "ncelm mix RUN RUN... --out RUN [options]"
    parser.description = """\
Interpolate language models linearly: P(w|h) is a weighted mean of their
probabilities. An n-gram model and a neural model together are better than
either. The new run refers to the given runs, which must stay in place;
`evaluate` and `score` accept it."""
    parser.epilog = """\
example:
  ncelm mix ngram run --out mixed"""
    add_runs(parser)
    add_out(parser)
    parser.add_argument(
        "--weights",
        nargs="+",
        type=number,
        metavar="X",
        help="One weight for each run [default: estimated by EM on the validation split].",
    )
    add_store_option(parser)
    parser.add_argument(
        "--split",
        default="valid",
        metavar="NAME",
        help="The split of the token store on which weights are estimated. Do not use the test split.",
    )
    add_threads(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Mix and print the weights."""
    from ncelm.combine import mix
    from ncelm.models.mixture import Mixture

    announce_compilation()
    lm = mix(
        arguments.runs,
        arguments.out,
        weights=arguments.weights,
        store=arguments.store,
        split=arguments.split,
        threads=arguments.threads,
    )
    assert isinstance(lm.model, Mixture)
    weights = lm.model.weights.tolist()
    if arguments.json:
        print_json({"run": str(arguments.out), "weights": weights})
    else:
        parts = (f"{weight:.3f} {name}" for name, weight in zip(arguments.runs, weights, strict=True))
        print(f"{arguments.out}: " + " + ".join(parts))
