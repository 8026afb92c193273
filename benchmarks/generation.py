"""Throughput of generation: words per second of a log-bilinear model, with the exact distribution.

    python benchmarks/generation.py [--vocabulary 76000] [--dim 300] [--sentences 64] [--steps 40] [--json]

The model has random parameters and ten context words. Every step draws the next word of all sentences. The draws of one
and of two threads must be equal before they are timed.
"""

import json
import statistics
import time
from typing import Any

import numpy as np

from common import append_history, argument_parser, log
from ncelm.io.machine import available_cores, environment_info
from ncelm.kernels.threads import Team
from ncelm.models.generation import Sampling, WordIds, sample
from ncelm.models.log_bilinear import LogBilinear, ModelConfig


def words_per_second(model: LogBilinear, sampling: Sampling, threads: int, sentences: int, steps: int) -> float:
    """Return the words that are drawn per second."""
    ids = WordIds(model.biases.size, 1, model.biases.size, (0, 1))  # neither <unk> nor the end of the sentence
    prompts = [np.array([2 + i]) for i in range(sentences)]
    with Team(threads) as team:
        list(sample(model, prompts, ids, sampling, 2, 0, team))  # compiles
        began = time.perf_counter()
        drawn = sum(1 for _ in sample(model, prompts, ids, sampling, steps, 0, team))
    return drawn / (time.perf_counter() - began)


def main() -> None:
    """Time samplers with one thread and with all cores."""
    parser = argument_parser(__doc__)
    parser.add_argument("--vocabulary", type=int, default=76_000, help="number of words (76,000)")
    parser.add_argument("--dim", type=int, default=300, help="dimensions (300)")
    parser.add_argument("--sentences", type=int, default=64, help="sentences that are generated at once (64)")
    parser.add_argument("--steps", type=int, default=40, help="words of each sentence (40)")
    parser.add_argument("--rounds", type=int, default=5, help="number of timed rounds (5)")
    options = parser.parse_args()
    config = ModelConfig(context=10, dim=options.dim, matrices="diagonal")
    model = LogBilinear.initialise(config, np.full(options.vocabulary, 1.0 / options.vocabulary), 0, 0.8)
    ids = WordIds(options.vocabulary, 1, options.vocabulary, (0,))
    texts = []
    for threads in (1, 2):
        with Team(threads) as team:
            texts.append(list(sample(model, [np.array([5])] * 8, ids, Sampling(), 5, 0, team)))
    if texts[0] != texts[1]:
        raise SystemExit("one thread and two draw different words")
    samplers = {"exact": Sampling(), "temperature 0.8": Sampling(temperature=0.8), "top-p 0.9": Sampling(top_p=0.9)}
    result: dict[str, Any] = environment_info("numpy", "numba") | {"options": vars(options) | {"history": ""}}
    figures: dict[str, float] = {}
    for name, sampling in samplers.items():
        for threads in sorted({1, available_cores()}):
            steps, rounds = (3, 1) if name.startswith("top") else (options.steps, options.rounds)
            rates = [words_per_second(model, sampling, threads, options.sentences, steps) for _ in range(rounds)]
            figures[f"{name}, {threads} threads"] = statistics.median(rates)
            log(f"{name}, {threads} threads: {statistics.median(rates):,.0f} words/s (best {max(rates):,.0f})")
    append_history(options.history, result, figures)
    if options.json:
        print(json.dumps(result | {"words_per_second": figures}))


if __name__ == "__main__":
    main()
