"""Noise distributions that live on the device of the model: drawn there, and kept in its state_dict."""

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ncelm import noise as core

Weights: TypeAlias = Tensor | np.ndarray | Sequence[float]


class Noise(nn.Module):
    """A distribution over the classes 0..V-1, drawn from in constant time by an alias table.

    `weights` are counts or probabilities of the classes, each positive: NCE takes the logarithm of every one of them.

    >>> noise = Noise([6.0, 3.0, 1.0])
    >>> noise.log_prob(torch.tensor([0, 2])).exp()
    tensor([0.6000, 0.1000])
    >>> noise.sample((2, 3)).shape
    torch.Size([2, 3])
    """

    log_probabilities: Tensor  # log Pn(w), (V,)
    keep: Tensor  # (V,): column w of the alias table keeps w with this probability …
    alias: Tensor  # (V,) int64: … and gives this class otherwise

    def __init__(self, weights: Weights | core.Noise, *, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if isinstance(weights, Tensor):
            weights = weights.detach().to("cpu", torch.float64).numpy()
        known = weights if isinstance(weights, core.Noise) else core.Noise.from_probabilities(np.asarray(weights))
        precise = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
        kind: dict[str, Any] = {"device": device, "dtype": precise}
        self.register_buffer("log_probabilities", torch.tensor(known.log_probabilities, **kind))
        self.register_buffer("keep", torch.tensor(known.threshold / 2.0**32, **kind))
        self.register_buffer("alias", torch.tensor(known.alias, dtype=torch.int64, device=device))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """To another device or precision, but never to half precision, which is off by a hundredth of log Pn."""
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            now = getattr(self, name)
            if torch.promote_types(now.dtype, torch.float32) != now.dtype and buffer.is_floating_point():
                setattr(self, name, buffer.to(now.device))
        return self

    @property
    def num_classes(self) -> int:
        """V."""
        return len(self.log_probabilities)

    def log_prob(self, words: Tensor, before: Tensor | None = None) -> Tensor:
        """log Pn of these classes; what stood `before` makes no difference."""
        return self.log_probabilities[words]

    def sample(
        self, shape: tuple[int, ...], before: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw so many classes, with replacement, on the device of the buffers; `before` makes no difference."""
        where = self.alias.device
        column = torch.randint(self.num_classes, shape, device=where, generator=generator)
        toss = torch.rand(shape, device=where, dtype=self.keep.dtype, generator=generator)
        return torch.where(toss < self.keep[column], column, self.alias[column])

    def extra_repr(self) -> str:
        """For people."""
        return f"num_classes={self.num_classes}"


class BigramNoise(Noise):
    """Pn(w|v) = (n(v, w) + α Pu(w)) / (n(v) + α): what followed the word before, v, smoothed with the unigram Pu.

    `log_prob` and `sample` need to know the words `before`, which must have the shape of what they ask for, or one that
    can be broadcast to it.
    """

    pairs: Tensor  # (N,) int64, sorted: v V + w of each two neighbours in the training text
    smoothing: Tensor  # α, ()

    def __init__(self, known: core.BigramNoise, *, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(known.unigram, device=device, dtype=dtype)
        self.register_buffer("smoothing", torch.tensor(known.smoothing, dtype=torch.float64, device=device))
        before = np.repeat(np.arange(known.offsets.size - 1), np.diff(known.offsets))
        pairs = torch.from_numpy(before * self.num_classes + known.followers)
        self.register_buffer("pairs", pairs.to(device))

    def _seen(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """Where the followers of v begin among the pairs, and how many there are, for `first` = v V."""
        begin = torch.searchsorted(self.pairs, first)
        return begin, torch.searchsorted(self.pairs, first + self.num_classes) - begin

    def log_prob(self, words: Tensor, before: Tensor | None = None) -> Tensor:
        """log Pn(w|v) of words w after the words v."""
        first = _needed(before).expand(words.shape) * self.num_classes
        _, n = self._seen(first)
        pair = (first + words).contiguous()
        together = torch.searchsorted(self.pairs, pair, right=True) - torch.searchsorted(self.pairs, pair)  # n(v, w)
        unigram = self.log_probabilities[words].exp()
        return torch.log(together + self.smoothing * unigram) - torch.log(n.to(unigram) + self.smoothing)

    def sample(
        self, shape: tuple[int, ...], before: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw what may follow the words v: one of the followers of v in the training text, or any word."""
        begin, n = self._seen(_needed(before).expand(shape).contiguous() * self.num_classes)
        # float64: a text of a billion words has more places than float32 can tell apart
        toss = torch.rand(shape, device=n.device, dtype=torch.float64, generator=generator) * (n + self.smoothing)
        place = begin + torch.minimum(toss.long(), (n - 1).clamp(min=0))
        follower = self.pairs[place.clamp(max=len(self.pairs) - 1)] % self.num_classes
        return torch.where(toss < n, follower, super().sample(shape, generator=generator))


def _needed(before: Tensor | None) -> Tensor:
    if before is None:
        raise ValueError("bigram noise depends on the word before: give the words `before`")
    return before


def noise_like(known: core.Noise | core.BigramNoise) -> Noise:
    """The same distribution as one of the core's."""
    return BigramNoise(known) if isinstance(known, core.BigramNoise) else Noise(known)
