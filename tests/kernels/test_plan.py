"""Plans of minibatches: contexts, grouping by word, the order of examples, fresh noise."""

import numpy as np
import pytest
from scipy.stats import chisquare

from ncelm.kernels import plan, records
from ncelm.kernels.compile import callable_from_python
from ncelm.noise import Noise
from ncelm.text.store import contexts_and_targets
from ncelm.training.engine import number_contexts

group_by_word, group_with_singletons = map(callable_from_python, (plan.group_by_word, plan.group_with_singletons))

# -- contexts ----------------------------------------------------------------------------------------------------------


def reference_contexts(store, before, after):
    ids = store.split("train").ids
    arguments = before, after, store.boundary, store.vocabulary.end_id, store.pad_id
    return contexts_and_targets(ids, np.arange(ids.size), *arguments)[0]


@pytest.mark.parametrize("boundary", ["stream", "sentence"])
@pytest.mark.parametrize(("before", "after"), [(1, 0), (3, 0), (2, 2), (0, 1), (0, 3), (9, 9)])
def test_contexts_agree_with_those_of_the_store(stores, boundary, before, after):
    store = stores[boundary]
    ids = store.split("train").ids
    corpus = records.Corpus(ids, before, boundary == "sentence", store.vocabulary.end_id, store.pad_id)
    out = np.empty((ids.size, before + after), np.int64)
    plan.contexts_of(corpus, np.arange(ids.size), out)
    np.testing.assert_array_equal(out, reference_contexts(store, before, after))
    assert (out == store.pad_id).any()


@pytest.mark.parametrize("boundary", ["stream", "sentence"])
@pytest.mark.parametrize(("before", "after"), [(1, 0), (3, 0), (2, 2)])
def test_equal_contexts_have_equal_numbers(stores, boundary, before, after):
    """Numbers are given in order of first appearance."""
    numbers, count = number_contexts(stores[boundary], before, after)
    expected = {}
    for context, number in zip(map(tuple, reference_contexts(stores[boundary], before, after)), numbers, strict=True):
        assert expected.setdefault(context, len(expected)) == number
    assert len(expected) == count


def test_contexts_whose_hashes_collide_have_different_numbers():
    """In a full hash table nearly every search passes other contexts."""
    ids = np.arange(64, dtype=np.uint16)
    corpus = records.Corpus(ids, 1, False, 64, 65)
    numbers, slots = np.empty(64, np.int32), np.full(64, -1, np.int32)
    assert plan.number_contexts(corpus, 1, slots, numbers) == 64
    assert numbers.tolist() == list(range(64))
    assert sorted(slots) == list(range(64))


# -- grouping ----------------------------------------------------------------------------------------------------------

KEYS = {
    "by hand": np.array([[3, 1], [3, -1], [0, 4], [1, 5]], np.int32),
    "half as many as words": np.array([[9, 1], [3, 9], [0, 4], [1, 5], [2, 2]], np.int32),
    "all alike": np.full((4, 3), 2, np.int32),
    "all different": np.arange(6, dtype=np.int32).reshape(2, 3),
    "nothing": np.full((2, 2), -1, np.int32),
    "empty": np.zeros((0, 3), np.int32),
    "random": np.random.default_rng(0).integers(-1, 20, size=(30, 4)).astype(np.int32),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("size", [20, 2000])
@pytest.mark.parametrize("apart", [False, True])
def test_grouping_by_word(keys, size, apart):
    """Words in the order of a small table; if the table is large, in order of first appearance.

    Entries keep their order. `apart`: words that occur once have no group; they are listed by row.
    """
    counts = np.zeros(size, np.int32)
    words, order, rows, singles = (np.full(keys.size + 1, -9, np.int32) for _ in range(4))
    offsets, single_offsets = np.full(keys.size + 1, -9, np.int32), np.full(len(keys) + 1, -9, np.int32)
    if apart:
        groups = group_with_singletons(keys, counts, words, offsets, order, rows, singles, single_offsets)
    else:
        groups = group_by_word(keys, counts, words, offsets, order, rows)
    expected = {}
    for entry, word in enumerate(keys.reshape(-1)):
        if word >= 0:
            expected.setdefault(int(word), []).append(entry)
    alone = [entries[0] for entries in expected.values() if len(entries) == 1] if apart else []
    expected = {word: entries for word, entries in expected.items() if not apart or len(entries) > 1}
    if size <= 2 * keys.size:
        expected = dict(sorted(expected.items()))
    assert words[:groups].tolist() == list(expected)
    assert [order[offsets[g] : offsets[g + 1]].tolist() for g in range(groups)] == list(expected.values())
    used = sum(map(len, expected.values()))
    columns = keys.shape[1]
    np.testing.assert_array_equal(rows[:used], order[:used] // columns)
    assert (counts == 0).all()  # for the next minibatch
    assert (order[used:] == -9).all()  # nothing outside
    assert (words[groups:] == -9).all()
    if apart:
        assert singles[: len(alone)].tolist() == sorted(alone)
        assert (singles[len(alone) :] == -9).all()
        of_rows = np.bincount(np.array(alone, int) // columns, minlength=len(keys))
        assert single_offsets.tolist() == [0, *np.cumsum(of_rows)]


# -- the order of examples ---------------------------------------------------------------------------------------------


def positions_of(seed, epoch, size, start=0, block=1):
    out = np.empty(size, np.int64)
    plan.epoch_positions(order_of(seed, start, block), epoch, 0, size, out)
    return out


def order_of(seed, start=0, block=1):
    return records.Order(np.uint64(seed), start, block)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 63, 64, 65, 1000, 4097])
def test_an_epoch_visits_every_word_once(size):
    np.testing.assert_array_equal(np.sort(positions_of(1, 0, size)), np.arange(size))


def test_every_epoch_and_every_seed_has_an_order_of_its_own():
    orders = [positions_of(seed, epoch, 1000) for seed in (0, 1) for epoch in (0, 1)]
    for i, order in enumerate(orders):
        assert np.mean(order == np.arange(1000)) < 0.01  # it is shuffled
        for other in orders[i + 1 :]:
            assert np.mean(order == other) < 0.01


def test_an_order_can_be_continued_anywhere():
    whole, part = positions_of(3, 2, 500), np.empty(100, np.int64)
    plan.epoch_positions(order_of(3), 2, 321, 500, part)
    np.testing.assert_array_equal(part, whole[321:421])


def test_every_word_is_equally_likely_to_come_first():
    first = np.array([positions_of(seed, 0, 10)[0] for seed in range(3000)])
    assert chisquare(np.bincount(first, minlength=10)).pvalue > 1e-3


@pytest.mark.parametrize("block", [2, 8, 64])
@pytest.mark.parametrize("start", [0, 5, 64, 67])
@pytest.mark.parametrize("size", [1, 3, 63, 64, 130, 1001])
def test_an_epoch_in_blocks_visits_every_word_once(size, start, block):
    positions = positions_of(1, 0, size, start, block)
    np.testing.assert_array_equal(np.sort(positions), np.arange(size))


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("workers", [2, 3, 4, 7])
def test_what_was_read_after_a_fraction_of_an_epoch_does_not_depend_on_the_number_of_workers(workers, fraction):
    def read(parts):
        """Return which words of the whole text were read."""
        size, found = 100_000 // parts, np.zeros(100_000, bool)
        for start in range(0, parts * size, size):
            found[start + positions_of(1, 2, size, start, 64)[: round(fraction * size)]] = True
        return found

    one, several = read(1), read(workers)
    assert np.mean(one != several) < 0.015  # incomplete blocks, and an incomplete round
    assert one.mean() == pytest.approx(fraction, abs=0.01)


def test_an_order_in_blocks_is_shuffled():
    """Adjacent words are read at different times; a minibatch has words of the whole text."""
    positions = positions_of(1, 0, 64 * 1000, 0, 64)
    times = np.argsort(positions) / positions.size
    assert abs(np.corrcoef(times[:-1], times[1:])[0, 1]) < 0.02
    assert np.mean(np.abs(np.diff(positions)) < 128) < 0.01
    first = positions[:1000]
    assert chisquare(np.histogram(first % 64, 16)[0]).pvalue > 1e-3
    np.testing.assert_array_equal(np.sort(first // 64), np.arange(1000))
    assert np.mean(positions_of(1, 1, 64 * 1000, 0, 64) == positions) < 0.01


# -- noise -------------------------------------------------------------------------------------------------------------


def test_every_update_and_every_example_has_fresh_noise():
    noise = Noise.from_counts(np.ones(1000))
    steps = [noise.sample((50, 20), seed=1, step=step) for step in range(3)]
    rows = {row.tobytes() for step in steps for row in step}
    assert len(rows) == 3 * 50
    np.testing.assert_array_equal(steps[1], noise.sample((50, 20), seed=1, step=1))
    np.testing.assert_array_equal(steps[1][:7, :5], noise.sample((7, 5), seed=1, step=1))
