"""Scores of the documents of a block, in a worker process.

The value of a document decides about it; low is good. It is the perplexity of the document, exp(-mean log P) over the
tokens of all its sentences, or, with a second model, the difference of the cross-entropies of both models per word
(Moore & Lewis, 2010).
"""

import gzip
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ncelm.errors import MissingExtraError, NcelmError
from ncelm.text.settings import TextSize
from ncelm.text.store import read_description
from ncelm.text.tables import json_row

if TYPE_CHECKING:
    from ncelm.models.base import WordModel
    from ncelm.text.sentences import SentenceSplitter

Mode = Literal["auto", "exact", "fast", "unnormalised"]  # those of `LanguageModel.scores_of`, or the fastest
Sentences = Literal["auto", "lines", "punkt"]
Format = Literal["jsonl", "text"]
Compression = Literal["none", "gz", "zst"]
# Histograms have intervals of this width, of the logarithm of the perplexity or of the difference of cross-entropies.
WIDTH, LOW, BINS = 0.02, -20.0, 3000
EXAMPLES_PER_BIN, EXAMPLE_CHARACTERS = 2, 400
MAX_COST = 690.0  # nats per token; the exponential of more is not finite
KEPT_BROKEN = 5  # rows of a block that are named
BATCH_CHARACTERS = 1 << 19  # of documents that are scored in one call; bounds the memory


@dataclass(frozen=True)
class Job:
    """What worker processes do with each block."""

    run: Path
    contrast: Path | None
    mode: Mode
    column: str
    sentences: Sentences
    buckets: tuple[str, ...]  # names, best first
    written: tuple[str, ...]  # of these, the ones whose documents are written
    max_unknown: float | None  # share of the tokens; documents with more are in the last bucket
    prefix: str  # of the names of the fields
    format: Format
    compression: Compression
    examples: bool


class Documents(NamedTuple):
    """The scores of n documents."""

    values: np.ndarray  # (n,); NaN for a document without words
    perplexities: np.ndarray  # of the model and, with a contrast, of the second model, (1 or 2, n)
    tokens: np.ndarray  # (n,)
    unknown: np.ndarray  # tokens scored as <unk>, (n,)


@dataclass
class Result:
    """What a block contains."""

    outputs: dict[str, bytes] = field(default_factory=dict)  # by bucket
    documents: dict[str, int] = field(default_factory=dict)  # by bucket
    tokens: int = 0
    unknown: int = 0
    empty: int = 0  # documents without words
    histogram: dict[int, int] = field(default_factory=dict)  # documents by interval
    examples: dict[int, list[tuple[int, float, str]]] = field(default_factory=dict)  # hash, value, text by interval
    broken: int = 0
    named: list[tuple[int, str]] = field(default_factory=list)  # the first broken rows: number, reason
    values: list[float] = field(default_factory=list)  # for a sample


def bin_of(values: np.ndarray) -> np.ndarray:
    """Return the interval of a histogram for each value, (n,) int64. A value is a logarithm or a difference."""
    return np.clip(np.floor((values - LOW) / WIDTH), 0, BINS - 1).astype(np.int64)


def bin_center(number: int) -> float:
    """Return the center of an interval."""
    return LOW + (number + 0.5) * WIDTH


def fastest_mode(model: "WordModel") -> Literal["exact", "fast", "unnormalised"]:
    """Return the fastest mode in which a model is normalised, or "unnormalised" if it has none that is fast."""
    from ncelm.models.log_bilinear import LogBilinear
    from ncelm.models.mixture import Mixture
    from ncelm.models.ngram.query import NGramModel

    if isinstance(model, NGramModel):
        return "exact"  # needs no sum over the vocabulary
    if isinstance(model, Mixture):
        modes = {fastest_mode(component) for component in model.components}
        return "unnormalised" if "unnormalised" in modes else "fast" if "fast" in modes else "exact"
    return "fast" if isinstance(model, LogBilinear) and model.normalizer is not None else "unnormalised"


class Scorer:
    """The models of a job."""

    def __init__(self, job: Job) -> None:
        from ncelm.language_model import LanguageModel

        self.job = job
        self.models = [LanguageModel.load(path, 1) for path in (job.run, job.contrast) if path is not None]
        for lm, path in zip(self.models, (job.run, job.contrast), strict=False):
            if lm.two_sided:
                raise NcelmError(
                    f"{path} sees both sides of a word, so that its scores are no probabilities of documents: give a "
                    "model with `context_after` 0"
                )
        self.modes = [fastest_mode(lm.model) if job.mode == "auto" else job.mode for lm in self.models]
        self.same_text = len({lm.text for lm in self.models}) == 1

    @property
    def is_normalised(self) -> bool:
        """Whether the scores are log-probabilities."""
        return all(mode != "unnormalised" for mode in self.modes)

    @cached_property
    def splitter(self) -> "SentenceSplitter | None":
        """The sentence model of the training text; None if a line is a sentence."""
        from ncelm.text.sentences import SentenceSplitter

        lm, kind = self.models[0], self.job.sentences
        if kind == "lines" or (kind == "auto" and lm.text.tokenizer == "whitespace"):
            return None
        store = lm.store_path
        if store is None or not (store / "store.json").exists():
            if kind == "auto" and lm.text.pieces:
                return None
            raise NcelmError(
                f"the sentence model of {self.job.run} is in its token store, which is no longer at {store}: pass "
                "`sentences` lines if each line of a document is a sentence"
            )
        if read_description(store).get("punkt") is None:
            if kind == "punkt":
                raise NcelmError(f"{store} has no sentence model: pass `sentences` lines")
            return None
        return SentenceSplitter.load(store)

    def score(self, documents: list[str]) -> Documents:
        """Return the scores of documents."""
        sentences, ends = list[str](), list[int]()
        for document in documents:
            if self.splitter:
                sentences += self.splitter.sentences(document)
            elif "\n" in document:
                sentences += [line for line in document.split("\n") if line and not line.isspace()]
            elif document and not document.isspace():
                sentences.append(document)
            ends.append(len(sentences))
        starts = np.array([0, *ends[:-1]], np.int64)  # (n,)
        counts = np.diff(np.array([0, *ends], np.int64))  # sentences of each document, (n,)
        costs, words = list[np.ndarray](), np.ones(len(documents))
        for lm, mode in zip(self.models, self.modes, strict=True):
            scores = list(lm.scores_of(sentences, mode=mode)) if sentences else []
            table = np.array([(s.log_probability, s.tokens, s.unknown) for s in scores], np.float64).reshape(-1, 3)
            sums = np.zeros((len(documents), 3))
            has_any = counts > 0
            if has_any.any():
                sums[has_any] = np.add.reduceat(table, starts[has_any], axis=0)
            if not costs:
                tokens, unknown = sums[:, 1], sums[:, 2]
                words = tokens
            costs.append(-sums[:, 0])
        if not self.same_text:
            sizes = list(accumulate((TextSize.of(sentence).words + 1 for sentence in sentences), initial=0))
            words = np.diff(np.array(sizes, np.float64)[[0, *ends]])
        empty = counts == 0
        with np.errstate(invalid="ignore", divide="ignore"):
            # of models with different tokenizers, only costs per word can be compared
            per_token = np.stack([cost / words for cost in costs])
            per_token[:, empty] = np.nan
            perplexities = np.exp(np.minimum(per_token, MAX_COST))
            values = perplexities[0] if len(costs) == 1 else per_token[0] - per_token[1]
        return Documents(values, perplexities, tokens.astype(np.int64), unknown.astype(np.int64))


# -- blocks ----------------------------------------------------------------------------------------------------------


_job: Job | None = None  # of this worker process
_scorer: Scorer | None = None


def start(job: Job) -> None:
    """Initialize a worker process. The models are loaded with the first block, so that an error is that of the call."""
    global _job, _scorer
    _job, _scorer = job, None


def scorer() -> Scorer:
    """Return the models of this process."""
    global _scorer
    if _scorer is None:
        assert _job is not None
        _scorer = Scorer(_job)
    return _scorer


def describe() -> dict[str, Any]:
    """Return what the calling process must know of the models; compile what is needed to score."""
    models = scorer()
    models.score(["a b", "c"])
    return {"modes": models.modes, "normalised": models.is_normalised}


def score_block(kind: str, first: int, data: bytes, thresholds: Sequence[float] | None, skip: bool) -> Result:
    """Return the result of a block; with thresholds None, only the values of its documents.

    Unless `skip` is set, the block ends before the first row that is broken.
    """
    models, job = scorer(), _job
    assert job is not None
    result = Result()
    rows: list[tuple[str, dict[str, Any] | None]] = []  # lines, and their fields
    texts: list[str] = []
    characters = 0
    parts: dict[str, list[str]] = {name: [] for name in job.written}

    def flush() -> None:
        nonlocal characters
        if texts:
            _finish(models, rows, texts, thresholds, result, parts)
        rows.clear()
        texts.clear()
        characters = 0

    for number, line in enumerate(_lines(data), first):
        fault, row, text = None, None, ""
        if isinstance(line, bytes):
            fault = "the line is not UTF-8: convert it"
        elif not line or line.isspace():
            continue
        elif kind == "text":
            text = line
            if "\0" in text:
                fault = "the line has a NUL character, which text has not: correct or remove it"
        else:
            try:
                row = json_row(line, job.column)
                text = row[job.column]
            except ValueError as error:
                fault = str(error)
        if fault is not None:
            result.broken += 1
            if len(result.named) < KEPT_BROKEN:
                result.named.append((number, fault))
            if skip or thresholds is None:
                continue
            break
        rows.append((line, row))  # type: ignore[arg-type]
        texts.append(text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text)
        characters += len(text)
        if characters >= BATCH_CHARACTERS:
            flush()
    flush()
    result.outputs = {name: _compressed(job, "".join(lines).encode()) for name, lines in parts.items() if lines}
    return result


def _lines(data: bytes) -> "list[str] | list[str | bytes]":
    """Return the lines of a block; those that are not UTF-8 as bytes."""
    try:
        return [line.removesuffix("\r") for line in data.decode().split("\n")]
    except UnicodeDecodeError:
        found: list[str | bytes] = []
        for line in data.split(b"\n"):
            try:
                found.append(line.decode().removesuffix("\r"))
            except UnicodeDecodeError:
                found.append(line)
        return found


def _finish(
    models: Scorer,
    rows: list[tuple[str, dict[str, Any] | None]],
    texts: list[str],
    thresholds: Sequence[float] | None,
    result: Result,
    parts: dict[str, list[str]],
) -> None:
    """Score documents, and add them to a result."""
    job, scored = models.job, models.score(texts)
    if thresholds is None:
        result.values += scored.values[np.isfinite(scored.values)].tolist()
        return
    worst = len(job.buckets) - 1
    # the value of a document is the one that is written, so that a bucket can be computed from it
    values = np.array([float(f"{value:.6g}") for value in scored.values.tolist()])
    with np.errstate(invalid="ignore", divide="ignore"):
        places = np.searchsorted(np.array(thresholds, np.float64), values, side="left")  # (n,), NaN is last
        places[np.isnan(values)] = worst
        if job.max_unknown is not None:
            places[scored.unknown > job.max_unknown * np.maximum(scored.tokens, 1)] = worst
        bins = bin_of(np.where(np.isnan(values), 0.0, values if job.contrast else np.log(values)))
    is_empty = np.isnan(values)
    result.empty += int(is_empty.sum())
    result.tokens += int(scored.tokens.sum())
    result.unknown += int(scored.unknown.sum())
    for number, count in zip(*np.unique(bins[~is_empty], return_counts=True), strict=True):
        result.histogram[int(number)] = result.histogram.get(int(number), 0) + int(count)
    names = _field_names(job, models.is_normalised)
    columns: list[list[Any]] = [[_number(x) for x in row] for row in scored.perplexities.tolist()]
    if job.contrast:
        columns.append([_number(x) for x in values.tolist()])
    columns += [scored.tokens.tolist(), scored.unknown.tolist()]
    for i, (line, row) in enumerate(rows):
        bucket = job.buckets[places[i]]
        result.documents[bucket] = result.documents.get(bucket, 0) + 1
        if bucket in parts:
            if job.format == "text":
                parts[bucket].append(f"{texts[i]}\n")
            else:
                more = [f'"{name}": {column[i]}' for name, column in zip(names, columns, strict=False)]
                more.append(f'"{names[-1]}": "{bucket}"')
                parts[bucket].append(_with_fields(line, row, texts[i], job.column, names, more))
        if job.examples and not is_empty[i]:
            _add_example(result.examples, int(bins[i]), float(values[i]), texts[i])


def _field_names(job: Job, normalised: bool) -> list[str]:
    """Return the names of the fields that a document gets, the bucket last."""
    measure = "perplexity" if normalised else "pseudo_perplexity"  # exp(-mean s(w, h))
    names = [measure, f"contrast_{measure}", "cross_entropy_difference"] if job.contrast else [measure]
    return [job.prefix + name for name in (*names, "tokens", "unknown", "bucket")]


def _number(value: float) -> str:
    return "null" if math.isnan(value) else f"{value:.6g}".replace("e+", "e")


def _with_fields(
    line: str, row: dict[str, Any] | None, text: str, column: str, names: list[str], more: list[str]
) -> str:
    """Return a line of JSON with more fields. The line keeps its bytes, unless it has a field of the same name."""
    if row is None:
        line = json.dumps({column: text}, ensure_ascii=False)
    elif not row.keys().isdisjoint(names):
        line = json.dumps({name: value for name, value in row.items() if name not in names})
    return f"{line.rstrip()[:-1]}, {', '.join(more)}}}\n"


def _add_example(examples: dict[int, list[tuple[int, float, str]]], number: int, value: float, text: str) -> None:
    """Keep the documents of an interval with the least digests: a random choice that does not depend on the order."""
    shown = text[:EXAMPLE_CHARACTERS]
    kept = examples.setdefault(number, [])
    kept.append((zlib.crc32(shown.encode("utf-8", "replace")), value, shown))
    if len(kept) > EXAMPLES_PER_BIN:
        kept.sort()
        kept.pop()


def _compressed(job: Job, data: bytes) -> bytes:
    """Return bytes as a part of a compressed file, which may have several such parts."""
    if job.compression == "gz":
        return gzip.compress(data, 6, mtime=0)
    if job.compression == "zst":
        return zstd().ZstdCompressor().compress(data)
    return data


def zstd() -> Any:
    """Return the module zstandard."""
    try:
        import zstandard
    except ImportError:
        raise MissingExtraError("zstandard is needed to compress: pip install 'ncelm[zstd]'") from None
    return zstandard
