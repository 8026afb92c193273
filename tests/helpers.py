"""Functions and texts that several test files share."""

import io
import json
import re
import shlex
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from ncelm.io.array_files import read_header, write_arrays
from ncelm.io.files import atomic_folder, write_json
from ncelm.io.run import MODEL
from ncelm.models.description import Origin, write_description
from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore

# -- texts -----------------------------------------------------------------------------------------------------------

SEA = ["ship", "sail", "captain", "storm", "wave"]
KITCHEN = ["oven", "bread", "butter", "knife", "cook"]

PROSE = """Mr. Smith went to Washington. He met Dr. Jones there, and Mr. Brown.
They spoke for hours.

It was late. Mr. Smith said that Dr. Jones was right! Was he? Nobody knew, said Mr. Brown. Then he left.

"""
PROSE = PROSE * 40  # enough text to train Punkt on


def two_topics(seed: int = 0, sentences: int = 400) -> list[str]:
    """Return sentences with three words of one topic, SEA or KITCHEN, and two words of neither."""
    rng = np.random.default_rng(seed)
    topics = [SEA, KITCHEN]
    return [" ".join([*rng.choice(topics[i % 2], 3, replace=False), "the", "and"]) for i in range(sentences)]


def random_lines(seed: int, sentences: int = 300, words: int = 12) -> list[str]:
    """Return sentences drawn from a random Markov chain: each word depends on the previous word."""
    rng = np.random.default_rng(seed)
    follow = rng.dirichlet(np.full(words, 0.2), size=words)  # (words, words) P(next | previous)
    lines = []
    for _ in range(sentences):
        word, line = int(rng.integers(words)), []
        for _ in range(int(rng.integers(1, 9))):
            line.append(f"w{word}")
            word = int(rng.choice(words, p=follow[word]))
        lines.append(" ".join(line))
    return lines


def store_of(
    folder: Path, lines: Sequence[str], boundary: Literal["stream", "sentence"] = "sentence", **options: Any
) -> TokenStore:
    """Return a store at folder/store whose three splits all are these lines."""
    (folder / "text").write_text("\n".join(lines) + "\n")
    texts: dict[str, Any] = dict.fromkeys(("train", "valid", "test"), folder / "text")
    return prepare(**texts, out=folder / "store", boundary=boundary, **options)


# -- Project Gutenberg and archives ----------------------------------------------------------------------------------

GUTENBERG_LETTER = (
    "This is the Project Gutenberg Etext of Something\nPlease take a look at the important information.\n"
)
GUTENBERG_LEGAL = (
    GUTENBERG_LETTER + "***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***\nWhy is this here? Lawyers.\n"
)
GUTENBERG_HEADER_END = "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n"
GUTENBERG_HEADER = GUTENBERG_LEGAL + GUTENBERG_HEADER_END  # as in files of the 1990s


def make_tar(path: Path, files: Mapping[str, bytes], mode: Literal["w", "w:gz", "w:bz2", "w:xz"] = "w:xz") -> Path:
    """Write a tar archive with these files (name: content) and return its path."""
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


# -- numbers ---------------------------------------------------------------------------------------------------------


def numeric_gradient(
    function: Callable[[npt.NDArray[np.float64]], float], x: npt.NDArray[np.float64], step: float = 1e-6
) -> npt.NDArray[np.float64]:
    """Return the gradient of `function` at x by central differences, in the shape of x."""
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        gradient[i] = (function(up) - function(down)) / (2 * step)
    return gradient


def random_distribution(random: np.random.Generator, size: int) -> npt.NDArray[np.float64]:
    """Return a random distribution over `size` outcomes, none of them improbable."""
    weights = random.random(size) + 0.1
    return weights / weights.sum()


# -- models and the command line -------------------------------------------------------------------------------------


def change_json(path: Path, changes: Mapping[str, Any]) -> None:
    """Change fields of a JSON file of ncelm, and its checksum accordingly, as an attacker could."""
    content = json.loads(path.read_text()) | dict(changes)
    content.pop("checksum", None)
    write_json(path, content)


def rewrite_arrays(path: Path) -> None:
    """Write an array file again, with a right checksum, as a file of the run it is in."""
    header = read_header(path)
    rest = {name: value for name, value in header.items() if name not in ("version", "checksum", "run")}
    write_arrays(path, load_file(path), rest)


def save_model(folder: Path, store: TokenStore, model: Any) -> Path:
    """Write the run of a model with parameters (log-bilinear or PyTorch) without training, and return its folder."""
    with atomic_folder(folder) as partial:
        architecture = model.config.architecture
        write_description(partial, architecture, Origin.of(store), config={"model": asdict(model.config)})
        write_arrays(partial / MODEL, model.arrays(), {"kind": architecture})
    return folder


def word_distribution(model: Any, history: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return P(w | history) of an n-gram model for every word w, (V,)."""
    return np.exp(model.log_probabilities_after(history))


def model_bytes(run: Path) -> bytes:
    """Return the parameter file of a run."""
    return (run / MODEL).read_bytes()


def without_compilation(errors: str) -> str:
    """Return what a command prints to standard error without messages on compilation, chosen options and stages."""
    usual = re.compile(r"ncelm: (compiling|for [\d,]+ words and a vocabulary of |\[\d/\d\] )")
    return "".join(line for line in errors.splitlines(keepends=True) if not usual.match(line))


def parse_command(line: str) -> None:
    """Parse the command line `ncelm …` without running it; raise an error if it is wrong."""
    from ncelm.cli.main import _module_of
    from ncelm.cli.parser import Parser

    program, command, *words = shlex.split(line, comments=True)
    assert program == "ncelm", line
    if command in ("--help", "--version"):
        return
    parser = Parser(prog=f"ncelm {command}", words=words)
    _module_of(command).add_arguments(parser)
    parser.parse(words)


def refused(capsys: Any, arguments: Sequence[object], *fragments: str) -> None:
    """Check that a command exits with code 2 and one line on standard error that contains all fragments."""
    from ncelm.cli.main import main

    capsys.readouterr()
    assert main([str(a) for a in arguments]) == 2
    captured = capsys.readouterr()
    errors = without_compilation(captured.err)
    assert captured.out == ""
    assert errors.startswith("ncelm: ")
    assert errors.count("\n") == 1
    for fragment in fragments:
        assert fragment in errors
