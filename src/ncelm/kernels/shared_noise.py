"""Training with noise words shared by a minibatch: scores are matrix products."""

import numpy as np

from ncelm.kernels.compile import generic, implements, inline
from ncelm.kernels.contexts import (
    GROUP_BLOCK,
    IN_CACHE,
    PREFETCH_DISTANCE,
    blocks,
    drop,
    predict,
    prefetch_contexts,
)
from ncelm.kernels.losses import (
    LogZPenalty,
    Nce,
    Ranking,
    accumulate_log_sum,
    shared_nce_gradients,
    shared_noise_gradients,
    shared_target_gradient,
)
from ncelm.kernels.math32 import copy, dot
from ncelm.kernels.optimizers import ONE, update_row, update_value
from ncelm.kernels.per_example import prefetch_target
from ncelm.kernels.products import add_product, word_gradients
from ncelm.kernels.records import SharedNoise, TiedGradients
from ncelm.kernels.simd import borrowed, prefetch
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

LEAST_EXAMPLES, MOST_EXAMPLES = 63, 250  # in one work item …
NOISE_BLOCK = 256  # … and noise words in one matrix product


@inline
def example_block(batch):
    """Examples in one work item: some for each thread, but not so few that a matrix product is slow."""
    return min(max(batch // 4, LEAST_EXAMPLES), MOST_EXAMPLES)


@implements(prepare_items, SharedNoise)
def _prepare_items(strategy, index, plan):
    return blocks(plan.shared.counts[index], GROUP_BLOCK)


@implements(prepare, SharedNoise)
def _gather(strategy, item, index, plan, parameters, workspace):
    """Gather the rows of a block of noise words and b_w − log(k·Pn(w))."""
    table, noise, size, count = parameters.target_vectors, workspace.noise, plan.sizes[index], plan.shared.counts[index]
    for j in range(item * GROUP_BLOCK, min((item + 1) * GROUP_BLOCK, count)):
        word = plan.words[index, size + j, 0]
        if table.size > IN_CACHE and j + PREFETCH_DISTANCE < count:
            prefetch(table, np.int64(plan.words[index, size + j + PREFETCH_DISTANCE, 0]))
        copy(table[word], noise.rows[j])
        noise.shifts[j] = parameters.biases[word] - strategy.noise.log_k_probability[word]


@implements(example_items, SharedNoise)
def _example_items(strategy, index, plan):
    return blocks(plan.sizes[index], example_block(plan.contexts.shape[1]))


@implements(examples, SharedNoise)
def _examples(strategy, item, index, plan, matrices, dropout, optimizer, parameters, state, workspace, rates, scratch):
    """Scores, their gradients and dJ/dq̂ of a block of examples."""
    size, table = plan.sizes[index], parameters.target_vectors
    block = example_block(plan.contexts.shape[1])
    first, last, objective = item * block, min((item + 1) * block, size), 0.0
    for e in range(first, last):
        if table.size > IN_CACHE and e + 1 < last:
            prefetch(table, np.int64(plan.words[index, e + 1, 0]))
            prefetch_contexts(matrices, plan.contexts[index, e + 1], parameters.context_vectors)
        predict(matrices, e, index, plan, parameters.context_vectors, workspace.predicted[e])
        drop(dropout, workspace.predicted[e], plan.keys[index, e])
        objective += score_target(
            strategy.loss,
            strategy.noise,
            e,
            index,
            plan,
            parameters,
            workspace,
            scratch.shifts[e - first : e - first + 1],
        )
    objective += shared_gradients(strategy.loss, first, last, index, plan, parameters, workspace, scratch)
    workspace.losses[index, item] = -objective
    for e in range(first, last):
        drop(dropout, workspace.predicted_gradients[e], plan.keys[index, e])


@inline
def _block_of_scores(j0, j1, first, last, index, plan, workspace):
    """The scores of the noise words j0..j1 for some examples: a part of a (B, j1 − j0) matrix of its own."""
    size = plan.sizes[index]
    return workspace.score_gradients[j0 * size : j1 * size].reshape(size, j1 - j0)[first:last]


@inline
def _target_logit(e, noise, index, plan, parameters, workspace):
    """u of the target of an example, and the target."""
    word = plan.words[index, e, 0]
    score = dot(workspace.predicted[e], parameters.target_vectors[word]) + parameters.biases[word]
    return score - noise.log_k_probability[word], word


@inline
def _target_gradient(e, gradient, word, index, plan, parameters, workspace):
    """Start dJ/dq̂ of an example with its target's part, and keep dJ/ds of the target, behind those of the noise."""
    workspace.score_gradients[plan.shared.counts[index] * plan.sizes[index] + e] = gradient
    vector, out = parameters.target_vectors[word], workspace.predicted_gradients[e]
    for t in range(out.size):
        out[t] = gradient * vector[t]


@generic
def score_target(loss, noise, e, index, plan, parameters, workspace, logit):
    """Score the target of an example while its row is in the cache; return the part of the objective that is known.

    logit (1,) keeps u for losses that need all noise words first.
    """


@implements(score_target, Nce)
def _finish_target_now(loss, noise, e, index, plan, parameters, workspace, logit):
    u, word = _target_logit(e, noise, index, plan, parameters, workspace)
    gradient, objective = shared_target_gradient(loss, u, 0.0)
    _target_gradient(e, gradient, word, index, plan, parameters, workspace)
    return objective


@implements(score_target, Ranking, LogZPenalty)
def _keep_target_logit(loss, noise, e, index, plan, parameters, workspace, logit):
    logit[0], _ = _target_logit(e, noise, index, plan, parameters, workspace)
    return 0.0


@generic
def shared_gradients(loss, first, last, index, plan, parameters, workspace, scratch):
    """The rest of the objective of some examples; score gradients and dJ/dq̂ go to the workspace."""


@implements(shared_gradients, Nce)
def _one_pass(loss, first, last, index, plan, parameters, workspace, scratch):
    """NCE needs no sum over the noise words: each block is finished while it is in the cache."""
    objective, K, (part,) = 0.0, plan.shared.counts[index], borrowed((scratch.block,))
    vectors, gradients = workspace.predicted[first:last], workspace.predicted_gradients[first:last]
    for j0 in range(0, K, NOISE_BLOCK):
        j1 = min(j0 + NOISE_BLOCK, K)
        rows, scores = workspace.noise.rows[j0:j1], _block_of_scores(j0, j1, first, last, index, plan, workspace)
        np.dot(vectors, rows.T, scores)
        objective += shared_nce_gradients(
            scores, workspace.noise.shifts[j0:j1], plan.shared.multiplicities[index, j0:j1], scratch.weights
        )
        add_product(scores, rows, part[: last - first], gradients)
    return objective


@implements(shared_gradients, Ranking, LogZPenalty)
def _two_passes(loss, first, last, index, plan, parameters, workspace, scratch):
    """Losses that need log Σ n exp(u) over the noise words before the gradient of any of them."""
    objective, K, (part,) = 0.0, plan.shared.counts[index], borrowed((scratch.block,))
    vectors, gradients = workspace.predicted[first:last], workspace.predicted_gradients[first:last]
    largest, log_sums, logits = scratch.largest[: last - first], scratch.total[: last - first], scratch.shifts
    largest[:] = -np.inf
    log_sums[:] = 0.0
    for j0 in range(0, K, NOISE_BLOCK):
        j1 = min(j0 + NOISE_BLOCK, K)
        scores = _block_of_scores(j0, j1, first, last, index, plan, workspace)
        np.dot(vectors, workspace.noise.rows[j0:j1].T, scores)
        accumulate_log_sum(
            scores, workspace.noise.shifts[j0:j1], plan.shared.multiplicities[index, j0:j1], largest, log_sums
        )
    for i in range(last - first):
        log_sums[i] = np.float64(largest[i]) + np.log(log_sums[i])
        gradient, target_objective = shared_target_gradient(loss, logits[i], log_sums[i])
        objective += target_objective
        _target_gradient(first + i, gradient, plan.words[index, first + i, 0], index, plan, parameters, workspace)
    for j0 in range(0, K, NOISE_BLOCK):
        j1 = min(j0 + NOISE_BLOCK, K)
        scores = _block_of_scores(j0, j1, first, last, index, plan, workspace)
        multiplicities = plan.shared.multiplicities[index, j0:j1]
        for i in range(last - first):
            objective += shared_noise_gradients(
                loss, scores[i], multiplicities, logits[i], log_sums[i], scratch.weights
            )
        add_product(scores, workspace.noise.rows[j0:j1], part[: last - first], gradients)
    return objective


@implements(after_examples_items, SharedNoise)
def _noise_items(strategy, index, plan, parameters):
    return blocks(plan.shared.counts[index], NOISE_BLOCK)


@implements(targets_are_longest, SharedNoise)
def _targets_are_longest(strategy):
    return True


@implements(after_examples, SharedNoise)
def _noise_gradients(strategy, item, index, plan, optimizer, parameters, state, workspace, rates, scratch):
    """dJ/dq_w and dJ/db_w of a block of noise words, summed over the minibatch."""
    size, noise = plan.sizes[index], workspace.noise
    j0, j1 = item * NOISE_BLOCK, min((item + 1) * NOISE_BLOCK, plan.shared.counts[index])
    score_gradients = _block_of_scores(j0, j1, 0, size, index, plan, workspace)
    word_gradients(score_gradients, workspace.predicted[:size], noise.gradients[j0:j1], noise.bias_gradients[j0:j1])


@implements(finish_targets_items, SharedNoise)
def _target_items(strategy, index, plan):
    return blocks(plan.target_groups.counts[index], GROUP_BLOCK)


@implements(finish_targets, SharedNoise)
def _targets(strategy, item, index, plan, optimizer, parameters, state, workspace, rates, gradient):
    """Update rows of the target table by the gradient of each unique word, as target and as noise word."""
    size, groups, noise = plan.sizes[index], plan.target_groups, workspace.noise
    targets = workspace.score_gradients[plan.shared.counts[index] * size :]
    words, count = groups.words[index], groups.counts[index]
    for g in range(item * GROUP_BLOCK, min((item + 1) * GROUP_BLOCK, count)):
        word, bias_gradient = words[g], np.float32(0.0)
        prefetch_target(words, g, count, parameters, state, rates)
        gradient[:] = np.float32(0.0)
        for p in range(groups.offsets[index, g], groups.offsets[index, g + 1]):
            entry = groups.rows[index, p]
            if entry < size:
                weight, vector = targets[entry], workspace.predicted[entry]
                bias_gradient += weight
            else:
                weight, vector = np.float32(1.0), noise.gradients[entry - size]
                bias_gradient += noise.bias_gradients[entry - size]
            for t in range(gradient.size):
                gradient[t] += weight * vector[t]
        update_value(optimizer, parameters.biases, state.biases, word, bias_gradient, rates.table[index])
        finish_target(
            workspace.tied, g, word, optimizer, parameters.target_vectors, state.target_vectors, gradient,
            rates.table[index], rates.weight_decay.targets[word],
        )  # fmt: skip


@generic
def finish_target(tied, g, word, optimizer, table, state, gradient, rate, decay):
    """Update the row of a target word or, with tied embeddings, keep its gradient."""


@implements(finish_target, type(None))
def _update_target(tied, g, word, optimizer, table, state, gradient, rate, decay):
    update_row(optimizer, table, state, word, ONE, gradient, rate, decay)


@implements(finish_target, TiedGradients)
def _keep_target_gradient(tied, g, word, optimizer, table, state, gradient, rate, decay):
    copy(gradient, tied.targets[g])


@implements(tied_groups, SharedNoise)
def _tied_groups(strategy, index, plan, parameters):
    return plan.target_groups.counts[index]


@implements(target_word, SharedNoise)
def _target_word(strategy, g, index, plan):
    return plan.target_groups.words[index, g]
