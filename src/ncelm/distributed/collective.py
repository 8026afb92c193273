"""Collective operations that training needs, for one process and for the processes of a torchrun job.

`current()` returns the implementation for this process: `SingleProcess`, or `process_group.ProcessGroup`
if torchrun started the process. PyTorch is imported in the second case only.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from ncelm.errors import NcelmError
from ncelm.io.machine import local_world_size as local_world_size  # also for users of this module
from ncelm.io.machine import rank as rank
from ncelm.io.machine import started_by_torchrun as started_by_torchrun

if TYPE_CHECKING:  # the command line imports this module before NumPy is needed
    from pathlib import Path

    import numpy as np

    from ncelm.text.store import TokenStore

PEER_TIMEOUT = 60.0  # seconds

Arrays = dict[str, "np.ndarray"]
OptimizerState = dict[str, Arrays]  # by the name of the statistic ("accumulator"), then by the name of the parameter


class Collective(Protocol):
    """Collective operations over all workers. Every worker must call the same operations in the same order."""

    rank: int  # 0 ≤ rank < size; only rank 0 writes files
    size: int
    reduce_interval: int  # calls of the engine between two all-reduces of the losses
    reduce_delay: int  # all-reduces that may be in flight while training continues

    def gather(self, text: str) -> list[str]:
        """Return the texts of all workers, by rank."""

    def open_store(self, store: "TokenStore | Path | str") -> "TokenStore":
        """Return the store with this worker's contiguous part of the training split.

        Of the store at a path, the files of other parts are not read. An error is raised on all workers.
        """

    def all_reduce(self, array: "np.ndarray") -> "np.ndarray":
        """Return the sum over all workers, in float64."""

    def all_reduce_async(self, array: "np.ndarray") -> Callable[[], "np.ndarray"]:
        """Start an all-reduce; return a function that waits for its result."""

    def broadcast(self, array: "np.ndarray") -> "np.ndarray":
        """Return the array of rank 0, in float64."""

    def broadcast_arrays(self, arrays: Arrays) -> None:
        """Overwrite the arrays, in place, with those of rank 0."""

    def register(
        self, parameters: Arrays, optimizer_state: OptimizerState, counts: "np.ndarray", interval: int
    ) -> None:
        """Set the arrays that `synchronize` works on.

        Args:
            parameters: parameters by name; updated in place by `synchronize`.
            optimizer_state: {} or {"accumulator": {parameter name: array}}; updated in place.
            counts: frequency of each word in the training text, (V,).
            interval: words of text, of all workers together, between two calls of `synchronize`.
        """

    def synchronize(self, full: bool = False) -> str | None:
        """Exchange row deltas; if `full`, make parameters byte-identical on all workers.

        Returns None, or on all workers the reason why nothing was exchanged: a number was not finite.
        """

    @property
    def bytes_sent(self) -> int:
        """Payload bytes sent by this worker so far."""


class SingleProcess:
    """The collective of one process: every operation is the identity."""

    rank, size, reduce_interval, reduce_delay, bytes_sent = 0, 1, 1, 0, 0

    def gather(self, text: str) -> list[str]:
        """Return a list of the text."""
        return [text]

    def open_store(self, store: "TokenStore | Path | str") -> "TokenStore":
        """Return the whole store."""
        from ncelm.text.store import TokenStore

        return TokenStore.open(store)

    def all_reduce(self, array: "np.ndarray") -> "np.ndarray":
        """Return the array."""
        return array

    def all_reduce_async(self, array: "np.ndarray") -> Callable[[], "np.ndarray"]:
        """Return a function that returns the array."""
        return lambda: array

    def broadcast(self, array: "np.ndarray") -> "np.ndarray":
        """Return the array."""
        return array

    def broadcast_arrays(self, arrays: Arrays) -> None:
        """Do nothing."""

    def register(
        self, parameters: Arrays, optimizer_state: OptimizerState, counts: "np.ndarray", interval: int
    ) -> None:
        """Do nothing."""

    def synchronize(self, full: bool = False) -> str | None:
        """Do nothing."""
        return None


def current(peer_timeout: float = PEER_TIMEOUT) -> Collective:
    """Return the collective of this process. Under torchrun this waits until all workers have joined.

    A worker that another one does not hear from for `peer_timeout` seconds ends the group.
    """
    if not started_by_torchrun():
        return SingleProcess()
    from ncelm.distributed.process_group import ProcessGroup

    return ProcessGroup.join(peer_timeout)


@contextmanager
def errors_on_all(group: Collective) -> Iterator[None]:
    """Run a block on all workers; if it raises an error on one of them, raise one on the others too.

    They would otherwise wait for a worker that has failed.
    """
    try:
        yield
    except Exception as error:
        group.gather(str(error) or type(error).__name__)
        raise
    for worker, problem in enumerate(group.gather("")):
        if problem:
            raise NcelmError(f"worker {worker} failed: {problem}")


def check_equal(group: Collective, values: dict[str, object]) -> None:
    """Raise `NcelmError` on all workers unless each value, by its name, is the same on all of them."""
    own = json.dumps({name: str(value) for name, value in values.items()})
    texts = [json.loads(text) for text in group.gather(own)]
    for name, first in texts[0].items():
        for worker, other in enumerate(texts):
            if other.get(name) != first:
                raise NcelmError(
                    f"worker {worker} has {name} {str(other.get(name))[:60]}, and worker 0 has {first[:60]}: start all "
                    f"workers with the same {name}"
                )
