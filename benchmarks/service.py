"""Requests per second of `ncelm serve` on loopback, with micro-batching and without it.

    python benchmarks/service.py RUN [--connections 64] [--seconds 10] [--words 20] [--report FILE]

Needs `wrk` (a Debian package). Each request scores one sentence of `--words` words of the vocabulary of RUN; the
sentences differ. Client and service share the cores.
"""

import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import append_history, argument_parser, log, markdown_table, report_header
from ncelm import load
from ncelm.io.machine import environment_info

SCRIPT = """
local bodies = {{ {bodies} }}
local i = 0
request = function()
  i = i % #bodies + 1
  return wrk.format("POST", "/score", {{["content-type"] = "application/json"}}, bodies[i])
end
done = function(summary, latency, requests)
  io.write(string.format("RESULT %d %d %d %d %f %f %f\\n", summary.requests, summary.duration,
    summary.errors.status, summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    latency:percentile(50), latency:percentile(99), latency.max))
end
"""


def bodies_of(run: Path, words: int, mode: str, count: int = 500) -> list[str]:
    """Return requests with random sentences."""
    vocabulary = [word for word in load(run).vocabulary.words if word.isalpha()]
    choose = random.Random(0)
    sentences = (" ".join(choose.choices(vocabulary[:5000], k=words)) for _ in range(count))
    return [json.dumps({"texts": sentence, "mode": mode}) for sentence in sentences]


@dataclass(frozen=True)
class Running:
    """A service that is running."""

    process: "subprocess.Popen[bytes]"
    url: str
    log: Path  # what it prints to standard error

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def get(self, path: str) -> str:
        """Return the response of a request."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as response:
            return str(response.read().decode())


@contextmanager
def serving(runs: Sequence[Path], *options: str) -> Iterator[Running]:
    """Start `ncelm serve` on a free port of the loopback address; yield the service, and stop it at the end."""
    with tempfile.TemporaryDirectory() as folder:
        log_file = Path(folder, "log")
        command = [sys.executable, "-m", "ncelm", "serve", *map(str, runs), "--port", "0", "--no-access-log", *options]
        with log_file.open("wb") as file:
            process = subprocess.Popen(command, stderr=file)
        try:
            while not (match := re.search(r"(http://\S+)/ ", log_file.read_text(errors="replace"))):
                if process.poll() is not None:
                    raise SystemExit(f"the service has not started: {log_file.read_text(errors='replace').strip()}")
                time.sleep(0.1)
            yield Running(process, match[1], log_file)
        finally:
            process.terminate()
            process.wait()


def measure(run: Path, mode: str, batching: bool, connections: int, seconds: int, words: int) -> dict[str, Any]:
    """Start a service, load it, and return what wrk reports."""
    with serving([run], *([] if batching else ["--no-batching"])) as service:
        url = service.url
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
            bodies = ", ".join(f"[==[{body}]==]" for body in bodies_of(run, words, mode))
            script.write(SCRIPT.format(bodies=bodies))
            script.flush()
            wrk = ["wrk", "-t1", f"-c{connections}", "--timeout", "30s", "-s", script.name]
            subprocess.run([*wrk, "-d2s", url], check=True, capture_output=True)  # warm-up
            done = subprocess.run([*wrk, f"-d{seconds}s", url], check=True, capture_output=True, text=True)
        found = re.search(r"RESULT (.*)", done.stdout)
        assert found, done.stdout
        requests, duration, status, errors, p50, p99, largest = map(float, found[1].split())
        metrics = service.get("/metrics")
        jobs, batches = (float(re.search(rf"^ncelm_{name}_total (\d+)", metrics, re.MULTILINE)[1])  # type: ignore[index]
                         for name in ("batched_jobs", "batches"))  # fmt: skip
        return {
            "mode": mode, "batching": batching, "requests_per_second": 1e6 * requests / duration,
            "errors": int(status + errors), "p50_ms": p50 / 1000, "p99_ms": p99 / 1000, "max_ms": largest / 1000,
            "jobs_per_batch": jobs / max(batches, 1),
        }  # fmt: skip


def main() -> None:
    """Measure all combinations."""
    parser = argument_parser(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--connections", type=int, default=64, help="concurrent connections (64)")
    parser.add_argument("--seconds", type=int, default=10, help="duration of each measurement (10)")
    parser.add_argument("--words", type=int, default=20, help="words of a sentence (20)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page in Markdown")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: apt-get install wrk")
    result: dict[str, Any] = environment_info("numpy", "numba", "starlette", "uvicorn")
    rows = []
    for mode in ("unnormalised", "exact"):
        for batching in (True, False):
            row = measure(options.run, mode, batching, options.connections, options.seconds, options.words)
            rows.append(row)
            log(json.dumps(row))
            time.sleep(1)
    append_history(
        options.history,
        result,
        {f"{row['mode']}, batching {row['batching']}": row["requests_per_second"] for row in rows},
    )
    if options.report:
        options.report.write_text(page(result, rows, options.run, options.connections, options.words))
    if options.json:
        print(json.dumps(result | {"rows": rows}))


def page(result: dict[str, Any], rows: list[dict[str, Any]], run: Path, connections: int, words: int) -> str:
    """Return the results in Markdown."""
    lm = load(run)
    about = (
        f"`POST /score` with one sentence of {words} words, {connections} connections, {lm.model}, vocabulary of "
        f"{len(lm.vocabulary):,}. wrk and the service share the cores."
    )
    header = ["mode", "micro-batching", "requests/s", "median ms", "99th percentile ms", "largest ms", "jobs per batch"]
    cells = [
        [
            row["mode"],
            "on" if row["batching"] else "off",
            f"{row['requests_per_second']:,.0f}",
            *(f"{row[name]:.1f}" for name in ("p50_ms", "p99_ms", "max_ms", "jobs_per_batch")),
            str(row["errors"]),
        ]
        for row in rows
    ]
    lines = [*report_header("Service", result), about, "", *markdown_table([*header, "errors"], cells)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
