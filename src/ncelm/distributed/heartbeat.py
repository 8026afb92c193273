"""Detection of workers that do not answer: halted, overloaded, or behind a link that is down.

A worker that ends closes its connections, which the others notice at once. A worker that is only silent would let them
wait in a collective for a very long time: rank 0 may be silent for minutes while it validates. Therefore a thread of
each worker increases a counter in torchrun's key-value store, and watches those of the others.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from torch._C._distributed_c10d import TCPStore

DONE = "done"  # instead of a counter, of a worker that has left
FAILED = "failed: "  # instead of a counter, followed by the message of a worker that has ended the group


def stop_process(message: str) -> None:
    """Print one line and end the process: the main thread may be waiting in a collective, without Python."""
    print(f"ncelm: {message}", file=sys.stderr, flush=True)
    os._exit(2)


class Heartbeat:
    """A thread that ends the process if another worker is silent for `timeout` seconds.

    Args:
        store: a connection to the key-value store that no other thread uses.
        prefix: of the keys of this group of workers.
        rank: this worker.
        hosts: the host of each worker, by rank.
        timeout: seconds.
        fail: called with a message, instead of ending the process.
    """

    def __init__(
        self,
        store: TCPStore,
        prefix: str,
        rank: int,
        hosts: list[str],
        timeout: float,
        fail: Callable[[str], None] = stop_process,
    ) -> None:
        self.store, self.rank, self.hosts, self.timeout, self.fail = store, rank, hosts, timeout, fail
        self.keys = [f"{prefix}/alive/{each}" for each in range(len(hosts))]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.store.set(self.keys[self.rank], "0")
        self._thread.start()

    def close(self) -> None:
        """Tell the others that this worker leaves, and end the thread."""
        self._ended.set()
        self._thread.join(self.timeout)
        if not self._thread.is_alive():
            with suppress(RuntimeError):  # torchrun has left before
                self.store.set(self.keys[self.rank], DONE)

    def reason(self) -> str | None:
        """Return the message of a worker that has ended the group, or None.

        The others notice only that its connections are closed.
        """
        with suppress(RuntimeError):
            for value in self.store.multi_get(self.keys):
                if value.startswith(FAILED.encode()):
                    return value.decode().removeprefix(FAILED)
        return None

    def _run(self) -> None:
        beats, now = 0, time.monotonic()
        answered, changed, last = now, [now] * len(self.keys), [""] * len(self.keys)
        while not self._ended.wait(min(self.timeout / 10, 5.0)):
            beats += 1
            try:
                self.store.set(self.keys[self.rank], str(beats))
                values = [value.decode() for value in self.store.multi_get(self.keys)]
            except RuntimeError:  # no connection
                values = last
            else:
                answered = time.monotonic()
            now = time.monotonic()
            for rank, value in enumerate(values):
                if value != last[rank]:
                    last[rank], changed[rank] = value, now
            if message := self._problem(now - answered, [now - each for each in changed], last):
                if now - answered <= self.timeout:
                    with suppress(RuntimeError):
                        self.store.set(self.keys[self.rank], FAILED + message)
                self.fail(message)
                return

    def _problem(self, store_silent: float, silent: list[float], values: list[str]) -> str | None:
        remedy = "with --max-restarts torchrun starts the workers again, from the last checkpoint"
        if store_silent > self.timeout:
            return (
                f"torchrun's key-value store on {self.store.host} did not answer for {store_silent:.0f} s: check the "
                f"network to it; {remedy}"
            )
        for rank, seconds in enumerate(silent):
            if rank != self.rank and values[rank] != DONE and seconds > self.timeout:
                return f"worker {rank} on {self.hosts[rank]} did not answer for {seconds:.0f} s: check it; {remedy}"
        return None
