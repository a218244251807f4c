r"""DEFT's small network: what a measurement adds to a denoiser that has never seen one.

.. math:: D_y(x_t, t) = D(x_t, t) + c_{\rm out}(t)\, h(x_t, D(x_t, t), y, t)

The generalised h-transform says that the noise predicted given y is the one predicted without it plus a correction, the score
of :math:`p(y \mid x_t)`. The correction is learned, by the loss of a denoiser, while D stays as it is. The network sees the
measurement by the two maps of :mod:`macs.models.hint`, from which it can form the misfit of D's image for any operator.

References:
    Denker et al., "DEFT: Efficient Fine-tuning of Diffusion Models by Learning the Generalised h-transform", 2024.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from macs.errors import ModelError
from macs.models.consistency import HintedModel


class HTransform(HintedModel):
    """The correction of a denoiser, and with it attached a denoiser given the measurement; its own file holds h alone.

    Attributes:
        trained_with: the SHA-256 of the denoiser's file that it was trained with; empty where that is unknown.
    """

    kind = "denoiser"
    trained_with = ""
    denoiser: tuple[Callable[..., Tensor], ...] = ()

    def attach(self, denoiser: Callable[..., Tensor]) -> "HTransform":
        """The network upon ``denoiser``, a callable that takes ``y=None``. It is no part of this network's weights."""
        found = getattr(getattr(denoiser, "model", denoiser), "digest", "")
        if self.trained_with and found and found != self.trained_with:
            raise ModelError(
                f"this network was trained to correct another denoiser, whose SHA-256 begins with {self.trained_with[:12]} and "
                f"not {found[:12]}; use that one, or train again with examples/train_deft.py"
            )
        self.denoiser = (denoiser,)
        return self

    def forward(self, x_t: Tensor, y: Tensor | None, t: Tensor | float, embedded: Tensor | float | None = None) -> Tensor:
        """The posterior mean given the maps ``y``."""
        if not self.denoiser:
            raise ModelError("this network corrects a denoiser; attach one: macs.Deft(denoiser, network)")
        with torch.no_grad():
            x_hat = self.denoiser[0](x_t, None, t)
        maps = x_t.new_zeros(len(x_t), 2 * x_t.shape[1], *x_t.shape[2:]) if y is None else y.to(x_t)
        return x_hat + self.change(x_t, torch.cat([x_hat, maps], 1), t, embedded)[1]
