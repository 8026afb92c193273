"""Throughput of scoring with exact and with unnormalised probabilities, and the error of the latter.

    python benchmarks/scoring.py RUN TEXT [--rounds 5] [--exact-words 20000] [--json]

RUN is a model trained by `ncelm train`, TEXT a file with one sentence per line. The time from lines of text to one
log-probability per line is measured: tokenization, vocabulary lookup and scoring, but not the start of Python. Both
methods alternate.
"""

import json
import statistics
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from common import append_history, argument_parser, log, report_header
from ncelm.io.machine import environment_info
from ncelm.language_model import LanguageModel


def words_per_second(lm: LanguageModel, lines: list[str], normalised: bool) -> float:
    """Return the number of words and sentence ends scored per second."""
    began = time.perf_counter()
    words = sum(score.tokens for score in lm.scores_of(lines, normalised=normalised))
    return words / (time.perf_counter() - began)


def error(lm: LanguageModel, lines: list[str]) -> dict[str, float]:
    """Return statistics of unnormalised minus exact log-probabilities, of words and of means over sentences."""
    exact, unnormalised = (list(lm.full_scores_of(lines, normalised=normalised)) for normalised in (True, False))
    differences = [
        np.array([a.log_probability - b.log_probability for a, b in zip(*words, strict=True)])
        for words in zip(unnormalised, exact, strict=True)
    ]
    each, means = np.concatenate(differences), np.array([some.mean() for some in differences])
    exact_means = np.array([np.mean([word.log_probability for word in words]) for words in exact])
    return {
        "words": each.size,
        "word_mean": float(each.mean()),
        "word_std": float(each.std()),
        "sentence_std": float(means.std()),
        "sentence_correlation": float(np.corrcoef(exact_means, exact_means + means)[0, 1]),
    }


def main() -> None:
    """Time both methods with one thread and with two, and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("text", type=Path, metavar="TEXT", help="text with one sentence per line")
    parser.add_argument("--rounds", type=int, default=5, help="number of timed rounds (5)")
    parser.add_argument(
        "--exact-words", type=int, default=20_000, help="number of words that are scored exactly (20,000)"
    )
    options = parser.parse_args()
    with options.text.open(encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    ends = np.cumsum([len(line.split()) + 1 for line in lines])
    few = list(islice(lines, int(np.searchsorted(ends, options.exact_words)) + 1))
    result: dict[str, Any] = {
        **environment_info("ncelm", "numpy", "numba"),
        "run": options.run.name,
        "words": int(ends[-1]),
    }
    methods = [("unnormalised", lines, False), ("exact", few, True)]
    speeds: dict[str, list[float]] = {}
    models = {threads: LanguageModel.load(options.run, threads) for threads in (1, 2)}
    for number in range(options.rounds + 1):  # the first round warms up
        for threads, lm in models.items():
            for name, text, normalised in methods:
                speed = words_per_second(lm, text, normalised)
                if number:
                    speeds.setdefault(f"{name}, {threads} thread{'s' * (threads > 1)}", []).append(speed)
        log(f"round {number}/{options.rounds}")
    result["words_per_second"] = {name: statistics.median(values) for name, values in speeds.items()}
    result["error"] = error(models[1], few)
    figures = {f"{name}, words/s": speed for name, speed in result["words_per_second"].items()}
    append_history(options.history, result, figures)
    print(json.dumps(result, indent=1) if options.json else report(result))


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    difference = result["error"]
    return "\n".join(
        [
            *report_header("Scoring", result),
            "| from lines of text to log-probabilities | words/s |",
            "|---|---|",
            *(f"| {name} | {speed:,.0f} |" for name, speed in result["words_per_second"].items()),
            "",
            f"Unnormalised minus exact log-probability, {difference['words']:,} words: {difference['word_mean']:+.3f} "
            f"± {difference['word_std']:.3f} nats per word. Means over sentences have a standard deviation of "
            f"{difference['sentence_std']:.3f} and a correlation with the exact means of "
            f"{difference['sentence_correlation']:.4f}.",
        ]
    )


if __name__ == "__main__":
    main()
