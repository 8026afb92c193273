"""How far is training from what this machine can do? Floors, measured in the same run, beside ncelm, phase by phase.

    python benchmarks/limit.py [--ptb STORE] [--holmes STORE] [--json] [--seconds 0.3]

First the machine: matrix products at our shapes, rows read and updated at random in tables of 4, 40 and 400 MB, alias
draws, exponentials, on one core and on two. Then, for each task, the least work that a minibatch takes: which rows must
be read, which updated, which products formed. Each piece is timed bare, on the rows of real minibatches (some words are
frequent, so that caches help, which rows at random would not show), and their sum is the floor. README.md beside this
file says what is counted. Without stores, the text is made up, with the word frequencies of Zipf's law.
"""

import argparse
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

from common import fresh_engine, heading, made_up_store, say
from ncelm.errors import NcelmError
from ncelm.io.machine import environment_info
from ncelm.kernels import records
from ncelm.kernels import steps as kernels
from ncelm.kernels.threads import Team
from ncelm.models.log_bilinear import ModelConfig
from ncelm.noise import Noise
from ncelm.text.store import TokenStore
from ncelm.training.config import TrainConfig
from ncelm.training.engine import Engine

TABLES_MB = (4, 40, 400)
AT_ONCE = 24  # rows, about as many as an example has words


# -- bare pieces of work -----------------------------------------------------------------------------------------------

piece = njit(fastmath=True, nogil=True, error_model="numpy")


@piece
def read_rows(table, rows, vector, dots):
    """The least that can be done with rows: a dot product with each, eight side by side, as fast as we know how to."""
    if table.size <= kernels.IN_CACHE:
        kernels._score_rows(vector, table, rows, dots)
        return
    for first in range(0, rows.size, AT_ONCE):  # those to come are asked for while these are multiplied
        for r in range(min(first + AT_ONCE, rows.size), min(first + 2 * AT_ONCE, rows.size)):
            kernels._fetch(table, np.int64(rows[r]))
        kernels._score_rows(vector, table, rows[first : first + AT_ONCE], dots[first : first + AT_ONCE])


@piece
def update_rows(table, rows, vector):
    """Read, change and write rows."""
    for r in range(rows.size):
        row = table[rows[r]]
        for t in range(vector.size):
            row[t] += vector[t]


@piece
def draw_words(count, columns, out):
    """Draws from an alias table."""
    for i in range(count):
        out[i & 1023] = kernels.draw_word(kernels.draw(np.uint64(7), i), columns)


@piece
def count_words(words, counts):
    """One pass of a counting sort."""
    for i in range(words.size):
        counts[words[i]] += 1


@piece
def exponentials(scores, out):
    """One for each."""
    for i in range(scores.size):
        out[i] = kernels.exp32(scores[i])


@piece
def many_exponentials(scores, out, times):
    """The same ones again and again."""
    for _ in range(times):
        exponentials(scores, out)


@piece
def sigmoids(scores, out):
    """An exponential and a division for each."""
    for i in range(scores.size):
        out[i] = np.float32(1.0) / (np.float32(1.0) + kernels.exp32(-scores[i]))


@piece
def product(a, b, out, times):
    """A matrix product, by the BLAS that the kernels call."""
    for _ in range(times):
        np.dot(a, b, out)


# -- timing ------------------------------------------------------------------------------------------------------------


@dataclass
class Clock:
    """Times pieces of work."""

    seconds: float  # spent on each

    def best(self, work: Callable[[], object]) -> float:
        """Seconds that it takes, the best of many."""
        work()  # compile, and fill the caches
        best, end = float("inf"), time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - began)
        return best

    def on_both_cores(self, works: list[Callable[[], object]]) -> float:
        """Seconds until two pieces of work, one on each core, are both done: the best of many."""
        with ThreadPoolExecutor(2) as pool:
            return self.best(lambda: [future.result() for future in [pool.submit(work) for work in works]])


def machine(clock: Clock) -> dict[str, Any]:
    """What one core and two can do."""
    rng = np.random.default_rng(0)
    answer: dict[str, Any] = {"gflops": {}, "gigabytes_per_second": {}}

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    shapes = {"64×100×100": (64, 100, 100), "250×100×400": (250, 100, 400), "250×300×400": (250, 300, 400)}
    for name, (n, k, m) in (shapes | {"250×100×1000": (250, 100, 1000)}).items():
        times = max(1, 20_000_000 // (n * k * m))
        works = [partial(product, floats(n, k), floats(k, m), np.empty((n, m), np.float32), times) for _ in range(2)]
        flops = 2.0 * n * k * m * times
        answer["gflops"][name] = [flops / clock.best(works[0]) / 1e9, 2 * flops / clock.on_both_cores(works) / 1e9]
    vector = floats(100)
    for megabytes in TABLES_MB:
        table = floats(megabytes * 1_000_000 // 400, 100)
        halves = [rng.integers(len(table), size=100_000, dtype=np.int32) for _ in range(2)]
        for name, work, more in (("read", read_rows, (np.empty(100_000, np.float32),)), ("update", update_rows, ())):
            works = [partial(work, table, rows, vector, *(each.copy() for each in more)) for rows in halves]
            size = halves[0].size * 400 * (1 if name == "read" else 2) / 1e9
            answer["gigabytes_per_second"][f"{name} rows, {megabytes} MB"] = [
                size / clock.best(works[0]),
                2 * size / clock.on_both_cores(works),
            ]
    noise = Noise.from_counts(1_000_000 // np.arange(1, 10_001))
    scores = floats(100_000)
    draws = [partial(draw_words, 100_000, noise.columns, np.empty(1024, np.int64)) for _ in range(2)]
    answer["millions_per_second"] = {}
    for name, works in (
        ("alias draws", draws),
        ("exponentials", [partial(exponentials, scores, np.empty_like(scores)) for _ in range(2)]),
        ("sigmoids", [partial(sigmoids, scores, np.empty_like(scores)) for _ in range(2)]),
    ):
        both = [0.1 / clock.best(works[0]), 2 * 0.1 / clock.on_both_cores(works)]
        answer["millions_per_second"][name] = both
    return answer


# -- tasks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskKind:
    """Something to train."""

    name: str
    config: TrainConfig
    vocabulary: int
    text: str  # "ptb" or "holmes"


def tasks() -> list[TaskKind]:
    """(a), (b) and (c)."""
    full = TrainConfig(model=ModelConfig(context=2, dim=100), optimizer="sgd", learning_rate=0.01)
    wide = [ModelConfig(context=10, dim=dim, matrices="diagonal") for dim in (100, 300)]
    return [
        TaskKind("(a) V 10,000, 2 full matrices, d 100, k 25", full, 10_000, "ptb"),
        *(
            TaskKind(f"(b) V 76,000, 10 diagonal, d {m.dim}, k 25", full.with_changes(model=m), 76_000, "holmes")
            for m in wide
        ),
        TaskKind("(c) exact maximum likelihood at (a)", full.with_changes(estimator="ml"), 10_000, "ptb"),
    ]


def words_per_second(engines: list[Engine], rounds: int = 20) -> tuple[list[np.ndarray], list[float]]:
    """Of several engines, by turns: (rounds, calls) each; and how much faster two cores do arithmetic than one."""
    seconds = [np.zeros((rounds + 1, 4)) for _ in engines]
    cores = []
    with ThreadPoolExecutor(2) as pool:
        for number in range(rounds + 1):
            for engine, taken in zip(engines, seconds, strict=True):
                n = engine.sizes.planned
                rates = np.full(n, 0.001)
                for call in range(taken.shape[1]):
                    first = (taken.shape[1] * number + call) * n % max(1, engine.steps_per_epoch - n)
                    began = time.perf_counter()
                    engine.run(0, first, rates, rates)
                    taken[number, call] = time.perf_counter() - began
            cores.append(_arithmetic(pool, 1) / _arithmetic(pool, 2))
    words = [engine.sizes.planned * engine.sizes.batch for engine in engines]
    return [each / taken[1:] for each, taken in zip(words, seconds, strict=True)], cores[1:]


def _arithmetic(pool: ThreadPoolExecutor, threads: int) -> float:
    """Seconds for twenty million exponentials by so many threads, each with its own numbers in its own first cache."""
    numbers = [np.zeros((2, 1000), np.float32) for _ in range(threads)]
    began = time.perf_counter()
    for future in [pool.submit(many_exponentials, *own, 20_000 // threads) for own in numbers]:
        future.result()
    return time.perf_counter() - began


# -- the phases of a minibatch, ours and the least ---------------------------------------------------------------------


@njit
def _plan(engine_seed, row, step, batch, corpus, noise, plan, diagonal, scratch, spare):
    corpus, noise, plan, scratch, spare = kernels.borrowed((corpus, noise, plan, scratch, spare))
    kernels._plan_minibatch(
        corpus, noise, engine_seed, 0, step, step * batch, batch, row, plan, diagonal, scratch, spare
    )


@njit
def _projects(items, row, plan, theta, work):
    plan, theta, work = kernels.borrowed((plan, theta, work))
    for item in range(items):
        kernels._project(theta.matrices, item, row, plan, theta, work)


@njit
def _examples(items, row, plan, noise, method, theta, squares, constants, work, rates, scores, log_k_noise, posterior):
    plan, noise, theta, squares, constants, work, rates, scores, log_k_noise, posterior = kernels.borrowed(
        (plan, noise, theta, squares, constants, work, rates, scores, log_k_noise, posterior)
    )
    for item in range(items):
        kernels._sampled_examples(
            theta.matrices, item, row, plan, noise, method, theta, squares, constants, work, rates, scores,
            log_k_noise, posterior,
        )  # fmt: skip


@njit
def _targets(items, row, plan, method, theta, squares, work, rates, gradient, weights, used):
    plan, theta, squares, work, rates = kernels.borrowed((plan, theta, squares, work, rates))
    for item in range(items):
        kernels._sampled_targets(item, row, plan, method, theta, squares, work, rates, False, gradient, weights, used)


@njit
def _contexts(items, row, plan, theta, squares, work, rates, gradient):
    plan, theta, squares, work, rates = kernels.borrowed((plan, theta, squares, work, rates))
    for item in range(items):
        kernels._context_gradients(theta.matrices, item, row, plan, theta, squares, work, rates, False, gradient)


@njit
def _updates(items, groups, row, plan, theta, squares, work, rates, gradient):
    plan, theta, squares, work, rates = kernels.borrowed((plan, theta, squares, work, rates))
    for item in range(items):
        kernels._update_matrices(theta.matrices, item, row, plan, squares, work, rates)
    for item in range(groups):
        kernels._update_contexts(theta.matrices, item, row, plan, theta, squares, work, rates, gradient)


def our_phases(engine: Engine, clock: Clock) -> dict[str, float]:
    """Seconds of each phase of one minibatch, one thread."""
    plan, theta, work, squares, batch = engine.plan, engine.parameters, engine.work, engine.squares, engine.sizes.batch
    c, d = theta.matrices.shape[:2]
    diagonal, block = theta.matrices.ndim == 2, kernels.GROUP_BLOCK
    scratch = np.zeros(len(theta.context_vectors), np.int32)
    spare = np.empty(max(plan.context_order.shape[1], plan.target_order.shape[1]), np.int32)
    padded = kernels.padded_samples(plan.words.shape[2])
    gradient, weights = np.empty(d, np.float32), np.empty(plan.target_order.shape[1], np.float32)
    used = np.empty(plan.target_order.shape[1], np.int32)
    nothing = np.zeros(engine.sizes.planned, np.float32)
    rates = records.Rates(nothing, nothing, engine.penalties)
    positions = 0 if diagonal else c * -(-batch // kernels.POSITION_BLOCK)
    groups, targets = -(-int(plan.context_groups[0]) // block), -(-int(plan.target_groups[0]) // block)
    seed = np.uint64(0)
    common = (plan, theta, squares, work, rates, gradient)
    return {
        "plan": clock.best(
            lambda: _plan(seed, 0, 0, batch, engine.corpus, engine.noise, plan, diagonal, scratch, spare)
        ),
        "project": clock.best(lambda: _projects(positions, 0, plan, theta, work)),
        "score and weigh": clock.best(
            lambda: _examples(
                -(-batch // kernels.EXAMPLE_BLOCK),
                0,
                plan,
                engine.noise,
                engine.method,
                theta,
                squares,
                engine.constants,
                work,
                rates,
                *padded,
            )
        ),
        "update targets": clock.best(
            lambda: _targets(targets, 0, plan, engine.method, theta, squares, work, rates, gradient, weights, used)
        ),
        "back to contexts": clock.best(lambda: _contexts(groups if diagonal else positions, 0, *common)),
        "update contexts": clock.best(lambda: _updates(c, 0 if diagonal else groups, 0, *common)),
    }


def least_phases(engine: Engine, clock: Clock) -> dict[str, float]:
    """The least that each phase must do, piece by piece, on the rows of the same minibatch.

    Rows of the tables are read for the first time as they are in training, one minibatch after another, from wherever
    they have stayed since they were used last; in later phases they are at hand.
    """
    plan, theta, work = engine.plan, engine.parameters, engine.work
    (c, d), batch = theta.matrices.shape[:2], engine.sizes.batch
    vector = np.random.default_rng(0).standard_normal(d, np.float32)
    full = theta.matrices.ndim == 3
    words = np.ascontiguousarray(plan.words[0]).ravel()  # (B (k + 1),)
    contexts = np.ascontiguousarray(plan.contexts[0]).ravel()  # (B c,)
    groups = plan.target_groups[0]
    target_words = plan.target_words[0, :groups].copy()
    context_words = plan.context_words[0, : plan.context_groups[0]].copy()
    by_word = plan.target_rows[0, : plan.target_offsets[0, groups]].copy()  # the examples of each target, word by word
    single_words = words.size - by_word.size  # words that are in the minibatch once
    examples = np.repeat(np.arange(batch), c)
    counts, out = np.zeros(len(theta.context_vectors), np.int64), np.empty(1024, np.int64)
    scores, results = np.zeros(words.size, np.float32), np.empty(words.size, np.float32)

    def rows(table: np.ndarray, *which: np.ndarray) -> float:
        """Of one minibatch; those of several are read in turn."""
        in_turn, dots = [each.astype(np.int32) for each in which], np.empty(which[0].size, np.float32)
        return clock.best(lambda: [read_rows(table, each, vector, dots) for each in in_turn]) / len(in_turn)

    def of_all(planned: np.ndarray) -> list[np.ndarray]:
        """What was planned for each minibatch, in a row."""
        return [planned[m].ravel() for m in range(len(planned)) if plan.sizes[m] == batch]

    nothing = np.zeros_like(vector)

    def updated(table: np.ndarray, which: np.ndarray) -> float:
        return clock.best(lambda: update_rows(table, which, nothing))

    drawn = words.size - batch
    plan_least = clock.best(lambda: draw_words(drawn, engine.noise.columns, out))
    plan_least += 2 * clock.best(lambda: count_words(words, counts)) + 2 * clock.best(
        lambda: count_words(contexts, counts)
    )
    products, projected = 0.0, np.zeros(0, np.int32)
    if full:
        groups_of = plan.position_groups[0].tolist()
        projected = np.concatenate([plan.position_words[0, i, :count] for i, count in enumerate(groups_of)])
        for count in groups_of:
            a, b = np.zeros((count, d), np.float32), np.zeros((d, d), np.float32)
            products += clock.best(lambda a=a, b=b: product(a, b, np.empty_like(a), 1))
    from_contexts = (
        rows(work.projected.reshape(-1, d), plan.position_slots[0].ravel())
        if full
        else rows(theta.context_vectors, *of_all(plan.contexts))
    )
    return {
        "plan": plan_least,
        "project": products + (rows(theta.context_vectors, projected) if full else 0.0),
        "score and weigh": from_contexts
        + rows(theta.target_vectors, *of_all(plan.words))
        # its share of dJ/dq̂: as many products and sums again, but a row that has been read is at hand
        + rows(work.predicted, np.repeat(np.arange(batch), words.size // batch))
        + clock.best(lambda: sigmoids(scores, results))
        # a word that is in the minibatch only once has its step while its row is at hand
        + updated(theta.target_vectors, np.tile(words[:AT_ONCE], 100)) / (100 * AT_ONCE) * single_words,
        "update targets": rows(work.predicted, by_word) + updated(theta.target_vectors, target_words),
        # with diagonal matrices a gradient goes to the word and to the matrix
        "back to contexts": rows(work.gradients, examples) * (1 if full else 2)
        + (2 * products if full else updated(theta.context_vectors, context_words)),
        "update contexts": updated(theta.context_vectors, context_words) if full else 0.0,
    }


def exact_phases(engine: Engine, clock: Clock) -> float:
    """The least of exact maximum likelihood: three products over the vocabulary and an exponential for each score."""
    vocabulary, d = engine.parameters.target_vectors.shape
    batch, block = engine.sizes.batch, kernels.VOCABULARY_BLOCK
    a, b = np.zeros((kernels.ML_EXAMPLE_BLOCK, d), np.float32), np.zeros((d, block), np.float32)
    seconds = clock.best(lambda: product(a, b, np.empty((len(a), block), np.float32), 1))
    scores = np.zeros(100_000, np.float32)
    each = clock.best(lambda: exponentials(scores, np.empty_like(scores))) / scores.size
    return 3 * seconds * (batch / len(a)) * (vocabulary / block) + each * batch * vocabulary


# -- telling -----------------------------------------------------------------------------------------------------------


def measure(stores: dict[str, Path | None], clock: Clock, folder: Path) -> dict[str, Any]:
    """Everything."""
    with Team(1):  # BLAS stays on the thread that calls it, as in training: one core is one core
        answer: dict[str, Any] = {"machine": machine(clock), "tasks": {}}
    made: dict[str, TokenStore] = {}
    for task in tasks():
        if task.text not in made:
            path = stores[task.text]
            (folder / task.text).mkdir()
            made[task.text] = TokenStore.open(path) if path else made_up_store(folder / task.text, task.vocabulary)
        with Team(1) as one, Team(2) as two:
            engines = [fresh_engine(task.config, made[task.text], team) for team in (one, two)]
            speeds, cores = words_per_second(engines)
            batch = engines[0].sizes.batch
            found: dict[str, Any] = {
                "words_per_second": [float(speed.max()) for speed in speeds],  # the best of many, as for the floor
                "median_words_per_second": [float(np.median(speed)) for speed in speeds],
                "two_threads_over_one": statistics.median(
                    float(np.mean(1.0 / one) / np.mean(1.0 / two)) for one, two in zip(*speeds, strict=True)
                ),
                "two_cores_over_one": statistics.median(cores),
            }
            if task.config.estimator == "ml":
                floor = exact_phases(engines[0], clock)
            else:
                # ours and the least of a phase are timed right after one another
                ours, least = our_phases(engines[0], clock), least_phases(engines[0], clock)
                floor = sum(least.values())
                found["phases"] = {
                    name: {"ours_ns_per_word": ours[name] / batch * 1e9, "floor_ns_per_word": least[name] / batch * 1e9}
                    for name in ours
                }
            found["floor_ns_per_word"] = floor / batch * 1e9
            found["ours_ns_per_word"] = 1e9 / found["words_per_second"][0]
            found["share_of_the_floor"] = found["floor_ns_per_word"] / found["ours_ns_per_word"]
            answer["tasks"][task.name] = found
    return answer | environment_info("ncelm", "numpy", "numba")


def table(answer: dict[str, Any]) -> str:
    """The result for people, in Markdown."""
    here = answer["machine"]
    lines = heading("The limit of the machine", answer)
    lines += ["| this machine | one core | two cores |", "|---|---|---|"]
    lines += [f"| product {name}, GFLOP/s | {one:.0f} | {two:.0f} |" for name, (one, two) in here["gflops"].items()]
    lines += [f"| {name}, GB/s | {one:.1f} | {two:.1f} |" for name, (one, two) in here["gigabytes_per_second"].items()]
    rates = here["millions_per_second"]
    lines += [f"| {name}, million/s | {one:.0f} | {two:.0f} |" for name, (one, two) in rates.items()]
    for name, task in answer["tasks"].items():
        lines += ["", f"| {name}: nanoseconds a word | floor | ours | floor/ours |", "|---|---|---|---|"]
        for phase, each in task.get("phases", {}).items():
            floor, ours = each["floor_ns_per_word"], each["ours_ns_per_word"]
            if floor > 0:  # a phase that this kind of model does not have
                lines.append(f"| {phase} | {floor:.0f} | {ours:.0f} | {floor / ours:.0%} |")
        lines.append(
            f"| all (phases by themselves, ours as it trains) | {task['floor_ns_per_word']:.0f} | "
            f"{task['ours_ns_per_word']:.0f} | **{task['share_of_the_floor']:.0%}** |"
        )
        one, two = task["words_per_second"]
        medians = " and ".join(f"{speed:,.0f}" for speed in task["median_words_per_second"])
        lines += [
            "",
            f"The best call has {one:,.0f} words/s, with two threads {two:,.0f}, **{two / one:.2f}** times as many "
            f"(medians {medians}; round by round {task['two_threads_over_one']:.2f} times as many, where two cores did "
            f"{task['two_cores_over_one']:.2f} times the arithmetic of one).",
        ]
    return "\n".join(lines)


def main() -> int:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ptb", type=Path, help="a token store of about 10,000 words, for (a) and (c)")
    parser.add_argument("--holmes", type=Path, help="a token store of about 76,000 words, for (b)")
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="for which each piece is timed again and again (0.3)"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of tables")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stores = {"ptb": options.ptb, "holmes": options.holmes}
        try:
            answer = measure(stores, Clock(options.seconds), Path(folder))
        except NcelmError as error:
            say(str(error))
            return 2
    print(json.dumps(answer, indent=2, ensure_ascii=False) if options.json else table(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
