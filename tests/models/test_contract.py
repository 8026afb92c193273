"""What every model must do: one suite for all kinds, on a text of known distribution.

The text is `cycle_store`: after word i comes word i + 1 (mod 20) with probability 0.81. The parameters of the
log-bilinear models are chosen so that their probabilities are exactly those of a bigram model with known P(w|v).
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
from scipy import stats
from tests.helpers import save_model

from ncelm.combine import mix
from ncelm.errors import NcelmError
from ncelm.io.run import Kind, read_config
from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.language_model import LanguageModel, Tokens, load_scorer
from ncelm.models.base import ChoiceScores, Gap, WordModel
from ncelm.models.description import Origin, write_description
from ncelm.models.generation import Sampling, next_distributions
from ncelm.models.load import SCORERS, WORD_MODELS, component_references, load_vectors, load_word_model
from ncelm.models.log_bilinear import LogBilinear, ModelConfig
from ncelm.models.lsa import train_lsa
from ncelm.models.mixture import Mixture
from ncelm.models.ngram.estimate import estimate, train_ngram
from ncelm.models.pmi import train_pmi

CYCLE = 20
TORCH = ("feed-forward", "lstm", "maximum-entropy")
WORD_MODEL_NAMES = ("before", "after", "both", "tied", "trigram", "mixture", *TORCH)
SCORER_NAMES = ("before", "after", "both", "trigram", "mixture", "lsa", "pmi", "ensemble", *TORCH)
WITH_VECTORS = {"before", "after", "both", "tied", "lsa", "feed-forward", "lstm", "mixture"}


class Case(NamedTuple):
    """The store, the runs of all models, and the models before they were written."""

    store: Any
    folder: Any
    models: dict[str, WordModel]
    follow: np.ndarray  # P(w|v), (V + 1, V): the last row is after the out-of-sentence word

    def lm(self, name: str) -> LanguageModel:
        return LanguageModel.load(self.folder / name, threads=1)

    def ids(self, *words: int) -> np.ndarray:
        """Return the ids of these words of the cycle."""
        return self.store.vocabulary.encode([f"w{i % CYCLE}" for i in words])


def known_follow(store) -> np.ndarray:
    """Return P(w|v) of the process that generated the text, approximately, with all probabilities positive."""
    size = len(store.vocabulary)
    follow = np.full((size + 1, size), 0.01 / size)
    cycle = store.vocabulary.encode([f"w{i}" for i in range(CYCLE)])
    for i in range(CYCLE):
        follow[cycle[i], cycle] += 0.2 / CYCLE
        follow[cycle[i], cycle[(i + 1) % CYCLE]] += 0.8
    follow[[store.vocabulary.unknown_id, store.vocabulary.end_id, size]] += 1.0 / size
    return follow / follow.sum(axis=1, keepdims=True)


def exact_models(follow: np.ndarray) -> Iterator[tuple[str, LogBilinear]]:
    """Yield log-bilinear models whose score is log P(w | previous), log P(next | w), or the sum of both."""
    size = follow.shape[1]
    logs = np.log(follow).astype(np.float32)  # (V + 1, V)
    eye, zero = np.eye(size + 1, dtype=np.float32), np.zeros(size, np.float32)
    backward = np.concatenate([logs[:size], np.zeros((size, 1), np.float32)], axis=1)  # log P(next | w), (V, V + 1)
    full = eye[None]
    yield "before", LogBilinear(ModelConfig(context=1, dim=size + 1), eye, logs.T.copy(), zero, full)
    yield "after", LogBilinear(ModelConfig(context=0, context_after=1, dim=size + 1), eye, backward, zero, full)
    rows = np.concatenate([eye, eye], axis=1)  # r_v, (V + 1, 2 (V + 1))
    diagonals = np.repeat(np.eye(2, dtype=np.float32), size + 1, axis=1)  # C_1 selects the first half, C_2 the second
    config = ModelConfig(context=1, context_after=1, dim=2 * (size + 1), matrices="diagonal")
    yield "both", LogBilinear(config, rows, np.concatenate([logs.T, backward], axis=1), zero, diagonals)
    tied = ModelConfig(context=3, dim=6, tied_embeddings=True)
    yield "tied", LogBilinear.initialise(tied, np.full(size, 1.0 / size), seed=1, init_std=0.7)


def torch_models(follow: np.ndarray) -> Iterator[tuple[str, Any]]:
    """Yield PyTorch models with random parameters."""
    models = pytest.importorskip("ncelm.torch.models", reason="needs the extra torch")
    size = follow.shape[1]
    for name, options in (
        ("feed-forward", {"context": 2, "hidden": 7}),
        ("lstm", {"context": 0, "hidden": 7}),
        ("maximum-entropy", {"context": 2, "features": 3000}),
    ):
        config = ModelConfig(architecture=name, dim=5, **options)
        yield name, models.ARCHITECTURES[name].initialise(config, np.full(size, 1.0 / size), 3, 0.5)


def save_ensemble(folder, store, components: dict[Any, float]) -> None:
    """Write the run of an ensemble in which the normalised and the unnormalised scores have the same weights."""
    folder.mkdir()
    weights = [[weight, weight] for weight in components.values()]
    parts = component_references(folder, list(components))
    write_description(folder, "ensemble", Origin.of(store), parts=parts, weights=weights)


@pytest.fixture(scope="module")
def case(cycle_store, tmp_path_factory) -> Case:
    folder, follow = tmp_path_factory.mktemp("contract"), known_follow(cycle_store)
    models: dict[str, Any] = {}
    for name, model in exact_models(follow):
        models[name] = model
        save_model(folder / name, cycle_store, model)
    train_ngram(cycle_store, folder / "trigram", order=3)
    models["trigram"] = estimate(cycle_store, 3)[0]
    mix([folder / "trigram", folder / "before"], folder / "mixture", weights=[0.25, 0.75])
    models["mixture"] = Mixture((models["trigram"], models["before"]), np.array([0.25, 0.75]))
    train_lsa(cycle_store, folder / "lsa", dim=10)
    train_pmi(cycle_store, folder / "pmi")
    save_ensemble(
        folder / "ensemble", cycle_store, {folder / "trigram": 0.5, folder / "lsa": 0.3, folder / "both": 0.2}
    )
    return Case(cycle_store, folder, models, follow)


@pytest.fixture(scope="module")
def torch_case(case) -> Case:
    for name, model in torch_models(case.follow):
        case.models[name] = model
        if name == "maximum-entropy":  # its initial weights are 0
            model.arrays()["weights"][:] = np.random.default_rng(0).normal(size=3000)
        save_model(case.folder / name, case.store, model)
    return case


@pytest.fixture
def name(request) -> str:
    """The name of a model, whose run is made if it is a PyTorch model."""
    request.getfixturevalue("torch_case" if request.param in TORCH else "case")
    return request.param


word_models = pytest.mark.parametrize("name", WORD_MODEL_NAMES, indirect=True)
scorers = pytest.mark.parametrize("name", SCORER_NAMES, indirect=True)


def test_every_kind_has_a_loader():
    assert sorted([*WORD_MODELS, *SCORERS]) == sorted(get_args(Kind))


def test_every_kind_is_tested(torch_case):
    tested = {read_config(torch_case.folder / name)["kind"] for name in {*WORD_MODEL_NAMES, *SCORER_NAMES}}
    assert tested == set(get_args(Kind))


# -- word models -----------------------------------------------------------------------------------------------------


def scores(case, model, first=0, last=None, threads=1, mode="exact"):
    """Return scores and log-normalizers of the test split."""
    split, words = case.store.split("test"), case.store.vocabulary
    corpus = records.Corpus(split.ids, 0, True, words.end_id, case.store.pad_id)
    with Team(threads) as team:
        return model.score_positions(corpus, first, split.tokens if last is None else last, team, mode)


@word_models
def test_distributions_sum_to_one(case, name):
    model = load_word_model(case.folder / name)[0]
    for before, after in (((), ()), ((3,), (5,)), ((1, 2, 3, 4, 5, 6), (8, 9, 10, 11)), ((), (7,)), ((19,), ())):
        logs = model.distribution(case.ids(*before), case.ids(*after), case.store.pad_id)
        assert logs.shape == (len(case.store.vocabulary),)
        assert logs.dtype == np.float64
        assert np.exp(logs).sum() == pytest.approx(1.0, abs=1e-6)


@word_models
def test_scores_of_positions_are_those_of_distributions(case, name):
    model = load_word_model(case.folder / name)[0]
    split, found = case.store.split("test"), np.subtract(*scores(case, model))
    for begin, end in list(pairwise(split.sentences.tolist()))[:6]:
        words = split.ids[begin : end - 1].astype(np.int64)
        for position in range(begin, end):
            gap = position - begin
            logs = model.distribution(words[:gap], words[gap + 1 :], case.store.pad_id)
            assert found[position] == pytest.approx(logs[split.ids[position]], abs=2e-5)


@word_models
def test_parts_of_a_text_have_the_scores_of_the_whole(case, name):
    model = load_word_model(case.folder / name)[0]
    whole, log_z = scores(case, model)
    assert log_z.dtype == np.float64
    for first, last in ((37, 105), (0, 1), (60, 61), (1, 34), (20, 84)):
        for values, expected in zip(scores(case, model, first, last), (whole, log_z), strict=True):
            if name in TORCH:  # the sums of PyTorch depend on the number of rows
                np.testing.assert_allclose(values, expected[first:last], atol=1e-6)
            else:
                np.testing.assert_array_equal(values, expected[first:last])


@word_models
def test_the_number_of_threads_changes_nothing(case, name):
    model = load_word_model(case.folder / name)[0]
    one = scores(case, model)
    for threads in (2, 3):
        for values, expected in zip(scores(case, model, threads=threads), one, strict=True):
            if name in TORCH:  # PyTorch may sum in another order
                np.testing.assert_allclose(values, expected, atol=1e-5)
            else:
                np.testing.assert_array_equal(values, expected)


@word_models
def test_unnormalised_scores_have_no_log_normalizers(case, name):
    model = load_word_model(case.folder / name)[0]
    bare, zeros = scores(case, model, mode="unnormalised")
    assert not zeros.any()
    if name in TORCH:
        np.testing.assert_allclose(bare, scores(case, model)[0], atol=1e-5)
    elif name != "mixture":  # which interpolates unnormalised scores of its components
        np.testing.assert_array_equal(bare, scores(case, model)[0])


@word_models
def test_the_context_is_on_the_sides_that_the_model_has(case, name):
    model = load_word_model(case.folder / name)[0]
    pad = case.store.pad_id
    base = model.distribution(case.ids(3), case.ids(5), pad)
    other_left = model.distribution(case.ids(9), case.ids(5), pad)
    other_right = model.distribution(case.ids(3), case.ids(11), pad)
    assert np.allclose(base, other_left) == (model.sides == "after")
    assert np.allclose(base, other_right) == (model.sides == "before")


@word_models
def test_a_model_that_is_saved_and_loaded_is_the_same(case, name):
    loaded, origin = load_word_model(case.folder / name)
    assert loaded.sides == case.models[name].sides
    assert origin.vocabulary.words == case.store.vocabulary.words
    assert origin.store == case.store.path.resolve()
    for values, expected in zip(scores(case, loaded), scores(case, case.models[name]), strict=True):
        np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("name", ["before", "after", "both"])
def test_known_probabilities(case, name):
    """The log-bilinear models represent a known distribution exactly."""
    model = load_word_model(case.folder / name)[0]
    size = len(case.store.vocabulary)
    for left, right in ((3, 5), (19, 1), (0, 0)):
        (before,), (after,) = case.ids(left), case.ids(right)
        expected = np.ones(size)
        if model.sides != "after":
            expected = expected * case.follow[before]
        if model.sides != "before":
            expected = expected * case.follow[:size, after]
        found = np.exp(model.distribution(case.ids(left), case.ids(right), case.store.pad_id))
        np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-5)


@pytest.mark.parametrize("name", ["trigram", "mixture"])
def test_estimated_probabilities_are_those_of_the_process(case, name):
    model = load_word_model(case.folder / name)[0]
    for word in range(CYCLE):
        logs = model.distribution(case.ids(word - 1, word), case.ids(), case.store.pad_id)
        assert np.exp(logs[case.ids(word + 1)[0]]) == pytest.approx(0.73, abs=0.15)  # 0.81 if the sentence goes on


# -- generation ------------------------------------------------------------------------------------------------------

FORWARDS = [name for name in WORD_MODEL_NAMES if name not in ("after", "both")]
forwards = pytest.mark.parametrize("name", FORWARDS, indirect=True)


@forwards
def test_next_distributions_are_distributions(case, name):
    model, nothing = load_word_model(case.folder / name)[0], np.zeros(0, np.int64)
    sentences = [case.ids(*range(i % 7)) for i in range(40)]  # more than a panel, some of them empty
    with Team(2) as team:
        found = list(next_distributions(model, sentences, case.store.pad_id, team))
        (alone,) = next_distributions(model, sentences[5:6], case.store.pad_id, team)
    for sentence, logs in zip(sentences, found, strict=True):
        np.testing.assert_allclose(logs, model.distribution(sentence, nothing, case.store.pad_id), atol=2e-5)
    np.testing.assert_array_equal(found[5], alone)


@forwards
def test_generated_words_have_their_probabilities(case, name):
    """Chi-square test of the first words after 1,000 prompts, for each sampler."""
    lm, end = case.lm(name), case.store.vocabulary.end_id
    prompts = [Tokens(words(i % CYCLE)) for i in range(1000)]
    samplers = [{}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"repetition_penalty": 1.5}]
    for number, options in enumerate(samplers):
        found = lm.generate(prompts, max_words=1, seed=number, **options)
        observed, expected = np.zeros(len(lm.vocabulary)), np.zeros(len(lm.vocabulary))
        for i, each in enumerate(found):
            observed[lm.vocabulary.encode(each.words)[0] if each.words else end] += 1
            if i < CYCLE:
                logs = lm.distribution(prompts[i])
                logs[lm.vocabulary.unknown_id] = -np.inf
                weights = Sampling(**options).weights(logs, lm.vocabulary.encode(prompts[i]))
                expected += 1000 / CYCLE * weights / weights.sum()
        assert observed[expected == 0].sum() == 0
        large = expected > 5
        counts = np.append(observed[large], observed[~large].sum()), np.append(expected[large], expected[~large].sum())
        kept = counts[1] > 0
        assert stats.chisquare(counts[0][kept], counts[1][kept]).pvalue > 1e-4


@forwards
def test_the_same_seed_gives_the_same_text(case, name):
    one, prompts = case.lm(name), [Tokens(words(i)) for i in range(9)]
    two = LanguageModel.load(case.folder / name, threads=2)
    found = one.generate(prompts, 4, seed=5, max_words=12)
    assert len(found) == 36
    assert [each.prompt for each in found] == [i // 4 for i in range(36)]
    again = two.generate(prompts, 4, seed=5, max_words=12)
    assert [each.text for each in found] == [each.text for each in again]
    assert {each.text for each in found} != {each.text for each in one.generate(prompts, 4, seed=6, max_words=12)}
    streamed = list(one.stream(prompts, 4, seed=5, max_words=12))
    for i, each in enumerate(found):
        spelled = [word.word for word in streamed if word.sentence == i]
        assert spelled == [*each.words, *["</s>"] * each.finished]
        assert "<unk>" not in spelled
        assert each.text == " ".join([*prompts[each.prompt], *each.words])
        if not each.finished:
            assert len(each.words) == 12
        elif each.words:
            whole = one.full_scores(Tokens([*prompts[each.prompt], *each.words]))
            assert each.log_probability == pytest.approx(sum(word.log_probability for word in whole[1:]), abs=1e-4)


@forwards
def test_continuations_are_ordered_and_scored(case, name):
    lm = case.lm(name)
    found = lm.continuations("w1 w2", 4, max_words=5)
    logs = [each.log_probability for each in found]
    assert len(found) == 4
    assert logs == sorted(logs, reverse=True)
    for each in found:
        scored = lm.full_scores(Tokens(["w1", "w2", *each.words]), end=each.finished)[2:]
        assert each.log_probability == pytest.approx(sum(word.log_probability for word in scored), abs=1e-4)


@pytest.mark.parametrize("name", ["after", "both"])
def test_models_that_do_not_read_forwards_cannot_continue(case, name):
    for call in (lambda lm: lm.generate("w1"), lambda lm: lm.continuations("w1"), lambda lm: lm.stream("w1")):
        with pytest.raises(NcelmError, match="cannot continue a text"):
            call(case.lm(name))


def test_two_sided_models_fill_gaps(case):
    lm = case.lm("both")
    found = lm.fill("w1", "w3", "w5 w6", count=50, seed=3)
    assert [each.text.split()[0::2] for each in found[:3]] == [["w1", "w3", "w5"]] * 3
    assert sum(each.words == ("w2", "w4") for each in found) > 30  # 0.64 / (0.64 + …) each
    assert found == lm.fill("w1", "w3", "w5 w6", count=50, seed=3)
    with pytest.raises(NcelmError, match="sees both sides"):
        case.lm("before").fill("w1", "w3")
    with pytest.raises(NcelmError, match="`others`"):
        lm.fill("w1")


# -- scorers ---------------------------------------------------------------------------------------------------------


def words(*numbers: int) -> list[str]:
    return [f"w{i}" for i in numbers]


GAPS = [
    Gap(words(1, 2), [["w3"], ["w9"], ["w15"]], words(4, 5)),
    Gap([], [["w3"], ["zebra"]], words(4)),
    Gap(words(7), [["w8"], ["w9", "w10"], ["w2"], ["w8", "zebra"]], []),
    Gap(words(7), [[["w8"], ["w9", "w10"]], [["w2"], ["zebra"]]], words(3), [words(1, 2)]),
    Gap([], [[["w8"], ["w9"], ["w2"]]], [], [[], words(4)]),
]


@scorers
def test_every_gap_has_a_score_of_every_choice(case, name):
    scorer = load_scorer(case.folder / name, threads=1)
    together = list(scorer.choice_scores(iter(GAPS)))
    assert len(together) == len(GAPS)
    for gap, scores in zip(GAPS, together, strict=True):
        assert isinstance(scores, ChoiceScores)
        for values in scores:
            assert len(values) == len(gap.choices)
            assert np.isfinite(values).all()
        (alone,) = scorer.choice_scores([gap])
        if name in WORD_MODEL_NAMES and name not in TORCH:
            assert alone == scores
        else:
            np.testing.assert_allclose(alone, scores, atol=1e-4)
    assert list(scorer.choice_scores([])) == []


@scorers
def test_a_gap_between_parts_is_a_gap(case, name):
    """The first of two gaps, with the same word in the second, is ranked like a single gap."""
    scorer = load_scorer(case.folder / name, threads=1)
    candidates = words(3, 9, 15)
    several = Gap(words(1, 2), [[[word], ["w5"]] for word in candidates], words(6), [words(4)])
    single = Gap(words(1, 2), [[word] for word in candidates], words(4, 5, 6))
    for one, other in zip(*(next(scorer.choice_scores([gap])) for gap in (several, single)), strict=True):
        if isinstance(scorer, LanguageModel) and scorer.two_sided:
            continue  # the score of two gaps also has the probability of w5, which depends on the other word
        np.testing.assert_allclose(np.subtract(one, one[0]), np.subtract(other, other[0]), atol=1e-4)


@scorers
def test_the_number_of_unknown_words(case, name):
    """The text of these models has no unknown words."""
    assert load_scorer(case.folder / name).log_unknown_types is None


@scorers
def test_the_most_likely_words_have_the_highest_scores(case, name):
    scorer = load_scorer(case.folder / name, threads=1)
    before, after = words(11, 12), words(14)
    found = scorer.most_likely(before, after, 6)
    candidates = [word for word in case.store.vocabulary.words if word not in ("<unk>", "</s>")]
    ((expected, _),) = scorer.choice_scores([Gap(before, [[word] for word in candidates], after)])
    by_word = dict(zip(candidates, expected, strict=True))
    assert len(dict(found)) == 6
    values = np.array([score for _, score in found])
    assert (np.diff(values) <= 0).all()
    np.testing.assert_allclose(values, sorted(expected, reverse=True)[:6], atol=1e-4)
    np.testing.assert_allclose(values, [by_word[word] for word, _ in found], atol=1e-4)


@pytest.mark.parametrize("name", [name for name in SCORER_NAMES if name not in TORCH])
def test_the_missing_word_of_the_cycle_is_the_most_likely(case, name):
    scorer = load_scorer(case.folder / name, threads=1)
    for word in range(1, CYCLE - 1):
        before, after = words(word - 1), words(word + 1)
        (scores,) = scorer.choice_scores([Gap(before, [[f"w{word}"], [f"w{(word + 9) % CYCLE}"]], after)])
        assert scores.normalised[0] > scores.normalised[1]
        assert f"w{word}" in dict(scorer.most_likely(before, after, 3))


@scorers
def test_vectors_and_neighbors(case, name):
    scorer = load_scorer(case.folder / name)
    if name not in WITH_VECTORS:
        for query in (scorer.vectors, lambda: scorer.neighbors("w1"), lambda: load_vectors(case.folder / name)):
            with pytest.raises(NcelmError, match="has no word vectors"):
                query()
        return
    vectors = scorer.vectors()
    assert len(vectors) == len(scorer.vocabulary)
    loaded, vocabulary = load_vectors(case.folder / name)
    np.testing.assert_array_equal(loaded, vectors)
    assert vocabulary.digest == scorer.vocabulary.digest
    nearest = scorer.neighbors("w1", 4)
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    cosines = unit @ unit[scorer.vocabulary.id("w1")]
    cosines[scorer.vocabulary.id("w1")] = -np.inf
    np.testing.assert_allclose([cosine for _, cosine in nearest], np.sort(cosines)[::-1][:4], atol=1e-5)
    assert "w1" not in dict(nearest)
