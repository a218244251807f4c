"""Data steps: the discrepancy step lands on the noise floor and stops there."""

import pytest
import torch
from deepinv.physics import PoissonNoise

import macs
from macs.errors import ConfigError
from macs.fidelity import DATA_STEPS, descend, morozov
from macs.problem import Problem
from tests.laws.conftest import LINEAR, SHAPE, Squashed, measure, stacked


def inside(x):
    """An estimate in sampler units, off the truth, far from the clamp."""
    return 0.5 * (2 * x - 1) + 0.1


@pytest.mark.parametrize("name", ["super-resolution", "inpainting", "denoising", "matrix"])
def test_the_noise_floor_is_met_exactly(name, x):
    """Where A A^+ = I the new chi2 is 1 if the old one was above, and nothing moves if it was not."""
    A = LINEAR[name]()
    problem = Problem(measure(A, 0.3 + 0.3 * x), A)
    x_hat = inside(x)
    before = problem.chi2(x_hat)
    assert (before > 1).all()
    after = problem.chi2(macs.discrepancy(x_hat, problem))
    torch.testing.assert_close(after, torch.ones(5), atol=2e-3, rtol=0)
    settled = macs.discrepancy(macs.discrepancy(x_hat, problem), problem)
    torch.testing.assert_close(settled, macs.discrepancy(x_hat, problem), atol=2e-4, rtol=0)


def test_images_that_fit_are_left_alone(x):
    A = LINEAR["inpainting"]()
    problem = Problem(measure(A, x), A, sigma_y=1.0)
    x_hat = 2 * x - 1
    assert (problem.chi2(x_hat) < 1).all()
    assert torch.equal(macs.discrepancy(x_hat, problem), x_hat)


@pytest.mark.parametrize("make", [LINEAR["deblurring"], LINEAR["fft-blur"], stacked, Squashed])
def test_other_operators_come_closer(make, x):
    """Regularised, stacked and nonlinear operators: every image that misfits ends with a smaller chi2, in range."""
    A = make()
    problem = Problem(measure(A, 0.3 + 0.3 * x), A)
    x_hat = inside(x)
    moved = macs.discrepancy(x_hat, problem)
    before, after = problem.chi2(x_hat), problem.chi2(moved)
    assert (after[before > 1] < before[before > 1]).all()
    assert moved.abs().max() <= 1


def test_the_nonlinear_descent_reaches_the_floor(x):
    A = Squashed()
    problem = Problem(measure(A, 0.3 + 0.3 * x), A)
    x_hat = inside(x)
    assert (problem.chi2(x_hat) > 1.5).all()
    after = problem.chi2(descend(x_hat, problem, 50))
    assert (after < 1.05).all()


def test_noiseless_measurements_are_projected(x):
    A = macs.task("super-resolution", image_shape=SHAPE, sigma_y=0.0)
    y = A.A(0.3 + 0.3 * x)
    moved = macs.discrepancy(inside(x), Problem(y, A))
    torch.testing.assert_close(A.A((moved + 1) / 2), y, atol=1e-5, rtol=0)


def test_per_image_noise(x):
    """sigma_y may differ by image; each gets its own lambda."""
    A = LINEAR["super-resolution"]()
    y = measure(A, x)
    sigma = torch.tensor([0.01, 0.05, 0.1, 0.5, 5.0])
    problem = Problem(y, A, sigma)
    x_hat = inside(x)
    lam = macs.Discrepancy().weight(x_hat, problem)
    torch.testing.assert_close(lam, morozov(problem.residual(x_hat) / (16 * sigma**2)))
    assert lam[-1] == 0
    assert lam[0] > 0.5


def test_unknown_noise_is_said(x):
    A = LINEAR["super-resolution"]()
    A.noise_model = PoissonNoise(0.1)
    problem = Problem(A.A(x), A)
    assert problem.sigma_y is None
    assert torch.isnan(problem.chi2(inside(x))).all()
    with pytest.raises(ConfigError, match="must know the noise level.*pass sigma_y"):
        macs.discrepancy(inside(x), problem)
    assert torch.isfinite(macs.discrepancy(inside(x), Problem(A.A(x), A, sigma_y=0.05))).all()


def test_back_projection_and_prox(x):
    A = LINEAR["super-resolution"]()
    problem = Problem(measure(A, 0.3 + 0.3 * x), A)
    full = macs.BackProjection(1.0)(inside(x), problem)
    torch.testing.assert_close(A.A((full + 1) / 2), problem.y, atol=1e-4, rtol=0)
    assert torch.equal(macs.BackProjection(0.0)(inside(x), problem), inside(x))
    strong = macs.Prox(1e6)(inside(x), problem)
    torch.testing.assert_close(strong, full, atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", ["back-projection", "prox"])
def test_linear_steps_refuse_nonlinear_operators(name, x):
    A = Squashed()
    with pytest.raises(ConfigError, match="linear physics.*iscrepancy"):
        DATA_STEPS[name]()(inside(x), Problem(measure(A, x), A))
