"""`ncelm serve` as a process: addresses, signals, several models."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from ncelm.io.files import exclusive_lock

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

pytestmark = pytest.mark.serial


def post(url, content, timeout=30):
    request = urllib.request.Request(url, json.dumps(content).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.load(response)


def test_a_request_and_the_signals(serving):
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        process, url = serving("--no-access-log")
        assert post(f"{url}/score", {"texts": "a"})["model"] == "neural"
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == code
        assert errors == f"ncelm: stopped by {'SIGTERM' if code == 143 else 'Ctrl-C'}\n"


def test_the_client_of_openai(serving):
    """The official client works unchanged, also with streaming and log-probabilities."""
    openai = pytest.importorskip("openai", reason="needs the package openai")
    _, url = serving("--no-access-log", "--token", "secret")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0)
    (model,) = client.models.list().data
    request = {"model": model.id, "prompt": "the", "max_tokens": 5, "seed": 3}
    whole = client.completions.create(**request, logprobs=2, echo=True)
    (choice,) = whole.choices
    assert choice.text.startswith("the")
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == len(choice.text.split())
    assert whole.usage.prompt_tokens == 1
    streamed = "".join(part.choices[0].text for part in client.completions.create(**request, stream=True))
    assert ["the", *streamed.split()] == choice.text.split()
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        client.completions.create(model="other", prompt="the")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list()


def test_running_requests_are_finished(serving):
    process, url = serving("--no-access-log")
    results = []
    work = {"count": 200, "max_words": 100, "top_k": 5}
    thread = threading.Thread(target=lambda: results.append(post(f"{url}/generate", work)))
    thread.start()
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    thread.join(30)
    process.communicate(timeout=30)
    assert len(results[0]["sentences"]) == 200
    assert process.returncode == 143


def test_slow_bodies_and_idle_connections(serving):
    _, url = serving("--no-access-log")
    host, port = url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(200)]
    slow = socket.create_connection((host, int(port)))
    slow.sendall(b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
    assert post(f"{url}/score", {"texts": "a"})["model"] == "neural"
    slow.settimeout(30)
    assert b" 408 " in slow.recv(1000)
    for connection in [*idle, slow]:
        connection.close()
    assert post(f"{url}/score", {"texts": "a"})["model"] == "neural"


def received(connection, timeout=40):
    """Return everything until the service closes the connection."""
    connection.settimeout(timeout)
    found = b""
    while data := connection.recv(10_000):
        found += data
    return found


@pytest.mark.slow
def test_slow_clients_are_disconnected(serving):
    """Whatever a client sends slowly, or does not send, the service closes the connection in the end."""
    _, url = serving("--no-access-log")
    host, port = url.removeprefix("http://").split(":")
    starts = {
        "nothing": b"",
        "head": b"POST /score HTTP/1.1\r\nhost: local",
        "body": b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
        "body that is not read": b"POST /other HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
    }
    connections = {name: socket.create_connection((host, int(port))) for name in starts}
    for name, connection in connections.items():
        connection.sendall(starts[name])
    time.sleep(1)
    for name, connection in connections.items():
        connection.sendall(starts[name] and b"a")  # a byte later does not prolong it for ever
    statuses = {name: received(connection)[9:12] for name, connection in connections.items()}
    assert statuses == {"nothing": b"", "head": b"408", "body": b"408", "body that is not read": b"404"}
    for connection in connections.values():
        connection.close()


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"], ids=["incomplete", "complete"])
def test_the_size_of_headers_is_limited(serving, end):
    _, url = serving("--no-access-log")
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET /models HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 70_000 + end)
        connection.settimeout(20)
        assert connection.recv(10_000).startswith(b"HTTP/1.1 431 ")
    with socket.create_connection((host, int(port))) as connection:
        body = b'{"texts": "' + b"a " * 9000 + b'"}'  # the limit is not one of bodies
        connection.sendall(
            b"POST /score HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 60_000 + b"\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        assert received(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "bytes",
    [
        b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"POST /score HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 50\r\n\r\nhello",
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
    ids=["both-lengths", "two-lengths", "bytes", "version"],
)  # fmt: skip
def test_malformed_http(serving, bytes):
    _, url = serving("--no-access-log")
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(bytes)
        connection.settimeout(20)
        answer = connection.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 4") or answer == b""
    assert answer.count(b"HTTP/1.1") <= 1  # no second response: nothing was smuggled
    assert post(f"{url}/score", {"texts": "a"})["model"] == "neural"


def test_a_run_in_its_first_epoch_is_waited_for(served_runs, tmp_path):
    """Before the first epoch ends there is no model: the service starts when there is one."""
    run = Path(shutil.copytree(served_runs / "neural", tmp_path / "new"))
    model = (run / "model.safetensors").rename(tmp_path / "later")
    command = [sys.executable, "-m", "ncelm", "serve", str(run), "--port", "0", "--no-access-log"]
    with exclusive_lock(run / "train.lock", "busy"):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert "before the first epoch of its training ends: waiting" in process.stderr.readline()
            model.rename(run / "model.safetensors")
            assert "http://" in process.stderr.readline()
        finally:
            process.kill()
            process.communicate()


def test_other_addresses_need_a_token(served_runs):
    command = [sys.executable, "-m", "ncelm", "serve", str(served_runs / "neural"), "--host", "0.0.0.0", "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "NCELM_TOKEN"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert done.returncode == 2
    assert "give a --token" in done.stderr.splitlines()[-1]


def test_errors(served_runs, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for arguments, fragment in (
            ([str(served_runs / "neural"), "--port", str(port)], "give another --port"),
            ([str(tmp_path / "nothing")], "nothing"),
        ):
            command = [sys.executable, "-m", "ncelm", "serve", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 2
            assert fragment in done.stderr.splitlines()[-1]
