"""`ncelm report`: an HTML page about runs."""

import argparse
from pathlib import Path

from ncelm.cli.ui import add_store_option, add_threads, announce_compilation, print_json
from ncelm.errors import NcelmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm report RUN... [options]"
    parser.description = """\
Write a report about a run as one HTML file: summary, training curves, settings,
and samples of what the model does with held-out sentences. It can be read
without a network. Several runs are compared with each other."""
    parser.epilog = """\
examples:
  ncelm report run
  ncelm report run1 run2 --out comparison.html"""
    parser.add_argument(
        "runs", nargs="*", default=[], type=Path, metavar="RUN", help="Directories of models of any kind."
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="The file to write [default: RUN/report.html; report.html for several runs].",
    )
    parser.add_argument("--no-samples", action="store_true", help="Do not apply the models to held-out sentences.")
    add_store_option(parser)
    add_threads(parser)
    parser.add_argument("--json", action="store_true", help="Print the content of the report as JSON instead.")


def run(arguments: argparse.Namespace) -> None:
    """Write the report and print its path, or print its content."""
    from ncelm.report import report_data, write_report

    if not arguments.runs:
        raise NcelmError("no run was given: name at least one, such as `ncelm report RUN`")
    if arguments.json and arguments.out:
        raise NcelmError("--json prints the content of the report and writes no file: leave --out or --json out")
    announce_compilation()
    options = {"store": arguments.store, "samples": not arguments.no_samples, "threads": arguments.threads}
    if arguments.json:
        print_json(report_data(arguments.runs, **options))
    else:
        print(write_report(arguments.runs, arguments.out, **options))
