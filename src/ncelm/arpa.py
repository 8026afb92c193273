"""Conversion between runs and ARPA files."""

from pathlib import Path
from typing import Literal, get_args

from ncelm.arguments import check_bool, check_choice, check_path
from ncelm.errors import NcelmError
from ncelm.io import run
from ncelm.io.files import atomic_folder, check_not_existing, file_digest
from ncelm.language_model import LanguageModel
from ncelm.models import description
from ncelm.models.ngram.arpa import read_arpa, write_arpa
from ncelm.models.ngram.query import NGramModel, write_run
from ncelm.models.ngram.validate import check_probabilities
from ncelm.progress import Option, check_progress, shown
from ncelm.text.normalize import Normalization
from ncelm.text.pieces import Pieces
from ncelm.text.settings import TextSettings
from ncelm.text.store import Boundary, TokenStore, check_pieces


def export_arpa(run_folder: Path | str, path: Path | str, progress: Option = True) -> LanguageModel:
    """Write the n-gram model of a run to a new ARPA file, compressed if its name ends with .gz; return the model.

    `progress` is explained in `ncelm.progress`; a function is called with the number of n-grams written and the total.
    """
    run_folder, path = check_path("run_folder", run_folder), check_path("path", path)
    check_progress(progress)
    check_not_existing(path)
    lm = LanguageModel.load(run_folder)
    if not isinstance(lm.model, NGramModel):
        raise NcelmError(
            f"{run_folder} is not an n-gram model, and cannot be written as an ARPA file: give a run of `ncelm ngram`"
        )
    with shown(progress, desc="writing", unit=" n-grams", unit_scale=True) as report:
        write_arpa(path, lm.model, lm.vocabulary, report)
    return lm


def import_arpa(
    path: Path | str,
    out: Path | str,
    like: Path | str | None = None,
    lowercase: bool = False,
    progress: Option = True,
    *,
    tokenizer: Path | str | None = None,
    normalize: Literal["none", "ccnet"] = "none",
) -> LanguageModel:
    """Read an ARPA file, write the run `out`, and return the model.

    With `like`, a token store or a run, the model has the word ids and the tokenization of `like`, so that it can be
    evaluated on that store and mixed with its models. Otherwise words are separated by blanks, or they are the pieces
    of a `tokenizer`, a file of Hugging Face `tokenizers` or a SentencePiece model; with `normalize` "ccnet", text is
    normalised as in CCNet. `progress` is explained in `ncelm.progress`; a function is called with the number of
    n-grams read and the total.
    """
    path, out = check_path("path", path), check_path("out", out)
    like = None if like is None else check_path("like", like, "the path of a token store or of a run")
    check_bool("lowercase", lowercase)
    check_progress(progress)
    check_not_existing(out)
    origin = _origin_of(like) if like else None
    check_choice("normalize", normalize, get_args(Normalization))
    if origin and (lowercase or tokenizer is not None or normalize != "none"):
        name = "lowercase" if lowercase else "tokenizer" if tokenizer is not None else "normalize"
        raise NcelmError(f"`like` determines the tokenization: leave `{name}` out")
    if tokenizer is None:
        text = TextSettings(lowercase=lowercase, normalization=normalize)
    else:
        text = TextSettings.of(Pieces.read(check_path("tokenizer", tokenizer)), lowercase, normalize)
    with shown(progress, desc="reading", unit=" n-grams", unit_scale=True) as report:
        model, vocabulary = read_arpa(path, origin.vocabulary if origin else None, report)
    check_probabilities(path, model, vocabulary)
    boundary = _boundary(path, model, origin.boundary if origin else None)
    check_pieces(path, text, vocabulary)
    origin = origin or description.Origin(vocabulary, boundary, text, None, None)
    with atomic_folder(out) as folder:
        write_run(folder, model, origin, arpa_sha256=file_digest(path))
    return LanguageModel.of(model, origin)


def _boundary(path: Path, model: NGramModel, expected: Boundary | None) -> Boundary:
    """Return "sentence" if the model has n-grams that start with <s>, otherwise "stream"."""
    begin_id = model.counts[0] - 1
    if model.order == 1:
        return expected or "sentence"
    has_begin = bool(model.children[begin_id] < model.children[begin_id + 1])
    found: Boundary = "sentence" if has_begin else "stream"
    if expected not in (None, found):
        what = "n-grams that start" if has_begin else "no n-gram that starts"
        raise NcelmError(
            f"{path} has {what} with <s>: give a store or run as `like` that was prepared with `boundary` {found}"
        )
    return found


def _origin_of(path: Path) -> description.Origin:
    """Return the origin of a run or of a token store."""
    if (path / run.CONFIG).exists():
        return description.read_origin(path, run.read_config(path))
    return description.Origin.of(TokenStore.open(path))
