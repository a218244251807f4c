r"""The energy score: a loss that is least, on average, where the network's answers are samples of the posterior itself.

Of two answers to one measurement, drawn with noise of their own, and the true image,

.. math:: S = \tfrac12 \big( d(\hat x_1, x) + d(\hat x_2, x) - d(\hat x_1, \hat x_2) \big).

The first two terms draw the answers to the truth, the last one drives them apart. Without it the least loss is at a median,
which is blurred; with it, for distances :math:`d` such as a Euclidean norm, at answers that are distributed as :math:`x` is
given :math:`y` (a proper scoring rule). Nothing adversarial is trained, and there is no second network that learns.

Norms of whole images hardly see texture, so :math:`d` is a mean of norms at many places: of patches of pixels, at two scales,
and of the vectors that AlexNet has at each place, weighted as LPIPS weighs them (:mod:`macs.lpips`).

References:
    Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", 2007, Sec. 4.3.
    Bouchacourt, Kumar and Nowozin, "DISCO Nets: DISsimilarity COefficient Networks", 2016 (the score as a network's loss).
    De Bortoli et al., "Distributional Diffusion Models with Scoring Rules", 2025 (for few-step samplers).
"""

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate, unfold

from macs.lpips import Lpips, enlargement

#: What a kind of patches weighs beside a layer of LPIPS.
PATCHES = 0.3

#: Vectors at places, (B, channels, places), each kind with its weight.
Places = list[tuple[float, Tensor]]


def patches(x: Tensor) -> Places:
    """Windows of 3x3 pixels, the same of the image at half its size, and the whole image, each by its root mean square."""
    views = unfold(x, 3, padding=1), unfold(avg_pool2d(x, 2), 3), x.flatten(1)[..., None]
    return [(PATCHES, view / view.shape[1] ** 0.5) for view in views]


def perceived(x: Tensor, network: Lpips, weight: float) -> Places:
    """Patches of images in [-1, 1] and, weighted by ``weight``, AlexNet's vectors; squares of their distances make up LPIPS."""
    factor = enlargement(min(x.shape[-2:]))
    shown = interpolate(x, scale_factor=factor, mode="bilinear") if factor > 1 else x
    layers = enumerate(network.features(shown.expand(-1, 3, -1, -1)))
    shares = ((layer.float(), network.weights[f"lin{i}.weight"].to(layer.device).clamp_min(0).sqrt()) for i, layer in layers)
    return patches(x) + [(weight, (layer * share).flatten(2)) for layer, share in shares]


def distance(a: Places, b: Places) -> Tensor:
    """The weighted mean norm of the difference over places, (B,)."""
    norms = [weight * ((u - v).square().sum(1) + 1e-8).sqrt().mean(1) for (weight, u), (_, v) in zip(a, b, strict=True)]
    return torch.stack(norms).sum(0)


def energy_score(first: Places, second: Places, truth: Places) -> Tensor:
    """The formula above for each image, (B,)."""
    return (distance(first, truth) + distance(second, truth) - distance(first, second)) / 2
