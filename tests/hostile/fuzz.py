"""Coverage-guided fuzzing of the parsers that are written in Python, with atheris, which is optional.

pip install atheris
python -m tests.hostile.fuzz json -max_total_time=60
"""

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

MISSING = "atheris is not installed: `pip install atheris`"


def has_atheris() -> bool:
    """Return whether atheris is installed."""
    return importlib.util.find_spec("atheris") is not None


def _parse_json(path: Path) -> None:
    from ncelm.io.files import parse_json

    try:
        parse_json(path.read_bytes())
    except ValueError:  # documented: ValueError for any problem
        return


def _read_arpa(path: Path) -> None:
    from ncelm.models.ngram.arpa import read_arpa

    read_arpa(path)


def _read_questions(path: Path) -> None:
    from ncelm.completion import read_questions

    read_questions(path)


def _read_vocabulary(path: Path) -> None:
    from ncelm.text.vocabulary import Vocabulary

    Vocabulary.load(path)


def _read_header(path: Path) -> None:
    from ncelm.io.array_files import read_header

    read_header(path)


PARSERS: dict[str, Callable[[Path], None]] = {
    "json": _parse_json,
    "arpa": _read_arpa,
    "questions": _read_questions,
    "vocabulary": _read_vocabulary,
    "array-header": _read_header,
}


def parse(name: str, content: bytes, folder: Path) -> None:
    """Parse some bytes. Only `NcelmError` is an answer; every other exception is raised."""
    from ncelm.errors import NcelmError

    path = folder / "input"
    path.write_bytes(content)
    try:
        PARSERS[name](path)
    except NcelmError:
        return


def main() -> None:
    """Fuzz one parser; further arguments are those of libFuzzer."""
    if not has_atheris():
        sys.exit(MISSING)
    import atheris

    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in PARSERS:
        sys.exit(f"there is no parser {name!r}: there are {', '.join(PARSERS)}")
    with atheris.instrument_imports(include=["ncelm"]):
        import ncelm.completion
        import ncelm.io.array_files
        import ncelm.models.ngram.arpa  # noqa: F401
    with tempfile.TemporaryDirectory() as folder:
        atheris.Setup(sys.argv, lambda content: parse(name, content, Path(folder)))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
