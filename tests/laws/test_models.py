"""The consistency model: its boundary condition, its scalings, its hint."""

import pytest
import torch
from diffusers import UNet2DModel

import macs
from macs.errors import ConfigError, ModelError
from macs.models.build import ModelConfig, build
from macs.models.consistency import scalings
from macs.models.hint import hint, resolution
from macs.problem import Problem
from tests.laws.conftest import LINEAR, SHAPE, Squashed, measure

TINY = ModelConfig(image_shape=SHAPE, channels=(8, 16), layers=1, groups=4, head_dim=8)


@pytest.fixture(params=["plain", "hinted"])
def model(request):
    torch.manual_seed(0)
    return build(ModelConfig.of({**TINY.__dict__, "family": request.param})).eval()


def test_the_boundary_condition_is_exact(model, x):
    """f(x, t_min) = x bit for bit, for any weights, alone or beside other levels."""
    assert torch.equal(model(x, None, model.t_min), x)
    t = torch.tensor([80.0, 0.002, 1.0, 0.002, 4.0])
    out = model(x, None, t)
    assert torch.equal(out[[1, 3]], x[[1, 3]])
    assert not torch.equal(out[0], x[0])


@pytest.mark.parametrize(
    ("t", "c_skip", "c_out", "c_in"),
    [(80.0, 3.906e-5, 0.5, 0.0125), (4.36556169, 1.296e-2, 0.4965, 0.2276), (0.002, 1.0, 0.0, 2.0)],
)
def test_published_scalings(t, c_skip, c_out, c_in):
    got = scalings(torch.tensor(t, dtype=torch.float64), 0.5, 0.002)
    for value, want in zip(got, (c_skip, c_out, c_in), strict=True):
        assert value.item() == pytest.approx(want, rel=5e-4, abs=1e-9)


def test_levels_in_every_form(model, x):
    """A number, a 0-d tensor, one per image, and one per image shaped to broadcast are the same level."""
    want = model(x, None, 4.37)
    for t in (torch.tensor(4.37, dtype=torch.float64), torch.full((5,), 4.37, dtype=torch.float64).reshape(-1, 1, 1, 1)):
        torch.testing.assert_close(model(x, None, t), want)


def test_fractional_levels_differ(model, x):
    """The trap of passing a Python float on to diffusers, which would cut it to a whole number."""
    assert not torch.allclose(model(x, None, 1.1), model(x, None, 1.2), atol=1e-6)


def test_any_unet_fits(x):
    unet = UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 8), norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
    )  # fmt: skip
    model = macs.ConsistencyModel(unet.eval(), SHAPE)
    assert model(x, None, 80.0).shape == x.shape
    with pytest.raises(ConfigError, match="patch must divide"):
        macs.ConsistencyModel(unet, SHAPE, patch=3)


def test_the_hint_is_the_linear_estimate(x):
    """(A^T A + lambda I)^-1 A^T r_0 and the diagonal of its resolution matrix, against dense algebra."""
    for name in ("super-resolution", "inpainting", "deblurring"):
        A = LINEAR[name]()
        problem = Problem(measure(A, x), A)
        dense = torch.stack([A.A(e.reshape(1, *SHAPE).double()).flatten() for e in torch.eye(64)], 1)
        lam = 0.05**2 / 0.5
        filter_ = torch.linalg.solve(dense.mT @ dense + lam * torch.eye(64), dense.mT)
        r_0 = (2 * problem.y.double() - A.A(torch.ones(5, *SHAPE).double())).flatten(1)
        got = hint(problem)
        torch.testing.assert_close(got[:, :1].flatten(1).double(), r_0 @ filter_.mT, atol=2e-4, rtol=0)
        want = torch.diagonal(filter_ @ dense).expand(5, -1)
        torch.testing.assert_close(got[:, 1:].flatten(1).double(), want, atol=1e-5, rtol=0)


def test_the_resolution_of_other_operators_is_estimated(x):
    A = LINEAR["matrix"]()
    problem = Problem(measure(A, x), A)
    dense = torch.stack([A.A(e.reshape(1, *SHAPE))[0] for e in torch.eye(64)], 1).double()
    exact = torch.diagonal(torch.linalg.solve(dense.mT @ dense + 0.005 * torch.eye(64), dense.mT @ dense))
    got = resolution(problem, x, probes=400)[0].flatten().double()
    assert (got - exact).abs().mean() < 0.05


def test_hints_need_linear_operators(x):
    A = Squashed()
    with pytest.raises(ModelError, match="reads linear measurements; Squashed is nonlinear"):
        hint(Problem(measure(A, x), A))


@pytest.mark.filterwarnings("ignore::macs.errors.MacsWarning")
def test_a_random_unet_through_every_task(sampler):
    """End to end on 28 px with random weights: finite, repeatable, in range."""
    torch.manual_seed(1)
    model = build(ModelConfig(channels=(8, 16), layers=1, groups=4, head_dim=8)).eval()
    truth = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    for name in macs.TASKS:
        A = macs.task(name, model)
        y = measure(A, truth)
        solver = macs.Solver(model, sampler, steps=2)
        out = solver(y, A)
        assert 0 <= out.min() <= out.max() <= 1
        assert torch.equal(solver(y, A), out)


def test_bad_configurations_are_refused_in_words():
    with pytest.raises(ConfigError, match="unknown model setting 'chanels'.*did you mean 'channels'"):
        ModelConfig.of({"chanels": [8]})
    with pytest.raises(ConfigError, match="unknown model family 'hint'.*did you mean 'hinted'"):
        ModelConfig.of({"family": "hint"})
