"""LPIPS of the benchmark: grey is three equal channels, small is enlarged, and neighbours do not matter."""

import pytest
import torch
from safetensors.torch import save_file

from macs.benchmark.perceptual import find_lpips, prepared
from macs.errors import DataError
from macs.lpips import Lpips, enlargement
from tests.lpips import random_weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("lpips") / "lpips.safetensors"
    save_file(random_weights(), path)
    return path


def pairs(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(*shape, generator=g)
    return x, (x + 0.2 * torch.rand(*shape, generator=g)).clamp(0, 1)


def test_large_colour_images_are_taken_as_they_are(weights):
    x, truth = pairs(3, 3, 64, 64)
    assert torch.equal(find_lpips(str(weights))(x, truth), Lpips(weights)(2 * x - 1, 2 * truth - 1))


def test_grey_is_three_equal_channels(weights):
    x, truth = pairs(3, 1, 64, 64)
    lpips = find_lpips(str(weights))
    assert torch.equal(lpips(x, truth), lpips(x.repeat(1, 3, 1, 1), truth.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize(("side", "factor"), [(8, 8), (28, 3), (32, 2), (63, 2), (64, 1), (256, 1)])
def test_small_images_are_enlarged_by_a_whole_factor(side, factor):
    assert enlargement(side) == factor
    assert prepared(torch.rand(1, 1, side, side)).shape == (1, 3, factor * side, factor * side)


def test_the_enlargement_is_linear_between_pixels():
    """A ramp stays a ramp: at three times the size its steps are a third, but at the borders, where it stands still."""
    ramp = torch.arange(28.0).expand(1, 1, 28, 28) / 27
    row = (prepared(ramp)[0, 0, 40] + 1) / 2
    want = (torch.arange(84.0) - 1) / 3 / 27
    torch.testing.assert_close(row, want.clamp(0, 1), atol=1e-5, rtol=0)


def test_neighbours_do_not_matter(weights):
    """More than a batch of them."""
    x, truth = pairs(53, 1, 28, 28)
    lpips = find_lpips(str(weights))
    each = torch.cat([lpips(x[i : i + 1], truth[i : i + 1]) for i in (0, 49, 50, 52)])
    torch.testing.assert_close(lpips(x, truth)[[0, 49, 50, 52]], each, rtol=1e-5, atol=1e-7)
    assert each.std() > 0
    assert not lpips(x[:2], x[:2]).any()


def test_where_the_weights_are_found(weights, monkeypatch):
    monkeypatch.delenv("MACS_LPIPS", raising=False)
    assert find_lpips(None) is None
    monkeypatch.setenv("MACS_LPIPS", str(weights))
    assert find_lpips(None) is not None


def test_images_that_are_no_pairs(weights):
    with pytest.raises(DataError, match="must have the shape of the truth"):
        find_lpips(str(weights))(torch.rand(2, 1, 28, 28), torch.rand(1, 1, 28, 28))
