"""``macs app``: the page."""

from typing import Annotated

import typer

from macs.cli.base import app, example
from macs.errors import ConfigError


@app.command("app", epilog=example("macs app", "macs app --port 8000 --model runs/mine/mine.safetensors"))
def page(
    host: Annotated[
        str, typer.Option(help="The address to listen on; the default is seen by this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 7860,
    model: Annotated[
        str, typer.Option(help="A name that macs models list shows, or the path of a model file.")
    ] = "fashion-mnist",
) -> None:
    """Serve a page to degrade and restore images in the browser; offline, no analytics. Needs the extra "app"."""
    try:
        from macs.page import build, serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"the page needs gradio ({error}); install it with: pip install 'macs-imaging[app]'") from error
    blocks = build(model)
    typer.echo(f"the page is at http://{host}:{port}; Ctrl-C ends it")
    serve(blocks, host, port)
