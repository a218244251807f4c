"""How close a restored image is to the truth; images in [0, 1], one number per image."""

import torch
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure

from macs.errors import DataError


def psnr(x: Tensor, truth: Tensor) -> Tensor:
    r""":math:`-10 \log_{10} \frac1n\|x - x^*\|^2`, (B,); equal images have infinity."""
    check_pair(x, truth)
    return -10 * torch.log10((x - truth).double().square().flatten(1).mean(1))


def ssim(x: Tensor, truth: Tensor) -> Tensor:
    """Structural similarity (Wang et al. 2004), data range 1, Gaussian window of deviation 1.5 over 11 pixels, (B,)."""
    check_pair(x, truth)
    return torch.as_tensor(structural_similarity_index_measure(x, truth, data_range=1.0, reduction="none")).reshape(len(x))


def check_pair(x: Tensor, truth: Tensor) -> None:
    """Refuse images that cannot be compared."""
    if x.shape != truth.shape:
        raise DataError(f"images must have the shape of the truth, {tuple(truth.shape)}; got {tuple(x.shape)}")
