"""Scores of documents, which all plug-ins share."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ncelm.arguments import check, check_float, check_path, check_strings
from ncelm.errors import NcelmError
from ncelm.io.files import file_digest
from ncelm.kenlm.queries import Queries, load
from ncelm.kernels.threads import check_threads
from ncelm.models.load import run_checksum


class DocumentScore(NamedTuple):
    """The score of a document."""

    perplexity: float  # NaN if the document has no words
    unknown: float  # share of the words that are not in the vocabulary


class DocumentScorer:
    """The perplexities of documents under a model.

    A document is a text; each of its lines that is not blank is a sentence. The perplexity is exp(-mean log P) over the
    words and the ends of all its sentences, exactly normalised.

    The model is loaded when it is first needed. A scorer is pickled as the path and a checksum of the model, so that it
    can be sent to other processes and machines, where the same model must be at the same path.
    """

    def __init__(self, model: Path | str, threads: int | None = 1) -> None:
        """Create a scorer.

        Args:
            model: a run or an ARPA file.
            threads: of a neural model; None for all cores. Programs that start one process per core need one thread.
        """
        self.path = check_path("model", model).absolute()
        self.threads = check_threads(threads)
        if not self.path.exists():
            raise NcelmError(f"there is no model {self.path}: give a run or an ARPA file")
        self.checksum = _checksum(self.path)

    def __repr__(self) -> str:
        return f"DocumentScorer({self.path.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "threads": self.threads, "checksum": self.checksum}

    @cached_property
    def _queries(self) -> Queries:
        if _checksum(self.path) != self.checksum:
            raise NcelmError(f"{self.path} is not the model that this process was started with: copy the model again")
        return load(self.path, False, self.threads)

    def load(self) -> None:
        """Load the model now, instead of with the first document."""
        _ = self._queries

    def score(self, text: str) -> DocumentScore:
        """Return the score of a document."""
        return self.scores([text])[0]

    def scores(self, texts: Sequence[str]) -> list[DocumentScore]:
        """Return the scores of documents, faster than one by one."""
        sentences, counts = list[str](), list[int]()
        for text in check_strings("texts", texts):
            lines = [line for line in text.split("\n") if line and not line.isspace()]
            sentences += lines
            counts.append(len(lines))
        of = np.repeat(np.arange(len(counts)), counts)  # the document of each sentence
        scored = self._queries.scores(sentences, True, True)
        log10, words, unknown = (np.bincount(of, weights=each, minlength=len(counts)) for each in scored)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            perplexities = 10.0 ** (-log10 / np.where(words > 0, words + counts, np.nan))
            shares = np.where(words > 0, unknown / words, 0.0)
        return [DocumentScore(*each) for each in zip(perplexities.tolist(), shares.tolist(), strict=True)]

    def percentile(self, texts: Iterable[str], percent: float) -> float:
        """Return the perplexity below which this percentage of the documents is.

        Use it as `max_perplexity` to keep this percentage of a corpus, of which the texts are a sample: absolute
        thresholds do not carry over from one model to another.
        """
        percent = check_float("percent", percent, 0.0, 100.0)
        values = np.array([score.perplexity for score in self.scores(list(texts))])
        values = values[~np.isnan(values)]
        if not values.size:
            raise NcelmError("`texts` has no document with words: give a sample of the corpus")
        return float(np.percentile(values, percent))


@dataclass(frozen=True)
class Limits:
    """Which documents are kept. Documents without words are not."""

    min_perplexity: float = 0.0
    max_perplexity: float = math.inf
    max_unknown: float = 1.0  # largest share of unknown words: `<unk>` stands for all of them, and is a likely word

    def __post_init__(self) -> None:
        check_float("min_perplexity", self.min_perplexity, 0.0)
        if self.max_perplexity != math.inf:
            check_float("max_perplexity", self.max_perplexity, 0.0)
        check_float("max_unknown", self.max_unknown, 0.0, 1.0)
        ordered = self.min_perplexity <= self.max_perplexity
        check("min_perplexity", self.min_perplexity, ordered, f"at most `max_perplexity`, {self.max_perplexity:g}")

    def reason(self, score: DocumentScore) -> str | None:
        """Return why a document is not kept; None if it is."""
        if math.isnan(score.perplexity):
            return "empty"
        if score.unknown > self.max_unknown:
            return "unknown_words"
        if score.perplexity < self.min_perplexity:
            return "low_perplexity"
        return "high_perplexity" if score.perplexity > self.max_perplexity else None


def _checksum(path: Path) -> str:
    return run_checksum(path) if path.is_dir() else file_digest(path)
