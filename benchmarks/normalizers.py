"""Errors of estimates of log-normalizers, by several methods that cost a few hundred words per context.

    python benchmarks/normalizers.py RUN OTHER [--run RUN …] [--contexts 100000] [--json]

RUN is a log-bilinear model trained by `ncelm train`, whose token store exists and has a test split; OTHER is a text of
another domain, one sentence per line, already split into words. Every method is fitted to the same contexts of the
training text (`ncelm.models.fit_normalizer`) and measured in contexts of the test split and of OTHER, as `ncelm score`
sees them. Further runs, such as models trained with --log-z-penalty, are measured with the units only.

| method | estimate of log Z(h) |
|---|---|
| none | 0, the unnormalised score |
| constant | the mean of log Z |
| units | log-sum-exp of K linear functions of q̂, fitted: `ncelm.models.normalizer` |
| network | one hidden layer of 128 rectified units on q̂ |
| frequent + network | exact sum over the most frequent words, and a network on q̂ and the logarithm of this sum |
| clusters | expansion of second order around the means of clusters of words, and a network on the residual |
| frequent + sampled | exact sum over the most frequent words; importance sampling of the others, the same for all |
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common import append_history, argument_parser, log, markdown_table, report_header
from ncelm.io.machine import environment_info
from ncelm.kernels.threads import Team
from ncelm.models import fit_normalizer as fitting
from ncelm.models.fit_normalizer import Examples, log_sum_exp
from ncelm.models.load import load_word_model
from ncelm.models.log_bilinear import LogBilinear
from ncelm.text.store import TokenStore

HIDDEN = 128
LEARNING_RATE = 0.003  # of networks
TESTED = 20_000  # contexts of the test split and of the other text
BLOCK = 2_000
Estimate = Callable[[np.ndarray], np.ndarray]  # (n, d) → (n,)


class Network:
    """A hidden layer of rectified units with one output, trained by Adam on squared errors."""

    def __init__(self, inputs: int, random: np.random.Generator) -> None:
        self.parameters = [
            (random.standard_normal((inputs, HIDDEN)) * (2.0 / inputs) ** 0.5).astype(np.float32),
            np.zeros(HIDDEN, np.float32),
            np.zeros(HIDDEN, np.float32),
            np.zeros(1, np.float32),
        ]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        a, b, c, d = self.parameters
        return np.maximum(x @ a + b, 0.0) @ c + d

    def fit(self, x: np.ndarray, y: np.ndarray, random: np.random.Generator) -> "Network":
        """Fit to (n, inputs) → (n,) with the epochs and minibatches of `fit_normalizer`."""
        batches = -(-len(y) // fitting.BATCH)
        steps, step = fitting.EPOCHS * batches, 0
        means, squares = ([np.zeros_like(each) for each in self.parameters] for _ in range(2))
        for _ in range(fitting.EPOCHS):
            for batch in np.array_split(random.permutation(len(y)), batches):
                step += 1
                a, b, c, _ = self.parameters
                hidden = np.maximum(x[batch] @ a + b, 0.0)
                error = (self(x[batch]) - y[batch]) * np.float32(2.0 / len(batch))
                back = error[:, None] * c * (hidden > 0)
                gradients = [x[batch].T @ back, back.sum(axis=0), hidden.T @ error, error.sum(keepdims=True)]
                rate = LEARNING_RATE * min(step / (0.05 * steps), 1.0) * (1.0 - (step - 1) / steps)
                for parameter, gradient, mean, square in zip(self.parameters, gradients, means, squares, strict=True):
                    mean += np.float32(0.1) * (gradient - mean)
                    square += np.float32(0.01) * (gradient * gradient - square)
                    unbiased = mean / np.float32(1 - 0.9**step), square / np.float32(1 - 0.99**step)
                    parameter -= np.float32(rate) * unbiased[0] / (np.sqrt(unbiased[1]) + np.float32(1e-8))
        return self


def units(model: LogBilinear, training: Examples, random: np.random.Generator, count: int) -> Estimate:
    """Return the kept method."""
    vectors, biases = model.target_vectors[:count].copy(), model.biases[:count].copy()
    fitting._minimise(vectors, biases, training, random)
    return lambda q: log_sum_exp(q, vectors, biases)[0]


def network(training: Examples, random: np.random.Generator, base: Estimate, inputs: bool) -> Estimate:
    """Return base + network(q̂), or base + network(q̂, base) if the base is one of the inputs."""
    mean, std = training.predicted.mean(axis=0), training.predicted.std()

    def features(q: np.ndarray, value: np.ndarray) -> np.ndarray:
        scaled = (q - mean) / std
        return np.concatenate([scaled, value[:, None]], axis=1) if inputs else scaled

    value = base(training.predicted).astype(np.float32)
    x = features(training.predicted, value)
    fitted = Network(x.shape[1], random).fit(x, training.log_z - value, random)

    def estimate(q: np.ndarray) -> np.ndarray:
        value = base(q).astype(np.float32)
        return value + fitted(features(q, value))

    return estimate


def frequent_words(model: LogBilinear, count: int) -> Estimate:
    """Return the exact sum over the most frequent words."""
    return lambda q: log_sum_exp(q, model.target_vectors[:count], model.biases[:count])[0]


def clusters(model: LogBilinear, count: int, random: np.random.Generator) -> Estimate:
    """Return log Σ_c exp(b_c + q̂ᵀ μ_c + ½ Σ_t σ²_ct q̂_t²): the words of a cluster as a normal distribution."""
    vectors = model.target_vectors
    weights = np.exp(model.biases.astype(np.float64))
    centers = vectors[random.choice(len(vectors), count, replace=False)]
    for _ in range(6):
        nearest = np.concatenate(
            [(part @ centers.T - 0.5 * np.square(centers).sum(axis=1)).argmax(axis=1) for part in _parts(vectors)]
        )
        total = np.bincount(nearest, weights, count)
        sums = np.stack([np.bincount(nearest, weights * column, count) for column in vectors.T], axis=1)
        used = total > 0
        centers = np.where(used[:, None], sums / np.maximum(total, 1e-300)[:, None], centers).astype(np.float32)
    squares = np.stack([np.bincount(nearest, weights * column**2, count) for column in vectors.T], axis=1)
    variances = np.maximum(squares / np.maximum(total, 1e-300)[:, None] - centers**2, 0.0).astype(np.float32)
    biases = np.log(np.maximum(total, 1e-30)).astype(np.float32)
    both = np.concatenate([centers, 0.5 * variances], axis=1)
    return lambda q: log_sum_exp(np.concatenate([q, q * q], axis=1), both, biases)[0]


def sampled_words(
    model: LogBilinear, training: Examples, frequent: int, samples: int, random: np.random.Generator
) -> Estimate:
    """Return the sum over frequent words and over a sample of the others with weights 1 / (M p(w)).

    p(w) is proportional to the mean of exp s(w, h) over some training contexts.
    """
    vectors, biases = model.target_vectors, model.biases
    scores = training.predicted[:500] @ vectors[frequent:].T + biases[frequent:]
    probabilities = np.exp(scores.astype(np.float64)).mean(axis=0)
    probabilities /= probabilities.sum()
    words = random.choice(len(probabilities), samples, p=probabilities)
    shifts = biases[frequent + words] - np.log(samples * probabilities[words])
    table = np.concatenate([vectors[:frequent], vectors[frequent + words]])
    offsets = np.concatenate([biases[:frequent], shifts]).astype(np.float32)
    return lambda q: log_sum_exp(q, table, offsets)[0]


def _parts(array: np.ndarray) -> list[np.ndarray]:
    return [array[first : first + BLOCK] for first in range(0, len(array), BLOCK)]


def examples(model: LogBilinear, contexts: np.ndarray, team: Team) -> Examples:
    """Return contexts with their exact log-normalizers."""
    predicted = model.predict(contexts)
    return Examples(predicted, model.log_normalizers(predicted, team).astype(np.float32))


def measure(run: Path, other: Path, contexts: int, team: Team, all_methods: bool) -> dict[str, Any]:
    """Return the errors of all methods, or of the units only."""
    model, origin = load_word_model(run)
    if not isinstance(model, LogBilinear) or origin.store is None:
        raise SystemExit(f"{run} is not a log-bilinear model with a token store")
    store, random = TokenStore.open(origin.store), np.random.default_rng(0)
    lines = other.read_text(encoding="utf-8").splitlines()
    words = [origin.vocabulary.encode(line.lower().split()) for line in lines]
    ids = np.concatenate([np.append(each, origin.vocabulary.end_id) for each in words]).astype(np.uint32)
    log(f"{run.name}: exact log-normalizers …")
    training = examples(
        model, fitting._draw(model, fitting._corpus(store.split("train").ids, origin), contexts, random, 0.25), team
    )
    order = random.permutation(contexts)
    training = Examples(training.predicted[order], training.log_z[order])
    tests = {
        name: examples(model, fitting._draw(model, fitting._corpus(text, origin), TESTED, random), team)
        for name, text in (("test", store.split("test").ids), ("other", ids))
    }
    mean, d = training.log_z.mean(), model.config.dim
    methods: dict[str, tuple[int, Callable[[], Estimate]]] = {
        "none (unnormalised)": (0, lambda: lambda q: np.zeros(len(q))),
        "constant": (0, lambda: lambda q: np.full(len(q), mean)),
        **{f"units, K = {k}": (k * d, lambda k=k: units(model, training, random, k)) for k in (96, 192, 384, 768)},
    }
    if all_methods:
        constant: Estimate = lambda q: np.full(len(q), mean)  # noqa: E731
        methods |= {
            f"network, {HIDDEN} units": (HIDDEN * d, lambda: network(training, random, constant, False)),
            **{
                f"{k} frequent + network": (
                    (k + HIDDEN) * d,
                    lambda k=k: network(training, random, frequent_words(model, k), True),
                )
                for k in (100, 256, 1000)
            },
            "192 clusters": (384 * d, lambda: clusters(model, 192, random)),
            "128 clusters + network": (
                (256 + HIDDEN) * d,
                lambda: network(training, random, clusters(model, 128, random), True),
            ),
            "192 frequent + 192 sampled": (384 * d, lambda: sampled_words(model, training, 192, 192, random)),
        }
    result: dict[str, Any] = {"vocabulary": len(origin.vocabulary), "dim": d, "methods": {}}
    for name, (cost, make) in methods.items():
        began = time.perf_counter()
        estimate = make()
        entry: dict[str, Any] = {"multiplications": cost, "seconds": time.perf_counter() - began}
        for split, (predicted, log_z) in tests.items():
            found = np.concatenate([estimate(part) for part in _parts(predicted)]) - log_z
            entry[split] = {"mean": float(found.mean()), "std": float(found.std())}
        result["methods"][name] = entry
        log(f"{name}: {entry}")
    return result


def main() -> None:
    """Measure all runs and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("other", type=Path, metavar="OTHER", help="text of another domain")
    parser.add_argument("--run", dest="more", type=Path, action="append", default=[], metavar="RUN", help="another run")
    parser.add_argument("--contexts", type=int, default=fitting.CONTEXTS, help="number of contexts to fit to (100,000)")
    options = parser.parse_args()
    result: dict[str, Any] = {**environment_info("numpy"), "contexts": options.contexts, "runs": {}}
    with Team() as team:
        for i, run in enumerate([options.run, *options.more]):
            result["runs"][run.name] = measure(run, options.other, options.contexts, team, i == 0)
    figures = {
        f"{run}, {name}: std": method["test"]["std"]
        for run, each in result["runs"].items()
        for name, method in each["methods"].items()
    }
    append_history(options.history, result, figures)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print("\n".join(report_header("Estimates of log-normalizers", result)))
    print(f"Error of log Z(h) in nats, mean ± standard deviation; fitted to {options.contexts:,} contexts.")
    for run, each in result["runs"].items():
        print(f"\n{run}: V = {each['vocabulary']:,}, d = {each['dim']}\n")
        rows = [
            [
                name,
                f"{method['multiplications']:,}",
                *(f"{method[split]['mean']:+.4f} ± {method[split]['std']:.4f}" for split in ("test", "other")),
            ]
            for name, method in each["methods"].items()
        ]
        print("\n".join(markdown_table(["", "multiplications per context", "test text", "another domain"], rows)))


if __name__ == "__main__":
    main()
