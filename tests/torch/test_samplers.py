"""ncelm.torch.samplers: each draws classes with the probabilities that it states; NCE with each is consistent."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from ncelm.losses import reference as ref  # noqa: E402
from ncelm.torch import (  # noqa: E402
    FrequencyEstimate,
    LogUniformNoise,
    MixtureNoise,
    NCELoss,
    Noise,
    Sampler,
    StreamingNoise,
    UniformNoise,
    UniqueNoise,
)
from ncelm.torch.samplers import inclusion_probabilities  # noqa: E402

V = 7
WEIGHTS = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 30.0]


def streaming():
    noise = StreamingNoise(V, interval=2)
    for _ in range(2):
        noise.update(torch.arange(V).repeat_interleave(torch.tensor(WEIGHTS).long()))
    return noise


SAMPLERS = {
    "power": lambda: Noise(WEIGHTS, power=0.75),
    "uniform": lambda: UniformNoise(V),
    "log-uniform": lambda: LogUniformNoise(V),
    "mixture": lambda: MixtureNoise([Noise(WEIGHTS), UniformNoise(V), LogUniformNoise(V)], [2, 1, 1]),
    "unique": lambda: UniqueNoise(WEIGHTS, 3),
    "streaming": streaming,
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_expected_numbers_of_draws_are_the_probabilities(kind):
    torch.manual_seed(0)
    sampler, n = SAMPLERS[kind](), 60_000
    assert isinstance(sampler, Sampler)
    assert sampler.num_classes == V
    drawn = sampler.sample((n // 3, 3))
    assert drawn.dtype == torch.int64
    counts = torch.bincount(drawn.flatten(), minlength=V)
    probabilities = sampler.log_prob(torch.arange(V)).exp().double()
    assert float(probabilities.sum()) == pytest.approx(1.0, abs=1e-6)
    # χ², six degrees of freedom, p = 0.001; distinct classes vary less
    assert float(((counts - n * probabilities) ** 2 / (n * probabilities)).sum()) < 22.46
    seeds = [sampler.sample((4, 3), generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*seeds)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_sampler_in_a_loss(kind):
    loss = NCELoss(4, V, SAMPLERS[kind](), 3)
    hidden, target = torch.randn(5, 4, requires_grad=True), torch.randint(V, (5,))
    loss(hidden, target).backward()
    assert torch.isfinite(hidden.grad).all()
    torch.testing.assert_close(loss.bias.exp().sum(), torch.tensor(1.0))
    assert loss.double()(hidden.double(), target).dtype == torch.float64


@pytest.mark.parametrize("kind", [kind for kind in SAMPLERS if kind != "streaming"])
def test_a_sampler_of_the_meta_device_is_filled(kind):
    with torch.device("meta"):
        sampler = SAMPLERS[kind]()
    sampler.to_empty(device="cpu")
    sampler.reset_parameters()
    expected = SAMPLERS[kind]()
    torch.testing.assert_close(sampler.log_prob(torch.arange(V)), expected.log_prob(torch.arange(V)))
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    assert torch.equal(
        sampler.sample((2, 3), generator=generators[0]), expected.sample((2, 3), generator=generators[1])
    )


def test_a_sampler_of_the_user():
    class Even:
        num_classes = V

        def log_prob(self, classes, before=None):
            return torch.where(classes % 2 == 0, 0.2, 1 / 15).log()

        def sample(self, shape, before=None, generator=None):
            return torch.multinomial(self.log_prob(torch.arange(V)).exp(), shape[0] * shape[1], True).view(shape)

    loss = NCELoss(4, V, Even(), 3)
    assert isinstance(loss.noise, Even)
    loss(torch.randn(5, 4), torch.randint(V, (5,))).backward()


def test_tables_never_lose_precision():
    for convert in (lambda noise: noise.float(), lambda noise: noise.bfloat16()):
        noise = convert(UniqueNoise(WEIGHTS, 3))
        assert noise.cumulative.dtype == torch.float64
        assert noise.log_probabilities.dtype == torch.float32


def test_log_uniform_noise_equals_the_reference():
    found = LogUniformNoise(1000).log_prob(torch.arange(1000)).exp()
    np.testing.assert_allclose(found, ref.log_uniform_noise(1000), rtol=1e-5)


def test_unique_noise_is_distinct_and_certain_classes_are_always_drawn():
    torch.manual_seed(0)
    noise = UniqueNoise(WEIGHTS, 3)
    drawn = noise.sample((5000, 3))
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    assert (drawn == 6).any(1).all()  # 30 / 51 · 3 > 1
    inclusion = inclusion_probabilities(np.array(WEIGHTS), 3)
    assert inclusion.sum() == pytest.approx(3.0)
    np.testing.assert_allclose(inclusion, [2 * w / 21 for w in WEIGHTS[:6]] + [1.0])
    with pytest.raises(ValueError, match="samples of 2 classes were asked for"):
        noise.sample((5, 2))
    with pytest.raises(ValueError, match="give a number from 1 to 6"):
        UniqueNoise(WEIGHTS, 7)


def test_the_denominator_of_unique_noise_is_unbiased():
    """The Horvitz–Thompson estimate of Z, exactly: systematic sampling has one sample for each start in [0, 1)."""
    noise, scores = UniqueNoise(WEIGHTS, 3), torch.randn(V, dtype=torch.float64)
    ends = torch.cat([torch.zeros(1, dtype=torch.float64), noise.cumulative % 1.0]).sort().values
    total = 0.0
    for low, high in zip(ends.tolist(), [*ends.tolist()[1:], 1.0], strict=True):
        points = (low + high) / 2 + torch.arange(3, dtype=torch.float64)
        sample = torch.searchsorted(noise.cumulative, points, right=True).clamp(max=V - 1)
        total += (high - low) * float((scores[sample].exp() / (3 * noise.log_prob(sample).double().exp())).sum())
    assert total == pytest.approx(float(scores.exp().sum()), rel=1e-6)


def test_streaming_noise_changes_after_its_interval_and_is_saved():
    noise = StreamingNoise(3, interval=2)
    noise.update(torch.tensor([0, 0]))
    torch.testing.assert_close(noise.log_prob(torch.arange(3)).exp(), torch.full((3,), 1 / 3))
    noise.update(torch.tensor([0, 1]))
    torch.testing.assert_close(noise.log_prob(torch.arange(3)).exp(), torch.tensor([4.0, 2.0, 1.0]) / 7)
    other = StreamingNoise(3, interval=2)
    other.load_state_dict(noise.state_dict())
    torch.testing.assert_close(other.log_prob(torch.arange(3)), noise.log_prob(torch.arange(3)))


@pytest.mark.parametrize("batch", [1, 64])
def test_frequency_estimates_approach_the_frequencies(batch):
    torch.manual_seed(0)
    expected = torch.tensor(ref.log_uniform_noise(50), dtype=torch.float32)
    estimate = FrequencyEstimate(50, rate=0.002)
    for _ in range(40_000 // batch):
        estimate.update(torch.multinomial(expected, batch, replacement=True))
    found = estimate.log_prob(torch.arange(50))
    torch.testing.assert_close(found, expected.log(), rtol=0, atol=0.35)
    assert float((found - expected.log()).abs().mean()) < 0.1
    other = FrequencyEstimate(50)
    other.load_state_dict(estimate.state_dict())
    torch.testing.assert_close(other.log_prob(torch.arange(50)), found)


def test_invalid_arguments_are_rejected():
    for call, message in (
        (lambda: UniformNoise(0), "num_classes is 0"),
        (lambda: MixtureNoise([UniformNoise(3), UniformNoise(4)], [1, 1]), r"components have \[3, 4\] classes"),
        (lambda: MixtureNoise([UniformNoise(3)], [-1.0]), "one positive number for each component"),
        (lambda: UniqueNoise([1.0, -1.0, 2.0], 1), "positive, finite"),
        (lambda: StreamingNoise(3, prior=0.0), "prior is 0"),
        (lambda: FrequencyEstimate(3, rate=0.0), "rate is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
