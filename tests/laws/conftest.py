"""Every law runs on every sampler and every operator in these registries."""

import deepinv as dinv
import pytest
import torch
from deepinv.physics import BlurFFT, Denoising, GaussianNoise, Physics

import macs
from macs.samplers import SAMPLERS
from tests.laws.gaussian import matrix_physics, random_matrix

SHAPE = (1, 8, 8)


class Squashed(Physics):
    """A nonlinear operator: blurred, then bent."""

    def __init__(self, sigma_y: float = 0.05) -> None:
        super().__init__(noise_model=GaussianNoise(sigma_y / 2))
        self.blur = macs.task("deblurring", image_shape=SHAPE, std=0.7)

    def A(self, x, **kwargs):
        return torch.tanh(2 * self.blur.A(x) - 1) + 0.1 * x**2


def stacked() -> Physics:
    return dinv.physics.stack(macs.task("super-resolution", image_shape=SHAPE), macs.task("inpainting", image_shape=SHAPE))


def blur_fft() -> Physics:
    kernel = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]])[None, None] / 16
    return BlurFFT(img_size=SHAPE, filter=kernel, noise_model=GaussianNoise(0.025))


LINEAR = {
    "super-resolution": lambda: macs.task("super-resolution", image_shape=SHAPE),
    "inpainting": lambda: macs.task("inpainting", image_shape=SHAPE),
    "deblurring": lambda: macs.task("deblurring", image_shape=SHAPE, std=1.0),
    "denoising": lambda: Denoising(GaussianNoise(0.025)),
    "matrix": lambda: matrix_physics(random_matrix(24, 64), SHAPE),
    "fft-blur": blur_fft,
}
OPERATORS = {**LINEAR, "stacked": stacked, "nonlinear": Squashed}

VARIANTS = {
    **{name: kind() for name, kind in SAMPLERS.items()},
    "macs-chi2": macs.Macs(gamma=0.5, residual="chi2"),
    "macs-mean": macs.Macs(gamma=0.5, residual="mean"),
    "macs-d-everywhere": macs.MacsD(null=False),
    "macs-d-polish": macs.MacsD(polish=True),
    "dpm-solver-2": macs.DpmSolver(variant="2"),
    "ddim+discrepancy": macs.Ddim(data=macs.Discrepancy()),
}


@pytest.fixture(params=sorted(VARIANTS))
def sampler(request):
    return VARIANTS[request.param]


@pytest.fixture(params=sorted(OPERATORS))
def physics(request):
    return OPERATORS[request.param]()


@pytest.fixture(params=sorted(LINEAR))
def linear(request):
    return LINEAR[request.param]()


@pytest.fixture
def x():
    """Smooth test images in [0, 1], (5, 1, 8, 8)."""
    g = torch.Generator().manual_seed(7)
    coarse = torch.rand(5, 1, 3, 3, generator=g)
    return torch.nn.functional.interpolate(coarse, size=SHAPE[1:], mode="bicubic").clamp(0.05, 0.95)


def measure(physics, x, seed=0):
    """A measurement that leaves the global random state alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return physics(x)


class Net:
    """A small random network that looks at x and t."""

    image_shape = SHAPE
    t_min = 0.002
    t_max = 80.0

    def __init__(self, seed=0, shape=SHAPE):
        g = torch.Generator().manual_seed(seed)
        self.image_shape = shape
        self.w = torch.randn(8, shape[0], 3, 3, generator=g) / 3
        self.v = torch.randn(shape[0], 8, 3, 3, generator=g) / 6

    def __call__(self, x, y, t):
        t = torch.as_tensor(t).reshape(-1, 1, 1, 1).to(x)
        h = torch.tanh(torch.nn.functional.conv2d(x / (1 + t), self.w.to(x), padding=1))
        return torch.nn.functional.conv2d(h, self.v.to(x), padding=1)


@pytest.fixture
def net():
    return Net()
