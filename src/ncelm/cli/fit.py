"""`ncelm fit`: text to the best model for it in a given time."""

import argparse
from pathlib import Path
from typing import Any

from ncelm.cli.parser import number, whole_number
from ncelm.cli.ui import add_json, add_out, add_threads, add_tokenizer, announce_compilation, print_json
from ncelm.errors import NcelmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = """\
ncelm fit TEXT... --out MODEL [--minutes M] [options]
       ncelm fit --train FILE --valid FILE --test FILE --out MODEL [options]"""
    parser.description = """\
Make the best language model of a text for the time that is available: prepare
the text, estimate a 5-gram model, train a neural model, mix both, evaluate them
on held-out text, and write MODEL/report.html. All other commands accept MODEL,
which contains everything and can be moved. If the command is stopped, repeat it
with --resume. `ncelm prepare --help` explains the options of the text."""
    parser.epilog = """\
examples:
  ncelm fit texts/ --out model --minutes 10
  ncelm fit --train train.txt --valid valid.txt --test test.txt --out model"""
    parser.add_argument(
        "files",
        nargs="*",
        default=[],
        type=Path,
        metavar="TEXT",
        help="Prose: files, directories or tar archives; or a token store, made by `ncelm prepare`.",
    )
    add_out(parser, "MODEL", ", except with --resume")
    parser.add_argument(
        "--minutes",
        type=number,
        metavar="M",
        help="Time for everything but compilation [default: as long as the model improves much]. If the text is too "
        "large for it, a part of the text is used.",
    )
    parser.add_argument(
        "--resume", action="store_true", help="Continue after the stages that are finished, or start if there are none."
    )
    add_threads(parser)
    add_json(parser)

    text = parser.add_argument_group("text")
    text.add_argument("--column", metavar="NAME", help="The files are tables: read the text in this column.")
    text.add_argument(
        "--lowercase",
        action=argparse.BooleanOptionalAction,
        help="Convert words to lower case [default: prose is converted, tokenized text is not].",
    )
    add_tokenizer(text)
    text.add_argument(
        "--min-count",
        type=whole_number,
        metavar="N",
        help="Replace words that occur fewer than N times in the training text by <unk> [default: 2 to 10, the more "
        "the larger the text; 1 if the text has words <unk>].",
    )
    text.add_argument("--vocabulary-size", type=whole_number, metavar="N", help="Keep only the most frequent words.")
    text.add_argument(
        "--valid-sentences",
        type=whole_number,
        metavar="N",
        help="Number of random sentences for validation [default: 5 %% of the text, at most 500, if there is no "
        "validation text].",
    )
    text.add_argument("--test-sentences", type=whole_number, metavar="N", help="The same for the test.")
    text.add_argument(
        "--punkt",
        choices=("english", "train"),
        help="The model that finds sentence ends [default: english if NLTK's model is installed, otherwise train].",
    )
    text.add_argument("--gutenberg", action="store_true", help="The texts are works of Project Gutenberg.")
    text.add_argument("--skip-broken", action="store_true", help="With --gutenberg: skip works that cannot be read.")
    for split, name in (("train", "Tokenized training"), ("valid", "Validation"), ("test", "Test")):
        text.add_argument(
            f"--{split}",
            nargs="+",
            action="extend",
            type=Path,
            metavar="FILE",
            help=f"{name} text, one sentence per line.",
        )
    text.add_argument("--blank-lines", choices=("skip", "keep"), default="skip", help="Of tokenized text.")
    text.add_argument("--boundary", choices=("stream", "sentence"), help="Whether contexts cross sentence ends.")
    text.add_argument("--encoding", default="utf-8", metavar="NAME", help="The encoding of the text.")
    text.add_argument(
        "--seed", type=whole_number, default=0, metavar="N", help="Seed of the choice of sentences and of training."
    )
    text.add_argument("--workers", type=whole_number, metavar="N", help="Processes [default: one per core].")


def run(arguments: argparse.Namespace) -> None:
    """Fit a model and print the result."""
    from ncelm.fitting.fit import describe_result, fit
    from ncelm.fitting.state import State

    for name in ("files", "train", "valid", "test"):
        for path in getattr(arguments, name) or []:
            if not path.exists():
                raise NcelmError(f"there is no file {path}")
    announce_compilation()
    options: dict[str, Any] = {name: value for name, value in vars(arguments).items() if name != "json"}
    fit(**options | {"files": arguments.files or None})
    state = State.read(arguments.out)
    if arguments.json:
        times = {"seconds": state.seconds, "compile_seconds": state.compile_seconds}
        explanation = [f"{topic}: {line}" for topic, line in state.explanation.items()]
        print_json({"model": str(arguments.out), **state.result, **times, "explanation": explanation})
        return
    weights = " + ".join(f"{weight:.3f} {name}" for name, weight in state.result["weights"].items())
    print(f"{arguments.out}: {describe_result(state.result)}")
    print(
        f"  mixture of {weights}; {state.seconds:.0f} s and {state.compile_seconds:.0f} s of compilation; "
        f"see {arguments.out / 'report.html'}"
    )
