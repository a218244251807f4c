"""The doctor finds what is wrong, and finds nothing where nothing is."""

import pytest
import torch
from deepinv.physics import GaussianNoise, LinearPhysics, Physics

import macs
from macs.doctor import examine
from macs.noise_level import ROUNDING
from macs.problem import to_image, to_sampler

SHAPE = (1, 32, 32)


@pytest.fixture
def x():
    """Smooth images away from black and white."""
    coarse = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.interpolate(coarse, size=SHAPE[1:], mode="bicubic").clamp(0, 1) * 0.6 + 0.2


@pytest.fixture
def physics():
    return macs.task("deblurring", image_shape=SHAPE, std=1.0)


def noisy(physics, x, sigma_y=0.05, seed=1):
    y = physics.A(x)
    return y + sigma_y / 2 * torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))


def verdicts(findings):
    return {f.check: f.verdict for f in findings}


def test_a_sound_measurement_and_its_truth_are_found_sound(x, physics):
    found = examine(noisy(physics, x), physics, x)
    assert set(verdicts(found).values()) == {"ok"}, found
    assert len(found) == 7


@pytest.mark.parametrize("sigma_y", [0.01, 0.05, 0.2])
def test_the_noise_of_smooth_images_is_estimated(x, physics, sigma_y):
    y = noisy(physics, x.mean(0, keepdim=True).expand(8, -1, -1, -1).reshape(8, 1, 32, 32), sigma_y)
    seen = macs.estimate_sigma_y(y[:, 0])
    assert seen == pytest.approx(sigma_y, rel=0.08)


def test_holes_and_saturation_are_left_out_of_the_estimate(x):
    y = noisy(macs.task("inpainting", image_shape=SHAPE, hole=0), x)[0]
    mask = torch.ones(32, 32)
    mask[10:20, 10:20] = 0
    y[:, :4] = 0
    assert macs.estimate_sigma_y(y * mask, mask) == pytest.approx(0.05, rel=0.15)
    assert macs.estimate_sigma_y(torch.full((1, 32, 32), 0.5)) == ROUNDING
    for empty in (torch.zeros(1, 32, 32), torch.full((1, 2, 40), 0.5), torch.full((1, 6, 6), 0.5)):
        with pytest.raises(macs.MacsError, match="give it as --sigma-y"):
            macs.estimate_sigma_y(empty)


@pytest.mark.parametrize(
    ("change", "check", "verdict", "words"),
    [
        (lambda y: y * 255, "range", "wrong", "divide by 255"),
        (lambda y: y * 4 - 2, "range", "wrong", "take (y + 1)/2"),
        (lambda y: y * 0 + 0.5, "range", "wrong", "one value"),
        (lambda y: y / 255, "range", "doubt", "nearly black"),
        (lambda y: (y * 3 - 1).clamp(0, 1), "saturation", "doubt", "cut noise"),
        (lambda y: y + 0.1, "chi2", "wrong", "does not explain"),
        (lambda y: y.roll(1, -1), "residual", "doubt", "the operator may be off"),
    ],
)
def test_a_spoilt_measurement_is_found(x, physics, change, check, verdict, words):
    found = {f.check: f for f in examine(change(noisy(physics, x)), physics, x)}
    assert found[check].verdict == verdict, found[check]
    assert words in found[check].says


@pytest.mark.parametrize(
    ("given", "verdict", "words"),
    [(0.025, "doubt", "must be doubled"), (0.2, "wrong", "at most 0.0"), (12.75, "wrong", "8-bit steps, give 0.1")],
)
def test_units_of_the_noise(x, physics, given, verdict, words):
    found = {f.check: f for f in examine(noisy(physics, x), physics, x, sigma_y=given)}
    assert found["sigma_y"].verdict == verdict
    assert words in found["sigma_y"].says


class Restless(Physics):
    """Another operator at each call."""

    def __init__(self):
        super().__init__(noise_model=GaussianNoise(0.025))
        self.calls = 0

    def A(self, x, **kwargs):
        self.calls += 1
        return x.roll(self.calls, -1)


class WrongAdjoint(LinearPhysics):
    def __init__(self):
        super().__init__(noise_model=GaussianNoise(0.025))

    def A(self, x, **kwargs):
        return x.roll(1, -1)

    def A_adjoint(self, y, **kwargs):
        return y.roll(1, -1)


def test_a_random_operator_and_a_wrong_adjoint_are_found(x):
    found = {f.check: f for f in examine(x, Restless(), x)}
    assert found["operator"].verdict == "wrong"
    assert "nonlinear" in found["adjoint"].says
    found = {f.check: f for f in examine(x, WrongAdjoint(), x)}
    assert found["adjoint"].verdict == "wrong"


def test_too_close_a_fit_is_doubted(x, physics):
    y = physics.A(x)
    assert verdicts(examine(y, physics, to_image(to_sampler(x)), sigma_y=0.05))["chi2"] == "doubt"
    assert verdicts(examine(y, physics, x, sigma_y=0.0))["chi2"] in ("doubt", "ok")
