"""A cost model of distributed training: predicted throughput of clusters of 2 to 64 machines.

    python benchmarks/cluster_cost_model.py --words-per-second 500000 [--vocabulary 100000] [--dim 100]

From the measured throughput of one machine the model (`ncelm.training.cluster.CostModel`) predicts words/s and hours
per epoch of clusters with three kinds of networks, for texts of 10⁹ to 10¹¹ words. Nothing is measured, so nothing is
added to the history. docs/scale.md explains the model, its constants and what it neglects.
"""

import argparse

from ncelm.training.cluster import CostModel
from ncelm.training.setup import sync_words

MACHINES = (2, 4, 8, 16, 32, 64)
NETWORKS = {"1 Gbit/s": 0.125e9, "10 Gbit/s": 1.25e9, "100 Gbit/s": 12.5e9}  # bytes/s
TEXTS = {"10⁹": 10**9, "10¹⁰": 10**10, "10¹¹": 10**11}  # words


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words-per-second", type=float, required=True, help="throughput of one machine")
    parser.add_argument("--vocabulary", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--latency", type=float, default=0.7e-3, help="seconds of a small collective (0.7 ms)")
    options = parser.parse_args()
    one = options.words_per_second
    for name, words in TEXTS.items():
        print(f"\n{name} words, synchronisation interval of two machines {sync_words(words, 2):,} words:\n")
        print("| machines | " + " | ".join(f"{each}, million words/s | hours per epoch" for each in NETWORKS) + " |")
        print("|---|" + "---|---|" * len(NETWORKS))
        for machines in MACHINES:
            cells = []
            for bandwidth in NETWORKS.values():
                model = CostModel(one, options.vocabulary, options.dim, bandwidth, options.latency)
                speed = one * model.speed_up(machines, words)
                cells.append(f"{speed / 1e6:,.2f} | {words / speed / 3600:,.2f}")
            print(f"| {machines} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
