"""`mix` and `blend`: learned weights, combined scores, components that do not fit together, damaged runs."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.helpers import change_json, random_lines, save_model, store_of, two_topics

from ncelm import load
from ncelm.cli.main import main
from ncelm.combine import blend, mix
from ncelm.completion import Question, rank, rank_both
from ncelm.errors import NcelmError
from ncelm.io import array_files
from ncelm.language_model import load_scorer
from ncelm.models.log_bilinear import LogBilinear, ModelConfig
from ncelm.models.lsa import train_lsa
from ncelm.models.ngram.estimate import train_ngram
from ncelm.models.ngram.query import ARRAYS
from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore


def bigram_model(store) -> LogBilinear:
    """Return a log-bilinear model whose probabilities are those of a bigram model with add-one smoothing."""
    ids, size = store.split("train").ids, len(store.vocabulary)
    counts = np.ones((size + 1, size), np.float32)
    np.add.at(counts, (ids[:-1], ids[1:]), 1)
    eye, zero = np.eye(size + 1, dtype=np.float32), np.zeros(size, np.float32)
    config = ModelConfig(context=1, dim=size + 1)
    return LogBilinear(
        config, eye, np.ascontiguousarray(np.log(counts / counts.sum(1, keepdims=True)).T), zero, eye[None]
    )


# -- mix -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["sentence", "stream"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("mixture")
    lines = random_lines(1, sentences=900, words=40)
    texts = {"train": lines[:500], "valid": lines[500:700], "test": lines[700:]}
    for name, part in texts.items():
        (path / name).write_text("\n".join(part) + "\n")
    store = prepare(**{name: path / name for name in texts}, out=path / "store", boundary=request.param)
    train_ngram(store, path / "bigram", order=2)
    train_ngram(store, path / "trigram", order=3)
    save_model(path / "log-bilinear", store, bigram_model(store))
    mix([path / "trigram", path / "log-bilinear"], path / "mixed")
    return path


def test_a_mixture_is_the_weighted_mean(folder):
    mixed = load(folder / "mixed")
    components = load(folder / "trigram"), load(folder / "log-bilinear")
    weights = mixed.model.weights
    assert weights.sum() == pytest.approx(1.0)
    assert 0.05 < weights[0] < 0.95
    for line in ("w1 w2 w3", "zebra w1"):
        each = [np.exp([w.log_probability for w in lm.full_scores(line)]) for lm in components]
        both = np.exp([w.log_probability for w in mixed.full_scores(line)])
        np.testing.assert_allclose(both, weights[0] * each[0] + weights[1] * each[1], rtol=1e-5)


def test_weights_maximize_the_likelihood_of_validation_text(folder, tmp_path):
    store = TokenStore.open(folder / "store")
    runs, best = [folder / "trigram", folder / "log-bilinear"], load(folder / "mixed")
    perplexity = best.evaluate_split(store, "valid").perplexity
    for shift in (-0.03, 0.03):
        share = best.model.weights[0] + shift
        shifted = mix(runs, tmp_path / f"{shift}", weights=[share, 1 - share])
        assert shifted.evaluate_split(store, "valid").perplexity > perplexity
    for run in runs:
        assert load(run).evaluate_split(store, "valid").perplexity > perplexity


def test_a_mixture_can_be_a_component(folder, tmp_path):
    nested = mix([folder / "mixed", folder / "bigram"], tmp_path / "nested", weights=[0.25, 0.75])
    mixed, bigram = (np.array([w.log_probability for w in load(folder / name).full_scores("w1 w2")])
                     for name in ("mixed", "bigram"))  # fmt: skip
    expected = np.log(0.25 * np.exp(mixed) + 0.75 * np.exp(bigram))
    found = [w.log_probability for w in nested.full_scores("w1 w2")]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert load(tmp_path / "nested").score("w1 w2") == pytest.approx(expected.sum(), abs=1e-6)


def test_equal_components(folder, tmp_path):
    twice = mix([folder / "bigram", folder / "bigram"], tmp_path / "out")
    assert twice.model.weights.tolist() == [0.5, 0.5]
    assert twice.score("w1 w2") == pytest.approx(load(folder / "bigram").score("w1 w2"))


def test_components_that_do_not_fit_together(folder, tmp_path):
    store_of(tmp_path, ["some other words here"] * 5)
    train_ngram(tmp_path / "store", tmp_path / "other", order=2)
    out, runs = tmp_path / "out", [folder / "bigram", folder / "log-bilinear"]
    with pytest.raises(NcelmError, match="different vocabularies"):
        mix([folder / "bigram", tmp_path / "other"], out)
    boundary = "stream" if load(folder / "bigram").boundary == "sentence" else "sentence"
    texts = {name: folder / name for name in ("train", "valid", "test")}
    prepare(**texts, out=tmp_path / "again", boundary=boundary)
    train_ngram(tmp_path / "again", tmp_path / "same-words", order=2)
    with pytest.raises(NcelmError, match="prepared with different settings"):
        mix([folder / "bigram", tmp_path / "same-words"], out)
    with pytest.raises(NcelmError, match="at least two components"):
        mix([folder / "bigram"], out)
    with pytest.raises(NcelmError, match="prepared with other settings"):
        mix(runs, out, store=tmp_path / "again")
    with pytest.raises(NcelmError, match="no dev split"):
        mix(runs, out, split="dev")
    assert not out.exists()


def test_a_store_that_has_been_moved(folder, tmp_path):
    shutil.copytree(folder / "store", tmp_path / "store")
    train_ngram(tmp_path / "store", tmp_path / "run", order=2)
    (tmp_path / "store").rename(tmp_path / "moved")
    with pytest.raises(NcelmError, match=r"no longer at .*: give its path as `store`, or give `weights`"):
        mix([tmp_path / "run", tmp_path / "run"], tmp_path / "out")
    mix([tmp_path / "run", tmp_path / "run"], tmp_path / "out", store=tmp_path / "moved")


@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.6], [-0.5, 1.5], [float("nan"), 1.0], [0.3, 0.3, 0.4]])
def test_invalid_weights(folder, tmp_path, weights):
    with pytest.raises(NcelmError, match=r"`weights` (are|is)"):
        mix([folder / "bigram", folder / "trigram"], tmp_path / "out", weights=weights)


def test_components_that_are_missing_or_changed(folder, tmp_path):
    for name in ("a", "b"):
        train_ngram(folder / "store", tmp_path / name, order=2)
    mix([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    (tmp_path / "a").rename(tmp_path / "c")
    with pytest.raises(NcelmError, match="does not exist: restore it"):
        load(tmp_path / "out")
    train_ngram(folder / "store", tmp_path / "a", order=3)
    with pytest.raises(NcelmError, match="has changed since"):
        load(tmp_path / "out")


def test_a_component_with_other_parameters(folder, tmp_path):
    shutil.copytree(folder / "log-bilinear", tmp_path / "changed")
    mix([folder / "bigram", tmp_path / "changed"], tmp_path / "out")
    path = tmp_path / "changed/model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(NcelmError, match=r"changed/model.safetensors is damaged \(its checksum is wrong\)"):
        load(tmp_path / "out")


@pytest.mark.parametrize("name", ["log-bilinear", "trigram"])
def test_a_component_that_was_trained_again(folder, tmp_path, name):
    """Its configuration is the same, and its file is intact."""
    shutil.copytree(folder / name, tmp_path / "changed")
    mix([folder / "bigram", tmp_path / "changed"], tmp_path / "out")
    path = tmp_path / "changed/model.safetensors"
    arrays, header = load_file(path), array_files.read_header(path)
    array = arrays["biases" if name == "log-bilinear" else "log_backoffs"]
    array[3] -= 0.5
    order = list(ARRAYS) if name == "trigram" else list(arrays)
    header = {field: value for field, value in header.items() if field not in ("version", "checksum")}
    array_files.write_mapped(path, {each: arrays[each] for each in order}, header)
    assert load(tmp_path / "changed").score("w1 w2") < 0
    with pytest.raises(NcelmError, match="has changed since"):
        load(tmp_path / "out")


def test_deeply_nested_mixtures_load_in_linear_time(folder, tmp_path):
    """Every level names the level below twice: without sharing, each level takes twice as long as the one below."""
    path = folder / "bigram"
    for level in range(9):
        mix([path, path], tmp_path / f"level{level}", weights=[0.5, 0.5])
        path = tmp_path / f"level{level}"
    assert load(path).score("w1 w2") == pytest.approx(load(folder / "bigram").score("w1 w2"))
    with pytest.raises(NcelmError, match="more than 1,000 components"):
        for level in range(9, 12):
            mix([path, path], tmp_path / f"level{level}", weights=[0.5, 0.5])
            path = tmp_path / f"level{level}"
            load(path)


@pytest.mark.parametrize(
    "change",
    [{"parts": None}, {"weights": [1.0]}, {"weights": [0.9, 0.9]}, {"parts": [1, 2]}, {"weights": ["a", "b"]},
     {"kind": "neural"}, {"boundary": "none"}, {"text": 3}, {"store": 5}],
    ids=str,
)  # fmt: skip
def test_a_damaged_mixture(folder, tmp_path, change):
    path = tmp_path / "out"
    mix([folder / "bigram", folder / "trigram"], path, weights=[0.5, 0.5])
    change_json(path / "config.json", change)
    with pytest.raises(NcelmError, match=r"damaged|unknown kind"):
        load(path)


# -- blend -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    """Runs of a text with long sentences of one topic each."""
    path = tmp_path_factory.mktemp("ensemble")
    lines = two_topics(0, 502)  # topics alternate
    store = store_of(path, [f"{a} {b}" for a, b in zip(lines, lines[2:], strict=False)])
    train_ngram(store, path / "ngram", order=2)
    train_lsa(store, path / "lsa", dim=2)
    save_model(path / "log-bilinear", store, bigram_model(store))
    return path


def test_an_ensemble_is_the_weighted_sum(topics, tmp_path):
    names = ["ngram", "lsa", "log-bilinear"]
    model, record = blend([topics / name for name in names], tmp_path / "out")
    assert record["questions"] > 100
    assert record["percent"] >= max(record["parts_percent"]) - 5
    question = Question("1", "the ship and _____ storm the and sail", ("wave", "bread", "oven", "knife", "cook"))
    (ranking,) = rank(model, [question])
    expected = np.zeros(5)
    for name, weights in zip(names, model.weights, strict=True):
        both = rank_both(load_scorer(topics / name), [question])
        for kind, weight in zip(("normalised", "unnormalised"), weights, strict=True):
            scores = np.array(both.get(kind, both["normalised"])[0].scores)
            expected += weight * (scores - scores.mean())
    np.testing.assert_allclose(ranking.scores, expected, atol=1e-5)
    (again,) = rank(load_scorer(tmp_path / "out"), [question])
    np.testing.assert_allclose(again.scores, ranking.scores, atol=1e-6)


def test_the_command(topics, tmp_path, capsys):
    runs = [str(topics / name) for name in ("ngram", "lsa")]
    assert main(["blend", *runs, "--out", str(tmp_path / "out"), "--json"]) == 0
    assert [len(each) for each in json.loads(capsys.readouterr().out)["weights"]] == [2, 2]
    sentence, choices = "ship wave storm the and _____ sail anchor the and", ("bread", "captain", "butter")
    assert main(["complete", str(tmp_path / "out"), sentence, "--choices", ",".join(choices), "--json"]) == 0
    words = json.loads(capsys.readouterr().out)["words"]
    (ranking,) = rank(load_scorer(tmp_path / "out"), [Question("1", sentence, choices)])
    assert [word["word"] for word in words] == [choices[i] for i in ranking.order]
    for verb in ("evaluate", "score"):
        assert main([verb, str(tmp_path / "out")]) == 2
        assert "is a model of kind ensemble, which has no probabilities" in capsys.readouterr().err


def test_ensembles_that_cannot_be_made(topics, tmp_path):
    with pytest.raises(NcelmError, match="at least two components"):
        blend([topics / "ngram"], tmp_path / "out")
    store_of(tmp_path, random_lines(1))
    train_ngram(tmp_path / "store", tmp_path / "other", order=2)
    with pytest.raises(NcelmError, match="different vocabularies or tokenizations"):
        blend([topics / "ngram", tmp_path / "other"], tmp_path / "out")
    with pytest.raises(NcelmError, match="has another vocabulary"):
        blend([topics / "ngram", topics / "lsa"], tmp_path / "out", store=tmp_path / "store")
    train_lsa(tmp_path / "store", tmp_path / "lsa", dim=2)
    with pytest.raises(NcelmError, match="too little valid text"):
        blend([tmp_path / "other", tmp_path / "lsa"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_ensemble(topics, tmp_path):
    blend([topics / "ngram", topics / "lsa"], tmp_path / "out")
    change_json(tmp_path / "out/config.json", {"weights": [["a", 1.0], [1.0, 1.0]]})
    with pytest.raises(NcelmError, match="damaged"):
        load_scorer(tmp_path / "out")
    with pytest.raises(NcelmError, match="exists already"):
        blend([topics / "ngram", topics / "lsa"], tmp_path / "out")
