"""Frechet and kernel distances against closed forms, plain loops, torchmetrics, and the bootstrap they stand for."""

import numpy as np
import pytest
import torch
from torch import Generator
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance

from macs.benchmark.intervals import counts, interval
from macs.distances import Distance, Reference, covariance, frechet, kernel
from macs.errors import DataError

DISTANCES = {"frechet": frechet, "kernel": kernel}


def sets(n=300, d=6, seed=0):
    """Restored and true features that belong together, image by image."""
    g = Generator().manual_seed(seed)
    truth = torch.randn(n, d, generator=g, dtype=torch.float64) @ torch.randn(d, d, generator=g, dtype=torch.float64) / 4
    return 0.9 * truth + 0.2 * torch.randn(n, d, generator=g, dtype=torch.float64) + 0.2, truth


def exactly(mean, variance, n=64, seed=0):
    """Features whose sample mean and (diagonal) covariance are exactly these."""
    x = torch.randn(n, len(mean), generator=Generator().manual_seed(seed), dtype=torch.float64)
    x = x - x.mean(0)
    x = x @ torch.linalg.inv(torch.linalg.cholesky(covariance(x))).mT
    return x * torch.tensor(variance, dtype=torch.float64).sqrt() + torch.tensor(mean, dtype=torch.float64)


def test_frechet_of_gaussians_in_closed_form():
    x, y = exactly([0.0, 1.0, 2.0], [1.0, 4.0, 0.25]), exactly([1.0, 1.0, 0.0], [9.0, 1.0, 0.25], seed=1)
    assert frechet(x, Reference(y)).value == pytest.approx(1 + 4 + (1 - 3) ** 2 + (2 - 1) ** 2, rel=1e-9)


def test_frechet_of_a_flat_set():
    """A direction without variance has no root to invert; the distance is still the formula's."""
    x, y = exactly([0.0, 0.0], [1.0, 1.0]), exactly([0.0, 0.0], [1.0, 4.0], seed=1)
    x[:, 1] = 0
    out = frechet(x, Reference(y))
    assert out.value == pytest.approx(4.0, rel=1e-6)
    assert torch.isfinite(out.influence).all()


def test_kernel_against_a_plain_loop():
    x, y = sets(n=12, d=3)
    k = lambda a, b: (float(a @ b) / 3 + 1) ** 3
    n = len(x)
    own = sum(k(s[i], s[j]) for s in (x, y) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    cross = sum(k(x[i], y[j]) for i in range(n) for j in range(n)) / n**2
    assert kernel(x, Reference(y)).value == pytest.approx(own - 2 * cross, rel=1e-12)


class Identity(torch.nn.Module):
    """Features that come as images."""

    num_features = 6

    def forward(self, x):
        return x.flatten(1).float()


def test_frechet_is_torchmetrics():
    x, y = sets()
    theirs = FrechetInceptionDistance(feature=Identity(), normalize=True, input_img_size=(6, 1, 1))
    theirs.update(y.float()[:, :, None, None], real=True)
    theirs.update(x.float()[:, :, None, None], real=False)
    assert frechet(x.float(), Reference(y.float())).value == pytest.approx(theirs.compute().item(), rel=1e-4)


def test_kernel_of_perfect_restorations_is_low_by_the_pairs_of_one_scene():
    """What its docstring says: the two sets are not independent."""
    y = torch.randn(30, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    k = (y @ y.mT / 6 + 1).pow(3)
    own, others = k.diagonal().mean(), (k.sum() - k.trace()) / (30 * 29)
    value = kernel(y, Reference(y)).value
    assert value < 0
    assert value == pytest.approx(-2 / 30 * (own - others).item(), rel=1e-10)


def test_kernel_is_torchmetrics():
    x, y = sets()
    theirs = KernelInceptionDistance(feature=Identity(), subsets=1, subset_size=len(x), normalize=True)
    theirs.update(y.float()[:, :, None, None], real=True)
    theirs.update(x.float()[:, :, None, None], real=False)
    assert kernel(x.float(), Reference(y.float())).value == pytest.approx(theirs.compute()[0].item(), rel=1e-4)


@pytest.mark.parametrize("name", DISTANCES)
def test_a_set_has_no_distance_to_itself(name):
    _, y = sets()
    assert abs(DISTANCES[name](y, Reference(y)).value) < (1e-9 if name == "frechet" else 0.02)


@pytest.mark.parametrize("name", DISTANCES)
def test_order_of_images_does_not_matter(name):
    x, y = sets()
    order = torch.randperm(len(x), generator=Generator().manual_seed(1))
    a, b = DISTANCES[name](x, Reference(y)), DISTANCES[name](x[order], Reference(y[order]))
    assert a.value == pytest.approx(b.value, rel=1e-9)
    assert torch.allclose(a.influence[order], b.influence, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", DISTANCES)
def test_influence_is_what_leaving_an_image_out_changes(name):
    x, y = sets(n=200, d=4)
    out = DISTANCES[name](x, Reference(y))
    kept = torch.ones(len(x), dtype=torch.bool)
    changes = []
    for i in range(len(x)):
        kept[i] = False
        changes.append((len(x) - 1) * (out.value - DISTANCES[name](x[kept], Reference(y[kept])).value))
        kept[i] = True
    jackknife = np.array(changes) - np.mean(changes)
    assert np.corrcoef(jackknife, out.influence)[0, 1] > 0.98
    assert np.std(jackknife) == pytest.approx(out.influence.std().item(), rel=0.05)


@pytest.mark.parametrize("name", DISTANCES)
def test_interval_is_that_of_the_bootstrap(name):
    x, y = sets(n=400, d=4)
    out: Distance = DISTANCES[name](x, Reference(y))
    low, high = interval(out.influence, out.value, seed=0)
    drawn = []
    for weights in counts(len(x), 1)[:300]:
        rows = torch.repeat_interleave(torch.arange(len(x)), weights.long())
        drawn.append(DISTANCES[name](x[rows], Reference(y[rows])).value)
    assert high - low == pytest.approx(2 * 1.96 * np.std(drawn), rel=0.2)


def test_interval_of_a_mean_covers_it():
    """Of 200 sets with mean 0, about 190 intervals hold 0."""
    values = torch.randn(200, 100, generator=Generator().manual_seed(0), dtype=torch.float64)
    held = sum(low <= 0 <= high for low, high in (interval(v, v.mean().item(), seed=0) for v in values))
    assert 180 <= held <= 198


def test_intervals_are_seeded():
    values = torch.arange(50.0)
    before = torch.random.get_rng_state()
    assert interval(values, 1.0, seed=3) == interval(values, 1.0, seed=3) != interval(values, 1.0, seed=4)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize(
    ("x", "rule"),
    [
        (torch.zeros(5, 3), "of the reference's shape"),
        (torch.full((300, 6), float("nan")), "must be finite"),
        (torch.zeros(300), "must be a matrix"),
    ],
)
def test_bad_features(name, x, rule):
    _, y = sets()
    with pytest.raises(DataError, match=rule):
        DISTANCES[name](x, Reference(y))
