"""Subword tokenizers: sentences to pieces, by a file of Hugging Face `tokenizers` or a SentencePiece model.

The file is stored with every token store and model that uses it, so that all commands apply it. A tokenizer that is
trained here has a piece for each of the 256 bytes, so that no text has unknown words.
"""

import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from ncelm.arguments import shown
from ncelm.errors import MissingExtraError, NcelmError
from ncelm.io.files import atomic_write, parse_json, read_bytes
from ncelm.text.vocabulary import RESERVED, UNKNOWN

PieceKind = Literal["huggingface", "sentencepiece"]
Algorithm = Literal["bpe", "unigram"]
FILES: dict[PieceKind, str] = {"huggingface": "tokenizer.json", "sentencepiece": "tokenizer.model"}
MAX_BYTES = 256 << 20  # of a file; those of models with 256,000 pieces take 30 MB
MAX_PIECES = 5_000_000
BYTES = 256  # pieces that every trained tokenizer has
TRAINING_CHARACTERS = 40_000_000  # of the text, read to train a tokenizer; more hardly changes the pieces
_TRAIN = re.compile(r"train:(\w+):(\d+)")


class Training(NamedTuple):
    """A tokenizer to be trained on the text."""

    algorithm: Algorithm
    size: int  # number of pieces

    @classmethod
    def parse(cls, text: str) -> "Training | None":
        """Return what a string such as "train:bpe:32000" asks for; None for the name of a file.

        >>> Training.parse("train:unigram:8000")
        Training(algorithm='unigram', size=8000)
        """
        if not text.startswith("train:"):
            return None
        found = _TRAIN.fullmatch(text)
        if not found or found[1] not in get_args(Algorithm) or not BYTES < int(found[2]) <= MAX_PIECES:
            raise NcelmError(
                f"`tokenizer` is {shown(text)}: give train:bpe:SIZE or train:unigram:SIZE, with {BYTES + 1} to "
                f"{MAX_PIECES:,} pieces, such as train:bpe:32000"
            )
        return cls(found[1], int(found[2]))  # type: ignore[arg-type]


class Pieces:
    """A subword tokenizer. A word of the vocabulary is a piece, under a name without white space."""

    def __init__(self, kind: PieceKind, content: bytes, source: object = "the tokenizer") -> None:
        """Create a tokenizer from the content of its file. `source` names the file in errors."""
        self.kind, self.content = kind, content
        self.sha256 = hashlib.sha256(content).hexdigest()
        self._engine = _parsed(kind, content, str(source))
        names = self._engine.names
        self._ids = {word: id for id, word in names.items() if word != UNKNOWN}

    @classmethod
    def read(cls, path: Path) -> "Pieces":
        """Return the tokenizer in a file, which is not trusted."""
        content = _read(path)
        return cls("huggingface" if content.lstrip()[:1] == b"{" else "sentencepiece", content, path)

    @classmethod
    def load(cls, folder: Path, kind: PieceKind, sha256: object) -> "Pieces":
        """Return the tokenizer that `save` wrote to the folder of a store or a run."""
        path = folder / FILES[kind]
        content = _read(path)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise NcelmError(
                f"{path} is not the tokenizer of this model (its checksum is wrong): restore it from a copy"
            )
        return cls(kind, content, path)

    def save(self, folder: Path) -> None:
        """Write the file to a folder."""
        with atomic_write(folder / FILES[self.kind]) as file:
            file.write(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pieces) and (self.kind, self.sha256) == (other.kind, other.sha256)

    def __hash__(self) -> int:
        return hash((self.kind, self.sha256))

    def __repr__(self) -> str:
        return f"Pieces({self.kind}, {len(self._ids):,} pieces, {self.sha256[:8]})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Pieces, (self.kind, self.content)

    @property
    def file_name(self) -> str:
        """The name of the file in the folder of a store or a run."""
        return FILES[self.kind]

    @property
    def names(self) -> Iterable[str]:
        """The words of the vocabulary: all pieces but the unknown one."""
        return self._ids

    def words(self, sentence: str) -> list[str]:
        """Return the pieces of a sentence."""
        return list(map(self._engine.names.__getitem__, self._engine.encode(sentence)))

    def join(self, words: Iterable[str]) -> str:
        """Return the text of pieces."""
        parts, ids = [], list[int]()
        for word in words:
            if word in self._ids:
                ids.append(self._ids[word])
            else:  # <unk>
                parts += [self._engine.decode(ids), word]
                ids = []
        parts.append(self._engine.decode(ids))
        return " ".join(filter(None, (part.strip() for part in parts)))


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise NcelmError(f"{path} has more than {MAX_BYTES >> 20} MB and is not a tokenizer: give another file")
    except OSError:  # reported when the file is opened
        pass
    return read_bytes(path, lambda: f"there is no tokenizer {path}")


# -- the two kinds ---------------------------------------------------------------------------------------------------


class _HuggingFace:
    """A tokenizer of the package `tokenizers`."""

    def __init__(self, content: bytes) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtraError(
                "tokenizers is needed for this tokenizer: pip install 'ncelm[tokenizers]'"
            ) from None
        model = parse_json(content)["model"]
        self._tokenizer = Tokenizer.from_buffer(content)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # "</s>" in a text is text
        vocabulary = self._tokenizer.get_vocab()
        unknown = model.get("unk_id") if model.get("type") == "Unigram" else vocabulary.get(model.get("unk_token"))
        self.names = _names({id: piece for piece, id in vocabulary.items()}, unknown)

    def encode(self, sentence: str) -> Sequence[int]:
        return self._tokenizer.encode(sentence, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


class _SentencePiece:
    """A model of the package `sentencepiece`."""

    def __init__(self, content: bytes) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError:
            raise MissingExtraError(
                "sentencepiece is needed for this tokenizer: pip install 'ncelm[sentencepiece]'"
            ) from None
        if not content:
            raise ValueError("the file is empty")
        self._processor = SentencePieceProcessor(model_proto=content)
        size = self._processor.get_piece_size()
        if size > MAX_PIECES:
            raise ValueError("too many pieces")
        pieces = {id: self._processor.id_to_piece(id) for id in range(size)}
        self.names = _names(pieces, self._processor.unk_id())

    def encode(self, sentence: str) -> Sequence[int]:
        return self._processor.encode(sentence, out_type=int)

    def decode(self, ids: list[int]) -> str:
        return str(self._processor.decode(ids))


def _names(pieces: dict[int, str], unknown: object) -> dict[int, str]:
    """Return the word of the vocabulary for each piece. All are different, and none has white space."""
    if not 2 <= len(pieces) <= MAX_PIECES:
        raise ValueError(f"it has {len(pieces):,} pieces")
    names = {id: piece if _is_word(piece) else f"<piece-{id}>" for id, piece in sorted(pieces.items())}
    if isinstance(unknown, int) and unknown in names:
        names[unknown] = UNKNOWN
    if len(set(names.values())) != len(names):
        raise ValueError("two pieces are equal")
    return names


def _is_word(piece: str) -> bool:
    return piece.split() == [piece] and piece not in RESERVED and "\0" not in piece


@lru_cache(8)
def _parsed(kind: PieceKind, content: bytes, source: str) -> _HuggingFace | _SentencePiece:
    """Return the tokenizer in the content of a file. Raise one error for any problem with it."""
    try:
        with _quiet():
            engine = _HuggingFace(content) if kind == "huggingface" else _SentencePiece(content)
            engine.encode("a b")
        return engine
    except (NcelmError, MemoryError):
        raise
    except BaseException as error:  # Rust raises PanicException, which is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        reason = " ".join(str(error).split())[:100]
        what = "a tokenizer of Hugging Face `tokenizers`" if kind == "huggingface" else "a SentencePiece model"
        raise NcelmError(f"{source} is not {what}, or is damaged ({reason}): give another file") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Discard what C++ and Rust code prints to standard error in the block: the error is raised, too."""
    try:
        saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # standard error is closed
        yield
        return
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


# -- training --------------------------------------------------------------------------------------------------------


def train_pieces(training: Training, lines: Iterable[str]) -> Pieces:
    """Return a tokenizer trained on lines of text: byte-level BPE, or a SentencePiece unigram model with byte fallback.

    A piece does not extend across white space. The blank before a word is part of its first piece. The same text gives
    the same bytes on any number of cores.
    """
    if training.algorithm == "bpe":
        return Pieces("huggingface", _train_bpe(training.size, _limited(lines)))
    return Pieces("sentencepiece", _train_unigram(training.size, _limited(lines)))


def _train_bpe(size: int, lines: Iterator[str]) -> bytes:
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise MissingExtraError("tokenizers is needed to train BPE: pip install 'ncelm[tokenizers]'") from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return bytes(tokenizer.to_str(), "utf-8")


def _train_unigram(size: int, lines: Iterator[str]) -> bytes:
    # The trainer of `tokenizers` gives other pieces in each process.
    try:
        from sentencepiece import SentencePieceTrainer
    except ImportError:
        raise MissingExtraError(
            "sentencepiece is needed to train a unigram model: pip install 'ncelm[sentencepiece]'"
        ) from None
    file = io.BytesIO()
    try:
        with _quiet():
            SentencePieceTrainer.train(
                sentence_iterator=lines,
                model_writer=file,
                vocab_size=size,
                hard_vocab_limit=False,  # a short text has fewer pieces
                byte_fallback=True,
                normalization_rule_name="identity",
                bos_id=-1,
                eos_id=-1,
                num_threads=16,  # the result depends on it
                max_sentence_length=1 << 16,
                minloglevel=2,
            )
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[-100:]
        raise NcelmError(f"the tokenizer cannot be trained on this text ({reason}): give more text") from None
    return file.getvalue()


def _limited(lines: Iterable[str]) -> Iterator[str]:
    left = TRAINING_CHARACTERS
    for line in lines:
        yield " ".join(line[:left].split())
        left -= len(line)
        if left <= 0:
            return
