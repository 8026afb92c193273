"""benchmarks/cluster.py: a fault on a simulated cluster of two hosts. It needs root and network namespaces."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "cluster.py"


@pytest.fixture(scope="module", autouse=True)
def cluster_hosts():
    pytest.importorskip("torch", reason="needs the extra `torch`")
    sys.path.insert(0, str(BENCHMARK.parent))
    try:
        import cluster_hosts
    finally:
        sys.path.remove(str(BENCHMARK.parent))
    if reason := cluster_hosts.unavailable():
        pytest.skip(reason)
    return cluster_hosts


def faults(store, folder, *options):
    command = [sys.executable, BENCHMARK, "faults", store.path, "--hosts", 2, "--times", 1, "--epochs", 2, *options]
    command += ["--history", folder / "history.jsonl", "--results", folder / "results.json"]
    train = ["--", "--context", "2", "--dim", "16", "--batch-size", "100"]
    return [str(word) for word in (*command, *train)]


def leftovers(pid):
    """Return the namespaces and directories of a benchmark."""
    places = [Path("/run/netns"), Path("/etc/netns"), Path("/tmp")]
    return [path for place in places if place.exists() for path in place.glob(f"ncelm-{pid}-*")]


@pytest.mark.slow
@pytest.mark.serial
def test_a_worker_with_another_option_stops_training_which_is_resumed(small_store, tmp_path):
    report = tmp_path / "report.md"
    command = faults(small_store, tmp_path, "--fault", "options", "--report", report)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert leftovers(process.pid) == []
    (trial,) = json.loads((tmp_path / "results.json").read_text())["faults"]["result"]["trials"]
    assert trial["outcome"] == "stopped"
    assert trial["lines"][0].startswith("ncelm: worker 1 has --batch-size 777, and worker 0 has 100: ")
    assert trial["resumed"]
    assert trial["problem"] is None
    assert "| an option differs on one node | 1 | 0 | 1 |" in report.read_text()


@pytest.mark.serial
def test_sigterm_removes_hosts_and_processes(cluster_hosts, tmp_path):
    script = (
        "import sys, time, pathlib, cluster_hosts as hosts\n"
        "hosts.exit_on_sigterm()\n"
        "with hosts.Cluster(2, '100mbit') as cluster:\n"
        "    cluster.launch(1, ['sleep', '600'], pathlib.Path(sys.argv[1]))\n"
        "    while not cluster.pids(1): pass\n"
        "    print(cluster.pids(1)[0], flush=True)\n"
        "    time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCHMARK.parent), *sys.path])}
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        inside = int(process.stdout.readline())
        assert len(leftovers(process.pid)) == 6  # three namespaces, two files of hosts, a directory
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    assert leftovers(process.pid) == []
    deadline = time.monotonic() + 10
    while cluster_hosts.state_of(inside) not in ("", "Z"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
