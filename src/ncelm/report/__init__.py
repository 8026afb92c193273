"""Reports: one HTML file about one run or several, with curves, settings and samples. It has no scripts.

    ncelm.write_report("run")                          # writes run/report.html
    ncelm.write_report(["run1", "run2"], "both.html")  # compares two runs

`report_data` returns what the page shows, as the command `ncelm report --json` prints it. `data` collects it, `samples`
applies the model, `page` and `charts` make HTML and SVG.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncelm.arguments import check_bool, check_path, check_paths
from ncelm.errors import NcelmError
from ncelm.io.files import atomic_write, open_regular
from ncelm.kernels.threads import check_threads
from ncelm.report.data import collect
from ncelm.report.page import MARK, render
from ncelm.text.store import TokenStore, store_or_path

__all__ = ["report_data", "write_report"]

FILE = "report.html"


def write_report(
    runs: Path | str | Sequence[Path | str],
    out: Path | str | None = None,
    *,
    store: TokenStore | Path | str | None = None,
    samples: bool = True,
    threads: int | None = None,
) -> Path:
    """Write an HTML report about one run or several, and return its path.

    Args:
        runs: a run directory, or several to compare.
        out: the file to write; by default report.html in the run, or in the current folder for several runs. A file
            that exists is replaced if it is such a report.
        store: the token store of the held-out sentences; by default the one each model was trained on.
        samples: apply the models to held-out sentences. Without it, models are not loaded.
        threads: number of threads; all cores by default.
    """
    paths = _paths(runs)
    file = check_path("out", out) if out is not None else paths[0] / FILE if len(paths) == 1 else Path(FILE)
    _check_replaceable(file)
    content = render(report_data(paths, store=store, samples=samples, threads=threads))
    with atomic_write(file) as opened:
        opened.write(content.encode("utf-8", "backslashreplace"))  # names of files may not be Unicode
    return file


def report_data(
    runs: Path | str | Sequence[Path | str],
    *,
    store: TokenStore | Path | str | None = None,
    samples: bool = True,
    threads: int | None = None,
) -> dict[str, Any]:
    """Return the content of a report, as JSON values. The arguments are those of `write_report`."""
    paths = _paths(runs)
    if store is not None:
        store_or_path("store", store)
    check_bool("samples", samples)
    opened = TokenStore.open(store) if store is not None else None
    return collect(paths, opened, samples, check_threads(threads))


def _paths(runs: object) -> list[Path]:
    """Return the run directories of a parameter `runs`, of which there is at least one."""
    paths = [check_path("runs", runs)] if isinstance(runs, str | Path) else check_paths("runs", runs)
    if not paths:
        raise NcelmError("`runs` is empty: give the directory of a run")
    return paths


def _check_replaceable(file: Path) -> None:
    """Raise an error if a file exists and is not a report: it may be valuable."""
    if not file.exists():
        return
    if file.is_file():
        with open_regular(file) as opened:
            if opened.read(len(MARK)) == MARK.encode():
                return
    raise NcelmError(f"{file} exists already and is not a report: choose another name or remove it first")
