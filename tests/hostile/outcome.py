"""Outcomes of attempts, and the families of attacks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.hostile.corpus import Corpus

REJECTED, HARMLESS, VIOLATION = "rejected", "harmless", "violation"
BROKEN = "broken"  # no outcome: the harness itself is wrong


class Violation(Exception):  # noqa: N818
    """ncelm did something that it must not do."""


class Broken(Exception):  # noqa: N818
    """The harness itself is wrong: something that must succeed without an attack has failed."""


@contextmanager
def without_attack() -> Iterator[None]:
    """Run something that must succeed. Its failure is not a rejection, but ends the whole attack."""
    try:
        yield
    except Exception as error:
        raise Broken(f"failed without an attack: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Place:
    """What an attempt gets: the valid files, which it must not change, and an empty folder of its own."""

    corpus: Corpus
    folder: Path


Attempt = Callable[[Random, Place], str]  # returns REJECTED or HARMLESS; raises NcelmError or Violation


@dataclass(frozen=True)
class Family:
    """A family of attacks.

    Attributes:
        name: in reports, and in `--only`.
        attempt: one attempt, determined by the random numbers.
        share: of the time of an attack, relative to the shares of the other families.
        timeout: seconds after which an attempt counts as a hang.
        processes: whether an attempt starts processes, and takes seconds.
    """

    name: str
    attempt: Attempt
    share: float = 1.0
    timeout: float = 30.0
    processes: bool = False


def random_of(seed: int, family: str, number: int) -> Random:
    """Return the random numbers of an attempt."""
    return Random(f"{seed} {family} {number}")
