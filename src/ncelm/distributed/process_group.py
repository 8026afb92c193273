"""Training by several processes, on one machine or many, under torchrun.

Each worker has its own part of the text and its own copy of the model; now and then each tells all others what it has
learned. Changes of a row are added up, as if one process had taken all their steps, only that each step knew nothing of
the last few of the others. Rows of frequent words, which all workers change all the time, are looked at often, those of
rare words in turn (as in HogBatch: Ji, Satish, Li & Dubey 2016), and told if they have changed enough, with a byte for
each number (`exchange_kernels`).
"""

import atexit
import hashlib
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Self

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ncelm.errors import NcelmError
from ncelm.kernels import exchange as exchange_kernels
from ncelm.text.store import Split, TokenStore

# Workers wait so long for each other: while the first writes a checkpoint or validates. One that died is known at once.
PATIENCE = timedelta(minutes=30)
FREQUENT = 2048  # so many words are looked at before every message, …
RARELY = 2  # … and all in the course of so many, or of as many as are sent in
WORDS_FOR_EACH = 0.8  # … words of text for each of the vocabulary: what is sent for a word must not grow with it
ENOUGH = 0.01  # a row is told if it has changed by more than this part of itself,
GLANCE = 8  # … by the look of so many of its numbers
HASHED = 64  # weights that nobody can tell apart by frequency are told so many together


class _Ring:
    """Rows that take turns in being told."""

    def __init__(self, rows: np.ndarray, turns: int) -> None:
        self.rows, self.places, self.start = rows.astype(np.int32), -(-rows.size // turns), 0


class _News:
    """A part of a message: so many rows of one parameter."""

    def __init__(self, memory: np.ndarray, room: int, width: int) -> None:
        numbers = memory[: 3 * 4 * room].view(np.int32).reshape(3, room)
        self.rows = numbers[0]
        self.scales, self.growth = numbers[1:].view(np.float32)
        self.changes = memory[3 * 4 * room :][: room * width].reshape(room, width)  # signed bytes

    @staticmethod
    def size(room: int, width: int) -> int:
        """Bytes; a multiple of 4."""
        return 3 * 4 * room + -(-room * width // 4) * 4


class _Table:
    """A parameter and its sums of squares, row by row, as they are and as far as they have been told."""

    def __init__(self, now: np.ndarray, squares: np.ndarray, rings: list[_Ring]) -> None:
        self.now = now  # (rows, width)
        self.former = now.copy()  # the start, and all changes that have been told by anybody
        self.squares = squares.reshape(now.shape) if squares.size else None  # for SGD there are none
        self.told = np.zeros(len(now), np.float32) if self.squares is None else self.squares.mean(1)  # their means
        self.rings = [ring for ring in rings if ring.rows.size]
        self.room = self.most = sum(ring.places for ring in self.rings)  # rows in a message

    def size(self, room: int) -> int:
        """Bytes of a message about so many rows."""
        return _News.size(room, self.now.shape[1])

    def write(self, memory: np.ndarray) -> int:
        """Tell what has changed, as far as there is room: so many rows."""
        news, told = _News(memory, self.room, self.now.shape[1]), 0
        for ring in self.rings:
            rows = news.rows[told : told + ring.places]
            ring.start, found = exchange_kernels.pick_changed(
                self.now, self.former, ring.rows, ring.start, ring.places, GLANCE, np.float32(ENOUGH), rows
            )
            told += found
        rows = news.rows[:told]
        exchange_kernels.write_news(self.now, self.former, rows, news.scales, news.changes)
        if self.squares is not None:
            exchange_kernels.write_growth(self.squares, self.told, rows, news.growth)
        return told

    def take(self, memory: np.ndarray, told: int) -> None:
        """Add what another worker has told."""
        news = _News(memory, self.room, self.now.shape[1])
        rows = news.rows[:told]
        exchange_kernels.take_news(self.now, self.former, rows, news.scales, news.changes)
        if self.squares is not None:
            exchange_kernels.take_growth(self.squares, self.told, rows, news.growth)


def _table(name: str, values: np.ndarray, squares: np.ndarray, by_frequency: np.ndarray, rarely: int) -> _Table:
    """Row by row, and how often each is told."""
    if name in ("target_vectors", "biases", "context_vectors"):
        now = values.reshape(len(values), -1)
        others = np.arange(by_frequency.size, len(values))  # the out-of-sentence word is beside every sentence
        rings = [
            _Ring(np.concatenate([others, by_frequency[:FREQUENT]]), 1),
            _Ring(by_frequency[FREQUENT:], rarely),
        ]
    elif name == "weights":  # hashed: nobody knows which are frequent
        now = values.reshape(-1, HASHED if values.size % HASHED == 0 else 1)
        rings = [_Ring(np.arange(len(now)), rarely)]
    else:  # matrices and layers: all of them serve every word
        now = values.reshape(-1, values.shape[-1])
        rings = [_Ring(np.arange(len(now)), 1)]
    return _Table(now, squares, rings)


@contextmanager
def _all_alive() -> Iterator[None]:
    """While talking to other workers: one that is gone is one line, not a traceback."""
    try:
        yield
    except RuntimeError as error:  # what PyTorch raises for a connection that was closed
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "with --max-restarts torchrun starts all of them again"
        raise NcelmError(f"another worker is gone or out of reach ({reason[:200]}): {remedy}") from error


def _meeting(store: Store, rank: int, size: int) -> str:
    """A name for this meeting of workers, which those before a restart cannot have known.

    torchrun keeps one store of notes for all its restarts, in which workers leave their addresses: without a name of
    their own they would find those of the dead, and wait for them.
    """
    me, deadline = uuid.uuid4().hex, time.monotonic() + PATIENCE.total_seconds()
    if rank == 0:
        store.set("ncelm/host", me)
        guests = [store.get(f"ncelm/{me}/{other}").decode() for other in range(1, size)]  # waits for each
        store.set(f"ncelm/{me}/guests", " ".join(guests))
        return me
    while time.monotonic() < deadline:
        host = store.get("ncelm/host").decode()  # perhaps a dead one
        store.set(f"ncelm/{host}/{rank}", me)
        try:
            store.wait([f"ncelm/{host}/guests"], timedelta(seconds=1))
        except dist.DistStoreError:
            continue
        if me in store.get(f"ncelm/{host}/guests").decode().split():
            return host
        time.sleep(0.1)
    raise NcelmError(f"worker 0 did not come within {PATIENCE}: see that torchrun was started for it too")


class Group:
    """Workers that torchrun has started."""

    calls_together, late = 8, 1

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.bytes_sent = rank, size, 0
        self._tables: list[_Table] = []
        self._mine, self._all = np.zeros(0, np.uint8), np.zeros(0, np.uint8)  # room for the largest messages

    @classmethod
    def join(cls) -> Self:
        """Meet the others, as the environment says where."""
        if not dist.is_initialized():
            with _all_alive():
                store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
                ours = PrefixStore(_meeting(store, rank, size), store)
                dist.init_process_group("gloo", store=ours, rank=rank, world_size=size, timeout=PATIENCE)
            atexit.register(dist.destroy_process_group)
        return cls(dist.get_rank(), dist.get_world_size())

    def agree(self, facts: dict[str, str]) -> None:
        """Refuse to begin unless these are the same for all."""
        for what, fact in facts.items():
            mine = torch.from_numpy(np.frombuffer(hashlib.sha256(fact.encode()).digest(), np.uint8).copy())
            every = [torch.empty_like(mine) for _ in range(self.size)]
            with _all_alive():
                dist.all_gather(every, mine)
            for rank, theirs in enumerate(every):
                if not torch.equal(theirs, every[0]):
                    raise NcelmError(f"worker {rank} has another {what} than worker 0: give all workers the same")

    def share(self, store: TokenStore) -> TokenStore:
        """The store with this worker's part of the training text only; at most `size` - 1 words are nobody's."""
        whole = store.split("train")
        length = whole.tokens // self.size
        if length == 0:
            raise NcelmError(f"{store.path} has {whole.tokens} words of training text: too few for {self.size} workers")
        ids = whole.ids[self.rank * length : (self.rank + 1) * length]
        part = Split("train", ids, np.array([0, length], np.uint64), whole.unknown)
        return replace(store, splits=store.splits | {"train": part})

    def total(self, numbers: np.ndarray) -> np.ndarray:
        """The sum over all workers."""
        return self.begin_total(numbers)()

    def begin_total(self, numbers: np.ndarray) -> Callable[[], np.ndarray]:
        """The same, on its way while this worker does something else; what is returned waits for it."""
        answer = np.array(numbers, np.float64)
        with _all_alive():
            work = dist.all_reduce(torch.from_numpy(answer), async_op=True)
        # a ring: each worker sends all but its own share twice
        self.bytes_sent += 2 * answer.nbytes * (self.size - 1) // self.size

        def arrived() -> np.ndarray:
            with _all_alive():
                work.wait()
            return answer

        return arrived

    def first_says(self, numbers: np.ndarray) -> np.ndarray:
        """What the first worker has there."""
        answer = np.array(numbers, np.float64)
        with _all_alive():
            dist.broadcast(torch.from_numpy(answer), 0)
        return answer

    def hand_out(self, arrays: dict[str, np.ndarray]) -> None:
        """Fill the arrays of all with the first worker's."""
        for array in arrays.values():
            if array.size:
                with _all_alive():
                    dist.broadcast(torch.from_numpy(array), 0)
                self.bytes_sent += array.nbytes if self.rank == 0 else 0

    # -- what was learned ---------------------------------------------------------------------------------------------

    def watch(self, values: dict[str, np.ndarray], sums: dict[str, np.ndarray], counts: np.ndarray, every: int) -> None:
        """These are the parameters and Adagrad's sums of squares that `exchange` is about, after `every` words."""
        rarely = max(RARELY, round(WORDS_FOR_EACH * counts.size / every))
        by_frequency = np.argsort(-counts, kind="stable")
        self._tables = [_table(name, array, sums[name], by_frequency, rarely) for name, array in values.items()]
        largest = sum(self._sizes)  # there is never more room than at the start
        self._mine, self._all = np.zeros(largest, np.uint8), np.zeros(self.size * largest, np.uint8)
        for table in self._tables:  # compile before anything is timed
            table.take(self._mine, table.write(self._mine))

    def exchange(self, everything: bool = False) -> None:
        """Tell the others what this worker has learned, and take in what they have; `everything`, until all agree."""
        if everything:
            self._settle()
            return
        told, *parts = self._parts(self._mine)
        for i, (table, part) in enumerate(zip(self._tables, parts, strict=True)):
            told.view(np.int32)[i] = table.write(part)
        size = sum(self._sizes)
        mine, all_of_us = torch.from_numpy(self._mine[:size]), torch.from_numpy(self._all[: self.size * size])
        with _all_alive():
            dist.all_gather_single(all_of_us, mine)
        self.bytes_sent += size * (self.size - 1)
        self._take_in(size)

    @property
    def _sizes(self) -> list[int]:
        """Bytes of a message, the same for all workers: how many rows of each parameter are told, and their rows."""
        return [4 * len(self._tables), *(table.size(table.room) for table in self._tables)]

    def _parts(self, message: np.ndarray) -> list[np.ndarray]:
        return np.split(message, np.cumsum(self._sizes))[:-1]

    def _take_in(self, size: int) -> None:
        """Add the changes of the others, from messages of so many bytes."""
        most_told = np.zeros(len(self._tables), np.int64)
        for rank in range(self.size):
            numbers, *parts = self._parts(self._all[rank * size : (rank + 1) * size])
            told = numbers.view(np.int32)
            most_told = np.maximum(most_told, told)
            if rank != self.rank:
                for table, part, n in zip(self._tables, parts, told, strict=True):
                    table.take(part, n)
        for table, n in zip(self._tables, most_told.tolist(), strict=True):  # room for some more the next time
            table.room = min(n + n // 4 + 16, table.most)

    def _settle(self) -> None:
        """The first worker hears all that has not been told yet, to the last digit; then all get what it has."""
        for table in self._tables:
            untold = table.now - table.former
            self._reduce_to_first(untold)
            if self.rank == 0:
                np.add(table.former, untold, out=table.now)
            arrays = {"now": table.now}
            if table.squares is not None:
                mine = table.squares.mean(1) - table.told
                growth = mine.copy()
                self._reduce_to_first(growth)
                if self.rank == 0:
                    rows = np.arange(len(growth), dtype=np.int32)
                    exchange_kernels.take_growth(table.squares, table.told, rows, growth - mine)
                arrays["squares"] = table.squares
            self.hand_out(arrays)
            table.former[:] = table.now
            if table.squares is not None:
                table.told[:] = table.squares.mean(1)

    def _reduce_to_first(self, array: np.ndarray) -> None:
        """The first worker's becomes the sum of all workers'; of the others' nothing is known then."""
        if array.size:
            with _all_alive():
                dist.reduce(torch.from_numpy(array), 0)
            self.bytes_sent += array.nbytes if self.rank > 0 else 0
