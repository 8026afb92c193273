"""Mixtures: their weights, their probabilities, and parts that do not fit together."""

import json
import shutil

import numpy as np
import pytest
from tests.helpers import random_lines, store_of

from ncelm import load
from ncelm.combine import mix
from ncelm.errors import NcelmError
from ncelm.models.mixture import learn_weights
from ncelm.models.ngram.model import train_ngram
from ncelm.text.prepare import prepare
from ncelm.text.store import TokenStore
from ncelm.training.loop import train


@pytest.fixture(scope="module", params=["sentence", "stream"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("mixture")
    for name, seed in (("train", 1), ("valid", 1), ("test", 1)):
        lines = random_lines(seed, sentences=900)
        part = {"train": lines[:500], "valid": lines[500:700], "test": lines[700:]}[name]
        (path / name).write_text("\n".join(part) + "\n")
    texts = {name: path / name for name in ("train", "valid", "test")}
    store = prepare(**texts, out=path / "store", boundary=request.param)
    train_ngram(store, path / "bigram", order=2)
    train_ngram(store, path / "trigram", order=3)
    train(store, path / "nce", epochs=3, context=2, dim=8, batch_size=50, noise_samples=10)
    mix([path / "bigram", path / "nce"], path / "mixed")
    return path


def test_a_mixture_is_the_weighted_mean(folder):
    mixed = load(folder / "mixed")
    a, b = load(folder / "bigram"), load(folder / "nce")
    weights = mixed.model.weights
    assert weights.sum() == pytest.approx(1.0)
    for line in ("w1 w2 w3", "zebra w1"):
        parts = [np.exp([w.log_probability for w in lm.full_scores(line)]) for lm in (a, b)]
        both = np.exp([w.log_probability for w in mixed.full_scores(line)])
        np.testing.assert_allclose(both, weights[0] * parts[0] + weights[1] * parts[1], rtol=1e-5)


def test_weights_are_the_best_on_validation_text(folder):
    store = TokenStore.open(folder / "store")
    best = load(folder / "mixed")
    perplexity = best.evaluate_split(store, "valid").perplexity
    for shift in (-0.05, 0.05):
        share = float(np.clip(best.model.weights[0] + shift, 0, 1))
        shifted = mix([folder / "bigram", folder / "nce"], folder / f"{shift}", weights=[share, 1 - share])
        assert shifted.evaluate_split(store, "valid").perplexity >= perplexity * (1 - 1e-6)
    for part in ("bigram", "nce"):
        assert load(folder / part).evaluate_split(store, "valid").perplexity >= perplexity * (1 - 1e-6)


def test_a_mixture_can_be_mixed(folder, tmp_path):
    nested = mix([folder / "mixed", folder / "trigram"], tmp_path / "nested", weights=[0.25, 0.75])
    parts = [load(folder / name).score("w1 w2") for name in ("mixed", "trigram")]
    assert nested.full_scores("w1")[0].log_probability < 0
    assert min(parts) <= nested.score("w1 w2") + 1 <= max(parts) + 2


def test_em_finds_the_weights_of_a_known_mixture():
    """Words drawn from 0.7 A + 0.3 B give weights near 0.7 and 0.3."""
    rng = np.random.default_rng(0)
    a, b = rng.dirichlet(np.ones(50) * 0.3), rng.dirichlet(np.ones(50) * 0.3)
    words = rng.choice(50, size=200_000, p=0.7 * a + 0.3 * b)
    weights = learn_weights(np.log(np.stack([a[words], b[words]]) + 1e-300))
    np.testing.assert_allclose(weights, [0.7, 0.3], atol=0.01)


def test_a_useless_part_gets_no_weight():
    logs = np.stack([np.full(1000, -1.0), np.full(1000, -50.0)])
    np.testing.assert_allclose(learn_weights(logs), [1.0, 0.0], atol=1e-6)


# -- mistakes ---------------------------------------------------------------------------------------------------------


def test_parts_that_do_not_fit(folder, tmp_path):
    store_of(tmp_path, ["some other words here"] * 5)
    train_ngram(tmp_path / "store", tmp_path / "other", order=2)
    with pytest.raises(NcelmError, match="different vocabularies"):
        mix([folder / "bigram", tmp_path / "other"], tmp_path / "out")
    boundary = "stream" if load(folder / "bigram").boundary == "sentence" else "sentence"
    texts = {name: folder / name for name in ("train", "valid", "test")}
    prepare(**texts, out=tmp_path / "again", boundary=boundary)
    train_ngram(tmp_path / "again", tmp_path / "same-words", order=2)
    with pytest.raises(NcelmError, match="read text in different ways"):
        mix([folder / "bigram", tmp_path / "same-words"], tmp_path / "out")
    with pytest.raises(NcelmError, match="at least two parts"):
        mix([folder / "bigram"], tmp_path / "out")
    with pytest.raises(NcelmError, match="prepared in another way"):
        mix([folder / "bigram", folder / "nce"], tmp_path / "out", store=tmp_path / "again")
    with pytest.raises(NcelmError, match="no dev split"):
        mix([folder / "bigram", folder / "nce"], tmp_path / "out", split="dev")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.6], [-0.5, 1.5], [float("nan"), 1.0], [0.3, 0.3, 0.4]])
def test_weights_that_are_none(folder, tmp_path, weights):
    with pytest.raises(NcelmError, match="--weights are"):
        mix([folder / "bigram", folder / "nce"], tmp_path / "out", weights=weights)


def test_a_part_that_is_gone_or_another(folder, tmp_path):
    for name in ("a", "b"):
        train_ngram(folder / "store", tmp_path / name, order=2)
    mix([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    (tmp_path / "a").rename(tmp_path / "c")
    with pytest.raises(NcelmError, match="is gone"):
        load(tmp_path / "out")
    train_ngram(folder / "store", tmp_path / "a", order=3)
    with pytest.raises(NcelmError, match="is not the run it was"):
        load(tmp_path / "out")


def test_a_part_that_was_trained_on_is_another(folder, tmp_path):
    shutil.copytree(folder / "nce", tmp_path / "nce")
    mix([folder / "bigram", tmp_path / "nce"], tmp_path / "out")
    for path in (tmp_path / "nce/model.safetensors",):
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(bytes(content))
    with pytest.raises(NcelmError, match="is not the run it was"):
        load(tmp_path / "out")


def test_equal_parts(folder, tmp_path):
    twice = mix([folder / "bigram", folder / "bigram"], tmp_path / "out")
    assert twice.model.weights.tolist() == [0.5, 0.5]
    assert twice.score("w1 w2") == pytest.approx(load(folder / "bigram").score("w1 w2"))


@pytest.mark.parametrize(
    "change",
    [{"parts": None}, {"weights": [1.0]}, {"weights": [0.9, 0.9]}, {"parts": [1, 2]}, {"weights": ["a", "b"]},
     {"kind": "neural"}, {"boundary": "none"}, {"text": 3}, {"store": 5}],
    ids=str,
)  # fmt: skip
def test_a_damaged_description(folder, tmp_path, change):
    path = tmp_path / "out"
    mix([folder / "bigram", folder / "nce"], path, weights=[0.5, 0.5])
    content = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(content | change))
    with pytest.raises(NcelmError, match=r"damaged|unknown kind"):
        load(path)
