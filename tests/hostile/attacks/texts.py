"""Hostile texts: encodings, control characters, long lines, pipes, links, damaged compression."""

import gzip
import itertools
import os
import re
from pathlib import Path
from random import Random

from tests.hostile.answers import answer_of
from tests.hostile.mutations import damage
from tests.hostile.outcome import HARMLESS, REJECTED, Family, Place, Violation
from tests.hostile.tools import check_command, command

from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore

ENCODINGS = (
    "utf-8",
    "utf-8",
    "utf-8",
    "latin-1",
    "utf-16",
    "utf-8-sig",
    "utf-16-le",
    "utf-32",
    "cp1252",
    "koi8-r",
    "ascii",
)
PIECES = (
    *(
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
        " ",
        " ",
        " ",
        " ",
        "  ",
        "\n",
        "\n",
        "\n",
        "\r\n",
        "\r",
        "\n\n",
        "\t",
        ". ",
    ),
    *(
        "\x0b",
        "\x0c",
        "\x1c",
        "\x1d",
        "\x1e",
        "\x85",
        "\u2028",
        "\u2029",
        "\u00a0",
        "\u3000",
        "\u200b",
        "\ufeff",
        "\x1a",
    ),
    *(
        "é",
        "日本",
        "\U0001f600",
        "a\u0301",
        "<s>",
        "</s>",
        "<unk>",
        "<UNK>",
        "\0",
        "\x1b[31m",
        "\x7f",
        "ß",
        "İ",
        "ﬁ",
        "\ufffd",
    ),
    *(
        "Mr. ",
        "e.g. ",
        "...",
        "'s",
        "''",
        "``",
        '"',
        "don't",
        "1,000.5",
        "--",
        "(",
        ")",
        "_____",
        "\\",
        "%",
        "x" * 1000,
    ),
)
RESERVED = ("<s>", "</s>", "<unk>")


def hostile_text(random: Random) -> str:
    """Return a text of unusual pieces."""
    pieces = random.choices(PIECES, k=random.choice((0, 1, 5, 60, 400)))
    if random.random() < 0.7:
        pieces = [piece for piece in pieces if piece != "\0"]
    glue = random.choice(("", " ", " ", " "))
    return glue.join(pieces) + ("the cat sat\n" * 3 if random.random() < 0.5 else "")


def hostile_bytes(random: Random, text: str) -> tuple[bytes, str]:
    """Return the bytes of a text, possibly damaged, and an encoding in which they may be."""
    encoding = random.choice(ENCODINGS)
    content = text.encode(encoding, errors="replace")
    if random.random() < 0.2:
        content = damage(random, content)
    given = encoding if random.random() < 0.8 else random.choice((*ENCODINGS, "no-such", "rot13", "base64", "idna", ""))
    return content, given


def lines_of(text: str) -> list[list[str]]:
    r"""Return the words of the lines of a text: lines end at \n, \r\n and \r only."""
    return [line.split() for line in re.split(r"\r\n|\n|\r", text.removeprefix("\ufeff")) if line.split()]


def tokenized_text(random: Random, place: Place) -> str:
    """Prepare a text with one sentence per line; compare the store with the text."""
    text = hostile_text(random)
    content, encoding = hostile_bytes(random, text)
    compressed = random.random() < 0.2
    path = place.folder / ("text.gz" if compressed else "text")
    if compressed:
        content = gzip.compress(content, mtime=0)
        content = damage(random, content) if random.random() < 0.5 else content
    path.write_bytes(content)
    lowercase = random.random() < 0.2
    boundary = random.choice(("stream", "sentence"))
    prepare(
        train=path,
        valid=path,
        out=place.folder / "out",
        encoding=encoding,
        lowercase=lowercase,
        boundary=boundary,
        workers=1,
    )
    store = TokenStore.open(place.folder / "out")
    raw = gzip.decompress(content) if compressed else content
    expected = lines_of(raw.decode(encoding, "ignore"))
    if lowercase:
        expected = [[word.lower() for word in line] for line in expected]
    expected = [["<unk>" if word in RESERVED else word for word in line] for line in expected]
    for split in store.splits.values():
        bounds = split.sentences.tolist()
        found = [
            [store.vocabulary.word(int(i)) for i in split.ids[begin : end - 1]]
            for begin, end in itertools.pairwise(bounds)
        ]
        if found != expected:
            where = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), len(expected))
            raise Violation(f"the store differs from the text in sentence {where}: {found[where : where + 1]}")
    return HARMLESS


def prose_text(random: Random, place: Place) -> str:
    """Prepare prose from a folder with unusual files."""
    folder = place.folder / "texts"
    folder.mkdir()
    (folder / "good.txt").write_text("Mr. Smith met Dr. Jones. They spoke. Then he left.\n\n" * 20)
    content, encoding = hostile_bytes(random, hostile_text(random))
    path = folder / random.choice(("a.txt", "a.gz", "a b", "é", "x\ny", "-", "a.tar", "\udcff"))
    gutenberg = random.random() < 0.4
    match random.randrange(10):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to(random.choice((path.name, "..", "/dev/zero", "missing", "/proc/self/mem", "good.txt", ".")))
        case 2:
            path.mkdir()
            (path / "loop").symlink_to("..")
        case 3:
            path.mkdir()
            (path / "deep").mkdir()
        case 4:
            os.link(folder / "good.txt", path)
        case _:
            path.write_bytes(content)
    texts = [folder] if random.random() < 0.8 else [path]
    prepare(
        texts,
        out=place.folder / "out",
        punkt="train",
        encoding=encoding,
        gutenberg=gutenberg,
        skip_broken=gutenberg and random.random() < 0.5,
        valid_sentences=random.choice((0, 3, None)),
        test_sentences=random.choice((0, 3)),
        workers=1,
    )
    answer_of(place.folder / "out")
    return HARMLESS


def scored_text(random: Random, place: Place) -> str:
    """Score or evaluate a hostile text with a command."""
    content, encoding = hostile_bytes(random, hostile_text(random))
    path = place.folder / "text"
    path.write_bytes(content)
    runs = [run for run in place.corpus.runs if run not in ("lsa", "pmi", "ensemble")]
    run = place.corpus.folder / random.choice(runs)
    options = ["--encoding", encoding, "--threads", 1, "--json"]
    if random.random() < 0.3:
        arguments = ["evaluate", run, "--file", path, *options]
    else:
        arguments = [
            "score",
            run,
            path,
            *options,
            *random.choice(((), ("--per-word",), ("--no-end",), ("--unnormalised",))),
        ]
    code, out, errors = command(arguments)
    outcome = check_command(code, errors)
    if outcome == REJECTED:
        if out and arguments[0] == "evaluate":
            raise Violation(f"output of a command that failed: {out[:200]}")
        return REJECTED
    if "NaN" in out or "Infinity" in out:
        raise Violation(f"a number that is not finite: {out[:300]}")
    if arguments[0] == "score":
        try:
            decoded = content.decode(encoding).removeprefix("\ufeff")
        except UnicodeError:  # a part of a byte order mark at the end of a file is not an error in a stream
            return HARMLESS
        expected = len(re.split(r"\r\n|\n|\r", decoded)) - (decoded.endswith(("\n", "\r")) or not decoded)
        if out.count("\n") != expected:
            raise Violation(f"{out.count(chr(10))} results for {expected} lines")
    return HARMLESS


QUESTIONS = ("questions.csv", "questions.jsonl", "machine.txt")


def hostile_questions(random: Random, place: Place) -> str:
    """Answer a hostile file of questions with a command."""
    folder = place.corpus.folder
    questions, answers = place.folder / "questions", place.folder / "answers.csv"
    questions.write_bytes(_mutated(random, folder / random.choice(QUESTIONS)))
    answers.write_bytes(_mutated(random, folder / "answers.csv"))
    run = folder / random.choice(("log-bilinear", "two-sided", "ngram", "lsa", "pmi", "ensemble", "mixture"))
    given = ("--answers", answers) if random.random() < 0.7 else ()
    code, out, errors = command(["complete", run, questions, *given, "--threads", 1, *random.choice(((), ("--json",)))])
    outcome = check_command(code, errors)
    if outcome == REJECTED and out:
        raise Violation(f"output of a command that failed: {out[:200]}")
    if "NaN" in out or "Infinity" in out or " nan" in out:
        raise Violation(f"a number that is not finite: {out[:300]}")
    return outcome


def _mutated(random: Random, path: Path) -> bytes:
    """Return the content of a file with some changed lines, fields or bytes."""
    text = path.read_text()
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        lines = text.split("\n")
        at = random.randrange(len(lines))
        fields = lines[at].split(",")
        match random.randrange(9):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[random.randrange(len(lines))])
            case 2 | 3:
                extra = random.choice(
                    (*PIECES, "[a]", "[[a]]", "[]", "__", '"a,b"', '"', '"a\nb"', "a)", "f", "5000", "_____ _____")
                )
                fields[random.randrange(len(fields))] = extra
                lines[at] = ",".join(fields)
            case 4:
                lines[at] = lines[at].replace(
                    "_____", random.choice(("", "_", "__", "x_____", "_____ _____", "_____."))
                )
            case 5:
                random.shuffle(fields)
                lines[at] = ",".join(fields)
            case 6:
                lines[at] += random.choice((",", ",x", "\r", "\0", '"', "\t"))
            case 7:
                lines[at] = lines[at].replace(",", random.choice((";", "\t", ", ", ",,")))
            case _:
                lines = lines[:at]
        text = "\n".join(lines)
    content = text.encode(random.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16")), errors="replace")
    return damage(random, content) if random.random() < 0.15 else content


FAMILIES = [
    Family("texts", tokenized_text, share=2),
    Family("prose", prose_text, share=2),
    Family("scored-texts", scored_text, share=1),
    Family("questions", hostile_questions, share=1),
]
