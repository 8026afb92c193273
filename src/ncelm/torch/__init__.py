"""Noise-contrastive estimation for any PyTorch model with a large output. Needs the extra `torch`.

from ncelm.torch import NCELoss

loss = NCELoss(in_features=256, num_classes=500_000, noise=class_counts, num_noise=25)
loss(hidden, target).backward()  # training: never sums over the classes
loss.eval()(hidden, target)  # evaluation: the exact negative log-likelihood
"""

from ncelm.errors import MissingExtraError

try:
    import torch  # noqa: F401  (the real one: nothing here is called before it is known to be there)
except ModuleNotFoundError as missing:
    raise MissingExtraError("PyTorch is needed for this and not installed: pip install 'ncelm[torch]'") from missing

from ncelm.torch.losses import ImportanceSamplingLoss, NCELoss, importance_sampling_loss, nce_loss
from ncelm.torch.noise import BigramNoise, Noise

__all__ = ["BigramNoise", "ImportanceSamplingLoss", "NCELoss", "Noise", "importance_sampling_loss", "nce_loss"]
