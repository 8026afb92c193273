"""`ncelm evaluate`: the perplexity of a text."""

import argparse
from pathlib import Path

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
    parser.usage = "ncelm evaluate RUN [options]"
    parser.description = """\
Measure the perplexity of a text. Probabilities are exactly normalized;
unknown words and sentence ends are counted. log Z, the log-normalizer of the
scores, is near 0 if the model is self-normalized."""
    parser.epilog = """\
examples:
  ncelm evaluate run --split valid
  ncelm evaluate run --file sentences.txt"""
    add_run(parser)
    parser.add_argument(
        "--split", default="test", metavar="NAME", help="The split of the token store: train, valid or test."
    )
    add_store_option(parser)
    parser.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="Evaluate this text instead, one sentence per line; - is standard input. Each sentence is scored alone.",
    )
    parser.add_argument("--encoding", default="utf-8", metavar="NAME", help="The encoding of --file.")
    add_threads(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Evaluate and print."""
    from ncelm.language_model import LanguageModel
    from ncelm.models.description import open_store
    from ncelm.text.readers import read_lines

    if arguments.file is not None and (arguments.store or arguments.split != "test"):
        raise NcelmError("give either --file, or --split and --store, not both")
    if arguments.file is not None:
        check_text_file(arguments.file, arguments.encoding)
    lm = LanguageModel.load(arguments.run, arguments.threads)
    announce_compilation()
    if arguments.file is not None:
        result = lm.evaluate(read_lines(arguments.file, arguments.encoding))
        what = str(arguments.file)
    else:
        store = open_store(arguments.store, lm.store_path, ", or give a text with --file")
        result = lm.evaluate_split(store, arguments.split)
        what = arguments.split
    if arguments.json:
        print_json(result.as_dict())
        return
    kind = "perplexity given both sides" if lm.two_sided else "perplexity"
    # the scores of n-gram models and mixtures are probabilities: log Z is exactly 0
    log_z = f", log Z {result.log_z_mean:+.3f} ± {result.log_z_std:.3f}" if result.log_z_std else ""
    print(
        f"{what}: {kind} {result.perplexity:.2f} over {result.tokens:,} tokens (including {result.sentences:,} "
        f"sentence ends and {result.unknown:,} unknown words){log_z}"
    )
    if result.bits_per_byte is not None:
        spelled = " (without the spelling of unknown words)" if result.unknown else ""
        print(
            f"  per word {result.word_perplexity:.2f} over {result.words:,} words; {result.bits_per_byte:.4f} bits per "
            f"byte over {result.bytes:,} bytes{spelled}"
        )
