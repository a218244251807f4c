"""``macs demo``: the bundled images, every task, every sampler."""

from pathlib import Path
from typing import Annotated

import typer

from macs.cli.base import app, echo, example, program


@app.command(epilog=example("macs demo", "macs demo --out demo --seed 1"))
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the picture and the page.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="The seed of all noise.")] = 0,
) -> None:
    """Restore ten bundled images, for every task and with every sampler; print a table, write a picture and a page."""
    from rich.console import Console
    from rich.table import Table

    from macs.demo import rows, write

    console = Console()
    with console.status("restoring"):
        table = list(rows(seed))
    shown = Table("task", "sampler", "NFE", "PSNR", "SSIM", "chi2", "ms/image", box=None, pad_edge=False)
    for column in shown.columns[2:]:
        column.justify = "right"
    for row in table:
        best = "[bold]" if row.sampler.startswith("MACS-D") else ""
        first = row.task if row.sampler == "measurement" else ""
        shown.add_row(
            first, f"{best}{row.sampler}", f"{row.nfe or ''}", f"{row.psnr:.2f}", f"{row.ssim:.3f}",
            "" if row.chi2 is None else f"{row.chi2:.2f}", f"{1000 * row.seconds:.0f}" if row.nfe else "",
        )  # fmt: skip
    console.print(shown)
    comparison, report = write(table, out)
    echo(f"wrote {comparison} and {report}")
    macs = program()
    echo(f"next: {macs} models show fashion-mnist; the Python in README.md; {macs} train fashion-mnist --minutes 5")
