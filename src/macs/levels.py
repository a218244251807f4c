r"""Noise levels :math:`t_N > \dots > t_1 \ge t_{\min}` and the ratio :math:`\rho` of two of them.

Levels are Python floats (float64) in sampler units: images in [-1, 1], ``x_t = x + t z`` with ``z ~ N(0, I)``.
End points are pinned, never computed, so that no rounding can push a level below ``t_min``.

References:
    Karras et al., "Elucidating the Design Space of Diffusion-Based Generative Models", 2022, Eq. 5.
    Song et al., "Consistency Models", 2023.
"""

import math
from collections.abc import Iterable
from itertools import pairwise

from macs.errors import ConfigError

T_MIN = 0.002
T_MAX = 80.0

Levels = tuple[float, ...]


def karras(n: int, t_max: float = T_MAX, t_min: float = T_MIN, exponent: float = 7.0) -> Levels:
    r"""``n`` levels from ``t_max`` down to ``t_min``, evenly spaced in :math:`t^{1/\mathrm{exponent}}` (Karras Eq. 5)."""
    if n < 1:
        raise ConfigError(f"a grid needs at least 1 level; got {n}; ask for steps >= 1")
    if n == 1:
        return (float(t_max),)
    a, b = t_max ** (1 / exponent), t_min ** (1 / exponent)
    inner = ((a + i / (n - 1) * (b - a)) ** exponent for i in range(1, n - 1))
    return (float(t_max), *inner, float(t_min))


#: Grids of two network calls found in public code: the first level, then an entry of a Karras grid of 40 levels
#: (CoSIGN and the distilled bedroom/cat models 17, the L2-distilled bedroom model 18, ImageNet-64 22), the pair of
#: the simulation-based-inference models (a 3-level grid from 200 to 0.001), and ECT's pair.
TWO_STEP: dict[str, Levels] = {
    "cosign": (T_MAX, karras(40)[17]),
    "bedroom-l2": (T_MAX, karras(40)[18]),
    "imagenet64": (T_MAX, karras(40)[22]),
    "sbi": karras(3, t_max=200.0, t_min=0.001)[:2],
    "ect": (T_MAX, 0.821),
}


def few_steps(n: int, t_max: float = T_MAX, t_min: float = T_MIN, last: int = 17) -> Levels:
    """The grid of ``n`` network calls for a consistency sampler: ``n`` entries of Karras' 40, evenly spaced up to one of them.

    Two steps are CoSIGN's (80, 4.37). Every entry is a level at which the network still invents structure; the last
    call, at a level well above ``t_min``, finishes the image.
    """
    if n < 1:
        raise ConfigError(f"steps must be at least 1; got {n}; one step is the plain consistency model")
    grid = karras(40, t_max, t_min)
    return tuple(grid[round(last * i / max(n - 1, 1))] for i in range(n)) if n <= last else karras(n + 1, t_max, t_min)[:-1]


def rho(t: float, s: float, t_min: float = T_MIN) -> float:
    r""":math:`\rho = (s^2 - t_{\min}^2) / (t^2 - t_{\min}^2)`, factored so that ``s = t_min`` gives exactly 0."""
    return (s - t_min) * (s + t_min) / ((t - t_min) * (t + t_min))


def check(levels: Iterable[float], t_min: float = T_MIN) -> Levels:
    """The levels as floats, or one sentence on why they are none."""
    out = tuple(float(t) for t in levels)
    if not out:
        raise ConfigError("levels must hold at least one level; got none; pass e.g. (80, 4.37)")
    for i, t in enumerate(out):
        if not math.isfinite(t):
            raise ConfigError(f"levels must be finite; got {t} at position {i}")
        if t < t_min:
            raise ConfigError(
                f"levels must not fall below the model's t_min = {t_min:g}; got {t:g} at position {i}; drop or raise it"
            )
    for i, (t, s) in enumerate(pairwise(out)):
        if not s < t:
            raise ConfigError(f"levels must decrease; got {s:g} after {t:g} at position {i + 1}; sort them from high to low")
    return out
