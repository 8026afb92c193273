"""`ncelm generate`: random or likely sentences of a model."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from ncelm.cli.parser import number, whole_number
from ncelm.cli.ui import add_json, add_run, add_threads, announce_compilation
from ncelm.errors import NcelmError

if TYPE_CHECKING:
    from ncelm.language_model import Generated, LanguageModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm generate RUN [--prompt TEXT] [--count N] [options]"
    parser.description = """\
Print sentences of a language model, one per line: random ones, or with --beam
the most likely ones. A model that sees both sides of a word fills the gaps
(_____) of the prompt instead. The same seed gives the same sentences."""
    parser.epilog = """\
examples:
  ncelm generate run --prompt "It was" --count 5
  ncelm generate run --prompt "It was" --temperature 0.8 --top-p 0.9 --seed 7
  ncelm generate run --prompt "It was" --beam 10"""
    add_run(parser)
    parser.add_argument("--prompt", default="", metavar="TEXT", help="The beginning of the sentences [default: none].")
    parser.add_argument(
        "--count", type=whole_number, metavar="N", help="Number of sentences [default: 1; with --beam, its width]."
    )
    parser.add_argument("--seed", type=whole_number, default=0, metavar="N", help="Seed of the random numbers.")
    parser.add_argument(
        "--max-words", type=whole_number, default=100, metavar="N", help="Words after the prompt at most."
    )
    parser.add_argument("--stream", action="store_true", help="Print the words of one sentence as they are drawn.")
    drawing = parser.add_argument_group("sampling")
    drawing.add_argument(
        "--temperature",
        type=number,
        default=1.0,
        metavar="X",
        help="Below 1, likely words become more likely; 0 chooses the most likely word.",
    )
    drawing.add_argument("--top-k", type=whole_number, metavar="K", help="Draw from the K most likely words only.")
    drawing.add_argument(
        "--top-p",
        type=number,
        metavar="P",
        help="Draw from the most likely words that together have the probability P (nucleus sampling).",
    )
    drawing.add_argument(
        "--min-p",
        type=number,
        metavar="P",
        help="Draw from words with at least the part P of the probability of the most likely word.",
    )
    drawing.add_argument(
        "--repetition-penalty",
        type=number,
        metavar="X",
        help="Multiply log P of words that the sentence has already by X, which is at least 1.",
    )
    drawing.add_argument("--allow-unknown", action="store_true", help="Generate <unk>, too.")
    parser.add_argument_group("search").add_argument(
        "--beam", type=whole_number, metavar="N", help="Find likely sentences by beam search of width N."
    )
    add_threads(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print the sentences."""
    from ncelm.language_model import LanguageModel

    lm = LanguageModel.load(arguments.run, arguments.threads)
    announce_compilation()
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    sampling: dict[str, Any] = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if arguments.stream:
        _stream(lm, arguments, sampling)
        return
    if arguments.beam is not None:
        _refuse(arguments, {"top_k", "top_p", "min_p", "repetition_penalty"}, "--beam finds the most likely sentences")
        options = {"max_words": arguments.max_words, "allow_unknown": arguments.allow_unknown}
        found = lm.continuations(arguments.prompt, arguments.beam, **options)[: arguments.count]
    elif lm.two_sided:
        found = _fill(lm, arguments, sampling)
    else:
        found = lm.generate(
            arguments.prompt,
            1 if arguments.count is None else arguments.count,
            seed=arguments.seed,
            max_words=arguments.max_words,
            allow_unknown=arguments.allow_unknown,
            **sampling,
        )
    for each in found:
        print(json.dumps(vars(each), allow_nan=False) if arguments.json else each.text)


def _refuse(arguments: argparse.Namespace, names: set[str], reason: str) -> None:
    for name in sorted(names):
        if getattr(arguments, name) is not None:
            raise NcelmError(f"{reason}: leave --{name.replace('_', '-')} out")


def _fill(lm: "LanguageModel", arguments: argparse.Namespace, sampling: dict[str, Any]) -> "list[Generated]":
    """Fill the gaps of the prompt by Gibbs sampling."""
    from ncelm.completion import GAP

    _refuse(arguments, {"repetition_penalty"}, "this model fills gaps")
    before, *others = GAP.split(arguments.prompt)
    if not others:
        raise NcelmError("this model sees both sides of a word and fills gaps: give --prompt with gaps, written _____")
    count = 1 if arguments.count is None else arguments.count
    return lm.fill(before, *others, count=count, seed=arguments.seed, allow_unknown=arguments.allow_unknown, **sampling)


def _stream(lm: "LanguageModel", arguments: argparse.Namespace, sampling: dict[str, Any]) -> None:
    """Print the words of one sentence, each as soon as it is drawn."""
    _refuse(arguments, {"beam", "count"}, "--stream prints one random sentence")
    words = lm.stream(
        arguments.prompt,
        seed=arguments.seed,
        max_words=arguments.max_words,
        allow_unknown=arguments.allow_unknown,
        **sampling,
    )
    if arguments.json:
        for word in words:
            print(json.dumps({"word": word.word, "log_probability": word.log_probability}), flush=True)
    else:
        print(arguments.prompt, end="", flush=True)
        drawn = (word.word for word in words if word.word != "</s>")
        for text in lm.text.spelled(drawn, lm.text.words(arguments.prompt)):
            print(text, end="", flush=True)
        print()
    sys.stdout.flush()
