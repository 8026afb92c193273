"""All-reduce of losses during an epoch, so that no worker waits for the others after every call of the engine."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ncelm.distributed.collective import Collective


class Reduced(NamedTuple):
    """Losses of successive minibatches, summed over all workers."""

    first_step: int
    losses: np.ndarray  # (n,)
    stop: float  # requests to stop, `StopRequest.weight`, of all workers; 0 for none
    save: bool  # whether a checkpoint is due


class _InFlight(NamedTuple):
    first_step: int
    steps: int
    result: Callable[[], np.ndarray]


class LossReduction:
    """Losses of this worker that are not reduced yet, and all-reduces in flight."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._losses: list[float] = []
        self._in_flight: deque[_InFlight] = deque()

    def add(self, losses: np.ndarray) -> None:
        """Add the losses of a call of the engine."""
        self._losses.extend(losses.tolist())

    def start(self, step: int, stop: float, save: bool) -> None:
        """Start an all-reduce of the losses added so far, up to minibatch `step`, and of two requests."""
        n = len(self._losses)
        result = self._collective.all_reduce_async(np.array([*self._losses, stop, save]))
        self._in_flight.append(_InFlight(step - n, n, result))
        self._losses = []

    def finish(self, keep: int) -> Iterator[Reduced]:
        """Wait for all-reduces and return their results, except for the last `keep`."""
        while len(self._in_flight) > keep:
            first_step, steps, result = self._in_flight.popleft()
            losses, (stop, save) = np.split(result(), [steps])
            yield Reduced(first_step, losses, float(stop), bool(save > 0))
