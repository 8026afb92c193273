"""OpenAI's `/v1/completions`, with `echo` and `logprobs`, so that programs for that interface work unchanged.

Tokens are words. The text of a completion is the words of a sentence, joined like the training text. A prompt is one
sentence; `finish_reason` is "stop" at the end of the sentence and "length" after `max_tokens` words. The word `</s>` in
a prompt ends a sentence: each sentence is scored by itself, and the last one is completed.

`/tokenizer_info`, `/tokenize` and `/detokenize` are those of vLLM: lm-evaluation-harness needs them to count words.
"""

import json
import math
import re
import time
from collections.abc import AsyncIterator
from itertools import chain, count
from typing import Any

import numpy as np

from ncelm.language_model import LanguageModel, Tokens
from ncelm.serve.fields import Field, RequestError, invalid
from ncelm.serve.service import Service
from ncelm.text.vocabulary import END, UNKNOWN

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

TOKENIZE = (
    Field("model", TEXT, "The name of the model; by default the first one."),
    Field("prompt", TEXT, "A sentence. The word </s> is the end of a sentence.", required=True),
)
DETOKENIZE = (
    Field("model", TEXT, "The name of the model; by default the first one."),
    Field("tokens", {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 20_000}, "Word ids.",
          required=True),
)  # fmt: skip


def describe_tokenizer(service: Service) -> dict[str, Any]:
    """Return the answer of /tokenizer_info: the special words of the first model."""
    _, lm = service.model(None)
    return {"tokenizer_class": "ncelm", "bos_token": END, "eos_token": END, "unk_token": UNKNOWN,
            "vocab_size": len(lm.vocabulary)}  # fmt: skip


def tokenize(service: Service, values: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of /tokenize: the ids of the words of a text."""
    _, lm = service.model(values["model"])
    ids: list[int] = []
    for number, sentence in enumerate(re.split(rf"(?:(?<=\s)|^){END}(?=\s|$)", values["prompt"])):
        if number:
            ids.append(lm.vocabulary.end_id)
        ids += lm.vocabulary.encode(lm.text.words(" ".join(sentence.split()))).tolist()
    return {"count": len(ids), "max_model_len": service.limits.words, "tokens": ids}


def detokenize(service: Service, values: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of /detokenize: the words with these ids."""
    _, lm = service.model(values["model"])
    return {"prompt": _text(lm, _words_of_ids(lm, values["tokens"]))}


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
        "model": name, "prompt": _last_sentence(prompts[0]), "count": 1, "max_words": max(values["max_tokens"], 1),
        "top_k": 0, "seed": values["seed"], "temperature": values["temperature"], "top_p": values["top_p"],
        "min_p": 0.0, "repetition_penalty": 1.0,
    }  # fmt: skip
    stops, reason, spelled = _stops(values), "length", _last_sentence(prompts[0])
    async for word in service.stream(request):
        if word["word"] == END or word["word"] in stops:
            reason = "stop"
            break
        (text,) = lm.text.spelled([word["word"]], spelled) if lm.text.pieces else (f" {word['word']}",)
        spelled = Tokens([*spelled, word["word"]])
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
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
        prompts.append(_words_of_ids(lm, prompt))
    cost = sum(len(prompt) + values["n"] * values["max_tokens"] for prompt in prompts) + 1
    if cost > service.limits.words:
        raise RequestError(413, f"the request has more than {service.limits.words} words: send it in parts")
    return prompts, cost


def _words_of_ids(lm: LanguageModel, ids: list[int]) -> list[str]:
    if max(ids, default=0) >= len(lm.vocabulary):
        raise invalid(f"prompt: the largest id of a word is {len(lm.vocabulary) - 1}")
    return [lm.vocabulary.word(id) for id in ids]


def _text(lm: LanguageModel, words: list[str]) -> str:
    """Return words as a text, which `TextSettings.words` splits into the same words; ends of sentences are words."""
    return lm.text.join(words) if lm.text.pieces else " ".join(words)


def _last_sentence(words: list[str]) -> Tokens:
    """Return the words after the last end of a sentence."""
    ends = [place for place, word in enumerate(words) if word == END]
    return Tokens(words[ends[-1] + 1 :] if ends else words)


def _scores(lm: LanguageModel, words: list[str]) -> list[float]:
    """Return log P of each word. `</s>` ends a sentence; sentences are independent."""
    last = _last_sentence(words)
    others, sentence = list[Tokens](), list[str]()
    for word in words[: len(words) - len(last)]:
        if word == END:
            others.append(Tokens(sentence))
            sentence = []
        else:
            sentence.append(word)
    scored = [*chain.from_iterable(lm.full_scores_of(others)), *lm.full_scores(last, end=False)]
    return [word.log_probability for word in scored]


def _choices(lm: LanguageModel, prompts: list[list[str]], values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of all prompts, n of each."""
    wanted, stops = values["max_tokens"], _stops(values)
    sentences: list[list[tuple[str, float]]] = [[] for _ in range(len(prompts) * values["n"])]
    if wanted:
        options = {"seed": values["seed"], "temperature": values["temperature"], "top_p": values["top_p"]}
        for drawn in lm.stream(
            [_last_sentence(prompt) for prompt in prompts], values["n"], max_words=wanted, **options
        ):
            sentences[drawn.sentence].append((drawn.word, drawn.log_probability))
    found = []
    for index, words in enumerate(sentences):
        ends = [place for place, (word, _) in enumerate(words) if word == END or word in stops]
        kept, reason = (words[: ends[0]], "stop") if ends else (words, "length")
        end = words[ends[0] : ends[0] + 1] if ends and words[ends[0]][0] == END else []
        found.append(_choice(lm, index, prompts[index // values["n"]], kept, end, reason, values))
    return found


def _choice(
    lm: LanguageModel,
    index: int,
    prompt: list[str],
    words: list[tuple[str, float]],
    end: list[tuple[str, float]],
    reason: str,
    values: dict[str, Any],
) -> dict[str, Any]:
    """Return a choice. If the sentence has ended, its end is no part of the text, but has a log-probability.

    (Clients that ask for one word after an echoed prompt leave out the last log-probability: there must be one.)
    """
    spelled = [word for word, _ in words]
    shown = [*prompt, *spelled] if values["echo"] else spelled
    choice: dict[str, Any] = {
        "index": index, "text": _text(lm, shown), "finish_reason": reason, "logprobs": None, "tokens": len(words),
    }  # fmt: skip
    if values["logprobs"] is not None:
        choice["logprobs"] = _log_probabilities(lm, prompt, [*words, *end], values["echo"], values["logprobs"])
    return choice


def _log_probabilities(
    lm: LanguageModel, prompt: list[str], words: list[tuple[str, float]], echo: bool, most_likely: int
) -> dict[str, Any]:
    """Return log P of each word, and the most likely words in its place."""
    values = [value for _, value in words]
    spelled = [word for word, _ in words]
    if echo:
        values = [*_scores(lm, prompt), *values]
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
    logs = lm.distribution(_last_sentence(before))
    return [(lm.vocabulary.word(int(i)), float(logs[i])) for i in np.argsort(-logs, kind="stable")[:n]]
