"""Commands that are killed at random moments, and repeated or resumed until they are done."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from tests.hostile.commands import (
    TIMEOUT,
    Command,
    check_group_ended,
    commands,
    environment,
    finish,
    run,
    signal_all,
    start,
    undisturbed,
)
from tests.hostile.corpus import HAS_TORCH, Corpus
from tests.hostile.mutations import ArrayFile
from tests.hostile.outcome import HARMLESS, Broken, Family, Place, Violation
from tests.hostile.tools import changed_files, check_content, check_no_partials, error_lines

SIGNALS = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
KILLS = (1, 1, 2, 3)


@cache
def startup_seconds() -> float:
    """Return how long it takes until ncelm handles signals: before that, Python ends without any cleaning up."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "ncelm", "--version"], check=True, capture_output=True)
    return max(3 * (time.monotonic() - began), 0.3)  # other processes may slow it down


def cpu_seconds(process: "subprocess.Popen[str]") -> float:
    """Return the CPU time of a process so far, or infinity where it cannot be read. It does not depend on the load."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.inf
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def killed_command(random: Random, place: Place) -> str:
    """Kill a command at random moments, repeat it, and compare the result with that of an undisturbed one."""
    command = random.choice(commands(place.corpus))
    reference = undisturbed(place.corpus, command)
    out = place.folder / command.output
    startup_seconds()
    story = [command.name]
    for _ in range(random.choice(KILLS)):
        if out.exists() and not command.resumes:
            break
        number = random.choice(sorted(SIGNALS))
        # not before Python has been started: nothing happens there
        moment = random.uniform(0.0, 1.05) * reference.seconds
        to_group = random.random() < 0.5
        story.append(f"{number.name} after {moment:.2f} s{' to the group' if to_group else ''}")
        _kill(command, place, number, moment, to_group, ", ".join(story))
    what = ", ".join(story)
    if not out.exists() or command.resumes:
        try:
            run(command.line(place.corpus, place.folder, again=True), what)
        except Violation as violation:
            raise Violation(f"{what}: it cannot be repeated: {violation}") from None
    check_content(out, reference.content, what)
    check_no_partials(place.folder, what)
    if unexpected := sorted({path.name for path in place.folder.iterdir()} - {command.output}):
        raise Violation(f"{what}: left behind: {unexpected}")
    return HARMLESS


def _kill(command: Command, place: Place, number: signal.Signals, moment: float, to_group: bool, what: str) -> None:
    """Start a command, send it a signal, and check how it ends."""
    began = time.monotonic()
    process = start(command.line(place.corpus, place.folder, again=True))
    try:
        process.communicate(timeout=moment)
    except subprocess.TimeoutExpired:
        early = cpu_seconds(process) < 0.05  # until ncelm handles signals, Python takes half of it
        if to_group:
            signal_all(process, number)
        else:
            process.send_signal(number)
    else:
        early = False
    early = early or time.monotonic() - began < startup_seconds()
    code, _, errors = finish(process, what, 60.0)
    check_group_ended(process, what)
    semaphores = sorted(Path("/dev/shm").glob(f"sem.loky-{process.pid}-*"))
    for path in semaphores:  # of the process that was started here
        path.unlink(missing_ok=True)
    if semaphores and not (number == signal.SIGKILL and to_group):  # the resource tracker was killed, too
        raise Violation(f"{what}: left behind: {len(semaphores)} semaphores")
    if number == signal.SIGKILL or code == 0:
        if code not in (0, -9):
            raise Violation(f"{what}: exit code {code}: {errors[-1000:]}")
        return
    if code != SIGNALS[number]:
        if early and code in (-number, 1, 130, 143):  # Python itself was being started
            return
        out = place.folder / command.output
        if code == -number and out.exists() and not changed_files(out, undisturbed(place.corpus, command).content):
            return  # Python itself was being ended, after the work
        raise Violation(f"{what}: exit code {code} instead of {SIGNALS[number]}: {errors[-1000:]}")
    lines = error_lines(errors)
    if "Traceback" in errors or not lines or not lines[-1].startswith("ncelm: "):
        if early:
            return
        raise Violation(f"{what}: standard error is {errors[-1500:]!r}")
    check_no_partials(place.folder, what)
    if not command.resumes and (place.folder / command.output).exists():
        check_content(place.folder / command.output, undisturbed(place.corpus, command).content, what)


# -- several workers -------------------------------------------------------------------------------------------------

TORCHRUN = (
    *("train", "{in}/long", "--out", "{out}", "--dim", "4", "--context", "2", "--epochs", "4", "--noise-samples", "3"),
    *("--batch-size", "200", "--checkpoint-minutes", "0.002"),
    *("--no-shared-noise", "--learning-rate", "0.1", "--patience", "0"),  # rounding errors stay small
)


def _torchrun(corpus: Corpus, out: str, *more: str) -> subprocess.Popen[str]:
    words = [word.format(**{"in": corpus.folder, "out": out}) for word in TORCHRUN]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ncelm"]
    return subprocess.Popen(
        [sys.executable, *launcher, *words, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env=environment(),
    )


@cache
def distributed_model(corpus: Corpus) -> tuple[dict[str, np.ndarray], float]:
    """Return the model that two workers train without an attack, and the seconds it takes."""
    folder = corpus.folder.parent / "undisturbed" / "torchrun"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    code, _, errors = finish(_torchrun(corpus, str(folder / "out")), "torchrun")
    if code:
        raise Broken(f"torchrun without an attack: exit code {code}: {errors[-1500:]}")
    seconds = time.monotonic() - began
    return ArrayFile.parse((folder / "out" / "model.safetensors").read_bytes()).arrays, seconds


def killed_torchrun(random: Random, place: Place) -> str:
    """Kill two workers, or one of them, at a random moment, and resume them."""
    expected, seconds = distributed_model(place.corpus)
    out = place.folder / "out"
    number = random.choice(sorted(SIGNALS))
    moment = random.uniform(0.2, 1.0) * seconds
    what = f"torchrun, {number.name} after {moment:.1f} s"
    process = _torchrun(place.corpus, str(out))
    try:
        process.communicate(timeout=moment)
    except subprocess.TimeoutExpired:
        if number == signal.SIGKILL or random.random() < 0.5:
            signal_all(process, number)
        else:
            process.send_signal(number)
    finish(process, what, 60.0)
    check_group_ended(process, what, 40.0)
    process = _torchrun(place.corpus, str(out), "--resume")
    code, _, errors = finish(process, what, TIMEOUT)
    if code:
        raise Violation(f"{what}: it cannot be resumed: {errors[-1500:]}")
    found = ArrayFile.parse((out / "model.safetensors").read_bytes()).arrays
    for name, array in expected.items():  # up to rounding: what the workers owe each other is not in a checkpoint
        if found[name].shape != array.shape or not np.allclose(found[name], array, atol=0.1):
            raise Violation(f"{what}: another model: {name} differs by {np.abs(found[name] - array).max()}")
    check_no_partials(place.folder, what)
    if unexpected := sorted({path.name for path in out.iterdir()} - FILES):
        raise Violation(f"{what}: left behind: {unexpected}")
    return HARMLESS


FILES = {"config.json", "vocab.txt", "model.safetensors", "checkpoint.safetensors", "metrics.jsonl"}

FAMILIES = [Family("kills", killed_command, share=10, timeout=600, processes=True)]
if HAS_TORCH:
    FAMILIES.append(Family("torchrun", killed_torchrun, share=3, timeout=600, processes=True))
