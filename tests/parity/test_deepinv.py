"""The tasks' operators against deepinv's own and against dense matrices, and the discrepancy step on any deepinv physics."""

import deepinv
import numpy as np
import pytest
import torch

import macs

from . import operators
from . import transcription as paper
from .cases import CASES, IMAGES, PIXELS, SHAPE, SIGMA, dense_physics, images, rows, task

SHAPES = [(1, 28, 28), (3, 64, 64), (2, 16, 24)]


def picture(shape, dtype=torch.float32, seed=0):
    """Random images in [0, 1]."""
    return torch.rand(2, *shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("factor", [2, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_super_resolution_is_deepinvs_matlab_downsampling(shape, factor):
    x = picture(shape)
    theirs = deepinv.physics.DownsamplingMatlab(factor=factor)
    ours = macs.task("super-resolution", image_shape=shape, factor=factor)
    np.testing.assert_allclose(ours.A(x).numpy(), theirs.A(x).numpy(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("std", [0.8, 1.25, 3.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_deblurring_is_deepinvs_reflected_blur(shape, std):
    x = picture(shape)
    kernel = np.outer(*(operators.gaussian_kernel(n, std) for n in shape[1:]))
    theirs = deepinv.physics.Blur(filter=torch.as_tensor(kernel, dtype=torch.float32)[None, None], padding="reflect")
    ours = macs.task("deblurring", image_shape=shape, std=std)
    np.testing.assert_allclose(ours.A(x).numpy(), theirs.A(x).numpy(), rtol=0, atol=2e-6)


@pytest.mark.parametrize(("shape", "hole"), [((1, 28, 28), 14), ((3, 64, 64), 32), ((2, 16, 24), 6)])
def test_inpainting_hides_a_central_square(shape, hole):
    x = picture(shape)
    ours = macs.task("inpainting", image_shape=shape, hole=hole)
    np.testing.assert_array_equal(ours.A(x).numpy(), x.numpy() * operators.hole_mask(shape, hole).astype(np.float32))


#: The paper's tasks on Fashion-MNIST: factor 2, half the side, std 3.
PAPER = {
    "super-resolution": operators.super_resolution_matrix((1, 28, 28), 2),
    "inpainting": operators.inpainting_matrix((1, 28, 28), 14),
    "deblurring": operators.deblurring_matrix((1, 28, 28), 3.0),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_tasks_are_their_matrices(name):
    x = picture((1, 28, 28), torch.float64)
    A, physics = PAPER[name], macs.task(name, image_shape=(1, 28, 28))
    y = physics.A(x)
    v = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    np.testing.assert_allclose(rows(y), rows(x) @ A.T, rtol=0, atol=1e-12)
    np.testing.assert_allclose(rows(physics.A_adjoint(v)), rows(v) @ A, rtol=0, atol=1e-12)
    assert float(physics.noise_model.sigma) == pytest.approx(0.025)


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_adjoint_is_the_adjoint(name, shape):
    """|<Ax, v> - <x, A^T v>| <= 1e-13 |x| |v| in float64."""
    physics, x = macs.task(name, image_shape=shape), picture(shape, torch.float64)
    y = physics.A(x)
    v = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    left = (y * v).flatten(1).sum(1)
    right = (x * physics.A_adjoint(v)).flatten(1).sum(1)
    size = x.flatten(1).square().sum(1).sqrt() * v.flatten(1).square().sum(1).sqrt()
    np.testing.assert_array_less(((left - right).abs() / size).numpy(), 1e-13)


@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 8, 12)], ids=str)
@pytest.mark.parametrize("name", ["super-resolution", "inpainting"])
def test_the_pseudo_inverse_is_numpys(name, shape):
    hole = {"hole": 6} if name == "inpainting" else {}
    A = operators.super_resolution_matrix(shape, 2) if name == "super-resolution" else operators.inpainting_matrix(shape, 6)
    physics = macs.task(name, image_shape=shape, **hole)
    y = torch.randn(physics.A(picture(shape)).shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    np.testing.assert_allclose(rows(physics.A_dagger(y)), rows(y) @ np.linalg.pinv(A).T, rtol=0, atol=1e-10)


@pytest.mark.parametrize("delta", [0.3, 0.05, 0.01])
def test_the_blurs_pseudo_inverse_is_tikhonovs(delta):
    A = operators.deblurring_matrix(SHAPE, 1.0)
    physics = task("deblurring", std=1.0, regularization=delta)
    y = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    np.testing.assert_allclose(rows(physics.A_dagger(y)), rows(y) @ operators.damped_inverse(A, delta).T, rtol=0, atol=1e-9)


def test_the_blurs_default_regularisation_is_the_noise():
    A, y = PAPER["deblurring"], picture((1, 28, 28), torch.float64)
    found = macs.task("deblurring", image_shape=(1, 28, 28), sigma_y=0.05).A_dagger(y)
    np.testing.assert_allclose(rows(found), rows(y) @ operators.damped_inverse(A, 0.05).T, rtol=0, atol=1e-7)


# The discrepancy step


def estimates(seed=2):
    """Estimates in [-1, 1] as rows."""
    return np.random.default_rng(seed).uniform(-1, 1, size=(IMAGES, PIXELS))


def compared(problem, measured, x_hat, atol):
    """The step by the package and in NumPy on the same estimate."""
    ours = macs.discrepancy(images(x_hat, torch.float64), problem)
    np.testing.assert_allclose(rows(ours), paper.discrepancy(x_hat, measured), rtol=0, atol=atol)


@pytest.mark.parametrize("name", [name for name in CASES if name != "dense"])
def test_discrepancy_with_a_closed_inverse(name):
    measured, problem = CASES[name].pair(torch.float64)
    compared(problem, measured, estimates(), 1e-10)


@pytest.mark.parametrize("solver", ["lsqr", "CG", "minres", "BiCGStab"])
def test_discrepancy_on_a_physics_of_two_callables(solver):
    """Whatever iterative solver the physics would use itself."""
    A = CASES["dense"].A
    physics = dense_physics(A, solver=solver)
    y = torch.as_tensor(CASES["dense"].measure())
    measured = paper.Measured(rows(y), A, np.linalg.pinv(A), SIGMA, len(A))
    compared(macs.Problem(y, physics), measured, estimates(), 1e-4)


def stacked(sigmas):
    """A stack of super-resolution and a dense operator, its matrix, and measurements of the same images."""
    cases = [CASES["super-resolution"], CASES["dense"]]
    ops = [macs.task("super-resolution", image_shape=SHAPE, sigma_y=2 * sigmas[0]), dense_physics(cases[1].A, sigmas[1])]
    physics = deepinv.physics.stack(*ops)
    parts = [torch.as_tensor(case.measure()) for case in cases]
    y = deepinv.utils.TensorList([parts[0].reshape(IMAGES, 2, 4, 5), parts[1]])
    A = np.concatenate([case.A for case in cases])
    sigma = np.concatenate([np.full(len(case.A), s) for case, s in zip(cases, sigmas, strict=True)])
    measured = paper.Measured(np.concatenate([rows(p) for p in parts], 1), A, np.linalg.pinv(A), sigma, len(A))
    return macs.Problem(y, physics), measured


@pytest.mark.parametrize("sigmas", [(1 / 32, 1 / 32), (1 / 4, 1 / 32), (1 / 64, 1 / 2)], ids=str)
def test_discrepancy_on_a_stack(sigmas):
    """chi2 weighs each operator by its own noise; A^+ is that of the matrices on top of each other."""
    problem, measured = stacked(sigmas)
    compared(problem, measured, estimates(), 1e-4)


def test_discrepancy_leaves_what_explains_the_measurement():
    """chi2 = 4, 1/4 and 1 - 1e-3: only the first image moves."""
    x_hat = 0.5 * estimates()
    error = SIGMA * np.array([2, 0.5, np.sqrt(1 - 1e-3)])[:, None] * np.where(estimates(5) > 0, 1.0, -1.0)
    y = torch.as_tensor((x_hat + 1) / 2 + error).reshape(IMAGES, *SHAPE)
    measured = paper.Measured(rows(y), np.eye(PIXELS), np.eye(PIXELS), SIGMA, PIXELS)
    problem = macs.Problem(y, CASES["denoising"].physics)
    np.testing.assert_allclose(measured.chi2(x_hat).ravel(), [4, 0.25, 1 - 1e-3], rtol=1e-9)
    compared(problem, measured, x_hat, 1e-10)
    moved = rows(macs.discrepancy(images(x_hat, torch.float64), problem))
    np.testing.assert_allclose(moved[0], x_hat[0] + error[0], rtol=0, atol=1e-10)
    np.testing.assert_array_equal(moved[1:], x_hat[1:])


@pytest.mark.parametrize("name", ["super-resolution", "inpainting"])
def test_discrepancy_without_noise_is_a_projection(name):
    """chi2 is infinite and lambda = 1: A x_hat = y, before the cut to [-1, 1]."""
    case = CASES[name]
    physics = macs.task(name, image_shape=SHAPE, sigma_y=0.0, **({"hole": 4} if name == "inpainting" else {}))
    x_hat = 0.1 * estimates()
    y = (0.2 * estimates(3) + 1) / 2 @ case.A.T
    shape = physics.A(torch.zeros(IMAGES, *SHAPE)).shape
    moved = rows(macs.discrepancy(images(x_hat, torch.float64), macs.Problem(torch.as_tensor(y).reshape(shape), physics)))
    np.testing.assert_allclose(moved, x_hat + 2 * (y - (x_hat + 1) / 2 @ case.A.T) @ case.inverse.T, rtol=0, atol=1e-10)
    np.testing.assert_allclose((moved + 1) / 2 @ case.A.T, y, rtol=0, atol=1e-10)


def test_discrepancy_takes_each_image_by_itself():
    """lambda is per image: the step of one image is the same alone and in a batch."""
    measured, problem = CASES["dense"].pair(torch.float64)
    x_hat = images(estimates(), torch.float64)
    whole = macs.discrepancy(x_hat, problem)
    alone = macs.discrepancy(x_hat[1:2], macs.Problem(problem.y[1:2], problem.physics))
    assert len(np.unique(measured.chi2(estimates()).round(3))) == IMAGES
    np.testing.assert_allclose(whole[1:2].numpy(), alone.numpy(), rtol=0, atol=1e-12)
