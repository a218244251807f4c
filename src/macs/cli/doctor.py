"""``macs doctor``: what is wrong with a measurement, before and after solving."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from macs.cli import options
from macs.cli.base import app, example


@app.command(
    epilog=example("macs doctor small.png --factor 2 --sigma-y 0.05", "macs doctor blurred.png --blur-std 3 --format json")
)
def doctor(
    image: Annotated[Path, typer.Argument(help="A measurement: an image file.", show_default=False)],
    task: options.Task = None,
    factor: options.Factor = None,
    mask: options.Mask = None,
    blur_std: options.BlurStd = None,
    kernel: options.Kernel = None,
    sigma_y: options.SigmaY = "auto",
    model: options.Model = "fashion-mnist",
    control: options.Control = None,
    seed: options.Seed = 0,
    format: options.Format = "human",
) -> None:
    """Check a measurement: range, noise level, operator; then solve it and check the solution's residual.

    Exit code 0: nothing is wrong; 1: something is.
    """
    told = options.degradation(task, factor, mask, blur_std, kernel)
    from macs.doctor import WRONG
    from macs.restore import Settings, examine_file

    settings = Settings(model, seed=seed, sigma_y=options.noise_level(sigma_y), control=control)
    findings = examine_file(image, told, settings)
    for finding in findings:
        if format == "json":
            typer.echo(json.dumps(asdict(finding)))
        elif format == "human" or finding.verdict == WRONG:
            typer.echo(f"{finding.verdict:<6} {finding.check:<11} {finding.says}")
    if any(finding.verdict == WRONG for finding in findings):
        raise typer.Exit(1)
