"""ncelm.distributed.agent: a torchrun agent that waits for a machine that cannot be reached."""

import os
import socket
import subprocess
import sys
import time

import psutil
import pytest

from ncelm.distributed import agent


@pytest.fixture
def waiting():
    """Return a process that does nothing for a minute."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield psutil.Process(process.pid)
        process.kill()


@pytest.fixture
def server():
    """Return the address of a server."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()


def test_an_agent_is_killed_if_the_rendezvous_cannot_be_reached(waiting, monkeypatch):
    monkeypatch.setattr(agent, "is_reachable", lambda host, port: False)
    began = time.monotonic()
    assert agent.watch(waiting, "lost", 1, 1.5)
    assert time.monotonic() - began >= 1.5
    assert waiting.wait(10) != 0


def test_an_agent_that_can_reach_the_rendezvous_is_not_killed(waiting, server):
    assert not agent.watch(waiting, *server, 60.0)
    assert waiting.is_running()


def test_an_agent_that_ends_by_itself_is_not_waited_for(waiting, monkeypatch):
    monkeypatch.setattr(agent, "is_reachable", lambda host, port: False)
    waiting.kill()
    assert not agent.watch(waiting, "lost", 1, 60.0)


def test_a_machine_that_refuses_connections_is_reachable(server):
    assert agent.is_reachable(*server)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nothing listens
        assert agent.is_reachable(*unused.getsockname())
    assert not agent.is_reachable("name.invalid", 1)


def test_another_process_with_the_same_number_is_not_killed(waiting, monkeypatch, capsys):
    monkeypatch.setattr(agent, "is_reachable", lambda host, port: False)
    monkeypatch.setattr(agent, "GRACE_SECONDS", 0.1)
    agent.main(str(waiting.pid), repr(waiting.create_time() - 1.0), "lost", "1")
    assert waiting.is_running()
    agent.main(str(waiting.pid), repr(waiting.create_time()), "lost", "1")
    assert waiting.wait(10) != 0
    assert capsys.readouterr().err.startswith(
        "ncelm: torchrun on this machine was waiting for lost, which does not answer"
    )


@pytest.mark.parametrize(
    ("words", "address"),
    [
        (["--rdzv-endpoint", "first:29500"], ["first", "29500"]),
        (["--rdzv_endpoint=first:29500"], ["first", "29500"]),
        (["--rdzv-endpoint", "first"], ["first", "29400"]),
        (["--rdzv-endpoint=[::1]:29500"], ["::1", "29500"]),
    ],
)
def test_the_process_that_watches_knows_agent_and_rendezvous(monkeypatch, words, address):
    class Agent:
        pid = os.getppid()

        def __init__(self, pid):
            pass

        def cmdline(self):
            return ["python", "torchrun", *words, "-m", "ncelm", "train"]

        def create_time(self):
            return 12.5

    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: started.append((command, options)))
    monkeypatch.setattr("psutil.Process", Agent)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    agent.end_if_unreachable()  # not started by torchrun
    assert not started
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    agent.end_if_unreachable()
    ((command, options),) = started
    assert command[2:] == ["ncelm.distributed.agent", str(Agent.pid), "12.5", *address]
    assert options["start_new_session"]
