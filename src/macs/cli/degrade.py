"""``macs degrade``: measurements of clean images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from macs.cli import options
from macs.cli.base import app, echo, example

if TYPE_CHECKING:
    from macs.files import Outcome


@app.command(
    epilog=example(
        "macs degrade photo.png -o measured/ --factor 2",
        "macs degrade photos/ -o measured/ --blur-std 3 --sigma-y 0.1 --seed 1",
        "macs restore measured/ -o restored/ --blur-std 3 --sigma-y 0.1",
    )
)
def degrade(
    inputs: Annotated[list[Path], typer.Argument(help="Clean images: files, or folders of them.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder; or a .png file for one input.", show_default=False)],
    task: options.Task = None,
    factor: options.Factor = None,
    mask: options.Mask = None,
    blur_std: options.BlurStd = None,
    kernel: options.Kernel = None,
    sigma_y: Annotated[float, typer.Option(min=0, help="The noise to add: its deviation on images in [-1, 1].")] = 0.05,
    size: Annotated[int, typer.Option(min=1, help="The model's image side, which picks the paper's settings.")] = 28,
    seed: options.Seed = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Redo what is done.")] = False,
    format: options.Format = "human",
) -> None:
    """Make measurements of clean images: OUT/x.png, and OUT/x.json with what was lost.

    Exit code 0: all done; 1: some failed, the others are done; 2: nothing was begun.
    """
    told = options.degradation(task, factor, mask, blur_std, kernel).for_model(size)
    from macs.degrade import Measuring, degrade_files
    from macs.files import plan

    told.options()
    outcomes = degrade_files(plan(inputs, out, (mask, kernel)), told, Measuring(sigma_y, seed), overwrite)
    failed = False
    for outcome in outcomes:
        failed |= outcome.status == "failed"
        options.show(outcome, format, said)
    if format == "human":
        echo(f"{told.words()}, with noise of {sigma_y:g} on [-1, 1]")
    if failed:
        raise typer.Exit(1)


def said(outcome: "Outcome") -> str:
    """How far the measurement is from the truth."""
    record = outcome.record or {}
    values = record["measurement_against_truth"]
    numbers = "  ".join(f"{name.upper()} {value:.2f}" for name, value in values.items() if value is not None)
    cut = f"  {100 * record['share_cut']:.0f} % cut at black or white" if record["share_cut"] > 0.005 else ""
    return numbers + cut + "".join(f"  ({note})" for note in record["notes"])
