r"""Solvers that walk a denoiser :math:`D(x_t, t) = E[x \mid x_t]` down many levels, most of them deepinv's own.

What deepinv leaves to its user is done here. Noise comes from one stream per image, so seed 0 is a seed, the global random
state stays as it was, and neighbours in a batch do not matter; the measurement is not written to; the denoiser is called
within the range of levels it was trained for, in its own units; and every call is counted. Images and noise levels of deepinv
are on [0, 1], those of a denoiser here on [-1, 1]: :math:`t = 2\sigma`.

References:
    Chung et al., "Diffusion Posterior Sampling for General Noisy Inverse Problems", 2023 (DPS).
    Song et al., "Loss-Guided Diffusion Models for Plug-and-Play Controllable Generation", 2023 (LGD-MC).
    Kawar et al., "Denoising Diffusion Restoration Models", 2022 (DDRM).
    Zhu et al., "Denoising Diffusion Models for Plug-and-Play Image Restoration", 2023 (DiffPIR).
    Denker et al., "DEFT: Efficient Fine-tuning of Diffusion Models by Learning the Generalised h-transform", 2024 (DEFT).
"""

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from deepinv import sampling
from deepinv.models import Denoiser
from deepinv.physics import DecomposablePhysics, GaussianNoise, Physics
from deepinv.sampling import DDPMSolver, DPSDataFidelity
from torch import Tensor
from torch.overrides import TorchFunctionMode

from macs import levels as grids
from macs.errors import ConfigError, ModelError, unknown
from macs.fidelity import Prox
from macs.models.prior import prior_of
from macs.models.transform import HTransform
from macs.noise import Noise
from macs.problem import Problem, to_sampler
from macs.solver import Counted, Restorer, Solver, Step, Trace, check_count
from macs.steps import Euler

#: The number of the first draw of samples around an image, far from those of the run itself.
FAR = 1_000_000
#: A noise level below this, on [0, 1], is treated as this one where a solver divides by it.
SIGMA_FLOOR = 1e-3


class Draws(TorchFunctionMode):
    """The noise of a run, draw after draw; within ``with draws:`` it is also what ``torch.randn_like`` returns.

    Draw 0 is the start noise, where it has the shape that is asked for.
    """

    def __init__(self, unit: Tensor, noise: Noise, gain: float = 1.0, count: int = 0) -> None:
        super().__init__()
        self.unit, self.noise, self.gain, self.count = unit, noise, gain, count

    def like(self, x: Tensor) -> Tensor:
        """The next draw, in the shape of ``x``."""
        first = self.count == 0 and x.shape == self.unit.shape
        z = self.unit.to(x) if first else self.noise.at(self.count).like(x)
        self.count += 1
        return self.gain * z

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """``torch.randn_like`` from the streams, anything else as it is."""
        return self.like(args[0]) if func is torch.randn_like else func(*args, **(kwargs or {}))


class Ancestral(DDPMSolver):
    """deepinv's DDPM solver on noise from the streams."""

    def __init__(self, draws: Draws, timesteps: Tensor) -> None:
        super().__init__(timesteps)
        self.draws = draws

    def randn_like(self, input: Tensor, seed: int | None = None) -> Tensor:
        """The next draw."""
        return self.draws.like(input)


class Denoise(Denoiser):
    r"""A denoiser of this package as deepinv calls one: ``D(x, sigma)`` on [0, 1].

    Outside the range of levels that it was trained for it is asked at the nearest one. Above ``t_max`` the image is scaled by
    :math:`t_{\max}/t`, so that its noise is what the network is told; at such levels hardly anything else is in it.
    """

    def __init__(self, f: Counted, t_max: float, tell: Callable[[float, Tensor, Tensor], None]) -> None:
        super().__init__()
        self.f, self.t_max, self.tell = f, t_max, tell

    def forward(self, x: Tensor, sigma: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The posterior mean on [0, 1]; ``sigma`` is the same for all images."""
        t = 2 * float(torch.as_tensor(sigma).flatten()[0])
        x_t = (2 * x - 1) * (self.t_max / t if t > self.t_max else 1.0)
        level = min(max(t, self.f.t_min), self.t_max)
        x_hat = self.f.checked(x_t, level)
        with torch.no_grad():
            self.tell(level, x_t.detach(), x_hat.detach())
        return (x_hat + 1) / 2


class DiffusionSolver(Restorer):
    """What the solvers below share; a subclass says how it samples, by images in [0, 1].

    Args:
        denoiser: a callable ``D(x_t, y, t)`` on images in [-1, 1] that takes ``y=None``: a posterior mean.
        options: ``clamp`` (False here), ``dtype`` and ``micro_batch`` of :class:`macs.solver.Restorer`.
    """

    def __init__(self, denoiser: Callable[..., Tensor], *, clamp: bool = False, **options: Any) -> None:
        super().__init__(prior_of(denoiser, "denoiser", type(self).__name__), clamp=clamp, **options)

    def sample(self, denoise: Denoise, problem: Problem, draws: Draws) -> Tensor:
        """The restored images, on [0, 1]."""
        raise NotImplementedError

    def draws(self, unit: Tensor, noise: Noise) -> Draws:
        """The noise of a run."""
        return Draws(unit, noise)

    def restore(
        self,
        f: Counted,
        problem: Problem,
        unit: Tensor,
        noise: Noise,
        trace: Trace | None,
        callback: Callable[[Step], None] | None,
    ) -> Tensor:
        """``sample``, told call by call."""

        def tell(t: float, x_t: Tensor, x_hat: Tensor) -> None:
            self.tell(f, problem, t, x_t, x_hat, trace, callback)

        x = to_sampler(self.sample(Denoise(f, self.t_max, tell), problem, self.draws(unit, noise)).to(unit.dtype))
        if not torch.isfinite(x).all():
            raise ModelError(f"{type(self).__name__} diverged; lower its weight, or take more steps")
        if trace is not None:
            trace.end(problem, x)
        return x


def single(problem: Problem, solver: str) -> Physics:
    """The physics with the problem's noise level in it; a stack, an unknown level or several are refused."""
    if not isinstance(problem.y, Tensor):
        raise ConfigError(
            f"{solver} takes one measurement per image; this physics is a stack of {len(problem.y)}; use Lgd, or a Solver"
        )
    if problem.sigma_y is None:
        raise ConfigError(
            f"{solver} must know the noise level; the physics' noise is not Gaussian and no sigma_y was given; "
            'pass sigma_y (in [-1, 1] units), or use Dps(guidance="norm")'
        )
    sigma = problem.sigma_y / 2
    if not bool((sigma == sigma[0]).all()):
        raise ConfigError(f"{solver} takes one noise level for all images; got {sigma.tolist()}; solve each level by itself")
    return noisy(problem.physics, float(sigma[0]))


def noisy(physics: Physics, sigma: float) -> Physics:
    """The physics with another noise level; it shares its tensors with the one given, which stays as it is."""
    twin = copy.copy(physics)
    twin._modules, twin._buffers = dict(physics._modules), dict(physics._buffers)
    twin.noise_model = GaussianNoise(sigma)
    return twin


GUIDANCE = ("norm", "annealed")


class Dps(DiffusionSolver):
    r"""DPS, by deepinv: ancestral sampling with the gradient of the misfit of the denoised image; any differentiable operator.

    .. math:: \nabla \log p(y \mid x_t) \approx -w\, \nabla_{x_t} \|y - A(D(x_t, t))\|

    Args:
        denoiser: a posterior mean.
        steps: the number of network calls, each with a derivative.
        weight: :math:`w`, with the norm on [0, 1].
        guidance: ``"norm"``, the formula above; or ``"annealed"``, deepinv's :math:`-w \nabla \|y - A(D(x_t, t))\|^2` over
            :math:`2(\sigma_y^2 + t^2)`, whose weight is of the order of 1 to 10.
        options: see :class:`DiffusionSolver`.
    """

    def __init__(
        self,
        denoiser: Callable[..., Tensor],
        steps: int = 1000,
        *,
        weight: float = 200.0,
        guidance: str = "norm",
        **options: Any,
    ) -> None:
        super().__init__(denoiser, **options)
        check_count("steps", steps)
        if guidance not in GUIDANCE:
            raise unknown("guidance", guidance, GUIDANCE)
        self.steps, self.weight, self.guidance = steps, check_weight(weight), guidance

    def likelihood(self, denoise: Denoise, problem: Problem, draws: Draws) -> tuple[DPSDataFidelity, Physics]:
        """The term that guides, and the operator it reads."""
        physics = single(problem, type(self).__name__) if self.guidance == "annealed" else problem.physics
        if not isinstance(problem.y, Tensor):
            raise ConfigError("Dps takes one measurement per image; this physics is a stack; use Lgd, or a Solver")
        return DPSDataFidelity(denoise, self.weight, clip=(-1.0, 1.0), guidance=self.guidance), physics

    def sample(self, denoise: Denoise, problem: Problem, draws: Draws) -> Tensor:
        """DPS of deepinv on the variance-preserving schedule, from 1 to 0."""
        device = draws.unit.device
        times = torch.linspace(1, 0, self.steps + 1, dtype=torch.float64, device=device)
        dps = sampling.DPS(denoise, solver=Ancestral(draws, times), device=device)
        dps.data_fidelity, physics = self.likelihood(denoise, problem, draws)
        start = draws.like(draws.unit.double()) * dps.sde.sigma_t(times[0]) * dps.sde.scale_t(times[0])
        return dps(problem.y, physics, x_init=start)


class Lgd(Dps):
    r"""LGD-MC: DPS with the misfit averaged over samples around the denoised image, :math:`\xi_i \sim N(0, I)`.

    .. math::
        \nabla \log p(y \mid x_t) \approx \nabla_{x_t} \log \frac1n \sum_i \exp\Big(
        -w\,\frac{\|y - A(D(x_t, t) + r_t\,\xi_i)\|^2}{2(\sigma_y^2 + r_t^2)}\Big), \qquad r_t = \frac{t}{\sqrt{1 + t^2}}

    One derivative through the network for all samples. Takes stacked operators too, and one noise level per image.

    Args:
        denoiser: a posterior mean.
        steps: the number of network calls, each with a derivative.
        samples: :math:`n`.
        weight: :math:`w`.
        spread: a factor on the samples' :math:`r_t`; at 0 they are all the denoised image.
        options: see :class:`DiffusionSolver`.
    """

    def __init__(
        self,
        denoiser: Callable[..., Tensor],
        steps: int = 1000,
        *,
        samples: int = 10,
        weight: float = 2.0,
        spread: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(denoiser, steps, weight=weight, **options)
        check_count("samples", samples)
        if not spread >= 0:
            raise ConfigError(f"spread must be at least 0; got {spread}; 1 is the published one")
        self.samples, self.spread = samples, spread

    def likelihood(self, denoise: Denoise, problem: Problem, draws: Draws) -> tuple[DPSDataFidelity, Physics]:
        """The averaged term."""
        if problem.sigma_y is None:
            raise ConfigError("Lgd must know the noise level; pass sigma_y (in [-1, 1] units), or use Dps(guidance='norm')")
        return MonteCarlo(denoise, problem, draws, self.samples, self.weight, self.spread), problem.physics


class MonteCarlo(DPSDataFidelity):
    """The negative logarithm of Lgd's average, one number per image."""

    def __init__(self, denoise: Denoise, problem: Problem, draws: Draws, samples: int, weight: float, spread: float) -> None:
        super().__init__(denoise, weight)
        self.problem, self.samples, self.spread = problem, samples, spread
        self.draws = Draws(draws.unit, draws.noise, count=FAR)

    def forward(self, x: Tensor, y: Any, physics: Physics, sigma: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss, and the denoised image with ``get_model_outputs``; ``x`` and ``sigma`` are on [0, 1]."""
        x_0 = self.denoiser(x.to(torch.float32), sigma)
        x_hat, t = 2 * x_0 - 1, 2 * float(sigma)
        r = t / math.sqrt(1 + t**2)
        around = [x_hat + self.spread * r * self.draws.like(x_hat) for _ in range(self.samples)]
        R = torch.stack([self.problem.residual(sample) for sample in around])
        sigma_y = torch.as_tensor(self.problem.sigma_y)
        energy = self.weight * R / (2 * (sigma_y.square() + r**2))
        loss = math.log(self.samples) - torch.logsumexp(-energy, 0)
        return (loss, x_0) if kwargs.get("get_model_outputs") else loss


class Ddrm(DiffusionSolver):
    r"""DDRM, by deepinv: sampling in the basis of the operator's singular vectors; needs a ``DecomposablePhysics``.

    In that basis, with singular value :math:`s_i`, the next state of a component that is seen well enough
    (:math:`\sigma_y/s_i \le t`) is :math:`(1-\eta_b)\,\bar x_i + \eta_b\,\bar y_i/s_i` plus noise up to the level t; of
    the others it is :math:`\bar x_i` plus a share of the difference and noise :math:`\eta t`.

    Args:
        denoiser: a posterior mean.
        steps: the number of network calls.
        levels: the levels themselves, in [-1, 1] units; by default Karras' grid over the denoiser's range.
        eta, eta_b: the published parameters.
        gain: a factor on the noise. deepinv divides it by the square root of 2, as if each number were part of a complex one;
            ``2 ** 0.5`` gives the published scheme for real singular vectors.
        options: see :class:`DiffusionSolver`.
    """

    def __init__(
        self,
        denoiser: Callable[..., Tensor],
        steps: int = 20,
        *,
        levels: Iterable[float] | None = None,
        eta: float = 0.85,
        eta_b: float = 1.0,
        gain: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(denoiser, **options)
        check_count("steps", steps)
        self.levels = default_levels(steps, self.t_max, self.t_min) if levels is None else grids.check(levels, self.t_min)
        if self.levels[0] < 2:
            raise ConfigError(
                f"levels must begin at 2 or above, where any measurement is better than the state; got {self.levels[0]}"
            )
        if not (0 <= eta <= 1 and 0 <= eta_b <= 1 and gain > 0):
            raise ConfigError(f"eta and eta_b must be between 0 and 1, gain above 0; got {eta}, {eta_b} and {gain}")
        self.eta, self.eta_b, self.gain = eta, eta_b, gain

    def draws(self, unit: Tensor, noise: Noise) -> Draws:
        """The noise of a run, with its gain."""
        return Draws(unit, noise, self.gain)

    def sample(self, denoise: Denoise, problem: Problem, draws: Draws) -> Tensor:
        """DDRM of deepinv."""
        if not isinstance(problem.physics, DecomposablePhysics):
            raise ConfigError(
                f"Ddrm needs a physics with a singular value decomposition; {type(problem.physics).__name__} has none; "
                "use DiffPir for a linear operator, Dps for any other"
            )
        physics = single(problem, "Ddrm")
        y = problem.y.clone()  # deepinv writes to it
        physics.mask = shared_mask(physics, y)
        ddrm = sampling.DDRM(denoise, sigmas=[t / 2 for t in self.levels], eta=self.eta, etab=self.eta_b)
        with draws:
            return ddrm(y, physics)


def shared_mask(physics: DecomposablePhysics, y: Tensor) -> Any:
    """The singular values in the shape of one image's spectrum, as deepinv's DDRM wants them."""
    if not isinstance(physics.mask, Tensor) or physics.mask.ndim == 0:
        return physics.mask
    spectrum = physics.U_adjoint(y[:1])
    if physics.mask.ndim == spectrum.ndim and len(physics.mask) > 1:
        raise ConfigError(
            "Ddrm needs one operator for all images; this one has a mask per image; use DiffPir, or solve one by one"
        )
    return physics.mask.abs().to(spectrum.dtype).expand(1, *spectrum.shape[1:])


class DiffPir(DiffusionSolver):
    r"""DiffPIR, by deepinv: denoise, take a proximal step towards the measurement, add noise; any linear operator.

    .. math::
        \hat x = \arg\min_x \|y - A x\|^2 + \rho_t \|x - D(x_t, t)\|^2, \qquad
        x_s = \hat x + s\,(\sqrt{1-\zeta}\,\hat\epsilon + \sqrt\zeta\, z), \qquad \rho_t = \lambda \sigma_y^2/t^2

    up to deepinv's factors in :math:`\rho_t`, which has sigma_y on [0, 1] and t on [-1, 1], and half the proximal step.

    Args:
        denoiser: a posterior mean.
        steps: the number of network calls.
        zeta: the share of fresh noise.
        lam: :math:`\lambda`.
        options: see :class:`DiffusionSolver`.
    """

    def __init__(
        self, denoiser: Callable[..., Tensor], steps: int = 100, *, zeta: float = 0.9, lam: float = 7.0, **options: Any
    ) -> None:
        super().__init__(denoiser, **options)
        check_count("steps", steps)
        if not (0 <= zeta <= 1 and lam > 0):
            raise ConfigError(f"zeta must be between 0 and 1, lam above 0; got {zeta} and {lam}; deepinv uses 0.1 and 7")
        self.steps, self.zeta, self.lam = steps, zeta, lam

    def sample(self, denoise: Denoise, problem: Problem, draws: Draws) -> Tensor:
        """DiffPIR of deepinv."""
        if not problem.linear:
            raise ConfigError(
                f"DiffPir needs a linear physics; {type(problem.physics).__name__} is nonlinear; "
                "use Dps, which needs only derivatives"
            )
        sigma = max(float(single(problem, "DiffPir").noise_model.sigma), SIGMA_FLOOR)
        device = draws.unit.device
        pir = sampling.DiffPIR(denoise, Proximal(problem), sigma, self.steps, self.zeta, self.lam, device=device)
        with draws:
            return pir(problem.y, noisy(problem.physics, sigma))


class Proximal:
    """The misfit as DiffPIR calls it; where the operator has no closed form the step is solved image by image."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def prox(self, x: Tensor, y: Tensor, physics: Physics, gamma: Tensor) -> Tensor:
        r""":math:`\arg\min_u \frac\gamma2\|A u - y\|^2 + \frac12\|u - x\|^2` on [0, 1]."""
        return (Prox(float(gamma), clamp=False)(2 * x - 1, self.problem) + 1) / 2


class Deft(Solver):
    r"""DEFT: a denoiser that was never told of measurements, corrected by a small network that was trained for them.

    .. math:: D_y(x_t, t) = D(x_t, t) + c_{\rm out}(t)\, h(x_t, D(x_t, t), y, t)

    is a posterior mean given y; DDIM walks it down. A call of both networks counts as one.

    Args:
        denoiser: the posterior mean that ``network`` was trained with.
        network: a :class:`macs.models.transform.HTransform`, from ``macs.load`` or from a training run.
        steps: the number of network calls.
        options: ``clamp``, ``dtype`` and ``micro_batch`` of :class:`macs.solver.Restorer`.
    """

    def __init__(self, denoiser: Callable[..., Tensor], network: HTransform, steps: int = 20, **options: Any) -> None:
        if not isinstance(network, HTransform):
            raise ModelError(
                f"Deft needs the network that was trained to correct its denoiser; got {type(network).__name__}; "
                "load fashion-mnist-deft or train one with examples/train_deft.py, or use Dps, which needs no training"
            )
        model = copy.copy(network).attach(prior_of(denoiser, "denoiser", "Deft"))
        check_count("steps", steps)
        super().__init__(model, Euler(), levels=default_levels(steps, model.t_max, model.t_min), **options)


def default_levels(steps: int, t_max: float, t_min: float) -> grids.Levels:
    """Karras' grid without its last level, at which a denoiser has nothing to do."""
    return grids.karras(steps + 1, t_max, t_min)[:-1]


def check_weight(weight: float) -> float:
    """The weight, or why it is none."""
    if not (math.isfinite(weight) and weight >= 0):
        raise ConfigError(f"weight must be a number of at least 0; got {weight}; 0 ignores the measurement")
    return float(weight)


DIFFUSION: dict[str, type[DiffusionSolver]] = {"dps": Dps, "lgd": Lgd, "ddrm": Ddrm, "diffpir": DiffPir}
