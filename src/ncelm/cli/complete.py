"""`ncelm complete`: fill the gaps in sentences."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncelm.cli.parser import whole_number
from ncelm.cli.ui import (
    add_json,
    add_run,
    add_threads,
    announce_compilation,
    count,
    print_json,
    warn,
)
from ncelm.errors import NcelmError
from ncelm.progress import progress_bar, show

if TYPE_CHECKING:
    from ncelm.completion import UnknownPolicy
    from ncelm.models.base import Scorer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = """\
ncelm complete RUN QUESTIONS [--answers FILE] [options]
       ncelm complete RUN "The _____ word" [--choices WORDS] [options]"""
    parser.description = """\
Fill the gaps in sentences: choose among given words, or find the most likely
words. Models with one-sided contexts choose by the probability of the whole
sentence, two-sided models by that of the words in the gaps, LSA by similarity
to the other words, PMI by mutual information with them.

Questions are one sentence, or a file: CSV, JSON Lines, or the machine format of
the MSR Sentence Completion Challenge. Choices may differ in number and length:
  id,question,a),b),c)
  1,He lives alone in _____ .,New York,sleep,London
  {"id": 2, "question": "A __ on a __ .", "choices": ["cat; mat", "on; in"]}
With several gaps, semicolons separate the words for each gap. Answers are
letters or choices: lines 1,c of a file, a last CSV column or JSON field answer."""
    parser.epilog = """\
examples:
  ncelm complete run "He lives alone in _____ ." --choices "New York,sleep"
  ncelm complete run "The _____ sat on the _____ ." --choices "cat;mat, on;in"
  ncelm complete run questions.csv --answers answers.csv"""
    add_run(parser, "train, ngram, lsa, pmi, mix or blend")
    parser.add_argument(
        "questions", metavar="QUESTIONS", help="A file of questions, or a sentence with gaps, written _____."
    )
    parser.add_argument(
        "--answers",
        type=Path,
        metavar="FILE",
        help="The correct answers to a file of questions, if it has none itself: print the accuracy.",
    )
    parser.add_argument("--each", action="store_true", help="With answers: print every question, too.")
    parser.add_argument(
        "--choices",
        metavar="WORDS",
        help="The words for the gaps of a sentence: choices are separated by commas, and words for several gaps by "
        "semicolons [default: all words].",
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
        "--unknown",
        choices=("distribute", "exclude", "token"),
        default="distribute",
        help="How to score choices that are not in the vocabulary. distribute: divide the probability of <unk> by the "
        "number of words that it stands for in the training text. exclude: rank them after all others (also LSA, PMI, "
        "and models without <unk> in their text). token: as the word <unk>.",
    )
    parser.add_argument(
        "--unnormalised",
        action="store_true",
        help="Choose by unnormalized scores. With answers the accuracy of both is printed in any case.",
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
    """Print the best words for the gaps of one sentence."""
    from ncelm import completion
    from ncelm.language_model import load_scorer

    if arguments.answers:
        raise NcelmError("--answers goes with a file of questions, not with a sentence")
    scorer = load_scorer(arguments.run, arguments.threads)
    announce_compilation()
    unknown: tuple[str, ...] = ()
    if arguments.choices is None:
        found = completion.most_likely(scorer, arguments.questions, arguments.n)
    else:
        choices = tuple(choice.strip() for choice in arguments.choices.split(","))
        question = completion.Question("", arguments.questions, choices)
        (ranking,) = completion.rank(
            scorer, [question], normalised=not arguments.unnormalised, unknown=arguments.unknown
        )
        found, unknown = [(choices[i], ranking.scores[i]) for i in ranking.order], ranking.unknown
    if arguments.json:
        words = [{"word": word, "score": score} for word, score in found]
        print_json({"words": words, "unknown": list(unknown), **_policy(scorer, arguments.unknown)})
        return
    width = max(len(word) for word, _ in found)
    for word, score in found:
        print(f"{word:{width}}  {completion.format_score(score, 4)}{'  <unk>' * (word in unknown)}")


def _policy(scorer: "Scorer", unknown: "UnknownPolicy") -> dict[str, Any]:
    """Return the policy for unknown words that applies to a model, and the number it is based on, for JSON."""
    from ncelm import completion

    return {
        "unknown_policy": completion.unknown_policy(scorer, unknown),
        "unknown_types": scorer.vocabulary.unknown_types,
    }


def _answer(arguments: argparse.Namespace) -> None:
    """Print the answers to a file of questions, or their accuracy."""
    from ncelm import completion
    from ncelm.language_model import load_scorer

    if arguments.choices is not None:
        raise NcelmError("--choices goes with a sentence that has a gap (_____); a file of questions has its own")
    questions = completion.read_questions(Path(arguments.questions))
    answers = completion.given_answers(questions)
    if arguments.answers:
        answers = completion.read_answers(arguments.answers, questions)
    scorer = load_scorer(arguments.run, arguments.threads)
    announce_compilation()
    with progress_bar(unit=" questions", desc="answering") as bar:
        both = completion.rank_both(scorer, questions, show(bar), unknown=arguments.unknown)
    rankings = completion.select_rankings(both, not arguments.unnormalised)
    found = {kind: completion.accuracy(each, answers) for kind, each in both.items()} if answers else {}
    policy = _policy(scorer, arguments.unknown)
    if words := [word for ranking in rankings for word in ranking.unknown]:
        treatment = {
            "distribute": f"scored as one of {policy['unknown_types']:,} words that <unk> stands for",
            "exclude": "ranked after all others",
            "token": "scored as <unk>",
        }[policy["unknown_policy"]]
        warn(
            f"not in the vocabulary of the model, and {treatment}: {count(len(words), 'choice')} of "
            f"{arguments.questions}, such as {words[0]!r}"
        )
    if arguments.json:
        print_json({**completion.as_dict(questions, rankings, answers, found), **policy})
        return
    if not answers or arguments.each:
        for question, ranking in zip(questions, rankings, strict=True):
            print(completion.format_ranking(question, ranking, answers[question.id] if answers else None))
    for kind, accuracy in found.items():
        low, high = accuracy.interval
        print(
            f"{accuracy.percent:.1f} % correct ({accuracy.correct:,} of {accuracy.questions:,}; 95 % confidence "
            f"interval {low:.1f} to {high:.1f} %), {kind}"
        )
