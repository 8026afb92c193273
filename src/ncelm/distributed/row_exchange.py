"""Exchange of row deltas between workers: each row has an owner, which combines its deltas and returns the result.

Each worker trains its own copy of the parameters on its own part of the text. The owner of row r is worker r modulo N.
An exchange has two steps:

1. Each worker sends each owner the deltas of its rows: how they changed since the last exchange (`pack`).
2. Each owner combines them (`combine`) and sends the result to all workers, which replace their own deltas by it
   (`apply`).

A worker sends at most 2 · M bytes, for any number of workers, where M is the size of all deltas. To keep M small:

- Rows of the most frequent words change in every synchronisation interval and are examined in every exchange. The other
  rows are examined in turn, as in HogBatch (Ji, Satish, Li & Dubey 2016).
- A row that changed by less than 0.5 % is not sent. Its change accumulates.
- Deltas are quantised to int4 with error feedback, in both directions (`ncelm.kernels.exchange`).
- Of Adagrad's accumulator the growth of its row means is sent. Workers divide it among the columns by the squares of
  the combined deltas.

**The combined step.** If workers change different rows, their deltas add up, as if one process had taken all steps. If
all workers change a row from the same start, each has taken the steps of a young accumulator: the sum would be too
long by up to the factor N, and training would oscillate. The deltas of a row are therefore summed with the weights

    (m + g) / (m + G)

where m is the row mean of the accumulator after the last exchange, g its growth by this worker, and G its growth by all
workers. The weights are 1/N, a mean, for a row without a history, and approach 1, a sum, when the history is longer
than the interval. One process would divide by √(m + G) where a worker divides by √(m + g); the exponent 1 instead of ½
damps the step further in the first intervals. Without an accumulator (SGD) deltas are summed.

The sum D may still be too long, because all workers have moved a row towards the same minimum. The owner measures it.
If P is the last step of the row and s the part of the last sum that the workers agreed on, a quadratic loss has

    D = s − K P + noise,    K = Σ (s·P − D·P) / Σ ‖P‖²

where the sums are over the last exchanges. If K > 1, the sum would jump over the minimum, and if K > 2, training would
diverge. The step is D · min(1, L / K). The limit L would be 1 if K did not grow while it is measured, the faster the
more workers there are; it is ¾ for eight. K is proportional to the number of workers that have sent the row, and rows
of a single worker are not damped.

This module has no collectives: `ncelm.distributed.process_group` sends what its methods return.
"""

from dataclasses import dataclass

import numpy as np

from ncelm.errors import NcelmError

INTERVAL_EXPONENT = 1.2  # N workers have synchronisation intervals (2/N)^1.2 as long as two, …
FREQUENT_ROWS = 2048  # … and of these rows of two workers, examined in every exchange, as large a part
ROUND, ROUND_EXPONENT = 2, 1.6  # exchanges in which two workers examine the other rows once; N have (N/2)^1.6 as many
WORDS_PER_ROW = 0.8  # if the vocabulary is large, a round lasts until the text trained on has this many words per row
TOLERANCE = np.float32(0.005)  # relative change from which on a row is sent
LIMIT_WORKERS = 6.0  # the limit of K is 1 for so many workers or fewer, and for N of them this divided by N
EXAMINED_COLUMNS = 8  # numbers of a row that are compared
HASHED_WIDTH = 64  # hashed weights that form one row


def least_round(workers: int) -> int:
    """Return the smallest number of exchanges in which all rows are examined."""
    return round(ROUND * (workers / 2) ** ROUND_EXPONENT)


class RowQueue:
    """Rows of one owner that are examined cyclically, some of them before each message."""

    def __init__(self, rows: np.ndarray, round_length: int) -> None:
        self.rows = rows.astype(np.int32)
        self.per_message = -(-rows.size // round_length)
        self.start = 0


@dataclass(frozen=True)
class _Rows:
    """Rows of one parameter in a message, as views of its memory."""

    rows: np.ndarray  # (n,) int32
    scales: np.ndarray  # (n,) float32
    growth: np.ndarray  # (n,) float32
    quantized: np.ndarray  # (n, ⌈width / 2⌉) uint8: two numbers per byte

    @classmethod
    def of(cls, memory: np.ndarray, n: int, width: int) -> "_Rows":
        """Return the views of a part of a message."""
        header = memory[: 3 * 4 * n].view(np.int32).reshape(3, n)
        scales, growth = header[1:].view(np.float32)
        packed = -(-width // 2)
        return cls(header[0], scales, growth, memory[3 * 4 * n :][: n * packed].reshape(n, packed))

    @staticmethod
    def nbytes(n: int, width: int) -> int:
        """Return the size in bytes, a multiple of 4."""
        return 3 * 4 * n + -(-n * -(-width // 2) // 4) * 4


class Table:
    """One parameter and its Adagrad accumulator, with their state after the last exchange.

    Args:
        values: the parameter, (rows, width); a view.
        accumulator: of the same size, or None.
        queues: for each owner the rows to examine.
        rank: this worker, which owns the rows rank, rank + workers, …
    """

    def __init__(
        self, values: np.ndarray, accumulator: np.ndarray | None, queues: list[list[RowQueue]], rank: int
    ) -> None:
        self.values, self.rank, self.workers = values, rank, len(queues)
        self.width = values.shape[1]
        self.synced = values.copy()  # initial values plus all results so far, the same on all workers
        self.accumulator = None if accumulator is None else accumulator.reshape(values.shape)
        self.synced_means = np.zeros(len(values), np.float32) if self.accumulator is None else self.accumulator.mean(1)
        self.sent_means = self.synced_means.copy()
        self.queues = [[queue for queue in of_owner if queue.rows.size] for of_owner in queues]
        owned = len(range(rank, len(values), self.workers))
        self.sums = np.zeros((owned, self.width), np.float32)  # damped deltas; between exchanges, rounding
        self._growth, self._touched = np.full(owned, -1.0, np.float32), np.zeros(owned, np.int32)
        self._deltas, self._last_steps = np.zeros_like(self.sums), np.zeros_like(self.sums)
        self._squares, self._senders = np.zeros(owned, np.float32), np.zeros(owned, np.int32)
        self._measured = np.zeros((3, owned), np.float32)  # see `exchange.damp_deltas`
        self._limit = np.float32(min(1.0, LIMIT_WORKERS / self.workers))

    def changed_rows(self, owner: int, full: bool) -> np.ndarray:
        """Return the rows of an owner that have changed, (n,) int32: those examined this time, or all if `full`."""
        from ncelm.kernels import exchange

        columns, tolerance = (self.width, np.float32(0.0)) if full else (EXAMINED_COLUMNS, TOLERANCE)
        found = []
        for queue in self.queues[owner]:
            examined = queue.rows.size if full else queue.per_message
            rows = np.empty(examined, np.int32)
            queue.start, n = exchange.select_changed_rows(
                self.values, self.synced, queue.rows, queue.start, examined, columns, tolerance, rows
            )
            found.append(rows[:n])
        return np.concatenate(found) if found else np.zeros(0, np.int32)

    def pack(self, rows: np.ndarray, memory: np.ndarray) -> None:
        """Write the deltas of these rows into the memory."""
        from ncelm.kernels import exchange

        sent = _Rows.of(memory, rows.size, self.width)
        sent.rows[:] = rows
        sent.growth[:] = 0.0
        exchange.quantize_changes(self.values, self.synced, rows, sent.scales, sent.quantized)
        if self.accumulator is not None:
            exchange.accumulator_growth(self.accumulator, self.sent_means, rows, sent.growth)

    def combine(self, received: list[_Rows]) -> tuple[np.ndarray, int | None]:
        """Add up the deltas of all workers.

        Returns the rows that workers have sent, as indices of owned rows, and None; or the rank of a worker that sent a
        number that is not finite.
        """
        from ncelm.kernels import exchange

        self._growth[:] = -1.0
        found = 0
        for sender, message in enumerate(received):
            found = exchange.add_growth(
                message.rows,
                message.scales,
                message.growth,
                self.rank,
                self.workers,
                self._growth,
                self._touched,
                found,
            )
            if found < 0:
                return self._touched[:0], sender
        for message in received:
            exchange.add_deltas(
                message.rows,
                message.scales,
                message.growth,
                message.quantized,
                self.workers,
                self.synced_means,
                self._growth,
                self._deltas,
                self._squares,
                self._senders,
            )
        touched, last = self._touched[:found], self._last_steps
        exchange.damp_deltas(
            touched, self._deltas, self._squares, self._senders, last, *self._measured, self.sums, self._limit
        )
        return touched, None

    def write_result(self, own: np.ndarray, memory: np.ndarray) -> bool:
        """Write the combined deltas of owned rows into the memory; return whether all are finite."""
        from ncelm.kernels import exchange

        message = _Rows.of(memory, own.size, self.width)
        message.rows[:] = own * self.workers + self.rank
        message.growth[:] = self._growth[own]
        return bool(exchange.quantize_sums(self.sums, own, message.scales, message.quantized))

    def apply(self, result: _Rows) -> None:
        """Add rows of the result of an owner."""
        from ncelm.kernels import exchange

        exchange.apply_deltas(self.values, self.synced, result.rows, result.scales, result.quantized)
        if self.accumulator is not None:
            means = self.sent_means, self.synced_means
            exchange.apply_growth(self.accumulator, *means, result.rows, result.growth, result.quantized)

    def drop_rounding(self) -> None:
        """Make the parameter the same on all workers."""
        self.values[:] = self.synced
        self.sums[:] = 0.0


class RowExchange:
    """All parameters of a model, packed into messages.

    Args:
        parameters: parameters by name; updated in place.
        optimizer_state: {} (SGD) or {"accumulator": {parameter name: array}} (Adagrad); updated in place.
        counts: frequency of each word in the training text, (V,).
        interval: words of text, of all workers together, between two exchanges (the synchronisation interval).
        rank: this worker.
        workers: number of workers, N.
    """

    def __init__(
        self,
        parameters: dict[str, np.ndarray],
        optimizer_state: dict[str, dict[str, np.ndarray]],
        counts: np.ndarray,
        interval: int,
        rank: int,
        workers: int,
    ) -> None:
        for name in optimizer_state.keys() - {"accumulator"}:
            raise NcelmError(
                f"several workers cannot exchange the optimizer's {name}: set `optimizer` to adagrad or sgd"
            )
        accumulators = optimizer_state.get("accumulator", {})
        round_length = max(least_round(workers), round(WORDS_PER_ROW * counts.size / interval))
        by_frequency = np.argsort(-counts, kind="stable")
        frequent = round(FREQUENT_ROWS * (2 / workers) ** INTERVAL_EXPONENT)
        self.rank, self.workers = rank, workers
        self.tables = [
            Table(*_rows(name, values, accumulators.get(name), by_frequency, frequent, round_length, workers), rank)
            for name, values in parameters.items()
        ]
        # compile now: no row has changed yet, so that all messages are empty
        self.apply([self.combine(self.pack())] * workers)

    def pack(self, full: bool = False) -> list[np.ndarray]:
        """Return the message of this worker to each owner, uint8; if `full`, of all rows.

        A message has the number of rows of each table, and their deltas.
        """
        messages = []
        for owner in range(self.workers):
            rows = [table.changed_rows(owner, full) for table in self.tables]
            message, parts = self._message([each.size for each in rows])
            for table, changed, part in zip(self.tables, rows, parts, strict=True):
                table.pack(changed, part)
            messages.append(message)
        return messages

    def combine(self, received: list[np.ndarray]) -> np.ndarray:
        """Return the message of this owner to all workers, uint8, given the messages of all workers by rank.

        If a number is not finite, the message is −1 − the rank of the worker that sent it.
        """
        tables = [self._parts(message) for message in received]
        combined = [
            table.combine([_Rows.of(part, n, table.width) for part, n in (each[i] for each in tables)])
            for i, table in enumerate(self.tables)
        ]
        senders = [sender for _, sender in combined if sender is not None]
        message, parts = self._message([own.size for own, _ in combined])
        for table, (own, _), part in zip(self.tables, combined, parts, strict=True):
            if not senders and not table.write_result(own, part):
                senders.append(self.rank)
        return np.array([-1 - senders[0]], np.int32).view(np.uint8) if senders else message

    def apply(self, results: list[np.ndarray], full: bool = False) -> int | None:
        """Apply the messages of all owners; return None.

        If one of them reports a number that is not finite, nothing is applied, and the rank of its sender is returned.
        """
        for message in results:
            first = int(message[:4].view(np.int32)[0])
            if first < 0:
                return -1 - first
        for message in results:
            for table, (part, n) in zip(self.tables, self._parts(message), strict=True):
                table.apply(_Rows.of(part, n, table.width))
        if full:
            for table in self.tables:
                table.drop_rounding()
        return None

    def _message(self, numbers: list[int]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the memory of a message with these numbers of rows of each table, and the part of each table."""
        sizes = [_Rows.nbytes(n, table.width) for table, n in zip(self.tables, numbers, strict=True)]
        ends = np.cumsum([4 * len(self.tables), *sizes])
        message = np.zeros(ends[-1], np.uint8)
        message[: ends[0]].view(np.int32)[:] = numbers
        return message, np.split(message, ends[:-1])[1:]

    def _parts(self, message: np.ndarray) -> list[tuple[np.ndarray, int]]:
        """Return the part of each table of a message, and its number of rows."""
        numbers = message[: 4 * len(self.tables)].view(np.int32).tolist()
        sizes = [_Rows.nbytes(n, table.width) for table, n in zip(self.tables, numbers, strict=True)]
        ends = np.cumsum([4 * len(self.tables), *sizes])
        if min(numbers) < 0 or ends[-1] != message.size:
            raise NcelmError("a worker sent a message of an impossible size: start all workers with the same ncelm")
        return list(zip(np.split(message, ends[:-1])[1:], numbers, strict=True))


def _rows(
    name: str,
    values: np.ndarray,
    accumulator: np.ndarray | None,
    by_frequency: np.ndarray,
    frequent: int,
    round_length: int,
    workers: int,
) -> tuple[np.ndarray, np.ndarray | None, list[list[RowQueue]]]:
    """Return the parameter as (rows, width), its accumulator and the queues of the rows of each owner."""
    if name in ("target_vectors", "biases", "context_vectors"):
        rows = values.reshape(len(values), -1)
        others = np.arange(by_frequency.size, len(values))  # the out-of-sentence word is in every sentence
        queues = [(np.concatenate([others, by_frequency[:frequent]]), 1)]
        queues.append((by_frequency[frequent:], round_length))
    elif name == "weights":  # hashed features: their frequencies are not known
        rows = values.reshape(-1, HASHED_WIDTH if values.size % HASHED_WIDTH == 0 else 1)
        queues = [(np.arange(len(rows)), round_length)]
    else:  # matrices and layers: every example changes them
        rows = values.reshape(-1, values.shape[-1])
        queues = [(np.arange(len(rows)), 1)]
    owners = range(workers)
    return (
        rows,
        accumulator,
        [[RowQueue(each[each % workers == owner], length) for each, length in queues] for owner in owners],
    )
