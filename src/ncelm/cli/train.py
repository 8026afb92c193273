"""`ncelm train`: train a neural language model. The flags are those of `ncelm.training.options`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncelm.cli.parser import Parser, number, whole_number, with_default
from ncelm.cli.ui import (
    add_json,
    add_out,
    add_store,
    add_threads,
    announce_compilation,
    count,
    on_terminal,
    print_json,
    progress_bar,
    read_metrics,
    show_training,
)

if TYPE_CHECKING:
    from ncelm.training.config import TrainConfig
    from ncelm.training.options import Option

_TYPES: dict[type, Callable[[str], Any]] = {int: whole_number, float: number, str: str}
_METAVARS = {int: "N", float: "X", str: "RUN"}


def add_arguments(parser: Parser) -> None:
    """Add the arguments of the command; the recipe that the command line names provides the defaults in the help."""
    from ncelm.training.options import OPTIONS
    from ncelm.training.recipes import RECIPES, recipe

    name = recipe_named(parser.words)
    config = recipe(name)
    parser.usage = "ncelm train STORE --out RUN [options]"
    parser.description = f"""\
Train a neural language model on a token store. The defaults below are those of
the recipe `{name}`; `ncelm train --recipe NAME --help` shows those of another.
RUN/model.safetensors holds the model with the lowest validation perplexity,
RUN/metrics.jsonl the course of training. A run that was stopped, by Ctrl-C, by
SIGTERM or by a power failure, continues with --resume, to the same result."""
    parser.epilog = "recipes:\n" + "\n".join(_recipe_lines(RECIPES))
    add_store(parser)
    add_out(parser, more=", except with --resume")
    parser.add_argument(
        "--recipe", default="default", metavar="NAME", help="The recipe: a named configuration, see below."
    )
    parser.add_argument(
        "--resume", action="store_true", help="Continue from the last checkpoint, or start if there is none."
    )
    parser.add_argument(
        "--checkpoint-minutes",
        type=number,
        default=5.0,
        metavar="X",
        help="Time between checkpoints within an epoch. Each epoch ends with a checkpoint, too.",
    )
    add_threads(parser)
    add_json(parser)
    groups = {group: parser.add_argument_group(group) for group in dict.fromkeys(o.group for o in OPTIONS.values())}
    for option in OPTIONS.values():
        _add_option(groups[option.group], option, config)


def recipe_named(words: Sequence[str]) -> str:
    """Return the value of --recipe in a command line."""
    name = "default"
    for word, following in pairwise([*words, "-"]):
        if word == "--recipe" and not following.startswith("-"):
            name = following
        elif word.startswith("--recipe="):
            name = word.removeprefix("--recipe=")
    return name


def _add_option(group: "argparse._ArgumentGroup", option: "Option", config: "TrainConfig") -> None:
    """Add a flag. Its value is None if it is not given: then the recipe decides."""
    text = option.help.replace("%", "%%")
    default = _default(option, config)
    if default != "":
        text = with_default(text, {True: "on", False: "off"}[default] if option.type is bool else default)
    if option.goes_with:
        text += f" {_restriction(option)}."
    if option.type is bool:
        group.add_argument(option.flag, dest=option.name, action=argparse.BooleanOptionalAction, help=text)
        return
    options: dict[str, Any] = {"choices": option.choices} if option.choices else {"metavar": _METAVARS[option.type]}
    group.add_argument(option.flag, *option.aliases, dest=option.name, type=_TYPES[option.type], help=text, **options)


def _restriction(option: "Option") -> str:
    """Return what an option goes with, such as "With --schedule halve only"."""
    from ncelm.training.options import OPTIONS, flag

    slot, tags = list(option.goes_with.items())[-1]  # the most specific one
    others = [tag for tag in OPTIONS[slot].choices if tag not in tags]
    return f"Not with {flag(slot)} {others[0]}" if len(others) == 1 else f"With {flag(slot)} {' or '.join(tags)} only"


def _default(option: "Option", config: "TrainConfig") -> Any:
    """Return the value of an option in a configuration; if it does not go with it, the default of the library."""
    from ncelm.training.config import TrainConfig
    from ncelm.training.options import to_flat

    flat = to_flat(config)
    if option.name not in flat:
        flat = to_flat(TrainConfig().with_changes(**{slot: tags[0] for slot, tags in option.goes_with.items()}))
    return flat[option.name]


def _recipe_lines(recipes: dict[str, Any]) -> list[str]:
    import textwrap

    width = max(map(len, recipes)) + 4
    lines = []
    for name, make in recipes.items():
        summary = (make.__doc__ or "").splitlines()[0]
        lines += textwrap.wrap(summary, 80, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width)
    return lines


def run(arguments: argparse.Namespace) -> None:
    """Train, with a progress bar, and print the result."""
    from ncelm.distributed.collective import rank
    from ncelm.text.store import TokenStore
    from ncelm.training.loop import memory_bytes, train
    from ncelm.training.options import OPTIONS
    from ncelm.training.recipes import recipe

    given = {name: getattr(arguments, name) for name in OPTIONS if getattr(arguments, name) is not None}
    config = recipe(arguments.recipe).with_changes(**given)
    store = TokenStore.open(arguments.store)
    if on_terminal():
        tokens, words = store.split("train").tokens, len(store.vocabulary)
        memory = memory_bytes(config, words, tokens) / 1e6
        print(f"{tokens:,} tokens, {words:,} words; training needs about {memory:,.0f} MB of memory", file=sys.stderr)
    announce_compilation()
    with progress_bar(unit=" words", unit_scale=True) as bar:
        result = train(
            store,
            arguments.out,
            config,
            threads=arguments.threads,
            resume=arguments.resume,
            checkpoint_minutes=arguments.checkpoint_minutes,
            progress=lambda at: show_training(bar, at),
        )
    if rank() > 0:  # the first of several processes prints the result
        return
    if arguments.json:
        print_json({"run": str(arguments.out), **result})
    else:
        print(f"{arguments.out}: {_summary(arguments.out, result)}")


def _summary(out: Path, result: dict[str, Any]) -> str:
    quality = ""
    if "valid_perplexity" in result:
        best = min(line["valid_perplexity"] for line in read_metrics(out))
        quality = f"validation perplexity {best:.2f} (epoch {result['best_epoch']}), "
    rate = result["words"] * result["epoch"] / max(result["seconds"], 1e-9)
    return f"{quality}{count(result['epoch'], 'epoch')}, {result['seconds']:.1f} s of training, {rate:,.0f} words/s"
