"""Trainings that the benchmark of a cluster starts: on this machine, or by torchrun on the hosts of a cluster."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster_hosts import Cluster, children, send, state_of
from common import log
from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.io.metrics import Metrics

PORT = 29400
# torchrun waits 30 s for further agents, and notices the death of one after 15 s, by default
RENDEZVOUS = {"last_call_timeout": 8, "keep_alive_interval": 2, "keep_alive_max_attempt": 3}
RENDEZVOUS_TEXT = ",".join(f"{name}={value}" for name, value in RENDEZVOUS.items())


class Progress:
    """Progress lines on standard error, with the elapsed and the remaining time.

    Args:
        total: number of equal parts.
    """

    def __init__(self, total: int) -> None:
        self.total, self.done, self.began = total, 0, time.monotonic()

    def start(self, text: str) -> None:
        """Print a line before the next part."""
        elapsed = time.monotonic() - self.began
        left = f", about {elapsed / self.done * (self.total - self.done):,.0f} s left" if self.done else ""
        log(f"[{self.done + 1}/{self.total}, {elapsed:,.0f} s{left}] {text}")
        self.done += 1


def test_perplexity(out: Path) -> float:
    """Return the perplexity of a run on the test split, in another process; infinite if it has no valid model."""
    command = [sys.executable, "-m", "ncelm", "evaluate", str(out), "--split", "test", "--json", "--threads", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return float(json.loads(done.stdout)["perplexity"]) if done.returncode == 0 else float("inf")


def run_result(out: Path) -> dict[str, Any]:
    """Return the results of a finished run: perplexities, words/s of training, bytes sent by rank 0."""
    epochs = Metrics(out / run.METRICS).read()
    last, words = epochs[-1], sum(epoch["words"] for epoch in epochs)
    return {
        "seconds": last["seconds"],
        "words_per_second": words / last["seconds"],
        "valid_perplexity": last["valid_perplexity"],
        "test_perplexity": test_perplexity(out),
        "bytes_per_word": last.get("bytes_sent", 0) / words,
    }


def train_here(processes: int, arguments: Sequence[str], out: Path, limit: float) -> dict[str, Any]:
    """Train on this machine without a simulated network, by torchrun if `processes` > 1; return the results."""
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    command = [sys.executable, *start, "-m", "ncelm", "train", *arguments, "--out", str(out)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=limit)
    finally:
        if process.poll() is None:  # torchrun ends its workers after SIGTERM
            process.terminate()
            process.communicate()
    if process.returncode:
        lines = [line for line in errors.splitlines() if line.startswith("ncelm: ")] or errors.splitlines()[-1:]
        raise SystemExit(f"training with {processes} processes failed: {lines[0] if lines else process.returncode}")
    return run_result(out)


class Job:
    """A training by torchrun on hosts of a cluster, with one worker on each.

    Args:
        cluster: the hosts.
        folder: of log files; it must not exist.
        arguments: of `ncelm train`, by host.
        nodes: of torchrun: a number, or MIN:MAX.
        restarts: of torchrun.
        rendezvous: the host on which the workers meet.
        script: what torchrun starts.
        environment: of torchrun.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        arguments: Callable[[int], Sequence[object]],
        *,
        nodes: str,
        restarts: int = 0,
        rendezvous: int = 0,
        script: Sequence[str] = ("-m", "ncelm", "train"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.cluster, self.folder, self.arguments, self.script = cluster, folder, arguments, script
        self.options = ["--nnodes", nodes, "--nproc-per-node", "1", "--max-restarts", str(restarts)]
        self.rendezvous, self.environment = rendezvous, environment
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True)

    def start(self, host: int) -> None:
        """Start torchrun on a host."""
        conf = f"is_host={int(host == self.rendezvous)},{RENDEZVOUS_TEXT}"
        endpoint = f"{self.cluster.name(self.rendezvous)}:{PORT}"
        logs = ["--redirects", "3", "--log-dir", str(self.folder / f"workers-{host}")]
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "run", "--rdzv-conf", conf]
        command = [sys.executable, "-m", "torch.distributed.run", *self.options, *meeting, *logs]
        log_file = self.folder / f"torchrun-{host}.log"
        self.agents[host] = self.cluster.launch(
            host, [*command, *self.script, *self.arguments(host)], log_file, self.environment
        )

    def start_all(self) -> None:
        """Start torchrun on all hosts; the one where the workers meet is the first."""
        for host in sorted(range(self.cluster.size), key=lambda host: host != self.rendezvous):
            self.start(host)

    def worker(self, host: int) -> int | None:
        """Return the worker of a host, or None while there is none."""
        for pid in children(self.agents[host].pid):
            if state_of(pid) not in ("", "Z") and b"TORCHELASTIC_RUN_ID" in _environment(pid):
                return pid
        return None

    def kill_worker(self, host: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to the worker of a host. If there is none at the moment, wait for it."""
        deadline = time.monotonic() + 60
        while (pid := self.worker(host)) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if pid is not None:
            send(pid, number)

    def ended(self, hosts: Iterable[int]) -> bool:
        """Return whether no process runs on these hosts."""
        hosts = list(hosts)
        return all(self.agents[host].poll() is not None for host in hosts) and not any(map(self.cluster.pids, hosts))

    def succeeded(self, hosts: Iterable[int]) -> bool:
        """Return whether torchrun has ended with exit code 0 on these hosts."""
        return all(self.agents[host].poll() == 0 for host in hosts)

    def wait(self, limit: float) -> None:
        """Wait until all hosts have ended. Raise SystemExit if one failed, or after `limit` seconds."""
        deadline = time.monotonic() + limit
        while not self.ended(self.agents):
            if time.monotonic() > deadline:
                raise SystemExit(f"training did not end within {limit:.0f} s: {self.messages(self.agents)}")
            time.sleep(0.1)
        if not self.succeeded(self.agents):
            raise SystemExit(f"training failed: {self.messages(self.agents) or self.folder}")

    def output(self, hosts: Iterable[int]) -> str:
        """Return what the workers of these hosts have printed, in all generations."""
        paths = [path for host in hosts for path in sorted((self.folder / f"workers-{host}").rglob("std*.log"))]
        return "\n".join(path.read_text(errors="replace") for path in paths)

    def messages(self, hosts: Iterable[int]) -> list[str]:
        """Return the distinct messages of ncelm on these hosts, the most frequent one first."""
        lines = [line for line in self.output(hosts).splitlines() if line.startswith("ncelm: ")]
        return sorted(dict.fromkeys(lines), key=lambda line: -lines.count(line))


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


class CheckpointWatch:
    """Watches the checkpoints of run directories, and notices if training starts again at an earlier point."""

    def __init__(self, outs: Iterable[Path]) -> None:
        self.paths = {out / run.CHECKPOINT for out in outs}
        self.seen: dict[Path, int] = {}
        self.latest = (0, 0.0)  # epochs, seconds of training
        self.workers: int | None = None  # that wrote the last checkpoint
        self.fell_back: str | None = None

    def look(self) -> None:
        """Read checkpoints that are new."""
        for path in self.paths:
            try:
                time_written = path.stat().st_mtime_ns
                if self.seen.get(path) == time_written:
                    continue
                state = array_files.read_header(path)["state"]
            except (OSError, NcelmError, KeyError):  # not yet there, or just replaced
                continue
            self.seen[path] = time_written
            point = (int(state["epoch"]), float(state["seconds"]))
            if point < self.latest and self.fell_back is None:
                self.fell_back = f"training went back from epoch {self.latest[0]} to epoch {point[0]}"
            self.latest, self.workers = max(self.latest, point), int(state["workers"])

    @property
    def any(self) -> bool:
        """Whether there is a checkpoint."""
        return bool(self.seen)
