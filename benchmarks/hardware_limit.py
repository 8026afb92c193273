"""Training time compared with a lower bound for this machine, phase by phase.

    python benchmarks/hardware_limit.py [--ptb STORE] [--holmes STORE] [--json] [--seconds 0.3]

First the machine is measured on one core and on two: matrix products of the shapes of training, random reads and
updates of rows in tables of 4, 40 and 400 MB, draws from an alias table, exponentials. Then, for each task, the
operations that the algorithm needs for a minibatch are timed one by one: reads of rows, updates of rows, matrix
products. They are timed on the rows of real minibatches, where frequent words are cached, unlike rows at random. Their
sum is the lower bound. README.md in this directory lists what is counted. Without stores, a synthetic text with word
frequencies of Zipf's law is used.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from common import append_history, argument_parser, log, new_engine, report_header, zipf_store
from ncelm.errors import NcelmError
from ncelm.io.machine import environment_info
from ncelm.kernels import records
from ncelm.kernels.contexts import (
    IN_CACHE,
    context_gradients,
    context_update_items,
    gradient_items,
    project,
    project_items,
    update_contexts,
    update_matrices,
)
from ncelm.kernels.exact import EXAMPLE_BLOCK
from ncelm.kernels.math32 import exp32
from ncelm.kernels.noise import draw_word
from ncelm.kernels.plan import plan_minibatch
from ncelm.kernels.products import VOCABULARY_BLOCK
from ncelm.kernels.random import draw
from ncelm.kernels.simd import borrowed, prefetch, score_rows
from ncelm.kernels.steps import scratch_of
from ncelm.kernels.strategies import after_examples, after_examples_items, example_items, examples
from ncelm.kernels.threads import Team
from ncelm.models.log_bilinear import ModelConfig
from ncelm.noise import Noise
from ncelm.text.store import TokenStore
from ncelm.training.config import MaximumLikelihood, Sgd, TrainConfig
from ncelm.training.engine import Engine

TABLES_MB = (4, 40, 400)
BLOCK = 24  # rows that are prefetched together, about as many as an example has words


# -- single operations -------------------------------------------------------------------------------------------------

compiled = njit(fastmath=True, nogil=True, error_model="numpy")


@compiled
def read_rows(table, rows, vector, dots):
    """Dot products of rows with a vector, by the fastest loop of the kernels (eight rows at a time)."""
    if table.size <= IN_CACHE:
        score_rows(vector, table, rows, dots)
        return
    for first in range(0, rows.size, BLOCK):
        for r in range(min(first + BLOCK, rows.size), min(first + 2 * BLOCK, rows.size)):  # prefetch the next block
            prefetch(table, np.int64(rows[r]))
        score_rows(vector, table, rows[first : first + BLOCK], dots[first : first + BLOCK])


@compiled
def update_rows(table, rows, vector):
    """Add a vector to rows."""
    for r in range(rows.size):
        row = table[rows[r]]
        for t in range(vector.size):
            row[t] += vector[t]


@compiled
def draw_words(count, columns, out):
    """Draw words from an alias table."""
    for i in range(count):
        out[i & 1023] = draw_word(draw(np.uint64(7), i), columns)


@compiled
def count_words(words, counts):
    """One pass of a counting sort."""
    for i in range(words.size):
        counts[words[i]] += 1


@compiled
def exponentials(scores, out):
    """One exponential per number."""
    for i in range(scores.size):
        out[i] = exp32(scores[i])


@compiled
def many_exponentials(scores, out, times):
    """The same exponentials several times."""
    for _ in range(times):
        exponentials(scores, out)


@compiled
def sigmoids(scores, out):
    """One exponential and one division per number."""
    for i in range(scores.size):
        out[i] = np.float32(1.0) / (np.float32(1.0) + exp32(-scores[i]))


@compiled
def product(a, b, out, times):
    """A matrix product, with the BLAS of the kernels."""
    for _ in range(times):
        np.dot(a, b, out)


# -- timing ------------------------------------------------------------------------------------------------------------


@dataclass
class Timer:
    """Times operations."""

    seconds: float  # for which each operation is repeated

    def best(self, work: Callable[[], object]) -> float:
        """Return the minimum time of many repetitions, in seconds."""
        work()  # compiles, and fills the caches
        best, end = float("inf"), time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - began)
        return best

    def on_both_cores(self, works: list[Callable[[], object]]) -> float:
        """Return the minimum time of two operations that run in parallel, in seconds."""
        with ThreadPoolExecutor(2) as pool:
            return self.best(lambda: [future.result() for future in [pool.submit(work) for work in works]])


def machine(timer: Timer) -> dict[str, Any]:
    """Return the throughput of single operations on one core and on two."""
    rng = np.random.default_rng(0)
    result: dict[str, Any] = {"gflops": {}, "gigabytes_per_second": {}}

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    shapes = {"64×100×100": (64, 100, 100), "250×100×400": (250, 100, 400), "250×300×400": (250, 300, 400)}
    for name, (n, k, m) in (shapes | {"250×100×1000": (250, 100, 1000)}).items():
        times = max(1, 20_000_000 // (n * k * m))
        works = [partial(product, floats(n, k), floats(k, m), np.empty((n, m), np.float32), times) for _ in range(2)]
        flops = 2.0 * n * k * m * times
        result["gflops"][name] = [flops / timer.best(works[0]) / 1e9, 2 * flops / timer.on_both_cores(works) / 1e9]
    vector = floats(100)
    for megabytes in TABLES_MB:
        table = floats(megabytes * 1_000_000 // 400, 100)
        halves = [rng.integers(len(table), size=100_000, dtype=np.int32) for _ in range(2)]
        for name, work, more in (("read", read_rows, (np.empty(100_000, np.float32),)), ("update", update_rows, ())):
            works = [partial(work, table, rows, vector, *(each.copy() for each in more)) for rows in halves]
            size = halves[0].size * 400 * (1 if name == "read" else 2) / 1e9
            result["gigabytes_per_second"][f"{name} rows, {megabytes} MB"] = [
                size / timer.best(works[0]),
                2 * size / timer.on_both_cores(works),
            ]
    noise = Noise.from_counts(1_000_000 // np.arange(1, 10_001))
    scores = floats(100_000)
    draws = [partial(draw_words, 100_000, noise.columns, np.empty(1024, np.int64)) for _ in range(2)]
    result["millions_per_second"] = {}
    for name, works in (
        ("alias draws", draws),
        ("exponentials", [partial(exponentials, scores, np.empty_like(scores)) for _ in range(2)]),
        ("sigmoids", [partial(sigmoids, scores, np.empty_like(scores)) for _ in range(2)]),
    ):
        both = [0.1 / timer.best(works[0]), 2 * 0.1 / timer.on_both_cores(works)]
        result["millions_per_second"][name] = both
    return result


# -- tasks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A training task."""

    name: str
    config: TrainConfig
    vocabulary: int
    text: str  # "ptb" or "holmes"


def tasks() -> list[Task]:
    """Return tasks (a), (b) with two dimensions, and (c)."""
    full = TrainConfig(model=ModelConfig(context=2, dim=100), optimizer=Sgd(), learning_rate=0.01)
    wide = [ModelConfig(context=10, dim=dim, matrices="diagonal") for dim in (100, 300)]
    return [
        Task("(a) V 10,000, 2 full matrices, d 100, k 25", full, 10_000, "ptb"),
        *(
            Task(f"(b) V 76,000, 10 diagonal, d {m.dim}, k 25", full.with_changes(model=m), 76_000, "holmes")
            for m in wide
        ),
        Task("(c) exact maximum likelihood at (a)", full.with_changes(loss="ml"), 10_000, "ptb"),
    ]


def words_per_second(engines: list[Engine], rounds: int) -> tuple[list[np.ndarray], list[float]]:
    """Return the throughput of engines in alternating rounds, (rounds, calls) each, and the speed-up of two cores.

    The speed-up of two cores is that of plain arithmetic in each round: it shows the load of the machine by others.
    """
    seconds = [np.zeros((rounds + 1, 4)) for _ in engines]
    cores = []
    with ThreadPoolExecutor(2) as pool:
        for number in range(rounds + 1):
            for engine, taken in zip(engines, seconds, strict=True):
                n = engine.planned
                rates = np.full(n, 0.001)
                for call in range(taken.shape[1]):
                    first = (taken.shape[1] * number + call) * n % max(1, engine.steps_per_epoch - n)
                    began = time.perf_counter()
                    engine.run(0, first, rates, rates)
                    taken[number, call] = time.perf_counter() - began
            cores.append(_arithmetic(pool, 1) / _arithmetic(pool, 2))
    words = [engine.planned * engine.sizes.batch for engine in engines]
    return [each / taken[1:] for each, taken in zip(words, seconds, strict=True)], cores[1:]


def _arithmetic(pool: ThreadPoolExecutor, threads: int) -> float:
    """Return the seconds of twenty million exponentials by some threads, each with its own numbers in the L1 cache."""
    numbers = [np.zeros((2, 1000), np.float32) for _ in range(threads)]
    began = time.perf_counter()
    for future in [pool.submit(many_exponentials, *own, 20_000 // threads) for own in numbers]:
        future.result()
    return time.perf_counter() - began


# -- the phases of a minibatch: ncelm and the lower bound --------------------------------------------------------------


@compiled
def plan_phase(steps, corpus, strategy, matrices, plan, parameters, scratch):
    """Plan one minibatch."""
    own = scratch_of(scratch, 0, parameters)
    plan_minibatch(corpus, strategy, matrices, steps, 0, plan, own.counts, own.order)


@compiled
def project_phase(matrices, plan, parameters):
    """C_i r_w of the unique words of each position."""
    matrices, plan, parameters = borrowed((matrices, plan, parameters))
    for item in range(project_items(matrices, plan)):
        project(matrices, item, 0, plan, parameters.context_vectors)


@compiled
def example_phase(strategy, matrices, optimizer, plan, parameters, state, workspace, rates, scratch):
    """Scores and score gradients of all examples, and the updates of singleton rows."""
    strategy, matrices, plan, parameters, state, workspace, rates, scratch = borrowed(
        (strategy, matrices, plan, parameters, state, workspace, rates, scratch)
    )
    own = scratch_of(scratch, 0, parameters)
    for item in range(example_items(strategy, 0, plan)):
        examples(strategy, item, 0, plan, matrices, None, optimizer, parameters, state, workspace, rates, own)


@compiled
def target_phase(strategy, optimizer, plan, parameters, state, workspace, rates, scratch):
    """Updates of target words."""
    strategy, plan, parameters, state, workspace, rates, scratch = borrowed(
        (strategy, plan, parameters, state, workspace, rates, scratch)
    )
    own = scratch_of(scratch, 0, parameters)
    for item in range(after_examples_items(strategy, 0, plan, parameters)):
        after_examples(strategy, item, 0, plan, optimizer, parameters, state, workspace, rates, own)


@compiled
def context_phase(matrices, optimizer, plan, parameters, state, workspace, rates, scratch):
    """Gradients of context words and matrices; diagonal matrices: also the updates of context words."""
    matrices, plan, parameters, state, workspace, rates, scratch = borrowed(
        (matrices, plan, parameters, state, workspace, rates, scratch)
    )
    own = scratch_of(scratch, 0, parameters)
    for item in range(gradient_items(matrices, 0, plan)):
        context_gradients(
            matrices, item, 0, plan, optimizer, parameters, state, workspace, rates, own.gradient, own.sums
        )


@compiled
def update_phase(matrices, optimizer, plan, parameters, state, workspace, rates, scratch):
    """Updates of matrices and, with full matrices, of context words."""
    matrices, plan, parameters, state, workspace, rates, scratch = borrowed(
        (matrices, plan, parameters, state, workspace, rates, scratch)
    )
    own = scratch_of(scratch, 0, parameters)
    for i in range(matrices.values.shape[0]):
        update_matrices(matrices, i, 0, plan, optimizer, state.matrices, workspace, rates)
    for item in range(context_update_items(matrices, workspace.tied, 0, plan)):
        update_contexts(matrices, item, 0, plan, optimizer, parameters, state, workspace, rates, own.gradient)


def measured_phases(engine: Engine, timer: Timer) -> dict[str, float]:
    """Return the seconds of each phase of one minibatch on one thread."""
    zeros = np.zeros(engine.planned, np.float32)  # parameters do not change
    rates = records.Rates(zeros, zeros, engine.weight_decay)
    steps = records.Steps(engine.seed, engine.order, 0, 0, 1, engine.sizes.batch, 0)
    strategy, matrices, optimizer, plan = engine.strategy, engine.matrices, engine.optimizer, engine.plan
    rest = engine.parameters, engine.state, engine.workspace, rates, engine.scratch
    phases: dict[str, Callable[[], object]] = {
        "plan": lambda: plan_phase(steps, engine.corpus, strategy, matrices, plan, engine.parameters, engine.scratch),
        "project": lambda: project_phase(matrices, plan, engine.parameters),
        "scores and score gradients": lambda: example_phase(strategy, matrices, optimizer, plan, *rest),
        "update targets": lambda: target_phase(strategy, optimizer, plan, *rest),
        "context gradients": lambda: context_phase(matrices, optimizer, plan, *rest),
        "update contexts": lambda: update_phase(matrices, optimizer, plan, *rest),
    }
    return {name: timer.best(phase) for name, phase in phases.items()}


def bound_phases(engine: Engine, timer: Timer) -> dict[str, float]:
    """Return the lower bound of the time of each phase, operation by operation, on the rows of the same minibatch.

    The first reads of rows of the tables are timed over successive minibatches, so that rows come from the same level
    of the memory hierarchy as in training. In later phases rows are cached.
    """
    plan, theta, work = engine.plan, engine.parameters, engine.workspace
    positions, targets = plan.position_groups, plan.target_groups
    (c, d), batch = engine.matrices.values.shape[:2], engine.sizes.batch
    vector = np.random.default_rng(0).standard_normal(d, np.float32)
    full = positions is not None
    words = np.ascontiguousarray(plan.words[0]).ravel()  # (B (k + 1),)
    contexts = np.ascontiguousarray(plan.contexts[0]).ravel()  # (B c,)
    groups = targets.counts[0]
    target_words = targets.words[0, :groups].copy()
    context_words = plan.context_groups.words[0, : plan.context_groups.counts[0]].copy()
    by_word = targets.rows[0, : targets.offsets[0, groups]].copy()  # the examples of each target, word by word
    singletons = words.size - by_word.size  # words that occur once in the minibatch
    of_contexts = np.repeat(np.arange(batch), c)  # the example of each context word
    counts, out = np.zeros(len(theta.context_vectors), np.int64), np.empty(1024, np.int64)
    scores, results = np.zeros(words.size, np.float32), np.empty(words.size, np.float32)

    def rows(table: np.ndarray, *which: np.ndarray) -> float:
        """Return the time of reading the rows of a minibatch, the mean over several minibatches that alternate."""
        in_turn, dots = [each.astype(np.int32) for each in which], np.empty(which[0].size, np.float32)
        return timer.best(lambda: [read_rows(table, each, vector, dots) for each in in_turn]) / len(in_turn)

    def of_all(planned: np.ndarray) -> list[np.ndarray]:
        """Return one flat array per planned minibatch."""
        return [planned[m].ravel() for m in range(len(planned)) if plan.sizes[m] == batch]

    nothing = np.zeros_like(vector)

    def updated(table: np.ndarray, which: np.ndarray) -> float:
        return timer.best(lambda: update_rows(table, which, nothing))

    drawn = words.size - batch
    plan_bound = timer.best(lambda: draw_words(drawn, engine.strategy.noise.columns, out))
    plan_bound += 2 * timer.best(lambda: count_words(words, counts)) + 2 * timer.best(
        lambda: count_words(contexts, counts)
    )
    products, projected = 0.0, np.zeros(0, np.int32)
    if full:
        groups_of = positions.counts[0].tolist()
        projected = np.concatenate([positions.words[0, i, :count] for i, count in enumerate(groups_of)])
        for count in groups_of:
            a, b = np.zeros((count, d), np.float32), np.zeros((d, d), np.float32)
            products += timer.best(lambda a=a, b=b: product(a, b, np.empty_like(a), 1))
    from_contexts = (
        rows(engine.matrices.projected.reshape(-1, d), positions.slots[0].ravel())
        if full
        else rows(theta.context_vectors, *of_all(plan.contexts))
    )
    return {
        "plan": plan_bound,
        "project": products + (rows(theta.context_vectors, projected) if full else 0.0),
        "scores and score gradients": from_contexts
        + rows(theta.target_vectors, *of_all(plan.words))
        # dJ/dq̂: the same number of operations again, on cached rows
        + rows(work.predicted, np.repeat(np.arange(batch), words.size // batch))
        + timer.best(lambda: sigmoids(scores, results))
        # singleton rows are updated while they are cached
        + updated(theta.target_vectors, np.tile(words[:BLOCK], 100)) / (100 * BLOCK) * singletons,
        "update targets": rows(work.predicted, by_word) + updated(theta.target_vectors, target_words),
        # with diagonal matrices, gradients of the word and of the matrix
        "context gradients": rows(work.predicted_gradients, of_contexts) * (1 if full else 2)
        + (2 * products if full else updated(theta.context_vectors, context_words)),
        "update contexts": updated(theta.context_vectors, context_words) if full else 0.0,
    }


def exact_bound(engine: Engine, timer: Timer) -> float:
    """Return the lower bound of exact maximum likelihood: three products over the vocabulary, one exp per score."""
    vocabulary, d = engine.parameters.target_vectors.shape
    batch, block = engine.sizes.batch, VOCABULARY_BLOCK
    a, b = np.zeros((EXAMPLE_BLOCK, d), np.float32), np.zeros((d, block), np.float32)
    seconds = timer.best(lambda: product(a, b, np.empty((len(a), block), np.float32), 1))
    scores = np.zeros(100_000, np.float32)
    each = timer.best(lambda: exponentials(scores, np.empty_like(scores))) / scores.size
    return 3 * seconds * (batch / len(a)) * (vocabulary / block) + each * batch * vocabulary


# -- report ------------------------------------------------------------------------------------------------------------


def measure(stores: dict[str, Path | None], timer: Timer, folder: Path, rounds: int) -> dict[str, Any]:
    """Return the throughput of the machine, and time and lower bound of all tasks."""
    with Team(1):  # limits BLAS to the calling thread, as in training
        result: dict[str, Any] = {"machine": machine(timer), "tasks": {}}
    opened: dict[str, TokenStore] = {}
    for task in tasks():
        if task.text not in opened:
            path = stores[task.text]
            (folder / task.text).mkdir()
            opened[task.text] = TokenStore.open(path) if path else zipf_store(folder / task.text, task.vocabulary)
        log(task.name)
        with Team(1) as one, Team(2) as two:
            engines = [new_engine(task.config, opened[task.text], team) for team in (one, two)]
            speeds, cores = words_per_second(engines, rounds)
            batch = engines[0].sizes.batch
            found: dict[str, Any] = {
                "words_per_second": [float(speed.max()) for speed in speeds],  # the best call, as for the bound
                "median_words_per_second": [float(np.median(speed)) for speed in speeds],
                "two_threads_speedup": statistics.median(
                    float(np.mean(1.0 / one) / np.mean(1.0 / two)) for one, two in zip(*speeds, strict=True)
                ),
                "two_cores_speedup": statistics.median(cores),
            }
            if isinstance(task.config.loss, MaximumLikelihood):
                total = exact_bound(engines[0], timer)
            else:
                measured, bound = measured_phases(engines[0], timer), bound_phases(engines[0], timer)
                total = sum(bound.values())
                found["phases"] = {
                    name: {"ns_per_word": measured[name] / batch * 1e9, "bound_ns_per_word": bound[name] / batch * 1e9}
                    for name in measured
                }
            found["bound_ns_per_word"] = total / batch * 1e9
            found["ns_per_word"] = 1e9 / found["words_per_second"][0]
            found["efficiency"] = found["bound_ns_per_word"] / found["ns_per_word"]
            result["tasks"][task.name] = found
    return result | environment_info("ncelm", "numpy", "numba")


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    here = result["machine"]
    lines = report_header("Training time compared with a lower bound for the machine", result)
    lines += ["| machine | one core | two cores |", "|---|---|---|"]
    lines += [f"| product {name}, GFLOP/s | {one:.0f} | {two:.0f} |" for name, (one, two) in here["gflops"].items()]
    lines += [f"| {name}, GB/s | {one:.1f} | {two:.1f} |" for name, (one, two) in here["gigabytes_per_second"].items()]
    rates = here["millions_per_second"]
    lines += [f"| {name}, million/s | {one:.0f} | {two:.0f} |" for name, (one, two) in rates.items()]
    for name, task in result["tasks"].items():
        lines += ["", f"| {name}: nanoseconds per word | lower bound | ncelm | efficiency |", "|---|---|---|---|"]
        for phase, each in task.get("phases", {}).items():
            bound, measured = each["bound_ns_per_word"], each["ns_per_word"]
            if bound > 0:  # phases that this model does not have are left out
                lines.append(f"| {phase} | {bound:.0f} | {measured:.0f} | {bound / measured:.0%} |")
        lines.append(
            f"| total (bound: sum of the phases; ncelm: training) | {task['bound_ns_per_word']:.0f} | "
            f"{task['ns_per_word']:.0f} | **{task['efficiency']:.0%}** |"
        )
        one, two = task["words_per_second"]
        medians = " and ".join(f"{speed:,.0f}" for speed in task["median_words_per_second"])
        lines += [
            "",
            f"Throughput of the best call: {one:,.0f} words/s, with two threads {two:,.0f}, speed-up "
            f"**{two / one:.2f}** (medians {medians}; median speed-up of a round {task['two_threads_speedup']:.2f}, "
            f"while the speed-up of plain arithmetic on two cores was {task['two_cores_speedup']:.2f}).",
        ]
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--ptb", type=Path, metavar="STORE", help="token store of about 10,000 words, for (a) and (c)")
    parser.add_argument("--holmes", type=Path, metavar="STORE", help="token store of about 76,000 words, for (b)")
    parser.add_argument("--seconds", type=float, default=0.3, help="time for which each operation is repeated (0.3)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of training (20)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stores = {"ptb": options.ptb, "holmes": options.holmes}
        try:
            result = measure(stores, Timer(options.seconds), Path(folder), options.rounds)
        except NcelmError as error:
            log(str(error))
            return 2
    figures = {}
    for name, task in result["tasks"].items():
        one, two = task["words_per_second"]
        figures |= {f"{name}: efficiency": task["efficiency"], f"{name}: words/s": one, f"{name}: 2 threads": two}
    append_history(options.history, result, figures)
    print(json.dumps(result, indent=2, ensure_ascii=False) if options.json else report(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
