"""The context side of the model: q̂ = Σ_i C_i r_wi (Eq. 2), its gradients, and the updates of C_i and r_w.

Every function here has one implementation for full and one for diagonal matrices.
"""

import numpy as np

from ncelm.kernels.compile import generic, implements, inline
from ncelm.kernels.math32 import copy
from ncelm.kernels.optimizers import ONE, prefetch_state, update_row
from ncelm.kernels.random import draw
from ncelm.kernels.records import DiagonalMatrices, Dropout, FullMatrices, TiedGradients
from ncelm.kernels.simd import add_rows, add_scaled_rows, add_scaled_rows_backward, multiply, prefetch

GROUP_BLOCK = 64  # unique words in one work item of the update phases
POSITION_BLOCK = 64  # unique words of a context position in one matrix product
PREFETCH_DISTANCE = 4  # rows are prefetched this number of words before they are used
IN_CACHE = 1 << 22  # numbers in a table that mostly stays in a cache: prefetching would cost more than it saves
DROPOUT_DRAWS = 1 << 40  # counters of a random stream below this draw noise words, from here on dropout masks


@inline
def blocks(count, size):
    """The number of blocks of this size that hold `count` items."""
    return (count + size - 1) // size


@generic
def drop(dropout, vector, key):
    """Dropout: set components of a vector to zero, and scale the others.

    The same key drops the same components, so that a gradient is masked like its vector.
    """


@implements(drop, type(None))
def _drop_nothing(dropout, vector, key):
    pass


@implements(drop, Dropout)
def _drop(dropout, vector, key):
    probability = dropout.probability
    scale, threshold = np.float32(1.0 / (1.0 - probability)), np.uint64(np.uint16(probability * 65536.0))
    for first in range(0, vector.size, 4):  # four numbers of 16 bits from each draw
        bits = draw(key, DROPOUT_DRAWS + first // 4)
        for t in range(first, min(first + 4, vector.size)):
            vector[t] = np.float32(0.0) if (bits & np.uint64(0xFFFF)) < threshold else vector[t] * scale
            bits >>= np.uint64(16)


@generic
def transpose(matrices, i):
    """Update the transposed copy of C_i."""


@implements(transpose, DiagonalMatrices)
def _transpose_nothing(matrices, i):
    pass


@implements(transpose, FullMatrices)
def _transpose(matrices, i):
    for a in range(matrices.values.shape[1]):
        for b in range(matrices.values.shape[2]):
            matrices.transposed[i, b, a] = matrices.values[i, a, b]


# -- forward -----------------------------------------------------------------------------------------------------------


@generic
def project_items(matrices, plan):
    """The number of work items of `project`."""


@implements(project_items, DiagonalMatrices)
def _no_project_items(matrices, plan):
    return 0


@implements(project_items, FullMatrices)
def _project_items(matrices, plan):
    return plan.contexts.shape[2] * blocks(plan.contexts.shape[1], POSITION_BLOCK)


@generic
def project(matrices, item, index, plan, context_vectors):
    """C_i r_w once for each unique word of a context position, a block of words at a time."""


@implements(project, DiagonalMatrices)
def _project_nothing(matrices, item, index, plan, context_vectors):
    pass


@implements(project, FullMatrices)
def _project(matrices, item, index, plan, context_vectors):
    positions, per_position = plan.position_groups, blocks(plan.contexts.shape[1], POSITION_BLOCK)
    i, first = item // per_position, item % per_position * POSITION_BLOCK
    last = min(first + POSITION_BLOCK, positions.counts[index, i])
    if first < last:
        for u in range(first, last):
            copy(context_vectors[positions.words[index, i, u]], matrices.gathered[i, u])
        multiply(matrices.gathered[i, first:last], False, matrices.transposed[i], matrices.projected[i, first:last])


@generic
def predict(matrices, e, index, plan, context_vectors, out):
    """q̂ of example e (Eq. 2)."""


@implements(predict, DiagonalMatrices)
def _predict_diagonal(matrices, e, index, plan, context_vectors, out):
    add_scaled_rows(matrices.values, context_vectors, plan.contexts[index, e], out)


@implements(predict, FullMatrices)
def _predict_full(matrices, e, index, plan, context_vectors, out):
    add_rows(None, matrices.projected, plan.position_groups.slots[index, e], out, False)


@generic
def prefetch_contexts(matrices, contexts, context_vectors):
    """Prefetch the rows of the context words of an example that `predict` reads."""


@implements(prefetch_contexts, FullMatrices)
def _prefetch_no_contexts(matrices, contexts, context_vectors):
    pass  # `project` has gathered them


@implements(prefetch_contexts, DiagonalMatrices)
def _prefetch_contexts(matrices, contexts, context_vectors):
    for i in range(contexts.size):
        prefetch(context_vectors, np.int64(contexts[i]))


# -- backward ----------------------------------------------------------------------------------------------------------


@generic
def gradient_items(matrices, index, plan):
    """The number of work items of `context_gradients`."""


@implements(gradient_items, FullMatrices)
def _full_gradient_items(matrices, index, plan):
    return plan.contexts.shape[2] * blocks(plan.contexts.shape[1], POSITION_BLOCK)


@implements(gradient_items, DiagonalMatrices)
def _diagonal_gradient_items(matrices, index, plan):
    return blocks(plan.context_groups.counts[index], GROUP_BLOCK)


@generic
def context_gradients(matrices, item, index, plan, optimizer, parameters, state, workspace, rates, gradient, sums):
    """From dJ/dq̂ to the gradients of context words and matrices, a block of unique words at a time.

    Diagonal matrices, embeddings not tied: also the updates of the context words. gradient (d,) and sums
    (POSITION_BLOCK, d) are scratch.
    """


@implements(context_gradients, FullMatrices)
def _full_gradients(matrices, item, index, plan, optimizer, parameters, state, workspace, rates, gradient, sums):
    positions, per_position = plan.position_groups, blocks(plan.contexts.shape[1], POSITION_BLOCK)
    i, block = item // per_position, item % per_position
    first = block * POSITION_BLOCK
    last = min(first + POSITION_BLOCK, positions.counts[index, i])
    if first < last:
        summed = sums[: last - first]  # Σ dJ/dq̂ over the examples with that word
        for u in range(first, last):
            entries = slice(positions.offsets[index, i, u], positions.offsets[index, i, u + 1])
            add_rows(None, workspace.predicted_gradients, positions.rows[index, i, entries], summed[u - first], False)
        multiply(summed, False, matrices.values[i], matrices.projected[i, first:last])
        multiply(summed, True, matrices.gathered[i, first:last], workspace.matrix_gradients[block, i])


@implements(context_gradients, DiagonalMatrices)
def _diagonal_gradients(matrices, item, index, plan, optimizer, parameters, state, workspace, rates, gradient, sums):
    groups, table = plan.context_groups, parameters.context_vectors
    words, decay = groups.words[index], rates.weight_decay.contexts
    first, last = item * GROUP_BLOCK, min((item + 1) * GROUP_BLOCK, groups.counts[index])
    partial = workspace.matrix_gradients[item]
    partial[:] = np.float32(0.0)
    for g in range(first, last):
        word = words[g]
        if table.size > IN_CACHE and g + PREFETCH_DISTANCE < last:
            later = np.int64(words[g + PREFETCH_DISTANCE])
            prefetch(table, later)
            prefetch(decay, later)
            prefetch_state(state.context_vectors, later)
        entries = slice(groups.offsets[index, g], groups.offsets[index, g + 1])
        add_scaled_rows_backward(
            matrices.values, table[word], workspace.predicted_gradients, groups.rows[index, entries],
            groups.order[index, entries], gradient, partial,
        )  # fmt: skip
        _finish_context(
            workspace.tied, g, word, optimizer, table, state.context_vectors, gradient, rates.table[index], decay[word]
        )


@generic
def _finish_context(tied, g, word, optimizer, table, state, gradient, rate, decay):
    """Update the row of a context word or, with tied embeddings, keep its gradient."""


@implements(_finish_context, type(None))
def _update_context(tied, g, word, optimizer, table, state, gradient, rate, decay):
    update_row(optimizer, table, state, word, ONE, gradient, rate, decay)


@implements(_finish_context, TiedGradients)
def _keep_context_gradient(tied, g, word, optimizer, table, state, gradient, rate, decay):
    copy(gradient, tied.contexts[g])


# -- updates -----------------------------------------------------------------------------------------------------------


@inline
def update_matrices(matrices, i, index, plan, optimizer, state, workspace, rates):
    """Sum the partial gradients of C_i in the order of their blocks and update it."""
    c = plan.contexts.shape[2]
    partial = workspace.matrix_gradients.reshape(workspace.matrix_gradients.shape[0], c, -1)
    gradient = partial[0, i]
    for block in range(1, matrix_blocks(matrices, i, index, plan)):
        for t in range(gradient.size):
            gradient[t] += partial[block, i, t]
    flat = matrices.values.reshape(c, -1)
    update_row(optimizer, flat, state, i, ONE, gradient, rates.matrix[index], rates.weight_decay.matrices)
    transpose(matrices, i)


@generic
def matrix_blocks(matrices, i, index, plan):
    """The number of partial gradients of C_i."""


@implements(matrix_blocks, FullMatrices)
def _full_matrix_blocks(matrices, i, index, plan):
    return blocks(plan.position_groups.counts[index, i], POSITION_BLOCK)


@implements(matrix_blocks, DiagonalMatrices)
def _diagonal_matrix_blocks(matrices, i, index, plan):
    return blocks(plan.context_groups.counts[index], GROUP_BLOCK)


@generic
def context_update_items(matrices, tied, index, plan):
    """The number of work items of `update_contexts`."""


@implements(context_update_items, FullMatrices)
def _full_context_update_items(matrices, tied, index, plan):
    return blocks(plan.context_groups.counts[index], GROUP_BLOCK)


@implements(context_update_items, DiagonalMatrices)
def _diagonal_context_update_items(matrices, tied, index, plan):
    if tied is None:
        return 0  # `context_gradients` has updated them
    return blocks(plan.context_groups.counts[index], GROUP_BLOCK)


@inline
def update_contexts(matrices, item, index, plan, optimizer, parameters, state, workspace, rates, gradient):
    """Update the rows of the context table, a block of unique words at a time."""
    groups = plan.context_groups
    for g in range(item * GROUP_BLOCK, min((item + 1) * GROUP_BLOCK, groups.counts[index])):
        word = groups.words[index, g]
        _context_gradient(matrices, workspace.tied, g, index, groups, gradient)
        update_row(
            optimizer, parameters.context_vectors, state.context_vectors, word, ONE, gradient, rates.table[index],
            rates.weight_decay.contexts[word],
        )  # fmt: skip


@generic
def _context_gradient(matrices, tied, g, index, groups, out):
    """dJ/dr_w of a group."""


@implements(_context_gradient, FullMatrices)
def _full_context_gradient(matrices, tied, g, index, groups, out):
    entries = slice(groups.offsets[index, g], groups.offsets[index, g + 1])
    add_rows(None, matrices.projected, groups.order[index, entries], out, False)


@implements(_context_gradient, DiagonalMatrices)
def _diagonal_context_gradient(matrices, tied, g, index, groups, out):
    if tied is not None:
        copy(tied.contexts[g], out)
