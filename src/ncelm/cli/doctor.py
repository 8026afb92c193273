"""`ncelm doctor`: check the machines of a cluster before training."""

import argparse
from pathlib import Path

from ncelm.cli.ui import add_json, add_threads, announce_compilation, print_json
from ncelm.errors import NcelmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm doctor --distributed [STORE] [--out RUN] [options]"
    parser.description = """\
Check a cluster before training: name resolution, network interface, versions,
clocks, the token store and the directory of the run on all machines, latency
and bandwidth. With a store, predict how much faster the workers are together.
Start it with torchrun, with the same options as `ncelm train`."""
    parser.epilog = """\
example:
  torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint first:29400 \\
    -m ncelm doctor --distributed store --out run"""
    parser.add_argument("store", nargs="?", type=Path, metavar="STORE", help="A token store.")
    parser.add_argument("--distributed", action="store_true", help="Check the workers that torchrun started.")
    parser.add_argument("--out", type=Path, metavar="RUN", help="The directory of a future run: is its disk shared?")
    add_threads(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Check and print one line for each result; a problem is an error."""
    from ncelm.distributed import collective
    from ncelm.text.store import TokenStore
    from ncelm.training.adaptive import choose, measure
    from ncelm.training.cluster import check_cluster, check_group

    if not arguments.distributed:
        raise NcelmError("there is one kind of check: give `distributed`, and start it with torchrun")
    group = collective.current()
    check_group(group)
    store = TokenStore.open(arguments.store) if arguments.store else None
    config, words_per_second = None, 0.0
    if store is not None:
        announce_compilation()
        config = choose(store).config
        words_per_second = measure(store, config, arguments.threads or 1).words_per_second
    findings = []
    for finding in check_cluster(group, store, arguments.out, config, words_per_second):
        findings.append(finding)
        if group.rank == 0 and not arguments.json:
            print(f"{'ok     ' if finding.ok else 'PROBLEM'}  {finding.name}: {finding.text}", flush=True)
    if group.rank == 0 and arguments.json:
        print_json({"findings": [vars(finding) for finding in findings]})
    group.gather("")  # torchrun ends all workers as soon as one fails
    problems = sum(not finding.ok for finding in findings)
    if problems and group.rank == 0:
        raise NcelmError(f"{problems} of {len(findings)} checks found a problem: see the lines above")
