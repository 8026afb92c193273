"""The compiled training step against the reference, for every kind of model, estimator and optimiser."""

import itertools

import numpy as np
import pytest
from numba import njit

from ncelm.kernels import records
from ncelm.kernels import steps as kernels
from ncelm.kernels.threads import Team
from ncelm.losses import reference as ref
from ncelm.models.base import NO_NUMBERS
from ncelm.models.log_bilinear import LogBilinear
from ncelm.noise import Noise
from ncelm.text.prepare import prepare
from ncelm.text.store import contexts_and_targets
from ncelm.training.config import TrainConfig
from ncelm.training.engine import create, number_contexts
from ncelm.training.setup import noise_distribution

TABLE_RATE, MATRIX_RATE = 0.05, 0.02


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    random = np.random.default_rng(5)
    words = [f"w{i}" for i in range(12)]
    lines = [" ".join(random.choice(words, random.integers(1, 7))) for _ in range(40)]
    (folder / "text").write_text("\n".join(lines))
    (folder / "rare").write_text("\n".join(" ".join(f"w{i}" for i in random.integers(5000, size=6)) for _ in range(40)))
    return {
        **{
            boundary: prepare(train=folder / "text", out=folder / boundary, boundary=boundary)
            for boundary in ("stream", "sentence")
        },
        "rare words": prepare(train=folder / "rare", out=folder / "rare words", boundary="sentence"),
    }


def configured(noise_samples, **options):
    """Return a configuration; exact maximum likelihood has no noise samples."""
    sampled = {} if options.get("loss") == "ml" else {"noise_samples": noise_samples}
    return TrainConfig().with_changes(**sampled | options)


def engine_for(store, config, team):
    random = np.random.default_rng(2)
    noise = noise_distribution(store, config)
    unigram = Noise.from_counts(store.vocabulary.counts)
    model = LogBilinear.initialise(config.model, unigram.probabilities, 0, 0.5)
    model.biases[:] += random.normal(size=model.biases.size).astype(np.float32)
    arrays = model.arrays()
    start = np.float32(0.01)  # as after some updates: tests must not divide by the square root of zero
    log_normalizers, context_ids = np.zeros(0, np.float32), NO_NUMBERS
    if config.learned_log_normalizers:
        context_ids, contexts = number_contexts(store, config.model.context, config.model.context_after)
        log_normalizers = random.normal(size=contexts).astype(np.float32)
    state = {}
    if config.optimizer.name == "adagrad":
        trained = arrays | {"log_normalizers": log_normalizers}
        state = {"accumulator": {name: np.full_like(a, start) for name, a in trained.items()}}
    engine = create(model, state, noise, store, config, team, log_normalizers, context_ids)
    return engine, model, state.get("accumulator", {}), noise


def reference_example(config, scores, words, noise, c):
    """The objective and dJ/ds of one example, by the book."""
    target, samples = words[0], words[1:]
    match config.loss.name:
        case "ml":
            return np.log(ref.eq1_probabilities(scores)[target]), ref.eq4_ml_gradient(scores, target)
        case "importance":
            loss, used = config.loss, config.loss.samples
            while loss.adaptive and used < loss.max_samples:
                if ref.effective_sample_size(scores, samples[:used], noise) >= loss.min_effective_samples:
                    break
                used = min(used + loss.samples, loss.max_samples)
            arguments = (scores, target, samples[:used], noise)
            return ref.eq5_objective(*arguments), ref.eq5_importance_gradient(*arguments)
        case "family":
            arguments = (config.loss.member, scores, target, samples, noise, c)
            return ref.family_objective(*arguments), ref.family_gradient(*arguments)
    return ref.eq13_objective(scores, target, samples, noise, c), ref.eq13_gradient(scores, target, samples, noise, c)


def reference_step(model, squares, noise, config, contexts, words, constants, masks, penalties):
    """One update by the book: gradients summed over the minibatch, then SGD or Adagrad. Also the loss, and dJ/dc_h."""
    arrays = {name: a.astype(np.float64) for name, a in model.arrays().items()}
    full = dict(arrays)
    full.setdefault("target_vectors", arrays["context_vectors"][:-1])
    examples = []
    for context, row, c, mask in zip(contexts, words, constants, masks, strict=True):
        predicted = mask * ref.eq2_prediction(full["matrices"], full["context_vectors"][context])
        scores = ref.eq3_scores(predicted, full["target_vectors"], full["biases"])
        after = context[config.model.context - 1]
        here = np.exp(noise.log_probabilities(after)) if config.noise.name == "bigram" else noise.probabilities
        examples.append(reference_example(config, scores, row, here, c))
    dJ_ds = np.array([gradient for _, gradient in examples])
    gradients = ref.parameter_gradients(full, contexts, dJ_ds, masks)

    def update(name, gradient, rows, rate, penalty):
        values = arrays[name]
        penalty = penalty[rows, None] if np.ndim(penalty) else penalty  # a number for each row, or one for all
        gradient = gradient[rows] - penalty * values[rows]
        if config.optimizer.name == "sgd":
            values[rows] += rate * gradient
        else:
            squares[name] = squares[name].astype(np.float64)
            squares[name][rows] += gradient**2
            values[rows] += rate * gradient / (np.sqrt(squares[name][rows]) + 1e-8)

    size = arrays["biases"].size
    targets = np.arange(size) if config.loss.name == "ml" else np.unique(words)
    update("biases", gradients["biases"], targets, TABLE_RATE, 0.0)
    update("matrices", gradients["matrices"], slice(None), MATRIX_RATE, config.regularization.weight_decay)
    update("context_vectors", gradients["context_vectors"], np.unique(contexts), TABLE_RATE, penalties[0])
    # shared tables: the roles of a word are updated one after the other, first as context
    table = "context_vectors" if config.model.tied_embeddings else "target_vectors"
    padded = np.vstack([gradients["target_vectors"], np.zeros((1, config.model.dim))])
    update(table, padded, targets, TABLE_RATE, penalties[1])
    return arrays, -sum(objective for objective, _ in examples), dJ_ds.sum(axis=1)


CASES = [
    {"loss": e, "matrices": m, "tied_embeddings": s, "optimizer": o, **more}
    for e, m, s, o, more in [
        *itertools.product(["nce", "ml"], ["full", "diagonal"], [False, True], ["sgd", "adagrad"], [{}]),
        *itertools.product(["nce"], ["full", "diagonal"], [False, True], ["adagrad"], [{"shared_noise": True}]),
        *itertools.product(["nce", "ml"], ["full", "diagonal"], [False], ["sgd"], [{"dropout": 0.3}]),
        ("nce", "full", False, "sgd", {"shared_noise": True, "dropout": 0.3}),
        ("nce", "full", False, "sgd", {"noise": "uniform"}),
        ("nce", "full", False, "sgd", {"noise": "bigram", "bigram_smoothing": 2.5}),
        ("nce", "diagonal", True, "adagrad", {"noise": "bigram"}),
        ("nce", "full", False, "sgd", {"log_normalizers": "learned"}),
        ("nce", "diagonal", False, "adagrad", {"log_normalizers": "learned"}),
        ("family", "full", False, "sgd", {"family_member": "root", "log_normalizers": "learned"}),
        *itertools.product(
            ["family"], ["full"], [False], ["sgd"], [{"family_member": member} for member in kernels.MEMBERS]
        ),
        ("importance", "full", False, "sgd", {}),
        ("importance", "full", False, "adagrad", {"min_effective_samples": 6.0, "max_samples": 18}),
        ("importance", "diagonal", True, "sgd", {"min_effective_samples": 3.0, "max_samples": 9, "noise": "bigram"}),
    ]
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
@pytest.mark.parametrize(("boundary", "after", "batch"), [("stream", 0, 70), ("sentence", 2, 70), ("sentence", 0, 8)])
def test_one_update_agrees_with_the_reference(stores, case, boundary, after, batch):
    """Of a minibatch that has every word many times, and of one with words that it has once."""
    config = configured(
        4,
        batch_size=batch,
        weight_decay=0.01,
        weight_decay_per_epoch=0.2,
        context=2,
        context_after=after,
        dim=5,
        **case,
    )
    store = stores[boundary]
    with Team(2) as team:
        engine, model, squares, noise = engine_for(store, config, team)
        before = {name: a.copy() for name, a in model.arrays().items()}
        old_constants = engine.constants.values.copy()
        untouched = LogBilinear.from_arrays(config.model, before)
        losses = engine.run(0, 0, np.array([TABLE_RATE]), np.array([MATRIX_RATE]))
    contexts, words = engine.plan.contexts[0], engine.plan.words[0]
    if getattr(config.loss, "shared_noise", False):
        plan, distinct = engine.plan, int(engine.plan.distinct[0])
        drawn = np.repeat(
            words[batch : batch + distinct, 0], plan.draws[0, :distinct].astype(int)
        )  # as they were drawn
        words = np.hstack([words[:batch], np.tile(drawn, (batch, 1))])
    if engine.plan.singles.size:
        assert (engine.plan.single_offsets[0, batch] > 0) == (batch == 8)
    numbers = engine.plan.constants[0] if old_constants.size else None
    constants = np.zeros(batch) if numbers is None else old_constants[numbers]
    dropout = config.regularization.dropout
    masks = np.where(engine.work.predicted == 0, 0.0, 1 / (1 - dropout)) if dropout else np.ones((batch, 5))
    old_squares = {n: np.full_like(a, 0.01) for n, a in before.items()}
    expected, loss, by_constant = reference_step(
        untouched, old_squares, noise, config, contexts, words, constants, masks, engine.penalties[1:]
    )
    for name, array in model.arrays().items():
        np.testing.assert_allclose(array, expected[name], atol=5e-6, err_msg=name)
        assert not np.array_equal(array, before[name])
        if config.optimizer.name == "adagrad":
            np.testing.assert_allclose(squares[name], old_squares[name], rtol=1e-5, atol=3e-5, err_msg=name)
    assert losses[0] == pytest.approx(loss, rel=1e-5)
    if numbers is not None:
        sums = np.full(old_constants.size, 0.01)
        for number, gradient in zip(numbers, by_constant, strict=True):  # one after another
            sums[number] += gradient**2
            scale = np.sqrt(sums[number]) if config.optimizer.name == "adagrad" else 1.0
            old_constants[number] += TABLE_RATE * gradient / scale
        np.testing.assert_allclose(engine.constants.values, old_constants, atol=5e-6)


def test_dropout_leaves_out_as_many_numbers_as_it_says(stores):
    config = TrainConfig().with_changes(batch_size=100, dropout=0.3, dim=64)
    with Team(1) as team:
        engine, *_ = engine_for(stores["stream"], config, team)
        engine.run(0, 0, np.array([0.0]), np.array([0.0]))
    left_out = engine.work.predicted == 0
    assert left_out.mean() == pytest.approx(0.3, abs=0.03)
    np.testing.assert_array_equal(engine.work.gradients == 0, left_out)
    assert len({row.tobytes() for row in left_out}) == 100  # each example has its own


@pytest.mark.parametrize("boundary", ["stream", "sentence"])
@pytest.mark.parametrize(("before", "after"), [(1, 0), (3, 0), (2, 2)])
def test_equal_contexts_have_equal_numbers(stores, boundary, before, after):
    store = stores[boundary]
    ids = store.split("train").ids
    contexts, _ = contexts_and_targets(
        ids, np.arange(ids.size), before, after, boundary, store.vocabulary.end_id, store.pad_id
    )
    numbers, count = number_contexts(store, before, after)
    assert sorted(set(numbers.tolist())) == list(range(count))
    by_number = {}
    for number, context in zip(numbers.tolist(), map(tuple, contexts.tolist()), strict=True):
        assert by_number.setdefault(number, context) == context
    assert len(set(by_number.values())) == count == len(set(map(tuple, contexts.tolist())))


@pytest.mark.parametrize("boundary", ["stream", "sentence"])
@pytest.mark.parametrize(("before", "after"), [(1, 0), (3, 0), (2, 2), (0, 1)])
def test_contexts_agree_with_the_readable_twin(stores, boundary, before, after):
    store = stores[boundary]
    ids, end, pad = store.split("train").ids, store.vocabulary.end_id, store.pad_id
    everywhere = np.arange(ids.size)
    expected, _ = contexts_and_targets(ids, everywhere, before, after, boundary, end, pad)
    out = np.empty((ids.size, before + after), np.int64)
    corpus = records.Corpus(ids, before, boundary == "sentence", end, pad, NO_NUMBERS)
    for position in everywhere:
        kernels.fill_contexts(corpus, position, out[position])
    np.testing.assert_array_equal(out, expected)


def test_an_epoch_visits_every_word_once_and_noise_is_fresh(stores):
    store = stores["stream"]
    config = configured(3, batch_size=50, dim=4)
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


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"loss": "ml"},
        {"shared_noise": True, "noise_samples": 700},
        {"loss": "importance", "min_effective_samples": 20.0, "max_samples": 50},
        {"log_normalizers": "learned", "noise": "bigram", "dropout": 0.2},
    ],
    ids=lambda case: "-".join(map(str, case.values())),
)
@pytest.mark.parametrize("matrices", ["full", "diagonal"])
@pytest.mark.parametrize("text", ["sentence", "rare words"])
def test_bits_do_not_depend_on_threads_or_on_grouping(stores, case, matrices, text):
    config = configured(
        **{"noise_samples": 3, "batch_size": 60} | {"dim": 9, "matrices": matrices, "context": 3} | case
    )
    results = []
    for threads, together in ((1, 5), (2, 5), (3, 1), (2, 2)):
        with Team(threads) as team:
            engine, model, *_ = engine_for(stores[text], config, team)
            steps, together = engine.steps_per_epoch, min(together, engine.sizes.planned)
            for step in range(0, steps, together):
                n = min(together, steps - step)
                engine.run(0, step, np.full(n, 0.05), np.full(n, 0.01))
        results.append(b"".join(a.tobytes() for a in model.arrays().values()))
    assert len(set(results)) == 1
    if text == "rare words" and not case:
        assert engine.plan.single_offsets[0, config.batch_size] > 50


@pytest.mark.parametrize("size", [5, 500])
def test_grouping_by_word(size):
    """A small table is gone through in its order, a large one in order of first appearance."""
    keys = np.array([[3, 1], [3, -1], [0, 1]], np.int32)
    scratch = np.zeros(size, np.int32)
    words, order, rows = (np.zeros(6, np.int32) for _ in range(3))
    offsets = np.zeros(7, np.int32)
    nothing = np.zeros(0, np.int32), np.zeros(0, np.int32)
    groups = kernels.group_by_word(keys, scratch, words, offsets, order, rows, *nothing)
    entries = {int(words[g]): order[offsets[g] : offsets[g + 1]].tolist() for g in range(groups)}
    assert entries == {3: [0, 2], 1: [1, 5], 0: [4]}
    assert words[:3].tolist() == ([0, 1, 3] if size == 5 else [3, 1, 0])
    assert (rows[:5] == order[:5] // 2).all()
    assert (scratch == 0).all()


@pytest.mark.parametrize("size", [6, 500])
def test_grouping_by_word_with_single_words_apart(size):
    keys = np.array([[3, 1], [3, -1], [0, 4], [1, 5]], np.int32)
    scratch = np.zeros(size, np.int32)
    words, order, rows = (np.zeros(8, np.int32) for _ in range(3))
    offsets, singles, single_offsets = (np.zeros(size, np.int32) for size in (9, 8, 5))
    groups = kernels.group_by_word(keys, scratch, words, offsets, order, rows, singles, single_offsets)
    entries = {int(words[g]): order[offsets[g] : offsets[g + 1]].tolist() for g in range(groups)}
    assert entries == {3: [0, 2], 1: [1, 6]}
    assert singles[:3].tolist() == [4, 5, 7]
    assert single_offsets.tolist() == [0, 0, 0, 2, 3]
    assert (scratch == 0).all()


@njit  # not cached: a cache would not notice changes of the kernel
def add_rows(weights, table, rows, out, onto):
    kernels._add_rows(weights, table, rows, out, onto)


@pytest.mark.parametrize("d", [1, 3, 4, 7, 8, 31, 32, 33, 44, 100, 128, 301])
@pytest.mark.parametrize("n", [0, 1, 5, 26])
def test_weighted_sums_of_rows(d, n):
    random = np.random.default_rng(0)
    table = random.normal(size=(50, d)).astype(np.float32)
    weights, rows = random.normal(size=n).astype(np.float32), random.integers(50, size=n).astype(np.int32)
    for onto in (False, True):
        padded = np.full(d + 2, 7.0, np.float32)
        add_rows(weights, table, rows, padded[1:-1], onto)
        wanted = 7.0 * onto + weights.astype(np.float64) @ table[rows]
        np.testing.assert_allclose(padded[1:-1], wanted, atol=1e-5 * (1 + onto))  # 7 rounds more coarsely
        assert padded[0] == padded[-1] == 7.0  # nothing outside


@njit
def score_rows(vector, table, rows, scores):
    kernels._score_rows(vector, table, rows, scores)


@pytest.mark.parametrize("d", [1, 3, 4, 7, 8, 12, 31, 100, 301])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 8, 9, 26])
def test_scores_of_rows(d, n):
    random = np.random.default_rng(0)
    table, vector = (random.normal(size=shape).astype(np.float32) for shape in ((50, d), d))
    rows, padded = random.integers(50, size=n).astype(np.int32), np.full(n + 2, 7.0, np.float32)
    score_rows(vector, table, rows, padded[1:])
    np.testing.assert_allclose(padded[1:-1], table[rows].astype(np.float64) @ vector, atol=1e-4)
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


@pytest.mark.parametrize("options", [{}, {"shared_noise": True, "noise_samples": 50}, {"loss": "ml"}])
def test_a_prior_is_shared_out_over_the_minibatches_that_touch_a_word(stores, options):
    """Over an epoch what is taken from a row adds up to the prior, whether its word is rare or frequent."""
    config = configured(
        **{"noise_samples": 2, "batch_size": 20, "weight_decay_per_epoch": 1.0, "context": 2, "dim": 4} | options
    )
    with Team(1) as team:
        engine, *_ = engine_for(stores["stream"], config, team)
        _, contexts, targets = (np.asarray(each, np.float64) for each in engine.penalties)
        taken = np.zeros_like(contexts), np.zeros_like(targets)
        for epoch in range(3):
            for first in range(0, engine.steps_per_epoch, engine.sizes.planned):
                n = min(engine.sizes.planned, engine.steps_per_epoch - first)
                engine.run(epoch, first, np.zeros(n), np.zeros(n))
                for row in range(n):
                    plan, size = engine.plan, int(engine.plan.sizes[row])
                    seen = np.unique(plan.contexts[row, :size])
                    words = plan.words[row, : size + int(plan.distinct[row])]
                    touched = np.arange(targets.size) if config.loss.name == "ml" else np.unique(words)
                    taken[0][seen] += contexts[seen] / 3
                    taken[1][touched] += targets[touched] / 3
    for each in (taken[0][:-1], taken[1]):
        assert each[stores["stream"].vocabulary.counts > 0].mean() == pytest.approx(1.0, abs=0.1)
