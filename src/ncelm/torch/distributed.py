"""Training by several processes, on one machine or many, under torchrun.

Each worker has its own part of the text and its own copy of the model, and trains on its share of every minibatch; now
and then they put together what they have learned. A row of a table becomes what it was the last time, plus the changes
of all workers since, and so do Adagrad's sums of squares: as if one process had taken all their steps, only that each
step knew nothing of the last few of the others. Rows of frequent words, which all workers change all the time, are
exchanged often, all others rarely (as in HogBatch: Ji, Satish, Li & Dubey 2016). Changes are sent as bfloat16: of a
small step eight binary digits are plenty.
"""

import atexit
import hashlib
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ncelm.corpus import Split, TokenStore
from ncelm.errors import NcelmError
from ncelm.torch import exchange_kernels

# Workers wait so long for each other: while the first writes a checkpoint or validates. One that died is known at once.
PATIENCE = timedelta(minutes=30)
FREQUENT = 512  # so many words are in every exchange …
KNOWN = 4096  # … so many in every fourth, …
SOMETIMES = 4
RARELY = 8  # … and all that have changed in every eighth


@dataclass
class _Table:
    """A parameter or its sums of squares, row by row, as it is and as it was when it was exchanged last."""

    now: np.ndarray  # (rows, width)
    frequent: np.ndarray  # rows that are exchanged every time
    known: np.ndarray  # … and sometimes
    former: np.ndarray = field(init=False)  # (rows, width)

    def __post_init__(self) -> None:
        self.former = self.now.copy()


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

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.bytes_sent = rank, size, 0
        self._tables: list[list[_Table]] = []  # of each parameter: itself, and its sums of squares if there are any
        self._exchanges = 0

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
        wait = self._begin_all_reduce(torch.from_numpy(answer), dist.ReduceOp.SUM)

        def arrived() -> np.ndarray:
            wait()
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

    # -- what was learned ---------------------------------------------------------------------------------------------

    def watch(self, values: dict[str, np.ndarray], sums: dict[str, np.ndarray], counts: np.ndarray) -> None:
        """These are the parameters and Adagrad's sums of squares that `exchange` is about."""
        by_frequency = np.argsort(-counts, kind="stable")
        self._tables = []
        for name, array in values.items():
            frequent = known = np.arange(len(array))  # matrices and layers: all of them serve every word
            if name in ("target_vectors", "biases", "context_vectors"):
                frequent, known = by_frequency[:FREQUENT], by_frequency[:KNOWN]
            if name == "context_vectors":  # the out-of-sentence word is beside every sentence
                frequent, known = np.append(frequent, counts.size), np.append(known, counts.size)
            if name == "weights":
                frequent = known = np.zeros(0, np.int64)  # hashed: nobody knows which are
            now = [array.reshape(len(array), -1)]
            if sums[name].size:  # for SGD there are none
                now.append(sums[name].reshape(now[0].shape))
            self._tables.append([_Table(some, frequent, known) for some in now])
        nothing = np.zeros(0, np.int64)
        for table in (table for tables in self._tables for table in tables):  # compile before anything is timed
            news = np.zeros((0, table.now.shape[1]), np.uint16)
            exchange_kernels.write_news(table.now, table.former, nothing, news)
            exchange_kernels.take_news(table.now, table.former, nothing, news)
            exchange_kernels.find_changed(table.now[:0], table.former[:0], np.zeros(0, np.uint8))

    def exchange(self, everything: bool = False) -> None:
        """Put together what each has learned since the last time; `everything`, or what is due."""
        self._exchanges += 1
        if everything or self._exchanges % RARELY == 0:
            rows = self._changed_rows()
        elif self._exchanges % SOMETIMES == 0:
            rows = [values.known for values, *_ in self._tables]
        else:
            rows = [values.frequent for values, *_ in self._tables]
        due = [(table, some) for tables, some in zip(self._tables, rows, strict=True) for table in tables]
        sizes = [some.size * table.now.shape[1] for table, some in due]
        news = np.empty(sum(sizes), np.uint16)  # one message: many small ones would mostly wait
        parts = np.split(news, np.cumsum(sizes)[:-1])
        for (table, some), part in zip(due, parts, strict=True):
            exchange_kernels.write_news(table.now, table.former, some, part.reshape(-1, table.now.shape[1]))
        self._begin_all_reduce(torch.from_numpy(news).view(torch.bfloat16), dist.ReduceOp.SUM)()
        for (table, some), part in zip(due, parts, strict=True):
            exchange_kernels.take_news(table.now, table.former, some, part.reshape(-1, table.now.shape[1]))

    def _changed_rows(self) -> list[np.ndarray]:
        """The rows of each parameter that any worker has changed."""
        ends = np.cumsum([len(values.now) for values, *_ in self._tables])
        changed = np.zeros(ends[-1], np.uint8)
        for (values, *_), answer in zip(self._tables, np.split(changed, ends[:-1]), strict=True):
            exchange_kernels.find_changed(values.now, values.former, answer)
        self._begin_all_reduce(torch.from_numpy(changed), dist.ReduceOp.MAX)()
        return [np.flatnonzero(answer) for answer in np.split(changed, ends[:-1])]

    def _begin_all_reduce(self, tensor: torch.Tensor, how: Any) -> Callable[[], None]:
        """Begin to replace a tensor by the sum (or whatever) of all workers'; what is returned waits for the end."""
        if not tensor.numel():
            return lambda: None
        with _all_alive():
            work = dist.all_reduce(tensor, how, async_op=True)
        # a ring: each worker sends all but its own share twice
        self.bytes_sent += 2 * tensor.nbytes * (self.size - 1) // self.size

        def wait() -> None:
            with _all_alive():
                work.wait()

        return wait
