"""One process with two threads beside two processes under torchrun: quality, words/s, bytes sent.

    python benchmarks/workers.py STORE [--recipe NAME] [--rounds 5] [--kill] [-- OPTIONS OF TRAIN …]

Both train the same model on the same store, in turns, with the whole machine to themselves; speeds are the medians of
all rounds, and so is their ratio, taken within each round. With --kill there is one more training, in which one of two
workers is killed in the middle; torchrun starts them again. Prints JSON.
"""

import argparse
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

from common import say
from ncelm.io.machine import environment_info
from ncelm.text.store import TokenStore

LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")  # what this machine has said to itself, headers and all
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "2"]


def trained(python: list[str], arguments: list[str], out: Path, kill_after: float | None = None) -> dict[str, Any]:
    """What a training comes to; after so many seconds of it the last worker is killed."""
    command = [sys.executable, *python, "-m", "ncelm", "train", *arguments, "--out", str(out), "--resume", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if kill_after is not None:
        while not (out / "config.json").exists():
            time.sleep(0.1)
        time.sleep(kill_after)
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(workers[-1]), signal.SIGKILL)
        say(f"killed worker {workers[-1]}")
    answer, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} has failed")
    last = json.loads(answer)
    evaluation = [sys.executable, "-m", "ncelm", "evaluate", str(out), "--split", "test", "--json"]
    test = json.loads(subprocess.run(evaluation, check=True, stdout=subprocess.PIPE, text=True).stdout)
    epochs = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    words = sum(epoch["words"] for epoch in epochs)
    return {
        "seconds": last["seconds"],
        "words_per_second": words / last["seconds"],
        "valid_perplexity": last["valid_perplexity"],
        "test_perplexity": test["perplexity"],
        # since it was started, so that of a killed worker nothing is known
        "bytes_per_word": None if kill_after else last.get("bytes_sent", 0) / words,
    }


def on_the_wire() -> int:
    """Bytes that processes of this machine have sent each other, as the kernel counts them."""
    return int(LOOPBACK.read_text()) if LOOPBACK.exists() else 0


def main() -> None:
    """Train in turns, print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--recipe", default="ptb-fast")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is trained (default: 5)")
    parser.add_argument("--kill", action="store_true", help="one more training, of which one worker is killed")
    # by hand: argparse loses what comes after -- if an option comes before it
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    options, of_train = parser.parse_args(words[:end]), words[end + 1 :]
    TokenStore.open(options.store)
    arguments = [str(options.store), "--recipe", options.recipe, *of_train]
    answer: dict[str, Any] = {"arguments": arguments[1:], **environment_info()}
    rounds: list[tuple[float, float]] = []  # words/s
    with tempfile.TemporaryDirectory() as folder:
        for i in range(options.rounds):
            say(f"round {i + 1}: one process, two threads")
            answer["threads"] = one = trained([], [*arguments, "--threads", "2"], Path(folder, f"one-{i}"))
            say(f"round {i + 1}: two processes")
            before = on_the_wire()
            answer["processes"] = two = trained(TORCHRUN, [*arguments, "--threads", "1"], Path(folder, f"two-{i}"))
            wire = (on_the_wire() - before) / 2  # half of it by each worker, torchrun's own few notes included
            two["wire_bytes_per_word"] = wire / (two["words_per_second"] * two["seconds"])
            rounds.append((one["words_per_second"], two["words_per_second"]))
        if options.kill:
            say("two processes, one of which is killed")
            often = [*arguments, "--threads", "1", "--checkpoint-minutes", "0.05"]
            half = two["seconds"] / 2
            answer["killed"] = trained(TORCHRUN, often, Path(folder, "killed"), half)
            answer["killed"]["perplexity_ratio"] = answer["killed"]["test_perplexity"] / one["test_perplexity"]
    answer["perplexity_ratio"] = two["test_perplexity"] / one["test_perplexity"]
    answer["rounds"] = rounds
    one["words_per_second"], two["words_per_second"] = map(statistics.median, zip(*rounds, strict=True))
    answer["speed_ratio"] = statistics.median(b / a for a, b in rounds)
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
