"""``macs bench``: the paper's tables and figures, row by row."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from macs.cli.base import app, example
from macs.errors import ConfigError, unknown

if TYPE_CHECKING:
    from macs.benchmark.bench import Bench


def listed(text: str | None) -> list[str] | None:
    """Names separated by semicolons (labels hold commas), each once."""
    return None if text is None else list(dict.fromkeys(name.strip() for name in text.split(";") if name.strip()))


def by_task(text: str | None) -> dict[str, str]:
    """Paths by task, ``task=path`` separated by semicolons."""
    out = {}
    for part in listed(text) or ():
        task, equals, path = (word.strip() for word in part.partition("="))
        if not (task and equals and path):
            raise ConfigError(f"--control must be TASK=PATH, separated by semicolons; got {part!r}")
        out[task] = path
    return out


@app.command(
    epilog=example(
        "macs bench fashion-mnist --images 500 --features classifier --out bench",
        'macs bench fashion-mnist --tasks inpainting --samplers "Multistep; MACS-D" --inception inception.safetensors',
        "macs bench fashion-mnist --suite solvers --images 200 --out bench-solvers",
        "macs bench lsun-bedroom --data bedrooms.npy --rows 9700:10000 --lpips lpips.safetensors --out bench64",
        "macs bench lsun-bedroom --model bedroom256 --control inpainting=cosign-inpaint --cosign-compat --data photos/",
    )
)
def bench(
    dataset: Annotated[str, typer.Argument(help="fashion-mnist or lsun-bedroom.")],
    tasks: Annotated[str | None, typer.Option(help="Tasks, separated by semicolons; all by default.")] = None,
    samplers: Annotated[str | None, typer.Option(help="Labels of rows, separated by semicolons; all by default.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Models, files or folders, separated by semicolons; fashion-mnist or bedroom64.")
    ] = None,
    suite: Annotated[str, typer.Option(help="table, ablation, gammas, levels; for fashion-mnist also solvers.")] = "table",
    data: Annotated[
        Path | None, typer.Option(help="A folder of images, LSUN's lmdb or a .npy[.xz] array; else Fashion-MNIST is found.")
    ] = None,
    rows: Annotated[str, typer.Option(help="Which of the images to use, FIRST:END counted from 0.")] = ":",
    images: Annotated[int | None, typer.Option(min=10, help="Of those the first so many; all by default.")] = None,
    control: Annotated[
        str | None, typer.Option(help="ControlNets, TASK=PATH separated by semicolons; else those bundled with the model.")
    ] = None,
    blur: Annotated[str | None, typer.Option(help="The blur network of nonlinear deblurring; at 64 pixels blur64.")] = None,
    deft: Annotated[str | None, typer.Option(help="DEFT's network, for the suite solvers; else the bundled one.")] = None,
    cosign_compat: Annotated[
        bool, typer.Option("--cosign-compat", help="Inpainting as CoSIGN's ControlNet knows it: a hole of 129 pixels, noisy.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The seed of all noise.")] = 0,
    features: Annotated[str, typer.Option(help="inception (FID, KID) or classifier (FD-FMNIST).")] = "inception",
    inception: Annotated[Path | None, typer.Option(help="Inception's weights; else $MACS_INCEPTION, else a download.")] = None,
    lpips: Annotated[Path | None, typer.Option(help="LPIPS weights; else $MACS_LPIPS, else no LPIPS.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of the results; a run in it goes on.")] = Path("bench"),
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the models' backbones: a minute to start, then faster.")
    ] = False,
    report: Annotated[bool, typer.Option("--report", help="Only write tables and figures of what is there.")] = False,
    joined: Annotated[
        Path | None,
        typer.Option("--join", help="Only take over the rows that a run with these options has in this folder."),
    ] = None,
    timed: Annotated[
        bool, typer.Option("--time", help="Only time the rows that are there again, in turns, so that times compare.")
    ] = False,
) -> None:
    """Run model x task x sampler; write rows.jsonl, report.md, report.html, LaTeX tables and figures.

    A run that was killed goes on where it was; finished rows are never computed again.
    """
    from macs.benchmark.bench import Bench
    from macs.benchmark.clock import time_rows
    from macs.benchmark.dataset import DATASETS
    from macs.benchmark.join import join
    from macs.benchmark.networks import Names
    from macs.benchmark.report import write_report
    from macs.benchmark.solvers import DEFT, available
    from macs.benchmark.suite import chosen
    from macs.lsun import rows as parsed_rows
    from macs.models.manifest import catalogue

    if sum((report, timed, joined is not None)) > 1:
        raise ConfigError("--report, --time and --join each say what alone to do; give one of them at a time")
    if dataset not in DATASETS:
        raise unknown("dataset", dataset, DATASETS)
    about, controls = DATASETS[dataset], by_task(control)
    for task in controls:
        if task not in about.tasks:
            raise unknown("task", task, about.tasks)
    asked = listed(tasks) or [task for task in about.tasks if task in controls or not controls]
    names = Names(controls, blur, deft=deft or (DEFT if DEFT in catalogue() else None))
    entries, left_out = available(chosen(about.suite(suite), listed(samplers)), names)
    if left_out:
        typer.echo(f"note: {left_out}", err=True)
    job = Bench(
        out, tuple(listed(model) or (about.model,)), tuple(asked), entries, images, seed, features, inception, lpips, dataset,
        data, parsed_rows(rows), names, cosign_compat, compiled,
    )  # fmt: skip
    if joined is not None:
        typer.echo(f"took over {join(job, joined)} rows of {joined}")
    elif timed:
        time_rows(
            job, lambda row: typer.echo(f"{row['task']}  {row['sampler']}  {1000 * row['seconds_per_image']:.1f} ms/image")
        )
    elif not report:
        followed(job)
    typer.echo(f"wrote {write_report(job)}")


def followed(job: "Bench") -> None:
    """Run and show rows, images and time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from macs.benchmark.features import NAMES
    from macs.benchmark.run import missing_jobs, run

    missing = missing_jobs(job)
    left, images = len(missing), len(job.pixels)
    fid, kid = NAMES[job.features]
    text = TextColumn("row {task.fields[row]}/{task.fields[rows]}")
    with Progress(text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("images", total=2 * left * images, row=1, rows=left)
        done = 0

        def on_row(row: dict[str, Any]) -> None:
            nonlocal done
            done += (row["model"], row["task"], row["sampler"]) in missing
            bar.update(task, completed=2 * done * images, row=min(done + 1, left))
            lpips = f"  LPIPS {row['lpips']:.3f}" if "lpips" in row else ""
            bar.console.print(
                f"{row['model']}  {row['task']}  {row['sampler']}  NFE {row['nfe']}  PSNR {row['psnr']:.2f}  "
                f"SSIM {row['ssim']:.3f}  {fid} {row['fid']:.2f}  {kid} {row['kid']:.2f}{lpips}  chi2 {row['chi2']:.2f}",
                highlight=False,
                soft_wrap=True,
            )

        run(job, on_row, lambda n: bar.advance(task, n))
