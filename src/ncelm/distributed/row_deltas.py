"""Exchange of row deltas between workers: each sends how its parameters changed and adds the changes of all others.

Each worker trains its own copy of the parameters on its own part of the text. The deltas of all workers are added up.
The result is that of one process that takes all their steps, except that no step sees the most recent ones of the
other workers. To keep messages small:

- Rows of the most frequent words change in every synchronisation interval and are examined before every message. The
  other rows are examined in turn, as in HogBatch (Ji, Satish, Li & Dubey 2016).
- A row that changed by less than 1 % is not sent. Its change accumulates.
- Deltas are quantised to int8 with error feedback (`ncelm.kernels.exchange`).
- Adagrad's accumulator is sent as the growth of its row means. The other workers scale the row.

This module has no collectives: `RowDeltaExchange.pack` returns the bytes to all-gather, `RowDeltaExchange.apply` takes
the bytes that were gathered.
"""

import numpy as np

from ncelm.errors import NcelmError

FREQUENT_ROWS = 2048  # rows examined before every message
MIN_ROUND = 2  # messages in which all other rows are examined once; more if the vocabulary is large, because …
WORDS_PER_ROW = 0.8  # … the text trained on in one round has at least this many words per row
TOLERANCE = np.float32(0.01)  # relative change from which on a row is sent
EXAMINED_COLUMNS = 8  # numbers of a row that are compared
HASHED_WIDTH = 64  # hashed weights that form one row


class RowQueue:
    """Rows that are examined cyclically, some of them before each message."""

    def __init__(self, rows: np.ndarray, round_length: int) -> None:
        self.rows = rows.astype(np.int32)
        self.per_message = -(-rows.size // round_length)
        self.start = 0


class _Message:
    """The part of a message about one parameter, as views of its memory."""

    def __init__(self, memory: np.ndarray, capacity: int, width: int) -> None:
        header = memory[: 3 * 4 * capacity].view(np.int32).reshape(3, capacity)
        self.rows = header[0]
        self.scales, self.growth = header[1:].view(np.float32)
        self.quantized = memory[3 * 4 * capacity :][: capacity * width].reshape(capacity, width)  # int8

    @staticmethod
    def nbytes(capacity: int, width: int) -> int:
        """Return the size in bytes, a multiple of 4."""
        return 3 * 4 * capacity + -(-capacity * width // 4) * 4


class RowDeltas:
    """One parameter and its Adagrad accumulator, with their state after the last exchange.

    Args:
        values: the parameter, (rows, width); a view.
        accumulator: of the same size, or None.
        queues: the rows to examine.
    """

    def __init__(self, values: np.ndarray, accumulator: np.ndarray | None, queues: list[RowQueue]) -> None:
        self.values = values
        self.synced = values.copy()  # initial values plus all deltas exchanged so far
        self.accumulator = None if accumulator is None else accumulator.reshape(values.shape)
        self.synced_means = np.zeros(len(values), np.float32) if self.accumulator is None else self.accumulator.mean(1)
        self.queues = [queue for queue in queues if queue.rows.size]
        self.capacity = self.max_capacity = sum(queue.per_message for queue in self.queues)  # rows in a message

    @property
    def nbytes(self) -> int:
        """Size of this parameter's part of a message."""
        return _Message.nbytes(self.capacity, self.values.shape[1])

    def pack(self, memory: np.ndarray) -> int:
        """Write the deltas of changed rows into the memory; return the number of rows."""
        from ncelm.kernels import exchange

        message, packed = _Message(memory, self.capacity, self.values.shape[1]), 0
        for queue in self.queues:
            rows = message.rows[packed : packed + queue.per_message]
            queue.start, found = exchange.select_changed_rows(
                self.values, self.synced, queue.rows, queue.start, queue.per_message, EXAMINED_COLUMNS, TOLERANCE, rows
            )
            packed += found
        rows = message.rows[:packed]
        exchange.quantize_deltas(self.values, self.synced, rows, message.scales, message.quantized)
        if self.accumulator is not None:
            exchange.accumulator_growth(self.accumulator, self.synced_means, rows, message.growth)
        return packed

    def apply(self, memory: np.ndarray, packed: int) -> None:
        """Add the deltas that another worker packed."""
        from ncelm.kernels import exchange

        message = _Message(memory, self.capacity, self.values.shape[1])
        rows = message.rows[:packed]
        exchange.apply_deltas(self.values, self.synced, rows, message.scales, message.quantized)
        if self.accumulator is not None:
            exchange.apply_growth(self.accumulator, self.synced_means, rows, message.growth)

    # -- full synchronisation -----------------------------------------------------------------------------------------

    def residual(self) -> np.ndarray:
        """Return the change that has not been exchanged yet, (rows, width)."""
        return self.values - self.synced

    def residual_growth(self) -> np.ndarray:
        """Return the growth of the accumulator's row means that has not been exchanged yet, (rows,), or (0,)."""
        return np.zeros(0, np.float32) if self.accumulator is None else self.accumulator.mean(1) - self.synced_means

    def add_residuals(self, residual: np.ndarray, growth_elsewhere: np.ndarray) -> None:
        """Set the parameter from the residuals of all workers, and let the accumulator grow by those of the others."""
        from ncelm.kernels import exchange

        np.add(self.synced, residual, out=self.values)
        if self.accumulator is not None:
            rows = np.arange(len(growth_elsewhere), dtype=np.int32)
            exchange.apply_growth(self.accumulator, self.synced_means, rows, growth_elsewhere)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the parameter and its accumulator, if it has one; not copies."""
        return {"values": self.values} | ({} if self.accumulator is None else {"accumulator": self.accumulator})

    def mark_synced(self) -> None:
        """Record that all workers have the current values."""
        self.synced[:] = self.values
        if self.accumulator is not None:
            self.synced_means[:] = self.accumulator.mean(1)


class RowDeltaExchange:
    """All parameters of a model, packed into messages of the same size on all workers.

    Args:
        parameters: parameters by name; updated in place.
        optimizer_state: {} (SGD) or {"accumulator": {parameter name: array}} (Adagrad); updated in place.
        counts: frequency of each word in the training text, (V,).
        interval: words of text, of all workers together, between two messages (the synchronisation interval).
        workers: number of workers.
    """

    def __init__(
        self,
        parameters: dict[str, np.ndarray],
        optimizer_state: dict[str, dict[str, np.ndarray]],
        counts: np.ndarray,
        interval: int,
        workers: int,
    ) -> None:
        for name in optimizer_state.keys() - {"accumulator"}:
            raise NcelmError(
                f"several workers cannot exchange the optimizer's {name}: set `optimizer` to adagrad or sgd"
            )
        accumulators = optimizer_state.get("accumulator", {})
        round_length = max(MIN_ROUND, round(WORDS_PER_ROW * counts.size / interval))
        by_frequency = np.argsort(-counts, kind="stable")
        self.tables = [
            RowDeltas(*_rows(name, values, accumulators.get(name), by_frequency, round_length))
            for name, values in parameters.items()
        ]
        largest = self.message_nbytes  # the capacity never exceeds the initial one
        self._message, self._gathered = np.zeros(largest, np.uint8), np.zeros(workers * largest, np.uint8)
        for table in self.tables:  # compile now: no row has changed yet
            table.apply(self._message, table.pack(self._message))

    @property
    def message_nbytes(self) -> int:
        """Bytes of the next message, the same on all workers."""
        return sum(self._part_sizes)

    @property
    def _part_sizes(self) -> list[int]:
        """Bytes of the row counts, (tables,) int32, and of each parameter's part."""
        return [4 * len(self.tables), *(table.nbytes for table in self.tables)]

    def _parts(self, message: np.ndarray) -> list[np.ndarray]:
        return np.split(message, np.cumsum(self._part_sizes))[:-1]

    def pack(self) -> np.ndarray:
        """Return this worker's message, (message_nbytes,) uint8; valid until the next call."""
        counts, *parts = self._parts(self._message)
        for i, (table, part) in enumerate(zip(self.tables, parts, strict=True)):
            counts.view(np.int32)[i] = table.pack(part)
        return self._message[: self.message_nbytes]

    def gathered(self) -> np.ndarray:
        """Return memory for the messages of all workers, in the order of ranks, (workers · message_nbytes,) uint8."""
        workers = self._gathered.size // self._message.size
        return self._gathered[: workers * self.message_nbytes]

    def apply(self, gathered: np.ndarray, rank: int) -> None:
        """Add the deltas of all messages but this worker's own, and set the capacity of the next message.

        All-gather needs messages of equal size: the next ones have room for the most rows that a worker packed this
        time, and for a quarter more.
        """
        most_packed = np.zeros(len(self.tables), np.int64)
        for sender, message in enumerate(gathered.reshape(-1, self.message_nbytes)):
            counts, *parts = self._parts(message)
            packed = counts.view(np.int32)
            most_packed = np.maximum(most_packed, packed)
            if sender != rank:
                for table, part, n in zip(self.tables, parts, packed, strict=True):
                    table.apply(part, n)
        for table, n in zip(self.tables, most_packed.tolist(), strict=True):
            table.capacity = min(n + n // 4 + 16, table.max_capacity)


def _rows(
    name: str, values: np.ndarray, accumulator: np.ndarray | None, by_frequency: np.ndarray, round_length: int
) -> tuple[np.ndarray, np.ndarray | None, list[RowQueue]]:
    """Return the parameter as (rows, width), its accumulator and the queues of its rows."""
    if name in ("target_vectors", "biases", "context_vectors"):
        rows = values.reshape(len(values), -1)
        others = np.arange(by_frequency.size, len(values))  # the out-of-sentence word is in every sentence
        frequent = np.concatenate([others, by_frequency[:FREQUENT_ROWS]])
        queues = [RowQueue(frequent, 1), RowQueue(by_frequency[FREQUENT_ROWS:], round_length)]
    elif name == "weights":  # hashed features: their frequencies are not known
        rows = values.reshape(-1, HASHED_WIDTH if values.size % HASHED_WIDTH == 0 else 1)
        queues = [RowQueue(np.arange(len(rows)), round_length)]
    else:  # matrices and layers: every example changes them
        rows = values.reshape(-1, values.shape[-1])
        queues = [RowQueue(np.arange(len(rows)), 1)]
    return rows, accumulator, queues
