"""The in-batch softmax of two-tower models."""

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's convention)
from torch import Tensor, nn

from ncelm.torch.checks import fraction, positive
from ncelm.torch.functional import Reduction, accidental_hits, check_reduction, in_batch_loss
from ncelm.torch.samplers import FrequencyEstimate


class InBatchLoss(nn.Module):
    """Softmax loss of pairs of queries and items, with the other items of the batch as negatives (Yi et al. 2019).

    The loss of query i is −log softmax(s(i, ·) − log Q(·)) at its own item, over the items of the batch. Items are in a
    batch in proportion to their frequency Q, so that without the correction frequent items are suppressed. Q is
    estimated while training; see `FrequencyEstimate`. It has no parameters: both towers are yours.

    With M items drawn uniformly from the catalogue as additional negatives (mixed negative sampling, Yang et al. 2020),
    Q is the mixture of both distributions. They teach the model about items that are rare in batches.

    Args:
        num_items (int): number of items, V, of which frequencies are estimated; None for no correction.
        rate (float): step size of the frequency estimates. Default: 0.01.
        temperature (float): scores are divided by it. Default: 1.
        cosine (bool): normalize queries and items to length 1; choose a temperature of about 0.05 then.
            Default: ``False``.
        remove_accidental_hits (bool): leave negatives out that are the same item as the target. Default: ``True``.
        label_smoothing (float): from 0 to 1; see `in_batch_loss`. Default: 0.
        reduction (str): "mean" over the queries that are not ignored, "sum" or "none". Default: "mean".
        ignore_index (int): pairs with this item id are ignored. Default: -100.

    Shape:
        - Query: (N, d).
        - Item: (N, d), the item of each query.
        - Item ids: (N,), integers.
        - Output: a scalar, or (N,) with reduction="none".

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> loss = InBatchLoss(num_items=1000, temperature=0.05, cosine=True)
        >>> query, item = torch.randn(32, 16, requires_grad=True), torch.randn(32, 16, requires_grad=True)
        >>> loss(query, item, torch.randint(1000, (32,))).backward()
    """

    def __init__(
        self,
        num_items: int | None = None,
        *,
        rate: float = 0.01,
        temperature: float = 1.0,
        cosine: bool = False,
        remove_accidental_hits: bool = True,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        self.frequencies = None if num_items is None else FrequencyEstimate(num_items, rate=rate)
        self.temperature, self.cosine = positive("temperature", temperature), cosine
        self.remove_accidental_hits = remove_accidental_hits
        self.label_smoothing = fraction("label_smoothing", label_smoothing)
        self.reduction: Reduction = reduction
        self.ignore_index = ignore_index

    def forward(
        self,
        query: Tensor,
        item: Tensor,
        item_ids: Tensor,
        *,
        uniform_item: Tensor | None = None,
        uniform_ids: Tensor | None = None,
        sample_weight: Tensor | None = None,
    ) -> Tensor:
        """Return the loss. In training mode, the frequency estimates are updated first.

        Args:
            query (Tensor): vectors of the queries, (N, d).
            item (Tensor): vectors of their items, (N, d).
            item_ids (Tensor): ids of the items, (N,).
            uniform_item (Tensor): vectors of items drawn uniformly from all items, (M, d).
            uniform_ids (Tensor): ids of those items, (M,).
            sample_weight (Tensor): weights of the pairs, (N,), not negative. The mean is Σ w·loss / Σ w.
        """
        self._check(query, item, item_ids, uniform_item, uniform_ids)
        counted = item_ids != self.ignore_index  # (N,)
        if self.frequencies is not None and self.training:
            self.frequencies.update(item_ids, counted)
        classes = item_ids.masked_fill(~counted, 0)
        left_out = ~counted
        if uniform_item is not None and uniform_ids is not None:
            item, classes = torch.cat([item, uniform_item]), torch.cat([classes, uniform_ids])
            left_out = torch.cat([left_out, torch.zeros_like(uniform_ids, dtype=torch.bool)])
        # ignored vectors may be NaN and must not reach a gradient
        query, item = query.masked_fill(~counted.unsqueeze(1), 0.0), item.masked_fill(left_out.unsqueeze(1), 0.0)
        if self.cosine:
            query, item = F.normalize(query, dim=1), F.normalize(item, dim=1)
        scores = query @ item.T / self.temperature  # (N, N + M)
        hits = left_out.unsqueeze(0).expand(scores.shape)
        if self.remove_accidental_hits:
            hits = hits | accidental_hits(classes[: len(query)], classes)
        log_noise = self._log_noise(classes, len(query), scores)
        losses = in_batch_loss(scores, log_noise, hits=hits, label_smoothing=self.label_smoothing, reduction="none")
        weights = counted.to(losses.dtype) if sample_weight is None else counted * sample_weight
        losses = torch.where(counted, losses, 0.0) * weights
        match self.reduction:
            case "none":
                return losses
            case "sum":
                return losses.sum()
        total = weights.sum()
        return losses.sum() / torch.where(total > 0, total, 1.0)  # 0 for a batch without pairs

    def _log_noise(self, classes: Tensor, pairs: int, scores: Tensor) -> Tensor | float:
        """Return log Q of the items, (N + M,): N − 1 negatives have their frequencies, and M are uniform."""
        if self.frequencies is None:
            return 0.0
        log_q = self.frequencies.log_prob(classes)
        uniform = len(classes) - pairs
        if uniform:
            q = (pairs - 1) * log_q.exp() + uniform / self.frequencies.num_classes
            log_q = torch.log(q / (pairs - 1 + uniform))
        return log_q.to(scores.dtype)

    def _check(
        self, query: Tensor, item: Tensor, ids: Tensor, uniform_item: Tensor | None, uniform_ids: Tensor | None
    ) -> None:
        if query.dim() != 2 or query.shape != item.shape or ids.shape != query.shape[:1]:
            shapes = f"query is {tuple(query.shape)}, item {tuple(item.shape)} and item_ids {tuple(ids.shape)}"
            raise ValueError(f"{shapes}: they must be (N, d), (N, d) and (N,)")
        if (uniform_item is None) != (uniform_ids is None):
            raise ValueError("give both uniform_item and uniform_ids, or neither")
        if uniform_item is not None and uniform_ids is not None and len(uniform_item) != len(uniform_ids):
            raise ValueError(f"uniform_item has {len(uniform_item)} rows, and uniform_ids {len(uniform_ids)}")
