"""``macs bench``: the paper's tables and figures, row by row."""

from pathlib import Path
from typing import Annotated, Any

import typer

from macs.cli.base import app, example
from macs.errors import unknown

DATASETS = ("fashion-mnist",)


def listed(text: str | None) -> list[str] | None:
    """Names separated by semicolons (labels hold commas)."""
    return None if text is None else [name.strip() for name in text.split(";") if name.strip()]


@app.command(
    epilog=example(
        "macs bench fashion-mnist --images 500 --features classifier --out bench",
        'macs bench fashion-mnist --tasks inpainting --samplers "Multistep; MACS-D" --inception inception.safetensors',
    )
)
def bench(
    dataset: Annotated[str, typer.Argument(help="fashion-mnist.")],
    tasks: Annotated[str | None, typer.Option(help="Tasks, separated by semicolons; all by default.")] = None,
    samplers: Annotated[str | None, typer.Option(help="Labels of rows, separated by semicolons; all by default.")] = None,
    model: Annotated[str, typer.Option(help="Models or model files, separated by semicolons.")] = "fashion-mnist",
    suite: Annotated[str, typer.Option(help="table, ablation, gammas or levels.")] = "table",
    images: Annotated[int, typer.Option(min=10, max=10_000, help="The first so many test images.")] = 10_000,
    seed: Annotated[int, typer.Option(help="The seed of all noise.")] = 0,
    features: Annotated[str, typer.Option(help="inception (FID, KID) or classifier (FD-FMNIST).")] = "inception",
    inception: Annotated[Path | None, typer.Option(help="Inception's weights; else $MACS_INCEPTION, else a download.")] = None,
    lpips: Annotated[Path | None, typer.Option(help="LPIPS weights; else $MACS_LPIPS, else no LPIPS.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of the results; a run in it goes on.")] = Path("bench"),
    report: Annotated[bool, typer.Option("--report", help="Only write tables and figures of what is there.")] = False,
) -> None:
    """Run model x task x sampler; write rows.jsonl, report.md, report.html, LaTeX tables and figures.

    A run that was killed goes on where it was; finished rows are never computed again.
    """
    if dataset not in DATASETS:
        raise unknown("dataset", dataset, DATASETS)
    from macs.benchmark.report import write_report
    from macs.benchmark.run import Bench
    from macs.benchmark.suite import chosen
    from macs.tasks import TASKS

    for name in listed(tasks) or ():
        if name not in TASKS:
            raise unknown("task", name, TASKS)
    job = Bench(
        out, tuple(listed(model) or ()), tuple(listed(tasks) or TASKS), chosen(listed(samplers), suite), images, seed, features,
        None if inception is None else str(inception), None if lpips is None else str(lpips),
    )  # fmt: skip
    if not report:
        followed(job)
    typer.echo(f"wrote {write_report(job)}")


def followed(job: Any) -> None:
    """Run and show rows, images and time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from macs.benchmark.features import NAMES
    from macs.benchmark.run import missing_jobs, run

    missing = missing_jobs(job)
    left = len(missing)
    fid, kid = NAMES.get(job.features, ("", ""))
    text = TextColumn("row {task.fields[row]}/{task.fields[rows]}")
    with Progress(text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("images", total=2 * left * job.images, row=1, rows=left)
        done = 0

        def on_row(row: dict[str, Any]) -> None:
            nonlocal done
            done += (row["model"], row["task"], row["sampler"]) in missing
            bar.update(task, completed=2 * done * job.images, row=min(done + 1, left))
            lpips = f"  LPIPS {row['lpips']:.3f}" if "lpips" in row else ""
            bar.console.print(
                f"{row['model']}  {row['task']}  {row['sampler']}  NFE {row['nfe']}  PSNR {row['psnr']:.2f}  "
                f"SSIM {row['ssim']:.3f}  {fid} {row['fid']:.2f}  {kid} {row['kid']:.2f}{lpips}  chi2 {row['chi2']:.2f}",
                highlight=False,
                soft_wrap=True,
            )

        run(job, on_row, lambda n: bar.advance(task, n))
