"""Sentence completion: choose the words for the gaps of a sentence (section 5 of the paper).

**Questions** are sentences with gaps, written `_____`, and choices for them. A file of questions has one of three
formats. CSV, with any number of choices, which may differ from question to question:

    id,question,a),b),c)
    1,you are both an orphan and a bachelor and are _____ alone in London.,crying,residing,matched
    2,"He went to _____ , and stayed there.",New York,bed,

JSON Lines, one object per line:

    {"id": 1, "question": "The _____ sat on the _____ .", "choices": [["cat", "mat"], ["sea", "ship"]], "answer": "a"}

and the "machine format" of the MSR Sentence Completion Challenge (Zweig & Burges 2011), five lines per question:

    1a) you are both an orphan and a bachelor and are [crying] alone in London.

A choice may have several words. A choice for several gaps gives the words for each gap, separated by semicolons
("cat; mat"), or as a list in JSON and Python. Answers are letters or the choices themselves. They are in the field
"answer", in a last column "answer" of the CSV file, or in a file of their own with lines `id,answer`.

The sentence is tokenized like the training text of the model, as a whole, with a placeholder in each gap.

**Scores** of a language model are log-probabilities of the whole sentence; those of a two-sided model, of the words in
the gaps. They are not divided by the number of tokens: a choice of more tokens is a longer, and usually less probable,
sentence.

**Unknown words.** A language model assigns a probability to `<unk>`, which stands for many words. A choice that is not
in the vocabulary must not win because `<unk>` is frequent. There are three policies (`unknown`):

- "distribute", the default: P(`<unk>`|h) is divided by the number of distinct words that `<unk>` stands for in the
  training text: log P(choice) = log P(`<unk>`|h) − log(number), for each unknown token of a choice. Stores record the
  number; `ncelm.text.vocabulary.estimate_unknown_types` estimates it where it is not known.
- "exclude": a choice with an unknown token has the score −∞ and is ranked after all known choices. If a question has no
  known choices, none is excluded. Models without such probabilities use this policy instead of "distribute": LSA, PMI,
  ensembles that contain them, and models in whose training text `<unk>` does not occur.
- "token": an unknown token is scored as `<unk>`.

Unknown words outside of the gaps are scored as `<unk>`: they are the same for all choices.
"""

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Literal, get_args

import numpy as np

from ncelm.arguments import (
    check,
    check_bool,
    check_callable,
    check_choice,
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
from ncelm.io.files import parse_json
from ncelm.models.base import Gap, Scorer, check_scorer
from ncelm.text.readers import read_lines
from ncelm.text.settings import TextSettings

UnknownPolicy = Literal["distribute", "exclude", "token"]

GAP = re.compile(r"_{2,}")
SEPARATOR = ";"  # of the words for several gaps
MAX_PROPOSED_GAPS = 8  # for which `most_likely` finds words
SWEEPS = 5  # of `most_likely` over the gaps, at most
_PLACEHOLDER = "xgapx"  # letters only, so that tokenizers keep it as one word
_MACHINE_LINE = re.compile(r"\s*(\d+)([a-e])\)\s*(.*)$")
_MACHINE_LETTERS = "abcde"
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True)
class Question:
    """A sentence with gaps, and the choices for them."""

    id: str  # empty for a sentence that is not from a file
    sentence: str  # with _____ in each gap
    choices: tuple[str, ...]  # for several gaps, the words for each gap, separated by semicolons
    answer: str | None = None  # the letter of the correct choice, if it is known

    def __post_init__(self) -> None:
        """Validate the fields. Lists become tuples, and a list of words for several gaps a string."""
        check_str("id", self.id)
        check_str("sentence", self.sentence)
        choices = check_iterable("choices", self.choices, "a list of strings, or of lists of strings for several gaps")
        gaps = len(GAP.findall(self.sentence))
        set_checked(self, "choices", tuple(_joined(choice, gaps) for choice in choices))
        check("choices", self.choices, len(self.choices) > 0, "at least one word")
        if self.answer is not None:
            set_checked(self, "answer", answer_letter(self.answer, self.choices))

    def gap(self, text: TextSettings) -> Gap:
        """Return the question tokenized with these settings."""
        return parse_gap(self.sentence, self.choices, text, f"question {self.id}" if self.id else "the sentence")


def _joined(choice: object, gaps: int) -> str:
    """Return a choice as a string; a list has the words for each gap, which are joined by semicolons."""
    if isinstance(choice, str):
        return choice
    words = check_strings("choices", choice)
    check("choices", choice, len(words) == gaps, f"a list of {gaps} strings, one for each gap, or a string")
    check("choices", choice, not any(SEPARATOR in word for word in words), "words without semicolons for each gap")
    return f"{SEPARATOR} ".join(words)


@dataclass(frozen=True)
class Ranking:
    """The scores that a model assigns to the choices of a question."""

    id: str
    choices: tuple[str, ...]
    scores: tuple[float, ...]  # in the order of the choices; comparable within a question only; −∞ if excluded
    unknown: tuple[str, ...] = ()  # the choices with a token that is not in the vocabulary

    @property
    def order(self) -> list[int]:
        """Indices of the choices, best first; ties keep their order."""
        return sorted(range(len(self.scores)), key=lambda i: -self.scores[i])

    @property
    def letter(self) -> str:
        """The letter of the best choice."""
        return letter(self.order[0])


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


def letter(index: int) -> str:
    """Return the letter of a choice: a, b, …, z, aa, ab, … for the indices 0, 1, …

    >>> letter(0), letter(25), letter(26)
    ('a', 'z', 'aa')
    """
    text, rest = "", index + 1
    while rest:
        rest, digit = divmod(rest - 1, len(ascii_lowercase))
        text = ascii_lowercase[digit] + text
    return text


def answer_letter(answer: str, choices: Sequence[str]) -> str:
    """Return the letter of an answer, which is a letter ("b", "B" or "b)") or one of the choices.

    >>> answer_letter("sail", ["oven", "sail"])
    'b'
    """
    text = check_str("answer", answer).strip()
    letters = [letter(i) for i in range(len(choices))]
    if text.endswith(")") and text[:-1].lower() in letters:
        return text[:-1].lower()
    is_letter, found = text.lower() in letters, [i for i, choice in enumerate(choices) if _same(choice, text)]
    if is_letter and found and letters[found[0]] != text.lower():
        raise ArgumentError(
            f"`answer` is {shown(text)}, which is a letter and also the choice {letters[found[0]]}): give "
            f"{text.lower()!r} as '{text.lower()})', and the choice as '{letters[found[0]]})'"
        )
    if not (is_letter or found):
        raise ArgumentError(f"`answer` is {shown(text)}: give a letter from a to {letters[-1]}, or one of the choices")
    return text.lower() if is_letter else letters[found[0]]


def _same(one: str, other: str) -> bool:
    """Return whether two choices are equal, apart from blanks."""
    return [part.split() for part in one.split(SEPARATOR)] == [part.split() for part in other.split(SEPARATOR)]


# -- gaps --------------------------------------------------------------------------------------------------------------


def parse_gap(sentence: str, choices: Sequence[str], text: TextSettings, where: str) -> Gap:
    """Return a sentence with gaps (_____), and each choice, as tokens; `where` starts error messages."""
    gaps = _check_gaps(sentence, choices, where)
    if text.pieces:
        return _parse_pieces(sentence, choices, text, where)
    words = text.words(GAP.sub(_PLACEHOLDER, sentence))
    places = [i for i, word in enumerate(words) if word == _PLACEHOLDER]
    if len(places) != gaps:
        raise NcelmError(f"{where}: a gap is attached to a word: put blanks around it: {sentence[:60]!r}")
    parts = [words[begin + 1 : end] for begin, end in zip([-1, *places], [*places, len(words)], strict=True)]

    def tokens(filler: str, gap: int) -> list[str]:
        # Between placeholders: the Treebank tokenizer splits off a full stop at the end of a sentence only.
        left, right = [_PLACEHOLDER] * (places[gap] > 0), [_PLACEHOLDER] * (places[gap] < len(words) - 1)
        found = text.words(" ".join([*left, filler, *right]))
        return found[len(left) : len(found) - len(right)]

    fillers = [[tokens(filler, i) for i, filler in enumerate(_fillers(choice, gaps))] for choice in choices]
    return _make_gap(parts, fillers)


def _parse_pieces(sentence: str, choices: Sequence[str], text: TextSettings, where: str) -> Gap:
    """Return a sentence with gaps and choices as pieces: what each part adds to the pieces of the text before it."""
    texts, filled = GAP.split(sentence), [_fillers(choice, len(GAP.findall(sentence))) for choice in choices]
    parts, fillers = [text.words(texts[0])], [list[list[str]]() for _ in choices]
    before = texts[0]
    for gap, following in enumerate(texts[1:]):
        start = len(text.words(before))
        for found, choice in zip(fillers, filled, strict=True):
            found.append(text.words(before + choice[gap])[start:])
            if not found[-1]:
                raise NcelmError(f"{where}: a gap is attached to a word: put blanks around it: {sentence[:60]!r}")
        before += filled[0][gap]
        start = len(text.words(before))
        before += following
        parts.append(text.words(before)[start:])
    return _make_gap(parts, fillers)


def _make_gap(parts: list[list[str]], fillers: list[list[list[str]]]) -> Gap:
    """Return the gaps between the parts of a sentence, with the tokens that each choice puts into each gap."""
    if len(parts) == 2:
        return Gap(parts[0], [choice for (choice,) in fillers], parts[1])
    return Gap(parts[0], fillers, parts[-1], parts[1:-1])


def _fillers(choice: str, gaps: int) -> list[str]:
    """Return the words that a choice puts into each gap. With one gap, a semicolon is part of the words."""
    return [part.strip() for part in choice.split(SEPARATOR)] if gaps > 1 else [choice.strip()]


def _check_gaps(sentence: str, choices: Sequence[str], where: str) -> int:
    """Return the number of gaps of a sentence; raise an error unless every choice has words for each of them."""
    gaps = len(GAP.findall(sentence))
    if gaps == 0:
        raise NcelmError(f"{where} has no gaps: mark them with _____: {sentence[:60]!r}")
    for choice in choices:
        fillers = _fillers(choice, gaps)
        if len(fillers) != gaps:
            raise NcelmError(
                f"{where} has {gaps} gaps, and the choice {choice[:60]!r} has words for {len(fillers)}: give words for "
                f"each gap, separated by {SEPARATOR!r}"
            )
        if not all(fillers):
            raise NcelmError(f"{where} has an empty choice: give at least one word for each gap")
    return gaps


# -- rankings ----------------------------------------------------------------------------------------------------------


def rank(
    scorer: Scorer,
    questions: Sequence[Question],
    *,
    normalised: bool = True,
    unknown: UnknownPolicy = "distribute",
    progress: Callable[[int, int], None] | None = None,
) -> list[Ranking]:
    """Return a model's ranking of the choices of each question.

    Args:
        scorer: a model, such as `ncelm.load_scorer` returns.
        questions: of `read_questions`, or made by `Question`.
        normalised: rank by normalised probabilities, not by unnormalised scores.
        unknown: the policy for choices that are not in the vocabulary: "distribute" the probability of `<unk>` over the
            words it stands for, "exclude" these choices, or score them as the "token" `<unk>`.
        progress: called with the number of questions done and the total.
    """
    check_bool("normalised", normalised)
    return select_rankings(rank_both(scorer, questions, progress, unknown=unknown), normalised)


def select_rankings(rankings: dict[str, list[Ranking]], normalised: bool) -> list[Ranking]:
    """Return the normalised or the unnormalised rankings of `rank_both`, which may be the same."""
    return rankings["normalised" if normalised or "unnormalised" not in rankings else "unnormalised"]


def rank_both(
    scorer: Scorer,
    questions: Sequence[Question],
    progress: Callable[[int, int], None] | None = None,
    *,
    unknown: UnknownPolicy = "distribute",
) -> dict[str, list[Ranking]]:
    """Return a model's rankings by normalised probabilities and, if they differ, by unnormalised scores.

    The keys are "normalised" and "unnormalised". The arguments are those of `rank`.
    """
    policy = unknown_policy(scorer, unknown)
    questions = _check_questions(questions)
    check_callable("progress", progress)
    rankings: dict[str, list[Ranking]] = {"normalised": [], "unnormalised": []}
    gaps = [question.gap(scorer.text) for question in questions]
    for question, gap, both in zip(questions, gaps, scorer.choice_scores(gaps), strict=True):
        counts = _unknown_tokens(scorer, gap)
        names = tuple(choice for choice, count in zip(question.choices, counts, strict=True) if count)
        for kind, scores in both._asdict().items():
            final = _apply_policy(policy, scores, counts, scorer.log_unknown_types)
            rankings[kind].append(Ranking(question.id, question.choices, tuple(final), names))
        if progress:
            progress(len(rankings["normalised"]), len(questions))
    same = rankings["normalised"] == rankings["unnormalised"]
    return {"normalised": rankings["normalised"]} if same else rankings


def unknown_policy(scorer: Scorer, unknown: UnknownPolicy) -> UnknownPolicy:
    """Return the policy that applies to a model: "exclude" instead of "distribute" if it cannot distribute."""
    check_scorer("scorer", scorer)
    check_choice("unknown", unknown, get_args(UnknownPolicy))
    return "exclude" if unknown == "distribute" and scorer.log_unknown_types is None else unknown


def _apply_policy(
    policy: UnknownPolicy, scores: list[float], counts: list[int], log_unknown_types: float | None
) -> list[float]:
    """Return the scores of the choices of a question, given the number of unknown tokens of each."""
    if policy == "distribute" and log_unknown_types is not None:
        return [score - count * log_unknown_types for score, count in zip(scores, counts, strict=True)]
    if policy == "exclude" and not all(counts):
        return [-math.inf if count else score for score, count in zip(scores, counts, strict=True)]
    return scores


def _unknown_tokens(scorer: Scorer, gap: Gap) -> list[int]:
    """Return the number of tokens of each choice that are not in the vocabulary."""
    words = scorer.vocabulary
    choices = ([token for tokens in fillers for token in tokens] for fillers in gap.fillers())
    return [int(np.count_nonzero(words.encode(tokens) == words.unknown_id)) for tokens in choices]


def _check_questions(questions: object) -> list[Question]:
    """Return a list of questions."""
    found = list(check_iterable("questions", questions, "a list of questions"))
    check_type("questions", found, all(isinstance(each, Question) for each in found), "a list of questions")
    return found


def accuracy(rankings: Sequence[Ranking], answers: Mapping[str, str]) -> Accuracy:
    """Return the accuracy of rankings; `answers` are the correct letters, or the correct choices, by id."""
    found = list(check_iterable("rankings", rankings, "a list of rankings"))
    check_type("rankings", found, all(isinstance(each, Ranking) for each in found), "a list of rankings")
    check("rankings", found, len(found) > 0, "at least one ranking")
    check_type("answers", answers, isinstance(answers, Mapping), "a dictionary of ids and letters")
    for ranking in found:
        if ranking.id not in answers:
            raise ArgumentError(f"`answers` has no answer to question {shown(ranking.id)}: give the answers to all")
    correct = sum(ranking.letter == answer_letter(answers[ranking.id], ranking.choices) for ranking in found)
    return Accuracy(correct, len(found))


def unknown_choices(scorer: Scorer, choices: Sequence[str]) -> list[str]:
    """Return the choices for one gap with a token that is not in the model's vocabulary."""
    check_scorer("scorer", scorer)
    choices = check_strings("choices", choices)
    counts = _unknown_tokens(scorer, Gap([], [scorer.text.words(choice) for choice in choices], []))
    return [choice for choice, count in zip(choices, counts, strict=True) if count]


# -- proposals ---------------------------------------------------------------------------------------------------------


def most_likely(scorer: Scorer, sentence: str, n: int = 10) -> list[tuple[str, float]]:
    """Return the n words of the vocabulary with the highest scores in the gap of a sentence, and their scores.

    For several gaps, return the words for all gaps, separated by semicolons: the best that a beam search finds. It
    fills the gaps from left to right, then replaces the words in each gap, given those in the others, until nothing
    improves.
    """
    check_scorer("scorer", scorer)
    sentence, n = check_str("sentence", sentence), check_int("n", n, 1)
    gap = parse_gap(sentence, (), scorer.text, "the sentence")
    if not gap.between:
        return scorer.most_likely(gap.before, gap.after, n)
    if len(gap.between) >= MAX_PROPOSED_GAPS:
        raise NcelmError(
            f"the sentence has {len(gap.between) + 1} gaps: words are proposed for at most {MAX_PROPOSED_GAPS}; give "
            "choices"
        )
    found = _beam_search(scorer, [gap.before, *gap.between, gap.after], max(n, 10))[:n]
    return [(f"{SEPARATOR} ".join(words), score) for words, score in found]


def _beam_search(scorer: Scorer, parts: list[list[str]], width: int) -> list[tuple[tuple[str, ...], float]]:
    """Return up to `width` words for each gap between the parts of a sentence, and their scores, best first."""

    def best(proposals: Iterable[tuple[str, ...]]) -> list[tuple[tuple[str, ...], float]]:
        distinct = list(dict.fromkeys(proposals))
        if not distinct:
            return []
        fillers = [[[word] for word in words] for words in distinct]
        ((scores, _),) = scorer.choice_scores([_make_gap(parts[: len(distinct[0]) + 1], fillers)])
        return sorted(zip(distinct, scores, strict=True), key=lambda each: -each[1])[:width]

    def proposals(words: tuple[str, ...], place: int) -> Iterator[tuple[str, ...]]:
        """Yield `words` with another word at `place`. The sentence ends before the first gap without a word."""
        before, after = [*parts[0]], [*parts[place + 1]]
        for word, part in zip(words[:place], parts[1:], strict=False):
            before += [word, *part]
        for word, part in zip(words[place + 1 :], parts[place + 2 :], strict=False):
            after += [word, *part]
        for word, _ in scorer.most_likely(before, after, width):
            yield (*words[:place], word, *words[place + 1 :])

    gaps, beam = len(parts) - 1, [((), 0.0)]  # type: tuple[int, list[tuple[tuple[str, ...], float]]]
    for place in range(gaps):
        beam = best(each for words, _ in beam for each in proposals(words, place))
    for _ in range(SWEEPS):
        former = beam
        for place in range(gaps):
            beam = best([words for words, _ in beam] + [each for words, _ in beam for each in proposals(words, place)])
        if [words for words, _ in beam] == [words for words, _ in former]:
            break
    return beam


# -- results -----------------------------------------------------------------------------------------------------------


def format_ranking(question: Question, ranking: Ranking, answer: str | None) -> str:
    """Return a question and its choices, best first, as text."""
    mark = "" if answer is None else ("right  " if ranking.letter == answer else "wrong  ")
    best = iter(_fillers(question.choices[ranking.order[0]], len(GAP.findall(question.sentence))))
    choices = ", ".join(
        f"{letter(i)}) {ranking.choices[i]}{' <unk>' * (ranking.choices[i] in ranking.unknown)} "
        f"{format_score(ranking.scores[i], 2)}"
        for i in ranking.order
    )
    return f"{question.id}  {mark}{GAP.sub(lambda gap: f'[{next(best)}]', question.sentence)}\n    {choices}"


def format_score(score: float, digits: int) -> str:
    """Return a score as text."""
    return "excluded" if score == -math.inf else f"{score:.{digits}f}"


def as_dict(
    questions: Sequence[Question],
    rankings: Sequence[Ranking],
    answers: Mapping[str, str] | None,
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
            "unknown": list(ranking.unknown),
            **({"right": ranking.letter == answers[question.id]} if answers else {}),
        }
        for question, ranking in zip(questions, rankings, strict=True)
    ]
    return content


# -- files -------------------------------------------------------------------------------------------------------------


def read_questions(path: Path | str) -> list[Question]:
    """Return the questions of a file in CSV, JSON Lines or machine format."""
    path = check_path("path", path)
    lines = _read(path)
    if not lines:
        raise NcelmError(f"{path} is empty: give a file with questions")
    first = next(iter(lines.values()))
    if _MACHINE_LINE.match(first):
        questions = list(_machine_questions(path, lines))
    elif first.lstrip().startswith("{"):
        questions = list(_json_questions(path, lines))
    else:
        questions = list(_csv_questions(path, lines))
    if not questions:
        raise NcelmError(f"{path} has no questions: give another file")
    return questions


def read_answers(path: Path | str, questions: Sequence[Question]) -> dict[str, str]:
    """Return the correct letters by the ids of questions, from a file in CSV, JSON Lines or machine format.

    A line is `id,answer`, where the answer is a letter or one of the choices; {"id": …, "answer": …}; or the line of
    the correct choice in machine format. Answers to other questions are ignored.
    """
    path, questions = check_path("path", path), _check_questions(questions)
    by_id = {question.id: question for question in questions}
    answers: dict[str, str] = {}
    for number, line in _read(path).items():
        where = f"{path}, line {number:,}"
        id, answer = _answer(where, line)
        if id in answers:
            raise NcelmError(f"{where}: question {id} has two answers: give one")
        if id in by_id:  # the header is not
            answers[id] = _checked_answer(where, answer, by_id[id].choices)
    missing = [question.id for question in questions if question.id not in answers]
    if missing:
        others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise NcelmError(f"{path} has no answer to question {missing[0]}{others}: give the answers to these questions")
    return answers


def given_answers(questions: Sequence[Question]) -> dict[str, str] | None:
    """Return the correct letters by the ids of questions; None if the questions have none."""
    answers = {question.id: question.answer for question in questions if question.answer is not None}
    for question in questions if answers else ():
        if question.id not in answers:
            raise NcelmError(
                f"question {question.id} has no answer, but others have: give the answers to all, or to none"
            )
    return answers or None


def _read(path: Path) -> dict[int, str]:
    """Return the lines of a file that are not blank, by their numbers."""
    lines = enumerate(read_lines(path, "utf-8", keep_blank=True), 1)
    return {number: line for number, line in lines if line.strip()}


def _answer(where: str, line: str) -> tuple[str, str]:
    """Return the id and the answer of a line of a file of answers."""
    if machine := _MACHINE_LINE.match(line):
        return machine[1], machine[2]
    if line.lstrip().startswith("{"):
        content = _json_object(where, line)
        return _json_id(where, content), _json_choice(where, "answer", content.get("answer"))
    row = next(_csv_rows(where, {1: line}))[1]
    if len(row) != 2 or not all(row):
        raise NcelmError(f"{where}: expected the id of a question, a comma and a letter or a choice")
    return row[0], row[1]


def _checked_answer(where: str, answer: str, choices: Sequence[str]) -> str:
    try:
        return answer_letter(answer, choices)
    except ArgumentError as error:
        raise NcelmError(f"{where}: {str(error).replace('`answer`', 'the answer')}") from None


def _csv_rows(where: str, lines: dict[int, str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file with their line numbers. Cells have no blanks around them."""
    numbers = list(lines)
    reader = csv.reader((f"{line}\n" for line in lines.values()), strict=True, skipinitialspace=True)
    while True:
        first = reader.line_num  # lines before the row, which may have several
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            place = f"{where}, line {numbers[min(first, len(numbers) - 1)]:,}" if len(numbers) > 1 else where
            raise NcelmError(
                f"{place} is not CSV: {error}: put cells with commas or quotation marks in quotes"
            ) from None
        yield numbers[first], [" ".join(cell.split()) for cell in row]


def _csv_questions(path: Path, lines: dict[int, str]) -> Iterator[Question]:
    header: list[str] = []
    seen: set[str] = set()
    for number, row in _csv_rows(str(path), lines):
        where = f"{path}, line {number:,}"
        if number == next(iter(lines)) and row[0].lower() == "id":
            header = _csv_header(where, row)
            continue
        if header and len(row) > len(header):
            raise NcelmError(
                f"{where}: found {len(row)} cells, but the header has {len(header)}: put cells with commas in quotes"
            )
        answer = None
        if "answer" in header:
            if len(row) < len(header):
                raise NcelmError(f"{where}: found {len(row)} of {len(header)} cells: leave cells without choices empty")
            answer = row.pop() or None
        choices = row[2:]
        while choices and not choices[-1]:
            choices.pop()
        yield _question(where, seen, row[0], row[1] if len(row) > 1 else "", choices, answer)


def _csv_header(where: str, row: list[str]) -> list[str]:
    """Return the header of a CSV file of questions: id, question, a), b), …, and answer, if there are answers."""
    names = [cell.lower() for cell in row]
    while not names[-1]:
        names.pop()
    choices = names[2:-1] if names[-1] == "answer" else names[2:]
    letters = [letter(i) for i in range(len(choices))]
    if names[1:2] != ["question"] or [name.removesuffix(")") for name in choices] != letters or len(choices) < 2:
        raise NcelmError(f"{where}: the header is {','.join(row)[:60]!r}: it must be id,question,a),b),… or …,answer")
    return names


def _json_questions(path: Path, lines: dict[int, str]) -> Iterator[Question]:
    seen: set[str] = set()
    for number, line in lines.items():
        where = f"{path}, line {number:,}"
        content = _json_object(where, line)
        question, choices = _json_text(where, "question", content.get("question")), content.get("choices")
        if not isinstance(choices, list):
            raise NcelmError(f'{where}: expected "choices", a list of strings, or of lists of strings for several gaps')
        answer, gaps = content.get("answer"), len(GAP.findall(question))
        for choice in choices:
            if isinstance(choice, list) and len(choice) != gaps:
                raise NcelmError(f'{where}: "choices" has {shown(choice)}: give one string for each of {gaps} gaps')
        yield _question(
            where,
            seen,
            _json_id(where, content),
            question,
            [_json_choice(where, "choices", choice) for choice in choices],
            None if answer is None else _json_choice(where, "answer", answer),
        )


def _json_object(where: str, line: str) -> dict[str, Any]:
    try:
        content = parse_json(line)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise NcelmError(
            f'{where}: expected a JSON object, such as {{"id": 1, "question": "…", "choices": ["…", "…"]}}'
        )
    return content


def _json_id(where: str, content: dict[str, Any]) -> str:
    id = content.get("id")
    return str(id) if type(id) is int and abs(id) < 10**18 else _json_text(where, "id", id)


def _json_choice(where: str, name: str, choice: object) -> str:
    """Return a choice, or the words for each gap, as a string."""
    if not isinstance(choice, list):
        return _json_text(where, name, choice)
    words = [_json_text(where, name, word) for word in choice]
    if any(SEPARATOR in word for word in words):
        raise NcelmError(f"{where}: a choice for several gaps has a semicolon, which separates the words: remove it")
    return f"{SEPARATOR} ".join(words)


def _json_text(where: str, name: str, value: object) -> str:
    text = " ".join(value.split()) if isinstance(value, str) else ""
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        text = ""
    if not text:
        raise NcelmError(f'{where}: "{name}" is {shown(value)}: give text')
    return text


def _machine_questions(path: Path, lines: dict[int, str]) -> Iterator[Question]:
    numbered, seen, size = list(lines.items()), set[str](), len(_MACHINE_LETTERS)
    for first in range(0, len(numbered), size):
        group = numbered[first : first + size]
        where = f"{path}, line {group[0][0]:,}"
        matches = [_MACHINE_LINE.match(line) for _, line in group]
        ids = {match[1] for match in matches if match}
        letters = "".join(match[2] for match in matches if match)
        if len(ids) != 1 or letters != _MACHINE_LETTERS:
            raise NcelmError(f"{where}: expected five lines, a) to e) of one question")
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
        yield _question(where, seen, ids.pop(), sentences[0], choices, None)


def _question(
    where: str, seen: set[str], id: str, sentence: str, choices: Sequence[str], answer: str | None
) -> Question:
    """Return a question of a file after checks; `seen` are the ids of the questions before it."""
    if not id:
        raise NcelmError(f"{where}: the question has no id: give each question one")
    if id in seen:
        raise NcelmError(f"{where}: question {id} is a duplicate: give each question its own id")
    seen.add(id)
    if len(choices) < 2:
        raise NcelmError(f"{where}: question {id} has fewer than two choices: give two or more")
    _check_gaps(sentence, choices, f"{where}: question {id}")
    letter = None if answer is None else _checked_answer(where, answer, choices)
    return Question(id, sentence, tuple(choices), letter)
