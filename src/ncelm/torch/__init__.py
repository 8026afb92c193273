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

from ncelm.torch.functional import (
    accidental_hits,
    importance_sampling_loss,
    in_batch_loss,
    log_z_penalty,
    nce_loss,
    negative_sampling_loss,
    ranking_nce_loss,
    sampled_softmax_loss,
)
from ncelm.torch.in_batch import InBatchLoss
from ncelm.torch.losses import (
    ImportanceSamplingLoss,
    NCELoss,
    NegativeSamplingLoss,
    RankingNCELoss,
    SampledSoftmaxLoss,
)
from ncelm.torch.metrics import ranks, recall_at_k, sampled_ranks, top_k
from ncelm.torch.noise import BigramNoise, Noise, Sampler
from ncelm.torch.optim import RowwiseAdagrad, clip_grad_norm_
from ncelm.torch.samplers import (
    FrequencyEstimate,
    LogUniformNoise,
    MixtureNoise,
    StreamingNoise,
    UniformNoise,
    UniqueNoise,
)
from ncelm.torch.sharding import shard_rows

__all__ = [
    "BigramNoise",
    "FrequencyEstimate",
    "ImportanceSamplingLoss",
    "InBatchLoss",
    "LogUniformNoise",
    "MixtureNoise",
    "NCELoss",
    "NegativeSamplingLoss",
    "Noise",
    "RankingNCELoss",
    "RowwiseAdagrad",
    "SampledSoftmaxLoss",
    "Sampler",
    "StreamingNoise",
    "UniformNoise",
    "UniqueNoise",
    "accidental_hits",
    "clip_grad_norm_",
    "importance_sampling_loss",
    "in_batch_loss",
    "log_z_penalty",
    "nce_loss",
    "negative_sampling_loss",
    "ranking_nce_loss",
    "ranks",
    "recall_at_k",
    "sampled_ranks",
    "sampled_softmax_loss",
    "shard_rows",
    "top_k",
]
