"""A cost model of distributed training: predicted throughput of clusters of 2 to 64 machines.

    python benchmarks/cluster_cost_model.py --words-per-second 500000 [--vocabulary 100000] [--dim 100]

From the measured throughput of one machine the model predicts words/s and hours per epoch of clusters with three kinds
of networks, for texts of 10⁹ to 10¹¹ words. Nothing is measured, so nothing is added to the history. docs/scale.md
explains the model, its constants and what it neglects.
"""

import argparse
from dataclasses import dataclass

from ncelm.training.setup import SYNCS_PER_EPOCH

MACHINES = (2, 4, 8, 16, 32, 64)
NETWORKS = {"1 Gbit/s": 0.125e9, "10 Gbit/s": 1.25e9, "100 Gbit/s": 12.5e9}  # bytes/s
TEXTS = (1e9, 1e10, 1e11)  # words


@dataclass(frozen=True)
class Cost:
    """Constants of the model: a log-bilinear model trained with Adagrad."""

    single: float  # words/s of one machine without synchronisation
    message: float  # bytes of a message: the row deltas of both tables and the biases, one byte per number
    overhead: float  # seconds of a synchronisation with empty messages
    encoding: float  # bytes/s at which one thread builds a message
    decoding: float  # bytes/s at which one thread applies a message
    latency: float  # seconds from one machine to another

    def words_per_second(self, machines: int, bandwidth: float, text: float) -> float:
        """Return the throughput of all machines together."""
        interval, others = text / SYNCS_PER_EPOCH, machines - 1
        training = interval / (machines * self.single)
        sending = self.overhead + self.message / self.encoding
        # a ring all-gather: each machine forwards and applies the messages of all others
        receiving = others * (self.message / bandwidth + self.latency + self.message / self.decoding)
        return interval / (training + sending + receiving)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words-per-second", type=float, required=True, help="throughput of one machine")
    parser.add_argument("--vocabulary", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--overhead", type=float, default=0.6e-3, help="seconds (default: 0.6 ms, measured)")
    parser.add_argument("--encoding", type=float, default=0.4e9, help="bytes/s (default: 0.4·10⁹, measured)")
    parser.add_argument("--decoding", type=float, default=0.7e9, help="bytes/s (default: 0.7·10⁹, measured)")
    parser.add_argument("--latency", type=float, default=50e-6, help="seconds (default: 50 µs, assumed)")
    options = parser.parse_args()
    # per word a row of both tables and a bias, each with its index, scale and accumulator growth (12 bytes)
    message = options.vocabulary * (2 * (options.dim + 12) + 13)
    measured = options.overhead, options.encoding, options.decoding, options.latency
    cost = Cost(options.words_per_second, message, *measured)
    for text in TEXTS:
        size = f"10{'⁹' if text == 1e9 else '¹⁰' if text == 1e10 else '¹¹'}"
        print(f"\n{size} words, synchronisation interval {text / SYNCS_PER_EPOCH:,.0f} words:\n")
        print("| machines | " + " | ".join(f"{name}, million words/s | hours per epoch" for name in NETWORKS) + " |")
        print("|---|" + "---|---|" * len(NETWORKS))
        for machines in MACHINES:
            speeds = [cost.words_per_second(machines, bandwidth, text) for bandwidth in NETWORKS.values()]
            cells = [f"{speed / 1e6:,.2f} | {text / speed / 3600:,.2f}" for speed in speeds]
            print(f"| {machines} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
