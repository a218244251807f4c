"""Measure clean images: make what ``macs restore`` takes, and a record of what was lost."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.functional import interpolate

from macs.degradation import Degradation
from macs.errors import ConfigError
from macs.files import Outcome, each_file
from macs.images import decode, encode
from macs.metrics import psnr, ssim
from macs.noise import content_ids
from macs.tasks import SIGMA_Y


@dataclass(frozen=True)
class Measuring:
    """The noise of new measurements, on images in [-1, 1], and its seed."""

    sigma_y: float = SIGMA_Y
    seed: int = 0


def whole(x: Tensor, scale: int) -> Tensor:
    """An image (C, H, W) without the last rows and columns that a reduction by ``scale`` would leave over."""
    if min(x.shape[1:]) < scale:
        raise ConfigError(
            f"an image to be reduced by {scale} must have {scale} pixels a side; this one has {x.shape[2]}x{x.shape[1]}; "
            "leave it out"
        )
    return x[:, : x.shape[1] // scale * scale, : x.shape[2] // scale * scale]


def measured(x: Tensor, degradation: Degradation, measuring: Measuring) -> Tensor:
    """A measurement of an image (C, H, W) in [0, 1], not cut to [0, 1]; its noise depends on the image and the seed alone."""
    return degradation.measure(x, measuring.sigma_y, measuring.seed, content_ids(x[None])[0])


def enlarged(y: Tensor, size: tuple[int, int]) -> Tensor:
    """A measurement (C, h, w) as a picture of the image's size, by repeating its pixels."""
    return interpolate(y[None], size=size, mode="nearest")[0].clamp(0, 1)


def quality(x: Tensor, truth: Tensor) -> dict[str, Any]:
    """PSNR (None for equal images) and SSIM (None below its window of 11 pixels) of images (C, H, W) in [0, 1]."""
    value = float(psnr(x[None], truth[None]))
    similar = float(ssim(x[None], truth[None])) if min(x.shape[1:]) >= 11 else None
    return {"psnr": value if value < float("inf") else None, "ssim": similar}


def degrade_files(
    targets: dict[Path, Path], degradation: Degradation, measuring: Measuring, overwrite: bool = False
) -> Iterator[Outcome]:
    """Measure file after file. An 8-bit file cannot hold what noise pushes past black and white; the record says how much."""

    def make(source: Path, data: bytes) -> tuple[dict[str, bytes], dict[str, Any]]:
        full = decode(data, channels=None).float() / 255
        x = whole(full, degradation.scale)
        y = measured(x, degradation, measuring)
        notes = [] if x.shape == full.shape else [f"cut to {x.shape[2]}x{x.shape[1]} pixels, a multiple of {degradation.scale}"]
        record = {
            "measurement_against_truth": quality(enlarged(y, (x.shape[1], x.shape[2])), x),
            "share_cut": float(((y < 0) | (y > 1)).float().mean()), "notes": notes,
        }  # fmt: skip
        return {"png": encode(y)}, record

    return each_file(targets, {**degradation.record(), **asdict(measuring)}, make, overwrite)
