"""The demonstration: models trained by NCE and by maximum likelihood on the documentation of Python."""

import ast
import re
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ncelm.errors import NcelmError
from ncelm.io.files import atomic_write, check_not_existing, write_errors
from ncelm.io.metrics import Metrics
from ncelm.io.run import METRICS
from ncelm.language_model import LanguageModel
from ncelm.report import write_report
from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore
from ncelm.training.config import TrainConfig
from ncelm.training.loop import Progress, train

SENTENCE = "This function returns a list of strings."
SCRAMBLED = "Strings returns of a this list function."
WORDS = ("string", "file", "returns", "two")


def demo(
    out: Path, threads: int | None, message: Callable[[str], None], progress: Callable[[Progress], None]
) -> dict[str, Any]:
    """Prepare a text, train two models, compare them in the directory `out`; return the results."""
    check_not_existing(out)
    try:
        return _demo(out, threads, message, progress)
    except BaseException:  # including Ctrl-C: repeating the demonstration is cheap
        shutil.rmtree(out, ignore_errors=True)
        raise


def _demo(
    out: Path, threads: int | None, message: Callable[[str], None], progress: Callable[[Progress], None]
) -> dict[str, Any]:
    began = time.perf_counter()
    with write_errors(out):
        out.mkdir(parents=True)
    message("collecting the documentation of Python's standard library …")
    write_text(out / "text.txt")
    store = prepare(
        [out / "text.txt"],
        out=out / "store",
        lowercase=True,
        min_count=3,
        punkt="train",
        valid_sentences=1000,
        test_sentences=1000,
        progress=False,
    )
    message(
        f"{store.split('train').tokens:,} training words, vocabulary of {len(store.vocabulary):,} words "
        f"(prepared in {time.perf_counter() - began:.0f} s)"
    )
    message("training by NCE, then by maximum likelihood …")
    nce = TrainConfig().with_changes(epochs=3)
    results = {
        name: _train_one(store, out / name.lower(), config, threads, progress)
        for name, config in (("NCE", nce), ("ML", nce.with_changes(loss="ml")))
    }
    _show_results(results, message)
    _show_words(LanguageModel.load(out / "nce", threads), message)
    report = write_report([out / "nce", out / "ml"], out / "report.html", threads=threads)
    message(f"\nreport with curves, settings and samples: {report}")
    message(f"all files are in {out}: try `ncelm generate {out / 'nce'}` or `ncelm neighbors {out / 'nce'} list`;")
    message(f"`ncelm serve {out / 'nce'}` shows the model in a browser (pip install 'ncelm[serve]')")
    return results


# -- the text --------------------------------------------------------------------------------------------------------


def write_text(path: Path) -> None:
    """Write the prose of the standard library's documentation to `path`, with blank lines between paragraphs."""
    paragraphs = list(dict.fromkeys(p for text in _documentation() for p in _prose(text)))
    if sum(len(paragraph) for paragraph in paragraphs) < 100_000:
        raise NcelmError(
            "the documentation of this Python installation is too short for the demo: train on another text"
        )
    with atomic_write(path) as file:
        file.write("\n\n".join(paragraphs).encode())


def _documentation() -> Iterator[str]:
    """Yield docstrings and help topics. They are parsed from the sources: no module is imported."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for source in sorted(library.rglob("*.py")):
        parts = source.relative_to(library).parts
        if {"test", "tests", "site-packages", "dist-packages"} & set(parts):
            continue
        try:
            tree = ast.parse(source.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue  # templates and sources in other encodings
        if parts[0] == "pydoc_data":
            yield from (
                node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
            )
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""


def _prose(text: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring that are prose, not code, tables or signatures."""
    for paragraph in re.split(r"\n\s*\n", text):
        line = " ".join(paragraph.split())
        letters = sum(character.isalpha() or character == " " for character in line)
        if len(line) > 40 and letters > 0.85 * len(line) and re.search(r"[.:?!]$", line):
            yield line.rstrip(":") + "." if line.endswith(":") else line


# -- the comparison --------------------------------------------------------------------------------------------------


def _train_one(
    store: TokenStore, out: Path, config: TrainConfig, threads: int | None, progress: Callable[[Progress], None]
) -> dict[str, Any]:
    """Train a model and return its training time, test evaluation and validation curve."""
    last = train(store, out, config, threads=threads, progress=progress)
    test = LanguageModel.load(out, threads).evaluate_split(store, "test")
    return {
        "seconds": last["seconds"],
        "words_per_second": last["words"] * last["epoch"] / last["seconds"],
        "epochs": last["epoch"],
        **{f"test_{name}": value for name, value in test.as_dict().items()},
        "curve": [(line["seconds"], line["valid_perplexity"]) for line in Metrics(out / METRICS).read()],
    }


def _show_results(results: dict[str, dict[str, Any]], message: Callable[[str], None]) -> None:
    message("")
    message("       training   words/s   test perplexity   log Z (0: normalized)")
    for name, r in results.items():
        message(
            f"  {name:4} {r['seconds']:7.1f} s {r['words_per_second']:9,.0f} {r['test_perplexity']:17.1f}   "
            f"{r['test_log_z_mean']:+.2f} ± {r['test_log_z_std']:.2f}"
        )
    speedup = results["ML"]["seconds"] / results["NCE"]["seconds"]
    message(f"\nNCE avoids the sum over the vocabulary: speed-up {speedup:.0f}× for the same number of epochs.")


def _show_words(lm: LanguageModel, message: Callable[[str], None]) -> None:
    message("\nnearest neighbors:")
    for word in WORDS:
        if word in lm.vocabulary:
            message(f"  {word:8} {', '.join(near for near, _ in lm.neighbors(word, 6))}")
    message("\nrandom sentences:")
    for generated in lm.generate(count=3, seed=2, max_words=25, top_p=0.8):
        message(f"  {generated.text}")
    message("\nlog-probability of a sentence and of the same words in another order:")
    for sentence in (SENTENCE, SCRAMBLED):
        message(f"  {lm.score(sentence):7.1f}  {sentence}")
