r"""The paper's simulation-based-inference family: the measurement enters as a short vector, never as an image.

A small convolutional encoder turns the measurement into 128 numbers, the *summary*. Projected, it is added to the embedding of
the level, which every residual block of the U-Net reads. One network serves several operators, so the encoder sees the two
maps of :mod:`macs.models.hint`, which mean the same for any of them. The summary is the same at every place of the image, so
the U-Net also reads the coordinates of each pixel; they say where, and nothing of the measurement.

References:
    Schmitt et al., "Consistency Models for Scalable and Fast Simulation-Based Inference", 2024 (the encoder).
"""

from itertools import pairwise
from math import ceil, prod
from typing import Any

import torch
from diffusers import UNet2DModel
from torch import Tensor, nn

from macs.models.consistency import ConsistencyModel
from macs.models.hint import hint
from macs.problem import Problem

WIDTHS = (64, 64, 128, 128)
STRIDES = (1, 2, 1, 2)
#: Groups of the encoder's GroupNorm.
GROUPS = 8
#: Channels that remain of each place before the places are laid in a row; an average over them would forget where things are.
NARROW = 16
SUMMARY = 128


def encoder(channels: int, height: int, width: int) -> nn.Sequential:
    """Images to summaries, (B, C, H, W) to (B, 128): four 3x3 convolutions, then one linear map of all places."""
    layers: list[nn.Module] = []
    for (before, after), stride in zip(pairwise((channels, *WIDTHS)), STRIDES, strict=True):
        layers += [nn.Conv2d(before, after, 3, stride, 1), nn.GroupNorm(GROUPS, after), nn.ReLU()]
    places = ceil(height / prod(STRIDES)) * ceil(width / prod(STRIDES))
    return nn.Sequential(*layers, nn.Conv2d(WIDTHS[-1], NARROW, 1), nn.Flatten(), nn.Linear(NARROW * places, SUMMARY))


def coordinates(x: Tensor) -> Tensor:
    """Row and column of every pixel of ``x``, from -1 to 1, (B, 2, H, W)."""
    rows, columns = (torch.linspace(-1, 1, size, dtype=x.dtype, device=x.device) for size in x.shape[-2:])
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij")).expand(len(x), -1, -1, -1)


class SummaryModel(ConsistencyModel):
    """A consistency model that sees the measurement as a summary of 128 numbers, beside the level.

    It is also trained without a measurement, on maps of zeros: ``y=None`` makes it an unconditional prior.

    Args:
        unet: a backbone with ``class_embed_type="identity"``, which adds what it is given to the embedding of the level.
        image_shape: (C, H, W).
        settings: those of :class:`macs.models.consistency.ConsistencyModel`.
    """

    def __init__(self, unet: UNet2DModel, image_shape: tuple[int, int, int], **settings: Any) -> None:
        super().__init__(unet, image_shape, **settings)
        channels, height, width = image_shape
        self.encoder = encoder(2 * channels, height, width)
        backbone: Any = unet
        self.projection = nn.Linear(SUMMARY, backbone.time_embedding.linear_2.out_features)

    def condition(self, problem: Problem) -> Tensor:
        """The maps that the encoder reads, (B, 2C, H, W), computed once per solve."""
        return hint(problem)

    def network_input(self, x: Tensor, condition: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The image and its coordinates, and the projected summary of the maps, or of zeros."""
        maps = x.new_zeros(len(x), 2 * x.shape[1], *x.shape[2:]) if condition is None else condition.to(x)
        return torch.cat([x, coordinates(x)], 1), {"class_labels": self.projection(self.encoder(maps))}
