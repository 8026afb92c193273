"""N-gram models: time and memory of estimation, and throughput of queries compared with KenLM on one thread.

    python benchmarks/ngrams.py STORE [--order 5] [--rounds 5] [--split test] [--words 1000000]

Needs the module kenlm (`pip install kenlm`, with a C++ compiler), which reads the ARPA file that ncelm writes. Both
score the same text in alternating rounds, after a check that all scores agree within 1e-4. Prints JSON.
"""

import json
import resource
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import kenlm
import numpy as np

from common import append_history, argument_parser
from ncelm.io.machine import environment_info
from ncelm.kernels.threads import Team
from ncelm.models.base import corpus_view
from ncelm.models.ngram.arpa import write_arpa
from ncelm.models.ngram.estimate import estimate, memory_bytes
from ncelm.models.ngram.query import load, save
from ncelm.text.store import TokenStore


def main() -> None:
    """Estimate a model, time its queries and print JSON."""
    parser = argument_parser(__doc__)
    parser.add_argument("store", type=Path, metavar="STORE", help="token store with boundary `sentence`")
    parser.add_argument("--order", type=int, default=5, help="order of the model (5)")
    parser.add_argument("--rounds", type=int, default=5, help="number of timed rounds (5)")
    parser.add_argument("--split", default="test", help="split that is scored (test)")
    parser.add_argument("--words", type=int, default=1_000_000, help="maximum number of scored words (1,000,000)")
    options = parser.parse_args()

    store = TokenStore.open(options.store)
    if store.boundary != "sentence":
        parser.error("KenLM scores sentence by sentence: prepare the store with --boundary sentence")
    began = time.perf_counter()
    model, _ = estimate(store, options.order)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with tempfile.TemporaryDirectory() as folder:
        queries = measure(store, model, Path(folder), options)
    result = {
        "order": options.order,
        "training_tokens": store.split("train").tokens,
        "ngrams": model.counts,
        "seconds_to_estimate": seconds,
        "peak_memory_bytes": peak,
        "estimated_memory_bytes": memory_bytes(store.split("train"), options.order),
        **queries,
        **environment_info("numpy", "numba", "kenlm"),
    }
    figures = {
        "estimation, s": result["seconds_to_estimate"],
        "peak memory, bytes": peak,
        "queries, words/s": result["words_per_second"]["ncelm"],
        "throughput of queries relative to KenLM": result["ratio"],
    }
    append_history(options.history, result, figures)
    print(json.dumps(result, indent=2))


def measure(store, model, folder, options):
    """Return the times of saving, export and queries."""
    began = time.perf_counter()
    save(model, folder / "model")
    model = load(folder / "model", len(store.vocabulary))  # memory-mapped, as in use
    mapped = time.perf_counter() - began
    began = time.perf_counter()
    write_arpa(folder / "arpa", model, store.vocabulary)
    written = time.perf_counter() - began
    began = time.perf_counter()
    baseline = kenlm.Model(str(folder / "arpa"))
    kenlm_read = time.perf_counter() - began

    split = store.split(options.split)
    ends = split.sentences[split.sentences <= options.words].astype(np.int64)
    words = int(ends[-1])
    corpus, spell = corpus_view(split, store), store.vocabulary.words
    ids = split.ids[:words].tolist()
    sentences = [" ".join(spell[i] for i in ids[a : b - 1]) for a, b in pairwise(ends)]
    rates = {"ncelm": [], "kenlm": []}
    with Team(1) as team:
        ours, _ = model.score_positions(corpus, 0, words, team)
        theirs = np.array([score for line in sentences for score, _, _ in baseline.full_scores(line)])
        worst = float(np.abs(ours / np.log(10.0) - theirs).max())
        if worst > 1e-4:
            raise SystemExit(f"scores do not agree: the log10 P of a word differs by {worst}")
        for _ in range(options.rounds):
            began = time.perf_counter()
            model.score_positions(corpus, 0, words, team)
            rates["ncelm"].append(words / (time.perf_counter() - began))
            began = time.perf_counter()
            for line in sentences:
                baseline.score(line)
            rates["kenlm"].append(words / (time.perf_counter() - began))
    return {
        "scored_words": words,
        "largest_difference_log10": worst,
        "words_per_second": {name: statistics.median(each) for name, each in rates.items()},
        "rounds": rates,
        "ratio": statistics.median(a / b for a, b in zip(rates["ncelm"], rates["kenlm"], strict=True)),
        "model_bytes": (folder / "model").stat().st_size,
        "arpa_bytes": (folder / "arpa").stat().st_size,
        "seconds_to_save_and_map": mapped,
        "seconds_to_write_arpa": written,
        "seconds_kenlm_to_read_arpa": kenlm_read,
    }


if __name__ == "__main__":
    main()
