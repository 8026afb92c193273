"""NCE and importance sampling as PyTorch has its losses: functions of scores, and modules that own the output table.

The functions take scores of any model and leave sampling to others; they are the twins of `ncelm.estimators`. The
modules are shaped like `nn.LinearCrossEntropyLoss` and `nn.AdaptiveLogSoftmaxWithLoss`: hidden vectors and targets in,
a loss out. In training they draw noise and never sum over the classes; in evaluation they give the exact negative
log-likelihood, never an unnormalised score.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812 (as everyone writes it)
from torch import Tensor, nn

from ncelm.torch.noise import BigramNoise, Noise, Weights

Reduction = Literal["mean", "sum", "none"]
Normalizer = Literal["fixed", "scalar", "context"]
EXACT_SCORES = 1 << 24  # so many scores are held at once when the classes are summed over: 64 MB


def nce_loss(
    target_scores: Tensor,
    noise_scores: Tensor,
    target_log_noise: Tensor,
    noise_log_noise: Tensor,
    *,
    log_normalizer: Tensor | float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Noise-contrastive estimation (Mnih & Teh 2012, Eq. 13) from the scores of any model.

    The logit that a class is data and not one of the k noise classes beside it is s(w, h) + c_h − log(k·Pn(w)); log k
    is added here, log Pn is what the two last arguments are. The loss of an example is
    −log σ(logit of the target) − Σ_j log(1 − σ(logit of noise class j)).

    Args:
        target_scores: s(w, h), unnormalised, (…).
        noise_scores: of k noise classes for each example, (…, k).
        target_log_noise: log Pn of the targets, (…) or what can be broadcast to it.
        noise_log_noise: log Pn of the noise classes, (…, k), or (k,) if all examples share them.
        log_normalizer: c_h, a number or (…). The paper's default is 0: the model learns to normalise itself.
        reduction: "mean" over examples, "sum" or "none".

    >>> coin = torch.zeros(1)
    >>> nce_loss(coin, torch.zeros(1, 1), coin, torch.zeros(1, 1))  # 2 log 2
    tensor(1.3863)
    """
    k = noise_scores.shape[-1]
    if k == 0:
        raise ValueError("noise_scores is empty: NCE needs at least one noise class for each example")
    shift = torch.as_tensor(log_normalizer, dtype=target_scores.dtype, device=target_scores.device)
    target_logits = target_scores + shift - target_log_noise - math.log(k)  # (…)
    noise_logits = noise_scores + (shift - math.log(k)).unsqueeze(-1) - noise_log_noise  # (…, k)
    return _reduce(F.softplus(-target_logits) + F.softplus(noise_logits).sum(-1), reduction)


def importance_sampling_loss(
    target_scores: Tensor, sample_scores: Tensor, sample_log_proposal: Tensor, *, reduction: Reduction = "mean"
) -> tuple[Tensor, Tensor]:
    """Importance sampling (Mnih & Teh 2012, Eq. 5): log Z estimated from k samples of a proposal Q, minus the score.

    Args:
        target_scores: s(w, h), unnormalised, (…).
        sample_scores: of k samples for each example, (…, k).
        sample_log_proposal: log Q of the samples, (…, k), or (k,) if all examples share them.
        reduction: of the loss, as in `nce_loss`.

    Returns:
        The loss, and the effective sample sizes (Σ v)² / Σ v², (…), from 1 to k: how many samples really count.
    """
    k = sample_scores.shape[-1]
    if k == 0:
        raise ValueError("sample_scores is empty: importance sampling needs at least one sample for each example")
    log_v = sample_scores - sample_log_proposal  # (…, k)
    losses = torch.logsumexp(log_v, -1) - math.log(k) - target_scores  # (…)
    effective = 1.0 / torch.softmax(log_v.detach(), -1).square().sum(-1)
    return _reduce(losses, reduction), effective


class _SampledLoss(nn.Module):
    """What both losses share: the output table, the noise, checks, and the exact likelihood."""

    weight: Tensor  # q_w, (V, d)
    bias: Tensor | None  # b_w, (V,)
    noise: Noise

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        noise: Noise | Weights,
        num_noise: int = 25,
        *,
        shared_noise: bool = False,
        bias: bool | nn.Parameter = True,
        weight: nn.Parameter | None = None,
        sparse: bool = False,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        validate: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction is {reduction!r}: choose mean, sum or none")
        if num_noise < 1:
            raise ValueError(f"num_noise is {num_noise}: give at least 1")
        self.in_features, self.num_classes, self.num_noise = in_features, num_classes, num_noise
        self.shared_noise, self.sparse, self.validate = shared_noise, sparse, validate
        self.reduction: Reduction = reduction
        self.ignore_index = ignore_index
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.noise = noise if isinstance(noise, Noise) else Noise(noise, **kind)
        if self.noise.num_classes != num_classes:
            raise ValueError(f"the noise is over {self.noise.num_classes} classes, and num_classes is {num_classes}")
        for name, given in (("weight", weight), ("bias", bias)):
            if isinstance(given, Tensor) and not isinstance(given, nn.Parameter):
                raise TypeError(f"{name} is a tensor and no nn.Parameter, so it would not be trained: give one")
        if shared_noise and isinstance(self.noise, BigramNoise):
            raise ValueError("shared_noise goes with any noise but bigram, which is another for every word before")
        if weight is not None and (weight.dim() != 2 or len(weight) < num_classes or weight.shape[1] != in_features):
            raise ValueError(f"weight is {tuple(weight.shape)}: it must be ({num_classes} or more, {in_features})")
        self.weight = nn.Parameter(torch.empty(num_classes, in_features, **kind)) if weight is None else weight
        if isinstance(bias, nn.Parameter):
            if bias.shape != (num_classes,):
                raise ValueError(f"bias is {tuple(bias.shape)}: it must be ({num_classes},)")
            self.bias = bias
        else:
            self.register_parameter("bias", nn.Parameter(torch.empty(num_classes, **kind)) if bias else None)
        self._given = [parameter for parameter in (weight, bias) if isinstance(parameter, nn.Parameter)]
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Small random vectors, and biases such that the start is about the noise; what was given is left as it is."""
        if not any(self.weight is given for given in self._given):
            nn.init.uniform_(self.weight, -(self.in_features**-0.5), self.in_features**-0.5)
        if self.bias is not None and not any(self.bias is given for given in self._given):
            self.bias.copy_(self.noise.log_probabilities)

    # -- the exact distribution ---------------------------------------------------------------------------------------

    def log_prob(self, input: Tensor) -> Tensor:
        """log P of every class, exactly normalised: (…, in_features) → (…, num_classes), float32 or better."""
        with _full_precision(input):
            return F.log_softmax(self._scores_of_all(input), -1)

    def predict(self, input: Tensor) -> Tensor:
        """The likeliest class: (…, in_features) → (…)."""
        with _full_precision(input):
            flat = input.reshape(-1, self.in_features)
            best = [self._scores_of_all(rows).argmax(-1) for rows in flat.split(self._rows_at_once)]
        return torch.cat(best).view(input.shape[:-1])

    def _scores_of_all(self, input: Tensor) -> Tensor:
        kind, table = _precision(self.weight), self.weight[: self.num_classes]
        return F.linear(input.to(kind), table.to(kind), None if self.bias is None else self.bias.to(kind))

    @property
    def _rows_at_once(self) -> int:
        return max(EXACT_SCORES // self.num_classes, 1)

    # -- the loss -----------------------------------------------------------------------------------------------------

    def _prepare(self, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Flat input (N, d), targets (N,) with 0 for those to be ignored, and which count (N,); all checked."""
        if input.dim() == 0 or input.shape[:-1] != target.shape or input.shape[-1] != self.in_features:
            raise ValueError(
                f"input is {tuple(input.shape)} and target {tuple(target.shape)}: "
                f"they must be (…, {self.in_features}) and (…)"
            )
        if target.is_floating_point():
            raise TypeError(f"target is {target.dtype}: the numbers of classes are integers")
        flat, targets = input.reshape(-1, self.in_features), target.reshape(-1).long()
        counted = targets != self.ignore_index
        # a look at the numbers would stop the device, or the compiler
        if self.validate and flat.device.type == "cpu" and not torch.compiler.is_compiling():
            self._check(flat, targets, counted)
        # what is ignored may be anything, even NaN, and must not reach a gradient
        return flat.masked_fill(~counted.unsqueeze(1), 0.0), targets.masked_fill(~counted, 0), counted

    def _check(self, input: Tensor, targets: Tensor, counted: Tensor) -> None:
        if self.reduction == "mean" and not bool(counted.any()):
            raise ValueError(
                "there is nothing to take the mean of: "
                + ("the batch is empty" if len(targets) == 0 else f"every target is ignore_index, {self.ignore_index}")
            )
        outside = targets[counted & ((targets < 0) | (targets >= self.num_classes))]
        if len(outside):
            raise IndexError(f"target {int(outside[0])} is not a class: they are 0 to {self.num_classes - 1}")
        if not bool(torch.isfinite(input[counted]).all()):
            raise ValueError("input holds NaN or infinity: the model before this loss has diverged")

    def _exact(self, input: Tensor, targets: Tensor) -> Tensor:
        """−log P of the targets, (N,), a few rows of scores at a time."""
        parts = zip(input.split(self._rows_at_once), targets.split(self._rows_at_once), strict=True)
        losses = [F.cross_entropy(self._scores_of_all(rows), words, reduction="none") for rows, words in parts]
        return torch.cat(losses) if losses else self._scores_of_all(input).sum(-1)

    def _sampled_scores(
        self, input: Tensor, targets: Tensor, before: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Scores of targets (N,) and of noise (N, k); log Pn of targets (N,) and of noise, (N, k) or (k,)."""
        n, k, kind = len(targets), self.num_noise, _precision(self.weight)
        input = input.to(kind)
        if before is not None:
            before = before.reshape(-1)
        with torch.no_grad():
            target_log_noise = self.noise.log_prob(targets, before).to(kind)
            if self.shared_noise:
                noise = self.noise.sample((k,), generator=generator)
                noise_log_noise = self.noise.log_prob(noise).to(kind)
            else:
                beside = None if before is None else before.unsqueeze(1)
                noise = self.noise.sample((n, k), beside, generator)
                noise_log_noise = self.noise.log_prob(noise, beside).to(kind)
        if self.shared_noise:
            rows, biases = self._rows(torch.cat([targets, noise]))  # gathered together: one sparse gradient
            target_scores = (input * rows[:n]).sum(-1) + biases[:n]
            noise_scores = torch.addmm(biases[n:], input, rows[n:].T)
        else:
            rows, biases = self._rows(torch.cat([targets.unsqueeze(1), noise], 1))  # (N, k + 1, d), (N, k + 1)
            scores = torch.bmm(rows, input.unsqueeze(2)).squeeze(2) + biases
            target_scores, noise_scores = scores[:, 0], scores[:, 1:]
        return target_scores, noise_scores, target_log_noise, noise_log_noise

    def _rows(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors and biases of these classes."""
        kind = _precision(self.weight)
        gather = _gather_with_sparse_gradient if self.sparse else _gather
        rows = gather(self.weight, words).to(kind)
        if self.bias is None:
            return rows, torch.zeros(words.shape, dtype=kind, device=rows.device)
        return rows, gather(self.bias, words).to(kind)

    def _finish(self, losses: Tensor, counted: Tensor, target: Tensor) -> Tensor:
        losses = torch.where(counted, losses, 0.0)
        if self.reduction == "none":
            return losses.view(target.shape)
        return losses.sum() / counted.sum() if self.reduction == "mean" else losses.sum()

    def extra_repr(self) -> str:
        """For people."""
        return (
            f"in_features={self.in_features}, num_classes={self.num_classes}, num_noise={self.num_noise}, "
            f"shared_noise={self.shared_noise}, sparse={self.sparse}, reduction={self.reduction!r}"
        )


class NCELoss(_SampledLoss):
    """A linear output layer with bias, trained by noise-contrastive estimation (Eq. 13); exact in evaluation.

    In training the cost of a step does not depend on num_classes (with `sparse=True` and an optimizer for sparse
    gradients such as SGD, Adagrad or SparseAdam; otherwise a gradient of the table's size is filled with zeros). After
    `eval()` the same call gives the mean of −log P, exactly normalised, by a sum over the classes.

    Args:
        in_features: size of a hidden vector.
        num_classes: V.
        noise: counts or probabilities of the classes, all positive, or a `Noise`. Class frequencies are a good choice,
            to the power of 0.75 where rare classes matter.
        num_noise: k, noise classes for each example, or for all examples together.
        shared_noise: the same k noise classes serve the whole batch, and scores become a matrix product: take many, 500
            or 1,000.
        normalizer: what stands for −log Z(h): 0 ("fixed", the paper's choice); one learned number ("scalar"); or one
            for each of num_contexts contexts ("context"), whose numbers are given as `context_ids`.
        num_contexts: for normalizer="context".
        bias: has each class a bias? It starts as log Pn, so that training starts from the noise distribution. Or the
            biases to use, (V,).
        weight: the table to use, (V, d), such as the input embedding's, whose rows beyond V are left alone; a new one
            by default.
        sparse: sparse gradients for table and biases.
        reduction: "mean" over the targets that count, "sum" or "none".
        ignore_index: targets of this value do not count.
        validate: look for targets that are no classes, for NaN in the input and for empty batches (on the CPU, and not
            under torch.compile: it takes a look at the numbers).

    Shape: input (…, in_features), target (…) int64; the loss is a number, or (…) with reduction="none".

    >>> _ = torch.manual_seed(0)
    >>> loss = NCELoss(8, 1000, noise=torch.ones(1000), num_noise=10)
    >>> hidden, target = torch.randn(4, 7, 8, requires_grad=True), torch.randint(1000, (4, 7))
    >>> loss(hidden, target).backward()
    >>> loss.eval()(hidden, target).exp() < 2000  # a perplexity
    tensor(True)

    Reference: Mnih & Teh (2012), A fast and simple algorithm for training neural probabilistic language models.
    """

    log_normalizer: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        noise: Noise | Weights,
        num_noise: int = 25,
        *,
        normalizer: Normalizer = "fixed",
        num_contexts: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(in_features, num_classes, noise, num_noise, **options)
        if normalizer not in ("fixed", "scalar", "context"):
            raise ValueError(f"normalizer is {normalizer!r}: choose fixed, scalar or context")
        if (normalizer == "context") != (num_contexts > 0):
            raise ValueError('normalizer="context" needs num_contexts, and the others have none')
        self.normalizer: Normalizer = normalizer
        constants = None
        if normalizer != "fixed":
            constants = nn.Parameter(self.weight.new_zeros(max(num_contexts, 1)))
        self.register_parameter("log_normalizer", constants)

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        before: Tensor | None = None,
        context_ids: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The NCE loss, or in evaluation −log P.

        `before`: classes on which the noise depends (bigram noise), (…). `context_ids`: (…), for normalizer="context".
        """
        flat, targets, counted = self._prepare(input, target)
        with _full_precision(input):
            if not self.training:
                return self._finish(self._exact(flat, targets), counted, target)
            target_scores, noise_scores, *log_noise = self._sampled_scores(flat, targets, before, generator)
            constants = self._constants(context_ids)
            losses = nce_loss(target_scores, noise_scores, *log_noise, log_normalizer=constants, reduction="none")
            return self._finish(losses, counted, target)

    def _constants(self, context_ids: Tensor | None) -> Tensor | float:
        """c_h: 0, () or (N,)."""
        if self.log_normalizer is None:
            return 0.0
        kind = _precision(self.weight)
        if self.normalizer == "scalar":
            return self.log_normalizer[0].to(kind)
        if context_ids is None:
            raise ValueError('normalizer="context" needs to know the contexts: give context_ids')
        gather = _gather_with_sparse_gradient if self.sparse else _gather
        return gather(self.log_normalizer, context_ids.reshape(-1)).to(kind)


class ImportanceSamplingLoss(_SampledLoss):
    """A linear output layer with bias, trained by importance sampling (Eq. 5): a baseline; NCE is the stabler choice.

    Arguments, shapes and the exact evaluation are those of `NCELoss`; the noise is the proposal. After a training step
    `effective_samples` has the effective sample size of each example, (…): near 1, one sample has all the weight, and
    the gradient is not to be trusted.
    """

    effective_samples: Tensor | None = None

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        before: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The estimated negative log-likelihood, or in evaluation the exact one."""
        flat, targets, counted = self._prepare(input, target)
        with _full_precision(input):
            if not self.training:
                return self._finish(self._exact(flat, targets), counted, target)
            target_scores, sample_scores, _, log_proposal = self._sampled_scores(flat, targets, before, generator)
            losses, effective = importance_sampling_loss(target_scores, sample_scores, log_proposal, reduction="none")
            self.effective_samples = effective.view(target.shape)
            return self._finish(losses, counted, target)


def _reduce(losses: Tensor, reduction: Reduction) -> Tensor:
    match reduction:
        case "mean":
            return losses.mean()
        case "sum":
            return losses.sum()
        case "none":
            return losses
    raise ValueError(f"reduction is {reduction!r}: choose mean, sum or none")


def _gather(table: Tensor, words: Tensor) -> Tensor:
    """Rows of a table, or numbers of a vector."""
    return F.embedding(words, table) if table.dim() == 2 else table[words]


@torch.compiler.disable  # torch.compile cannot make sparse tensors: this part runs as it is, between compiled ones
def _gather_with_sparse_gradient(table: Tensor, words: Tensor) -> Tensor:
    if table.dim() == 2:
        return F.embedding(words, table, sparse=True)
    return torch.gather(table, 0, words.reshape(-1), sparse_grad=True).view(words.shape)


def _precision(weight: Tensor) -> torch.dtype:
    """Logits are float32 even where the table is in half precision: log Pn alone reaches −15."""
    return torch.promote_types(weight.dtype, torch.float32)


def _full_precision(input: Tensor) -> AbstractContextManager[Any]:
    device = input.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
