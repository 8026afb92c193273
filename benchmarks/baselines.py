"""ncelm's training beside PyTorch's: the same work, checked first, timed by turns, one thread each and then two.

    python benchmarks/rivals.py STORE [--json] [--rounds 5] [--words 100000] [--work pairs shared exact] [--no-compile]

STORE is a token store made by `ncelm prepare`. README.md beside this file says what is compared and what is checked.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chisquare

from common import fresh_engine, heading, say
from ncelm.errors import NcelmError
from ncelm.io.machine import environment_info
from ncelm.kernels.threads import Team
from ncelm.models.log_bilinear import LogBilinear
from ncelm.noise import Noise
from ncelm.text.store import TokenStore, contexts_and_targets
from ncelm.training.config import TrainConfig
from ncelm.training.recipes import ptb_ml, ptb_nce, ptb_shared

try:
    import torch
except ModuleNotFoundError:
    print("this benchmark compares ncelm with PyTorch, which is missing: pip install torch==2.13.0", file=sys.stderr)
    sys.exit(2)

from pytorch_baselines import Autograd, ByHand, Sampler, Task, Trainer, Work, all_examples, fastest, samplers

# Section 4 of the paper, by noise of each word's own, by shared noise and by exact maximum likelihood
CONFIGS: dict[Work, TrainConfig] = {"pairs": ptb_nce(), "shared": ptb_shared(), "exact": ptb_ml()}
WARM_UP = 32  # minibatches (of exact likelihood fewer: they take a hundred times as long)
SLOWER = {"pairs": 1, "shared": 1, "exact": 20}  # so many times fewer words are timed
# between two float32 computations that add up the same numbers in another order: 26 of them, 1,000 or all
TOLERANCE = {"pairs": 1e-5, "shared": 1e-4, "exact": 1e-4}
OURS = "ncelm"
IDIOMATIC, TUNED, BY_HAND = "idiomatic PyTorch", "tuned PyTorch", "PyTorch by hand"
SHARED, SOFTMAX = "PyTorch, shared noise", "PyTorch, exact softmax"


class CheckError(Exception):
    """The two sides do not do the same work, so that their times must not be compared."""


class Ours:
    """ncelm's training loop without files and validation: what `ncelm train` times as words per second."""

    def __init__(self, task: Task, team: Team) -> None:
        config = CONFIGS[task.work]
        arrays = {name: array.copy() for name, array in task.parameters.items()}
        self.model = LogBilinear.from_arrays(config.model, arrays)
        config = config.with_changes(adagrad_start=task.adagrad_start or 0.0)
        self.engine = fresh_engine(config, task.store, team, self.model)
        self.task, self.epoch, self.step = task, 0, 0
        self.way = f"{team.threads} threads"

    def train(self, minibatches: int) -> float:
        """Train on so many more whole minibatches; return the mean loss of a word."""
        engine, task, total, left = self.engine, self.task, 0.0, minibatches
        whole = engine.corpus.ids.size // task.batch  # PyTorch trains on whole minibatches, and so do we here
        while left:
            if self.step == whole:
                self.epoch, self.step = self.epoch + 1, 0
            n = min(engine.sizes.planned, whole - self.step, left)
            rates = np.full(n, task.table_rate), np.full(n, task.matrix_rate)
            total += float(engine.run(self.epoch, self.step, *rates).sum())
            self.step, left = self.step + n, left - n
        return total / (minibatches * task.batch)

    def last_batch(self) -> tuple[torch.Tensor, ...]:
        """The first minibatch of the last call, as the rivals take it."""
        plan, size = self.engine.plan, self.task.batch
        contexts, words = (torch.tensor(array[0], dtype=torch.int64) for array in (plan.contexts, plan.words))
        match self.task.work:
            case "pairs":
                return contexts, words
            case "shared":  # equal noise words stand in the plan once, with how often they were drawn
                times = torch.tensor(plan.draws[0, : plan.distinct[0]], dtype=torch.int64)
                noise = words[size : size + int(plan.distinct[0]), 0].repeat_interleave(times)
                return contexts, words[:size, 0], noise
        return contexts, words[:size, 0]

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters."""
        return self.model.arrays()


# -- the same work on both sides ---------------------------------------------------------------------------------------


def paper_task(work: Work, store: TokenStore, spread: float = 0.1) -> Task:
    """What both sides are to do. The rates do not change the speed."""
    config = CONFIGS[work]
    noise = Noise.from_counts(store.vocabulary.counts, config.noise)
    return Task(
        work=work,
        parameters=LogBilinear.initialise(config.model, noise.probabilities, 0, spread).arrays(),
        store=store,
        noise=noise,
        noise_samples=config.noise_samples,
        batch=config.batch_size,
        table_rate=config.learning_rate,
        matrix_rate=config.learning_rate * config.matrix_rate,
        adagrad_start=1.0 if config.optimizer == "adagrad" else None,
    )


Maker = Callable[[Task], Trainer]  # a rival, ready to train


def check_step(work: Work, store: TokenStore, team: Team, make: Maker) -> dict[str, float]:
    """One step on one minibatch, with the same noise words: loss and parameters must agree.

    Return how far they are apart: the largest difference, as a fraction of the loss and of the largest step.
    """
    # Larger vectors and rates than in training: every term then counts, and a forgotten one cannot hide in rounding.
    task = replace(paper_task(work, store, spread=0.5), table_rate=0.1, matrix_rate=0.1)
    ours, theirs = Ours(task, team), make(task)
    our_loss = ours.train(1)
    their_loss = theirs.step(*ours.last_batch()) / task.batch
    differences = {"loss": abs(our_loss - their_loss) / abs(their_loss)}
    for name, mine in ours.arrays().items():
        step = np.abs(mine - task.parameters[name]).max()  # largest change of a parameter
        if not step > 0:
            raise CheckError(f"the step has not moved the {name.replace('_', ' ')}: agreement would mean nothing")
        differences[name] = float(np.abs(mine - theirs.arrays()[name]).max() / step)
    for name, difference in differences.items():
        if not difference <= TOLERANCE[work]:
            raise CheckError(f"after one step, {name.replace('_', ' ')} differ by {difference:.2g} ({theirs.way})")
    return differences


def check_examples(store: TokenStore, examples: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The rivals' contexts and targets must be those of ncelm."""
    ids, end_id = store.split("train").ids, store.vocabulary.end_id
    positions = np.r_[0:10, np.random.default_rng(0).integers(len(ids), size=5000)]
    context = CONFIGS["pairs"].model.context
    wanted = contexts_and_targets(ids, positions, context, 0, store.boundary, end_id, store.pad_id)
    same = all(np.array_equal(theirs[positions], ours) for theirs, ours in zip(examples, wanted, strict=True))
    if len(examples[1]) != len(ids) or not same:
        raise CheckError("the contexts and targets are not the same on both sides")


def check_noise(noise: Noise, sampler: Sampler) -> None:
    """The rivals' noise words must be as frequent as Pn says (a χ² test; rare words count as one)."""
    draws = 1_000_000
    seen = np.bincount(sampler((draws // 100, 100)).numpy().ravel(), minlength=noise.probabilities.size)
    expected = noise.probabilities * draws
    common = expected >= 20
    pooled = [np.r_[counts[common], counts[~common].sum()] for counts in (seen, expected)]
    keep = pooled[1] > 0  # nothing is left over where every word is common
    if chisquare(pooled[0][keep], pooled[1][keep]).pvalue < 1e-6:
        raise CheckError("PyTorch's noise words do not follow the noise distribution")


# -- the rivals --------------------------------------------------------------------------------------------------------


def best_of(task: Task, makers: list[Maker], compile_too: list[Maker]) -> Maker:
    """The fastest of several ways to write the same thing, found by trying them."""
    trainers: dict[str, tuple[Maker, Trainer]] = {}
    for make in [*makers, *compile_too]:
        trainer = make(task)
        try:
            trainer.train(3)
        except Exception as error:  # no C++ compiler, no headers of Python, …: torch has an error type for each
            if make not in compile_too:
                raise
            say(f"torch.compile does not work here, so it is left out: {str(error).strip().splitlines()[0]}")
            continue
        trainers[trainer.way] = make, trainer
    best = fastest({way: lambda trainer=trainer: trainer.train(5) for way, (_, trainer) in trainers.items()})
    return trainers[best][0]


def find_rivals(
    work: Work,
    task: Task,
    examples: tuple[torch.Tensor, torch.Tensor],
    drawing: dict[str, Sampler],
    quick: str,
    compiling: bool,
) -> dict[str, Maker]:
    """Whom ncelm is to race: what one writes first, and the best there is."""

    def autograd(sampler: str, **how: bool) -> Maker:
        return lambda task: Autograd(task, drawing[sampler], examples, **how)

    def by_hand(**how: Any) -> Maker:
        return lambda task: ByHand(task, drawing[quick], examples, **how)

    several = [autograd(quick, sparse=sparse) for sparse in (True, False)]
    compiled = [autograd(quick, sparse=sparse, compiled=True) for sparse in (True, False) if compiling]
    match work:
        case "shared":
            return {SHARED: best_of(task, several, compiled)}
        case "exact":  # every row has a gradient
            return {SOFTMAX: best_of(task, several[1:], compiled[1:])}
    ways = ("index_add", "sparse product")
    hands = [by_hand(scatter=scatter) for scatter in ways]
    compiled_hands = [by_hand(scatter=scatter, compiled=True) for scatter in ways if compiling]
    return {
        IDIOMATIC: autograd("torch.multinomial", sparse=True),
        TUNED: best_of(task, several, compiled),
        BY_HAND: best_of(task, hands, compiled_hands),
    }


# -- timing ------------------------------------------------------------------------------------------------------------


def measure(
    contenders: dict[str, Any], rounds: int, minibatches: int, batch: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Words per second of each contender in each round, taken by turns, and the loss of each in the last round."""
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    losses = {name: contender.train(min(WARM_UP, minibatches)) for name, contender in contenders.items()}
    for _ in range(rounds):
        for name, contender in contenders.items():
            began = time.perf_counter()
            losses[name] = contender.train(minibatches)
            speeds[name].append(minibatches * batch / (time.perf_counter() - began))
    return speeds, losses


def spread_of(values: list[float]) -> dict[str, Any]:
    """The median and the range of one number a round."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "rounds": values}


def contest(work: Work, store: TokenStore, rounds: int, words: int, compiling: bool) -> dict[str, Any]:
    """One kind of work: check, then time with one thread each and with two."""
    task, examples = paper_task(work, store), all_examples(store, CONFIGS[work].model.context)
    drawing = samplers(task.noise, store)
    shape = (task.batch, task.noise_samples) if work == "pairs" else (task.noise_samples,)
    minibatches = max(1, words // task.batch // SLOWER[work])
    check_examples(store, examples)
    for sampler in drawing.values():
        check_noise(task.noise, sampler)
    answer: dict[str, Any] = {"words_per_round": minibatches * task.batch, "settings": asdict(CONFIGS[work])}
    with ExitStack() as stack:
        teams = {threads: stack.enter_context(Team(threads)) for threads in (1, 2)}
        ours = {threads: Ours(task, team) for threads, team in teams.items()}
        for threads, team in teams.items():
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            say(f"{work}, {threads} threads: finding the fastest ways to write it in PyTorch")
            quick = fastest({name: lambda draw=draw: draw(shape) for name, draw in drawing.items()}, rounds=50)
            rivals = find_rivals(work, task, examples, drawing, quick, compiling)
            say(f"{work}, {threads} threads: checking that all compute the same")
            differences = {name: check_step(work, store, team, make) for name, make in rivals.items()}
            contenders = {OURS: ours[threads], **{name: make(task) for name, make in rivals.items()}}
            say(f"{work}, {threads} threads: {rounds} rounds")
            speeds, losses = measure(contenders, rounds, minibatches, task.batch)
            answer[f"threads_{threads}"] = {
                "words_per_second": {name: spread_of(speed) for name, speed in speeds.items()},
                "ratios": {
                    name: spread_of([a / b for a, b in zip(speeds[OURS], speeds[name], strict=True)]) for name in rivals
                },
                "loss_in_last_round": losses,
                "differences_after_one_step": differences,
                "ways": {name: contenders[name].way for name in rivals} | {"noise": quick},
            }
        say(f"{work}: two threads beside one")
        both = {threads: Ours(task, team) for threads, team in teams.items()}
        speeds, _ = measure(both, rounds, 2 * minibatches, task.batch)
        if not all(
            np.array_equal(a, b) for a, b in zip(*(each.arrays().values() for each in both.values()), strict=True)
        ):
            raise CheckError("one and two threads have not come to the same parameters")
        answer["two_threads_over_one"] = spread_of([b / a for a, b in zip(speeds[1], speeds[2], strict=True)])
    return answer


def benchmark(store: TokenStore, works: list[Work], rounds: int, words: int, compiling: bool) -> dict[str, Any]:
    """All contests asked for."""
    if store.split("train").tokens < 10_000:
        raise NcelmError(f"{store.path} has fewer than 10,000 training words: take a larger store")
    return {
        "work": {work: contest(work, store, rounds, words, compiling) for work in works},
        "text": {"training_words": store.split("train").tokens, "vocabulary": len(store.vocabulary)},
        **environment_info("ncelm", "numpy", "numba", "scipy", "torch"),
    }


# -- telling -----------------------------------------------------------------------------------------------------------


def table(result: dict[str, Any]) -> str:
    """The result for people, in Markdown."""
    lines = heading("Training beside PyTorch", result)
    for work, answer in result["work"].items():
        lines += [f"## {work}", "", "| words per second | threads | median | least | most | ncelm is … times as fast |"]
        lines.append("|---|---|---|---|---|---|")
        for threads in (1, 2):
            part = answer[f"threads_{threads}"]
            for name, speed in part["words_per_second"].items():
                ratio = part["ratios"].get(name)
                times = f"**{ratio['median']:.1f}** ({ratio['least']:.1f}–{ratio['most']:.1f})" if ratio else ""
                numbers = " | ".join(f"{speed[key]:,.0f}" for key in ("median", "least", "most"))
                lines.append(f"| {name} | {threads} | {numbers} | {times} |")
        over = answer["two_threads_over_one"]
        lines += [
            "",
            f"Two threads of ncelm over one: **{over['median']:.2f}** ({over['least']:.2f}–{over['most']:.2f}).",
        ]
        for threads in (1, 2):
            ways = answer[f"threads_{threads}"]["ways"].items()
            lines.append(f"Fastest with {threads}: " + "; ".join(f"{name}: {way}" for name, way in ways) + ".")
        lines.append("")
    return "\n".join(lines[:-1])


def main() -> int:
    """Read the command line and run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store", type=Path, metavar="STORE", help="a token store made by `ncelm prepare`")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed (5)")
    parser.add_argument("--words", type=int, default=100_000, help="training words in one round (100,000)")
    parser.add_argument("--work", nargs="+", choices=CONFIGS, default=list(CONFIGS), help="which contests (all)")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile, which takes minutes")
    options = parser.parse_args()
    if options.rounds < 1 or options.words < 1:
        parser.error("--rounds and --words must be at least 1")
    try:
        store = TokenStore.open(options.store)
        result = benchmark(store, options.work, options.rounds, options.words, not options.no_compile)
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
