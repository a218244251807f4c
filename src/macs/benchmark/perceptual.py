"""LPIPS of sets of images, where its weights are given.

Grey images are shown as three equal channels. AlexNet sees nothing below 64 pixels, so smaller images, and the true ones with
them, are first enlarged, bilinearly, by the least whole factor that brings them there.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from macs.lpips import Lpips, enlargement
from macs.metrics import check_pair
from macs.models.manifest import tensors_digest

BATCH = 50


@dataclass(frozen=True)
class Perceptual:
    """LPIPS of sets of images."""

    network: Lpips

    @property
    def digest(self) -> str:
        """What its weights are."""
        return tensors_digest(self.network.weights)

    def __call__(self, x: Tensor, truth: Tensor) -> Tensor:
        """LPIPS of each image in [0, 1] to its truth, (N,)."""
        check_pair(x, truth)
        with torch.no_grad():
            pairs = zip(x.split(BATCH), truth.split(BATCH), strict=True)
            return torch.cat([self.network(prepared(a), prepared(b)) for a, b in pairs])


def find_lpips(path: str | Path | None) -> Perceptual | None:
    """The distance with weights from ``path``, else ``$MACS_LPIPS``; None where neither is given."""
    source = path or os.environ.get("MACS_LPIPS")
    return Perceptual(Lpips(source)) if source else None


def prepared(x: Tensor) -> Tensor:
    """Images in [0, 1] as the network wants them: three channels, large enough, in [-1, 1]."""
    factor = enlargement(min(x.shape[-2:]))
    colour = 2 * x.expand(-1, 3, -1, -1) - 1
    return colour if factor == 1 else interpolate(colour, scale_factor=factor, mode="bilinear", align_corners=False)
