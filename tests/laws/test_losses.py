"""The training objectives on Gaussian data, where the denoiser and the consistency function are known."""

import pytest
import torch

from macs.errors import ConfigError
from macs.training.config import parse_config
from macs.training.loss import cd_loss, consistency_distance, heun_step
from tests.laws.gaussian import T_MIN, prior

DEVIATION = 0.2
KNOWN = prior(4, DEVIATION)


class Model:
    """A function of (x, t), with what a loss asks of a model."""

    t_min, sigma_data = T_MIN, DEVIATION

    def __init__(self, function):
        self.function = function

    def __call__(self, x, y, t):
        return self.function(x, y, t)


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(0)
    x = DEVIATION * torch.randn(64, 1, 2, 2, generator=g, dtype=torch.float64)
    t = torch.exp(torch.linspace(-2, 0, 64, dtype=torch.float64))
    return x, t, torch.randn(x.shape, generator=g, dtype=torch.float64)


def test_a_heun_step_follows_the_flow_to_second_order(batch):
    x, t, z = batch
    x_t = x + t.reshape(-1, 1, 1, 1) * z
    errors = []
    for shrink in (0.8, 0.9, 0.95):
        r = shrink * t
        exact = x_t * ((DEVIATION**2 + r**2) / (DEVIATION**2 + t**2)).sqrt().reshape(-1, 1, 1, 1)
        errors.append((heun_step(KNOWN.mean, x_t, None, t, r) - exact).abs().max().item())
    assert errors[0] > 6 * errors[1] > 36 * errors[2]


def test_the_consistency_function_is_where_the_distillation_loss_vanishes(batch):
    x, t, z = batch

    def loss(function, doublings):
        return cd_loss(Model(function), KNOWN.mean, x, None, t, z, doublings, 1e-6).mean().item()

    exact = [loss(KNOWN, doublings) for doublings in (3, 4, 5)]
    assert exact[0] > 4 * exact[1] > 16 * exact[2]
    assert loss(KNOWN.mean, 5) > 50 * exact[2]


def test_blacker_than_black_costs_nothing_and_a_wrong_black_is_felt():
    out = torch.tensor([-1.3, -1.3, 0.2, 1.2]).reshape(4, 1, 1, 1).requires_grad_()
    target = torch.tensor([-1.0, 0.0, 0.2, 1.0]).reshape(4, 1, 1, 1)
    loss = consistency_distance(Model(lambda x, y, t: x), out, None, torch.ones(4), target, 0.01)
    loss.sum().backward()
    assert torch.equal(loss > 0, torch.tensor([False, True, False, False]))
    assert torch.equal(out.grad.flatten().sign(), torch.tensor([0.0, -1.0, 0.0, 0.0]))


def test_distillation_needs_a_denoiser_before_it():
    stage = {"images": 10, "lr": 1e-3, "lr_end": 1e-4}
    with pytest.raises(ConfigError, match='put a stage with loss = "edm" before it'):
        parse_config({"name": "x", "stage": [{"loss": "cd", **stage}, {"loss": "edm", **stage}]})
    assert parse_config({"name": "x", "stage": [{"loss": "edm", **stage}, {"loss": "cd", **stage}]}).stages[1].loss == "cd"
