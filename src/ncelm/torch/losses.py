"""Losses with an output layer: hidden vectors and targets in, loss out, like `torch.nn.AdaptiveLogSoftmaxWithLoss`.

In training mode they draw noise samples and do not sum over the classes. `nll` returns the exact negative
log-likelihood in any mode, and a call does so in evaluation mode.
"""

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ncelm.torch import functional
from ncelm.torch.checks import fraction, nonnegative
from ncelm.torch.functional import Reduction
from ncelm.torch.noise import BigramNoise, Sampler, Weights
from ncelm.torch.output_layer import Batch, SampledLoss, SampledScores, Samples, score_dtype
from ncelm.torch.scores import NCE, SharedNCE, take_rows

Normalizer = Literal["fixed", "scalar", "context"]


class NCELoss(SampledLoss):
    """Linear output layer trained by noise-contrastive estimation (Mnih & Teh 2012); exact in evaluation mode.

    In training mode the cost of a step does not depend on `num_classes`, if `sparse=True` and the optimizer supports
    sparse gradients (SGD, Adagrad, SparseAdam, `RowwiseAdagrad`). Otherwise the gradient of the weight is a dense
    tensor of its size. `nll` returns the exact negative log-likelihood. So does the call itself in evaluation mode; a
    loss that is not part of the model is not switched by ``model.eval()``, so use `nll` for everything that you report.

    The mean over a batch without targets (empty, or all of them ignored) is 0 with a gradient of zeros, so that one
    worker of several may have such a batch.

    Args:
        in_features (int): size of a hidden vector, d.
        num_classes (int): number of classes, V.
        noise (Sampler, Tensor, ndarray or sequence): counts or probabilities of the classes, all positive, or a
            sampler such as `Noise`. Class frequencies are a good choice; use `Noise(counts, power=0.75)` if rare
            classes matter.
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
        sparse (bool): whether the gradients of all parameters are sparse. Default: ``False``.
        reduction (str): "mean" over the examples that are not ignored, "sum" or "none". Default: "mean".
        ignore_index (int): targets of this value are ignored. Default: -100.
        validate (bool): check targets and input values, on the CPU and outside torch.compile. Default: ``True``.

    Shape:
        - Input: (…, in_features).
        - Target: (…), integers, or (…, T) for several targets per example.
        - Output: a scalar, or (…) with reduction="none".

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> loss = NCELoss(8, 1000, noise=torch.ones(1000), num_noise=10)
        >>> hidden, target = torch.randn(4, 7, 8, requires_grad=True), torch.randint(1000, (4, 7))
        >>> loss(hidden, target).backward()
        >>> loss.nll(hidden, target).exp() < 2000  # a perplexity
        tensor(True)
    """

    log_normalizer: nn.Parameter | None  # c_h, (contexts or 1,)

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        noise: Sampler | Weights,
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
        self.log_z_penalty = nonnegative("log_z_penalty", log_z_penalty)
        constants = None if normalizer == "fixed" else nn.Parameter(self.weight.new_zeros(max(num_contexts, 1)))
        self.register_parameter("log_normalizer", constants)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize weights, biases and learned log-normalizers, which are 0; see the base class."""
        super().reset_parameters()
        log_normalizer = self._parameters.get("log_normalizer")
        if log_normalizer is not None:  # it is not registered yet at construction
            log_normalizer.zero_()

    def forward(  # type: ignore[override]
        self,
        input: Tensor,
        target: Tensor,
        *,
        sample_weight: Tensor | None = None,
        before: Tensor | None = None,
        context_ids: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the NCE loss, or in evaluation mode −log P.

        Args:
            input (Tensor): hidden vectors, (…, in_features).
            target (Tensor): class indices, (…), or (…, T) for several targets per example: the loss of an example is
                the mean over its targets, without those that are `ignore_index`.
            sample_weight (Tensor): weights of the examples, (…), not negative. The mean is Σ w·loss / Σ w.
            before (Tensor): previous words, (…), for bigram noise.
            context_ids (Tensor): indices of contexts, (…), for normalizer="context".
            generator (torch.Generator): source of the noise samples; not with torch.compile(fullgraph=True) and not in
                torch.utils.checkpoint, which compute with torch's global generator.
        """
        return self._loss(input, target, sample_weight, before, generator, context_ids=context_ids)

    def _sampled_losses(self, batch: Batch, samples: Samples, **values: Tensor | None) -> Tensor:
        if not (self._has_closed_form() and self.shared_noise and self.group is None):
            return super()._sampled_losses(batch, samples, **values)
        given = batch.targets, samples.noise, samples.target_log_noise, samples.noise_log_noise
        return SharedNCE.apply(batch.input, self.weight, self.bias, *given, self.sparse)

    def _has_closed_form(self) -> bool:
        """Return whether the loss is computed with its derivatives. The compiler derives and fuses them itself."""
        plain = self.log_normalizer is None and not self.log_z_penalty
        return plain and not torch.compiler.is_compiling()

    def losses(self, scores: SampledScores, context_ids: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Return the NCE loss of each (example, target) pair, (N,)."""
        if self._has_closed_form():
            return NCE.apply(*scores[:4])
        return functional.nce_loss(
            scores.target,
            scores.noise,
            scores.target_log_noise,
            scores.noise_log_noise,
            log_normalizer=self._log_normalizer(context_ids),
            log_z_penalty=self.log_z_penalty,
            reduction="none",
        )

    def _log_normalizer(self, context_ids: Tensor | None) -> Tensor | float:
        """Return c_h: 0, () or (N,)."""
        if self.log_normalizer is None:
            return 0.0
        if self.normalizer == "scalar":
            context_ids = torch.zeros((), dtype=torch.int64, device=self.log_normalizer.device)
        elif context_ids is None:
            raise ValueError('normalizer="context" needs the indices of contexts: give context_ids')
        return take_rows(self.log_normalizer, context_ids, self.sparse).to(score_dtype(self.weight))


class RankingNCELoss(SampledLoss):
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
        noise: Sampler | Weights,
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
        self.log_z_penalty = nonnegative("log_z_penalty", log_z_penalty)

    def losses(self, scores: SampledScores) -> Tensor:  # type: ignore[override]
        """Return the ranking NCE loss of each (example, target) pair, (N,)."""
        return functional.ranking_nce_loss(
            scores.target,
            scores.noise,
            scores.target_log_noise,
            scores.noise_log_noise,
            log_z_penalty=self.log_z_penalty,
            reduction="none",
        )


class SampledSoftmaxLoss(SampledLoss):
    """Linear output layer trained by the sampled softmax (Bengio & Senécal 2008); exact in evaluation mode.

    The target is in the denominator, and the scores of the noise samples are corrected by log(k·Pn), the logarithm of
    the expected number of their draws (logQ correction); see `sampled_softmax_loss`. The loss tends to −log P for large
    k, is not negative and stable, but for small k it is biased.

    Args:
        remove_accidental_hits (bool): leave noise samples that are a target of their example out of the denominator,
            where the target is already. Default: ``True``.
        label_smoothing (float): share of the noise distribution in the target distribution, from 0 to 1. Default: 0.

    The other arguments and the shapes are those of `NCELoss`, without `normalizer`, `num_contexts` and `log_z_penalty`.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> loss = SampledSoftmaxLoss(8, 1000, noise=torch.ones(1000), num_noise=100, shared_noise=True)
        >>> hidden, target = torch.randn(4, 7, 8, requires_grad=True), torch.randint(1000, (4, 7))
        >>> loss(hidden, target).backward()
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        noise: Sampler | Weights,
        num_noise: int = 25,
        *,
        remove_accidental_hits: bool = True,
        label_smoothing: float = 0.0,
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
        self.remove_accidental_hits = remove_accidental_hits
        self.label_smoothing = fraction("label_smoothing", label_smoothing)

    def losses(self, scores: SampledScores) -> Tensor:  # type: ignore[override]
        """Return the sampled softmax loss of each (example, target) pair, (N,)."""
        return functional.sampled_softmax_loss(
            scores.target,
            scores.noise,
            scores.noise_log_noise,
            hits=scores.hits,
            label_smoothing=self.label_smoothing,
            reduction="none",
        )


class NegativeSamplingLoss(SampledLoss):
    """Linear output layer trained by the negative sampling of word2vec (Mikolov et al. 2013).

    The scores tend to log P(w|h) − log(k·Pn(w)); see `negative_sampling_loss`. The exact distribution of `nll`,
    `log_prob`, `predict` and `top_k` is therefore P(w|h) ∝ Pn(w) exp(s(w, h)). Biases are initialized to 0. Use NCE if
    you need probabilities: it costs the same.

    Args:
        remove_accidental_hits (bool): leave out noise samples that are a target of their example. The scores then have
            no simple relation to probabilities. Default: ``False``.

    The other arguments and the shapes are those of `NCELoss`, without `normalizer`, `num_contexts` and `log_z_penalty`.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> loss = NegativeSamplingLoss(8, 1000, noise=torch.ones(1000), num_noise=10)
        >>> hidden, target = torch.randn(4, 7, 8, requires_grad=True), torch.randint(1000, (4, 7))
        >>> loss(hidden, target).backward()
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        noise: Sampler | Weights,
        num_noise: int = 25,
        *,
        remove_accidental_hits: bool = False,
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
        if isinstance(self.noise, BigramNoise):
            raise ValueError("negative sampling goes with any noise but bigram: its scores are relative to the noise")
        self.remove_accidental_hits = remove_accidental_hits

    def losses(self, scores: SampledScores) -> Tensor:  # type: ignore[override]
        """Return the negative-sampling loss of each (example, target) pair, (N,)."""
        return functional.negative_sampling_loss(scores.target, scores.noise, hits=scores.hits, reduction="none")

    def _reset_bias(self, bias: Tensor) -> None:
        bias.zero_()

    def _exact_bias(self, bias: Tensor | None, group: dist.ProcessGroup | None) -> Tensor:
        first, last = self._range(group)
        log_noise = self._log_noise()[first:last]
        return log_noise if bias is None else bias + log_noise


class ImportanceSamplingLoss(SampledLoss):
    """Linear output layer trained by importance sampling (Mnih & Teh 2012, Eq. 5); exact in evaluation mode.

    This is a baseline, and not the sampled softmax: the target is not in the denominator. Use `SampledSoftmaxLoss`,
    `RankingNCELoss` or `NCELoss`. The noise is the proposal. After a training step, `effective_samples` is the
    effective sample size of each (example, target) pair, (N,). Near 1 a single sample dominates, and the gradient has a
    large variance.

    The arguments and the shapes are those of `NCELoss`, without `normalizer`, `num_contexts` and
    `log_z_penalty`.
    """

    effective_samples: Tensor | None = None

    def losses(self, scores: SampledScores) -> Tensor:  # type: ignore[override]
        """Return the estimate of −log P of each (example, target) pair, (N,)."""
        losses, self.effective_samples = functional.importance_sampling_loss(
            scores.target, scores.noise, scores.noise_log_noise, reduction="none"
        )
        return losses
