r"""Distances between two sets of images, on matrices of features, in float64.

Both distances come with the *influence* of each image: how much the distance would change, times N, if that image counted
for slightly more (the infinitesimal jackknife of Efron, 1982). Resampling influences is the bootstrap to first order, at no
cost; two samplers that restored the same images are compared by the difference of their influences, image by image.

References:
    Heusel et al., "GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium", 2017 (FID).
    Binkowski et al., "Demystifying MMD GANs", 2018 (KID).
    Dowson and Landau, "The Frechet distance between multivariate normal distributions", 1982.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from macs.errors import DataError

#: Eigenvalues below this share of the largest are not inverted.
RANK_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Distance:
    """A distance and the influence of each pair (restored image, true image) on it, (N,), with mean 0."""

    value: float
    influence: Tensor


@dataclass(frozen=True, eq=False)
class Reference:
    """The features of the true images, (N, d), and what every comparison with them needs once."""

    features: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", checked(self.features))

    @cached_property
    def mean(self) -> Tensor:
        """(d,)."""
        return self.features.mean(0)

    @cached_property
    def covariance(self) -> Tensor:
        """(d, d)."""
        return covariance(self.features)

    @cached_property
    def root(self) -> Tensor:
        r""":math:`\Sigma^{1/2}`."""
        return power(self.covariance, 0.5)

    @cached_property
    def own_similarity(self) -> Tensor:
        """The mean kernel of each image with the others, (N,)."""
        return mean_kernel(self.features, self.features, own=True)


def checked(features: Tensor) -> Tensor:
    """Features in float64, or the reason why they are none."""
    if features.ndim != 2 or len(features) < 2:
        raise DataError(f"features must be a matrix of at least two rows; got the shape {tuple(features.shape)}")
    if not bool(torch.isfinite(features).all()):
        raise DataError("features must be finite; some are NaN or infinity; check the images and the network's weights")
    return features.double()


def covariance(features: Tensor) -> Tensor:
    """The unbiased covariance of rows, (d, d)."""
    centred = features - features.mean(0)
    return centred.mT @ centred / (len(features) - 1)


def power(matrix: Tensor, exponent: float) -> Tensor:
    """A power of a symmetric positive semi-definite matrix; a negative one is that of the pseudo-inverse."""
    values, vectors = torch.linalg.eigh(matrix)
    kept = values > (RANK_TOLERANCE * values[-1].clamp_min(0) if exponent < 0 else 0)
    scaled = torch.where(kept, values.clamp_min(torch.finfo(values.dtype).tiny) ** exponent, 0)
    return (vectors * scaled) @ vectors.mT


def frechet(features: Tensor, reference: Reference) -> Distance:
    r""":math:`\|\mu_1-\mu_2\|^2 + \mathrm{tr}(\Sigma_1 + \Sigma_2 - 2(\Sigma_1\Sigma_2)^{1/2})`.

    With :math:`M = \Sigma_2^{1/2}\Sigma_1\Sigma_2^{1/2}` the trace of the root is that of :math:`M^{1/2}`. The derivative by
    :math:`\Sigma_1` is :math:`I - T`, where :math:`T = \Sigma_2^{1/2} M^{-1/2} \Sigma_2^{1/2}` is the optimal transport from
    one Gaussian to the other; by :math:`\Sigma_2` it is :math:`I - T^{-1}`.
    """
    x, y = checked(features), reference.features
    check_paired(x, y)
    gap = x.mean(0) - reference.mean
    cov = covariance(x)
    middle = reference.root @ cov @ reference.root
    root = power(middle, 0.5)
    value = gap.square().sum() + cov.trace() + reference.covariance.trace() - 2 * root.trace()
    transport = reference.root @ power(middle, -0.5) @ reference.root
    influence = gaussian_influence(x, gap, transport) + gaussian_influence(y, -gap, power(transport, -1.0))
    return Distance(value.item(), influence - influence.mean())


def gaussian_influence(features: Tensor, gap: Tensor, transport: Tensor) -> Tensor:
    r""":math:`2\,\delta\cdot(x_i - \mu) + (x_i - \mu)^\top (I - T) (x_i - \mu)`, up to a constant, (N,)."""
    centred = features - features.mean(0)
    return 2 * centred @ gap + centred.square().sum(1) - (centred * (centred @ transport)).sum(1)


def kernel(features: Tensor, reference: Reference) -> Distance:
    r"""The squared maximum mean discrepancy under :math:`k(x, y) = (x\cdot y/d + 1)^3`, its usual estimate over all pairs.

    .. math:: \frac{1}{N(N-1)}\sum_{i\ne j} (k(x_i, x_j) + k(y_i, y_j)) - \frac{2}{N^2}\sum_{i,j} k(x_i, y_j)

    It is unbiased for independent sets. Here :math:`x_i` restores :math:`y_i`, and the pairs :math:`i = j` of the last term
    make it low: by :math:`\frac2N (\overline{k(y_i, y_i)} - \overline{k(y_i, y_j)})` for a perfect restoration, on Inception
    about 3e-3 at N = 200 and 6e-5 at N = 10,000; by less for others. Averaging it over random subsets, as is usual, estimates
    the same number with more noise.
    """
    x, y = checked(features), reference.features
    check_paired(x, y)
    xx, yy = mean_kernel(x, x, own=True), reference.own_similarity
    xy, yx = mean_kernel(x, y), mean_kernel(y, x)
    influence = 2 * (xx + yy - xy - yx)
    return Distance((xx.mean() + yy.mean() - 2 * xy.mean()).item(), influence - influence.mean())


def mean_kernel(x: Tensor, y: Tensor, own: bool = False, block: int = 2048) -> Tensor:
    """The mean of the kernel between each row of ``x`` and all rows of ``y``; with ``own`` all but itself, (N,)."""
    sums = torch.cat([(part @ y.mT / x.shape[1] + 1).pow(3).sum(1) for part in x.split(block)])
    if own:
        return (sums - (x.square().sum(1) / x.shape[1] + 1).pow(3)) / (len(y) - 1)
    return sums / len(y)


def check_paired(x: Tensor, y: Tensor) -> None:
    """Refuse sets that are not the same images, restored and true."""
    if x.shape != y.shape:
        raise DataError(f"features must be of the reference's shape {tuple(y.shape)}, image by image; got {tuple(x.shape)}")
