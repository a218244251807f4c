r"""Data steps: pull an estimate towards the measurement, without a network call.

A data step maps ``(x_hat, problem)`` to a new ``x_hat``. Any sampler takes one as ``data=``; it acts right after each
network call. ``weight`` is the length :math:`\lambda` of the step, per image.

The discrepancy step is Morozov's principle (Morozov, 1966), image by image: it moves the estimate as far as
the noise allows and no further. With :math:`\chi^2 = \|y - A\hat x\|^2/(m\sigma_y^2)`,

    lambda = 1 - 1/sqrt(chi2)  where chi2 > 1, else 0
    x_hat <- clamp(x_hat + lambda A^+(y - A x_hat)).

Where :math:`A A^+ = I` the new :math:`\chi^2`, before the clamp, is exactly 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from macs.errors import ConfigError
from macs.problem import Measurement, Problem, like_measurement, parts, per_image, sq_norm


class DataStep(Protocol):
    """Any callable of this form is a data step."""

    def __call__(self, x_hat: Tensor, problem: Problem) -> Tensor:
        """The estimate, moved towards the measurement."""
        ...

    def weight(self, x_hat: Tensor, problem: Problem) -> Tensor:
        """The length of the step for each image, (B,)."""
        ...


def morozov(chi2: Tensor) -> Tensor:
    r""":math:`\lambda = 1 - 1/\sqrt{\chi^2}` where :math:`\chi^2 > 1`, else 0."""
    return 1 - chi2.clamp_min(1).rsqrt()


@dataclass(frozen=True)
class Discrepancy:
    """Move ``x_hat`` exactly as far towards the measurement as the noise level allows; no parameter for linear physics.

    For a nonlinear physics it is a descent on the residual down to the noise floor, of at most ``iterations`` steps.
    """

    iterations: int = 10

    def weight(self, x_hat: Tensor, problem: Problem) -> Tensor:
        r""":math:`\lambda`, (B,)."""
        return morozov(known_chi2(problem, problem.difference(x_hat)))

    def __call__(self, x_hat: Tensor, problem: Problem) -> Tensor:
        """The estimate at the noise floor."""
        if not problem.linear:
            return descend(x_hat, problem, self.iterations)
        r = problem.difference(x_hat)
        weight = morozov(known_chi2(problem, r))
        return (x_hat + per_image(weight, x_hat) * problem.pinv(r)).clamp(-1, 1)


def discrepancy(x_hat: Tensor, problem: Problem) -> Tensor:
    """The discrepancy step with its defaults; ``x_hat`` is in sampler units."""
    return Discrepancy()(x_hat, problem)


@dataclass(frozen=True)
class BackProjection:
    r""":math:`\hat x + \lambda A^+(y - A\hat x)` with a fixed :math:`\lambda` (DDNM at 1; fits the noise as well).

    Args:
        lam: the length :math:`\lambda`.
        zeta: with :math:`\zeta > 0` the inverse is :math:`(A^\top A + \zeta\sigma_y^2 I)^{-1} A^\top`, which amplifies no noise
            (Garber and Tirer 2025).
        clamp: cut the result to the image range.
    """

    lam: float = 1.0
    zeta: float = 0.0
    clamp: bool = True

    def weight(self, x_hat: Tensor, problem: Problem) -> Tensor:
        """The fixed length, (B,)."""
        return torch.full((len(x_hat),), self.lam, device=x_hat.device)

    def __call__(self, x_hat: Tensor, problem: Problem) -> Tensor:
        """The formula above."""
        x = x_hat + self.lam * problem.pinv(problem.difference(x_hat), damping(problem, self.zeta))
        return x.clamp(-1, 1) if self.clamp else x


@dataclass(frozen=True)
class Prox:
    r""":math:`\arg\min_x \frac{\gamma}{2}\|A x - y\|^2 + \frac12\|x - \hat x\|^2`, by a closed form or image by image.

    Args:
        gamma: the weight of the measurement.
        clamp: cut the result to the image range.
    """

    gamma: float = 1.0
    clamp: bool = True

    def __post_init__(self) -> None:
        if not self.gamma > 0:
            raise ConfigError(f"gamma must be above 0; got {self.gamma}; leave the data step out to ignore the measurement")

    def weight(self, x_hat: Tensor, problem: Problem) -> Tensor:
        r"""The step's :math:`\gamma`, (B,)."""
        return torch.full((len(x_hat),), self.gamma, device=x_hat.device)

    def __call__(self, x_hat: Tensor, problem: Problem) -> Tensor:
        """The minimiser."""
        if not problem.linear:
            raise ConfigError("Prox needs a linear physics; use Discrepancy(), which needs only derivatives")
        weight = torch.full((len(x_hat),), 1 / self.gamma, device=x_hat.device)
        x = x_hat + problem.pinv(problem.difference(x_hat), weight)
        return x.clamp(-1, 1) if self.clamp else x


DATA_STEPS: dict[str, Callable[..., DataStep]] = {
    "discrepancy": Discrepancy,
    "back-projection": BackProjection,
    "prox": Prox,
}


def damping(problem: Problem, zeta: float) -> Tensor | None:
    r""":math:`\zeta \sigma_y^2`, (B,), or None at :math:`\zeta = 0` and where there is no noise."""
    if not zeta >= 0:
        raise ConfigError(f"zeta must be at least 0; got {zeta}; 0 is the pseudo-inverse itself")
    if zeta == 0:
        return None
    if problem.sigma_y is None:
        raise ConfigError("zeta must know the noise level; pass sigma_y (in [-1, 1] units), or use zeta=0")
    return None if bool((problem.sigma_y == 0).all()) else zeta * problem.sigma_y.clamp_min(1e-6).square()


def known_chi2(problem: Problem, r: Measurement) -> Tensor:
    r""":math:`\chi^2` of ``r``, or an error where the noise level is unknown: the step would not know where to stop."""
    if problem.sigmas is None:
        raise ConfigError(
            "the discrepancy step must know the noise level; the physics' noise is not Gaussian and no sigma_y was given; "
            "pass sigma_y (in [-1, 1] units) or use a sampler without a data step"
        )
    return problem.chi2_of(r)


def descend(x: Tensor, problem: Problem, iterations: int) -> Tensor:
    r"""Steepest descent on :math:`R(x)`, each image until its :math:`\chi^2` is 1.

    Along :math:`g = J^\top r` the linearised residual is :math:`R - 2a\|g\|^2 + a^2\|Jg\|^2`. The step :math:`a` is the
    first point where it meets the noise floor, else its minimum; it is halved while the true residual grows.
    """
    r = problem.difference(x)
    chi2 = known_chi2(problem, r)
    for _ in range(iterations):
        going = chi2 > 1
        if not going.any():
            break
        g = -torch.func.vjp(lambda v: tuple(parts(problem.difference(v))), x)[1](tuple(parts(r)))[0]
        slope, bend = sq_norm(g), curvature(problem, x, g)
        energy = torch.stack([sq_norm(q) for q in parts(r)]).sum(0)
        excess = energy * (1 - 1 / chi2)
        root = (slope.square() - bend * excess).clamp_min(0).sqrt()
        a = torch.where(going, (slope - root) / bend.clamp_min(1e-30), 0)
        for _ in range(5):
            candidate = (x + per_image(a, x) * g).clamp(-1, 1)
            r_new = problem.difference(candidate)
            chi2_new = problem.chi2_of(r_new)
            worse = chi2_new > chi2
            if not worse.any():
                break
            a = torch.where(worse, a / 2, a)
        better = chi2_new <= chi2
        x = torch.where(per_image(better, x), candidate, x)
        r = like_measurement((torch.where(per_image(better, n), n, o) for n, o in zip(parts(r_new), parts(r), strict=True)), r)
        chi2 = torch.where(better, chi2_new, chi2)
    return x


def curvature(problem: Problem, x: Tensor, g: Tensor) -> Tensor:
    r""":math:`\|J g\|^2` by a central difference whose step moves the image by at most 1 %, (B,)."""
    h = per_image(0.01 / g.abs().flatten(1).amax(1).clamp_min(1e-12), g)
    up, down = parts(problem.difference(x + h * g)), parts(problem.difference(x - h * g))
    return torch.stack([sq_norm((u - d) / (2 * per_image(h, u))) for u, d in zip(up, down, strict=True)]).sum(0)
