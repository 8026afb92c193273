"""Functions that several families share: command lines, and the content of folders without clock times."""

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.hostile.mutations import ArrayFile
from tests.hostile.outcome import HARMLESS, REJECTED, Violation

CLOCK_FIELDS = (
    *("seconds", "words_per_second", "seconds_at_epoch", "validation_seconds", "evaluation_seconds"),
    *("compile_seconds", "metrics_bytes", "metrics_sha256", "checksum"),
)


def command(arguments: Sequence[object]) -> tuple[int, str, str]:
    """Run a command line in this process; return its exit code, standard output and standard error."""
    from ncelm.cli.main import main

    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), errors.getvalue()


PROGRESS = re.compile(r" \[\d+:\d\d<")  # of a progress bar in a log: elapsed and remaining time


def error_lines(errors: str) -> list[str]:
    """Return the lines of standard error without the message that kernels are being compiled."""
    return [
        line for line in errors.splitlines() if not line.startswith("ncelm: compiling") and not PROGRESS.search(line)
    ]


def check_command(code: int, errors: str, codes: Sequence[int] = (0, 2)) -> str:
    """Return the outcome of a command from its exit code and standard error; raise Violation if they are wrong."""
    lines = error_lines(errors)
    if "Traceback" in errors:
        raise Violation(f"a traceback: {errors[-1500:]}")
    if code not in codes:
        raise Violation(f"exit code {code}: {errors[-1000:]}")
    if code == 0:
        if not all(line.startswith("ncelm: ") for line in lines):  # warnings
            raise Violation(f"a line that does not start with 'ncelm: ': {errors[-1000:]}")
        return HARMLESS
    # warnings may precede the error
    if not lines or not all(line.startswith("ncelm: ") for line in lines):
        raise Violation(f"exit code {code}, and not one line that starts with 'ncelm: ': {errors[-1000:]!r}")
    return REJECTED


def content_of(path: Path) -> dict[str, str]:
    """Return a digest of each file of a run, a store or a file, without clock times."""
    if path.is_file():
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    found = {}
    for file in sorted(path.rglob("*")):
        if file.is_file():
            found[str(file.relative_to(path))] = hashlib.sha256(_without_clocks(file)).hexdigest()
    return found


def _without_clocks(path: Path) -> bytes:
    content = path.read_bytes()
    if path.name in ("fit.json", "filter.json"):
        return _dumps(json.loads(content)).encode()
    if path.name == "report.html":  # has times in many places
        return content.partition(b"\n")[0]
    if path.suffix == ".json":  # other blanks are no other content
        return json.dumps(json.loads(content), sort_keys=True).encode()
    if path.name == "metrics.jsonl":
        return "\n".join(_dumps(json.loads(line)) for line in content.splitlines()).encode()
    if path.name == "checkpoint.safetensors":
        file = ArrayFile.parse(content)
        arrays = [(name, array.tobytes()) for name, array in sorted(file.arrays.items())]
        return repr((arrays, _dumps(file.header))).encode()
    return content


def _dumps(document: Any) -> str:
    return json.dumps(_dropped(document), sort_keys=True)


def _dropped(document: Any) -> Any:
    """Return a JSON document without the fields that depend on clocks."""
    if isinstance(document, dict):
        return {key: _dropped(value) for key, value in document.items() if key not in CLOCK_FIELDS}
    return document


def changed_files(path: Path, expected: dict[str, str]) -> list[str]:
    """Return the names of files that differ from the expected content, are missing, or are additional."""
    found = content_of(path)
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))


def check_content(path: Path, expected: dict[str, str], what: str) -> None:
    """Raise Violation unless a folder or a file has the expected content."""
    if changed := changed_files(path, expected):
        raise Violation(f"{what}: other content of {', '.join(changed)}")


def check_no_partials(folder: Path, what: str) -> None:
    """Raise Violation if there are temporary files."""
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob(".*.ncelm-partial"))
    if left:
        raise Violation(f"{what}: left behind: {', '.join(left)}")
