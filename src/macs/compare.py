"""Several samplers on one image: what each makes of the same measurement, in numbers and in one picture."""

import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from macs.degradation import Degradation
from macs.degrade import Measuring, enlarged, measured, quality, whole
from macs.errors import ConfigError
from macs.files import keep_apart, side_file
from macs.images import decode, read_bytes
from macs.restore import Restorer, Settings, named_sampler
from macs.steps import Multistep
from macs.training.checkpoint import write_atomically

#: What is compared where nothing is named.
USUAL = ("ddim", "multistep", "macs", "macs-d", "macs-d@3")
#: Panels in a row of the picture.
COLUMNS = 4


@dataclass(frozen=True)
class Panel:
    """An image (C, H, W) in [0, 1], its name, and its numbers where they are known."""

    name: str
    image: Tensor
    nfe: int | None = None
    psnr: float | None = None
    ssim: float | None = None
    chi2: float | None = None
    seconds: float | None = None
    notes: tuple[str, ...] = ()

    def caption(self) -> str:
        """The name, and the numbers below it."""
        numbers = [
            "" if self.psnr is None else f"{self.psnr:.2f} dB", "" if self.ssim is None else f"SSIM {self.ssim:.3f}",
            "" if self.chi2 is None else f"chi2 {self.chi2:.2f}",
        ]  # fmt: skip
        calls = "" if self.nfe is None else f" ({self.nfe} calls)"
        return f"{self.name}{calls}\n{'  '.join(filter(None, numbers))}"

    def record(self) -> dict[str, Any]:
        """The numbers for a JSON file."""
        return {key: value for key, value in vars(self).items() if key != "image"}


def panels(
    y: Tensor, truth: Tensor | None, degradation: Degradation, settings: Settings, samplers: Sequence[str], model: Any
) -> Iterator[Panel]:
    """The truth where it is known, the measurement, and the restoration by each sampler, all from the same noise.

    Args:
        y: the measurement, (C, h, w) on [0, 1].
        truth: the image it was made from, (C, H, W), or None.
        degradation: what was done to it, with no setting left open.
        settings: the rest; each sampler takes the place of theirs.
        samplers: as in :func:`macs.restore.named_sampler`, and ``@STEPS`` for another number of steps.
        model: as from ``macs.load``.
    """
    cast = {text: step_settings(text, settings) for text in samplers}
    size = (y.shape[1] * degradation.scale, y.shape[2] * degradation.scale)
    if truth is not None:
        yield Panel("truth", truth)
    seen = enlarged(y, size)
    yield Panel("measurement", seen, **({} if truth is None else quality(seen, truth)))
    started(y, degradation, settings, model)
    for text, chosen in cast.items():
        restored = Restorer(degradation, chosen, model)(y)
        numbers = {} if truth is None else quality(restored.image, truth)
        known = {key: restored.record[key] for key in ("nfe", "chi2", "seconds")}
        yield Panel(text, restored.image, **known, **numbers, notes=tuple(restored.record["notes"]))


def started(y: Tensor, degradation: Degradation, settings: Settings, model: Any) -> None:
    """Restore once in one step, so that no sampler's time holds what the first of all calls costs."""
    Restorer(degradation, replace(settings, sampler=Multistep(), steps=1, samples=1), model)(y)


def step_settings(text: str, settings: Settings) -> Settings:
    """The settings with the sampler, and the steps, that ``NAME[:key=value,...][@STEPS]`` names."""
    name, _, steps = text.partition("@")
    if steps and not steps.isdecimal():
        raise ConfigError(f"a number of steps must follow @; got {text!r}; write it like macs-d@3")
    return replace(settings, sampler=named_sampler(name), steps=int(steps) if steps else settings.steps)


def figure(shown: Sequence[Panel], title: str) -> bytes:
    """The panels as a labelled picture, PNG."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    height, width = shown[0].image.shape[1:]
    page = Figure(figsize=(2.5 * columns, (2.5 * height / width + 0.55) * rows + 0.4), dpi=150, layout="constrained")
    page.suptitle(title.encode(errors="backslashreplace").decode(), fontsize=9, parse_math=False)
    axes = list(page.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.set_axis_off()
    for axis, panel in zip(axes, shown, strict=False):
        pixels = panel.image.permute(1, 2, 0).numpy()
        axis.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(panel.caption(), fontsize=8)
    file = io.BytesIO()
    page.savefig(file, format="png")
    return file.getvalue()


def check_target(out: Path, sources: Sequence[Path]) -> None:
    """Refuse to replace a file that is read, or anything but an earlier comparison."""
    keep_apart([out], sources)
    beside = side_file(out, "json")
    if not out.exists() and not beside.exists():
        return
    try:
        earlier = "panels" in json.loads(beside.read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        earlier = False
    if not earlier:
        raise ConfigError(f"{out if out.exists() else beside} is there and is no comparison; give another name, or remove it")


def compare_file(
    path: Path, out: Path, degradation: Degradation, settings: Settings, samplers: Sequence[str], is_measurement: bool
) -> list[Panel]:
    """Compare samplers on the image in a file, measured first or itself a measurement; write picture and numbers."""
    if out.suffix.lower() != ".png":
        raise ConfigError(f"the picture must be named .png; got {out.name!r}")
    if not is_measurement and settings.sigma_y is None:
        raise ConfigError("the noise that is added must be a number; got auto; give --sigma-y VALUE, or --measured")
    check_target(out, [file for file in (path, degradation.mask, degradation.kernel) if file is not None])
    model = settings.network(degradation.task)
    degradation = degradation.for_model(model.image_shape[-1])
    y = decode(read_bytes(path), channels=None).float() / 255
    truth = None if is_measurement else whole(y, degradation.scale)
    if truth is not None:
        y = measured(truth, degradation, Measuring(settings.sigma_y or 0.0, settings.seed))
    shown = list(panels(y, truth, degradation, settings, samplers, model))
    noise = "noise estimated" if settings.sigma_y is None else f"noise {settings.sigma_y:g} on [-1, 1]"
    config = {**degradation.record(), **settings.record(), **settings.weights(degradation.task)}
    record = {"input": str(path), **config, "panels": [panel.record() for panel in shown]}
    del record["sampler"], record["samples"]
    try:
        write_atomically(out, figure(shown, f"{path.name}, {degradation.words()}, {noise}"))
        write_atomically(side_file(out, "json"), (json.dumps(record, indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror}); check the folder") from error
    return shown
