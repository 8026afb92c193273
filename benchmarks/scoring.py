"""Throughput of scoring in all modes, from text to scores, and the errors of the fast and the unnormalised mode.

    python benchmarks/scoring.py RUN TEXT [OTHER] [--rounds 5] [--exact-words 20000] [--json]

RUN is a model trained by `ncelm train`, with a normalizer; TEXT and OTHER are files with one sentence per line, already
split into words: text like the training text, and text of another domain. The time from lines of text to one
log-probability per line is measured: tokenization, vocabulary lookup and scoring, but not the start of Python. All
modes alternate. Batch invariance is verified before anything is timed: scores of lines in random batches and on any
number of threads are those of lines by themselves, bit for bit. Exact scores are those of the first words of a text.
"""

import json
import statistics
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np

from common import append_history, argument_parser, log, report_header
from ncelm.io.machine import environment_info
from ncelm.language_model import LanguageModel, Tokens
from ncelm.models.base import Mode

THREADS = (1, 2)


def words_per_second(lm: LanguageModel, lines: list[str], mode: Mode) -> float:
    """Return the number of words and sentence ends scored per second."""
    began = time.perf_counter()
    words = sum(score.tokens for score in lm.scores_of(lines, mode=mode))
    return words / (time.perf_counter() - began)


def error(lm: LanguageModel, lines: list[str], mode: Mode) -> dict[str, float]:
    """Return statistics of log-probabilities of a mode minus exact ones, of words and of means over sentences."""
    sentences = [Tokens(line.lower().split() if lm.text.lowercase else line.split()) for line in lines]
    exact, found = (list(lm.full_scores_of(sentences, mode=each)) for each in ("exact", mode))
    differences = [
        np.array([a.log_probability - b.log_probability for a, b in zip(*words, strict=True)])
        for words in zip(found, exact, strict=True)
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


def check_batches(models: dict[int, LanguageModel], lines: list[str]) -> int:
    """Stop unless lines have the same scores by themselves, in random batches and on any number of threads.

    Return the number of comparisons.
    """
    random, compared = np.random.default_rng(0), 0
    for mode in get_args(Mode):
        alone = {line: models[1].score(line, mode=mode) for line in dict.fromkeys(lines)}
        for lm in models.values():
            for size in (2, 33, 500):
                batch = [lines[i] for i in random.integers(len(lines), size=size)]
                if lm.score(batch, mode=mode) != [alone[line] for line in batch]:
                    raise SystemExit(f"{mode}: scores depend on the batch or on the threads")
                compared += size
    return compared


def read(path: Path, words: int) -> tuple[list[str], list[str]]:
    """Return the lines of a text, and those of its first words."""
    with path.open(encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    ends = np.cumsum([len(line.split()) + 1 for line in lines])
    return lines, lines[: int(np.searchsorted(ends, words)) + 1]


def main() -> None:
    """Check, time all modes with one thread and with two, measure the errors, and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("text", type=Path, metavar="TEXT", help="text with one sentence per line")
    parser.add_argument("other", type=Path, metavar="OTHER", nargs="?", help="text of another domain")
    parser.add_argument("--rounds", type=int, default=5, help="number of timed rounds (5)")
    parser.add_argument(
        "--exact-words", type=int, default=20_000, help="number of words that are scored exactly (20,000)"
    )
    options = parser.parse_args()
    lines, few = read(options.text, options.exact_words)
    models = {threads: LanguageModel.load(options.run, threads) for threads in THREADS}
    result: dict[str, Any] = {
        **environment_info("ncelm", "numpy", "numba"),
        "run": options.run.name,
        "model": str(models[1].model),
        "vocabulary": len(models[1].vocabulary),
        "words": sum(len(line.split()) + 1 for line in lines),
        "equal_scores": check_batches(models, few[:300]),
    }
    log("scores do not depend on batches and threads")
    speeds: dict[str, list[float]] = {}
    for number in range(options.rounds + 1):  # the first round warms up
        for threads, lm in models.items():
            for mode in get_args(Mode):
                speed = words_per_second(lm, few if mode == "exact" else lines, mode)
                if number:
                    speeds.setdefault(f"{mode}, {threads} thread{'s' * (threads > 1)}", []).append(speed)
        log(f"round {number}/{options.rounds}")
    result["words_per_second"] = {name: statistics.median(values) for name, values in speeds.items()}
    texts = {"TEXT": few} | ({"OTHER": read(options.other, options.exact_words)[1]} if options.other else {})
    result["error"] = {
        f"{mode}, {name}": error(models[2], text, mode)
        for name, text in texts.items()
        for mode in ("fast", "unnormalised")
    }
    figures = {f"{name}, words/s": speed for name, speed in result["words_per_second"].items()}
    append_history(options.history, result, figures)
    print(json.dumps(result, indent=1) if options.json else report(result))


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    return "\n".join(
        [
            *report_header("Scoring", result),
            f"{result['model']}, {result['vocabulary']:,} words in the vocabulary.",
            "",
            "| from lines of text to log-probabilities | words/s |",
            "|---|---|",
            *(f"| {name} | {speed:,.0f} |" for name, speed in result["words_per_second"].items()),
            "",
            "| log-probabilities minus exact ones | words | nats per word | means over sentences | correlation |",
            "|---|---|---|---|---|",
            *(
                f"| {name} | {each['words']:,} | {each['word_mean']:+.4f} ± {each['word_std']:.4f} | "
                f"± {each['sentence_std']:.4f} | {each['sentence_correlation']:.5f} |"
                for name, each in result["error"].items()
            ),
            "",
            f"{result['equal_scores']:,} scores of lines in random batches, on one and two threads, in all modes, were "
            "equal to those of the lines by themselves, bit for bit.",
        ]
    )


if __name__ == "__main__":
    main()
