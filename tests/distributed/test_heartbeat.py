"""ncelm.distributed.heartbeat with two workers in one process, and ncelm.distributed.network."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest

from ncelm.distributed import network
from ncelm.errors import NcelmError

pytest.importorskip("torch", reason="needs the extra `torch`")
from torch.distributed import TCPStore

from ncelm.distributed import heartbeat, process_group
from ncelm.distributed.heartbeat import Heartbeat


@pytest.fixture
def workers():
    """Return two heartbeats, of which none is started, and the list of their messages."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    messages, failed = [], threading.Event()

    def fail(message):
        messages.append(message)
        failed.set()

    def heartbeat(rank):
        store = TCPStore(
            "127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=1), wait_for_workers=False
        )
        return Heartbeat(store, "group", rank, ["first", "second"], 1.0, fail)

    both = [heartbeat(rank) for rank in range(2)]
    yield both, messages, failed
    for each in both:
        if each.is_alive:
            each.close()


def test_workers_that_answer_do_not_fail(workers):
    both, messages, failed = workers
    for each in both:
        each.start()
    assert not failed.wait(1.5)
    assert messages == []


def test_a_silent_worker_is_named(workers):
    both, messages, failed = workers
    both[1].store.set(both[1].keys[1], "0")  # it joined, and does not answer
    both[0].start()
    assert failed.wait(10)
    assert messages[0].startswith("worker 1 on second did not answer for 1 s: check it; with --max-restarts")


def test_the_others_learn_why_a_worker_has_ended_the_group(workers):
    both, messages, failed = workers
    both[1].store.set(both[1].keys[1], "0")
    both[0].start()
    assert both[1].reason() is None
    assert failed.wait(10)
    assert both[1].reason() == messages[0]


def test_a_worker_that_has_left_is_not_silent(workers):
    both, messages, failed = workers
    for each in both:
        each.start()
    both[1].close()
    assert not failed.wait(1.5)
    assert messages == []


def test_a_store_that_does_not_answer_is_named(workers):
    both, messages, failed = workers

    class Silent:
        host = "127.0.0.1"

        def set(self, key, value):
            if value != "0":
                raise RuntimeError("Connection reset by peer")

    both[0].store = Silent()
    both[0].start()
    assert failed.wait(10)
    assert messages[0].startswith("torchrun's key-value store on 127.0.0.1 did not answer for 1 s: check the network")
    time.sleep(0.1)
    assert len(messages) == 1


STORE_PROCESS = """
import sys
from torch.distributed import TCPStore
server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(server.port, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs SIGSTOP")
def test_a_store_whose_process_is_halted_is_named():
    """PyTorch's client then waits without a time limit, also in `reason` and `close`."""
    with subprocess.Popen(
        [sys.executable, "-c", STORE_PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            store = TCPStore("127.0.0.1", int(process.stdout.readline()), is_master=False, timeout=timedelta(seconds=1))
            messages, failed = [], threading.Event()

            def fail(message):
                messages.append(message)
                failed.set()

            beat = Heartbeat(store, "group", 0, ["first"], 3.0, fail)
            beat.start()
            assert not failed.wait(4.0)
            process.send_signal(signal.SIGSTOP)
            assert failed.wait(15)
            assert messages[0].startswith("torchrun's key-value store on 127.0.0.1 did not answer for 3 s")
            began = time.monotonic()
            assert beat.reason() is None
            beat.close()
            assert time.monotonic() - began < 20
        finally:
            process.kill()


def test_a_process_ends_even_if_no_other_can_be_started(monkeypatch, capsys):
    def fail():
        raise OSError("cannot allocate memory")

    codes = []
    monkeypatch.setattr(heartbeat.agent, "end_if_unreachable", fail)
    monkeypatch.setattr(os, "_exit", codes.append)
    with pytest.raises(OSError, match="memory"):  # `os._exit` would not return
        heartbeat.stop_process("worker 1 is silent")
    assert codes == [2]
    assert capsys.readouterr().err == "ncelm: worker 1 is silent\n"


LOST = "[/third_party/gloo/pair.cc:553] Connection closed by peer [192.0.2.2]:63363. This is typically caused by …"


def test_a_lost_connection_is_explained_by_the_worker_that_ended_the_group(workers, monkeypatch):
    both, _, failed = workers
    monkeypatch.setattr(process_group, "_heartbeat", both[1])
    short = "^the connection to another worker was lost \\(Connection closed by peer \\[192.0.2.2\\]:63363\\): with"
    with pytest.raises(NcelmError, match=short), process_group._one_line_errors():
        raise RuntimeError(LOST)
    both[1].store.set(both[1].keys[1], "0")
    both[0].start()
    assert failed.wait(10)
    with pytest.raises(NcelmError, match=r"^worker 1 on second did not answer"), process_group._one_line_errors():
        raise RuntimeError(LOST)


def test_a_store_that_cannot_be_reached_is_named(monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nothing listens
        names = {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": unused.getsockname()[1]}
        for name, value in (names | {"TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_USE_AGENT_STORE": "True"}).items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(process_group, "JOIN_SECONDS", 0.5)
        with pytest.raises(NcelmError, match=r"^torchrun's key-value store on 127.0.0.1 did not answer for 1 s: check"):
            process_group._meet(1.0)


# -- network ---------------------------------------------------------------------------------------------------------


def test_addresses_that_others_cannot_reach_are_recognized():
    assert network.is_local("127.0.1.1")  # the name of a Debian host
    assert network.is_local("169.254.3.4")
    assert not network.is_local("192.0.2.7")
    assert not any(map(network.is_local, network.addresses()))


def test_the_interface_towards_a_peer(monkeypatch):
    own = network.addresses()
    for address, interface in own.items():
        assert network.interface_towards(["255.255.255.255", address]) in {interface, *own.values()}
    assert network.interface_towards([]) is None
    assert network.interface_towards(["127.0.0.1"]) is None  # through the loopback interface
    assert os.environ.get("GLOO_SOCKET_IFNAME") is None
