"""The samplers that diffusers also has, on the same U-Net and the same noise."""

import diffusers
import numpy as np
import pytest
import torch
from diffusers.schedulers import scheduling_consistency_models

import macs

from .transcription import karras

SHAPE = (3, 16, 16)
NAMES = ("a", "b")


@pytest.fixture(scope="module")
def unet():
    """A small random U-Net whose last layer, usually zero at the start, is random too."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = diffusers.UNet2DModel(
            sample_size=16,
            block_out_channels=(8, 16),
            layers_per_block=1,
            norm_num_groups=4,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=8,
        )
        torch.nn.init.normal_(net.conv_out.weight, std=0.3)
    return net.eval().requires_grad_(False)


@pytest.fixture
def physics():
    return macs.task("inpainting", image_shape=SHAPE)


@pytest.fixture
def y(physics):
    return physics.A(torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(3)))


def by_consistency_scheduler(unet, indices, noise, monkeypatch, **config):
    """diffusers' own loop, given ``noise``: draw 0 for the start, draw k after the k-th call. Images in [-1, 1]."""
    scheduler = diffusers.CMStochasticIterativeScheduler(**config)
    scheduler.set_timesteps(timesteps=indices)
    blank, drawn = torch.zeros(2, *SHAPE), iter(range(1, 10))
    monkeypatch.setattr(scheduling_consistency_models, "randn_tensor", lambda *_, **__: noise.at(next(drawn)).like(blank))
    x = noise.at(0).like(blank) * scheduler.init_noise_sigma
    for t in scheduler.timesteps:
        out = unet(scheduler.scale_model_input(x, t), t.float().expand(2)).sample
        x = scheduler.step(out, t, x).prev_sample
    return scheduler, x


@pytest.mark.parametrize("indices", [[0], [17, 0], [18, 0], [22, 0], [30, 17, 0], [35, 26, 17, 8, 0]], ids=str)
def test_multistep_is_diffusers_consistency_scheduler(indices, unet, physics, y, monkeypatch):
    noise = macs.Noise(6, NAMES)
    scheduler, theirs = by_consistency_scheduler(unet, indices, noise, monkeypatch)
    levels = [karras(40)[i] for i in reversed(indices)]
    np.testing.assert_allclose(levels, scheduler.sigmas[:-1], rtol=1e-6)
    solver = macs.Solver(macs.ConsistencyModel(unet, SHAPE), macs.Multistep(), levels=levels)
    ours = solver(y, physics, seed=6, ids=NAMES)
    np.testing.assert_allclose(ours.numpy(), (theirs.numpy() + 1) / 2, rtol=0, atol=1e-5)


def test_two_steps_by_default_are_diffusers_17_and_0(unet, physics, y, monkeypatch):
    _, theirs = by_consistency_scheduler(unet, [17, 0], macs.Noise(0, NAMES), monkeypatch)
    ours = macs.Solver(macs.ConsistencyModel(unet, SHAPE), macs.Multistep(), steps=2)(y, physics, ids=NAMES)
    np.testing.assert_allclose(ours.numpy(), (theirs.numpy() + 1) / 2, rtol=0, atol=1e-5)


def test_the_fixture_sees_the_noise_and_the_level(unet, physics, y, monkeypatch):
    """Another noise or another second level changes the image far more than the tolerance; few pixels are cut to [-1, 1]."""
    runs = [(0, [17, 0]), (1, [17, 0]), (0, [18, 0])]
    first, *others = (by_consistency_scheduler(unet, i, macs.Noise(seed, NAMES), monkeypatch)[1] for seed, i in runs)
    assert (first.abs() == 1).float().mean() < 0.3
    assert all((first - other).abs().max() > 1e-3 for other in others)


@pytest.mark.parametrize("sigma", [0.002, 0.02, 0.5, 4.36556169, 80.0])
def test_the_consistency_model_has_diffusers_scalings(sigma, unet):
    scheduler = diffusers.CMStochasticIterativeScheduler()
    level = torch.tensor(sigma, dtype=torch.float64)
    c_skip, c_out = scheduler.get_scalings_for_boundary_condition(level)
    x = sigma * torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(2))
    t = torch.as_tensor(scheduler.sigma_to_t(sigma)).float().expand(2)
    theirs = c_skip * x + c_out * unet((x / (level**2 + 0.25).sqrt()).float(), t).sample
    ours = macs.ConsistencyModel(unet, SHAPE)(x, None, level)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=0, atol=1e-5)


class Edm:
    """The U-Net under Karras' own preconditioning, that of diffusers' EDM schedulers; t_min is not special in it."""

    image_shape = SHAPE

    def __init__(self, unet):
        self.unet = unet

    def __call__(self, x_t, y, t):
        root = (t**2 + 0.25).sqrt()
        F = self.unet((x_t / root).to(x_t.dtype), (0.25 * t.log()).to(x_t.dtype).expand(len(x_t))).sample
        return (0.25 / root**2 * x_t + t * 0.5 / root * F).to(x_t.dtype)


def by_edm_scheduler(unet, scheduler, steps, unit):
    """diffusers' loop for an EDM scheduler from the start noise ``unit``; images in [-1, 1]."""
    scheduler.set_timesteps(steps)
    x = scheduler.sigmas[0] * unit
    for t in scheduler.timesteps:
        x = scheduler.step(unet(scheduler.scale_model_input(x, t), t.float().expand(2)).sample, t, x).prev_sample
    return x


@pytest.mark.parametrize("steps", [2, 3, 5, 8])
@pytest.mark.parametrize(
    ("sampler", "scheduler"),
    [
        pytest.param(macs.Euler(), diffusers.EDMEulerScheduler, id="euler"),
        pytest.param(macs.DpmSolver(variant="2M"), diffusers.EDMDPMSolverMultistepScheduler, id="dpm-2m"),
    ],
)
def test_the_ode_samplers_are_diffusers_edm_schedulers(sampler, scheduler, steps, unet, physics, y):
    """Both walk Karras' grid of so many levels, and end with a step of first order to zero: the last network output."""
    unit = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(5))
    edm = scheduler(sigma_min=0.002, sigma_max=80.0, sigma_data=0.5, rho=7.0)
    theirs = by_edm_scheduler(unet, edm, steps, unit)
    np.testing.assert_allclose(karras(steps), edm.sigmas[:-1], rtol=1e-5)
    solver = macs.Solver(Edm(unet), sampler, levels=karras(steps).clip(min=0.002), clamp=False)
    ours = solver(y, physics, z=unit)
    assert (theirs.abs() < 1).float().mean() > 0.5
    np.testing.assert_allclose(ours.numpy(), ((theirs.numpy() + 1) / 2).clip(0, 1), rtol=0, atol=5e-5)
