"""A model as a prior: the same network without the measurement, and whether it is of the kind that a solver needs."""

from collections.abc import Callable
from typing import Any

from deepinv.models import Denoiser
from torch import Tensor

from macs.errors import ModelError
from macs.levels import T_MAX, T_MIN

#: For each kind of network: what it is called, and what else can be done with one.
KINDS = {
    "consistency": ("a consistency model, the end of a trajectory", "Cm4ir, PnpCm or Solver"),
    "denoiser": ("a denoiser, the posterior mean", "Dps, Lgd, Ddrm or DiffPir"),
}


class Prior:
    """``f(x_t, None, t)``: a model that has never seen a measurement, for zero-shot solvers.

    ``Solver(Prior(model), Multistep(data=BackProjection()), steps=4)`` restores with a network that knows only images; the
    measurement enters by the data step alone.

    Args:
        model: a callable ``f(x_t, y, t)`` that takes ``y=None``, such as what ``macs.load`` returns.
    """

    def __init__(self, model: Callable[..., Tensor]) -> None:
        self.model: Callable[..., Tensor] = model.model if isinstance(model, Prior) else model
        self.t_min, self.t_max = float(getattr(model, "t_min", T_MIN)), float(getattr(model, "t_max", T_MAX))
        self.image_shape = getattr(model, "image_shape", None)
        self.kind = getattr(model, "kind", None)

    def __call__(self, x_t: Tensor, y: object, t: Tensor | float, **options: Any) -> Tensor:
        """``f(x_t, None, t)``."""
        return self.model(x_t, None, t, **options)


def prior_of(model: Callable[..., Tensor], kind: str, solver: str) -> Prior:
    """The model without its measurement, or one sentence on why this solver cannot use it."""
    if isinstance(model, Denoiser):
        raise ModelError(
            f"{solver} calls a model as f(x_t, y, t) on images in [-1, 1]; {type(model).__name__} is a deepinv denoiser "
            "D(x, sigma) on [0, 1]; pass lambda x_t, y, t: 2 * D((x_t + 1) / 2, t / 2) - 1"
        )
    found = getattr(model, "kind", None) or kind
    if found != kind:
        raise ModelError(
            f"{solver} needs {KINDS[kind][0]}; this model is {KINDS[found][0]}; use it with {KINDS[found][1]}, "
            f"or load a model of the other kind"
        )
    return Prior(model)
