"""Options that several commands share, and how outcomes are shown."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from macs.cli.base import echo
from macs.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from macs.degradation import Degradation
    from macs.files import Outcome

Task = Annotated[
    str | None,
    typer.Option(help="super-resolution, inpainting or deblurring; the settings below tell it where they are given."),
]
Factor = Annotated[int | None, typer.Option(min=1, help="Super-resolution: how many times smaller the measurement is.")]
Mask = Annotated[Path | None, typer.Option(help="Inpainting: a picture, white where the image is known, black where not.")]
BlurStd = Annotated[float | None, typer.Option(help="Deblurring: the standard deviation of a Gaussian blur, in pixels.")]
Kernel = Annotated[Path | None, typer.Option(help="Deblurring: a picture of the blur kernel, with odd sides.")]
SigmaY = Annotated[
    str, typer.Option(help="The noise's deviation on images in [-1, 1], where an 8-bit step is 2/255; or auto: estimate it.")
]
Model = Annotated[
    str, typer.Option(help="A name that macs models list shows, a model file, a diffusers folder, or owner/name on the Hub.")
]
Control = Annotated[
    str | None,
    typer.Option(help="A ControlNet for the model and the task, a file or folder; else the bundled one, if any."),
]
SamplerName = Annotated[str, typer.Option(help="A sampler, with settings if any: macs-d, multistep, macs:gamma=0.4.")]
Steps = Annotated[int, typer.Option(min=1, help="Network calls, for samplers of one call per step.")]
Seed = Annotated[int, typer.Option(help="The seed of all noise.")]
Overlap = Annotated[int | None, typer.Option(min=0, help="The overlap of tiles in pixels; half a tile by default.")]
Format = Annotated[Literal["human", "json", "quiet"], typer.Option(help="json: one JSON object per line; quiet: only errors.")]


def degradation(
    task: str | None, factor: int | None, mask: Path | None, blur_std: float | None, kernel: Path | None
) -> "Degradation":
    """What the options say was done to the images."""
    from macs.degradation import Degradation

    return Degradation.told(task, factor=factor, mask=mask, blur_std=blur_std, kernel=kernel)


def noise_level(text: str) -> float | None:
    """A number, or None for ``auto``."""
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--sigma-y must be a number or auto; got {text!r}") from None


def show(outcome: "Outcome", format: str, said: "Callable[[Outcome], str]") -> None:
    """What became of one file; an error goes to stderr in any format."""
    if format == "json":
        extra = {"error": outcome.error} if outcome.error else outcome.record or {}
        typer.echo(json.dumps({"status": outcome.status, **extra, "input": str(outcome.source), "output": str(outcome.target)}))
    if outcome.error is not None:
        echo(f"error: {outcome.source}: {outcome.error}", err=True)
    elif format == "human":
        echo(f"{outcome.status:<7}  {outcome.source} -> {outcome.target}  {said(outcome)}")
