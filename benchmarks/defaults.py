"""Distance of the default configuration to the best of a search with the same training time, on several texts.

    python benchmarks/texts.py --out TEXTS …           # token stores of the texts
    python benchmarks/defaults.py TEXTS --results FILE [--texts ptb handbook …] [--report docs/results/defaults.md]

For each text, the default configuration is trained on one thread. Each configuration of the search is trained for the
same CPU time: its number of epochs is that of the default, multiplied by the ratio of the throughputs, which are
measured in alternation, so that the linear schedule ends at that time. The search has a Latin hypercube of the whole
space, variations of the default and recipes of the paper. The best is selected by validation perplexity. Test
perplexities are computed for the default, for the best configuration and for a 5-gram model.

Results are appended to FILE, one line of JSON each. A search that was interrupted continues where it stopped. Results
that belong to another default configuration are ignored.
"""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common import argument_parser, log, markdown_table, new_engine, report_header
from ncelm.io.machine import environment_info
from ncelm.kernels.threads import Team
from ncelm.models.evaluate import evaluate_split
from ncelm.models.log_bilinear import LogBilinear
from ncelm.models.ngram.estimate import estimate
from ncelm.noise import Noise
from ncelm.text.store import TokenStore
from ncelm.training.adaptive import default_config
from ncelm.training.config import Linear, TrainConfig
from ncelm.training.options import to_flat
from ncelm.training.recipes import recipe
from ncelm.training.schedule import learning_rates, total_steps
from ncelm.training.validation import evaluate_sample
from texts import TEXTS

RECIPES = ("paper/holmes", "paper/ptb-best", "paper/ptb-fast", "paper/ptb-quick")
GLOBAL, LOCAL = 15, 15  # configurations of the Latin hypercube, and variations of the default
DEFAULT, NGRAM = "default", "5-gram"
ROUNDS, SECONDS_PER_ROUND = 3, 0.1  # of the comparison of throughputs
MIN_STEPS = 20
VALIDATED = 15_000  # words of the validation text that are evaluated after an epoch, to select the best one
DETAILS = ("dim", "epochs", "dropout", "weight_decay_per_epoch")  # options of the default in the report
# Options of the best configuration in the report, if they differ from the default
SHOWN = ("context", "dim", "matrices", "tied_embeddings", "batch_size", "noise_samples", "shared_noise", "noise",
         "noise_power", "learning_rate", "initial_accumulator", "matrix_lr_scale", "dropout", "weight_decay",
         "weight_decay_per_epoch", "init_std", "epochs")  # fmt: skip


# -- search space ------------------------------------------------------------------------------------------------------


def _log_uniform(low: float, high: float, u: float) -> float:
    return float(f"{low * (high / low) ** u:.3g}")


def _of(values: tuple[Any, ...], u: float) -> Any:
    return values[min(int(u * len(values)), len(values) - 1)]


def point(u: dict[str, float]) -> dict[str, Any]:
    """Return the options of a point of the unit cube; `time` is the share of the training time that is used."""
    full = u["matrices"] > 0.8
    shared = u["shared"] < 0.85
    dim = round(_log_uniform(40, 120 if full else 320, u["dim"]) / 10) * 10
    batch = _of((60, 125, 125, 250, 500), u["batch"]) if shared else 1000
    return {
        "context": _of((2, 3, 4, 5) if full else (4, 6, 8, 10, 15), u["context"]),
        "dim": dim,
        "matrices": "full" if full else "diagonal",
        "batch_size": batch,
        "shared_noise": shared,
        "noise_samples": round(batch * _log_uniform(0.5, 4, u["samples"])) if shared else round(10 + 40 * u["samples"]),
        "noise_power": _of((0.5, 0.75, 0.75, 1.0), u["noise"]),
        "learning_rate": _log_uniform(1.0, 6.0, u["rate"]) / math.sqrt(dim) * (1.0 if shared else 0.5),
        "matrix_lr_scale": _log_uniform(0.03, 0.3, u["scale"]) if full else _log_uniform(0.3, 2.0, u["scale"]),
        "initial_accumulator": _log_uniform(0.03, 10, u["accumulator"]),
        "dropout": round(0.02 + 0.5 * u["dropout"], 2),
        "weight_decay_per_epoch": 0.0 if u["decay"] < 0.2 else _log_uniform(0.1, 10, 1.25 * (u["decay"] - 0.2)),
        "init_std": _log_uniform(0.01, 0.1, u["std"]),
        "tied_embeddings": u["tied"] > 0.9,
        "time": 0.6 if u["time"] > 0.8 else 1.0,
    }


AXES = ("matrices", "shared", "dim", "batch", "context", "samples", "noise", "rate", "scale", "accumulator", "dropout",
        "decay", "std", "tied", "time")  # fmt: skip


def global_points(count: int, seed: int) -> list[dict[str, Any]]:
    """Return a Latin hypercube of the search space."""
    rng = np.random.default_rng(seed)
    columns = {axis: (rng.permutation(count) + rng.random(count)) / count for axis in AXES}
    return [point({axis: float(columns[axis][i]) for axis in AXES}) for i in range(count)]


def local_points(default: TrainConfig, count: int, seed: int) -> list[dict[str, Any]]:
    """Return variations of the default: each changes three options by up to a factor of two or three."""
    rng = np.random.default_rng(seed + 1)
    found = []
    for _ in range(count):
        d, regular = default, default.regularization
        r = rng.uniform(-1, 1, 10)
        options: dict[str, Any] = {
            "context": max(round(d.model.context * 1.6 ** r[0]), 1),
            "dim": max(round(d.model.dim * 2.0 ** r[1] / 10) * 10, 20),
            "batch_size": round(d.batch_size * 2.0 ** r[2]),
            "noise_samples": round(getattr(d.loss, "samples", 100) * 3.0 ** r[3]),
            "learning_rate": float(f"{d.learning_rate * 2.0 ** r[4]:.3g}"),
            "initial_accumulator": float(f"{getattr(d.optimizer, 'initial_accumulator', 1.0) * 5.0 ** r[5]:.3g}"),
            "dropout": round(float(np.clip(regular.dropout + 0.15 * r[6], 0.02, 0.7)), 2),
            "weight_decay_per_epoch": float(f"{regular.weight_decay_per_epoch * 4.0 ** r[7]:.3g}"),
            "init_std": float(f"{d.init.std * 3.0 ** r[8]:.3g}"),
            "time": 0.6,
        }
        chosen = rng.permutation(list(options))[:3].tolist()
        found.append({name: options[name] for name in chosen})
    return found


def configurations(default: TrainConfig, seed: int) -> dict[str, tuple[TrainConfig, float]]:
    """Return the configurations of the search by name, each with the share of the training time that it uses."""
    found: dict[str, tuple[TrainConfig, float]] = {}
    for name in RECIPES:
        found[name] = recipe(name).with_changes(schedule="linear"), 1.0
    for kind, points in (
        ("local", local_points(default, LOCAL, seed)),
        ("global", global_points(GLOBAL, seed)),
    ):
        for i, options in enumerate(points):
            share = options.pop("time", 1.0)
            found[f"{kind}-{i}"] = default.with_changes(**options), share
    return found


# -- training ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """A trained model: the best of all epochs."""

    model: LogBilinear
    cpu_seconds: float  # of training
    perplexities: list[float]  # on a sample of the validation text, after each epoch
    best: float  # on the whole validation text


class Trainer:
    """Trains configurations on one store, on one thread."""

    def __init__(self, store: TokenStore, team: Team) -> None:
        self.store, self.team = store, team
        self.tokens = store.split("train").tokens

    def relative_cost(self, config: TrainConfig, default: TrainConfig) -> float:
        """Return the CPU time per word of a configuration divided by that of the default, measured in alternation."""
        engines = [self._engine(each)[1] for each in (config, default)]
        costs: list[list[float]] = [[], []]
        for each in (config, default):  # compiles
            self._seconds_per_word(self._engine(each)[1], each, 0.0)
        for _ in range(ROUNDS):
            for i, each in enumerate((config, default)):
                costs[i].append(self._seconds_per_word(engines[i], each, SECONDS_PER_ROUND))
        return float(np.median(np.array(costs[0]) / np.array(costs[1])))

    def _engine(self, config: TrainConfig) -> tuple[LogBilinear, Any]:
        unigram = Noise.from_counts(self.store.vocabulary.counts).probabilities
        model = LogBilinear.initialise(config.model, unigram, config.seed, config.init.std)
        return model, new_engine(config, self.store, self.team, model)

    def _seconds_per_word(self, engine: Any, config: TrainConfig, seconds: float) -> float:
        n = min(engine.planned, engine.steps_per_epoch)
        rates, words, began = np.full(n, 1e-3), 0, time.process_time()
        step = 0
        while True:
            if step + n > engine.steps_per_epoch:
                step = 0
            engine.run(0, step, rates, rates)
            words, step, spent = words + n * config.batch_size, step + n, time.process_time() - began
            if spent >= seconds:
                return spent / words

    def train(self, config: TrainConfig) -> Trained:
        """Train a model; keep the parameters of the best epoch. Early stopping is that of `ncelm.train`."""
        model, engine = self._engine(config)
        per_epoch, epochs = engine.steps_per_epoch, config.schedule.epochs
        total, done, seconds = total_steps(config.schedule, per_epoch), 0, 0.0
        valid = self.store.split("valid").tokens
        sample = min(valid, VALIDATED)
        perplexities: list[float] = []
        best: dict[str, np.ndarray] = {}
        for epoch in range(math.ceil(epochs)):
            last = min((epoch + 1) * per_epoch, total)
            while done < last:
                n = min(engine.planned, last - done)
                rates = learning_rates(
                    config.schedule, config.optimizer, config.learning_rate, done + np.arange(n), per_epoch
                )
                began = time.process_time()
                engine.run(epoch, done - epoch * per_epoch, rates, rates * config.matrix_lr_scale)
                seconds += time.process_time() - began
                done += n
            perplexity = evaluate_sample(model, self.store, "valid", sample, self.team).result().perplexity
            perplexities.append(perplexity if math.isfinite(perplexity) else math.inf)
            if perplexities[-1] == min(perplexities):
                best = {name: array.copy() for name, array in model.arrays().items()}
            elif 0 < config.schedule.patience < len(perplexities) - int(np.argmin(perplexities)):
                break
        model = LogBilinear.from_arrays(config.model, best)
        whole = (
            evaluate_split(model, self.store, "valid", self.team).perplexity if sample < valid else min(perplexities)
        )
        return Trained(model, seconds, perplexities, whole)


class Results:
    """Results in a file, by text and name of the configuration."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.records: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def add(self, record: dict[str, Any]) -> None:
        """Append a result."""
        self.records.append(record)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def of(self, text: str, default: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the results on a text that belong to this default configuration, by name."""
        return {each["name"]: each for each in self.records if each["text"] == text and each["default"] == default}


def search(text: str, store: TokenStore, results: Results, seed: int, only_default: bool = False) -> None:
    """Train all configurations on a text that have no result yet."""
    tokens, vocabulary_size = store.split("train").tokens, len(store.vocabulary)
    default = default_config(tokens, vocabulary_size)
    flat = to_flat(default)
    common = {"text": text, "default": flat, "words": tokens, "vocabulary": vocabulary_size, "seed": seed}
    done = results.of(text, flat)
    with Team(1) as team:
        trainer = Trainer(store, team)
        if NGRAM not in done:
            model, _ = estimate(store, 5)
            scores = {name: evaluate_split(model, store, name, team).perplexity for name in ("valid", "test")}
            results.add({**common, "name": NGRAM, **scores})
            log(f"{text} {NGRAM}: validation {scores['valid']:.2f}")
        searched = {DEFAULT: (default, 1.0), **({} if only_default else configurations(default, seed))}
        for name, (config, share) in searched.items():
            if name in done:
                continue
            cost = 1.0 if name == DEFAULT else trainer.relative_cost(config, default)
            if name == DEFAULT:
                trainer.relative_cost(config, default)  # compiles
            else:
                epochs = default.schedule.epochs * share / cost
                steps = MIN_STEPS * config.batch_size / tokens
                config = config.with_changes(schedule=Linear(float(f"{max(epochs, steps):.3g}"), patience=2))
            trained = trainer.train(config)
            before = [each["valid"] for each in results.of(text, flat).values() if "config" in each]
            record = {
                **common,
                "name": name,
                "config": to_flat(config),
                "relative_cost": cost,
                "cpu_seconds": trained.cpu_seconds,
                "epochs_valid": trained.perplexities,
                "valid": trained.best,
            }
            if name == DEFAULT or trained.best < min(before, default=math.inf):
                record["test"] = evaluate_split(trained.model, store, "test", team).perplexity
            results.add(record)
            log(f"{text} {name}: validation {trained.best:.2f} in {trained.cpu_seconds:.1f} CPU s {_changed(record)}")


# -- report ------------------------------------------------------------------------------------------------------------


def _changed(record: dict[str, Any]) -> str:
    """Return the options of a configuration that differ from the default."""
    config, default = record["config"], record["default"]
    return ", ".join(
        f"{name} {config[name]:.3g}" if isinstance(config[name], float) else f"{name} {config[name]}"
        for name in SHOWN
        if name in config and config[name] != default.get(name)
    )


def report(results: Results, stores: dict[str, TokenStore], environment: dict[str, Any], seed: int) -> str:
    """Return the report in Markdown."""
    lines = report_header("Default configuration compared with a search", environment)
    lines += [
        f"Seed {seed}. Each text: {GLOBAL} configurations of a Latin hypercube, {LOCAL} variations of the default and "
        f"{len(RECIPES)} recipes of the paper, trained on one thread for the CPU time of the default (*time*). The "
        "best is selected by validation perplexity. *Distance* is the excess of the default's perplexity over the "
        "best one; it is 0 if the default is the best. The 5-gram model is the modified Kneser-Ney model of `ncelm "
        "ngram train`.",
        "",
    ]
    rows, details, distances = [], [], []
    for text, store in stores.items():
        tokens, vocabulary_size = store.split("train").tokens, len(store.vocabulary)
        found = results.of(text, to_flat(default_config(tokens, vocabulary_size)))
        trained = {name: each for name, each in found.items() if "config" in each}
        if DEFAULT not in trained or len(trained) < 31:
            log(f"{text}: the search is not complete")
            continue
        default, ngram = found[DEFAULT], found[NGRAM]
        best = min(trained.values(), key=lambda each: each["valid"])
        valid, test = default["valid"] / best["valid"] - 1.0, default["test"] / best["test"] - 1.0
        distances.append((valid, test))
        held_out = text in TEXTS and TEXTS[text].held_out
        row = [f"{text}{' (held out)' if held_out else ''}", f"{tokens:,}", f"{vocabulary_size:,}"]
        row += [f"{default['cpu_seconds']:.1f} s", f"{best['cpu_seconds']:.1f} s", str(len(trained) - 1)]
        row += [f"{default['valid']:.1f}", f"{best['valid']:.1f}", f"{100 * valid:.1f} %"]
        row += [f"{default['test']:.1f}", f"{best['test']:.1f}", f"{100 * test:.1f} %", f"{ngram['test']:.1f}"]
        rows.append(row)
        flat = default["config"]
        row = [text, *(f"{flat[name]:g}" for name in DETAILS)]
        details.append([*row, f"{best['name']}: {_changed(best)}" if best is not default else "the default"])
    mean = [f"{100 * float(np.mean([each[i] for each in distances])):.1f} %" if distances else "" for i in (0, 1)]
    rows.append(["mean", "", "", "", "", "", "", "", mean[0], "", "", mean[1], ""])
    header = ["text", "words", "vocabulary", "time", "of the best", "searched", "valid: default", "best", "distance"]
    lines += markdown_table([*header, "test: default", "best", "distance", "5-gram"], rows)
    lines += ["", "Default configurations, and the options in which the best ones differ:", ""]
    lines += markdown_table(["text", *DETAILS, "best"], details)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Search on all texts, and write the report."""
    parser = argument_parser(__doc__)
    parser.add_argument("folder", type=Path, help="folder with the token stores")
    parser.add_argument("--texts", nargs="+", required=True, metavar="NAME")
    parser.add_argument("--results", type=Path, required=True, metavar="FILE")
    parser.add_argument("--report", type=Path, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-default", action="store_true", help="no search")
    arguments = parser.parse_args()
    results = Results(arguments.results)
    stores = {text: TokenStore.open(arguments.folder / text) for text in arguments.texts}
    for text, store in stores.items():
        search(text, store, results, arguments.seed, arguments.only_default)
    if arguments.report:
        content = report(results, stores, environment_info(), arguments.seed)
        arguments.report.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
