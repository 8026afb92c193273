"""Damaged and crafted files of runs and stores.

Damaged files have the former checksum: they must be rejected, or give the same answer. Crafted files have a correct
checksum, as an attacker writes it: they may give another answer, but not an impossible one.
"""

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random

from tests.hostile.answers import Answer, answer_of, difference, problem_of
from tests.hostile.corpus import STORES, Corpus
from tests.hostile.mutations import (
    ArrayFile,
    damage,
    encode_json,
    mutate_arrays,
    mutate_entries,
    mutate_json,
    mutate_json_text,
    with_checksum,
)
from tests.hostile.outcome import HARMLESS, Family, Place, Violation, without_attack

VERSIONS_WITH_CHECKSUM = {"ncelm-run": 3, "ncelm-store": 2, "ncelm-part": 1}


@cache
def expected_answer(path: Path) -> Answer:
    """Return the answer of an undamaged run or store."""
    with without_attack():
        return answer_of(path)


def check(place: Place, target: str, crafted: bool) -> str:
    """Ask the changed copy of a run or a store; raise Violation for an answer that it must not give."""
    answer = answer_of(place.folder / target)
    if changed := difference(answer, expected_answer(place.corpus.folder / target)):
        if not crafted and not _is_another_store(place, target):
            raise Violation(f"{target}: another answer: {changed}")
        if target not in STORES and (problem := problem_of(answer)):
            raise Violation(f"{target}: {problem}")
    return HARMLESS


def _is_another_store(place: Place, target: str) -> bool:
    """Return whether an exchanged file has made a store an undamaged copy of another one with the same ids."""
    content = _content(place.folder / target)
    return target in STORES and any(content == _content(place.corpus.folder / name) for name in STORES)


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def any_target(random: Random, corpus: Corpus) -> str:
    """Return the name of a run or a store."""
    return random.choice([*corpus.runs, *STORES])


def copy_target(place: Place, target: str) -> None:
    """Copy a run, with its components, or a store to the folder of an attempt."""
    place.corpus.copy([target] if target in STORES else place.corpus.needed(target), place.folder)


def files_of(place: Place, pattern: str = "*") -> list[Path]:
    """Return the files in the folder of an attempt."""
    return sorted(path for path in place.folder.glob(f"*/{pattern}") if path.is_file())


def damaged_bytes(random: Random, place: Place) -> str:
    """Damage one file, or exchange it with another, remove it, or replace it by something that is no file."""
    target = any_target(random, place.corpus)
    copy_target(place, target)
    path = random.choice(files_of(place))
    action = random.randrange(20)
    if action == 0:
        path.unlink()
    elif action == 1:
        path.unlink()
        path.mkdir()
    elif action == 2:  # the same file of another run or store
        others = sorted(place.corpus.folder.glob(f"*/{path.name}"))
        path.write_bytes(random.choice(others).read_bytes())
    elif action == 3:
        other = random.choice(files_of(place))
        content, moved = path.read_bytes(), other.read_bytes()
        path.write_bytes(moved)
        other.write_bytes(content)
    elif action == 4:
        path.write_bytes(b"")
    else:
        content = path.read_bytes()
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            content = damage(random, content)
        path.write_bytes(content)
    return check(place, target, crafted=False)


def damaged_json(random: Random, place: Place) -> str:
    """Change a value or the syntax of a JSON file, without a new checksum."""
    target = any_target(random, place.corpus)
    copy_target(place, target)
    path = random.choice(files_of(place, "*.json"))
    text = path.read_text()
    if random.random() < 0.7:
        path.write_bytes(encode_json(mutate_json(random, json.loads(text))))
    else:
        path.write_bytes(mutate_json_text(random, text).encode(errors="surrogatepass"))
    return check(place, target, crafted=False)


def crafted_json(random: Random, place: Place) -> str:
    """Change values of a JSON file, with a correct checksum."""
    target = any_target(random, place.corpus)
    copy_target(place, target)
    path = random.choice(files_of(place, "*.json"))
    document = json.loads(path.read_text())
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        document = mutate_json(random, document)
    if isinstance(document, dict) and random.random() < 0.2:  # formats without a checksum
        document.pop("checksum", None)
        document["version"] = random.choice((1, 2))
    else:
        document = with_checksum(document)
    path.write_bytes(encode_json(document))
    _update_runs(path.parent)
    if path.name == "config.json" and path.parent.name != target:
        with suppress(TypeError, KeyError, AttributeError):  # a mutated description
            _update_parts(place, target)
    return check(place, target, crafted=True)


def _update_runs(folder: Path) -> None:
    """Write the identity of a changed run into its array files."""
    from ncelm.io.run import identity

    for path in folder.glob("*.safetensors"):
        file = ArrayFile.parse(path.read_bytes())
        if run := identity(folder):
            file.header["run"] = run
        file.sign()
        path.write_bytes(file.content())
    _update_normalizer(folder)


def _update_normalizer(folder: Path) -> None:
    """Write the checksum of changed parameters into the normalizer of a run, if it has one."""
    path = folder / "normalizer.safetensors"
    if path.exists():
        file, model = (ArrayFile.parse(each.read_bytes()) for each in (path, folder / "model.safetensors"))
        with suppress(TypeError, KeyError, AttributeError):  # mutated headers
            file.header["parameters"] = model.header["checksum"]
        file.sign()
        path.write_bytes(file.content())


def _array_files(place: Place) -> list[Path]:
    return [*files_of(place, "model.safetensors"), *files_of(place, "normalizer.safetensors")]


def damaged_arrays(random: Random, place: Place) -> str:
    """Change an array, without a new checksum."""
    return _arrays(random, place, crafted=False)


def crafted_arrays(random: Random, place: Place) -> str:
    """Change arrays, with a correct checksum."""
    return _arrays(random, place, crafted=True)


def _arrays(random: Random, place: Place, crafted: bool) -> str:
    target = random.choice([run for run in place.corpus.runs if not run.startswith("stopped")])
    copy_target(place, target)
    path = random.choice(_array_files(place))
    file = ArrayFile.parse(path.read_bytes())
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        if file.arrays:
            mutate_arrays(random, file)
    if crafted:
        if random.random() < 0.2:
            file.header = mutate_json(random, file.header)
        if random.random() < 0.1 and isinstance(file.header, dict):  # the format without a checksum
            file.header.pop("checksum", None)
            file.header["version"] = 1
        else:
            file.sign()
    path.write_bytes(file.content())
    if crafted:
        if path.name == "model.safetensors":
            _update_normalizer(path.parent)
        _update_parts(place, target)
    return check(place, target, crafted)


def _update_parts(place: Place, target: str) -> None:
    """Write the checksums of changed components into the description of a mixture or an ensemble."""
    from ncelm.errors import NcelmError
    from ncelm.io.files import write_json
    from ncelm.models.load import run_checksum

    for name in reversed(place.corpus.needed(target)):
        path = place.folder / name / "config.json"
        content = json.loads(path.read_text())
        if "parts" in content:
            for part in content["parts"]:
                try:
                    part["checksum"] = run_checksum(place.folder / Path(part["path"]).name)
                except NcelmError:
                    return
            write_json(path, content)


def damaged_headers(random: Random, place: Place) -> str:
    """Change the head of an array file: its length, offsets, shapes, types and metadata."""
    target = random.choice([run for run in place.corpus.runs if not run.startswith("stopped")])
    copy_target(place, target)
    path = random.choice(_array_files(place))
    path.write_bytes(mutate_entries(random, ArrayFile.parse(path.read_bytes())))
    return check(place, target, crafted=False)


FAMILIES = [
    Family("bytes", damaged_bytes, share=3),
    Family("json", damaged_json, share=2),
    Family("json-crafted", crafted_json, share=2),
    Family("arrays", damaged_arrays, share=2),
    Family("arrays-crafted", crafted_arrays, share=3),
    Family("headers", damaged_headers, share=2),
]
