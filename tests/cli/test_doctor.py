"""`ncelm doctor`."""

import json

import pytest
from tests.distributed.launch import finish, torchrun


def test_doctor_needs_torchrun(fails):
    fails(["doctor"], "give --distributed, and start it with torchrun")
    fails(["doctor", "--distributed"], "--distributed needs several workers: start it with torchrun")


@pytest.mark.slow
@pytest.mark.serial
def test_two_workers_are_checked(cycle_store, tmp_path):
    pytest.importorskip("torch", reason="needs the extra `torch`")
    arguments = ["doctor", "--distributed", cycle_store.path, "--out", tmp_path / "run", "--threads", "1", "--json"]
    _, out, err = finish(torchrun(arguments))  # two processes may be slower than one with this text: not asserted
    found = {finding["name"]: finding for finding in json.loads(out)["findings"]}
    assert found["workers"]["text"].startswith("2 ("), err
    for name in ("name resolution", "versions", "clock", "token store", "shared directory", "latency", "bandwidth"):
        assert found[name]["ok"], found[name]
    assert "words/s of one worker, by the cost model" in found["predicted speed-up"]["text"]
