"""The training driver: many minibatches in one call, entered by all threads at once.

A minibatch is a fixed sequence of phases; a phase is a fixed list of work items; threads take items from a shared
counter and wait for each other at a barrier when none are left. The result of an item does not depend on the thread
that takes it, and no two items of a phase write to the same place, so that parameters are bit-identical for any number
of threads. Two things make that possible without locks:

* all (word, example) pairs of a minibatch are grouped by word beforehand, so that each row of a table is updated once,
  by one thread, with the summed gradient of the minibatch, in a fixed order;
* sums over the minibatch (context matrices, losses) are kept for each block and added up in the order of the blocks.

The phases are written once. What differs between per-example noise, shared noise and exact likelihood is in
`per_example`, `shared_noise` and `exact`; full and diagonal matrices in `contexts`; losses and optimizers in `losses`
and `optimizers`. All of these are chosen by the types of the arguments when the kernel is compiled.
"""

from ncelm.kernels import exact, per_example, shared_noise  # noqa: F401  (their implementations are registered)
from ncelm.kernels.barrier import take_item, wait_for_all
from ncelm.kernels.compile import generic, implements, inline, kernel
from ncelm.kernels.contexts import (
    GROUP_BLOCK,
    blocks,
    context_gradients,
    context_update_items,
    gradient_items,
    project,
    project_items,
    transpose,
    update_contexts,
    update_matrices,
)
from ncelm.kernels.optimizers import ONE, update_row
from ncelm.kernels.plan import plan_minibatch
from ncelm.kernels.records import Scratch, TiedGradients
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

PHASES = 5  # of a minibatch; planning, for all minibatches of a call, comes before them as phase 0


@kernel
def train(
    thread, threads, sync, steps, corpus, strategy, matrices, dropout, optimizer, plan, parameters, state, workspace,
    rates, all_scratch,
):  # fmt: skip
    """Train on the minibatches `steps`. All arguments are records of `records`; matrices is parameters.matrices."""
    sync, corpus, strategy, matrices, plan, parameters, state, workspace, rates, all_scratch = borrowed(
        (sync, corpus, strategy, matrices, plan, parameters, state, workspace, rates, all_scratch)
    )
    scratch = scratch_of(all_scratch, thread, parameters)

    if thread == 0:
        for i in range(matrices.values.shape[0]):
            transpose(matrices, i)
    index = take_item(sync, 0)
    while index < steps.total:
        plan_minibatch(corpus, strategy, matrices, steps, index, plan, scratch.counts, scratch.order)
        index = take_item(sync, 0)
    wait_for_all(sync, 0, threads)

    for index in range(steps.total):
        phase = 1 + index * PHASES
        first_items = prepare_items(strategy, index, plan)
        items = first_items + project_items(matrices, plan)
        item = take_item(sync, phase)
        while item < items:
            if item < first_items:
                prepare(strategy, item, index, plan, parameters, workspace)
            else:
                project(matrices, item - first_items, index, plan, parameters.context_vectors)
            item = take_item(sync, phase)
        wait_for_all(sync, phase, threads)

        phase += 1
        items = example_items(strategy, index, plan)
        item = take_item(sync, phase)
        while item < items:
            examples(
                strategy, item, index, plan, matrices, dropout, optimizer, parameters, state, workspace, rates, scratch
            )
            item = take_item(sync, phase)
        wait_for_all(sync, phase, threads)

        phase += 1  # the longest items come first, so that no thread finishes long after the others
        context_items, targets_first = gradient_items(matrices, index, plan), targets_are_longest(strategy)
        target_items = after_examples_items(strategy, index, plan, parameters)
        first_items = target_items if targets_first else context_items
        item = take_item(sync, phase)
        while item < context_items + target_items:
            is_first = item < first_items
            own_item = item if is_first else item - first_items
            if is_first == targets_first:
                after_examples(strategy, own_item, index, plan, optimizer, parameters, state, workspace, rates, scratch)
            else:
                context_gradients(
                    matrices, own_item, index, plan, optimizer, parameters, state, workspace, rates, scratch.gradient,
                    scratch.sums,
                )  # fmt: skip
            item = take_item(sync, phase)
        wait_for_all(sync, phase, threads)

        phase += 1
        first_items = finish_targets_items(strategy, index, plan)
        matrix_items = first_items + matrices.values.shape[0]
        items = matrix_items + context_update_items(matrices, workspace.tied, index, plan)
        item = take_item(sync, phase)
        while item < items:
            if item < first_items:
                finish_targets(
                    strategy, item, index, plan, optimizer, parameters, state, workspace, rates, scratch.gradient
                )
            elif item < matrix_items:
                update_matrices(matrices, item - first_items, index, plan, optimizer, state.matrices, workspace, rates)
            else:
                update_contexts(
                    matrices, item - matrix_items, index, plan, optimizer, parameters, state, workspace, rates,
                    scratch.gradient,
                )  # fmt: skip
            item = take_item(sync, phase)
        wait_for_all(sync, phase, threads)

        update_tied(
            workspace.tied, strategy, threads, sync, phase + 1, index, plan, optimizer, parameters, state, rates
        )


@inline
def scratch_of(scratch, thread, parameters):
    """The buffers of one thread, without the gaps between threads where a length matters."""
    words, d = parameters.context_vectors.shape
    return Scratch(
        scratch.gradient[thread][:d], scratch.counts[thread][:words], scratch.order[thread], scratch.weights[thread],
        scratch.scores[thread], scratch.block[thread], scratch.sums[thread], scratch.largest[thread],
        scratch.total[thread], scratch.shifts[thread],
    )  # fmt: skip


@generic
def update_tied(tied, strategy, threads, sync, phase, index, plan, optimizer, parameters, state, rates):
    """Phase 5, tied embeddings: update words in their role as targets, after their role as context words."""


@implements(update_tied, type(None))
def _update_nothing(tied, strategy, threads, sync, phase, index, plan, optimizer, parameters, state, rates):
    pass


@implements(update_tied, TiedGradients)
def _update_tied(tied, strategy, threads, sync, phase, index, plan, optimizer, parameters, state, rates):
    groups = tied_groups(strategy, index, plan, parameters)
    item = take_item(sync, phase)
    while item < blocks(groups, GROUP_BLOCK):
        for g in range(item * GROUP_BLOCK, min((item + 1) * GROUP_BLOCK, groups)):
            word = target_word(strategy, g, index, plan)
            update_row(
                optimizer, parameters.target_vectors, state.target_vectors, word, ONE, tied.targets[g],
                rates.table[index], rates.weight_decay.targets[word],
            )  # fmt: skip
        item = take_item(sync, phase)
    wait_for_all(sync, phase, threads)
