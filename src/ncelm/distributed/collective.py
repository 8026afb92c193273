"""Those who train one model together: this process alone, or several started by torchrun."""

import os
from collections.abc import Callable
from typing import Protocol

import numpy as np

from ncelm.text.store import TokenStore


class Workers(Protocol):
    """What training asks of them. Every worker must ask the same questions in the same order."""

    rank: int  # the first is 0, and it alone writes files
    size: int
    calls_together: int  # losses and wishes of so many calls of training are told together, …
    late: int  # … and heard when so many more have been told

    def agree(self, facts: dict[str, str]) -> None:
        """Refuse to begin unless these are the same for all."""

    def share(self, store: TokenStore) -> TokenStore:
        """The store with this worker's part of the training text only."""

    def total(self, numbers: np.ndarray) -> np.ndarray:
        """The sum over all workers."""

    def begin_total(self, numbers: np.ndarray) -> Callable[[], np.ndarray]:
        """The same, on its way while this worker does something else; what is returned waits for it."""

    def first_says(self, numbers: np.ndarray) -> np.ndarray:
        """What the first worker has there."""

    def hand_out(self, arrays: dict[str, np.ndarray]) -> None:
        """Fill the arrays of all with the first worker's."""

    def watch(self, values: dict[str, np.ndarray], sums: dict[str, np.ndarray], counts: np.ndarray, every: int) -> None:
        """These are the parameters and Adagrad's sums of squares that `exchange` is about, after `every` words."""

    def exchange(self, everything: bool = False) -> None:
        """Put together what each has learned; `everything`, until all have the same, or what is due, in passing."""

    @property
    def bytes_sent(self) -> int:
        """By this worker, in all exchanges."""


class Alone:
    """One process: nobody to ask."""

    rank, size, calls_together, late, bytes_sent = 0, 1, 1, 0, 0

    def agree(self, facts: dict[str, str]) -> None:
        """There is nobody to disagree."""

    def share(self, store: TokenStore) -> TokenStore:
        """All of it."""
        return store

    def total(self, numbers: np.ndarray) -> np.ndarray:
        """The numbers themselves."""
        return numbers

    def begin_total(self, numbers: np.ndarray) -> Callable[[], np.ndarray]:
        """The numbers themselves."""
        return lambda: numbers

    def first_says(self, numbers: np.ndarray) -> np.ndarray:
        """The numbers themselves."""
        return numbers

    def hand_out(self, arrays: dict[str, np.ndarray]) -> None:
        """They are here already."""

    def watch(self, values: dict[str, np.ndarray], sums: dict[str, np.ndarray], counts: np.ndarray, every: int) -> None:
        """Nothing to watch."""

    def exchange(self, everything: bool = False) -> None:
        """Nothing to exchange."""


def rank() -> int:
    """Which of the workers this process is, as torchrun tells it: 0 if it is alone."""
    return int(os.environ["RANK"]) if started_by_torchrun() else 0


def on_this_machine() -> int:
    """How many of the workers share this machine's cores and memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if started_by_torchrun() else 1


def restarted() -> bool:
    """Has torchrun started the workers again, because one of them had died?"""
    return started_by_torchrun() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def started_by_torchrun() -> bool:
    """Are there several of us?"""
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    return all(name in os.environ for name in needed) and int(os.environ["WORLD_SIZE"]) > 1


def of_this_run() -> Workers:
    """This process alone, unless torchrun has started it."""
    if not started_by_torchrun():
        return Alone()
    from ncelm.distributed.process_group import Group

    return Group.join()
