"""Recall@100 of a two-tower recommender with and without logQ correction, on synthetic data with known truth.

    python benchmarks/two_tower.py [--seeds 3] [--report FILE]

Users and items have random vectors, items have Zipf popularities, and an item is chosen with probability
P(i|u) ∝ exp(u·v_i + log popularity_i). The towers see a random linear map of the user's vector, and the item's id. All
variants train on the same pairs in the same order with the same initial parameters.
"""

import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common import append_history, argument_parser, log, markdown_table, report_header
from ncelm.io.machine import environment_info
from ncelm.torch import InBatchLoss, RowwiseAdagrad, recall_at_k, top_k

ITEMS, DIM, PAIRS, TEST, BATCH, K = 10_000, 16, 300_000, 10_000, 512, 100
VARIANTS: dict[str, dict[str, Any]] = {
    "no correction": {},
    "logQ correction": {"num_items": ITEMS, "rate": 0.01},
    "logQ correction, 512 uniform negatives": {"num_items": ITEMS, "rate": 0.01, "uniform": 512},
}


class Truth:
    """The distribution that generates the data."""

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.items = torch.randn(ITEMS, DIM, generator=self.random)
        ranks = torch.randperm(ITEMS, generator=self.random) + 1
        self.log_popularity = -torch.log(ranks.double()).float()
        self.map = torch.randn(DIM, DIM, generator=self.random) / DIM**0.5

    def users(self, number: int) -> Tensor:
        """Return vectors of random users."""
        return 0.7 * torch.randn(number, DIM, generator=self.random)

    def draw(self, users: Tensor) -> Tensor:
        """Return an item of each user."""
        chosen = []
        for some in users.split(1000):
            sums = (some @ self.items.T + self.log_popularity).softmax(1).cumsum(1)  # (n, items)
            points = torch.rand(len(some), 1, generator=self.random) * sums[:, -1:]
            chosen.append(torch.searchsorted(sums, points, right=True).squeeze(1).clamp(max=ITEMS - 1))
        return torch.cat(chosen)


class Towers(nn.Module):
    """A query tower for features of users and an item tower for ids. The last dimension holds the bias of items."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(DIM, DIM)
        self.item = nn.Embedding(ITEMS, DIM + 1, sparse=True)
        nn.init.normal_(self.item.weight, std=0.1)

    def queries(self, features: Tensor) -> Tensor:
        """Return query vectors with a last dimension of 1."""
        return nn.functional.pad(self.query(features), (0, 1), value=1.0)


def train(variant: dict[str, Any], features: Tensor, items: Tensor, epochs: int, seed: int) -> Towers:
    """Return towers trained on pairs."""
    torch.manual_seed(seed)
    towers = Towers()
    loss = InBatchLoss(**{name: value for name, value in variant.items() if name != "uniform"})
    optimizers = [
        torch.optim.Adam(towers.query.parameters(), lr=2e-3),
        RowwiseAdagrad(towers.item.parameters(), lr=0.2),
    ]
    uniform = variant.get("uniform", 0)
    for _ in range(epochs):
        for some in torch.randperm(len(items)).split(BATCH):
            options = {}
            if uniform:
                drawn = torch.randint(ITEMS, (uniform,))
                options = {"uniform_item": towers.item(drawn), "uniform_ids": drawn}
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss(towers.queries(features[some]), towers.item(items[some]), items[some], **options).backward()
            for optimizer in optimizers:
                optimizer.step()
    return towers


def measure(seed: int, epochs: int) -> dict[str, float]:
    """Return recall@100 of all variants, of the truth and of the most popular items."""
    truth = Truth(seed)
    users = truth.users(PAIRS + TEST)
    items = truth.draw(users)
    features = users @ truth.map
    held_out = slice(PAIRS, None)

    def recall(queries: Tensor, vectors: Tensor, bias: Tensor | None = None) -> float:
        _, found = top_k(queries, vectors, bias, k=K)
        return float(recall_at_k(found, items[held_out]))

    result = {
        "the true distribution": recall(users[held_out], truth.items, truth.log_popularity),
        "the most popular items": recall(torch.zeros_like(users[held_out]), truth.items, truth.log_popularity),
    }
    for name, variant in VARIANTS.items():
        towers = train(variant, features[:PAIRS], items[:PAIRS], epochs, seed)
        with torch.no_grad():
            result[name] = recall(towers.queries(features[held_out]), towers.item.weight)
        log(f"seed {seed}, {name}: {result[name]:.4f}")
    return result


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page in Markdown")
    options = parser.parse_args()
    torch.sparse.check_sparse_tensor_invariants.disable()
    result: dict[str, Any] = environment_info("numpy", "torch")
    found = [measure(seed, options.epochs) for seed in range(options.seeds)]
    means = {name: statistics.mean(one[name] for one in found) for name in found[0]}
    append_history(options.history, result, means)
    if options.report:
        rows = [
            [name, *(f"{100 * one[name]:.1f}" for one in found), f"**{100 * means[name]:.1f}**"] for name in found[0]
        ]
        about = (
            f"Recall@{K} in percent: the share of {TEST:,} new pairs whose item is among the {K} items with the "
            f"highest scores. {ITEMS:,} items with Zipf popularities, {PAIRS:,} training pairs, {DIM} dimensions, "
            f"batch {BATCH}, {options.epochs} epochs. Up to chance, no towers are better than the true distribution. "
            "Without the correction scores tend to pointwise mutual information, log P(i|u) − log P(i), instead of "
            "log P(i|u)."
        )
        header = ["", *(f"seed {seed}" for seed in range(options.seeds)), "mean"]
        lines = [*report_header("Two-tower recommender", result), about, "", *markdown_table(header, rows)]
        options.report.write_text("\n".join(lines) + "\n")
    if options.json:
        print(json.dumps(result | {"recall": found}))


if __name__ == "__main__":
    main()
