"""A corpus of 10⁹ words with a vocabulary of 10⁶: prepare it, and train on it for some minutes.

    python benchmarks/large_corpus.py STORE [--words 1000000000] [--folder DIR] [--results FILE.json] [--report FILE.md]

STORE is a token store of a real text, such as the works of Holmes. The corpus is generated from it (`Generator`) and
written to DIR as tokenized text. Then `ncelm prepare` and training run as separate processes. Their memory, with that
of their worker processes, and their progress are recorded every second. SIGTERM ends training after `--minutes`.
Generated files in DIR are used again.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from common import append_history, argument_parser, log, markdown_table, report_header
from ncelm.io.machine import available_cores, environment_info
from ncelm.text.store import TokenStore
from ncelm.text.vocabulary import Vocabulary

# -- the corpus --------------------------------------------------------------------------------------------------------

CHAINS, STEPS = 4096, 256  # random walks in a block of text, and their words
JUMP = 0.25  # probability of continuing after another occurrence of the same word
FREQUENT = 2000  # words without variants
MORE_TYPES = 1.25  # distinct words of the corpus per word of its vocabulary
FILES, VALID_WORDS = 16, 100_000
INTERVAL = 1.0  # seconds between two measurements
TRAINING = {"context": 10, "dim": 100, "matrices": "diagonal"}


class Generator:
    """Random text of any length and vocabulary size that is locally like a real text.

    A walk follows the real text. After each word it jumps with probability `JUMP` to a random other occurrence of this
    word. This samples from the bigrams of the text, in pieces of real text of 1 / `JUMP` words in the mean.

    A word of rank r > `FREQUENT` becomes one of K words, its variants: with D such words, variant k has the probability
    1 / (r + kD), normalised, so that the frequencies of all variants continue Zipf's law beyond the real vocabulary.
    `<unk>` becomes a word of rank r between the size of the real vocabulary and that of the corpus with probability
    ∝ 1 / r.
    """

    def __init__(self, store: TokenStore, vocabulary_size: int) -> None:
        self.text = np.array(store.split("train").ids).astype(np.int32)  # (N,)
        self.size, types = len(store.vocabulary), int(MORE_TYPES * vocabulary_size)
        self.rare = self.size - FREQUENT  # D
        self.variants = max(types // (2 * self.rare), 1)  # K
        self.unknown = max(types - self.size - self.rare * (self.variants - 1), 1)
        self.occurrences = np.argsort(self.text, kind="stable").astype(np.int32)  # (N,), by word
        self.counts = np.bincount(self.text, minlength=self.size)
        self.first = np.cumsum(self.counts) - self.counts  # (V,)
        words = store.vocabulary.words
        self.names = ["\n" if word == "</s>" else word for word in words]
        for word in words[FREQUENT:]:
            self.names += [f"{word}~{k}" for k in range(1, self.variants)]
        self.names += [f"~{number}" for number in range(self.unknown)]

    def block(self, random: np.random.Generator) -> np.ndarray:
        """Return a block of words, (CHAINS · STEPS,), as indices of `names`."""
        positions = random.integers(len(self.text), size=CHAINS)
        walks = np.empty((STEPS, CHAINS), np.int32)
        for step in range(STEPS - 1):
            walks[step] = words = self.text[positions]
            jumps = np.flatnonzero(random.random(CHAINS, np.float32) < JUMP)
            word = words[jumps]
            other = (random.random(len(jumps)) * self.counts[word]).astype(np.int64)
            positions[jumps] = self.occurrences[self.first[word] + other]
            positions += 1
            positions[positions == len(self.text)] = 0
        walks[-1] = Vocabulary.end_id
        found = walks.T.ravel()
        rare = np.flatnonzero(found >= FREQUENT)
        rank, uniform = found[rare], random.random(len(rare))
        variant = rank * ((1 + self.rare * self.variants / rank) ** uniform - 1) / self.rare
        variant = np.minimum(variant.astype(np.int32), self.variants - 1)
        new = self.size + (rank - FREQUENT) * (self.variants - 1) + variant - 1
        found[rare] = np.where(variant > 0, new, rank)
        unknown = np.flatnonzero(found == Vocabulary.unknown_id)
        drawn = self.size * ((1 + self.unknown / self.size) ** random.random(len(unknown)) - 1)
        first = self.size + self.rare * (self.variants - 1)
        found[unknown] = first + np.minimum(drawn.astype(np.int32), self.unknown - 1)
        return found

    def write(self, path: Path, words: int, seed: int) -> None:
        """Write a file of this number of words and sentence ends."""
        random, partial = np.random.default_rng(seed), path.with_suffix(".partial")
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            while words > 0:
                block = self.block(random)[:words]
                words -= len(block)
                file.write(" ".join(map(self.names.__getitem__, block.tolist())).replace(" \n ", "\n"))
        partial.rename(path)


_generator: Generator


def _start(store: Path, vocabulary_size: int) -> None:
    global _generator
    _generator = Generator(TokenStore.open(store), vocabulary_size)


def _write(path: Path, words: int, seed: int) -> None:
    _generator.write(path, words, seed)


def generate(store: Path, folder: Path, words: int, vocabulary_size: int) -> dict[str, Any]:
    """Write the corpus to the folder, in `FILES` files of training text and one of validation text."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    files = {folder / f"train-{number:02}.txt": -(-words // FILES) for number in range(FILES)}
    files[folder / "valid.txt"] = VALID_WORDS
    missing = {path: size for path, size in files.items() if not path.exists()}
    with ProcessPoolExecutor(available_cores(), initializer=_start, initargs=(store, vocabulary_size)) as pool:
        seeds = [list(files).index(path) for path in missing]
        for number, _ in enumerate(pool.map(_write, missing, missing.values(), seeds), 1):
            log(f"{number} of {len(missing)} files are written, {time.perf_counter() - began:.0f} s")
    return {
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "seconds": time.perf_counter() - began if missing else None,
    }


# -- measurement -------------------------------------------------------------------------------------------------------


class Watched:
    """A process whose memory is recorded every second, with that of its worker processes."""

    def __init__(self, command: list[str], log_file: Path) -> None:
        self.began = time.perf_counter()
        with log_file.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file)
        self.tree = psutil.Process(self.process.pid)
        self.memory: list[tuple[float, int]] = []  # seconds, bytes

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return time.perf_counter() - self.began

    def wait(self) -> bool:
        """Record the memory and wait for a second; return whether the process still runs."""
        try:
            processes = [self.tree, *self.tree.children(recursive=True)]
            self.memory.append((self.seconds, sum(map(_private_memory, processes))))
            self.process.wait(INTERVAL)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            self.process.wait()
        except subprocess.TimeoutExpired:
            return True
        return False


def _private_memory(process: psutil.Process) -> int:
    """Return the memory of a process without that of mapped files, in bytes."""
    try:
        fields = dict(re.findall(r"^(Rss\w+):\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(), re.M))
        return 1024 * (int(fields["RssAnon"]) + int(fields["RssShmem"]))
    except (OSError, KeyError):  # it has ended
        return 0


def shares(points: list[tuple[float, float]], parts: int = 10) -> list[float]:
    """Return the rate in equal parts of the time of points (seconds, amount)."""
    seconds, amounts = np.array(points).T
    at = np.linspace(seconds[0], seconds[-1], parts + 1)
    return [float(rate) for rate in np.diff(np.interp(at, seconds, amounts)) / np.diff(at)]


def peaks(memory: list[tuple[float, int]], first: float, last: float, parts: int = 10) -> list[float]:
    """Return the largest memory in equal parts of a time, in bytes."""
    at = np.linspace(first, last, parts + 1)
    found = [
        [size for seconds, size in memory if low <= seconds <= high + INTERVAL] for low, high in itertools.pairwise(at)
    ]
    return [float(max(sizes, default=0)) for sizes in found]


def prepare(folder: Path, vocabulary_size: int) -> dict[str, Any]:
    """Run `ncelm prepare` and return the times of its phases, its speed and its memory over time."""
    store = folder / "store"
    shutil.rmtree(store, ignore_errors=True)
    train = [str(path) for path in sorted(folder.glob("train-*.txt"))]
    command = [sys.executable, "-m", "ncelm", "prepare", "--out", str(store), "--train", *train]
    command += ["--valid", str(folder / "valid.txt"), "--vocabulary-size", str(vocabulary_size), "--json"]
    watched, ends = Watched(command, folder / "prepare.log"), dict[str, float]()
    tokenized = [(0.0, 0.0)]
    while watched.wait():
        now = watched.seconds
        numbers = sum(_size(path) for path in folder.glob(".store.*/spills/*.numbers")) // 4
        if numbers > tokenized[-1][1]:
            tokenized.append((now, numbers))
        if any(folder.glob(".store.*/train.ids")):
            ends.setdefault("vocabulary", now)
        if store.exists():
            ends.setdefault("word ids", now)
    if watched.process.returncode:
        raise SystemExit((folder / "prepare.log").read_text())
    total, ends = watched.seconds, {"tokenization": tokenized[-1][0]} | ends
    ends.setdefault("word ids", total)
    ends["verification"] = total
    seconds, before = {}, 0.0
    for phase, end in ends.items():
        seconds[phase], before = end - before, end
    opened = TokenStore.open(store)
    tokens = opened.split("train").tokens
    return {
        "seconds": seconds,
        "total": total,
        "tokens": tokens,
        "vocabulary": len(opened.vocabulary),
        "unknown": opened.split("train").unknown / tokens,
        "words_per_second": tokens / total,
        "tokenization_rates": shares(tokenized),
        "memory": peaks(watched.memory, 0.0, total),
        "disk": sum(path.stat().st_size for path in store.iterdir()),
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def train(folder: Path, minutes: float) -> dict[str, Any]:
    """Run `ncelm train` until SIGTERM; return its start-up time, and its speed and memory over time."""
    out, points = folder / "run", folder / "progress.jsonl"
    shutil.rmtree(out, ignore_errors=True)
    points.unlink(missing_ok=True)
    command = [sys.executable, __file__, str(folder / "store"), "--training", str(minutes), "--folder", str(folder)]
    watched = Watched(command, folder / "train.log")
    while watched.wait():
        pass
    if watched.process.returncode != -signal.SIGTERM:
        raise SystemExit((folder / "train.log").read_text())
    records = [json.loads(line) for line in points.read_text().splitlines()]
    opened, first = records[0]["opened"], records[1]["at"]
    progress = [(record["at"], record["words"]) for record in records[1:]]
    return {
        "options": TRAINING,
        "open": opened,
        "start": first - opened,
        "training": progress[-1][0] - first,
        "checkpoint": watched.seconds - progress[-1][0],
        "words": progress[-1][1],
        "words_per_second": (progress[-1][1] - progress[0][1]) / (progress[-1][0] - progress[0][0]),
        "rates": shares(progress),
        "memory": peaks(watched.memory, first, progress[-1][0]),
        "peak": max(size for _, size in watched.memory),
        "losses": [records[-1]["loss"]],
    }


def training_process(store: Path, folder: Path, minutes: float) -> None:
    """Train, and write the progress to a file; end the process by SIGTERM after some minutes."""
    import ncelm
    from ncelm.errors import Terminated

    began, last, first = time.perf_counter(), 0.0, 0.0
    opened = ncelm.TokenStore.open(store)
    with (folder / "progress.jsonl").open("w") as file:

        def write(progress: ncelm.Progress) -> None:
            nonlocal last, first
            now = time.perf_counter() - began
            first = first or now
            if now - last >= INTERVAL:
                last = now
                print(json.dumps({"at": now, "words": progress.words, "loss": progress.loss}), file=file, flush=True)
            if now > first + 60 * minutes:
                os.kill(os.getpid(), signal.SIGTERM)

        print(json.dumps({"opened": time.perf_counter() - began}), file=file, flush=True)
        with suppress(Terminated):
            ncelm.train(opened, folder / "run", progress=write, checkpoint_minutes=2, **TRAINING)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


# -- report ------------------------------------------------------------------------------------------------------------


def page(result: dict[str, Any]) -> str:
    """Return the results in Markdown."""
    made, prepared, trained = (result[name] for name in ("generate", "prepare", "train"))
    tenths = [f"{10 * i}–{10 * (i + 1)} %" for i in range(10)]
    phases = [[phase, f"{seconds:.0f}"] for phase, seconds in prepared["seconds"].items()]
    time_of = {
        "open: read and verify": trained["open"],
        "start: parameters, noise, compilation": trained["start"],
        "training": trained["training"],
        "checkpoint and end": trained["checkpoint"],
    }
    written = f" in {made['seconds']:.0f} s" if made["seconds"] else ""
    return "\n".join(
        [
            *report_header("A large corpus", result),
            f"{prepared['tokens']:,} words of text and sentence ends, {made['bytes'] / 1e9:.1f} GB in {made['files']} "
            f"files, generated{written} from a real text: random walks that follow the text and jump with probability "
            f"{JUMP} to another occurrence of the same word. Words of a rank above {FREQUENT:,} have numbered "
            "variants, so that Zipf's law continues beyond the vocabulary of the real text "
            "(`benchmarks/large_corpus.py`). Sentences and bigrams are like real ones; long-range structure is not. "
            "Memory is that of all processes without mapped "
            "files, every second.",
            "",
            "## prepare",
            "",
            f"`ncelm prepare --train … --vocabulary-size {result['vocabulary']}`: {prepared['total']:.0f} s, "
            f"**{prepared['words_per_second'] / 1e6:.2f} million words/s**, at most "
            f"**{max(prepared['memory']) / 1e9:.1f} GB** of memory; vocabulary of {prepared['vocabulary']:,} words, "
            f"{100 * prepared['unknown']:.1f} % unknown; {prepared['disk'] / 1e9:.1f} GB on disk.",
            "",
            *markdown_table(["phase", "seconds"], phases),
            "",
            *markdown_table(
                ["tenth of the time", "tokenized, million words/s", "memory, GB"],
                [
                    [tenth, f"{rate / 1e6:.2f}", f"{memory / 1e9:.2f}"]
                    for tenth, rate, memory in zip(
                        tenths, prepared["tokenization_rates"], prepared["memory"], strict=True
                    )
                ],
            ),
            "",
            "The rates are over tenths of the tokenization, the memory over tenths of the whole time.",
            "",
            "## train",
            "",
            f"`ncelm train` with {', '.join(f'{name} {value}' for name, value in trained['options'].items())}, stopped "
            f"by SIGTERM: {trained['words']:,} words ({100 * trained['words'] / prepared['tokens']:.1f} % of an epoch),"
            f" **{trained['words_per_second']:,.0f} words/s**, at most **{trained['peak'] / 1e9:.1f} GB**.",
            "",
            *markdown_table(["part", "seconds"], [[name, f"{seconds:.1f}"] for name, seconds in time_of.items()]),
            "",
            *markdown_table(
                ["tenth of the training time", "words/s", "memory, GB"],
                [
                    [tenth, f"{rate:,.0f}", f"{memory / 1e9:.2f}"]
                    for tenth, rate, memory in zip(tenths, trained["rates"], trained["memory"], strict=True)
                ],
            ),
            "",
        ]
    )


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("store", type=Path, help="token store of a real text")
    parser.add_argument("--words", type=int, default=1_000_000_000)
    parser.add_argument("--vocabulary", type=int, default=1_000_000, metavar="V")
    parser.add_argument("--folder", type=Path, default=Path("large-corpus"), help="for all files (15 GB)")
    parser.add_argument("--minutes", type=float, default=4.0, help="of training (default: %(default)s)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write all results as JSON")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report in Markdown")
    parser.add_argument("--training", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.training is not None:
        training_process(options.store, options.folder, options.training)
        return
    made = generate(options.store, options.folder, options.words, options.vocabulary)
    log(f"generated: {made}")
    prepared = prepare(options.folder, options.vocabulary)
    log(f"prepared: {prepared['words_per_second']:,.0f} words/s, {prepared['seconds']}")
    trained = train(options.folder, options.minutes)
    log(f"trained: {trained['words_per_second']:,.0f} words/s")
    result = {
        **environment_info(),
        "words": options.words,
        "vocabulary": options.vocabulary,
        "generate": made,
        "prepare": prepared,
        "train": trained,
    }
    if options.results:
        options.results.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if options.report:
        options.report.write_text(page(result), encoding="utf-8")
    if options.json:
        print(json.dumps(result, indent=2))
    figures = {
        "prepare, words/s": prepared["words_per_second"],
        "prepare, GB": max(prepared["memory"]) / 1e9,
        "train, words/s": trained["words_per_second"],
        "train, GB": trained["peak"] / 1e9,
    }
    append_history(options.history, result, figures)


if __name__ == "__main__":
    main()
