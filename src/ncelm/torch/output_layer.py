"""The base class of the losses that own an output layer.

A loss is a subclass that implements `losses`: a function of the sampled scores of a batch.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (PyTorch's convention)
from torch import Tensor, nn

from ncelm.torch import exact
from ncelm.torch.checks import at_least_one
from ncelm.torch.functional import Reduction, accidental_hits, check_reduction
from ncelm.torch.noise import BigramNoise, Noise, Sampler, Weights
from ncelm.torch.scores import pair_scores, shared_scores


class Batch(NamedTuple):
    """A batch with one row for each (example, target) pair."""

    input: Tensor  # hidden vectors, (N, d), float32 or better; 0 where the target is ignored
    targets: Tensor  # classes, (N,), int64; 0 where they are ignored
    positives: Tensor  # all targets of the example, (N, T); -1 where they are ignored
    shares: Tensor | None  # weight of the pair in the loss, (N,): 1 / (targets of the example), 0 if ignored; None: 1
    counted: Tensor | None  # examples that have a target, (examples,); None: all, with one target each
    shape: torch.Size  # of the examples, (…)

    def repeat(self, values: Tensor | None) -> Tensor | None:
        """Return values (…) of the examples as those of the pairs, (N,)."""
        if values is None:
            return None
        return values.reshape(-1).repeat_interleave(self.positives.shape[1])


class Samples(NamedTuple):
    """Noise samples of a batch, and log Pn."""

    noise: Tensor  # classes, (N, k), or (k,) for shared noise
    target_log_noise: Tensor  # log Pn, (N,)
    noise_log_noise: Tensor  # log Pn, as `noise`
    hits: Tensor | None  # noise samples that are targets of their example, (N, k), or None to keep them


class SampledScores(NamedTuple):
    """Scores and log Pn of targets and noise samples."""

    target: Tensor  # s(w, h), (N,)
    noise: Tensor  # s(w, h), (N, k)
    target_log_noise: Tensor  # log Pn, (N,)
    noise_log_noise: Tensor  # log Pn, (N, k), or (k,) for shared noise
    hits: Tensor | None  # noise samples that are targets of their example, (N, k), or None to keep them


class SampledLoss(nn.Embedding):
    """Base of the losses: weight and bias of V classes, noise, checks of batches, the exact distribution.

    It is an `nn.Embedding`, a table of class vectors, because DistributedDataParallel recognizes parameters with sparse
    gradients by this type.
    """

    weight: nn.Parameter  # q_w, (V, d)
    bias: nn.Parameter | None  # b_w, (V,)
    noise: Sampler
    remove_accidental_hits = False

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        noise: Sampler | Weights,
        num_noise: int = 25,
        *,
        shared_noise: bool = False,
        bias: bool | nn.Parameter = True,
        tied_weight: nn.Parameter | None = None,
        sparse: bool = False,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        validate: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Module.__init__(self)  # that of nn.Embedding would create and initialize a weight
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_classes, in_features, None
        self.max_norm, self.norm_type, self.scale_grad_by_freq = None, 2.0, False
        self.tied: set[str] = set()  # parameters that belong to the caller
        self.group: dist.ProcessGroup | None = None  # ranks that share the rows; see shard_rows
        check_reduction(reduction)
        self.in_features, self.num_classes = in_features, num_classes
        self.num_noise = at_least_one("num_noise", num_noise)
        self.shared_noise, self.sparse, self.validate = shared_noise, sparse, validate
        self.reduction: Reduction = reduction
        self.ignore_index = ignore_index
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.noise = noise if isinstance(noise, Sampler) else Noise(noise, **factory)
        if self.noise.num_classes != num_classes:
            raise ValueError(f"the noise is over {self.noise.num_classes} classes, and num_classes is {num_classes}")
        if shared_noise and isinstance(self.noise, BigramNoise):
            raise ValueError("shared_noise goes with any noise but bigram, which depends on the previous word")
        for name, given in (("tied_weight", tied_weight), ("bias", bias)):
            if isinstance(given, Tensor) and not isinstance(given, nn.Parameter):
                raise TypeError(f"{name} is a tensor and not an nn.Parameter, so it would not be trained: give one")
        if tied_weight is None:
            self.weight = nn.Parameter(torch.empty(num_classes, in_features, **factory))
            self.tied.discard("weight")
        else:
            shape = tuple(tied_weight.shape)
            if len(shape) != 2 or shape[0] < num_classes or shape[1] != in_features:
                raise ValueError(f"tied_weight is {shape}: it must be ({num_classes} or more, {in_features})")
            self.weight = tied_weight
        if isinstance(bias, nn.Parameter):
            if bias.shape != (num_classes,):
                raise ValueError(f"bias is {tuple(bias.shape)}: it must be ({num_classes},)")
            self.bias = bias
        else:
            self.register_parameter("bias", nn.Parameter(torch.empty(num_classes, **factory)) if bias else None)
            self.tied.discard("bias")
        self.reset_parameters()

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Add a parameter. One that is assigned later (`loss.weight = embedding.weight`) belongs to the caller."""
        super().register_parameter(name, param)
        self.tied.add(name)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize weights uniformly and biases to log Pn; parameters given by the caller keep their values.

        After construction on the meta device and `to_empty`, this also fills the tables of the noise.
        """
        if isinstance(self.noise, Noise):
            self.noise.reset_parameters()
        if "weight" not in self.tied:
            nn.init.uniform_(self.weight, -(self.in_features**-0.5), self.in_features**-0.5)
        if self.bias is not None and "bias" not in self.tied:
            self._reset_bias(self.bias)

    def _reset_bias(self, bias: Tensor) -> None:
        first, last = self._range(self.group)
        bias.copy_(self._log_noise()[first:last])

    def _log_noise(self) -> Tensor:
        """Return log Pn of all classes, (V,); of bigram noise that of the unigram distribution."""
        if isinstance(self.noise, BigramNoise):
            return self.noise.log_probabilities
        return self.noise.log_prob(torch.arange(self.num_classes, device=self.weight.device))

    def _range(self, group: dist.ProcessGroup | None) -> tuple[int, int]:
        """Return the first class of this rank, and the first one after its last."""
        if group is None:
            return 0, self.num_classes
        from ncelm.torch.sharding import class_range

        return class_range(self.num_classes, group)

    # -- exact distribution -------------------------------------------------------------------------------------------

    def nll(self, input: Tensor, target: Tensor, *, sample_weight: Tensor | None = None) -> Tensor:
        """Return the exact negative log-likelihood −log P, in training and in evaluation mode.

        The exponential of its mean is a perplexity. Memory is bounded: scores are computed in blocks of classes. If the
        rows are divided among ranks, every rank calls this with its own examples; the result has no gradient then.

        Args:
            input (Tensor): hidden vectors, (…, in_features).
            target (Tensor): class indices, (…), or (…, T) for several targets per example.
            sample_weight (Tensor): weights of the examples, (…).
        """
        batch = self._prepare(input, target)
        with _full_precision(input):
            if (shard := self._shard()) is not None:
                from ncelm.torch import sharding

                losses = sharding.negative_log_likelihood(shard, batch.input, batch.targets)
            else:
                table, bias = self.weight[: self.num_classes], self._exact_bias(self.bias, None)
                losses = exact.negative_log_likelihood(batch.input, table, bias, batch.targets)
            return self._reduced(losses, batch, sample_weight)

    def top_k(self, input: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k highest scores in descending order, and their classes: (…, in_features) → (…, k) each.

        Memory is bounded: scores are computed in blocks of classes. Scores are not normalized.
        """
        flat = input.reshape(-1, self.in_features).to(score_dtype(self.weight))
        with _full_precision(input):
            if (shard := self._shard()) is not None:
                from ncelm.torch import sharding

                values, classes = sharding.top_k(shard, flat, k, self.num_classes)
            else:
                table, bias = self.weight[: self.num_classes], self._exact_bias(self.bias, None)
                values, classes = exact.top_k(flat, table, bias, k)
        shape = (*input.shape[:-1], k)
        return values.view(shape), classes.view(shape)

    def predict(self, input: Tensor) -> Tensor:
        """Return the most likely class, (…, in_features) → (…)."""
        return self.top_k(input, 1)[1].squeeze(-1)

    def log_prob(self, input: Tensor) -> Tensor:
        """Return the exact log-probability of every class, (…, in_features) → (…, num_classes), float32 or better.

        All of them are held in memory at once; `nll` and `top_k` are not limited in this way.
        """
        if self.group is not None:
            raise RuntimeError("the rows are divided among ranks, and none has all scores: use nll or top_k")
        weight: Any = self.weight
        bias: Any = self.bias
        if hasattr(weight, "full_tensor"):  # a DTensor of FSDP2, outside of forward
            weight, bias = weight.full_tensor(), None if bias is None else bias.full_tensor()
        bias, dtype = self._exact_bias(bias, None), score_dtype(self.weight)
        with _full_precision(input):
            table = weight[: self.num_classes].to(dtype)
            return F.log_softmax(F.linear(input.to(dtype), table, None if bias is None else bias.to(dtype)), -1)

    def _exact_bias(self, bias: Tensor | None, group: dist.ProcessGroup | None) -> Tensor | None:
        """Return what is added to the products in the exact distribution, given the biases of this rank, (V_r,)."""
        return bias

    def _shard(self) -> Any:
        """Return the rows of this rank, or None if this process has all rows."""
        weight: Any = self.weight
        bias: Any = self.bias
        group = self.group
        if group is None and hasattr(weight, "to_local"):  # a DTensor of FSDP2, outside of forward
            if len(weight) != self.num_classes:
                raise RuntimeError("the divided weight has more rows than there are classes: use log_prob")
            group = weight.device_mesh.get_group()
            weight, bias = weight.to_local(), None if bias is None else bias.to_local()
        if group is None:
            return None
        from ncelm.torch.sharding import Shard

        return Shard(weight, self._exact_bias(bias, group), self._range(group)[0], group)

    # -- loss ---------------------------------------------------------------------------------------------------------

    def losses(self, scores: SampledScores, **values: Tensor | None) -> Tensor:
        """Return the loss of each (example, target) pair, (N,). Subclasses implement it."""
        raise NotImplementedError

    def forward(  # type: ignore[override]
        self,
        input: Tensor,
        target: Tensor,
        *,
        sample_weight: Tensor | None = None,
        before: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the loss, or in evaluation mode −log P.

        Args:
            input (Tensor): hidden vectors, (…, in_features).
            target (Tensor): class indices, (…), or (…, T) for several targets per example: the loss of an example is
                the mean over its targets, without those that are `ignore_index`.
            sample_weight (Tensor): weights of the examples, (…), not negative. The mean is Σ w·loss / Σ w.
            before (Tensor): previous words, (…), for bigram noise.
            generator (torch.Generator): source of the noise samples; not with torch.compile(fullgraph=True) and not in
                torch.utils.checkpoint, which compute with torch's global generator.
        """
        return self._loss(input, target, sample_weight, before, generator)

    def _loss(
        self,
        input: Tensor,
        target: Tensor,
        sample_weight: Tensor | None,
        before: Tensor | None,
        generator: torch.Generator | None,
        **values: Tensor | None,
    ) -> Tensor:
        """Return the loss, or in evaluation mode −log P. `values`, (…), are further arguments of `losses`."""
        if not self.training:
            return self.nll(input, target, sample_weight=sample_weight)
        batch = self._prepare(input, target)
        with _full_precision(input):
            samples = self._draw(batch, before, generator)
            losses = self._sampled_losses(batch, samples, **{name: batch.repeat(each) for name, each in values.items()})
            return self._reduced(losses, batch, sample_weight)

    def _reduced(self, losses: Tensor, batch: Batch, sample_weight: Tensor | None) -> Tensor:
        """Return the reduced losses. The mean over no targets is 0, with a gradient of zeros.

        NaN, as in torch, would destroy the parameters; an error on one rank would block the others.
        """
        if batch.counted is None and sample_weight is None and self.reduction == "mean":
            return losses.mean()
        if batch.counted is None or batch.shares is None:
            per_example, weights = losses, torch.ones_like(losses)
        else:
            per_example = (losses * batch.shares).view(len(batch.counted), batch.positives.shape[1]).sum(1)
            weights = batch.counted.to(losses.dtype)
        if sample_weight is not None:
            if sample_weight.shape != batch.shape:
                raise ValueError(f"sample_weight is {tuple(sample_weight.shape)}: it must be {tuple(batch.shape)}")
            weights = weights * sample_weight.reshape(-1)
            per_example = per_example * sample_weight.reshape(-1)
        match self.reduction:
            case "none":
                return per_example.view(batch.shape)
            case "sum":
                return per_example.sum()
        total = weights.sum()
        return per_example.sum() / torch.where(total > 0, total, 1.0)

    def _prepare(self, input: Tensor, target: Tensor) -> Batch:
        """Return the checked batch, with one row for each (example, target) pair."""
        several = target.dim() == input.dim() > 1
        examples = target.shape[:-1] if several else target.shape
        if input.dim() == 0 or input.shape[:-1] != examples or input.shape[-1] != self.in_features:
            raise ValueError(
                f"input is {tuple(input.shape)} and target {tuple(target.shape)}: "
                f"they must be (…, {self.in_features}) and (…), or (…, T) for several targets"
            )
        if target.is_floating_point():
            raise TypeError(f"target is {target.dtype}: class indices are integers")
        number = target.shape[-1] if several else 1  # T
        flat, positives = input.reshape(-1, self.in_features), target.reshape(-1, number).long()
        # reading values would synchronize with the device, or break the compiled graph
        readable = flat.device.type == "cpu" and not torch.compiler.is_compiling()
        if readable and not several and self._all_counted(positives):
            if self.validate and not math.isfinite(flat.detach().sum().item()):
                self._check_input(flat)
            return Batch(flat.to(score_dtype(self.weight)), positives.view(-1), positives, None, None, examples)
        counted = positives != self.ignore_index  # (examples, T)
        any_counted = counted.any(1) if several else counted.squeeze(1)
        if self.validate and readable:
            self._check(flat, positives, counted, any_counted)
        dtype = score_dtype(self.weight)
        flat = flat.to(dtype)
        if not (readable and bool(counted.all())):
            # ignored inputs may be NaN and must not reach a gradient
            flat = flat.masked_fill(~any_counted.unsqueeze(1), 0.0)
            positives = positives.masked_fill(~counted, -1)
        shares = counted.to(dtype)
        return Batch(
            input=flat.repeat_interleave(number, 0) if several else flat,
            targets=positives.reshape(-1).clamp(min=0),
            positives=positives.repeat_interleave(number, 0) if several else positives,
            shares=(shares / shares.sum(1, keepdim=True).clamp(min=1.0)).reshape(-1) if several else shares.squeeze(1),
            counted=any_counted,
            shape=examples,
        )

    def _check(self, input: Tensor, positives: Tensor, counted: Tensor, any_counted: Tensor) -> None:
        """Raise an error for targets that are no classes, and for NaN and infinity. A sum is a fast first check."""
        if positives.numel() and not (int(positives.min()) >= 0 and int(positives.max()) < self.num_classes):
            outside = positives[counted & ((positives < 0) | (positives >= self.num_classes))]
            if len(outside):
                raise IndexError(f"target {int(outside[0])} is not a class: they are 0 to {self.num_classes - 1}")
        if not math.isfinite(input.detach().sum().item()):
            self._check_input(input[any_counted])

    def _check_input(self, input: Tensor) -> None:
        if not bool(torch.isfinite(input).all()):
            raise ValueError("input holds NaN or infinity: the model before this loss has diverged")

    def _all_counted(self, targets: Tensor) -> bool:
        """Return whether there are targets, all are classes and none is ignored: the usual batch, by a single pass."""
        if targets.numel() == 0:
            return False
        low, high = (int(value) for value in targets.aminmax())
        return low >= 0 and high < self.num_classes and not low <= self.ignore_index <= high

    def _draw(self, batch: Batch, before: Tensor | None, generator: torch.Generator | None) -> Samples:
        """Draw noise samples."""
        if generator is not None and torch._C._current_graph_task_id() != -1:
            raise RuntimeError(
                "a checkpointed region is computed again during the backward pass, where the generator gives other "
                "samples: omit `generator` and use torch.manual_seed, or keep the loss out of checkpoint()"
            )
        if self.sparse and dist.is_available() and dist.is_initialized():
            self._reject_fsdp()
        targets, dtype = batch.targets, batch.input.dtype
        before = batch.repeat(before)
        previous = None if before is None else before.unsqueeze(1)
        with torch.no_grad():
            if self.shared_noise:
                noise = self.noise.sample((self.num_noise,), generator=generator)
            else:
                noise = self.noise.sample((len(targets), self.num_noise), previous, generator=generator)
            target_log_noise = self.noise.log_prob(targets, before).to(dtype)
            noise_log_noise = self.noise.log_prob(noise, previous).to(dtype)
            hits = accidental_hits(batch.positives, noise) if self.remove_accidental_hits else None
        return Samples(noise, target_log_noise, noise_log_noise, hits)

    def _sampled_losses(self, batch: Batch, samples: Samples, **values: Tensor | None) -> Tensor:
        """Return the losses of the scores of the targets and of noise samples, (N,)."""
        if self.group is not None:
            target_scores, noise_scores = self._remote_scores(batch.input, batch.targets, samples.noise)
        else:
            score = shared_scores if self.shared_noise else pair_scores
            target_scores, noise_scores = score(
                batch.input, self.weight, self.bias, batch.targets, samples.noise, self.sparse
            )
        return self.losses(SampledScores(target_scores, noise_scores, *samples[1:]), **values)

    def _reject_fsdp(self) -> None:
        from torch.distributed.fsdp import FSDPModule

        if isinstance(self, FSDPModule):
            raise RuntimeError(
                "fully_shard reduces dense gradients only: construct the loss with sparse=False, or leave it out of "
                "fully_shard and divide its rows with ncelm.torch.shard_rows"
            )

    def _remote_scores(self, input: Tensor, targets: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores of targets (N,) and noise (N, k), by rows that ranks exchange."""
        from ncelm.torch.sharding import plan_exchange, remote_rows

        assert self.group is not None
        exchange = plan_exchange(torch.cat([targets, noise.reshape(-1)]), self.num_classes, self.group)
        rows = remote_rows(self.weight, exchange, self.sparse).to(input.dtype)  # (N + N k or N + k, d)
        biases = rows.new_zeros(len(rows))
        if self.bias is not None:
            biases = remote_rows(self.bias, exchange, self.sparse).to(input.dtype)
        n = len(targets)
        target_scores = (input * rows[:n]).sum(-1) + biases[:n]
        if self.shared_noise:
            return target_scores, torch.addmm(biases[n:], input, rows[n:].T)
        products = torch.bmm(rows[n:].view(*noise.shape, self.in_features), input.unsqueeze(2)).squeeze(2)
        return target_scores, products + biases[n:].view(noise.shape)

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return (
            f"in_features={self.in_features}, num_classes={self.num_classes}, num_noise={self.num_noise}, "
            f"shared_noise={self.shared_noise}, sparse={self.sparse}, reduction={self.reduction!r}"
        )


def score_dtype(weight: Tensor) -> torch.dtype:
    """Return float32 or better: half precision is too coarse for log Pn, which reaches −15."""
    return torch.promote_types(weight.dtype, torch.float32)


def _full_precision(input: Tensor) -> AbstractContextManager[Any]:
    device = input.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
