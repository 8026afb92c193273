"""What several benchmarks need: training without files, a text made up, and how and when a figure was taken."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.models.log_bilinear import LogBilinear
from ncelm.noise import Noise
from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore
from ncelm.training.config import TrainConfig
from ncelm.training.engine import Engine


def fresh_engine(config: TrainConfig, store: TokenStore, team: Team, model: LogBilinear | None = None) -> Engine:
    """What `ncelm train` runs, without files and validation, from this model or from a start at random."""
    noise = Noise.from_counts(store.vocabulary.counts, config.noise)
    model = model or LogBilinear.initialise(config.model, noise.probabilities, config.seed, config.spread)
    rows = config.optimizer == "adagrad"
    squares = [np.full((len(a) * rows, *a.shape[1:]), np.float32(config.adagrad_start)) for a in model.parameters()]
    sizes = config.sizes(len(store.vocabulary), store.split("train").tokens)
    optimizer = records.Parameters(*squares)
    return Engine(model, optimizer, noise, store, sizes, config.method, config.seed, config.penalty, team)


def made_up_store(folder: Path, vocabulary: int, words: int = 1_000_000) -> TokenStore:
    """A text with the word frequencies of Zipf's law, every word at least once."""
    rng = np.random.default_rng(0)
    shares = 1.0 / np.arange(1, vocabulary - 1)
    ids = np.concatenate([rng.choice(shares.size, words, p=shares / shares.sum()), np.arange(shares.size)])
    with (folder / "text").open("w") as file:
        for first in range(0, ids.size, 20):
            file.write(" ".join(f"w{i}" for i in ids[first : first + 20].tolist()) + "\n")
    return prepare(train=folder / "text", out=folder / "store", boundary="sentence")


def stamp(answer: dict[str, Any]) -> str:
    """When, where and with what, in one line, of an answer that has `environment_info` in it."""
    libraries = ", ".join(f"{name} {number}" for name, number in answer["versions"].items())
    commit = (answer["commit"] or "unknown")[:12]
    return f"{answer['date'][:10]}, {answer['cores']} cores of {answer['cpu']}, commit {commit}; {libraries}."


def heading(title: str, answer: dict[str, Any]) -> list[str]:
    """The first lines of a page of results: what, by which command, when, where and with what."""
    words = (Path(word).name if "/" in word else word for word in sys.argv[1:])  # where things lie is nobody's business
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])
    return [f"# {title}", "", f"    {command}", "", stamp(answer), ""]


def say(message: str) -> None:
    """Progress, for whoever waits."""
    print(message, file=sys.stderr, flush=True)
