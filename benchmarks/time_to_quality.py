"""Training time to a test perplexity: ncelm with NCE and maximum likelihood, and PyTorch with shared noise.

    python benchmarks/time_to_quality.py STORE --out DIR [--only NAME …] [--seeds 3]

STORE is a token store of the Penn Treebank, from which the target perplexities come. Writes DIR/time_to_quality.json,
.md and .png. The methods train one after another, each with its number of threads; evaluation is not timed. The time to
a target is the time of the first evaluation with a test perplexity at or below it.
"""

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

from common import append_history, argument_parser, log, new_engine, report_header
from ncelm.errors import NcelmError
from ncelm.io.machine import environment_info
from ncelm.kernels.threads import Team
from ncelm.models.evaluate import evaluate_split
from ncelm.models.log_bilinear import LogBilinear
from ncelm.noise import Noise
from ncelm.paper import plots
from ncelm.text.store import TokenStore
from ncelm.training.config import Halve, TrainConfig
from ncelm.training.loop import train
from ncelm.training.recipes import recipe
from ncelm.training.schedule import learning_rates

try:
    import torch
except ModuleNotFoundError:
    print("this benchmark needs PyTorch, which is not installed: pip install torch==2.13.0", file=sys.stderr)
    sys.exit(2)

from baselines import SHARED, find_baselines
from pytorch_baselines import Task, all_examples, fastest, samplers

TARGETS = (163.1, 156.0)  # the paper's test perplexity with 25 noise samples; that of PyTorch after 39 s on one core
POINTS = 10  # evaluations per epoch
Curve = list[tuple[float, float]]  # seconds, test perplexity
# one epoch with larger minibatches, which suit PyTorch: each minibatch has a fixed cost
PYTORCH_ONE_EPOCH = recipe("ptb-quick").with_changes(
    batch_size=250, noise_samples=250, learning_rate=0.5, matrix_lr_scale=0.03, warmup_steps=300
)


@dataclass(frozen=True)
class Method:
    """A way to train the model."""

    name: str
    threads: int
    run: Callable[[TokenStore, int, int], Curve]  # store, threads, seed


def by_recipe(config: TrainConfig) -> Callable[[TokenStore, int, int], Curve]:
    """Return a function that runs `ncelm train` and evaluates after each epoch."""

    def run(store: TokenStore, threads: int, seed: int) -> Curve:
        curve: Curve = []

        def add_point(at: Any) -> None:
            if at.metrics and (not curve or curve[-1][0] != at.metrics["seconds"]):
                curve.append((at.metrics["seconds"], at.metrics["test_perplexity"]))
                if curve[-1][1] <= min(TARGETS) and isinstance(config.schedule, Halve):
                    raise _TargetsReachedError

        with tempfile.TemporaryDirectory() as folder, suppress(_TargetsReachedError):
            out, seeded = Path(folder, "run"), config.with_changes(seed=seed)
            train(store, out, seeded, threads=threads, watch=["test"], progress=add_point)
        return curve

    return run


class _TargetsReachedError(Exception):
    """Ends training when all targets are reached."""


def by_engine(config: TrainConfig) -> Callable[[TokenStore, int, int], Curve]:
    """Return a function that trains with the engine and a linear schedule and evaluates several times per epoch."""

    def run(store: TokenStore, threads: int, seed: int) -> Curve:
        with Team(threads) as team:
            unigram = Noise.from_counts(store.vocabulary.counts).probabilities
            model = LogBilinear.initialise(config.model, unigram, seed, config.init.std)
            engine = new_engine(config.with_changes(seed=seed), store, team, model)
            steps = engine.steps_per_epoch
            step, seconds, curve = 0, 0.0, []
            while step < steps * config.schedule.epochs:
                n = min(engine.planned, steps - step % steps)
                began = time.perf_counter()
                rates = rates_of(config, step + np.arange(n), steps)
                engine.run(step // steps, step % steps, rates, rates * config.matrix_lr_scale)
                seconds += time.perf_counter() - began
                evaluations, step = step * POINTS // steps, step + n
                if step * POINTS // steps > evaluations:
                    curve.append((seconds, evaluate_split(model, store, "test", team).perplexity))
        return curve

    return run


def rates_of(config: TrainConfig, updates_done: np.ndarray, steps_per_epoch: int) -> np.ndarray:
    """Return the learning rates of updates, as in training."""
    return learning_rates(config.schedule, config.optimizer, config.learning_rate, updates_done, steps_per_epoch)


def by_pytorch(config: TrainConfig) -> Callable[[TokenStore, int, int], Curve]:
    """Return a function that trains with shared noise, autograd and torch.optim.Adagrad."""

    def run(store: TokenStore, threads: int, seed: int) -> Curve:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        noise = Noise.from_counts(store.vocabulary.counts)
        initial = LogBilinear.initialise(config.model, noise.probabilities, seed, config.init.std)
        samples = config.loss.samples
        task = Task(
            name="shared",
            parameters=initial.arrays(),
            store=store,
            noise=noise,
            noise_samples=samples,
            batch=config.batch_size,
            table_rate=config.learning_rate,
            matrix_rate=config.learning_rate * config.matrix_lr_scale,
            initial_accumulator=config.optimizer.initial_accumulator,
        )
        examples, noise_samplers = all_examples(store, config.model.context), samplers(noise, store)
        sampler = fastest({name: lambda d=draw: d((samples,)) for name, draw in noise_samplers.items()}, rounds=50)
        trainer = find_baselines(task, examples, noise_samplers, sampler, compiling=True)[SHARED](task)
        steps = len(examples[1]) // config.batch_size
        total, seconds, curve = steps * config.schedule.epochs, 0.0, []
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
    """Return the exactly normalised test perplexity of parameters, computed by ncelm."""
    model = LogBilinear.from_arrays(config.model, {name: np.ascontiguousarray(a) for name, a in arrays.items()})
    with Team() as team:
        return evaluate_split(model, store, "test", team).perplexity


def methods() -> dict[str, Method]:
    """Return all methods by the names that --only takes."""
    return {
        "nce-1": Method("ncelm, NCE (ptb-fast)", 1, by_engine(recipe("ptb-fast"))),
        "nce-2": Method("ncelm, NCE (ptb-fast)", 2, by_engine(recipe("ptb-fast"))),
        "quick-1": Method("ncelm, shared noise (ptb-quick)", 1, by_engine(recipe("ptb-quick"))),
        "quick-2": Method("ncelm, shared noise (ptb-quick)", 2, by_engine(recipe("ptb-quick"))),
        "shared-1": Method("ncelm, shared noise (ptb-shared)", 1, by_engine(recipe("ptb-shared"))),
        "shared-2": Method("ncelm, shared noise (ptb-shared)", 2, by_engine(recipe("ptb-shared"))),
        "paper-2": Method("ncelm, NCE as in the paper (ptb-nce)", 2, by_recipe(recipe("ptb-nce"))),
        "ml-2": Method("ncelm, maximum likelihood (ptb-ml)", 2, by_recipe(recipe("ptb-ml"))),
        "pytorch-1": Method("PyTorch, shared noise, as ptb-shared", 1, by_pytorch(recipe("ptb-shared"))),
        "pytorch-quick-1": Method("PyTorch, shared noise, as ptb-quick", 1, by_pytorch(recipe("ptb-quick"))),
        "pytorch-one-epoch-1": Method(
            "PyTorch, shared noise, minibatches of 250, one epoch", 1, by_pytorch(PYTORCH_ONE_EPOCH)
        ),
    }


def time_to(curve: Curve, target: float) -> float | None:
    """Return the training time until test perplexity reaches the target, or None."""
    return next((seconds for seconds, perplexity in curve if perplexity <= target), None)


def measure(store: TokenStore, chosen: dict[str, Method], seeds: int) -> dict[str, Any]:
    """Train with all methods and seeds, one after another."""
    found: dict[str, Any] = {}
    for key, method in chosen.items():
        curves = []
        for seed in range(seeds):
            log(f"{method.name}, {method.threads} threads, seed {seed}")
            curves.append(method.run(store, method.threads, seed))
        times = {str(target): [time_to(curve, target) for curve in curves] for target in TARGETS}
        found[key] = {
            "name": method.name,
            "threads": method.threads,
            "curves": curves,
            "seconds_to": {
                target: None if None in each else statistics.median(t for t in each if t is not None)
                for target, each in times.items()
            },
            "lowest": statistics.median(min(perplexity for _, perplexity in curve) for curve in curves),
        }
    return found


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    heads = " | ".join(f"seconds to {target:g}" for target in TARGETS)
    lines = [
        *report_header("Time to quality", result),
        "Training time until test perplexity (exactly normalised) reaches a target; medians over seeds.",
        "",
        f"| | threads | {heads} | lowest perplexity |",
        "|---|---|" + "---|" * (len(TARGETS) + 1),
    ]
    for each in result["methods"].values():
        times = [each["seconds_to"][str(target)] for target in TARGETS]
        cells = " | ".join("–" if t is None else f"{t:.1f}" for t in times)
        lines.append(f"| {each['name']} | {each['threads']} | {cells} | {each['lowest']:.1f} |")
    lines += ["", *speedups(result["methods"])]
    return "\n".join([*lines, "", "![perplexity against seconds](time_to_quality.png)", ""])


def speedups(found: dict[str, Any]) -> list[str]:
    """Return lines with the speed-up of the best method of one group over the best of another, if both were run."""
    lines = []
    for target, ours, baselines, names in (
        (TARGETS[0], ("nce-2", "quick-2", "shared-2", "paper-2"), ("ml-2",), "NCE and ML of ncelm, two threads each"),
        (TARGETS[0], ("paper-2",), ("ml-2",), "the same with the same optimizer and schedule (`ptb-nce`, `ptb-ml`)"),
        (
            TARGETS[1],
            ("nce-1", "quick-1", "shared-1"),
            ("pytorch-1", "pytorch-quick-1", "pytorch-one-epoch-1"),
            "ncelm and the fastest PyTorch baseline, one thread",
        ),
        (
            TARGETS[1],
            ("nce-1", "quick-1", "shared-1"),
            ("pytorch-1",),
            "ncelm and PyTorch with 1,000 noise samples, one thread",
        ),
    ):
        times = [[found[key]["seconds_to"][str(target)] for key in some if key in found] for some in (ours, baselines)]
        best = [min((t for t in some if t is not None), default=None) for some in times]
        if best[0] and best[1]:
            lines.append(
                f"- to test perplexity {target:g}, {names}: {best[0]:.1f} and {best[1]:.1f} seconds, "
                f"speed-up **{best[1] / best[0]:.1f}**"
            )
    return lines


def main() -> int:
    """Train with all methods and write the report."""
    available = methods()
    parser = argument_parser(__doc__)
    parser.add_argument("store", type=Path, metavar="STORE", help="token store of the Penn Treebank")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory for the report")
    parser.add_argument("--only", nargs="+", choices=available, default=list(available), help="methods (all)")
    parser.add_argument("--seeds", type=int, default=1, help="number of runs of each method (1)")
    options = parser.parse_args()
    try:
        store = TokenStore.open(options.store)
        found = measure(store, {key: available[key] for key in options.only}, options.seeds)
    except NcelmError as error:
        log(str(error))
        return 2
    result = {"methods": found, **environment_info("ncelm", "numpy", "numba", "torch")}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "time_to_quality.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / "time_to_quality.md").write_text(report(result))
    plots.perplexity_against_time(
        options.out / "time_to_quality.png",
        {
            f"{each['name']}, {each['threads']} threads": tuple(zip(*each["curves"][0], strict=True))
            for each in found.values()
        },
        "test",
    )
    figures = {
        f"{key}, seconds to {target}": seconds
        for key, each in found.items()
        for target, seconds in each["seconds_to"].items()
    }
    append_history(options.history, result, figures)
    print(json.dumps(result, indent=1) if options.json else report(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
