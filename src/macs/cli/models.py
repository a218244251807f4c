"""``macs models``: what is bundled, whether it is intact, and released files made readable here."""

from pathlib import Path
from typing import Annotated, Any

import typer

from macs.cli.base import app, example

models = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The models that come with the package.")
app.add_typer(models, name="models")


@models.command("list", epilog=example("macs models list"))
def list_models() -> None:
    """List the bundled models: name, size, digest, measured quality."""
    from rich.console import Console
    from rich.table import Column, Table

    from macs.models.manifest import catalogue

    known = catalogue()
    if not known:
        typer.echo("no models are bundled with this installation; train one with macs train")
        return
    names = Column("name", min_width=max(len(name) for name in known))
    table = Table(names, "size", "sha256", "quality", box=None, pad_edge=False)
    for name, about in sorted(known.items()):
        table.add_row(name, megabytes(about["bytes"]), about["sha256"][:12], said(about["quality"]))
    Console().print(table)


@models.command("show", epilog=example("macs models show fashion-mnist"))
def show_model(name: Annotated[str, typer.Argument(help="A name that macs models list shows.")]) -> None:
    """Show all that is known of a bundled model, and where its card is."""
    from macs.models.manifest import WEIGHTS, entry

    about = entry(name)
    lines = {
        "name": name, "file": WEIGHTS / about["file"], "size": megabytes(about["bytes"]), "sha256": about["sha256"],
        "license": about["license"], "card": WEIGHTS / about["card"], **about["quality"],
    }  # fmt: skip
    width = max(len(key) for key in lines)
    for key, value in lines.items():
        typer.echo(f"{key:<{width}}  {said(value) if isinstance(value, dict) else value}")


@models.command("verify", epilog=example("macs models verify", "macs models verify fashion-mnist"))
def verify_models(name: Annotated[str | None, typer.Argument(help="One model; all of them where not given.")] = None) -> None:
    """Check that bundled models have not changed since they were released, by their SHA-256."""
    from macs.models.manifest import catalogue, verify

    for each in sorted(catalogue()) if name is None else [name]:
        verify(each)
        typer.echo(f"ok  {each}")


@models.command("convert", epilog=example("macs models convert cd_bedroom256_lpips.pt -o bedroom256"))
def convert_model(
    file: Annotated[Path, typer.Argument(help="cd_bedroom256_lpips.pt, inpaint.pt, GOPRO_wVAE.pth and their like.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write, new or empty.")],
) -> None:
    """Turn a file released by OpenAI, CoSIGN or BKSE into a folder of safetensors that is read here."""
    from macs.models.convert import convert

    kind, usage = convert(file, out)
    typer.echo(f"{file} is {kind}; wrote {out}")
    typer.echo(f"use it: {usage}")


def megabytes(size: int) -> str:
    """A size to read."""
    return f"{size / 1e6:.1f} MB"


def said(quality: dict[str, Any]) -> str:
    """Numbers and their names on one line."""
    return ", ".join(f"{key} {value}" for key, value in quality.items())
