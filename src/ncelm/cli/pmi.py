"""`ncelm pmi`: a co-occurrence index for pointwise mutual information."""

import argparse

from ncelm.cli.ui import add_action, add_json, add_out, add_store, print_json, read_metrics


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm pmi train STORE --out RUN [options]"
    parser.description = """\
Make a co-occurrence index of the training text: which words occur in the same
sentences. Its scores are pointwise mutual information. `complete` and `blend`
accept RUN. It provides neither probabilities nor vectors."""
    parser.epilog = """\
example:
  ncelm pmi train store --out pmi"""
    add_action(parser)
    add_store(parser)
    add_out(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Make the index and print its size."""
    from ncelm.models.pmi import train_pmi

    pmi = train_pmi(arguments.store, arguments.out)
    (record,) = read_metrics(arguments.out)
    words, sentences = pmi.words.size, pmi.sentence_begins.size - 1
    if arguments.json:
        print_json({"run": str(arguments.out), "sentences": sentences, "words": words, "seconds": record["seconds"]})
    else:
        print(f"{arguments.out}: {words:,} words in {sentences:,} sentences, {record['seconds']:.1f} s")
