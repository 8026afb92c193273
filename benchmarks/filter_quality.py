"""How well models separate good text from bad text: the area under the ROC curve (AUC) of a model's scores.

    python benchmarks/filter_quality.py MODEL TEXT OTHER [--seed 0] [--json]

MODEL is a folder of `ncelm fit`. TEXT has held-out sentences of the same text, one per line, tokenized; OTHER has
sentences of another domain. Two tasks: (1) sentences of TEXT against the same sentences with two words swapped, and
(2) sentences of TEXT against those of OTHER. The score of a sentence is its mean log-probability per token. KenLM reads
the 5-gram of MODEL from an ARPA file: the model, estimated with modified Kneser–Ney smoothing, is the same.
"""

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from common import append_history, argument_parser, log, report_header
from ncelm.arpa import export_arpa
from ncelm.io.machine import environment_info
from ncelm.language_model import LanguageModel

MIN_WORDS, SAMPLES = 6, 1000
KENLM = "KenLM, 5-gram"


def swapped(sentence: str, generator: random.Random) -> str:
    """Return a sentence in which two different words are swapped."""
    words = sentence.split()
    while True:
        i, j = generator.sample(range(len(words)), 2)
        if words[i] != words[j]:
            words[i], words[j] = words[j], words[i]
            return " ".join(words)


def auc(good: np.ndarray, bad: np.ndarray) -> float:
    """Return the probability that a good sentence has a higher score than a bad one; ties count half."""
    ranks = rankdata(np.concatenate([good, bad]))[: good.size]
    return float((ranks.sum() - good.size * (good.size + 1) / 2) / (good.size * bad.size))


def scorers(model: Path, folder: Path) -> dict[str, Callable[[list[str]], np.ndarray]]:
    """Return functions that give the mean log-probability per token of sentences."""
    import kenlm

    arpa = folder / "ngram.arpa"
    export_arpa(model / "ngram", arpa, progress=False)
    five_gram = kenlm.Model(str(arpa))

    def by_kenlm(lines: list[str]) -> np.ndarray:
        return np.array([five_gram.score(line) / (len(line.split()) + 1) for line in lines])

    def by(path: Path, normalised: bool) -> Callable[[list[str]], np.ndarray]:
        lm = LanguageModel.load(path)
        return lambda lines: np.array(
            [score.log_probability / score.tokens for score in lm.scores_of(lines, normalised=normalised)]
        )

    return {
        KENLM: by_kenlm,
        "ncelm, the same 5-gram": by(model / "ngram", True),
        "neural, exact": by(model / "neural", True),
        "neural, unnormalised": by(model / "neural", False),
        "mixture, exact": by(model, True),
        "mixture, unnormalised": by(model, False),
    }


def main() -> None:
    """Score all sentences with all models, and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of `ncelm fit`")
    parser.add_argument("text", type=Path, metavar="TEXT", help="held-out sentences")
    parser.add_argument("other", type=Path, metavar="OTHER", help="sentences of another domain")
    parser.add_argument("--seed", type=int, default=0, help="of the swapped words (0)")
    options = parser.parse_args()
    generator = random.Random(options.seed)
    good, other = (
        [line for line in path.read_text("utf-8").split("\n") if len(set(line.split())) >= MIN_WORDS]
        for path in (options.text, options.other)
    )
    bad = [swapped(line, generator) for line in good]
    result: dict[str, Any] = {**environment_info("ncelm", "numpy", "kenlm"), "seed": options.seed,
                              "sentences": len(good), "other": len(other), "models": {}}  # fmt: skip
    scores = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, score in scorers(options.model, Path(folder)).items():
            log(name)
            a, b, c = (score(lines) for lines in (good, bad, other))
            scores[name] = a, b, c
            result["models"][name] = {"swapped": auc(a, b), "pairs": float((a > b).mean()), "domain": auc(a, c)}
    result["difference"] = bootstrap(scores[KENLM], scores["mixture, exact"], options.seed)
    figures = {f"{name}, {task}": value for name, row in result["models"].items() for task, value in row.items()}
    append_history(options.history, result, figures)
    print(json.dumps(result, indent=1) if options.json else report(result))


def bootstrap(one: tuple[np.ndarray, ...], two: tuple[np.ndarray, ...], seed: int) -> dict[str, list[float]]:
    """Return 95 % intervals of the difference of the AUC of two models, over samples of the sentences."""
    random_numbers = np.random.default_rng(seed)
    found: dict[str, list[float]] = {"swapped": [], "domain": []}
    for _ in range(SAMPLES):
        rows = random_numbers.integers(one[0].size, size=one[0].size)
        others = random_numbers.integers(one[2].size, size=one[2].size)
        found["swapped"].append(auc(two[0][rows], two[1][rows]) - auc(one[0][rows], one[1][rows]))
        found["domain"].append(auc(two[0][rows], two[2][others]) - auc(one[0][rows], one[2][others]))
    return {name: np.percentile(values, [2.5, 97.5]).tolist() for name, values in found.items()}


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    intervals = [f"{low:+.4f} to {high:+.4f}" for low, high in (result["difference"][t] for t in ("swapped", "domain"))]
    return "\n".join(
        [
            *report_header("Quality of filters", result),
            f"{result['sentences']:,} held-out sentences, the same with two words swapped (seed {result['seed']}), and "
            f"{result['other']:,} sentences of another domain. AUC: the probability that a good sentence has a higher "
            "mean log-probability per token than a bad one.",
            "",
            "| | AUC, two words swapped | pairs in the right order | AUC, another domain |",
            "|---|---|---|---|",
            *(
                f"| {name} | {row['swapped']:.4f} | {100 * row['pairs']:.1f} % | {row['domain']:.4f} |"
                for name, row in result["models"].items()
            ),
            "",
            f"Mixture, exact, minus KenLM, 95 % bootstrap interval: {intervals[0]} (swapped), {intervals[1]} (domain).",
        ]
    )


if __name__ == "__main__":
    main()
