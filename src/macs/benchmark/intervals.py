"""Confidence intervals over images, by one seeded bootstrap that all metrics and all samplers share."""

from functools import lru_cache

import torch
from torch import Generator, Tensor

RESAMPLES = 2000


@lru_cache(maxsize=8)
def counts(images: int, seed: int) -> Tensor:
    """How often each image is drawn in each resample of the set, (RESAMPLES, N), as float32."""
    g = Generator().manual_seed(seed)
    out = torch.zeros(RESAMPLES, images)
    for row in out:
        row += torch.bincount(torch.randint(images, (images,), generator=g), minlength=images)
    return out


def interval(contributions: Tensor, value: float, seed: int) -> tuple[float, float]:
    """The central 95 % of ``value`` under resampling of images, from the contribution of each, (N,).

    A mean over images takes the images' values; a distance takes their influences (:mod:`macs.distances`).
    """
    centred = (contributions - contributions.mean()).double()
    means = counts(len(centred), seed).double() @ centred / len(centred)
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return value + low, value + high
