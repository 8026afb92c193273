"""config.json and vocab.txt of a run directory: the kind of the model, its vocabulary and its text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ncelm import __version__
from ncelm.arguments import check_int
from ncelm.errors import NcelmError
from ncelm.io.files import write_json
from ncelm.io.run import CONFIG, VERSION, VOCABULARY, Kind, damaged_config, read_config, reference, referenced
from ncelm.text.settings import TextSettings
from ncelm.text.store import Boundary, TokenStore, check_pieces
from ncelm.text.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class Origin:
    """The training text of a model: its vocabulary, sentence boundaries and tokenization."""

    vocabulary: Vocabulary
    boundary: Boundary
    text: TextSettings
    store: Path | None  # the token store; None for a model from an ARPA file
    fingerprint: str | None  # of the token store

    @classmethod
    def of(cls, store: TokenStore) -> "Origin":
        """Return the origin of a model of this store."""
        return cls(store.vocabulary, store.boundary, store.text, store.path.resolve(), store.fingerprint)


def describe(folder: Path, kind: Kind, origin: Origin, **more: Any) -> dict[str, Any]:
    """Return the content of config.json: the fields of all kinds of models, and `more` fields of this kind."""
    store = {"path": reference(folder, origin.store), "fingerprint": origin.fingerprint} if origin.store else None
    return {
        "format": "ncelm-run",
        "version": VERSION,
        "ncelm": __version__,
        "kind": kind,
        "store": store,
        "vocabulary_digest": origin.vocabulary.digest,
        "vocabulary_sha256": origin.vocabulary.file_digest,
        "unknown_types": origin.vocabulary.unknown_types,
        "boundary": origin.boundary,
        "text": origin.text.as_dict(),
        **more,
    }


def write_description(folder: Path, kind: Kind, origin: Origin, **more: Any) -> None:
    """Write vocab.txt, the file of a subword tokenizer, and config.json, which makes a folder a run directory."""
    origin.vocabulary.save(folder / VOCABULARY)
    origin.text.save(folder)
    write_json(folder / CONFIG, describe(folder, kind, origin, **more))


def read_origin(run: Path, content: dict[str, Any]) -> Origin:
    """Return the origin of a run, given the content of its config.json."""
    boundary: Any = content.get("boundary")
    store, unknown_types = content.get("store"), content.get("unknown_types")
    try:
        if boundary not in get_args(Boundary):
            raise TypeError
        if unknown_types is not None:  # absent in earlier runs
            check_int("unknown_types", unknown_types, 0)
        path = referenced(run, store["path"]) if store is not None else None
        fingerprint = store["fingerprint"] if store is not None else None
    except (KeyError, TypeError, ValueError, OSError, NcelmError) as error:
        raise damaged_config(run) from error
    try:
        settings = TextSettings.load(run, content.get("text"))
    except ValueError as error:
        raise damaged_config(run) from error
    vocabulary = Vocabulary.load(run / VOCABULARY, unknown_types)
    # runs of version 2 have no sha256
    same_counts = "vocabulary_sha256" not in content or content["vocabulary_sha256"] == vocabulary.file_digest
    if content.get("vocabulary_digest") != vocabulary.digest or not same_counts:
        raise NcelmError(f"{run / VOCABULARY} is not the vocabulary of this model: restore it from a copy")
    check_pieces(run, settings, vocabulary)
    return Origin(vocabulary, boundary, settings, path, fingerprint)


def read_kind(run: Path, kind: Kind) -> tuple[dict[str, Any], Origin]:
    """Return the content of config.json and the origin of a run, which must be of this kind."""
    content = read_config(run)
    if content["kind"] != kind:
        raise NcelmError(f"{run} is a model of kind {content['kind']}, not {kind}: give another run")
    return content, read_origin(run, content)


def open_store(given: TokenStore | Path | str | None, recorded: Path | None, alternative: str = "") -> TokenStore:
    """Return the token store `given` or, if that is None, the store `recorded` in a run.

    `alternative` ends the error message if neither exists: what else the user can do.
    """
    if isinstance(given, TokenStore):
        return given
    if given is None and recorded is None:
        raise NcelmError(f"this model has no token store of its own: give one as `store`{alternative}")
    if given is None and recorded is not None and not recorded.exists():
        raise NcelmError(f"the token store is no longer at {recorded}: give its path as `store`{alternative}")
    return TokenStore.open(given or recorded or Path())
