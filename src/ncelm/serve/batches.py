"""Micro-batching: requests that wait at the same time are computed together, in one thread, off the event loop.

While a batch is computed, further requests arrive and wait. They are the next batch: batches grow with the load, and a
single request never waits for others.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ncelm.serve.fields import RequestError


@dataclass(frozen=True)
class Job:
    """Work that waits."""

    key: Hashable | None  # jobs with the same key are computed by one call; None: alone
    compute: Callable[[list[Any]], Sequence[Any]]  # items → one result for each
    items: list[Any]
    cost: int  # in words
    future: "asyncio.Future[Any]"


class Batcher:
    """A queue in front of one thread."""

    def __init__(self, max_waiting: int, max_batch: int, batching: bool = True) -> None:
        self.max_waiting, self.max_batch, self.batching = max_waiting, max_batch, batching
        self.waiting: deque[Job] = deque()
        self.words = 0  # of all jobs that wait
        self.batches = self.jobs = 0
        self._thread = ThreadPoolExecutor(1, "ncelm-serve")
        self._running: asyncio.Task[None] | None = None

    async def run(
        self, key: Hashable | None, compute: Callable[[list[Any]], Sequence[Any]], items: list[Any], cost: int
    ) -> Sequence[Any]:
        """Return the result of each item. Raise `RequestError` 503 if too many words wait already."""
        if self.words + cost > self.max_waiting and self.waiting:
            raise RequestError(503, "the service is busy: repeat the request later")
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(Job(key if self.batching else None, compute, items, cost, future))
        self.words += cost
        if self._running is None:
            self._running = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self.waiting:
                batch = self._next_batch()
                if not batch:
                    continue
                self.batches += 1
                self.jobs += len(batch)
                items = [item for job in batch for item in job.items]
                try:
                    results = await loop.run_in_executor(self._thread, batch[0].compute, items)
                except Exception as error:
                    await self._failed(batch, error)
                else:
                    self._finished(batch, results)
        finally:
            self._running = None

    def _next_batch(self) -> list[Job]:
        """Remove the first job, and others with the same key, from the queue. Those that were given up are left out."""
        first = self.waiting.popleft()
        batch, kept, cost = [first], deque[Job](), first.cost
        while first.key is not None and self.waiting and cost < self.max_batch:
            job = self.waiting.popleft()
            if job.key == first.key and cost + job.cost <= self.max_batch:
                batch.append(job)
                cost += job.cost
            else:
                kept.append(job)
        self.waiting.extendleft(reversed(kept))
        self.words -= cost
        return [job for job in batch if not job.future.done()]

    async def _failed(self, batch: list[Job], error: Exception) -> None:
        """Compute the jobs of a batch one by one, so that only those fail that are the reason."""
        loop = asyncio.get_running_loop()
        if len(batch) == 1:
            if not batch[0].future.done():
                batch[0].future.set_exception(error)
            return
        for job in batch:
            try:
                results = await loop.run_in_executor(self._thread, job.compute, job.items)
            except Exception as own:
                if not job.future.done():
                    job.future.set_exception(own)
            else:
                self._finished([job], results)

    @staticmethod
    def _finished(batch: list[Job], results: Sequence[Any]) -> None:
        first = 0
        for job in batch:
            last = first + len(job.items)
            if not job.future.done():
                job.future.set_result(results[first:last])
            first = last

    def close(self) -> None:
        """Wait for the thread."""
        self._thread.shutdown()
