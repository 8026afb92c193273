"""Cost of a parallel phase: the spinning barrier of the training kernels compared with Numba's `prange`.

    python benchmarks/barrier.py [--threads 2] [--calls 100] [--rounds 5] [--json]

A minibatch is a sequence of phases of a few microseconds to a millisecond, and all threads must finish a phase before
the next one starts. The training kernels are entered once by all threads of a `Team`: threads take work items from an
atomic counter and wait for each other at a spinning barrier. The alternative is one `prange` loop per phase with
`parallel=True`, where Numba's threading layer distributes the items and joins the threads. The environment variable
NUMBA_THREADING_LAYER selects this layer.

Both variants execute the same work items and must compute the same results. A call executes as many phases as a call of
the training kernels, which takes about 30 ms on one thread or has 640 phases (128 minibatches of 5 phases); the cost of
entering the kernel is included, and also given separately. Each variant runs in processes of its own, because threads
of a threading layer keep spinning after a loop and would slow the other variant down; processes of the variants
alternate. Times are medians and minima over all calls. The overhead of a phase is its time minus the time of the same
work on one thread divided by the number of threads. The machine must be idle: where threads share a core, every phase
takes as long as the barrier spins before it yields the core.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import njit, prange

from common import append_history, argument_parser, log, markdown_table, report_header
from ncelm.io.machine import environment_info
from ncelm.kernels.barrier import take_item, wait_for_all
from ncelm.kernels.threads import Team

PHASE_MICROSECONDS = (1, 2, 5, 10, 20, 50, 100, 500)  # work of a phase on one thread
ITEMS = 16  # work items of a phase
VARIANTS = ("serial", "barrier", "prange")


@njit(nogil=True)
def work(item, length):
    """A chain of dependent operations: its time does not depend on caches, and it cannot be vectorized."""
    x = 1.0 + item
    for _ in range(length):
        x = x * 0.999 + 0.5
    return x


@njit(nogil=True)
def serial(phases, length, out):
    """All phases on one thread."""
    for _ in range(phases):
        for item in range(ITEMS):
            out[item] += work(item, length)


@njit(nogil=True)
def with_barrier(thread, threads, sync, phases, length, out):
    """All phases by one thread of a team, as in the training kernels."""
    for phase in range(phases):
        while True:
            item = take_item(sync, phase)
            if item >= ITEMS:
                break
            out[item] += work(item, length)
        wait_for_all(sync, phase, threads)


@njit(parallel=True, nogil=True)
def with_prange(phases, length, out):
    """All phases, each a parallel loop."""
    for _ in range(phases):
        for item in prange(ITEMS):
            out[item] += work(item, length)


def calibrate() -> float:
    """Return the number of operations of `work` in a microsecond."""
    out, best = np.zeros(ITEMS), float("inf")
    serial(1, 10, out)
    for _ in range(50):
        began = time.perf_counter()
        serial(1, 1000, out)
        best = min(best, time.perf_counter() - began)
    return 1000 * ITEMS / (best * 1e6)


def phases_per_call(microseconds: float) -> int:
    """Return the number of phases of this length in one call of the training kernels."""
    return int(np.clip(30_000 / microseconds, 5, 640))


def run_variant(variant: str, threads: int, calls: int, lengths: list[tuple[int, int]]) -> dict[str, Any]:
    """Return the seconds of all calls of a variant in this process.

    `lengths` are pairs of the number of phases and the length of their work items. Calls of 0 phases are timed too.
    """
    numba.set_num_threads(threads)
    with Team(threads) as team:
        variants: dict[str, Callable[[int, int, np.ndarray], None]] = {
            "serial": serial,
            "barrier": lambda phases, length, out: team.run(with_barrier, max(phases, 1), phases, length, out),
            "prange": with_prange,
        }
        call = variants[variant]

        def timed(phases: int, length: int) -> tuple[list[float], list[float]]:
            out, seconds = np.zeros(ITEMS), []
            call(phases, length, out)  # compiles
            for _ in range(calls):
                began = time.perf_counter()
                call(phases, length, out)
                seconds.append(time.perf_counter() - began)
            return seconds, out.tolist()

        result: dict[str, Any] = {"entry": timed(0, 1)[0], "lengths": [timed(*each) for each in lengths]}
    return result | {"layer": numba.threading_layer() if variant == "prange" else None}


def measure(threads: int, calls: int, rounds: int) -> dict[str, Any]:
    """Run all variants in alternating processes and return microseconds per phase, for each length of a phase."""
    operations = calibrate()
    lengths = [(phases_per_call(each), max(1, round(operations * each / ITEMS))) for each in PHASE_MICROSECONDS]
    runs: dict[str, list[dict[str, Any]]] = {variant: [] for variant in VARIANTS}
    for number in range(rounds):
        for variant, done in runs.items():
            arguments = json.dumps([variant, threads, calls, lengths])
            command = [sys.executable, __file__, "--variant", arguments]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            done.append(json.loads(output))
        log(f"round {number + 1}/{rounds} done")
    if len({json.dumps([out for _, out in run["lengths"]]) for some in runs.values() for run in some}) > 1:
        raise SystemExit("the variants do not compute the same results, so that their times must not be compared")
    results = []
    for index, microseconds in enumerate(PHASE_MICROSECONDS):
        seconds = {name: [s for run in some for s in run["lengths"][index][0]] for name, some in runs.items()}
        ideal, phases = min(seconds["serial"]) / threads, phases_per_call(microseconds)
        results.append(
            {
                "work_microseconds": microseconds,
                "phases_per_call": phases,
                "median": {name: statistics.median(each) / phases * 1e6 for name, each in seconds.items()},
                "best": {name: min(each) / phases * 1e6 for name, each in seconds.items()},
                "best_overhead": {
                    name: (min(each) - ideal) / phases * 1e6 for name, each in seconds.items() if name != "serial"
                },
            }
        )
    entry = {name: statistics.median(s for run in some for s in run["entry"]) * 1e6 for name, some in runs.items()}
    return {"threading_layer": runs["prange"][0]["layer"], "entry": entry, "lengths": results}


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    threads = result["threads"]
    lines = [
        *report_header("Spinning barrier and prange", result),
        f"{threads} threads, {ITEMS} work items per phase; Numba's threading layer is {result['threading_layer']}. "
        f"A call without phases takes {result['entry']['barrier']:.1f} µs (barrier) and "
        f"{result['entry']['prange']:.1f} µs (prange). Microseconds per phase, median (best):",
        "",
    ]
    header = [
        "phases per call",
        "one thread",
        "barrier",
        "prange",
        "overhead of the barrier",
        "overhead of prange",
        "prange/barrier",
    ]
    rows = []
    for each in result["lengths"]:
        median, best, overhead = each["median"], each["best"], each["best_overhead"]
        rows.append(
            [
                str(each["phases_per_call"]),
                *(f"{median[name]:.1f} ({best[name]:.1f})" for name in ("serial", "barrier", "prange")),
                *(f"{overhead[name]:.1f}" for name in ("barrier", "prange")),
                f"**{median['prange'] / median['barrier']:.2f}** ({best['prange'] / best['barrier']:.2f})",
            ]
        )
    return "\n".join([*lines, *markdown_table(header, rows)])


def main() -> int:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="number of threads (2)")
    parser.add_argument("--calls", type=int, default=100, metavar="N", help="calls in one process (100)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="processes of each variant (5)")
    parser.add_argument("--variant", help=argparse.SUPPRESS)  # run one variant in this process
    options = parser.parse_args()
    if options.variant:
        print(json.dumps(run_variant(*json.loads(options.variant))))
        return 0
    if not 1 <= options.threads <= numba.config.NUMBA_NUM_THREADS:
        parser.error(f"--threads must be from 1 to {numba.config.NUMBA_NUM_THREADS}, the number of cores")
    result: dict[str, Any] = {
        **environment_info("ncelm", "numpy", "numba"),
        "threads": options.threads,
        **measure(options.threads, options.calls, options.rounds),
    }
    figures = {
        f"{name}: overhead of a phase of {each['work_microseconds']} µs, µs": each["best_overhead"][key]
        for each in result["lengths"]
        for name, key in (("barrier", "barrier"), (f"prange, {result['threading_layer']}", "prange"))
    }
    append_history(options.history, result, figures)
    print(json.dumps(result, indent=1) if options.json else report(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
