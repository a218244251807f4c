r"""A consistency model for images larger than it was trained on.

The network sees overlapping tiles of its own size; its outputs are averaged with the weight :math:`w_i w_j`,
:math:`w_i = \sin^2(\pi (i + 1/2)/S)`, which falls to nothing at a tile's border. Only the network is tiled. The start noise,
the physics, the data step and the residual are those of the whole image, so no operator is cut at a tile's border and
:math:`\chi^2` means what it always means. The maps that condition the network (:mod:`macs.models.hint`) are computed for the
whole image and cut like the image.

A tile knows nothing of its neighbours but what the measurement and the overlap say: a hole larger than a tile is filled with
parts that need not fit together.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from macs.errors import ConfigError, ModelError
from macs.models.controlnet import ControlledModel
from macs.problem import Problem

#: Tiles in one network call.
BATCH = 64


def starts(length: int, side: int, overlap: int) -> list[int]:
    """Where tiles of ``side`` begin on ``length`` pixels: evenly spread, overlapping by at least ``overlap``."""
    if length <= side:
        return [0]
    n = math.ceil((length - side) / (side - overlap)) + 1
    return [round(i * (length - side) / (n - 1)) for i in range(n)]


def window(side: int) -> Tensor:
    """The weight of a tile's pixels, (side, side)."""
    w = torch.sin(math.pi * (torch.arange(side) + 0.5) / side).square()
    return torch.outer(w, w)


class Tiled:
    """A consistency function on images of ``image_shape`` that calls ``model`` on tiles of its own size.

    Args:
        model: a model with ``image_shape`` (C, S, S); it must read its condition as maps of the image's size, or not at all.
        image_shape: (C, H, W), at least the model's.
        overlap: of neighbouring tiles, in pixels; half a tile by default.
        on_tiles: called with a number of tiles when they are done.
    """

    def __init__(
        self,
        model: Any,
        image_shape: tuple[int, int, int],
        overlap: int | None = None,
        on_tiles: Callable[[int], None] | None = None,
    ) -> None:
        channels, side, width = model.image_shape
        overlap = side // 2 if overlap is None else overlap
        if side != width:
            raise ModelError(f"tiles need a model of square images; this one has {side}x{width}")
        if image_shape[0] != channels or min(image_shape[1:]) < side:
            raise ConfigError(
                f"a restored image must have at least {side}x{side} pixels, the size of this model; this one would have "
                f"{image_shape[1]}x{image_shape[2]}; enlarge it first, or use a model of smaller images"
            )
        if not 0 <= overlap < side:
            raise ConfigError(f"overlap must be from 0 to {side - 1} pixels for tiles of {side}; got {overlap}")
        self.model, self.image_shape, self.side = model, tuple(image_shape), side
        self.t_min, self.t_max = model.t_min, model.t_max
        self.on_tiles = on_tiles
        rows, columns = (starts(n, side, overlap) for n in image_shape[1:])
        self.corners = [(top, left) for top in rows for left in columns]

    def condition(self, problem: Problem) -> Tensor | None:
        """The model's maps for the whole image, (B, ..., H, W), or nothing for a model that reads none."""
        if isinstance(self.model, ControlledModel):
            return self.model.condition(problem, self.image_shape)
        return self.model.condition(problem) if hasattr(self.model, "condition") else None

    def __call__(self, x_t: Tensor, condition: Tensor | None, t: Tensor | float) -> Tensor:
        """``f(x_t, y, t)``, the weighted average of the tiles."""
        level = torch.as_tensor(t, dtype=torch.float64, device=x_t.device).flatten().expand(len(x_t))
        weight = window(self.side).to(x_t)
        total, share = torch.zeros_like(x_t), torch.zeros_like(x_t[:1, :1])
        places = [(i, *corner) for i in range(len(x_t)) for corner in self.corners]
        for first in range(0, len(places), BATCH):
            some = places[first : first + BATCH]
            maps = None if condition is None else self.cut(condition, some)
            x_hat = self.model(self.cut(x_t, some), maps, level[[i for i, _, _ in some]])
            for (i, top, left), tile in zip(some, x_hat, strict=True):
                total[i, :, top : top + self.side, left : left + self.side] += weight * tile
            if self.on_tiles is not None:
                self.on_tiles(len(some))
        for top, left in self.corners:
            share[..., top : top + self.side, left : left + self.side] += weight
        return total / share

    def cut(self, x: Tensor, places: list[tuple[int, int, int]]) -> Tensor:
        """The tiles of a batch at (image, top, left)."""
        return torch.stack([x[i, :, top : top + self.side, left : left + self.side] for i, top, left in places])
