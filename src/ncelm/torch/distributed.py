"""Training by several processes, on one machine or many, under torchrun.

Each worker has its own part of the text and its own copy of the model, and trains on its share of every minibatch; now
and then they put together what they have learned. A row of a table becomes what it was the last time, plus the changes
of all workers since, and so do Adagrad's sums of squares: as if one process had taken all their steps, only that each
step knew nothing of the last few of the others. Rows of frequent words, which all workers change all the time, are
exchanged often, all others rarely (as in HogBatch: Ji, Satish, Li & Dubey 2016). Changes are sent as bfloat16: of a
small step eight binary digits are plenty, and the rest of it goes with the next. Messages travel while the next words
are learned.
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
FREQUENT = 256  # so many words are in every exchange …
KNOWN = 2048  # … so many in every fourth, …
SOMETIMES = 4
RARELY = 8  # … and all that have changed in every eighth, or after so many words of text for each of the vocabulary:
WORDS_FOR_EACH = 1.6  # so that what is sent for a word of text does not grow with the vocabulary
GLANCE, UNSAID = 8, 1e-4  # a change is seen in so many numbers of a row, if it is more than this part of them


@dataclass
class _Table:
    """A parameter or its sums of squares, row by row, as it is and as it was when it was exchanged last."""

    now: np.ndarray  # (rows, width)
    frequent: np.ndarray  # rows that are exchanged every time
    known: np.ndarray  # … and sometimes
    former: np.ndarray = field(init=False)  # (rows, width)

    def __post_init__(self) -> None:
        self.former = self.now.copy()


@dataclass(frozen=True)
class _Message:
    """What was sent off, and may have come back with what the others have to say."""

    due: list[tuple[_Table, np.ndarray]]  # tables, and which of their rows it is about
    news: np.ndarray  # one's own, (numbers,) uint16: the bits of bfloat16
    come: np.ndarray  # the sum of everybody's, when it has come
    wait: Callable[[], None]


def _parts(numbers: np.ndarray, due: list[tuple[_Table, np.ndarray]]) -> Iterator[np.ndarray]:
    """A message table by table, each (rows, width)."""
    first = 0
    for table, rows in due:
        last = first + rows.size * table.now.shape[1]
        yield numbers[first:last].reshape(rows.size, table.now.shape[1])
        first = last


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

    late = 1

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.bytes_sent = rank, size, 0
        self._tables: list[list[_Table]] = []  # of each parameter: itself, and its sums of squares if there are any
        self._exchanges, self._rarely, self._numbers = 0, RARELY, np.zeros((2, 0), np.uint16)
        self._sent: _Message | None = None  # the last exchange, if it is still on its way
        self._changed: Callable[[], np.ndarray] | None = None  # the answer to which rows have changed

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

    def watch(self, values: dict[str, np.ndarray], sums: dict[str, np.ndarray], counts: np.ndarray, every: int) -> None:
        """These are the parameters and Adagrad's sums of squares that `exchange` is about, after `every` words."""
        self._rarely = max(RARELY, round(WORDS_FOR_EACH * counts.size / every))
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
        all_tables = [table for tables in self._tables for table in tables]
        # room for the largest message, mine and everybody's: fresh memory for each would cost as much as filling it
        self._numbers = np.zeros((2, sum(table.now.size for table in all_tables)), np.uint16)
        nothing = np.zeros(0, np.int64)
        for table in all_tables:  # compile before anything is timed
            news = np.zeros((0, table.now.shape[1]), np.uint16)
            exchange_kernels.write_news(table.now, table.former, nothing, news)
            exchange_kernels.take_news(table.now, table.former, nothing, news, news, False)
            exchange_kernels.find_changed(table.now[:0], table.former[:0], 0, np.float32(0.0), np.zeros(0, np.uint8))

    def exchange(self, everything: bool = False) -> None:
        """Put together what each has learned; `everything`, until all have the same, or what is due, in passing.

        What is due is only sent off, and what was sent the last time is taken in: nobody waits for a message that can
        travel while the next words are learned.
        """
        self._take_in()
        self._exchanges += 1
        if everything:
            self._send(self._changed_rows(self._begin_changed_rows(exactly=True)))
            self._take_in(settle=True)
            self._changed = None
            return
        if self._exchanges % self._rarely == 0 and self._changed:
            self._send(self._changed_rows(self._changed))
        elif self._exchanges % SOMETIMES == 0:
            self._send([values.known for values, *_ in self._tables])
        else:
            self._send([values.frequent for values, *_ in self._tables])
        # which rows the next exchange will have to be about is asked now: what changes meanwhile has time
        self._changed = self._begin_changed_rows() if (self._exchanges + 1) % self._rarely == 0 else None

    def _send(self, rows: list[np.ndarray]) -> None:
        """Begin to tell the others by how much these rows of each parameter, and their sums, have changed."""
        due = [(table, some) for tables, some in zip(self._tables, rows, strict=True) for table in tables]
        size = sum(some.size * table.now.shape[1] for table, some in due)
        news, come = self._numbers[:, :size]  # one message: many small ones would mostly wait
        for (table, some), part in zip(due, _parts(news, due), strict=True):
            exchange_kernels.write_news(table.now, table.former, some, part)
        come[:] = news
        wait = self._begin_all_reduce(torch.from_numpy(come).view(torch.bfloat16), dist.ReduceOp.SUM)
        self._sent = _Message(due, news, come, wait)

    def _take_in(self, settle: bool = False) -> None:
        """Wait for what was sent last, if anything was, and add the changes of the others.

        What rounding has left unsaid of one's own changes is kept for the next time, or forgotten to `settle`.
        """
        if self._sent:
            message, self._sent = self._sent, None
            message.wait()
            both = (_parts(numbers, message.due) for numbers in (message.news, message.come))
            for (table, some), mine, all_of_us in zip(message.due, *both, strict=True):
                exchange_kernels.take_news(table.now, table.former, some, mine, all_of_us, settle)

    def _begin_changed_rows(self, exactly: bool = False) -> Callable[[], np.ndarray]:
        """Begin to ask which rows any worker has changed, one parameter after another.

        Unless `exactly`, a glance at each will do: a row that was learned is another in every number, and what rounding
        has left unsaid of it can wait until there is more to say.
        """
        changed = np.zeros(sum(len(values.now) for values, *_ in self._tables), np.uint8)
        for (values, *_), answer in zip(self._tables, self._by_parameter(changed), strict=True):
            columns, tolerance = (values.now.shape[1], 0.0) if exactly else (GLANCE, UNSAID)
            exchange_kernels.find_changed(values.now, values.former, columns, np.float32(tolerance), answer)
        wait = self._begin_all_reduce(torch.from_numpy(changed), dist.ReduceOp.MAX)

        def arrived() -> np.ndarray:
            wait()
            return changed

        return arrived

    def _changed_rows(self, arrived: Callable[[], np.ndarray]) -> list[np.ndarray]:
        """The answer: rows of each parameter."""
        return [np.flatnonzero(answer) for answer in self._by_parameter(arrived())]

    def _by_parameter(self, rows: np.ndarray) -> list[np.ndarray]:
        """Numbers of all rows of all parameters, those of each parameter apart."""
        return np.split(rows, np.cumsum([len(values.now) for values, *_ in self._tables])[:-1])

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
