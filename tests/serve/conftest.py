"""A small model as a service."""

import re
import subprocess
import sys

import pytest

import ncelm


@pytest.fixture(scope="session")
def served_runs(small_store, tmp_path_factory):
    """Two runs: a log-bilinear model and a mixture of it with an n-gram model."""
    folder = tmp_path_factory.mktemp("serve")
    config = ncelm.TrainConfig().with_changes(epochs=2, dim=8, context=2)
    ncelm.train(small_store, folder / "neural", config, progress=False)
    ncelm.train_ngram(small_store, folder / "ngram", order=3, progress=False)
    ncelm.mix([folder / "neural", folder / "ngram"], folder / "mixture", progress=False)
    return folder


@pytest.fixture(scope="session")
def service(served_runs):
    from ncelm.serve.service import Limits, Service

    limits = Limits(body_bytes=20_000, words=500, texts=20, generated=200, body_seconds=1.0)
    service = Service([served_runs / "neural", served_runs / "mixture"], 1, limits)
    with service:
        service.warm_up()
        yield service


@pytest.fixture
def make_client(service):
    """Return a function that makes a client of the service with other options."""
    from starlette.testclient import TestClient

    from ncelm.serve.app import Options, create_app

    def make(service=service, **options):
        app = create_app(service, Options(allowed_hosts=("testserver",), **{"access_log": False, **options}))
        app.state.ready = True
        return TestClient(app, raise_server_exceptions=False)

    return make


@pytest.fixture
def client(make_client):
    return make_client()


@pytest.fixture
def serving(served_runs):
    """Start `ncelm serve`; return the process and its address."""
    processes = []

    def start(*options):
        command = [sys.executable, "-m", "ncelm", "serve", str(served_runs / "neural"), "--port", "0", *options]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        for line in process.stderr:
            if match := re.search(r"(http://\S+)/ ", line):
                return process, match[1]
        raise AssertionError("it has ended")

    yield start
    for process in processes:
        process.kill()
        process.communicate()
