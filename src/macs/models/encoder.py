r"""The paper's simulation-based-inference family: the measurement enters as a short vector, never as an image.

A small convolutional encoder turns the measurement into 128 numbers, the *summary*. Projected, it is added to the embedding of
the level, which every residual block of the U-Net reads. One network serves several operators, so the encoder sees the two
maps of :mod:`macs.models.hint`, which mean the same for any of them.

References:
    Schmitt et al., "Consistency Models for Scalable and Fast Simulation-Based Inference", 2024 (the encoder).
"""

from itertools import pairwise
from typing import Any

from diffusers import UNet2DModel
from torch import Tensor, nn

from macs.models.consistency import ConsistencyModel
from macs.models.hint import hint
from macs.problem import Problem

WIDTHS = (64, 64, 128, 128)
STRIDES = (1, 2, 1, 2)
#: Groups of the encoder's GroupNorm.
GROUPS = 8


def encoder(channels: int) -> nn.Sequential:
    """Images to summaries, (B, C, H, W) to (B, 128): four 3x3 convolutions, then the average over all places."""
    layers: list[nn.Module] = []
    for (before, width), stride in zip(pairwise((channels, *WIDTHS)), STRIDES, strict=True):
        layers += [nn.Conv2d(before, width, 3, stride, 1), nn.GroupNorm(GROUPS, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


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
        self.encoder = encoder(2 * image_shape[0])
        backbone: Any = unet
        self.projection = nn.Linear(WIDTHS[-1], backbone.time_embedding.linear_2.out_features)

    def condition(self, problem: Problem) -> Tensor:
        """The maps that the encoder reads, (B, 2C, H, W), computed once per solve."""
        return hint(problem)

    def network_input(self, x: Tensor, condition: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The image alone, and the projected summary of the maps, or of zeros."""
        maps = x.new_zeros(len(x), 2 * x.shape[1], *x.shape[2:]) if condition is None else condition.to(x)
        return x, {"class_labels": self.projection(self.encoder(maps))}
