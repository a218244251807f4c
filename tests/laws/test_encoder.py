"""The summary family: it is a consistency model, and the measurement reaches it only as a vector."""

import pytest
import torch

from macs import Problem, Solver, task
from macs.models.build import ModelConfig, build
from macs.training.loss import ect_loss

TINY = ModelConfig(family="summary", image_shape=(1, 12, 12), channels=(8, 16), layers=1, groups=4, head_dim=8)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build(TINY).eval()


@pytest.fixture
def x():
    return torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["super-resolution", "inpainting", "deblurring"])
def test_the_measurement_changes_the_output(model, x, name):
    physics = task(name, model)
    a, b = (model.condition(Problem(physics.A(image), physics)) for image in (x, x.flip(0)))
    assert a.shape == (3, 2, 12, 12)
    x_t = torch.randn(3, 1, 12, 12, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        outputs = [model(x_t, y, 1.0) for y in (a, b, None)]
    assert all(torch.isfinite(o).all() and o.shape == x_t.shape for o in outputs)
    assert (outputs[0] - outputs[1]).abs().max() > 1e-5
    assert (outputs[0] - outputs[2]).abs().max() > 1e-5


def test_boundary_condition_is_exact(model, x):
    with torch.no_grad():
        assert torch.equal(model(x, torch.rand(3, 2, 12, 12), model.t_min), x)
        assert torch.equal(model(x, None, model.t_min), x)


def test_no_measurement_is_maps_of_zeros(model, x):
    with torch.no_grad():
        assert torch.equal(model(x, None, 2.0), model(x, torch.zeros(3, 2, 12, 12), 2.0))


def test_no_image_shaped_hint_enters_the_backbone(model, x):
    seen, more = model.network_input(x, torch.rand(3, 2, 12, 12))
    assert torch.equal(seen, model.network_input(x, None)[0])
    image, rows, columns = seen.split(1, dim=1)
    ramp = torch.linspace(-1, 1, 12).expand(3, 1, 12, 12)
    assert torch.equal(image, x)
    assert torch.equal(columns, ramp)
    assert torch.equal(rows, ramp.mT)
    assert {k: tuple(v.shape) for k, v in more.items()} == {"class_labels": (3, 4 * TINY.channels[0])}
    assert model.encoder(torch.rand(3, 2, 12, 12)).shape == (3, 128)


def test_the_encoder_trains_with_the_rest(model, x):
    loss = ect_loss(model, 2 * x - 1, torch.rand(3, 2, 12, 12), torch.tensor([0.3, 1.0, 20.0]), torch.randn_like(x), 3, 0.01)
    loss.sum().backward()
    blind = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().any()]
    model.zero_grad(set_to_none=True)
    assert blind == []


def test_it_solves(model, x):
    physics = task("inpainting", model)
    with torch.no_grad():
        restored = Solver(model, steps=2)(physics(x), physics, seed=0)
    assert restored.shape == x.shape
    assert 0 <= restored.min() <= restored.max() <= 1
