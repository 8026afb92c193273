"""A classifier with half a million classes, trained by NCE beside the exact softmax: time and memory of both.

    python examples/large_output.py [--classes 500000] [--steps 200]

The task is made up so that the answer is known: each class has a hidden direction, an example is a noisy copy of its
class's direction, and class frequencies follow Zipf's law. Needs `pip install 'ncelm[torch]'`.
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
    """Endless (inputs (size, dim), targets (size,)), and the class frequencies."""
    random = torch.Generator().manual_seed(seed)
    directions = torch.randn(classes, dim, generator=random)
    frequencies = 1.0 / torch.arange(1, classes + 1)

    def draw():
        while True:
            targets = torch.multinomial(frequencies, size, replacement=True, generator=random)
            yield directions[targets] + 0.5 * torch.randn(size, dim, generator=random), targets

    return draw(), frequencies


class Exact(nn.Module):
    """What one would write: a linear layer and the cross-entropy."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, classes)

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The mean loss."""
        return nn.functional.cross_entropy(self.linear(hidden), targets)


def train(kind: str, chosen: argparse.Namespace) -> dict[str, float]:
    """Time of a step, the program's peak of memory, and how well the classes were learned, of one way to train."""
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
    answer = {
        "steps": steps,
        "seconds": statistics.median(seconds),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    hidden, targets = next(data)  # of the same classes, not seen before; exact for both, once evaluated
    return answer | {"perplexity": loss.eval()(hidden, targets).exp().item()}


def main() -> None:
    """Train both ways, each in a process of its own, and say how long a step took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=500_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=500, help="by NCE")
    parser.add_argument("--exact-steps", type=int, default=5, help="by the exact softmax")
    parser.add_argument("--only", choices=["nce", "exact"], help=argparse.SUPPRESS)  # the process of one of them
    chosen = parser.parse_args()
    torch.sparse.check_sparse_tensor_invariants.disable()  # PyTorch's default, said aloud so that it does not warn
    if chosen.only:
        print(json.dumps(train(chosen.only, chosen)))
        return
    found = {}
    for kind, name in (("nce", "NCE, 25 noise classes"), ("exact", "exact softmax")):
        command = [sys.executable, *sys.argv, "--only", kind]
        found[kind] = one = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        print(
            f"{name:22} {1e3 * one['seconds']:9.2f} ms a step, {one['megabytes']:7,.0f} MB at the peak; "
            f"perplexity after {one['steps']} steps {one['perplexity']:,.0f}"
        )
    print(f"NCE's step is {found['exact']['seconds'] / found['nce']['seconds']:.0f} × as fast")


if __name__ == "__main__":
    main()
