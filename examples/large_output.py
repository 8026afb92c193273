"""Train a classifier with 500,000 classes by NCE and by the exact softmax; print time, memory and perplexity of both.

    python examples/large_output.py [--classes 500000] [--steps 500]

The data are synthetic: each class has a random direction, an example is the direction of its class plus noise, and
class frequencies follow Zipf's law. Needs `pip install 'ncelm[torch]'`.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch
from torch import Tensor, nn

from ncelm.torch import NCELoss


def batches(classes: int, dim: int, size: int, seed: int = 0):
    """Return an iterator over batches, inputs (size, dim) and targets (size,), and the class frequencies."""
    random = torch.Generator().manual_seed(seed)
    directions = torch.randn(classes, dim, generator=random)
    frequencies = 1.0 / torch.arange(1, classes + 1)

    def draw():
        while True:
            targets = torch.multinomial(frequencies, size, replacement=True, generator=random)
            yield directions[targets] + 0.5 * torch.randn(size, dim, generator=random), targets

    return draw(), frequencies


class Exact(nn.Module):
    """A linear layer and the exact cross-entropy."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, classes)

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss."""
        return nn.functional.cross_entropy(self.linear(hidden), targets)


def train(kind: str, chosen: argparse.Namespace) -> dict[str, float]:
    """Train with one loss; return the median time of a step, peak memory, and the exact perplexity of a new batch."""
    data, frequencies = batches(chosen.classes, chosen.dim, chosen.batch)
    steps = chosen.steps if kind == "nce" else chosen.exact_steps
    if kind == "nce":
        loss: nn.Module = NCELoss(chosen.dim, chosen.classes, frequencies, num_noise=25, sparse=True)
    else:
        loss = Exact(chosen.dim, chosen.classes)
    optimizer = torch.optim.Adagrad(loss.parameters(), lr=0.1)
    seconds = []
    for _ in range(steps):
        hidden, targets = next(data)
        began = time.perf_counter()
        optimizer.zero_grad()
        loss(hidden, targets).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    result = {
        "steps": steps,
        "seconds": statistics.median(seconds),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    hidden, targets = next(data)
    with torch.no_grad():
        exact = loss.nll(hidden, targets) if isinstance(loss, NCELoss) else loss(hidden, targets)
    return result | {"perplexity": exact.exp().item()}


def main() -> None:
    """Train with both losses, each in its own process, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=500_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=500, help="training steps with NCE")
    parser.add_argument("--exact-steps", type=int, default=5, help="training steps with the exact softmax")
    parser.add_argument("--only", choices=["nce", "exact"], help=argparse.SUPPRESS)  # one of the two processes
    chosen = parser.parse_args()
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default; PyTorch warns if it is not set explicitly
    if chosen.only:
        print(json.dumps(train(chosen.only, chosen)))
        return
    found = {}
    for kind, name in (("nce", "NCE, 25 noise classes"), ("exact", "exact softmax")):
        command = [sys.executable, *sys.argv, "--only", kind]
        found[kind] = one = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        print(
            f"{name:22} {1e3 * one['seconds']:9.2f} ms per step, {one['megabytes']:7,.0f} MB peak memory; "
            f"perplexity after {one['steps']} steps {one['perplexity']:,.0f}"
        )
    print(f"Speed-up of NCE: {found['exact']['seconds'] / found['nce']['seconds']:.0f}")


if __name__ == "__main__":
    main()
