"""The packages below the kernels can be imported on every platform."""

import subprocess
import sys

SCRIPT = """
import importlib, os, pkgutil, sys
for name in ("fcntl", "grp", "pwd", "resource", "termios"):  # absent on Windows
    sys.modules[name] = None
import ncelm.io, ncelm.text
for package in (ncelm.io, ncelm.text):
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
for name in ("filelock", "loky", "matplotlib", "nltk", "numba", "psutil", "scipy", "torch", "tqdm"):
    assert name not in sys.modules, name  # imported where they are used: start-up time
"""


def test_io_and_text_import_without_posix_modules_and_without_slow_packages():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
