"""A long loop of small trainings in one process: start, stop, resume, damage, reject. Nothing may grow."""

import contextlib
import gc
import os
import shutil
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from random import Random

import psutil
from tests.hostile.attacks.checkpoints import damaged_checkpoint
from tests.hostile.attacks.files import damaged_bytes
from tests.hostile.corpus import Corpus, Stop
from tests.hostile.outcome import Place

SAMPLE_SECONDS = 2.0
WARM_UP = 0.25  # part of the time in which caches may grow
GROWTH = 24 << 20  # bytes that the resident memory may grow afterwards


def soak(corpus: Corpus, folder: Path, seconds: float, seed: int) -> int:
    """Run the loop; print measurements; return 1 if memory, descriptors or temporary files grow."""
    from ncelm.errors import NcelmError

    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    tempfile.tempdir = str(temporary)
    random, process = Random(seed), psutil.Process()
    samples: list[tuple[int, int, int]] = []  # resident bytes, descriptors, temporary files
    began = sampled = shown = time.monotonic()
    rounds = 0
    while (now := time.monotonic()) - began < seconds:
        own = folder / "round"
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _stop_and_resume(random, corpus, own / "run")
            for attack in (damaged_checkpoint, damaged_bytes):
                place = Place(corpus, own / attack.__name__)
                place.folder.mkdir()
                with contextlib.suppress(NcelmError):
                    attack(random, place)
        rounds += 1
        partials = sum(1 for _ in own.rglob(".*.ncelm-partial"))
        if now - sampled >= SAMPLE_SECONDS or len(samples) < 2:
            sampled = now
            gc.collect()
            left = partials + len(os.listdir(temporary))
            samples.append((process.memory_info().rss, process.num_fds(), left))
        if now - shown > 60:
            shown = now
            print(f"{(now - began) / 60:.0f} minutes, {rounds:,} rounds: {_shown(samples[-1])}", flush=True)
    return _verdict(samples, rounds)


def _stop_and_resume(random: Random, corpus: Corpus, out: Path) -> None:
    """Train, stop by an exception at a random call, and resume to the end."""
    from ncelm.training.loop import train

    options = corpus.neural[random.choice(sorted(corpus.neural))]
    calls = random.randrange(1, 8)

    def stop(at: object) -> None:
        nonlocal calls
        calls -= 1
        if calls == 0:
            raise Stop

    try:
        train(corpus.folder / "long", out, threads=1, checkpoint_minutes=0, progress=stop, **options)
    except Stop:
        train(corpus.folder / "long", out, threads=1, resume=True, **options)


def _shown(sample: tuple[int, int, int]) -> str:
    return f"{sample[0] / 1e6:.1f} MB of memory, {sample[1]} descriptors, {sample[2]} temporary files"


def _verdict(samples: list[tuple[int, int, int]], rounds: int) -> int:
    """Compare the first with the last third of the samples after the warm-up."""
    steady = samples[int(WARM_UP * len(samples)) :]
    third = max(len(steady) // 3, 1)
    first, last = (
        tuple(int(statistics.median(column)) for column in zip(*part, strict=True))
        for part in (steady[:third], steady[-third:])
    )
    print(
        f"{rounds:,} rounds, {len(samples):,} samples",
        f"after the warm-up: {_shown(first)}",
        f"at the end:        {_shown(last)}",
        sep="\n",
    )
    grown = [
        name
        for name, a, b, allowed in zip(
            ("memory", "descriptors", "temporary files"), first, last, (GROWTH, 0, 0), strict=True
        )
        if b - a > allowed
    ]
    if max(sample[2] for sample in samples) > 0:
        grown.append("temporary files")
    print(f"growth of {', '.join(dict.fromkeys(grown))}" if grown else "no growth")
    return 1 if grown else 0
