r"""CoSIGN's hard constraint: the sampler of DDNM+ with a consistency model.

After each network call the estimate is projected onto the measurement, less far where the next level is below the
measurement noise, and the noise that the projection brought in counts towards the noise of the next level:

.. math:: \hat x \leftarrow \hat x + \lambda A^+(y - A \hat x), \qquad
    x_s = \hat x + \sqrt{\max(g, t_{\min})^2 - t_{\min}^2}\; z,

with :math:`\lambda = 1,\ g^2 = s^2 - \sigma_y^2` where :math:`s \ge \sigma_y`, else :math:`\lambda = s/\sigma_y,\ g = 0`. The
level after the last call is :math:`t_{\min}`.

References:
    Wang et al., "Zero-Shot Image Restoration Using Denoising Diffusion Null-Space Model", 2023 (DDNM+).
    Zhao et al., "CoSIGN: Few-Step Guidance of ConSIstency Model to Solve General INverse Problems", 2024.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from macs.errors import ConfigError
from macs.noise import Noise
from macs.problem import Problem, per_image
from macs.steps import ConsistencyFunction, Past, Sampler, t_min_of


@dataclass(frozen=True)
class HardConstraint(Sampler):
    r"""Multistep sampling with DDNM+'s projection after each call; linear physics only.

    Args:
        kappa: a fixed :math:`\lambda`, with :math:`g^2 = s^2 - (\kappa \sigma_y)^2`; by default both follow the level.
    """

    kappa: float | None = None

    def __post_init__(self) -> None:
        if self.data is not None:
            raise ConfigError("HardConstraint is itself a data step; leave data out, or use Multistep(data=...)")
        if self.kappa is not None and not 0 <= self.kappa <= 1:
            raise ConfigError(f"kappa must be between 0 and 1; got {self.kappa}; 1 is the whole projection")

    def weight(self, s: float, problem: Problem) -> Tensor:
        r""":math:`\lambda` of each image before level ``s``, (B,)."""
        if self.kappa is not None:
            return torch.full_like(problem.m, self.kappa)
        return (s / sigma_of(problem).clamp_min(1e-12)).clamp_max(1)

    def project(self, x_hat: Tensor, s: float, problem: Problem) -> Tensor:
        """The estimate, moved onto the measurement as far as level ``s`` allows."""
        step = problem.pinv(problem.difference(x_hat))
        return (x_hat + per_image(self.weight(s, problem), x_hat) * step).clamp(-1, 1)

    def __call__(
        self, f: ConsistencyFunction, problem: Problem, x_t: Tensor, t: float, s: float, noise: Noise, past: Past = ()
    ) -> Tensor:
        """The formulas above."""
        x_hat = self.project(f(x_t, problem.y, t), s, problem)
        sigma = sigma_of(problem) * (1 if self.kappa is None else self.kappa)
        g = (s**2 - sigma.square()).clamp_min(t_min_of(f) ** 2)
        return x_hat + per_image((g - t_min_of(f) ** 2).sqrt(), x_hat) * noise.like(x_hat)

    def finish(self, f: ConsistencyFunction, problem: Problem, x_t: Tensor, t: float, calls: int) -> Tensor:
        """The last call and its projection."""
        return self.project(f(x_t, problem.y, t), t_min_of(f), problem)


def sigma_of(problem: Problem) -> Tensor:
    """The measurement noise, (B,), which must be known."""
    if problem.sigma_y is None:
        raise ConfigError("HardConstraint must know the noise level; pass sigma_y, on images in [-1, 1]")
    return problem.sigma_y
