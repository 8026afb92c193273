"""What a simple cost model predicts for several machines.

    python benchmarks/scale.py --words-per-second 500000 [--vocabulary 100000] [--dim 100]

Give it what one machine was measured to do. Out come words/s of 2 to 64 machines on three networks for texts of 10⁹ to
10¹¹ words, and the hours of one pass. docs/scale.md says where the numbers come from and what was left out.
"""

import argparse
from dataclasses import dataclass

from ncelm.training.loop import EXCHANGES

MACHINES = (2, 4, 8, 16, 32, 64)
NETWORKS = {"1 Gbit/s": 0.125e9, "10 Gbit/s": 1.25e9, "100 Gbit/s": 12.5e9}  # bytes/s
TEXTS = (1e9, 1e10, 1e11)  # words


@dataclass(frozen=True)
class Cost:
    """Measured on one machine, or assumed of a network; a log-bilinear model with Adagrad."""

    alone: float  # words/s of one machine with nobody to talk to
    message: float  # bytes: all rows of both tables, their biases; a byte for each number
    overhead: float  # seconds that an exchange takes in which nothing is told
    writing: float  # bytes/s at which a message is put together …
    taking: float  # … and taken in, by one thread
    latency: float  # seconds from one machine to another

    def words_per_second(self, machines: int, bandwidth: float, text: float) -> float:
        """Of all machines together."""
        every, others = text / EXCHANGES, machines - 1
        training = every / (machines * self.alone)
        told = self.overhead + self.message / self.writing
        # a ring: each machine passes the messages of all others on, and takes them all in
        heard = others * (self.message / bandwidth + self.latency + self.message / self.taking)
        return every / (training + told + heard)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words-per-second", type=float, required=True, help="of one machine alone")
    parser.add_argument("--vocabulary", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--overhead", type=float, default=0.6e-3, help="seconds (default: 0.6 ms, measured)")
    parser.add_argument("--writing", type=float, default=0.4e9, help="bytes/s (default: 0.4·10⁹, measured)")
    parser.add_argument("--taking", type=float, default=0.7e9, help="bytes/s (default: 0.7·10⁹, measured)")
    parser.add_argument("--latency", type=float, default=50e-6, help="seconds (default: 50 µs, assumed)")
    options = parser.parse_args()
    # of each word a row of both tables and a bias, each with its number, scale and growth (12 bytes)
    message = options.vocabulary * (2 * (options.dim + 12) + 13)
    measured = options.overhead, options.writing, options.taking, options.latency
    cost = Cost(options.words_per_second, message, *measured)
    for text in TEXTS:
        size = f"10{'⁹' if text == 1e9 else '¹⁰' if text == 1e10 else '¹¹'}"
        print(f"\n{size} words, an exchange every {text / EXCHANGES:,.0f}:\n")
        print("| machines | " + " | ".join(f"{name}, million words/s | hours a pass" for name in NETWORKS) + " |")
        print("|---|" + "---|---|" * len(NETWORKS))
        for machines in MACHINES:
            speeds = [cost.words_per_second(machines, bandwidth, text) for bandwidth in NETWORKS.values()]
            cells = [f"{speed / 1e6:,.2f} | {text / speed / 3600:,.2f}" for speed in speeds]
            print(f"| {machines} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
