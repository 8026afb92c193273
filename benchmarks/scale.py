"""What a simple cost model predicts for several machines.

    python benchmarks/scale.py --words-per-second 200000 --bytes-per-word 600 [--exchange-words 2000]

Give it what was measured: the words/s of one worker alone, and what each of two workers sent for each word of the text
(benchmarks/workers.py prints the latter). Out come words/s of 2 to 64 machines on three networks, and hours for a pass.
"""

import argparse
from dataclasses import dataclass

MACHINES = (2, 4, 8, 16, 32, 64)
NETWORKS = {"1 Gbit/s": 0.125e9, "10 Gbit/s": 1.25e9, "100 Gbit/s": 12.5e9}  # bytes/s
TEXTS = (1e9, 1e10, 1e11)  # words


@dataclass(frozen=True)
class Cost:
    """Measured on this machine, or assumed of a network."""

    alone: float  # words/s of one worker with nobody to talk to
    message: float  # bytes of an average exchange, before it is sent round
    every: float  # words of all workers from one exchange to the next
    latency: float  # seconds from one machine to another
    copying: float  # bytes/s at which a message is put together and taken apart

    def words_per_second(self, machines: int, bandwidth: float) -> float:
        """Of all machines together."""
        training = self.every / (machines * self.alone)
        # a ring: 2 (N − 1) steps, in each of which every machine sends an N-th of the message
        steps = 2 * (machines - 1)
        sending = steps * (self.message / machines / bandwidth + self.latency)
        # a message travels while the next words are learned; putting it together and taking it apart does not
        return self.every / max(training + self.message / self.copying, sending)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words-per-second", type=float, required=True, help="of one worker alone")
    parser.add_argument("--bytes-per-word", type=float, required=True, help="sent by each of two workers")
    parser.add_argument("--measured-every", type=float, default=2000, help="words between exchanges when measured")
    parser.add_argument("--exchange-words", type=float, nargs="*", default=[2000], help="… and in the prediction")
    parser.add_argument("--latency", type=float, default=50e-6, help="seconds (default: 50 µs)")
    parser.add_argument("--copying", type=float, default=2e9, help="bytes/s (default: 2·10⁹)")
    options = parser.parse_args()
    # of two workers each sends as many bytes as the message has
    message = options.bytes_per_word * options.measured_every
    for every in options.exchange_words:
        cost = Cost(options.words_per_second, message, every, options.latency, options.copying)
        print(f"\nan exchange every {every:,.0f} words, thousand words/s:\n")
        print("| machines | " + " | ".join(NETWORKS) + " |\n|---|" + "---|" * len(NETWORKS))
        for machines in MACHINES:
            speeds = [cost.words_per_second(machines, bandwidth) / 1e3 for bandwidth in NETWORKS.values()]
            print(f"| {machines} | " + " | ".join(f"{speed:,.0f}" for speed in speeds) + " |")
        print("\nhours for one pass at 10 Gbit/s:\n")
        print("| machines | " + " | ".join(f"10^{len(f'{text:.0f}') - 1} words" for text in TEXTS) + " |")
        print("|---|" + "---|" * len(TEXTS))
        for machines in MACHINES:
            speed = cost.words_per_second(machines, NETWORKS["10 Gbit/s"])
            print(f"| {machines} | " + " | ".join(f"{text / speed / 3600:,.1f}" for text in TEXTS) + " |")


if __name__ == "__main__":
    main()
