"""ncelm.distributed.collective: one process, and the environment of torchrun."""

import subprocess
import sys

import numpy as np
import pytest

from ncelm.distributed import collective
from ncelm.distributed.collective import SingleProcess
from ncelm.io import machine

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"}


@pytest.fixture
def environment(monkeypatch):
    for name in (*TORCHRUN, "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return lambda **names: [monkeypatch.setenv(name, value) for name, value in names.items()]


def test_a_single_process_has_the_identity_as_collective(environment):
    group = collective.current()
    assert isinstance(group, SingleProcess)
    assert (group.rank, group.size, group.bytes_sent) == (0, 1, 0)
    array = np.arange(3.0)
    assert group.all_reduce(array) is array
    assert group.all_reduce_async(array)() is array
    assert group.broadcast(array) is array
    arrays = {"a": array.copy()}
    group.broadcast_arrays(arrays)
    group.register(arrays, {}, np.ones(3), 100)
    group.synchronize()
    group.synchronize(full=True)
    assert group.gather("text") == ["text"]
    collective.check_equal(group, {"token store": "a"})
    np.testing.assert_array_equal(arrays["a"], array)


def test_the_environment_of_torchrun_is_recognized(environment):
    assert not machine.started_by_torchrun()
    assert (machine.rank(), collective.local_world_size()) == (0, 1)
    environment(**TORCHRUN)
    assert machine.started_by_torchrun()
    assert (machine.rank(), collective.local_world_size()) == (1, 1)
    environment(LOCAL_WORLD_SIZE="2")
    assert collective.local_world_size() == 2
    environment(WORLD_SIZE="1")  # a single worker needs no process group
    assert not machine.started_by_torchrun()


def test_pytorch_is_not_imported_without_torchrun():
    script = "import sys; from ncelm.distributed import collective; collective.current(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
