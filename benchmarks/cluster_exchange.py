"""The exchange of row deltas with real messages and without training, the fit of the cost model, and predictions.

Started by cluster.py. Each worker changes rows as training does: between two exchanges it reads its part of the
synchronisation interval, words and noise samples are drawn from Zipf's law, and their rows change by random amounts.

There are more workers than cores. Packing, combining and applying are therefore measured in CPU seconds. The links are
slowed down to the fraction f = cores / workers of their rate, and the times of messages are multiplied by f.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from cluster_hosts import Cluster
from cluster_jobs import PORT, Progress
from common import markdown_table
from ncelm.distributed import collective
from ncelm.distributed.process_group import ProcessGroup
from ncelm.distributed.row_exchange import ROUND_EXPONENT, RowExchange
from ncelm.io.machine import available_cores
from ncelm.training.cluster import PACKING, PEER_SECONDS, SENT_ROWS, CostModel
from ncelm.training.setup import sync_words

MACHINES = (2, 4, 8, 16, 32, 64)
NETWORKS = {"1 Gbit/s": 0.125e9, "10 Gbit/s": 1.25e9, "100 Gbit/s": 12.5e9}  # bytes/s
TEXTS = {"10⁹": 10**9, "10¹⁰": 10**10, "10¹¹": 10**11}  # words
NOISE_SAMPLES = 10
CHANGE = 0.05  # relative change of a row; from 0.005 on it is sent
LIMIT = 600.0  # seconds for one number of workers


# -- a worker ----------------------------------------------------------------------------------------------------------


class Stopwatch:
    """Seconds and bytes of the parts of an exchange."""

    def __init__(self) -> None:
        self.computing, self.messages, self.size = 0.0, 0.0, 0

    def reset(self) -> dict[str, float]:
        """Return what was measured since the last call."""
        found = {"computing": self.computing, "messages": self.messages, "size": float(self.size)}
        self.__init__()  # type: ignore[misc]
        return found

    def time_computing(self, kind: type, name: str) -> None:
        """Add the CPU seconds of a method."""
        method: Callable[..., Any] = getattr(kind, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time()
            result = method(*arguments, **options)
            self.computing += time.thread_time() - began
            if name == "pack":
                self.size += sum(message.size for message in result)
            return result

        setattr(kind, name, timed)

    def time_messages(self) -> None:
        """Add the seconds of sending and receiving, from the moment when all workers are ready."""
        method = ProcessGroup._all_to_all

        def timed(group: ProcessGroup, messages: list[np.ndarray]) -> list[np.ndarray]:
            group.all_reduce(np.zeros(1))
            began = time.perf_counter()
            result = method(group, messages)
            self.messages += time.perf_counter() - began
            return result

        ProcessGroup._all_to_all = timed  # type: ignore[assignment,method-assign]


def change_rows(
    parameters: dict[str, np.ndarray], accumulators: dict[str, np.ndarray], words: float, seed: int
) -> None:
    """Change, in place, the rows of a number of words of text that follow Zipf's law."""
    random = np.random.default_rng(seed)
    size = len(parameters["target_vectors"])
    frequency = 1.0 / np.arange(1, size + 1)
    frequency /= frequency.sum()
    for name, values in parameters.items():
        drawn = words * (1 if name == "context_vectors" else 1 + NOISE_SAMPLES)
        rows = np.flatnonzero(random.random(size) < -np.expm1(drawn * np.log1p(-frequency)))
        for part in np.array_split(rows, rows.size // 4096 + 1):  # there may be 32 workers on this machine
            scale = np.float32(CHANGE) * np.abs(values[part]).max(axis=1, initial=0.0, keepdims=True)
            values[part] += scale * random.standard_normal((part.size, values.shape[1]), np.float32)
            accumulators[name][part] += np.float32(0.01)


def work(vocabulary: int, dim: int, tokens: int, exchanges: int) -> None:
    """Take part in exchanges; rank 0 prints what was measured as JSON."""
    group, watch = collective.current(LIMIT), Stopwatch()
    random = np.random.default_rng(0)
    shapes = {"target_vectors": (vocabulary, dim), "context_vectors": (vocabulary + 1, dim), "biases": (vocabulary, 1)}
    parameters = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    accumulators = {name: np.ones_like(values) for name, values in parameters.items()}
    counts = np.maximum(tokens / np.arange(1, vocabulary + 1) / np.log(vocabulary), 1).astype(np.int64)
    interval = sync_words(tokens, group.size)
    group.register(parameters, {"accumulator": accumulators}, counts, interval)
    for name in ("pack", "combine", "apply"):
        watch.time_computing(RowExchange, name)
    latencies = []
    for _ in range(20):
        began = time.perf_counter()
        group.all_reduce(np.zeros(1))
        latencies.append(time.perf_counter() - began)
    watch.time_messages()
    words = interval / group.size
    # rare rows are examined once in about `size` exchanges, and have changed in all of these intervals by then
    change_rows(parameters, accumulators, words * group.size, group.rank)
    measured = []
    for exchange in range(exchanges + 1):
        change_rows(parameters, accumulators, words, 1000 * (exchange + 1) + group.rank)
        watch.reset()
        before = group.bytes_sent
        if problem := group.synchronize():
            raise SystemExit(problem)
        measured.append(watch.reset() | {"sent": float(group.bytes_sent - before)})
    mine = {name: statistics.median(one[name] for one in measured[1:]) for name in measured[0]}  # the first warms up
    mine["latency"] = statistics.median(latencies)
    workers = [json.loads(text) for text in group.gather(json.dumps(mine))]
    if group.rank == 0:
        mean = {name: statistics.fmean(each[name] for each in workers) for name in mine}
        print(json.dumps(mean | {"messages": max(each["messages"] for each in workers)}))


# -- measurements ------------------------------------------------------------------------------------------------------


def measure(workers: int, rate: float, settings: list[int], folder: Path) -> dict[str, float]:
    """Return the times of an exchange of one machine, in seconds; `rate` of a link is in bit/s."""
    fraction = min(1.0, available_cores() / workers)
    with Cluster(workers, f"{round(fraction * rate)}bit") as cluster:
        for rank in range(workers):
            names = {"RANK": rank, "WORLD_SIZE": workers, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": PORT}
            environment = {name: str(value) for name, value in names.items()}
            environment |= {"MASTER_ADDR": cluster.name(0), "TORCHELASTIC_RUN_ID": "exchange"}
            command = [sys.executable, __file__, *settings]
            cluster.launch(rank, command, folder / f"{workers}-{rank}.log", environment)
        deadline = time.monotonic() + LIMIT
        while any(process.poll() is None for process in cluster.processes):
            if time.monotonic() > deadline or any(process.poll() for process in cluster.processes):
                break
            time.sleep(0.1)
        logs = [(folder / f"{workers}-{rank}.log").read_text() for rank in range(workers)]
        if any(process.poll() != 0 for process in cluster.processes):
            lines = [text.strip().splitlines()[-1] for text in logs if text.strip()]
            raise SystemExit(f"the exchange of {workers} workers failed: {lines[0] if lines else 'time limit'}")
    found: dict[str, float] = json.loads(logs[0].splitlines()[-1])
    found["messages"] *= fraction
    found["latency"] *= fraction
    return found | {"workers": workers, "fraction": fraction, "seconds": found["computing"] + found["messages"]}


def fit(rows: list[dict[str, float]], rate: float, vocabulary: int, dim: int) -> dict[str, float]:
    """Return the constants of the cost model by least squares of relative errors; `rate` of a link is in bit/s.

    "link" is the fraction of the rate that messages reach; the others are those of `CostModel`.
    """
    all_rows = CostModel(0.0, vocabulary, dim, 0.0, 0.0, sent_rows=1.0)
    computing, messages, size, sent, peers, latency = (
        np.array([row[name] for row in rows])
        for name in ("computing", "messages", "size", "sent", "workers", "latency")
    )
    peers = peers - 1.0
    packing, for_calls = _nonnegative_fit([2 * size, peers], computing)
    link, for_messages = _nonnegative_fit([sent / (rate / 8), peers], messages - 4 * latency)
    return {
        "sent_rows": statistics.fmean(row["size"] / all_rows.message_bytes(int(row["workers"])) for row in rows),
        "packing": 1.0 / packing,
        "peer_seconds": for_calls + for_messages,
        "link": 1.0 / link,
    }


def _nonnegative_fit(columns: list[np.ndarray], values: np.ndarray) -> tuple[float, float]:
    """Return the coefficients, at least 0, of a sum of two columns with the smallest relative errors."""
    (first, second), _ = nnls(np.stack(columns, 1) / values[:, None], np.ones(len(values)))
    return float(first), float(second)


def cost_model(
    speed: float, vocabulary: int, dim: int, rate: float, latency: float, constants: dict[str, float]
) -> CostModel:
    """Return the model with these constants; `rate` of a link is in bytes/s."""
    others = {name: value for name, value in constants.items() if name != "link"}
    return CostModel(speed, vocabulary, dim, rate * constants["link"], latency, **others)


def task(
    workers: list[int], rate: float, vocabulary: int, dim: int, tokens: int, exchanges: int, folder: Path, speed: float
) -> dict[str, Any]:
    """Measure exchanges and fit the cost model; `speed` is the words/s of one machine in predictions."""
    progress, rows = Progress(len(workers)), []
    for number in workers:
        progress.start(f"exchange of {number} workers")
        rows.append(measure(number, rate, [vocabulary, dim, tokens, exchanges], folder))
    constants = fit(rows, rate, vocabulary, dim)
    in_code = {"sent_rows": SENT_ROWS, "packing": PACKING, "peer_seconds": PEER_SECONDS, "link": constants["link"]}
    for row in rows:
        for name, chosen in (("fitted", constants), ("predicted", in_code)):
            model = cost_model(speed, vocabulary, dim, rate / 8, row["latency"], chosen)
            row[name] = model.exchange_seconds(int(row["workers"]))
    settings = {"rate": rate, "vocabulary": vocabulary, "dim": dim, "tokens": tokens, "words_per_second": speed}
    return {"settings": settings, "rows": rows, "constants": constants}


# -- report ------------------------------------------------------------------------------------------------------------


def report(result: dict[str, Any]) -> list[str]:
    """Return the section of the report: measurements, the error of the model, and predictions."""
    settings, rows, constants = result["settings"], result["rows"], result["constants"]
    errors = {name: [row[name] / row["seconds"] - 1 for row in rows] for name in ("fitted", "predicted")}
    worst = {name: max(values, key=abs) for name, values in errors.items()}
    header = ["workers", "all deltas M, MB", "sent by a worker, MB", "pack, combine, apply, ms", "messages, ms"]
    header += ["together, ms", "model, ms", "error", "model with the constants of the code, ms", "error"]
    lines = [
        f"V = {settings['vocabulary']:,}, d = {settings['dim']}, links of {settings['rate'] / 1e9:g} Gbit/s, the "
        f"synchronisation interval of a text of {settings['tokens']:.0e} words. Real messages, no training: between "
        "two exchanges each worker changes the rows of its part of the interval, words and "
        f"{NOISE_SAMPLES} noise samples for each drawn from Zipf's law. All rows change enough to be sent; in "
        "training some do not. There are more workers than cores: computing is in CPU seconds, links have the "
        "fraction f = cores / workers of their rate, and the times of messages are multiplied by f. "
        "Means over the workers, medians over the exchanges.",
        "",
        *markdown_table(
            header,
            [
                [
                    f"{row['workers']:.0f}",
                    f"{row['size'] / 1e6:.2f}",
                    f"{row['sent'] / 1e6:.2f}",
                    *(f"{1e3 * row[name]:.1f}" for name in ("computing", "messages", "seconds", "fitted")),
                    f"{100 * (row['fitted'] / row['seconds'] - 1):+.0f} %",
                    f"{1e3 * row['predicted']:.1f}",
                    f"{100 * (row['predicted'] / row['seconds'] - 1):+.0f} %",
                ]
                for row in rows
            ],
        ),
        "",
        f"The fitted constants are {constants['sent_rows']:.2f} of all rows in an exchange of two workers, and "
        f"(2/N)^{ROUND_EXPONENT:g} of it with N (SENT_ROWS, in the code {SENT_ROWS:g}), "
        f"{constants['packing'] / 1e9:.2f} GB/s for packing and applying (PACKING, in the code {PACKING / 1e9:g}), "
        f"{1e3 * constants['peer_seconds']:.2f} ms for each other worker (PEER_SECONDS, in the code "
        f"{1e3 * PEER_SECONDS:g} ms; more than on machines of their own, because the workers share cores), and "
        f"{constants['link']:.2f} of the rate of a link. The largest error of the model is "
        f"{100 * worst['fitted']:+.0f} %, with the constants of the code {100 * worst['predicted']:+.0f} %.",
        "",
        f"Predictions of the fitted model for machines that read {settings['words_per_second']:,.0f} words/s each, "
        f"V = {settings['vocabulary']:,}, d = {settings['dim']}. A cell has the millions of words/s, the speed-up and "
        "the hours of an epoch. Waiting for slower machines is not included.",
        "",
    ]
    one, latency = settings["words_per_second"], statistics.median(row["latency"] for row in rows)
    for name, words in TEXTS.items():
        cells = []
        for machines in MACHINES:
            row = [str(machines)]
            for bandwidth in NETWORKS.values():
                model = cost_model(one, settings["vocabulary"], settings["dim"], bandwidth, latency, constants)
                speed_up = model.speed_up(machines, words)
                row.append(f"{speed_up * one / 1e6:.2f}, {speed_up:.1f} ×, {words / one / speed_up / 3600:.1f} h")
            cells.append(row)
        title = f"{name} words, machines"
        lines += [*markdown_table([title, *NETWORKS], cells), ""]
    return lines


def figures(result: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of the history."""
    return {f"exchange of {row['workers']:.0f} workers, seconds": row["seconds"] for row in result["rows"]}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    vocabulary_size, dimension, text_words, number_of_exchanges = map(int, sys.argv[1:])
    work(vocabulary_size, dimension, text_words, number_of_exchanges)
