"""`ncelm complete`: fill the gap in sentences."""

import argparse
import os
from pathlib import Path

from ncelm.cli.parser import whole_number
from ncelm.cli.ui import (
    add_json,
    add_run,
    add_threads,
    announce_compilation,
    count,
    print_json,
    progress_bar,
    show,
    warn,
)
from ncelm.errors import NcelmError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = """\
ncelm complete RUN QUESTIONS [--answers FILE] [options]
       ncelm complete RUN "The _____ word" [--choices WORDS] [options]"""
    parser.description = """\
Fill the gap in sentences: choose among given words, or find the most likely
words. Questions are files of the MSR Sentence Completion Challenge (CSV, or its
original machine format), or one sentence. Models with one-sided contexts choose
by the probability of the whole sentence, two-sided models by that of the word
given both sides, LSA by similarity to the other words, PMI by mutual
information with them."""
    parser.epilog = """\
examples:
  ncelm complete run questions.csv --answers answers.csv
  ncelm complete run "He lives alone in _____ ." --choices London,sleep"""
    add_run(parser, "train, ngram, lsa, pmi, mix or blend")
    parser.add_argument(
        "questions", metavar="QUESTIONS", help="A file of questions, or a sentence with a gap, written _____."
    )
    parser.add_argument(
        "--answers", type=Path, metavar="FILE", help="The correct answers to a file of questions: print the accuracy."
    )
    parser.add_argument("--each", action="store_true", help="With --answers: print every question, too.")
    parser.add_argument(
        "--choices", metavar="WORDS", help="The words for the gap of a sentence, separated by commas [default: all]."
    )
    parser.add_argument(
        "--count",
        dest="n",
        type=whole_number,
        default=10,
        metavar="N",
        help="Without --choices: the number of words to print.",
    )
    parser.add_argument(
        "--unnormalised",
        action="store_true",
        help="Choose by unnormalized scores. With --answers the accuracy of both is printed in any case.",
    )
    add_threads(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Choose and print."""
    from ncelm import completion

    # a sentence may be too long for a Path
    is_file = os.path.exists(arguments.questions)  # noqa: PTH110
    if completion.GAP.search(arguments.questions) and not is_file:
        _fill(arguments)
    elif not is_file:
        raise NcelmError(
            f"there is no file {arguments.questions[:60]!r} of questions; if it is a sentence, mark its gap with _____"
        )
    else:
        _answer(arguments)


def _fill(arguments: argparse.Namespace) -> None:
    """Print the best words for the gap of one sentence."""
    from ncelm import completion
    from ncelm.language_model import load_scorer

    if arguments.answers:
        raise NcelmError("--answers goes with a file of questions, not with a sentence")
    scorer = load_scorer(arguments.run, arguments.threads)
    announce_compilation()
    if arguments.choices is None:
        found = completion.most_likely(scorer, arguments.questions, arguments.n)
    else:
        choices = tuple(choice.strip() for choice in arguments.choices.split(","))
        question = completion.Question("", arguments.questions, choices)
        (ranking,) = completion.rank(scorer, [question], normalised=not arguments.unnormalised)
        found = [(choices[i], ranking.scores[i]) for i in ranking.order]
    unknown = completion.unknown_choices(scorer, [word for word, _ in found])
    if arguments.json:
        print_json({"words": [{"word": word, "score": score} for word, score in found], "unknown": unknown})
        return
    width = max(len(word) for word, _ in found)
    for word, score in found:
        print(f"{word:{width}}  {score:.4f}{'  <unk>' * (word in unknown)}")


def _answer(arguments: argparse.Namespace) -> None:
    """Print the answers to a file of questions, or their accuracy."""
    from ncelm import completion
    from ncelm.language_model import load_scorer

    if arguments.choices is not None:
        raise NcelmError("--choices goes with a sentence that has a gap (_____); a file of questions has its own")
    questions = completion.read_questions(Path(arguments.questions))
    answers = completion.read_answers(arguments.answers, questions) if arguments.answers else None
    scorer = load_scorer(arguments.run, arguments.threads)
    announce_compilation()
    with progress_bar(unit=" questions", desc="answering") as bar:
        both = completion.rank_both(scorer, questions, show(bar))
    rankings = completion.select_rankings(both, not arguments.unnormalised)
    found = {kind: completion.accuracy(each, answers) for kind, each in both.items()} if answers else {}
    unknown = [completion.unknown_choices(scorer, question.choices) for question in questions]
    if words := [word for some in unknown for word in some]:
        warn(
            f"not in the vocabulary of the model, and scored as <unk>: {count(len(words), 'choice')} of "
            f"{arguments.questions}, such as {words[0]!r}"
        )
    if arguments.json:
        print_json(completion.as_dict(questions, rankings, unknown, answers, found))
        return
    if not answers or arguments.each:
        for question, ranking, some in zip(questions, rankings, unknown, strict=True):
            print(completion.format_ranking(question, ranking, answers[question.id] if answers else None, some))
    for kind, accuracy in found.items():
        low, high = accuracy.interval
        print(
            f"{accuracy.percent:.1f} % correct ({accuracy.correct:,} of {accuracy.questions:,}; 95 % confidence "
            f"interval {low:.1f} to {high:.1f} %), {kind}"
        )
