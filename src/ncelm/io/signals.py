"""Ctrl-C and SIGTERM: requests to stop that are handled where nothing is lost."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ncelm.errors import Terminated

TERMINATED = 1e6  # weight of SIGTERM, more than that of Ctrl-C in all processes of a group
SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


def raise_terminated(number: int, frame: Any) -> None:
    """Raise `Terminated`: the handler of SIGTERM of the command line."""
    raise Terminated


class StopRequest:
    """Whether this process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._immediate = False

    def is_set(self) -> bool:
        """Return whether a signal has arrived."""
        return self.number is not None

    @property
    def weight(self) -> float:
        """A number that can be summed over processes: 0 without a request, 1 for Ctrl-C, `TERMINATED` for SIGTERM."""
        return 0.0 if self.number is None else TERMINATED if self.number == signal.SIGTERM else 1.0

    def add(self, weight: float) -> None:
        """Take over the requests of other processes, given the sum of their weights."""
        if weight >= TERMINATED:
            self.number = signal.SIGTERM
        elif weight and self.number is None:
            self.number = signal.SIGINT

    def handle(self, number: int, frame: Any) -> None:
        """Remember a signal, and raise an exception where that is allowed."""
        self.number = number
        if self._immediate:
            raise self.exception()

    def exception(self, message: str = "") -> KeyboardInterrupt:
        """Return the exception that ends the work: `Terminated` after SIGTERM, otherwise `KeyboardInterrupt`."""
        name = SIGNALS.get(signal.Signals(self.number)) if self.number is not None else None
        text = f"stopped{f' by {name}' if name else ''}{f'; {message}' if message else ''}"
        return Terminated(text) if self.number == signal.SIGTERM else KeyboardInterrupt(text)

    @contextmanager
    def immediate(self) -> Iterator[None]:
        """Raise the exception as soon as a signal arrives, or at once if it has arrived."""
        if self.is_set():
            raise self.exception()
        self._immediate = True
        try:
            yield
        finally:
            self._immediate = False


@contextmanager
def deferred() -> Iterator[StopRequest]:
    """Let Ctrl-C and SIGTERM set a request that the block checks, instead of raising an exception anywhere.

    Signals can be handled in the main thread only. In other threads the request is never set.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    former = {number: signal.signal(number, request.handle) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
