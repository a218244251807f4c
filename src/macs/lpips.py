r"""LPIPS, a perceptual distance: differences of AlexNet's features, normalised at each place and weighted (Zhang et al. 2018).

.. math:: d(x, x') = \sum_l \frac{1}{H_l W_l} \sum_{h,w} \big\| w_l \odot (\hat\phi_l(x) - \hat\phi_l(x')) \big\|^2

The weights are a file of the user's: ``conv0`` to ``conv4`` (AlexNet) and ``lin0`` to ``lin4`` (LPIPS 0.1) in safetensors.
Differentiable, so it serves as a loss too.

References:
    Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric", 2018.
"""

import math
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu

from macs.errors import ModelError

#: AlexNet's convolutions: channels out, channels in, taps, stride, padding, and whether the maximum over 3x3 comes before.
LAYERS = (
    (64, 3, 11, 4, 2, False), (192, 64, 5, 1, 2, True), (384, 192, 3, 1, 1, True), (256, 384, 3, 1, 1, False),
    (256, 256, 3, 1, 1, False),
)  # fmt: skip
#: ImageNet's mean and deviation on images in [-1, 1].
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
#: The side below which AlexNet sees nothing.
SIDE = 64


def enlargement(side: int) -> int:
    """The least whole factor by which images of this side are enlarged for AlexNet."""
    return max(1, math.ceil(SIDE / side))


class Lpips:
    """The distance; ``lpips(x, x')`` of images in [-1, 1], (B, 3, H, W), is (B,)."""

    def __init__(self, path: str | Path) -> None:
        try:
            self.weights = load_file(path)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is no readable file of LPIPS weights ({error}); give a .safetensors file") from error
        wanted: dict[str, tuple[int, ...]] = {
            f"conv{i}.weight": (out, before, k, k) for i, (out, before, k, *_) in enumerate(LAYERS)
        }
        wanted |= {f"conv{i}.bias": (layer[0],) for i, layer in enumerate(LAYERS)}
        wanted |= {f"lin{i}.weight": (1, layer[0], 1, 1) for i, layer in enumerate(LAYERS)}
        for name, shape in wanted.items():
            if name not in self.weights or tuple(self.weights[name].shape) != shape:
                raise ModelError(f"{path} must hold LPIPS weights on AlexNet; it has no {name!r} of shape {shape}")

    def features(self, x: Tensor) -> list[Tensor]:
        """Each layer's output, of length one at each place."""
        shift, scale = (torch.tensor(v).to(x).reshape(1, 3, 1, 1) for v in (SHIFT, SCALE))
        h, out = (x - shift) / scale, []
        for i, (_, _, _, stride, padding, pooled) in enumerate(LAYERS):
            h = max_pool2d(h, 3, 2) if pooled else h
            h = relu(conv2d(h, self.weights[f"conv{i}.weight"].to(h), self.weights[f"conv{i}.bias"].to(h), stride, padding))
            out.append(h / (h.square().sum(1, keepdim=True).sqrt() + 1e-10))
        return out

    def __call__(self, x: Tensor, reference: Tensor) -> Tensor:
        """The distance of each pair."""
        total = torch.zeros(len(x), device=x.device)
        for i, (a, b) in enumerate(zip(self.features(x), self.features(reference), strict=True)):
            total = total + conv2d((a - b).square(), self.weights[f"lin{i}.weight"].to(a)).mean((1, 2, 3))
        return total
