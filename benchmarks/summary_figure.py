"""Draw the figure of README.md from the recorded curves of benchmarks/time_to_quality.py: three of them.

python benchmarks/summary_figure.py
"""

import json
from pathlib import Path

from ncelm.paper import plots

RESULTS = Path(__file__).parents[1] / "docs" / "results"
NAMES = {
    "quick-1": "ncelm, NCE, 1 thread",
    "pytorch-one-epoch-1": "PyTorch, NCE, 1 thread",
    "ml-2": "ncelm, exact maximum likelihood, 2 threads",
}


def main() -> None:
    """Draw docs/results/summary.png."""
    methods = json.loads((RESULTS / "time_to_quality.json").read_text())["methods"]
    curves = {}
    for key, name in NAMES.items():
        seconds, perplexity = zip(*methods[key]["curves"][0], strict=True)  # of the first seed
        curves[name] = (seconds, perplexity)
    if not plots.perplexity_against_time(RESULTS / "summary.png", curves, "test"):
        raise SystemExit("matplotlib is not installed: pip install 'ncelm[plots]'")


if __name__ == "__main__":
    main()
