"""The energy score: least for samples of the posterior; and the batches and the loss of a training by it."""

import pytest
import torch
from safetensors.torch import save_file

from macs.errors import ConfigError
from macs.lpips import Lpips
from macs.macs_d import MacsD
from macs.models.build import ModelConfig, build
from macs.noise import Noise
from macs.problem import Problem
from macs.steps import Transition
from macs.tasks import task
from macs.training.batches import OPERATORS
from macs.training.config import parse_config
from macs.training.recipes import SECOND, Scored, in_turn, silenced
from macs.training.score import distance, energy_score, patches, perceived
from tests.lpips import random_weights

SHAPE = (1, 8, 8)
SMALL = ModelConfig("hinted", SHAPE, (8, 8), layers=1, groups=4, head_dim=8)
CONFIG = parse_config({"name": "s", "batch": 12, "stage": [{"loss": "score", "images": 24, "lr": 1e-3, "lr_end": 1e-4}]})


@pytest.fixture(scope="module")
def lpips(tmp_path_factory):
    path = tmp_path_factory.mktemp("lpips") / "lpips.safetensors"
    save_file(random_weights(), path)
    return Lpips(path)


@pytest.fixture(scope="module")
def recipe(lpips):
    torch.manual_seed(0)
    return Scored(build(SMALL).eval().requires_grad_(False), lpips)


@pytest.fixture
def images():
    return torch.randint(0, 256, (40, *SHAPE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 0.0), (0.0, 0.6), (0.0, 1.6), (0.5, 1.0)])
def test_the_posterior_has_the_least_score(mean, deviation):
    """Of Gaussian images: answers too alike, too unlike or off the mean score worse than samples of the same law."""
    x, first, second = torch.randn(3, 2000, 1, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    score = lambda m, s: energy_score(patches(m + s * first), patches(m + s * second), patches(x)).mean()
    assert score(0.0, 1.0) < score(mean, deviation) - 0.01


def test_one_answer_twice_is_the_distance_to_the_truth():
    a, x = torch.rand(2, 3, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(
        energy_score(patches(a), patches(a), patches(x)), distance(patches(a), patches(x)), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize("shape", [(2, 3, 84, 84), (2, 3, 96, 90)])
def test_squares_at_places_are_lpips(lpips, shape):
    a, b = (2 * torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)) - 1).unbind()
    layers = zip(perceived(a, lpips, 0.7)[-5:], perceived(b, lpips, 0.7)[-5:], strict=True)
    squares = sum((u - v).square().sum(1).mean(1) for (_, u), (_, v) in layers)
    torch.testing.assert_close(squares, lpips(a, b))
    assert [weight for weight, _ in perceived(a, lpips, 0.7)[-5:]] == [0.7] * 5


def test_small_and_grey_images_are_enlarged_for_alexnet(lpips):
    assert perceived(torch.zeros(1, 1, 28, 28), lpips, 1.0)[3][1].shape == (1, 64, 20 * 20)


@pytest.mark.parametrize("name", OPERATORS)
def test_noise_of_the_second_call_is_that_of_macs_d(name):
    physics = task(name, image_shape=SHAPE)
    y = physics.A(torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0)))
    problem, noise = Problem(y, physics, 0.05), Noise(0, range(4)).at(1)
    zero = torch.zeros(4, *SHAPE)
    s = 3.0
    at = Transition(zero, zero, 80.0, s, 0.0, problem, noise, 1, side=8)
    unit = noise.like(zero)
    torch.testing.assert_close(s * silenced(torch.stack([unit, -unit], 1), problem)[:, 0], MacsD().renoise(at))


def test_a_batch(recipe, images):
    batch = recipe.batch(images, 3, CONFIG)
    again = recipe.batch(images, 3, CONFIG)
    assert all(torch.equal(a, b) for a, b in zip(batch, again, strict=True)), "a function of seed and step"
    assert not torch.equal(batch.starts, recipe.batch(images, 4, CONFIG).starts)
    assert batch.starts.shape == batch.noises.shape == (12, 2, *SHAPE)
    assert SECOND[0] <= batch.level.min() < batch.level.max() <= SECOND[1]
    told = batch.told.flatten(1).any(1)
    assert not told[batch.t >= SECOND[0]].any(), "at the levels that are scored the network is held to its prior alone"
    assert torch.equal(in_turn(batch.starts)[12:], batch.starts[:, 1])


def test_shares_of_a_batch_add_up(recipe, images):
    """The loss is a mean over images, so two processes with half of them each descend as one does."""
    network, batch = recipe.build(CONFIG), recipe.batch(images, 0, CONFIG)
    loss = lambda part: recipe.loss(network, part, CONFIG.stages[0], 0.0, None)
    halves = [type(batch)(*(tensor[rank::2] for tensor in batch)) for rank in range(2)]
    torch.testing.assert_close(loss(batch), (loss(halves[0]) + loss(halves[1])) / 2)


def test_the_loss_reaches_the_network_and_leaves_the_start_alone(recipe, images):
    network = recipe.build(CONFIG)
    recipe.loss(network, recipe.batch(images, 0, CONFIG), CONFIG.stages[0], 0.0, None).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    assert all(p.grad is None for p in recipe.start.parameters())


def test_only_consistency_models_that_read_a_hint(lpips):
    denoiser = build(SMALL)
    denoiser.kind = "denoiser"
    for model in (denoiser, build(ModelConfig("plain", SHAPE, (8, 8), layers=1, groups=4, head_dim=8))):
        with pytest.raises(ConfigError, match='consistency models of the family "hinted"'):
            Scored(model, lpips)


def test_a_score_goes_on_from_a_finished_model():
    stage = {"images": 10, "lr": 1e-3, "lr_end": 1e-4}
    with pytest.raises(ConfigError, match="a configuration of its own, and --start"):
        parse_config({"name": "x", "stage": [{"loss": "edm", **stage}, {"loss": "score", **stage}]})
