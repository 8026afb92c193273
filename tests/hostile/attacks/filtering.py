"""Hostile documents, states of unfinished filtering, and tokenizer files."""

import json
import math
from functools import cache
from pathlib import Path
from random import Random

from tests.hostile.attacks.texts import hostile_text
from tests.hostile.mutations import damage
from tests.hostile.outcome import HARMLESS, REJECTED, Family, Place, Violation, without_attack
from tests.hostile.tools import check_command, command

from ncelm.errors import NcelmError
from ncelm.filtering.run import filter_documents
from ncelm.io.files import json_checksum
from ncelm.text.pieces import Pieces, Training, train_pieces

VALUES = (
    None,
    1,
    1e400,
    True,
    [],
    {},
    "",
    "the cat",
    "\ud800",
    "a\0b",
    "the cat\nsat on\n\na mat",
    "x" * 5000,
    "é日本",
)
LINES = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"text": }',
    b'{"text": "a"} x',
    b"\xff\xfe",
    b"\0",
    b'{"a":' * 3000,
    b"NaN",
    b'"x"',
)


def documents(random: Random, place: Place) -> str:
    """Filter hostile JSON lines with a command; compare the number of documents, and their order, with the input."""
    path = place.folder / random.choice(
        ("a.jsonl", "a.jsonl.gz", "a.jsonl.xz", "a.jsonl.zst", "a.txt", "a.parquet", "é")
    )
    lines: list[bytes] = []
    for number in range(random.choice((0, 1, 12, 200))):
        kind = random.random()
        text = random.choice(VALUES) if kind < 0.1 else hostile_text(random) if kind < 0.3 else "the cat sat on a mat"
        row = {"n": number, "text": text, **({"perplexity": 1, "bucket": "x"} if random.random() < 0.1 else {})}
        line = json.dumps(row, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")
        lines.append(random.choice(LINES) if random.random() < random.choice((0, 0.02, 0.3)) else line)
    content = b"\n".join(lines) + random.choice((b"", b"\n", b"\r\n"))
    path.write_bytes(damage(random, content) if random.random() < 0.2 else content)
    skip = random.random() < 0.6
    out = place.folder / "out"
    arguments = [
        "filter",
        place.corpus.folder / random.choice(("ngram", "log-bilinear", "mixture")),
        path,
        "--out",
        out,
    ]
    arguments += random.choice((("--threshold", 20, "--rejected"), ("--score-only",), (), ("--keep", 30)))
    arguments += ["--skip-broken"] if skip else []
    arguments += random.choice(((), ("--html",), ("--compress", "gz"), ("--format", "text")))
    code, printed, errors = command([*arguments, "--workers", 1, "--json"])
    outcome = check_command(code, errors)
    finished = (
        [file for file in out.glob("*") if file.name.startswith(("kept", "rejected", "head", "scored"))]
        if out.exists()
        else []
    )
    if outcome == REJECTED:  # the output of blocks before the error may be resumed from
        if printed or any(not file.name.endswith(".unfinished") for file in finished):
            raise Violation(f"output of a command that failed: {printed[:200]} {finished}")
        return REJECTED
    _check_result(json.loads(printed), out)
    return HARMLESS


def _check_result(result: dict, out: Path) -> None:
    numbers = []
    for bucket, name in result["outputs"].items():
        if not name.endswith(".jsonl"):
            continue
        rows = [json.loads(line) for line in Path(name).read_text("utf-8").split("\n") if line]
        if len(rows) != result["documents"][bucket]:
            raise Violation(f"{len(rows)} rows of {bucket}, and {result['documents'][bucket]} counted")
        for row in rows:
            value = row.get("perplexity", row.get("pseudo_perplexity"))
            if value is not None and not (math.isfinite(value) and value > 0):
                raise Violation(f"a perplexity of {value}")
        found = [row["n"] for row in rows if isinstance(row.get("n"), int)]
        if found != sorted(found):
            raise Violation(f"{bucket} is not in order")
        numbers += found
    if (out / "filter.html").exists() and "<script" in (out / "filter.html").read_text("utf-8"):
        raise Violation("a script in the page")


def states(random: Random, place: Place) -> str:
    """Resume from a damaged state or with damaged output: the result is that of the undamaged one, or an error."""
    corpus = place.folder / "corpus.jsonl"
    rows = [{"n": number, "text": "the cat sat on a mat" if number % 3 else "mat a on"} for number in range(60)]
    corpus.write_text("\n".join(json.dumps(row) for row in [*rows, {"broken": 1}, *rows]) + "\n")
    run, out = place.corpus.folder / "ngram", place.folder / "out"

    def resume(folder: Path, skip: bool) -> None:
        filter_documents(
            run, corpus, folder, threshold=10, rejected=True, skip_broken=skip, resume=True, workers=1, progress=False
        )

    import ncelm.filtering.blocks as blocks

    former, blocks.BLOCK_BYTES = blocks.BLOCK_BYTES, 500
    try:
        try:
            resume(out, False)
            raise Violation("a broken row was accepted")
        except NcelmError:
            pass
        _damage_state(random, out)
        resume(out, True)
        with without_attack():
            resume(place.folder / "whole", True)
    finally:
        blocks.BLOCK_BYTES = former
    for name in ("kept.jsonl", "rejected.jsonl"):
        if (out / name).read_bytes() != (place.folder / "whole" / name).read_bytes():
            raise Violation(f"{name} is another one after resuming")
    return HARMLESS


def _damage_state(random: Random, out: Path) -> None:
    state = out / "filter.json"
    match random.randrange(5):
        case 0:
            state.write_bytes(damage(random, state.read_bytes()))
        case 1:  # with a right checksum
            content = json.loads(state.read_text())
            content.pop("checksum")
            wrong = (-1, 2**70, "x", None, [], {}, 1.5, True, {"1": -1}, {"../x": {"bytes": 1, "crc32": 1}})
            content[random.choice(sorted(set(content) - {"position", "lines", "source"}))] = random.choice(wrong)
            state.write_text(json.dumps({**content, "checksum": json_checksum(content)}))
        case 2:
            file = random.choice(sorted(out.glob("*.unfinished")))
            file.write_bytes(damage(random, file.read_bytes()))
        case 3:
            random.choice(sorted(out.iterdir())).unlink()
        case _:
            file = random.choice(sorted(out.glob("*.unfinished")))
            file.write_bytes(file.read_bytes() + b"more")


@cache
def _tokenizer(algorithm: str) -> bytes:
    lines = ["the cat sat on the mat", "it was late and the dog slept"] * 50
    return train_pieces(Training(algorithm, 300), lines).content  # type: ignore[arg-type]


def tokenizers(random: Random, place: Place) -> str:
    """Read a damaged tokenizer and apply it."""
    path = place.folder / "tokenizer"
    path.write_bytes(damage(random, _tokenizer(random.choice(("bpe", "unigram")))))
    pieces = Pieces.read(path)
    words = pieces.words("the cat </s> ☃ \u3000x")
    if any(word.split() != [word] for word in words) or not set(words) <= {*pieces.names, "<unk>"}:
        raise Violation(f"wrong pieces: {words}")
    if not isinstance(pieces.join(words), str):
        raise Violation("no text")
    return HARMLESS


FAMILIES = [
    Family("documents", documents, share=2),
    Family("filter-states", states, share=1),
    Family("tokenizers", tokenizers, share=1),
]
