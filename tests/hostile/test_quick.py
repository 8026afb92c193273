"""The quick part of the attacks: a few attempts of every family, with a fixed seed."""

import warnings
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hostile import corpus as corpora
from tests.hostile import fuzz
from tests.hostile.attacks import FAMILIES, arpa, calls, writes
from tests.hostile.attacks.texts import QUESTIONS
from tests.hostile.driver import Attack, Worker
from tests.hostile.mutations import damage
from tests.hostile.outcome import HARMLESS, VIOLATION, Place
from tests.hostile.tools import command

SEED = 0
ATTEMPTS = 8
IN_PROCESS = [name for name, family in FAMILIES.items() if not family.processes]
PROCESSES = ["kills", "limits", "two-writers"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> corpora.Corpus:
    return corpora.make(tmp_path_factory.mktemp("hostile") / "corpus")


@pytest.fixture(scope="module")
def attack(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    with Worker(corpus, folder) as worker:
        yield Attack(list(FAMILIES.values()), SEED, worker, folder / "violations")


def violations(attack: Attack, name: str, attempts: int) -> list[str]:
    found = [(number, *attack.run_one(FAMILIES[name], number)) for number in range(attempts)]
    return [
        f"--seed {SEED} --only {name}:{number}: {detail}" for number, outcome, detail in found if outcome == VIOLATION
    ]


@pytest.mark.parametrize("name", IN_PROCESS)
def test_no_violation(attack, name):
    assert violations(attack, name, ATTEMPTS) == []


@pytest.mark.serial
@pytest.mark.parametrize("name", PROCESSES)
def test_no_violation_with_processes(attack, name):
    assert violations(attack, name, 2) == []


def test_what_attacks_change_is_valid(corpus, tmp_path):
    """A rejection means something only if the same call succeeds without the attack."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, name in enumerate(calls.public_functions(corpus, Place(corpus, tmp_path))):
            folder = tmp_path / str(number)
            folder.mkdir()
            function, arguments = calls.public_functions(corpus, Place(corpus, folder))[name]
            function(**arguments)
        for questions in QUESTIONS:
            answers = ("--answers", corpus.folder / "answers.csv")
            code, _, errors = command(["complete", corpus.folder / "ngram", corpus.folder / questions, *answers])
            assert code == 0, errors
        for name in writes.operations(corpus):
            assert writes._without_faults(corpus, name)[1] > 0


@pytest.mark.parametrize("name", fuzz.PARSERS)
@settings(max_examples=25, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), content=st.binary(max_size=200))
def test_parsers_answer_with_one_exception(corpus, tmp_path, name, seed, content):
    valid = {
        "json": "store/store.json",
        "arpa": "ngram.arpa",
        "questions": "questions.csv",
        "vocabulary": "store/vocab.txt",
        "array-header": "tied/model.safetensors",
    }
    fuzz.parse(name, content, tmp_path)
    fuzz.parse(name, damage(Random(seed), (corpus.folder / valid[name]).read_bytes()), tmp_path)


@pytest.mark.skipif(not fuzz.has_atheris(), reason=fuzz.MISSING)
@pytest.mark.serial
@pytest.mark.parametrize("name", fuzz.PARSERS)
def test_coverage_guided(name):
    import subprocess
    import sys

    line = [sys.executable, "-m", "tests.hostile.fuzz", name, "-max_total_time=2"]
    result = subprocess.run(line, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]


def test_an_undamaged_arpa_file_is_harmless(corpus, tmp_path):
    """Otherwise a rejection would say nothing about the damage."""
    from ncelm.arpa import import_arpa

    lm = import_arpa(corpus.folder / "ngram.arpa", tmp_path / "run")
    assert arpa._check_model(lm, Place(corpus, tmp_path)) == HARMLESS
