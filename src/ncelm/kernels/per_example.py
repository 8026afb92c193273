"""Training with noise words of each example: NCE, ranking NCE, the family of NCE, importance sampling."""

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
    Family,
    Importance,
    LogZPenalty,
    Nce,
    Ranking,
    clear_padding,
    importance_gradients,
    score_gradients,
)
from ncelm.kernels.noise import replace_log_k_noise, table_of
from ncelm.kernels.optimizers import prefetch_state, update_row, update_row_by_sum, update_value
from ncelm.kernels.records import LogNormalizers, PerExampleNoise, Singletons, TiedGradients
from ncelm.kernels.simd import add_rows, borrowed, prefetch, score_rows, sum_values
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

EXAMPLE_BLOCK = 25  # examples in one work item


@implements(prepare_items, PerExampleNoise)
def _no_preparation_items(strategy, index, plan):
    return 0


@implements(prepare, PerExampleNoise)
def _no_preparation(strategy, item, index, plan, parameters, workspace):
    pass


@implements(example_items, PerExampleNoise)
def _example_items(strategy, index, plan):
    return blocks(plan.sizes[index], EXAMPLE_BLOCK)


@implements(examples, PerExampleNoise)
def _examples(strategy, item, index, plan, matrices, dropout, optimizer, parameters, state, workspace, rates, scratch):
    """Scores, their gradients and dJ/dq̂ of a block of examples."""
    (buffers,) = borrowed((scratch.scores,))
    scores, log_k_noise, posterior = buffers[0], buffers[1], buffers[2]
    samples, objective = plan.words.shape[2], 0.0
    clear_padding(samples, scores, log_k_noise)
    begin, end = item * EXAMPLE_BLOCK, min((item + 1) * EXAMPLE_BLOCK, plan.sizes[index])
    for e in range(begin, end):
        if parameters.target_vectors.size > IN_CACHE and e + 1 < plan.sizes[index]:
            _prefetch_example(strategy, e + 1, index, plan, matrices, parameters, state, rates)
        predicted, predicted_gradient = workspace.predicted[e], workspace.predicted_gradients[e]
        predict(matrices, e, index, plan, parameters.context_vectors, predicted)
        drop(dropout, predicted, plan.keys[index, e])
        words, out = plan.words[index, e], workspace.score_gradients[e * samples : (e + 1) * samples]
        objective += example_gradients(
            strategy.loss, strategy, e, item, index, plan, predicted, words, parameters.target_vectors,
            parameters.biases, scores, log_k_noise, posterior, out, workspace,
        )  # fmt: skip
        add_rows(out, parameters.target_vectors, words, predicted_gradient, False)
        drop(dropout, predicted_gradient, plan.keys[index, e])
    workspace.losses[index, item] = -objective
    update_singletons(plan.singletons, begin, end, index, plan, optimizer, parameters, state, workspace, rates)


@inline
def _prefetch_example(strategy, e, index, plan, matrices, parameters, state, rates):
    """Prefetch everything that belongs to the words of an example."""
    table = table_of(strategy.noise)
    for j in range(plan.words.shape[2]):
        word = np.int64(plan.words[index, e, j])
        prefetch(parameters.target_vectors, word)
        prefetch(parameters.biases, word)
        prefetch(table.log_k_probability, word)
        prefetch(rates.weight_decay.targets, word)
        prefetch_state(state.target_vectors, word)
        prefetch_state(state.biases, word)
    prefetch_contexts(matrices, plan.contexts[index, e], parameters.context_vectors)


@inline
def score_samples(predicted, words, target_vectors, biases, log_k_probability, scores, log_k_noise):
    """Scores (Eq. 3) and log(k·Pn) of some words of an example, (n,).

    Takes arrays instead of records: a call with hundreds of arguments would cost as much as the scores.
    """
    score_rows(predicted, target_vectors, words, scores)
    for j in range(words.size):
        scores[j] += biases[words[j]]
        log_k_noise[j] = log_k_probability[words[j]]


@generic
def example_gradients(
    loss, strategy, e, item, index, plan, predicted, words, target_vectors, biases, scores, log_k_noise, posterior, out,
    workspace,
):  # fmt: skip
    """The objective of one example; derivatives by the scores of its words go to out (k + 1,)."""


@implements(example_gradients, Nce, Ranking, Family, LogZPenalty)
def _all_samples(
    loss, strategy, e, item, index, plan, predicted, words, target_vectors, biases, scores, log_k_noise, posterior, out,
    workspace,
):  # fmt: skip
    log_k_probability = table_of(strategy.noise).log_k_probability
    score_samples(predicted, words, target_vectors, biases, log_k_probability, scores, log_k_noise)
    replace_log_k_noise(strategy.noise, _planned(plan.log_k_noise, index, e), log_k_noise)
    add_normalizer(strategy.normalizers, plan.normalizers, index, e, scores[: words.size])
    objective = score_gradients(loss, scores, log_k_noise, posterior, out)
    keep_normalizer_gradient(strategy.normalizers, workspace.normalizer_gradients, e, out)
    return objective


@inline
def _planned(log_k_noise, index, e):
    if log_k_noise is None:
        return None
    return log_k_noise[index, e]


@implements(example_gradients, Importance)
def _importance(
    loss, strategy, e, item, index, plan, predicted, words, target_vectors, biases, scores, log_k_noise, posterior, out,
    workspace,
):  # fmt: skip
    """Importance sampling with as many samples as the effective sample size requires."""
    table, most, used = table_of(strategy.noise), out.size - 1, 0
    while True:
        more = min(used + loss.first_samples, most)
        first = used + (used > 0)  # the target is word 0
        score_samples(
            predicted, words[first : more + 1], target_vectors, biases, table.log_k_probability, scores[first:],
            log_k_noise[first:],
        )  # fmt: skip
        replace_log_k_noise(
            strategy.noise, _planned_part(plan.log_k_noise, index, e, first, more + 1), log_k_noise[first:]
        )
        used = more
        objective, effective, largest, heaviest = importance_gradients(scores, log_k_noise, out[: used + 1])
        if effective >= loss.min_effective or used == most:
            break
    out[used + 1 :] = np.float32(0.0)
    record = workspace.importance[index, item]  # in the order of losses.IMPORTANCE_FIELDS
    record[0] += effective
    record[1] = min(record[1], effective)
    record[2] += used
    if largest + table.log_k > record[3]:
        record[3] = largest + table.log_k
        record[4], record[5], record[6] = -out[heaviest], words[heaviest], e
    return objective - table.log_k


@inline
def _planned_part(log_k_noise, index, e, first, last):
    if log_k_noise is None:
        return None
    return log_k_noise[index, e, first:last]


# -- learned log-normalizers -------------------------------------------------------------------------------------------


@generic
def add_normalizer(normalizers, planned, index, e, scores):
    """Add c_h to the scores of an example."""


@generic
def keep_normalizer_gradient(normalizers, gradients, e, score_gradients):
    """dJ/dc_h: every score of the example contains c_h."""


@generic
def update_normalizers(normalizers, index, plan, optimizer, gradients, rate):
    """Update c_h for each example, one after another."""


@implements(add_normalizer, type(None))
def _add_no_normalizer(normalizers, planned, index, e, scores):
    pass


@implements(keep_normalizer_gradient, type(None))
def _keep_no_normalizer_gradient(normalizers, gradients, e, score_gradients):
    pass


@implements(update_normalizers, type(None))
def _update_no_normalizers(normalizers, index, plan, optimizer, gradients, rate):
    pass


@implements(add_normalizer, LogNormalizers)
def _add_normalizer(normalizers, planned, index, e, scores):
    for j in range(scores.size):
        scores[j] += normalizers.values[planned[index, e]]


@implements(keep_normalizer_gradient, LogNormalizers)
def _keep_normalizer_gradient(normalizers, gradients, e, score_gradients):
    gradients[e] = sum_values(score_gradients, score_gradients.size)


@implements(update_normalizers, LogNormalizers)
def _update_normalizers(normalizers, index, plan, optimizer, gradients, rate):
    for e in range(plan.sizes[index]):
        update_value(optimizer, normalizers.values, normalizers.state, plan.normalizers[index, e], gradients[e], rate)


# -- updates of target words -------------------------------------------------------------------------------------------


@generic
def update_singletons(singletons, begin, end, index, plan, optimizer, parameters, state, workspace, rates):
    """Update words that occur once in the minibatch, in one of these examples: no other example needs their rows.

    Their rows are in the cache now. After every single example it would be slower: the number of such words is
    unpredictable.
    """


@implements(update_singletons, type(None))
def _update_no_singletons(singletons, begin, end, index, plan, optimizer, parameters, state, workspace, rates):
    pass


@implements(update_singletons, Singletons)
def _update_singletons(singletons, begin, end, index, plan, optimizer, parameters, state, workspace, rates):
    words, samples, rate = plan.words[index].reshape(-1), plan.words.shape[2], rates.table[index]
    for n in range(singletons.offsets[index, begin], singletons.offsets[index, end]):
        entry = singletons.entries[index, n]
        word, weight = words[entry], workspace.score_gradients[entry]
        update_value(optimizer, parameters.biases, state.biases, word, weight, rate)
        update_row(
            optimizer, parameters.target_vectors, state.target_vectors, word, weight,
            workspace.predicted[entry // samples], rate, rates.weight_decay.targets[word],
        )  # fmt: skip


@implements(after_examples_items, PerExampleNoise)
def _target_items(strategy, index, plan, parameters):
    # at least one: the first item also updates the log-normalizers
    return max(blocks(plan.target_groups.counts[index], GROUP_BLOCK), 1)


@implements(targets_are_longest, PerExampleNoise)
def _targets_are_longest(strategy):
    return False


@implements(after_examples, PerExampleNoise)
def _targets(strategy, item, index, plan, optimizer, parameters, state, workspace, rates, scratch):
    """Update rows of the target table by the summed gradient of each unique word."""
    gradient, weights, used = borrowed((scratch.gradient, scratch.weights, scratch.order))
    groups, rate, score_gradients = plan.target_groups, rates.table[index], workspace.score_gradients
    words, order, rows_of = groups.words[index], groups.order[index], groups.rows[index]
    offsets, count = groups.offsets[index], groups.counts[index]
    if item == 0:
        update_normalizers(
            strategy.normalizers, index, plan, optimizer, workspace.normalizer_gradients, rates.table[index]
        )
    for g in range(item * GROUP_BLOCK, min((item + 1) * GROUP_BLOCK, count)):
        word, first, last = words[g], offsets[g], offsets[g + 1]
        prefetch_target(words, g, count, parameters, state, rates)
        for p in range(last - first):  # unsigned indices need no check for negative ones
            weights[p] = score_gradients[np.uint32(order[np.uint32(first + p)])]
        update_value(optimizer, parameters.biases, state.biases, word, sum_values(weights, last - first), rate)
        rows = nonzero(strategy.loss, weights, rows_of[first:last], used)
        update_target(
            workspace.tied, g, word, optimizer, parameters.target_vectors, state.target_vectors, weights,
            workspace.predicted, rows, gradient, rate, rates.weight_decay.targets[word],
        )  # fmt: skip


@inline
def prefetch_target(words, g, count, parameters, state, rates):
    """Prefetch the row that will be updated a few words later, and everything else that belongs to its word."""
    if parameters.target_vectors.size > IN_CACHE and g + PREFETCH_DISTANCE < count:
        later = np.int64(words[g + PREFETCH_DISTANCE])
        prefetch(parameters.target_vectors, later)
        prefetch_state(state.target_vectors, later)
        prefetch(parameters.biases, later)
        prefetch_state(state.biases, later)
        prefetch(rates.weight_decay.targets, later)


@generic
def nonzero(loss, weights, rows, used):
    """The rows whose weights are not zero; their weights are moved to the front. `used` is scratch."""


@implements(nonzero, Nce, Ranking, Family, LogZPenalty)
def _all_rows(loss, weights, rows, used):
    return rows


@implements(nonzero, Importance)
def _used_rows(loss, weights, rows, used):
    n = 0
    for p in range(rows.size):  # most samples were not needed
        weights[n], used[n] = weights[p], rows[p]
        n += weights[p] != 0.0
    return used[:n]


@generic
def update_target(tied, g, word, optimizer, table, state, weights, vectors, rows, gradient, rate, decay):
    """Update the row of a target word or, with tied embeddings, keep its gradient."""


@implements(update_target, type(None))
def _update_target(tied, g, word, optimizer, table, state, weights, vectors, rows, gradient, rate, decay):
    update_row_by_sum(optimizer, table, state, word, weights, vectors, rows, gradient, rate, decay)


@implements(update_target, TiedGradients)
def _keep_target_gradient(tied, g, word, optimizer, table, state, weights, vectors, rows, gradient, rate, decay):
    add_rows(weights, vectors, rows, tied.targets[g], False)


@implements(finish_targets_items, PerExampleNoise)
def _no_finish_items(strategy, index, plan):
    return 0


@implements(finish_targets, PerExampleNoise)
def _finish_nothing(strategy, item, index, plan, optimizer, parameters, state, workspace, rates, gradient):
    pass


@implements(tied_groups, PerExampleNoise)
def _tied_groups(strategy, index, plan, parameters):
    return plan.target_groups.counts[index]


@implements(target_word, PerExampleNoise)
def _target_word(strategy, g, index, plan):
    return plan.target_groups.words[index, g]
