"""More noise distributions: uniform, log-uniform, mixtures, distinct classes, frequencies estimated during training."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ncelm import noise as core
from ncelm.torch.checks import at_least_one, positive
from ncelm.torch.noise import Noise, Sampler, Tables, Weights, numbers, random_options, table_dtype


class UniformNoise(Tables):
    """The uniform distribution over V classes, without tables of size V.

    Examples:
        >>> UniformNoise(8).log_prob(torch.tensor([0, 7])).exp()
        tensor([0.1250, 0.1250])
    """

    size: Tensor  # V, ()

    def __init__(self, num_classes: int, *, device: Any = None) -> None:
        super().__init__()
        self.num_classes = at_least_one("num_classes", num_classes)
        self._register("size", num_classes, torch.float64, device)

    def log_prob(self, classes: Tensor, before: Tensor | None = None) -> Tensor:
        """Return −log V; `before` is ignored."""
        return torch.full(classes.shape, -np.log(self.num_classes), device=classes.device)

    def sample(
        self, shape: tuple[int, ...], before: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return classes drawn with replacement; `before` is ignored."""
        return torch.randint(self.num_classes, shape, **random_options(self.size, generator))


class LogUniformNoise(UniformNoise):
    """The log-uniform distribution Pn(w) = log((w + 2) / (w + 1)) / log(V + 1), for classes sorted by frequency.

    It resembles Zipf's law and needs no counts; the first class is the most frequent one.

    Examples:
        >>> LogUniformNoise(3).log_prob(torch.arange(3)).exp()
        tensor([0.5000, 0.2925, 0.2075])
    """

    def log_prob(self, classes: Tensor, before: Tensor | None = None) -> Tensor:
        """Return log Pn of classes; `before` is ignored."""
        ratio = torch.log1p(1.0 / (classes.to(self.size) + 1.0)) / torch.log1p(self.size)
        return ratio.log().to(torch.get_default_dtype())

    def sample(
        self, shape: tuple[int, ...], before: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return classes drawn with replacement; `before` is ignored."""
        # P(w < n) = log(n + 1) / log(V + 1), so that exp(u log(V + 1)) − 1 is rounded down
        uniform = torch.rand(shape, dtype=torch.float64, **random_options(self.size, generator))
        return torch.expm1(uniform * torch.log1p(self.size)).long().clamp(max=self.num_classes - 1)


class MixtureNoise(Tables):
    """A mixture Σ_i λ_i P_i of noise distributions, for example of the unigram and the uniform distribution.

    Args:
        components (sequence of Sampler): modules with the same classes.
        weights (sequence of float): λ_i, positive; they are divided by their sum.

    Examples:
        >>> mixture = MixtureNoise([Noise([6.0, 3.0, 1.0]), UniformNoise(3)], [0.7, 0.3])
        >>> mixture.log_prob(torch.arange(3)).exp()
        tensor([0.5200, 0.3100, 0.1700])
    """

    log_weights: Tensor  # log λ_i, (components,)

    def __init__(self, components: Sequence[Any], weights: Sequence[float], *, device: Any = None) -> None:
        super().__init__()
        self.components = nn.ModuleList(components)
        sizes = {each.num_classes for each in components}
        if len(sizes) != 1:
            raise ValueError(f"the components have {sorted(sizes)} classes: give components with the same classes")
        if len(weights) != len(components) or not all(0.0 < each < np.inf for each in weights):
            raise ValueError(f"weights is {list(weights)}: give one positive number for each component")
        self.num_classes = int(sizes.pop())
        shares = np.asarray(weights, np.float64)
        self._register("log_weights", np.log(shares / shares.sum()), torch.float64, device)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Fill the tables after `to_empty`, if the module was created on the meta device."""
        super().reset_parameters()
        for each in self.components:
            if isinstance(each, Tables):
                each.reset_parameters()

    def log_prob(self, classes: Tensor, before: Tensor | None = None) -> Tensor:
        """Return log Σ_i λ_i P_i of classes."""
        parts = [each.log_prob(classes, before) for each in self._samplers()]
        terms = [log_weight + part for log_weight, part in zip(self.log_weights.unbind(), parts, strict=True)]
        return torch.logsumexp(torch.stack(terms), 0).to(parts[0].dtype)

    def sample(
        self, shape: tuple[int, ...], before: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return classes, each drawn from one of the components."""
        uniform = torch.rand(shape, dtype=torch.float64, **random_options(self.log_weights, generator))
        chosen = torch.searchsorted(self.log_weights.exp().cumsum(0)[:-1], uniform, right=True)
        drawn = [each.sample(shape, before, generator) for each in self._samplers()]
        # drawing from all of them keeps shapes, and so a compiled graph, independent of the choice
        return torch.stack(drawn).gather(0, chosen.unsqueeze(0)).squeeze(0)

    def _samplers(self) -> list[Sampler]:
        return list(self.components)  # type: ignore[arg-type]


class UniqueNoise(Tables):
    """k distinct classes per draw, by systematic sampling with exact inclusion probabilities (Madow 1949).

    Class w is in a sample with probability π_w = min(1, c·p_w), where c is such that Σ_w π_w = k. `log_prob` returns
    log(π_w / k): the losses add log k, so that log π_w, the logarithm of the expected number of draws, is exact. No
    draw is wasted on repetitions of frequent classes. It goes with shared noise, where k is large.

    Args:
        weights (Tensor, ndarray or sequence): counts or probabilities p of the classes, all positive.
        num_noise (int): number of classes in a sample, k, less than V.

    Examples:
        >>> noise = UniqueNoise([6.0, 2.0, 1.0, 1.0], 2)
        >>> (2 * noise.log_prob(torch.arange(4)).exp()).round(decimals=4)  # inclusion probabilities
        tensor([1.0000, 0.5000, 0.2500, 0.2500])
        >>> len(noise.sample((2,)).unique())
        2
    """

    log_probabilities: Tensor  # log(π_w / k), (V,)
    cumulative: Tensor  # π_0 + … + π_w, (V,), float64

    def __init__(
        self, weights: Weights, num_noise: int, *, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        inclusion = inclusion_probabilities(numbers(weights), num_noise)
        self.num_classes, self.num_noise = inclusion.size, num_noise
        cumulative = np.cumsum(inclusion)
        self._register("log_probabilities", np.log(inclusion / num_noise), table_dtype(dtype), device)
        self._register("cumulative", cumulative * (num_noise / cumulative[-1]), torch.float64, device)

    def log_prob(self, classes: Tensor, before: Tensor | None = None) -> Tensor:
        """Return log(π_w / k) of classes; `before` is ignored."""
        return self.log_probabilities.take(classes)

    def sample(
        self, shape: tuple[int, ...], before: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return samples of k classes, (…, k); the classes of a sample are distinct; `before` is ignored."""
        if shape[-1] != self.num_noise:
            raise ValueError(f"samples of {shape[-1]} classes were asked for, and this noise has {self.num_noise}")
        start = torch.rand((*shape[:-1], 1), dtype=torch.float64, **random_options(self.cumulative, generator))
        points = start + torch.arange(self.num_noise, device=start.device)  # one in each unit interval
        return torch.searchsorted(self.cumulative, points, right=True).clamp(max=self.num_classes - 1)


def inclusion_probabilities(weights: np.ndarray, size: int) -> np.ndarray:
    """Return π_w = min(1, c·p_w), (V,), with c such that they sum to `size`."""
    p = np.asarray(weights, np.float64)
    if p.ndim != 1 or not (np.isfinite(p) & (p > 0)).all():
        raise ValueError("weights must be positive, finite numbers, one for each class")
    if not 1 <= size < p.size:
        raise ValueError(f"num_noise is {size}: give a number from 1 to {p.size - 1}, the number of classes less one")
    certain = np.zeros(p.size, bool)  # classes with π = 1
    while True:
        pi = np.where(certain, 1.0, p * ((size - certain.sum()) / p[~certain].sum()))
        if not (more := ~certain & (pi >= 1.0)).any():
            return pi
        certain |= more


class StreamingNoise(Noise):
    """The unigram distribution of the classes seen so far, for data whose frequencies are not known beforehand.

    Call `update` with the targets of each batch. The alias table is built anew after every `interval` updates; until
    then `sample` and `log_prob` use the same former distribution, so that NCE stays exact. The counts are in the
    state_dict.

    Args:
        num_classes (int): number of classes, V.
        interval (int): updates between two tables. Default: 100.
        prior (float): count of every class at the beginning. Default: 1.
        power (float): exponent of the counts. Default: 1.

    Examples:
        >>> noise = StreamingNoise(3, interval=1)
        >>> noise.update(torch.tensor([0, 0, 0, 1]))
        >>> noise.log_prob(torch.arange(3)).exp()
        tensor([0.5714, 0.2857, 0.1429])
    """

    counts: Tensor  # (V,), float64

    def __init__(
        self, num_classes: int, *, interval: int = 100, prior: float = 1.0, power: float = 1.0, device: Any = None
    ) -> None:
        self.interval, self.power, self._updates = at_least_one("interval", interval), power, 0
        prior = positive("prior", prior)
        super().__init__(np.full(at_least_one("num_classes", num_classes), prior), device=device)
        self.register_buffer("counts", torch.full((num_classes,), prior, dtype=torch.float64, device=device))

    @torch.no_grad()
    def update(self, classes: Tensor) -> None:
        """Count classes, of any shape."""
        self.counts.index_add_(0, classes.reshape(-1), torch.ones_like(classes.reshape(-1), dtype=torch.float64))
        self._updates += 1
        if self._updates % self.interval == 0:
            self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Build the tables anew from the counts."""
        known = core.Noise.from_probabilities(self.counts.cpu().numpy() ** self.power)
        for name, values in (
            ("log_probabilities", known.log_probabilities),
            ("keep", known.threshold / 2.0**32),
            ("alias", known.alias),
        ):
            getattr(self, name).copy_(torch.from_numpy(values))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *others)
        if not self.counts.is_meta:
            self.refresh()


class FrequencyEstimate(Tables):
    """Frequencies of classes, estimated from the intervals between the batches that contain them (Yi et al. 2019).

    For each class it keeps two means over the batches that contain it: the number of batches since the last one, B, and
    the number of its occurrences in the batch, C. The estimate of the frequency is C / (B · batch size). The step size
    of the means is `rate`, and larger at the beginning, so that the first 1/rate batches count equally. A class that
    was never seen has the frequency of one that occurs once in all batches so far.

    `InBatchLoss` updates it in training mode. It is in the state_dict.

    Args:
        num_classes (int): number of classes, or of buckets if the ids of classes are hashed.
        rate (float): step size, above 0 and at most 1: the means are over about the last 1/rate batches that contain
            the class. Default: 0.01.
    """

    last: Tensor  # number of the last batch with the class, (V + 1,); the last element stands for ignored classes
    interval: Tensor  # B, (V + 1,)
    times: Tensor  # C, (V + 1,)
    seen: Tensor  # batches with the class, (V + 1,)
    totals: Tensor  # batches and examples so far, (2,)

    def __init__(self, num_classes: int, *, rate: float = 0.01, device: Any = None) -> None:
        super().__init__()
        if not 0.0 < rate <= 1.0:
            raise ValueError(f"rate is {rate}: give a number above 0, at most 1")
        self.num_classes, self.rate = at_least_one("num_classes", num_classes), rate
        for name in ("last", "interval", "times", "seen"):
            self.register_buffer(name, torch.zeros(num_classes + 1, device=device))
        self.register_buffer("totals", torch.zeros(2, dtype=torch.float64, device=device))

    @torch.no_grad()
    def update(self, classes: Tensor, counted: Tensor | None = None) -> None:
        """Count the classes of a batch, (N,), or those with `counted`, bool, (N,)."""
        if counted is None:
            counted = torch.ones_like(classes, dtype=torch.bool)
        self.totals[0] += 1.0
        self.totals[1] += counted.sum()
        found = classes.masked_fill(~counted, self.num_classes)
        # All occurrences of a class write the same numbers. Unlike `unique`, this has a size that a compiler knows.
        times = (found.unsqueeze(1) == found).sum(1).to(self.times)
        step = self.totals[0].to(self.last)
        seen = self.seen.take(found) + 1.0
        rate = (1.0 / seen).clamp(min=self.rate)
        for name, value in (("interval", step - self.last.take(found)), ("times", times)):
            former = getattr(self, name).take(found)
            getattr(self, name)[found] = former + rate * (value - former)
        self.seen[found] = seen
        self.last[found] = step.expand(found.shape)

    def log_prob(self, classes: Tensor, before: Tensor | None = None) -> Tensor:
        """Return the logarithm of the estimated frequencies of classes; `before` is ignored."""
        batches, examples = self.totals.to(self.interval.dtype).clamp(min=1.0).unbind()
        seen = self.seen.take(classes) > 0
        interval = torch.where(seen, self.interval.take(classes), batches)
        times = torch.where(seen, self.times.take(classes), 1.0)
        return torch.log(times / interval * batches / examples)
