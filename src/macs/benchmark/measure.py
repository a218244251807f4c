"""The measurements of a run, made part by part, so that no more than a part of large images is in work at once."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from macs.demo import noisy
from macs.models.nonlinear_blur import NonlinearBlur


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


def physics_of(physics: Any, first: int, last: int) -> Any:
    """The physics of some images: a learnt blur has a kernel for each of them, any other is the same for all."""
    if not isinstance(physics, NonlinearBlur):
        return physics
    return NonlinearBlur(physics.network, physics.k[first:last], noise_model=physics.noise_model)
