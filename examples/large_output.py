"""A classifier with half a million classes, trained by NCE beside the exact softmax: time and memory of both.

    python examples/large_output.py [--classes 500000] [--steps 200]

The task is made up so that the answer is known: each class has a hidden direction, an example is a noisy copy of its
class's direction, and class frequencies follow Zipf's law. Needs `pip install 'ncelm[torch]'`.
"""

import argparse
import resource
import statistics
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


def step_time(loss: nn.Module, data, steps: int) -> tuple[float, float]:
    """The median time of a step, and by how many megabytes the program's peak of memory has grown."""
    optimizer = torch.optim.Adagrad(loss.parameters(), lr=0.1)
    before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(steps):
        hidden, targets = next(data)
        began = time.perf_counter()
        optimizer.zero_grad()
        loss(hidden, targets).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    """Train with both and say how long a step took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=500_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--exact-steps", type=int, default=5)
    chosen = parser.parse_args()
    torch.sparse.check_sparse_tensor_invariants.disable()  # PyTorch's default, said aloud so that it does not warn
    data, frequencies = batches(chosen.classes, chosen.dim, chosen.batch)

    nce = NCELoss(chosen.dim, chosen.classes, frequencies, num_noise=25, sparse=True)
    hidden, targets = next(data)
    start = nce.eval()(hidden, targets).exp().item()
    nce_seconds, nce_memory = step_time(nce.train(), data, chosen.steps)
    end = nce.eval()(hidden, targets).exp().item()
    print(f"NCE:           {1e3 * nce_seconds:8.2f} ms a step, {nce_memory:6.0f} MB more at the peak")
    print(f"               perplexity, exactly normalised: {start:,.0f} → {end:,.0f} after {chosen.steps} steps")

    exact_seconds, exact_memory = step_time(Exact(chosen.dim, chosen.classes), data, chosen.exact_steps)
    print(f"exact softmax: {1e3 * exact_seconds:8.2f} ms a step, {exact_memory:6.0f} MB more at the peak")
    print(f"NCE's step is {exact_seconds / nce_seconds:.0f} × as fast")


if __name__ == "__main__":
    main()
