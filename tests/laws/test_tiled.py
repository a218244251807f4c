"""A model in tiles: the whole image is covered, and nothing but the network is cut."""

from itertools import pairwise

import pytest
import torch

import macs
from macs.models.controlnet import control_hint
from macs.models.tiled import starts, window
from tests.laws.conftest import SHAPE, Net, measure
from tests.laws.test_controlnet import attached, plain


class Local:
    """A consistency function that looks at each pixel alone, so that tiles cannot matter."""

    image_shape = SHAPE
    t_min, t_max = 0.002, 80.0

    def __call__(self, x, y, t):
        t = torch.as_tensor(t).to(x).reshape(-1, 1, 1, 1)
        return torch.tanh(x / (1 + t)) * 0.7 + (0 if y is None else 0.1 * y[:, :1])


@pytest.mark.parametrize("length", [8, 9, 15, 16, 31, 100])
@pytest.mark.parametrize("overlap", [0, 3, 4, 7])
def test_tiles_cover_all_and_overlap(length, overlap):
    at = starts(length, 8, overlap)
    assert at[0] == 0
    assert at[-1] == length - 8
    assert all(0 < b - a <= 8 - overlap for a, b in pairwise(at))


def test_the_weight_is_positive_and_symmetric():
    w = window(7)
    assert (w > 0).all()
    torch.testing.assert_close(w, w.flip(0, 1))
    torch.testing.assert_close(w, w.mT)


@pytest.mark.parametrize("overlap", [None, 0, 5])
def test_a_local_function_is_the_same_in_tiles(overlap):
    g = torch.Generator().manual_seed(1)
    x, maps = torch.randn(3, 1, 19, 23, generator=g), torch.randn(3, 2, 19, 23, generator=g)
    t = torch.tensor([80.0, 1.0, 0.1]).reshape(3, 1, 1, 1)
    tiled = macs.Tiled(Local(), (1, 19, 23), overlap)
    torch.testing.assert_close(tiled(x, maps, t), Local()(x, maps, t))
    torch.testing.assert_close(tiled(x, None, 2.0), Local()(x, None, 2.0))


def test_one_tile_is_the_model():
    x = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(macs.Tiled(Net(), SHAPE)(x, None, 3.0), Net()(x, None, 3.0))


def test_the_residual_is_that_of_the_whole_image():
    """chi2 of a tiled restoration is the chi2 of its pixels under the operator of the whole image."""
    shape = (1, 20, 24)
    physics = macs.task("deblurring", image_shape=shape, std=1.0)
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(3))
    y = measure(physics, x)
    seen = []
    tiled = macs.Tiled(Net(), shape, on_tiles=seen.append)
    restored, trace = macs.Solver(tiled, macs.Multistep(), steps=2)(y, physics, trace=True)
    problem = macs.Problem(y, physics)
    torch.testing.assert_close(trace.final_chi2, problem.chi2(2 * restored - 1), rtol=1e-4, atol=1e-4)
    assert sum(seen) == 2 * 2 * len(tiled.corners)


@pytest.mark.parametrize("name", ["super-resolution", "inpainting"])
def test_a_controlnet_in_tiles(name):
    """The hint is that of the whole image; each tile is the model on its part of both, and knows of no other."""
    shape, model = (1, 20, 24), attached(plain())
    physics = macs.task(name, image_shape=shape)
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(4))
    y = measure(physics, x)
    tiled = macs.Tiled(model, shape, 0)
    hint = tiled.condition(macs.Problem(y, physics))
    assert hint.shape == x.shape
    torch.testing.assert_close(hint, control_hint(macs.Problem(y, physics), shape))
    x_t = 3 * x
    out = tiled(x_t, hint, 3.0)
    torch.testing.assert_close(out[..., :6, :8], model(x_t[..., :8, :8], hint[..., :8, :8], 3.0)[..., :6, :8])
    y[..., -1, -1] += 0.5
    other = tiled(x_t, tiled.condition(macs.Problem(y, physics)), 3.0)
    assert torch.equal(out[..., :12, :16], other[..., :12, :16])
    assert not torch.equal(out[..., 12:, 16:], other[..., 12:, 16:])
    assert macs.Solver(tiled, macs.MacsD(), steps=2)(y, physics).shape == x.shape


@pytest.mark.parametrize(
    ("shape", "overlap", "sentence"),
    [
        ((1, 7, 20), None, "at least 8x8 pixels"),
        ((3, 20, 20), None, "at least 8x8"),
        ((1, 20, 20), 8, "overlap must be from 0 to 7"),
    ],
)
def test_what_cannot_be_tiled_is_refused(shape, overlap, sentence):
    with pytest.raises(macs.MacsError, match=sentence):
        macs.Tiled(Net(), shape, overlap)
