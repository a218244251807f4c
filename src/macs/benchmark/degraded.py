"""No restoration at all: the measurement as an image, which every solver must beat."""

from collections.abc import Callable

import torch
from deepinv.physics import Inpainting, Physics
from torch import Tensor
from torch.nn.functional import interpolate

from macs.noise import Noise
from macs.problem import Problem, to_sampler
from macs.solver import Counted, Restorer, Step, Trace


class Degraded(Restorer):
    """The measurement itself, as a solver without a network call; its model only says how large an image is."""

    def restore(
        self,
        f: Counted,
        problem: Problem,
        unit: Tensor,
        noise: Noise,
        trace: Trace | None,
        callback: Callable[[Step], None] | None,
    ) -> Tensor:
        """:func:`degraded`."""
        x = to_sampler(degraded(problem.y, problem.physics, unit.shape[-2:]))
        if trace is not None:
            trace.end(problem, x)
        return x


def degraded(y: Tensor, physics: Physics, size: torch.Size) -> Tensor:
    """A measurement as an image in [0, 1]: a hole has the mean colour of the rest, a small one is enlarged (bicubic)."""
    if isinstance(physics, Inpainting):
        known = (physics.mask.to(y.device) != 0).expand_as(y)
        mean = torch.where(known, y, 0).sum((2, 3), keepdim=True) / known.sum((2, 3), keepdim=True)
        y = torch.where(known, y, mean)
    if y.shape[-2:] != size:
        y = interpolate(y, size=size, mode="bicubic", antialias=True)
    return y.clamp(0, 1)
