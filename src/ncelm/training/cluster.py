"""Checks of a cluster before training: `ncelm doctor --distributed`; and the cost model of distributed training."""

import os
import platform
import socket
import statistics
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ncelm import __version__
from ncelm.distributed import network
from ncelm.distributed.collective import Collective
from ncelm.distributed.row_exchange import ROUND_EXPONENT
from ncelm.errors import NcelmError
from ncelm.text.store import TokenStore
from ncelm.training.config import TrainConfig
from ncelm.training.setup import sync_words

CLOCK_TOLERANCE = 2.0  # seconds; file systems and logs of machines with other clocks are confusing
PROBE_BYTES = 4 << 20  # to each other worker, to measure the bandwidth
SENT_ROWS = 0.3  # fraction of the rows of both tables in an exchange of two workers, each way (docs/scale.md)
PACKING = 0.3e9  # bytes/s at which one thread packs or applies deltas
PEER_SECONDS = 0.5e-3  # of an exchange, for each other worker: calls and messages, whatever their size


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    ok: bool
    text: str  # what was found; if it is a problem, with the remedy


@dataclass(frozen=True)
class CostModel:
    """The time of a synchronisation interval: training, packing, and two messages (docs/scale.md)."""

    words_per_second: float  # of one machine
    vocabulary_size: int
    dim: int
    bandwidth: float  # bytes/s that a worker sends, as measured
    latency: float  # seconds of a small collective
    sent_rows: float = SENT_ROWS
    packing: float = PACKING
    peer_seconds: float = PEER_SECONDS

    def message_bytes(self, workers: int) -> float:
        """Return the size of all deltas of an exchange: rows of both tables and biases, with index, scale and growth.

        N workers examine (2/N)^1.6 of the rows that two examine, in an interval of (2/N)^1.2 of the words.
        """
        return self.sent_rows * (2 / workers) ** ROUND_EXPONENT * self.vocabulary_size * (2 * (self.dim / 2 + 12) + 13)

    def exchange_seconds(self, workers: int) -> float:
        """Return the predicted seconds of an exchange of `workers` machines."""
        message = self.message_bytes(workers)
        sent = 2 * message * (workers - 1) / workers
        fixed = 4 * self.latency + (workers - 1) * self.peer_seconds
        return fixed + sent / self.bandwidth + 2 * message / self.packing

    def speed_up(self, workers: int, tokens: int) -> float:
        """Return the predicted words/s of `workers` machines, relative to one."""
        words = 1.5 * sync_words(tokens, workers)  # the mean interval: it grows when the learning rate decays
        training = words / (workers * self.words_per_second)
        return words / (training + self.exchange_seconds(workers)) / self.words_per_second


def check_cluster(
    group: Collective, store: TokenStore | None, out: Path | None, config: TrainConfig | None, words_per_second: float
) -> Iterator[Finding]:
    """Yield the result of each check, the same on all workers.

    Args:
        group: all workers.
        store: token store, or None.
        out: a directory that all machines should share, or None.
        config: configuration of the training whose speed is predicted, or None.
        words_per_second: throughput of this worker with it; 0 for none.
    """
    hosts = group.gather(socket.gethostname())
    several = len(set(group.gather(",".join(sorted(network.addresses()))))) > 1
    places = ", ".join(f"{rank}: {host}" for rank, host in enumerate(hosts))
    yield Finding("workers", True, f"{group.size} ({places})")
    yield _name_resolution(group, hosts, several)
    interfaces = group.gather(os.environ.get("GLOO_SOCKET_IFNAME", "that of the host name"))
    yield Finding("network interface", True, ", ".join(dict.fromkeys(interfaces)))
    yield _equal(group, "versions", f"ncelm {__version__}, Python {platform.python_version()}", "install the same ones")
    yield _clock(group)
    if store is not None:
        yield _equal(group, "token store", store.fingerprint[:16], "copy the store to all machines, or share its disk")
    if out is not None:
        yield _shared(group, out)
    latency, bandwidth = _measure(group)
    yield Finding("latency", True, f"{1e3 * latency:.2f} ms for a small collective")
    yield Finding("bandwidth", True, f"{bandwidth / 1e6:,.0f} MB/s sent by each worker")
    if store is not None and config is not None and words_per_second:
        slowest = min(map(float, group.gather(repr(words_per_second))))
        model = CostModel(slowest, len(store.vocabulary), config.model.dim, bandwidth, latency)
        speed_up = model.speed_up(group.size, store.split("train").tokens)
        advice = "" if speed_up > 1 else ": one machine is faster; use fewer machines or a faster network"
        text = f"{speed_up:.1f} times the {slowest:,.0f} words/s of one worker, by the cost model{advice}"
        yield Finding("predicted speed-up", speed_up > 1, text)


def _name_resolution(group: Collective, hosts: list[str], several: bool) -> Finding:
    found = group.gather(network.host_address() or "")
    for rank, address in enumerate(found):
        if not address:
            remedy = "add it to /etc/hosts or to the name server"
            return Finding("name resolution", False, f"{hosts[rank]} does not resolve on worker {rank}: {remedy}")
        if several and network.is_local(address):
            remedy = (
                "ncelm chooses the network interface itself; torchrun needs --local-addr with the address that other "
                f"machines use, or /etc/hosts without the line {address}"
            )
            return Finding("name resolution", False, f"{hosts[rank]} resolves to {address} on worker {rank}: {remedy}")
    return Finding("name resolution", True, ", ".join(dict.fromkeys(found)))


def _equal(group: Collective, name: str, value: str, remedy: str) -> Finding:
    values = group.gather(value)
    for rank, other in enumerate(values):
        if other != values[0]:
            return Finding(name, False, f"{other} on worker {rank}, and {values[0]} on worker 0: {remedy}")
    return Finding(name, True, values[0])


def _clock(group: Collective) -> Finding:
    group.gather("")  # all workers are here
    times = [float(text) for text in group.gather(repr(time.time()))]
    difference = max(times) - min(times)
    remedy = "" if difference < CLOCK_TOLERANCE else ": synchronise the clocks (chrony, systemd-timesyncd)"
    return Finding("clock", difference < CLOCK_TOLERANCE, f"{difference:.2f} s between workers{remedy}")


def _shared(group: Collective, out: Path) -> Finding:
    """Check that all workers see a file that rank 0 writes next to the run directory."""
    (name,) = {group.gather(f".ncelm-doctor-{uuid.uuid4().hex}")[0]}
    probe, problem = out.absolute().parent / name, ""
    if group.rank == 0:
        try:
            probe.touch()
        except OSError as error:
            problem = f"{probe.parent} is not writable on worker 0 ({error.strerror})"
    problem = group.gather(problem)[0]
    seen = group.gather("yes" if probe.exists() else "")
    if group.rank == 0:
        probe.unlink(missing_ok=True)
    remedy = "put the run directory on a disk that all machines share"
    if not problem and not all(seen):
        rank = seen.index("")
        problem = f"{probe.parent} of worker {rank} is not that of worker 0"
    return Finding("shared directory", not problem, f"{problem}: {remedy}" if problem else str(probe.parent))


def _measure(group: Collective) -> tuple[float, float]:
    """Return the seconds of a small collective and the bytes/s that each worker sends; the slowest worker counts."""
    small, times = np.zeros(1), []
    for _ in range(20):
        began = time.perf_counter()
        group.all_reduce(small)
        times.append(time.perf_counter() - began)
    text, rate = "x" * PROBE_BYTES, 0.0
    for _ in range(3):  # the first message is slower: connections and memory are new
        group.gather("")
        before, began = group.bytes_sent, time.perf_counter()
        group.gather(text)
        rate = max(rate, (group.bytes_sent - before) / (time.perf_counter() - began))
    latency = max(float(each) for each in group.gather(repr(statistics.median(times))))
    return latency, min(float(each) for each in group.gather(repr(rate)))


def check_group(group: Collective) -> None:
    """Raise NcelmError unless there are several workers."""
    if group.size == 1:
        raise NcelmError("`distributed` needs several workers: start it with torchrun, as `ncelm train`")
