"""Throughput of n-gram queries from text: `ncelm.kenlm` compared with KenLM's probing model, one thread each.

    python benchmarks/ngram_queries.py NAME ARPA TEXT [NAME ARPA TEXT …] [--rounds 7] [--words 1000000] [--json]

Both modules read the same ARPA file and score the same lines, one sentence each, after a check that all scores agree.
The time includes splitting a line into words and looking these up. The variants alternate in each round; a ratio is the
median over the rounds of the time of KenLM divided by that of ncelm. Needs the module kenlm (`pip install kenlm`, with
a C++ compiler). Prints Markdown.
"""

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import kenlm as original
import numpy as np
import psutil

from common import append_history, argument_parser, log, markdown_table, report_header
from ncelm import kenlm
from ncelm.io.machine import environment_info

VARIANTS = {
    "`scores(lines)`, all lines in one call": "batch",
    "`score(line)`, one call per line": "calls",
    "`full_scores(line)`, one call per line": "full",
    "`BaseScore(state, word, state)`, one call per word": "words",
}
TINY = "\\data\\\nngram 1=2\nngram 2=1\n\\1-grams:\n-0.3\t</s>\t0\n-0.3\ta\t0\n\\2-grams:\n-0.3\ta a\n\\end\\\n"
WORD_CALLS = 50_000  # words that are scored one by one


def main() -> None:
    """Measure all models and print a report."""
    parser = argument_parser(__doc__)
    parser.add_argument("models", nargs="+", metavar="NAME ARPA TEXT", help="name of a model, ARPA file, text")
    parser.add_argument("--rounds", type=int, default=7, help="number of timed rounds (7)")
    parser.add_argument("--words", type=int, default=1_000_000, help="maximum number of scored words (1,000,000)")
    options = parser.parse_args()
    if len(options.models) % 3:
        parser.error("give a name, an ARPA file and a text for each model")
    groups = [options.models[i : i + 3] for i in range(0, len(options.models), 3)]
    models = {
        name: measure(Path(arpa), read_lines(Path(text), options.words), options.rounds) for name, arpa, text in groups
    }
    result = {**environment_info("ncelm", "numpy", "numba", "kenlm"), "models": models}
    figures = {
        f"{name}: {variant} relative to KenLM": each["ratios"][variant]
        for name, each in models.items()
        for variant in VARIANTS.values()
    }
    append_history(options.history, result, figures)
    print(json.dumps(result, indent=2) if options.json else "\n".join(report(result)))


def read_lines(path: Path, words: int) -> list[str]:
    """Return the first lines of a text, with at most this number of words and sentence ends."""
    with path.open(encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in islice(file, words)]
    ends = np.cumsum([len(line.split()) + 1 for line in lines])
    return lines[: int(np.searchsorted(ends, words, side="right"))]


def measure(arpa: Path, lines: list[str], rounds: int) -> dict[str, Any]:
    """Return times of loading and of queries of both modules."""
    config, silent = original.Config(), kenlm.Config(show_progress=False)
    config.show_progress = False
    log(f"loading {arpa.name}")
    theirs, their_load = loaded(lambda: original.Model(str(arpa), config))
    with tempfile.TemporaryDirectory() as folder:  # a first model: Numba is imported, kernels are compiled
        tiny = Path(folder) / "tiny.arpa"
        tiny.write_text(TINY)
        kenlm.Model(tiny, silent).scores(lines[:10])
    ours, our_load = loaded(lambda: kenlm.Model(arpa, silent))
    tokens = sum(len(line.split()) + 1 for line in lines)
    difference = largest_difference(theirs, ours, lines)
    if difference > 1e-5:
        raise SystemExit(f"scores do not agree: the log10 P of a word differs by {difference}")
    few = lines[: max(int(len(lines) * WORD_CALLS / tokens), 1)]
    times: dict[str, dict[str, list[float]]] = {name: {"ncelm": [], "kenlm": []} for name in VARIANTS.values()}
    for number in range(rounds + 1):  # the first round warms up
        for variant in VARIANTS.values():
            text = few if variant == "words" else lines
            for name, module, model in (("ncelm", kenlm, ours), ("kenlm", original, theirs)):
                began = time.perf_counter()
                run(variant, module, model, text)
                if number:
                    times[variant][name].append(time.perf_counter() - began)
    words = {name: sum(len(line.split()) + 1 for line in few) if name == "words" else tokens for name in times}
    return {
        "ngrams": ngram_counts(arpa),
        "scored_words": tokens,
        "largest_difference_log10": difference,
        "load": {"ncelm": our_load, "kenlm": their_load},
        "words_per_second": {
            variant: {name: words[variant] / statistics.median(each) for name, each in both.items()}
            for variant, both in times.items()
        },
        "ratios": {
            variant: statistics.median(b / a for a, b in zip(both["ncelm"], both["kenlm"], strict=True))
            for variant, both in times.items()
        },
        "seconds": times,
    }


def loaded(load: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return a model, and the time and the memory that it takes."""
    gc.collect()
    before, began = psutil.Process().memory_info().rss, time.perf_counter()
    model = load()
    seconds = time.perf_counter() - began
    gc.collect()
    return model, {"seconds": seconds, "bytes": psutil.Process().memory_info().rss - before}


def largest_difference(theirs: Any, ours: Any, lines: list[str]) -> float:
    """Return the largest difference of log10 P of a word, and of a line per word."""
    worst = 0.0
    for line, total in zip(lines, ours.scores(lines), strict=True):
        words = list(zip(theirs.full_scores(line), ours.full_scores(line), strict=True))
        worst = max(worst, *(abs(a[0] - b[0]) for a, b in words), abs(total - theirs.score(line)) / len(words))
        if any(a[1:] != b[1:] for a, b in words):
            raise SystemExit(f"n-gram lengths or unknown words do not agree in the line {line!r}")
    return worst


def run(variant: str, module: Any, model: Any, lines: list[str]) -> None:
    """Score lines."""
    if variant == "batch" and module is kenlm:
        model.scores(lines)
    elif variant in ("batch", "calls"):  # KenLM has no call for many lines
        for line in lines:
            model.score(line)
    elif variant == "full":
        for line in lines:
            list(model.full_scores(line))
    else:
        state, following = module.State(), module.State()
        for line in lines:
            model.BeginSentenceWrite(state)
            for word in line.split():
                model.BaseScore(state, word, following)
                state, following = following, state
            model.BaseScore(state, "</s>", following)


def ngram_counts(arpa: Path) -> list[int]:
    """Return the numbers of n-grams in the header of an ARPA file."""
    counts = []
    with arpa.open("rb") as file:
        for line in islice(file, 1000):
            if line.startswith(b"ngram "):
                counts.append(int(line.split(b"=")[1]))
            elif counts:
                break
    return counts


def report(result: dict[str, Any]) -> list[str]:
    """Return the lines of a Markdown report."""
    lines = report_header("N-gram queries compared with KenLM", result)
    lines += [
        "Both modules read the same ARPA file and score the same lines of text on one thread, in alternating rounds.",
        "Splitting lines into words and looking these up is included. A ratio above 1 means that ncelm is faster; it",
        "is the median over the rounds. KenLM has no call for many lines: its `score` is called for each.",
        "",
    ]
    for name, each in result["models"].items():
        speeds, load = each["words_per_second"], each["load"]
        lines += [f"## {name}", ""]
        lines += markdown_table(
            ["", "ncelm, words/s", "KenLM, words/s", "ratio"],
            [
                [what, f"{speeds[key]['ncelm']:,.0f}", f"{speeds[key]['kenlm']:,.0f}", f"**{each['ratios'][key]:.2f}**"]
                for what, key in VARIANTS.items()
            ],
        )
        lines += [
            "",
            f"n-grams of order 1 to {len(each['ngrams'])}: {', '.join(f'{count:,}' for count in each['ngrams'])}; "
            f"{each['scored_words']:,} words scored. Largest difference of log10 P of a word: "
            f"{each['largest_difference_log10']:.0e}. Reading the ARPA file takes {load['ncelm']['seconds']:.1f} s "
            f"({load['kenlm']['seconds']:.1f} s), the model {load['ncelm']['bytes'] / 1e6:,.0f} MB of memory "
            f"({load['kenlm']['bytes'] / 1e6:,.0f} MB); KenLM in brackets.",
            "",
        ]
    return lines[:-1]


if __name__ == "__main__":
    main()
