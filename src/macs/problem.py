r"""The inverse problem :math:`y = A(x) + n` (Eq. 1): its residual, its noise floor, and the units of both.

Images live in [0, 1] at every public border (files, deepinv, metrics) and in [-1, 1] inside a sampler. This module owns
the conversion, for operators of any kind, linear or not:

    r = 2 (y - A((x_hat + 1) / 2)),     sigma_y = 2 (the standard deviation in the physics' own noise model).

``sigma_y`` is always in sampler units in this package: the paper's 0.05 is 0.025 in a deepinv noise model.
"""

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, TypeAlias

import torch
from deepinv.physics import (
    DecomposablePhysics,
    GaussianNoise,
    Inpainting,
    LinearPhysics,
    Physics,
    StackedPhysics,
    ZeroNoise,
)
from deepinv.physics.mri import MRI
from deepinv.utils import TensorList
from torch import Tensor

from macs.errors import ConfigError, MeasurementError

Measurement: TypeAlias = Tensor | TensorList

#: The variance of the white prior of linear estimates, about that of Fashion-MNIST and of photographs in [-1, 1].
PRIOR_VARIANCE = 0.5
#: In linear estimates a noise level below this counts as this, so that an exact measurement does not divide by zero.
SIGMA_FLOOR = 0.01
SIGMA_UNKNOWN = 0.05


def to_sampler(x: Tensor) -> Tensor:
    """[0, 1] to [-1, 1]."""
    return 2 * x - 1


def to_image(x: Tensor) -> Tensor:
    """[-1, 1] to [0, 1], cut to that range."""
    return ((x + 1) / 2).clamp(0, 1)


def per_image(v: Tensor, x: Tensor) -> Tensor:
    """``v`` of shape (B,), shaped to multiply ``x`` of shape (B, ...)."""
    return v.reshape(-1, *[1] * (x.ndim - 1))


def sq_norm(x: Tensor) -> Tensor:
    """The squared Euclidean norm of each image, (B,); half-precision input is summed in float32."""
    x = x.abs() if x.is_complex() else x
    return x.to(torch.promote_types(x.dtype, torch.float32)).flatten(1).square().sum(1)


def parts(y: Measurement) -> list[Tensor]:
    """The tensors of a measurement: one, or one per operator of a stack."""
    return [y] if isinstance(y, Tensor) else list(y)


def like_measurement(blocks: Iterable[Tensor], y: Measurement) -> Measurement:
    """The tensors put back into the form of ``y``."""
    blocks = list(blocks)
    return blocks[0] if isinstance(y, Tensor) else TensorList(blocks)


def operators(physics: Physics) -> list[Physics]:
    """The operators of a stack, or the one there is."""
    return list(physics.physics_list) if isinstance(physics, StackedPhysics) else [physics]


def noise_std(physics: Physics) -> Tensor | float | None:
    """The standard deviation of the physics' Gaussian noise in its own units; None where the noise is of another kind."""
    noise = physics.noise_model
    if isinstance(noise, ZeroNoise):
        return 0.0
    return noise.sigma if isinstance(noise, GaussianNoise) else None


def count(y: Tensor, physics: Physics) -> Tensor:
    """The number of true measurements in each image, (B,): all entries of y, or those that a sampling mask keeps."""
    if isinstance(physics, Inpainting | MRI):
        return (physics.mask.to(y.device) != 0).expand(y.shape).flatten(1).sum(1).to(torch.float32)
    return torch.full((len(y),), float(y[0].numel()), device=y.device)


def measured(r: Tensor, physics: Physics) -> Tensor:
    """The entries of ``r`` that were measured, and 0 in the hole of a mask, where y may hold noise."""
    return r * (physics.mask.to(r.device) != 0) if isinstance(physics, Inpainting) else r


class Problem:
    """A measurement ``y`` of a batch of images by a deepinv ``physics``, linear, nonlinear or stacked.

    Args:
        y: the measurement as the physics made it: (B, ...), or a ``TensorList`` of those for stacked physics.
        physics: the operator; it is called, never changed.
        sigma_y: the noise's standard deviation in sampler units, a number or one per image. By default it is taken
            from the physics' noise model, and is unknown (None) where that model is not Gaussian.

    Attributes:
        m: the number of true measurements of each image, (B,); a mask counts only what it keeps.
        sigma_y: the noise of each image, (B,); for a stack the root mean square over its measurements.
    """

    def __init__(self, y: Measurement, physics: Physics, sigma_y: float | Tensor | None = None) -> None:
        self.y, self.physics, self.given = y, physics, sigma_y
        check_measurement(y, operators(physics))
        self.counts = [count(part, A) for part, A in zip(parts(y), operators(physics), strict=True)]
        self.m = torch.stack(self.counts).sum(0)
        self.sigmas = self.noise_levels()
        self.sigma_y: Tensor | None = None
        if self.sigmas is not None:
            energy = torch.stack([m * s.square() for m, s in zip(self.counts, self.sigmas, strict=True)])
            self.sigma_y = (energy.sum(0) / self.m).sqrt()

    def __len__(self) -> int:
        return len(parts(self.y)[0])

    def take(self, images: list[int]) -> "Problem":
        """The problem of some of the images, under the same physics."""
        given = self.given[images] if isinstance(self.given, Tensor) and self.given.numel() > 1 else self.given
        return Problem(like_measurement((part[images] for part in parts(self.y)), self.y), self.physics, given)

    @property
    def linear(self) -> bool:
        """Whether the operator has an adjoint."""
        return isinstance(self.physics, LinearPhysics)

    def noise_levels(self) -> list[Tensor] | None:
        """The noise of each operator in sampler units, each (B,); None where it is unknown."""
        ops = operators(self.physics)
        stds = [noise_std(A) for A in ops] if self.given is None else [self.given] * len(ops)
        if any(std is None for std in stds):
            return None
        unit = 2.0 if self.given is None else 1.0
        out = [unit * torch.as_tensor(std, dtype=torch.float32, device=self.m.device).flatten() for std in stds]
        for std in out:
            if std.numel() not in (1, len(self)) or not bool((std >= 0).all()):
                raise ConfigError(
                    f"sigma_y must be one number of at least 0, or one per image; got {std.tolist()} for {len(self)} images; "
                    "it is a standard deviation on images in [-1, 1]"
                )
        return [std.expand(len(self)) for std in out]

    def difference(self, x_hat: Tensor) -> Measurement:
        r""":math:`r = 2\,(y - A((\hat x + 1)/2))`, the part of the measurement that ``x_hat`` does not explain."""
        predicted = parts(self.physics.A((x_hat + 1) / 2))
        pairs = zip(parts(self.y), predicted, operators(self.physics), strict=True)
        return like_measurement((measured(2 * (y - p), A) for y, p, A in pairs), self.y)

    def residual(self, x_hat: Tensor) -> Tensor:
        r""":math:`R = \|y - A(\hat x)\|^2` in sampler units, one number per image, (B,) (Algorithm 1, line 6)."""
        return torch.stack([sq_norm(r) for r in parts(self.difference(x_hat))]).sum(0)

    def chi2_of(self, r: Measurement) -> Tensor:
        r""":math:`\chi^2 = \frac1m \sum r^2/\sigma_y^2` of a difference ``r``: 1 on average at the true image, (B,).

        A noiseless measurement has :math:`\chi^2 = \infty` wherever ``r`` is not zero, and 0 where it is; a measurement of
        unknown noise has NaN.
        """
        if self.sigmas is None:
            return torch.full((len(self),), float("nan"), device=parts(self.y)[0].device)
        terms = [
            torch.nan_to_num(sq_norm(q) / s.square(), nan=0.0, posinf=float("inf"))
            for q, s in zip(parts(r), self.sigmas, strict=True)
        ]
        return torch.stack(terms).sum(0) / self.m

    def chi2(self, x_hat: Tensor) -> Tensor:
        r""":math:`\chi^2 = R/(m \sigma_y^2)` of an estimate, (B,)."""
        return self.chi2_of(self.difference(x_hat))

    def pinv(self, r: Measurement, damping: Tensor | None = None) -> Tensor:
        r""":math:`A^+ r`, or with ``damping`` :math:`d`, (B,), Tikhonov's :math:`(A^\top A + d\,I)^{-1} A^\top r`.

        By the physics' own closed form where it has one, else by conjugate gradients stopped image by image.
        """
        if not self.linear:
            raise ConfigError(
                f"a pseudo-inverse needs a linear physics; {type(self.physics).__name__} is nonlinear; "
                "use the discrepancy step or PnpCm, which need only derivatives"
            )
        if damping is not None and not bool((damping > 0).all()):
            raise ConfigError(f"a damping must be above 0; got {damping.tolist()}; leave it out for the pseudo-inverse itself")
        if damping is not None and isinstance(self.physics, DecomposablePhysics):
            return self.physics.prox_l2(0.0, r, (1 / damping).reshape(-1, 1, 1, 1))
        if damping is None and type(self.physics).A_dagger is not LinearPhysics.A_dagger:
            return self.physics.A_dagger(r)
        return least_squares(self.physics, r, damping)

    @cached_property
    def damping(self) -> Tensor:
        r""":math:`\lambda = \sigma_y^2/\sigma_x^2` of linear estimates, (B,)."""
        sigma = torch.full_like(self.m, SIGMA_UNKNOWN) if self.sigma_y is None else self.sigma_y
        return sigma.clamp_min(SIGMA_FLOOR).square() / PRIOR_VARIANCE

    def ridge(self, r: Measurement) -> Tensor:
        """The linear estimate of an image under a white prior: Wiener's filter, :meth:`pinv` with :attr:`damping`."""
        return self.pinv(r, self.damping)

    def unmeasured(self, v: Tensor) -> Tensor:
        r""":math:`v - (A^\top A + \lambda I)^{-1} A^\top A v`: the part of an image that the measurement says nothing about.

        It is what a mask hides, and what a blur or a reduction removes below the noise. A nonlinear physics has no such part
        that is known in advance: all of ``v`` is returned.
        """
        return v - self.ridge(self.physics.A(v)) if self.linear else v

    @cached_property
    def sq_gain(self) -> Tensor:
        r""":math:`\|A\|_2^2` of each image's operator, (B,): its largest singular value, or 300 power iterations."""
        if not self.linear:
            raise ConfigError('residual="operator" needs a linear physics, whose norm is defined; use "mean" or "chi2"')
        if isinstance(self.physics, DecomposablePhysics):
            s = torch.atleast_2d(self.physics.mask)
            return s.abs().square().flatten(1).amax(1).to(self.m).expand(len(self))
        shape = self.physics.A_adjoint(self.y).shape
        x = torch.randn(shape[1:], generator=torch.Generator().manual_seed(0)).expand(shape).to(self.m.device)
        for _ in range(300):
            x = self.physics.A_adjoint_A(x / per_image(sq_norm(x).sqrt().clamp_min(1e-30), x))
        return sq_norm(x).sqrt()


def check_measurement(y: Measurement, ops: list[Physics]) -> None:
    """Refuse what cannot be a measurement by these operators."""
    if len(parts(y)) != len(ops):
        raise MeasurementError(
            f"y must hold one tensor per operator; got {len(parts(y))} for {len(ops)}; pass what physics(x) returned"
        )
    for part in parts(y):
        if not isinstance(part, Tensor) or part.ndim < 2 or len(part) == 0:
            raise MeasurementError("y must be a tensor of shape (batch, ...), not empty; add the batch axis, e.g. y[None]")
        finite = torch.isfinite(part).flatten(1).all(1)
        if not finite.all():
            bad = int((~finite).nonzero()[0])
            raise MeasurementError(f"y must be finite; image {bad} holds NaN or infinity; repair or drop it")


def least_squares(
    physics: LinearPhysics, r: Any, damping: Tensor | None = None, iterations: int = 50, tolerance: float = 1e-6
) -> Tensor:
    r"""The least solution of :math:`\min_x \|A x - r\|^2 + d\,\|x\|^2` by conjugate gradients on the normal equations (CGLS).

    An image stops when its own gradient has fallen by ``tolerance``, so it does not matter which others share the batch.
    Stopping early is also what regularises an operator whose small singular values would amplify the noise.
    """
    adjoint: Callable[[Any], Tensor] = physics.A_adjoint
    g = adjoint(r)
    d = torch.zeros(len(g), device=g.device) if damping is None else damping
    x, p, sq = torch.zeros_like(g), g, sq_norm(g)
    stop = tolerance**2 * sq
    for _ in range(iterations):
        going = sq > stop
        if not going.any():
            break
        Ap = physics.A(p)
        energy = torch.stack([sq_norm(q) for q in parts(Ap)]).sum(0) + d * sq_norm(p)
        a = torch.where(going, sq / energy.clamp_min(1e-30), 0)
        x = x + per_image(a, x) * p
        r = like_measurement((q - per_image(a, q) * w for q, w in zip(parts(r), parts(Ap), strict=True)), r)
        g = adjoint(r) - per_image(d.to(x.dtype), x) * x
        new = sq_norm(g)
        p = torch.where(per_image(going, g), g + per_image(new / sq.clamp_min(1e-30), g) * p, p)
        sq = torch.where(going, new, sq)
    return x
