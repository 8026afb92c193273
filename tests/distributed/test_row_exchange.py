"""ncelm.distributed.row_exchange and its kernels, with several workers simulated in one process."""

import numpy as np
import pytest

from ncelm.distributed import row_exchange
from ncelm.distributed.row_exchange import RowExchange
from ncelm.errors import NcelmError
from ncelm.kernels import exchange

WORKERS = 3
SHAPES = {"target_vectors": (50, 9), "context_vectors": (51, 9), "biases": (50,), "matrices": (4, 9), "weights": (128,)}


def rows_of(name, array):
    """Return a view of a parameter as (rows, width)."""
    return array.reshape(-1, row_exchange.HASHED_WIDTH) if name == "weights" else array.reshape(len(array), -1)


def exact_deltas(random, shape, largest=7):
    """Return deltas that int4 represents exactly: integers, of which the first of each row is ±`largest`."""
    deltas = random.integers(-largest, largest + 1, size=shape).astype(np.float32)
    deltas[:, 0] = random.choice([-largest, largest], size=shape[0])
    return deltas


class Simulation:
    """Workers in one process."""

    def __init__(self, workers, interval=20, accumulator=None):
        random = np.random.default_rng(1)
        self.start = {name: random.integers(-9, 9, size=shape).astype(np.float32) for name, shape in SHAPES.items()}
        self.parameters = [{name: array.copy() for name, array in self.start.items()} for _ in range(workers)]
        self.states = [
            {}
            if accumulator is None
            else {"accumulator": {n: np.full_like(a, accumulator) for n, a in self.start.items()}}
            for _ in range(workers)
        ]
        self.exchanges = [
            RowExchange(self.parameters[rank], self.states[rank], np.arange(50, 0, -1), interval, rank, workers)
            for rank in range(workers)
        ]
        self.sent = 0  # bytes of all messages to owners, in the last exchange

    def synchronize(self, full=False):
        """Exchange; return the result of each worker."""
        sent = [each.pack(full) for each in self.exchanges]  # by sender, then by owner
        self.sent = sum(message.size for messages in sent for message in messages)
        results = [
            each.combine([messages[rank].copy() for messages in sent]) for rank, each in enumerate(self.exchanges)
        ]
        return [each.apply([result.copy() for result in results], full) for each in self.exchanges]

    def rows(self, rank, name):
        """Return a parameter of a worker as (rows, width)."""
        return rows_of(name, self.parameters[rank][name])

    def accumulator(self, rank, name):
        """Return the accumulator of a parameter of a worker as (rows, width)."""
        return rows_of(name, self.states[rank]["accumulator"][name])


@pytest.fixture(autouse=True)
def few_frequent_rows(monkeypatch):
    monkeypatch.setattr(row_exchange, "FREQUENT_ROWS", 8)  # the others are examined in rounds of several exchanges


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("workers", [2, WORKERS])
def test_without_an_accumulator_deltas_are_summed_exactly(workers, full):
    """Rows that one worker changed, by integers, have no quantisation error."""
    simulation = Simulation(workers)
    random, expected = np.random.default_rng(2), {name: array.copy() for name, array in simulation.start.items()}
    for _ in range(3):
        for name in SHAPES:
            for rank in range(workers):
                rows = simulation.rows(rank, name)
                deltas = exact_deltas(random, rows.shape)
                deltas[np.arange(len(rows)) % workers != (rank + 1) % workers] = 0.0  # not the owner
                rows += deltas
                rows_of(name, expected[name])[:] += deltas
        for _ in range(1 if full else row_exchange.least_round(workers)):
            simulation.synchronize(full)
    for rank in range(workers):
        for name, array in simulation.parameters[rank].items():
            np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("accumulator", [None, 4.0])
def test_float_deltas_converge_to_the_sum_and_all_workers_are_byte_identical(accumulator):
    """Quantisation errors of both directions are sent later. Accumulators that do not grow have no effect."""
    simulation = Simulation(WORKERS, accumulator=accumulator)
    random, expected = np.random.default_rng(3), {name: array.copy() for name, array in simulation.start.items()}
    for rank in range(WORKERS):
        for name, array in simulation.parameters[rank].items():
            delta = random.normal(size=array.shape).astype(np.float32)
            array += delta
            expected[name] += delta
    for full in (*[False] * 3 * row_exchange.least_round(WORKERS), True):
        simulation.synchronize(full)
    for rank in range(WORKERS):
        for name, array in simulation.parameters[rank].items():
            np.testing.assert_allclose(array, expected[name], atol=0.03)
            assert array.tobytes() == simulation.parameters[0][name].tobytes()


def test_weights_are_a_mean_without_a_history_and_a_sum_with_a_long_one():
    for start, factor in ((0.0, 1.0 / WORKERS), (1e9, 1.0)):
        simulation = Simulation(WORKERS, accumulator=start)
        for rank in range(WORKERS):
            for name in SHAPES:
                simulation.rows(rank, name)[:] += 2.0
                simulation.accumulator(rank, name)[:] += 5.0
        simulation.synchronize(full=True)
        for name in SHAPES:
            expected = rows_of(name, simulation.start[name]) + 2.0 * WORKERS * factor
            np.testing.assert_allclose(simulation.rows(0, name), expected, rtol=1e-4, atol=0.05)


def test_weights_are_those_of_the_documentation():
    """(m + g) / (m + G), for one row and different growths."""
    simulation = Simulation(2, accumulator=3.0)
    for rank, (delta, growth) in enumerate(((7.0, 1.0), (-7.0, 4.0))):
        simulation.rows(rank, "matrices")[1] += delta
        simulation.accumulator(rank, "matrices")[1] += growth
    simulation.synchronize()
    step = 7.0 * (3.0 + 1.0) / (3.0 + 5.0) - 7.0 * (3.0 + 4.0) / (3.0 + 5.0)
    for rank in range(2):
        np.testing.assert_allclose(
            simulation.rows(rank, "matrices")[1], simulation.start["matrices"][1] + step, rtol=1e-5
        )
        np.testing.assert_allclose(simulation.accumulator(rank, "matrices")[1], 8.0, rtol=1e-6)
        np.testing.assert_array_equal(simulation.accumulator(rank, "matrices")[0], 3.0)


def quadratic(workers, contraction, history=1e9, exchanges=12, noise=0.0):
    """Return the distance to the minimum after each exchange of workers that all contract it by this factor."""
    simulation, random = Simulation(workers, accumulator=history), np.random.default_rng(4)
    start = np.linalg.norm(simulation.start["matrices"])
    distances = []
    for _ in range(exchanges):
        for rank in range(workers):
            rows = simulation.rows(rank, "matrices")
            rows *= contraction
            rows += noise * random.normal(size=rows.shape)
        simulation.synchronize(full=True)
        distances.append(np.linalg.norm(simulation.parameters[0]["matrices"]) / start)
    return np.array(distances)


@pytest.mark.parametrize("contraction", [0.2, 0.5, 0.8])
def test_steps_towards_the_same_minimum_are_damped(monkeypatch, contraction):
    """The sum of eight steps of a half of the distance would triple it in each exchange."""
    distances = quadratic(8, contraction)
    assert distances[-1] < 0.05
    monkeypatch.setattr(exchange, "damp_deltas", sum_only)
    undamped = quadratic(8, contraction)
    ratio = abs(1.0 - 8.0 * (1.0 - contraction))
    np.testing.assert_allclose(undamped[:3], ratio ** np.arange(1, 4), rtol=0.1)


def sum_only(touched, deltas, squares, senders, last, agreement, decrease, energy, sums, limit):
    """`damp_deltas` without damping."""
    sums += deltas
    deltas[:], squares[:], senders[:] = 0.0, 0.0, 0


def test_damping_with_noise():
    """The deltas of workers differ by more than they agree: the curvature is measured nevertheless."""
    assert quadratic(8, 0.5, exchanges=40, noise=2.0)[-10:].max() < 2.0


def test_small_and_different_steps_are_not_damped(monkeypatch):
    """Steps that do not overshoot, rows of one worker and deltas without a common direction are added as they are."""
    found = quadratic(4, 0.95)
    monkeypatch.setattr(exchange, "damp_deltas", sum_only)
    np.testing.assert_allclose(found, quadratic(4, 0.95), rtol=1e-4)
    np.testing.assert_allclose(found, 0.8 ** np.arange(1, 13), rtol=0.02)


def test_rows_of_a_single_worker_are_not_damped():
    simulation = Simulation(WORKERS, accumulator=1.0)
    for _ in range(5):
        simulation.rows(1, "matrices")[:] *= -1.0  # as far as possible from a converging step
        expected = simulation.rows(1, "matrices").copy()
        simulation.synchronize(full=True)
        np.testing.assert_allclose(simulation.rows(0, "matrices"), expected, atol=2.5)  # of numbers up to 18


def test_the_growth_of_others_is_divided_among_the_columns_by_their_steps():
    """A step of Adagrad from an accumulator a tells its squared gradient: g² ∝ a Δ²."""
    simulation = Simulation(2, accumulator=4.0)
    gradient = np.array([7.0, -4.0, 2.0, 1.0, 0.0, 0.0, 3.0, -1.0, 5.0], np.float32)
    expected = 4.0 + gradient**2
    simulation.accumulator(1, "matrices")[1] += gradient**2
    simulation.rows(1, "matrices")[1] -= 7 / 4 * gradient / np.sqrt(4.0)  # int4 represents it exactly
    simulation.synchronize()
    np.testing.assert_allclose(simulation.accumulator(1, "matrices")[1], expected)
    np.testing.assert_allclose(simulation.accumulator(0, "matrices")[1], expected, rtol=0.02)
    np.testing.assert_allclose(simulation.accumulator(0, "matrices")[1].mean(), expected.mean(), rtol=1e-5)


def test_growth_that_was_not_sent_is_kept():
    simulation = Simulation(2, accumulator=1.0)
    simulation.rows(0, "matrices")[0] += 10.0
    simulation.accumulator(0, "matrices")[0] += 2.0
    simulation.accumulator(1, "matrices")[0] += 0.5  # the row of worker 1 did not change: not sent
    simulation.synchronize()
    np.testing.assert_allclose(simulation.accumulator(0, "matrices")[0], 3.0)
    np.testing.assert_allclose(simulation.accumulator(1, "matrices")[0], 3.5)
    simulation.rows(1, "matrices")[0] += 10.0
    simulation.synchronize()
    for rank in range(2):
        np.testing.assert_allclose(simulation.accumulator(rank, "matrices")[0], 3.5)


def test_a_tiny_accumulator_does_not_overflow():
    """A worker with a row mean of 1e-40 takes the mean of the others: the ratio is not a float32."""
    simulation = Simulation(2, accumulator=0.0)
    simulation.accumulator(0, "matrices")[0] = 1e-40
    simulation.rows(1, "matrices")[0] += 5.0
    simulation.accumulator(1, "matrices")[0] += 7.0
    simulation.synchronize()
    for rank in range(2):
        np.testing.assert_allclose(simulation.accumulator(rank, "matrices")[0], 7.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["parameter", "accumulator", "sum"])
def test_numbers_that_are_not_finite_are_rejected_by_all_workers(value, where):
    simulation = Simulation(WORKERS, accumulator=1.0)
    for rank in range(WORKERS):
        simulation.rows(rank, "matrices")[2] += 1.0
    if where == "parameter":
        simulation.rows(1, "matrices")[2, 5] = value
    elif where == "accumulator":
        simulation.accumulator(1, "matrices")[2, 5] = value
    else:  # each delta is finite
        for rank in range(WORKERS):
            simulation.rows(rank, "matrices")[2] = 3e38
    with np.errstate(over="ignore"):
        answers = simulation.synchronize()
    owner = 2
    assert answers == [owner if where == "sum" else 1] * WORKERS
    for each in simulation.exchanges:
        for table in each.tables:
            assert np.isfinite(table.synced).all()


def test_rows_that_did_not_change_are_not_sent():
    simulation = Simulation(WORKERS)
    simulation.synchronize()
    empty = simulation.sent
    assert empty == WORKERS**2 * 4 * len(SHAPES)  # the numbers of rows: none
    simulation.rows(1, "target_vectors")[3] += 1.0  # a frequent word
    simulation.synchronize()
    assert simulation.sent == empty + 12 + 8  # row, scale, growth, and nine numbers with padding
    simulation.rows(1, "target_vectors")[3] *= 1.001  # below the tolerance
    simulation.synchronize()
    assert simulation.sent == empty


def test_messages_of_an_impossible_size_are_rejected():
    exchange = Simulation(2).exchanges[0]
    message = exchange.pack()[0]
    for damaged in (np.append(message, message), np.full_like(message, 255)):
        with pytest.raises(NcelmError, match="impossible size"):
            exchange.combine([message, damaged])


def test_rows_of_a_large_vocabulary_have_a_longer_round():
    """A round of the rare words covers at least 0.8 words of text per word of the vocabulary."""
    parameters = {"biases": np.zeros(10_000, np.float32)}
    for interval, per_message in ((100_000, 2498), (1000, 625)):  # 4,996 rare rows of an owner in 2 or 8 messages
        (table,) = RowExchange(parameters, {}, np.ones(10_000), interval, 0, 2).tables
        assert [queue.per_message for queue in table.queues[0]] == [4, per_message]


def test_the_state_of_adam_is_rejected():
    state = {"accumulator": {"biases": np.zeros(3)}, "momentum": {"biases": np.zeros(3)}}
    with pytest.raises(NcelmError, match=r"cannot exchange the optimizer's momentum: .* adagrad or sgd"):
        RowExchange({"biases": np.zeros(3, np.float32)}, state, np.ones(3), 10, 0, 2)


# -- kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 4, 5])
def test_changes_are_quantized_to_int4(width):
    synced = np.zeros((3, width), np.float32)
    values = np.array([[0, 0, 0, 0, 0], [0.7, -0.5, 0.04, 0.06, -0.31], [np.inf, 0, 0, 0, 0]], np.float32)[:, :width]
    values, rows = values.copy(), np.array([1, 0, 2], np.int32)
    scales, quantized = np.ones(3, np.float32), np.full((3, (width + 1) // 2), 255, np.uint8)
    exchange.quantize_changes(values, synced, rows, scales, quantized)
    expected = np.array([7, -5, 0, 1, -3][:width])
    low, high = (
        expected[: quantized.shape[1]],
        np.resize(np.append(expected[quantized.shape[1] :], 0), quantized.shape[1]),
    )
    np.testing.assert_array_equal(quantized[0], (low & 15) | (high & 15) << 4)
    np.testing.assert_array_equal(quantized[1], 0)
    assert scales[:2] == pytest.approx([0.1, 0.0])
    remaining = [0.0, 0.0, 0.04, -0.04, -0.01][:width]  # the error
    np.testing.assert_allclose(values[1], remaining, atol=1e-7)
    assert np.isnan(scales[2])
    exchange.apply_deltas(values, synced, rows[:2], scales[:2], quantized[:2])
    np.testing.assert_allclose(synced[1], 0.1 * expected, atol=1e-7)
    np.testing.assert_allclose(values[1], 0.1 * expected + remaining, atol=1e-7)
    np.testing.assert_array_equal(values[0], 0.0)


@pytest.mark.parametrize("row", [-2, 1, 6], ids=["negative", "of another owner", "too large"])
def test_rows_that_are_not_owned_are_rejected(row):
    rows, ones = np.array([row], np.int32), np.ones(1, np.float32)
    total, touched = np.full(3, -1.0, np.float32), np.zeros(3, np.int32)  # rows 0, 2 and 4 of worker 0
    assert exchange.add_growth(rows, ones, ones, 0, 2, total, touched, 0) == -1
    assert exchange.add_growth(np.array([4], np.int32), ones, ones, 0, 2, total, touched, 0) == 1


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
