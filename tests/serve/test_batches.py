"""Micro-batching: waiting jobs are computed together, errors stay with their jobs, the queue is bounded."""

import asyncio
import threading

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")

from ncelm.serve.batches import Batcher
from ncelm.serve.fields import RequestError


def run(scenario, **options):
    async def main():
        batcher = Batcher(**{"max_waiting": 1000, "max_batch": 100, **options})
        try:
            return await scenario(batcher)
        finally:
            batcher.close()

    return asyncio.run(main())


class Slow:
    """A function that waits until it is released, and counts its calls."""

    def __init__(self):
        self.calls, self.open = [], threading.Event()

    def __call__(self, items):
        self.calls.append(list(items))
        self.open.wait(10)
        return [2 * item for item in items]


def started(batcher, slow, key="a", count=6):
    return [asyncio.create_task(batcher.run(key, slow, [i, 10 * i], 2)) for i in range(count)]


def test_waiting_jobs_are_one_batch():
    slow = Slow()

    async def scenario(batcher):
        tasks = started(batcher, slow)
        await asyncio.sleep(0.05)
        slow.open.set()
        return await asyncio.gather(*tasks)

    assert run(scenario) == [[2 * i, 20 * i] for i in range(6)]
    assert len(slow.calls) == 1  # all were waiting before the thread began
    slow.calls.clear()
    assert run(scenario, batching=False) == [[2 * i, 20 * i] for i in range(6)]
    assert len(slow.calls) == 6
    slow.calls.clear()
    assert run(scenario, max_batch=4) == [[2 * i, 20 * i] for i in range(6)]
    assert len(slow.calls) == 3


def test_other_keys_are_other_batches():
    slow = Slow()
    slow.open.set()

    async def scenario(batcher):
        tasks = [*started(batcher, slow, "a", 2), *started(batcher, slow, "b", 2), *started(batcher, slow, None, 2)]
        return await asyncio.gather(*tasks)

    assert len(run(scenario)) == 6
    assert len(slow.calls) == 4


def test_an_error_concerns_its_job_only():
    def compute(items):
        if 3 in items:
            raise ValueError("three")
        return items

    async def scenario(batcher):
        tasks = [asyncio.create_task(batcher.run("a", compute, [i], 1)) for i in range(6)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = run(scenario)
    assert [result for result in results if not isinstance(result, Exception)] == [[0], [1], [2], [4], [5]]
    assert isinstance(results[3], ValueError)


def test_a_full_queue_is_an_error():
    slow = Slow()

    async def scenario(batcher):
        tasks = started(batcher, slow, count=2)
        await asyncio.sleep(0.05)
        tasks += started(batcher, slow, count=2)
        await asyncio.sleep(0.05)
        with pytest.raises(RequestError, match="busy") as caught:
            await batcher.run("a", slow, [1], 1000)
        assert caught.value.status == 503
        slow.open.set()
        await asyncio.gather(*tasks)
        return await batcher.run("a", slow, [1], 5)

    assert run(scenario) == [2]


def test_jobs_that_were_given_up_are_not_computed():
    slow = Slow()

    async def scenario(batcher):
        first = asyncio.create_task(batcher.run("a", slow, [1], 1))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(batcher.run("b", slow, [2], 1))
        await asyncio.sleep(0.05)
        second.cancel()
        slow.open.set()
        await first
        await asyncio.sleep(0.05)
        assert batcher.words == 0
        return await batcher.run("b", slow, [3], 1)

    assert run(scenario) == [6]
    assert slow.calls == [[1], [3]]
