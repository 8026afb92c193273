"""Exact log-normalizers on one thread, compared with matrix products by BLAS.

    python benchmarks/log_normalizers.py [--vocabulary 10000 76000] [--dim 100 300] [--words 768] [--rounds 7] [--json]

ncelm scores the words of a random text, all of whose contexts differ. The baseline computes log Z(h) from the predicted
vectors q̂ of the same words: products of 250 vectors and 1,000 words by BLAS (SciPy's, which Numba uses), followed by
vectorised exponentials, as in training by exact likelihood. Contexts, q̂ and s(w, h) are part of the time of ncelm only.
Both alternate; the time is CPU time. The baseline depends on the kernels that OpenBLAS selects for the processor, which
the report names (OPENBLAS_CORETYPE selects others).
"""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from common import append_history, argument_parser, log, markdown_table, report_header
from ncelm.io.machine import environment_info
from ncelm.kernels import records
from ncelm.kernels.compile import kernel
from ncelm.kernels.products import VOCABULARY_BLOCK, exponentiate
from ncelm.kernels.threads import Team
from ncelm.models.log_bilinear import LogBilinear, ModelConfig

ROWS = 250  # of a product by BLAS
CONTEXT = 10
TOLERANCE = 1e-5  # of both results


@kernel
def blas_log_normalizers(predicted, table, biases, buffer, largest, total, log_z):
    """log Z of each row of predicted (n, d). buffer (ROWS × VOCABULARY_BLOCK,), largest, total (ROWS,) are scratch."""
    for first in range(0, predicted.shape[0], ROWS):
        rows = predicted[first : first + ROWS]
        n = rows.shape[0]
        largest[:], total[:] = -np.inf, 0.0
        for v0 in range(0, biases.size, VOCABULARY_BLOCK):
            v1 = min(v0 + VOCABULARY_BLOCK, biases.size)
            block = buffer[: n * (v1 - v0)].reshape(n, v1 - v0)
            np.dot(rows, table[v0:v1].T, block)
            exponentiate(block, biases[v0:v1], largest[:n], total[:n])
        for e in range(n):
            log_z[first + e] = np.float64(largest[e]) + np.log(total[e])


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(vocabulary: int, dim: int, words: int, rounds: int, team: Team) -> dict[str, float]:
    """Return the CPU microseconds per word of both, and the median of the ratios within rounds."""
    random = np.random.default_rng(0)
    config = ModelConfig(context=CONTEXT, dim=dim, matrices="diagonal")
    model = LogBilinear.initialise(config, random.dirichlet(np.ones(vocabulary)), seed=0, init_std=0.3)
    ids = random.integers(vocabulary, size=words + CONTEXT).astype(np.uint32)
    corpus = records.Corpus(records.read_only(ids), CONTEXT, False, 0, vocabulary)
    predicted = model.predict(np.lib.stride_tricks.sliding_window_view(ids[:-1], CONTEXT))  # (words, d)
    buffers = np.empty(ROWS * VOCABULARY_BLOCK, np.float32), np.empty(ROWS, np.float32), np.empty(ROWS)
    log_z = np.empty(words)

    def ours() -> np.ndarray:
        return model.score_positions(corpus, CONTEXT, words + CONTEXT, team)[1]

    def blas() -> None:
        blas_log_normalizers(predicted, model.target_vectors, model.biases, *buffers, log_z)

    blas()
    if not np.allclose(ours(), log_z, rtol=0.0, atol=TOLERANCE):
        raise SystemExit(f"the results differ by {np.abs(ours() - log_z).max():.2g}: nothing was timed")
    times = [(seconds(ours), seconds(blas)) for _ in range(rounds)]
    return {
        "ncelm": 1e6 * statistics.median(a for a, _ in times) / words,
        "blas": 1e6 * statistics.median(b for _, b in times) / words,
        "ratio": statistics.median(a / b for a, b in times),
        "ratio_min": min(a / b for a, b in times),
        "ratio_max": max(a / b for a, b in times),
    }


def main() -> None:
    """Measure all sizes and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[10_000, 76_000], metavar="V", help="sizes")
    parser.add_argument("--dim", type=int, nargs="+", default=[100, 300], metavar="D", help="dimensions")
    parser.add_argument("--words", type=int, default=768, help="number of words to score (768)")
    parser.add_argument("--rounds", type=int, default=7, help="number of timed rounds (7)")
    options = parser.parse_args()
    with Team(1) as team:
        libraries = [each for each in threadpool_info() if each["user_api"] == "blas"]
        blas = min(libraries, key=lambda each: "scipy.libs" not in each["filepath"])
        result: dict[str, Any] = {
            **environment_info("numpy", "numba"),
            "blas": f"{blas['internal_api']} {blas['version']}, {blas.get('architecture')} kernels",
            "words": options.words,
            "rounds": options.rounds,
            "sizes": {},
        }
        for vocabulary in options.vocabulary:
            for dim in options.dim:
                log(f"V = {vocabulary:,}, d = {dim} …")
                measured = measure(vocabulary, dim, options.words, options.rounds, team)
                result["sizes"][f"V = {vocabulary:,}, d = {dim}"] = measured
    append_history(options.history, result, {f"{name}: ratio": each["ratio"] for name, each in result["sizes"].items()})
    if options.json:
        print(json.dumps(result, indent=1))
        return
    header = ["", "ncelm, CPU µs per word", "BLAS", "ratio", "min", "max"]
    rows = [
        [
            name,
            *(f"{each[key]:.1f}" for key in ("ncelm", "blas")),
            f"**{each['ratio']:.2f}**",
            *(f"{each[key]:.2f}" for key in ("ratio_min", "ratio_max")),
        ]
        for name, each in result["sizes"].items()
    ]
    print("\n".join([*report_header("Exact log-normalizers", result), f"BLAS: {result['blas']}.", ""]))
    print("\n".join(markdown_table(header, rows)))


if __name__ == "__main__":
    main()
