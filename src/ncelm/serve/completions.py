"""OpenAI's `/v1/completions`, with `echo` and `logprobs`, so that programs for that interface work unchanged.

Tokens are words. The text of a completion is the words of a sentence, joined like the training text. A prompt is one
sentence; `finish_reason` is "stop" at the end of the sentence and "length" after `max_tokens` words.
"""

import json
import math
import time
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import numpy as np

from ncelm.language_model import LanguageModel, Tokens
from ncelm.serve.fields import Field, RequestError, invalid
from ncelm.serve.service import Service
from ncelm.text.vocabulary import END

_numbers = count(1)

TEXT = {"type": "string"}
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 20_000}
COMPLETIONS = (
    Field("model", TEXT, "The name of the model; by default the first one."),
    Field(
        "prompt",
        {
            "anyOf": [
                TEXT,
                {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 1000},
                IDS,
                {"type": "array", "items": IDS, "minItems": 1, "maxItems": 1000},
            ]
        },
        "The beginning of a sentence, a list of them, or word ids.",
        "",
    ),
    Field("max_tokens", {"type": "integer", "minimum": 0, "maximum": 1000}, "Words after the prompt.", 16),
    Field("temperature", {"type": "number", "minimum": 0, "maximum": 100}, "0 chooses the most likely word.", 1.0),
    Field("top_p", {"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "Nucleus sampling.", 1.0),
    Field("n", {"type": "integer", "minimum": 1, "maximum": 128}, "Completions of each prompt.", 1),
    Field("stream", {"type": "boolean"}, "Return words as they are drawn.", False),
    Field("logprobs", {"type": "integer", "minimum": 0, "maximum": 100}, "Return log P of words, and the most likely."),
    Field("echo", {"type": "boolean"}, "Return the prompt, too.", False),
    Field(
        "stop",
        {"anyOf": [TEXT, {"type": "array", "items": TEXT, "maxItems": 16}]},
        "Words before which a completion ends.",
    ),
    Field("seed", {"type": "integer", "minimum": 0, "maximum": 2**53}, "The seed of the random numbers.", 0),
)


def describe_models(service: Service) -> dict[str, Any]:
    """Return the answer of /v1/models."""
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "created": 0, "owned_by": "ncelm"} for name in service.models],
    }


async def complete_openai(service: Service, values: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of /v1/completions."""
    name, lm = service.model(values["model"])
    prompts, cost = _prompts(service, lm, values)

    def compute(items: list[Any]) -> list[Any]:
        return [_choices(lm, prompts, values)]

    (choices,) = await service.batcher.run(None, compute, [None], cost)
    prompt_tokens = sum(map(len, prompts))
    completion_tokens = sum(choice.pop("tokens") for choice in choices)
    return {
        "id": f"cmpl-{next(_numbers)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": name,
        "choices": choices,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }


async def stream_openai(service: Service, values: dict[str, Any]) -> AsyncIterator[str]:
    """Yield the events of /v1/completions with `stream`."""
    name, lm = service.model(values["model"])
    prompts, _ = _prompts(service, lm, values)
    if len(prompts) > 1 or values["n"] > 1 or values["echo"] or values["logprobs"] is not None:
        raise invalid("stream goes with one prompt, n = 1, and without echo and logprobs")
    identity, created = f"cmpl-{next(_numbers)}", int(time.time())
    request = {
        "model": name, "prompt": Tokens(prompts[0]), "count": 1, "max_words": max(values["max_tokens"], 1), "top_k": 0,
        "seed": values["seed"], "temperature": values["temperature"], "top_p": values["top_p"], "min_p": 0.0,
        "repetition_penalty": 1.0,
    }  # fmt: skip
    stops, reason = _stops(values), "length"
    async for word in service.stream(request):
        if word["word"] == END or word["word"] in stops:
            reason = "stop"
            break
        choice = {"index": 0, "text": f" {word['word']}", "logprobs": None, "finish_reason": None}
        yield _event(identity, created, name, choice)
    yield _event(identity, created, name, {"index": 0, "text": "", "logprobs": None, "finish_reason": reason})
    yield "[DONE]"


def _event(identity: str, created: int, model: str, choice: dict[str, Any]) -> str:
    head = {"id": identity, "object": "text_completion", "created": created, "model": model}
    return json.dumps({**head, "choices": [choice]}, allow_nan=False)


def _stops(values: dict[str, Any]) -> set[str]:
    stop = values["stop"]
    return set() if stop is None else {stop.strip()} if isinstance(stop, str) else {each.strip() for each in stop}


def _prompts(service: Service, lm: LanguageModel, values: dict[str, Any]) -> tuple[list[list[str]], int]:
    """Return the words of each prompt, and the number of words that are computed."""
    given = values["prompt"]
    single = isinstance(given, str) or (bool(given) and type(given[0]) is int)
    prompts = []
    for prompt in [given] if single else given:
        if isinstance(prompt, str):
            prompts.append(lm.text.words(" ".join(prompt.split())))
            continue
        if max(prompt) >= len(lm.vocabulary):
            raise invalid(f"prompt: the largest id of a word is {len(lm.vocabulary) - 1}")
        prompts.append([lm.vocabulary.word(id) for id in prompt])
    cost = sum(len(prompt) + values["n"] * values["max_tokens"] for prompt in prompts) + 1
    if cost > service.limits.words:
        raise RequestError(413, f"the request has more than {service.limits.words} words: send it in parts")
    return prompts, cost


def _choices(lm: LanguageModel, prompts: list[list[str]], values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of all prompts, n of each."""
    wanted, stops = values["max_tokens"], _stops(values)
    sentences: list[list[tuple[str, float]]] = [[] for _ in range(len(prompts) * values["n"])]
    if wanted:
        options = {"seed": values["seed"], "temperature": values["temperature"], "top_p": values["top_p"]}
        for drawn in lm.stream([Tokens(prompt) for prompt in prompts], values["n"], max_words=wanted, **options):
            sentences[drawn.sentence].append((drawn.word, drawn.log_probability))
    found = []
    for index, words in enumerate(sentences):
        ends = [place for place, (word, _) in enumerate(words) if word == END or word in stops]
        kept, reason = (words[: ends[0]], "stop") if ends else (words, "length")
        found.append(_choice(lm, index, prompts[index // values["n"]], kept, reason, values))
    return found


def _choice(
    lm: LanguageModel,
    index: int,
    prompt: list[str],
    words: list[tuple[str, float]],
    reason: str,
    values: dict[str, Any],
) -> dict[str, Any]:
    spelled = [word for word, _ in words]
    shown = [*prompt, *spelled] if values["echo"] else spelled
    choice: dict[str, Any] = {
        "index": index, "text": " ".join(shown), "finish_reason": reason, "logprobs": None, "tokens": len(words),
    }  # fmt: skip
    if values["logprobs"] is not None:
        choice["logprobs"] = _log_probabilities(lm, prompt, words, values["echo"], values["logprobs"])
    return choice


def _log_probabilities(
    lm: LanguageModel, prompt: list[str], words: list[tuple[str, float]], echo: bool, most_likely: int
) -> dict[str, Any]:
    """Return log P of each word, and the most likely words in its place."""
    values = [value for _, value in words]
    spelled = [word for word, _ in words]
    if echo:
        scored = lm.full_scores(Tokens(prompt), end=False)
        values = [*(word.log_probability for word in scored), *values]
        spelled = [*prompt, *spelled]
    first = 0 if echo else len(prompt)
    everything = [*prompt, *(word for word, _ in words)]
    tops = []
    for place, (word, value) in enumerate(zip(spelled, values, strict=True)):
        top = dict(_best(lm, everything[: first + place], most_likely)) if most_likely else {}
        tops.append({**top, word: value})
    offsets = np.cumsum([0, *(len(word) + 1 for word in spelled)])[:-1].tolist()
    finite = [value if math.isfinite(value) else None for value in values]
    return {"tokens": spelled, "token_logprobs": finite, "top_logprobs": tops, "text_offset": offsets}


def _best(lm: LanguageModel, before: list[str], n: int) -> list[tuple[str, float]]:
    logs = lm.distribution(Tokens(before))
    return [(lm.vocabulary.word(int(i)), float(logs[i])) for i in np.argsort(-logs, kind="stable")[:n]]
