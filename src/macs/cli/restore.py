"""``macs restore``: image files that were reduced, masked or blurred."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from macs.cli import options
from macs.cli.base import app, echo, example

if TYPE_CHECKING:
    from macs.files import Outcome


@app.command(
    epilog=example(
        "macs restore small.png -o restored/ --factor 2",
        "macs restore photos/ -o restored/ --mask mask.png --samples 8",
        "macs restore blurred/ -o restored/ --blur-std 3 --sigma-y 0.05 --format json",
    )
)
def restore(
    inputs: Annotated[list[Path], typer.Argument(help="Measurements: image files, or folders of them.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder; or a .png file for one input.", show_default=False)],
    task: options.Task = None,
    factor: options.Factor = None,
    mask: options.Mask = None,
    blur_std: options.BlurStd = None,
    kernel: options.Kernel = None,
    sigma_y: options.SigmaY = "auto",
    model: options.Model = "fashion-mnist",
    control: options.Control = None,
    sampler: options.SamplerName = "macs-d",
    steps: options.Steps = 2,
    seed: options.Seed = 0,
    samples: Annotated[int, typer.Option(min=1, help="Draws; from 2 on their mean and deviation are written too.")] = 1,
    overlap: options.Overlap = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Redo what is done.")] = False,
    format: options.Format = "human",
) -> None:
    """Restore measured images: OUT/x.png and OUT/x.json for each x, what is done already skipped.

    Exit code 0: all done; 1: some failed, the others are done; 2: nothing was begun; 130: interrupted, the same command
    goes on.
    """
    settings_of = options.degradation(task, factor, mask, blur_std, kernel)
    from macs.files import SIDES, plan
    from macs.restore import Restorer, Settings, named_sampler, restore_files

    targets = plan(inputs, out, (mask, kernel), SIDES if samples > 1 else ())
    settings = Settings(model, named_sampler(sampler), steps, seed, samples, options.noise_level(sigma_y), overlap, control)
    restorer = Restorer(settings_of, settings)
    counts = {"done": 0, "skipped": 0, "failed": 0}
    notes: dict[str, None] = {}
    try:
        with progress(len(targets), format) as (on_start, on_tiles):
            for outcome in restore_files(targets, restorer, overwrite, on_start, on_tiles):
                counts[outcome.status] += 1
                notes |= dict.fromkeys((outcome.record or {}).get("notes", []))
                options.show(outcome, format, said)
    except KeyboardInterrupt:
        typer.echo(f"stopped after {counts['done']} images; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    if format == "human":
        summary(restorer.degradation.words(), counts, notes)
    if counts["failed"]:
        raise typer.Exit(1)


def said(outcome: "Outcome") -> str:
    """The numbers of one image."""
    record = outcome.record or {}
    chi2 = "unknown" if record["chi2"] is None else f"{record['chi2']:.2f}"
    noise = f"{record['sigma_y']:.3f}" + (" (estimated)" if record["sigma_y_estimated"] else "")
    spread = f"  spread {record['std']['mean']:.3f}" if "std" in record else ""
    return f"NFE {record['nfe']}  chi2 {chi2}  sigma_y {noise}{spread}  {record['seconds']:.1f} s"


def summary(degradation: str, counts: dict[str, int], notes: dict[str, None]) -> None:
    """What was done, in words."""
    echo(f"taken as {degradation}: {counts['done']} restored, {counts['skipped']} done before, {counts['failed']} failed")
    for note in list(notes)[:8]:
        typer.echo(f"note: {note}")
    if counts["done"]:
        typer.echo(
            "chi2 is the misfit in units of the noise: about 1 is right. An estimated sigma_y takes fine texture for noise;"
        )
        typer.echo("give --sigma-y where you know it. What was not measured is invented: plausible, not true.")


@contextmanager
def progress(total: int, format: str) -> Iterator[tuple[Callable[[Path, int], None], Callable[[int], None]]]:
    """A bar on a terminal, for the files and for the tiles of the present one; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=format == "quiet" or not console.is_terminal) as bar:
        files = bar.add_task("images", total=total, completed=-1)
        tiles = bar.add_task("tiles", total=1)

        def on_start(path: Path, calls: int) -> None:
            bar.advance(files)
            bar.reset(tiles, description=path.name, total=calls)

        yield on_start, lambda n: bar.advance(tiles, n)
