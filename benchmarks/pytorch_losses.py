"""Losses of ncelm.torch compared with hand-written PyTorch and with the exact softmax.

    python benchmarks/pytorch_losses.py TASK [--results FILE.json] [--report FILE.md]

Tasks, each a few minutes: `step` (time of a training step compared with hand-written plain PyTorch), `softmax-100k` and
`softmax-1m` (step time and quality after equal time compared with Linear and cross-entropy), `optimizers` and
`construction`. With --results, the results of several tasks are kept in one file, from which --report is written.
"""

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor, nn

from common import append_history, argument_parser, command_line, describe_environment, log, markdown_table
from ncelm.io.machine import environment_info
from ncelm.torch import NCELoss, Noise, RowwiseAdagrad, SparseSGD

CLASSES, DIM, BATCH, RATE = 1_000_000, 128, 1024, 0.01
# Without these settings glibc may return the memory of large tensors to the system after each step, depending on what
# the process allocated before. Getting it again takes as long as a step of a hand-written baseline, which writes larger
# temporary tensors than ours.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
SETTINGS = {"k = 25 per example": (25, False), "500 shared": (500, True)}


def zipf(classes: int) -> Tensor:
    """Return class frequencies that follow Zipf's law."""
    return 1.0 / torch.arange(1, classes + 1, dtype=torch.float64)


def seconds(function: Callable[[], Any]) -> float:
    """Return the time of one call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


# -- one training step -------------------------------------------------------------------------------------------------


class HandWritten:
    """NCE with SGD in plain PyTorch: the gradient in closed form, rows gathered once and updated in place."""

    def __init__(self, weight: Tensor, bias: Tensor, noise: Noise, k: int, shared: bool, update: str) -> None:
        self.weight, self.bias, self.k, self.shared, self.update = weight, bias, k, shared, update
        self.keep, self.alias, self.log_noise = noise.keep, noise.alias, noise.log_probabilities

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Return noise samples, by the alias table."""
        column = torch.randint(len(self.alias), shape)
        return torch.where(torch.rand(shape) < self.keep.take(column), column, self.alias.take(column))

    def add(self, rows: Tensor, values: Tensor, biases: Tensor) -> None:
        """Add to rows of the weight and the bias."""
        if self.update == "index_add_":
            self.weight.index_add_(0, rows, values)
        elif self.update == "sparse add_":
            self.weight += torch.sparse_coo_tensor(rows.unsqueeze(0), values, self.weight.shape, check_invariants=False)
        else:
            self.weight.scatter_add_(0, rows.unsqueeze(1).expand_as(values), values)
        self.bias.index_add_(0, rows, biases)

    @torch.no_grad()
    def step(self, hidden: Tensor, target: Tensor) -> tuple[float, Tensor]:
        """Update the table; return the mean loss and its gradient by the hidden vectors."""
        return self.shared_step(hidden, target) if self.shared else self.pair_step(hidden, target)

    def pair_step(self, hidden: Tensor, target: Tensor) -> tuple[float, Tensor]:
        n = len(target)
        words = torch.cat([target.unsqueeze(1), self.draw((n, self.k))], 1)  # (N, k + 1)
        flat = words.view(-1)
        rows = self.weight.index_select(0, flat).view(*words.shape, -1)
        shifts = self.bias.take(words) - self.log_noise.take(words) - math.log(self.k)
        logits = torch.bmm(hidden.unsqueeze(1), rows.transpose(1, 2)).squeeze(1) + shifts
        loss = (F.softplus(logits).sum() - logits[:, 0].sum()) / n
        errors = torch.sigmoid(logits)
        errors[:, 0] -= 1.0
        errors /= n
        gradient = torch.bmm(errors.unsqueeze(1), rows).squeeze(1)
        errors *= -RATE
        torch.mul(errors.unsqueeze(2), hidden.unsqueeze(1), out=rows)  # new memory would take longer
        self.add(flat, rows.view(len(flat), -1), errors.view(-1))
        return loss.item(), gradient

    def shared_step(self, hidden: Tensor, target: Tensor) -> tuple[float, Tensor]:
        n = len(target)
        words = torch.cat([target, self.draw((self.k,))])  # (N + k,)
        rows = self.weight.index_select(0, words)
        shifts = self.bias.take(words) - self.log_noise.take(words) - math.log(self.k)
        own = (hidden * rows[:n]).sum(1) + shifts[:n]
        logits = torch.addmm(shifts[n:], hidden, rows[n:].T)  # (N, k)
        loss = (F.softplus(-own).sum() + F.softplus(logits).sum()) / n
        own_errors, errors = (torch.sigmoid(own) - 1.0) / n, torch.sigmoid(logits) / n
        gradient = torch.addmm(own_errors.unsqueeze(1) * rows[:n], errors, rows[n:])
        values = torch.cat([own_errors.unsqueeze(1) * hidden, errors.T @ hidden]).mul_(-RATE)
        self.add(words, values, torch.cat([own_errors, errors.sum(0)]).mul_(-RATE))
        return loss.item(), gradient


class Autograd:
    """NCE with SGD as most users write it: sparse nn.Embedding and backward()."""

    def __init__(self, weight: Tensor, bias: Tensor, noise: Noise, k: int, shared: bool) -> None:
        self.noise, self.k, self.shared = noise, k, shared
        self.weight = nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)
        self.bias = nn.Embedding.from_pretrained(bias.unsqueeze(1), freeze=False, sparse=True)
        self.optimizer = torch.optim.SGD([self.weight.weight, self.bias.weight], lr=RATE)

    def logits(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Return the logits of words (N, m)."""
        products = torch.bmm(self.weight(words), hidden.unsqueeze(2)).squeeze(2)
        return products + self.bias(words).squeeze(2) - self.noise.log_prob(words) - math.log(self.k)

    def step(self, hidden: Tensor, target: Tensor) -> tuple[float, Tensor]:
        """Update the table; return the mean loss and its gradient by the hidden vectors."""
        self.optimizer.zero_grad()
        hidden = hidden.detach().requires_grad_()
        if self.shared:
            samples = self.noise.sample((self.k,))
            own = self.logits(hidden, target.unsqueeze(1)).squeeze(1)
            shifts = self.bias(samples).squeeze(1) - self.noise.log_prob(samples) - math.log(self.k)
            others = hidden @ self.weight(samples).T + shifts
        else:
            samples = self.noise.sample((len(target), self.k))
            logits = self.logits(hidden, torch.cat([target.unsqueeze(1), samples], 1))
            own, others = logits[:, 0], logits[:, 1:]
        loss = -F.logsigmoid(own).mean() - F.logsigmoid(-others).sum(1).mean()
        loss.backward()
        self.optimizer.step()
        return loss.item(), hidden.grad


class Ours:
    """NCELoss with sparse gradients."""

    def __init__(self, weight: Tensor, bias: Tensor, noise: Noise, k: int, shared: bool) -> None:
        self.loss = NCELoss(
            weight.shape[1],
            len(weight),
            noise,
            k,
            shared_noise=shared,
            sparse=True,
            tied_weight=nn.Parameter(weight),
            bias=nn.Parameter(bias),
        )
        self.optimizer = SparseSGD(self.loss.parameters(), lr=RATE)

    def step(self, hidden: Tensor, target: Tensor) -> tuple[float, Tensor]:
        """Update the table; return the mean loss and its gradient by the hidden vectors."""
        self.optimizer.zero_grad()
        hidden = hidden.detach().requires_grad_()
        loss = self.loss(hidden, target)
        loss.backward()
        self.optimizer.step()
        return loss.item(), hidden.grad


def steps_of(k: int, shared: bool) -> dict[str, Callable[[Tensor, Tensor], tuple[float, Tensor]]]:
    """Return the implementations of a step, after a check that all compute the same."""
    noise = Noise(zipf(CLASSES))
    hidden, target = torch.randn(BATCH, DIM), noise.sample((BATCH,))
    weight, bias = torch.randn(CLASSES, DIM) * 0.1, noise.log_probabilities.clone()
    makers = {
        "ncelm.torch.NCELoss, SparseSGD": lambda *tables: Ours(*tables, noise, k, shared),
        "autograd, sparse nn.Embedding, SGD": lambda *tables: Autograd(*tables, noise, k, shared),
        "hand-written, index_add_": lambda *tables: HandWritten(*tables, noise, k, shared, "index_add_"),
        "hand-written, sparse add_": lambda *tables: HandWritten(*tables, noise, k, shared, "sparse add_"),
        "hand-written, scatter_add_": lambda *tables: HandWritten(*tables, noise, k, shared, "scatter_add_"),
    }
    precise = weight.double(), bias.double()
    torch.manual_seed(1)
    loss, *expected = HandWritten(*precise, noise, k, shared, "index_add_").step(hidden.double(), target)
    expected += [after - before for after, before in zip(precise, (weight, bias), strict=True)]
    for name, make in makers.items():
        tables = weight.clone(), bias.clone()
        torch.manual_seed(1)
        found, *values = make(*tables).step(hidden, target)
        assert math.isclose(found, loss, rel_tol=1e-5), f"{name}: the loss differs"
        values += [after - before for after, before in zip(tables, (weight, bias), strict=True)]
        # the row of a frequent class is rounded after each of its thousands of samples, unless they are summed first
        for value, exact, tolerance in zip(values, expected, (1e-4, 3e-2, 3e-2), strict=True):
            assert float(exact.abs().max()) > 0.0
            error = float((value - exact).abs().max() / exact.abs().max())
            assert error < tolerance, f"{name}: a gradient or an update differs by {error:.1e}"
    # all train the same tables: the time to reach a row depends on where the system put its memory
    return {name: make(weight, bias).step for name, make in makers.items()}


def task_step(rounds: int) -> dict[str, Any]:
    """Time one training step of each implementation. They alternate; ratios are within a round."""
    result: dict[str, Any] = {}
    for setting, (k, shared) in SETTINGS.items():
        implementations = steps_of(k, shared)
        batches = [(torch.randn(BATCH, DIM), torch.randint(CLASSES, (BATCH,))) for _ in range(8)]
        times: dict[str, list[float]] = {name: [] for name in implementations}
        for _ in range(rounds):
            for name, step in implementations.items():
                found = [seconds(lambda b=b, step=step: step(*b)) for b in batches]  # type: ignore[misc]
                times[name].append(statistics.median(found))
        names = list(implementations)
        best = min(names[1:], key=lambda name: statistics.median(times[name]))
        result[setting] = {
            "milliseconds": {name: 1e3 * statistics.median(times[name]) for name in names},
            "best": best,
            "ratio": statistics.median(a / b for a, b in zip(times[names[0]], times[best], strict=True)),
        }
        log(json.dumps(result[setting]))
    return result


# -- exact softmax -----------------------------------------------------------------------------------------------------


class Data:
    """Classes with random directions and Zipf frequencies; an example is the direction of its class plus noise."""

    def __init__(self, classes: int, dim: int) -> None:
        torch.manual_seed(0)
        self.directions = torch.randn(classes, dim)
        self.noise = Noise(zipf(classes))

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Return inputs (size, dim) and classes (size,)."""
        target = self.noise.sample((size,))
        return self.directions[target] + 2.0 * torch.randn(size, self.directions.shape[1]), target


class Exact(nn.Linear):
    """A linear layer and the exact cross-entropy."""

    def loss(self, hidden: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss."""
        return F.cross_entropy(self(hidden), target)


def task_softmax(classes: int, minutes: float, batch: int = 256, dim: int = 64) -> dict[str, Any]:
    """Train the same hidden model with NCE and with the exact softmax for the same time; compare exact likelihoods."""
    data = Data(classes, dim)
    torch.manual_seed(1)
    held_out = data.batch(2000)
    result: dict[str, Any] = {}
    for kind in ("softmax", "softmax, bias = log-unigram", "NCE, k = 25"):
        # the rates of the softmax are selected on the held-out examples, in its favour
        rates = (0.3,) if kind.startswith("NCE") else (0.03, 0.1, 0.3)
        found = [train_output(kind, rate, data, held_out, minutes, batch) for rate in rates]
        result[kind] = min(found, key=lambda one: one["nll"])
        log(json.dumps({kind: found}))
    unigram = -data.noise.log_prob(held_out[1]).mean().item()
    return result | {"unigram": {"nll": unigram}, "settings": {"classes": classes, "minutes": minutes, "batch": batch}}


def train_output(
    kind: str, rate: float, data: Data, held_out: tuple[Tensor, Tensor], minutes: float, batch: int
) -> dict[str, float]:
    """Train an encoder and an output layer; return time per step, number of steps and the exact likelihood."""
    classes, dim = data.directions.shape
    torch.manual_seed(2)
    encoder = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, dim))
    layer: Any
    if kind.startswith("NCE"):
        layer = NCELoss(dim, classes, data.noise, 25, sparse=True)
        train, table = layer, RowwiseAdagrad(layer.parameters(), lr=rate)
    else:
        layer = Exact(dim, classes)
        if "bias" in kind:
            layer.bias.data.copy_(data.noise.log_probabilities)
        train, table = layer.loss, torch.optim.Adagrad(layer.parameters(), lr=rate)
    optimizers = [torch.optim.Adam(encoder.parameters(), lr=1e-3), table]
    exact = NCELoss(dim, classes, data.noise, tied_weight=layer.weight, bias=layer.bias)  # for nll
    times: list[float] = []
    while sum(times) < 60.0 * minutes:
        input, target = data.batch(batch)
        began = time.perf_counter()
        for optimizer in optimizers:
            optimizer.zero_grad()
        train(encoder(input), target).backward()
        for optimizer in optimizers:
            optimizer.step()
        times.append(time.perf_counter() - began)
    with torch.no_grad():
        nll = exact.nll(encoder(held_out[0]), held_out[1]).item()
    return {"rate": rate, "milliseconds": 1e3 * statistics.median(times), "steps": len(times), "nll": nll}


# -- optimizers and construction ---------------------------------------------------------------------------------------


def task_optimizers(rounds: int) -> dict[str, Any]:
    """Time one update of a table by a sparse gradient of 26,624 rows."""
    makers: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "ncelm.torch.SparseSGD": lambda p: SparseSGD([p], lr=RATE),
        "torch.optim.SGD": lambda p: torch.optim.SGD([p], lr=RATE),
        "ncelm.torch.RowwiseAdagrad": lambda p: RowwiseAdagrad([p], lr=RATE),
        "torch.optim.Adagrad": lambda p: torch.optim.Adagrad([p], lr=RATE),
        "torch.optim.SparseAdam": lambda p: torch.optim.SparseAdam([p], lr=RATE),
    }
    noise = Noise(zipf(CLASSES))
    gradients = [
        torch.sparse_coo_tensor(
            noise.sample((1, BATCH * 26)), torch.randn(BATCH * 26, DIM), (CLASSES, DIM), check_invariants=False
        )
        for _ in range(5)
    ]
    tables = {name: nn.Parameter(torch.randn(CLASSES, DIM)) for name in makers}
    optimizers = {name: make(tables[name]) for name, make in makers.items()}
    times: dict[str, list[float]] = {name: [] for name in makers}
    for number in range(rounds + 1):
        for name, optimizer in optimizers.items():
            for gradient in gradients:
                tables[name].grad = gradient.clone()  # optimizers may mark it as coalesced
                one = seconds(optimizer.step)
                if number:  # the first round creates the state
                    times[name].append(one)
    return {name: 1e3 * statistics.median(found) for name, found in times.items()}


def task_construction() -> dict[str, Any]:
    """Time the construction of losses with 1 and 5 million classes."""
    Noise([1.0, 2.0])  # loads the compiled code
    result = {}
    for classes in (1_000_000, 5_000_000):
        weights = zipf(classes)
        result[f"Noise, {classes:,} classes"] = seconds(lambda weights=weights: Noise(weights))  # type: ignore[misc]
        result[f"NCELoss, {classes:,} classes, d = 64"] = seconds(
            lambda classes=classes, weights=weights: NCELoss(64, classes, weights)  # type: ignore[misc]
        )
    return result


# -- report ------------------------------------------------------------------------------------------------------------


def page(results: dict[str, Any]) -> str:
    """Return the results of all tasks in Markdown."""
    lines = ["# PyTorch losses", ""]
    about = {
        "step": f"A training step by NCE with SGD: V = {CLASSES:,}, d = {DIM}, batch {BATCH:,}. All implementations "
        "draw noise by an alias table, compute the gradient of the hidden vectors and update weight and bias; they are "
        "compared for equality first. Median milliseconds of a step; the ratio is the median over rounds of ncelm's "
        "time to that of the fastest other implementation. The memory of large tensors stays with the process, which "
        "favours the hand-written implementations.",
        "optimizers": f"One update of a table of {CLASSES:,} × {DIM} by a sparse gradient with {BATCH * 26:,} rows, "
        "drawn from Zipf's law. Milliseconds.",
        "construction": "Seconds to construct a loss or its noise distribution, with initialization of the weight.",
    }
    titles = {
        "step": "A training step compared with hand-written PyTorch",
        "softmax-100k": "Compared with the exact softmax, 100,000 classes",
        "softmax-1m": "Compared with the exact softmax, 1,000,000 classes",
        "optimizers": "Optimizers",
        "construction": "Construction",
    }
    for task, title in titles.items():
        if task not in results:
            continue
        entry = results[task]
        lines += [f"## {title}", "", f"    {entry['command']}", "", describe_environment(entry), ""]
        found = entry["result"]
        if task == "step":
            names = list(next(iter(found.values()))["milliseconds"])
            rows = [[name, *(f"{found[setting]['milliseconds'][name]:.1f}" for setting in found)] for name in names]
            rows.append(["**ratio to the fastest other**", *(f"**{found[s]['ratio']:.2f}**" for s in found)])
            lines += [about[task], "", *markdown_table(["implementation", *found], rows), ""]
        elif task.startswith("softmax"):
            settings = found["settings"]
            nce = found["NCE, k = 25"]
            lines += [
                f"{settings['classes']:,} classes with Zipf frequencies, random directions plus Gaussian noise, an "
                f"encoder with two layers, d = 64, batch {settings['batch']}, Adagrad (the best of the rates 0.03, 0.1 "
                f"and 0.3 for the softmax, by the result; 0.3 for NCE). Each is trained for "
                f"{60 * settings['minutes']:.0f} s of steps; then the exact negative log-likelihood of 2,000 new "
                f"examples is computed, in nats. The unigram distribution has {found['unigram']['nll']:.2f}.",
                "",
                *markdown_table(
                    ["loss", "rate", "ms per step", "speed-up of NCE", "steps", "exact NLL after equal time"],
                    [
                        [
                            name,
                            f"{row['rate']}",
                            f"{row['milliseconds']:.1f}",
                            f"{row['milliseconds'] / nce['milliseconds']:.0f}×",
                            f"{row['steps']:,}",
                            f"{row['nll']:.2f}",
                        ]
                        for name, row in found.items()
                        if name not in ("settings", "unigram")
                    ],
                ),
                "",
            ]
        else:
            unit = "ms" if task == "optimizers" else "s"
            rows = [[name, f"{value:.2f}"] for name, value in found.items()]
            lines += [about[task], "", *markdown_table(["", unit], rows), ""]
    return "\n".join(lines)


def figures(task: str, result: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of the history."""
    if task == "step":
        return {f"ratio, {setting}": row["ratio"] for setting, row in result.items()}
    if task.startswith("softmax"):
        return {
            f"{name}, {field}": row[field]
            for name, row in result.items()
            if name not in ("settings", "unigram")
            for field in ("milliseconds", "nll")
        }
    return result


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("task", choices=["step", "softmax-100k", "softmax-1m", "optimizers", "construction"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--minutes", type=float, default=1.0, help="training time of each loss (1)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, metavar="FILE", help="JSON file that keeps the results of all tasks")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page in Markdown")
    options = parser.parse_args()
    if not KEEP_MEMORY.items() <= os.environ.items():  # glibc reads them at the start of a process
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})
    torch.set_num_threads(options.threads)
    torch.sparse.check_sparse_tensor_invariants.disable()
    torch.manual_seed(0)
    entry: dict[str, Any] = {"command": command_line(), **environment_info("numpy", "torch")}
    match options.task:
        case "step":
            entry["result"] = task_step(options.rounds)
        case "softmax-100k":
            entry["result"] = task_softmax(100_000, options.minutes)
        case "softmax-1m":
            entry["result"] = task_softmax(1_000_000, options.minutes, batch=128)
        case "optimizers":
            entry["result"] = task_optimizers(options.rounds)
        case "construction":
            entry["result"] = task_construction()
    append_history(options.history, entry, figures(options.task, entry["result"]))
    results: dict[str, Any] = {}
    if options.results and options.results.exists():
        results = json.loads(options.results.read_text())
    results[options.task] = entry
    if options.results:
        options.results.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    if options.report:
        options.report.write_text(page(results))
    if options.json:
        print(json.dumps(entry))


if __name__ == "__main__":
    main()
