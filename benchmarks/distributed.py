"""Distributed training: two processes under torchrun compared with one process with two threads.

    python benchmarks/distributed.py STORE [--recipe NAME] [--rounds 5] [--kill] [-- OPTIONS OF TRAIN …]

Both train the same model on the same store in alternating rounds. Reported are perplexity, throughput (medians over the
rounds, and the median of the ratios within rounds) and bytes sent per word. --kill adds a run in which one of the two
workers is killed half-way; torchrun restarts them. Prints JSON.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import append_history, argument_parser, log
from ncelm.io.machine import environment_info
from ncelm.text.store import TokenStore

LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")  # bytes sent over the loopback interface, with headers
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "2"]


def train(python: list[str], arguments: list[str], out: Path, kill_after: float | None = None) -> dict[str, Any]:
    """Train and evaluate; return the results. With `kill_after`, one worker is killed after that many seconds."""
    command = [sys.executable, *python, "-m", "ncelm", "train", *arguments, "--out", str(out), "--resume", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if kill_after is not None:
        while not (out / "config.json").exists():
            time.sleep(0.1)
        time.sleep(kill_after)
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(workers[-1]), signal.SIGKILL)
        log(f"killed worker {workers[-1]}")
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    last = json.loads(output)
    evaluation = [sys.executable, "-m", "ncelm", "evaluate", str(out), "--split", "test", "--json"]
    test = json.loads(subprocess.run(evaluation, check=True, stdout=subprocess.PIPE, text=True).stdout)
    epochs = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    words = sum(epoch["words"] for epoch in epochs)
    return {
        "seconds": last["seconds"],
        "words_per_second": words / last["seconds"],
        "valid_perplexity": last["valid_perplexity"],
        "test_perplexity": test["perplexity"],
        # counted since the start of the process, so that the count of a killed worker is lost
        "bytes_per_word": None if kill_after else last.get("bytes_sent", 0) / words,
    }


def loopback_bytes() -> int:
    """Return the bytes that processes of this machine have sent to each other, as counted by the kernel."""
    return int(LOOPBACK.read_text()) if LOOPBACK.exists() else 0


def main() -> None:
    """Train in alternating rounds and print the results."""
    parser = argument_parser(__doc__)
    parser.add_argument("store", type=Path, metavar="STORE", help="token store")
    parser.add_argument("--recipe", default="ptb-fast", help="recipe (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (5)")
    parser.add_argument("--kill", action="store_true", help="add a run in which a worker is killed")
    # split here: argparse loses arguments after -- if an option precedes it
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    options, train_options = parser.parse_args(words[:end]), words[end + 1 :]
    TokenStore.open(options.store)
    arguments = [str(options.store), "--recipe", options.recipe, *train_options]
    result: dict[str, Any] = {"arguments": arguments[1:], **environment_info()}
    rounds: list[tuple[float, float]] = []  # words/s of one process and of two
    with tempfile.TemporaryDirectory() as folder:
        for i in range(options.rounds):
            log(f"round {i + 1}/{options.rounds}: one process, two threads")
            result["threads"] = one = train([], [*arguments, "--threads", "2"], Path(folder, f"one-{i}"))
            log(f"round {i + 1}/{options.rounds}: two processes")
            before = loopback_bytes()
            result["processes"] = two = train(TORCHRUN, [*arguments, "--threads", "1"], Path(folder, f"two-{i}"))
            sent = (loopback_bytes() - before) / 2  # by each worker; includes the few messages of torchrun
            two["loopback_bytes_per_word"] = sent / (two["words_per_second"] * two["seconds"])
            rounds.append((one["words_per_second"], two["words_per_second"]))
        if options.kill:
            log("two processes, one of which is killed")
            frequent = [*arguments, "--threads", "1", "--checkpoint-minutes", "0.05"]
            result["killed"] = killed = train(TORCHRUN, frequent, Path(folder, "killed"), two["seconds"] / 2)
            killed["perplexity_ratio"] = killed["test_perplexity"] / one["test_perplexity"]
    result["perplexity_ratio"] = two["test_perplexity"] / one["test_perplexity"]
    result["rounds"] = rounds
    one["words_per_second"], two["words_per_second"] = map(statistics.median, zip(*rounds, strict=True))
    result["throughput_ratio"] = statistics.median(b / a for a, b in rounds)
    figures = {
        "two processes, words/s": two["words_per_second"],
        "two processes / two threads, words/s": result["throughput_ratio"],
        "two processes / two threads, test perplexity": result["perplexity_ratio"],
        "bytes sent per word": two["bytes_per_word"],
    }
    append_history(options.history, result, figures)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
