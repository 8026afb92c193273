"""`ncelm reproduce`: the tables of the paper."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncelm.cli.parser import whole_number
from ncelm.cli.ui import add_json, add_threads, announce_compilation, print_json
from ncelm.progress import TrainingBar, progress_bar, show

if TYPE_CHECKING:
    from ncelm.paper.tables import RowProgress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "ncelm reproduce TABLE --data DIR --out DIR [options]"
    parser.description = """\
Train every row of a table of the paper (Mnih & Teh 2012) and compare the
results with the published ones. Finished rows are not trained again; stopped
ones are resumed. OUT gets table1.md, table1.json and plots; OUT/runs has a run
for every row and seed. On two cores table 1 takes about 90 minutes, most of it
maximum likelihood; table 2 another 30 minutes; table 3, sentence completion on
48 million words, about four hours."""
    parser.epilog = """\
example:
  ncelm reproduce table1 --data ptb --out paper --seeds 1"""
    parser.add_argument(
        "table", choices=("table1", "table2", "table3"), metavar="TABLE", help="table1, table2 or table3."
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help="Tables 1 and 2: a directory with ptb.train.txt, ptb.valid.txt and ptb.test.txt. Table 3: one with "
        "holmes/holmes_training.tar.xz, msrscc/testing_data.csv and msrscc/test_answer.csv.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="The directory for all results. With the same directory, tables 1 and 2 share their common rows.",
    )
    parser.add_argument(
        "--seeds",
        type=whole_number,
        default=3,
        metavar="N",
        help="Tables 1 and 2: the number of seeds with which every row is trained.",
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="Train only these rows, by their names in OUT/runs [default: all].",
    )
    parser.add_argument(
        "--finished-only", action="store_true", help="Train nothing; write the table with the finished rows."
    )
    add_threads(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Reproduce a table and print its rows."""
    announce_compilation()
    with progress_bar(unit=" words", unit_scale=True, leave=False) as bar:
        result = _reproduce(arguments, partial(_show_row, TrainingBar(bar)))
    if arguments.json:
        print_json(result)
        return
    width = max(len(row["name"]) for row in result["rows"])
    line = _completion_row if arguments.table == "table3" else _perplexity_row
    for row in result["rows"]:
        print(f"{row['name']:{width}} {line(row)}")
    print(f"{arguments.out / arguments.table}.md has the whole table")


def _reproduce(arguments: argparse.Namespace, progress: "Callable[[RowProgress], None]") -> dict[str, Any]:
    options: dict[str, Any] = {
        "rows": arguments.rows or (),
        "finished_only": arguments.finished_only,
        "threads": arguments.threads,
        "progress": progress,
    }
    if arguments.table == "table3":
        from ncelm.paper.table3 import reproduce_table3

        return reproduce_table3(arguments.data, arguments.out, **options)
    from ncelm.paper.tables import reproduce

    return reproduce(arguments.table, arguments.data, arguments.out, seeds=arguments.seeds, **options)


def _show_row(display: TrainingBar, at: "RowProgress") -> None:
    """Show the row that is being trained, and the remaining time of the table."""
    left = f", about {at.seconds_left / 60:.0f} min left in total" if at.seconds_left is not None else ""
    row = f"{at.number}/{at.runs} {at.name}{left}"
    bar = display.bar
    bar.unit = " words" if at.training else " steps"
    if at.training:
        display(at.training, f"{row}: ")
    elif at.steps:
        bar.set_description(row, refresh=False)
        show(bar)(*at.steps)
    else:
        bar.reset()
        bar.set_description(row)


def _perplexity_row(row: dict[str, Any]) -> str:
    """Return a row of table 1 or 2: test perplexity, ours and the paper's."""
    ours = row["test_perplexity"]
    diverged = sum("diverged" in run for run in row["runs"])
    return (
        (f"{ours['mean']:6.1f}" if ours else "     –")
        + (f" ± {ours['std']:.1f}" if ours and ours["std"] is not None else "      ")
        + (f"   paper {row['paper']:.1f}" if row["paper"] else "")
        + (f"   {diverged} of {len(row['runs'])} diverged" if diverged else "")
    )


def _completion_row(row: dict[str, Any]) -> str:
    """Return a row of table 3: accuracy, ours and the paper's."""
    test, paper = row.get("test"), row["paper"]["percent"]
    return (
        f"{row['normalised']['percent']:5.1f} % correct"
        + (f"   paper {paper:.1f}" if paper else "")
        + (f"   test perplexity {test['perplexity']:.1f}" if test else "")
    )
