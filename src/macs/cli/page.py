"""``macs app``: the page."""

from typing import Annotated

import typer

from macs.cli import options
from macs.cli.base import app, example
from macs.errors import ConfigError


@app.command("app", epilog=example("macs app", "macs app --port 8000 --model runs/mine/mine.safetensors"))
def page(
    host: Annotated[
        str, typer.Option(help="The address to listen on; the default is seen by this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 7860,
    model: options.Model = "fashion-mnist",
    control: Annotated[
        list[str] | None, typer.Option(help="A ControlNet for one task, TASK=PATH; may be given many times.")
    ] = None,
) -> None:
    """Serve a page to degrade and restore images in the browser; offline, no analytics. Needs the extra "app"."""
    try:
        from macs.page import build, serve
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the page needs gradio ({error}); install it in the folder of this package with: pip install -e '.[app]'"
        ) from error
    blocks = build(model, by_task(control or []))
    typer.echo(f"the page is at http://{host}:{port}; Ctrl-C ends it")
    serve(blocks, host, port)


def by_task(pairs: list[str]) -> dict[str, str]:
    """ControlNets by task, from ``TASK=PATH`` each."""
    from macs.tasks import TASKS

    found = {}
    for pair in pairs:
        task, _, path = pair.partition("=")
        if task not in TASKS or not path:
            raise ConfigError(f"--control must be TASK=PATH, with a task of {', '.join(TASKS)}; got {pair!r}")
        found[task] = path
    return found
