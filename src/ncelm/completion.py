"""Sentence completion: choose the word for a gap in a sentence (section 5 of the paper).

Questions are those of the MSR Sentence Completion Challenge (Zweig & Burges 2011), in either of its formats: a CSV file

    id,question,a),b),c),d),e)
    1,you are both an orphan and a bachelor and are _____ alone in London.,crying,instantaneously,residing,matched,…

or the original "machine format", five lines per question

    1a) you are both an orphan and a bachelor and are [crying] alone in London.

The sentence is tokenized like the training text of the model, as a whole, with a placeholder in the gap.
"""

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncelm.arguments import (
    check,
    check_bool,
    check_callable,
    check_int,
    check_iterable,
    check_path,
    check_str,
    check_strings,
    check_type,
    set_checked,
    shown,
)
from ncelm.errors import ArgumentError, NcelmError
from ncelm.models.base import Gap, Scorer, check_scorer
from ncelm.text.readers import read_lines
from ncelm.text.settings import TextSettings

GAP = re.compile(r"_{2,}")
LETTERS = "abcde"
_PLACEHOLDER = "xgapx"  # letters only, so that tokenizers keep it as one word
_MACHINE_LINE = re.compile(r"\s*(\d+)([a-e])\)\s*(.*)$")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True)
class Question:
    """A sentence with a gap, and the words to choose from."""

    id: str  # empty for a sentence that is not from a file
    sentence: str  # with _____ in the gap
    choices: tuple[str, ...]

    def __post_init__(self) -> None:
        """Validate the fields; a list of choices becomes a tuple."""
        check_str("id", self.id)
        check_str("sentence", self.sentence)
        set_checked(self, "choices", tuple(check_strings("choices", self.choices)))
        check("choices", self.choices, len(self.choices) > 0, "at least one word")

    def gap(self, text: TextSettings) -> Gap:
        """Return the question tokenized with these settings."""
        return parse_gap(self.sentence, self.choices, text, f"question {self.id}" if self.id else "the sentence")


@dataclass(frozen=True)
class Ranking:
    """The scores that a model assigns to the choices of a question."""

    id: str
    choices: tuple[str, ...]
    scores: tuple[float, ...]  # in the order of the choices; comparable within a question only

    @property
    def order(self) -> list[int]:
        """Indices of the choices, best first; ties keep their order."""
        return sorted(range(len(self.scores)), key=lambda i: -self.scores[i])

    @property
    def letter(self) -> str:
        """The letter of the best choice."""
        return LETTERS[self.order[0]]


@dataclass(frozen=True)
class Accuracy:
    """The number of questions answered correctly, and the number of all questions."""

    correct: int
    questions: int

    @property
    def percent(self) -> float:
        """Correct answers in percent of all questions."""
        return 100.0 * self.correct / self.questions

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the percentage (Wilson score interval)."""
        n, p, z = self.questions, self.correct / self.questions, 1.959964
        middle = p + z * z / (2 * n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return 100 * (middle - half) / (1 + z * z / n), 100 * (middle + half) / (1 + z * z / n)


def parse_gap(sentence: str, choices: Sequence[str], text: TextSettings, where: str) -> Gap:
    """Return a sentence with a gap (_____), and each choice, as tokens; `where` starts error messages."""
    gaps = GAP.findall(sentence)
    if len(gaps) != 1:
        raise NcelmError(f"{where} has {len(gaps) or 'no'} gaps (_____) instead of one: {sentence[:60]!r}")
    words = text.words(GAP.sub(_PLACEHOLDER, sentence))
    places = [i for i, word in enumerate(words) if word == _PLACEHOLDER]
    if len(places) != 1:
        raise NcelmError(f"{where}: the gap is attached to a word: put blanks around it: {sentence[:60]!r}")
    for choice in choices:
        if len(choice.split()) != 1:
            raise NcelmError(f"{where}: the choice {choice!r} is not one word: give choices without blanks")
    place = places[0]
    return Gap(words[:place], [text.words(choice) for choice in choices], words[place + 1 :])


def rank(
    scorer: Scorer,
    questions: Sequence[Question],
    *,
    normalised: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> list[Ranking]:
    """Return a model's ranking of the choices of each question."""
    check_bool("normalised", normalised)
    return select_rankings(rank_both(scorer, questions, progress), normalised)


def select_rankings(rankings: dict[str, list[Ranking]], normalised: bool) -> list[Ranking]:
    """Return the normalised or the unnormalised rankings of `rank_both`, which may be the same."""
    return rankings["normalised" if normalised or "unnormalised" not in rankings else "unnormalised"]


def rank_both(
    scorer: Scorer, questions: Sequence[Question], progress: Callable[[int, int], None] | None = None
) -> dict[str, list[Ranking]]:
    """Return a model's rankings by normalised probabilities and, if they differ, by unnormalised scores.

    The keys are "normalised" and "unnormalised". `progress` is called with the number of questions done and the total.
    """
    check_scorer("scorer", scorer)
    questions = _check_questions(questions)
    check_callable("progress", progress)
    rankings: dict[str, list[Ranking]] = {"normalised": [], "unnormalised": []}
    gaps = (question.gap(scorer.text) for question in questions)
    for question, both in zip(questions, scorer.choice_scores(gaps), strict=True):
        for kind, scores in both._asdict().items():
            rankings[kind].append(Ranking(question.id, question.choices, tuple(scores)))
        if progress:
            progress(len(rankings["normalised"]), len(questions))
    same = rankings["normalised"] == rankings["unnormalised"]
    return {"normalised": rankings["normalised"]} if same else rankings


def _check_questions(questions: object) -> list[Question]:
    """Return a list of questions."""
    found = list(check_iterable("questions", questions, "a list of questions"))
    check_type("questions", found, all(isinstance(each, Question) for each in found), "a list of questions")
    return found


def accuracy(rankings: Sequence[Ranking], answers: dict[str, str]) -> Accuracy:
    """Return the accuracy of rankings; `answers` are the correct letters by id."""
    found = list(check_iterable("rankings", rankings, "a list of rankings"))
    check_type("rankings", found, all(isinstance(each, Ranking) for each in found), "a list of rankings")
    check("rankings", found, len(found) > 0, "at least one ranking")
    check_type("answers", answers, isinstance(answers, Mapping), "a dictionary of ids and letters")
    for ranking in found:
        if ranking.id not in answers:
            raise ArgumentError(f"`answers` has no answer to question {shown(ranking.id)}: give the answers to all")
    return Accuracy(sum(ranking.letter == answers[ranking.id] for ranking in rankings), len(rankings))


def most_likely(scorer: Scorer, sentence: str, n: int = 10) -> list[tuple[str, float]]:
    """Return the n words with the highest scores in the gap of a sentence, and their scores."""
    check_scorer("scorer", scorer)
    sentence, n = check_str("sentence", sentence), check_int("n", n, 1)
    gap = parse_gap(sentence, (), scorer.text, "the sentence")
    return scorer.most_likely(gap.before, gap.after, n)


def unknown_choices(scorer: Scorer, choices: Sequence[str]) -> list[str]:
    """Return the choices with a token that is not in the model's vocabulary, and is scored as `<unk>`."""
    check_scorer("scorer", scorer)
    choices = check_strings("choices", choices)
    return [choice for choice in choices if any(word not in scorer.vocabulary for word in scorer.text.words(choice))]


def format_ranking(question: Question, ranking: Ranking, answer: str | None, unknown: Sequence[str] = ()) -> str:
    """Return a question and its choices, best first, as text."""
    mark = "" if answer is None else ("right  " if ranking.letter == answer else "wrong  ")
    best = question.choices[ranking.order[0]]
    choices = ", ".join(
        f"{LETTERS[i]}) {question.choices[i]}{' <unk>' * (question.choices[i] in unknown)} {ranking.scores[i]:.2f}"
        for i in ranking.order
    )
    return f"{question.id}  {mark}{GAP.sub(f'[{best}]', question.sentence)}\n    {choices}"


def as_dict(
    questions: Sequence[Question],
    rankings: Sequence[Ranking],
    unknown: Sequence[list[str]],
    answers: dict[str, str] | None,
    accuracies: dict[str, Accuracy],
) -> dict[str, Any]:
    """Return accuracies, the answer to each question, and its choices with unknown words, for JSON."""
    content: dict[str, Any] = {
        kind: {"percent": each.percent, "right": each.correct, "questions": each.questions, "interval": each.interval}
        for kind, each in accuracies.items()
    }
    content["answers"] = [
        {
            "id": question.id,
            "answer": ranking.letter,
            "word": question.choices[ranking.order[0]],
            "scores": dict(zip(question.choices, ranking.scores, strict=True)),
            "unknown": words,
            **({"right": ranking.letter == answers[question.id]} if answers else {}),
        }
        for question, ranking, words in zip(questions, rankings, unknown, strict=True)
    ]
    return content


# -- files -------------------------------------------------------------------------------------------------------------


def read_questions(path: Path | str) -> list[Question]:
    """Return the questions of a file in CSV or machine format."""
    path = check_path("path", path)
    lines = list(read_lines(path, "utf-8"))
    if not lines:
        raise NcelmError(f"{path} is empty: give a file with questions")
    questions = list(_machine_questions(path, lines) if _MACHINE_LINE.match(lines[0]) else _csv_questions(path, lines))
    ids = [question.id for question in questions]
    if len(set(ids)) != len(ids):
        raise NcelmError(f"{path}: question {next(id for id in ids if ids.count(id) > 1)} is a duplicate")
    if not questions:
        raise NcelmError(f"{path} has no questions: give another file")
    settings = TextSettings()
    for question in questions:  # report errors before a model is loaded
        question.gap(settings)
    return questions


def read_answers(path: Path | str, questions: Sequence[Question]) -> dict[str, str]:
    """Return the correct letters by the ids of questions, from a file in CSV or machine format."""
    path, questions = check_path("path", path), _check_questions(questions)
    answers: dict[str, str] = {}
    for number, line in enumerate(read_lines(path, "utf-8"), 1):
        machine = _MACHINE_LINE.match(line)
        id, letter = (machine[1], machine[2]) if machine else _csv_answer(path, number, line)
        if id != "id":
            answers[id] = letter
    missing = [question.id for question in questions if question.id not in answers]
    if missing:
        others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise NcelmError(f"{path} has no answer to question {missing[0]}{others}: give the answers to these questions")
    return answers


def _csv_answer(path: Path, number: int, line: str) -> tuple[str, str]:
    id, _, letter = (field.strip() for field in line.partition(","))
    if id != "id" and (not id or letter not in list(LETTERS)):
        raise NcelmError(f"{path}, line {number}: expected the id of a question, a comma and a letter from a to e")
    return id, letter


def _csv_questions(path: Path, lines: list[str]) -> Iterator[Question]:
    for number, row in enumerate(csv.reader(lines), 1):
        if row[0].strip() == "id":
            continue
        if len(row) != 2 + len(LETTERS):
            raise NcelmError(
                f"{path}, line {number}: expected an id, a question and {len(LETTERS)} choices, found "
                f"{max(len(row) - 2, 0)} choices"
            )
        yield _question(path, row[0].strip(), row[1], row[2:])


def _machine_questions(path: Path, lines: list[str]) -> Iterator[Question]:
    for first in range(0, len(lines), len(LETTERS)):
        group = lines[first : first + len(LETTERS)]
        matches = [_MACHINE_LINE.match(line) for line in group]
        ids = {match[1] for match in matches if match}
        letters = "".join(match[2] for match in matches if match)
        if len(ids) != 1 or letters != LETTERS:
            raise NcelmError(f"{path}, line {first + 1}: expected five lines, a) to e) of one question")
        sentences, choices = [], []
        for match in matches:
            assert match
            found = _BRACKETS.findall(match[3])
            if len(found) != 1:
                raise NcelmError(f"{path}: question {match[1]}{match[2]}) has {len(found)} words in brackets, not one")
            choices.append(found[0].strip())
            sentences.append(_BRACKETS.sub("_____", match[3]))
        if len(set(sentences)) != 1:
            raise NcelmError(f"{path}: the five lines of question {ids.pop()} differ in more than the word in brackets")
        yield _question(path, ids.pop(), sentences[0], choices)


def _question(path: Path, id: str, sentence: str, choices: Iterable[str]) -> Question:
    words = tuple(choice.strip() for choice in choices)
    if not all(words):
        raise NcelmError(f"{path}: question {id} has an empty choice: give five words")
    return Question(id, sentence, words)
