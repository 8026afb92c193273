"""Words per second of ncelm's NCE training beside plain PyTorch: the same work, checked first, timed by turns.

    python benchmarks/words_per_second.py STORE [--json] [--rounds 5] [--words 300000] [--no-compile]

STORE is a token store made by `ncelm prepare`. README.md beside this file says what is compared and what is checked.
"""

import argparse
import json
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chisquare

from ncelm import kernels
from ncelm.corpus import TokenStore, contexts_and_targets
from ncelm.engine import Engine
from ncelm.errors import NcelmError
from ncelm.model import LogBilinear, ModelConfig
from ncelm.noise import Noise
from ncelm.threads import Team
from ncelm.training import TrainConfig

try:
    import torch
except ModuleNotFoundError:
    print("this benchmark compares ncelm with PyTorch, which is missing: pip install torch==2.13.0", file=sys.stderr)
    sys.exit(2)

from ncelm.machine import surroundings
from plain_pytorch import (
    PLAIN_DRAWING,
    PLAIN_WAY,
    Sampler,
    Task,
    Trainer,
    all_examples,
    fastest,
    fastest_trainer,
    samplers,
)

# Section 4 of the paper. The rates do not change the speed.
PAPER = TrainConfig(
    model=ModelConfig(context=2, dim=100, matrices="full"),
    estimator="nce",
    noise="unigram",
    noise_samples=25,
    optimizer="sgd",
    learning_rate=0.01,
    matrix_rate=0.1,
    batch_size=1000,
)
WARM_UP = 32  # minibatches
TOLERANCE = 1e-5  # between two float32 computations that add up the same numbers in another order
ONE, TWO = "ncelm, 1 thread", "ncelm, 2 threads"
PLAIN, TUNED, COMPILED = "plain PyTorch, 1 thread", "tuned PyTorch, 1 thread", "compiled PyTorch, 1 thread"


class CheckError(Exception):
    """The two sides do not do the same work, so that their times must not be compared."""


class Ours:
    """ncelm's training loop without files and validation: what `ncelm train` times as words per second."""

    def __init__(self, task: Task, team: Team) -> None:
        arrays = {name: array.copy() for name, array in task.parameters.items()}
        self.model = LogBilinear.from_arrays(PAPER.model, arrays)
        no_squares = kernels.Parameters(*(np.zeros((0, *a.shape[1:]), np.float32) for a in self.model.parameters()))
        sizes = PAPER.sizes(len(task.store.vocabulary), task.store.split("train").tokens)
        self.engine = Engine(self.model, no_squares, task.noise, task.store, sizes, PAPER.seed, PAPER.penalty, team)
        self.table_rate, self.matrix_rate = task.table_rate, task.matrix_rate
        self.epoch, self.step = 0, 0

    def train(self, minibatches: int) -> float:
        """Train on so many more whole minibatches; return the mean loss of a word."""
        engine, total, left = self.engine, 0.0, minibatches
        whole = engine.corpus.ids.size // PAPER.batch_size  # PyTorch trains on whole minibatches, and so do we here
        while left:
            if self.step == whole:
                self.epoch, self.step = self.epoch + 1, 0
            n = min(engine.sizes.planned, whole - self.step, left)
            table_rates, matrix_rates = np.full(n, self.table_rate), np.full(n, self.matrix_rate)
            total += float(engine.run(self.epoch, self.step, table_rates, matrix_rates).sum())
            self.step, left = self.step + n, left - n
        return total / (minibatches * PAPER.batch_size)

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters."""
        return self.model.arrays()


# -- the same work on both sides ---------------------------------------------------------------------------------------


def paper_task(store: TokenStore, spread: float = PAPER.spread) -> Task:
    """What both sides are to do."""
    noise = Noise.from_counts(store.vocabulary.counts, PAPER.noise)
    start = LogBilinear.initialise(PAPER.model, noise.probabilities, PAPER.seed, spread)
    return Task(
        parameters=start.arrays(),
        store=store,
        noise=noise,
        noise_samples=PAPER.noise_samples,
        batch=PAPER.batch_size,
        table_rate=PAPER.learning_rate,
        matrix_rate=PAPER.learning_rate * PAPER.matrix_rate,
    )


def check_step(store: TokenStore, team: Team, rival: Trainer) -> dict[str, float]:
    """One SGD step on one minibatch, with the same noise words: loss and parameters must agree.

    Return how far they are apart: the largest difference, as a fraction of the loss and of the largest step.
    """
    # Larger vectors and rates than in training: every term then counts, and a forgotten one cannot hide in rounding.
    task = replace(paper_task(store, spread=0.5), table_rate=0.1, matrix_rate=0.1)
    ours = Ours(task, team)
    our_loss = ours.train(1)
    plan = ours.engine.plan  # still holds the minibatch: row 0 of each array
    contexts, words = (torch.tensor(array[0], dtype=torch.int64) for array in (plan.contexts, plan.words))
    theirs = Trainer(task, rival.way, rival.draw_noise, (rival.contexts, rival.targets))
    their_loss = theirs.step(contexts, words) / PAPER.batch_size
    differences = {"loss": abs(our_loss - their_loss) / abs(their_loss)}
    for name, mine in ours.arrays().items():
        step = np.abs(mine - task.parameters[name]).max()  # largest change of a parameter
        if not step > 0:
            raise CheckError(f"the step has not moved the {name.replace('_', ' ')}: agreement would mean nothing")
        differences[name] = float(np.abs(mine - theirs.arrays()[name]).max() / step)
    for name, difference in differences.items():
        if not difference <= TOLERANCE:
            raise CheckError(f"after one step, {name.replace('_', ' ')} differ by {difference:.2g} ({rival.way})")
    return differences


def check_examples(store: TokenStore, rival: Trainer) -> None:
    """The rival's contexts and targets must be those of ncelm."""
    ids, end_id = store.split("train").ids, store.vocabulary.end_id
    positions = np.r_[0:10, np.random.default_rng(0).integers(len(ids), size=5000)]
    contexts, targets = contexts_and_targets(
        ids, positions, PAPER.model.context, 0, store.boundary, end_id, store.pad_id
    )
    same = np.array_equal(rival.contexts[positions], contexts) and np.array_equal(rival.targets[positions], targets)
    if len(rival.targets) != len(ids) or not same:
        raise CheckError("the contexts and targets are not the same on both sides")


def check_noise(noise: Noise, sampler: Sampler) -> None:
    """The rival's noise words must be as frequent as Pn says (a χ² test; rare words count as one)."""
    draws = 1_000_000
    seen = np.bincount(sampler((draws // 100, 100)).numpy().ravel(), minlength=noise.probabilities.size)
    expected = noise.probabilities * draws
    common = expected >= 20
    pooled = [np.r_[counts[common], counts[~common].sum()] for counts in (seen, expected)]
    keep = pooled[1] > 0  # nothing is left over where every word is common
    if chisquare(pooled[0][keep], pooled[1][keep]).pvalue < 1e-6:
        raise CheckError("PyTorch's noise words do not follow the noise distribution")


# -- timing ------------------------------------------------------------------------------------------------------------


def measure(
    contenders: dict[str, Any], rounds: int, minibatches: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Words per second of each contender in each round, taken by turns, and the loss of each in the last round."""
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    losses = {name: contender.train(WARM_UP) for name, contender in contenders.items()}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for name, contender in contenders.items():
            began = time.perf_counter()
            losses[name] = contender.train(minibatches)
            speeds[name].append(minibatches * PAPER.batch_size / (time.perf_counter() - began))
    return speeds, losses


def spread_of(values: list[float]) -> dict[str, Any]:
    """The median and the range of one number a round."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "rounds": values}


def ratios(speeds: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """How many times as fast, round by round: ncelm to each rival, and two threads to one."""
    pairs = [(ONE, rival) for rival in (PLAIN, TUNED, COMPILED) if rival in speeds] + [(TWO, ONE)]
    return {
        f"{fast} / {slow}": spread_of([a / b for a, b in zip(speeds[fast], speeds[slow], strict=True)])
        for fast, slow in pairs
    }


def benchmark(store: TokenStore, rounds: int, words: int, compile_too: bool) -> dict[str, Any]:
    """Check, then time; return everything there is to tell."""
    if store.split("train").tokens < PAPER.batch_size:
        raise NcelmError(f"{store.path} has fewer than {PAPER.batch_size} training words: take a larger store")
    torch.set_num_threads(1)
    torch.manual_seed(PAPER.seed)
    task, examples = paper_task(store), all_examples(store, PAPER.model.context)
    ways_to_draw = samplers(task)
    shape = (PAPER.batch_size, PAPER.noise_samples)
    say("finding the fastest way to write it in PyTorch")
    drawing = fastest({name: lambda draw=draw: draw(shape) for name, draw in ways_to_draw.items()}, rounds=50)
    rivals = {
        PLAIN: Trainer(task, PLAIN_WAY, ways_to_draw[PLAIN_DRAWING], examples),
        TUNED: fastest_trainer(task, ways_to_draw[drawing], examples, compiled=False),
    }
    if compile_too:
        try:
            rivals[COMPILED] = fastest_trainer(task, ways_to_draw[drawing], examples, compiled=True)
        except Exception as error:  # no C++ compiler, no headers of Python, …: torch has an error type for each
            say(f"torch.compile does not work here, so it is left out: {str(error).strip().splitlines()[0]}")

    with ExitStack() as stack:
        one, two = (stack.enter_context(Team(threads)) for threads in (1, 2))
        say("checking that all compute the same")
        for name in {drawing, PLAIN_DRAWING}:
            check_noise(task.noise, ways_to_draw[name])
        check_examples(store, rivals[PLAIN])
        differences = {name: check_step(store, one, rival) for name, rival in rivals.items()}
        # who is compared with whom stands side by side: a noisy machine changes from one minute to the next
        contenders: dict[str, Any] = {TWO: Ours(task, two), ONE: Ours(task, one), **rivals}
        speeds, losses = measure(contenders, rounds, max(1, words // PAPER.batch_size))
        with_one, with_two = contenders[ONE].arrays(), contenders[TWO].arrays()
        if not all(np.array_equal(with_one[name], with_two[name]) for name in with_one):
            raise CheckError("one and two threads have not come to the same parameters")
    return {
        "words_per_second": {name: spread_of(speed) for name, speed in speeds.items()},
        "ratios": ratios(speeds),
        "loss_in_last_round": losses,
        "differences_after_one_step": differences,
        "pytorch": {
            name: f"noise by {PLAIN_DRAWING if name == PLAIN else drawing}, {rival.way}"
            for name, rival in rivals.items()
        },
        "words_per_round": max(1, words // PAPER.batch_size) * PAPER.batch_size,
        "settings": asdict(PAPER),
        "text": {"training_words": store.split("train").tokens, "vocabulary": len(store.vocabulary)},
        **surroundings("ncelm", "numpy", "numba", "scipy", "torch"),
    }


# -- telling -----------------------------------------------------------------------------------------------------------


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    rows = [("words per second", "median", "least", "most", "loss")]
    for name, speed in result["words_per_second"].items():
        numbers = [f"{speed[key]:,.0f}" for key in ("median", "least", "most")]
        rows.append((name, *numbers, f"{result['loss_in_last_round'][name]:.3f}"))
    rows.append(("ratio", "median", "least", "most", ""))
    for name, ratio in result["ratios"].items():
        rows.append((name, *(f"{ratio[key]:.2f}" for key in ("median", "least", "most")), ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        row[0].ljust(widths[0])
        + "".join("  " + cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
    lines += [f"{name}: {way}" for name, way in result["pytorch"].items()]
    libraries = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines.append(f"{result['cpu']}, {result['cores']} cores; {libraries}; commit {result['commit']}")
    return "\n".join(line.rstrip() for line in lines)


def say(message: str) -> None:
    """Progress, for whoever waits."""
    print(message, file=sys.stderr, flush=True)


def main() -> int:
    """Read the command line and run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store", type=Path, metavar="STORE", help="a token store made by `ncelm prepare`")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed (5)")
    parser.add_argument("--words", type=int, default=300_000, help="training words in one round (300,000)")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile, which takes a minute")
    options = parser.parse_args()
    if options.rounds < 1 or options.words < 1:
        parser.error("--rounds and --words must be at least 1")
    try:
        result = benchmark(TokenStore.open(options.store), options.rounds, options.words, not options.no_compile)
    except NcelmError as error:
        say(str(error))
        return 2
    except CheckError as error:
        say(f"the check failed, so no times are given: {error}")
        return 1
    print(json.dumps(result, indent=2, ensure_ascii=False) if options.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
