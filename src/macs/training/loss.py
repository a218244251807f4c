r"""The objectives: denoising (EDM), consistency tuning (ECT) and consistency distillation (CD).

References:
    Karras et al., "Elucidating the Design Space of Diffusion-Based Generative Models", 2022, Table 1.
    Geng et al., "Consistency Models Made Easy", 2024, Algorithm 1.
    Song et al., "Consistency Models", 2023, Algorithm 2 (distillation).
    Song and Dhariwal, "Improved Techniques for Training Consistency Models", 2023 (pseudo-Huber metric).
"""

from typing import Any

import torch
from torch import Tensor

from macs.models.consistency import ConsistencyModel
from macs.problem import per_image, sq_norm


def edm_loss(model: ConsistencyModel, x: Tensor, y: Any, t: Tensor, z: Tensor) -> Tensor:
    r""":math:`\frac{t^2+\sigma_d^2}{(t\sigma_d)^2} \|D(x + t z) - x\|^2 / n`, (B,); D becomes the posterior mean."""
    weight = (t.square() + model.sigma_data**2) / (t * model.sigma_data).square()
    return weight * sq_norm(model(x + per_image(t, x) * z, y, t) - x) / x[0].numel()


def earlier_level(t: Tensor, doublings: float) -> Tensor:
    r""":math:`r = t\,(1 - (1 + 8\,\mathrm{sigmoid}(-t))/2^{k+1})_+` after ``k`` doublings (Geng et al.)."""
    return t * (1 - (1 + 8 * torch.sigmoid(-t)) / 2 ** (doublings + 1)).clamp_min(0)


def ect_loss(model: ConsistencyModel, x: Tensor, y: Any, t: Tensor, z: Tensor, doublings: float, c: float) -> Tensor:
    r""":math:`w(t)\,(\sqrt{\|f(x_t) - \bar f(x_r)\|^2 + c^2} - c)` for each image, (B,), both points on one noise ``z``.

    :math:`\bar f` is the same network without gradient; where :math:`r = 0` the target is the clean image. The weight
    :math:`w = 1/c_{\rm out}(t)` evens out how strongly the backbone feels each level.
    """
    r = earlier_level(t, doublings)
    with torch.no_grad():
        f_r = model(x + per_image(r, x) * z, y, r.clamp_min(model.t_min)).clamp(-1, 1)
    target = torch.where(per_image(r, x) > model.t_min, f_r, x)
    return consistency_distance(model, x + per_image(t, x) * z, y, t, target, c)


def cd_loss(
    model: ConsistencyModel, teacher: ConsistencyModel, x: Tensor, y: Any, t: Tensor, z: Tensor, doublings: float, c: float
) -> Tensor:
    r"""The loss of :func:`ect_loss`, (B,), for a pair of points on one path of the teacher, a denoiser.

    :math:`x_r` is a Heun step of :math:`dx/dt = (x - D(x, t))/t` from :math:`x_t`. The pair does not depend on which clean
    image :math:`x_t` came from, so targets vary less than those of :func:`ect_loss`.
    """
    r = earlier_level(t, doublings).clamp_min(model.t_min)
    x_t = x + per_image(t, x) * z
    with torch.no_grad():
        target = model(heun_step(teacher, x_t, y, t, r), y, r).clamp(-1, 1)
    return consistency_distance(model, x_t, y, t, target, c)


def heun_step(denoiser: ConsistencyModel, x: Tensor, y: Any, t: Tensor, r: Tensor) -> Tensor:
    """From level ``t`` to ``r`` along the probability flow, second order."""
    slope = (x - denoiser(x, y, t)) / per_image(t, x)
    x_r = x + per_image(r - t, x) * slope
    slope_r = (x_r - denoiser(x_r, y, r)) / per_image(r, x)
    return x + per_image(r - t, x) * (slope + slope_r) / 2


def consistency_distance(model: ConsistencyModel, x_t: Tensor, y: Any, t: Tensor, target: Tensor, c: float) -> Tensor:
    r""":math:`w(t)\,(\sqrt{\|f(x_t) - \text{target}\|^2 + c^2} - c)`, (B,), with :math:`w = 1/c_{\rm out}(t)`.

    The difference is that of the output as it is :func:`shown`.
    """
    distance = (sq_norm(shown(model(x_t, y, t)) - target) + c**2).sqrt() - c
    weight = (t.square() + model.sigma_data**2).sqrt() / (t * model.sigma_data)
    return weight * distance / x_t[0].numel() ** 0.5


def shown(f: Tensor) -> Tensor:
    """An output clamped, as samplers use it, while its gradient passes the clamp.

    A black pixel may come out blacker than black at no cost, so that what noise is left in a black background is clamped away.
    """
    return f + (f.clamp(-1, 1) - f).detach()
