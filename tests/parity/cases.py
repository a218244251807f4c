"""Inverse problems twice: a deepinv physics, and the dense matrix of the same operator."""

from dataclasses import dataclass
from typing import Any

import deepinv
import numpy as np
import torch

import macs

from . import operators
from .transcription import Measured

SHAPE = (2, 8, 10)
PIXELS = 2 * 8 * 10
IMAGES = 3
#: Measurement noise on [0, 1] images; a power of two, so that float32 and float64 hold the same number.
SIGMA = 1 / 32


@dataclass(frozen=True)
class Case:
    """A physics, its matrix, the inverse that a data step uses, and how many measurements carry information."""

    name: str
    physics: Any
    A: np.ndarray
    inverse: np.ndarray
    count: int

    def measure(self, seed=0):
        """Noisy measurements (B, m) of random images in [0, 1]; no noise where the operator gives nothing."""
        rng = np.random.default_rng(seed)
        x = rng.uniform(size=(IMAGES, PIXELS))
        seen = np.abs(self.A).sum(1) > 0
        return x @ self.A.T + SIGMA * seen * rng.normal(size=(IMAGES, len(self.A)))

    def pair(self, dtype, seed=0):
        """The same measurement as a transcription's and as the package's problem: exactly the same numbers."""
        blank = torch.zeros(IMAGES, *SHAPE, dtype=dtype)
        y = torch.as_tensor(self.measure(seed), dtype=dtype).reshape(self.physics.A(blank).shape)
        return Measured(rows(y), self.A, self.inverse, SIGMA, self.count), macs.Problem(y, self.physics)


def rows(x):
    """A tensor as float64 rows, one per image."""
    return x.detach().double().flatten(1).numpy()


def images(x, dtype):
    """Rows as images."""
    return torch.as_tensor(x, dtype=dtype).reshape(-1, *SHAPE)


def dense_physics(A, sigma=SIGMA, **options):
    """A deepinv ``LinearPhysics`` known only by its two products."""
    matrix = torch.as_tensor(A)
    return deepinv.physics.LinearPhysics(
        A=lambda x, **_: x.flatten(1) @ matrix.to(x.dtype).T,
        A_adjoint=lambda y, **_: (y @ matrix.to(y.dtype)).reshape(-1, *SHAPE),
        img_size=SHAPE,
        noise_model=deepinv.physics.GaussianNoise(sigma),
        **options,
    )


def super_resolution():
    A = operators.super_resolution_matrix(SHAPE, 2)
    return Case("super-resolution", task("super-resolution"), A, np.linalg.pinv(A), len(A))


def inpainting():
    A = operators.inpainting_matrix(SHAPE, 4)
    return Case("inpainting", task("inpainting", hole=4), A, np.linalg.pinv(A), int(np.trace(A)))


def deblurring():
    A = operators.deblurring_matrix(SHAPE, 1.0)
    physics = task("deblurring", std=1.0, regularization=0.0625)
    return Case("deblurring", physics, A, operators.damped_inverse(A, 0.0625), len(A))


def dense():
    A = np.random.default_rng(7).normal(size=(40, PIXELS)) / np.sqrt(PIXELS)
    return Case("dense", dense_physics(A), A, np.linalg.pinv(A), len(A))


def denoising():
    physics = deepinv.physics.Denoising(deepinv.physics.GaussianNoise(SIGMA))
    return Case("denoising", physics, np.eye(PIXELS), np.eye(PIXELS), PIXELS)


def task(name, **options):
    """A task of the package on the small images of these tests; its noise is told in [-1, 1] units."""
    return macs.task(name, image_shape=SHAPE, sigma_y=2 * SIGMA, **options)


CASES = {case.name: case for case in (super_resolution(), inpainting(), deblurring(), dense(), denoising())}
