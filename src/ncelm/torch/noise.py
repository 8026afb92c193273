"""Noise distributions as modules, sampled on the device of the model.

The tables of a distribution are not in the state_dict: the distribution is the one given at construction.
`ncelm.torch.samplers` has more distributions.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from ncelm import noise as core
from ncelm.torch import compiled

Weights: TypeAlias = Tensor | np.ndarray | Sequence[float]


@runtime_checkable
class Sampler(Protocol):
    """What a loss needs of a noise distribution. Implement it, best as an `nn.Module`, to use your own.

    `log_prob` must be the logarithm of the probability with which `sample` draws a class, or more precisely of the
    expected number of its draws, divided by the number of all draws.
    """

    @property
    def num_classes(self) -> int:
        """Number of classes, V."""
        ...

    def log_prob(self, classes: Tensor, before: Tensor | None = None) -> Tensor:
        """Return log Pn of classes (…), given the previous classes, broadcastable to (…)."""
        ...

    def sample(
        self, shape: tuple[int, ...], before: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return classes, int64, drawn given the previous classes, broadcastable to the shape."""
        ...


class Tables(nn.Module):
    """Base of distributions with tables: buffers that are not in the state_dict and keep their precision."""

    def __init__(self) -> None:
        super().__init__()
        self._pending: dict[str, np.ndarray] = {}  # values of tables on the meta device

    def _register(self, name: str, values: np.ndarray | float, dtype: torch.dtype, device: Any) -> None:
        """Register a buffer. Its values are kept while it has none, on the meta device."""
        # from_numpy, unlike tensor and as_tensor, is not affected by `with torch.device(…)`
        buffer = torch.from_numpy(np.array(values)).to(device or torch.get_default_device(), dtype)
        self.register_buffer(name, buffer, persistent=False)
        if buffer.is_meta:
            self._pending[name] = np.asarray(values)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Fill the tables after `to_empty`, if the module was created on the meta device."""
        for name, values in self._pending.items():
            getattr(self, name).copy_(torch.tensor(values))
        if not any(getattr(self, name).is_meta for name in self._pending):
            self._pending.clear()

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: Any,
        unexpected: Any,
        errors: list[str],
    ) -> None:
        """Compare the tables of a checkpoint of ncelm 0.1, which has them, with these."""
        for name in sorted(self._non_persistent_buffers_set):
            buffer, saved = getattr(self, name), state_dict.pop(prefix + name, None)
            if saved is not None and not buffer.is_meta and not _agree(saved, buffer):
                errors.append(
                    f"the checkpoint was trained with another noise distribution ({prefix}{name} differs): "
                    "construct the loss with the same noise, or remove the entries of the noise from the checkpoint"
                )
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move to another device or a better dtype. In half precision the error of log Pn would be about 1 %."""
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            now = getattr(self, name)
            if torch.promote_types(now.dtype, buffer.dtype) != now.dtype:
                setattr(self, name, buffer.to(now.device))
        return self


class Noise(Tables):
    """A distribution over the classes 0..V-1, sampled in constant time with an alias table.

    Args:
        weights (Tensor, ndarray, sequence or ncelm.noise.Noise): counts or probabilities of the classes, all positive,
            because NCE takes their logarithms.
        power (float): exponent of the weights: 1 for the unigram distribution of counts, 0.75 as in word2vec, 0 for a
            uniform distribution. Default: 1.

    Examples:
        >>> noise = Noise([6.0, 3.0, 1.0])
        >>> noise.log_prob(torch.tensor([0, 2])).exp()
        tensor([0.6000, 0.1000])
        >>> noise.sample((2, 3)).shape
        torch.Size([2, 3])
    """

    log_probabilities: Tensor  # log Pn(w), (V,)
    keep: Tensor  # (V,): column w of the alias table returns w with this probability …
    alias: Tensor  # (V,) int64: … and this class otherwise

    def __init__(
        self,
        weights: Weights | core.Noise,
        *,
        power: float = 1.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if isinstance(weights, core.Noise):
            known = weights if power == 1.0 else core.Noise.from_probabilities(weights.probabilities**power)
        else:
            given = numbers(weights)
            known = core.Noise.from_probabilities(given if power == 1.0 else given.astype(np.float64) ** power)
        precise = table_dtype(dtype)
        self._register("log_probabilities", known.log_probabilities, precise, device)
        self._register("keep", known.threshold / 2.0**32, precise, device)
        self._register("alias", known.alias, torch.int64, device)

    @property
    def num_classes(self) -> int:
        """Number of classes, V."""
        return len(self.log_probabilities)

    def log_prob(self, words: Tensor, before: Tensor | None = None) -> Tensor:
        """Return log Pn of classes; `before` is ignored."""
        return self.log_probabilities.take(words)

    def sample(
        self, shape: tuple[int, ...], before: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return classes drawn with replacement, on the device of the buffers; `before` is ignored."""
        options = random_options(self.alias, generator)
        column = torch.randint(self.num_classes, shape, **options)
        uniform = torch.rand(shape, dtype=self.keep.dtype, **options)
        large = not torch.compiler.is_compiling() and column.numel() > compiled.SMALL
        if large and compiled.supports(self.keep):
            return compiled.draw(self.keep, self.alias, uniform, column)
        # `take` is twice as fast as indexing
        return torch.where(uniform < self.keep.take(column), column, self.alias.take(column))

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"num_classes={self.num_classes}"


class BigramNoise(Noise):
    """Bigram noise: Pn(w|v) = (n(v, w) + α Pu(w)) / (n(v) + α), with the previous word v and the unigram Pu.

    `log_prob` and `sample` need the previous words `before`, broadcastable to the shape of their result.

    Args:
        known (ncelm.noise.BigramNoise): the distribution, with its counts.
    """

    pairs: Tensor  # (N,) int64, sorted: v V + w of each bigram of the training text
    smoothing: Tensor  # α, ()

    def __init__(self, known: core.BigramNoise, *, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(known.unigram, device=device, dtype=dtype)
        self._register("smoothing", known.smoothing, torch.float64, device)
        before = np.repeat(np.arange(known.offsets.size - 1), np.diff(known.offsets))
        self._register("pairs", before * self.num_classes + known.followers, torch.int64, device)

    def _bigrams(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first index of v's bigrams in `pairs`, and their number n(v), for `first` = v V."""
        begin = torch.searchsorted(self.pairs, first)
        return begin, torch.searchsorted(self.pairs, first + self.num_classes) - begin

    def log_prob(self, words: Tensor, before: Tensor | None = None) -> Tensor:
        """Return log Pn(w|v) of words w after the words v."""
        first = _required(before).expand(words.shape) * self.num_classes
        _, n = self._bigrams(first)
        pair = (first + words).contiguous()
        count = torch.searchsorted(self.pairs, pair, right=True) - torch.searchsorted(self.pairs, pair)  # n(v, w)
        unigram = self.log_probabilities[words].exp()
        return torch.log(count + self.smoothing * unigram) - torch.log(n.to(unigram) + self.smoothing)

    def sample(
        self, shape: tuple[int, ...], before: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return words drawn from Pn(·|v): a follower of v in the training text, or a word from the unigram."""
        begin, n = self._bigrams(_required(before).expand(shape).contiguous() * self.num_classes)
        # float64: float32 cannot index a text of a billion words
        uniform = torch.rand(shape, dtype=torch.float64, **random_options(n, generator)) * (n + self.smoothing)
        index = begin + torch.minimum(uniform.long(), (n - 1).clamp(min=0))
        follower = self.pairs[index.clamp(max=len(self.pairs) - 1)] % self.num_classes
        return torch.where(uniform < n, follower, super().sample(shape, generator=generator))


def numbers(weights: Weights) -> np.ndarray:
    """Return weights as an array."""
    if isinstance(weights, Tensor):
        return weights.detach().to("cpu", torch.float64).numpy()
    return np.asarray(weights)


def table_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Return the type of tables: float32 or better."""
    return torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)


def random_options(like: Tensor, generator: torch.Generator | None) -> dict[str, Any]:
    """Return the options of a random function. torch.compile does not accept `generator=None` with dynamic shapes."""
    return {"device": like.device} if generator is None else {"device": like.device, "generator": generator}


def _agree(saved: Any, buffer: Tensor) -> bool:
    """Return whether a table of a checkpoint is this one, up to rounding."""
    if not isinstance(saved, Tensor) or saved.shape != buffer.shape:
        return False
    return (
        torch.allclose(saved.to(buffer), buffer)
        if buffer.is_floating_point()
        else torch.equal(saved.to(buffer), buffer)
    )


def _required(before: Tensor | None) -> Tensor:
    if before is None:
        raise ValueError("bigram noise depends on the previous word: give the words `before`")
    return before


def from_core(known: core.Noise | core.BigramNoise) -> Noise:
    """Return the same distribution as a module."""
    return BigramNoise(known) if isinstance(known, core.BigramNoise) else Noise(known)
