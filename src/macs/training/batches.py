"""What a training step sees: images, their measurements under operators drawn around the nominal ones, levels and noise.

A batch is a function of (seed, step) and of nothing else, so a run can stop anywhere and go on as if it had not.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from deepinv.physics import Inpainting
from torch import Generator, Tensor

from macs.levels import T_MAX, T_MIN
from macs.models.hint import hint
from macs.noise import stream_seed
from macs.problem import Problem, to_image
from macs.tasks import SIGMA_Y, Separable, task

Shape = tuple[int, int, int]


class Batch(NamedTuple):
    """Images in [-1, 1], their conditions (zeroed where dropped), levels and unit noise."""

    x: Tensor
    condition: Tensor | None
    t: Tensor
    z: Tensor


def uniform(g: Generator, low: float, high: float) -> float:
    """One number, evenly distributed."""
    return low + (high - low) * torch.rand((), generator=g).item()


@lru_cache(maxsize=256)
def operator(name: str, shape: Shape, **options: float) -> Separable:
    """A physics of :func:`macs.task`, factorised once."""
    return task(name, image_shape=shape, **options)


def any_super_resolution(shape: Shape, g: Generator, nominal: bool) -> Separable:
    """The one reduction; only its noise varies."""
    return operator("super-resolution", shape)


def any_inpainting(shape: Shape, g: Generator, nominal: bool) -> Inpainting:
    """A hole of 0.3 to 0.65 of the side, up to a tenth of it off the centre."""
    if nominal:
        return task("inpainting", image_shape=shape)
    sides = [round(uniform(g, 0.3, 0.65) * n) for n in shape[1:]]
    corner = [round((n - k) / 2 + uniform(g, -0.1, 0.1) * n) for n, k in zip(shape[1:], sides, strict=True)]
    mask = torch.ones(shape)
    mask[:, corner[0] : corner[0] + sides[0], corner[1] : corner[1] + sides[1]] = 0
    return Inpainting(img_size=shape, mask=mask)


def any_deblurring(shape: Shape, g: Generator, nominal: bool) -> Separable:
    """A blur of 0.6 to 1.4 of the nominal standard deviation, in steps of 0.1."""
    if nominal:
        return operator("deblurring", shape)
    std = (3.0 if shape[-1] <= 32 else 5 * shape[-1] / 256) * round(uniform(g, 0.6, 1.4), 1)
    return operator("deblurring", shape, std=std)


OPERATORS: dict[str, Callable[[Shape, Generator, bool], Separable | Inpainting]] = {
    "super-resolution": any_super_resolution,
    "inpainting": any_inpainting,
    "deblurring": any_deblurring,
}


def measured(x: Tensor, name: str, g: Generator, nominal: float) -> Problem:
    """Measurements of images by one operator, with probability ``nominal`` the paper's, and as often with the paper's noise."""
    channels, height, width = x.shape[1:]
    physics = OPERATORS[name]((channels, height, width), g, uniform(g, 0, 1) < nominal)
    sigma_y = torch.full((len(x),), SIGMA_Y)
    if uniform(g, 0, 1) >= nominal:
        sigma_y = SIGMA_Y * torch.exp(0.5 * torch.randn(len(x), generator=g)).clamp(0.2, 4)
    clean = physics.A(to_image(x))
    y = clean + (sigma_y / 2).reshape(-1, 1, 1, 1) * torch.randn(clean.shape, generator=g)
    if isinstance(physics, Inpainting):
        y = y * physics.mask
    return Problem(y, physics, sigma_y)


def each_task(x: Tensor, g: Generator, nominal: float) -> list[Problem]:
    """Thirds of a batch under each task."""
    chunks = zip(x.tensor_split(len(OPERATORS)), OPERATORS, strict=True)
    return [measured(chunk, name, g, nominal) for chunk, name in chunks]


def levels(n: int, g: Generator, t_min: float, t_max: float) -> Tensor:
    """Log-normal levels (mean -0.4, deviation 1.6 in ln t), one in five log-uniform from 1 to ``t_max`` instead."""
    t = torch.exp(-0.4 + 1.6 * torch.randn(n, generator=g))
    high = torch.exp(math.log(t_max) * torch.rand(n, generator=g))
    return torch.where(torch.rand(n, generator=g) < 0.2, high, t).clamp(2 * t_min, t_max)


def picked(images: Tensor, size: int, g: Generator) -> Tensor:
    """So many images at random, in [-1, 1]."""
    return images[torch.randint(len(images), (size,), generator=g)].float() / 127.5 - 1


def flipped(x: Tensor, seed: int, step: int) -> Tensor:
    """Each image as it is or mirrored, by a stream of its own."""
    g = Generator().manual_seed(stream_seed(seed, "flip", step))
    return torch.where(torch.rand(len(x), 1, 1, 1, generator=g) < 0.5, x.flip(-1), x)


def draw_images(
    images: Tensor, step: int, *, seed: int, size: int, flip: bool = False, t_min: float = T_MIN, t_max: float = T_MAX
) -> Batch:
    """The batch of a step for a model that sees no measurement."""
    g = Generator().manual_seed(stream_seed(seed, "batch", step))
    x = picked(images, size, g)
    x = flipped(x, seed, step) if flip else x
    return Batch(x, None, levels(size, g, t_min, t_max), torch.randn(x.shape, generator=g))


def draw(
    images: Tensor, step: int, *, seed: int, size: int, nominal: float, drop: float, t_min: float, t_max: float,
    flip: bool = False,
) -> Batch:  # fmt: skip
    """The batch of a step: thirds of it under each task, a share ``drop`` without any measurement."""
    g = Generator().manual_seed(stream_seed(seed, "batch", step))
    x = picked(images, size, g)
    x = flipped(x, seed, step) if flip else x
    condition = torch.cat([hint(problem) for problem in each_task(x, g, nominal)])
    condition = condition * (torch.rand(size, 1, 1, 1, generator=g) >= drop)
    t = levels(size, g, t_min, t_max)
    return Batch(x, condition, t, torch.randn(x.shape, generator=g))
