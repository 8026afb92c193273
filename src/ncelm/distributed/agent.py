"""The torchrun agent that started a worker: its options, and its end if the rendezvous cannot be reached.

An agent of PyTorch 2.13 asks the key-value store of the rendezvous without a time limit. If the machine of the store is
lost, the agents of the other machines wait until the system gives up the connection, about a quarter of an hour,
although their workers have ended. A worker that ends because others are silent therefore leaves a process behind that
kills its agent if the machine of the rendezvous cannot be reached (`python -m ncelm.distributed.agent`).
"""

import os
import socket
import subprocess
import sys
import time

import psutil

from ncelm.io.machine import has_torchrun_agent

GRACE_SECONDS = 20.0  # for the agent to end by itself, or for the rendezvous to be reached
CONNECT_SECONDS = 5.0
RENDEZVOUS_PORT = 29400  # torchrun's default


def process() -> psutil.Process | None:
    """Return the agent that started this process, or None."""
    if not has_torchrun_agent():
        return None
    try:
        return psutil.Process(os.getppid())
    except psutil.Error:  # it has ended
        return None


def option(name: str) -> str:
    """Return an option of the agent's command line or environment, such as "--nnodes"; "" without one."""
    agent, found = process(), os.environ.get("PET_" + name.removeprefix("--").replace("-", "_").upper(), "")
    if agent is None:
        return ""
    try:
        words = agent.cmdline()
    except psutil.Error:
        return found
    for i, word in enumerate(words):
        key, equals, value = word.partition("=")
        if key.replace("_", "-") == name:
            found = value if equals else " ".join(words[i + 1 : i + 2])
    return found


def end_if_unreachable() -> None:
    """Leave a process behind that kills the agent if the rendezvous cannot be reached for GRACE_SECONDS."""
    agent, endpoint = process(), option("--rdzv-endpoint")
    if agent is None or not endpoint:
        return
    host, _, port = endpoint.rpartition(":")
    if not port.isdigit():  # no port, or none that torchrun would accept
        host, port = endpoint, str(RENDEZVOUS_PORT)
    arguments = [str(agent.pid), repr(agent.create_time()), host.strip("[]"), port]
    subprocess.Popen(
        [sys.executable, "-m", "ncelm.distributed.agent", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # torchrun ends the processes of its workers' sessions
    )


def is_reachable(host: str, port: int) -> bool:
    """Return whether a machine answers, even if it refuses the connection."""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def watch(agent: psutil.Process, host: str, port: int, seconds: float) -> bool:
    """Kill an agent that still runs after some seconds in which the rendezvous could not be reached; return whether."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE or is_reachable(host, port):
            return False
        time.sleep(0.5)
    agent.kill()
    return True


def main(pid: str, created: str, host: str, port: str) -> None:
    """Watch the agent with this process id and creation time."""
    try:
        agent = psutil.Process(int(pid))
        if agent.create_time() == float(created) and watch(agent, host, int(port), GRACE_SECONDS):
            print(
                f"ncelm: torchrun on this machine was waiting for {host}, which does not answer, and was killed: start "
                "it again with --resume when the network is back",
                file=sys.stderr,
            )
    except psutil.NoSuchProcess:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
