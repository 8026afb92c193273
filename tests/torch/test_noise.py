"""ncelm.torch.noise: sampling frequencies, agreement with NumPy's noise."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from ncelm import noise as core  # noqa: E402
from ncelm.text.prepare import prepare  # noqa: E402
from ncelm.text.store import TokenStore  # noqa: E402
from ncelm.torch import BigramNoise, NCELoss, Noise  # noqa: E402

D = 4


def test_sampling_frequencies_are_the_probabilities():
    torch.manual_seed(0)
    noise = Noise([1.0, 2.0, 3.0, 94.0])
    n = 200_000
    counts = torch.bincount(noise.sample((n // 2, 2)).flatten(), minlength=4)
    expected = noise.log_prob(torch.arange(4)).exp() * n
    assert float(((counts - expected) ** 2 / expected).sum()) < 16.27  # χ², three degrees of freedom, p = 0.001


@pytest.fixture
def store(tmp_path) -> TokenStore:
    (tmp_path / "text").write_text("a b c\na b b\nc a b\n" * 5)
    return prepare(train=tmp_path / "text", out=tmp_path / "store", boundary="sentence")


def test_bigram_noise_equals_numpy(store):
    known = core.BigramNoise.from_store(store, 2.0)
    noise = BigramNoise(known, dtype=torch.float64)
    size = len(store.vocabulary)
    words = torch.arange(size)
    torch.manual_seed(0)
    for before in range(size + 1):
        expected = known.log_probabilities(before)
        np.testing.assert_allclose(noise.log_prob(words, torch.tensor([before])), expected, rtol=1e-10)
        n = 50_000
        drawn = torch.bincount(noise.sample((n,), torch.tensor([before])), minlength=size).numpy()
        chi2 = np.sum((drawn - n * np.exp(expected)) ** 2 / (n * np.exp(expected)))
        assert chi2 < 18.47  # four degrees of freedom, p = 0.001


def test_bigram_noise_in_the_loss(store):
    noise = BigramNoise(core.BigramNoise.from_store(store, 2.0))
    loss = NCELoss(D, noise.num_classes, noise)
    hidden, target = torch.randn(2, 3, D), torch.randint(noise.num_classes, (2, 3))
    assert torch.isfinite(loss(hidden, target, before=torch.zeros_like(target)))
    with pytest.raises(ValueError, match="give the words `before`"):
        loss(hidden, target)
    with pytest.raises(ValueError, match="any noise but bigram"):
        NCELoss(D, noise.num_classes, noise, shared_noise=True)
    other = BigramNoise(core.BigramNoise.from_store(store, 500.0))
    with pytest.raises(RuntimeError, match="another noise distribution"):
        other.load_state_dict(dict(noise.named_buffers()))  # as in a checkpoint of ncelm 0.1, with α
