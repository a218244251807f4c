"""``macs compare``: several samplers on one image."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from macs.cli import options
from macs.cli.base import app, echo, example

if TYPE_CHECKING:
    from macs.compare import Panel


@app.command(
    epilog=example(
        "macs compare photo.png -o comparison.png --factor 2",
        "macs compare photo.png -o comparison.png --blur-std 3 --sampler macs-d --sampler multistep --sampler heun@20",
        "macs compare small.png -o comparison.png --factor 2 --measured --sigma-y auto",
    )
)
def compare(
    image: Annotated[Path, typer.Argument(help="A clean image, which is measured first; or, with --measured, a measurement.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The picture; a .json file of the numbers is written beside it.")],
    measured: Annotated[bool, typer.Option("--measured", help="The image is a measurement; its truth is unknown.")] = False,
    task: options.Task = None,
    factor: options.Factor = None,
    mask: options.Mask = None,
    blur_std: options.BlurStd = None,
    kernel: options.Kernel = None,
    sigma_y: options.SigmaY = "0.05",
    model: options.Model = "fashion-mnist",
    control: options.Control = None,
    sampler: Annotated[list[str] | None, typer.Option(help="NAME[:key=value,...][@STEPS]; may be given many times.")] = None,
    steps: options.Steps = 2,
    seed: options.Seed = 0,
    format: options.Format = "human",
) -> None:
    """Compare samplers on one image: a labelled picture, PSNR and SSIM to the truth, chi2 to the measurement."""
    told = options.degradation(task, factor, mask, blur_std, kernel)
    from macs.compare import USUAL, compare_file
    from macs.restore import Settings

    settings = Settings(model, steps=steps, seed=seed, sigma_y=options.noise_level(sigma_y), control=control)
    shown = compare_file(image, out, told, settings, sampler or USUAL, measured)
    for panel in shown if format == "json" else []:
        typer.echo(json.dumps(panel.record()))
    if format == "human":
        print_table(shown)
        for note in dict.fromkeys(note for panel in shown for note in panel.notes):
            typer.echo(f"note: {note}")
        echo(f"wrote {out} and {out.with_suffix('.json')}")


def print_table(shown: "list[Panel]") -> None:
    """The numbers on the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table("sampler", "NFE", "PSNR", "SSIM", "chi2", "seconds", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for panel in shown:
        values = [f"{v:{form}}" if v is not None else "" for v, form in zip(numbers(panel), FORMS, strict=True)]
        table.add_row(panel.name, *values)
    Console().print(table)


#: How the columns of the table are written.
FORMS = ("d", ".2f", ".3f", ".2f", ".2f")


def numbers(panel: "Panel") -> tuple[float | None, ...]:
    """The numbers of a panel in the order of the table."""
    return panel.nfe, panel.psnr, panel.ssim, panel.chi2, panel.seconds
