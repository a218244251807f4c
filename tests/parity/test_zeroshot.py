"""CM4IR and PnP-CM against their transcriptions, on the same network, operator and noise."""

import deepinv
import numpy as np
import pytest
import torch

import macs
from macs.zeroshot import ddpm_levels

from . import operators
from . import zeroshot as published
from .cases import CASES, IMAGES, PIXELS, SHAPE, SIGMA, dense_physics, images, rows
from .networks import RandomNetwork

NAMES = [f"image {i}" for i in range(IMAGES)]


def draws(n, like, seed=3):
    """The noise that the package draws for these images, as rows."""
    return [rows(macs.Noise(seed, NAMES).at(k).like(like)) for k in range(n)]


def network():
    """A network that has never seen a measurement: for images, and for rows."""
    net = RandomNetwork(PIXELS, 1)
    blind = lambda x, y, t: net(x, torch.zeros(len(x), 1, dtype=x.dtype), t)
    return blind, lambda x, t, told: net.rows(x, np.zeros((len(x), 1)), told)


def signed(case):
    """The measurement in [-1, 1] units."""
    return 2 * case.measure() - case.A.sum(1)


def solved(solver, case, **options):
    """The package's result as rows in [-1, 1]."""
    y = torch.as_tensor(case.measure(), dtype=torch.float32)
    y = y.reshape(case.physics.A(torch.zeros(IMAGES, *SHAPE)).shape)
    return rows(2 * solver(y, case.physics, seed=3, ids=NAMES, **options) - 1)


def started(case, inv):
    """The first image."""
    x = signed(case) @ inv.T
    if case.name == "inpainting":
        x = rows(torch.as_tensor(published.median_fill(x.reshape(-1, *SHAPE), case.physics.mask.numpy())))
    return x


@pytest.mark.parametrize(("start", "growth"), [(250, 0.2), (150, 0.05), (150, 0.2), (400, 0.7), (50, 0.01)])
def test_the_published_levels(start, growth):
    ours = ddpm_levels(4, start, growth, 0.002, 80.0)
    np.testing.assert_allclose(ours, published.levels(4, start, growth), rtol=1e-10)


def test_levels_that_are_known():
    """CM4IR on LSUN Bedroom: super-resolution, and inpainting, whose levels stay at 0.01."""
    np.testing.assert_allclose(ddpm_levels(4, 250, 0.2, 0.002, 80.0), (0.694, 0.614, 0.503, 0.322), atol=6e-4)
    np.testing.assert_allclose(ddpm_levels(4, 150, 0.2, 0.002, 80.0), (0.465, 0.245, 0.01, 0.01), atol=6e-4)


@pytest.mark.parametrize("deltas", [None, (0.1, 0.3, 0.0, 0.2)], ids=["plain", "deltas"])
@pytest.mark.parametrize("zeta", [0.0, 2.0])
@pytest.mark.parametrize("name", sorted(CASES))
def test_cm4ir(name, zeta, deltas):
    case, (f, f_rows) = CASES[name], network()
    inv = published.inverse(case.A, zeta * (2 * SIGMA) ** 2) if zeta else case.inverse
    sigmas = published.levels(4, 150, 0.2)
    options = {} if deltas is None else {"delta": deltas, "injection": "level"}
    ours = solved(macs.Cm4ir(f, 4, start=150, growth=0.2, zeta=zeta, mu=0.8, eta=0.3, **options), case)
    noise = draws(4, torch.zeros(IMAGES, *SHAPE))
    want = published.cm4ir(
        f_rows, signed(case), case.A, inv, started(case, inv), sigmas, noise, eta=0.3, mu=0.8, deltas=deltas, embedding=False
    )
    np.testing.assert_allclose(ours, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["super-resolution", "inpainting"])
def test_cm4ir_without_noise_ends_on_the_measurement(name):
    case, (f, f_rows) = CASES[name], network()
    hole = {"hole": 4} if name == "inpainting" else {}
    physics = macs.task(name, image_shape=SHAPE, sigma_y=0.0, **hole)
    solver = macs.Cm4ir(f, 3, start=250, growth=0.1)
    x = np.random.default_rng(1).uniform(0.3, 0.7, size=(IMAGES, PIXELS))
    y = torch.as_tensor(x @ case.A.T, dtype=torch.float32).reshape(physics.A(torch.zeros(IMAGES, *SHAPE)).shape)
    ours = rows(2 * solver(y, physics, seed=3, ids=NAMES) - 1)
    y_rows = 2 * rows(y) - case.A.sum(1)
    first = y_rows @ case.inverse.T
    if name == "inpainting":
        first = published.median_fill(first.reshape(-1, *SHAPE), physics.mask.numpy()).reshape(first.shape)
    noise = draws(3, torch.zeros(IMAGES, *SHAPE))
    want = published.cm4ir(f_rows, y_rows, case.A, case.inverse, first, published.levels(3, 250, 0.1), noise, noisy=False)
    np.testing.assert_allclose(ours, np.clip(want, -1, 1), rtol=0, atol=1e-4)


class Bump(torch.nn.Module):
    """A backbone in one line, which listens to the level."""

    def forward(self, x, time, return_dict):
        return (torch.tanh(x.roll(1, -1) - x) * torch.cos(time).reshape(-1, 1, 1, 1),)


def test_cm4ir_with_deltas_on_the_embedding():
    """The preconditioning sees t, the embedding (1 + delta) t."""
    case, sd = CASES["super-resolution"], 0.6
    model = macs.ConsistencyModel(Bump(), SHAPE, sigma_data=sd, time_scale=2.0)

    def f(x, t, told):
        c_in, c_out = 1 / np.sqrt(t**2 + sd**2), (t - 0.002) * sd / np.sqrt(t**2 + sd**2)
        inner = c_in * x.reshape(-1, *SHAPE)
        F = np.tanh(np.roll(inner, 1, -1) - inner) * np.cos(2.0 * np.log(told))
        return sd**2 / ((t - 0.002) ** 2 + sd**2) * x + c_out * F.reshape(x.shape)

    deltas = (0.5, 0.2, 1.0, 0.3)
    ours = solved(macs.Cm4ir(model, 4, start=250, growth=0.2, delta=deltas), case)
    noise = draws(4, torch.zeros(IMAGES, *SHAPE))
    sigmas = published.levels(4, 250, 0.2)
    want = published.cm4ir(f, signed(case), case.A, case.inverse, started(case, case.inverse), sigmas, noise, deltas=deltas)
    plain = published.cm4ir(f, signed(case), case.A, case.inverse, started(case, case.inverse), sigmas, noise)
    np.testing.assert_allclose(ours, want, rtol=0, atol=1e-4)
    assert np.abs(want - plain).max() > 0.01


BUNDLED = {
    "super-resolution": lambda: operators.super_resolution_matrix((1, 28, 28), 2),
    "inpainting": lambda: operators.inpainting_matrix((1, 28, 28), 14),
}


@pytest.mark.parametrize("name", sorted(BUNDLED))
def test_cm4ir_on_the_bundled_network(name):
    model, x = macs.load("fashion-mnist"), macs.examples("fashion-mnist")[:2]
    physics, A, ids = macs.task(name, model), BUNDLED[name](), ["a", "b"]
    clean = physics.A(x)
    y = clean + 0.025 * macs.Noise(9, ids).like(clean) * (physics.mask if name == "inpainting" else 1)
    ours = 2 * macs.Cm4ir(model, 4, start=400, growth=0.5, delta=(0.2, 0.1, 0.0, 0.1))(y, physics, seed=5, ids=ids) - 1

    @torch.no_grad()
    def f(x_t, t, told):
        out = model(torch.as_tensor(x_t, dtype=torch.float32).reshape(-1, 1, 28, 28), None, t, embedded=told)
        return rows(out)

    y_rows, inv = 2 * rows(y) - A.sum(1), np.linalg.pinv(A)
    first = y_rows @ inv.T
    if name == "inpainting":
        first = published.median_fill(first.reshape(-1, 1, 28, 28), physics.mask.numpy()).reshape(first.shape)
    noise = [rows(macs.Noise(5, ids).at(k).like(x)) for k in range(4)]
    sigmas = published.levels(4, 400, 0.5)
    want = published.cm4ir(f, y_rows, A, inv, first, sigmas, noise, deltas=(0.2, 0.1, 0.0, 0.1))
    np.testing.assert_allclose(rows(ours), want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", sorted(CASES))
def test_pnp_cm(name):
    case, (f, f_rows) = CASES[name], network()
    ours = solved(macs.PnpCm(f, 4, start=250, growth=0.15, rho=(-2.0, 1.0), momentum=0.2, delta=0.1), case)
    noise = draws(4, torch.zeros(IMAGES, *SHAPE))
    first = started(case, case.inverse)
    sigmas = published.levels(4, 250, 0.15)
    want = published.pnp_cm(f_rows, signed(case), case.A, first, sigmas, noise, rhos=(-2, 1), mu=0.2, delta=0.1)
    np.testing.assert_allclose(ours, want, rtol=0, atol=1e-4)


def test_ddnm_is_multistep_with_a_back_projection():
    """x_hat + A^+(y - A x_hat) after each call, fresh noise between levels (Wang et al. 2023, Eq. 13)."""
    case, (f, f_rows) = CASES["super-resolution"], network()
    grid = (20.0, 3.0, 0.7)
    solver = macs.Solver(macs.Prior(f), macs.Multistep(data=macs.BackProjection()), levels=grid)
    noise = draws(3, torch.zeros(IMAGES, *SHAPE))
    x = grid[0] * noise[0]
    for k, t in enumerate(grid):
        x_hat = np.clip(f_rows(x, t, t), -1, 1)
        x_hat = np.clip(x_hat + (signed(case) - x_hat @ case.A.T) @ case.inverse.T, -1, 1)
        if k < 2:
            x = x_hat + np.sqrt(grid[k + 1] ** 2 - 0.002**2) * noise[k + 1]
    np.testing.assert_allclose(solved(solver, case), x_hat, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["dense", "super-resolution", "deblurring", "inpainting", "denoising"])
def test_tikhonovs_inverse(name):
    """With a closed form or by conjugate gradients: (A^T A + d)^-1 A^T r, one d per image."""
    case = CASES[name]
    _, problem = case.pair(torch.float64)
    r, d = np.random.default_rng(5).normal(size=(IMAGES, len(case.A))), np.array([0.5, 0.1, 2.0])
    shape = problem.y.shape
    ours = rows(problem.pinv(torch.as_tensor(r).reshape(shape), torch.as_tensor(d)))
    want = [r[i] @ published.inverse(case.A, d[i]).T for i in range(IMAGES)]
    np.testing.assert_allclose(ours, want, rtol=0, atol=1e-5)


def test_the_nonlinear_proximal_step_finds_the_minimum():
    """Against the normal equations, where the operator is linear and nobody says so."""
    from macs.zeroshot import descended

    case = CASES["dense"]
    hidden = deepinv.physics.Physics(A=dense_physics(case.A).A, noise_model=deepinv.physics.GaussianNoise(SIGMA))
    y = torch.as_tensor(case.measure())
    v = images(np.random.default_rng(2).uniform(-1, 1, size=(IMAGES, PIXELS)), torch.float64)
    linear = macs.Problem(y, dense_physics(case.A))
    want = v + linear.pinv(linear.difference(v), torch.full((IMAGES,), 0.3))
    found = descended(macs.Problem(y, hidden), v, 0.3, 40)
    np.testing.assert_allclose(rows(found), rows(want), rtol=0, atol=1e-4)


def test_median_fill_of_a_whole_hole():
    """A hole of any form, in a batch, with grey where an image has no pixel at all."""
    from macs.zeroshot import filled

    x = torch.rand(3, 2, 7, 9, generator=torch.Generator().manual_seed(0)) - 0.5
    mask = (torch.rand(1, 1, 7, 9, generator=torch.Generator().manual_seed(1)) > 0.7).float()
    np.testing.assert_allclose(filled(x, mask).numpy(), published.median_fill(x.numpy(), mask.numpy()))
    assert torch.equal(filled(x, torch.zeros(7, 9)), torch.zeros_like(x))
    assert torch.equal(filled(x, torch.ones(7, 9)), x)
