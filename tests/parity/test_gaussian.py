r"""Gaussian data, where a step is a multiplication that can be written down.

For images from N(0, d^2 I) the posterior mean is f(x, t) = k(t) x with k = d^2/(d^2 + t^2). Each solver then multiplies the
image by a number, here worked out by hand; none of these formulas passes through the transcription.
"""

import math
from itertools import pairwise

import deepinv
import numpy as np
import pytest
import torch

import macs

D = 0.05
T_MIN = 0.002
TRANSITIONS = [(80.0, 4.36556169), (4.36556169, 1.0), (1.0, 0.05), (0.05, 0.002)]
LEVELS = (80.0, 4.0, 0.5, 0.06, 0.004)


def gain(t):
    """k(t) = d^2/(d^2 + t^2)."""
    return D**2 / (D**2 + t**2)


def posterior_mean(x_t, y, t):
    """E[x | x_t] for N(0, d^2 I)."""
    return gain(torch.as_tensor(t, dtype=x_t.dtype)) * x_t


def ddim(t, s, t_min=T_MIN):
    """k + sqrt(rho) (1 - k)."""
    root = math.sqrt((s**2 - t_min**2) / (t**2 - t_min**2))
    return gain(t) + root * (1 - gain(t))


def euler(t, s):
    """1 + (s - t) t/(d^2 + t^2), since d = (x - k x)/t = x t/(d^2 + t^2)."""
    return 1 + (s - t) * t / (D**2 + t**2)


def heun(t, s):
    """1 + (s - t)/2 (t/(d^2 + t^2) + E s/(d^2 + s^2)), with E the factor of the Euler step."""
    return 1 + (s - t) / 2 * (t / (D**2 + t**2) + euler(t, s) * s / (D**2 + s**2))


def midpoint(t, s):
    """DPM-Solver-2: 1 + (s - t) E(t, u) u/(d^2 + u^2) at u = sqrt(t s)."""
    u = math.sqrt(t * s)
    return 1 + (s - t) * euler(t, u) * u / (D**2 + u**2)


FACTORS = [
    pytest.param(macs.Ddim(), ddim, id="ddim"),
    pytest.param(macs.Macs(gamma=0), ddim, id="macs-0"),
    pytest.param(macs.Addim(eta=0), ddim, id="addim-0"),
    pytest.param(macs.Euler(), euler, id="euler"),
    pytest.param(macs.Heun(), heun, id="heun"),
    pytest.param(macs.DpmSolver(variant="2"), midpoint, id="dpm-2"),
]


@pytest.fixture
def physics():
    return deepinv.physics.Denoising(deepinv.physics.GaussianNoise(0.0625))


@pytest.fixture
def x():
    return torch.randn(3, 1, 6, 7, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


@pytest.mark.parametrize(("t", "s"), TRANSITIONS)
@pytest.mark.parametrize(("sampler", "factor"), FACTORS)
def test_a_step_is_a_multiplication(sampler, factor, t, s, x, physics):
    x_t = math.hypot(D, t) * x
    x_s = sampler(posterior_mean, macs.Problem(x, physics), x_t, t, s, macs.Noise(0, (0, 1, 2)))
    np.testing.assert_allclose(x_s.numpy(), factor(t, s) * x_t.numpy(), rtol=0, atol=1e-12 * t)


@pytest.mark.parametrize(("sampler", "factor"), FACTORS)
def test_a_solve_is_a_product(sampler, factor, x, physics):
    """80 z, times the factor of each step, times k at the last level; then (. + 1)/2."""
    total = 80.0 * math.prod(factor(t, s) for t, s in pairwise(LEVELS)) * gain(LEVELS[-1])
    restored = macs.Solver(posterior_mean, sampler, levels=LEVELS, clamp=False)(x, physics, z=x)
    inside = np.clip((total * x.numpy() + 1) / 2, 0, 1)
    assert inside.std() > 1e-3
    np.testing.assert_allclose(restored.numpy(), inside, rtol=0, atol=1e-12)


def test_2m_is_a_two_term_recursion(x, physics):
    """x_s = (s/t) x_t + (1 - s/t) ((1 + q) k x_t - q k' x'), q = ln(t/s)/(2 ln(t'/t)), where ' is the step before."""
    factors = [80.0]
    for i, (t, s) in enumerate(pairwise(LEVELS)):
        D_t = gain(t) * factors[i]
        if i > 0:
            q = math.log(t / s) / (2 * math.log(LEVELS[i - 1] / t))
            D_t = (1 + q) * D_t - q * gain(LEVELS[i - 1]) * factors[i - 1]
        factors.append(s / t * factors[i] + (1 - s / t) * D_t)
    restored = macs.Solver(posterior_mean, macs.DpmSolver(), levels=LEVELS, clamp=False)(x, physics, z=x)
    np.testing.assert_allclose(restored.numpy(), (gain(LEVELS[-1]) * factors[-1] * x.numpy() + 1) / 2, rtol=0, atol=1e-12)


@pytest.mark.parametrize("residual", ["sum", "mean", "operator"])
def test_macs_has_the_norm_of_the_papers_formula(residual, x, physics):
    """Here A = I and n = m: ||x_s - k x||^2 = rho (1-k)^2 ||x||^2 + gamma (1 - sqrt(rho))^2 ||y' - k x||^2, y' = 2 y - 1."""
    t, s, gamma = 1.0, 0.1, 0.7
    y = torch.rand(x.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    x_s = macs.Macs(gamma=gamma, residual=residual)(posterior_mean, macs.Problem(y, physics), x, t, s, macs.Noise(0, (0, 1, 2)))
    ratio = (s**2 - T_MIN**2) / (t**2 - T_MIN**2)
    noise = ((1 - gain(t)) * x).flatten(1).square().sum(1)
    R = (2 * y - 1 - gain(t) * x).flatten(1).square().sum(1)
    scale = (ratio + gamma * (1 - math.sqrt(ratio)) ** 2 * R / noise).sqrt().reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(x_s.numpy(), ((gain(t) + scale * (1 - gain(t))) * x).numpy(), rtol=0, atol=1e-6)


class Coarse:
    """The posterior mean as a model that is defined down to another t_min."""

    t_min = 0.3

    def __call__(self, x_t, y, t):
        return posterior_mean(x_t, y, t)


@pytest.mark.parametrize(("t", "s"), [(80.0, 4.0), (4.0, 0.5), (0.5, 0.3)])
def test_the_models_own_t_min_counts(t, s, x, physics):
    problem, noise = macs.Problem(x, physics), macs.Noise(0, (0, 1, 2)).at(1)
    reused = macs.Ddim()(Coarse(), problem, x, t, s, noise)
    fresh = macs.Multistep()(Coarse(), problem, x, t, s, noise)
    np.testing.assert_allclose(reused.numpy(), ddim(t, s, 0.3) * x.numpy(), rtol=0, atol=1e-12)
    added = math.sqrt(s**2 - 0.3**2) * noise.like(x)
    np.testing.assert_allclose(fresh.numpy(), (gain(t) * x + added).numpy(), rtol=0, atol=1e-12)
