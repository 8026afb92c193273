"""The worker: a process that runs attempts and reports each, so that a crash is attributed to the attempt."""

import faulthandler
import json
import os
import resource
import shutil
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import IO, Any

from tests.hostile.corpus import HAS_TORCH, Corpus
from tests.hostile.outcome import BROKEN, HARMLESS, REJECTED, VIOLATION, Broken, Family, Place, Violation, random_of

MEMORY = 4 << 30  # bytes of address space that attempts may take in addition
OF_TORCHRUN = ("torchelastic_", "torchinductor_")  # not of ncelm
GROWTH = 600 << 20  # bytes of resident memory that one attempt may take


def run_attempt(family: Family, number: int, seed: int, corpus: Corpus, folder: Path) -> tuple[str, str]:
    """Run an attempt in a new folder; return its outcome and a detail: the message of an error."""
    from ncelm.errors import NcelmError

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    own, temporary = folder / "files", folder / "tmp"
    own.mkdir()
    temporary.mkdir()
    former, tempfile.tempdir = tempfile.tempdir, str(temporary)
    peak = peak_memory()
    detail = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = family.attempt(random_of(seed, family.name, number), Place(corpus, own))
    except NcelmError as error:
        outcome, detail = REJECTED, str(error)
        if "\n" in detail or not detail.strip():
            outcome, detail = VIOLATION, f"the message of an error is not one line: {detail!r}"
    except Broken:
        return BROKEN, traceback.format_exc()
    except Violation as violation:
        outcome, detail = VIOLATION, str(violation)
    except (Exception, KeyboardInterrupt) as error:
        outcome, detail = VIOLATION, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    finally:
        tempfile.tempdir = former
    if outcome not in (REJECTED, HARMLESS, VIOLATION):
        raise AssertionError(f"{family.name} returned {outcome!r}")
    if outcome != VIOLATION:
        if left := leftovers(folder):
            return VIOLATION, f"left behind: {', '.join(left)}"
        if peak_memory() - peak > GROWTH:
            return VIOLATION, f"took {(peak_memory() - peak) >> 20} MB of memory"
    return outcome, detail


def leftovers(folder: Path) -> list[str]:
    """Return the temporary files in the folder of an attempt."""
    left = [*folder.glob("files/**/*.ncelm-partial"), *folder.glob("files/**/.*.ncelm-partial"), *folder.glob("tmp/*")]
    left = [path for path in left if not path.name.startswith(OF_TORCHRUN)]
    return sorted({str(path.relative_to(folder)) for path in left})


def peak_memory() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    """Run the attempts that standard input asks for; report them to standard output."""
    from tests.hostile.attacks import FAMILIES

    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what attempts print goes to the log
    faulthandler.enable()
    if HAS_TORCH:
        import torch

        torch.set_num_threads(1)
    corpus, folder = Corpus(Path(sys.argv[1])), Path(sys.argv[2])
    _limit_memory(corpus)
    for line in sys.stdin:
        request = json.loads(line)
        family = FAMILIES[request["family"]]
        _send(output, start=request["number"])
        outcome, detail = run_attempt(family, request["number"], request["seed"], corpus, folder)
        _send(output, outcome=outcome, detail=detail)


def _limit_memory(corpus: Corpus) -> None:
    """Limit the address space, after everything that maps much of it has been loaded."""
    from tests.hostile.answers import answer_of

    for run in corpus.runs:
        answer_of(corpus.folder / run)
    with Path("/proc/self/statm").open() as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))


def _send(output: IO[str], **message: Any) -> None:
    output.write(json.dumps(message) + "\n")


if __name__ == "__main__":
    main()
