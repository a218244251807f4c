"""The algebra of each step: norms, limits, orders of convergence, and what a step must not touch."""

import math
import random
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import macs
from macs import levels
from macs.errors import ConfigError, MacsWarning
from macs.noise import Noise
from macs.problem import Problem, sq_norm
from tests.laws.conftest import LINEAR, SHAPE, Net, measure
from tests.laws.gaussian import Gaussian, matrix_physics, posterior, prior, random_matrix

IDS = ("a", "b", "c", "d", "e")


def a_problem(x, name="matrix"):
    A = LINEAR[name]()
    return Problem(measure(A, x), A)


def quiet(sampler, *args, **kwargs):
    """A step without the warning that the measurement term did nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MacsWarning)
        return sampler(*args, **kwargs)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(2, 9), st.integers(2, 9)),
    st.floats(0.01, 100.0),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1e6),
    st.integers(0, 10**6),
)
def test_norm_identity(shape, t, share, gamma, seed):
    """||x_s - x_hat||^2 = rho ||eps_hat||^2 + gamma (1 - sqrt(rho))^2 R, per image, to rounding."""
    g = torch.Generator().manual_seed(seed)
    x_t, x_hat = (torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(2))
    n = x_t[0].numel()
    A = matrix_physics(random_matrix(max(n // 2, 1), n, seed), shape[1:])
    problem = Problem(A.A(torch.rand(shape, generator=g, dtype=torch.float64)), A)
    s = levels.T_MIN + share * (t - levels.T_MIN)
    x_s = quiet(macs.Macs(gamma=gamma), lambda *_: x_hat, problem, x_t, t, s, Noise(0, range(shape[0])))
    rho = levels.rho(t, s)
    want = rho * sq_norm(x_t - x_hat) + gamma * (1 - math.sqrt(rho)) ** 2 * problem.residual(x_hat)
    torch.testing.assert_close(sq_norm(x_s - x_hat), want, rtol=1e-12, atol=1e-12)


def test_gamma_zero_is_ddim_bit_for_bit(x, net):
    problem, x_t = a_problem(x), 80 * torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    args = (net, problem, x_t, 80.0, 4.37, Noise(0, IDS))
    for residual in ("sum", "mean", "operator", "chi2"):
        assert torch.equal(macs.Macs(gamma=0, residual=residual)(*args), macs.Ddim()(*args))
    assert torch.equal(macs.Macs(gamma=lambda t: 0.0)(*args), macs.Ddim()(*args))


def test_euler_is_ddim_without_t_min(x, net):
    problem, x_t = a_problem(x), torch.randn(5, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    args = (problem, 80 * x_t, 80.0, 4.37, Noise(0, IDS))
    with_t_min = macs.Ddim()(net, *args)
    net.t_min = 0.0
    torch.testing.assert_close(macs.Ddim()(net, *args), macs.Euler()(net, *args), atol=1e-12, rtol=0)
    assert 0 < (with_t_min - macs.Euler()(net, *args)).abs().max() < 1e-4


def test_scale_grows_with_gamma_and_residual(x):
    x_t = 5 * torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1)).double()
    A = LINEAR["matrix"]()
    y = measure(A, x).double()
    f = lambda x_t, y, t: torch.zeros_like(x_t)
    for residual in ("sum", "mean", "operator", "chi2"):
        radii = [
            sq_norm(quiet(macs.Macs(gamma=g, residual=residual), f, Problem(y * k, A), x_t, 5.0, 0.1, Noise(0, IDS))).sqrt()
            for g, k in ((0, 1), (0.1, 1), (1.0, 1), (1.0, 3), (10.0, 3))
        ]
        floor = math.sqrt(levels.rho(5.0, 0.1)) * sq_norm(x_t).sqrt()
        assert torch.equal(radii[0], radii[0].clamp_min(0))
        torch.testing.assert_close(radii[0], floor, rtol=1e-12, atol=0)
        for a, b in pairwise(radii):
            assert (b >= a).all()
        assert (radii[-1] > 1.01 * radii[0]).all()


def test_chi2_residual_has_no_units(x):
    """The inflation is sqrt(1 + gamma (1 - sqrt(rho))^2 (chi2 - 1)+), whatever the level."""
    problem = a_problem(x)
    for t, s in ((80.0, 4.37), (1.0, 0.1)):
        x_t = t * torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))
        x_s = macs.Macs(gamma=2.0, residual="chi2")(lambda x_t, y, t: 0 * x_t, problem, x_t, t, s, Noise(0, IDS))
        rho = levels.rho(t, s)
        excess = (problem.chi2(0 * x_t) - 1).clamp_min(0)
        want = rho * sq_norm(x_t) * (1 + 2 * (1 - math.sqrt(rho)) ** 2 * excess)
        torch.testing.assert_close(sq_norm(x_s), want, rtol=1e-5, atol=0)


@pytest.mark.parametrize("t", [80.0, 0.01, 0.002 + 1e-9])
def test_no_direction_and_no_room(sampler, x, t):
    """eps_hat = 0, and s = t_min, are finite for every sampler."""
    problem = a_problem(x)
    x_t = 2 * x - 1
    for f in (lambda x_t, y, t: x_t, Net()):
        x_s = quiet(sampler, f, problem, x_t, t, 0.002, Noise(0, IDS))
        assert torch.isfinite(x_s).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_half_precision_outputs(sampler, dtype):
    """t = 80 at 3x256x256: squared norms reach 1e9, far beyond float16."""
    shape = (3, 256, 256)
    A = macs.task("inpainting", image_shape=shape)
    truth = torch.full((1, *shape), 0.5)
    solver = macs.Solver(lambda x, y, t: (x / (1 + t)).to(dtype), sampler, steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MacsWarning)
        out, trace = solver(measure(A, truth), A, img_size=shape, trace=True)
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(r).all() for r in trace.residual)


# --- convergence on the exact probability-flow ODE -------------------------------------------------------------------


def walk(sampler, gaussian: Gaussian, steps: int) -> float:
    """Follow the ODE from t = 5 to 0.5 in ``steps`` even steps of ln t; the distance from its exact end."""
    model = gaussian.mean
    grid = [5 * (0.1) ** (i / steps) for i in range(steps + 1)]
    x = 5 * torch.randn(1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    exact = gaussian.scale(x, ((gaussian.ell + 0.25) / (gaussian.ell + 25)).sqrt())
    past = []

    def f(x_t, y, t):
        past.append((t, model(x_t, y, t)))
        return past[-1][1]

    f.t_min = 0.0
    for t, s in pairwise(grid):
        x = sampler(
            f, Problem(torch.zeros(1, 1), matrix_physics(torch.zeros(1, 16), (16,))), x, t, s, Noise(0, ["a"]), tuple(past)
        )
    return (x - exact).abs().max().item()


ORDERS = [
    (macs.Euler(), 1),
    (macs.Ddim(), 1),
    (macs.Macs(gamma=0), 1),
    (macs.Heun(), 2),
    (macs.DpmSolver(), 2),
    (macs.DpmSolver(variant="2"), 2),
]


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize(("sampler", "order"), ORDERS, ids=lambda p: str(p))
def test_order_of_convergence(sampler, order, conditional):
    A = random_matrix(6, 16, seed=4)
    gaussian = posterior(A, torch.ones(6, dtype=torch.float64), 0.3) if conditional else prior(16)
    errors = [walk(sampler, gaussian, n) for n in (64, 128, 256)]
    slope = math.log2(errors[1] / errors[2])
    assert abs(slope - order) < 0.15, (errors, slope)


def test_chords_make_many_steps_worse():
    """Heun on an exact *consistency* function ends at twice the true deviation; on the posterior mean it is right."""
    gaussian = prior(64)
    x_T = 80 * torch.randn(200, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    A = matrix_physics(torch.zeros(1, 64), (64,))
    problem = Problem(torch.zeros(200, 1), A)
    ends = {}
    for name, model in (("chord", gaussian), ("tangent", gaussian.mean)):
        f = lambda x, y, t, model=model: model(x, y, t)
        x = x_T
        for t, s in pairwise(levels.karras(300)):
            x = macs.Heun()(f, problem, x, t, s, Noise(0, range(200)))
        ends[name] = x.std().item() / 0.5
    assert abs(ends["tangent"] - 1) < 0.02
    assert abs(ends["chord"] - 2) < 0.05


@pytest.mark.parametrize("s", [4.37, 0.5, 0.1])
def test_multistep_keeps_the_marginal_and_ddim_does_not(s):
    """With an exact consistency function fresh noise reproduces sqrt(sd^2 + s^2); reused noise overshoots it."""
    gaussian = prior(64)
    g = torch.Generator().manual_seed(5)
    x_t = (0.25 + 80.0**2) ** 0.5 * torch.randn(500, 64, dtype=torch.float64, generator=g)
    problem = Problem(torch.zeros(500, 1), matrix_physics(torch.zeros(1, 64), (64,)))
    args = (gaussian, problem, x_t, 80.0, s, Noise(0, range(500)))
    want = (0.25 + s**2) ** 0.5
    assert abs(macs.Multistep()(*args).std() / want - 1) < 0.01
    assert macs.Ddim()(*args).std() / want > 1.05


# --- what a step must not do --------------------------------------------------------------------------------------------


def test_a_step_is_pure(sampler, x, net):
    """Twice the same result, from the same inputs, and no random state touched."""
    problem = a_problem(x)
    x_t = 3 * torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    kept, y = x_t.clone(), problem.y.clone()
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    past = ((5.0, 0.1 * x_t),)
    first = quiet(sampler, net, problem, x_t, 3.0, 0.3, Noise(0, IDS).at(1), past)
    second = quiet(sampler, net, problem, x_t, 3.0, 0.3, Noise(0, IDS).at(1), past)
    assert torch.equal(first, second)
    assert torch.equal(x_t, kept)
    assert torch.equal(problem.y, y)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert random.getstate() == states[2]


def test_a_step_does_not_mix_images(sampler, x, net):
    """Each image alone gives what it gives in company, up to the rounding of batched kernels."""
    A = LINEAR["super-resolution"]()
    y = measure(A, x)
    x_t = 3 * torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    together = quiet(sampler, net, Problem(y, A), x_t, 3.0, 0.3, Noise(0, IDS).at(1))
    for i in range(5):
        alone = quiet(sampler, net, Problem(y[i : i + 1], A), x_t[i : i + 1], 3.0, 0.3, Noise(0, IDS[i : i + 1]).at(1))
        torch.testing.assert_close(alone, together[i : i + 1], atol=5e-6, rtol=0)


# --- parameters ------------------------------------------------------------------------------------------------------------


def test_gamma_per_step_and_as_a_function(x, net):
    problem, x_t = a_problem(x), torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    args = (net, problem, x_t, 1.0, 0.05, Noise(0, IDS))
    fixed = macs.Macs(gamma=0.4)(*args)
    assert torch.equal(macs.Macs(gamma=[0.4, 0.9])(*args), fixed)
    assert torch.equal(macs.Macs(gamma=lambda t: 0.4 * t)(*args), fixed)
    assert torch.equal(macs.Macs(gamma=[0.9, 0.4])(*args, ((80.0, x_t),)), fixed)
    with pytest.raises(ConfigError, match="one value per step; got 1, step 2 has none"):
        macs.Macs(gamma=[0.4])(*args, ((80.0, x_t),))


def test_addim_takes_its_variance_as_number_or_function(x, net):
    problem, x_t = a_problem(x), torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    args = (net, problem, x_t, 1.0, 0.05, Noise(0, IDS))
    number = macs.Addim(eta=0.5, variance=12.0)(*args)
    torch.testing.assert_close(macs.Addim(eta=0.5, variance=lambda t: 12.0 * t)(*args), number)
    torch.testing.assert_close(macs.Addim(eta=0.5, variance=lambda t: torch.full((5,), 12.0))(*args), number)
    analytic = macs.Addim(eta=0.1)(*args)
    torch.testing.assert_close(macs.Addim(eta=0.1, variance=64 / (2 + 1.0))(*args), analytic)
    assert torch.equal(macs.Addim(eta=0)(*args), macs.Ddim()(*args)) or torch.allclose(
        macs.Addim(eta=0)(*args), macs.Ddim()(*args), atol=1e-7
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: macs.Macs(gamma=-0.1), "gamma must be a number of at least 0; got -0.1"),
        (lambda: macs.Macs(gamma=float("nan")), "gamma must be a number"),
        (lambda: macs.Macs(gamma=[0.1, -1]), "gamma must be a number of at least 0; got -1"),
        (lambda: macs.Macs(residual="chi"), "unknown residual 'chi'.*did you mean 'chi2'"),
        (lambda: macs.Addim(eta=-1), "eta must be at least 0"),
        (lambda: macs.DpmSolver(variant="3M"), "unknown DPM-Solver variant '3M'"),
        (lambda: macs.MacsD(c=0), "c must be a positive number"),
        (lambda: macs.MacsD(eta=1.5), "eta must be between 0 and 1"),
        (lambda: macs.AveragedMacsD(mean=-0.1), "mean must be between 0 and 1; got -0.1; with 0 only the last estimate counts"),
        (lambda: macs.AveragedMacsD(mean=float("nan")), "mean must be between 0 and 1"),
        (lambda: macs.AveragedMacsD(smooth=-1.0), "smooth must be a number of pixels of at least 0; got -1.0"),
        (lambda: macs.AveragedMacsD(smooth=float("inf")), "smooth must be a number of pixels of at least 0"),
        (lambda: macs.MacsD(tolerance=-1.0), "tolerance must be a chi2 of at least 0"),
        (lambda: macs.MacsD(tolerance=float("nan")), "tolerance must be a chi2 of at least 0"),
    ],
)
def test_bad_parameters_are_refused_in_words(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_the_literal_rule_says_when_it_did_nothing(x):
    problem, x_t = a_problem(x), 80 * torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    with pytest.warns(MacsWarning, match="less than 0.1 %: this step is DDIM"):
        macs.Macs(gamma=0.15)(lambda *_: 2 * x - 1, problem, x_t, 80.0, 4.37, Noise(0, IDS))


def test_samplers_print_and_compare_as_values():
    assert repr(macs.Macs(gamma=0.15)) == "Macs(data=None, gamma=0.15, residual='sum')"
    assert macs.MacsD() == macs.MacsD(c=2.0)
    assert len({macs.Ddim(), macs.Ddim()}) == 1
    with pytest.raises(AttributeError):
        macs.Ddim().data = None
