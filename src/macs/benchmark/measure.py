"""The measurements of a run, made part by part, so that no more than a part of large images is in work at once."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from macs.demo import noisy
from macs.models.nonlinear_blur import NonlinearBlur
from macs.problem import Problem

#: How many images are measured at once.
AT_ONCE = 500


@dataclass(frozen=True)
class Measured:
    """A task on all images of a run; every sampler sees the same measurements."""

    x: Tensor
    physics: Any
    seed: int

    def part(self, first: int, last: int) -> tuple[Tensor, Any]:
        """The measurements of some images, and the physics that made them."""
        physics = physics_of(self.physics, first, last)
        return noisy(self.x[first:last], physics, self.seed, first), physics

    def noise_share(self) -> float:
        """The residue of the true images: the noise as a share of the measurement, sigma_y sqrt(m) / |2 y|, its mean."""
        shares = []
        for first in range(0, len(self.x), AT_ONCE):
            y, physics = self.part(first, min(first + AT_ONCE, len(self.x)))
            problem = Problem(y, physics)
            if problem.sigma_y is not None:
                shares.append(problem.sigma_y * problem.m.sqrt() / (2 * y.flatten(1).norm(dim=1)))
        return torch.cat(shares).mean().item() if shares else 0.0


def physics_of(physics: Any, first: int, last: int) -> Any:
    """The physics of some images: a learnt blur has a kernel for each of them, any other is the same for all."""
    if not isinstance(physics, NonlinearBlur):
        return physics
    return NonlinearBlur(physics.network, physics.k[first:last], noise_model=physics.noise_model)
