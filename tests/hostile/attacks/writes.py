"""Faults of write calls: a full disk, an input/output error, short writes, at the n-th call."""

import builtins
import contextlib
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from tests.hostile.corpus import Corpus, splits, still_clocks, stopped_name
from tests.hostile.outcome import HARMLESS, REJECTED, Family, Place, Violation, without_attack
from tests.hostile.tools import changed_files, check_content, check_no_partials, content_of

import ncelm
from ncelm.errors import NcelmError
from ncelm.models.vectors import export_vectors

ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES)
PATCHED = ("fsync", "replace", "rename", "mkdir")  # of the module os


class Faults:
    """Counts write calls, and lets one of them fail: once, or, as on a full disk, all later ones too."""

    def __init__(
        self, at: int | None = None, number: int = errno.ENOSPC, lasting: bool = False, short: int = 0
    ) -> None:
        self.calls, self.at, self.number, self.lasting, self.short = 0, at, number, lasting, short
        self.failed = False

    def call(self) -> bool:
        """Count a call; return whether it fails."""
        self.calls += 1
        fails = self.at is not None and (self.calls == self.at or (self.lasting and self.calls > self.at))
        self.failed |= fails
        return fails

    def error(self) -> OSError:
        """Return the error of a call that fails."""
        return OSError(self.number, os.strerror(self.number))

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Let files that are opened in the block, and functions of `os`, have these faults."""
        faults, real_open, folder_of_file = self, io.open, io.FileIO

        class FaultyFile(folder_of_file):
            def write(self, data: Any) -> int | None:
                if not faults.call():
                    return super().write(data)
                if faults.short and len(memoryview(data).cast("B")) > faults.short:
                    faults.at, faults.short = faults.calls + 1, 0  # the rest fails
                    return super().write(memoryview(data).cast("B")[:1])
                raise faults.error()

        def faulty_open(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
            if "b" not in mode or not set(mode) & set("wxa+") or not isinstance(file, str | Path):
                return real_open(file, mode, buffering, *more, **options)
            return io.BufferedWriter(FaultyFile(file, mode.replace("b", "")), 1 << 13)

        def faulty(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                if faults.call():
                    raise faults.error()
                return function(*arguments, **options)

            return call

        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(io, "open", faulty_open))
            stack.enter_context(mock.patch.object(builtins, "open", faulty_open))
            for name in PATCHED:
                stack.enter_context(mock.patch.object(os, name, faulty(getattr(os, name))))
            yield


def operations(corpus: Corpus) -> dict[str, Callable[[Path], Any]]:
    """Return everything that writes files, as functions of the path of the output."""
    folder = corpus.folder
    store = folder / "store"
    prose = {"punkt": "train", "valid_sentences": 20, "workers": 1}
    found: dict[str, Callable[[Path], Any]] = {
        "prepare": lambda out: ncelm.prepare(**splits(folder), out=out, workers=1),
        "prepare prose": lambda out: ncelm.prepare([folder / "prose.txt"], out=out, **prose),
        "prepare works": lambda out: ncelm.prepare([folder / "texts"], out=out, gutenberg=True, **prose),
        "ngram": lambda out: ncelm.train_ngram(store, out, order=3),
        "lsa": lambda out: ncelm.train_lsa(store, out, dim=5),
        "pmi": lambda out: ncelm.train_pmi(store, out),
        "mix": lambda out: ncelm.mix([folder / "ngram", folder / "tied"], out, weights=[0.5, 0.5], threads=1),
        "blend": lambda out: ncelm.blend([folder / "ngram", folder / "lsa"], out, threads=1),
        "to-arpa": lambda out: ncelm.export_arpa(folder / "ngram", out),
        "to-arpa.gz": lambda out: ncelm.export_arpa(folder / "ngram", out),
        "from-arpa": lambda out: ncelm.import_arpa(folder / "ngram.arpa", out),
        "normalizer": lambda out: ncelm.fit_normalizer(out, store, units=3, contexts=50, threads=1),
        "export": lambda out: export_vectors(ncelm.load(folder / "tied"), out, "word2vec"),
    }
    for name, options in corpus.neural.items():
        found[f"train {name}"] = _training(store, options)
        found[f"resume {name}"] = _training(folder / "long", options)
    return found


def _training(store: Path, options: dict[str, Any]) -> Callable[[Path], Any]:
    return lambda out: ncelm.train(store, out, threads=1, resume=True, checkpoint_minutes=0, **options)


def _output(name: str, corpus: Corpus, folder: Path) -> Path:
    """Return the output of an operation in a folder, where a stopped run is copied if it is to be resumed."""
    if name.startswith("resume "):
        stopped = stopped_name(name.removeprefix("resume "))
        corpus.copy([stopped], folder)
        return folder / stopped
    if name == "normalizer":
        corpus.copy(["tied"], folder)
        return folder / "tied"
    suffixes = {"to-arpa": ".arpa", "to-arpa.gz": ".arpa.gz", "export": ".txt"}
    return folder / f"out{suffixes.get(name, '')}"


@cache
def _without_faults(corpus: Corpus, name: str) -> tuple[dict[str, str], int]:
    """Return what an operation makes without faults, and the number of its write calls."""
    folder = corpus.folder.parent / "undisturbed" / f"writes {name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    out, faults = _output(name, corpus, folder), Faults()
    with without_attack(), still_clocks(), faults.active():
        operations(corpus)[name](out)
    return content_of(out), faults.calls


def write_fault(random: Random, place: Place) -> str:
    """Let a write call fail: an error, nothing half written, and the operation can be repeated."""
    name = random.choice(sorted(operations(place.corpus)))
    expected, calls = _without_faults(place.corpus, name)
    at = random.randrange(1, calls + 1)
    faults = Faults(at, random.choice(ERRORS), random.random() < 0.5, random.choice((0, 0, 1)))
    out = _output(name, place.corpus, place.folder)
    operation, what = operations(place.corpus)[name], f"{name}, write call {at} of {calls}"
    what += (
        f" ({errno.errorcode[faults.number]}{', lasting' if faults.lasting else ''}{', short' if faults.short else ''})"
    )
    outcome = HARMLESS
    with still_clocks(), faults.active():
        try:
            operation(out)
        except NcelmError as error:
            outcome = REJECTED
            if "\n" in str(error) or "ncelm-partial" in str(error):
                raise Violation(f"{what}: the message is not one line about a file of the user: {error}") from error
        except Exception as error:
            raise Violation(f"{what}: {type(error).__name__}: {error}") from error
    check_no_partials(place.folder, what)
    if outcome == HARMLESS:
        if changed := changed_files(out, expected):
            raise Violation(f"{what}: success, with other content of {', '.join(changed)}")
        return HARMLESS
    if not name.startswith(("train", "resume", "normalizer")) and (out.exists() or out.is_symlink()):
        raise Violation(f"{what}: an error, and the output exists")
    with still_clocks():
        try:
            operation(out)
        except NcelmError as error:
            raise Violation(f"{what}: it cannot be repeated: {error}") from error
    check_content(out, expected, f"{what}, repeated")
    check_no_partials(place.folder, what)
    return outcome


FAMILIES = [Family("write-faults", write_fault, share=5, timeout=120)]
