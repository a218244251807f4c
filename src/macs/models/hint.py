r"""How a measurement enters an image-shaped network, whatever the operator.

The hint of a linear problem has two channels per image channel. The first is the linear estimate of the image under a
white prior of variance :math:`\sigma_x^2` (Wiener's filter, Tikhonov's solution),

    h = (A^T A + lambda I)^{-1} A^T r_0,   lambda = sigma_y^2 / sigma_x^2,   r_0 = 2 (y - A(1/2)).

The second is the diagonal of the resolution matrix :math:`(A^\top A + \lambda I)^{-1} A^\top A`: the share of each pixel that
was measured. It is the mask for inpainting, about 1/4 everywhere for a reduction by 2, a few per cent for a blur. So one
network reads any mask, factor, blur and noise level from the same two maps.
"""

import torch
from deepinv.physics import Inpainting, LinearPhysics
from torch import Tensor

from macs.errors import ModelError
from macs.problem import Problem, per_image
from macs.tasks import Separable


def hint(problem: Problem) -> Tensor:
    """The linear estimate and the resolution of a problem, (B, 2C, H, W)."""
    if not isinstance(problem.physics, LinearPhysics):
        raise ModelError(
            f"this model reads linear measurements; {type(problem.physics).__name__} is nonlinear; use a model trained for it"
        )
    zero = torch.zeros_like(problem.physics.A_adjoint(problem.y))
    estimate = problem.ridge(problem.difference(zero))
    return torch.cat([estimate, resolution(problem, estimate)], 1)


def resolution(problem: Problem, x: Tensor, probes: int = 16) -> Tensor:
    r"""The diagonal of :math:`(A^\top A + \lambda I)^{-1} A^\top A` for images like ``x``.

    It is exact for masks and separable operators; for others it is Hutchinson's estimate :math:`E[z \odot H z]` from fixed
    random signs.
    """
    physics, lam = problem.physics, per_image(problem.damping, x)
    if isinstance(physics, Inpainting):
        sq = physics.mask.to(x).square()
        return (sq / (sq + lam)).expand_as(x)
    if isinstance(physics, Separable):
        sq = physics.mask.to(x).square()
        rows, columns = physics.rows_V.to(x).square(), physics.columns_V.to(x).square()
        return (rows @ (sq / (sq + lam)) @ columns.mT).expand_as(x)
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros_like(x)
    for _ in range(probes):
        z = (torch.randint(0, 2, x.shape[1:], generator=generator) * 2.0 - 1).to(x).expand_as(x)
        total += z * problem.ridge(physics.A(z))
    return (total / probes).clamp(0, 1)
