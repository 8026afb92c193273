"""Normalizers: their fit and error, the file in the run directory, and what is rejected."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.helpers import numeric_gradient, save_model, store_of

import ncelm
from ncelm.combine import mix
from ncelm.errors import NcelmError
from ncelm.io import run
from ncelm.io.array_files import read_header, write_arrays
from ncelm.io.files import exclusive_lock
from ncelm.kernels import records
from ncelm.kernels.threads import Team
from ncelm.models import fit_normalizer as fitting
from ncelm.models.fit_normalizer import fit_normalizer, log_sum_exp
from ncelm.models.log_bilinear import LogBilinear, ModelConfig
from ncelm.models.ngram.estimate import train_ngram
from ncelm.models.normalizer import Normalizer, NormalizerError, read_error
from ncelm.training import loop
from ncelm.training.loop import train

UNITS = 8
SMALL = {"units": UNITS, "contexts": 2000, "threads": 1}


def random_model(store, seed=0, **options):
    config = ModelConfig(**({"context": 2, "dim": 6} | options))
    frequencies = store.vocabulary.counts + 1.0
    return LogBilinear.initialise(config, frequencies / frequencies.sum(), seed=seed, init_std=0.7)


@pytest.fixture(scope="module")
def saved(cycle_store, tmp_path_factory):
    """A run with a normalizer."""
    folder = save_model(tmp_path_factory.mktemp("normalizer") / "run", cycle_store, random_model(cycle_store))
    fit_normalizer(folder, **SMALL)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A run that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


def change_file(folder, arrays=None, **header):
    """Change arrays or fields of the header, with a correct checksum, as an attacker could."""
    path = folder / run.NORMALIZER
    former = {name: value for name, value in read_header(path).items() if name not in ("version", "checksum", "run")}
    write_arrays(path, load_file(path) | (arrays or {}), former | header)


# -- fit -------------------------------------------------------------------------------------------------------------


def test_derivatives_of_the_estimate():
    random = np.random.default_rng(0)
    q, vectors, biases = random.normal(size=(1, 5)), random.normal(size=(3, 5)), random.normal(size=3)
    _, weights = log_sum_exp(q, vectors, biases)
    expected = numeric_gradient(lambda b: log_sum_exp(q, vectors, b)[0][0], biases)
    np.testing.assert_allclose(weights[0], expected, atol=1e-8)


@pytest.mark.parametrize(
    "options",
    [{}, {"matrices": "diagonal"}, {"context_after": 2}, {"tied_embeddings": True}, {"context": 0, "context_after": 1}],
    ids=str,
)
def test_the_fit_is_better_than_its_start(cycle_store, tmp_path, options):
    """Than the most frequent words with one offset; its error is the one it reports."""
    model = random_model(cycle_store, **options)
    fitted = fit_normalizer(save_model(tmp_path / "run", cycle_store, model), **SMALL)
    valid = cycle_store.split("valid")
    ids, end, pad = records.read_only(valid.ids), cycle_store.vocabulary.end_id, cycle_store.pad_id
    corpus = records.Corpus(ids, 0, True, end, pad)
    with Team(1) as team:
        scores, exact = model.score_positions(corpus, 0, valid.tokens, team)
        _, fast = replace(model, normalizer=fitted).score_positions(corpus, 0, valid.tokens, team, "fast")
        start = Normalizer(model.target_vectors[:UNITS].copy(), model.biases[:UNITS].copy(), fitted.error)
        _, frequent = replace(model, normalizer=start).score_positions(corpus, 0, valid.tokens, team, "fast")
    used = scores < np.minimum(fast, frequent)  # elsewhere log Z is bounded by the score
    assert (fast - exact)[used].std() < 0.5 * (frequent - exact)[used].std()
    assert abs((fast - exact)[used].mean()) < 0.1
    assert fitted.error.contexts == 10_000
    assert fitted.error.std == pytest.approx((fast - exact)[used].std(), rel=0.35)
    assert fitted.error.largest >= abs(fitted.error.mean)


def test_as_many_units_as_words_are_exact(cycle_store, tmp_path):
    folder = save_model(tmp_path / "run", cycle_store, random_model(cycle_store))
    fitted = fit_normalizer(folder, units=1000, threads=1)
    assert len(fitted.biases) == len(cycle_store.vocabulary)
    assert fitted.error.largest < 1e-5
    lm = ncelm.load(folder)
    assert lm.score("w1 w2 w3", mode="fast") == pytest.approx(lm.score("w1 w2 w3"), abs=1e-5)


def test_the_same_bytes_for_any_number_of_threads(saved, folder):
    expected = (saved / run.NORMALIZER).read_bytes()
    for threads in (2, 3):
        fit_normalizer(folder, **(SMALL | {"threads": threads}))
        assert (folder / run.NORMALIZER).read_bytes() == expected
    fit_normalizer(folder, **SMALL, seed=1)
    assert (folder / run.NORMALIZER).read_bytes() != expected


@pytest.mark.parametrize("boundary", ["stream", "sentence"])
def test_a_text_in_place_of_the_store(tmp_path, boundary):
    lines = ["the cat sat on the mat", "a dog", "the dog sat"] * 20
    store = store_of(tmp_path, lines, boundary)
    folder = save_model(tmp_path / "run", store, random_model(store))
    calls = []
    options = {"units": 5, "contexts": 500, "threads": 1, "progress": lambda *call: calls.append(call)}
    fitted = fit_normalizer(folder, file=tmp_path / "text", **options)
    assert calls[-1] == (500 + fitting.HELD_OUT,) * 2
    assert fitted.error.std < 1.0
    (tmp_path / "short").write_text("the cat\n")
    with pytest.raises(NcelmError, match="at least ten words"):
        fit_normalizer(folder, file=tmp_path / "short", threads=1)
    with pytest.raises(NcelmError, match="None if `file` is given"):
        fit_normalizer(folder, store, file=tmp_path / "text")


def test_a_store_without_validation_text(tmp_path):
    (tmp_path / "text").write_text("the cat sat on the mat\n" * 20)
    store = ncelm.prepare(train=tmp_path / "text", out=tmp_path / "store")
    folder = save_model(tmp_path / "run", store, random_model(store))
    assert fit_normalizer(folder, store, units=3, contexts=50, threads=1).error.contexts == 10_000


# -- use -------------------------------------------------------------------------------------------------------------


def test_fast_scores_of_a_loaded_run(saved, cycle_store):
    lm = ncelm.load(saved, threads=1)
    error = lm.normalizer_error
    assert error == read_error(saved)
    lines = ["w1 w2 w3 w4", "", "w5 zebra"] * 20
    exact, fast = lm.score(lines), lm.score(lines, mode="fast")
    assert fast != exact
    assert fast == pytest.approx(exact, abs=5 * 6 * error.std)
    words = [word.log_probability for word in lm.full_scores(lines[0], mode="fast")]
    assert sum(words) == pytest.approx(fast[0])
    assert [lm.score(line, mode="fast") for line in lines] == fast
    assert lm.score(lines[0], end=False, mode="fast") == pytest.approx(sum(words[:-1]))
    assert lm.perplexity(lines) == ncelm.load(saved).perplexity(lines)  # always exact


def test_fast_scores_of_a_mixture(saved, cycle_store, tmp_path):
    """Its components are fast, or normalised anyway."""
    train_ngram(cycle_store, tmp_path / "ngram", order=2)
    mix([saved, tmp_path / "ngram"], tmp_path / "mixture", weights=[0.5, 0.5])
    mixture, ngram = ncelm.load(tmp_path / "mixture"), ncelm.load(tmp_path / "ngram")
    assert mixture.normalizer_error is None
    line = "w1 w2 w3 w4"
    assert ngram.score(line, mode="fast") == ngram.score(line)
    neural = [word.log_probability for word in ncelm.load(saved).full_scores(line, mode="fast")]
    other = [word.log_probability for word in ngram.full_scores(line)]
    expected = np.log(0.5 * np.exp(neural) + 0.5 * np.exp(other)).sum()
    assert mixture.score(line, mode="fast") == pytest.approx(expected)
    with pytest.raises(NcelmError, match=r"of kind mixture: only log-bilinear models .* component"):
        fit_normalizer(tmp_path / "mixture")
    with pytest.raises(NcelmError, match="of kind ngram: only log-bilinear"):
        fit_normalizer(tmp_path / "ngram")


# -- the file --------------------------------------------------------------------------------------------------------


def test_it_belongs_to_the_parameters(folder, cycle_store):
    model = ncelm.load(folder).model
    model.biases[3] += 0.5
    write_arrays(folder / run.MODEL, model.arrays(), {"kind": "log-bilinear"})
    lm = ncelm.load(folder)
    assert lm.normalizer_error is None
    assert read_error(folder) is None
    assert np.isfinite(lm.score("w1 w2"))
    with pytest.raises(NcelmError, match="has no normalizer for its parameters"):
        lm.score("w1 w2", mode="fast")
    fit_normalizer(folder, **SMALL)
    assert ncelm.load(folder).normalizer_error is not None


def test_a_file_of_another_run(folder, cycle_store, tmp_path):
    other = save_model(tmp_path / "other", cycle_store, random_model(cycle_store, dim=7))
    shutil.copy(folder / run.NORMALIZER, other / run.NORMALIZER)
    with pytest.raises(NcelmError, match=r"does not fit its config|of another run"):
        ncelm.load(other)


@pytest.mark.parametrize(
    "header",
    [
        {"kind": "log-bilinear"},
        {"units": 0},
        {"units": -1},
        {"units": 2**40},
        {"units": True},
        {"units": "8"},
        {"units": None},
        {"parameters": None},
        {"parameters": 5},
        {"error": None},
        {"error": {"contexts": 1, "mean": 0.0, "std": 0.0}},
        {"error": {"contexts": 0, "mean": 0.0, "std": 0.0, "largest": 0.0}},
        {"error": {"contexts": 1.5, "mean": 0.0, "std": 0.0, "largest": 0.0}},
        {"error": {"contexts": 1, "mean": "0", "std": 0.0, "largest": 0.0}},
        {"error": {"contexts": 1, "mean": 10**400, "std": 0.0, "largest": 0.0}},
        {"error": [1, 0.0, 0.0, 0.0]},
    ],
    ids=lambda header: json.dumps(header)[:60],
)
def test_impossible_headers(folder, header):
    change_file(folder, **header)
    with pytest.raises(NcelmError, match=r"normalizer.safetensors is damaged: delete it, or make it again"):
        ncelm.load(folder)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"vectors": np.zeros((UNITS, 5), np.float32)}, "does not fit"),
        ({"vectors": np.zeros((UNITS + 1, 6), np.float32)}, "does not fit"),
        ({"biases": np.zeros(UNITS)}, "does not fit"),
        ({"biases": np.full(UNITS, np.nan, np.float32)}, "not finite or too large"),
        ({"vectors": np.full((UNITS, 6), 1e5, np.float32)}, "not finite or too large"),
        ({"more": np.zeros(1, np.float32)}, "also has more"),
    ],
)
def test_impossible_arrays(folder, arrays, message):
    change_file(folder, arrays)
    with pytest.raises(NcelmError, match=message):
        ncelm.load(folder)


@pytest.mark.parametrize("keep", [0, 5, 200, -3])
def test_a_truncated_file(folder, keep):
    path = folder / run.NORMALIZER
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(NcelmError, match="damaged"):
        ncelm.load(folder)


def test_a_run_that_is_being_trained(folder):
    with exclusive_lock(folder / run.LOCK, ""), pytest.raises(NcelmError, match="is being trained by another process"):
        fit_normalizer(folder, **SMALL)


def test_parameters_without_a_checksum(folder, monkeypatch):
    monkeypatch.setattr("ncelm.models.normalizer._current_parameters", lambda folder: None)
    with pytest.raises(NcelmError, match="has no checksum, to which a normalizer refers"):
        fit_normalizer(folder, **SMALL)


def test_a_store_with_another_vocabulary(folder, tmp_path):
    store = store_of(tmp_path, ["another text"] * 20)
    with pytest.raises(NcelmError, match="has another vocabulary than the model"):
        fit_normalizer(folder, store)


def test_folders_that_are_not_runs(tmp_path):
    with pytest.raises(NcelmError, match="is not a run"):
        fit_normalizer(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_errors_are_shown_with_their_unit():
    error = NormalizerError.of(np.array([0.1, -0.3]))
    assert str(error) == "-0.1000 ± 0.2000 nats per word (2 held-out contexts)"
    assert error.largest == pytest.approx(0.3)


# -- training --------------------------------------------------------------------------------------------------------


def test_training_on_much_text_ends_with_a_normalizer(cycle_store, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "WORDS_FOR_NORMALIZER", 1000)
    monkeypatch.setattr(fitting, "UNITS", 5)
    monkeypatch.setattr(fitting, "CONTEXTS", 500)
    options = {"dim": 4, "context": 2, "batch_size": 50, "epochs": 1, "progress": False}
    for threads in (1, 2):
        train(cycle_store, tmp_path / str(threads), threads=threads, **options)
    expected = (tmp_path / "1" / run.NORMALIZER).read_bytes()
    assert (tmp_path / "2" / run.NORMALIZER).read_bytes() == expected
    (tmp_path / "1" / run.NORMALIZER).unlink()  # as if the process had been killed before
    train(cycle_store, tmp_path / "1", threads=1, resume=True, **options)
    assert (tmp_path / "1" / run.NORMALIZER).read_bytes() == expected
    assert ncelm.load(tmp_path / "1").normalizer_error.std < 1.0
    train(cycle_store, tmp_path / "none", threads=1, **(options | {"epochs": 0.1}))
    assert not (tmp_path / "none" / run.NORMALIZER).exists()
