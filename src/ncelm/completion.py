"""Sentence completion: which of several words fits best into the gap of a sentence (section 5 of the paper).

Questions come as those of the MSR Sentence Completion Challenge (Zweig & Burges 2011), in either of its forms. A CSV
file:

    id,question,a),b),c),d),e)
    1,you are both an orphan and a bachelor and are _____ alone in London.,crying,instantaneously,residing,matched,…

or the original "machine format", five lines to a question:

    1a) you are both an orphan and a bachelor and are [crying] alone in London.

A sentence is turned into words as the training text of the model was, whole, with a stand-in for the missing word.
"""

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncelm.errors import NcelmError
from ncelm.models.base import Blank, Scorer
from ncelm.text.readers import read_lines
from ncelm.text.settings import TextSettings

GAP = re.compile(r"_{2,}")
LETTERS = "abcde"
_STAND_IN = "xgapx"  # letters only, so that a tokeniser takes it for a word
_MACHINE_LINE = re.compile(r"\s*(\d+)([a-e])\)\s*(.*)$")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True)
class Question:
    """A sentence with a gap, and the words that may fill it."""

    id: str  # empty for a sentence that stands alone
    sentence: str  # with _____ for the gap
    choices: tuple[str, ...]

    def blank(self, text: TextSettings) -> Blank:
        """The question in words, as a model of such text takes it."""
        return blank(self.sentence, self.choices, text, f"question {self.id}" if self.id else "the sentence")


@dataclass(frozen=True)
class Ranking:
    """A model's answer: the choices, best first."""

    id: str
    choices: tuple[str, ...]
    scores: tuple[float, ...]  # of the choices, in their order; only those of one question can be compared

    @property
    def order(self) -> list[int]:
        """Numbers of the choices, best first; equal ones as they came."""
        return sorted(range(len(self.scores)), key=lambda i: -self.scores[i])

    @property
    def letter(self) -> str:
        """The letter of the best choice."""
        return LETTERS[self.order[0]]


@dataclass(frozen=True)
class Accuracy:
    """How many questions were answered rightly."""

    right: int
    questions: int

    @property
    def percent(self) -> float:
        """Of all questions."""
        return 100.0 * self.right / self.questions

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true percentage lies, with a confidence of 95 % (Wilson's score interval)."""
        n, p, z = self.questions, self.right / self.questions, 1.959964
        middle = p + z * z / (2 * n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return 100 * (middle - half) / (1 + z * z / n), 100 * (middle + half) / (1 + z * z / n)


def blank(sentence: str, choices: Sequence[str], text: TextSettings, where: str) -> Blank:
    """A sentence with a gap (_____) in words, and each choice in words: "woman's" may be two."""
    gaps = GAP.findall(sentence)
    if len(gaps) != 1:
        raise NcelmError(f"{where} has {len(gaps) or 'no'} gaps (_____), and should have one: {sentence[:60]!r}")
    words = text.words(GAP.sub(_STAND_IN, sentence))
    places = [i for i, word in enumerate(words) if word == _STAND_IN]
    if len(places) != 1:
        raise NcelmError(f"{where}: the gap is grown together with a word: put blanks around it: {sentence[:60]!r}")
    for choice in choices:
        if len(choice.split()) != 1:
            raise NcelmError(f"{where}: the choice {choice!r} is not one word")
    place = places[0]
    return Blank(words[:place], [text.words(choice) for choice in choices], words[place + 1 :])


def rank(
    scorer: Scorer,
    questions: Sequence[Question],
    *,
    normalised: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> list[Ranking]:
    """Let a model choose a word for each question."""
    return by_kind(rank_both(scorer, questions, progress), normalised)


def by_kind(rankings: dict[str, list[Ranking]], normalised: bool) -> list[Ranking]:
    """Those of this kind, of the answer of `rank_both`; where the kinds do not differ, there is but one."""
    return rankings["normalised" if normalised or "unnormalised" not in rankings else "unnormalised"]


def rank_both(
    scorer: Scorer, questions: Sequence[Question], progress: Callable[[int, int], None] | None = None
) -> dict[str, list[Ranking]]:
    """Let a model choose, by normalised probabilities and, if they differ from these, by scores as they are."""
    rankings: dict[str, list[Ranking]] = {"normalised": [], "unnormalised": []}
    blanks = (question.blank(scorer.text) for question in questions)
    for question, each in zip(questions, scorer.choice_scores(blanks), strict=True):
        for kind, scores in zip(rankings, each, strict=True):
            rankings[kind].append(Ranking(question.id, question.choices, tuple(scores)))
        if progress:
            progress(len(rankings["normalised"]), len(questions))
    same = rankings["normalised"] == rankings["unnormalised"]
    return {"normalised": rankings["normalised"]} if same else rankings


def accuracy(rankings: Sequence[Ranking], answers: dict[str, str]) -> Accuracy:
    """Compare with the answers, by the questions' ids."""
    return Accuracy(sum(ranking.letter == answers[ranking.id] for ranking in rankings), len(rankings))


def likeliest(scorer: Scorer, sentence: str, n: int = 10) -> list[tuple[str, float]]:
    """The n words that fit best into the gap of a sentence, with their scores."""
    if n < 1:
        raise NcelmError(f"--count is {n}: ask for at least one word")
    gap = blank(sentence, (), scorer.text, "the sentence")
    return scorer.likeliest(gap.before, gap.after, n)


def unknown_choices(scorer: Scorer, choices: Sequence[str]) -> list[str]:
    """Those that the model has never seen, in whole or in part: they are scored as `<unk>`."""
    return [choice for choice in choices if any(word not in scorer.vocabulary for word in scorer.text.words(choice))]


def shown(question: Question, ranking: Ranking, answer: str | None, unknown: Sequence[str] = ()) -> str:
    """A question with its choices, best first, for people."""
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
    found: dict[str, Accuracy],
) -> dict[str, Any]:
    """For JSON: every question's answer, its choices that the model does not know, and how many were right."""
    content: dict[str, Any] = {
        kind: {"percent": each.percent, "right": each.right, "questions": each.questions, "interval": each.interval}
        for kind, each in found.items()
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
    """Read questions, in CSV or machine format."""
    path = Path(path)
    lines = list(read_lines(path, "utf-8"))
    if not lines:
        raise NcelmError(f"{path} is empty: it should have questions")
    questions = list(_machine_questions(path, lines) if _MACHINE_LINE.match(lines[0]) else _csv_questions(path, lines))
    ids = [question.id for question in questions]
    if len(set(ids)) != len(ids):
        raise NcelmError(f"{path}: question {next(id for id in ids if ids.count(id) > 1)} is there twice")
    if not questions:
        raise NcelmError(f"{path} has no questions")
    settings = TextSettings()
    for question in questions:  # say what is wrong before any model is asked
        question.blank(settings)
    return questions


def read_answers(path: Path | str, questions: Sequence[Question]) -> dict[str, str]:
    """Read the right answers to questions, in CSV or machine format: letters by id."""
    path = Path(path)
    answers: dict[str, str] = {}
    for number, line in enumerate(read_lines(path, "utf-8"), 1):
        machine = _MACHINE_LINE.match(line)
        id, letter = (machine[1], machine[2]) if machine else _csv_answer(path, number, line)
        if id != "id":
            answers[id] = letter
    missing = [question.id for question in questions if question.id not in answers]
    if missing:
        others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise NcelmError(f"{path} has no answer to question {missing[0]}{others}")
    return answers


def _csv_answer(path: Path, number: int, line: str) -> tuple[str, str]:
    id, _, letter = (part.strip() for part in line.partition(","))
    if id != "id" and (not id or letter not in list(LETTERS)):
        raise NcelmError(
            f"{path}, line {number}: there should be the id of a question, a comma and a letter from a to e"
        )
    return id, letter


def _csv_questions(path: Path, lines: list[str]) -> Iterator[Question]:
    for number, row in enumerate(csv.reader(lines), 1):
        if row[0].strip() == "id":
            continue
        if len(row) != 2 + len(LETTERS):
            raise NcelmError(
                f"{path}, line {number}: there should be an id, a question and {len(LETTERS)} choices, not "
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
            raise NcelmError(f"{path}, line {first + 1}: five lines should follow, a) to e) of one question")
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
        raise NcelmError(f"{path}: question {id} has an empty choice")
    return Question(id, sentence, words)
