"""Runs that are resumed from damaged or crafted checkpoints, metrics and descriptions."""

import json
from functools import cache
from pathlib import Path
from random import Random

from tests.hostile.attacks.files import files_of
from tests.hostile.corpus import Corpus, still_clocks, stopped_name
from tests.hostile.mutations import (
    ArrayFile,
    damage,
    encode_json,
    mutate_arrays,
    mutate_entries,
    mutate_json,
    with_checksum,
)
from tests.hostile.outcome import HARMLESS, Family, Place, Violation, without_attack
from tests.hostile.tools import changed_files, content_of

from ncelm.training.loop import train


def resume(corpus: Corpus, name: str, out: Path) -> None:
    """Resume a copy of the stopped run of a model."""
    with still_clocks():
        train(corpus.folder / "long", out, threads=1, resume=True, **corpus.neural[name])


@cache
def undisturbed(corpus: Corpus, name: str) -> dict[str, str]:
    """Return the content of the run of a model that was resumed without an attack."""
    out = corpus.folder.parent / "undisturbed" / stopped_name(name)
    if not out.exists():
        with without_attack():
            corpus.copy([stopped_name(name)], out.parent)
            resume(corpus, name, out)
    return content_of(out)


def _start(random: Random, place: Place) -> tuple[str, Path]:
    name = random.choice(sorted(place.corpus.neural))
    expected = undisturbed(place.corpus, name)
    assert expected
    place.corpus.copy([stopped_name(name)], place.folder)
    return name, place.folder / stopped_name(name)


def damaged_checkpoint(random: Random, place: Place) -> str:
    """Resume a run with one damaged file: the result must be the same, or an error."""
    name, out = _start(random, place)
    path = random.choice([*files_of(place), out / "checkpoint.safetensors", out / "metrics.jsonl"])
    content = path.read_bytes()
    action = random.randrange(8)
    if action == 0:
        path.unlink()
    elif action == 1 and path.suffix == ".safetensors":
        path.write_bytes(mutate_entries(random, ArrayFile.parse(content)))
    elif action == 2 and path.suffix == ".safetensors":
        file = ArrayFile.parse(content)
        if random.random() < 0.5:
            file.header = mutate_json(random, file.header)
        else:
            mutate_arrays(random, file)
        path.write_bytes(file.content())
    elif action == 3 and path.suffix == ".jsonl":
        lines = content.splitlines(keepends=True)
        line = random.randrange(len(lines))
        lines[line] = json.dumps(mutate_json(random, json.loads(lines[line]))).encode() + b"\n"
        path.write_bytes(b"".join(lines))
    elif action == 4 and path.suffix == ".json":
        path.write_bytes(encode_json(mutate_json(random, json.loads(content))))
    else:
        path.write_bytes(damage(random, content))
    resume(place.corpus, name, out)
    if changed := changed_files(out, undisturbed(place.corpus, name)):
        # a run without a checkpoint starts again, and has the same result
        raise Violation(f"resumed with a damaged {path.name} of {name}: other content of {', '.join(changed)}")
    return HARMLESS


def crafted_checkpoint(random: Random, place: Place) -> str:
    """Resume a run with a crafted checkpoint or description that has a correct checksum."""
    name, out = _start(random, place)
    if random.random() < 0.8:
        path = out / random.choice(("checkpoint.safetensors", "checkpoint.safetensors", "model.safetensors"))
        file = ArrayFile.parse(path.read_bytes())
        for _ in range(random.choice((1, 1, 2))):
            if random.random() < 0.6:
                file.header = mutate_json(random, file.header)
            elif file.arrays:
                mutate_arrays(random, file)
        if isinstance(file.header, dict) and random.random() < 0.2:
            file.header["checkpoint"] = random.choice((1, 2))
        file.sign()
        path.write_bytes(file.content())
    else:
        path = out / "config.json"
        path.write_bytes(encode_json(with_checksum(mutate_json(random, json.loads(path.read_text())))))
    resume(place.corpus, name, out)
    return HARMLESS


def damaged_metrics(random: Random, place: Place) -> str:
    """Ask a finished run with damaged metrics for its last record."""
    name = random.choice(sorted(place.corpus.neural))
    place.corpus.copy([name], place.folder)
    path = place.folder / name / "metrics.jsonl"
    content = path.read_bytes()
    expected = json.loads(content.splitlines()[-1])
    for _ in range(random.choice((1, 1, 3))):
        content = damage(random, content)
    path.write_bytes(content)
    with still_clocks():
        options = place.corpus.neural[name]
        record = train(place.corpus.folder / "store", place.folder / name, threads=1, resume=True, **options)
    if record != expected:
        raise Violation(f"another last record of {name}: {record} instead of {expected}")
    return HARMLESS


FAMILIES = [
    Family("checkpoints", damaged_checkpoint, share=4, timeout=60),
    Family("checkpoints-crafted", crafted_checkpoint, share=4, timeout=60),
    Family("metrics", damaged_metrics, share=1),
]
