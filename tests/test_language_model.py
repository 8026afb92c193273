"""Scores and perplexities of a log-bilinear model, against NumPy in float64; what they count; invalid input."""

import dataclasses
import math

import numpy as np
import pytest
from tests.helpers import save_model

from ncelm import language_model, load
from ncelm.combine import mix
from ncelm.errors import NcelmError
from ncelm.language_model import LINES_TO_COMPILE, LanguageModel, Tokens
from ncelm.models import log_bilinear
from ncelm.models.log_bilinear import LogBilinear, ModelConfig
from ncelm.models.ngram.estimate import train_ngram
from ncelm.text.prepare import prepare
from ncelm.text.settings import TextSettings
from ncelm.text.store import contexts_and_targets
from ncelm.training.config import TrainConfig
from ncelm.training.loop import train

TEXT = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog sat", "the mat and the log"] * 30


def make_store(folder, boundary="sentence"):
    (folder / "text").write_text("\n".join(TEXT))
    texts = dict.fromkeys(("train", "valid", "test"), folder / "text")
    return prepare(**texts, out=folder / "store", boundary=boundary)


def random_lm(folder, boundary="sentence", **options):
    """Return a language model with random parameters, loaded from a run, and its store."""
    store = make_store(folder, boundary)
    frequencies = store.vocabulary.counts + 1.0
    config = ModelConfig(**({"context": 2, "dim": 10} | options))
    model = LogBilinear.initialise(config, frequencies / frequencies.sum(), seed=3, init_std=0.7)
    return load(save_model(folder / "run", store, model)), store


@pytest.fixture(scope="module", params=["sentence", "stream"])
def case(request, tmp_path_factory):
    return random_lm(tmp_path_factory.mktemp("lm"), boundary=request.param)


def scores_by_hand(lm, contexts):
    """Return s(w, h) of every word in float64, contexts (n, c) → (n, V): Eq. 2 and 3 from the parameters."""
    p = {name: array.astype(np.float64) for name, array in lm.model.arrays().items()}
    vectors = p["context_vectors"][contexts]  # (n, c, d)
    if p["matrices"].ndim == 3:
        predicted = sum(vectors[:, i] @ matrix.T for i, matrix in enumerate(p["matrices"]))  # (n, d)
    else:
        predicted = (vectors * p["matrices"]).sum(axis=1)
    target_vectors = p.get("target_vectors", p["context_vectors"][:-1])
    return predicted @ target_vectors.T + p["biases"]


def contexts_by_hand(lm, words):
    """Return the contexts, (n, c), and the ids, (n,), of the words of a sentence and of its end."""
    ids = [*lm.vocabulary.encode(words), lm.vocabulary.end_id]
    pad = lm.vocabulary.end_id if lm.boundary == "stream" else lm.vocabulary.out_of_sentence_id
    before, after = lm.model.config.context, lm.model.config.context_after
    contexts = []
    for i in range(len(ids)):
        left = [pad] * before + ids[:i]
        right = (ids[i + 1 : -1] if i < len(ids) - 1 else []) + [pad] * after
        contexts.append(left[len(left) - before :] + right[:after])
    return np.array(contexts), np.array(ids)


def by_hand(lm, words):
    """Return log P of each word of a sentence and of its end, in float64."""
    contexts, ids = contexts_by_hand(lm, words)
    scores = scores_by_hand(lm, contexts)
    return scores[np.arange(len(ids)), ids] - np.log(np.exp(scores).sum(axis=1))


# -- sentences -------------------------------------------------------------------------------------------------------


def test_full_scores_are_log_probabilities(case):
    lm, _ = case
    words = ["the", "cat", "sat", "zebra"]
    scored = lm.full_scores(Tokens(words))
    assert [s.word for s in scored] == [*words, "</s>"]
    assert [s.unknown for s in scored] == [False, False, False, True, False]
    np.testing.assert_allclose([s.log_probability for s in scored], by_hand(lm, words), atol=2e-5)
    assert lm.score("the cat sat zebra") == pytest.approx(sum(s.log_probability for s in scored))
    assert lm.score(Tokens(words), end=False) == pytest.approx(sum(s.log_probability for s in scored[:-1]))


@pytest.mark.parametrize("matrices", ["full", "diagonal"])
@pytest.mark.parametrize("tied_embeddings", [False, True])
@pytest.mark.parametrize(("context", "context_after"), [(2, 2), (0, 1), (3, 0)])
def test_scores_of_other_architectures(tmp_path, matrices, tied_embeddings, context, context_after):
    options = {"matrices": matrices, "tied_embeddings": tied_embeddings}
    lm, _ = random_lm(tmp_path, context=context, context_after=context_after, **options)
    assert lm.two_sided == (context > 0 and context_after > 0)
    words = ["the", "cat", "sat", "on"]
    np.testing.assert_allclose(
        [s.log_probability for s in lm.full_scores(Tokens(words))], by_hand(lm, words), atol=2e-5
    )


def test_a_sentence_has_the_same_score_in_a_batch(case):
    lm, _ = case
    alone = [lm.score(line) for line in TEXT[:4]]
    assert lm.score(TEXT[:4]) == alone
    words = list(lm.full_scores_of(TEXT[:4]))
    assert words == [lm.full_scores(line) for line in TEXT[:4]]
    assert [sum(w.log_probability for w in each) for each in words] == pytest.approx(alone)


MODELS = {
    "full matrices": {"context": 2, "dim": 30},
    "diagonal matrices": {"context": 5, "dim": 20, "matrices": "diagonal"},
    "both sides": {"context": 2, "context_after": 2, "dim": 10},
    "tied embeddings": {"context": 3, "dim": 12, "tied_embeddings": True},
}


@pytest.mark.parametrize("name", [*MODELS, "n-gram", "mixture"])
def test_equal_sentences_have_equal_scores_in_every_batch(tmp_path, name, monkeypatch):
    """At any place of a batch, in batches of any size and with any number of threads, bit for bit."""
    _, store = random_lm(tmp_path, **MODELS.get(name, MODELS["full matrices"]))
    run = tmp_path / "run"
    if name in ("n-gram", "mixture"):
        train_ngram(store, tmp_path / "ngram", order=3)
        mix([run, tmp_path / "ngram"], tmp_path / "mixture", weights=[0.6, 0.4])
        run = tmp_path / {"n-gram": "ngram", "mixture": "mixture"}[name]
    random = np.random.default_rng(0)
    kinds = [*TEXT[:4], "", "mat", "zebra log zebra", " ".join(TEXT[:40])]
    lines = [kinds[i] for i in random.integers(len(kinds), size=300)]
    expected = {line: load(run, threads=1).score(line) for line in kinds}
    expected_unnormalised = {line: next(load(run).scores_of([line], normalised=False)) for line in kinds}
    monkeypatch.setattr(log_bilinear, "WORK_ALONE", 0)  # also little work is divided among the threads
    for threads in (1, 2, 3):
        lm = load(run, threads=threads)
        for size in (1, 7, 300):
            monkeypatch.setattr(language_model, "BATCH_SENTENCES", size)
            assert lm.score(lines) == [expected[line] for line in lines]
            assert list(lm.scores_of(lines, normalised=False)) == [expected_unnormalised[line] for line in lines]


def test_many_lines_are_normalised_like_one(tmp_path):
    lm, _ = random_lm(tmp_path)
    lm = dataclasses.replace(lm, text=TextSettings("whitespace", normalization="ccnet"))
    lines = ["THE C\u00c4T", "a dog"] * LINES_TO_COMPILE
    assert lm.score(lines) == [lm.score(line) for line in lines]
    assert lm.score(lines[0]) == lm.score("the cat")


def test_many_sentences_are_read_lazily(case):
    lm, _ = case
    read = 0

    def lines():
        nonlocal read
        for line in TEXT * 100:
            read += 1
            yield line

    scores = lm.scores_of(lines())
    assert next(scores).log_probability == lm.score(TEXT[0])
    assert 0 < read < len(TEXT) * 100
    assert sum(1 for _ in scores) == len(TEXT) * 100 - 1


def test_scores_do_not_depend_on_the_number_of_threads(case):
    lm, _ = case
    one, two = (load(lm.store_path.parent / "run", threads=t) for t in (1, 2))
    assert [one.score(line) for line in TEXT[:4]] == [two.score(line) for line in TEXT[:4]]


@pytest.mark.parametrize("matrices", ["full", "diagonal"])
def test_unnormalised_scores_are_those_of_equation_3(tmp_path, matrices):
    lm, _ = random_lm(tmp_path, matrices=matrices)
    words = ["the", "cat", "zebra", "sat"]
    contexts, ids = contexts_by_hand(lm, words)
    bare = scores_by_hand(lm, contexts)[np.arange(len(ids)), ids]
    (each,) = lm.full_scores_of([Tokens(words)], normalised=False)
    np.testing.assert_allclose([word.log_probability for word in each], bare, atol=1e-5)
    (whole,) = lm.scores_of([Tokens(words)], normalised=False)
    assert (whole.log_probability, whole.tokens, whole.unknown) == (pytest.approx(bare.sum(), abs=1e-4), 5, 1)
    (without_end,) = lm.scores_of([Tokens(words)], end=False, normalised=False)
    assert (without_end.log_probability, without_end.tokens) == (pytest.approx(bare[:-1].sum(), abs=1e-4), 4)


def test_empty_sentences_and_reserved_words(case):
    lm, _ = case
    (end,) = lm.full_scores("")
    assert end.word == "</s>"
    assert lm.full_scores("cat </s> dog")[1].unknown
    assert lm.full_scores("<unk>")[0].unknown


@pytest.mark.parametrize("sentence", [["the", 5], [None], [["the", "cat"]]])
def test_invalid_sentences(case, sentence):
    with pytest.raises(NcelmError, match=r"a sentence is a string; give words as ncelm.Tokens\(words\)"):
        case[0].score(sentence)
    with pytest.raises(NcelmError, match="a sentence is a string"):
        case[0].full_scores(["the", "cat"])


def test_a_list_is_a_list_of_sentences(case):
    lm, _ = case
    sentences = ["the cat sat", Tokens(["a", "dog"])]
    assert lm.score(sentences) == [lm.score("the cat sat"), lm.score("a dog")]
    assert lm.score(["the", "cat"]) == [lm.score("the"), lm.score("cat")]
    assert lm.score(line for line in sentences) == lm.score(sentences)
    assert lm.score([]) == []
    assert lm.perplexity(Tokens(["a", "dog"])) == lm.perplexity(["a dog"])
    with pytest.raises(TypeError, match="`sentences` is 'a file name'"):
        lm.evaluate("a file name")


def test_next_words_and_distributions(case):
    lm, _ = case
    logs = lm.distribution("the cat")
    assert np.exp(logs).sum() == pytest.approx(1.0)
    np.testing.assert_array_equal(logs, lm.distribution(Tokens(["the", "cat"])))
    best = lm.next_words("the cat", 4)
    assert [value for _, value in best] == sorted((value for _, value in best), reverse=True)
    for word, value in best:
        assert word != "<unk>"
        assert value == logs[lm.vocabulary.words.index(word)]
    if not lm.two_sided:
        for word in lm.full_scores("the cat sat")[2:3]:
            assert word.log_probability == pytest.approx(logs[lm.vocabulary.id("sat")], abs=1e-5)
    assert len(lm.next_words("", 10**6)) == len(lm.vocabulary) - 1


def test_representations_are_short(case):
    lm, _ = case
    assert repr(lm).startswith("LanguageModel(LogBilinear(context ")
    assert len(repr(lm)) < 120


# -- perplexity ------------------------------------------------------------------------------------------------------


def test_perplexity_is_that_of_the_log_probabilities(case):
    lm, _ = case
    logs = np.concatenate([by_hand(lm, line.split()) for line in TEXT[:4]])
    assert lm.perplexity(TEXT[:4]) == pytest.approx(math.exp(-logs.mean()), rel=1e-5)
    assert lm.perplexity("the cat") == pytest.approx(math.exp(-by_hand(lm, ["the", "cat"]).mean()), rel=1e-5)
    result = lm.evaluate(["the cat", "a zebra sat"])
    assert (result.tokens, result.sentences, result.unknown) == (7, 2, 1)
    with pytest.raises(NcelmError, match="no text"):
        lm.perplexity([])


def test_perplexity_of_a_split_follows_the_boundary(case):
    lm, store = case
    result = lm.evaluate_split(store, "test")
    ids = store.split("test").ids
    assert (result.tokens, result.sentences) == (ids.size, len(TEXT))
    contexts, targets = contexts_and_targets(
        ids, np.arange(ids.size), 2, 0, store.boundary, store.vocabulary.end_id, store.pad_id
    )
    scores = scores_by_hand(lm, contexts)
    log_z = np.log(np.exp(scores).sum(axis=1))
    log_p = scores[np.arange(ids.size), targets] - log_z
    assert result.perplexity == pytest.approx(np.exp(-log_p.mean()), rel=1e-5)
    assert result.log_probability == pytest.approx(log_p.sum(), rel=1e-5)
    assert result.log_z_mean == pytest.approx(log_z.mean(), abs=1e-4)
    assert result.log_z_std == pytest.approx(log_z.std(), abs=1e-4)
    same = lm.perplexity(TEXT) == pytest.approx(result.perplexity, rel=1e-6)
    assert same == (store.boundary == "sentence")


def test_a_store_with_another_vocabulary(case, tmp_path):
    (tmp_path / "other.txt").write_text("quite other words\nare in here\n")
    other = prepare(
        train=tmp_path / "other.txt", test=tmp_path / "other.txt", out=tmp_path / "other", boundary=case[0].boundary
    )
    with pytest.raises(NcelmError, match="another vocabulary"):
        case[0].evaluate_split(other, "test")


def test_a_store_with_another_boundary(case, tmp_path):
    boundary = "stream" if case[0].boundary == "sentence" else "sentence"
    with pytest.raises(NcelmError, match="prepared with other settings"):
        case[0].evaluate_split(make_store(tmp_path, boundary), "test")


# -- trained models --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context_after", [0, 2])
def test_a_trained_model_has_learned_its_text(tmp_path, context_after):
    options = {"epochs": 3, "context": 2, "dim": 10, "batch_size": 50, "noise_samples": 10}
    train(make_store(tmp_path), tmp_path / "run", TrainConfig(), context_after=context_after, **options)
    lm = LanguageModel.load(tmp_path / "run")
    assert lm.evaluate_split(lm.store_path, "test").perplexity < 8
    assert lm.score("the cat sat on the mat") > lm.score("mat the on sat cat the") + 2
