"""`ncelm compile`: compile the kernels ahead of time."""

import argparse
import time
import warnings

from ncelm.cli.ui import add_json, announce_compilation, print_json
from ncelm.errors import NcelmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm compile [options]"
    parser.description = """\
Compile the kernels into the cache, so that later commands start without
compiling, for example when a container image is built. The cache is valid for
one version of ncelm and one kind of processor."""
    parser.epilog = """\
example:
  ncelm compile --all"""
    parser.add_argument(
        "--all",
        action="store_true",
        help="Compile the kernels of all recipes [default: those of the default recipe and of scoring].",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Compile and print what was compiled, the time it took, and the directory of the cache."""
    from ncelm.kernels.compile import cache_directory

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning that there is no cache is an error here
        directory = cache_directory()
    if directory is None:
        raise NcelmError("the cache directory is not writable: set NCELM_CACHE_DIR to a directory that is")
    from ncelm.training.precompile import targets

    announce_compilation()
    compiled: dict[str, float] = {}
    for name, compile_target in targets(arguments.all):
        began = time.perf_counter()
        compile_target()
        compiled[name] = round(time.perf_counter() - began, 3)
        if not arguments.json:
            print(f"{compiled[name]:7.1f} s  {name}", flush=True)
    total = sum(compiled.values())
    if arguments.json:
        print_json({"cache": str(directory), "compiled": compiled, "seconds": round(total, 3)})
    else:
        print(f"{total:7.1f} s  in total; the cache is {directory}")
