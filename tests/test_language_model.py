"""Scores and perplexities: what they are, what they count, and that the exact path is exact."""

import json
import math

import numpy as np
import pytest

from ncelm import load
from ncelm.errors import NcelmError
from ncelm.io import array_files, run
from ncelm.models.export import export_vectors
from ncelm.text.prepare import prepare
from ncelm.text.store import contexts_and_targets
from ncelm.training.loop import train

TEXT = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog sat", "the mat and the log"] * 30


def trained(folder, **options):
    (folder / "text").write_text("\n".join(TEXT))
    boundary = options.pop("boundary", "sentence")
    store = prepare(train=folder / "text", valid=folder / "text", test=folder / "text", out=folder / "store",
                    boundary=boundary)  # fmt: skip
    train(
        store, folder / "run", **{"epochs": 3, "context": 2, "dim": 10, "batch_size": 50, "noise_samples": 10} | options
    )
    return load(folder / "run"), store


@pytest.fixture(scope="module", params=["sentence", "stream"])
def case(request, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("lm"), boundary=request.param)


def by_hand(lm, words):
    """log P of each word and of the end, from the model's own definition."""
    ids = np.append(lm.vocabulary.encode(words), lm.vocabulary.end_id)
    pad = lm.vocabulary.end_id if lm.boundary == "stream" else lm.vocabulary.out_of_sentence_id
    config = lm.model.config
    contexts, targets = contexts_and_targets(
        ids, np.arange(ids.size), config.context, config.context_after, "sentence", lm.vocabulary.end_id, pad
    )
    return lm.model.log_probabilities(contexts)[np.arange(ids.size), targets]


def test_full_scores_are_the_model_s_normalised_log_probabilities(case):
    lm, _ = case
    words = ["the", "cat", "sat", "zebra"]
    scored = lm.full_scores(words)
    assert [s.word for s in scored] == [*words, "</s>"]
    assert [s.unknown for s in scored] == [False, False, False, True, False]
    np.testing.assert_allclose([s.log_probability for s in scored], by_hand(lm, words), atol=2e-5)
    assert lm.score("the cat sat zebra") == pytest.approx(sum(s.log_probability for s in scored))
    assert lm.score(words, end=False) == pytest.approx(sum(s.log_probability for s in scored[:-1]))


def test_a_sentence_is_scored_by_itself_whatever_stands_beside_it(case):
    lm, _ = case
    alone = [lm.score(line) for line in TEXT[:4]]
    together = [sum(w.log_probability for w in words) for words in lm.full_scores_of(TEXT[:4])]
    assert [each.log_probability for each in lm.scores_of(TEXT[:4])] == pytest.approx(together)
    np.testing.assert_allclose(together, alone, rtol=1e-6)


def test_scores_do_not_depend_on_threads(case):
    lm, _ = case
    one, two = (load(lm.store_path.parent / "run", threads=t) for t in (1, 2))
    assert [one.score(line) for line in TEXT[:4]] == [two.score(line) for line in TEXT[:4]]


@pytest.mark.parametrize("matrices", ["full", "diagonal"])
def test_unnormalised_scores_are_those_of_equation_3(tmp_path, matrices):
    lm, _ = trained(tmp_path, context=2, matrices=matrices)
    words = ["the", "cat", "zebra", "sat"]
    ids = np.append(lm.vocabulary.encode(words), lm.vocabulary.end_id)
    pad = lm.vocabulary.out_of_sentence_id
    contexts = np.stack([np.append([pad, pad], ids)[i : i + 2] for i in range(ids.size)])
    bare = lm.model.scores(contexts)[np.arange(ids.size), ids]
    (each,) = lm.full_scores_of([words], normalised=False)
    np.testing.assert_allclose([word.log_probability for word in each], bare, atol=1e-5)
    (whole,) = lm.scores_of([words], normalised=False)
    assert (whole.log_probability, whole.tokens, whole.unknown) == (pytest.approx(bare.sum(), abs=1e-4), 5, 1)
    (without_end,) = lm.scores_of([words], end=False, normalised=False)
    assert (without_end.log_probability, without_end.tokens) == (pytest.approx(bare[:-1].sum(), abs=1e-4), 4)


def test_perplexity_is_what_it_says(case):
    lm, _ = case
    logs = np.concatenate([by_hand(lm, line.split()) for line in TEXT[:4]])
    assert lm.perplexity(TEXT[:4]) == pytest.approx(math.exp(-logs.mean()), rel=1e-5)
    result = lm.evaluate(["the cat", "a zebra sat"])
    assert (result.tokens, result.sentences, result.unknown) == (7, 2, 1)
    with pytest.raises(NcelmError, match="no text"):
        lm.perplexity([])


def test_split_perplexity_follows_the_boundary(case):
    lm, store = case
    result = lm.evaluate_split(store, "test")
    assert result.tokens == store.split("test").tokens
    ids = store.split("test").ids
    contexts, targets = contexts_and_targets(
        ids, np.arange(ids.size), 2, 0, store.boundary, store.vocabulary.end_id, store.pad_id
    )
    log_p = lm.model.log_probabilities(contexts)[np.arange(ids.size), targets]
    assert result.perplexity == pytest.approx(np.exp(-log_p.mean()), rel=1e-5)
    scores = lm.model.scores(contexts).astype(np.float64)
    log_z = np.log(np.exp(scores).sum(axis=1))
    assert result.log_z_mean == pytest.approx(log_z.mean(), abs=1e-4)
    assert result.log_z_std == pytest.approx(log_z.std(), abs=1e-4)


def test_training_text_is_likelier_than_its_words_in_disorder(case):
    lm, _ = case
    assert lm.score("the cat sat on the mat") > lm.score("mat the on sat cat the") + 2


def test_empty_sentences_and_reserved_words(case):
    lm, _ = case
    (end,) = lm.full_scores("")
    assert end.word == "</s>"
    assert lm.full_scores("cat </s> dog")[1].unknown
    assert lm.full_scores("<unk>")[0].unknown


def test_distributions_sum_to_one(case):
    lm, _ = case
    contexts = np.random.default_rng(0).integers(len(lm.vocabulary), size=(20, 2))
    np.testing.assert_allclose(np.exp(lm.model.log_probabilities(contexts)).sum(axis=1), 1.0)


@pytest.mark.parametrize("matrices", ["full", "diagonal"])
@pytest.mark.parametrize("tied_embeddings", [False, True])
def test_two_sided_and_shared_models(tmp_path, matrices, tied_embeddings):
    lm, store = trained(tmp_path, context=2, context_after=2, matrices=matrices, tied_embeddings=tied_embeddings)
    assert lm.two_sided
    words = ["the", "cat", "sat"]
    np.testing.assert_allclose([s.log_probability for s in lm.full_scores(words)], by_hand(lm, words), atol=2e-5)
    assert lm.evaluate_split(store, "test").perplexity < 8


def test_neighbors(case):
    lm, _ = case
    nearest = lm.neighbors("cat", 3)
    assert len(nearest) == 3
    assert "cat" not in dict(nearest)
    vectors = lm.vectors("context")
    own = vectors[lm.vocabulary.id("cat")]
    other = vectors[lm.vocabulary.id(nearest[0][0])]
    assert nearest[0][1] == pytest.approx(own @ other / np.linalg.norm(own) / np.linalg.norm(other), abs=1e-5)
    assert len(lm.neighbors("cat", 1000, "target")) == len(lm.vocabulary) - 1
    with pytest.raises(NcelmError, match="'zebra' is not in the model's vocabulary"):
        lm.neighbors("zebra")
    with pytest.raises(NcelmError, match="choose context or target"):
        lm.vectors("both")


@pytest.mark.parametrize("kind", ["word2vec", "glove", "word2vec-binary"])
def test_export_can_be_read_back(case, tmp_path, kind):
    lm, _ = case
    path = tmp_path / "vectors"
    assert export_vectors(lm, path, kind) == (len(lm.vocabulary), 10)
    content = path.read_bytes()
    if kind != "glove":
        header, content = content.split(b"\n", 1)
        assert header == f"{len(lm.vocabulary)} 10".encode()
    for word, vector in zip(lm.vocabulary.words, lm.vectors(), strict=True):
        name, content = content.split(b" ", 1)
        assert name.decode() == word
        if kind == "word2vec-binary":
            np.testing.assert_array_equal(np.frombuffer(content[:40], "<f4"), vector)
            content = content[41:]
        else:
            line, content = content.split(b"\n", 1)
            np.testing.assert_array_equal(np.array(line.split(), np.float32), vector)
    assert content == b""
    with pytest.raises(NcelmError, match="exists already"):
        export_vectors(lm, path, kind)


# -- run directories that are not what they should be ----------------------------------------------------------------


@pytest.fixture
def broken(tmp_path):
    trained(tmp_path)
    return tmp_path / "run"


def change_config(folder, **changes):
    content = json.loads((folder / run.CONFIG).read_text())
    (folder / run.CONFIG).write_text(json.dumps(content | changes))


def test_a_newer_run_is_refused(broken):
    change_config(broken, version=99)
    with pytest.raises(NcelmError, match="newer ncelm"):
        load(broken)


def test_a_foreign_folder_is_refused(tmp_path):
    with pytest.raises(NcelmError, match="there is no run at"):
        load(tmp_path / "nothing")
    with pytest.raises(NcelmError, match="is not a run"):
        load(tmp_path)
    (tmp_path / run.CONFIG).write_text('{"model_type": "bert"}')
    with pytest.raises(NcelmError, match="is not a run"):
        load(tmp_path)
    (tmp_path / run.CONFIG).write_text("not json")
    with pytest.raises(NcelmError, match="damaged"):
        load(tmp_path)


@pytest.mark.parametrize("field", ["config", "boundary", "text", "store"])
def test_a_config_with_holes_is_refused(broken, field):
    change_config(broken, **{field: 5 if field == "store" else None})  # a model may well have no store
    with pytest.raises(NcelmError, match="damaged"):
        load(broken)


@pytest.mark.parametrize("keep", [0, 5, 100, -50])
def test_a_truncated_model_is_refused(broken, keep):
    path = broken / run.MODEL
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(NcelmError, match="damaged"):
        load(broken)


def test_a_model_with_an_absurd_length_is_refused(broken):
    path = broken / run.MODEL
    path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(NcelmError, match="damaged"):
        load(broken)


def test_a_pickle_is_not_loaded(broken):
    import pickle

    (broken / run.MODEL).write_bytes(pickle.dumps({"context_vectors": [1.0]}))
    with pytest.raises(NcelmError, match="damaged"):
        load(broken)


def test_a_model_of_another_shape_is_refused(broken):
    from safetensors.numpy import load_file

    arrays = load_file(broken / run.MODEL)
    array_files.write_arrays(broken / run.MODEL, arrays | {"biases": arrays["biases"][:-1]}, {})
    with pytest.raises(NcelmError, match="biases is float32"):
        load(broken)
    del arrays["biases"]
    array_files.write_arrays(broken / run.MODEL, arrays, {})
    with pytest.raises(NcelmError, match="has no biases"):
        load(broken)


def test_a_model_with_nan_is_refused(broken):
    from safetensors.numpy import load_file

    arrays = load_file(broken / run.MODEL)
    arrays["biases"][3] = np.nan
    array_files.write_arrays(broken / run.MODEL, arrays, {})
    with pytest.raises(NcelmError, match="not finite"):
        load(broken)


def test_another_vocabulary_is_refused(broken, tmp_path):
    (tmp_path / "other.txt").write_text("quite other words\nare in here\n")
    other = prepare(
        train=tmp_path / "other.txt", test=tmp_path / "other.txt", out=tmp_path / "other", boundary="sentence"
    )
    with pytest.raises(NcelmError, match="another vocabulary"):
        load(broken).evaluate_split(other, "test")


def test_a_run_without_a_model_says_so(broken):
    (broken / run.MODEL).unlink()
    with pytest.raises(NcelmError, match=r"has no model\.safetensors"):
        load(broken)


def test_a_vocabulary_of_another_model_is_refused(broken):
    path = broken / run.VOCABULARY
    path.write_text(path.read_text().replace("cat", "cow"))
    with pytest.raises(NcelmError, match="not the vocabulary of this model"):
        load(broken)


def test_a_config_that_does_not_fit_the_model_is_refused(broken):
    content = json.loads((broken / run.CONFIG).read_text())
    content["config"]["model"]["tied_embeddings"] = True
    (broken / run.CONFIG).write_text(json.dumps(content))
    with pytest.raises(NcelmError, match="target_vectors too"):
        load(broken)


def test_a_store_with_another_boundary_is_refused(broken, tmp_path):
    stream = prepare(train=tmp_path / "text", test=tmp_path / "text", out=tmp_path / "stream", boundary="stream")
    with pytest.raises(NcelmError, match="prepared in another way"):
        load(broken).evaluate_split(stream, "test")


@pytest.mark.parametrize("sentence", [b"the cat", ["the", 5], [None]])
def test_what_is_no_sentence_is_refused(case, sentence):
    with pytest.raises(NcelmError, match="a sentence is"):
        case[0].score(sentence)


@pytest.mark.parametrize("contexts", [[[0, 10**12]], [[0, -1]], [[0, 1, 2]], [0, 1]])
def test_contexts_that_are_none_are_refused(case, contexts):
    with pytest.raises((IndexError, ValueError)):
        case[0].model.log_probabilities(np.array(contexts))
