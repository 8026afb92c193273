"""Samples: what a model does with held-out sentences, and which sentences it generates."""

from typing import Any

import numpy as np

from ncelm.errors import NcelmError
from ncelm.language_model import LanguageModel, Tokens
from ncelm.models.base import Scorer
from ncelm.text.store import TokenStore
from ncelm.text.vocabulary import Vocabulary

SENTENCES, CONTEXTS, GENERATED, SURPRISING, WORDS, NEIGHBORS = 5, 5, 4, 12, 10, 8
LENGTHS = (6, 24)  # of the sentences shown, in words
SCORED = 300  # sentences in which surprising words are searched
FREQUENT = 2000  # the most frequent words, whose neighbors are shown
NEXT_WORDS = 6
GENERATED_WORDS = 24  # at most, of a generated sentence


def held_out(lm: LanguageModel, store: TokenStore, split: str) -> dict[str, Any]:
    """Return samples on a split of a store: scored sentences, next words, and the most surprising words."""
    lm.check_store(store)
    texts = choose_sentences(store, split)
    scored = [lm.full_scores(Tokens(words)) for words in texts]
    shown = [words for words in scored if LENGTHS[0] < len(words) <= LENGTHS[1] + 1] or scored
    known = [words for words in shown if not any(word.unknown for word in words)] or shown
    every = max(len(known) // (SENTENCES + CONTEXTS), 1)
    selected = known[::every][: SENTENCES + CONTEXTS]
    samples: dict[str, Any] = {
        "split": split,
        "scored_sentences": len(scored),
        "sentences": [_sentence(words) for words in selected[:SENTENCES]],
        "surprising": _surprising(scored),
    }
    if lm.model.sides == "before":
        samples["next_words"] = [_next_words(lm, words) for words in selected[SENTENCES:] if len(words) > 2]
    return samples


def choose_sentences(store: TokenStore, split: str) -> list[list[str]]:
    """Return up to `SCORED` sentences of a split, evenly spaced, as words."""
    chosen, words = store.split(split), store.vocabulary.word
    step = max(chosen.n_sentences // SCORED, 1)
    bounds = chosen.sentences.astype(np.int64)
    found = []
    for i in range(0, chosen.n_sentences, step):
        ids = chosen.ids[bounds[i] : bounds[i + 1] - 1]  # without </s>
        if 0 < ids.size <= 200:
            found.append([words(int(id)) for id in ids])
    return found[:SCORED]


def _sentence(words: list[Any]) -> dict[str, Any]:
    logs = [word.log_probability for word in words]
    return {
        "words": [{"word": word.word, "log_probability": word.log_probability} for word in words],
        "log_probability": sum(logs),
        "perplexity": float(np.exp(-np.mean(logs))),
    }


def _surprising(scored: list[list[Any]]) -> list[dict[str, Any]]:
    """Return the words with the lowest probability, each once, with the words before them."""
    found = sorted(
        (word.log_probability, number, place)
        for number, words in enumerate(scored)
        for place, word in enumerate(words[:-1])
        if not word.unknown
    )
    surprising: dict[str, dict[str, Any]] = {}
    for log_probability, number, place in found:
        words = [word.word for word in scored[number][:-1]]
        before, after = words[max(place - 5, 0) : place], words[place + 1 : place + 3]
        more = {"before": " ".join(before), "after": " ".join(after), "log_probability": log_probability}
        surprising.setdefault(words[place], {"word": words[place], **more})
        if len(surprising) == SURPRISING:
            break
    return list(surprising.values())


def _next_words(lm: LanguageModel, words: list[Any]) -> dict[str, Any]:
    """Return the most likely words after the first half of a sentence, and the one that follows in the text."""
    place = len(words) // 2
    context, actual = [word.word for word in words[:place]], words[place].word
    logs = lm.distribution(Tokens(context))
    log_probability = float(logs[lm.vocabulary.id(actual)])
    return {
        "context": " ".join(context),
        "words": [{"word": word, "probability": float(np.exp(log))} for word, log in
                  lm.next_words(Tokens(context), NEXT_WORDS)],
        "actual": {"word": actual, "probability": float(np.exp(log_probability)),
                   "rank": 1 + int(np.count_nonzero(logs > log_probability))},
    }  # fmt: skip


def generate(lm: LanguageModel) -> list[str]:
    """Return random sentences of a model; nothing if it does not read forwards."""
    if lm.model.sides != "before":
        return []
    found = [each for each in lm.generate(count=2 * GENERATED, max_words=GENERATED_WORDS) if each.words]
    return [each.text + ("" if each.finished else " …") for each in found[:GENERATED]]


def neighbors(model: Scorer) -> list[dict[str, Any]]:
    """Return the nearest neighbors of some frequent words; nothing for a model without word vectors."""
    found = []
    for word in frequent_words(model.vocabulary):
        try:
            nearest = model.neighbors(word, NEIGHBORS)
        except NcelmError:  # no vectors, or none for this word
            continue
        found.append({"word": word, "neighbors": [{"word": other, "cosine": float(c)} for other, c in nearest]})
    return found


def frequent_words(vocabulary: Vocabulary) -> list[str]:
    """Return some frequent words of at least four letters: the more frequent, the denser."""
    words = vocabulary.words[2:]  # without <unk> and </s>
    known = [word for word in words[:FREQUENT] if word.isalpha() and len(word) >= 4] or list(words)
    if not known:
        return []
    return [known[i - 1] for i in np.unique(np.geomspace(1, len(known), WORDS).round().astype(int))]
