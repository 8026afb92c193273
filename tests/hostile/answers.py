"""The answer of a run or a store: everything that users get from it, exactly."""

import hashlib
import math
from pathlib import Path
from typing import Any

from tests.hostile.corpus import WITH_NORMALIZER, WORDS, sentences

from ncelm.errors import NcelmError
from ncelm.language_model import LanguageModel, load_scorer
from ncelm.models.base import Gap
from ncelm.models.load import load_vectors
from ncelm.text.store import TokenStore

SENTENCES = [*sentences(31, 3), "", "zebra", WORDS[0], f"{WORDS[3]} zebra {WORDS[4].upper()}"]
GAPS = [
    Gap(WORDS[:3], [[WORDS[5]], [WORDS[6], WORDS[7]], ["zebra"]], WORDS[8:10]),
    Gap([], [[WORDS[1]], [WORDS[2]]], []),
]
TOLERANCE = 1e-4  # by which a log-probability may exceed 0: scores and log-normalizers are float32

Answer = list[Any]


def answer_of(path: Path, neighbors: bool = True) -> Answer:
    """Return the answer of a run or a store."""
    return _answer_of_store(path) if (path / "store.json").exists() else _answer_of_run(path, neighbors)


def _answer_of_run(path: Path, neighbors: bool) -> Answer:
    scorer = load_scorer(path, threads=1)
    answer: Answer = []
    if isinstance(scorer, LanguageModel):
        answer += [("two-sided", scorer.two_sided), ("boundary", scorer.boundary)]
        for words in scorer.full_scores_of(SENTENCES):
            answer += [("log P", word.word, word.log_probability, word.unknown) for word in words]
        answer += [("sum", *vars(total).values()) for total in scorer.scores_of(SENTENCES, end=False)]
        if path.name in WITH_NORMALIZER:  # an error if there is no normalizer
            answer += [("sum", "fast", *vars(total).values()) for total in scorer.scores_of(SENTENCES, mode="fast")]
            answer.append(("error", *vars(scorer.normalizer_error).values()))
    for scores in scorer.choice_scores(GAPS):
        answer += [("choices", *scores.normalised), ("unnormalised", *scores.unnormalised)]
    answer += [("completion", *found) for found in scorer.most_likely(WORDS[:2], WORDS[2:4], 5)]
    if neighbors:
        try:
            vectors, vocabulary = load_vectors(path)
            answer.append(("vectors", vectors.shape, hashlib.sha256(vectors.tobytes()).hexdigest(), vocabulary.digest))
            answer += [("neighbor", *found) for found in scorer.neighbors(WORDS[0], 3)]
        except NcelmError as error:
            if "no word vectors" not in str(error):
                raise
            answer.append("no vectors")
    answer.append(("counts", scorer.vocabulary.file_digest, scorer.text))
    return answer


def _answer_of_store(path: Path) -> Answer:
    store = TokenStore.open(path)
    answer: Answer = [store.boundary, store.text, store.punkt, store.fingerprint, store.pad_id]
    answer += [store.vocabulary.words, store.vocabulary.counts.tolist()]
    for name, split in store.splits.items():
        digest = hashlib.sha256(split.ids.tobytes() + split.sentences.tobytes()).hexdigest()
        answer.append((name, digest, split.tokens, split.n_sentences, split.unknown, str(split.ids.dtype)))
    if splitter := store.sentence_splitter():
        answer.append(list(splitter.sentences("Mr. Baran met Dr. Dotom. It was late. Mr. Baran left.")))
    return answer


def problem_of(answer: Answer) -> str:
    """Return what cannot be in any answer: NaN, infinity, a probability above 1; empty if there is nothing."""
    two_sided = ("two-sided", True) in answer
    for entry in answer:
        if not isinstance(entry, tuple):
            continue
        numbers = [number for number in entry if isinstance(number, float)]
        if not all(map(math.isfinite, numbers)):
            return f"a number that is not finite: {entry}"
        if entry[0] in ("log P", "sum") and not two_sided and max(numbers, default=0.0) > TOLERANCE:
            return f"a probability above 1: {entry}"
    return ""


def difference(answer: Answer, expected: Answer) -> str:
    """Return the first difference of two answers; empty if there is none."""
    for found, wanted in zip(answer, expected, strict=False):
        if repr(found) != repr(wanted):
            return f"{str(found)[:200]} instead of {str(wanted)[:200]}"
    return "" if len(answer) == len(expected) else f"{len(answer)} entries instead of {len(expected)}"
