"""Collectives over `torch.distributed` (gloo) between the workers that torchrun started, on one machine or several."""

import atexit
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ncelm.arguments import check_path
from ncelm.distributed import network
from ncelm.distributed.collective import check_equal, errors_on_all
from ncelm.distributed.heartbeat import Heartbeat
from ncelm.distributed.row_exchange import RowExchange
from ncelm.errors import NcelmError
from ncelm.io import machine
from ncelm.text.store import TokenStore, open_part, part_of

# Of a collective: the other workers wait while rank 0 validates or writes a checkpoint. A worker that died closes its
# connections and is detected at once; one that is silent is detected by `Heartbeat`.
TIMEOUT = timedelta(minutes=30)
JOIN_SECONDS = 60.0  # at least, to connect to torchrun's key-value store

_heartbeat: Heartbeat | None = None  # of this process, as its default group of torch.distributed


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn PyTorch's error about a lost connection into an `NcelmError`."""
    try:
        yield
    except RuntimeError as error:  # raised by PyTorch for a closed connection
        if _heartbeat is not None and (message := _heartbeat.reason()):
            raise NcelmError(message) from error
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        # without gloo's source file and advice: "[…/pair.cc:553] Connection closed by peer [192.0.2.2]:63363. This …"
        reason = re.sub(r"^\[[^\]]*\] ", "", first_line).split(". ")[0]
        remedy = "with --max-restarts torchrun restarts all workers"
        raise NcelmError(f"the connection to another worker was lost ({reason[:200]}): {remedy}") from error


def _meet(peer_timeout: float) -> tuple[Store, int, int]:
    """Return torchrun's key-value store, the rank of this worker and the number of workers."""
    # with TORCH_DISABLE_SHARE_RDZV_TCP_STORE worker 0 has the store, waits for the others, and may start after them
    seconds = max(peer_timeout, JOIN_SECONDS)
    timeout = TIMEOUT if machine.rank() == 0 else timedelta(seconds=seconds / 2)  # PyTorch tries it twice
    try:
        store, rank, size = next(rendezvous("env://", timeout=timeout))
    except RuntimeError as error:
        # PyTorch 2.13: agents keep the address of the former worker 0 when another one takes its place
        raise NcelmError(
            f"torchrun's key-value store on {os.environ['MASTER_ADDR']} did not answer for {seconds:.0f} s: check the "
            "network to it; if this machine has left, start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all "
            "machines, and give --resume"
        ) from error
    store.set_timeout(TIMEOUT)
    return store, rank, size


def _unique_prefix(store: Store, rank: int, size: int) -> str:
    """Return a key prefix for this generation of workers, chosen by rank 0.

    torchrun keeps one key-value store across restarts. Workers publish their addresses in it. Without a prefix of their
    own, restarted workers would read the addresses of the previous generation and wait for them.
    """
    own_id, deadline = uuid.uuid4().hex, time.monotonic() + TIMEOUT.total_seconds()
    if rank == 0:
        store.set("ncelm/leader", own_id)
        members = [store.get(f"ncelm/{own_id}/{other}").decode() for other in range(1, size)]  # waits for each
        store.set(f"ncelm/{own_id}/members", " ".join(members))
        return own_id
    while time.monotonic() < deadline:
        leader = store.get("ncelm/leader").decode()  # may be of the previous generation
        store.set(f"ncelm/{leader}/{rank}", own_id)
        try:
            store.wait([f"ncelm/{leader}/members"], timedelta(seconds=1))
        except dist.DistStoreError:
            continue
        if own_id in store.get(f"ncelm/{leader}/members").decode().split():
            return leader
        time.sleep(0.1)
    raise NcelmError(f"worker 0 did not join within {TIMEOUT}: check that torchrun was started on its machine too")


def _choose_interface(store: Store, rank: int, size: int) -> None:
    """Set the network interface of gloo if workers are on several machines and the user has not set it.

    gloo listens on the address that the host name resolves to. On Debian this is 127.0.1.1, which other machines cannot
    connect to.
    """
    own = network.addresses()
    store.set(f"addresses/{rank}", json.dumps(sorted(own)))
    everywhere = [json.loads(store.get(f"addresses/{other}")) for other in range(size)]  # waits for each
    peers = [address for each in everywhere if each != sorted(own) for address in each]
    if peers and "GLOO_SOCKET_IFNAME" not in os.environ:
        interface = network.interface_towards(peers)
        if interface is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = interface


class ProcessGroup:
    """The collective of the workers that torchrun started. See `ncelm.distributed.collective.Collective`."""

    reduce_interval, reduce_delay = 8, 1

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.bytes_sent = rank, size, 0
        self._exchange: RowExchange | None = None

    @classmethod
    def join(cls, peer_timeout: float) -> Self:
        """Return the group of all workers, after all have joined. The environment names the meeting point.

        The first call sets the time after which a silent worker ends the group, in seconds.
        """
        global _heartbeat
        if not dist.is_initialized():
            with _one_line_errors():
                store, rank, size = _meet(peer_timeout)
                prefix = _unique_prefix(store, rank, size)
                own_store = PrefixStore(prefix, store)
                _choose_interface(own_store, rank, size)
                dist.init_process_group("gloo", store=own_store, rank=rank, world_size=size, timeout=TIMEOUT)
                atexit.register(dist.destroy_process_group)
                hosts = cls(rank, size).gather(socket.gethostname())
                answer = timedelta(seconds=max(peer_timeout / 3, 1.0))
                host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
                watched = TCPStore(host, port, is_master=False, timeout=answer, wait_for_workers=False)
                _heartbeat = Heartbeat(watched, prefix, rank, hosts, peer_timeout)
                _heartbeat.start()
                atexit.register(_heartbeat.close)
                dist.barrier()  # all have set their counters
        return cls(dist.get_rank(), dist.get_world_size())

    def gather(self, text: str) -> list[str]:
        """Return the texts of all workers, by rank."""
        message = np.frombuffer(text.encode(), np.uint8)
        return [received.tobytes().decode() for received in self._all_to_all([message] * self.size)]

    def open_store(self, store: TokenStore | Path | str) -> TokenStore:
        """Return the store with this worker's part of the training split; the last `size` - 1 words may be unused."""
        with errors_on_all(self):
            if isinstance(store, TokenStore):
                own = part_of(store.split("train"), store.path, self.rank, self.size)
                return replace(store, splits=store.splits | {"train": own})
            opened, counts = open_part(check_path("store", store), self.rank, self.size)
        check_equal(self, {"token store": opened.fingerprint})
        total = self.all_reduce(counts)
        with errors_on_all(self):
            opened.check_counts(total)
        return opened

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """Return the sum over all workers, in float64."""
        return self.all_reduce_async(array)()

    def all_reduce_async(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        """Start an all-reduce; return a function that waits for its result."""
        result = np.array(array, np.float64)
        with _one_line_errors():
            work = dist.all_reduce(torch.from_numpy(result), async_op=True)
        # a ring all-reduce sends all but one part of the array twice
        self.bytes_sent += 2 * result.nbytes * (self.size - 1) // self.size

        def wait() -> np.ndarray:
            with _one_line_errors():
                work.wait()
            return result

        return wait

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        """Return the array of rank 0, in float64."""
        result = np.array(array, np.float64)
        with _one_line_errors():
            dist.broadcast(torch.from_numpy(result), 0)
        return result

    def broadcast_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        """Overwrite the arrays, in place, with those of rank 0."""
        for array in arrays.values():
            if array.size:
                with _one_line_errors():
                    dist.broadcast(torch.from_numpy(array), 0)
                self.bytes_sent += array.nbytes if self.rank == 0 else 0

    def register(
        self,
        parameters: dict[str, np.ndarray],
        optimizer_state: dict[str, dict[str, np.ndarray]],
        counts: np.ndarray,
        interval: int,
    ) -> None:
        """Set the arrays that `synchronize` works on. See `RowExchange` for the arguments."""
        self._exchange = RowExchange(parameters, optimizer_state, counts, interval, self.rank, self.size)

    def synchronize(self, full: bool = False) -> str | None:
        """Exchange row deltas; if `full`, make parameters byte-identical on all workers.

        Returns None, or on all workers the reason why nothing was exchanged: a number was not finite.
        """
        if self._exchange is None:
            raise ValueError("call register before synchronize")
        result = self._exchange.combine(self._all_to_all(self._exchange.pack(full)))
        sender = self._exchange.apply(self._all_to_all([result] * self.size), full)
        return None if sender is None else f"worker {sender} has parameters that are not finite"

    def _all_to_all(self, messages: list[np.ndarray]) -> list[np.ndarray]:
        """Send each worker its message, uint8 of any size; return the messages of all workers, by rank."""
        sizes = np.array([message.size for message in messages])
        received_sizes = np.empty_like(sizes)
        sent = np.concatenate(messages)
        with _one_line_errors():
            dist.all_to_all_single(torch.from_numpy(received_sizes), torch.from_numpy(sizes))
            received = np.empty(received_sizes.sum(), np.uint8)
            dist.all_to_all_single(
                torch.from_numpy(received), torch.from_numpy(sent), received_sizes.tolist(), sizes.tolist()
            )
        self.bytes_sent += sent.size - messages[self.rank].size + 8 * (self.size - 1)
        return np.split(received, np.cumsum(received_sizes)[:-1])
