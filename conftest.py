"""Configuration of pytest for the whole project: doctests in src/, and tests that must run alone."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
ALONE = (ROOT / "tests" / "distributed",)  # every test there starts several processes
# many short trainings or processes
SLOW = (
    ROOT / "tests" / "hostile",
    ROOT / "tests" / "text" / "test_tokenize_files.py",
    ROOT / "tests" / "paper",
    ROOT / "tests" / "torch" / "test_engine.py",
    ROOT / "tests" / "kernels" / "test_recovery.py",
)

# Doctests import the modules they are in. Without an extra, the modules that import it are left out.
collect_ignore_glob = []
if importlib.util.find_spec("torch") is None:
    collect_ignore_glob += ["src/ncelm/torch/*", "src/ncelm/distributed/process_group.py"]
if importlib.util.find_spec("uvicorn") is None or importlib.util.find_spec("starlette") is None:
    collect_ignore_glob += ["src/ncelm/serve/*"]
for package in ("datatrove", "nemo_curator", "data_juicer"):  # their modules in ncelm.integrations have the same names
    if importlib.util.find_spec(package) is None:
        collect_ignore_glob += [f"src/ncelm/integrations/{package}.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests below ALONE as `serial`, and those below ALONE and SLOW as `slow`."""
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in ALONE):
            item.add_marker("serial")
        if any(item.path.is_relative_to(place) for place in (*ALONE, *SLOW)):
            item.add_marker("slow")
