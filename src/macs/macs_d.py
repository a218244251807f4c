"""MACS-D: measurement awareness that acts. The paper's samplers are in :mod:`macs.steps`."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from macs import levels as grids
from macs.errors import ConfigError
from macs.fidelity import DataStep, Discrepancy
from macs.levels import Levels
from macs.problem import Problem, per_image, sq_norm
from macs.steps import ConsistencyFunction, Past, Sampler, Transition, t_min_of

#: How the noise that MACS-D returns falls with the share of the image that was not measured.
SHARE_EXPONENT = 0.3


def larger(side: int) -> float:
    """How much larger than 28 pixels a side is, 0 to 1: 1 at 64 pixels and beyond, by the logarithm between."""
    return min(max(math.log(side / 28) / math.log(64 / 28), 0.0), 1.0)


def spared(noise: Tensor, problem: Problem, side: int) -> Tensor:
    r""":math:`(I - \kappa H) z`: noise without what was measured, or without half of it in large images."""
    return torch.lerp(noise, problem.unmeasured(noise), 1 - larger(side) / 2)


def returned(noise: Tensor, drawn: Tensor) -> Tensor:
    r"""The share :math:`\eta` of spared noise that returns, by how much of what was drawn is left, (B, 1, 1, 1)."""
    share = sq_norm(noise) / sq_norm(drawn).clamp_min(torch.finfo(drawn.dtype).tiny)
    return per_image(share**SHARE_EXPONENT, noise)


@dataclass(frozen=True)
class MacsD(Sampler):
    r"""MACS by the discrepancy principle: the measurement moves the estimate, and noise returns only where it is silent.

    After each ``f`` the discrepancy step (:class:`macs.fidelity.Discrepancy`), after the last one only where it is needed;
    then fresh noise, in the part that the measurement says nothing about (:meth:`macs.problem.Problem.unmeasured`),

    .. math:: x_s = \hat x + \eta \sqrt{s^2 - t_{\min}^2}\; (I - \kappa H)\, z, \qquad H = (A^\top A + \lambda I)^{-1} A^\top A.

    What was measured is known and need not be drawn again: its noise would only be a source of error. The network is told
    ``s`` and gets less noise than that, so it cleans what is measured and invents what is not. For images of 28 pixels
    :math:`\kappa` is 1. The larger the image, the more plainly does a network miss the noise that is not there, and its colours
    drift: at 64 pixels and beyond :math:`\kappa` is 1/2. The smaller the unmeasured part, the more the rest of the image tells
    of it, and the less noise it needs:

    .. math:: \eta = (\|(I - \kappa H) z\|^2 / \|z\|^2)^{0.3}

    is 1 where nothing is known and, with a kappa of 1, 0.66 for a hole of a quarter of the image; the exponent and the two
    values of kappa were chosen on validation images. With a smaller ``eta`` the result lies nearer to the mean of the possible
    images: more PSNR, less texture.

    The last call has the last word where it agrees with the measurement: a data step after it would carry the noise of the
    measurement into the image. Where its misfit is more than twice that of the noise, it is worth that price.

    Args:
        eta: the share of the noise that returns; the formula above where it is None.
        null: spare the measured part by the share :math:`\kappa`; without it the noise returns everywhere.
        tolerance: the :math:`\chi^2` up to which an image is left as the last call made it; with 0 the data step is always
            made, with infinity never.
        polish: spend the last call (from two steps on) without noise, at the level of the measurement noise that the data
            step left in the image, :math:`t = c\, \lambda\, \sigma_y`, :math:`\lambda = 1 - 1/\sqrt{\chi^2}`.
        c: how much room the polish has; 1 to 2 is the noise itself.
    """

    data: DataStep | None = field(default=Discrepancy(), kw_only=True)
    eta: float | None = None
    null: bool = True
    tolerance: float = 4.0
    polish: bool = False
    c: float = 2.0

    def __post_init__(self) -> None:
        if self.eta is not None and not 0 <= self.eta <= 1:
            raise ConfigError(f"eta must be between 0 and 1; got {self.eta}; 1 returns all of the noise, 0 none")
        if not self.tolerance >= 0:
            raise ConfigError(
                f"tolerance must be a chi2 of at least 0; got {self.tolerance}; 4 is twice the noise, inf never acts"
            )
        if not (math.isfinite(self.c) and self.c > 0):
            raise ConfigError(f"c must be a positive number; got {self.c}; 1 to 2 is the noise that the data step leaves")

    def levels(self, steps: int, t_max: float, t_min: float, side: int = 28) -> Levels:
        """A grid whose end depends on the size of the images; one step less where the polish takes the last call.

        The same structure of a larger image has more pixels and outlives more noise (Hoogeboom et al., "Simple Diffusion",
        2023). Two calls end at 2.82 for 28 pixels and at 6.59 for 64, nearly in proportion to the side; both were chosen on
        validation images, and larger images are treated as those of 64.
        """
        return self.grid(steps, t_max, t_min, side, last=19)

    def grid(self, steps: int, t_max: float, t_min: float, side: int, last: int) -> Levels:
        """The grid whose end is the entry ``last`` of Karras' 40 for images of 28 pixels."""
        calls = max(steps - self.polish, min(steps, 1))
        return grids.few_steps(calls, t_max, t_min, last=round(last - 4 * larger(side)))

    def renoise(self, at: Transition) -> Tensor:
        """The formula above."""
        drawn = at.drawn
        noise = spared(drawn, at.problem, at.side) if self.null else drawn
        eta = returned(noise, drawn) if self.eta is None else self.eta
        return at.x_hat + eta * noise

    def finish(self, f: ConsistencyFunction, problem: Problem, x_t: Tensor, t: float, calls: int) -> Tensor:
        """The estimate at the last level and, where a call is left for it, the polish."""
        x_hat = f(x_t, problem.y, t)
        if self.data is None:
            return x_hat
        if not self.polish or calls < 2:
            missed = problem.chi2(x_hat) > self.tolerance
            return torch.where(per_image(missed, x_hat), self.data(x_hat, problem), x_hat) if missed.any() else x_hat
        moved = self.data(x_hat, problem)
        return f(moved, problem.y, self.polish_level(x_hat, problem, t_min_of(f)))

    def polish_level(self, x_hat: Tensor, problem: Problem, t_min: float) -> Tensor:
        r""":math:`t = \max(c \lambda \sigma_y, t_{\min})`, one level per image, (B, 1, 1, 1)."""
        if self.data is None or problem.sigma_y is None:
            raise ConfigError("the polish must know lambda and sigma_y; pass sigma_y, or use MacsD(polish=False)")
        level = self.c * self.data.weight(x_hat, problem) * torch.as_tensor(problem.sigma_y)
        return per_image(level.clamp_min(t_min), x_hat)


@dataclass(frozen=True)
class AveragedMacsD(MacsD):
    r"""MACS-D for measurements that leave nearly all of the image open, such as a wide blur: its estimates are averaged.

    Two calls make two estimates of one image, whose errors are partly independent. The answer is the last one with a share of
    the mean of those before it,

    .. math:: x_0 = \hat x_1 + w\, G \Big(\frac{1}{N-1} \sum_{i=2}^N \hat x_i - \hat x_1\Big),

    which gains more PSNR than it costs texture; what that wins is spent on texture, by a lower last level. G is the identity,
    or a Gaussian filter: then coarse structure is averaged, and fine texture is that of the last estimate alone. All of it was
    chosen on validation images of Fashion-MNIST, for deblurring: a tenth of whole estimates for the lowest FID, half of their
    coarse structure (``mean=0.5, smooth=0.7``) for more PSNR and a lower KID. Where a measurement says much of the image,
    and for blurred images of 64 pixels, MACS-D is the better choice.

    Args:
        mean: the share w of the estimates before the last one.
        smooth: the standard deviation of G in pixels; with 0 texture is averaged as well.
    """

    mean: float = 0.1
    smooth: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mean <= 1:
            raise ConfigError(f"mean must be between 0 and 1; got {self.mean}; with 0 only the last estimate counts")
        if not (math.isfinite(self.smooth) and self.smooth >= 0):
            raise ConfigError(f"smooth must be a number of pixels of at least 0; got {self.smooth}; 0 averages texture as well")

    def levels(self, steps: int, t_max: float, t_min: float, side: int = 28) -> Levels:
        """MACS-D's grid with a lower end: two calls end at 1.77 for 28 pixels."""
        return self.grid(steps, t_max, t_min, side, last=21)

    def answer(self, x_hat: Tensor, past: Past) -> Tensor:
        """The formula above."""
        if not past:
            return x_hat
        away = torch.stack([before for _, before in past]).mean(0) - x_hat
        return x_hat + self.mean * (smoothed(away, self.smooth) if self.smooth else away)


def smoothed(x: Tensor, std: float) -> Tensor:
    """A Gaussian filter of ``std`` pixels along both sides; at the border the pixels inside have all of the weight."""
    columns, rows = (
        torch.softmax(-(place - place[:, None]).square() / (2 * std**2), 1)
        for place in (torch.arange(n, dtype=x.dtype, device=x.device) for n in x.shape[-2:])
    )
    return columns @ x @ rows.mT
