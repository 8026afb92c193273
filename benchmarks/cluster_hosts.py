"""A simulated cluster: network namespaces as hosts, connected by a switch through links of a given rate.

Each host has its own address, host name, /etc/hosts, temporary directory and, with `share`, its part of a core. This
needs root, `ip` and `tc`. Kernels without netem cannot emulate latency, so that it is not emulated.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

CGROUP = Path("/sys/fs/cgroup/cpu")
CFS_PERIOD = 4_000  # microseconds; short, because hosts that are halted let the others wait
NETWORK = "10.77.0"
_numbers = itertools.count()


def unavailable(share: bool = False) -> str | None:
    """Return the reason why this machine cannot simulate a cluster, or None."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is not installed (packages iproute2 and util-linux)"
    if share and not (CGROUP / "cpu.cfs_quota_us").exists():
        return f"{CGROUP} is not a CPU controller of cgroup v1"
    try:
        with Cluster(1, "1gbit") as cluster:
            cluster.run(0, ["true"])
    except (subprocess.CalledProcessError, OSError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        return f"network namespaces are not available ({reason.strip().splitlines()[-1]})"
    return None


def _command(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)


class Cluster:
    """Hosts h0, h1, … with the addresses 10.77.0.1, 10.77.0.2, …; removed at the end of a `with` block.

    Args:
        size: number of hosts.
        rate: of each link, in both directions, in words of `tc` ("100mbit"); None for no limit.
        share: the part of a core that each host has, at least ¼; None for no limit.
        loopback: hosts whose own name resolves to 127.0.1.1 on themselves, as on Debian.
    """

    def __init__(
        self, size: int, rate: str | None = None, share: float | None = None, loopback: Iterable[int] = ()
    ) -> None:
        self.size, self.rate, self.share, self.loopback = size, rate, share, set(loopback)
        self.prefix = f"ncelm-{os.getpid()}-{next(_numbers)}"
        self.switch = f"{self.prefix}-switch"
        self.names = [f"{self.prefix}-h{host}" for host in range(size)]
        self.folder = Path("/tmp", self.prefix)
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._create()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    @staticmethod
    def address(host: int) -> str:
        """Return the address of a host."""
        return f"{NETWORK}.{host + 1}"

    @staticmethod
    def name(host: int) -> str:
        """Return the host name of a host."""
        return f"h{host}"

    def temporary(self, host: int) -> Path:
        """Return the directory that a host does not share with others; TMPDIR is in it."""
        return self.folder / self.name(host)

    def _create(self) -> None:
        _command("ip", "netns", "add", self.switch)
        _command("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        _command("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for host, name in enumerate(self.names):
            port = self.name(host)
            _command("ip", "netns", "add", name)
            _command("ip", "-n", name, "link", "set", "lo", "up")
            _command(
                "ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self.switch
            )
            _command("ip", "-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            _command("ip", "-n", name, "link", "set", "eth0", "up")
            _command("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
            self._set_rate(name, "eth0")
            self._set_rate(self.switch, port)
            (self.temporary(host) / "tmp").mkdir(parents=True)
            (self.temporary(host) / "tmp").chmod(0o1777)
            hosts = Path("/etc/netns", name, "hosts")  # `ip netns exec` mounts it over /etc/hosts
            hosts.parent.mkdir(parents=True)
            lines = [f"{self.address(other)} {self.name(other)}" for other in range(self.size)]
            if host in self.loopback:
                lines[host] = f"127.0.1.1 {self.name(host)}"
            hosts.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
            if self.share is not None:
                group = CGROUP / name
                group.mkdir()
                (group / "cpu.cfs_period_us").write_text(str(CFS_PERIOD))
                (group / "cpu.cfs_quota_us").write_text(str(round(self.share * CFS_PERIOD)))

    def _set_rate(self, namespace: str, interface: str) -> None:
        if self.rate is not None:
            limits = ("rate", self.rate, "burst", "256kb", "latency", "50ms")
            _command("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf", *limits)

    def link(self, host: int, up: bool) -> None:
        """Plug in or pull the cable of a host, at the switch."""
        _command("ip", "-n", self.switch, "link", "set", self.name(host), "up" if up else "down")

    def command(self, host: int, command: Sequence[object]) -> list[str]:
        """Return a command that runs another one on a host."""
        enter = f"echo $$ > {CGROUP / self.names[host]}/cgroup.procs && " if self.share is not None else ""
        inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name(host), *map(str, command)]
        return ["sh", "-c", f'{enter}exec "$@"', "sh", "ip", "netns", "exec", self.names[host], *inside]

    def launch(
        self, host: int, command: Sequence[object], log: Path, environment: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a command on a host; its output is appended to `log`. Return its process."""
        own = {"TMPDIR": str(self.temporary(host) / "tmp"), "OMP_NUM_THREADS": "1"}
        with log.open("ab") as file:
            process = subprocess.Popen(
                self.command(host, command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own, **(environment or {})},
                start_new_session=True,  # Ctrl-C ends it by `remove`
            )
        self.processes.append(process)
        return process

    def run(self, host: int, command: Sequence[object]) -> str:
        """Run a command on a host; return its standard output."""
        done = subprocess.run(self.command(host, command), check=True, capture_output=True, text=True)
        return done.stdout

    def pids(self, host: int) -> list[int]:
        """Return the processes that run on a host."""
        found = subprocess.run(["ip", "netns", "pids", self.names[host]], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split() if state_of(int(pid)) not in ("", "Z")]

    def kill(self, host: int) -> None:
        """Kill all processes of a host."""
        while pids := self.pids(host):
            for pid in pids:
                send(pid, signal.SIGKILL)
            time.sleep(0.02)
        for process in self.processes:
            process.poll()

    def remove(self) -> None:
        """Kill the processes of all hosts, and remove everything that was created. Signals wait until this is done."""
        with _signals_ignored():
            for host, name in enumerate(self.names):
                self.kill(host)
                subprocess.run(["ip", "netns", "delete", name], capture_output=True)
                shutil.rmtree(Path("/etc/netns", name), ignore_errors=True)
                with contextlib.suppress(FileNotFoundError):
                    _remove_group(CGROUP / name)
            subprocess.run(["ip", "netns", "delete", self.switch], capture_output=True)
            with contextlib.suppress(OSError):
                Path("/etc/netns").rmdir()  # if nothing else is there
            shutil.rmtree(self.folder, ignore_errors=True)
            for process in self.processes:
                process.wait()


def _remove_group(path: Path) -> None:
    """Remove a control group. The kernel needs a moment after the end of its last process."""
    for _ in range(100):
        try:
            path.rmdir()
        except FileNotFoundError:
            raise
        except OSError:
            time.sleep(0.02)
        else:
            return


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    former = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def exit_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit, so that clusters are removed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, stop)


def state_of(pid: int) -> str:
    """Return the state of a process ("R", "S", "T", "Z", …), or "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
