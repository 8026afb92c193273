"""Information about the machine: cores, memory, processor, versions."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ncelm.errors import NcelmError


def available_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def total_memory() -> int | None:
    """Return the size of the main memory in bytes, or None if it is unknown."""
    import psutil

    try:
        return psutil.virtual_memory().total
    except OSError:  # no /proc
        return None


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
