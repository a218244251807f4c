"""How a run is doing: held-out images restored with the averaged weights, as PSNR and as a picture."""

from dataclasses import dataclass

import torch
from torch import Tensor

from macs.demo import enlarged, measured
from macs.metrics import psnr
from macs.models.consistency import ConsistencyModel
from macs.solver import Solver
from macs.steps import MacsD, Multistep
from macs.training.batches import OPERATORS

SHOWN = 8


@dataclass(frozen=True)
class Validation:
    """PSNR by task, and a picture, (H, W) or (H, W, 3): a row of truths, then measurements and restorations of each task."""

    psnr: dict[str, float]
    picture: Tensor

    def __str__(self) -> str:
        """The numbers on one line."""
        return " ".join(f"{value:.2f}" for value in self.psnr.values())


def validate(model: ConsistencyModel, images: Tensor, loss: str) -> Validation:
    """Restore images, uint8 (N, C, H, W), by two calls of a consistency function, or by one of a denoiser (``loss`` "edm")."""
    x = images.float() / 255
    solver = Solver(model, Multistep(), steps=1) if loss == "edm" else Solver(model, MacsD(), steps=2)
    quality, rows = {}, [x[:SHOWN]]
    device = next(model.parameters()).device
    for name in OPERATORS:
        y, physics = measured(x, name, seed=0)
        with torch.no_grad():
            restored = solver(y.to(device), physics.to(device), seed=0, ids=range(len(x))).cpu()
        quality[name] = psnr(restored, x).mean().item()
        rows += [enlarged(y[:SHOWN], x.shape[-1]), restored[:SHOWN]]
    grid = torch.cat([torch.cat(list(row), dim=-1) for row in rows], dim=-2)
    return Validation(quality, (grid.movedim(0, -1).squeeze(-1) * 255).round().to(torch.uint8))
