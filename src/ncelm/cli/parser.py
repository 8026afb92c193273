"""The option parser: argparse with one-line errors, suggestions for unknown options, and defaults in the help."""

import argparse
import difflib
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from ncelm.errors import NcelmError

WIDTH = 100  # columns of help texts on a wide terminal
# Parameters of `ncelm.prepare`, which errors of all commands may name
_PREPARE_PARAMETERS = ("valid", "test", "valid_sentences", "test_sentences", "vocabulary_size", "min_count", "boundary")


class UsageError(NcelmError):
    """The command line cannot be parsed."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions keep their line breaks; options show their defaults."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"max_help_position": 30} | options)
        self._width = min(self._width, WIDTH)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help or ""
        silent = action.default is None or action.default is False or action.default == argparse.SUPPRESS
        shown = action.option_strings and not silent
        return with_default(text, "%(default)s") if shown and "[default" not in text else text

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)  # options have hyphens


class Parser(argparse.ArgumentParser):
    """A parser that raises `UsageError` instead of exiting, and names the nearest option for an unknown one."""

    def __init__(self, words: Sequence[str] = (), **options: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, allow_abbrev=False, add_help=False, **options)
        self.words = words  # of the command line
        # argparse takes -1 for a value and -1e-3 for an option
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf$|nan$)", re.IGNORECASE)
        self._optionals.title = "options"
        self._positionals.title = "arguments"

    def add_help_option(self) -> None:
        """Add --help."""
        self.add_argument("-h", "--help", action="help", help="Show this help and exit.")

    def error(self, message: str) -> NoReturn:
        """Raise an error of one line."""
        raise UsageError(f"{message}: see `{self.prog} --help`")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the values of all arguments and options, which may be in any order."""
        if self._subparsers is not None:
            return self.parse_args(words)
        self._refuse_unknown_options(words)
        try:
            return self.parse_intermixed_args(words)
        except UsageError:
            self.parse_args(words)  # its message names all that is missing, not only options
            raise

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the words of a subcommand, such as `ncelm ngram train`: argparse calls this method."""
        if self._subparsers is None:
            self._refuse_unknown_options(args)
        return super().parse_known_args(args, namespace)

    def with_flags(self, message: str) -> str:
        """Return an error message of the library with flags for parameters: --min-count for `min_count`."""
        flags = {name: "--" + name.replace("_", "-") for name in _PREPARE_PARAMETERS}
        flags |= {action.dest: action.option_strings[0] for action in self._all_actions() if action.option_strings}
        return re.sub(r"`(\w+)`", lambda match: flags.get(match[1], match[0]), message)

    def _all_actions(self) -> Iterator[argparse.Action]:
        """Yield the actions of this parser and of its subcommands."""
        for action in self._actions:
            yield action
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._actions

    def _refuse_unknown_options(self, words: Iterable[str]) -> None:
        """Raise an error for an unknown option. (argparse would first report the required ones that are missing.)"""
        for word in words:
            if word == "--":
                return
            name = word.split("=", 1)[0]
            if not name.startswith("-") or name == "-" or " " in name or self._negative_number_matcher.match(name):
                continue
            if name not in self._option_string_actions:
                self.error(f"there is no option {name}{nearest(name, self._option_string_actions)}")


def with_default(text: str, default: object) -> str:
    """Return a help text with a default value at the end of its first sentence."""
    first, dot, rest = text.removesuffix(".").partition(". ")
    return f"{first} [default: {default}]{dot}{rest}."


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a suggestion, ", did you mean …?", or nothing if no known name is similar."""
    similar = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f", did you mean {similar[0]}?" if similar else ""


def whole_number(text: str) -> int:
    """Return the value of an option that takes an integer."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    """Return the value of an option that takes a real number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
