"""Information about the machine and this process: cores, memory, processor, versions, rank."""

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ncelm.errors import NcelmError

# Address space of the libraries: Python, NumPy, SciPy and LLVM while it compiles. 900 MB are enough.
LIBRARIES_BYTES = 1 << 30


def available_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def started_by_torchrun() -> bool:
    """Return whether this process is one of several that torchrun started."""
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    return all(name in os.environ for name in needed) and int(os.environ["WORLD_SIZE"]) > 1


def has_torchrun_agent() -> bool:
    """Return whether torchrun started this process, alone or with others; their number may change."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def rank() -> int:
    """Return the rank of this process in the torchrun job, or 0."""
    return int(os.environ["RANK"]) if started_by_torchrun() else 0


def local_world_size() -> int:
    """Return the number of workers on this machine, which share its cores and memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if started_by_torchrun() else 1


def total_memory() -> int | None:
    """Return the memory that this process may use, in bytes, or None if it is unknown.

    It is the size of the main memory, or less if a container or `ulimit -v` sets a limit.
    """
    import psutil

    limits = [_container_memory(), address_space_limit()]
    with suppress(OSError):  # no /proc
        limits.append(psutil.virtual_memory().total)
    known = [limit for limit in limits if limit is not None]
    return max(min(known), 0) if known else None


def _container_memory() -> int | None:
    """Return the memory limit of the container (cgroup), if there is one."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max": no limit
            return int(Path(path).read_text())
    return None


def address_space_limit() -> int | None:
    """Return the limit of the address space that `ulimit -v` sets, without what Python's libraries take of it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit - LIBRARIES_BYTES


def check_address_space() -> None:
    """Raise an error if `ulimit -v` leaves no room for Python's libraries.

    Without memory, LLVM aborts and OpenBLAS waits forever: this must be called before they are loaded.
    """
    limit = address_space_limit()
    if limit is None:
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each thread reserves memory; ncelm has threads of its own
    if limit < 0:
        raise NcelmError(
            f"the address space is limited to {(limit + LIBRARIES_BYTES) >> 20:,} MB, and ncelm needs at least "
            f"{LIBRARIES_BYTES >> 20:,} MB: raise the limit (ulimit -v)"
        )


def check_memory(what: str, needed: int, remedy: str) -> None:
    """Raise an error if `needed` bytes exceed the main memory: the system would kill the process later.

    Args:
        what: what needs the memory, the subject of the error message.
        needed: bytes.
        remedy: the end of the error message.
    """
    total = total_memory()
    if total is not None and needed > total:
        raise NcelmError(
            f"{what} would take about {needed / 1e9:,.1f} GB of memory and this machine has {total / 1e9:,.1f} GB: "
            + remedy
        )


def environment_info(*packages: str) -> dict[str, Any]:
    """Return date, commit, processor, cores and the versions of Python and of `packages`, for reports."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git_commit(),
        "cpu": cpu_name(),
        "cores": available_cores(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
    }


def cpu_name() -> str:
    """Return the model name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def git_commit() -> str | None:
    """Return the commit of the source tree, with "-dirty" if files differ from it; None outside a git checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
