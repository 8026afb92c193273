"""Detection of workers that do not answer: halted, overloaded, or behind a link that is down.

A worker that ends closes its connections, which the others notice at once. A worker that is only silent would let them
wait in a collective for a very long time: rank 0 may be silent for minutes while it validates. Therefore a thread of
each worker increases a counter in torchrun's key-value store and reads those of the others, and another thread watches
them. The first one may wait forever: PyTorch's client has no time limit while it cancels a request that has timed out.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from torch._C._distributed_c10d import TCPStore

from ncelm.distributed import agent

ANSWER_SECONDS = 5.0  # for a last message
DONE = "done"  # instead of a counter, of a worker that has left
FAILED = "failed: "  # instead of a counter, followed by the message of a worker that has ended the group


def stop_process(message: str) -> None:
    """Print one line and end the process: the main thread may be waiting in a collective, without Python."""
    print(f"ncelm: {message}", file=sys.stderr, flush=True)
    try:
        agent.end_if_unreachable()
    finally:  # also if no process can be started
        os._exit(2)


class Heartbeat:
    """Threads that end the process if another worker is silent for `timeout` seconds.

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
        # what the store has answered last, and when; replaced as a whole by one thread and read by the other
        self._answer = ([""] * len(self.keys), time.monotonic())
        self._threads = [
            threading.Thread(target=run, name="heartbeat", daemon=True) for run in (self._exchange, self._watch)
        ]

    def start(self) -> None:
        """Start the threads."""
        self.store.set(self.keys[self.rank], "0")
        self._answer = ([""] * len(self.keys), time.monotonic())
        for thread in self._threads:
            thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the other workers are watched."""
        return self._threads[1].is_alive()

    def close(self) -> None:
        """Tell the others that this worker leaves, and end the threads."""
        self._ended.set()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(self.timeout)
        if not any(thread.is_alive() for thread in self._threads):
            self._ask(partial(self.store.set, self.keys[self.rank], DONE))

    def reason(self) -> str | None:
        """Return the message of a worker that has ended the group, or None.

        The others notice only that its connections are closed.
        """
        for value in self._ask(partial(self.store.multi_get, self.keys)) or ():
            if value.startswith(FAILED.encode()):
                return value.decode().removeprefix(FAILED)
        return None

    def _ask(self, request: Callable[[], Any]) -> Any:
        """Return the answer of the store, or None without an answer within ANSWER_SECONDS."""
        answers: list[Any] = []

        def ask() -> None:
            with suppress(RuntimeError):  # no connection: torchrun has left before
                answers.append(request())

        thread = threading.Thread(target=ask, name="heartbeat request", daemon=True)
        thread.start()
        thread.join(ANSWER_SECONDS)
        return answers[0] if answers else None

    @property
    def _interval(self) -> float:
        return min(self.timeout / 10, 5.0)

    def _exchange(self) -> None:
        """Increase the counter of this worker, and read all."""
        beats = 0
        while not self._ended.wait(self._interval):
            beats += 1
            with suppress(RuntimeError):  # no connection
                self.store.set(self.keys[self.rank], str(beats))
                self._answer = ([value.decode() for value in self.store.multi_get(self.keys)], time.monotonic())

    def _watch(self) -> None:
        """Fail if a counter, or all of them, have not changed for `timeout` seconds."""
        changed, last = [time.monotonic()] * len(self.keys), [""] * len(self.keys)
        while not self._ended.wait(self._interval):
            (values, answered), now = self._answer, time.monotonic()
            for rank, value in enumerate(values):
                if value != last[rank]:
                    last[rank], changed[rank] = value, now
            if message := self._problem(now - answered, [now - each for each in changed], last):
                self._ended.set()
                if now - answered <= self.timeout:
                    self._threads[0].join(ANSWER_SECONDS)  # it would overwrite the message
                    self._ask(partial(self.store.set, self.keys[self.rank], FAILED + message))
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
