"""Questions generated from held-out text."""

import pytest
from tests.helpers import random_lines, store_of, two_topics

from ncelm import load
from ncelm.models.ngram.estimate import train_ngram
from ncelm.models.questions import CANDIDATES, MIN_WORDS, QUESTIONS_PER_SENTENCE, generate_questions


def long_sentences(seed, n):
    """Return sentences of one topic each that are long enough for questions."""
    lines = two_topics(seed, n + 2)  # topics alternate
    return [f"{a} {b}" for a, b in zip(lines, lines[2:], strict=False)]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    store = store_of(folder, long_sentences(0, 300))
    train_ngram(store, folder / "ngram", order=2)
    return store, load(folder / "ngram")


@pytest.mark.parametrize("with_proposal", [True, False])
def test_questions(case, with_proposal):
    store, lm = case
    questions = generate_questions(store, "valid", lm if with_proposal else None)
    assert len(questions) > 100
    sentences = set(long_sentences(0, 300))
    for gap, answer in questions[:100]:
        words = [word for (word,) in gap.choices]
        assert len(set(words)) == 5
        assert " ".join([*gap.before, words[answer], *gap.after]) in sentences
        assert all(20 <= store.vocabulary.counts[store.vocabulary.id(word)] <= 5000 for word in words)
    assert {question.answer for question in questions} == set(range(5))


def test_distractors_are_likely_sentences(case):
    """Of the candidates, those with the highest scores are kept: the mean score is above that of all candidates."""
    store, lm = case
    assert CANDIDATES > 4
    chosen, all_words = [], []
    for gap, answer in generate_questions(store, "valid", lm)[:200]:
        rare = [w for w in store.vocabulary.words[2:] if w.isalpha() and len(w) > 2 and w != gap.choices[answer][0]]
        scores = next(lm.choice_scores([gap])).normalised
        chosen.append((sum(scores) - scores[answer]) / 4)
        everything = next(lm.choice_scores([gap._replace(choices=[[word] for word in rare])])).normalised
        all_words.append(sum(everything) / len(everything))
    assert sum(chosen) > sum(all_words)


def test_the_seed_determines_the_questions(case):
    store, lm = case
    questions = generate_questions(store, "valid", lm)
    assert generate_questions(store, "valid", lm) == questions
    assert generate_questions(store, "valid", lm, seed=1) != questions


def test_limits(case, tmp_path):
    store, lm = case
    longest = max(len(line.split()) for line in long_sentences(0, 300))
    assert longest >= MIN_WORDS
    n_sentences = store.split("valid").n_sentences
    assert len(generate_questions(store, "valid", lm)) <= QUESTIONS_PER_SENTENCE * n_sentences
    short = store_of(tmp_path, random_lines(1))  # words with digits
    assert generate_questions(short, "valid", None) == []
