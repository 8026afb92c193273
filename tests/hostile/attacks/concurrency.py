"""Several processes at once: two writers, a reader and a writer, a store that changes during training."""

import shutil
import subprocess
from random import Random

from tests.hostile.answers import answer_of, problem_of
from tests.hostile.commands import commands, finish, start, undisturbed
from tests.hostile.mutations import damage
from tests.hostile.outcome import HARMLESS, REJECTED, Family, Place, Violation
from tests.hostile.tools import check_command, check_content, check_no_partials

from ncelm.errors import NcelmError


def two_writers(random: Random, place: Place) -> str:
    """Start a command twice with the same output: one succeeds, the other does too or is refused."""
    command = random.choice(commands(place.corpus))
    reference = undisturbed(place.corpus, command)
    what = f"two of {command.name}"
    words = command.line(place.corpus, place.folder, again=random.random() < 0.5)
    processes = [start(words) for _ in range(2)]
    outcomes = []
    for process in processes:
        code, _, errors = finish(process, what)
        outcomes.append(check_command(code, errors))
    if HARMLESS not in outcomes:
        raise Violation(f"{what}: both were refused")
    check_content(place.folder / command.output, reference.content, what)
    check_no_partials(place.folder, what)
    return REJECTED if REJECTED in outcomes else HARMLESS


def reader_and_writer(random: Random, place: Place) -> str:
    """Load a run again and again while it is being made: an error, or a model with possible answers."""
    made = [
        command
        for command in commands(place.corpus)
        if command.resumes or command.name in ("mix", "pmi", "ngram train")
    ]
    command = random.choice(made)
    reference = undisturbed(place.corpus, command)
    out = place.folder / command.output
    process = start(command.line(place.corpus, place.folder))
    try:
        while process.poll() is None:
            try:
                answer = answer_of(out)
            except NcelmError:
                continue
            if problem := problem_of(answer):
                raise Violation(f"read during {command.name}: {problem}")
    finally:
        code, _, errors = finish(process, command.name)
    check_command(code, errors, (0,))
    check_content(out, reference.content, f"{command.name} with a reader")
    check_no_partials(place.folder, command.name)
    return HARMLESS


def changing_store(random: Random, place: Place) -> str:
    """Change a file of the store in place during training: an error of one line, or the right model."""
    command = random.choice([command for command in commands(place.corpus) if command.resumes])
    reference = undisturbed(place.corpus, command)
    shutil.copytree(place.corpus.folder / "long", place.folder / "long")
    original = str(place.corpus.folder / "long")
    line = [
        str(place.folder / "long") if word == original else word for word in command.line(place.corpus, place.folder)
    ]
    path = (
        place.folder / "long" / random.choice(("train.ids", "train.sentences", "valid.ids", "vocab.txt", "store.json"))
    )
    process = start(line)
    moment = random.uniform(0.3, 1.0) * reference.seconds
    what = f"{command.name}, {path.name} changed after {moment:.2f} s"
    try:
        process.wait(moment)
    except subprocess.TimeoutExpired:  # it is still running
        with path.open("r+b") as file:
            content = damage(random, file.read())
            file.seek(0)
            file.write(content)
            file.truncate()
    code, _, errors = finish(process, what)
    outcome = check_command(code, errors)
    check_no_partials(place.folder, what)
    if outcome == HARMLESS:
        # config.json has the path of the store
        expected = {name: digest for name, digest in reference.content.items() if name == "model.safetensors"}
        check_content(place.folder / command.output / "model.safetensors", expected, what)
    return outcome


FAMILIES = [
    Family("two-writers", two_writers, share=2, timeout=300, processes=True),
    Family("reader-and-writer", reader_and_writer, share=2, timeout=300, processes=True),
    Family("changing-store", changing_store, share=2, timeout=300, processes=True),
]
