"""Complete updates by the compiled engine against the reference; bits that depend on neither threads nor grouping."""

from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import chisquare
from tests.kernels.configurations import KERNELS, configured

from ncelm.kernels import contexts as context_kernels
from ncelm.kernels import exact, per_example, products, shared_noise
from ncelm.kernels.threads import Team
from ncelm.losses import reference as ref
from ncelm.models.log_bilinear import LogBilinear
from ncelm.noise import Noise
from ncelm.training.engine import create, number_contexts
from ncelm.training.setup import noise_distribution

pytestmark = pytest.mark.slow  # all kernels of KERNELS are compiled

TABLE_RATE, MATRIX_RATE = 0.05, 0.02


class Trained(NamedTuple):
    """What an engine changes."""

    parameters: dict[str, np.ndarray]
    state: dict[str, dict[str, np.ndarray]]
    log_normalizers: np.ndarray

    def copy(self, kind=np.float64):
        return Trained(
            {name: array.astype(kind) for name, array in self.parameters.items()},
            {
                statistic: {name: array.astype(kind) for name, array in arrays.items()}
                for statistic, arrays in self.state.items()
            },
            self.log_normalizers.astype(kind),
        )


def start(store, config, team):
    """Return an engine, what it trains, and its noise. The optimizer's state is that of some updates before."""
    random = np.random.default_rng(2)
    noise = noise_distribution(store, config)
    unigram = Noise.from_counts(store.vocabulary.counts).probabilities
    model = LogBilinear.initialise(config.model, unigram, 0, 0.5 if config.model.dim < 50 else 0.1)
    model.biases[:] += random.normal(size=model.biases.size).astype(np.float32)
    model.matrices[:] += 0.1 * random.normal(size=model.matrices.shape).astype(np.float32)
    log_normalizers, context_ids = np.zeros(0, np.float32), np.zeros(0, np.int32)
    if config.learned_log_normalizers:
        context_ids, contexts = number_contexts(store, config.model.context, config.model.context_after)
        log_normalizers = random.normal(size=contexts).astype(np.float32)
    arrays = model.arrays() | {"log_normalizers": log_normalizers}
    state = {
        statistic: {
            name: np.full_like(array, 0.01) if statistic == "accumulator"
            else 0.1 * random.normal(size=array.shape).astype(np.float32)
            for name, array in arrays.items()
        }
        for statistic in config.optimizer.statistics
    }  # fmt: skip
    engine = create(model, state, noise, store, config, team, log_normalizers, context_ids)
    return engine, Trained(model.arrays(), state, log_normalizers), noise


# -- the reference -----------------------------------------------------------------------------------------------------


def reference_example(config, scores, words, noise, c):
    """Return the objective and dJ/ds of one example, by the equations."""
    target, samples, loss = words[0], words[1:], config.loss
    match loss.name:
        case "ml":
            return np.log(ref.eq1_probabilities(scores)[target]), ref.eq4_ml_gradient(scores, target)
        case "importance":
            used = loss.samples
            while loss.adaptive and used < loss.max_samples:
                if ref.effective_sample_size(scores, samples[:used], noise) >= loss.min_effective_samples:
                    break
                used = min(used + loss.samples, loss.max_samples)
            arguments = (scores, target, samples[:used], noise)
            return ref.eq5_objective(*arguments), ref.eq5_importance_gradient(*arguments)
        case "family":
            arguments = (loss.member, scores, target, samples, noise, c)
            return ref.family_objective(*arguments), ref.family_gradient(*arguments)
        case "ranking":
            arguments = (scores, target, samples, noise)
            objective, gradient = ref.ranking_objective(*arguments), ref.ranking_gradient(*arguments)
        case "nce":
            arguments = (scores, target, samples, noise, c)
            objective, gradient = ref.eq13_objective(*arguments), ref.eq13_gradient(*arguments)
    # c_h is part of the model whose normalizer is estimated (Eq. 8)
    penalty = ref.log_z_estimate(scores + c, samples, noise) ** 2
    penalty_gradient = ref.log_z_penalty_gradient(scores + c, samples, noise)
    return objective - loss.log_z_penalty * penalty, gradient - loss.log_z_penalty * penalty_gradient


def optimizer_step(config, values, state, at, gradient, rate, updates):
    """Update values[at] and the same part of its statistics, in place: the gradient is that of values[at]."""
    optimizer = config.optimizer
    match optimizer.name:
        case "sgd":
            values[at] += rate * gradient
        case "adagrad":
            state["accumulator"][at] += gradient**2
            values[at] += rate * gradient / (np.sqrt(state["accumulator"][at]) + 1e-8)
        case "adam":
            b1, b2, mean, square = optimizer.beta1, optimizer.beta2, state["momentum"], state["accumulator"]
            mean[at] = b1 * mean[at] + (1 - b1) * gradient
            square[at] = b2 * square[at] + (1 - b2) * gradient**2
            rate *= np.sqrt(1 - b2**updates) / (1 - b1**updates)
            values[at] += rate * mean[at] / (np.sqrt(square[at]) + optimizer.epsilon)


def reference_update(before, noise, config, contexts, words, numbers, masks, weight_decay, updates):
    """Return what one update should give, and the loss: gradients summed over the minibatch, then one step.

    `updates` counts this one. `numbers` are those of the log-normalizers.
    """
    expected = before.copy()
    full = dict(before.parameters)
    full.setdefault("target_vectors", full["context_vectors"][:-1])
    constants = np.zeros(len(words)) if numbers is None else before.log_normalizers[numbers]
    objectives, score_gradients = [], []
    for context, row, c, mask in zip(contexts, words, constants, masks, strict=True):
        predicted = mask * ref.eq2_prediction(full["matrices"], full["context_vectors"][context])
        scores = ref.eq3_scores(predicted, full["target_vectors"], full["biases"])
        if config.noise.name == "bigram":
            probabilities = np.exp(noise.log_probabilities(context[config.model.context - 1]))
        else:
            probabilities = noise.probabilities
        objective, gradient = reference_example(config, scores, row, probabilities, c)
        objectives.append(objective)
        score_gradients.append(gradient)
    score_gradients = np.array(score_gradients)
    gradients = ref.parameter_gradients(full, contexts, score_gradients, masks)

    def update(name, gradient, at, rate, decay):
        values = expected.parameters[name]
        decay = decay[at, None].astype(np.float64) if np.ndim(decay) else decay  # one for each row, or one for all
        state = {statistic: arrays[name] for statistic, arrays in expected.state.items()}
        optimizer_step(config, values, state, at, gradient[at] - decay * values[at], rate, updates)

    targets = np.arange(full["biases"].size) if config.loss.name == "ml" else np.unique(words)
    update("biases", gradients["biases"], targets, TABLE_RATE, 0.0)
    update("matrices", gradients["matrices"], slice(None), MATRIX_RATE, config.regularization.weight_decay)
    update("context_vectors", gradients["context_vectors"], np.unique(contexts), TABLE_RATE, weight_decay.contexts)
    # tied embeddings: a word is updated in one role after the other, first as a context word
    table = "context_vectors" if config.model.tied_embeddings else "target_vectors"
    padded = np.vstack([gradients["target_vectors"], np.zeros((1, config.model.dim))])
    update(table, padded, targets, TABLE_RATE, weight_decay.targets)
    if numbers is not None:  # one example after another
        state = {statistic: arrays["log_normalizers"] for statistic, arrays in expected.state.items()}
        for number, gradient in zip(numbers, score_gradients.sum(axis=1), strict=True):
            optimizer_step(config, expected.log_normalizers, state, number, gradient, TABLE_RATE, updates)
    return expected, -sum(objectives)


def planned_words(engine, size):
    """Return the target and the noise words of each example of the first planned minibatch, (size, k + 1)."""
    plan = engine.plan
    if plan.shared is None:
        return plan.words[0, :size]
    distinct = int(plan.shared.counts[0])
    drawn = np.repeat(plan.words[0, size : size + distinct, 0], plan.shared.multiplicities[0, :distinct].astype(int))
    assert drawn.size == plan.shared.multiplicities.shape[1]
    return np.hstack([plan.words[0, :size], np.tile(drawn, (size, 1))])


def overwrite(buffers):
    """Fill arrays with NaN or −1: kernels must not read what an earlier minibatch has left."""
    for each in buffers:
        if isinstance(each, tuple):
            overwrite(each)
        elif each is not None:
            each.fill(np.nan if each.dtype.kind == "f" else np.iinfo(each.dtype).max if each.dtype.kind == "u" else -1)


def check_update(store, config, epoch=0, step=0, threads=2, rtol=2e-5, atol=5e-6):
    """Check one update of an engine against the reference; return the engine."""
    with Team(threads) as team:
        engine, trained, noise = start(store, config, team)
        step %= engine.steps_per_epoch
        before = trained.copy()
        for buffers in (engine.plan, engine.workspace, engine.scratch._replace(counts=None)):
            overwrite(buffers)
        if config.model.matrices == "full":
            overwrite(engine.matrices[1:])
        (loss,) = engine.run(epoch, step, np.array([TABLE_RATE]), np.array([MATRIX_RATE]))
    tokens, plan, dropout = store.split("train").tokens, engine.plan, config.regularization.dropout
    size = min(config.batch_size, tokens - step * config.batch_size)
    assert plan.sizes[0] == size
    masks = np.ones((size, config.model.dim))
    if dropout:
        masks = np.where(engine.workspace.predicted[:size] == 0, 0.0, 1 / (1 - dropout))
        assert 0 < (masks == 0).mean() < 1
    expected, expected_loss = reference_update(
        before,
        noise,
        config,
        plan.contexts[0, :size],
        planned_words(engine, size),
        None if plan.normalizers is None else plan.normalizers[0, :size],
        masks,
        engine.weight_decay,
        epoch * engine.steps_per_epoch + step + 1,
    )
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for name, array in trained.parameters.items():
        np.testing.assert_allclose(array, expected.parameters[name], rtol=rtol, atol=atol, err_msg=name)
        assert not np.array_equal(array, before.parameters[name])
    for statistic, arrays in trained.state.items():
        for name, array in arrays.items():
            message = f"{statistic} of {name}"
            np.testing.assert_allclose(array, expected.state[statistic][name], rtol=1e-4, atol=5e-5, err_msg=message)
    np.testing.assert_allclose(trained.log_normalizers, expected.log_normalizers, rtol=rtol, atol=atol)
    return engine


# -- one update --------------------------------------------------------------------------------------------------------

SIZES = {
    "a stream": {"store": "stream", "context": 2, "batch_size": 70, "dim": 5},
    "words before and after": {"store": "sentence", "context": 2, "context_after": 2, "batch_size": 70, "dim": 9},
    "few examples": {"store": "sentence", "context": 2, "batch_size": 8, "dim": 5},
    "rare words": {"store": "rare words", "context": 3, "batch_size": 40, "dim": 33},
    "the last minibatch": {"store": "sentence", "context": 1, "batch_size": 66, "dim": 4},
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sizes", SIZES)
def test_one_update_agrees_with_the_reference(stores, kernel, sizes):
    """Of minibatches in which every word occurs many times, and in which words occur once; with and without decay."""
    options = {"noise_samples": 4, "weight_decay": 0.01, "weight_decay_per_epoch": 0.2} | SIZES[sizes]
    store, last = stores[options.pop("store")], sizes == "the last minibatch"
    if last:
        options |= {"weight_decay": 0.0, "weight_decay_per_epoch": 0.0}
        assert store.split("train").tokens % options["batch_size"]  # it has fewer examples
    engine = check_update(store, configured(kernel, **options), epoch=int(last), step=-1 if last else 0)
    if engine.plan.singletons is not None and sizes in ("a stream", "few examples", "rare words"):
        found = engine.plan.singletons.offsets[0, options["batch_size"]]
        assert (found > 0) == (sizes != "a stream")


def test_uniform_noise(stores):
    config = configured("nce, sgd", noise="uniform", noise_samples=4, context=2, batch_size=70, dim=5)
    check_update(stores["stream"], config)


@pytest.mark.parametrize("kernel", ["shared, diagonal", "family, diagonal"])
def test_one_update_of_a_large_diagonal_model(stores, kernel):
    """The sizes of the recipe `holmes`: ten context words, 100 dimensions, minibatches of 125 words."""
    options = {"context": 10, "dim": 100, "batch_size": 125, "noise_samples": 125, "noise": "power"}
    if not KERNELS[kernel].get("shared_noise"):
        options["noise_samples"] = 25
    engine = check_update(stores["many words"], configured(kernel, **options))
    assert engine.plan.context_groups.counts[0] > 2 * context_kernels.GROUP_BLOCK  # partial sums of several blocks


@pytest.mark.parametrize("kernel", ["nce", "shared, dropout"])
def test_one_update_of_a_large_full_model(stores, kernel):
    """100 dimensions, as in the recipes for the Penn Treebank; more unique words than one block of each kind has."""
    engine = check_update(
        stores["many words"], configured(kernel, context=2, dim=100, batch_size=300, noise_samples=25)
    )
    plan = engine.plan
    assert plan.position_groups.counts[0].min() > context_kernels.POSITION_BLOCK
    assert plan.target_groups.counts[0] > context_kernels.GROUP_BLOCK
    assert plan.sizes[0] > per_example.EXAMPLE_BLOCK


@pytest.mark.parametrize("kernel", [name for name, options in KERNELS.items() if "shared_noise" in options])
def test_many_shared_noise_words(stores, kernel):
    """Several blocks of noise words and of examples."""
    config = configured(kernel, context=2, dim=12, batch_size=150, noise_samples=900)
    engine = check_update(stores["many words"], config)
    assert engine.plan.shared.counts[0] > shared_noise.NOISE_BLOCK
    assert (engine.plan.shared.multiplicities[0] > 1).any()
    assert engine.plan.sizes[0] > 2 * shared_noise.LEAST_EXAMPLES


@pytest.mark.parametrize("kernel", ["ml, sgd", "ml, diagonal, tied"])
def test_exact_likelihood_of_a_large_vocabulary(stores, kernel):
    """Several blocks of words and of examples."""
    engine = check_update(stores["many words"], configured(kernel, context=2, dim=12, batch_size=300))
    assert engine.parameters.biases.size > products.VOCABULARY_BLOCK
    assert engine.plan.sizes[0] > exact.EXAMPLE_BLOCK


@pytest.mark.parametrize("kernel", ["shared, diagonal", "family, diagonal", "penalty, everything"])
def test_tables_that_are_larger_than_a_cache(stores, kernel):
    """Their rows are prefetched. Few words with many dimensions make such a table, too."""
    store = stores["rare words"]
    dim = context_kernels.IN_CACHE // len(store.vocabulary) + 1
    config = configured(kernel, context=2, dim=dim, batch_size=20, noise_samples=4)
    check_update(store, config, rtol=1e-4, atol=1e-4)


# -- several updates ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("text", ["sentence", "rare words", "many words"])
def test_bits_do_not_depend_on_threads_or_on_grouping(stores, kernel, text):
    sizes = {"noise_samples": 3, "batch_size": 60, "dim": 9, "context": 3}
    if text == "many words":
        sizes |= {"batch_size": 300, "noise_samples": 300 if KERNELS[kernel].get("shared_noise") else 10}
    config = configured(kernel, **sizes)
    results = set()
    for threads, together in ((1, 5), (2, 5), (3, 1), (2, 2)):
        with Team(threads) as team:
            engine, trained, _ = start(stores[text], config, team)
            steps, together = min(engine.steps_per_epoch, 5), min(together, engine.planned)
            losses = []
            for step in range(0, steps, together):
                n = min(together, steps - step)
                losses += engine.run(0, step, np.full(n, 0.05), np.full(n, 0.01)).tolist()
        arrays = trained.parameters | {"log_normalizers": trained.log_normalizers}
        arrays |= {f"{statistic} {name}": a for statistic, of in trained.state.items() for name, a in of.items()}
        results.add((*losses, *(array.tobytes() for array in arrays.values())))
    assert len(results) == 1
    assert np.isfinite(losses).all()
    if text == "rare words" and engine.plan.singletons is not None:
        assert engine.plan.singletons.offsets[0, 60] > 10


def test_an_epoch_visits_every_word_once_with_fresh_noise(stores):
    store, epochs = stores["stream"], []
    config = configured("nce", noise_samples=3, batch_size=50, dim=4)
    with Team(1) as team:
        engine, *_ = start(store, config, team)
        steps = engine.steps_per_epoch
        assert 1 < steps <= engine.planned
        for epoch in (0, 1):
            engine.run(epoch, 0, np.full(steps, 0.01), np.full(steps, 0.01))
            words = [engine.plan.words[step, :size].copy() for step, size in enumerate(engine.plan.sizes[:steps])]
            targets = np.concatenate(words)[:, 0]
            np.testing.assert_array_equal(np.bincount(targets), np.bincount(store.split("train").ids))
            epochs.append(words)
    noise = [words[step][:, 1:] for words in epochs for step in (0, 1)]
    for i, drawn in enumerate(noise):
        for other in noise[i + 1 :]:
            assert np.mean(drawn == other) < 0.3  # 1/13 to 1/5 of the words are the same by chance
    assert not np.array_equal(epochs[0][0][:, 0], epochs[1][0][:, 0])  # another order of examples


@pytest.mark.parametrize(("kernel", "samples"), [("nce", 20), ("shared", 400)])
def test_noise_words_are_independent_draws_from_the_noise_distribution(stores, kernel, samples):
    """Pairs of noise words of an example; noise words that are shared have no order, so that single words remain."""
    config, drawn = configured(kernel, noise_samples=samples, batch_size=20, dim=4), []
    with Team(1) as team:
        engine, _, noise = start(stores["stream"], config, team)
        for step in range(engine.steps_per_epoch - 1):
            engine.run(0, step, np.zeros(1), np.zeros(1))
            drawn.append(planned_words(engine, 20)[:, 1:].copy())
    probabilities, V = noise.probabilities, noise.probabilities.size
    if kernel == "shared":
        observed, wanted = np.bincount(np.ravel([words[0] for words in drawn]), minlength=V), probabilities
    else:
        pairs = np.array(drawn).reshape(-1, 2)
        observed, wanted = np.bincount(pairs @ [V, 1], minlength=V * V), np.outer(probabilities, probabilities).ravel()
    common = wanted * observed.sum() > 4.0  # all others together
    observed, wanted = (np.append(each[common], each[~common].sum() + 1e-9) for each in (observed, wanted))
    assert len(wanted) > 10
    assert chisquare(observed, wanted / wanted.sum() * observed.sum()).pvalue > 1e-3


def test_noise_that_equals_the_target_is_kept(stores):
    """Rejecting it would change the noise distribution."""
    config = configured("nce", noise_samples=3, batch_size=100, dim=4)
    with Team(1) as team:
        engine, _, noise = start(stores["stream"], config, team)
        engine.run(0, 0, np.zeros(1), np.zeros(1))
    words = engine.plan.words[0]
    expected = noise.probabilities[words[:, 0]].mean()  # P(a noise word is the target)
    assert np.mean(words[:, 1:] == words[:, :1]) == pytest.approx(expected, abs=0.06)


def test_more_minibatches_than_there_is_room_for_are_an_error(stores):
    with Team(1) as team:
        engine, *_ = start(stores["stream"], configured("nce", noise_samples=3, batch_size=50, dim=4), team)
        with pytest.raises(ValueError, match="there is room for"):
            engine.run(0, 0, np.zeros(engine.planned + 1), np.zeros(engine.planned + 1))


# -- dropout, weight decay, importance weights -------------------------------------------------------------------------


def test_dropout_drops_the_given_fraction_of_components(stores):
    config = configured("shared, dropout", batch_size=100, noise_samples=5, dim=64)
    with Team(1) as team:
        engine, *_ = start(stores["stream"], config, team)
        engine.run(0, 0, np.array([0.0]), np.array([0.0]))
    dropped = engine.workspace.predicted == 0
    assert dropped.mean() == pytest.approx(0.3, abs=0.03)
    np.testing.assert_array_equal(engine.workspace.predicted_gradients == 0, dropped)
    assert len({row.tobytes() for row in dropped}) == 100  # each example has its own


@pytest.mark.parametrize("kernel", ["nce", "shared", "ml, sgd"])
def test_weight_decay_per_epoch_is_divided_among_the_updates_of_a_row(stores, kernel):
    """Over an epoch the weight decay of a row adds up to the given value, whether its word is rare or frequent."""
    store = stores["stream"]
    sizes = {"noise_samples": 50 if kernel == "shared" else 2, "batch_size": 20, "context": 2, "dim": 4}
    config = configured(kernel, weight_decay_per_epoch=1.0, **sizes)
    with Team(1) as team:
        engine, *_ = start(store, config, team)
        contexts = engine.weight_decay.contexts.astype(np.float64)
        targets = engine.weight_decay.targets.astype(np.float64)
        sums, epochs = (np.zeros_like(contexts), np.zeros_like(targets)), 3
        for epoch in range(epochs):
            for step in range(engine.steps_per_epoch):
                engine.run(epoch, step, np.zeros(1), np.zeros(1))
                size = int(engine.plan.sizes[0])
                seen = np.unique(engine.plan.contexts[0, :size])
                updated = np.arange(targets.size) if kernel.startswith("ml") else np.unique(planned_words(engine, size))
                sums[0][seen] += contexts[seen] / epochs
                sums[1][updated] += targets[updated] / epochs
    occurs = store.vocabulary.counts > 0
    for total in (sums[0][:-1], sums[1]):
        assert total[occurs].mean() == pytest.approx(1.0, abs=0.1)


def test_importance_weights_are_recorded(stores):
    """Of each minibatch: effective and drawn numbers of samples, and the largest weight, over all blocks of it."""
    config = configured("importance", context=2, dim=5, batch_size=70, noise_samples=4)
    with Team(2) as team:
        engine, trained, noise = start(stores["stream"], config, team)
        parameters = trained.copy().parameters
        engine.run(0, 0, np.zeros(1), np.zeros(1))
    weights, effective, used, heaviest = engine.weights(0), [], [], (-np.inf,)
    for context, words in zip(engine.plan.contexts[0], engine.plan.words[0], strict=True):
        predicted = ref.eq2_prediction(parameters["matrices"], parameters["context_vectors"][context])
        scores = ref.eq3_scores(predicted, parameters["target_vectors"], parameters["biases"])
        for k in (4, 8, 12, 16, 18):
            samples = words[1 : k + 1]
            size = ref.effective_sample_size(scores, samples, noise.probabilities)
            if size >= 6.0:
                break
        effective.append(size)
        used.append(k)
        log_v = scores[samples] - np.log(noise.probabilities[samples])
        share = np.exp(log_v.max() - ref.log_sum_exp(log_v))
        heaviest = max(heaviest, (log_v.max(), share, samples[log_v.argmax()], context.tolist()), key=lambda h: h[0])
    assert weights.effective_samples == pytest.approx(np.mean(effective), rel=1e-4)
    assert weights.least_effective_samples == pytest.approx(min(effective), rel=1e-4)
    assert weights.samples == np.mean(used)
    assert 4 < weights.samples < 18
    assert weights.largest_log_weight == pytest.approx(heaviest[0], rel=1e-5)
    assert weights.share == pytest.approx(heaviest[1], rel=1e-4)
    assert (weights.word, weights.context) == heaviest[2:]
    with Team(1) as team:
        engine, *_ = start(stores["stream"], configured("nce", dim=4, noise_samples=2), team)
    assert engine.weights(0) is None
