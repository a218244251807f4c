"""The diffusion solvers against deepinv's own, called by hand with a denoiser on [0, 1]: equal on equal noise, else alike.

For Gaussian pixels of mean 1/2 and deviation sd the denoiser is 1/2 + sd^2/(sd^2 + sigma^2) (x - 1/2).
"""

import deepinv
import numpy as np
import pytest
import torch

import macs
from macs.levels import karras

from .cases import SHAPE, SIGMA, task

IMAGES = 200
SD = 0.25
NAMES = [f"image {i}" for i in range(IMAGES)]


class Hand(deepinv.models.Denoiser):
    """The denoiser as deepinv wants it, on [0, 1]."""

    def forward(self, x, sigma, **kwargs):
        return 0.5 + SD**2 / (SD**2 + torch.as_tensor(sigma).to(x) ** 2) * (x - 0.5)


def ours(x_t, y, t):
    """The same on [-1, 1], without a bound on its levels."""
    return (2 * SD) ** 2 / ((2 * SD) ** 2 + torch.as_tensor(t).to(x_t) ** 2) * x_t


ours.t_max = 1e4
ours.image_shape = SHAPE


def measured(name, images=IMAGES):
    """Gaussian images and their measurements."""
    physics = task(name, **({"hole": 4} if name == "inpainting" else {"std": 1.0} if name == "deblurring" else {}))
    g = torch.Generator().manual_seed(0)
    x = 0.5 + SD * torch.randn(images, *SHAPE, generator=g)
    clean = physics.A(x)
    y = clean + SIGMA * torch.randn(clean.shape, generator=g) * (physics.mask if name == "inpainting" else 1)
    return x, y, physics


class Stream:
    """The noise that the package draws for these images, in order."""

    def __init__(self, seed, names):
        self.noise, self.count = macs.Noise(seed, names), 0

    def __call__(self, x):
        self.count += 1
        return self.noise.at(self.count - 1).like(x)


def by_hand(kind, y, physics, draw=None, monkeypatch=None):
    """deepinv's solver, on given noise or on its own."""
    if kind in ("dps", "dps-norm"):
        weight, guidance = (1.0, "annealed") if kind == "dps" else (30.0, "norm")
        rng = torch.Generator().manual_seed(11)
        times = torch.linspace(1, 0, 41, dtype=torch.float64)
        solver = deepinv.sampling.DDPMSolver(times, rng=rng)
        dps = deepinv.sampling.DPS(Hand(), solver=solver)
        dps.data_fidelity = deepinv.sampling.DPSDataFidelity(Hand(), weight, clip=[-1.0, 1.0], guidance=guidance)
        start = (len(y), *SHAPE)
        if draw is not None:
            solver.randn_like = lambda x, seed=None: draw(x)
            start = draw(torch.zeros(len(y), *SHAPE)).double() * dps.sde.sigma_t(1.0) * dps.sde.scale_t(1.0)
        return dps(y, physics, x_init=start)
    if draw is not None:
        monkeypatch.setattr(torch, "randn_like", draw)
    if kind == "ddrm":
        grid = karras(21, 1e4, 0.002)[:-1]
        physics = physics.clone()
        physics.mask = physics.mask.to(y.dtype).expand(1, *SHAPE)
        return deepinv.sampling.DDRM(Hand(), sigmas=[t / 2 for t in grid])(y.clone(), physics)
    solver = deepinv.sampling.DiffPIR(Hand(), deepinv.optim.L2(), sigma=SIGMA, max_iter=25)
    return solver(y, physics)


MAKE = {
    "dps": lambda: macs.Dps(ours, 40, weight=1.0, guidance="annealed"),
    "dps-norm": lambda: macs.Dps(ours, 40, weight=30.0),
    "ddrm": lambda: macs.Ddrm(ours, 20),
    "diffpir": lambda: macs.DiffPir(ours, 25, zeta=0.1),
}


@pytest.mark.parametrize("name", ["super-resolution", "inpainting", "deblurring"])
@pytest.mark.parametrize("kind", sorted(MAKE))
def test_the_same_noise_gives_the_same_image(kind, name, monkeypatch):
    _, y, physics = measured(name, 5)
    found = MAKE[kind]()(y, physics, seed=4, ids=NAMES[:5])
    want = by_hand(kind, y, physics, Stream(4, NAMES[:5]), monkeypatch)
    torch.testing.assert_close(found, want.float().clamp(0, 1), atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", sorted(MAKE))
def test_other_noise_gives_images_as_good(kind):
    """A paired test on 200 images: the errors of both differ by less than four standard errors."""
    x, y, physics = measured("super-resolution")
    found = MAKE[kind]()(y, physics, seed=0, ids=NAMES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        want = by_hand(kind, y, physics).float().clamp(0, 1)
    errors = [(image - x).square().flatten(1).mean(1).numpy() for image in (found, want)]
    difference = errors[0] - errors[1]
    assert np.abs(difference).max() > 0
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(IMAGES)


def test_ddrm_with_the_published_noise():
    """Twice the variance that deepinv injects: what no measurement sees spreads more, and no more than in the prior."""
    _, y, physics = measured("inpainting")
    hole = physics.mask[0] == 0
    spread = {g: macs.Ddrm(ours, 40, gain=g)(y, physics, ids=NAMES)[:, hole.expand(SHAPE)].std() for g in (1.0, 2**0.5)}
    assert spread[2**0.5] > 1.15 * spread[1.0]
    assert spread[1.0] < spread[2**0.5] < SD


def test_above_its_range_a_denoiser_is_asked_at_its_edge():
    """The image is scaled with the level, so the network sees the noise that it is told."""
    seen = []

    def bounded(x_t, y, t):
        seen.append((float(t), x_t.std().item()))
        return ours(x_t, y, t)

    bounded.t_max, bounded.image_shape = 10.0, SHAPE
    _, y, physics = measured("super-resolution", 20)
    macs.Dps(bounded, 30)(y, physics)
    assert all(t <= 10 for t, _ in seen)
    assert seen[0][0] == 10.0
    assert all(abs(std / np.hypot(t, 2 * SD) - 1) < 0.25 for t, std in seen if t > 1)
