"""`ncelm train`: train a neural language model. The flags are those of `ncelm.training.options`."""

import argparse
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
    print_json,
    read_metrics,
)

if TYPE_CHECKING:
    from ncelm.training.config import TrainConfig
    from ncelm.training.options import Option

_TYPES: dict[type, Callable[[str], Any]] = {int: whole_number, float: number, str: str}
_METAVARS = {int: "N", float: "X", str: "RUN"}
# Options whose defaults are chosen from the text
_CHOSEN = {"dim", "epochs", "learning_rate", "initial_accumulator", "dropout", "weight_decay_per_epoch"}

EXAMPLES = """\
examples:
  ncelm train store --out run --minutes 10
  ncelm train store --out run --resume
  ncelm train store --out run --context 5 --dim 200 --epochs 3
  ncelm train store --out run --recipe paper/ptb-fast --noise-samples 100"""


def add_arguments(parser: Parser) -> None:
    """Add the arguments of the command; the recipe that the command line names provides the defaults in the help."""
    from ncelm.training.options import OPTIONS
    from ncelm.training.recipes import RECIPES, recipe

    name = recipe_named(parser.words)
    config = recipe(name) if name else None
    parser.usage = "ncelm train STORE --out RUN [--minutes M] [options]"
    parser.description = f"""\
Train a neural language model on a token store. {_about_defaults(name)}
RUN/model.safetensors holds the model with the lowest validation perplexity,
RUN/metrics.jsonl the course of training. A run that was stopped, by Ctrl-C, by
SIGTERM or by a power failure, continues with --resume, to the same result."""
    parser.epilog = f"{EXAMPLES}\n\nrecipes:\n" + "\n".join(_recipe_lines(RECIPES))
    add_store(parser)
    add_out(parser, more=", except with --resume")
    parser.add_argument(
        "--minutes",
        type=number,
        metavar="M",
        help="Time for training and validation [default: as long as the model improves much]. The dimension and the "
        "number of epochs follow from the measured throughput.",
    )
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        help="A named configuration of the paper's experiments, see below, instead of options chosen from the text.",
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
    parser.add_argument(
        "--peer-timeout",
        type=number,
        default=60.0,
        metavar="X",
        help="With torchrun: seconds after which a worker that does not answer ends training on all machines.",
    )
    parser.add_argument(
        "--track",
        action="extend",
        type=lambda names: names.split(","),
        metavar="NAME",
        help="Log metrics to tensorboard, wandb or trackio, if it is installed; to several of them with commas.",
    )
    add_threads(parser)
    add_json(parser)
    groups = {group: parser.add_argument_group(group) for group in dict.fromkeys(o.group for o in OPTIONS.values())}
    for option in OPTIONS.values():
        _add_option(groups[option.group], option, config)


def _about_defaults(recipe: str | None) -> str:
    """Return two lines of the description."""
    if recipe:
        return f"The defaults below\nare those of the recipe {recipe}."
    return "Options that are\nnot given are chosen from the size of the text and the vocabulary."


def recipe_named(words: Sequence[str]) -> str | None:
    """Return the value of --recipe in a command line."""
    name = None
    for word, following in pairwise([*words, "-"]):
        if word == "--recipe" and not following.startswith("-"):
            name = following
        elif word.startswith("--recipe="):
            name = word.removeprefix("--recipe=")
    return name


def _add_option(group: "argparse._ArgumentGroup", option: "Option", config: "TrainConfig | None") -> None:
    """Add a flag. Its value is None if it is not given: then the recipe decides, or the text if there is none."""
    text = option.help.replace("%", "%%")
    default: Any = "chosen" if config is None and option.name in _CHOSEN else _default(option, config)
    if option.type is bool:
        default = "on" if default else "off"
    if default != "":
        text = with_default(text, default)
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


def _default(option: "Option", config: "TrainConfig | None") -> Any:
    """Return the value of an option in a configuration; if it does not go with it, the default of the library."""
    from ncelm.training.adaptive import default_config
    from ncelm.training.config import TrainConfig
    from ncelm.training.options import to_flat

    flat = to_flat(config or default_config(1_000_000, 10_000))
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
    """Train and print the result."""
    from ncelm.io.machine import rank
    from ncelm.models.normalizer import read_error
    from ncelm.training.loop import train
    from ncelm.training.options import OPTIONS

    given = {name: getattr(arguments, name) for name in OPTIONS if getattr(arguments, name) is not None}
    announce_compilation()
    result = train(
        arguments.store,
        arguments.out,
        recipe=arguments.recipe,
        minutes=arguments.minutes,
        threads=arguments.threads,
        resume=arguments.resume,
        checkpoint_minutes=arguments.checkpoint_minutes,
        peer_timeout=arguments.peer_timeout,
        track=arguments.track or (),
        **given,
    )
    if rank() > 0:  # the first of several processes prints the result
        return
    fast = read_error(arguments.out)
    if arguments.json:
        print_json({"run": str(arguments.out), **result, **({"normalizer_error": fast.as_dict()} if fast else {})})
    else:
        print(f"{arguments.out}: {_summary(arguments.out, result)}{f'; error of fast scores {fast}' if fast else ''}")


def _summary(out: Path, result: dict[str, Any]) -> str:
    quality, records = "", read_metrics(out)
    if "best_valid_perplexity" in result:
        quality = f"validation perplexity {result['best_valid_perplexity']:.2f} (epoch {result['best_epoch']}), "
    rate = sum(line.get("words", 0) for line in records) / max(result["seconds"], 1e-9)
    validation = result.get("validation_seconds", 0.0) + result.get("evaluation_seconds", 0.0)
    return (
        f"{quality}{count(result['epoch'], 'epoch')}, {result['seconds']:.1f} s of training and {validation:.1f} s of "
        f"validation, {rate:,.0f} words/s"
    )
