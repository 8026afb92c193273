"""Sampled losses for PyTorch models with a large output. Needs the extra `torch`.

from ncelm.torch import NCELoss

loss = NCELoss(in_features=256, num_classes=500_000, noise=class_counts, num_noise=25)
loss(hidden, target).backward()  # training: the cost does not depend on the number of classes
loss.nll(hidden, target)  # the exact negative log-likelihood
"""

from ncelm.errors import MissingExtraError

try:
    import torch  # noqa: F401  (to report a missing installation before anything else needs it)
except ModuleNotFoundError as missing:
    raise MissingExtraError("PyTorch is needed for this and not installed: pip install 'ncelm[torch]'") from missing

from ncelm.torch.losses import (
    ImportanceSamplingLoss,
    NCELoss,
    RankingNCELoss,
    clip_grad_norm_,
    importance_sampling_loss,
    log_z_penalty,
    nce_loss,
    ranking_nce_loss,
)
from ncelm.torch.noise import BigramNoise, Noise

__all__ = [
    "BigramNoise",
    "ImportanceSamplingLoss",
    "NCELoss",
    "Noise",
    "RankingNCELoss",
    "clip_grad_norm_",
    "importance_sampling_loss",
    "log_z_penalty",
    "nce_loss",
    "ranking_nce_loss",
]
