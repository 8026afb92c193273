"""What the commands share: arguments with the same meaning, JSON, warnings."""

import argparse
import json
import math
import sys
from functools import cache
from pathlib import Path
from typing import Any

from ncelm.cli.parser import whole_number
from ncelm.errors import NcelmError

# -- arguments -------------------------------------------------------------------------------------------------------


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json, which every command has."""
    parser.add_argument("--json", action="store_true", help="Print the result as JSON.")


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add --threads."""
    parser.add_argument(
        "--threads",
        type=whole_number,
        metavar="N",
        help="Number of threads [default: one per core]. The result does not depend on it, except for PyTorch models.",
    )


def add_run(parser: argparse.ArgumentParser, made_by: str = "fit, train, ngram or mix") -> None:
    """Add RUN, the directory of a model."""
    parser.add_argument("run", type=Path, metavar="RUN", help=f"The directory of a model, made by {made_by}.")


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add RUN RUN..., the models that a command combines."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="Two or more runs, trained on the same token store."
    )


def add_action(parser: argparse.ArgumentParser) -> None:
    """Add the word `train`, the only action of some commands."""
    parser.add_argument("action", choices=("train",), metavar="train", help="The action; there is no other.")


def add_tokenizer(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Add --tokenizer and --normalize, which determine how text becomes tokens."""
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="Subwords in place of words: a tokenizer.json of Hugging Face, a SentencePiece model, or train:bpe:32000 "
        "or train:unigram:32000 to train one on the text. Models contain it.",
    )
    parser.add_argument(
        "--normalize",
        choices=("none", "ccnet"),
        default="none",
        help="ccnet: lower case, digits become 0, no accents, ASCII punctuation, as in CCNet.",
    )


def add_table(parser: argparse.ArgumentParser) -> None:
    """Add --table, which of two sets of word vectors is used."""
    parser.add_argument(
        "--table",
        choices=("context", "target"),
        default="context",
        help="The vectors of words as context (r_w) or as predicted words (q_w).",
    )


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add STORE, the directory of a token store."""
    parser.add_argument("store", type=Path, metavar="STORE", help="A token store, made by `ncelm prepare`.")


def add_store_option(parser: argparse.ArgumentParser) -> None:
    """Add --store, for commands that use the store of a run by default."""
    parser.add_argument(
        "--store", type=Path, metavar="STORE", help="The token store [default: the one the model was trained on]."
    )


def add_out(parser: argparse.ArgumentParser, what: str = "RUN", more: str = "") -> None:
    """Add --out, the directory that a command makes."""
    parser.add_argument(
        "--out",
        type=Path,
        metavar=what,
        required=True,
        help=f"The directory to make. It must not exist{more}.",
    )


def parse_shard(text: str) -> tuple[int, int]:
    """Return the two numbers of a shard: (2, 8) for "2/8"."""
    number, slash, shards = text.partition("/")
    if not (slash and number.isdecimal() and shards.isdecimal() and 1 <= int(number) <= int(shards) <= 1_000_000):
        raise NcelmError(f"--shard is {text!r}: give a shard and the number of shards, such as 2/8; the first is 1/8")
    return int(number), int(shards)


def check_text_file(file: Path, encoding: str) -> None:
    """Raise an error for a sentence in place of a file, and for a table, which is not one sentence per line."""
    from ncelm.text.readers import check_encoding
    from ncelm.text.tables import kind_of

    check_encoding(encoding)
    if file == Path("-"):
        return
    try:
        missing = not file.exists()
    except (OSError, ValueError):  # a name that no file can have: reported when the file is opened
        return
    if missing:
        sentence = f'; a sentence is read from a pipe: echo "{file}" | ncelm score RUN' if " " in str(file) else ""
        raise NcelmError(f"there is no file {file}: check its name{sentence}")
    if file.is_file() and (kind := kind_of(file, encoding)) in ("jsonl", "parquet"):
        raise NcelmError(f"{file} is a table ({kind}), not one sentence per line: write its text to a file first")


# -- output ----------------------------------------------------------------------------------------------------------


def print_json(result: dict[str, Any]) -> None:
    """Print a result as one line of JSON. JSON has neither infinity nor NaN: such numbers are null."""
    print(json.dumps(_finite(result), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def warn(message: str) -> None:
    """Print one line to standard error."""
    print(f"ncelm: {message}", file=sys.stderr)


def count(number: int, thing: str) -> str:
    """Return a number with its noun: 1 thing, 2 things."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run's metrics."""
    from ncelm.io.metrics import Metrics
    from ncelm.io.run import METRICS

    return Metrics(run / METRICS).read()


@cache
def announce_compilation() -> None:
    """Print one line when the first kernel of this process is compiled, which may take half a minute."""
    from ncelm.kernels.compile import on_compile

    announced = False

    def announce(kernel: str) -> None:
        nonlocal announced
        if not announced:
            announced = True
            warn("compiling … (once per machine)")

    on_compile(announce)
