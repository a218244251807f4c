"""Levels decrease, end where they should, and never make rho a NaN."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import macs
from macs import levels
from macs.errors import ConfigError
from macs.models.tiled import Tiled


def test_published_values():
    grid = levels.karras(40)
    assert abs(grid[17] - 4.36556169) < 5e-9
    assert abs(grid[18] - 3.51969883) < 5e-9
    assert abs(grid[22] - 1.38236796) < 5e-9
    assert levels.TWO_STEP["cosign"] == (80.0, grid[17])
    assert abs(levels.karras(3, t_max=200.0, t_min=1e-3, exponent=7)[1] - levels.TWO_STEP["sbi"][1]) == 0
    assert abs(levels.TWO_STEP["sbi"][1] - 4.82773246) < 5e-9


@given(st.integers(1, 200), st.floats(1.0, 500.0), st.floats(1e-4, 0.5), st.floats(1.0, 12.0))
def test_karras_decreases_with_pinned_ends(n, t_max, t_min, exponent):
    grid = levels.karras(n, t_max, t_min, exponent)
    assert len(grid) == n
    assert grid[0] == t_max
    assert n == 1 or grid[-1] == t_min
    assert levels.check(grid, t_min) == grid


@pytest.mark.parametrize("n", range(1, 60))
def test_few_steps_are_legal_grids(n):
    grid = levels.few_steps(n)
    assert len(grid) == n
    assert levels.check(grid) == grid
    assert n == 1 or grid[-1] > levels.T_MIN


@given(st.floats(0.003, 500.0), st.floats(0.0, 1.0), st.floats(0.0, 0.0029))
def test_rho_is_a_ratio(t, share, t_min):
    s = t_min + share * (t - t_min)
    rho = levels.rho(t, s, t_min)
    assert 0 <= rho <= 1 + 1e-12
    assert levels.rho(t, t_min, t_min) == 0
    assert math.isclose(levels.rho(t, t, t_min), 1)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ((1.0, 2.0), "must decrease; got 2 after 1 at position 1"),
        ((80.0, 80.0), "must decrease"),
        ((80.0, 0.001), "must not fall below the model's t_min = 0.002; got 0.001 at position 1"),
        ((80.0, float("nan")), "must be finite"),
        ((), "at least one level"),
    ],
)
def test_bad_levels_are_refused_in_words(bad, words):
    with pytest.raises(ConfigError, match=words):
        levels.check(bad)


def test_a_grid_needs_a_level():
    with pytest.raises(ConfigError, match="at least 1"):
        levels.karras(0)
    with pytest.raises(ConfigError, match="at least 1"):
        levels.few_steps(0)


def test_macs_d_ends_higher_for_larger_images():
    """In proportion to the side from 28 to 64 pixels; a tile counts as an image of its own size; others have one grid."""
    ends = {side: macs.MacsD().levels(2, 80.0, 0.002, side)[1] for side in (8, 28, 32, 64, 256)}
    assert ends[8] == ends[28] < ends[32] < ends[64] == ends[256]
    assert 0.9 < ends[64] / ends[28] / (64 / 28) < 1.1
    assert macs.Multistep().levels(2, 80.0, 0.002, 64) == macs.Multistep().levels(2, 80.0, 0.002, 28)

    def f(x_t, y, t):
        return x_t

    f.image_shape = (3, 64, 64)
    assert macs.Solver(f).levels[1] == ends[64]
    f.t_min, f.t_max = 0.002, 80.0
    assert macs.Solver(Tiled(f, (3, 200, 100))).levels[1] == ends[64]
    f.image_shape = (1, 28, 28)
    assert macs.Solver(Tiled(f, (1, 200, 100))).levels[1] == macs.Solver(f).levels[1] == ends[28]
