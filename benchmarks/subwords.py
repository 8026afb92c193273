"""Bits per byte of models of words and of models of subwords on the same text.

    python benchmarks/subwords.py WORDS PIECES TEXT [--json]

WORDS and PIECES are folders of `ncelm fit` of one text, the second with `--tokenizer`. TEXT has held-out sentences, one
per line. A word model does not predict the spelling of unknown words: its bits per byte are a lower bound. In the last
column, each unknown word costs log N more, N being the number of words that <unk> stands for in the training text; that
is still less than its spelling.
"""

import json
import math
from pathlib import Path
from typing import Any

from common import append_history, argument_parser, log, report_header
from ncelm.io.machine import environment_info
from ncelm.language_model import LanguageModel
from ncelm.models.evaluate import LN_2

COMPONENTS = {"5-gram": "ngram", "neural": "neural", "mixture": "."}


def main() -> None:
    """Evaluate the components of both models, and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("words", type=Path, metavar="WORDS", help="folder of `ncelm fit`")
    parser.add_argument("pieces", type=Path, metavar="PIECES", help="folder of `ncelm fit --tokenizer`")
    parser.add_argument("text", type=Path, metavar="TEXT", help="held-out sentences")
    options = parser.parse_args()
    lines = [line for line in options.text.read_text("utf-8").split("\n") if line]
    result: dict[str, Any] = {**environment_info("ncelm", "numpy", "tokenizers"), "rows": {}}
    for kind, folder in (("words", options.words), ("pieces", options.pieces)):
        for name, part in COMPONENTS.items():
            log(f"{kind}, {name}")
            lm = LanguageModel.load(folder / part)
            found = lm.evaluate(lines)
            spelled = found.log_probability - found.unknown * (lm.log_unknown_types or 0.0)
            row = found.as_dict() | {
                "vocabulary": len(lm.vocabulary),
                "spelled": -spelled / (LN_2 * (found.bytes or 1)),
            }
            result["rows"][f"{kind}, {name}"] = row
            assert math.isfinite(found.perplexity)
    figures = {f"{name}, bits per byte": row["bits_per_byte"] for name, row in result["rows"].items()}
    append_history(options.history, result, figures)
    print(json.dumps(result, indent=1) if options.json else report(result))


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    first = next(iter(result["rows"].values()))
    return "\n".join(
        [
            *report_header("Words and subwords", result),
            f"{first['sentences']:,} held-out sentences, {first['words']:,} words, {first['bytes']:,} bytes.",
            "",
            "| | vocabulary | tokens | unknown | perplexity per token | per word | bits per byte | with log N |",
            "|---|---|---|---|---|---|---|---|",
            *(
                f"| {name} | {row['vocabulary']:,} | {row['tokens']:,} | {row['unknown']:,} | {row['perplexity']:.1f} "
                f"| {row['word_perplexity']:.1f} | {row['bits_per_byte']:.4f} | {row['spelled']:.4f} |"
                for name, row in result["rows"].items()
            ),
            "",
            "A word model does not predict the spelling of unknown words: its bits per byte are a lower bound. In the "
            "last column, each unknown word costs log N more, N being the number of words that `<unk>` stands for in "
            "the training text; that is still less than its spelling.",
        ]
    )


if __name__ == "__main__":
    main()
