"""Throughput and memory of `ncelm filter`, and whether a killed call, resumed, gives the same bytes.

    python benchmarks/filtering.py RUN FILE [--workers 2] [--rounds 1] [--mode auto] [--no-kill] [--json]

FILE has JSON lines with the fields "id" and "text". The time is that of the whole command, the start of Python and the
loading of the model included. Memory is the sum of the proportional set sizes (PSS) of all its processes.
"""

import hashlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from common import append_history, argument_parser, log, report_header
from ncelm.io.machine import environment_info


def memory(process: psutil.Process) -> int:
    """Return the memory of a process and its children, in bytes."""
    total = 0
    with suppress(psutil.Error):
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += each.memory_full_info().pss
    return total


def run(command: list[str], kill_after: float | None = None) -> tuple[float, int, str]:
    """Run a command; return its time, the most memory that was seen, and its output. It may be killed."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    most, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        watched = psutil.Process(process.pid)
        while not ended.wait(0.5):
            most = max(most, memory(watched))

    thread = threading.Thread(target=watch)
    thread.start()
    if kill_after is not None:
        time.sleep(kill_after)
        process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    seconds = time.perf_counter() - began
    ended.set()
    thread.join()
    return seconds, most, output


def digests(folder: Path) -> dict[str, str]:
    """Return the digests of the output files."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def check(folder: Path, documents: int) -> None:
    """Raise an error unless every document is in one output file, in order."""
    seen = 0
    for path in folder.glob("*.jsonl"):
        last = -1
        with path.open("rb") as file:
            for line in file:
                number = int(line[: line.index(b",")].rpartition(b":")[2])  # {"id": 17, …
                assert number > last, f"{path}: {number} after {last}"
                last, seen = number, seen + 1
    assert seen == documents, f"{seen:,} of {documents:,} documents"


def main() -> None:
    """Time the command, kill and resume it, and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("file", type=Path, metavar="FILE", help="JSON lines")
    parser.add_argument("--workers", type=int, default=2, help="number of processes (2)")
    parser.add_argument("--rounds", type=int, default=1, help="number of timed runs (1)")
    parser.add_argument("--mode", default="auto", help="of scoring (auto)")
    parser.add_argument("--no-kill", action="store_true", help="do not kill and resume")
    options = parser.parse_args()
    with options.file.open("rb") as file:
        documents = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b""))
    result: dict[str, Any] = {**environment_info("ncelm", "numpy", "numba"), "run": options.run.name,
                              "bytes": options.file.stat().st_size, "documents": documents,
                              "workers": options.workers}  # fmt: skip
    with tempfile.TemporaryDirectory(dir=options.file.parent) as folder:
        out = Path(folder, "out")
        command = [sys.executable, "-m", "ncelm", "filter", str(options.run), str(options.file), "--json", "--mode",
                   options.mode, "--workers", str(options.workers)]  # fmt: skip
        times = []
        for number in range(options.rounds):
            seconds, most, printed = run([*command, "--out", f"{out}{number}"])
            found = json.loads(printed)
            times.append(seconds)
            log(f"{seconds:.1f} s, {found['tokens'] / seconds:,.0f} words/s, {most / 1e6:,.0f} MB")
            result["memory_mb"] = max(result.get("memory_mb", 0.0), most / 1e6)
        result |= {"seconds": min(times), "tokens": found["tokens"], "modes": found["modes"],
                   "words_per_second": found["tokens"] / min(times), "counts": found["documents"]}  # fmt: skip
        check(Path(f"{out}0"), documents)
        if not options.no_kill:
            run([*command, "--out", f"{out}k"], kill_after=min(times) / 2)
            assert not digests(Path(f"{out}k")), "a file has its name before it is complete"
            run([*command, "--out", f"{out}k", "--resume"])
            result["same_bytes"] = digests(Path(f"{out}k")) == digests(Path(f"{out}0"))
    append_history(options.history, result, {"words/s": result["words_per_second"], "MB": result["memory_mb"]})
    print(json.dumps(result, indent=1) if options.json else report(result))


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    lines = [
        *report_header("Filtering", result),
        f"{result['bytes'] / 1e9:.2f} GB of JSON lines, {result['documents']:,} documents, {result['tokens']:,} words "
        f"and sentence ends; scores: {', '.join(result['modes'])}.",
        "",
        "| | |",
        "|---|---|",
        f"| processes | {result['workers']} |",
        f"| time of the command | {result['seconds']:.1f} s |",
        f"| throughput | {result['words_per_second']:,.0f} words/s |",
        f"| memory of all processes (PSS) | {result['memory_mb']:,.0f} MB |",
        "| output | complete and in order |",
    ]
    if "same_bytes" in result:
        lines.append(f"| killed halfway and resumed | {'the same bytes' if result['same_bytes'] else 'OTHER BYTES'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
