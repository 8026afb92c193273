"""Consistency: training recovers a known distribution. tests/kernels/test_recovery.py has further losses."""

import numpy as np
import pytest

from ncelm.language_model import LanguageModel
from ncelm.text.prepare import prepare
from ncelm.training.loop import train

FAMILY = {
    "loss": "family", "family_member": "root", "matrices": "diagonal", "optimizer": "sgd", "log_normalizers": "learned",
    "learning_rate": 0.02, "matrix_lr_scale": 1.0,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"loss": "nce"},
        {"loss": "ml"},
        {"noise": "uniform"},
        {"log_normalizers": "learned", "noise": "bigram"},
        {"shared_noise": True, "noise_samples": 50},
        {"shared_noise": True, "noise_samples": 50, "matrices": "diagonal"},
        {"loss": "importance", "noise_samples": 100},  # biased if there are few samples
        FAMILY,
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_a_known_distribution_is_recovered(tmp_path, options):
    """The text is a Markov chain, which the model can represent: it finds P(w|h), and log Z is 0."""
    random = np.random.default_rng(1)
    size, length = 6, 120_000
    chain = random.dirichlet(np.full(size, 0.7), size=size)
    words, word = [], 0
    for u in random.random(length):
        word = min(int(np.searchsorted(np.cumsum(chain[word]), u)), size - 1)
        words.append(word)
    lines = [" ".join(f"w{w}" for w in words[i : i + 1000]) for i in range(0, length, 1000)]
    (tmp_path / "text").write_text("\n".join(lines))
    store = prepare(train=tmp_path / "text", out=tmp_path / "store", boundary="stream")
    defaults = {"epochs": 4} | ({} if options.get("loss") == "ml" else {"noise_samples": 20})
    options = defaults | options
    train(store, tmp_path / "run", context=1, dim=12, batch_size=200, **options)
    lm = LanguageModel.load(tmp_path / "run")
    ids = np.array([lm.vocabulary.id(f"w{w}") for w in range(size)])
    log_p = lm.model.log_probabilities(ids[:, None])[:, ids]
    divergence = np.sum(chain * (np.log(np.maximum(chain, 1e-12)) - log_p), axis=1)
    assert divergence.max() < 0.02
    scores = lm.model.scores(ids[:, None]).astype(np.float64)
    log_z = np.log(np.exp(scores).sum(axis=1))
    # the likelihood does not determine log Z, and learned log-normalizers compensate for it
    if options.get("loss") not in ("ml", "importance") and options.get("log_normalizers") != "learned":
        assert np.abs(log_z).max() < 0.1
