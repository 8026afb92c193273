"""`ncelm score`: log-probabilities of sentences."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ncelm.cli.ui import add_json, add_run, add_threads, announce_compilation, check_text_file, parse_shard, warn

if TYPE_CHECKING:
    from ncelm.language_model import SentenceScore, WordScore


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm score RUN [FILE] [options]"
    parser.description = """\
Print the natural logarithm of the probability of each line, including the end
of the sentence. Lines are split into words as the training text was. Every
line has one result, also an empty line.

--mode says how probabilities are normalized:
  exact         by the sum over the vocabulary
  fast          by an estimate of it, many times faster; RUN needs a normalizer
                (`ncelm normalizer`), which has the error of the estimate
  unnormalised  not at all: fastest, and close to log-probabilities for models
                trained with NCE; `ncelm evaluate` shows the difference, log Z"""
    parser.epilog = """\
examples:
  ncelm score run sentences.txt --per-word
  ncelm score run sentences.txt --mode fast
  echo "a sentence" | ncelm score run"""
    add_run(parser)
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        default=Path("-"),
        metavar="FILE",
        help="A text with one sentence per line [default: standard input].",
    )
    parser.add_argument(
        "--per-word", action="store_true", help="Print the log-probability of each word; mark unknown words."
    )
    parser.add_argument("--no-end", action="store_true", help="Leave out the end of the sentence.")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--mode",
        choices=("exact", "fast", "unnormalised"),
        default="exact",
        help="How probabilities are normalized, see above.",
    )
    modes.add_argument(
        "--unnormalised",
        dest="mode",
        action="store_const",
        const="unnormalised",
        help="The same as --mode unnormalised.",
    )
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="Score only shard I of N, for job schedulers. The results of shards 1 to N, concatenated, are those of "
        "the whole file (PyTorch models: up to rounding).",
    )
    parser.add_argument("--encoding", default="utf-8", metavar="NAME", help="The encoding of the text.")
    add_threads(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Score line by line, in bounded memory."""
    from ncelm.language_model import LanguageModel
    from ncelm.text.readers import read_line_blocks, shard_range

    check_text_file(arguments.file, arguments.encoding)
    lm = LanguageModel.load(arguments.run, arguments.threads)
    announce_compilation()
    if lm.two_sided:
        warn(
            "this model sees both sides of a word: the results are sums of log P(word | both sides), not "
            "log-probabilities of sentences"
        )
    file, encoding = arguments.file, arguments.encoding
    start, stop = shard_range(file, encoding, *parse_shard(arguments.shard)) if arguments.shard else (0, None)
    for lines in read_line_blocks(file, encoding, start=start, stop=stop, keep_blank=True):
        options = (lines, not arguments.no_end, arguments.mode)
        if arguments.per_word:
            results = [_words(words, arguments.json) for words in lm.full_scores_of(*options)]
        else:
            results = [_total(sentence, arguments.json) for sentence in lm.scores_of(*options)]
        sys.stdout.write("".join(f"{result}\n" for result in results))
        sys.stdout.flush()  # a program may write one line to a pipe and wait for its result


def _total(sentence: "SentenceScore", as_json: bool) -> str:
    return json.dumps(vars(sentence), allow_nan=False) if as_json else f"{sentence.log_probability:.6f}"


def _words(words: "list[WordScore]", as_json: bool) -> str:
    from ncelm.language_model import SentenceScore

    total = sum(word.log_probability for word in words)
    if as_json:
        unknown = sum(word.unknown for word in words)
        sentence = vars(SentenceScore(total, len(words), unknown))
        return json.dumps(sentence | {"words": [vars(word) for word in words]}, allow_nan=False)
    each = (f"{word.word} {word.log_probability:.4f}{' <unk>' if word.unknown else ''}" for word in words)
    return "\t".join([*each, f"total {total:.6f}"])
