"""Training by exact maximum likelihood: every word of the vocabulary is scored for every example."""

import numpy as np

from ncelm.kernels.compile import generic, implements
from ncelm.kernels.contexts import blocks, drop, predict
from ncelm.kernels.math32 import copy
from ncelm.kernels.optimizers import ONE, update_row, update_value
from ncelm.kernels.products import VOCABULARY_BLOCK, add_product, exponentiate, word_gradients
from ncelm.kernels.records import ExactLikelihood, TiedGradients
from ncelm.kernels.simd import borrowed
from ncelm.kernels.strategies import (
    after_examples,
    after_examples_items,
    example_items,
    examples,
    finish_targets,
    finish_targets_items,
    prepare,
    prepare_items,
    target_word,
    targets_are_longest,
    tied_groups,
)

EXAMPLE_BLOCK = 250  # examples in one work item


@implements(prepare_items, ExactLikelihood)
def _no_preparation_items(strategy, index, plan):
    return 0


@implements(prepare, ExactLikelihood)
def _no_preparation(strategy, item, index, plan, parameters, workspace):
    pass


@implements(example_items, ExactLikelihood)
def _example_items(strategy, index, plan):
    return blocks(plan.sizes[index], EXAMPLE_BLOCK)


@implements(examples, ExactLikelihood)
def _examples(strategy, item, index, plan, matrices, dropout, optimizer, parameters, state, workspace, rates, scratch):
    """1[w = target] − P(w|h) (Eq. 4) of a block of examples for all words, and dJ/dq̂.

    The score gradients of the words v0..v1 are a (B, v1 − v0) matrix of their own, so that each product has contiguous
    operands.
    """
    size, vocabulary, table, biases = (
        plan.sizes[index],
        parameters.biases.size,
        parameters.target_vectors,
        parameters.biases,
    )
    first, last = item * EXAMPLE_BLOCK, min((item + 1) * EXAMPLE_BLOCK, size)
    n, count, objective = last - first, blocks(vocabulary, VOCABULARY_BLOCK), 0.0
    (part,) = borrowed((scratch.block,))
    largest, total = scratch.largest[:n], scratch.total[:n]
    shifts = scratch.shifts[: count * n].reshape(count, n)  # the exponentials of a block are kept as exp(s − shift)
    largest[:] = -np.inf
    total[:] = 0.0
    for e in range(first, last):
        predict(matrices, e, index, plan, parameters.context_vectors, workspace.predicted[e])
        drop(dropout, workspace.predicted[e], plan.keys[index, e])
    vectors = workspace.predicted[first:last]
    for block in range(count):
        v0, v1 = block * VOCABULARY_BLOCK, min((block + 1) * VOCABULARY_BLOCK, vocabulary)
        scores = workspace.score_gradients[v0 * size : v1 * size].reshape(size, v1 - v0)[first:last]
        np.dot(vectors, table[v0:v1].T, scores)
        for e in range(n):
            target = plan.words[index, first + e, 0]
            if v0 <= target < v1:
                objective += scores[e, target - v0] + biases[target]
        exponentiate(scores, biases[v0:v1], largest, total)
        copy(largest, shifts[block])
    for e in range(n):
        log_z = np.float64(largest[e]) + np.log(total[e])
        objective -= log_z
        for block in range(count):
            shifts[block, e] = -np.exp(np.float64(shifts[block, e]) - log_z)  # from here on: −exp(shift) / Z
    gradients = workspace.predicted_gradients[first:last]
    gradients[:] = np.float32(0.0)
    for block in range(count):
        v0, v1 = block * VOCABULARY_BLOCK, min((block + 1) * VOCABULARY_BLOCK, vocabulary)
        scores = workspace.score_gradients[v0 * size : v1 * size].reshape(size, v1 - v0)[first:last]
        for e in range(n):
            factor = shifts[block, e]
            for j in range(v1 - v0):
                scores[e, j] *= factor
            target = plan.words[index, first + e, 0]
            if v0 <= target < v1:
                scores[e, target - v0] += np.float32(1.0)
        add_product(scores, table[v0:v1], part[:n], gradients)
    for e in range(first, last):
        drop(dropout, workspace.predicted_gradients[e], plan.keys[index, e])
    workspace.losses[index, item] = -objective


@implements(after_examples_items, ExactLikelihood)
def _target_items(strategy, index, plan, parameters):
    return blocks(parameters.biases.size, VOCABULARY_BLOCK)


@implements(targets_are_longest, ExactLikelihood)
def _targets_are_longest(strategy):
    return True


@implements(after_examples, ExactLikelihood)
def _targets(strategy, item, index, plan, optimizer, parameters, state, workspace, rates, scratch):
    """Update a block of the target table, every word of it."""
    size, vocabulary, (part,) = plan.sizes[index], parameters.biases.size, borrowed((scratch.block,))
    v0, v1 = item * VOCABULARY_BLOCK, min((item + 1) * VOCABULARY_BLOCK, vocabulary)
    score_gradients = workspace.score_gradients[v0 * size : v1 * size].reshape(size, v1 - v0)
    bias_gradients = scratch.weights[: v1 - v0]
    word_gradients(score_gradients, workspace.predicted[:size], part[: v1 - v0], bias_gradients)
    for w in range(v0, v1):
        update_value(optimizer, parameters.biases, state.biases, w, bias_gradients[w - v0], rates.table[index])
        finish_word(
            workspace.tied, w, optimizer, parameters.target_vectors, state.target_vectors, part[w - v0],
            rates.table[index], rates.weight_decay.targets[w],
        )  # fmt: skip


@generic
def finish_word(tied, word, optimizer, table, state, gradient, rate, decay):
    """Update the row of a word or, with tied embeddings, keep its gradient."""


@implements(finish_word, type(None))
def _update_word(tied, word, optimizer, table, state, gradient, rate, decay):
    update_row(optimizer, table, state, word, ONE, gradient, rate, decay)


@implements(finish_word, TiedGradients)
def _keep_gradient(tied, word, optimizer, table, state, gradient, rate, decay):
    copy(gradient, tied.targets[word])


@implements(finish_targets_items, ExactLikelihood)
def _no_finish_items(strategy, index, plan):
    return 0


@implements(finish_targets, ExactLikelihood)
def _finish_nothing(strategy, item, index, plan, optimizer, parameters, state, workspace, rates, gradient):
    pass


@implements(tied_groups, ExactLikelihood)
def _tied_groups(strategy, index, plan, parameters):
    return parameters.biases.size


@implements(target_word, ExactLikelihood)
def _target_word(strategy, g, index, plan):
    return g
