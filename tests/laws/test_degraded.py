"""The degraded image itself: enlarged as Pillow does it, holes at the mean of the rest, nothing else changed."""

import numpy as np
import pytest
import torch
from PIL import Image

import macs
from macs.benchmark.degraded import Degraded
from tests.laws.conftest import measure

SHAPE = (3, 16, 16)


@pytest.fixture
def colour():
    return torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))


def solved(name, x, **options):
    A = macs.task(name, image_shape=SHAPE, **options)
    y = measure(A, x)
    model = lambda *_: pytest.fail("the network ran")
    model.image_shape = SHAPE
    out, trace = Degraded(model)(y, A, trace=True)
    return y, A, out, trace


def test_a_small_measurement_is_enlarged_as_pillow_does_it(colour):
    y, _, out, _ = solved("super-resolution", colour, factor=4)
    for image, small in zip(out.flatten(0, 1), y.flatten(0, 1), strict=True):
        want = np.asarray(Image.fromarray(small.numpy()).resize((16, 16), Image.Resampling.BICUBIC))
        np.testing.assert_allclose(image, want.clip(0, 1), atol=1e-5)


@pytest.mark.parametrize("cosign_compat", [False, True])
def test_a_hole_has_the_mean_colour_of_the_rest(colour, cosign_compat):
    y, A, out, _ = solved("inpainting", colour, cosign_compat=cosign_compat)
    known = A.mask[0, 0] == 1
    torch.testing.assert_close(out[:, :, known], y[:, :, known].clamp(0, 1), atol=1e-6, rtol=0)
    want = y[:, :, known].mean(-1, keepdim=True).expand(-1, -1, int((~known).sum()))
    torch.testing.assert_close(out[:, :, ~known], want, atol=1e-6, rtol=0)


def test_a_blurred_image_is_taken_as_it_is(colour):
    y, A, out, trace = solved("deblurring", colour)
    torch.testing.assert_close(out, y.clamp(0, 1), atol=1e-6, rtol=0)
    assert trace.nfe == []
    want = (2 * (y - A.A(out))).square().flatten(1).mean(1) / 0.05**2
    torch.testing.assert_close(trace.final_chi2, want, rtol=1e-3, atol=0)
