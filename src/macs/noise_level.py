r"""How noisy a measurement is, from the measurement alone.

A discrete Laplacian of a Laplacian removes any plane and what is smooth, and keeps white noise (Immerkaer 1996):

    d = (k * y)/6,   k = [[1, -2, 1], [-2, 4, -2], [1, -2, 1]],   std(d) = sigma_y for white noise.

Its spread is taken by the median, :math:`\sigma = 1.4826\, \mathrm{median}|d|`, so that a few edges do not count. Texture does
count: the estimate is an *upper bound* on detailed images and close on smooth ones. Places that touch black or white are left
out, since noise is cut there, and so are holes.

References:
    Immerkaer, "Fast Noise Variance Estimation", Computer Vision and Image Understanding 64, 1996.
"""

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from macs.errors import MeasurementError

#: Fewer places than this say nothing.
FEWEST = 24
#: The rounding of 8-bit files on images in [-1, 1]: no measurement from such a file is quieter.
ROUNDING = 2 / 255 / 12**0.5


def estimate_sigma_y(y: Tensor, mask: Tensor | None = None) -> float:
    """The standard deviation of white noise in one measurement (C, h, w) in [0, 1], on images in [-1, 1].

    Args:
        y: the measurement, of image form.
        mask: (h, w), 0 where nothing was measured.
    """
    kernel = y.new_tensor([[1.0, -2.0, 1.0], [-2.0, 4.0, -2.0], [1.0, -2.0, 1.0]])[None, None] / 6
    usable = ((y > 0) & (y < 1)).to(y)
    if mask is not None:
        usable = usable * (mask != 0).to(y)
    if min(y.shape[-2:]) < 3:
        raise too_little(0)
    whole = conv2d(usable[:, None], torch.ones_like(kernel)) > 8.5
    d = conv2d(y[:, None], kernel)[whole]
    if len(d) < FEWEST:
        raise too_little(len(d))
    return max(2 * 1.4826 * float(d.abs().median()), ROUNDING)


def too_little(places: int) -> MeasurementError:
    """The error where an estimate would be a guess."""
    return MeasurementError(
        f"the noise can be estimated from {FEWEST} places away from black, white and holes; there are {places}; "
        "give it as --sigma-y VALUE, a standard deviation on images in [-1, 1]"
    )
