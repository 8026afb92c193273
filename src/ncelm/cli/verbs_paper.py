"""The verbs of the command line for the paper's experiments: sentence completion, its tables, the demonstration."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from ncelm.cli.ui import Json, Threads, count, print_json, progress_bar, show, show_training, warn
from ncelm.errors import NcelmError
from ncelm.language_model import load_scorer

if TYPE_CHECKING:
    from tqdm import tqdm

    from ncelm.paper.tables import RowProgress


@dataclass(frozen=True)
class Complete:
    """Fill the gap in sentences: choose among words, or find the likeliest.

    A file of questions, as those of the MSR Sentence Completion Challenge (CSV, or its original machine format):

        ncelm complete RUN questions.csv --answers answers.csv

    or one sentence:

        ncelm complete RUN "He lives alone in _____ ." --choices London,sleep,yesterday

    Models that see one side choose by the probability of the whole sentence, two-sided ones by that of the word given
    both sides, LSA by similarity to the other words, PMI by what they say of it.
    """

    run_folder: Annotated[Path, Positional, arg(metavar="RUN", help="A folder of any model that ncelm has made.")]
    questions: Annotated[
        str, Positional, arg(metavar="QUESTIONS", help="A file of questions, or a sentence with a gap: _____.")
    ]
    answers: Annotated[Path | None, arg(help="The right answers to a file of questions: tell how many were found.")] = (
        None
    )
    choices: Annotated[str | None, arg(help="Words for the gap of a sentence, with commas between them.")] = None
    count: Annotated[int, arg(help="Without choices: how many of the likeliest words to show.")] = 10
    unnormalised: Annotated[
        bool, arg(help="Choose by scores as they are, as if they were normalised. With --answers both are told anyway.")
    ] = False
    each: Annotated[bool, arg(help="With --answers: show every question, too.")] = False
    threads: Threads = None
    json: Json = False

    def run(self) -> None:
        """Choose and print."""
        from ncelm import completion

        if completion.GAP.search(self.questions) and not os.path.exists(self.questions):  # noqa: PTH110 (a sentence may be too long for a Path)
            self._fill()
        else:
            self._answer()

    def _fill(self) -> None:
        """One sentence."""
        from ncelm import completion

        if self.answers:
            raise NcelmError("--answers go with a file of questions, not with a sentence")
        scorer = load_scorer(self.run_folder, self.threads)
        if self.choices is None:
            found = completion.likeliest(scorer, self.questions, self.count)
        else:
            choices = tuple(choice.strip() for choice in self.choices.split(","))
            question = completion.Question("", self.questions, choices)
            (ranking,) = completion.rank(scorer, [question], normalised=not self.unnormalised)
            found = [(choices[i], ranking.scores[i]) for i in ranking.order]
        unknown = completion.unknown_choices(scorer, [word for word, _ in found])
        if self.json:
            print_json({"words": [{"word": word, "score": score} for word, score in found], "unknown": unknown})
            return
        width = max(len(word) for word, _ in found)
        for word, score in found:
            print(f"{word:{width}}  {score:.4f}{'  <unk>' * (word in unknown)}")

    def _answer(self) -> None:
        """A file of questions."""
        from ncelm import completion

        if self.choices is not None:
            raise NcelmError("--choices go with a sentence that has a gap (_____); a file of questions has its own")
        if not os.path.exists(self.questions):  # noqa: PTH110
            raise NcelmError(
                f"there is no file {self.questions[:60]!r} of questions; if it is a sentence, mark its gap with _____"
            )
        questions = completion.read_questions(Path(self.questions))
        answers = completion.read_answers(self.answers, questions) if self.answers else None
        scorer = load_scorer(self.run_folder, self.threads)
        with progress_bar(unit=" questions", desc="answering") as bar:
            both = completion.rank_both(scorer, questions, show(bar))
        rankings = completion.by_kind(both, not self.unnormalised)
        found = {kind: completion.accuracy(each, answers) for kind, each in both.items()} if answers else {}
        unknown = [completion.unknown_choices(scorer, question.choices) for question in questions]
        if words := [word for some in unknown for word in some]:
            choices = count(len(words), "choice")
            warn(f"this model has never seen {choices} of {self.questions} (such as {words[0]!r}): scored as <unk>")
        if self.json:
            print_json(completion.as_dict(questions, rankings, unknown, answers, found))
            return
        if not answers or self.each:
            for question, ranking, some in zip(questions, rankings, unknown, strict=True):
                print(completion.shown(question, ranking, answers[question.id] if answers else None, some))
        for kind, accuracy in found.items():
            low, high = accuracy.interval
            print(
                f"{accuracy.percent:.1f} % right ({accuracy.right:,} of {accuracy.questions:,}; with 95 % confidence "
                f"{low:.1f} to {high:.1f} %), {kind}"
            )


@dataclass(frozen=True)
class Reproduce:
    """Train every row of a table of the paper (Mnih & Teh 2012) and put our figures beside the published ones.

    Rows that are finished are not trained again, so a reproduction that was stopped goes on where it was. OUT gets
    table1.md, table1.json, plots and, in OUT/runs, an ordinary run of every row and seed. Table 1 takes about an hour
    and a half on two cores, much of it maximum likelihood; table 2 half an hour more; table 3, sentence completion on
    48 million words, about four hours.
    """

    table: Annotated[Literal["table1", "table2", "table3"], Positional, arg(help="Which table.")]
    data: Annotated[
        Path,
        arg(help="Tables 1 and 2: a folder with ptb.train.txt, ptb.valid.txt and ptb.test.txt. Table 3: one with "
            "holmes/holmes_training.tar.xz, msrscc/testing_data.csv and msrscc/test_answer.csv."),
    ]  # fmt: skip
    out: Annotated[Path, arg(help="Where everything goes; tables 1 and 2 may share it, and then share their rows.")]
    seeds: Annotated[int, arg(help="Tables 1 and 2: train every row so many times, from other beginnings.")] = 3
    rows: Annotated[tuple[str, ...], arg(help="Only these rows, by their names in OUT/runs; all by default.")] = ()
    finished_only: Annotated[bool, arg(help="Train nothing: write the table of what is finished so far.")] = False
    threads: Threads = None
    json: Json = False

    def run(self) -> None:
        """Reproduce and say where the result is."""
        with progress_bar(unit=" words", unit_scale=True, leave=False) as bar:
            answer = self._reproduce(partial(_show_row, bar))
        if self.json:
            print_json(answer)
            return
        width = max(len(row["name"]) for row in answer["rows"])
        for row in answer["rows"]:
            print(f"{row['name']:{width}} " + (_answered(row) if self.table == "table3" else _trained(row)))
        print(f"{self.out / self.table}.md has the whole table")

    def _reproduce(self, progress: "Callable[[RowProgress], None]") -> dict[str, Any]:
        options: dict[str, Any] = {
            "rows": self.rows,
            "finished_only": self.finished_only,
            "threads": self.threads,
            "progress": progress,
        }
        if self.table == "table3":
            from ncelm.paper.table3 import reproduce_table3

            return reproduce_table3(self.data, self.out, **options)
        from ncelm.paper.tables import reproduce

        return reproduce(self.table, self.data, self.out, seeds=self.seeds, **options)


def _show_row(bar: "tqdm[Any]", at: "RowProgress") -> None:
    """How a bar hears of the rows of a table."""
    left = f", about {at.seconds_left / 60:.0f} min left in all" if at.seconds_left is not None else ""
    where = f"{at.number}/{at.runs} {at.name}{left}: "
    bar.unit = " words" if at.training else " steps"
    if at.training:
        show_training(bar, at.training, where)
    elif at.steps:
        bar.set_description(where, refresh=False)
        show(bar)(*at.steps)
    else:
        bar.reset()
        bar.set_description(where)


def _trained(row: dict[str, Any]) -> str:
    """A row of table 1 or 2: perplexity, beside the paper's."""
    ours = row["test_perplexity"]
    diverged = sum("diverged" in run for run in row["runs"])
    return (
        (f"{ours['mean']:6.1f}" if ours else "     –")
        + (f" ± {ours['std']:.1f}" if ours and ours["std"] is not None else "      ")
        + (f"   paper {row['paper']:.1f}" if row["paper"] else "")
        + (f"   {diverged} of {len(row['runs'])} diverged" if diverged else "")
    )


def _answered(row: dict[str, Any]) -> str:
    """A row of table 3: percent of the questions, beside the paper's."""
    test, paper = row.get("test"), row["paper"]["percent"]
    return (
        f"{row['normalised']['percent']:5.1f} % right"
        + (f"   paper {paper:.1f}" if paper else "")
        + (f"   test perplexity {test['perplexity']:.1f}" if test else "")
    )


@dataclass(frozen=True)
class Demo:
    """Train on English that every machine has, by NCE and by maximum likelihood, and show what comes of it.

    The text is the prose in Python's own documentation strings and help topics. Takes about a minute, most of it
    maximum likelihood, and another minute the first time, to compile.
    """

    out: Annotated[Path, arg(help="Where the store, both runs and the plot go: a folder that does not exist yet.")] = (
        Path("demo")
    )
    threads: Threads = None
    json: Json = False

    def run(self) -> None:
        """Run the demonstration."""
        from ncelm.paper.demo import demo

        def say(line: str) -> None:
            print(line, file=sys.stderr if self.json else sys.stdout, flush=True)

        with progress_bar(unit=" words", unit_scale=True, leave=False) as bar:
            result = demo(self.out, self.threads, say, lambda at: show_training(bar, at))
        if self.json:
            print_json(result)
