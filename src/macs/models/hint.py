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

#: The variance of the white prior, about that of Fashion-MNIST and of photographs in [-1, 1].
PRIOR_VARIANCE = 0.5
#: A noise level below this is treated as this one, so that an exact measurement does not divide by zero.
SIGMA_FLOOR = 0.01
SIGMA_UNKNOWN = 0.05


def hint(problem: Problem) -> Tensor:
    """The linear estimate and the resolution of a problem, (B, 2C, H, W)."""
    physics = problem.physics
    if not isinstance(physics, LinearPhysics):
        raise ModelError(
            f"this model reads linear measurements; {type(physics).__name__} is nonlinear; use a model trained for it"
        )
    sigma = torch.full((len(problem),), SIGMA_UNKNOWN) if problem.sigma_y is None else torch.as_tensor(problem.sigma_y)
    lam = sigma.clamp_min(SIGMA_FLOOR).square() / PRIOR_VARIANCE
    zero = torch.zeros_like(physics.A_adjoint(problem.y))
    estimate = physics.prox_l2(0.0, problem.difference(zero), 1 / lam)
    return torch.cat([estimate, resolution(physics, lam, estimate)], 1)


def resolution(physics: LinearPhysics, lam: Tensor, x: Tensor, probes: int = 16) -> Tensor:
    r"""The diagonal of :math:`(A^\top A + \lambda I)^{-1} A^\top A` for images like ``x``.

    It is exact for masks and separable operators; for others it is Hutchinson's estimate :math:`E[z \odot H z]` from fixed
    random signs.
    """
    if isinstance(physics, Inpainting):
        sq = physics.mask.to(x).square()
        return (sq / (sq + per_image(lam, x))).expand_as(x)
    if isinstance(physics, Separable):
        sq = physics.mask.to(x).square()
        rows, columns = physics.rows_V.to(x).square(), physics.columns_V.to(x).square()
        return (rows @ (sq / (sq + per_image(lam, x))) @ columns.mT).expand_as(x)
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros_like(x)
    for _ in range(probes):
        z = (torch.randint(0, 2, x.shape[1:], generator=generator) * 2.0 - 1).to(x).expand_as(x)
        total += z * physics.prox_l2(0.0, physics.A(z), 1 / lam)
    return (total / probes).clamp(0, 1)
