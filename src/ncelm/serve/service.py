"""The models of a service, and what each endpoint computes. Nothing here knows HTTP."""

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ncelm import completion
from ncelm.errors import NcelmError
from ncelm.kernels.threads import Team
from ncelm.language_model import LanguageModel
from ncelm.models import description
from ncelm.models.base import Mode
from ncelm.models.log_bilinear import LogBilinear
from ncelm.models.mixture import Mixture
from ncelm.report import report_data
from ncelm.report.samples import choose_sentences
from ncelm.serve.batches import Batcher
from ncelm.serve.fields import Endpoint, Field, RequestError, invalid, or_invalid

MAP_WORDS = 2000  # the most frequent words, which the map of the vocabulary shows
HISTOGRAM_BINS = 40  # of log Z
STREAM_WORDS = 16  # words of a sentence that are generated before other requests have their turn


@dataclass(frozen=True)
class Limits:
    """What one request may ask for."""

    body_bytes: int = 1 << 20
    words: int = 20_000  # of all texts of a request
    texts: int = 1000
    generated: int = 20_000  # words
    seconds: float = 30.0  # until the response begins
    body_seconds: float = 10.0  # until the body has arrived
    waiting_words: int = 2_000_000  # of all requests that wait


TEXT = {"type": "string"}
MODEL = Field("model", TEXT, "The name of the model; by default the first one.")
COUNT = Field("count", {"type": "integer", "minimum": 1, "maximum": 1000}, "The number of results.", 10)
SAMPLING = (
    Field("seed", {"type": "integer", "minimum": 0, "maximum": 2**53}, "The seed of the random numbers.", 0),
    Field("temperature", {"type": "number", "minimum": 0, "maximum": 100}, "0 chooses the most likely word.", 1.0),
    Field("top_k", {"type": "integer", "minimum": 0, "maximum": 10**9}, "Only the k most likely words; 0: all.", 0),
    Field(
        "top_p",
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "Only the most likely words that together have this probability.",
        1.0,
    ),
    Field(
        "min_p",
        {"type": "number", "minimum": 0, "maximum": 1},
        "Only words with at least this part of the largest probability.",
        0.0,
    ),
    Field(
        "repetition_penalty",
        {"type": "number", "minimum": 1, "maximum": 1000},
        "Factor of log P of words that the sentence has already.",
        1.0,
    ),
)


def texts_field(limits: Limits) -> Field:
    """Return the field of sentences to score."""
    items = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": limits.texts}
    return Field("texts", {"anyOf": [TEXT, items]}, "A sentence, or a list of sentences.", required=True)


def endpoints(limits: Limits) -> dict[str, Endpoint]:
    """Return the endpoints that take JSON, by path."""
    texts = texts_field(limits)
    found = (
        Endpoint(
            "/score",
            "Log-probabilities of sentences",
            (
                MODEL,
                texts,
                Field("words", {"type": "boolean"}, "Also return log P of each word.", False),
                Field(
                    "mode",
                    {"type": "string", "enum": list(get_args(Mode))},
                    "Exactly normalised; fast, by an estimate, if the model has a normalizer; or unnormalised.",
                    "exact",
                ),
            ),
        ),
        Endpoint("/perplexity", "Perplexity of a text, given as sentences", (MODEL, texts)),
        Endpoint(
            "/next-words",
            "The most likely words after the beginning of a sentence",
            (MODEL, Field("text", TEXT, "The beginning of a sentence.", ""), COUNT),
        ),
        Endpoint(
            "/generate",
            "Random sentences; with stream, one line of JSON for each word",
            (
                MODEL,
                Field("prompt", TEXT, "The beginning of the sentences.", ""),
                replace(COUNT, default=1),
                Field("max_words", {"type": "integer", "minimum": 1, "maximum": 1000}, "Words after the prompt.", 100),
                *SAMPLING,
                Field("stream", {"type": "boolean"}, "Return words as they are drawn.", False),
            ),
        ),
        Endpoint(
            "/complete",
            "The best words for the gaps (_____) of a sentence",
            (
                MODEL,
                Field("sentence", TEXT, "A sentence with gaps, written _____.", required=True),
                Field(
                    "choices",
                    {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 1000},
                    "Words for the gap; by default all words.",
                ),
                COUNT,
                Field(
                    "unknown",
                    {"type": "string", "enum": ["distribute", "exclude", "token"]},
                    "How choices that are not in the vocabulary are scored.",
                    "distribute",
                ),
            ),
        ),
        Endpoint(
            "/neighbors",
            "The words with the nearest vectors",
            (MODEL, Field("word", TEXT, "A word of the vocabulary.", required=True), COUNT),
        ),
    )
    return {endpoint.path: endpoint for endpoint in found}


class Service:
    """Models that answer requests, one batch at a time."""

    def __init__(
        self, runs: Sequence[Path], threads: int | None, limits: Limits | None = None, batching: bool = True
    ) -> None:
        self.limits = limits or Limits()
        self.team = Team(threads)
        self.models, self.paths = dict[str, LanguageModel](), dict[str, Path]()
        for path in runs:
            name = _free_name(path.resolve().name or "model", self.models)
            self.models[name] = replace(LanguageModel.load(path, threads), team=self.team)
            self.paths[name] = path
        self.batcher = Batcher(self.limits.waiting_words, 4 * self.limits.words, batching)
        self._maps: dict[str, dict[str, Any]] = {}
        self._histograms: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> "Service":
        self.team.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.batcher.close()
        self.team.__exit__(None, None, None)

    def model(self, name: str | None) -> tuple[str, LanguageModel]:
        """Return a model and its name; by default the first one."""
        if name is None:
            name = next(iter(self.models))
        if name not in self.models:
            raise RequestError(404, f"there is no model {name[:60]!r}: the models are {', '.join(self.models)}")
        return name, self.models[name]

    def describe(self) -> list[dict[str, Any]]:
        """Return what the page shows about each model."""
        return [
            {
                "name": name,
                "kind": type(lm.model).__name__,
                "vocabulary": len(lm.vocabulary),
                "sides": lm.model.sides,
                "tokenizer": lm.text.tokenizer,
                "lowercase": lm.text.lowercase,
                "vectors": has_vectors(lm),
            }
            for name, lm in self.models.items()
        ]

    def warm_up(self) -> None:
        """Compile all kernels, and read the parameters once."""
        for lm in self.models.values():
            list(lm.scores_of(["a b"]))
            list(lm.scores_of(["a b"], mode="unnormalised"))
            if lm.normalizer_error:
                list(lm.scores_of(["a b"], mode="fast"))
            if lm.model.sides == "before":
                lm.generate("a", max_words=1)

    # -- endpoints ---------------------------------------------------------------------------------------------------

    async def score(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return log P of each text."""
        name, lm = self.model(values["model"])
        texts, cost = self._texts(values["texts"])
        mode: Mode = values["mode"]

        def compute(items: list[str]) -> list[dict[str, Any]]:
            return [_sentence(words) for words in lm.full_scores_of(items, mode=mode)]

        def totals(items: list[str]) -> list[dict[str, Any]]:
            return [_total(each.log_probability, each.tokens, each.unknown)
                    for each in lm.scores_of(items, mode=mode)]  # fmt: skip

        kind = compute if values["words"] else totals
        results = await self.batcher.run(("score", name, mode, values["words"]), kind, texts, cost)
        if mode != "exact":  # perplexities are exact
            results = [{name: value for name, value in each.items() if name != "perplexity"} for each in results]
        notes = {"unnormalised": "unnormalised scores: log Z is taken to be 0"}
        if mode == "fast":
            error = lm.normalizer_error  # None for a mixture
            notes["fast"] = f"log Z is estimated{f', with an error of {error}' if error else ''}"
        note = {"note": notes[mode]} if mode in notes else {}
        return {"model": name, "mode": values["mode"], "results": list(results), **note}

    async def perplexity(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the perplexity of all texts together."""
        found = await self.score({**values, "words": False, "mode": "exact"})
        results = found["results"]
        tokens = sum(result["tokens"] for result in results)
        total = math.fsum(result["log_probability"] for result in results)
        return {
            "model": found["model"],
            "perplexity": _exp(-total / tokens),
            "tokens": tokens,
            "sentences": len(results),
            "unknown": sum(result["unknown"] for result in results),
        }

    async def next_words(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the most likely words."""
        name, lm = self.model(values["model"])
        (text,), cost = self._texts([values["text"]])
        count = values["count"]

        def compute(items: list[str]) -> list[list[tuple[str, float]]]:
            return [lm.next_words(item, count) for item in items]

        (found,) = await self.batcher.run(("next", name, count), compute, [text], cost)
        return {"model": name, "words": [{"word": word, "log_probability": value} for word, value in found]}

    async def generate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return random sentences."""
        name, lm, options = self._generation(values)

        def compute(items: list[Any]) -> list[Any]:
            return [lm.generate(**options)]

        (found,) = await self.batcher.run(None, compute, [None], values["count"] * values["max_words"])
        return {"model": name, "sentences": [vars(each) for each in found]}

    async def stream(self, values: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the words of random sentences. Between some words, other requests are answered."""
        _, lm, options = self._generation(values)
        words = lm.stream(**options)
        size = STREAM_WORDS * values["count"]
        while True:
            (part,) = await self.batcher.run(None, lambda _: [list(islice(words, size))], [None], size)
            for word in part:
                yield vars(word)
            if not part:
                return

    def _generation(self, values: dict[str, Any]) -> tuple[str, LanguageModel, dict[str, Any]]:
        name, lm = self.model(values["model"])
        prompt = values["prompt"]
        self._texts([prompt] if isinstance(prompt, str) else prompt)
        if values["count"] * values["max_words"] > self.limits.generated:
            raise invalid(f"count × max_words is more than {self.limits.generated}: reduce one of them")
        names = ("prompt", "count", "max_words", *(field.name for field in SAMPLING))
        options = {name: values[name] for name in names}
        or_invalid(lambda: lm.stream(**options))  # checks the arguments; nothing is generated
        return name, lm, options

    async def complete(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the best words for the gaps of a sentence."""
        name, lm = self.model(values["model"])
        sentence, choices = values["sentence"], values["choices"]
        cost = len(sentence.split()) * max(len(choices or ()), 1)
        if cost > self.limits.words:
            raise RequestError(413, f"the sentence and its choices have more than {self.limits.words} words")

        def compute(items: list[Any]) -> list[Any]:
            if choices is None:
                found = completion.most_likely(lm, sentence, values["count"])
                unknown: tuple[str, ...] = ()
            else:
                question = completion.Question("", sentence, tuple(choices))
                (ranking,) = completion.rank(lm, [question], unknown=values["unknown"])
                found = [(choices[i], ranking.scores[i]) for i in ranking.order][: values["count"]]
                unknown = ranking.unknown
            best = found[0][0] if found else ""
            return [(found, unknown, contributions(lm, sentence, best))]

        ((found, unknown, parts),) = await self.batcher.run(None, compute, [None], cost)
        words = [{"word": word, "score": value if math.isfinite(value) else None} for word, value in found]
        return {"model": name, "words": words, "unknown": list(unknown), "contributions": parts}

    async def neighbors(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the words with the nearest vectors."""
        name, lm = self.model(values["model"])

        def compute(items: list[Any]) -> list[Any]:
            return [lm.neighbors(values["word"], values["count"])]

        (found,) = await self.batcher.run(None, compute, [None], 1)
        return {"model": name, "words": [{"word": word, "similarity": value} for word, value in found]}

    # -- the page ----------------------------------------------------------------------------------------------------

    async def run_data(self, name: str) -> dict[str, Any]:
        """Return training curves and settings of a model, as `ncelm report --json` prints them."""
        name, _ = self.model(name)
        path = self.paths[name]
        (found,) = await self.batcher.run(None, lambda _: [report_data(path, samples=False)], [None], 1)
        for run in found["runs"]:
            for each in (run, *(part["run"] for part in run.get("components", ()) if "run" in part)):
                del each["path"]  # clients need not know the folders of this machine
        return found

    async def log_z(self, name: str) -> dict[str, Any]:
        """Return a histogram of log Z(h) on held-out text."""
        name, lm = self.model(name)
        if name not in self._histograms:
            (self._histograms[name],) = await self.batcher.run(None, lambda _: [log_z_histogram(lm)], [None], 1)
        return self._histograms[name]

    async def word_map(self, name: str) -> dict[str, Any]:
        """Return frequent words and two coordinates of each: the first principal components of their vectors."""
        name, lm = self.model(name)
        if name not in self._maps:
            (self._maps[name],) = await self.batcher.run(None, lambda _: [principal_map(lm)], [None], 1)
        return self._maps[name]

    def _texts(self, texts: str | Sequence[str]) -> tuple[list[str], int]:
        """Return texts and an upper bound of their number of words, which is limited."""
        given = [texts] if isinstance(texts, str) else texts
        cost = sum(text.count(" ") + text.count("\n") + 1 + len(text) // 20 for text in given)
        if cost > self.limits.words:
            raise RequestError(413, f"the text has more than {self.limits.words} words: send it in parts")
        return [" ".join(text.split()) for text in given], cost


def _free_name(name: str, used: dict[str, Any]) -> str:
    """Return a name that no other model has."""
    return (
        name
        if name not in used
        else next(free for number in range(2, len(used) + 3) if (free := f"{name}-{number}") not in used)
    )


def _exp(value: float) -> float | None:
    """Return exp(value), or None if it is too large for JSON."""
    return math.exp(value) if value < 700 else None


def _total(log_probability: float, tokens: int, unknown: int) -> dict[str, Any]:
    return {
        "log_probability": log_probability,
        "tokens": tokens,
        "unknown": unknown,
        "perplexity": _exp(-log_probability / tokens) if tokens else None,
    }


def _sentence(words: list[Any]) -> dict[str, Any]:
    total = math.fsum(word.log_probability for word in words)
    return _total(total, len(words), sum(word.unknown for word in words)) | {"words": [vars(word) for word in words]}


def has_vectors(lm: LanguageModel) -> bool:
    """Return whether a model has word vectors."""
    try:
        lm.vectors()
    except NcelmError:
        return False
    return True


def contributions(lm: LanguageModel, sentence: str, choice: str) -> list[dict[str, Any]]:
    """Return what each context word adds to the score of the first word of a choice in the first gap.

    s(w, h) = Σ_i (C_i r_i)ᵀ q_w + b_w (Eq. 2 and 3): the terms of the sum. Empty for models that are not log-bilinear.
    """
    model = next(
        (part for part in (lm.model.components if isinstance(lm.model, Mixture) else (lm.model,))
         if isinstance(part, LogBilinear)), None
    )  # fmt: skip
    before, *others = completion.GAP.split(sentence)
    target = lm.text.words(choice)[:1]
    if model is None or not others or not target:
        return []
    left, right = lm.text.words(before), lm.text.words(others[0])
    c, c_after, pad = model.config.context, model.config.context_after, lm._pad_id
    words = [*[""] * c, *left][len(left) :] + [*right, *[""] * c_after][:c_after]
    ids = [lm.vocabulary.encode([word])[0] if word else pad for word in words]
    vector = model.target_vectors[lm.vocabulary.encode(target)[0]]
    found = []
    for i, (word, id) in enumerate(zip(words, ids, strict=True)):
        matrix, row = model.matrices[i], model.context_vectors[id]
        value = float(vector @ (matrix * row if matrix.ndim == 1 else matrix @ row))
        if word:
            found.append({"word": word, "position": i - c if i < c else i - c + 1, "value": value})
    return found


def log_z_histogram(lm: LanguageModel) -> dict[str, Any]:
    """Return the number of contexts h of held-out text with log Z(h) in each of some intervals.

    There are no intervals, but a note, if the model is normalised or its token store cannot be read.
    """
    none: dict[str, Any] = {"split": None, "contexts": 0, "edges": [], "counts": []}
    try:
        store = description.open_store(None, lm.store_path)
        lm.check_store(store)
    except NcelmError:
        return none | {"note": "The token store of the model cannot be read: there is no histogram of log Z."}
    split = next((name for name in ("valid", "test") if name in store.splits), None)
    sentences = choose_sentences(store, split) if split else []
    if not sentences:
        return none | {"note": "The token store has no held-out text: there is no histogram of log Z."}
    log_z = np.concatenate([batch.log_z for batch in lm._scored_batches(sentences)]).astype(np.float64)
    if np.ptp(log_z) < 1e-6:
        return none | {"note": "The model is normalised: log Z is the same for all contexts."}
    counts, edges = np.histogram(log_z, HISTOGRAM_BINS)
    return {"split": split, "contexts": len(log_z), "edges": edges.tolist(), "counts": counts.tolist()}


def principal_map(lm: LanguageModel) -> dict[str, Any]:
    """Return the first two principal components of the vectors of frequent words."""
    vectors = lm.vectors()
    special = {lm.vocabulary.unknown_id, lm.vocabulary.end_id}
    ids = np.array([i for i in range(len(vectors)) if i not in special][:MAP_WORDS])
    rows = vectors[ids].astype(np.float64)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    rows -= rows.mean(axis=0)
    _, _, axes = np.linalg.svd(rows, full_matrices=False)
    places = rows @ axes[:2].T
    if places.shape[1] < 2:
        places = np.column_stack([places, np.zeros(len(places))])
    return {
        "words": [lm.vocabulary.word(int(i)) for i in ids],
        "x": np.round(places[:, 0], 4).tolist(),
        "y": np.round(places[:, 1], 4).tolist(),
    }
