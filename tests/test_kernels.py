"""The compiled training step against the reference, for every kind of model, estimator and optimiser."""

import itertools

import numpy as np
import pytest
from numba import njit

from ncelm import kernels
from ncelm import reference as ref
from ncelm.corpus import contexts_and_targets
from ncelm.engine import Engine
from ncelm.model import LogBilinear
from ncelm.noise import Noise
from ncelm.preparing import prepare
from ncelm.threads import Team
from ncelm.training import TrainConfig

TABLE_RATE, MATRIX_RATE = 0.05, 0.02


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    random = np.random.default_rng(5)
    words = [f"w{i}" for i in range(12)]
    lines = [" ".join(random.choice(words, random.integers(1, 7))) for _ in range(40)]
    (folder / "text").write_text("\n".join(lines))
    return {
        boundary: prepare(train=folder / "text", out=folder / boundary, boundary=boundary)
        for boundary in ("stream", "sentence")
    }


def engine_for(store, config, team):
    random = np.random.default_rng(2)
    noise = Noise.from_counts(store.vocabulary.counts, config.noise)
    model = LogBilinear.initialise(config.model, noise.probabilities, 0, 0.5)
    model.biases[:] += random.normal(size=model.biases.size).astype(np.float32)
    arrays = model.arrays()
    start = np.float32(0.01)  # as after some updates: tests must not divide by the square root of zero
    squares = {
        name: np.full_like(a, start) if config.optimizer == "adagrad" else np.zeros((0, *a.shape[1:]), np.float32)
        for name, a in arrays.items()
    }
    of_targets = squares["context_vectors"][:-1] if config.model.shared_tables else squares["target_vectors"]
    parameters = kernels.Parameters(squares["context_vectors"], of_targets, squares["biases"], squares["matrices"])
    sizes = config.sizes(len(store.vocabulary))
    return (
        Engine(model, parameters, noise, store, sizes, config.seed, config.penalty, team),
        model,
        squares,
        noise,
    )


def reference_step(model, squares, noise, config, contexts, words):
    """One update by the book: gradients of Eq. 13 or Eq. 4 summed over the minibatch, then SGD or Adagrad."""
    arrays = {name: a.astype(np.float64) for name, a in model.arrays().items()}
    full = dict(arrays)
    full.setdefault("target_vectors", arrays["context_vectors"][:-1])
    dJ_ds = []
    for context, row in zip(contexts, words, strict=True):
        predicted = ref.eq2_prediction(full["matrices"], full["context_vectors"][context])
        scores = ref.eq3_scores(predicted, full["target_vectors"], full["biases"])
        if config.estimator == "ml":
            dJ_ds.append(ref.eq4_ml_gradient(scores, row[0]))
        else:
            dJ_ds.append(ref.eq13_gradient(scores, row[0], row[1:], noise.probabilities))
    gradients = ref.parameter_gradients(full, contexts, np.array(dJ_ds))

    def update(name, gradient, rows, rate, penalty):
        values = arrays[name]
        gradient = gradient[rows] - penalty * values[rows]
        if config.optimizer == "sgd":
            values[rows] += rate * gradient
        else:
            squares[name] = squares[name].astype(np.float64)
            squares[name][rows] += gradient**2
            values[rows] += rate * gradient / (np.sqrt(squares[name][rows]) + 1e-8)

    size = arrays["biases"].size
    targets = np.arange(size) if config.estimator == "ml" else np.unique(words)
    update("biases", gradients["biases"], targets, TABLE_RATE, 0.0)
    update("matrices", gradients["matrices"], slice(None), MATRIX_RATE, config.penalty)
    update("context_vectors", gradients["context_vectors"], np.unique(contexts), TABLE_RATE, config.penalty)
    # shared tables: the roles of a word are updated one after the other, first as context
    table = "context_vectors" if config.model.shared_tables else "target_vectors"
    padded = np.vstack([gradients["target_vectors"], np.zeros((1, config.model.dim))])
    update(table, padded, targets, TABLE_RATE, config.penalty)
    return arrays


CASES = [
    {"estimator": e, "matrices": m, "shared_tables": s, "optimizer": o}
    for e, m, s, o in itertools.product(["nce", "ml"], ["full", "diagonal"], [False, True], ["sgd", "adagrad"])
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
@pytest.mark.parametrize(("boundary", "after"), [("stream", 0), ("sentence", 2)])
def test_one_update_agrees_with_the_reference(stores, case, boundary, after):
    config = TrainConfig(batch_size=70, noise_samples=4, penalty=0.01).with_changes(
        context=2, context_after=after, dim=5, **case
    )
    store = stores[boundary]
    with Team(2) as team:
        engine, model, squares, noise = engine_for(store, config, team)
        before = {name: a.copy() for name, a in model.arrays().items()}
        untouched = LogBilinear.from_arrays(config.model, before)
        losses = engine.run(0, 0, np.array([TABLE_RATE]), np.array([MATRIX_RATE]))
    contexts, words = engine.plan.contexts[0], engine.plan.words[0]
    old_squares = {n: np.full_like(a, 0.01) for n, a in before.items()}
    expected = reference_step(untouched, old_squares, noise, config, contexts, words)
    for name, array in model.arrays().items():
        np.testing.assert_allclose(array, expected[name], atol=3e-6, err_msg=name)
        assert not np.array_equal(array, before[name])
        if config.optimizer == "adagrad":
            np.testing.assert_allclose(squares[name], old_squares[name], rtol=1e-5, atol=3e-5, err_msg=name)
    assert losses[0] == pytest.approx(-objective(untouched, noise, config, contexts, words), rel=1e-5)


def objective(model, noise, config, contexts, words):
    total = 0.0
    for context, row in zip(contexts, words, strict=True):
        predicted = ref.eq2_prediction(model.matrices, model.context_vectors[context])
        scores = ref.eq3_scores(predicted, model.target_vectors, model.biases)
        if config.estimator == "ml":
            total += np.log(ref.eq1_probabilities(scores)[row[0]])
        else:
            total += ref.eq13_objective(scores, row[0], row[1:], noise.probabilities)
    return total


@pytest.mark.parametrize("boundary", ["stream", "sentence"])
@pytest.mark.parametrize(("before", "after"), [(1, 0), (3, 0), (2, 2), (0, 1)])
def test_contexts_agree_with_the_readable_twin(stores, boundary, before, after):
    store = stores[boundary]
    ids, end, pad = store.split("train").ids, store.vocabulary.end_id, store.pad_id
    everywhere = np.arange(ids.size)
    expected, _ = contexts_and_targets(ids, everywhere, before, after, boundary, end, pad)
    out = np.empty((ids.size, before + after), np.int64)
    corpus = kernels.Corpus(ids, before, boundary == "sentence", end, pad)
    for position in everywhere:
        kernels.fill_contexts(corpus, position, out[position])
    np.testing.assert_array_equal(out, expected)


def test_an_epoch_visits_every_word_once_and_noise_is_fresh(stores):
    store = stores["stream"]
    config = TrainConfig(batch_size=50, noise_samples=3).with_changes(dim=4)
    with Team(1) as team:
        engine, *_ = engine_for(store, config, team)
        steps = engine.steps_per_epoch
        assert steps <= engine.sizes.planned
        engine.run(0, 0, np.full(steps, 0.01), np.full(steps, 0.01))
    sizes = engine.plan.sizes[:steps]
    targets = np.concatenate([engine.plan.words[row, :size, 0] for row, size in enumerate(sizes)])
    np.testing.assert_array_equal(np.bincount(targets), np.bincount(store.split("train").ids))
    noise = engine.plan.words[:2, :50, 1:]
    assert not np.array_equal(noise[0], noise[1])


@pytest.mark.parametrize("estimator", ["nce", "ml"])
@pytest.mark.parametrize("matrices", ["full", "diagonal"])
def test_bits_do_not_depend_on_threads_or_on_grouping(stores, estimator, matrices):
    config = TrainConfig(batch_size=40, estimator=estimator).with_changes(dim=9, matrices=matrices, context=3)
    results = []
    for threads, together in ((1, 5), (2, 5), (3, 1), (2, 2)):
        with Team(threads) as team:
            engine, model, *_ = engine_for(stores["sentence"], config, team)
            steps, together = engine.steps_per_epoch, min(together, engine.sizes.planned)
            for step in range(0, steps, together):
                n = min(together, steps - step)
                engine.run(0, step, np.full(n, 0.05), np.full(n, 0.01))
        results.append(b"".join(a.tobytes() for a in model.arrays().values()))
    assert len(set(results)) == 1


@pytest.mark.parametrize("size", [5, 500])
def test_grouping_by_word(size):
    """A small table is gone through in its order, a large one in order of first appearance."""
    keys = np.array([[3, 1], [3, -1], [0, 1]], np.int32)
    scratch = np.zeros(size, np.int32)
    words, order, rows = (np.zeros(6, np.int32) for _ in range(3))
    offsets = np.zeros(7, np.int32)
    groups = kernels.group_by_word(keys, scratch, words, offsets, order, rows)
    entries = {int(words[g]): order[offsets[g] : offsets[g + 1]].tolist() for g in range(groups)}
    assert entries == {3: [0, 2], 1: [1, 5], 0: [4]}
    assert words[:3].tolist() == ([0, 1, 3] if size == 5 else [3, 1, 0])
    assert (rows[:5] == order[:5] // 2).all()
    assert (scratch == 0).all()


@njit  # not cached: a cache would not notice changes of the kernel
def add_rows(weights, table, rows, out):
    kernels._add_rows(weights, table, rows, out)


@pytest.mark.parametrize("d", [1, 3, 4, 7, 8, 31, 32, 33, 44, 100, 128, 301])
@pytest.mark.parametrize("n", [0, 1, 5, 26])
def test_weighted_sums_of_rows(d, n):
    random = np.random.default_rng(0)
    table = random.normal(size=(50, d)).astype(np.float32)
    weights, rows = random.normal(size=n).astype(np.float32), random.integers(50, size=n).astype(np.int32)
    padded = np.full(d + 2, 7.0, np.float32)
    add_rows(weights, table, rows, padded[1:-1])
    np.testing.assert_allclose(padded[1:-1], weights.astype(np.float64) @ table[rows], atol=1e-5)
    assert padded[0] == padded[-1] == 7.0  # nothing outside


@njit
def multiply(a, transposed, b, out):
    kernels._multiply(a, transposed, b, out)


@pytest.mark.parametrize("columns", [1, 4, 7, 24, 25, 44, 100])
@pytest.mark.parametrize(("rows", "depth"), [(1, 1), (4, 9), (7, 100), (64, 3)])
@pytest.mark.parametrize("transposed", [False, True])
def test_small_matrix_products(rows, depth, columns, transposed):
    random = np.random.default_rng(0)
    a = random.normal(size=(depth, rows) if transposed else (rows, depth)).astype(np.float32)
    b, padded = random.normal(size=(depth, columns)).astype(np.float32), np.full((rows + 2, columns), 7.0, np.float32)
    multiply(a, transposed, b, padded[1:-1])
    np.testing.assert_allclose(padded[1:-1], (a.T if transposed else a).astype(np.float64) @ b, atol=1e-4)
    assert (padded[0] == 7.0).all()
    assert (padded[-1] == 7.0).all()
