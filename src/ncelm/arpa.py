"""Runs from ARPA files, and ARPA files from runs."""

import hashlib
from pathlib import Path

from ncelm.errors import NcelmError
from ncelm.io import run
from ncelm.io.files import atomic_folder, check_not_existing
from ncelm.language_model import LanguageModel
from ncelm.models import description
from ncelm.models.ngram.arpa import OnNgrams, read_arpa, write_arpa
from ncelm.models.ngram.model import NGramModel, write_run
from ncelm.text.settings import TextSettings
from ncelm.text.store import Boundary, TokenStore


def export_arpa(run_folder: Path | str, path: Path | str, progress: OnNgrams | None = None) -> LanguageModel:
    """Write the n-gram model of a run as an ARPA file, which must not exist; packed if its name ends with .gz."""
    lm = LanguageModel.load(run_folder)
    if not isinstance(lm.model, NGramModel):
        raise NcelmError(
            f"{run_folder} is no n-gram model, and only those can be written as ARPA files: give a run of `ncelm ngram`"
        )
    write_arpa(Path(path), lm.model, lm.vocabulary, progress)
    return lm


def import_arpa(
    path: Path | str,
    out: Path | str,
    like: Path | str | None = None,
    lowercase: bool = False,
    progress: OnNgrams | None = None,
) -> LanguageModel:
    """Read an ARPA file and write the run `out`.

    With `like`, a token store or a run, words get the ids they have there and text is read as it is there, so that the
    model can be evaluated on that store and mixed with models of it; otherwise words stand between blanks.
    """
    path, out = Path(path), Path(out)
    check_not_existing(out)
    origin = _origin_like(Path(like)) if like else None
    if origin and lowercase:
        raise NcelmError("--like says how text is read: leave --lowercase out")
    model, vocabulary = read_arpa(path, origin.vocabulary if origin else None, progress)
    boundary = _boundary(path, model, origin.boundary if origin else None)
    origin = origin or description.Origin(vocabulary, boundary, TextSettings(lowercase=lowercase), None, None)
    with atomic_folder(out) as folder:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        write_run(folder, model, origin, arpa_sha256=digest)
    return LanguageModel(model, origin.vocabulary, origin.boundary, origin.text, origin.store)


def _boundary(path: Path, model: NGramModel, wanted: Boundary | None) -> Boundary:
    """Does a model know how sentences begin? Then text is sentence by sentence to it; otherwise one stream."""
    begin = model.counts[0] - 1
    if model.order == 1:
        return wanted or "sentence"
    knows = bool(model.children[begin] < model.children[begin + 1])
    found: Boundary = "sentence" if knows else "stream"
    if wanted not in (None, found):
        what = "has n-grams that begin with <s>" if knows else "has no n-gram that begins with <s>"
        raise NcelmError(
            f"{path} {what}, so it goes with text that was prepared with --boundary {found}: give such a --like"
        )
    return found


def _origin_like(path: Path) -> description.Origin:
    if (path / run.CONFIG).exists():
        return description.read_origin(path, run.read_config(path))
    return description.Origin.of(TokenStore.open(path))
