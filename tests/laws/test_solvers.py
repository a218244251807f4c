"""Every solver on every operator it takes: seeds, batches, calls, and nothing touched that is not its own."""

import numpy as np
import pytest
import torch

import macs
from macs.diffusion import DIFFUSION, FAR, Denoise, Draws, MonteCarlo
from macs.noise import Noise
from macs.problem import parts
from macs.solver import Counted
from macs.zeroshot import ZERO_SHOT
from tests.laws.conftest import LINEAR, OPERATORS, SHAPE, Net, measure
from tests.laws.gaussian import matrix_physics, posterior, random_matrix
from tests.laws.solvers import REFUSED, SOLVERS, Mean

pytestmark = pytest.mark.filterwarnings("ignore::macs.errors.MacsWarning")

PAIRS = [(s, o) for s in SOLVERS for o in OPERATORS if s not in REFUSED.get(o, ())]


def copies(y):
    return [part.clone() for part in parts(y)]


@pytest.mark.parametrize(("name", "operator"), PAIRS)
def test_every_solver_on_every_operator_it_takes(name, operator, x):
    """In range, finite, repeatable, of the counted cost; the measurement, the physics and the global state as they were."""
    make, calls = SOLVERS[name]
    physics = OPERATORS[operator]()
    y = measure(physics, x)
    before = copies(y), {k: v.clone() for k, v in physics.state_dict().items()}, torch.get_rng_state()
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    solver = make()
    out, trace = solver(y, physics, seed=0, trace=True)
    assert out.shape == x.shape
    assert out.dtype == torch.float32
    assert 0 <= out.min() <= out.max() <= 1
    assert trace.nfe == list(range(1, calls + 1))
    assert all(torch.isfinite(row).all() for row in (*trace.residual, *trace.chi2, trace.final_chi2))
    assert all(torch.equal(a, b) for a, b in zip(before[0], copies(y), strict=True))
    assert all(torch.equal(v, physics.state_dict()[k]) for k, v in before[1].items())
    assert torch.equal(before[2], torch.get_rng_state())
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(solver(y, physics, seed=0), out)
    assert not torch.equal(solver(y, physics, seed=1), out)


@pytest.mark.parametrize("name", sorted(SOLVERS))
def test_the_global_seed_does_not_matter(name, x):
    physics = LINEAR["super-resolution"]()
    y = measure(physics, x)
    out = SOLVERS[name][0]()(y, physics, seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        assert torch.equal(SOLVERS[name][0]()(y, physics, seed=0), out)


@pytest.mark.parametrize(
    "long",
    [macs.Solver(Net(), macs.Multistep(), steps=120), macs.Dps(Mean(), 120, weight=1.0), macs.Lgd(Mean(), 120, samples=2)],
    ids=lambda solver: type(solver).__name__,
)
def test_a_solver_of_many_draws_is_never_given_the_measurements_noise(long, x, monkeypatch):
    """The streams of an image and those of its measurement may have one seed and one name, as in a benchmark."""
    y, given, like = measure(LINEAR["inpainting"](), x), [], Noise.like
    monkeypatch.setattr(Noise, "like", lambda noise, x: given.append(noise.draw) or like(noise, x))
    long(y, LINEAR["inpainting"](), seed=0)
    assert len(given) == len(set(given)) >= 119
    assert 98 in given
    assert Noise(0, ["a"]).of_measurement.draw not in given


@pytest.mark.parametrize("operator", ["super-resolution", "inpainting", "matrix"])
@pytest.mark.parametrize("name", sorted(SOLVERS))
def test_an_image_does_not_know_its_neighbours(name, operator, x):
    """To rounding in any batch, and bit for bit in micro-batches."""
    if name in REFUSED.get(operator, ()):
        pytest.skip("refused")
    physics, make = LINEAR[operator](), SOLVERS[name][0]
    y = measure(physics, x)
    together = make()(y, physics)
    torch.testing.assert_close(make()(y[[3, 1]], physics), together[[3, 1]], atol=2e-4, rtol=0)
    solver = make(micro_batch=2)
    small, trace = solver(y, physics, trace=True)
    assert torch.equal(solver(y[[4, 0, 2]], physics), small[[4, 0, 2]])
    assert trace.residual[0].shape == (5,)


@pytest.mark.parametrize("name", sorted(SOLVERS))
def test_calls_are_those_that_were_made(name, x):
    """The trace counts what the network itself counts; each call is told to the callback."""
    physics, seen, made = LINEAR["inpainting"](), [], []
    solver = SOLVERS[name][0]()
    inner = solver.model.model
    solver.model.model = lambda *args, **kwargs: made.append(1) or inner(*args, **kwargs)
    _, trace = solver(measure(physics, x), physics, trace=True, callback=seen.append)
    assert len(made) == trace.nfe[-1] == seen[-1].nfe


@pytest.mark.parametrize("name", sorted(SOLVERS))
def test_start_noise_may_be_given(name, x):
    physics = LINEAR["inpainting"]()
    y, z = measure(physics, x), torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(0))
    solver = SOLVERS[name][0]()
    assert torch.equal(solver(y, physics, z=z), solver(y, physics, z=z))
    assert not torch.equal(solver(y, physics, z=z), solver(y, physics))


@pytest.mark.parametrize("name", ["dps-annealed", "lgd", "ddrm", "diffpir"])
def test_noise_may_be_told(name, x):
    """sigma_y takes the place of the physics' noise; twice the noise is another result."""
    physics = LINEAR["super-resolution"]()
    y, solver = measure(physics, x), SOLVERS[name][0]()
    torch.testing.assert_close(solver(y, physics, sigma_y=0.05), solver(y, physics))
    assert (solver(y, physics, sigma_y=0.2) - solver(y, physics)).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["dps", "lgd", "ddrm", "diffpir"])
def test_levels_stay_within_the_denoisers_range(name, x):
    """Whatever deepinv's schedule asks for."""
    physics = LINEAR["inpainting"]()
    _, trace = SOLVERS[name][0]()(measure(physics, x), physics, trace=True)
    assert max(trace.levels) <= 80
    assert min(trace.levels) >= 0.002
    assert trace.levels == sorted(trace.levels, reverse=True)


def test_a_prior_is_the_model_without_its_measurement(x):
    model = macs.load("fashion-mnist")
    prior = macs.Prior(model)
    x_t = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert torch.equal(prior(x_t, "anything", 2.0), model(x_t, None, 2.0))
    assert (prior.t_min, prior.t_max, prior.image_shape, prior.kind) == (0.002, 80.0, (1, 28, 28), "consistency")
    assert macs.Prior(prior).model is model
    assert not hasattr(prior, "condition")


def test_eta_1_is_multistep(x):
    """All noise fresh, t_min aside: the mixed rule is the rule of Multistep."""
    physics = LINEAR["super-resolution"]()
    y, data = measure(physics, x), macs.BackProjection()
    mixed = macs.Solver(macs.Prior(Net()), macs.Mixed(1.0, data=data), levels=(4.0, 1.0, 0.3))(y, physics, trace=True)[1]
    fresh = macs.Solver(macs.Prior(Net()), macs.Multistep(data=data), levels=(4.0, 1.0, 0.3))(y, physics, trace=True)[1]
    torch.testing.assert_close(mixed.residual[-1], fresh.residual[-1], rtol=1e-2, atol=1e-2)


def test_lgd_averages_over_samples(x):
    """-log mean exp(-w R_i/(2 (sigma_y^2 + r^2))) of samples around the denoised image, and its slope by differences."""
    physics, t, w = LINEAR["super-resolution"](), 0.8, 0.01
    problem, noise = macs.Problem(measure(physics, x), physics), macs.Noise(0, "abcde")
    f = Counted(Mean(), problem, clamp=False, dtype=None)
    x_t = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(0))

    def term():
        draws = Draws(torch.zeros_like(x_t), noise)
        return MonteCarlo(Denoise(f, 80.0, lambda *_: None), problem, draws, 3, w, 1.0)

    r = t / (1 + t**2) ** 0.5
    samples = [Mean()(x_t, None, t) + r * noise.at(FAR + i).like(x_t) for i in range(3)]
    R = torch.stack([problem.residual(s) for s in samples]).double()
    want = -(-w * R / (2 * (0.05**2 + r**2))).exp().mean(0).log()
    found = term()((x_t + 1) / 2, problem.y, physics, torch.tensor(t / 2))
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)
    slope = term().grad((x_t + 1) / 2, problem.y, physics, torch.tensor(t / 2))
    step = 1e-2 * torch.ones_like(x_t)
    up, down = (term()((x_t + 1) / 2 + s * step, problem.y, physics, torch.tensor(t / 2)) for s in (1, -1))
    torch.testing.assert_close((up - down) / 2, (slope * step).flatten(1).sum(1), rtol=2e-2, atol=1e-4)


@pytest.mark.parametrize("name", ["ddrm", "diffpir"])
def test_samples_of_a_gaussian_posterior(name):
    """Where the posterior is known, the mean of the restored images is close to its mean."""
    A = torch.eye(64, dtype=torch.float64)[:32] if name == "diffpir" else None
    physics = LINEAR["inpainting"]() if A is None else matrix_physics(A, SHAPE)
    x = 0.5 + 0.25 * torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(3))
    y = measure(physics, x)
    many = y.expand(200, *y.shape[1:]).clone()
    solver = macs.Ddrm(Mean(), 30) if name == "ddrm" else macs.DiffPir(Mean(), 30)
    mean = 2 * solver(many, physics).mean(0).double() - 1
    matrix = torch.diag(physics.mask.flatten().double()) if A is None else A
    r = 2 * (y.double().flatten() - matrix @ torch.full((64,), 0.5, dtype=torch.float64))
    want = posterior(matrix, r, 0.05).mu.reshape(SHAPE).clamp(-1, 1)
    assert (mean - want).abs().mean() < 0.05
    assert (mean - want).abs().max() < 0.25


def test_the_tikhonov_start_is_tame():
    """Zeta regularises: a matrix with a tiny singular value does not blow up the start."""
    A = random_matrix(64, 64)
    U, S, V = torch.linalg.svd(A)
    S[-1] = 1e-4
    physics = matrix_physics(U @ torch.diag(S) @ V, SHAPE)
    y = measure(physics, torch.full((2, *SHAPE), 0.5))
    plain, damped = (macs.PseudoInverse(z)(macs.Problem(y, physics)) for z in (0.0, 1.0))
    assert damped.abs().max() < 2
    assert damped.square().sum() < plain.square().sum()


def test_the_registries_hold_what_is_exported():
    for kind in (*DIFFUSION.values(), *ZERO_SHOT.values()):
        assert getattr(macs, kind.__name__) is kind
