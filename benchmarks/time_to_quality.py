"""Perplexity against seconds of training: ncelm by NCE and by maximum likelihood, and PyTorch with shared noise.

    python benchmarks/time_to_quality.py STORE --out FOLDER [--only NAME …] [--seeds 3]

STORE is a token store of the Penn Treebank (any text will do, but the levels are the paper's). Writes
FOLDER/time_to_quality.json, .md and .png. The contenders train one after another, each with its number of threads; the
clock stands still while perplexities are computed. The time to a level is that of the first moment at which test
perplexity is at or below it.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common import fresh_engine, heading, say
from ncelm.errors import NcelmError
from ncelm.io.machine import environment_info
from ncelm.kernels.threads import Team
from ncelm.models.evaluate import evaluate_split
from ncelm.models.log_bilinear import LogBilinear
from ncelm.noise import Noise
from ncelm.paper import plots
from ncelm.text.store import TokenStore
from ncelm.training.config import TrainConfig
from ncelm.training.loop import train
from ncelm.training.recipes import recipe

try:
    import torch
except ModuleNotFoundError:
    print("this benchmark compares ncelm with PyTorch, which is missing: pip install torch==2.13.0", file=sys.stderr)
    sys.exit(2)

from baselines import SHARED, find_rivals
from pytorch_baselines import Task, all_examples, fastest, samplers

LEVELS = (163.1, 156.0)  # the paper's test perplexity with 25 noise words; that of PyTorch in 39 s of one core
POINTS = 10  # of an epoch at which test perplexity is computed
Curve = list[tuple[float, float]]  # seconds, test perplexity
ONE_PASS = recipe("ptb-quick").with_changes(
    batch_size=250, noise_samples=250, learning_rate=0.5, matrix_rate=0.03, warm_up=300
)


@dataclass(frozen=True)
class Contender:
    """Someone who trains."""

    name: str
    threads: int
    run: Callable[[TokenStore, int, int], Curve]  # store, threads, seed


def by_recipe(config: TrainConfig) -> Callable[[TokenStore, int, int], Curve]:
    """`ncelm train`, looked at after each epoch."""

    def run(store: TokenStore, threads: int, seed: int) -> Curve:
        curve: Curve = []

        def note(at: Any) -> None:
            if at.metrics and (not curve or curve[-1][0] != at.metrics["seconds"]):
                curve.append((at.metrics["seconds"], at.metrics["test_perplexity"]))
                if curve[-1][1] <= min(LEVELS) and config.schedule == "halve":
                    raise _EnoughError

        with tempfile.TemporaryDirectory() as folder, suppress(_EnoughError):
            out, settings = Path(folder, "run"), config.with_changes(seed=seed)
            train(store, out, settings, threads=threads, watch=["test"], progress=note)
        return curve

    return run


class _EnoughError(Exception):
    """All levels are reached."""


def by_engine(config: TrainConfig) -> Callable[[TokenStore, int, int], Curve]:
    """What `ncelm train` does with a linear schedule, looked at several times an epoch."""

    def run(store: TokenStore, threads: int, seed: int) -> Curve:
        with Team(threads) as team:
            settings = config.with_changes(seed=seed)
            noise = Noise.from_counts(store.vocabulary.counts, config.noise)
            model = LogBilinear.initialise(config.model, noise.probabilities, seed, config.spread)
            engine = fresh_engine(settings, store, team, model)
            steps = engine.steps_per_epoch
            step, seconds, curve = 0, 0.0, []
            while step < steps * config.epochs:
                n = min(engine.planned, steps - step % steps)
                began = time.perf_counter()
                rates = rates_of(config, step + np.arange(n), steps)
                engine.run(step // steps, step % steps, rates, rates * config.matrix_rate)
                seconds += time.perf_counter() - began
                looked, step = step * POINTS // steps, step + n
                if step * POINTS // steps > looked:
                    curve.append((seconds, evaluate_split(model, store, "test", team).perplexity))
        return curve

    return run


def rates_of(config: TrainConfig, steps_done: np.ndarray, steps_per_epoch: int) -> np.ndarray:
    """The rate of each update, as in training: falling linearly, after a warm-up."""
    rates = config.learning_rate * (1.0 - steps_done / (steps_per_epoch * config.epochs))
    return rates * np.minimum((steps_done + 1) / config.warm_up, 1.0)


def by_pytorch(config: TrainConfig) -> Callable[[TokenStore, int, int], Curve]:
    """Shared noise by autograd and torch.optim.Adagrad, on the schedule of a configuration."""

    def run(store: TokenStore, threads: int, seed: int) -> Curve:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        noise = Noise.from_counts(store.vocabulary.counts)
        start = LogBilinear.initialise(config.model, noise.probabilities, seed, config.spread)
        task = Task(
            "shared", start.arrays(), store, noise, config.noise_samples, config.batch_size, config.learning_rate,
            config.learning_rate * config.matrix_rate, config.adagrad_start,
        )  # fmt: skip
        examples, drawing = all_examples(store, config.model.context), samplers(noise, store)
        quick = fastest({name: lambda d=draw: d((config.noise_samples,)) for name, draw in drawing.items()}, rounds=50)
        trainer = find_rivals("shared", task, examples, drawing, quick, compiling=True)[SHARED](task)
        steps = len(examples[1]) // config.batch_size
        total, seconds, curve = steps * config.epochs, 0.0, []
        for step in range(total):
            began = time.perf_counter()
            trainer.rate = float(rates_of(config, np.array([step]), steps)[0]) / config.learning_rate
            trainer.train(1)
            seconds += time.perf_counter() - began
            if (step + 1) % (steps // POINTS) == 0 or step + 1 == total:
                curve.append((seconds, perplexity_of(config, trainer.arrays(), store)))
        return curve

    return run


def perplexity_of(config: TrainConfig, arrays: dict[str, np.ndarray], store: TokenStore) -> float:
    """Exactly normalised, by ncelm, whoever trained."""
    model = LogBilinear.from_arrays(config.model, {name: np.ascontiguousarray(a) for name, a in arrays.items()})
    with Team() as team:
        return evaluate_split(model, store, "test", team).perplexity


def contenders() -> dict[str, Contender]:
    """By the names that --only takes."""
    return {
        "nce-1": Contender("ncelm, NCE (ptb-fast)", 1, by_engine(recipe("ptb-fast"))),
        "nce-2": Contender("ncelm, NCE (ptb-fast)", 2, by_engine(recipe("ptb-fast"))),
        "quick-1": Contender("ncelm, shared noise (ptb-quick)", 1, by_engine(recipe("ptb-quick"))),
        "quick-2": Contender("ncelm, shared noise (ptb-quick)", 2, by_engine(recipe("ptb-quick"))),
        "shared-1": Contender("ncelm, shared noise (ptb-shared)", 1, by_engine(recipe("ptb-shared"))),
        "shared-2": Contender("ncelm, shared noise (ptb-shared)", 2, by_engine(recipe("ptb-shared"))),
        "paper-2": Contender("ncelm, NCE as in the paper (ptb-nce)", 2, by_recipe(recipe("ptb-nce"))),
        "ml-2": Contender("ncelm, maximum likelihood (ptb-ml)", 2, by_recipe(recipe("ptb-ml"))),
        "pytorch-1": Contender("PyTorch, shared noise, as ptb-shared", 1, by_pytorch(recipe("ptb-shared"))),
        "pytorch-quick-1": Contender("PyTorch, shared noise, as ptb-quick", 1, by_pytorch(recipe("ptb-quick"))),
        # one pass that suits PyTorch better, each of whose minibatches has its price
        "pytorch-one-pass-1": Contender("PyTorch, shared noise, minibatches of 250, one pass", 1, by_pytorch(ONE_PASS)),
    }


def first_below(curve: Curve, level: float) -> float | None:
    """Seconds until test perplexity is at this level."""
    return next((seconds for seconds, perplexity in curve if perplexity <= level), None)


def race(store: TokenStore, chosen: dict[str, Contender], seeds: int) -> dict[str, Any]:
    """Let them train, one after another."""
    found: dict[str, Any] = {}
    for key, contender in chosen.items():
        curves = []
        for seed in range(seeds):
            say(f"{contender.name}, {contender.threads} threads, seed {seed}")
            curves.append(contender.run(store, contender.threads, seed))
        times = {str(level): [first_below(curve, level) for curve in curves] for level in LEVELS}
        found[key] = {
            "name": contender.name,
            "threads": contender.threads,
            "curves": curves,
            "seconds_to": {
                level: None if None in each else statistics.median(t for t in each if t is not None)
                for level, each in times.items()
            },
            "lowest": statistics.median(min(perplexity for _, perplexity in curve) for curve in curves),
        }
    return found


def markdown(answer: dict[str, Any]) -> str:
    """The result for people."""
    heads = " | ".join(f"seconds to {level:g}" for level in LEVELS)
    lines = [
        *heading("Time to quality", answer),
        "Test perplexity, exactly normalised, against seconds of training; medians over seeds.",
        "",
        f"| | threads | {heads} | lowest |",
        "|---|---|" + "---|" * (len(LEVELS) + 1),
    ]
    for each in answer["contenders"].values():
        times = [each["seconds_to"][str(level)] for level in LEVELS]
        cells = " | ".join("–" if t is None else f"{t:.1f}" for t in times)
        lines.append(f"| {each['name']} | {each['threads']} | {cells} | {each['lowest']:.1f} |")
    lines += ["", *ratios(answer["contenders"])]
    return "\n".join([*lines, "", "![perplexity against seconds](time_to_quality.png)", ""])


def ratios(contenders: dict[str, Any]) -> list[str]:
    """How many times sooner the best of ours is there than the best of theirs, where both have run."""
    lines = []
    for level, ours, theirs, names in (
        (LEVELS[0], ("nce-2", "quick-2", "shared-2", "paper-2"), ("ml-2",), "NCE and our own ML, two threads each"),
        (LEVELS[0], ("paper-2",), ("ml-2",), "the same by the same optimizer and schedule (`ptb-nce`, `ptb-ml`)"),
        (
            LEVELS[1],
            ("nce-1", "quick-1", "shared-1"),
            ("pytorch-1", "pytorch-quick-1", "pytorch-one-pass-1"),
            "ncelm and PyTorch's best, one thread",
        ),
        (
            LEVELS[1],
            ("nce-1", "quick-1", "shared-1"),
            ("pytorch-1",),
            "ncelm and PyTorch with 1,000 noise words, one thread",
        ),
    ):
        times = [
            [contenders[key]["seconds_to"][str(level)] for key in some if key in contenders] for some in (ours, theirs)
        ]
        best = [min((t for t in some if t is not None), default=None) for some in times]
        if best[0] and best[1]:
            lines.append(
                f"- to test perplexity {level:g}, {names}: {best[0]:.1f} and {best[1]:.1f} seconds, "
                f"**{best[1] / best[0]:.1f}** times as long"
            )
    return lines


def main() -> int:
    """Read the command line and let them train."""
    everyone = contenders()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store", type=Path, metavar="STORE", help="a token store of the Penn Treebank")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the answer")
    parser.add_argument("--only", nargs="+", choices=everyone, default=list(everyone), help="some of them (all)")
    parser.add_argument("--seeds", type=int, default=1, help="how often each trains (1)")
    options = parser.parse_args()
    try:
        found = race(TokenStore.open(options.store), {key: everyone[key] for key in options.only}, options.seeds)
    except NcelmError as error:
        say(str(error))
        return 2
    answer = {
        "contenders": found,
        **environment_info("ncelm", "numpy", "numba", "torch"),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "time_to_quality.json").write_text(json.dumps(answer, indent=1) + "\n")
    (options.out / "time_to_quality.md").write_text(markdown(answer))
    plots.perplexity_against_time(
        options.out / "time_to_quality.png",
        {
            f"{each['name']}, {each['threads']} threads": tuple(zip(*each["curves"][0], strict=True))
            for each in found.values()
        },
        "test",
    )
    print(markdown(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
