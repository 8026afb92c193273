"""From the token store to planned minibatches: examples are chosen, noise is drawn, everything is grouped by word."""

import numpy as np

from ncelm.kernels.compile import generic, implements, inline, kernel
from ncelm.kernels.noise import draw_example, draw_word
from ncelm.kernels.random import GOLDEN, draw, mix, permutation_bits, permuted, stream_key
from ncelm.kernels.records import (
    DiagonalMatrices,
    ExactLikelihood,
    FullMatrices,
    LogNormalizers,
    PerExampleNoise,
    SharedNoise,
)
from ncelm.kernels.simd import prefetch


@inline
def fill_contexts(corpus, position, out):
    """Write the context of the word at `position` into out (c,), as store.contexts_and_targets does."""
    ids, before, within_sentence, end_id, pad_id = corpus
    inside = True
    for i in range(before):  # from the target to the left; the nearest word is last
        place = position - 1 - i
        inside = inside and place >= 0 and not (within_sentence and ids[place] == end_id)
        out[before - 1 - i] = ids[place] if inside else pad_id
    inside = not (within_sentence and ids[position] == end_id)
    for i in range(out.size - before):  # to the right; the nearest word is first
        place = position + 1 + i
        inside = inside and place < ids.size and not (within_sentence and ids[place] == end_id)
        out[before + i] = ids[place] if inside else pad_id


@kernel
def contexts_of(corpus, positions, out):
    """Write the contexts of the words at these positions into out (n, c)."""
    for i in range(positions.size):
        fill_contexts(corpus, positions[i], out[i])


@inline
def prepare_order(order, epoch, size):
    """Return what `position_of` needs for an epoch over `size` words."""
    lead = (order.block - order.start % order.block) % order.block  # words before the first block that is complete
    blocks = (size - lead) // order.block if size > lead else 0
    return order, epoch, lead, blocks, permutation_bits(blocks), (order.start + lead) // order.block


@inline
def position_of(prepared, index):
    """Return the position of example `index` of an epoch, from 0 to `size` - 1; each is visited once.

    With blocks of one word, the order is a random permutation. With longer blocks, an epoch has as many rounds as a
    block has words. A round visits one word of each block, in random order; which one, depends on the position of the
    block in the whole text. What has been read after a fraction of an epoch is therefore the same for any division of
    the text into parts, so that a change of the number of workers neither repeats nor omits words. Words of incomplete
    blocks at the ends of the part come last.
    """
    order, epoch, lead, blocks, half, first_block = prepared
    rest = index - blocks * order.block
    if rest >= 0:
        return rest if rest < lead else index
    turn = index // blocks
    block = permuted(index - turn * blocks, blocks, stream_key(order.seed, epoch, -1 - turn), half)
    key = mix(stream_key(order.seed, epoch, -1) + GOLDEN * np.uint64(first_block + block + 1))
    within = (key + np.uint64(turn) * (key >> np.uint64(31) | np.uint64(1))) & np.uint64(order.block - 1)
    return lead + block * order.block + np.int64(within)


@kernel
def epoch_positions(order, epoch, first, size, out):
    """Fill out (n,) with the positions of the examples first, first + 1, … of an epoch over `size` words."""
    prepared = prepare_order(order, epoch, size)
    for i in range(out.size):
        out[i] = position_of(prepared, first + i)


@kernel
def number_contexts(corpus, c, slots, numbers):
    """Number the distinct contexts of a text in order of first appearance; return how many there are.

    `slots` is an open-addressing hash table, its length a power of two, all −1: each slot holds the first position of a
    context. Contexts are compared word by word. numbers (N,) int32 is filled.
    """
    context, other = np.empty(c, np.int64), np.empty(c, np.int64)
    mask, count = np.uint64(slots.size - 1), 0
    for position in range(corpus.ids.size):
        fill_contexts(corpus, position, context)
        key = np.uint64(0)
        for i in range(c):
            key = mix(key + GOLDEN + np.uint64(context[i]))
        slot = key & mask
        while True:
            first = slots[slot]
            if first < 0:
                slots[slot] = position
                numbers[position] = count
                count += 1
                break
            fill_contexts(corpus, first, other)
            same = True
            for i in range(c):
                same = same and context[i] == other[i]
            if same:
                numbers[position] = numbers[first]
                break
            slot = (slot + np.uint64(1)) & mask
    return count


# -- grouping ----------------------------------------------------------------------------------------------------------


@inline
def _assign_groups(keys, least, counts, words, offsets):
    """Give a group to every key that occurs at least `least` times; counts become −1 − (the place of its next entry).

    counts[key] is the number of occurrences before.
    """
    groups = 0
    offsets[0] = 0
    if counts.size <= 2 * keys.size:  # groups in the order of the table, the best order to access it
        for word in range(counts.size):
            if counts[word] >= least:
                words[groups] = word
                offsets[groups + 1] = offsets[groups] + counts[word]
                counts[word] = -1 - offsets[groups]
                groups += 1
    else:  # in order of first appearance: the time does not depend on the vocabulary size
        for row in range(keys.shape[0]):
            for column in range(keys.shape[1]):
                word = keys[row, column]
                if word >= 0 and counts[word] >= least:
                    words[groups] = word
                    offsets[groups + 1] = offsets[groups] + counts[word]
                    counts[word] = -1 - offsets[groups]
                    groups += 1
    return groups


@inline
def _count_keys(keys, counts):
    for row in range(keys.shape[0]):
        for column in range(keys.shape[1]):
            if keys[row, column] >= 0:
                counts[keys[row, column]] += 1


@inline
def group_by_word(keys, counts, words, offsets, order, rows):
    """Group the entries of keys (n, m) by value and return the number of groups.

    Group g belongs to the word words[g]; its entries are order[offsets[g] : offsets[g + 1]]. An entry is the number
    row * m + column; `rows` has the row alone, which saves a division. Entries keep their order within a group, which
    fixes the order of every later sum. Negative keys are skipped. `counts` is 0 for every possible key, before and
    after.
    """
    _count_keys(keys, counts)
    groups = _assign_groups(keys, 1, counts, words, offsets)
    for row in range(keys.shape[0]):
        for column in range(keys.shape[1]):
            word = keys[row, column]
            if word >= 0:
                place = -1 - counts[word]
                counts[word] -= 1
                order[place] = row * keys.shape[1] + column
                rows[place] = row
    for group in range(groups):
        counts[words[group]] = 0
    return groups


@inline
def group_with_singletons(keys, counts, words, offsets, order, rows, singles, single_offsets):
    """Like `group_by_word`, but a key that occurs once gets no group.

    Those in a row are the entries singles[single_offsets[row] : single_offsets[row + 1]].
    """
    _count_keys(keys, counts)
    groups = _assign_groups(keys, 2, counts, words, offsets)
    found = 0
    for row in range(keys.shape[0]):
        single_offsets[row] = found
        for column in range(keys.shape[1]):
            word = keys[row, column]
            if word >= 0:
                entry = row * keys.shape[1] + column
                if counts[word] < 0:
                    place = -1 - counts[word]
                    counts[word] -= 1
                    order[place] = entry
                    rows[place] = row
                else:
                    counts[word] = 0
                    singles[found] = entry
                    found += 1
    single_offsets[keys.shape[0]] = found
    for group in range(groups):
        counts[words[group]] = 0
    return groups


# -- minibatches -------------------------------------------------------------------------------------------------------


@inline
def plan_minibatch(corpus, strategy, matrices, steps, index, plan, counts, spare):
    """Choose the examples of minibatch `index` of a call, draw their noise, and group everything by word."""
    first = steps.first_example + index * steps.batch_size
    size = min(steps.batch_size, corpus.ids.size - first)
    step = steps.first + index
    contexts = plan.contexts[index, :size]
    prepared = prepare_order(steps.order, steps.epoch, corpus.ids.size)
    plan.sizes[index] = size
    for e in range(size):  # positions are random: prefetch all of them first; plan.keys holds them until then
        position = position_of(prepared, first + e)
        plan.keys[index, e] = position
        prefetch(corpus.ids, position)
        prefetch(corpus.ids, max(position - corpus.before, 0))
    for e in range(size):
        position = np.int64(plan.keys[index, e])
        fill_contexts(corpus, position, contexts[e])
        plan.words[index, e, 0] = corpus.ids[position]
        key = stream_key(steps.seed, step, e)
        plan.keys[index, e] = key
        plan_example(strategy, corpus, position, key, e, index, plan)
    plan_targets(strategy, steps.seed, step, size, index, plan, counts)
    plan_contexts(matrices, contexts, index, plan, counts, spare)


@generic
def plan_example(strategy, corpus, position, key, e, index, plan):
    """Draw the noise words of one example."""


@implements(plan_example, PerExampleNoise)
def _plan_example(strategy, corpus, position, key, e, index, plan):
    before = plan.contexts[index, e, max(corpus.before - 1, 0)]
    draw_example(strategy.noise, key, before, plan.words[index, e], _row(plan.log_k_noise, index, e))
    _plan_normalizer(strategy.normalizers, position, index, e, plan.normalizers)


@implements(plan_example, SharedNoise, ExactLikelihood)
def _plan_no_example(strategy, corpus, position, key, e, index, plan):
    pass


@inline
def _row(planned, index, e):
    """planned[index, e], or None for None."""
    if planned is None:
        return None
    return planned[index, e]


@generic
def _plan_normalizer(normalizers, position, index, e, planned):
    """Note the number of an example's context."""


@implements(_plan_normalizer, type(None))
def _plan_no_normalizer(normalizers, position, index, e, planned):
    pass


@implements(_plan_normalizer, LogNormalizers)
def _plan_context_number(normalizers, position, index, e, planned):
    planned[index, e] = normalizers.numbers[position]


@generic
def plan_targets(strategy, seed, step, size, index, plan, counts):
    """Group target and noise words."""


@implements(plan_targets, ExactLikelihood)
def _plan_no_targets(strategy, seed, step, size, index, plan, counts):
    pass


@implements(plan_targets, PerExampleNoise)
def _plan_sampled_targets(strategy, seed, step, size, index, plan, counts):
    groups = plan.target_groups
    words, offsets, order, rows = groups.words[index], groups.offsets[index], groups.order[index], groups.rows[index]
    groups.counts[index] = _group_targets(
        plan.singletons, plan.words[index, :size], counts, words, offsets, order, rows, index
    )


@inline
def _group_targets(singletons, keys, counts, words, offsets, order, rows, index):
    if singletons is None:
        return group_by_word(keys, counts, words, offsets, order, rows)
    return group_with_singletons(
        keys, counts, words, offsets, order, rows, singletons.entries[index], singletons.offsets[index]
    )


@implements(plan_targets, SharedNoise)
def _plan_shared_targets(strategy, seed, step, size, index, plan, counts):
    key, distinct = stream_key(seed, step, -2), 0
    words, multiplicities = plan.words[index], plan.shared.multiplicities[index]
    for j in range(multiplicities.size):
        word = draw_word(draw(key, j), strategy.noise.columns)
        if counts[word] == 0:
            words[size + distinct, 0] = word
            multiplicities[distinct] = np.float32(0.0)
            distinct += 1
            counts[word] = distinct
        multiplicities[counts[word] - 1] += np.float32(1.0)
    for j in range(distinct):
        counts[words[size + j, 0]] = 0
    plan.shared.counts[index] = distinct
    groups = plan.target_groups
    groups.counts[index] = group_by_word(
        words[: size + distinct], counts, groups.words[index], groups.offsets[index], groups.order[index],
        groups.rows[index],
    )  # fmt: skip


@generic
def plan_contexts(matrices, contexts, index, plan, counts, spare):
    """Group context words."""


@implements(plan_contexts, DiagonalMatrices)
def _plan_diagonal_contexts(matrices, contexts, index, plan, counts, spare):
    groups = plan.context_groups
    groups.counts[index] = group_by_word(
        contexts, counts, groups.words[index], groups.offsets[index], groups.order[index], groups.rows[index]
    )


@implements(plan_contexts, FullMatrices)
def _plan_full_contexts(matrices, contexts, index, plan, counts, spare):
    groups, positions = plan.context_groups, plan.position_groups
    words = positions.words[index]
    for i in range(contexts.shape[1]):
        offsets, rows = positions.offsets[index, i], positions.rows[index, i]
        count = group_by_word(contexts[:, i : i + 1], counts, words[i], offsets, groups.order[index], rows)
        for group in range(count):
            for p in range(offsets[group], offsets[group + 1]):
                positions.slots[index, rows[p], i] = i * plan.contexts.shape[1] + group
        positions.counts[index, i] = count
        words[i, count:] = -1
    groups.counts[index] = group_by_word(
        words, counts, groups.words[index], groups.offsets[index], groups.order[index], spare
    )
