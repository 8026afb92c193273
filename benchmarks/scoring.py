"""How fast text is scored, exactly and unnormalised, and what the second costs in accuracy.

    python benchmarks/scoring.py RUN TEXT [--rounds 5] [--exact-words 20000] [--json]

RUN is a model that `ncelm train` has made, TEXT a file with a sentence a line. Lines in, a log-probability for each
out: splitting, looking words up and scoring are all timed, starting Python is not. Both ways take turns in every round.
"""

import argparse
import json
import statistics
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from common import heading, say
from ncelm.io.machine import environment_info
from ncelm.language_model import LanguageModel


def words_per_second(lm: LanguageModel, lines: list[str], normalised: bool) -> float:
    """Words and sentence ends scored in a second."""
    began = time.perf_counter()
    words = sum(score.tokens for score in lm.scores_of(lines, normalised=normalised))
    return words / (time.perf_counter() - began)


def cost(lm: LanguageModel, lines: list[str]) -> dict[str, float]:
    """How far unnormalised log-probabilities are from exact ones: of words, and of sentences by the word."""
    exact, bare = (list(lm.full_scores_of(lines, normalised=normalised)) for normalised in (True, False))
    off = [
        np.array([b.log_probability - e.log_probability for b, e in zip(bares, exacts, strict=True)])
        for bares, exacts in zip(bare, exact, strict=True)
    ]
    each, means = np.concatenate(off), np.array([some.mean() for some in off])
    exact_means = np.array([np.mean([word.log_probability for word in words]) for words in exact])
    return {
        "words": each.size,
        "word_mean": float(each.mean()),
        "word_deviation": float(each.std()),
        "sentence_deviation": float(means.std()),
        "sentence_correlation": float(np.corrcoef(exact_means, exact_means + means)[0, 1]),
    }


def main() -> None:
    """Time both ways, on one thread and on two, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--exact-words", type=int, default=20_000, help="exact scores are slow: so many words of them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with options.text.open(encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    ends = np.cumsum([len(line.split()) + 1 for line in lines])
    few = list(islice(lines, int(np.searchsorted(ends, options.exact_words)) + 1))
    answer: dict[str, Any] = {
        **environment_info("ncelm", "numpy", "numba"),
        "run": options.run.name,
        "words": int(ends[-1]),
    }
    ways = [("unnormalised", lines, False), ("exact", few, True)]
    speeds: dict[str, list[float]] = {}
    models = {threads: LanguageModel.load(options.run, threads) for threads in (1, 2)}
    for number in range(options.rounds + 1):  # the first warms up
        for threads, lm in models.items():
            for name, text, normalised in ways:
                speed = words_per_second(lm, text, normalised)
                if number:
                    speeds.setdefault(f"{name}, {threads} thread{'s' * (threads > 1)}", []).append(speed)
        say(f"round {number} of {options.rounds}")
    answer["words_per_second"] = {name: statistics.median(values) for name, values in speeds.items()}
    answer["cost"] = cost(models[1], few)
    if options.json:
        print(json.dumps(answer, indent=1))
        return
    print("\n".join(heading("Scoring", answer)))
    print("| lines in, log-probabilities out | words/s |\n|---|---|")
    for name, speed in answer["words_per_second"].items():
        print(f"| {name} | {speed:,.0f} |")
    off = answer["cost"]
    word, sentence = off["word_deviation"], off["sentence_deviation"]
    print(f"\nUnnormalised less exact, {off['words']:,} words: {off['word_mean']:+.3f} ± {word:.3f} nats a word;")
    print(f"means over sentences deviate by {sentence:.3f}", end=" ")
    print(f"and correlate with exact ones at {off['sentence_correlation']:.4f}.")


if __name__ == "__main__":
    main()
