"""ncelm.torch.models: agreement with NumPy's log-bilinear model, scores and probabilities of every architecture."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

import ncelm  # noqa: E402
from ncelm.errors import NcelmError  # noqa: E402
from ncelm.kernels import records  # noqa: E402
from ncelm.kernels.threads import Team  # noqa: E402
from ncelm.models.log_bilinear import ModelConfig  # noqa: E402
from ncelm.torch import models  # noqa: E402
from ncelm.torch.models import ARCHITECTURES, LogBilinear  # noqa: E402

V = 30
SHAPES = [
    {"context": 3},
    {"context": 3, "matrices": "diagonal"},
    {"context": 2, "context_after": 2, "tied_embeddings": True},
    {"context": 0, "context_after": 2},
]


def random_model(architecture, **options):
    config = ModelConfig(architecture=architecture, **{"dim": 8, "features": 1000, **options})
    probabilities = np.random.default_rng(0).dirichlet(np.ones(V))
    model = ARCHITECTURES[architecture].initialise(config, probabilities, 1, 0.5)
    with torch.no_grad():  # no parameter is zero
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.1)
    return model


@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_log_bilinear_scores_equal_those_of_numpy(options):
    core = ncelm.LogBilinear.initialise(ModelConfig(dim=8, **options), np.full(V, 1 / V), 3, 0.5)
    module = LogBilinear.from_core(core)
    contexts = np.random.default_rng(0).integers(V + 1, size=(50, core.config.positions))
    with torch.no_grad():
        scores = module.all_scores(torch.from_numpy(contexts))
        np.testing.assert_allclose(scores, core.scores(contexts), atol=1e-5)
        back = module.to_core()
    np.testing.assert_array_equal(back.scores(contexts), core.scores(contexts))
    module.biases.data += 1.0  # memory is shared
    assert core.biases[0] == back.biases[0]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scores_of_some_words_equal_those_of_all(architecture):
    model = random_model(architecture)
    random = torch.Generator().manual_seed(0)
    contexts = torch.randint(V + 1, (6, 4), generator=random)
    if architecture == "lstm":
        contexts, _ = model.hidden_states(contexts, None, 0.0)
        contexts = contexts[:, -1]
    all_scores = model.all_scores(contexts)
    words = torch.randint(V, (6, 3), generator=random)
    torch.testing.assert_close(model.scores(contexts, words), all_scores.gather(1, words))
    torch.testing.assert_close(model.scores(contexts, words[0]), all_scores[:, words[0]])


@pytest.mark.parametrize("boundary", ["stream", "sentence"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_probabilities_do_not_depend_on_the_call(architecture, boundary, monkeypatch):
    """All positions at once, some of them, unnormalised, and one position by `distribution`."""
    monkeypatch.setattr(models, "BLOCK_SCORES", 7 * V)
    monkeypatch.setattr(models, "HISTORY", 16)
    monkeypatch.setattr(models, "BLOCK", 32)
    model = random_model(architecture, context=3)
    random = np.random.default_rng(5)
    ids = random.integers(2, V, size=150)
    ids[random.integers(150, size=12)] = 1
    ids[-1] = 1
    pad = 1 if boundary == "stream" else V
    corpus = records.Corpus(ids, 0, boundary == "sentence", 1, pad)
    with Team(1) as team:
        scores, log_z = model.score_positions(corpus, 0, 150, team)
        parts = [model.score_positions(corpus, first, min(first + 40, 150), team) for first in range(0, 150, 40)]
        np.testing.assert_allclose(np.concatenate([part[0] for part in parts]), scores, atol=1e-5)
        np.testing.assert_allclose(np.concatenate([part[1] for part in parts]), log_z, atol=1e-5)
        bare, zeros = model.score_positions(corpus, 30, 90, team, mode="unnormalised")
        np.testing.assert_allclose(bare, scores[30:90], atol=1e-5)
        assert not zeros.any()
    for position in (0, 1, 5, 30):  # in the first block, whose history is complete for an LSTM
        start = 0
        if boundary == "sentence" and (ids[:position] == 1).any():
            start = int(np.flatnonzero(ids[:position] == 1)[-1]) + 1
        logs = model.distribution(ids[start:position], np.zeros(0, np.int64), pad)
        assert np.exp(logs).sum() == pytest.approx(1.0)
        assert logs[ids[position]] == pytest.approx(scores[position] - log_z[position], abs=1e-5)


def test_lstm_states_of_a_sequence_equal_those_of_single_steps():
    model = random_model("lstm")
    words = torch.randint(V, (1, 12), generator=torch.Generator().manual_seed(0))
    whole, _ = model.hidden_states(words, None, 0.0)
    state = None
    for t in range(12):
        one, state = model.hidden_states(words[:, t : t + 1], state, 0.0)
        torch.testing.assert_close(one[:, 0], whole[:, t])


def test_lstm_states_after_a_reset_do_not_depend_on_earlier_words():
    model = random_model("lstm")
    random = torch.Generator().manual_seed(0)
    words, state = torch.randint(V, (2, 9), generator=random), torch.randn(2, 1, 2, model.hidden_size, generator=random)
    reset = torch.zeros(2, 9, dtype=torch.bool)
    reset[0, 4] = True
    states, _ = model.hidden_states(words, (state[0], state[1]), 0.0, reset)
    alone, _ = model.hidden_states(words[:1, 4:], None, 0.0)
    torch.testing.assert_close(states[0, 4:], alone[0])
    through, _ = model.hidden_states(words, (state[0], state[1]), 0.0)
    torch.testing.assert_close(states[1], through[1])
    torch.testing.assert_close(states[0, :4], through[0, :4])


def test_features_of_a_maximum_entropy_model_are_its_n_grams():
    """Equal n-grams have equal weights. Words outside the n-gram have no effect."""
    model = random_model("maximum-entropy", context=3, context_after=1, features=10**7)
    contexts = torch.tensor([[1, 2, 3, 4], [9, 2, 3, 4], [1, 2, 3, 5], [3, 2, 1, 4]])
    indices = model.features(contexts, torch.tensor([7, 8]))  # (4, 2, 4): one, two, three before; one after
    assert indices.shape == (4, 2, 4)
    assert torch.equal(indices[0, :, :2], indices[1, :, :2])  # one and two words before are the same
    assert not torch.equal(indices[0, :, 2], indices[1, :, 2])
    assert torch.equal(indices[0, :, 3], indices[1, :, 3])
    assert torch.equal(indices[0, :, :3], indices[2, :, :3])
    assert not torch.equal(indices[0, :, 3], indices[2, :, 3])
    assert not (indices[0] == indices[3])[:, :3].any()  # word order matters
    assert not (indices[:, 0] == indices[:, 1]).any()  # the predicted word matters
    assert torch.equal(indices, model.features(contexts, torch.tensor([[7, 8]] * 4)))


def test_a_maximum_entropy_model_has_more_features_than_words():
    with pytest.raises(NcelmError, match="`features` is 30: give more than the 30 words"):
        random_model("maximum-entropy", features=V)
