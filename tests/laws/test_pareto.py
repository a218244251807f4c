"""The Pareto front: what is on it is beaten by nothing, what is not is beaten by something on it."""

import pytest
import torch

from macs.benchmark.figures import front


def beats(a, b, more):
    """Whether a costs no more than b and is no worse, and one of them is strict."""
    better = a[1] >= b[1] if more else a[1] <= b[1]
    return a[0] <= b[0] and better and a != b


@pytest.mark.parametrize("more", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_what_nothing_beats(more, seed):
    """On a coarse grid, so that costs and qualities tie."""
    numbers = torch.randint(0, 6, (12, 2), generator=torch.Generator().manual_seed(seed)).tolist()
    points = [(float(cost), float(quality)) for cost, quality in numbers]
    found = front(points, more)
    assert found == sorted({p for p in points if not any(beats(other, p, more) for other in points)})


def test_one_point_is_the_front():
    assert front([(2.0, 3.0)], True) == [(2.0, 3.0)]
