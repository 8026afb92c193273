"""The driver: distributes time among families of attacks, runs attempts in a worker, and reports."""

import argparse
import contextlib
import json
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.hostile import corpus as corpora
from tests.hostile.attacks import FAMILIES
from tests.hostile.commands import signal_all
from tests.hostile.outcome import BROKEN, HARMLESS, REJECTED, VIOLATION, Family
from tests.hostile.report import table, write_report

BATCH_SECONDS = 2.0  # of one family, before it is the turn of another
PROGRESS_SECONDS = 30.0
START_SECONDS = 180.0  # of a worker, which may have to compile kernels
LONGEST_DETAIL = 3000  # characters
SHOWN = 300
MAX_ALIKE = 3  # violations that look alike and whose files are kept
ROOT = Path(__file__).parents[2]


@dataclass
class Tally:
    """What happened in the attempts of a family."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def attempts(self) -> int:
        """The number of attempts."""
        return sum(self.outcomes.values())


@dataclass(frozen=True)
class Found:
    """A violation."""

    family: str
    number: int
    detail: str

    @property
    def summary(self) -> str:
        """The first line of the detail."""
        return (self.detail.splitlines() or [""])[0][:SHOWN]

    @property
    def signature(self) -> tuple[str, str]:
        """What violations with the same cause have in common, roughly."""
        without_values = re.sub(r"/\S+|'[^']*'|\"[^\"]*\"|[\d.e+-]+", "_", self.summary)
        return self.family, without_values[:70]


class Worker:
    """A worker process. It is started again after a crash or a hang."""

    def __init__(self, corpus: corpora.Corpus, folder: Path) -> None:
        self._corpus, self._folder, self._process = corpus, folder, None
        self.log = folder / "worker.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def attempt_folder(self) -> Path:
        """The folder of the current attempt."""
        return self._folder / "attempt"

    def run(self, family: Family, number: int, seed: int) -> tuple[str, str]:
        """Run an attempt; return its outcome and a detail."""
        self._send({"family": family.name, "number": number, "seed": seed})
        if self._receive(START_SECONDS) is None:
            raise RuntimeError(f"the worker could not be started: {self._ended('when it was started')[1]}")
        answer = self._receive(family.timeout)
        if answer is None:
            return self._ended(f"or took more than {family.timeout:g} s")
        if answer["outcome"] == BROKEN:
            raise RuntimeError(f"{family.name}:{number}: the harness is wrong: {answer['detail']}")
        return answer["outcome"], answer["detail"][:LONGEST_DETAIL]

    def stop(self) -> None:
        """End the worker and all processes that it has started."""
        if self._process is None:
            return
        self._kill()
        self._process = None

    def _kill(self) -> None:
        signal_all(self._process, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _send(self, request: dict[str, Any]) -> None:
        if self._process is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.hostile.worker", self._corpus.folder, self.attempt_folder],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                    cwd=ROOT,
                    start_new_session=True,
                )
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def _receive(self, timeout: float) -> dict[str, Any] | None:
        """Return the next message; None if there is none in time, or if the worker has ended."""
        # the pipe has no buffer in this process: select sees all that was not read
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        line = self._process.stdout.readline() if ready else b""
        return json.loads(line) if line.endswith(b"\n") else None

    def _ended(self, how: str) -> tuple[str, str]:
        """Return the outcome of an attempt that ended the worker or did not end itself."""
        try:
            code: int | None = self._process.wait(1)
        except subprocess.TimeoutExpired:
            code = None
            self._process.send_signal(signal.SIGABRT)  # faulthandler then writes the stacks to the log
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        self.stop()
        log = self.log.read_text(errors="replace")[-LONGEST_DETAIL:]
        crash = (
            f"crash: the worker ended with code {code}"
            if code is not None
            else f"hang: the worker did not answer, {how}"
        )
        return VIOLATION, f"{crash}\n{log}"


class Attack:
    """An attack: a number of minutes, all families or some of them."""

    def __init__(self, families: list[Family], seed: int, worker: Worker, keep: Path) -> None:
        self.families, self.seed, self.worker, self.keep = families, seed, worker, keep
        self.tallies = {family.name: Tally() for family in families}
        self.found: list[Found] = []

    def run(self, seconds: float) -> None:
        """Attack until the time is over. The family that has had the least of its share is the next one."""
        end, shown = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < end:
            family = min(self.families, key=lambda each: self.tallies[each.name].seconds / each.share)
            self.run_batch(family, end)
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                print(f"{max(end - shown, 0) / 60:.1f} minutes left: {self.summary()}", flush=True)

    def run_batch(self, family: Family, end: float = float("inf"), attempts: int = sys.maxsize) -> None:
        """Run attempts of a family for a few seconds."""
        tally = self.tallies[family.name]
        began = time.monotonic()
        for _ in range(attempts):
            self.run_one(family, tally.attempts)
            now = time.monotonic()
            if attempts == sys.maxsize and (now - began > BATCH_SECONDS or now > end):
                break
        tally.seconds += time.monotonic() - began

    def run_one(self, family: Family, number: int) -> tuple[str, str]:
        """Run one attempt, and keep its files if it is a violation."""
        outcome, detail = self.worker.run(family, number, self.seed)
        self.tallies[family.name].outcomes[outcome] += 1
        if outcome == VIOLATION:
            found = Found(family.name, number, detail)
            self.found.append(found)
            alike = sum(each.signature == found.signature for each in self.found)
            if alike <= MAX_ALIKE:
                print(f"VIOLATION {family.name}:{number}: {found.summary}", flush=True)
                self._keep_files(family.name, number, detail)
        return outcome, detail

    def _keep_files(self, family: str, number: int, detail: str) -> None:
        folder = self.keep / f"seed-{self.seed}-{family}-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "detail.txt").write_text(f"--seed {self.seed} --only {family}:{number}\n\n{detail}\n")
        if (self.worker.attempt_folder / "files").exists():
            shutil.copytree(
                self.worker.attempt_folder / "files",
                folder / "files",
                symlinks=True,
                copy_function=_copy_if_small,
                ignore_dangling_symlinks=True,
            )

    def summary(self) -> str:
        """Return one line about all attempts so far."""
        total: Counter[str] = Counter()
        for tally in self.tallies.values():
            total += tally.outcomes
        counts = ", ".join(f"{total[name]:,} {name}" for name in (REJECTED, HARMLESS))
        return f"{total.total():,} attempts, {counts}, {total[VIOLATION]:,} violations"


def _copy_if_small(source: str, target: str) -> None:
    """Copy a regular file that is not larger than some megabytes."""
    path = Path(source)
    if path.is_file() and path.stat().st_size < 10 << 20:
        shutil.copyfile(source, target)


def main(arguments: list[str] | None = None) -> int:
    """Run an attack; return 1 if it found a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description="Attack ncelm.")
    parser.add_argument("--minutes", type=float, default=1.0, help="duration of the attack")
    parser.add_argument("--seed", type=int, default=0, help="seed of all attempts")
    parser.add_argument("--families", default="", help="names of families, separated by commas; all by default")
    parser.add_argument("--only", default="", metavar="FAMILY:NUMBER", help="run one attempt again")
    parser.add_argument("--report", type=Path, help="Markdown file to which the result is added")
    parser.add_argument("--keep", type=Path, default=Path("build/attack"), help="folder for the files of violations")
    parser.add_argument("--soak", action="store_true", help="look for leaks in one long-lived process instead")
    options = parser.parse_args(arguments)
    names = (
        options.only.split(":")[:1] if options.only else options.families.split(",") if options.families else FAMILIES
    )
    if unknown := [name for name in names if name not in FAMILIES]:
        parser.error(f"unknown families {', '.join(unknown)}: there are {', '.join(FAMILIES)}")
    families = [FAMILIES[name] for name in names]
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    try:
        print("making stores and runs of every kind", flush=True)
        corpus = corpora.make(folder / "corpus")
        if options.soak:
            from tests.hostile.soak import soak

            return soak(corpus, folder / "soak", 60 * options.minutes, options.seed)
        with Worker(corpus, folder / "worker") as worker:
            attack = Attack(families, options.seed, worker, options.keep)
            if options.only:
                print(*attack.run_one(families[0], int(options.only.split(":")[1])), sep="\n")
            else:
                attack.run(60 * options.minutes)
        print(table(attack), attack.summary(), sep="\n")
        if options.report:
            write_report(options.report, attack, options.minutes)
        return 1 if attack.found else 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
