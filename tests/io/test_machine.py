"""Machine information."""

import json
import os

import pytest

from ncelm.errors import NcelmError
from ncelm.io import machine


def test_environment_info_is_json():
    info = machine.environment_info("numpy")
    assert json.loads(json.dumps(info)) == info
    assert set(info["versions"]) == {"python", "numpy"}
    assert info["cpu"]
    assert 1 <= info["cores"] <= (os.cpu_count() or 1)


def test_memory(monkeypatch):
    assert machine.total_memory() > 1 << 20
    machine.check_memory("this", 1, "give less")
    with pytest.raises(NcelmError, match=r"this would take about 1,000,000.0 GB .*: give less$"):
        machine.check_memory("this", 10**15, "give less")
    monkeypatch.setattr(machine, "total_memory", lambda: None)
    machine.check_memory("this", 10**15, "give less")
