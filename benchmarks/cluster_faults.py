"""Faults of a cluster during training, at random moments: what the training does, and whether that is acceptable.

A trial is acceptable if training completes with the perplexity of one process (to TOLERANCE), or if all processes on
the other hosts end within STOP_SECONDS with one line and `--resume` completes it. It is not if it starts again from an
earlier epoch, if a worker prints a traceback, or if it exits with code 0 and a broken model.
"""

import math
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster_hosts import Cluster, send
from cluster_jobs import CheckpointWatch, Job, run_result, test_perplexity
from common import markdown_table
from ncelm.distributed.membership import OWN_STORE
from ncelm.io import run

TOLERANCE = 1.01  # test perplexity relative to one process
STOP_SECONDS = 90.0
LIMIT = 300.0  # seconds of a training; more is a hang
BROKEN_WORKER = Path(__file__).with_name("cluster_broken_worker.py")


@dataclass
class Trial:
    """One training with a fault."""

    cluster: Cluster
    folder: Path
    arguments: list[str]  # of `ncelm train`: store and options
    epochs: float
    random: random.Random
    shared: bool = True  # the run directory
    job: Job = field(init=False)
    watch: CheckpointWatch = field(init=False)
    lost: set[int] = field(default_factory=set)  # hosts that are not waited for

    def out(self, host: int) -> Path:
        """Return the run directory of a host."""
        return self.folder / "run" if self.shared else self.cluster.temporary(host) / "run"

    def one_of(self, first: int = 0) -> int:
        """Return a random host, from host `first` on."""
        return self.random.randrange(first, self.cluster.size)

    def wait_until(self, condition: Callable[[], bool], limit: float = LIMIT) -> None:
        """Wait for a condition. Raise TimeoutError after `limit` seconds, or if training has ended."""
        deadline = time.monotonic() + limit
        while not condition():
            self.watch.look()
            if self.job.ended(set(self.job.agents) - self.lost):
                raise EndedError
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.05)

    def sleep(self, seconds: float) -> None:
        """Wait some seconds, and watch checkpoints."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.watch.look()
            time.sleep(0.05)


class EndedError(Exception):
    """Training had ended before the fault."""


@dataclass(frozen=True)
class Fault:
    """A kind of fault. `inject` causes it; without it, it is there from the start."""

    title: str
    inject: Callable[[Trial], None] | None = None
    repair: Callable[[Trial], None] = lambda trial: None  # before training is resumed
    expected: tuple[str, ...] = ("completed", "stopped")
    elastic: bool = False  # --nnodes 1:N
    restarts: int = 0
    peer_timeout: int | None = 15  # None: the default
    shared: bool = True
    rendezvous_last: bool = False  # the workers meet on the last host, so that the first one can be lost
    loopback: bool = False
    different: str | None = None  # an option of one host
    not_finite: bool = False
    after_checkpoint: bool = False  # not before the first checkpoint
    length: float = 1.0  # epochs, relative to those of other trials


def kill_worker(trial: Trial) -> None:
    """SIGKILL of a worker of another host than the first."""
    trial.job.kill_worker(trial.one_of(1))


def lose_host(trial: Trial) -> None:
    """SIGKILL of all processes of a host other than the first."""
    host = trial.one_of(1)
    trial.lost.add(host)
    trial.cluster.kill(host)


def lose_first_host(trial: Trial) -> None:
    """SIGKILL of all processes of the first host."""
    trial.lost.add(0)
    trial.cluster.kill(0)


def copy_run(trial: Trial) -> None:
    """Copy the run of the first host to the others."""
    for host in range(1, trial.cluster.size):
        shutil.rmtree(trial.out(host), ignore_errors=True)
        shutil.copytree(trial.out(0), trial.out(host))


def pull_cable(trial: Trial) -> None:
    """The link of a host goes down and stays down."""
    host = trial.one_of()
    trial.lost.add(host)
    trial.cluster.link(host, up=False)


def pull_cable_of_other(trial: Trial) -> None:
    """The link of a host other than the first goes down and stays down."""
    host = trial.one_of(1)
    trial.lost.add(host)
    trial.cluster.link(host, up=False)


def plug_in(trial: Trial) -> None:
    """All links are up."""
    for host in trial.lost:
        trial.cluster.link(host, up=True)


def interrupt_link(trial: Trial) -> None:
    """The link of a host is down for ten seconds."""
    host = trial.one_of()
    trial.cluster.link(host, up=False)
    trial.sleep(10.0)
    trial.cluster.link(host, up=True)


def halt_worker(trial: Trial) -> None:
    """SIGSTOP of a worker."""
    trial.job.kill_worker(trial.one_of(), signal.SIGSTOP)


def halt_worker_and_host(trial: Trial) -> None:
    """SIGSTOP of a worker, whose host is then not waited for."""
    host = trial.one_of()
    trial.lost.add(host)
    trial.job.kill_worker(host, signal.SIGSTOP)


def terminate(trial: Trial) -> None:
    """SIGTERM to torchrun on one host."""
    send(trial.job.agents[trial.one_of()].pid, signal.SIGTERM)


def shrink_and_grow(trial: Trial) -> None:
    """Two hosts leave; when the others have trained on, two hosts join."""
    first, second = trial.random.sample(range(1, trial.cluster.size), 2)
    for host in (first, second):
        trial.lost.add(host)
        trial.cluster.kill(host)
    trial.wait_until(lambda: trial.watch.workers == trial.cluster.size - 2)
    for host in (first, second):
        trial.job.start(host)
        trial.lost.remove(host)
    trial.wait_until(lambda: trial.watch.workers == trial.cluster.size)


FAULTS = {
    "worker-killed": Fault("SIGKILL of a worker on another node, `--max-restarts 3`", kill_worker, restarts=3),
    "node-leaves": Fault("a node leaves, `--nnodes 1:N`", lose_host, elastic=True, restarts=3),
    "link-down": Fault("the link of a node goes down for good", pull_cable, plug_in),
    "link-down-elastic": Fault(
        "the same of another node than the first, `--nnodes 1:N`", pull_cable_of_other, elastic=True, restarts=3
    ),
    "link-returns": Fault("a link is down for 10 s", interrupt_link, restarts=3, peer_timeout=None),
    "silent": Fault("SIGSTOP of a worker", halt_worker_and_host),
    "silent-60": Fault("the same with the default `--peer-timeout` 60", halt_worker_and_host, peer_timeout=None),
    "silent-elastic": Fault("the same, `--nnodes 1:N --max-restarts 3`", halt_worker, elastic=True, restarts=3),
    "sigterm": Fault("SIGTERM to torchrun on one node", terminate),
    "not-shared": Fault(
        "the run directory is not shared, and rank 0 moves",
        lose_first_host,
        copy_run,
        expected=("stopped",),
        elastic=True,
        restarts=3,
        shared=False,
        rendezvous_last=True,
        after_checkpoint=True,
    ),
    "not-finite": Fault("a number on one worker is not finite", expected=("diverged",), restarts=1, not_finite=True),
    "options": Fault("an option differs on one node", expected=("stopped",), different="--batch-size=777"),
    "loopback": Fault("the host name resolves to 127.0.1.1", expected=("completed",), loopback=True),
    "elastic": Fault(
        "N → N − 2 → N workers, `--nnodes 1:N`",
        shrink_and_grow,
        expected=("completed",),
        elastic=True,
        restarts=9,
        after_checkpoint=True,
        length=5.0,
    ),
}
FEW = ("options", "loopback", "silent-60", "elastic")  # three trials: nothing is random, or a trial takes a minute


def train_undisturbed(hosts: int, rate: str, folder: Path, arguments: list[str], epochs: float) -> dict[str, Any]:
    """Train with all hosts and without a fault; return the results and the seconds from the run directory on."""
    with Cluster(hosts, rate) as cluster:
        out = folder / "run"
        words = [*arguments, f"--epochs={epochs:g}", f"--out={out}"]
        job = Job(cluster, folder / "job", lambda host: words, nodes=str(hosts))
        began = time.monotonic()
        job.start_all()
        while not (out / run.CONFIG).exists() and not job.ended(range(hosts)) and time.monotonic() - began < LIMIT:
            time.sleep(0.05)
        trains = time.monotonic()
        job.wait(LIMIT)
        return run_result(out) | {"start": trains - began, "duration": time.monotonic() - trains}


def run_trial(name: str, number: int, hosts: int, rate: str, folder: Path, reference: dict[str, Any]) -> dict[str, Any]:
    """Run one trial; return what happened.

    Args:
        name: of the fault.
        number: of the trial, which seeds its random moment and host.
        hosts: number of nodes.
        rate: of the links.
        folder: for the run and logs.
        reference: "arguments" of `ncelm train`, "epochs", "undisturbed" results of all hosts, and "perplexity" of one
            process by epochs.
    """
    fault, seeded = FAULTS[name], random.Random(f"{name} {number}")
    epochs = reference["epochs"] * fault.length
    with Cluster(hosts, rate, loopback=range(hosts) if fault.loopback else ()) as cluster:
        arguments = [*reference["arguments"], f"--epochs={epochs:g}"]
        if fault.peer_timeout:
            arguments.append(f"--peer-timeout={fault.peer_timeout}")
        trial = Trial(cluster, folder, arguments, epochs, seeded, fault.shared)
        trial.watch = CheckpointWatch(trial.out(host) for host in range(hosts))
        odd = trial.one_of(1)

        def words(host: int) -> list[str]:
            different = [fault.different] if fault.different and host == odd else []
            return [*trial.arguments, *different, f"--out={trial.out(host)}"]

        script = ["-m", "ncelm", "train"]
        if fault.not_finite:
            script = [str(BROKEN_WORKER), str(trial.one_of()), str(seeded.uniform(0.05, 0.95) * epochs)]
        trial.job = Job(
            cluster,
            folder / "job",
            words,
            nodes=f"1:{hosts}" if fault.elastic else str(hosts),
            restarts=fault.restarts,
            rendezvous=hosts - 1 if fault.rendezvous_last else 0,
            script=script,
            environment={OWN_STORE: "1"} if fault.elastic else {},  # as documented
        )
        trial.job.start_all()
        result: dict[str, Any] = {"fault": name, "number": number}
        began = time.monotonic()
        try:
            if fault.inject:
                trial.wait_until(lambda: any((trial.out(host) / run.CONFIG).exists() for host in range(hosts)))
                if fault.after_checkpoint:
                    trial.wait_until(lambda: trial.watch.any)
                trial.sleep(seeded.uniform(0.0, 0.9 / fault.length) * reference["undisturbed"]["duration"])
                trial.watch.look()
                if trial.job.ended(range(hosts)) or trial.watch.latest[0] >= epochs:
                    raise EndedError
                result["epoch_at_fault"] = trial.watch.latest[0]
                began = time.monotonic()
                fault.inject(trial)
            _wait_for_end(trial)
        except EndedError:
            result["late"] = True  # training was faster than expected
        except TimeoutError:
            result["hung"] = True
        others = sorted(set(trial.job.agents) - trial.lost)
        broken = [path for host in range(hosts) for path in cluster.temporary(host).glob("tmp/broken")]
        result["seconds"] = time.time() - broken[0].stat().st_mtime if broken else time.monotonic() - began
        result |= _outcome(trial, others)
        for host in range(hosts):
            cluster.kill(host)
        if result["outcome"] == "stopped" and fault.not_finite:
            result |= _diverged(trial)
        elif result["outcome"] == "stopped":
            fault.repair(trial)
            trial.lost.clear()
            result |= _resume(trial)
        if "perplexity" not in result and result["outcome"] == "completed":
            result["perplexity"] = test_perplexity(trial.out(0))
        if "perplexity" in result:
            result["ratio"] = result["perplexity"] / reference["perplexity"][f"{epochs:g}"]
        trial.watch.look()
        result["problem"] = problem_of(fault, result, trial.watch.fell_back)
        return result


def _wait_for_end(trial: Trial) -> None:
    """Wait until no process runs on the hosts that are not lost."""
    try:
        trial.wait_until(lambda: False)
    except EndedError:
        return


def _outcome(trial: Trial, hosts: Sequence[int]) -> dict[str, Any]:
    """Return how training has ended on hosts that are not lost, and what they have printed."""
    job = trial.job
    outcome = "hung" if not job.ended(hosts) else "completed" if job.succeeded(hosts) else "stopped"
    return {"outcome": outcome, "lines": job.messages(hosts), "tracebacks": job.output(hosts).count("Traceback (")}


def _resume(trial: Trial) -> dict[str, Any]:
    """Resume training with all hosts; return the perplexity, or why it failed."""
    job = Job(
        trial.cluster,
        trial.folder / "resumed",
        lambda host: [*trial.arguments, f"--out={trial.out(host)}", "--resume"],
        nodes=str(trial.cluster.size),
    )
    trial.job = job
    job.start_all()
    try:
        _wait_for_end(trial)
    except TimeoutError:
        return {"resumed": False, "resume_lines": ["no end within the time limit"]}
    if not job.succeeded(job.agents):
        return {"resumed": False, "resume_lines": job.messages(job.agents)}
    return {"resumed": True, "perplexity": test_perplexity(trial.out(0))}


def _diverged(trial: Trial) -> dict[str, Any]:
    """Return whether the model that was kept is valid. The run cannot be resumed: it would diverge again."""
    if (trial.out(0) / run.MODEL).exists() and not math.isfinite(test_perplexity(trial.out(0))):
        return {"outcome": "broken model"}
    return {"outcome": "diverged"}


def problem_of(fault: Fault, result: dict[str, Any], fell_back: str | None) -> str | None:
    """Return why the result of a trial is not acceptable, or None."""
    if result.get("late"):
        return "training had ended before the fault"
    if result["outcome"] not in (*fault.expected, "completed", "stopped"):
        return result["outcome"]
    if fell_back:
        return fell_back
    if result["tracebacks"]:
        return "a worker printed a traceback"
    if result["outcome"] not in fault.expected:
        return f"{result['outcome']}, which was not expected"
    if result["outcome"] == "diverged":
        return None if result["lines"] else "no line"
    if result["outcome"] == "stopped":
        if not result["lines"]:
            return "stopped without a line"
        if not result["resumed"]:
            return "not resumed: " + "; ".join(result["resume_lines"])
        if result["seconds"] > STOP_SECONDS:
            return f"stopped after {result['seconds']:.0f} s"
    if result["ratio"] > TOLERANCE:
        return f"{100 * (result['ratio'] - 1):+.1f} % perplexity"
    return None


def run_safely(*arguments: Any) -> dict[str, Any]:
    """Return the result of `run_trial`, or, if the benchmark itself fails, its error as the problem."""
    try:
        return run_trial(*arguments)
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        traceback.print_exc(file=sys.stderr)
        problem = f"the trial failed: {type(error).__name__}: {error}"
        return {"fault": arguments[0], "number": arguments[1], "outcome": "failed", "lines": [], "problem": problem}


# -- report ------------------------------------------------------------------------------------------------------------


def report(result: dict[str, Any]) -> list[str]:
    """Return the section of the report: a row per fault, and each trial that is not acceptable."""
    reference, trials = result["reference"], result["trials"]
    rows, problems = [], []
    for name, fault in FAULTS.items():
        of_fault = [trial for trial in trials if trial["fault"] == name and not trial.get("late")]
        if not of_fault:
            continue
        stopped = [trial for trial in of_fault if trial["outcome"] in ("stopped", "diverged")]
        ratios = [trial["ratio"] for trial in of_fault if "ratio" in trial]
        lines = [line for trial in stopped or of_fault for line in trial["lines"][:1]]
        line = re.sub(r"(/[\w.-]+)+/", "", max(lines, key=lines.count)) if lines else ""  # without directories
        good = sum(trial["problem"] is None for trial in of_fault)
        rows.append(
            [
                fault.title,
                str(len(of_fault)),
                str(sum(trial["outcome"] == "completed" for trial in of_fault)),
                str(sum(trial.get("resumed", False) for trial in stopped)) if not fault.not_finite else "–",
                f"{max(trial['seconds'] for trial in stopped):.0f} s" if stopped else "",
                f"{100 * (max(ratios) - 1):+.2f} %" if ratios else "",
                f"{good}/{len(of_fault)}" if good == len(of_fault) else f"**{good}/{len(of_fault)}**",
                f"`{line.replace('|', '/')}`" if line else "",
            ]
        )
        problems += [f"- {name}, trial {each['number']}: {each['problem']}" for each in of_fault if each["problem"]]
    header = ["fault", "trials", "completed", "stopped, then resumed", "longest time to stop", "worst perplexity"]
    one, found = reference["perplexity"][f"{reference['epochs']:g}"], reference["undisturbed"]
    undisturbed = ""
    if found:
        undisturbed = (
            f" Without a fault, training takes {found['start'] + found['duration']:.0f} s, {found['start']:.0f} s of "
            f"which are the start, and the test perplexity is {found['test_perplexity']:.2f} "
            f"({100 * (found['test_perplexity'] / one - 1):+.2f} % relative to one process, {one:.2f})."
        )
    lines = [
        f"{reference['hosts']} nodes with links of {reference['rate']}, `ncelm train "
        f"{' '.join(reference['options'])} --epochs {reference['epochs']:g}`.{undisturbed} A fault occurs at "
        "a random moment after the run directory was made, on a random node. The time to "
        "stop is that from the fault until no process runs on the other nodes; the perplexity is relative to one "
        "process. A trial is good if training completes within 1 %, or if it stops within 90 s with a line and "
        "`--resume` completes it within 1 %. A number that is not finite must stop all workers and leave a valid "
        "model. The line is that of the first worker, in most trials.",
        "",
        *markdown_table([*header, "good", "line"], rows),
        "",
    ]
    return [*lines, *(["Not good:", "", *problems, ""] if problems else [])]
