r"""Zero-shot solvers: an unconditional consistency model, and an operator that it was never trained for.

Each is a composition of four pieces, and another one takes a few lines:

    start      x = init(problem) + t_N z             # nothing, or PseudoInverse()
    network    x_hat = f(x_t, None, t)               # Prior(model)
    data step  x_hat = data(x_hat, problem)          # BackProjection, Prox, Discrepancy
    renoise    x_s = x_hat + s (new or old noise)    # any sampler of macs.steps, or Mixed

so that ``Solver(Prior(model), Multistep(data=BackProjection()), steps=4)`` is DDNM's data step in a consistency model,
``Solver(Prior(model), MacsD(), steps=4)`` is MACS-D without training, and :class:`Cm4ir` is one such line.

References:
    Garber and Tirer, "Zero-Shot Image Restoration Using Few-Step Guidance of Consistency Models (and Beyond)", 2025 (CM4IR).
    Gulle et al., "Consistency Models as Plug-and-Play Priors for Inverse Problems", 2025 (PnP-CM).
    Wang et al., "Zero-Shot Image Restoration Using Denoising Diffusion Null-Space Model", 2023 (DDNM).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from deepinv.physics import Inpainting
from torch import Tensor
from torch.nn.functional import pad, softplus

from macs import levels as grids
from macs.errors import ConfigError, unknown
from macs.fidelity import BackProjection, curvature, damping
from macs.levels import Levels
from macs.models.consistency import ConsistencyModel
from macs.models.prior import Prior, prior_of
from macs.noise import Noise
from macs.problem import Problem, parts, per_image, sq_norm
from macs.solver import Counted, Restorer, Solver, Step, Trace, check_count
from macs.steps import ConsistencyFunction, Past, Sampler, t_min_of


def ddpm_levels(n: int, start: int, growth: float, t_min: float, t_max: float) -> Levels:
    r"""CM4IR's levels: :math:`t_k = \sqrt{1 - a_k}`, :math:`a_{k+1} = \min((1 + \gamma)\,a_k, 0.9999)`.

    :math:`a_1` is DDPM's :math:`\bar\alpha` (Ho et al. 2020, linear beta from 1e-4 to 0.02 in 1000 steps) after ``start + 2``
    steps, ``growth`` is :math:`\gamma`. Where :math:`a` has reached 0.9999 the level stays at 0.01.
    """
    check_count("steps", n)
    if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start <= 998:
        raise ConfigError(f"start must be a whole number from 0 to 998; got {start!r}; CM4IR uses 50 to 400")
    if not growth >= 0:
        raise ConfigError(f"growth must be at least 0; got {growth}; CM4IR uses 0.01 to 0.7")
    alpha = math.prod(1 - (1e-4 + i / 999 * (0.02 - 1e-4)) for i in range(start + 2))
    out = []
    for _ in range(n):
        out.append(min(max(math.sqrt(1 - alpha), t_min), t_max))
        alpha = min(alpha * (1 + growth), 0.9999)
    return tuple(out)


@dataclass(frozen=True)
class PseudoInverse:
    r"""The start :math:`A^+ y`, in [-1, 1] units; with :math:`\zeta > 0` :math:`(A^\top A + \zeta\sigma_y^2 I)^{-1} A^\top y`.

    Missing pixels of an inpainting problem are filled from their neighbours.
    """

    zeta: float = 0.0

    def __call__(self, problem: Problem) -> Tensor:
        """The first image, (B, C, H, W)."""
        if not problem.linear:
            raise ConfigError(
                f"a start from the pseudo-inverse needs a linear physics; {type(problem.physics).__name__} is nonlinear; "
                "use PnpCm, which needs only derivatives"
            )
        grey = torch.zeros_like(problem.physics.A_adjoint(problem.y))
        x = problem.pinv(problem.difference(grey), damping(problem, self.zeta))
        return filled(x, problem.physics.mask) if isinstance(problem.physics, Inpainting) else x


def filled(x: Tensor, mask: Tensor) -> Tensor:
    """Each pixel outside the mask becomes the median of its known neighbours (3x3), ring after ring; grey if there are none."""
    missing = (mask == 0).to(x.device).expand_as(x)
    x = torch.where(missing, torch.nan, x)
    for _ in range(max(x.shape[-2:])):
        unknown_ = x.isnan()
        if not unknown_.any():
            break
        around = pad(x, (1, 1, 1, 1), value=torch.nan).unfold(-2, 3, 1).unfold(-2, 3, 1).flatten(-2)
        x = torch.where(unknown_, around.nanmedian(-1).values, x)
    return torch.where(x.isnan(), 0, x)


INJECTIONS = ("embedding", "level")


@dataclass(frozen=True)
class Mixed(Sampler):
    r"""Fresh noise mixed with the noise that the network took away, mirrored (CM4IR).

    .. math:: x_s = D(\hat x) + s\,(\eta z + \sqrt{1 - \eta^2}\,\hat z^-), \qquad \hat z^- = (\hat x - x_t)/t

    where D is the data step. The last call of a noisy problem ends the run without a data step, so that no measurement noise is
    left in the image.

    Args:
        eta: the share of fresh noise; 1 is Multistep.
        delta: the network is told the level :math:`(1 + \delta)\,t`: a number, or one per step.
        injection: who is told: ``"embedding"``, the embedding of the level alone, or ``"level"``, its preconditioning too.
    """

    eta: float = 0.1
    delta: float | Sequence[float] = 0.0
    injection: str = "embedding"

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise ConfigError(f"eta must be between 0 and 1; got {self.eta}; CM4IR uses 0.1")
        if self.injection not in INJECTIONS:
            raise unknown("injection", self.injection, INJECTIONS)
        if isinstance(self.delta, Sequence):
            object.__setattr__(self, "delta", tuple(float(d) for d in self.delta))
        for d in self.delta if isinstance(self.delta, tuple) else (self.delta,):
            if not (isinstance(d, float | int) and math.isfinite(d) and d > -1):
                raise ConfigError(f"delta must be above -1; got {d}; 0 tells the network the level itself")

    def raw(self, f: ConsistencyFunction, problem: Problem, x_t: Tensor, t: float, step: int) -> Tensor:
        """The network's own estimate, at the level it is told."""
        if isinstance(self.delta, Sequence) and not -1 <= step < len(self.delta):
            raise ConfigError(f"delta must name one value per step; got {len(self.delta)}, step {step + 1} has none")
        delta = self.delta[step] if isinstance(self.delta, Sequence) else self.delta
        if delta == 0:
            return f(x_t, problem.y, t)
        told = max((1 + delta) * t, t_min_of(f))
        call: Callable[..., Tensor] = f
        return call(x_t, problem.y, t, embedded=told) if self.injection == "embedding" else f(x_t, problem.y, told)

    def __call__(
        self, f: ConsistencyFunction, problem: Problem, x_t: Tensor, t: float, s: float, noise: Noise, past: Past = ()
    ) -> Tensor:
        """The formula above."""
        raw = self.raw(f, problem, x_t, t, len(past))
        x_hat = raw if self.data is None else self.data(raw, problem)
        return x_hat + s * (self.eta * noise.like(x_hat) + math.sqrt(1 - self.eta**2) * (raw - x_t) / t)

    def finish(self, f: ConsistencyFunction, problem: Problem, x_t: Tensor, t: float, calls: int) -> Tensor:
        """The estimate at the last level; the data step only where there is no noise to bring in."""
        raw = self.raw(f, problem, x_t, t, -1)
        if self.data is None or problem.sigma_y is None or bool((problem.sigma_y > 0).all()):
            return raw
        return torch.where(per_image(problem.sigma_y == 0, raw), self.data(raw, problem), raw)


class Cm4ir(Solver):
    r"""CM4IR: start from the pseudo-inverse, back-project after each call, mix old and new noise, at small levels.

    Args:
        model: a consistency model that takes ``y=None``.
        steps: the number of network calls.
        start, growth: the published iN and gamma, which set the levels (:func:`ddpm_levels`).
        levels: the levels themselves; they take the place of ``steps``, ``start`` and ``growth``.
        eta: the share of fresh noise.
        zeta: the regularisation of the inverse, :math:`\zeta\sigma_y^2`; for blurs.
        mu: the length of the back-projection.
        delta, injection: the level that the network is told, see :class:`Mixed`.
        options: ``clamp``, ``dtype`` and ``micro_batch`` of :class:`macs.solver.Restorer`.
    """

    def __init__(
        self,
        model: Callable[..., Tensor],
        steps: int = 4,
        *,
        start: int = 350,
        growth: float = 0.5,
        levels: Iterable[float] | None = None,
        eta: float = 0.1,
        zeta: float = 0.0,
        mu: float = 1.0,
        delta: float | Sequence[float] = 0.0,
        injection: str = "embedding",
        **options: Any,
    ) -> None:
        prior = prior_of(model, "consistency", "Cm4ir")
        sampler = Mixed(eta, delta, injection, data=BackProjection(mu, zeta, clamp=False))
        published = ddpm_levels(steps, start, growth, prior.t_min, prior.t_max)
        grid = published if levels is None else grids.check(levels, prior.t_min)
        check_delta(sampler, len(grid), prior)
        super().__init__(prior, sampler, levels=grid[:1], init=PseudoInverse(zeta), **options)
        self.levels = grid  # the published ones repeat where they have reached 0.01


def check_delta(sampler: Mixed, steps: int, prior: Prior) -> None:
    """Refuse deltas that do not fit the levels, or that the network cannot be told."""
    if isinstance(sampler.delta, tuple) and len(sampler.delta) != steps:
        raise ConfigError(f"delta must be one number or one per step; got {len(sampler.delta)} for {steps} steps")
    moved = any(sampler.delta) if isinstance(sampler.delta, tuple) else sampler.delta != 0
    if moved and sampler.injection == "embedding" and not isinstance(prior.model, ConsistencyModel):
        raise ConfigError('delta on the embedding alone needs a macs.ConsistencyModel; use injection="level" with this model')


class PnpCm(Restorer):
    r"""PnP-CM: the alternating direction method (ADMM) with a consistency model for the prior; any differentiable operator.

    .. math::
        z &= \arg\min_z \tfrac12\|A(z) - y\|^2 + \tfrac{\rho_k}{2}\|z - (x - u)\|^2 \\
        x &= f(z + u + t_k n,\ (1 + \delta)\,t_k), \qquad u \leftarrow u + z - x

    with momentum :math:`\mu/k` on x and u, and :math:`\rho_k = \mathrm{softplus}` of evenly spaced numbers.

    Args:
        model: a consistency model that takes ``y=None``.
        steps: the number of network calls.
        start, growth: what sets the levels, as in :class:`Cm4ir`.
        levels: the levels themselves.
        rho: the ends of the numbers whose softplus is :math:`\rho`.
        momentum: :math:`\mu`.
        delta: the network is told :math:`(1 + \delta)\,t`.
        iterations: of the descent that finds z where the operator is nonlinear.
        options: ``clamp``, ``dtype`` and ``micro_batch`` of :class:`macs.solver.Restorer`.
    """

    def __init__(
        self,
        model: Callable[..., Tensor],
        steps: int = 4,
        *,
        start: int = 350,
        growth: float = 0.5,
        levels: Iterable[float] | None = None,
        rho: tuple[float, float] = (-4.0, -2.0),
        momentum: float = 0.2,
        delta: float = 0.1,
        iterations: int = 20,
        **options: Any,
    ) -> None:
        super().__init__(prior_of(model, "consistency", "PnpCm"), **options)
        published = ddpm_levels(steps, start, growth, self.t_min, self.t_max)
        self.levels = published if levels is None else grids.check(levels, self.t_min)
        check_count("iterations", iterations)
        if not (momentum >= 0 and delta > -1):
            raise ConfigError(f"momentum must be at least 0 and delta above -1; got {momentum} and {delta}")
        self.rho = softplus(torch.linspace(rho[0], rho[1], len(self.levels), dtype=torch.float64)).tolist()
        self.momentum, self.delta, self.iterations = momentum, delta, iterations

    def restore(
        self,
        f: Counted,
        problem: Problem,
        unit: Tensor,
        noise: Noise,
        trace: Trace | None,
        callback: Callable[[Step], None] | None,
    ) -> Tensor:
        """The formulas above, from the pseudo-inverse, or from grey where there is none."""
        x = PseudoInverse()(problem) if problem.linear else torch.zeros_like(unit)
        x_ahead, u, u_ahead = x, torch.zeros_like(x), torch.zeros_like(x)
        for k, (t, rho) in enumerate(zip(self.levels, self.rho, strict=True)):
            z = proximal(problem, x_ahead - u_ahead, rho, self.iterations)
            x_t = z + u_ahead + t * (unit if k == 0 else noise.at(k).like(unit))
            x_new = f.checked(x_t, max((1 + self.delta) * t, self.t_min))
            u_new = u_ahead + z - x_new
            self.tell(f, problem, t, x_t, x_new, trace, callback)
            gain = self.momentum / (k + 1)
            x_ahead, u_ahead = x_new + gain * (x_new - x), u_new + gain * (u_new - u)
            x, u = x_new, u_new
        if trace is not None:
            trace.end(problem, x)
        return x


def proximal(problem: Problem, v: Tensor, rho: float, iterations: int) -> Tensor:
    r""":math:`\arg\min_z \frac12\|y - A(z)\|^2 + \frac\rho2\|z - v\|^2`: exact for a linear operator, else by descent."""
    if problem.linear:
        return v + problem.pinv(problem.difference(v), torch.full((len(v),), rho, device=v.device))
    return descended(problem, v, rho, iterations)


def descended(problem: Problem, v: Tensor, rho: float, iterations: int) -> Tensor:
    r"""The same by nonlinear conjugate gradients (Polak and Ribiere) from v, each image by itself.

    Along a direction p the linearised objective has its minimum at
    :math:`a = -\langle\nabla, p\rangle/(\|Jp\|^2 + \rho\|p\|^2)`; the step is halved while the objective grows.
    """

    def objective(z: Tensor) -> Tensor:
        return (problem.residual(z) + rho * sq_norm(z - v)) / 2

    z, value, last, p = v, objective(v), None, torch.zeros_like(v)
    for _ in range(iterations):
        r, pull = torch.func.vjp(lambda w: tuple(parts(problem.difference(w))), z)[:2]
        gradient = pull(r)[0] + rho * (z - v)
        turn = 0 if last is None else (dot(gradient, gradient - last) / sq_norm(last).clamp_min(1e-30)).clamp_min(0)
        p = -gradient + (0 if last is None else per_image(torch.as_tensor(turn), p) * p)
        a = -dot(gradient, p) / (curvature(problem, z, p) + rho * sq_norm(p)).clamp_min(1e-30)
        for _ in range(5):
            candidate = z + per_image(a, z) * p
            new = objective(candidate)
            if not (new > value).any():
                break
            a = torch.where(new > value, a / 2, a)
        better = new <= value
        z, value, last = torch.where(per_image(better, z), candidate, z), torch.where(better, new, value), gradient
    return z


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each pair of images, (B,)."""
    return (a * b).flatten(1).sum(1)


ZERO_SHOT: dict[str, type[Restorer]] = {"cm4ir": Cm4ir, "pnp-cm": PnpCm}
