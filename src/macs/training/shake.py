r"""A synthetic camera shake: nonlinear, different at every place, and a function of a latent kernel.

While the shutter is open the image moves along a path :math:`p(\tau, u)` that depends on the place u. Light adds up, pixel
values do not: with the camera's response :math:`x = R(E)` from exposure to value,

.. math:: y(u) = R\Big(\frac1S \sum_{\tau} R^{-1}(x)\big(u + p(\tau, u)\big)\Big), \qquad
    R(E) = \big((1 - e^{-E})/0.98\big)^{1/2.2},

so bright lights leave streaks that no convolution of the values makes. The path is a sum of cosines in time. Its coefficients
are the latent kernel (16, 2, 2): eight channels, averaged over the four corners, for the motion of the whole image, and eight
for how each corner differs, interpolated between them. A standard normal kernel gives shakes of about one pixel in 64.

References:
    Debevec and Malik, "Recovering High Dynamic Range Radiance Maps from Photographs", 1997 (the response curve).
    Whyte et al., "Non-uniform Deblurring for Shaken Images", 2010 (shake that varies over the image).
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate

from macs.errors import ConfigError

#: Cosines of the path, moments of the exposure, and the paths' standard deviations: whole image, and corners, in 64ths of it.
COSINES, MOMENTS = 4, 24
WHOLE, CORNERS = 1.6, 0.8


def exposure(x: Tensor) -> Tensor:
    """:math:`R^{-1}(x)`, the light behind values in [0, 1]."""
    return -torch.log1p(-0.98 * x.clamp(0, 1) ** 2.2)


def value(light: Tensor) -> Tensor:
    """:math:`R(E)`, the values that light leaves."""
    return ((1 - torch.exp(-light)) / 0.98).clamp_min(1e-8) ** (1 / 2.2)


def path(k: Tensor, height: int, width: int) -> Tensor:
    """Where each pixel looks at each moment, as offsets in [-1, 1] coordinates, (B, S, H, W, 2); their mean is zero."""
    if k.shape[1:] != (4 * COSINES, 2, 2):
        raise ConfigError(f"a shake's kernel is of shape {(4 * COSINES, 2, 2)}; got {tuple(k.shape[1:])}")
    whole, corners = k.split(2 * COSINES, 1)
    coefficients = WHOLE * 2 * whole.mean((2, 3), keepdim=True) + CORNERS * corners
    field = interpolate(coefficients, (height, width), mode="bilinear", align_corners=True)
    order = torch.arange(1, COSINES + 1, dtype=k.dtype)
    time = (torch.arange(MOMENTS, dtype=k.dtype) + 0.5) / MOMENTS
    basis = torch.cos(math.pi * order * time[:, None]) / order
    return torch.einsum("sj,bdjhw->bshwd", basis, field.unflatten(1, (2, COSINES))) * (2 / 64)


def camera_shake(x: Tensor, k: Tensor) -> Tensor:
    """Images in [0, 1] as a shaken camera sees them, each under its own kernel."""
    height, width = x.shape[2:]
    rows, columns = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    here = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], -1).to(x)
    offsets, light = path(k, height, width), exposure(x)
    total = torch.zeros_like(x)
    for moment in offsets.unbind(1):
        total = total + grid_sample(light, here + moment, padding_mode="reflection", align_corners=True)
    return value(total / MOMENTS)
