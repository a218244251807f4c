r"""The two objectives: denoising (EDM) and consistency tuning (ECT).

References:
    Karras et al., "Elucidating the Design Space of Diffusion-Based Generative Models", 2022, Table 1.
    Geng et al., "Consistency Models Made Easy", 2024, Algorithm 1.
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
    distance = (sq_norm(model(x + per_image(t, x) * z, y, t) - target) + c**2).sqrt() - c
    weight = (t.square() + model.sigma_data**2).sqrt() / (t * model.sigma_data)
    return weight * distance / x[0].numel() ** 0.5
