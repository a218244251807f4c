"""Operators are linear, adjoint, invertible where they claim to be, and count what they measure."""

import deepinv as dinv
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import macs
from macs.errors import ConfigError
from macs.problem import Problem, least_squares, sq_norm
from macs.tasks import Separable, bicubic_matrix, gaussian_matrix
from tests.laws.conftest import LINEAR, OPERATORS, SHAPE, measure


def adjoint_error(A, x, v):
    """|<Ax, v> - <x, A* v>| / (|A||x||v|), |A| at its largest."""
    Ax, Av = A.A(x), A.A_adjoint(v)
    gap = (Ax * v).sum() - (x * Av).sum()
    gain = Problem(v, A).sq_gain.max().sqrt().double()
    return (gap.abs() / (gain * x.double().norm() * v.double().norm())).item()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize("name", ["super-resolution", "inpainting", "deblurring", "matrix"])
def test_adjoint(name, dtype, tolerance):
    A = LINEAR[name]()
    g = torch.Generator().manual_seed(3)
    for _ in range(20):
        x = torch.randn(2, *SHAPE, generator=g, dtype=dtype)
        v = torch.randn(A.A(x).shape, generator=g, dtype=dtype)
        assert adjoint_error(A, x, v) <= tolerance


@settings(max_examples=25, deadline=None)
@given(st.integers(4, 20), st.integers(4, 20), st.sampled_from([1, 2, 3]), st.floats(0.3, 6.0), st.integers(0, 10**6))
def test_separable_adjoint_on_any_shape(h, w, channels, std, seed):
    g = torch.Generator().manual_seed(seed)
    A = macs.task("deblurring", image_shape=(channels, h, w), std=std)
    x, v = (torch.randn(2, channels, h, w, generator=g, dtype=torch.float64) for _ in range(2))
    assert adjoint_error(A, x, v) <= 1e-13


def test_linear(linear, x):
    a, b = x[:2].double(), x[2:4].double()
    linear = linear.to(torch.float64)
    torch.testing.assert_close(linear.A(2 * a - 3 * b), 2 * linear.A(a) - 3 * linear.A(b), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["super-resolution", "inpainting", "denoising"])
def test_exact_pseudo_inverse(name, x):
    """A A^+ A = A and A^+ A A^+ = A^+, and A A^+ = I on what can be measured."""
    A, x = LINEAR[name](), x.double()
    y = A.A(x)
    torch.testing.assert_close(A.A(A.A_dagger(y)), y, atol=1e-10, rtol=0)
    once = A.A_dagger(y)
    torch.testing.assert_close(A.A_dagger(A.A(once)), once, atol=1e-10, rtol=0)


def test_separable_svd_is_an_svd(x):
    """V is orthonormal, U diag(s) V^T is A, and the pseudo-inverse is NumPy's."""
    rows, columns = bicubic_matrix(8, 2), gaussian_matrix(8, 1.0)
    A, x = Separable(rows, columns), x.double()
    torch.testing.assert_close(A.V(A.V_adjoint(x)), x, atol=1e-12, rtol=0)
    torch.testing.assert_close(A.U(A.mask * A.V_adjoint(x)), A.A(x), atol=1e-12, rtol=0)
    dense = torch.kron(rows, columns)
    y = A.A(x)
    expected = (torch.linalg.pinv(dense, rtol=1e-12) @ y.flatten(1).mT).mT.reshape(x.shape)
    torch.testing.assert_close(A.A_dagger(y), expected, atol=1e-7, rtol=0)
    z, gamma = torch.zeros_like(x), 3.0
    normal = torch.eye(64, dtype=torch.float64) + gamma * dense.mT @ dense
    prox = torch.linalg.solve(normal, gamma * dense.mT @ y.flatten(1).mT).mT.reshape(x.shape)
    torch.testing.assert_close(A.prox_l2(z, y, gamma), prox, atol=1e-10, rtol=0)


def test_constants_survive(x):
    """Neither a reduction nor a blur changes a flat image."""
    for name in ("super-resolution", "deblurring"):
        flat = LINEAR[name]().A(torch.full((1, *SHAPE), 0.3, dtype=torch.float64))
        torch.testing.assert_close(flat, torch.full_like(flat, 0.3), atol=1e-12, rtol=0)


def test_conjugate_gradients_do_not_look_at_the_neighbours(x):
    A = LINEAR["matrix"]()
    y = measure(A, x)
    y[1] *= 100
    together = least_squares(A, y)
    alone = torch.cat([least_squares(A, y[i : i + 1]) for i in range(len(y))])
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(A.A(together), y, atol=1e-3, rtol=1e-4)


def test_norm_by_power_iteration(x):
    A = LINEAR["matrix"]()
    dense = torch.stack([A.A(e.reshape(1, *SHAPE))[0] for e in torch.eye(64)], 1)
    gain = Problem(measure(A, x), A).sq_gain
    torch.testing.assert_close(gain, torch.linalg.matrix_norm(dense, 2).square().expand(5), rtol=1e-2, atol=0)


def test_a_mask_counts_what_it_keeps(x):
    A = LINEAR["inpainting"]()
    problem = Problem(measure(A, x), A)
    assert problem.m.tolist() == [64 - 16] * 5
    assert Problem(measure(LINEAR["super-resolution"](), x), LINEAR["super-resolution"]()).m.tolist() == [16] * 5
    masks = (torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1)) > 0.4).float()
    each = dinv.physics.Inpainting(img_size=SHAPE, mask=masks, noise_model=dinv.physics.GaussianNoise(0.025))
    assert Problem(each(x), each).m.tolist() == masks.flatten(1).sum(1).tolist()


def test_units(x):
    """R is that of images in [-1, 1]; sigma_y is twice the physics' own."""
    A = LINEAR["matrix"]()
    y = measure(A, x)
    problem = Problem(y, A)
    x_hat = torch.zeros_like(x)
    in_sampler_units = 2 * y - A.A(torch.ones_like(x)) - A.A(x_hat)
    torch.testing.assert_close(problem.residual(x_hat), sq_norm(in_sampler_units), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(problem.sigma_y, torch.full((5,), 0.05))
    torch.testing.assert_close(problem.chi2(x_hat), problem.residual(x_hat) / (24 * 0.05**2), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    "name", ["super-resolution", "inpainting", "noisy hole", "deblurring", "matrix", "stacked", "nonlinear"]
)
def test_the_truth_has_chi2_of_one(name):
    """Mean 1 and variance 2/m over many measurements, for operators of every kind."""
    from tests.laws.conftest import OPERATORS

    noisy_hole = lambda: macs.task("inpainting", image_shape=SHAPE, cosign_compat=True)
    A = {**OPERATORS, "noisy hole": noisy_hole}[name]()
    truth = torch.full((2000, *SHAPE), 0.4)
    problem = Problem(measure(A, truth), A)
    chi2 = problem.chi2(2 * truth - 1)
    m = problem.m[0].item()
    assert abs(chi2.mean() - 1) < 5 * (2 / m / 2000) ** 0.5
    assert abs(chi2.var() / (2 / m) - 1) < 0.2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "superresolution"}, "unknown task 'superresolution'.*did you mean 'super-resolution'"),
        ({"name": "super-resolution", "factor": 3}, "factor must divide"),
        ({"name": "super-resolution", "factr": 2}, "unknown option of super-resolution 'factr'.*did you mean 'factor'"),
        ({"name": "inpainting", "hole": 99}, "hole must be between"),
        ({"name": "deblurring", "std": 0.0}, "std must be positive"),
        ({"name": "deblurring", "sigma_y": -1.0}, "sigma_y must be at least 0"),
    ],
)
def test_bad_tasks_are_refused_in_words(options, words):
    with pytest.raises(ConfigError, match=words):
        macs.task(image_shape=SHAPE, **options)


def test_the_papers_parameters():
    """28 px: x2, hole 14, std 3; 256 px: x4, hole 128, std 5; noise 0.05 on [-1, 1]."""
    small, large = (1, 28, 28), (3, 256, 256)
    assert macs.task("super-resolution", image_shape=small).A(torch.zeros(1, *small)).shape[-1] == 14
    assert macs.task("super-resolution", image_shape=large).A(torch.zeros(1, *large)).shape[-1] == 64
    assert (macs.task("inpainting", image_shape=small).mask == 0).sum() == 14 * 14
    assert (macs.task("inpainting", image_shape=large).mask[0, 0] == 0).sum() == 128 * 128
    torch.testing.assert_close(macs.task("deblurring", image_shape=small).rows_matrix, gaussian_matrix(28, 3.0))
    torch.testing.assert_close(macs.task("deblurring", image_shape=large).rows_matrix, gaussian_matrix(256, 5.0))
    assert macs.task("deblurring", image_shape=small).noise_model.sigma.item() == pytest.approx(0.025)
    for wide in ((1, 20, 64), (1, 64, 20)):
        assert (macs.task("inpainting", image_shape=wide).mask == 0).sum() == 10 * 10
    with pytest.raises(ConfigError, match="must know the image size"):
        macs.task("deblurring")


@pytest.mark.parametrize("name", LINEAR)
def test_what_is_unmeasured_is_dense_algebra(name, x):
    """v - (A^T A + lambda I)^-1 A^T A v, for closed forms and for conjugate gradients alike; and the ridge estimate."""
    A = LINEAR[name]()
    problem = Problem(measure(A, x), A)
    dense = torch.stack([A.A(e.reshape(1, *SHAPE)).flatten() for e in torch.eye(64)], 1).double()
    lam = problem.damping[0].double()
    filter_ = torch.linalg.solve(dense.mT @ dense + lam * torch.eye(64), dense.mT)
    v = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(3))
    want = v.flatten(1).double() - v.flatten(1).double() @ (filter_ @ dense).mT
    torch.testing.assert_close(problem.unmeasured(v).flatten(1).double(), want, atol=1e-3, rtol=0)
    r = problem.difference(v)
    torch.testing.assert_close(problem.ridge(r).flatten(1).double(), r.flatten(1).double() @ filter_.mT, atol=5e-3, rtol=0)


def test_a_nonlinear_operator_hides_all(x):
    A = OPERATORS["nonlinear"]()
    assert torch.equal(Problem(measure(A, x), A).unmeasured(x), x)
