"""What the page's controls do, without the page: choose an image, degrade it, restore it, put the result into pictures.

Uploads are bounded in bytes and pixels and decoded by :mod:`macs.images`. A call depends on its arguments alone.
"""

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from macs.compare import step_settings
from macs.degradation import Degradation
from macs.degrade import Measuring, enlarged, measured, quality, whole
from macs.errors import ConfigError
from macs.images import encode, opened, to_tensor
from macs.models.manifest import digest
from macs.restore import Restored, Restorer, Settings

MAX_BYTES = 8 * 2**20
MAX_PIXELS = 2**24
#: Larger images are averaged down to this side, or to two tiles of a larger model: what is restored in seconds.
MAX_SIDE = 112
#: The least side of a picture on the page.
SHOWN = 336
EXAMPLES = Path(__file__).parent / "examples"
TASKS = ("super-resolution", "inpainting", "deblurring")
SAMPLERS = ("macs-d", "macs-d@3", "multistep", "ddim", "macs", "heun@20")
#: A folder of this process for the masks that visitors draw and the files that they download.
SCRATCH = tempfile.TemporaryDirectory(prefix="macs-page-")
#: Seconds for which such a file is kept.
KEPT = 3600


def examples_of(model: str) -> dict[str, Path]:
    """The bundled images for a model by name; those of fashion-mnist for a model that has none."""
    own = sorted((EXAMPLES / Path(model).name).glob("*.png"))
    return {path.stem: path for path in own or sorted((EXAMPLES / "fashion-mnist").glob("*.png"))}


def bundled_image(example: str | None, model: str, side: int) -> tuple[Tensor, str]:
    """A bundled image for a model of this side, enlarged where it is smaller, and a note on that."""
    known = examples_of(model)
    if example not in known:
        raise ConfigError(f"there is no bundled image {example!r}; choose one from the list, or upload one")
    image = opened(known[example].read_bytes(), None)
    if min(image.size) >= side:
        return to_tensor(image).float() / 255, ""
    ratio = side / min(image.size)
    size = (round(image.width * ratio), round(image.height * ratio))
    note = f"{image.width}x{image.height} pixels were enlarged to {size[0]}x{size[1]}, the model's size"
    return to_tensor(image.resize(size, Image.Resampling.BICUBIC)).float() / 255, note


def uploaded_image(upload: bytes, side: int) -> tuple[Tensor, str]:
    """A visitor's image for a model of this side, averaged down where it is large, and a note on that."""
    if len(upload) > MAX_BYTES:
        raise ConfigError(f"an upload may have {MAX_BYTES:,} bytes; this one has {len(upload):,}; reduce it first")
    image = opened(upload, None, MAX_PIXELS)
    ratio = max(MAX_SIDE, 2 * side) / max(image.size)
    if ratio >= 1:
        return to_tensor(image).float() / 255, ""
    size = (max(round(image.width * ratio), 1), max(round(image.height * ratio), 1))
    note = f"{image.width}x{image.height} pixels were averaged down to {size[0]}x{size[1]}"
    return to_tensor(image.resize(size, Image.Resampling.BOX)).float() / 255, note


def shown(x: Tensor) -> str:
    """An image (C, H, W) as a file for the page, its pixels repeated until it is large enough to see.

    Gradio would write an array to a file named by its content, over that which another visitor may be fetching.
    """
    times = max(1, SHOWN // max(x.shape[1:]))
    big = x.expand(3, -1, -1).repeat_interleave(times, 1).repeat_interleave(times, 2)
    return str(kept("shown", encode(big)))


def drawn_mask(drawing: Any, size: tuple[int, int]) -> Tensor | None:
    """1 where nothing was drawn and 0 where most of a pixel was covered, (H, W); None for an empty drawing."""
    layers = (drawing or {}).get("layers") or []
    shapes = {layer.shape for layer in layers}
    if len(shapes) > 1 or any(len(shape) != 3 or shape[2] != 4 for shape in shapes):
        raise ConfigError(f"a drawing must be of RGBA layers of one size; got {sorted(shapes)}; clear it and draw again")
    covered = sum(layer[..., 3] > 0 for layer in layers) > 0 if layers else None
    if covered is None or not covered.any():
        return None
    return (interpolate(torch.from_numpy(covered).float()[None, None], size=size, mode="area")[0, 0] < 0.5).float()


def hole_mask(size: tuple[int, int], percent: float) -> Tensor:
    """0 in a central rectangle of so many per cent of each side, else 1, (H, W)."""
    mask = torch.ones(size)
    h, w = (round(n * percent / 100) for n in size)
    top, left = (size[0] - h) // 2, (size[1] - w) // 2
    mask[top : top + h, left : left + w] = 0
    return mask


def degradation(task: str, factor: int, std: float, hole: float, drawing: Any, x: Tensor) -> Degradation:
    """What the controls say."""
    if task == "super-resolution":
        return Degradation(task, factor=int(factor))
    if task == "deblurring":
        return Degradation(task, blur_std=float(std))
    size = (x.shape[1], x.shape[2])
    mask = drawn_mask(drawing, size)
    return Degradation(task, mask=kept("mask", encode((hole_mask(size, hole) if mask is None else mask)[None])))


def kept(kind: str, content: bytes, ending: str = "png") -> Path:
    """A file of this process with this content, whole from the first moment; the same content is the same file."""
    prune()
    path = Path(SCRATCH.name) / f"{kind}-{digest(content)[:16]}.{ending}"
    with tempfile.NamedTemporaryFile(dir=SCRATCH.name, delete=False) as beside:
        beside.write(content)
    os.replace(beside.name, path)
    return path


def prune() -> None:
    """Remove the files that have been kept long enough."""
    oldest = time.time() - KEPT
    for path in Path(SCRATCH.name).iterdir():
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest:
                path.unlink()


def checked(values: dict[str, Any]) -> list[float]:
    """The values of controls that hold a number; an empty one has none."""
    for name, value in values.items():
        if not isinstance(value, int | float):
            raise ConfigError(f"{name} must be a number; the box is empty; write one into it, such as 1")
    return list(values.values())


def in_words(told: Degradation) -> str:
    """The degradation in words; a mask by how much it hides, not by the name of its file."""
    if told.task != "inpainting":
        return told.words()
    return f"{100 * (1 - float(told.options()['mask'].mean())):.0f} % of the pixels are missing"


class Page:
    """What the page's controls call; each call depends on its arguments alone."""

    def __init__(self, model: str = "fashion-mnist", controls: dict[str, str] | None = None) -> None:
        given = {task: Settings(model, control=(controls or {}).get(task)) for task in TASKS}
        tasks = {settings.control_for(task): task for task, settings in given.items()}
        networks = {control: given[task].network(task) for control, task in tasks.items()}
        self.name = model
        self.models = {task: networks[settings.control_for(task)] for task, settings in given.items()}
        self.weights = {task: settings.weights(task) for task, settings in given.items()}
        self.side: int = self.models[TASKS[0]].image_shape[-1]

    def chosen(self, example: str | None, upload: bytes | None) -> tuple[Tensor, str]:
        """The clean image (C, H, W) in [0, 1] that a visitor chose, and what was done to it."""
        return bundled_image(example, self.name, self.side) if upload is None else uploaded_image(upload, self.side)

    def problem(self, example: Any, upload: Any, drawing: Any, *controls: Any) -> tuple[Tensor, Tensor, Degradation, str]:
        """The clean image, its measurement, the degradation and a note."""
        task = controls[0]
        names = ("the reduction", "the blur", "the hole", "the noise", "the seed")
        factor, std, hole, sigma_y, seed = checked(dict(zip(names, controls[1:], strict=True)))
        x, note = self.chosen(example, upload)
        told = degradation(task, int(factor), std, hole, drawing, x)
        x = whole(x, told.scale)
        if min(x.shape[1:]) < self.side:
            size = f"{self.side}x{self.side}"
            raise ConfigError(f"an image must have at least {size} pixels; this one has {x.shape[2]}x{x.shape[1]}")
        return x, measured(x, told, Measuring(float(sigma_y), int(seed))), told, note

    def restored(self, told: Degradation, y: Tensor, samplers: list[str], settings: Settings) -> dict[str, Restored]:
        """What each sampler makes of a measurement."""
        if not samplers:
            raise ConfigError("choose at least one sampler")
        return {text: Restorer(told, step_settings(text, settings), self.models[told.task])(y) for text in samplers}


def curve(results: dict[str, Restored]) -> Any:
    """chi2 of the network's output at each call, and of the returned image, for every sampler."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=(6, 3.2), dpi=110, layout="constrained")
    figure.suptitle(" ", fontsize=8)
    axis = figure.subplots()
    for name, result in results.items():
        trace = result.trace
        final = [] if trace.final_chi2 is None else [trace.final_chi2.mean()]
        axis.plot([*trace.nfe, trace.nfe[-1] + 0.5], [float(c.mean()) for c in (*trace.chi2, *final)], "o-", label=name, ms=3)
    axis.axhline(1, color="grey", lw=0.8, ls=":")
    axis.set(xlabel="network call (the last point is the result)", ylabel="chi2", yscale="log")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    for which in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        which(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axis.legend(fontsize=8)
    return figure


def summary(x: Tensor, y: Tensor, results: dict[str, Restored]) -> list[dict[str, Any]]:
    """The numbers of the measurement and of each sampler."""
    seen = quality(enlarged(y, (x.shape[1], x.shape[2])), x)
    rows: list[dict[str, Any]] = [{"name": "measurement", "nfe": None, "chi2": None, "seconds": None, **seen}]
    for name, result in results.items():
        numbers = {key: result.record[key] for key in ("nfe", "chi2", "seconds")}
        rows.append({"name": name, **numbers, **quality(result.image, x)})
    return rows


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The numbers as text, a row each."""
    forms = {"name": "", "nfe": "d", "psnr": ".2f", "ssim": ".3f", "chi2": ".2f", "seconds": ".2f"}
    return [["" if row[key] is None else f"{row[key]:{form}}" for key, form in forms.items()] for row in rows]
