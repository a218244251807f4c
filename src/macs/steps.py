r"""One transition :math:`x_t \to x_s` for each sampler of the paper; ours are in :mod:`macs.macs_d`.

A sampler is a frozen dataclass; calling it is one step, a pure function:

    x_s = sampler(f, problem, x_t, t, s, noise, past)

``f(x_t, y, t)`` is the consistency model, ``noise`` the streams to draw from (:mod:`macs.noise`), ``past`` the network
outputs of the steps before as ``(t, x_hat)`` pairs. No step keeps state, draws from a global generator, or reduces across the
batch. Samplers that make one network call per step are composed of three pieces, each replaceable:

    x_hat = f(x_t, y, t)
    x_hat = data(x_hat, problem)                     # None, or a data step of macs.fidelity
    x_s   = x_hat + (scaled predicted noise, or fresh noise)

``eps_hat = x_t - x_hat`` is *not* unit noise: its norm is about :math:`t \sqrt n`.

The ODE baselines (Euler, Heun, DPM-Solver) take :math:`d = (x - f(x, t))/t` for the slope of the probability-flow ODE. That
is exact when ``f`` is the posterior mean; a consistency model returns the end of the trajectory, so ``d`` is a chord and
many small steps make the result *worse*, which is why these rows do badly in the paper.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor

from macs import levels as grids
from macs.errors import ConfigError, MacsWarning, unknown
from macs.fidelity import DataStep
from macs.levels import T_MIN, Levels
from macs.noise import Noise
from macs.problem import Problem, per_image, sq_norm

Past = Sequence[tuple[float | Tensor, Tensor]]


class ConsistencyFunction(Protocol):
    """The network as a step sees it. ``t_min`` is read from an attribute of that name, 0.002 where there is none."""

    def __call__(self, x_t: Tensor, y: object, t: float | Tensor, /) -> Tensor:
        """The clean image that ``x_t`` came from."""
        ...


def t_min_of(f: ConsistencyFunction) -> float:
    """The smallest level at which ``f`` is defined, where it is the identity."""
    return float(getattr(f, "t_min", T_MIN))


def side_of(f: Any) -> int:
    """The side of the images, or of the tiles, that ``f`` works on, by which MACS-D sets itself; 28 where it does not say."""
    return int(getattr(f, "side", max((getattr(f, "image_shape", None) or (28,))[-2:])))


@dataclass(frozen=True)
class Transition:
    """All that a renoise rule may look at: the estimate, the point it was made from, and where to go."""

    x_hat: Tensor
    x_t: Tensor
    t: float
    s: float
    t_min: float
    problem: Problem
    noise: Noise
    step: int
    side: int = 28

    @property
    def eps_hat(self) -> Tensor:
        r""":math:`\hat\epsilon = x_t - \hat x` (Algorithm 1, line 5)."""
        return self.x_t - self.x_hat

    @property
    def rho(self) -> float:
        r""":math:`\rho = (s^2 - t_{\min}^2)/(t^2 - t_{\min}^2)` (Algorithm 1, line 7)."""
        return grids.rho(self.t, self.s, self.t_min)

    @property
    def fresh(self) -> Tensor:
        r""":math:`\hat x + \sqrt{s^2 - t_{\min}^2}\, z`."""
        return self.x_hat + self.drawn

    @property
    def drawn(self) -> Tensor:
        r""":math:`\sqrt{s^2 - t_{\min}^2}\, z`."""
        return math.sqrt((self.s - self.t_min) * (self.s + self.t_min)) * self.noise.like(self.x_hat)

    @property
    def reused(self) -> Tensor:
        r""":math:`\hat x + \sqrt\rho\, \hat\epsilon`."""
        return self.x_hat + math.sqrt(self.rho) * self.eps_hat

    def inflated(self, variance: Tensor) -> Tensor:
        r""":math:`\hat x + \sqrt{\rho + (1-\sqrt\rho)^2\, v / \|\hat\epsilon\|^2}\; \hat\epsilon`, with one ``v`` per image.

        It obeys :math:`\|x_s - \hat x\|^2 = \rho \|\hat\epsilon\|^2 + (1-\sqrt\rho)^2 v` exactly. Where
        :math:`\hat\epsilon = 0` there is no direction to move in and the result is ``x_hat``.
        """
        eps_hat = self.eps_hat
        sq = sq_norm(eps_hat)
        gain = torch.where(sq > 0, variance / sq.clamp_min(torch.finfo(sq.dtype).tiny), 0)
        return self.x_hat + per_image((self.rho + (1 - math.sqrt(self.rho)) ** 2 * gain).sqrt(), eps_hat) * eps_hat


@dataclass(frozen=True)
class Sampler:
    """A sampler with one network call per step; a subclass says how the noise comes back (``renoise``)."""

    #: Whether it follows the probability-flow ODE, along which a denoiser may be walked down too.
    ode: ClassVar[bool] = False
    data: DataStep | None = field(default=None, kw_only=True)

    def levels(self, steps: int, t_max: float, t_min: float, side: int = 28) -> Levels:
        """The levels at which ``steps`` calls on images of ``side`` pixels are best spent; used where the caller names none."""
        return grids.few_steps(steps, t_max, t_min)

    def estimate(self, f: ConsistencyFunction, problem: Problem, x_t: Tensor, t: float) -> Tensor:
        """``f(x_t, y, t)``, then the data step."""
        x_hat = f(x_t, problem.y, t)
        return x_hat if self.data is None else self.data(x_hat, problem)

    def __call__(
        self, f: ConsistencyFunction, problem: Problem, x_t: Tensor, t: float, s: float, noise: Noise, past: Past = ()
    ) -> Tensor:
        """One step: estimate, then renoise."""
        x_hat = self.estimate(f, problem, x_t, t)
        return self.renoise(Transition(x_hat, x_t, t, s, t_min_of(f), problem, noise, len(past), side_of(f)))

    def renoise(self, at: Transition) -> Tensor:
        """``x_s`` from the estimate and the point it was made from."""
        raise NotImplementedError

    def finish(self, f: ConsistencyFunction, problem: Problem, x_t: Tensor, t: float, calls: int) -> Tensor:
        """The estimate at the last level (Algorithm 1, line 10). ``calls`` network calls may be spent, usually one."""
        return self.estimate(f, problem, x_t, t)

    def answer(self, x_hat: Tensor, past: Past) -> Tensor:
        """The image that is returned: the last estimate; ``past`` has the network's outputs before it."""
        return x_hat


@dataclass(frozen=True)
class Multistep(Sampler):
    r""":math:`x_s = \hat x + \sqrt{s^2 - t_{\min}^2}\, z` with fresh noise ``z`` (Song et al. 2023, Algorithm 1)."""

    def renoise(self, at: Transition) -> Tensor:
        """The formula above."""
        return at.fresh


@dataclass(frozen=True)
class Ddim(Sampler):
    r""":math:`x_s = (1 - \sqrt\rho)\, \hat x + \sqrt\rho\, x_t = \hat x + \sqrt\rho\, \hat\epsilon` (Sec. II-D)."""

    ode: ClassVar[bool] = True

    def renoise(self, at: Transition) -> Tensor:
        """The formula above."""
        return at.reused


@dataclass(frozen=True)
class Euler(Sampler):
    r""":math:`x_s = x_t + (s - t)\, d = \hat x + \frac{s}{t}\, \hat\epsilon`, DDIM with :math:`t_{\min} = 0` (Karras 2022)."""

    ode: ClassVar[bool] = True

    def renoise(self, at: Transition) -> Tensor:
        """The formula above."""
        return at.x_hat + at.s / at.t * at.eps_hat


@dataclass(frozen=True)
class Addim(Sampler):
    r"""aDDIM: DDIM with the norm it loses given back, :math:`v = \eta\, \|x - \hat x\|^2` (Heek et al. 2024, Alg. 3).

    ``variance`` stands for :math:`\|x - \hat x\|^2`, the trace of the conditional variance, which needs a teacher: a number,
    or a function of ``t``. By default it is Heek et al.'s analytic schedule in this parametrisation,
    :math:`n/(2 + 1/t^2)`, which goes with their :math:`\eta = 0.1`.
    """

    eta: float = 0.1
    variance: float | Callable[[float], float | Tensor] | None = None

    def __post_init__(self) -> None:
        if not self.eta >= 0:
            raise ConfigError(f"eta must be at least 0; got {self.eta}; 0 is DDIM, Heek et al. use 0.1")

    def trace(self, t: float, n: int) -> float | Tensor:
        """The trace of the conditional variance at level ``t`` for images of ``n`` numbers."""
        if self.variance is None:
            return n / (2 + t**-2)
        return self.variance(t) if callable(self.variance) else self.variance

    def renoise(self, at: Transition) -> Tensor:
        """The formula above."""
        v = torch.as_tensor(self.eta * self.trace(at.t, at.x_t[0].numel()), dtype=at.x_t.dtype, device=at.x_t.device)
        return at.inflated(v.expand(len(at.x_t)))


RESIDUALS = ("sum", "mean", "operator", "chi2")


@dataclass(frozen=True)
class Macs(Sampler):
    r"""Measurement-Aware Consistency Sampling (Algorithm 1): aDDIM with the measurement residual for the variance.

    .. math:: x_s = \hat x + \sqrt{\rho + \gamma R \left(\frac{1-\sqrt\rho}{\|\hat\epsilon\|}\right)^2}\; \hat\epsilon,
        \qquad R = \|y - A(\hat x)\|^2

    It is deterministic given ``x_T``: no noise is added, the predicted noise is scaled. ``gamma = 0`` is DDIM.

    Args:
        gamma: the guidance scale: a number, one per step, or a function of ``t``.
        residual: what R is. ``"sum"``: the paper's formula, literally. ``"mean"``: :math:`R n/m`, per pixel.
            ``"operator"``: :math:`R/\|A\|^2`. ``"chi2"``: without units,
            :math:`s_{\rm eff} = s\sqrt{1 + \gamma (1-\sqrt\rho)^2 (\chi^2 - 1)_+}`.

    On the grids that consistency models use the literal formula changes the noise level by 1e-5 to 1e-4 of itself, since
    :math:`s^2 \approx 19` stands beside :math:`R/n < 0.01`; a :class:`MacsWarning` says so when it happens.
    """

    gamma: float | Sequence[float] | Callable[[float], float] = 0.15
    residual: str = "sum"

    def __post_init__(self) -> None:
        if self.residual not in RESIDUALS:
            raise unknown("residual", self.residual, RESIDUALS)
        if isinstance(self.gamma, Sequence):
            object.__setattr__(self, "gamma", tuple(float(g) for g in self.gamma))
        if not callable(self.gamma):
            for g in self.gamma if isinstance(self.gamma, tuple) else (self.gamma,):
                check_gamma(g)

    def gamma_at(self, t: float, step: int) -> float:
        """``gamma`` at level ``t``, the ``step``-th of the run."""
        if callable(self.gamma):
            return check_gamma(self.gamma(t))
        if isinstance(self.gamma, tuple):
            if step >= len(self.gamma):
                raise ConfigError(f"gamma must name one value per step; got {len(self.gamma)}, step {step + 1} has none")
            return self.gamma[step]
        return float(cast(float, self.gamma))

    def variance(self, at: Transition) -> Tensor:
        """The residual in the chosen normalisation, (B,)."""
        if self.residual == "chi2":
            excess = (at.problem.chi2(at.x_hat) - 1).clamp_min(0)
            if not torch.isfinite(excess).all():
                raise ConfigError('residual="chi2" needs a known sigma_y above 0; pass sigma_y, or use residual="mean"')
            return at.rho * sq_norm(at.eps_hat) * excess
        R = at.problem.residual(at.x_hat)
        if self.residual == "mean":
            return R * (at.x_hat[0].numel() / at.problem.m)
        return R / at.problem.sq_gain if self.residual == "operator" else R

    def renoise(self, at: Transition) -> Tensor:
        """The formula above."""
        gamma = self.gamma_at(at.t, at.step)
        if gamma == 0:
            return at.reused
        v = gamma * self.variance(at)
        if bool((v * (1 - math.sqrt(at.rho)) ** 2 < 2e-3 * at.rho * sq_norm(at.eps_hat)).all()):
            warnings.warn(
                f"the measurement term changed the noise level {at.s:g} by less than 0.1 %: this step is DDIM. "
                'Lower the level, raise gamma, or use residual="chi2" or MacsD().',
                MacsWarning,
                stacklevel=2,
            )
        return at.inflated(v)


def check_gamma(gamma: float) -> float:
    """``gamma`` as a float, or the reason why it is none."""
    if not (math.isfinite(gamma) and gamma >= 0):
        raise ConfigError(f"gamma must be a number of at least 0; got {gamma}; 0 is DDIM, the paper uses 0.15 to 0.8")
    return float(gamma)


@dataclass(frozen=True)
class OdeSampler(Sampler):
    """A solver of the probability-flow ODE by many steps; the final network call is the Euler step to zero."""

    ode: ClassVar[bool] = True

    def levels(self, steps: int, t_max: float, t_min: float, side: int = 28) -> Levels:
        """Karras' grid of ``steps`` levels."""
        return grids.karras(steps, t_max, t_min)


@dataclass(frozen=True)
class Heun(OdeSampler):
    r"""Heun's second-order method on :math:`dx/dt = d(x, t) = (x - f(x, t))/t` (Karras et al. 2022); two calls per step.

    With the Euler step :math:`e = x_t + (s-t)\,d(x_t, t)` the average of slopes,
    :math:`x_t + \frac{s-t}{2}(d(x_t,t) + d(e,s))`, is :math:`e + \frac{t-s}{2s}(f(e, s) - f(x_t, t))`, which does not lose
    digits to the size of :math:`x_t`.
    """

    def __call__(
        self, f: ConsistencyFunction, problem: Problem, x_t: Tensor, t: float, s: float, noise: Noise, past: Past = ()
    ) -> Tensor:
        """An Euler step, and its slope averaged with the one at its end."""
        x_hat = self.estimate(f, problem, x_t, t)
        x_euler = x_hat + s / t * (x_t - x_hat)
        return x_euler + (t - s) / (2 * s) * (self.estimate(f, problem, x_euler, s) - x_hat)


@dataclass(frozen=True)
class DpmSolver(OdeSampler):
    r"""DPM-Solver of second order in :math:`\lambda = -\ln t` (Lu et al. 2022).

    ``variant="2M"``: DPM-Solver++(2M), one call per step. With :math:`h = \ln(t/s)` and :math:`h'` the step before,
    :math:`D = \hat x + \frac{h}{2h'}(\hat x - \hat x')` and :math:`x_s = \frac{s}{t} x_t + (1 - \frac{s}{t}) D`; the output
    before, :math:`\hat x'`, comes in as ``past``. ``variant="2"``: DPM-Solver-2, two calls per step, the second at
    :math:`u = \sqrt{ts}`: :math:`x_s = x_t + (s-t)\,d(x_u, u)` with :math:`x_u` the Euler step to u.
    """

    variant: str = "2M"

    def __post_init__(self) -> None:
        if self.variant not in ("2M", "2"):
            raise unknown("DPM-Solver variant", self.variant, ("2M", "2"))

    def __call__(
        self, f: ConsistencyFunction, problem: Problem, x_t: Tensor, t: float, s: float, noise: Noise, past: Past = ()
    ) -> Tensor:
        """The formulas above; the first step of 2M has no past and is of first order."""
        x_hat = self.estimate(f, problem, x_t, t)
        if self.variant == "2":
            u = math.sqrt(t * s)
            x_u = x_hat + u / t * (x_t - x_hat)
            return x_hat + s / t * (x_t - x_hat) + (t - s) / u * (self.estimate(f, problem, x_u, u) - x_hat)
        D = x_hat
        if past:
            t_past, x_past = past[-1]
            x_past = x_past if self.data is None else self.data(x_past, problem)
            D = x_hat + math.log(t / s) / (2 * math.log(float(t_past) / t)) * (x_hat - x_past)
        return s / t * x_t + (1 - s / t) * D
