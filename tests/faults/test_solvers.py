"""A solver that cannot do what it is asked for says so in one sentence, and names what can."""

import deepinv as dinv
import pytest
import torch

import macs
from macs.errors import ConfigError, MacsWarning, ModelError
from tests.laws.conftest import LINEAR, OPERATORS, SHAPE, Net, measure
from tests.laws.solvers import REFUSED, SOLVERS, Mean

ALTERNATIVES = ("PnpCm", "Dps", "DiffPir", "Lgd", "Solver", "Discrepancy", "discrepancy")


class Consistent(Net):
    kind = "consistency"


@pytest.mark.parametrize(("operator", "name"), [(o, s) for o, names in REFUSED.items() for s in names])
def test_an_operator_that_a_solver_cannot_take(operator, name, x):
    physics = OPERATORS[operator]()
    with pytest.raises(ConfigError) as error:
        SOLVERS[name][0]()(measure(physics, x), physics)
    assert "\n" not in str(error.value)
    assert any(other in str(error.value) for other in ALTERNATIVES)


@pytest.fixture
def x():
    return torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("solver", [macs.Cm4ir, macs.PnpCm])
def test_a_denoiser_where_a_consistency_model_is_needed(solver):
    with pytest.raises(ModelError, match="needs a consistency model.*this model is a denoiser.*use it with Dps"):
        solver(Mean())


@pytest.mark.parametrize("model", [Mean(), macs.Prior(Mean())], ids=["denoiser", "prior"])
def test_a_denoiser_in_the_place_of_a_consistency_model_is_said(model):
    """Where it is walked down several levels by a rule that is no ODE; at one level, and along an ODE, it may be."""
    for sampler in (macs.MacsD(), macs.Multistep(), macs.Macs(), macs.HardConstraint()):
        with pytest.warns(MacsWarning, match=f"is a denoiser.*{type(sampler).__name__}.*use Dps, Ddrm or the sampler Heun"):
            macs.Solver(model, sampler, steps=2)
        macs.Solver(model, sampler, steps=1)
        macs.Solver(Consistent(), sampler, steps=2)
        macs.Solver(Net(), sampler, steps=2)
    for sampler in (macs.Euler(), macs.Ddim(), macs.Heun(), macs.DpmSolver()):
        macs.Solver(model, sampler, steps=4)


@pytest.mark.parametrize("solver", [macs.Dps, macs.Lgd, macs.Ddrm, macs.DiffPir])
def test_a_consistency_model_where_a_denoiser_is_needed(solver):
    with pytest.raises(ModelError, match="needs a denoiser.*this model is a consistency model.*use it with Cm4ir"):
        solver(Consistent())
    with pytest.raises(ModelError, match="needs a denoiser"):
        solver(macs.load("fashion-mnist"))
    with pytest.raises(ModelError, match="needs a denoiser"):
        solver(macs.Prior(Consistent()))


@pytest.mark.parametrize("solver", [macs.Dps, macs.Cm4ir])
def test_a_denoiser_of_deepinv(solver):
    with pytest.raises(ModelError, match="MedianFilter is a deepinv denoiser.*pass lambda x_t, y, t"):
        solver(dinv.models.MedianFilter())


def test_deft_without_its_network():
    with pytest.raises(ModelError, match="Deft needs the network that was trained.*use Dps, which needs no training"):
        macs.Deft(Mean(), Net())


@pytest.mark.parametrize("name", ["lgd", "ddrm", "diffpir", "dps-annealed"])
def test_unknown_noise(name, x):
    physics = macs.task("super-resolution", image_shape=SHAPE)
    physics.noise_model = dinv.physics.PoissonNoise(0.1)
    with pytest.raises(ConfigError, match=r"must know the noise level.*pass sigma_y"):
        SOLVERS[name][0]()(physics.A(x), physics)
    SOLVERS[name][0]()(physics.A(x), physics, sigma_y=0.1)


def test_several_noise_levels(x):
    physics = LINEAR["super-resolution"]()
    y, levels = measure(physics, x), torch.tensor([0.05, 0.1])
    with pytest.raises(ConfigError, match="one noise level for all images.*solve each level by itself"):
        macs.Ddrm(Mean(), 4)(y, physics, sigma_y=levels)
    assert macs.Lgd(Mean(), 4)(y, physics, sigma_y=levels).shape == x.shape
    physics.noise_model = dinv.physics.PoissonNoise(0.1)
    with pytest.raises(ConfigError, match="zeta must know the noise level"):
        macs.Cm4ir(Net(), zeta=1.0)(y, physics)


def test_a_mask_for_each_image(x):
    masks = (torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(1)) > 0.4).float()
    physics = dinv.physics.Inpainting(img_size=SHAPE, mask=masks, noise_model=dinv.physics.GaussianNoise(0.025))
    with pytest.raises(ConfigError, match="one operator for all images.*use DiffPir"):
        macs.Ddrm(Mean(), 4)(measure(physics, x), physics)
    assert macs.Cm4ir(Net())(measure(physics, x), physics).shape == x.shape


def test_a_guidance_that_blows_up(x):
    physics = LINEAR["inpainting"]()
    with pytest.raises(ModelError, match="NaN|diverged"):
        macs.Lgd(Mean(), 30, weight=1e38)(measure(physics, x), physics)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: macs.Cm4ir(Net(), 0), "steps must be a whole number"),
        (lambda: macs.Cm4ir(Net(), start=999), "start must be a whole number from 0 to 998; got 999"),
        (lambda: macs.Cm4ir(Net(), growth=-1), "growth must be at least 0"),
        (lambda: macs.Cm4ir(Net(), eta=1.5), "eta must be between 0 and 1"),
        (lambda: macs.Cm4ir(Net(), levels=(1, 2)), "levels must decrease"),
        (lambda: macs.Cm4ir(Net(), delta=(0.1, 0.2)), "one number or one per step; got 2 for 4 steps"),
        (lambda: macs.Cm4ir(Net(), delta=-1.0, injection="level"), "delta must be above -1"),
        (lambda: macs.Cm4ir(Net(), delta=0.1), 'needs a macs.ConsistencyModel; use injection="level"'),
        (lambda: macs.Cm4ir(Net(), delta=0.1, injection="time"), "unknown injection 'time'; known are embedding, level"),
        (lambda: macs.PnpCm(Net(), iterations=0), "iterations must be a whole number"),
        (lambda: macs.PnpCm(Net(), momentum=-1), "momentum must be at least 0"),
        (lambda: macs.Dps(Mean(), weight=-1), "weight must be a number of at least 0"),
        (lambda: macs.Dps(Mean(), guidance="nrm"), "unknown guidance 'nrm'.*did you mean 'norm'"),
        (lambda: macs.Dps(Mean(), 0), "steps must be a whole number"),
        (lambda: macs.Lgd(Mean(), samples=0), "samples must be a whole number"),
        (lambda: macs.Lgd(Mean(), spread=-1), "spread must be at least 0"),
        (lambda: macs.Ddrm(Mean(), levels=(1.0, 0.1)), "levels must begin at 2 or above"),
        (lambda: macs.Ddrm(Mean(), eta=2), "eta and eta_b must be between 0 and 1"),
        (lambda: macs.DiffPir(Mean(), lam=0), "zeta must be between 0 and 1, lam above 0"),
        (lambda: macs.BackProjection(zeta=-1)(torch.zeros(2, *SHAPE), problem()), "zeta must be at least 0"),
        (lambda: problem().pinv(problem().y, torch.zeros(2)), "a damping must be above 0"),
    ],
)
def test_bad_settings(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def problem():
    physics = LINEAR["super-resolution"]()
    return macs.Problem(physics.A(torch.rand(2, *SHAPE)), physics)
