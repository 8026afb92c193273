"""`ncelm serve`: models as an HTTP service with an interactive page."""

import argparse
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from ncelm.cli.parser import whole_number
from ncelm.cli.ui import add_threads, announce_compilation
from ncelm.errors import MissingExtraError, NcelmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm serve RUN... [--host ADDRESS] [--port N] [options]"
    parser.description = """\
Serve language models over HTTP: a page at /, JSON endpoints that /openapi.json
describes, and /v1/completions as OpenAI has it. Only this machine can connect,
unless --host is given, which needs a token. SIGTERM and Ctrl-C finish running
requests first."""
    parser.epilog = """\
examples:
  ncelm serve run
  ncelm serve model ngram --port 9000
  NCELM_TOKEN=secret ncelm serve run --host 0.0.0.0"""
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="Directories of language models.")
    parser.add_argument(
        "--demo", action="store_true", help="Serve the model of `ncelm demo`, which is trained first if necessary."
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="The address to listen on.")
    parser.add_argument("--port", type=whole_number, default=8000, metavar="N", help="The port; 0 for any free one.")
    parser.add_argument(
        "--token",
        metavar="TEXT",
        help="Accept only requests with this bearer token [default: the environment variable NCELM_TOKEN, or none].",
    )
    parser.add_argument(
        "--allowed-host", action="append", default=[], metavar="NAME", help="A further name of this server."
    )
    parser.add_argument(
        "--cors-origin", action="append", default=[], metavar="URL", help="A web site whose pages may use the service."
    )
    parser.add_argument("--no-access-log", action="store_true", help="Do not print a line of JSON for each request.")
    parser.add_argument("--no-batching", action="store_true", help="Answer requests one by one: for comparisons.")
    add_threads(parser)


def run(arguments: argparse.Namespace) -> None:
    """Serve until the process is stopped."""
    for package in ("starlette", "uvicorn", "httptools"):
        if find_spec(package) is None:
            raise MissingExtraError(f"{package} is not installed: pip install 'ncelm[serve]'")
    from ncelm.serve.app import Options
    from ncelm.serve.server import serve
    from ncelm.serve.service import Service

    announce_compilation()
    runs = [*arguments.runs, *_demo_runs(arguments.threads)] if arguments.demo else arguments.runs
    if not runs:
        raise NcelmError("there is no model to serve: give a RUN, or --demo")
    token = arguments.token or os.environ.get("NCELM_TOKEN") or None
    hosts = ("localhost", "127.0.0.1", "[::1]", arguments.host, *arguments.allowed_host)
    if arguments.host in ("0.0.0.0", "::") and not arguments.allowed_host:
        hosts = ("*",)  # the names of this machine are not known; the token protects it
    options = Options(token, tuple(hosts), tuple(arguments.cors_origin), not arguments.no_access_log)
    for path in runs:
        _wait_for_model(path)
    service = Service(runs, arguments.threads, batching=not arguments.no_batching)
    serve(service, options, arguments.host, arguments.port)


def _wait_for_model(path: Path) -> None:
    """Wait until a run that is being trained has a model: after its first epoch."""
    from ncelm.io import run
    from ncelm.io.files import is_locked

    announced = False
    while not (path / run.MODEL).exists() and is_locked(path / run.LOCK):
        if not announced:
            print(f"ncelm: {path} has no model before the first epoch of its training ends: waiting", file=sys.stderr)
        announced = True
        time.sleep(0.2)


def _demo_runs(threads: int | None) -> list[Path]:
    """Return the run of the demonstration in the current directory, which is made if it does not exist."""
    from ncelm.paper.demo import demo
    from ncelm.progress import TrainingBar, progress_bar

    out = Path("demo")
    if not (out / "nce").exists():
        with progress_bar(unit=" words", unit_scale=True, leave=False) as bar:
            demo(out, threads, lambda line: print(line, file=sys.stderr, flush=True), TrainingBar(bar))
    return [out / "nce"]
