"""Random draws from the distribution over the vocabulary: equal to the inverse of the cumulative distribution."""

import numpy as np
import pytest

from ncelm.kernels import generate
from ncelm.kernels.threads import Team


def problem(vocabulary_size, dim, contexts, seed=0):
    random = np.random.default_rng(seed)
    table = (random.normal(size=(vocabulary_size, dim)) / np.sqrt(dim)).astype(np.float32)
    biases = random.normal(size=vocabulary_size).astype(np.float32)
    allowed = (random.random(vocabulary_size) < 0.9).astype(np.float32)
    return table, biases, allowed, random.normal(size=(contexts, dim)).astype(np.float32), random.random(contexts)


def drawn(table, biases, allowed, predicted, uniforms, temperature=1.0, threads=1):
    buffers = generate.vocabulary_scores(predicted, biases.size)
    words, logs = np.empty(len(predicted), np.int64), np.empty(len(predicted))
    with Team(threads) as team:
        team.run(
            generate.draw_words, generate.DRAW_PHASES, table, biases, allowed, np.float32(1.0 / temperature), uniforms,
            buffers, words, logs,
        )  # fmt: skip
    return words, logs


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
@pytest.mark.parametrize(("size", "dim", "contexts"), [(3, 1, 1), (1008, 7, 33), (1009, 16, 40), (9000, 30, 70)])
def test_draws_are_those_of_the_reference(size, dim, contexts, temperature):
    table, biases, allowed, predicted, uniforms = problem(size, dim, contexts)
    allowed[1] = 1.0
    words, logs = drawn(table, biases, allowed, predicted, uniforms, temperature)
    scores = predicted.astype(np.float64) @ table.T.astype(np.float64) + biases
    log_z = np.log(np.exp(scores).sum(axis=1))
    np.testing.assert_allclose(logs, (scores - log_z[:, None])[np.arange(contexts), words], atol=2e-5)
    sums = np.cumsum(np.exp(scores / temperature) * allowed, axis=1)
    goals = uniforms * sums[:, -1]
    rounding = 1e-5 * sums[:, -1]
    for word, goal, error, row in zip(words, goals, rounding, sums, strict=True):
        assert allowed[word] == 1.0
        assert (row[word - 1] if word else 0.0) <= goal + error  # the goal is in the interval of the word
        assert goal <= row[word] + error


def test_a_draw_depends_neither_on_other_contexts_nor_on_threads():
    table, biases, allowed, predicted, uniforms = problem(5000, 20, 50)
    words, logs = drawn(table, biases, allowed, predicted, uniforms)
    for threads, part in ((2, slice(0, 50)), (3, slice(7, 20)), (1, slice(49, 50))):
        other = drawn(table, biases, allowed, predicted[part], uniforms[part], threads=threads)
        np.testing.assert_array_equal(other[0], words[part])
        np.testing.assert_array_equal(other[1], logs[part])


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
def test_the_ends_of_the_interval(uniform):
    table, biases, allowed, predicted, _ = problem(2500, 4, 3)
    allowed[:] = 0.0
    allowed[[1200, 1300]] = 1.0  # in the second of three blocks
    words, _ = drawn(table, biases, allowed, predicted, np.full(3, uniform))
    assert set(words.tolist()) == {1200 if uniform == 0.0 else 1300}


def test_scores_of_the_vocabulary():
    table, biases, _, predicted, _ = problem(3000, 12, 45)
    buffers = generate.vocabulary_scores(predicted, biases.size)
    with Team(2) as team:
        team.run(generate.score_vocabulary, generate.SCORE_PHASES, table, biases, buffers)
    scores = buffers.scores.transpose(0, 2, 1).reshape(-1, 3000)[:45]
    np.testing.assert_allclose(scores, predicted @ table.T + biases, atol=1e-5)
