"""Start torchrun."""

import os
import subprocess
import sys
from collections.abc import Sequence


def torchrun(
    arguments: Sequence[object], *options: str, script: Sequence[object] = ("-m", "ncelm"), workers: int = 2
) -> subprocess.Popen[str]:
    """Start workers on this machine and return the process of torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", workers, *options]
    return subprocess.Popen(
        [str(word) for word in (*command, *script, *arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the process; return its exit code, standard output and standard error."""
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err
