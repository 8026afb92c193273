"""Which torchrun started a worker, and what the workers on this machine remember about a run.

torchrun runs one agent per machine. It starts the workers, and starts them again after a failure or a change of the
number of machines. A worker is new then and knows nothing about its predecessor. Two files tell it:

- `workers.json` in the run directory lists the agents that have trained the run. If one of them starts workers again,
  they continue from the checkpoint without --resume.
- A file in the temporary directory of each machine has the progress of the last checkpoint. A run directory that is
  behind it has lost its checkpoint: it is not on a shared disk, and rank 0 is on another machine now.
"""

import hashlib
import json
import os
import socket
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ncelm.distributed import agent as agent_process
from ncelm.errors import NcelmError
from ncelm.io.files import is_finite_number, read_json, write_json

FILE = "workers.json"  # in the run directory
FORMAT, VERSION = "ncelm-workers", 1
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


def agent() -> str | None:
    """Return an identifier of the torchrun agent that started this process, or None. Restarts do not change it."""
    parent = agent_process.process()
    return None if parent is None else f"{socket.gethostname()}/{parent.pid}/{parent.create_time():.2f}"


def membership_problem() -> str | None:
    """Return why machines cannot join later, or None; for a process that torchrun started with --nnodes MIN:MAX.

    Agents of PyTorch 2.13 share their key-value store with the workers. Its address is published in the first round
    only, so that an agent that joins later waits for it in vain, and all agents end after 60 s.
    """
    if os.environ.get(OWN_STORE) == "1":
        return None
    nodes = agent_process.option("--nnodes")
    low, _, high = nodes.partition(":")
    if low == (high or low):
        return None
    return (
        f"--nnodes {nodes} without {OWN_STORE}=1: with PyTorch 2.13 training fails when a machine joins later; set the "
        "variable in the environment of torchrun on all machines"
    )


@dataclass(frozen=True)
class Member:
    """One worker, as it describes itself to the others."""

    rank: int
    host: str
    agent: str | None
    progress: float  # complete epochs, with a fraction, at the last checkpoint that its agent's workers remember

    @classmethod
    def of_this_process(cls, rank: int, out: Path) -> "Member":
        """Return the description of this worker."""
        started_by = agent()
        progress = 0.0
        if started_by is not None:
            with suppress(NcelmError, TypeError):
                found = read_json(_memory(started_by, out), "memory", FORMAT, VERSION).get("progress")
                progress = float(found) if found is not None and is_finite_number(found) else 0.0
        return cls(rank, socket.gethostname(), started_by, progress)

    def to_text(self) -> str:
        """Return the description as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Member":
        """Return the member that `to_text` describes."""
        return cls(**json.loads(text))


def is_restart(out: Path, members: list[Member]) -> bool:
    """Return whether the run was trained by workers of one of these agents before."""
    return bool(set(_agents(out)) & {member.agent for member in members})


def record_agents(out: Path, members: list[Member]) -> None:
    """Add the agents to the run directory. Without torchrun nothing is written."""
    agents = {member.agent for member in members if member.agent is not None}
    if agents:
        write_json(out / FILE, {"format": FORMAT, "version": VERSION, "agents": sorted(agents | set(_agents(out)))})


def _agents(out: Path) -> list[str]:
    try:
        agents = read_json(out / FILE, "run", FORMAT, VERSION).get("agents")
    except NcelmError:  # absent or damaged: the run was not trained by this group
        return []
    return [each for each in agents if isinstance(each, str)] if isinstance(agents, list) else []


def check_not_lost(out: Path, members: list[Member], progress: float) -> None:
    """Raise NcelmError if a worker remembers a checkpoint that is later than `progress`, that of the run directory."""
    last = max(members, key=lambda member: member.progress)
    if last.progress > progress + 1e-6:
        raise NcelmError(
            f"{out} on worker 0 ({members[0].host}) has lost its checkpoint: it is at epoch {progress:.2f}, and worker "
            f"{last.rank} ({last.host}) saw one at epoch {last.progress:.2f}: put the directory on a disk that all "
            "machines share, or copy it to this machine"
        )


def remember(out: Path, progress: float) -> None:
    """Keep the progress of a checkpoint on this machine, for workers that the same agent starts later."""
    if (started_by := agent()) is not None and os.environ.get("LOCAL_RANK", "0") == "0":
        write_json(_memory(started_by, out), {"format": FORMAT, "version": VERSION, "progress": progress})


def forget(out: Path) -> None:
    """Remove the files of a run that is finished, on this machine."""
    (out / FILE).unlink(missing_ok=True)
    if (started_by := agent()) is not None:
        _memory(started_by, out).unlink(missing_ok=True)


def _memory(started_by: str, out: Path) -> Path:
    digest = hashlib.sha256(f"{started_by} {out.name}".encode()).hexdigest()[:24]
    return Path(tempfile.gettempdir()) / f"ncelm-{os.getuid() if hasattr(os, 'getuid') else 0}-{digest}.json"
