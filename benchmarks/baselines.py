"""Throughput of training compared with PyTorch baselines: same task, verified results, alternating rounds.

    python benchmarks/baselines.py STORE [--json] [--rounds 5] [--words 100000] [--task pairs shared exact]
        [--no-compile]

STORE is a token store made by `ncelm prepare`. README.md in this directory describes what is compared and verified.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chisquare

from common import append_history, argument_parser, log, new_engine, report_header
from ncelm.errors import NcelmError
from ncelm.io.machine import environment_info
from ncelm.kernels.threads import Team
from ncelm.models.log_bilinear import LogBilinear
from ncelm.noise import Noise
from ncelm.text.store import TokenStore, contexts_and_targets
from ncelm.training.config import Adagrad, TrainConfig
from ncelm.training.options import to_flat
from ncelm.training.recipes import ptb_ml, ptb_nce, ptb_shared

try:
    import torch
except ModuleNotFoundError:
    print("this benchmark needs PyTorch, which is not installed: pip install torch==2.13.0", file=sys.stderr)
    sys.exit(2)

from pytorch_baselines import (
    Autograd,
    ManualGradients,
    Sampler,
    Task,
    TaskName,
    Trainer,
    all_examples,
    fastest,
    samplers,
)

# Section 4 of the paper with noise samples per word, with shared noise samples, and with exact maximum likelihood
CONFIGS: dict[TaskName, TrainConfig] = {"pairs": ptb_nce(), "shared": ptb_shared(), "exact": ptb_ml()}
WARMUP_MINIBATCHES = 32  # at most
WORDS_DIVISOR = {"pairs": 1, "shared": 1, "exact": 20}  # of the words per round, because exact likelihood is slow
# Relative tolerance between two float32 computations that add the same numbers (26, 1,000 or all) in another order
TOLERANCE = {"pairs": 1e-5, "shared": 1e-4, "exact": 1e-4}
NCELM = "ncelm"
IDIOMATIC, TUNED, MANUAL = "idiomatic PyTorch", "tuned PyTorch", "PyTorch, manual gradients"
SHARED, SOFTMAX = "PyTorch, shared noise", "PyTorch, exact softmax"


class CheckError(Exception):
    """ncelm and a baseline do not compute the same, so that their times must not be compared."""


class NcelmTrainer:
    """Trains with ncelm's engine, without files and validation: what `ncelm train` reports as words per second."""

    def __init__(self, task: Task, team: Team) -> None:
        config = CONFIGS[task.name]
        arrays = {name: array.copy() for name, array in task.parameters.items()}
        self.model = LogBilinear.from_arrays(config.model, arrays)
        if task.initial_accumulator is not None:
            config = config.with_changes(initial_accumulator=task.initial_accumulator)
        self.engine = new_engine(config, task.store, team, self.model)
        self.task, self.epoch, self.step = task, 0, 0
        self.implementation = f"{team.threads} threads"

    def train(self, minibatches: int) -> float:
        """Train on the next complete minibatches; return the mean loss per word."""
        engine, task, total, left = self.engine, self.task, 0.0, minibatches
        complete = engine.corpus.ids.size // task.batch  # the baselines also skip the incomplete last minibatch
        while left:
            if self.step == complete:
                self.epoch, self.step = self.epoch + 1, 0
            n = min(engine.planned, complete - self.step, left)
            rates = np.full(n, task.table_rate), np.full(n, task.matrix_rate)
            total += float(engine.run(self.epoch, self.step, *rates).sum())
            self.step, left = self.step + n, left - n
        return total / (minibatches * task.batch)

    def last_batch(self) -> tuple[torch.Tensor, ...]:
        """Return the first minibatch of the last call in the form of the baselines."""
        plan, size = self.engine.plan, self.task.batch
        contexts, words = (torch.tensor(array[0], dtype=torch.int64) for array in (plan.contexts, plan.words))
        match self.task.name:
            case "pairs":
                return contexts, words
            case "shared":  # the plan has distinct noise words and the number of draws of each
                distinct = int(plan.shared.counts[0])
                draws = torch.tensor(plan.shared.multiplicities[0, :distinct], dtype=torch.int64)
                noise = words[size : size + distinct, 0].repeat_interleave(draws)
                return contexts, words[:size, 0], noise
        return contexts, words[:size, 0]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the parameters."""
        return self.model.arrays()


# -- verification ------------------------------------------------------------------------------------------------------


def paper_task(name: TaskName, store: TokenStore, init_std: float = 0.1) -> Task:
    """Return the task that ncelm and the baselines train. Learning rates do not affect throughput."""
    config = CONFIGS[name]
    noise = Noise.from_counts(store.vocabulary.counts)
    return Task(
        name=name,
        parameters=LogBilinear.initialise(config.model, noise.probabilities, 0, init_std).arrays(),
        store=store,
        noise=noise,
        noise_samples=getattr(config.loss, "samples", 1),
        batch=config.batch_size,
        table_rate=config.learning_rate,
        matrix_rate=config.learning_rate * config.matrix_lr_scale,
        initial_accumulator=1.0 if isinstance(config.optimizer, Adagrad) else None,
    )


Factory = Callable[[Task], Trainer]  # returns a baseline that is ready to train


def check_step(name: TaskName, store: TokenStore, team: Team, factory: Factory) -> dict[str, float]:
    """Check that one step on one minibatch with the same noise samples gives the same loss and parameters.

    Return the largest differences, relative to the loss and to the largest step.
    """
    # larger vectors and learning rates than in training: a missing term of the gradient exceeds rounding errors
    task = replace(paper_task(name, store, init_std=0.5), table_rate=0.1, matrix_rate=0.1)
    ours, baseline = NcelmTrainer(task, team), factory(task)
    our_loss = ours.train(1)
    baseline_loss = baseline.step(*ours.last_batch()) / task.batch
    differences = {"loss": abs(our_loss - baseline_loss) / abs(baseline_loss)}
    for array_name, values in ours.arrays().items():
        step = np.abs(values - task.parameters[array_name]).max()  # largest change of a parameter
        if not step > 0:
            raise CheckError(f"the step did not change the {array_name.replace('_', ' ')}, so it verifies nothing")
        differences[array_name] = float(np.abs(values - baseline.arrays()[array_name]).max() / step)
    for quantity, difference in differences.items():
        if not difference <= TOLERANCE[name]:
            words = quantity.replace("_", " ")
            raise CheckError(f"after one step, {words} differ by {difference:.2g} ({baseline.implementation})")
    return differences


def check_examples(store: TokenStore, examples: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Check that contexts and targets of the baselines are those of ncelm."""
    ids, end_id = store.split("train").ids, store.vocabulary.end_id
    positions = np.r_[0:10, np.random.default_rng(0).integers(len(ids), size=5000)]
    context = CONFIGS["pairs"].model.context
    expected = contexts_and_targets(ids, positions, context, 0, store.boundary, end_id, store.pad_id)
    same = all(np.array_equal(theirs[positions], ours) for theirs, ours in zip(examples, expected, strict=True))
    if len(examples[1]) != len(ids) or not same:
        raise CheckError("the contexts and targets of the baselines differ from those of ncelm")


def check_noise(noise: Noise, sampler: Sampler) -> None:
    """Check the noise samples of a baseline by a χ² test. Rare words are pooled."""
    draws = 1_000_000
    observed = np.bincount(sampler((draws // 100, 100)).numpy().ravel(), minlength=noise.probabilities.size)
    expected = noise.probabilities * draws
    common = expected >= 20
    pooled = [np.r_[counts[common], counts[~common].sum()] for counts in (observed, expected)]
    keep = pooled[1] > 0  # the pool is empty if all words are common
    if chisquare(pooled[0][keep], pooled[1][keep]).pvalue < 1e-6:
        raise CheckError("the noise samples of a baseline do not follow the noise distribution")


# -- baselines ---------------------------------------------------------------------------------------------------------


def best_of(task: Task, factories: list[Factory], compiled: list[Factory]) -> Factory:
    """Return the fastest of several implementations. Those that torch.compile cannot compile here are skipped."""
    trainers: dict[str, tuple[Factory, Trainer]] = {}
    for factory in [*factories, *compiled]:
        trainer = factory(task)
        try:
            trainer.train(3)
        except Exception as error:  # no C++ compiler, no headers of Python, …: torch has an error type for each
            if factory not in compiled:
                raise
            log(f"torch.compile does not work here and is skipped: {str(error).strip().splitlines()[0]}")
            continue
        trainers[trainer.implementation] = factory, trainer
    best = fastest({name: lambda trainer=trainer: trainer.train(5) for name, (_, trainer) in trainers.items()})
    return trainers[best][0]


def find_baselines(
    task: Task,
    examples: tuple[torch.Tensor, torch.Tensor],
    noise_samplers: dict[str, Sampler],
    fastest_sampler: str,
    compiling: bool,
) -> dict[str, Factory]:
    """Return the baselines of a task by name: the usual implementation and the fastest ones."""

    def autograd(sampler: str, **how: bool) -> Factory:
        return lambda task: Autograd(task, noise_samplers[sampler], examples, **how)

    def manual(**how: Any) -> Factory:
        return lambda task: ManualGradients(task, noise_samplers[fastest_sampler], examples, **how)

    candidates = [autograd(fastest_sampler, sparse=sparse) for sparse in (True, False)]
    compiled = [autograd(fastest_sampler, sparse=sparse, compiled=True) for sparse in (True, False) if compiling]
    match task.name:
        case "shared":
            return {SHARED: best_of(task, candidates, compiled)}
        case "exact":  # all rows have gradients, so that sparse ones are useless
            return {SOFTMAX: best_of(task, candidates[1:], compiled[1:])}
    scatters = ("index_add", "sparse product")
    manuals = [manual(scatter=scatter) for scatter in scatters]
    compiled_manuals = [manual(scatter=scatter, compiled=True) for scatter in scatters if compiling]
    return {
        IDIOMATIC: autograd("torch.multinomial", sparse=True),
        TUNED: best_of(task, candidates, compiled),
        MANUAL: best_of(task, manuals, compiled_manuals),
    }


# -- timing ------------------------------------------------------------------------------------------------------------


def measure(
    trainers: dict[Any, Any], rounds: int, minibatches: int, batch: int
) -> tuple[dict[Any, list[float]], dict[Any, float]]:
    """Return words per second of each trainer in alternating rounds, and the loss of each in the last round."""
    speeds: dict[Any, list[float]] = {name: [] for name in trainers}
    losses = {name: trainer.train(min(WARMUP_MINIBATCHES, minibatches)) for name, trainer in trainers.items()}
    for _ in range(rounds):
        for name, trainer in trainers.items():
            began = time.perf_counter()
            losses[name] = trainer.train(minibatches)
            speeds[name].append(minibatches * batch / (time.perf_counter() - began))
    return speeds, losses


def summary(values: list[float]) -> dict[str, Any]:
    """Return median and range of one number per round."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": values}


def compare(name: TaskName, store: TokenStore, rounds: int, words: int, compiling: bool) -> dict[str, Any]:
    """Verify and time one task with one thread and with two."""
    task, examples = paper_task(name, store), all_examples(store, CONFIGS[name].model.context)
    noise_samplers = samplers(task.noise, store)
    shape = (task.batch, task.noise_samples) if name == "pairs" else (task.noise_samples,)
    minibatches = max(1, words // task.batch // WORDS_DIVISOR[name])
    check_examples(store, examples)
    for sampler in noise_samplers.values():
        check_noise(task.noise, sampler)
    result: dict[str, Any] = {"words_per_round": minibatches * task.batch, "options": to_flat(CONFIGS[name])}
    with ExitStack() as stack:
        teams = {threads: stack.enter_context(Team(threads)) for threads in (1, 2)}
        ours = {threads: NcelmTrainer(task, team) for threads, team in teams.items()}
        for threads, team in teams.items():
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            log(f"{name}, {threads} threads: selecting the fastest implementations in PyTorch")
            timed = {key: lambda draw=draw: draw(shape) for key, draw in noise_samplers.items()}
            sampler_name = fastest(timed, rounds=50)
            baselines = find_baselines(task, examples, noise_samplers, sampler_name, compiling)
            log(f"{name}, {threads} threads: verifying that all compute the same")
            differences = {key: check_step(name, store, team, factory) for key, factory in baselines.items()}
            trainers = {NCELM: ours[threads], **{key: factory(task) for key, factory in baselines.items()}}
            log(f"{name}, {threads} threads: {rounds} rounds")
            speeds, losses = measure(trainers, rounds, minibatches, task.batch)
            result[f"threads_{threads}"] = {
                "words_per_second": {key: summary(speed) for key, speed in speeds.items()},
                "speedups": {
                    key: summary([a / b for a, b in zip(speeds[NCELM], speeds[key], strict=True)]) for key in baselines
                },
                "loss_in_last_round": losses,
                "differences_after_one_step": differences,
                "implementations": {key: trainers[key].implementation for key in baselines} | {"noise": sampler_name},
            }
        log(f"{name}: two threads compared with one")
        both = {threads: NcelmTrainer(task, team) for threads, team in teams.items()}
        speeds, _ = measure(both, rounds, 2 * minibatches, task.batch)
        if not all(
            np.array_equal(a, b) for a, b in zip(*(each.arrays().values() for each in both.values()), strict=True)
        ):
            raise CheckError("the parameters after training with one and with two threads differ")
        result["two_threads_speedup"] = summary([b / a for a, b in zip(speeds[1], speeds[2], strict=True)])
    return result


def benchmark(store: TokenStore, tasks: list[TaskName], rounds: int, words: int, compiling: bool) -> dict[str, Any]:
    """Return the results of all tasks."""
    if store.split("train").tokens < 10_000:
        raise NcelmError(f"{store.path} has fewer than 10,000 training words: choose a larger store")
    return {
        "tasks": {name: compare(name, store, rounds, words, compiling) for name in tasks},
        "text": {"training_words": store.split("train").tokens, "vocabulary": len(store.vocabulary)},
        **environment_info("ncelm", "numpy", "numba", "scipy", "torch"),
    }


# -- report ------------------------------------------------------------------------------------------------------------


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    lines = report_header("Training throughput compared with PyTorch", result)
    for name, task in result["tasks"].items():
        lines += [f"## {name}", "", "| words per second | threads | median | min | max | speed-up of ncelm |"]
        lines.append("|---|---|---|---|---|---|")
        for threads in (1, 2):
            part = task[f"threads_{threads}"]
            for trainer, speed in part["words_per_second"].items():
                ratio = part["speedups"].get(trainer)
                speedup = f"**{ratio['median']:.1f}** ({ratio['min']:.1f}–{ratio['max']:.1f})" if ratio else ""
                numbers = " | ".join(f"{speed[key]:,.0f}" for key in ("median", "min", "max"))
                lines.append(f"| {trainer} | {threads} | {numbers} | {speedup} |")
        two = task["two_threads_speedup"]
        lines += ["", f"Speed-up of two threads of ncelm: **{two['median']:.2f}** ({two['min']:.2f}–{two['max']:.2f})."]
        for threads in (1, 2):
            chosen = task[f"threads_{threads}"]["implementations"].items()
            plural = "s" * (threads > 1)
            lines.append(
                f"Fastest implementations with {threads} thread{plural}: "
                + "; ".join(f"{baseline}: {implementation}" for baseline, implementation in chosen)
                + "."
            )
        lines.append("")
    return "\n".join(lines[:-1])


def figures(result: dict[str, Any]) -> dict[str, float]:
    """Return the numbers for the history."""
    found = {}
    for name, task in result["tasks"].items():
        for threads in (1, 2):
            part = task[f"threads_{threads}"]
            found[f"{name}, {threads} threads, words/s"] = part["words_per_second"][NCELM]["median"]
            for baseline, ratio in part["speedups"].items():
                found[f"{name}, {threads} threads, speed-up over {baseline}"] = ratio["median"]
        found[f"{name}, speed-up of two threads"] = task["two_threads_speedup"]["median"]
    return found


def main() -> int:
    """Run the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("store", type=Path, metavar="STORE", help="token store made by `ncelm prepare`")
    parser.add_argument("--rounds", type=int, default=5, help="number of timed rounds (5)")
    parser.add_argument("--words", type=int, default=100_000, help="training words per round (100,000)")
    parser.add_argument("--task", nargs="+", choices=CONFIGS, default=list(CONFIGS), help="tasks (all)")
    parser.add_argument("--no-compile", action="store_true", help="skip torch.compile, which takes minutes")
    options = parser.parse_args()
    if options.rounds < 1 or options.words < 1:
        parser.error("--rounds and --words must be at least 1")
    try:
        store = TokenStore.open(options.store)
        result = benchmark(store, options.task, options.rounds, options.words, not options.no_compile)
    except NcelmError as error:
        log(str(error))
        return 2
    except CheckError as error:
        log(f"verification failed, so no times are reported: {error}")
        return 1
    append_history(options.history, result, figures(result))
    print(json.dumps(result, indent=2, ensure_ascii=False) if options.json else report(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
