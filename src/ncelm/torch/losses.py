"""Sampled losses for models with a large output: NCE, ranking NCE and importance sampling.

The functions (`nce_loss`, `ranking_nce_loss`, `importance_sampling_loss`, `log_z_penalty`) take scores and log noise
probabilities of any model and do not sample. `ncelm.losses.functions` has the same losses for NumPy.

The modules (`NCELoss`, `RankingNCELoss`, `ImportanceSamplingLoss`) own the output layer, like
`torch.nn.AdaptiveLogSoftmaxWithLoss`: hidden vectors and targets in, loss out. In training mode they draw noise samples
and do not sum over the classes. `nll` returns the exact negative log-likelihood in any mode, and a call does so in
evaluation mode.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's convention)
from torch import Tensor, nn

from ncelm.torch.noise import BigramNoise, Noise, Weights

Reduction = Literal["mean", "sum", "none"]
Normalizer = Literal["fixed", "scalar", "context"]
EXACT_SCORES = 1 << 24  # scores held at once in a sum over the classes: 64 MB


# -- functions ---------------------------------------------------------------------------------------------------------


def nce_loss(
    target_scores: Tensor,
    noise_scores: Tensor,
    target_log_noise: Tensor,
    noise_log_noise: Tensor,
    *,
    log_normalizer: Tensor | float = 0.0,
    log_z_penalty: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the noise-contrastive estimation loss (Mnih & Teh 2012, Eq. 13).

    The classifier's logit for "data" against k noise samples is s(w, h) + c_h − log(k·Pn(w)). The loss of an example is
    −log σ(logit of the target) − Σ_j log(1 − σ(logit of noise sample j)). log k is added here.

    Args:
        target_scores (Tensor): s(w, h) of the targets, not normalized, (…).
        noise_scores (Tensor): s(w, h) of k noise samples per example, (…, k).
        target_log_noise (Tensor): log Pn of the targets, broadcastable to (…).
        noise_log_noise (Tensor): log Pn of the noise samples, (…, k), or (k,) for shared noise.
        log_normalizer (Tensor or float): c_h, a number or (…). With 0 the model learns to be self-normalized.
        log_z_penalty (float): coefficient α of the squared log-normalizer of s(w, h) + c_h; see
            `log_z_penalty`.
        reduction (str): "mean" over examples, "sum" or "none".

    Examples:
        >>> zero = torch.zeros(1)
        >>> nce_loss(zero, torch.zeros(1, 1), zero, torch.zeros(1, 1))  # 2 log 2
        tensor(1.3863)
    """
    log_k = math.log(_samples(noise_scores, "noise_scores"))
    c = torch.as_tensor(log_normalizer, dtype=target_scores.dtype, device=target_scores.device)
    target_logits = target_scores + c - target_log_noise - log_k  # (…)
    noise_logits = noise_scores + (c - log_k).unsqueeze(-1) - noise_log_noise  # (…, k)
    losses = F.softplus(-target_logits) + F.softplus(noise_logits).sum(-1)  # (…)
    if log_z_penalty:
        log_z = torch.logsumexp(noise_logits, -1)  # log Σ_j exp(s_j + c − log Pn_j) − log k
        losses = losses + log_z_penalty * log_z.square()
    return _reduce(losses, reduction)


def ranking_nce_loss(
    target_scores: Tensor,
    noise_scores: Tensor,
    target_log_noise: Tensor,
    noise_log_noise: Tensor,
    *,
    log_z_penalty: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the ranking NCE loss (Ma & Collins 2018).

    This is the cross-entropy of the target in a softmax over the target and its k noise samples, with the logits
    s(w, h) − log Pn(w). A constant added to all scores of a context cancels: the loss determines scores up to such a
    constant, and the model is not self-normalized unless `log_z_penalty` is positive.

    Args:
        target_scores (Tensor): s(w, h) of the targets, not normalized, (…).
        noise_scores (Tensor): s(w, h) of k noise samples per example, (…, k).
        target_log_noise (Tensor): log Pn of the targets, broadcastable to (…).
        noise_log_noise (Tensor): log Pn of the noise samples, (…, k), or (k,) for shared noise.
        log_z_penalty (float): coefficient α of the squared log-normalizer; see `log_z_penalty`.
        reduction (str): "mean" over examples, "sum" or "none".

    Examples:
        >>> zero = torch.zeros(1)
        >>> ranking_nce_loss(zero, torch.zeros(1, 3), zero, torch.zeros(1, 3))  # log 4
        tensor(1.3863)
    """
    log_k = math.log(_samples(noise_scores, "noise_scores"))
    target_logits = target_scores - target_log_noise  # (…)
    noise_log_sum = torch.logsumexp(noise_scores - noise_log_noise, -1)  # (…)
    losses = F.softplus(noise_log_sum - target_logits)  # log(exp(target) + Σ_j exp(noise_j)) − target
    if log_z_penalty:
        losses = losses + log_z_penalty * (noise_log_sum - log_k).square()
    return _reduce(losses, reduction)


def log_z_penalty(noise_scores: Tensor, noise_log_noise: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Return the squared log-normalizer, estimated from noise samples (Goldberger & Melamud 2018).

    The penalty of an example is (log Ẑ(h))² with Ẑ(h) = (1/k) Σ_j exp(s(w_j, h)) / Pn(w_j), the importance-sampling
    estimate of Z(h). It is 0 for a model that is normalized without dividing by Z(h).

    Args:
        noise_scores (Tensor): s(w, h) of k noise samples per example, (…, k).
        noise_log_noise (Tensor): log Pn of the noise samples, (…, k), or (k,) for shared noise.
        reduction (str): "mean" over examples, "sum" or "none".

    Examples:
        >>> log_z_penalty(torch.zeros(1, 2), torch.zeros(1, 2) - 1.0)  # log Ẑ = 1
        tensor(1.)
    """
    log_k = math.log(_samples(noise_scores, "noise_scores"))
    return _reduce((torch.logsumexp(noise_scores - noise_log_noise, -1) - log_k).square(), reduction)


def importance_sampling_loss(
    target_scores: Tensor, sample_scores: Tensor, sample_log_proposal: Tensor, *, reduction: Reduction = "mean"
) -> tuple[Tensor, Tensor]:
    """Return the importance-sampling estimate of −log P (Mnih & Teh 2012, Eq. 5) and the effective sample sizes.

    This is not the sampled softmax. The denominator is the mean over the samples alone: the target is in it only if it
    was drawn. The loss has no lower bound, and training with few samples diverges easily. For a softmax over the target
    and the samples, with the correction by log Q, use `ranking_nce_loss`.

    Args:
        target_scores (Tensor): s(w, h) of the targets, not normalized, (…).
        sample_scores (Tensor): s(w, h) of k samples per example, (…, k).
        sample_log_proposal (Tensor): log probability of the samples under the proposal, (…, k), or (k,) for shared
            samples.
        reduction (str): of the loss: "mean" over examples, "sum" or "none".

    Returns:
        The loss, and the effective sample sizes (Σ v)² / Σ v², (…), between 1 and k, where v is exp(s) divided by the
        proposal.
    """
    log_k = math.log(_samples(sample_scores, "sample_scores"))
    log_v = sample_scores - sample_log_proposal  # (…, k)
    losses = torch.logsumexp(log_v, -1) - log_k - target_scores  # (…)
    effective = 1.0 / torch.softmax(log_v.detach(), -1).square().sum(-1)
    return _reduce(losses, reduction), effective


def _samples(scores: Tensor, name: str) -> int:
    """Return k."""
    k = scores.shape[-1]
    if k == 0:
        raise ValueError(f"{name} is empty: give at least one sample for each example")
    return k


def _reduce(losses: Tensor, reduction: Reduction) -> Tensor:
    match reduction:
        case "mean":
            return losses.mean()
        case "sum":
            return losses.sum()
        case "none":
            return losses
    raise ValueError(f"reduction is {reduction!r}: choose mean, sum or none")


# -- modules -----------------------------------------------------------------------------------------------------------


class _SampledLoss(nn.Module):
    """Base of the modules: output layer, noise, validation of batches, and the exact likelihood."""

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
        tied_weight: nn.Parameter | None = None,
        sparse: bool = False,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        validate: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._tied: set[str] = set()  # parameters that belong to the caller
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction is {reduction!r}: choose mean, sum or none")
        if num_noise < 1:
            raise ValueError(f"num_noise is {num_noise}: give at least 1")
        self.in_features, self.num_classes, self.num_noise = in_features, num_classes, num_noise
        self.shared_noise, self.sparse, self.validate = shared_noise, sparse, validate
        self.reduction: Reduction = reduction
        self.ignore_index = ignore_index
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.noise = noise if isinstance(noise, Noise) else Noise(noise, **factory)
        if self.noise.num_classes != num_classes:
            raise ValueError(f"the noise is over {self.noise.num_classes} classes, and num_classes is {num_classes}")
        for name, given in (("tied_weight", tied_weight), ("bias", bias)):
            if isinstance(given, Tensor) and not isinstance(given, nn.Parameter):
                raise TypeError(f"{name} is a tensor and not an nn.Parameter, so it would not be trained: give one")
        if shared_noise and isinstance(self.noise, BigramNoise):
            raise ValueError("shared_noise goes with any noise but bigram, which depends on the previous word")
        if tied_weight is None:
            tied_weight = nn.Parameter(torch.empty(num_classes, in_features, **factory))
            created = {"weight"}
        else:
            created = set()
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
            created.add("bias")
        self._tied -= created
        self.reset_parameters()

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Add a parameter. One that is assigned later (`loss.weight = embedding.weight`) belongs to the caller."""
        super().register_parameter(name, param)
        self._tied.add(name)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize weights uniformly and biases to log Pn; parameters given by the caller keep their values.

        After construction on the meta device and `to_empty`, this also fills the tables of the noise.
        """
        self.noise.reset_parameters()
        if "weight" not in self._tied:
            nn.init.uniform_(self.weight, -(self.in_features**-0.5), self.in_features**-0.5)
        if self.bias is not None and "bias" not in self._tied:
            self.bias.copy_(self.noise.log_probabilities)

    # -- exact distribution -------------------------------------------------------------------------------------------

    def log_prob(self, input: Tensor) -> Tensor:
        """Return the exact log-probability of every class, (…, in_features) → (…, num_classes), float32 or better."""
        with _full_precision(input):
            return F.log_softmax(self._all_scores(input), -1)

    def predict(self, input: Tensor) -> Tensor:
        """Return the most likely class, (…, in_features) → (…)."""
        with _full_precision(input):
            flat = input.reshape(-1, self.in_features)
            best = [self._all_scores(rows).argmax(-1) for rows in flat.split(self._exact_rows)]
        return torch.cat(best).view(input.shape[:-1])

    def nll(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the exact negative log-likelihood −log P, in training and in evaluation mode.

        The exponential of its mean is a perplexity.

        Args:
            input (Tensor): hidden vectors, (…, in_features).
            target (Tensor): class indices, (…).
        """
        flat, targets, counted = self._prepare(input, target)
        with _full_precision(input):
            return self._reduced(self._exact(flat, targets), counted, target)

    def _all_scores(self, input: Tensor) -> Tensor:
        dtype, table = _score_dtype(self.weight), self.weight[: self.num_classes]
        return F.linear(input.to(dtype), table.to(dtype), None if self.bias is None else self.bias.to(dtype))

    @property
    def _exact_rows(self) -> int:
        """Examples whose scores of all classes are held at once."""
        return max(EXACT_SCORES // self.num_classes, 1)

    def _exact(self, input: Tensor, targets: Tensor) -> Tensor:
        """Return −log P of the targets, (N,)."""
        chunks = zip(input.split(self._exact_rows), targets.split(self._exact_rows), strict=True)
        losses = [F.cross_entropy(self._all_scores(rows), words, reduction="none") for rows, words in chunks]
        return torch.cat(losses) if losses else self._all_scores(input).sum(-1)

    # -- loss ---------------------------------------------------------------------------------------------------------

    def _loss(
        self,
        input: Tensor,
        target: Tensor,
        before: Tensor | None,
        generator: torch.Generator | None,
        sampled_losses: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Return the reduced loss: exact in evaluation mode, otherwise `sampled_losses` of scores and log Pn, (N,)."""
        if not self.training:
            return self.nll(input, target)
        if generator is not None and torch._C._current_graph_task_id() != -1:
            raise RuntimeError(
                "a checkpointed region is computed again during the backward pass, where the generator gives other "
                "samples: omit `generator` and use torch.manual_seed, or keep the loss out of checkpoint()"
            )
        flat, targets, counted = self._prepare(input, target)
        with _full_precision(input):
            losses = sampled_losses(*self._sampled_scores(flat, targets, before, generator))
            return self._reduced(losses, counted, target)

    def _reduced(self, losses: Tensor, counted: Tensor, target: Tensor) -> Tensor:
        """Return the reduced losses. The mean over no targets is 0, with a gradient of zeros.

        NaN, as in torch, would destroy the parameters; an error on one rank would block the others.
        """
        losses = torch.where(counted, losses, 0.0)
        match self.reduction:
            case "none":
                return losses.view(target.shape)
            case "sum":
                return losses.sum()
        return losses.sum() / counted.sum().clamp(min=1)

    def _prepare(self, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return validated input (N, d), targets (N,) with 0 for ignored ones, and the mask of the others, (N,)."""
        if input.dim() == 0 or input.shape[:-1] != target.shape or input.shape[-1] != self.in_features:
            raise ValueError(
                f"input is {tuple(input.shape)} and target {tuple(target.shape)}: "
                f"they must be (…, {self.in_features}) and (…)"
            )
        if target.is_floating_point():
            raise TypeError(f"target is {target.dtype}: class indices are integers")
        flat, targets = input.reshape(-1, self.in_features), target.reshape(-1).long()
        counted = targets != self.ignore_index
        # reading values would synchronize with the device, or break the compiled graph
        if self.validate and flat.device.type == "cpu" and not torch.compiler.is_compiling():
            self._check(flat, targets, counted)
        # ignored inputs may be NaN and must not reach a gradient
        return flat.masked_fill(~counted.unsqueeze(1), 0.0), targets.masked_fill(~counted, 0), counted

    def _check(self, input: Tensor, targets: Tensor, counted: Tensor) -> None:
        outside = targets[counted & ((targets < 0) | (targets >= self.num_classes))]
        if len(outside):
            raise IndexError(f"target {int(outside[0])} is not a class: they are 0 to {self.num_classes - 1}")
        if not bool(torch.isfinite(input[counted]).all()):
            raise ValueError("input holds NaN or infinity: the model before this loss has diverged")

    def _sampled_scores(
        self, input: Tensor, targets: Tensor, before: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return scores of targets (N,) and noise (N, k), and log Pn of targets (N,) and noise, (N, k) or (k,)."""
        n, k, dtype = len(targets), self.num_noise, _score_dtype(self.weight)
        input = input.to(dtype)
        if before is not None:
            before = before.reshape(-1)
        with torch.no_grad():
            target_log_noise = self.noise.log_prob(targets, before).to(dtype)
            if self.shared_noise:
                noise = self.noise.sample((k,), generator=generator)
                noise_log_noise = self.noise.log_prob(noise).to(dtype)
            else:
                previous = None if before is None else before.unsqueeze(1)
                noise = self.noise.sample((n, k), previous, generator)
                noise_log_noise = self.noise.log_prob(noise, previous).to(dtype)
        if self.shared_noise:
            rows, biases = self._rows(torch.cat([targets, noise]))  # one gather, one sparse gradient
            target_scores = (input * rows[:n]).sum(-1) + biases[:n]
            noise_scores = torch.addmm(biases[n:], input, rows[n:].T)
        else:
            rows, biases = self._rows(torch.cat([targets.unsqueeze(1), noise], 1))  # (N, k + 1, d), (N, k + 1)
            scores = torch.bmm(rows, input.unsqueeze(2)).squeeze(2) + biases
            target_scores, noise_scores = scores[:, 0], scores[:, 1:]
        return target_scores, noise_scores, target_log_noise, noise_log_noise

    def _rows(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight rows and biases of these classes."""
        dtype = _score_dtype(self.weight)
        gather = _gather_with_sparse_gradient if self.sparse else _gather
        rows = gather(self.weight, words).to(dtype)
        if self.bias is None:
            return rows, torch.zeros(words.shape, dtype=dtype, device=rows.device)
        return rows, gather(self.bias, words).to(dtype)

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return (
            f"in_features={self.in_features}, num_classes={self.num_classes}, num_noise={self.num_noise}, "
            f"shared_noise={self.shared_noise}, sparse={self.sparse}, reduction={self.reduction!r}"
        )


class NCELoss(_SampledLoss):
    """Linear output layer trained by noise-contrastive estimation (Mnih & Teh 2012); exact in evaluation mode.

    In training mode the cost of a step does not depend on `num_classes`, if `sparse=True` and the optimizer supports
    sparse gradients (SGD, Adagrad, SparseAdam). Otherwise the gradient of the weight is a dense tensor of its size.
    `nll` returns the exact negative log-likelihood. So does the call itself in evaluation mode; a loss that is not part
    of the model is not switched by ``model.eval()``, so use `nll` for everything that you report.

    The mean over a batch without targets (empty, or all of them ignored) is 0 with a gradient of zeros, so that one
    worker of several may have such a batch.

    Args:
        in_features (int): size of a hidden vector, d.
        num_classes (int): number of classes, V.
        noise (Noise, Tensor, ndarray or sequence): counts or probabilities of the classes, all positive, or a
            `Noise`. Class frequencies are a good choice; raise them to the power 0.75 if rare classes matter.
        num_noise (int): noise samples per example, or per batch with `shared_noise`, k. Default: 25.
        shared_noise (bool): use the same k noise samples for all examples of a batch. Scores become one matrix product:
            choose a large k, 500 or 1,000. Default: ``False``.
        normalizer (str): c_h, which stands for −log Z(h): "fixed" to 0, one learned "scalar", or one learned number per
            "context", with indices given as `context_ids`. Default: "fixed".
        num_contexts (int): number of contexts, for normalizer="context".
        log_z_penalty (float): coefficient of the squared log-normalizer; see `log_z_penalty`. Default: 0.
        bias (bool or nn.Parameter): whether classes have biases, or the biases, (V,). New biases are initialized to
            log Pn, so that training starts from the noise distribution. Default: ``True``.
        tied_weight (nn.Parameter): weight to use, (V, d), such as that of the input embedding; rows beyond V are not
            used. Default: a new one.
        sparse (bool): whether the gradients of weight and bias are sparse. Default: ``False``.
        reduction (str): "mean" over the targets that are not ignored, "sum" or "none". Default: "mean".
        ignore_index (int): targets of this value are ignored. Default: -100.
        validate (bool): check targets and input values, on the CPU and outside torch.compile. Default: ``True``.

    Shape:
        - Input: (…, in_features).
        - Target: (…), integers.
        - Output: a scalar, or (…) with reduction="none".

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> loss = NCELoss(8, 1000, noise=torch.ones(1000), num_noise=10)
        >>> hidden, target = torch.randn(4, 7, 8, requires_grad=True), torch.randint(1000, (4, 7))
        >>> loss(hidden, target).backward()
        >>> loss.nll(hidden, target).exp() < 2000  # a perplexity
        tensor(True)
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
        log_z_penalty: float = 0.0,
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
        super().__init__(
            in_features,
            num_classes,
            noise,
            num_noise,
            shared_noise=shared_noise,
            bias=bias,
            tied_weight=tied_weight,
            sparse=sparse,
            reduction=reduction,
            ignore_index=ignore_index,
            validate=validate,
            device=device,
            dtype=dtype,
        )
        if normalizer not in ("fixed", "scalar", "context"):
            raise ValueError(f"normalizer is {normalizer!r}: choose fixed, scalar or context")
        if (normalizer == "context") != (num_contexts > 0):
            raise ValueError('normalizer="context" needs num_contexts, and the others have none')
        self.normalizer: Normalizer = normalizer
        self.log_z_penalty = _checked_penalty(log_z_penalty)
        constants = None
        if normalizer != "fixed":
            constants = nn.Parameter(self.weight.new_zeros(max(num_contexts, 1)))
        self.register_parameter("log_normalizer", constants)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize weights, biases and learned log-normalizers, which are 0; see the base class."""
        super().reset_parameters()
        log_normalizer = self._parameters.get("log_normalizer")
        if log_normalizer is not None:  # it is not registered yet at construction
            log_normalizer.zero_()

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        before: Tensor | None = None,
        context_ids: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the NCE loss, or in evaluation mode −log P.

        Args:
            input (Tensor): hidden vectors, (…, in_features).
            target (Tensor): class indices, (…).
            before (Tensor): previous words, (…), for bigram noise.
            context_ids (Tensor): indices of contexts, (…), for normalizer="context".
            generator (torch.Generator): source of the noise samples; not with torch.compile(fullgraph=True) and not in
                torch.utils.checkpoint, which compute with torch's global generator.
        """

        def losses(target_scores: Tensor, noise_scores: Tensor, target_noise: Tensor, noise_noise: Tensor) -> Tensor:
            c, alpha = self._log_normalizer(context_ids), self.log_z_penalty
            scores = target_scores, noise_scores, target_noise, noise_noise
            return nce_loss(*scores, log_normalizer=c, log_z_penalty=alpha, reduction="none")

        return self._loss(input, target, before, generator, losses)

    def _log_normalizer(self, context_ids: Tensor | None) -> Tensor | float:
        """Return c_h: 0, () or (N,)."""
        if self.log_normalizer is None:
            return 0.0
        dtype = _score_dtype(self.weight)
        if self.normalizer == "scalar":
            return self.log_normalizer[0].to(dtype)
        if context_ids is None:
            raise ValueError('normalizer="context" needs the indices of contexts: give context_ids')
        gather = _gather_with_sparse_gradient if self.sparse else _gather
        return gather(self.log_normalizer, context_ids.reshape(-1)).to(dtype)


class RankingNCELoss(_SampledLoss):
    """Linear output layer trained by ranking NCE (Ma & Collins 2018); exact in evaluation mode.

    The loss is the cross-entropy of the target among the target and k noise samples; see `ranking_nce_loss`. It
    is consistent without the assumption that the model can normalize itself. It determines scores up to a constant per
    context: use the exact log-probabilities of evaluation mode, or set `log_z_penalty` to get a self-normalized model.

    Args:
        log_z_penalty (float): coefficient of the squared log-normalizer; see `log_z_penalty`. Default: 0.

    The other arguments and the shapes are those of `NCELoss`, without `normalizer` and `num_contexts`.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> loss = RankingNCELoss(8, 1000, noise=torch.ones(1000), num_noise=10, log_z_penalty=0.1)
        >>> hidden, target = torch.randn(4, 7, 8, requires_grad=True), torch.randint(1000, (4, 7))
        >>> loss(hidden, target).backward()
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        noise: Noise | Weights,
        num_noise: int = 25,
        *,
        log_z_penalty: float = 0.0,
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
        super().__init__(
            in_features,
            num_classes,
            noise,
            num_noise,
            shared_noise=shared_noise,
            bias=bias,
            tied_weight=tied_weight,
            sparse=sparse,
            reduction=reduction,
            ignore_index=ignore_index,
            validate=validate,
            device=device,
            dtype=dtype,
        )
        self.log_z_penalty = _checked_penalty(log_z_penalty)

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        before: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the ranking NCE loss, or in evaluation mode −log P. See `NCELoss.forward`."""

        def losses(target_scores: Tensor, noise_scores: Tensor, target_noise: Tensor, noise_noise: Tensor) -> Tensor:
            scores = target_scores, noise_scores, target_noise, noise_noise
            return ranking_nce_loss(*scores, log_z_penalty=self.log_z_penalty, reduction="none")

        return self._loss(input, target, before, generator, losses)


class ImportanceSamplingLoss(_SampledLoss):
    """Linear output layer trained by importance sampling (Mnih & Teh 2012, Eq. 5); exact in evaluation mode.

    This is a baseline, and not the sampled softmax: the target is not in the denominator. NCE is more stable; the
    softmax over the target and the samples is `RankingNCELoss`. The noise is the proposal. After a training step,
    `effective_samples` is the effective sample size of each example, (…). Near 1 a single sample dominates, and the
    gradient has a large variance.

    The arguments and the shapes are those of `NCELoss`, without `normalizer`, `num_contexts` and
    `log_z_penalty`.
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
        """Return the estimated negative log-likelihood, or in evaluation mode the exact one."""

        def losses(target_scores: Tensor, sample_scores: Tensor, _: Tensor, log_proposal: Tensor) -> Tensor:
            found, effective = importance_sampling_loss(target_scores, sample_scores, log_proposal, reduction="none")
            self.effective_samples = effective.view(target.shape)
            return found

        return self._loss(input, target, before, generator, losses)


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale gradients, sparse ones too, so that their total norm is at most `max_norm`; return the former norm.

    `torch.nn.utils.clip_grad_norm_` rejects sparse gradients. Sparse gradients are coalesced: a row counts once, with
    the sum of its entries.

    Args:
        parameters (iterable of Tensor): parameters with gradients.
        max_norm (float): largest total norm.

    Examples:
        >>> weight = nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([3.0, 4.0])
        >>> clip_grad_norm_([weight], 1.0), weight.grad
        (tensor(5.), tensor([0.6000, 0.8000]))
    """
    if not max_norm > 0.0:
        raise ValueError(f"max_norm is {max_norm}: give a positive number")
    values = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
        values.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
    total = torch.stack([value.norm() for value in values]).norm() if values else torch.zeros(())
    scale = (max_norm / total).clamp(max=1.0)
    for value in values:
        value.mul_(scale)
    return total


def _checked_penalty(coefficient: float) -> float:
    if not 0.0 <= coefficient < math.inf:
        raise ValueError(f"log_z_penalty is {coefficient}: give a number that is not negative")
    return float(coefficient)


def _gather(table: Tensor, words: Tensor) -> Tensor:
    """Return rows of a matrix, or elements of a vector."""
    return F.embedding(words, table) if table.dim() == 2 else table[words]


@torch.compiler.disable  # torch.compile does not support sparse tensors
def _gather_with_sparse_gradient(table: Tensor, words: Tensor) -> Tensor:
    if table.dim() == 2:
        return F.embedding(words, table, sparse=True)
    return torch.gather(table, 0, words.reshape(-1), sparse_grad=True).view(words.shape)


def _score_dtype(weight: Tensor) -> torch.dtype:
    """Return float32 or better: half precision is too coarse for log Pn, which reaches −15."""
    return torch.promote_types(weight.dtype, torch.float32)


def _full_precision(input: Tensor) -> AbstractContextManager[Any]:
    device = input.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
