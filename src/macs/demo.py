"""The demonstration: bundled images, every task, every sampler; one table, one picture, one page."""

import base64
import io
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch
from deepinv.physics import Inpainting
from torch import Tensor

from macs.data import examples
from macs.errors import MacsWarning
from macs.macs_d import MacsD
from macs.metrics import psnr, ssim
from macs.models.store import load
from macs.noise import Noise
from macs.solver import Solver
from macs.steps import Addim, Ddim, DpmSolver, Euler, Heun, Macs, Multistep, Sampler
from macs.tasks import TASKS, NoisyHole, task
from macs.training.checkpoint import write_atomically

#: What the demonstration runs: a label, a sampler, its steps.
CAST: dict[str, tuple[Sampler, int]] = {
    "DPM-Solver, 8 steps": (DpmSolver(), 8),
    "Heun, 20 steps": (Heun(), 20),
    "Euler": (Euler(), 2),
    "DDIM": (Ddim(), 2),
    "aDDIM": (Addim(), 2),
    "Multistep": (Multistep(), 2),
    "MACS": (Macs(gamma=0.15), 2),
    "MACS-D": (MacsD(), 2),
    "MACS-D, 3 calls": (MacsD(), 3),
}


@dataclass(frozen=True)
class Row:
    """One sampler on one task: means over the images, and the images."""

    task: str
    sampler: str
    nfe: int
    psnr: float
    ssim: float
    chi2: float | None
    seconds: float
    images: Tensor


def enlarged(y: Tensor, size: int) -> Tensor:
    """A measurement as a picture of the image's size, by repeating its pixels."""
    return torch.nn.functional.interpolate(y, size=(size, size), mode="nearest").clamp(0, 1)


def measured(x: Tensor, name: str, seed: int) -> tuple[Tensor, torch.nn.Module]:
    """A task and its measurement of images, with noise from this seed alone."""
    physics = task(name, image_shape=(x.shape[1], x.shape[2], x.shape[3]))
    return noisy(x, physics, seed), physics


def noisy(x: Tensor, physics: Any, seed: int, first: int = 0) -> Tensor:
    """What a physics measures of images, with noise from this seed alone; ``first`` is the number of the first image."""
    clean = physics.A(x)
    noise = Noise(seed, range(first, first + len(x))).of_measurement.like(clean) * physics.noise_model.sigma
    masked = isinstance(physics, Inpainting) and not isinstance(physics, NoisyHole)
    return (clean + noise) * (physics.mask if masked else 1)


def rows(seed: int = 0) -> Iterator[Row]:
    """The measurement itself and every sampler, task by task."""
    model, x = load("fashion-mnist"), examples("fashion-mnist")
    for name in TASKS:
        y, physics = measured(x, name, seed)
        seen = enlarged(y, x.shape[-1])
        yield Row(name, "measurement", 0, psnr(seen, x).mean().item(), ssim(seen, x).mean().item(), None, 0.0, seen)
        for label, (sampler, steps) in CAST.items():
            solver = Solver(model, sampler, steps=steps)
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MacsWarning)
                restored, trace = solver(y, physics, seed=seed, ids=range(len(x)), trace=True)
            spent = (time.perf_counter() - start) / len(x)
            quality = psnr(restored, x).mean().item(), ssim(restored, x).mean().item(), trace.final_chi2.mean().item()
            yield Row(name, label, trace.nfe[-1], *quality, spent, restored)


def mosaic(images: Tensor, side: int = 2) -> Tensor:
    """The first images as one square, (side * H, side * W)."""
    rows = [torch.cat(list(images[i * side : (i + 1) * side, 0]), dim=1) for i in range(side)]
    return torch.cat(rows)


def picture(table: list[Row]) -> bytes:
    """Truth, measurement and every sampler in columns, a row per task, four images in each cell; a PNG."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    x = examples("fashion-mnist")
    labels = ["truth", *dict.fromkeys(row.sampler for row in table)]
    images = {(row.task, row.sampler): row.images for row in table}
    figure, axes = plt.subplots(len(TASKS), len(labels), figsize=(1.2 * len(labels), 1.25 * len(TASKS) + 0.4), dpi=150)
    for i, name in enumerate(TASKS):
        for j, label in enumerate(labels):
            cell = x if label == "truth" else images[name, label]
            axes[i, j].imshow(mosaic(cell).numpy(), cmap="gray", vmin=0, vmax=1)
            axes[i, j].set_xticks([])
            axes[i, j].set_yticks([])
            if i == 0:
                axes[i, j].set_title(label.replace(", ", ",\n"), fontsize=8)
        axes[i, 0].set_ylabel(name, fontsize=9)
    figure.tight_layout(pad=0.3)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    plt.close(figure)
    return file.getvalue()


def page(table: list[Row], png: bytes) -> str:
    """The report: the picture and the table, in one file that needs no other."""
    cells = "\n".join(
        f"<tr><td>{escape(r.task)}</td><td>{escape(r.sampler)}</td><td>{r.nfe}</td><td>{r.psnr:.2f}</td>"
        f"<td>{r.ssim:.3f}</td><td>{'' if r.chi2 is None else f'{r.chi2:.2f}'}</td></tr>"
        for r in table
    )
    source = base64.b64encode(png).decode()
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>macs demo</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em}}img{{max-width:100%}}
table{{border-collapse:collapse}}td,th{{padding:.2em .8em;text-align:right}}
td:nth-child(-n+2),th:nth-child(-n+2){{text-align:left}}
tr:nth-child(even){{background:#8881}}</style>
<h1>Images restored from degraded measurements</h1>
<p>Ten Fashion-MNIST test images that no network here was trained on, each measured with noise of 0.05 on [-1, 1] and
restored by the same network with different samplers. NFE is the number of network evaluations, counted. chi2 is the misfit to
the measurement in units of its noise: about 1 is right, far above 1 ignores the measurement, far below 1 fits its noise.</p>
<img alt="truth, measurement and restorations" src="data:image/png;base64,{source}">
<table><tr><th>task</th><th>sampler</th><th>NFE</th><th>PSNR</th><th>SSIM</th><th>chi2</th></tr>
{cells}
</table></html>
"""


def write(table: list[Row], folder: Path) -> tuple[Path, Path]:
    """The picture and the page."""
    comparison, report = folder / "comparison.png", folder / "report.html"
    png = picture(table)
    write_atomically(comparison, png)
    write_atomically(report, page(table, png).encode())
    return comparison, report
