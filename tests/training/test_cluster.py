"""ncelm.training.cluster: findings about simulated groups of workers, and the cost model."""

import numpy as np
import pytest

from ncelm.distributed import network
from ncelm.distributed.collective import SingleProcess
from ncelm.errors import NcelmError
from ncelm.training import cluster
from ncelm.training.adaptive import default_config
from ncelm.training.cluster import CostModel, check_cluster, check_group


class Group(SingleProcess):
    """Rank 0 of a group whose other workers send what `answers` returns for the text of rank 0."""

    size = 2

    def __init__(self, answer=lambda text: text):
        self.answer, self.bytes_sent = answer, 0

    def gather(self, text):
        self.bytes_sent += len(text)
        return [text, self.answer(text)]

    def all_reduce(self, array):
        return array + array


def findings(group, *arguments):
    return {finding.name: finding for finding in check_cluster(group, *arguments)}


@pytest.fixture(autouse=True)
def small_probe(monkeypatch):
    monkeypatch.setattr(cluster, "PROBE_BYTES", 100)


def test_a_group_without_differences_has_no_problem(cycle_store, tmp_path, monkeypatch):
    monkeypatch.setattr(network, "host_address", lambda: "192.0.2.1")
    config = default_config(1000, 22)
    found = findings(Group(), cycle_store, tmp_path / "run", config, 1e4)
    assert " times the 10,000 words/s of one worker, by the cost model" in found.pop("predicted speed-up").text
    assert all(finding.ok for finding in found.values()), found
    assert set(found) >= {"name resolution", "versions", "clock", "token store", "shared directory", "bandwidth"}
    assert list(tmp_path.iterdir()) == []  # the probe is removed


@pytest.mark.parametrize(
    ("host", "others", "problem"),
    [
        ("127.0.1.1", "192.0.2.9", "resolves to 127.0.1.1 on worker 0: ncelm chooses the network interface itself"),
        ("", "192.0.2.9", "does not resolve on worker 0: add it to /etc/hosts"),
    ],
)
def test_a_host_name_that_others_cannot_use_is_a_problem(monkeypatch, host, others, problem):
    monkeypatch.setattr(network, "addresses", lambda: {"192.0.2.8": "eth0"})
    monkeypatch.setattr(network, "host_address", lambda: host)
    found = findings(Group(lambda text: others if text == "192.0.2.8" else text), None, None, None, 0.0)
    assert not found["name resolution"].ok
    assert problem in found["name resolution"].text


@pytest.mark.parametrize(
    ("name", "start", "answer", "problem"),
    [
        ("versions", "ncelm ", "ncelm 0.0.1", "ncelm 0.0.1 on worker 1, and ncelm "),
        ("token store", "fingerprint", "other", "other on worker 1, and "),
        ("shared directory", "yes", "", "of worker 1 is not that of worker 0: put the run directory on a disk"),
        ("clock", "1", "1000000000.0", "between workers: synchronise the clocks"),
    ],
)
def test_differences_between_workers_are_problems(cycle_store, tmp_path, name, start, answer, problem):
    start = cycle_store.fingerprint[:16] if start == "fingerprint" else start

    def other(text):
        return answer if text.startswith(start) and (name != "clock" or len(text) > 12) else text

    found = findings(Group(other), cycle_store, tmp_path / "run", None, 0.0)
    assert not found[name].ok
    assert problem in found[name].text


def test_a_directory_that_cannot_be_written_is_a_problem(tmp_path):
    found = findings(Group(), None, tmp_path / "missing" / "run", None, 0.0)
    assert not found["shared directory"].ok
    assert "is not writable on worker 0" in found["shared directory"].text


def test_one_process_is_an_error():
    with pytest.raises(NcelmError, match="`distributed` needs several workers: start it with torchrun"):
        check_group(SingleProcess())
    check_group(Group())


def test_the_predicted_speed_up_depends_on_network_and_model():
    fast = CostModel(500_000, 10_000, 100, 12.5e9, 1e-5)
    slow = CostModel(500_000, 10_000, 100, 12.5e6, 1e-5)
    large = CostModel(500_000, 1_000_000, 100, 12.5e6, 1e-5)
    speed_ups = [model.speed_up(4, 10**9) for model in (fast, slow, large)]
    assert 4.0 > speed_ups[0] > speed_ups[1] > speed_ups[2] > 0.0
    free = CostModel(500_000, 1, 1, 1e12, 0.0, peer_seconds=0.0)
    assert np.isclose(free.speed_up(8, 10**9), 8.0, rtol=1e-3)
    assert CostModel(500_000, 1, 1, 1e12, 0.0, peer_seconds=0.01).speed_up(8, 10**9) < 7.0
