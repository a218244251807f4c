r"""Data for which everything is known: Gaussian images, with and without a linear measurement.

For :math:`x \sim N(\mu, \Sigma)` and :math:`x_t = x + t z` the probability-flow ODE scales each eigendirection of
:math:`\Sigma` (eigenvalue :math:`\ell`) by itself. So, in the eigenbasis, the consistency function is
:math:`f = \mu + \sqrt{(\ell + t_{\min}^2)/(\ell + t^2)}\,(x_t - \mu)` and the posterior mean is
:math:`D = \mu + \ell/(\ell + t^2)\,(x_t - \mu)`.
"""

import math
from dataclasses import dataclass

import torch
from deepinv.physics import GaussianNoise, LinearPhysics
from torch import Tensor

T_MIN = 0.002


@dataclass
class Gaussian:
    """N(mu, V diag(ell) V^T) on flattened images, as a model with ``t_min``."""

    mu: Tensor
    V: Tensor
    ell: Tensor
    t_min: float = T_MIN

    def scale(self, x: Tensor, gain: Tensor) -> Tensor:
        flat = (x.flatten(1).to(self.mu) - self.mu) @ self.V
        return (self.mu + (gain * flat) @ self.V.mT).reshape(x.shape).to(x.dtype)

    def __call__(self, x: Tensor, y: object, t: Tensor | float) -> Tensor:
        t = torch.as_tensor(t, dtype=self.mu.dtype).reshape(-1, 1)
        return self.scale(x, ((self.ell + self.t_min**2) / (self.ell + t**2)).sqrt())

    def mean(self, x: Tensor, y: object, t: Tensor | float) -> Tensor:
        t = torch.as_tensor(t, dtype=self.mu.dtype).reshape(-1, 1)
        return self.scale(x, self.ell / (self.ell + t**2))


def prior(n: int, sd: float = 0.5) -> Gaussian:
    """N(0, sd^2 I)."""
    eye = torch.eye(n, dtype=torch.float64)
    return Gaussian(torch.zeros(n, dtype=torch.float64), eye, torch.full((n,), sd**2, dtype=torch.float64))


def posterior(A: Tensor, r: Tensor, sigma_y: float, sd: float = 0.5) -> Gaussian:
    """N(0, sd^2 I) after seeing r = A x + sigma_y n, in sampler units; one measurement."""
    precision = torch.eye(A.shape[1], dtype=torch.float64) / sd**2 + A.mT @ A / sigma_y**2
    ell, V = torch.linalg.eigh(torch.linalg.inv(precision))
    return Gaussian((V * ell) @ V.mT @ A.mT @ r / sigma_y**2, V, ell.clamp_min(0))


def matrix_physics(A: Tensor, shape: tuple[int, ...], sigma_y: float = 0.05) -> LinearPhysics:
    """A dense matrix as an ordinary deepinv operator, without any closed form."""

    def apply(M: Tensor, x: Tensor) -> Tensor:
        return x.flatten(1) @ M.to(x).mT

    return LinearPhysics(
        A=lambda x, **_: apply(A, x),
        A_adjoint=lambda y, **_: apply(A.mT, y).reshape(-1, *shape),
        img_size=shape,
        noise_model=GaussianNoise(sigma_y / 2),
    )


def random_matrix(m: int, n: int, seed: int = 0) -> Tensor:
    """A well-conditioned random matrix."""
    return torch.randn(m, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / math.sqrt(n)
