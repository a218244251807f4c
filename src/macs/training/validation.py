"""How a run is doing: held-out images restored with the averaged weights, as PSNR and as a picture."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from macs.demo import enlarged
from macs.macs_d import MacsD
from macs.metrics import psnr
from macs.models.consistency import ConsistencyModel
from macs.noise import Noise
from macs.problem import to_image
from macs.solver import Solver
from macs.steps import Multistep

SHOWN = 8


@dataclass(frozen=True)
class Validation:
    """PSNR by task, and a picture, uint8, (H, W) or (H, W, 3)."""

    psnr: dict[str, float]
    picture: Tensor

    def __str__(self) -> str:
        """The numbers on one line."""
        return ", ".join(f"{name} {value:.2f} dB" for name, value in self.psnr.items()) or "samples"


def restored(model: ConsistencyModel, x: Tensor, measurements: dict[str, tuple[Tensor, Any]], loss: str) -> Validation:
    """Images in [0, 1] restored by two calls of a consistency function, or by one of a denoiser (``loss`` "edm").

    The picture is a row of truths, then measurements and restorations of each task.
    """
    solver = Solver(model, Multistep(), steps=1) if loss == "edm" else Solver(model, MacsD(), steps=2)
    quality, rows = {}, [x]
    device = next(model.parameters()).device
    for name, (y, physics) in measurements.items():
        with torch.no_grad():
            out = solver(y.to(device), physics.to(device), sigma_y=0.05, seed=0, ids=range(len(x))).cpu()
        quality[name] = psnr(out, x).mean().item()
        rows += [enlarged(y, x.shape[-1]), out]
    return Validation(quality, picture(rows))


def sampled(model: ConsistencyModel, rows: int = 3) -> Validation:
    """Images of an unconditional model, by two calls."""
    device = next(model.parameters()).device
    shape = torch.empty(rows * SHOWN, *model.image_shape)
    noise = Noise(0, range(len(shape)))
    with torch.no_grad():
        x = model((model.t_max * noise.at(0).like(shape)).to(device), None, model.t_max).clamp(-1, 1)
        x = model(x + 0.8 * noise.at(1).like(shape).to(device), None, 0.8)
    return Validation({}, picture(list(to_image(x.cpu()).split(SHOWN))))


def picture(rows: list[Tensor]) -> Tensor:
    """Rows of images in [0, 1] as one picture, the first few of each."""
    grid = torch.cat([torch.cat(list(row[:SHOWN]), dim=-1) for row in rows], dim=-2)
    return (grid.movedim(0, -1).squeeze(-1) * 255).round().to(torch.uint8)
