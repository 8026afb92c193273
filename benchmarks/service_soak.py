"""Many requests to `ncelm serve`: valid, malformed, aborted and slow ones. Checks every status, memory and descriptors.

    python benchmarks/service_soak.py [RUN ...] [--requests 1000000] [--connections 64] [--slow 24] [--report FILE]

Without RUN, a log-bilinear and a trigram model of the text in tests/fixtures are trained first. Client and service
share the cores. The exit code is 1 if a check fails:

- a valid request has a status of 2xx, and the same response each time;
- a malformed request has a status of 4xx, and one response only;
- no status is 5xx, and the service prints no error;
- after the first tenth of the requests, memory grows by 5 % at most;
- at the end, all descriptors of connections are closed.
"""

import asyncio
import json
import random
import re
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import uvloop

import ncelm
from common import append_history, argument_parser, log, markdown_table, report_header
from ncelm.io.machine import environment_info
from service import Running, serving

TEXT = Path(__file__).parents[1] / "tests" / "fixtures" / "wizard_of_oz.txt"
MALFORMED, ABORTED = 0.1, 0.02  # parts of all requests
GROWTH = 0.05  # of memory, at most
TIMEOUT = 60.0  # seconds; the service answers within 30
MIB = 1 << 20
HTML = "<script>alert(1)</script>\x00\x1b[31m\u202e"


@dataclass(frozen=True)
class Request:
    """A request and the responses that are correct."""

    kind: str
    content: bytes
    statuses: tuple[int, ...] = (200,)
    repeatable: bool = False  # the response is always the same
    ends: bool = False  # the service may close the connection after the response: the next request needs another


def http(method: str, path: str, body: bytes | None = None, *headers: str) -> bytes:
    """Return the bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", *headers]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def post(path: str, content: Any) -> bytes:
    """Return the bytes of a request with JSON."""
    return http("POST", path, json.dumps(content).encode(), "content-type: application/json")


# -- requests ----------------------------------------------------------------------------------------------------------


def valid_requests(models: list[str], words: list[str], choose: random.Random) -> Iterator[tuple[float, Request]]:
    """Yield valid requests and how frequent their kinds are."""

    def text(n: int = 0) -> str:
        return " ".join(choose.choices(words, k=n or choose.randint(1, 12)))

    def kind(weight: float, name: str, path: str, *contents: Any, repeatable: bool = True) -> Iterator[Any]:
        for content in contents:
            request = Request(name, post(path, content), repeatable=repeatable)
            yield weight / len(contents), request

    many = range(40)
    model = models[0]
    yield from kind(25, "score", "/score", *({"texts": text()} for _ in many))
    yield from kind(12, "score", "/score", *({"texts": text(), "words": True, "model": models[-1]} for _ in many))
    yield from kind(8, "score", "/score", *({"texts": [text() for _ in range(5)], "words": True} for _ in many))
    yield from kind(5, "score", "/score", *({"texts": text(), "mode": "unnormalised"} for _ in many))
    odd: tuple[Any, ...] = (HTML, "", ["\n", " "], "é😀\u2028")
    yield from kind(1, "score", "/score", *({"texts": texts} for texts in odd))
    yield from kind(8, "perplexity", "/perplexity", *({"texts": [text(), text()]} for _ in many))
    yield from kind(8, "next words", "/next-words", *({"text": text(), "count": 5} for _ in many))
    sampling = ({"prompt": text(2), "seed": i, "max_words": 8, "top_k": 20 * (i % 2)} for i in many)
    for i, content in enumerate(sampling):
        yield from kind(4 / 40, "generate", "/generate", {**content, "count": 1 + i % 3})
        yield from kind(4 / 40, "generate, streamed", "/generate", {**content, "stream": True}, repeatable=False)
    gaps = [f"{text(2)} _____ {text(2)}" for _ in many]
    yield from kind(4, "complete", "/complete", *({"sentence": gap, "choices": words[5:9]} for gap in gaps))
    yield from kind(0.1, "complete", "/complete", *({"sentence": gap} for gap in gaps[:5]))
    yield from kind(4, "neighbours", "/neighbors", *({"word": word, "model": model} for word in words[:40]))
    openai = "/v1/completions"
    for weight, extra in ((3.0, {}), (3.0, {"echo": True, "logprobs": 1}), (2.0, {"stream": True})):
        contents = ({"model": model, "prompt": text(3), "max_tokens": 4, "seed": i, **extra} for i in many)
        yield from kind(weight, "/v1/completions" + ", streamed" * ("stream" in extra), openai, *contents,
                        repeatable=False)  # fmt: skip
    pages = {
        "models": ("/models", "/v1/models", f"/models/{model}/run", f"/models/{model}/map", f"/models/{model}/log-z"),
        "page": ("/", "/static/page.js", "/openapi.json"),
        "healthz": ("/healthz", "/readyz"),
        "metrics": ("/metrics",),
    }
    for (name, paths), weight in zip(pages.items(), (4, 1, 5, 2), strict=True):
        for path in paths:
            changing = path == "/metrics" or path.endswith("/run")  # which has the time
            request = Request(name, http("GET", path), repeatable=not changing)
            yield weight / len(paths), request


def malformed_requests(words: list[str]) -> Iterator[Request]:
    """Yield malformed requests, several of each kind."""
    for body in (b"", b"{", b'{"texts": "a"', b"texts", b'{"texts": NaN}', b"{'texts': 'a'}", b'{"texts": "a"} x'):
        yield Request("invalid JSON", http("POST", "/score", body), (400,))
    for body in (b'{"texts": "\xff\xfe"}', b'\xef\xbb\xbf\x80{"texts": 1}', b'{"texts": "\\ud800"}', b"\x00" * 20):
        yield Request("invalid UTF-8", http("POST", "/score", body), (400,))
    for opening in (b"[", b'{"texts": [', b'{"a":'):
        yield Request("deep nesting", http("POST", "/score", opening * 20_000), (400,))
    nested: Any = "a"
    for _ in range(200):
        nested = [nested]
    yield Request("deep nesting", post("/score", {"texts": nested}), (422,))
    wrong: dict[str, list[Any]] = {
        "/score": [[], "a", None, 3, {"texts": 1}, {"texts": [1]}, {"texts": None}, {"texts": "a", "words": "yes"},
                   {"texts": "a", "mode": "fast"}, {"texts": "a", "model": 5}, {"text": "a"}, {"texts": []}, {}],
        "/perplexity": [{"texts": {}}, {"texts": ["a", None]}, {"texts": "a", "mode": "exact"}],
        "/next-words": [{"text": 1}, {"count": 0}, {"count": 1.5}, {"count": 10**30}, {"count": True}],
        "/generate": [{"count": -1}, {"max_words": 0}, {"seed": -1}, {"seed": 2**60}, {"temperature": -1},
                      {"temperature": "hot"}, {"top_p": 0}, {"min_p": 2}, {"stream": 1},
                      {"count": 1000, "max_words": 999}, {"top_p": 10**400}, {"temperature": 1e999}],
        "/complete": [{"sentence": 1}, {"sentence": "no gap"}, {"sentence": "_____", "choices": []},
                      {"sentence": "_____", "choices": [1]}, {"sentence": "_____", "unknown": "other"}, {}],
        "/neighbors": [{"word": []}, {}, {"word": "zzzzqqqq"}, {"word": words[0], "count": -5}, {"word": HTML}],
        "/v1/completions": [{"prompt": 1}, {"prompt": [[]]}, {"prompt": [-1]}, {"prompt": [10**9]},
                            {"prompt": ["a", 1]}, {"max_tokens": -1}, {"n": 0}, {"logprobs": 1000}, {"stop": 1},
                            {"prompt": "a", "echo": 1}, {"prompt": ["a", "b"], "stream": True}],
    }  # fmt: skip
    for path, contents in wrong.items():
        for content in contents:
            body = json.dumps(content).replace("Infinity", "1e999")
            yield Request("wrong type or value", http("POST", path, body.encode()), (400, 422))
    names = ["other", "", "../../etc/passwd", "/etc/passwd", "..\\..\\x", HTML, "a" * 5000, "neural\n", "ne\x00ural"]
    for name in names:
        kind = "path as a model" if "etc" in name or "\\" in name else "unknown model"
        yield Request(kind, post("/score", {"texts": "a", "model": name}), (404,))
        yield Request(kind, post("/v1/completions", {"prompt": "a", "model": name}), (404,))
    for path in ("..%2f..%2fetc%2fpasswd", "%2e%2e", "other", "%00", "%ff%fe", "%3Cscript%3E"):
        yield Request("path as a model", http("GET", f"/models/{path}/run"), (404,))
    for path in ("/other", "/score/", "/static/../../pyproject.toml", "/static/%2e%2e/app.py", "/?/..", "//", "/%00",
                 "/static/app.py", "/<script>", "/models/a/b/c", "/v1/chat/completions"):  # fmt: skip
        if path != "/?/..":
            yield Request("unknown path", http("GET", path), (400, 404), ends=True)
    for method, path in (("DELETE", "/score"), ("GET", "/score"), ("PUT", "/models"), ("POST", "/models"),
                         ("OPTIONS", "/score"), ("PATCH", "/"), ("TRACE", "/"), ("POST", "/metrics")):  # fmt: skip
        yield Request("unknown method", http(method, path), (405,))
    for method in ("BREW", "get", "GE\x00T"):
        yield Request("unknown method", http(method, "/models"), (400,), ends=True)
    for host in ("example.org", "127.0.0.1.example.org", "<b>", ""):
        content = f"GET /models HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()
        yield Request("other host", content, (400,), ends=True)
    yield Request("other host", b"GET /models HTTP/1.1\r\n\r\n", (400,), ends=True)
    long = json.dumps({"texts": "word " * 25_000}).encode()
    yield Request("too large", http("POST", "/score", long), (413,))
    yield Request("too large", post("/score", {"texts": ["a"] * 1001}), (422,))
    yield Request("too large", post("/v1/completions", {"prompt": "a " * 20_000}), (413,))
    head = http("POST", "/score", None, f"content-length: {3 * MIB}")
    yield Request("too large", head + b"{", (413,), ends=True)
    yield Request("too large", http("POST", "/score", None, f"content-length: {10**18}") + b"{", (413,), ends=True)
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [b" " * 65_000] * 17)
    yield Request("too large", http("POST", "/score", None, "transfer-encoding: chunked") + chunks + b"0\r\n\r\n",
                  (413,), ends=True)  # fmt: skip
    yield Request("too large", http("GET", "/models", None, "x-long: " + "a" * 300_000), (400, 413, 431), ends=True)
    yield Request("too large", http("GET", "/" + "a" * 300_000), (400, 404, 413, 414, 431), ends=True)
    hidden = b"GET /hidden HTTP/1.1\r\nhost: localhost\r\n\r\n"
    for headers, body in (
        (("content-length: -1",), b"{}"),
        (("content-length: +5",), b"{}   "),
        (("content-length: 5x",), b"hello"),
        (("content-length: 0x5",), b"hello"),
        (("content-length: 99999999999999999999999",), b"hello"),
        (("content-length: 5", "content-length: 50"), b"hello"),
        (("content-length: 5", "content-length: 5"), b"hello" + hidden),
        (("content-length: 5, 6",), b"hello" + hidden),
        (("content-length: 5", "transfer-encoding: chunked"), b"0\r\n\r\n" + hidden),
        (("transfer-encoding: chunked", "content-length: 5"), b"0\r\n\r\n" + hidden),
        (("transfer-encoding: chunked, identity",), b"0\r\n\r\n" + hidden),
        (("transfer-encoding: xchunked",), b"0\r\n\r\n" + hidden),
        (("transfer-encoding: chunked",), b"zz\r\n{}\r\n0\r\n\r\n" + hidden),
        (("transfer-encoding: chunked",), b"2\r\n{}}}\r\n0\r\n\r\n" + hidden),
        (("transfer-encoding: chunked",), b"-2\r\n{}\r\n0\r\n\r\n"),
        (("transfer-encoding : chunked",), b"0\r\n\r\n" + hidden),
        (("x: a\x00b",), b""),
        ((" folded: x",), b""),
        (("x y: z",), b""),
        (("no colon",), b""),
    ):
        yield Request("framing", http("POST", "/score", None, *headers) + body, (400,), ends=True)
    lines = (b"\x00\x01\x02", b"GET / HTTP/9.9", b"GET  HTTP/1.1", b"\x16\x03\x01\x02\x00\x01", b"GET /models",
             b"HTTP/1.1 200 OK", b"GET http:///x HTTP/1.1")  # fmt: skip
    for line in lines:
        content = line + b"\r\n\r\n"
        yield Request("framing", content, (400,), ends=True)


# -- client ------------------------------------------------------------------------------------------------------------


def parse_response(received: bytearray) -> tuple[int, int] | None:
    """Return the status and the length of the first response, or None if it is not complete."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(received[:end]).lower()
    status = int(head[9:12])
    if b"\r\ntransfer-encoding: chunked" in head:
        last = received.find(b"\r\n0\r\n\r\n", end + 2)
        return None if last < 0 else (status, last + 7)
    length = re.search(rb"\r\ncontent-length: (\d+)", head)
    size = end + 4 + (int(length[1]) if length else 0)
    return (status, size) if len(received) >= size else None


class Connection(asyncio.Protocol):
    """A connection that has one request at a time."""

    def __init__(self) -> None:
        self.received, self.closed = bytearray(), False
        self.changed: asyncio.Future[None] | None = None
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Keep what was received."""
        self.received += data
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Note that the connection is closed."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        if self.changed and not self.changed.done():
            self.changed.set_result(None)

    async def wait(self) -> None:
        """Return when more has been received, or when the connection is closed."""
        if not self.closed:
            self.changed = asyncio.get_running_loop().create_future()
            await self.changed

    async def response(self) -> tuple[int, bytes]:
        """Return the status and the bytes of the next response; 0 if the connection is closed before."""
        while (found := parse_response(self.received)) is None:
            if self.closed:
                return 0, b""
            await self.wait()
        status, size = found
        content = bytes(self.received[:size])
        del self.received[:size]
        return status, content

    def drop(self, reset: bool = False) -> None:
        """Close the connection; with `reset`, by a TCP reset."""
        if not self.closed and reset:
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if not self.closed:
            self.transport.abort()


@dataclass
class Soak:
    """The client, and what it has counted."""

    address: tuple[str, int]
    requests: int
    valid: list[Request]
    weights: list[float]
    malformed: list[Request]
    sent: int = 0
    stopped: bool = False
    statuses: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # (group, kind, status)
    problems: Counter[str] = field(default_factory=Counter)
    seen: dict[bytes, int] = field(default_factory=dict)  # request → hash of its response
    samples: list[tuple[int, int, int]] = field(default_factory=list)  # requests, RSS, descriptors

    async def connect(self) -> Connection:
        """Return a new connection."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, *self.address)
        return connection

    def count(self, group: str, request: Request, status: int | str) -> None:
        """Count a response, and note a wrong one."""
        self.statuses[group, request.kind, str(status)] += 1
        if status not in request.statuses:
            self.problems[f"{group}, {request.kind}: {status} for {request.content[:150]!r}"] += 1

    async def worker(self, seed: int) -> None:
        """Send requests until enough are sent."""
        choose = random.Random(seed)
        connection = await self.connect()
        while self.sent < self.requests:
            self.sent += 1
            share = choose.random()
            if connection.closed:
                connection = await self.connect()
            if share < MALFORMED:
                await self.send_malformed(connection, choose.choice(self.malformed))
            elif share < MALFORMED + ABORTED:
                await self.abort(connection, choose)
            else:
                await self.send_valid(connection, choose.choices(self.valid, cum_weights=self.weights)[0])
        connection.drop()

    async def send_valid(self, connection: Connection, request: Request) -> None:
        """Send a valid request, and compare its response with earlier ones."""
        connection.transport.write(request.content)
        status, content = await self.limited(connection)
        if status == 0:  # the service has closed an idle connection at the same moment: HTTP clients repeat the request
            self.statuses["closed before the request", request.kind, "–"] += 1
            return
        self.count("valid", request, status)
        if request.repeatable and self.seen.setdefault(request.content, hash(content)) != hash(content):
            self.problems[f"another response than before: {request.content[:150]!r}"] += 1
        if connection.received:
            self.problems[f"more than one response: {request.content[:150]!r}"] += 1

    async def send_malformed(self, connection: Connection, request: Request) -> None:
        """Send a malformed request. There must be one response, also if the content looks like two requests."""
        connection.transport.write(request.content)
        status, _ = await self.limited(connection)
        self.count("malformed", request, status)
        if request.ends:
            if request.kind == "framing":
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):  # for a second response, which would be wrong
                        await connection.wait()
            connection.drop()
            connection.closed = True
        if connection.received:
            self.problems[f"more than one response: {request.content[:150]!r}"] += 1

    async def limited(self, connection: Connection) -> tuple[int, bytes]:
        """Return a response, or status −1 after a minute."""
        try:
            async with asyncio.timeout(TIMEOUT):
                return await connection.response()
        except TimeoutError:
            connection.drop()
            connection.closed = True
            return -1, b""

    async def abort(self, connection: Connection, choose: random.Random) -> None:
        """Close a connection before the request is complete, before its response, or within it."""
        place = choose.choice(["in the head", "in the body", "before the response", "in the response"])
        streamed = [request for request in self.valid if "streamed" in request.kind]
        requests = streamed if place == "in the response" else self.valid
        content = choose.choice(requests).content
        if place == "in the head":
            content = content[: choose.randint(1, 25)]
        elif place == "in the body":
            content = content[:-1]
        connection.transport.write(content)
        if place == "in the response":
            with suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT):
                    await connection.wait()
        else:
            await asyncio.sleep(choose.choice([0, 0.001]))
        connection.drop(reset=choose.random() < 0.5)
        connection.closed = True
        self.statuses["aborted", place, "–"] += 1

    async def slow(self, seed: int) -> None:
        """Send slow requests, one after another, until the others are sent."""
        choose = random.Random(seed)
        while not self.stopped:
            name = ("body within 2 s", "body never ends", "head never ends", "no request")[seed % 4]
            connection = await self.connect()
            began = time.monotonic()
            if name == "body within 2 s":
                request = choose.choice([request for request in self.valid if b"content-length" in request.content])
                head, body = request.content.split(b"\r\n\r\n", 1)
                connection.transport.write(head + b"\r\n\r\n")
                size = max(len(body) // 20, 1)
                for first in range(0, len(body), size):
                    connection.transport.write(body[first : first + size])
                    await asyncio.sleep(0.1)
                status, _ = await self.limited(connection)
                self.count("slow", Request(name, request.content), status)
            else:
                start = {"body never ends": http("POST", "/score", None, "content-length: 500") + b'{"texts": "',
                         "head never ends": b"POST /score HTTP/1.1\r\nhost: localhost\r\nx: ",
                         "no request": b""}[name]  # fmt: skip
                connection.transport.write(start)
                while not connection.closed and time.monotonic() - began < TIMEOUT:
                    if start:
                        connection.transport.write(b"a")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.2):
                            await connection.wait()
                    if self.stopped and not connection.received:
                        connection.drop()
                        return
                found = parse_response(connection.received)
                wanted = (0,) if name == "no request" else (408,)
                state = found[0] if found else 0 if connection.closed else -1
                if not connection.closed:
                    self.problems[f"slow, {name}: the connection is still open after {TIMEOUT:g} s"] += 1
                self.count("slow", Request(name, start, wanted), state)
            connection.drop()

    async def sample(self, process: psutil.Process) -> None:
        """Sample the memory and the descriptors of the service."""
        reported = 0
        while not self.stopped:
            self.samples.append((self.sent, process.memory_info().rss, process.num_fds()))
            if self.sent - reported >= self.requests // 20:
                reported = self.sent
                rss, fds = self.samples[-1][1:]
                problems = sum(self.problems.values())
                log(f"{reported:,} requests, {rss / MIB:.1f} MiB, {fds} descriptors, {problems} problems")
            await asyncio.sleep(0.5)

    async def run(self, connections: int, slow: int, process: psutil.Process) -> None:
        """Send all requests."""
        others = [asyncio.create_task(self.slow(seed)) for seed in range(slow)]
        others.append(asyncio.create_task(self.sample(process)))
        await asyncio.gather(*(self.worker(1000 + seed) for seed in range(connections)))
        self.stopped = True
        await asyncio.gather(*others)


# -- run and report ----------------------------------------------------------------------------------------------------


def train_models(folder: Path) -> list[Path]:
    """Return two runs with small models of real text."""
    store = ncelm.prepare([TEXT], out=folder / "store", lowercase=True, min_count=2, valid_sentences=200,
                          test_sentences=200, punkt="train")  # fmt: skip
    ncelm.train(store, folder / "neural", context=3, dim=16, epochs=2, progress=False)
    ncelm.train_ngram(store, folder / "ngram", order=3, progress=False)
    return [folder / "neural", folder / "ngram"]


def soak(service: Running, runs: list[Path], requests: int, connections: int, slow: int) -> dict[str, Any]:
    """Send all requests to a service, and return what was counted."""
    models = [each["name"] for each in json.loads(service.get("/models"))["models"]]
    words = [word for word in ncelm.load(runs[0]).vocabulary.words if word.isalpha()][:1000]
    weights, valid = zip(*valid_requests(models, words, random.Random(0)), strict=True)
    total, cumulative = 0.0, []
    for weight in weights:
        total += weight
        cumulative.append(total)
    process = psutil.Process(service.process.pid)
    before = process.num_fds()
    client = Soak(service.address, requests, list(valid), cumulative, list(malformed_requests(words)))
    began = time.monotonic()
    uvloop.run(client.run(connections, slow, process))
    seconds = time.monotonic() - began
    time.sleep(3)
    after = process.num_fds()
    later = [rss for sent, rss, _ in client.samples if sent >= requests / 10]
    growth = max(later) / later[0] - 1
    problems = dict(client.problems.most_common())
    if growth > GROWTH:
        problems[f"memory has grown by {100 * growth:.1f} %"] = 1
    if after > before:
        problems[f"{after - before} descriptors are still open"] = 1
    printed = [line for line in service.log.read_text(errors="replace").splitlines()[1:]
               if "Invalid HTTP request received" not in line]  # fmt: skip
    for line in printed[:20]:
        problems[f"the service has printed: {line}"] = 1
    service.get("/healthz")
    if "ncelm_running_requests 1\n" not in service.get("/metrics"):
        problems["requests are still running"] = 1
    return {
        "statuses": client.statuses, "problems": problems, "seconds": seconds,
        "requests_per_second": requests / seconds,
        "rss_start": later[0], "rss_largest": max(later), "rss_end": later[-1], "growth": growth,
        "descriptors_before": before, "descriptors_largest": max(fds for *_, fds in client.samples),
        "descriptors_after": after,
    }  # fmt: skip


def page(result: dict[str, Any], requests: int, connections: int, slow: int, runs: list[Path]) -> str:
    """Return the results in Markdown."""
    statuses: Counter[tuple[str, str, str]] = result["statuses"]
    models = ", ".join(f"{lm.model} (vocabulary of {len(lm.vocabulary):,})" for lm in map(ncelm.load, runs))
    errors = sum(count for (_, _, status), count in statuses.items() if status.startswith("5"))
    malformed = sum(count for (group, _, _), count in statuses.items() if group == "malformed")
    refused = sum(count for (group, _, status), count in statuses.items() if group == "malformed" and status[0] == "4")
    lines = [
        *report_header("Service: many and malformed requests", result),
        f"{requests:,} requests in {result['seconds']:,.0f} s ({result['requests_per_second']:,.0f} requests/s; client "
        f"and service share the cores, at low priority) over {connections} connections that are kept open, and slow "
        f"requests over {slow} others. Models: {models}.",
        "",
        *markdown_table(
            ["check", "result"],
            [
                ["responses with status 5xx", f"{errors}"],
                ["malformed requests with status 4xx", f"{refused:,} of {malformed:,}"],
                ["other failures of checks", f"{sum(result['problems'].values())}"],
                [
                    "memory after the first tenth of the requests, largest, at the end",
                    ", ".join(f"{result[name] / MIB:.1f} MiB" for name in ("rss_start", "rss_largest", "rss_end")),
                ],
                ["largest growth of memory after the first tenth", f"{100 * result['growth']:.1f} % (limit: 5 %)"],
                [
                    "descriptors before, most, after",
                    ", ".join(str(result[f"descriptors_{name}"]) for name in ("before", "largest", "after")),
                ],
            ],
        ),
        "",
        "A response to a valid request that does not depend on time is compared with earlier responses to the same "
        "request. A malformed request has one response: what follows it in the same bytes is no other request.",
        "",
        *markdown_table(
            ["requests", "kind", "status", "number"],
            [[*key, f"{count:,}"] for key, count in sorted(statuses.items())],
        ),
    ]
    if result["problems"]:
        lines += ["", "## Failures", "", *(f"- {count} × `{problem}`" for problem, count in result["problems"].items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the soak test."""
    parser = argument_parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="run directories")
    parser.add_argument("--requests", type=int, default=1_000_000, help="number of requests (1,000,000)")
    parser.add_argument("--connections", type=int, default=64, help="connections that are kept open (64)")
    parser.add_argument("--slow", type=int, default=24, help="connections with slow requests (24)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page in Markdown")
    options = parser.parse_args()
    result: dict[str, Any] = environment_info("numpy", "numba", "starlette", "uvicorn", "httptools", "uvloop")
    with ExitStack() as stack:
        runs = options.runs or train_models(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        service = stack.enter_context(serving(runs))
        result |= soak(service, runs, options.requests, options.connections, options.slow)
        if options.report:
            options.report.write_text(page(result, options.requests, options.connections, options.slow, runs))
    figures = {name: result[name] for name in ("requests_per_second", "growth")}
    append_history(options.history, result, figures)
    for problem, count in result["problems"].items():
        log(f"{count} × {problem}")
    if options.json:
        statuses = [[*key, count] for key, count in sorted(result.pop("statuses").items())]
        print(json.dumps(result | {"statuses": statuses}))
    if result["problems"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
