"""What this machine has, and where and when a figure was taken."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ncelm.errors import NcelmError


def available_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def total_memory() -> int | None:
    """Bytes of memory that this machine has, if it tells."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def check_memory(what: str, needed: int, remedy: str) -> None:
    """Better to say so now than to be killed later."""
    there = total_memory()
    if there is not None and needed > there:
        raise NcelmError(
            f"{what} would take about {needed / 1e9:,.1f} GB of memory and this machine has {there / 1e9:,.1f} GB: "
            + remedy
        )


def environment_info(*packages: str) -> dict[str, Any]:
    """Where, when and with what: without these a speed means nothing."""
    libraries = {name: version(name) for name in packages}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git_commit(),
        "cpu": cpu_name(),
        "cores": available_cores(),
        "versions": {"python": platform.python_version(), **libraries},
    }


def cpu_name() -> str:
    """The processor's own name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def git_commit() -> str | None:
    """The commit this file is in, "-dirty" if files have changed since; None outside a git checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
