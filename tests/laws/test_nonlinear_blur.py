"""The learnt blur keeps its kernel, can be differentiated, and the shake it is taught is a shake."""

import copy

import pytest
import torch

import macs
from macs.errors import ConfigError, MeasurementError
from macs.models.nonlinear_blur import BlurNetwork
from macs.problem import Problem
from macs.training.shake import camera_shake, exposure, path, value
from tests.laws.conftest import measure

SHAPE = (3, 16, 16)


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BlurNetwork(3, (8, 12), 1, 1, 4).eval()


@pytest.fixture
def images():
    return 0.2 + 0.6 * torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(1))


def blur(network, **options):
    return macs.task("nonlinear-deblurring", image_shape=SHAPE, network=network, **options)


def test_the_kernel_is_drawn_once_and_kept(network, images):
    A = blur(network)
    before = A.k.clone()
    assert torch.equal(A.A(images), A.A(images))
    measure(A, images)
    assert torch.equal(A.k, before)
    assert torch.equal(blur(network).A(images), A.A(images))
    assert not torch.allclose(blur(network, seed=1).A(images), A.A(images), atol=1e-3)


def test_an_image_has_the_same_kernel_in_any_batch(network, images):
    each = blur(network, images=3)
    assert each.k.shape == (3, 4, 1, 1)
    assert not torch.allclose(each.k[0], each.k[1])
    alone = torch.cat([blur(network).A(images[i : i + 1], k=each.k[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(each.A(images), alone, atol=1e-6, rtol=0)
    assert torch.equal(blur(network, images=2).k, each.k[:2])


def test_the_truth_fits_its_measurement(network, images):
    """The residual is the noise and nothing else; under another kernel it is more."""
    network = copy.deepcopy(network)
    with torch.no_grad():
        for up in network.adapter.up:
            up.weight.mul_(8)
    A = blur(network, images=3, sigma_y=0.002)
    chi2 = Problem(measure(A, images), A).chi2(2 * images - 1)
    assert ((chi2 - 1).abs() < 5 * (2 / 768) ** 0.5).all()
    other = blur(network, images=3, seed=5, sigma_y=0.002)
    assert (Problem(measure(A, images), other).chi2(2 * images - 1) > 1.5).all()


def test_it_can_be_differentiated(network, images):
    A = blur(network)
    x, v = images.clone().requires_grad_(), torch.randn(images.shape, generator=torch.Generator().manual_seed(2))
    slope = torch.autograd.grad((A.A(x) * v).sum(), x)[0]
    step = 1e-2 * torch.randn(images.shape, generator=torch.Generator().manual_seed(3))
    difference = ((A.A(images + step) - A.A(images - step)) * v).sum() / 2
    assert (slope * step).sum().item() == pytest.approx(difference.item(), rel=0.05)


def test_the_discrepancy_step_works_on_it(network, images):
    A = blur(network)
    problem = Problem(measure(A, images), A)
    x_hat = 2 * images - 1 + 0.2
    assert (problem.chi2(macs.discrepancy(x_hat, problem)) < problem.chi2(x_hat)).all()


def test_misfits_are_said(network, images):
    with pytest.raises(ConfigError, match="sides that are multiples of 16; got"):
        macs.task("nonlinear-deblurring", image_shape=(3, 28, 28), network=network)
    with pytest.raises(ConfigError, match="needs images of 3 channels"):
        macs.task("nonlinear-deblurring", image_shape=(1, 16, 16), network=network)
    with pytest.raises(ConfigError, match="images needs a blur network; pass network"):
        macs.task("nonlinear-deblurring", image_shape=(3, 256, 256))
    with pytest.raises(MeasurementError, match="this blur has 2 kernels of .*; 3 images"):
        blur(network, images=2).A(images)
    with pytest.raises(ConfigError, match="images must be at least 1"):
        blur(network, images=0)


def test_no_shake_is_no_blur(images):
    torch.testing.assert_close(value(exposure(images)), images, atol=1e-5, rtol=0)
    torch.testing.assert_close(camera_shake(images, torch.zeros(3, 16, 2, 2)), images, atol=1e-4, rtol=0)
    k = torch.randn(3, 16, 2, 2, generator=torch.Generator().manual_seed(0))
    flat = torch.full((3, *SHAPE), 0.3)
    torch.testing.assert_close(camera_shake(flat, k), flat, atol=1e-5, rtol=0)
    assert path(k, 16, 16).mean(1).abs().max() < 1e-5


def test_a_shake_depends_on_place_and_on_brightness():
    """Another blur at another corner; and a lamp leaves a longer streak than light that adds as values would."""
    k = torch.randn(1, 16, 2, 2, generator=torch.Generator().manual_seed(4))
    dots = torch.full((1, 3, 64, 64), 0.1)
    dots[..., 10, 10] = dots[..., 53, 53] = 0.9
    seen = camera_shake(dots, k)
    assert not torch.allclose(seen[..., 4:17, 4:17], seen[..., 47:60, 47:60], atol=0.02)
    lamp = dots.clone()
    lamp[..., 10, 10] = 1.0
    gain = (camera_shake(lamp, k) - 0.1).sum() / (seen - 0.1).sum()
    assert gain > 1.1
    with pytest.raises(ConfigError, match="a shake's kernel is of shape"):
        camera_shake(dots, k[:, :3])
