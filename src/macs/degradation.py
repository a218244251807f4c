"""What was done to an image that lies in a file: reduced, masked or blurred, and how."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from macs.errors import ConfigError, MacsError, unknown
from macs.images import decode, read_bytes
from macs.models.manifest import digest
from macs.noise import Noise
from macs.noise_level import estimate_sigma_y
from macs.tasks import TASKS, default_factor, default_std, task

#: The sides of images whose reduction or Gaussian blur is factorised within a minute.
MAX_SIDE = 2048
#: A Gaussian blur in pixels: below this nothing is blurred, above it no image of that side has anything left.
LEAST_STD, LARGEST_STD = 0.1, float(MAX_SIDE)
#: Which task each setting belongs to.
OWNERS = {"factor": "super-resolution", "mask": "inpainting", "blur_std": "deblurring", "kernel": "deblurring"}


@dataclass(frozen=True)
class Degradation:
    """A task and its settings; those that are None are the paper's for a model's size.

    Args:
        task: a name of ``macs.TASKS``.
        factor: of a reduction.
        mask: a picture, white where the image is known and black where it is not.
        blur_std: of a Gaussian blur, in pixels.
        kernel: a picture of a blur kernel, of odd sides; it is scaled to sum 1.
    """

    task: str
    factor: int | None = None
    mask: Path | None = None
    blur_std: float | None = None
    kernel: Path | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise unknown("task", self.task, TASKS)
        for name, owner in OWNERS.items():
            if getattr(self, name) is not None and owner != self.task:
                raise ConfigError(f"{name} belongs to {owner}; the task is {self.task}; leave one of them out")
        if self.blur_std is not None and self.kernel is not None:
            raise ConfigError("a blur is given by blur_std or by kernel; got both; leave one of them out")
        if self.blur_std is not None and not LEAST_STD <= self.blur_std <= LARGEST_STD:
            raise ConfigError(
                f"blur_std must be from {LEAST_STD:g} to {LARGEST_STD:g}; got {self.blur_std:g}; "
                "it is the blur's standard deviation in pixels"
            )

    @classmethod
    def told(cls, task: str | None, **settings: Any) -> "Degradation":
        """From what a user said; a setting tells its task."""
        said = [name for name in OWNERS if settings.get(name) is not None]
        if task is None and not said:
            raise ConfigError(
                "say what was done to the images: --factor N (reduced), --mask FILE (parts missing), "
                "--blur-std VALUE or --kernel FILE (blurred), or --task NAME with the paper's setting"
            )
        return cls(OWNERS[said[0]] if task is None else task, **settings)

    def for_model(self, side: int) -> "Degradation":
        """With the paper's settings for images of ``side`` pixels in place of None."""
        if self.task == "super-resolution" and self.factor is None:
            return replace(self, factor=default_factor(side))
        if self.task == "deblurring" and self.blur_std is None and self.kernel is None:
            return replace(self, blur_std=default_std(side))
        return self

    @property
    def scale(self) -> int:
        """How many pixels of the image a side of a measured pixel spans."""
        return (self.factor or 1) if self.task == "super-resolution" else 1

    def check_size(self, shape: tuple[int, int, int]) -> None:
        """Refuse an image (C, H, W) whose operator would have to be factorised and is too large for that."""
        factorised = self.task != "inpainting" and self.kernel is None
        if factorised and max(shape[1:]) > MAX_SIDE:
            raise ConfigError(
                f"an image that is reduced, or blurred by a Gaussian, may have {MAX_SIDE} pixels a side; "
                f"this one has {shape[2]}x{shape[1]}; cut it first"
            )

    def physics(self, shape: tuple[int, int, int], sigma_y: float) -> Any:
        """The operator on images of ``shape`` (C, H, W)."""
        self.check_size(shape)
        return cached_physics(self, shape, sigma_y)

    def options(self) -> dict[str, Any]:
        """The settings as ``macs.task`` takes them."""
        if self.task == "super-resolution":
            return {"factor": self.factor}
        if self.task == "inpainting":
            return {"mask": None if self.mask is None else read_mask(self.mask)}
        return {"std": self.blur_std, "kernel": None if self.kernel is None else read_grey(self.kernel)}

    def sigma_y(self, y: Tensor) -> float:
        """The noise of a measurement (C, h, w) in [0, 1], estimated from itself on images in [-1, 1]."""
        if self.task != "inpainting":
            return estimate_sigma_y(y)
        return estimate_sigma_y(y, self.physics((1, *y.shape[1:]), 0.0).mask[0, 0])

    def measure(self, x: Tensor, sigma_y: float, seed: int, name: str) -> Tensor:
        """A measurement of an image (C, H, W) in [0, 1], with noise from (seed, name) alone."""
        physics = self.physics((x.shape[0], x.shape[1], x.shape[2]), sigma_y)
        clean = physics.A(x[None])
        noise = Noise(seed, [name]).of_measurement.like(clean) * sigma_y / 2
        return (clean + (noise * physics.mask if self.task == "inpainting" else noise))[0]

    def words(self) -> str:
        """The degradation in words."""
        if self.task == "super-resolution":
            return f"reduced by {self.factor}, bicubic"
        if self.task == "inpainting":
            where = "in the central square of half the side" if self.mask is None else f"where {self.mask.name} is black"
            return f"missing {where}"
        if self.kernel is not None:
            return f"blurred by {self.kernel.name}"
        return f"blurred by a Gaussian of standard deviation {self.blur_std:g} pixels"

    def record(self) -> dict[str, Any]:
        """The degradation for a JSON file; pictures are named by file and SHA-256."""
        settings = {name: getattr(self, name) for name in OWNERS if getattr(self, name) is not None}
        files = {k: {"file": str(v), "sha256": digest(read_bytes(v))} for k, v in settings.items() if isinstance(v, Path)}
        return {"task": self.task, **settings, **files}


@lru_cache(maxsize=2)
def cached_physics(degradation: Degradation, shape: tuple[int, int, int], sigma_y: float) -> Any:
    """The operator, kept for the next image of the same size."""
    return task(degradation.task, image_shape=shape, sigma_y=sigma_y, **degradation.options())


def read_grey(path: Path) -> Tensor:
    """A picture's brightness in [0, 1], (H, W)."""
    try:
        return decode(read_bytes(path), channels=1)[0].float() / 255
    except MacsError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_mask(path: Path) -> Tensor:
    """1 where a picture is brighter than mid-grey, else 0, (H, W)."""
    return (read_grey(path) > 0.5).to(torch.float32)
