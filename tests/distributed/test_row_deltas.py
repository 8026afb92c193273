"""ncelm.distributed.row_deltas and its kernels, with several workers simulated in one process."""

import numpy as np
import pytest

from ncelm.distributed import row_deltas
from ncelm.distributed.row_deltas import RowDeltaExchange, RowDeltas, RowQueue
from ncelm.errors import NcelmError
from ncelm.kernels import exchange

WORKERS = 3


def two_queues(values, accumulator):
    """Return the deltas of a parameter whose rows 0 and 1 are examined before every message, the others in turn."""
    return RowDeltas(values, accumulator, [RowQueue(np.arange(2), 1), RowQueue(np.arange(2, len(values)), 2)])


def test_deltas_of_all_workers_are_added_and_quantisation_errors_are_sent_later():
    random = np.random.default_rng(0)
    start = random.normal(size=(6, 5)).astype(np.float32)
    accumulator = np.abs(random.normal(size=(6, 5))).astype(np.float32)
    workers = [two_queues(start.copy(), accumulator.copy()) for _ in range(2)]
    messages = [np.zeros(worker.nbytes, np.uint8) for worker in workers]
    changes, growth = np.zeros_like(start), np.zeros(6, np.float32)
    for turn in range(6):
        packed = [worker.pack(message) for worker, message in zip(workers, messages, strict=True)]
        for worker in workers:
            if turn < 3:  # training between packing and applying is allowed
                change = random.normal(size=start.shape).astype(np.float32)
                worker.values += change
                worker.accumulator += change**2
                changes, growth = changes + change, growth + (change**2).mean(1)
        workers[0].apply(messages[1], packed[1])
        workers[1].apply(messages[0], packed[0])
        assert all(n <= 4 for n in packed)  # two rows always, two of the other four
    assert packed == [0, 0]  # the remaining changes are below the tolerance
    for worker in workers:
        np.testing.assert_allclose(worker.values, start + changes, rtol=0.03, atol=0.03)
        np.testing.assert_allclose(worker.accumulator.mean(1), accumulator.mean(1) + growth, rtol=1e-5)


SHAPES = {"target_vectors": (50, 9), "context_vectors": (51, 9), "biases": (50,), "matrices": (4, 9), "weights": (128,)}


def rows_of(name, array):
    """Return a view of a parameter as (rows, width)."""
    return array.reshape(-1, row_deltas.HASHED_WIDTH) if name == "weights" else array.reshape(len(array), -1)


def exact_deltas(random, shape):
    """Return deltas that int8 represents exactly: integers from -127 to 127 times a power of two per row."""
    deltas = random.integers(-127, 128, size=shape).astype(np.float32)
    deltas[:, 0] = random.choice([-127.0, 127.0], size=shape[0])  # the scale of the row is a power of two
    return deltas * np.exp2(random.integers(-1, 2, size=(shape[0], 1))).astype(np.float32)


def simulated(monkeypatch, workers, interval=20, accumulators=False):
    monkeypatch.setattr(row_deltas, "FREQUENT_ROWS", 8)
    random = np.random.default_rng(1)
    start = {name: random.integers(-9, 9, size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    parameters = [{name: array.copy() for name, array in start.items()} for _ in range(workers)]
    states = [{"accumulator": {n: np.zeros_like(a) for n, a in start.items()}} for _ in range(workers)]
    counts = np.arange(50, 0, -1)
    exchanges = [
        RowDeltaExchange(each, state if accumulators else {}, counts, interval, workers)
        for each, state in zip(parameters, states, strict=True)
    ]
    return start, parameters, states, exchanges


def synchronize(exchanges):
    gathered = np.concatenate([each.pack() for each in exchanges])
    for rank, each in enumerate(exchanges):
        each.gathered()[:] = gathered
        each.apply(each.gathered(), rank)


@pytest.mark.parametrize("workers", [2, WORKERS])
def test_exact_deltas_of_three_workers_sum_exactly(monkeypatch, workers):
    """Integer deltas have no quantisation error: all workers hold the exact sum, without a full synchronisation."""
    start, parameters, _, exchanges = simulated(monkeypatch, workers)
    random, expected = np.random.default_rng(2), {name: array.copy() for name, array in start.items()}
    for _ in range(3):
        for each in parameters:
            for name, array in each.items():
                rows = rows_of(name, array)
                deltas = exact_deltas(random, rows.shape)
                rows += deltas
                rows_of(name, expected[name])[:] += deltas
        for _ in range(2):  # a round of the rows of rare words takes two messages
            synchronize(exchanges)
    for each in parameters:
        for name, array in each.items():
            np.testing.assert_array_equal(array, expected[name])
    for each in exchanges:
        assert not any(table.residual().any() for table in each.tables)


def test_growth_of_accumulators_that_one_worker_updated_is_exact(monkeypatch):
    """Row i is updated by worker i modulo 3 only. The other workers have zeros there and take the mean."""
    _, parameters, states, exchanges = simulated(monkeypatch, WORKERS, accumulators=True)
    expected = {}
    for rank, (each, state) in enumerate(zip(parameters, states, strict=True)):
        for name, array in each.items():
            rows = rows_of(name, array)
            rows[rank::WORKERS] += 127.0
            accumulator = state["accumulator"][name].reshape(rows.shape)
            accumulator[rank::WORKERS] += 4.0 * (rank + 1)
            expected.setdefault(name, np.zeros_like(rows))[rank::WORKERS] = 4.0 * (rank + 1)
    for _ in range(2):
        synchronize(exchanges)
    for state in states:
        for name, array in state["accumulator"].items():
            np.testing.assert_array_equal(array.reshape(expected[name].shape), expected[name])


def test_messages_shrink_to_the_rows_that_change(monkeypatch):
    _, parameters, _, exchanges = simulated(monkeypatch, WORKERS)
    largest = exchanges[0].message_nbytes
    synchronize(exchanges)
    assert {each.message_nbytes for each in exchanges} == {exchanges[0].message_nbytes}
    assert exchanges[0].message_nbytes < largest
    parameters[1]["target_vectors"] += 1.0  # on one worker only
    synchronize(exchanges)
    assert {each.message_nbytes for each in exchanges} == {exchanges[0].message_nbytes}


def test_rows_of_a_large_vocabulary_have_a_longer_round():
    """A round of the rare words covers at least 0.8 words of text per word of the vocabulary."""
    parameters = {"biases": np.zeros(10_000, np.float32)}
    for interval, per_message in ((100_000, 3976), (1000, 994)):  # 7,952 rare rows in 2 or 8 messages
        (table,) = RowDeltaExchange(parameters, {}, np.ones(10_000), interval, 2).tables
        assert [queue.per_message for queue in table.queues] == [2048, per_message]


def test_the_state_of_adam_is_rejected():
    state = {"accumulator": {"biases": np.zeros(3)}, "momentum": {"biases": np.zeros(3)}}
    with pytest.raises(NcelmError, match=r"cannot exchange the optimizer's momentum: .* adagrad or sgd"):
        RowDeltaExchange({"biases": np.zeros(3, np.float32)}, state, np.ones(3), 10, 2)


# -- kernels ---------------------------------------------------------------------------------------------------------


def test_deltas_are_quantized_to_int8():
    synced = np.zeros((3, 4), np.float32)
    values = np.array([[0, 0, 0, 0], [1.27, -0.5, 0.004, 0.006], [np.inf, 0, 0, 0]], np.float32)
    rows, scales, quantized = np.array([1, 0, 2], np.int32), np.ones(3, np.float32), np.zeros((3, 4), np.uint8)
    exchange.quantize_deltas(values, synced, rows, scales, quantized)
    np.testing.assert_array_equal(quantized[:2].view(np.int8), [[127, -50, 0, 1], [0, 0, 0, 0]])
    assert scales[:2] == pytest.approx([0.01, 0.0])
    np.testing.assert_allclose(synced[1], [1.27, -0.5, 0.0, 0.01])  # as sent: the error remains in values − synced
    assert np.isnan(scales[2])
    other_values, other_synced = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    exchange.apply_deltas(other_values, other_synced, rows, scales, quantized)
    np.testing.assert_array_equal(other_values[:2], synced[:2])
    np.testing.assert_array_equal(other_synced[:2], synced[:2])
    assert np.isnan(other_values[2]).all()  # divergence reaches all workers


def test_accumulators_grow_in_proportion():
    accumulator = np.array([[1.0, 3.0], [0.0, 0.0]], np.float32)
    synced_means = accumulator.mean(1)
    rows = np.array([0, 1], np.int32)
    exchange.apply_growth(accumulator, synced_means, rows, np.array([1.0, 0.5], np.float32))
    np.testing.assert_allclose(accumulator, [[1.5, 4.5], [0.5, 0.5]])
    accumulator[0] += 2.0  # the worker's own growth
    growth = np.zeros(2, np.float32)
    exchange.accumulator_growth(accumulator, synced_means, rows, growth)
    np.testing.assert_allclose(growth, [2.0, 0.0])


def test_changed_rows_are_selected_in_turn():
    synced = np.ones((5, 20), np.float32)
    values = synced.copy()
    values[[1, 2, 4]] += 0.5
    values[3] += 1e-6  # below the tolerance
    queue, rows = np.arange(5, dtype=np.int32), np.zeros(2, np.int32)
    select, tolerance = exchange.select_changed_rows, np.float32(0.01)
    start, found = select(values, synced, queue, 0, 5, 8, tolerance, rows)
    assert (start, found, rows.tolist()) == (3, 2, [1, 2])
    start, found = select(values, synced, queue, start, 3, 8, tolerance, rows)
    assert (start, found, rows[0]) == (1, 1, 4)  # rows 3, 4 and 0 were examined
    values[0, 0] = np.nan
    assert select(values, synced, queue, 0, 1, 8, tolerance, rows) == (1, 1)
