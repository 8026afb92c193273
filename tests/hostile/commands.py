"""The long commands of ncelm, for attacks on processes: what they need, what they make, how they are repeated."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.hostile.corpus import Corpus
from tests.hostile.outcome import Violation, without_attack
from tests.hostile.tools import check_command, content_of

LONG_EPOCHS = 4
TIMEOUT = 120.0  # seconds of one command
EPOCHS = {"importance": 2}


@dataclass(frozen=True)
class Command:
    """A command line. `{out}` stands for its output, `{in}` for the folder of the corpus."""

    name: str
    words: tuple[str, ...]
    output: str = "out"
    resumes: bool = False  # `train` and `fit`: repeated with --resume

    def line(self, corpus: Corpus, folder: Path, again: bool = False) -> list[str]:
        """Return the command line that makes the output in a folder."""
        names = {"in": str(corpus.folder), "out": str(folder / self.output)}
        words = [word.format(**names) for word in self.words]
        return [*words, *(["--resume"] if self.resumes and again else [])]


def commands(corpus: Corpus) -> list[Command]:
    """Return all long commands."""
    found = [
        Command("prepare", ("prepare", "--train", "{in}/long.txt", "--valid", "{in}/valid.txt", "--out", "{out}", "--workers", "2")),  # noqa: E501
        Command("prepare prose", ("prepare", "{in}/texts", "--punkt", "train", "--out", "{out}", "--workers", "2")),
        Command("prepare works", ("prepare", "{in}/texts", "--gutenberg", "--punkt", "train", "--out", "{out}", "--workers", "1")),  # noqa: E501
        Command("ngram train", ("ngram", "train", "{in}/long", "--order", "5", "--out", "{out}")),
        Command("fit", ("fit", "--train", "{in}/long.txt", "--valid", "{in}/valid.txt", "--out", "{out}", "--threads", "1", "--workers", "2"), resumes=True),  # noqa: E501
        Command("lsa", ("lsa", "train", "{in}/long", "--dim", "20", "--out", "{out}")),
        Command("pmi", ("pmi", "train", "{in}/long", "--out", "{out}")),
        Command("mix", ("mix", "{in}/ngram", "{in}/log-bilinear", "{in}/tied", "--out", "{out}")),
        Command("blend", ("blend", "{in}/ngram", "{in}/lsa", "{in}/pmi", "{in}/two-sided", "--out", "{out}")),
        Command("to-arpa", ("ngram", "to-arpa", "{in}/ngram", "{out}"), "out.arpa"),
        Command("to-arpa.gz", ("ngram", "to-arpa", "{in}/ngram", "{out}"), "out.arpa.gz"),
        Command("from-arpa", ("ngram", "from-arpa", "{in}/ngram.arpa", "--out", "{out}")),
        Command("filter", ("filter", "{in}/ngram", "{in}/long.txt", "--out", "{out}", "--workers", "2"), resumes=True),
        Command("export", ("export", "{in}/log-bilinear", "{out}", "--to", "word2vec-binary"), "out.bin"),
    ]  # fmt: skip
    for name, options in corpus.neural.items():
        flags = {"architecture": "--model"}
        words = ["train", "{in}/long", "--out", "{out}", "--threads", "1", "--checkpoint-minutes", "0.002"]
        for option, value in ({**options, "epochs": EPOCHS.get(name, LONG_EPOCHS)}).items():
            flag = flags.get(option, "--" + option.replace("_", "-"))
            words += [flag] if value is True else [flag, str(value)]
        found.append(Command(f"train {name}", tuple(words), resumes=True))
    return found


def environment() -> dict[str, str]:
    """Return the environment of commands: temporary files go to the folder of the attempt."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": tempfile.gettempdir()}


def start(
    words: list[str], program: list[str] | None = None, limits: dict[int, int] | None = None
) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, with limits of resources."""

    def reset() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job ignores it
        for kind, value in (limits or {}).items():
            resource.setrlimit(kind, (value, value))

    return subprocess.Popen(
        [*(program or [sys.executable, "-m", "ncelm"]), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=reset,
        env=environment(),
    )


def session_members(process: subprocess.Popen[str]) -> list[int]:
    """Return the processes of the session that a command leads: those that it has started, and no others."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == process.pid and state != "Z":
                    members.append(int(entry.name))
    return members


def signal_all(process: subprocess.Popen[str], number: int) -> None:
    """Send a signal to a command and all processes that it has started, each by its id.

    Group ids are not used: the id of a group that has ended may be that of another one by now.
    """
    for pid in session_members(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def finish(process: subprocess.Popen[str], what: str, timeout: float = TIMEOUT) -> tuple[int, str, str]:
    """Wait for a command; return its exit code and output. A hang is a violation."""
    try:
        out, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        signal_all(process, signal.SIGKILL)
        process.communicate()
        raise Violation(f"{what}: no end after {timeout:g} s") from None
    return process.returncode, out, errors


def run(words: list[str], what: str) -> None:
    """Run a command that must succeed."""
    code, _, errors = finish(start(words), what)
    check_command(code, errors, (0,))


def check_group_ended(process: subprocess.Popen[str], what: str, seconds: float = 20.0) -> None:
    """Raise Violation if processes of a command are still running after it has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not session_members(process):
            return
        time.sleep(0.05)
    signal_all(process, signal.SIGKILL)
    raise Violation(f"{what}: processes are still running {seconds:g} s after the command has ended")


@dataclass(frozen=True)
class Undisturbed:
    """What a command makes, and how long it takes."""

    content: dict[str, str]
    seconds: float


@cache
def undisturbed(corpus: Corpus, command: Command) -> Undisturbed:
    """Run a command without any attack, once per attack."""
    folder = corpus.folder.parent / "undisturbed" / command.name.replace(" ", "-")
    record = folder / "seconds.json"
    if not record.exists():
        folder.mkdir(parents=True)
        began = time.monotonic()
        with without_attack():
            run(command.line(corpus, folder), command.name)
        record.write_text(json.dumps(time.monotonic() - began))
    return Undisturbed(content_of(folder / command.output), json.loads(record.read_text()))
