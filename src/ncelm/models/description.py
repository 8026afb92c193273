"""The description of a model in its run directory: its kind, its vocabulary, and how its text was read."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from ncelm import __version__
from ncelm.errors import NcelmError
from ncelm.io.files import write_json
from ncelm.io.run import CONFIG, VERSION, VOCABULARY, Kind, damaged_config, read_config
from ncelm.text.settings import TextSettings
from ncelm.text.store import Boundary, TokenStore
from ncelm.text.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class Origin:
    """The text that a model is a model of: its words, and how lines become words."""

    vocabulary: Vocabulary
    boundary: Boundary
    text: TextSettings
    store: Path | None  # where the token store was, if there was one
    fingerprint: str | None  # of the store

    @classmethod
    def of(cls, store: TokenStore) -> "Origin":
        """A store as the origin of a model."""
        return cls(store.vocabulary, store.boundary, store.text, store.path.resolve(), store.fingerprint)


def describe(kind: Kind, origin: Origin, **more: Any) -> dict[str, Any]:
    """The content of config.json: what all kinds of model say, and what only this one does."""
    return {
        "format": "ncelm-run",
        "version": VERSION,
        "ncelm": __version__,
        "kind": kind,
        "store": {"path": str(origin.store), "fingerprint": origin.fingerprint} if origin.store else None,
        "vocabulary_digest": origin.vocabulary.digest,
        "boundary": origin.boundary,
        "text": asdict(origin.text),
        **more,
    }


def write_description(folder: Path, kind: Kind, origin: Origin, **more: Any) -> None:
    """Write config.json and vocab.txt."""
    write_json(folder / CONFIG, describe(kind, origin, **more))
    origin.vocabulary.save(folder / VOCABULARY)


def read_origin(run: Path, content: dict[str, Any]) -> Origin:
    """What a run's config.json, `content`, and vocab.txt say of its text."""
    boundary: Any = content.get("boundary")
    text, store = content.get("text"), content.get("store")
    try:
        if boundary not in get_args(Boundary) or not isinstance(text, dict):
            raise TypeError
        settings = TextSettings(**text)
        path = Path(store["path"]) if store is not None else None
        fingerprint = store["fingerprint"] if store is not None else None
    except (KeyError, TypeError, ValueError, NcelmError) as error:
        raise damaged_config(run) from error
    vocabulary = Vocabulary.load(run / VOCABULARY)
    if content.get("vocabulary_digest") != vocabulary.digest:
        raise NcelmError(f"{run / VOCABULARY} is not the vocabulary of this model: restore it from a copy")
    return Origin(vocabulary, boundary, settings, path, fingerprint)


def read_kind(run: Path, kind: Kind) -> tuple[dict[str, Any], Origin]:
    """config.json of a run, which must be of this kind, and what it says of its text."""
    content = read_config(run)
    if content["kind"] != kind:
        raise NcelmError(f"{run} holds a model of another kind than {kind.upper()}: {content['kind']}")
    return content, read_origin(run, content)


def open_store(given: TokenStore | Path | str | None, recorded: Path | None, otherwise: str = "") -> TokenStore:
    """The token store that the user gave or, without one, the one that a run remembers.

    `otherwise` tells what else the user could do if there is none.
    """
    if isinstance(given, TokenStore):
        return given
    if given is None and recorded is None:
        raise NcelmError(f"this model names no token store: say which with --store{otherwise}")
    if given is None and recorded is not None and not recorded.exists():
        raise NcelmError(f"the token store is no longer at {recorded}: say where with --store{otherwise}")
    return TokenStore.open(given or recorded or Path())
