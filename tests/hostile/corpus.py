"""Small valid stores and runs of every kind, which attacks change.

They are made once per attack. Clocks stand still meanwhile, so that the same bytes are made each time.
"""

import importlib.util
import json
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

HAS_TORCH = importlib.util.find_spec("torch") is not None
WORDS = [
    f"{a}{b}" for a in ("ba", "do", "ki", "lu", "me", "so", "ta", "ve") for b in ("ran", "nel", "ship", "tom", "x")
]
SIZES = {"train": 260, "valid": 90, "test": 30}  # sentences
LONG_SENTENCES = 4000  # enough for several calls of the engine per epoch
SMALL = {"dim": 4, "epochs": 2, "batch_size": 200, "noise_samples": 3}
# Options of `train` for every model that is trained by epochs
NEURAL: dict[str, dict[str, Any]] = {
    "log-bilinear": {**SMALL, "context": 2},
    "tied": {**SMALL, "context": 2, "tied_embeddings": True, "optimizer": "sgd", "learning_rate": 0.02},
    "two-sided": {**SMALL, "context": 2, "context_after": 2, "matrices": "diagonal", "optimizer": "adam"},
    "learned": {**SMALL, "context": 1, "log_normalizers": "learned"},
    "shared": {**SMALL, "context": 3, "shared_noise": True, "noise_samples": 20, "schedule": "halve"},
    "importance": {**SMALL, "context": 2, "loss": "importance", "noise_samples": 10},
}
TORCH: dict[str, dict[str, Any]] = {
    "feed-forward": {**SMALL, "architecture": "feed-forward", "context": 2, "hidden": 5},
    "lstm": {**SMALL, "architecture": "lstm", "hidden": 5, "context": 0, "bptt_length": 7, "batch_size": 70},
    "maximum-entropy": {**SMALL, "architecture": "maximum-entropy", "context": 2, "features": 300},
}
# Runs that another run consists of
PARTS = {
    "mixture": ("ngram", "log-bilinear"),
    "nested": ("mixture", "tied"),
    "ensemble": ("ngram", "lsa", "pmi", "two-sided"),
}
STORES = ("store", "stream", "prose", "works")
WITH_NORMALIZER = ("log-bilinear", "two-sided")  # runs with a file normalizer.safetensors
TAR_TEXTS = 3


@dataclass(frozen=True)
class Corpus:
    """A folder with texts, stores and runs."""

    folder: Path

    @property
    def runs(self) -> list[str]:
        """The names of all runs."""
        return sorted(path.parent.name for path in self.folder.glob("*/config.json"))

    @property
    def neural(self) -> dict[str, dict[str, Any]]:
        """The options of all models that are trained by epochs, by name."""
        return NEURAL | (TORCH if HAS_TORCH else {})

    def needed(self, run: str) -> list[str]:
        """Return the run and all runs of which it consists."""
        return [run, *(name for part in PARTS.get(run, ()) for name in self.needed(part))]

    def copy(self, names: list[str], folder: Path) -> None:
        """Copy stores or runs to a folder."""
        for name in dict.fromkeys(names):
            shutil.copytree(self.folder / name, folder / name)


def sentences(seed: int, count: int) -> list[str]:
    """Return random sentences in which each word depends on the previous one."""
    rng = np.random.default_rng(seed)
    follow = np.random.default_rng(0).dirichlet(np.full(len(WORDS), 0.15), size=len(WORDS))
    lines = []
    for _ in range(count):
        word, line = int(rng.integers(len(WORDS))), []
        for _ in range(int(rng.integers(8, 14))):
            line.append(WORDS[word])
            word = int(rng.choice(len(WORDS), p=follow[word]))
        lines.append(" ".join(line))
    return lines


def prose(seed: int) -> str:
    """Return prose: capitals, full stops, abbreviations, paragraphs."""
    lines = sentences(seed, 120)
    paragraphs = [" ".join(f"Mr. {line.capitalize()}." for line in lines[i : i + 5]) for i in range(0, len(lines), 5)]
    return "\n\n".join(paragraphs) + "\n"


@contextmanager
def still_clocks() -> Iterator[None]:
    """Let `time.perf_counter` stand still: no file then depends on the time."""
    with mock.patch.object(time, "perf_counter", return_value=0.0):
        yield


def make(folder: Path) -> Corpus:
    """Make all texts, stores and runs in a new folder."""
    folder.mkdir(parents=True)
    corpus = Corpus(folder)
    with warnings.catch_warnings(), still_clocks():
        warnings.simplefilter("ignore")  # texts are too small for the discounts of n-gram models
        _make_texts(folder)
        _make_stores(folder)
        _make_runs(corpus)
        _make_stopped_runs(corpus)
    return corpus


def _make_texts(folder: Path) -> None:
    for number, (split, count) in enumerate(SIZES.items()):
        (folder / f"{split}.txt").write_text("\n".join(sentences(number, count)) + "\n")
    (folder / "long.txt").write_text("\n".join(sentences(9, LONG_SENTENCES)) + "\n")
    (folder / "prose.txt").write_text(prose(3))
    questions = ["id,question,a),b),c),d),e)"]
    answers = ["id,answer"]
    for number, line in enumerate(sentences(7, 12), 1):
        words = line.split()
        right, words[3] = words[3], "_____"
        choices = [right, *[word for word in WORDS if word != right][number : number + 4]]
        questions.append(f"{number},{' '.join(words)} .,{','.join(choices)}")
        answers.append(f"{number},a")
    (folder / "questions.csv").write_text("\n".join(questions) + "\n")
    (folder / "answers.csv").write_text("\n".join(answers) + "\n")
    machine = []
    for row in questions[1:]:
        number, sentence, *choices = row.split(",")
        machine += [f"{number}{'abcde'[i]}) {sentence.replace('_____', f'[{c}]')}" for i, c in enumerate(choices)]
    (folder / "machine.txt").write_text("\n".join(machine) + "\n")
    rows = [row.split(",") for row in questions[1:]]
    objects = [{"id": int(id), "question": text, "choices": choices, "answer": "a"} for id, text, *choices in rows]
    objects[0] |= {"question": "_____ the _____ .", "choices": [WORDS[:2], WORDS[2:4], f"{WORDS[4]} zebra; zebra"]}
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, objects)) + "\n")


def splits(folder: Path) -> dict[str, Any]:
    """Return the arguments of `prepare` for the small tokenized text."""
    return {split: folder / f"{split}.txt" for split in SIZES}


def _make_stores(folder: Path) -> None:
    from ncelm.text.prepare import prepare, prepare_part

    prepare(**splits(folder), out=folder / "store", boundary="sentence", workers=1)
    prepare(**splits(folder), out=folder / "stream", boundary="stream", workers=1, min_count=10, lowercase=True)
    long = {"train": folder / "long.txt", "valid": folder / "valid.txt"}
    prepare(**long, out=folder / "long", boundary="sentence", workers=1)
    options = {"punkt": "train", "valid_sentences": 20, "test_sentences": 10, "workers": 1}
    prepare([folder / "prose.txt"], out=folder / "prose", **options)
    works = folder / "texts"
    works.mkdir()
    for number in range(TAR_TEXTS):
        (works / f"{number}.txt").write_text("*** START OF THE EBOOK ***\n\n" + prose(20 + number))
    prepare([works], out=folder / "works", gutenberg=True, **options)
    (folder / "parts").mkdir()
    for number in (1, 2):
        prepare_part(number, 2, out=folder / "parts" / "joined", **splits(folder), workers=1)


def _make_runs(corpus: Corpus) -> None:
    from ncelm.arpa import export_arpa, import_arpa
    from ncelm.combine import blend, mix
    from ncelm.models.fit_normalizer import fit_normalizer
    from ncelm.models.lsa import train_lsa
    from ncelm.models.ngram.estimate import train_ngram
    from ncelm.models.pmi import train_pmi
    from ncelm.training.loop import train

    folder = corpus.folder
    store = folder / "store"
    for name, options in corpus.neural.items():
        train(store, folder / name, threads=1, **options)
    for name in WITH_NORMALIZER:
        fit_normalizer(folder / name, units=7, contexts=300, threads=1)
    train(folder / "stream", folder / "of-stream", threads=1, **NEURAL["log-bilinear"])
    train_ngram(store, folder / "ngram", order=3)
    train_lsa(store, folder / "lsa", dim=5)
    train_pmi(store, folder / "pmi")
    export_arpa(folder / "ngram", folder / "ngram.arpa")
    import_arpa(folder / "ngram.arpa", folder / "imported")
    import_arpa(folder / "ngram.arpa", folder / "imported-like", like=store)
    for name, parts in PARTS.items():
        paths = [folder / part for part in parts]
        if name == "ensemble":
            blend(paths, folder / name, threads=1)
        else:
            mix(paths, folder / name, weights=[0.25, 0.75], threads=1)
        _make_relative(folder / name)


def _make_relative(run: Path) -> None:
    """Replace the absolute paths of the components of a run, so that it can be copied together with them."""
    from ncelm.io.files import write_json

    content = json.loads((run / "config.json").read_text())
    for part in content["parts"]:
        part["path"] = f"../{Path(part['path']).name}"
    del content["checksum"]
    write_json(run / "config.json", content)


class Stop(Exception):  # noqa: N818
    """Ends a training run from its progress callback."""


def stopped_name(name: str) -> str:
    """Return the name of the run that was stopped within its second epoch."""
    return f"stopped-{name}"


def _make_stopped_runs(corpus: Corpus) -> None:
    """Make runs with a checkpoint within the second epoch."""
    from ncelm.training.loop import Progress, train

    for name, options in corpus.neural.items():
        seen = 0

        def stop(at: Progress) -> None:
            nonlocal seen
            seen += at.epoch == 2 and at.metrics is None
            if seen == 2:  # the first call of this epoch has been followed by a checkpoint
                raise Stop

        try:
            train(
                corpus.folder / "long",
                corpus.folder / stopped_name(name),
                threads=1,
                checkpoint_minutes=0,
                progress=stop,
                **options,
            )
        except Stop:
            continue
        raise AssertionError(f"the run {name} has only one call of the engine per epoch")
