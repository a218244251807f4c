"""The command line: ``macs models`` and ``macs train``. What a command needs is imported when it runs, so help is instant."""

import ctypes
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from macs import __version__
from macs.errors import ConfigError, MacsError, MacsWarning, unknown

if TYPE_CHECKING:
    from macs.training.config import TrainConfig
    from macs.training.loop import Progress, Run

    OnStep = Callable[[Progress], None]

#: Training configurations that come with the package.
CONFIGS = Path(__file__).parent / "configs"
#: Options of glibc's ``mallopt``, their numbers in malloc.h and the bytes we set them to.
MALLOPT = {
    "M_MMAP_THRESHOLD": (-3, 32 * 2**20),
    "M_TRIM_THRESHOLD": (-1, 2**31 - 1),
    "M_TOP_PAD": (-2, 256 * 2**20),
}


def one_line(text: object) -> str:
    """Text without line breaks."""
    return " ".join(str(text).split())


def show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """A warning of this package on one line; those of libraries are not for the user of a command."""
    if issubclass(category, MacsWarning):
        typer.echo(f"warning: {one_line(message)}", err=True)


class Commands(TyperGroup):
    """The commands, with every error of this package said on one line: exit code 2, no traceback unless ``--debug``."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        if ctx.params.get("debug"):
            return super().invoke(ctx)
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            try:
                return super().invoke(ctx)
            except MacsError as error:
                typer.echo(f"error: {one_line(error)}", err=True)
                raise typer.Exit(2) from error


app = typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
models = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The models that come with the package.")
app.add_typer(models, name="models")


def example(*lines: str) -> str:
    """The end of a command's help, its line breaks kept."""
    return "\n".join(("\b", "Example:", *(f"  {line}" for line in lines)))


def main() -> None:
    """The entry point."""
    app(prog_name="macs")


def print_version(asked: bool) -> None:
    """The version, and the end."""
    if asked:
        typer.echo(f"macs {__version__}")
        raise typer.Exit


@app.callback(epilog=example("macs models list", "macs train fashion-mnist --minutes 60"))
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show it and end.")] = False,
) -> None:
    """Restore images from degraded measurements with a consistency model, in two network evaluations."""


@models.command("list", epilog=example("macs models list"))
def list_models() -> None:
    """List the bundled models: name, size, digest, measured quality."""
    from rich.console import Console
    from rich.table import Table

    from macs.models.manifest import catalogue

    known = catalogue()
    if not known:
        typer.echo("no models are bundled with this installation; train one with macs train")
        return
    table = Table("name", "size", "sha256", "quality", box=None, pad_edge=False)
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


def megabytes(size: int) -> str:
    """A size to read."""
    return f"{size / 1e6:.1f} MB"


def said(quality: dict[str, Any]) -> str:
    """Numbers and their names on one line."""
    return ", ".join(f"{key} {value}" for key, value in quality.items())


def config_path(name: str) -> Path:
    """A training configuration: the path of a TOML file, or the name of a bundled one."""
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise ConfigError(f"there is no configuration {name}; pass the path of a .toml file, or the name of a bundled one")
        return path
    known = {bundled.stem: bundled for bundled in CONFIGS.glob("*.toml")}
    if not known:
        raise ConfigError(f"no configuration is bundled here, so none is named {name!r}; pass the path of a .toml file")
    if name not in known:
        raise unknown("configuration", name, known)
    return known[name]


def adapted(config: "TrainConfig", images: int | None, size: int | None) -> "TrainConfig":
    """A configuration with another budget, shared among its stages as before, or for images of another size."""
    from dataclasses import replace

    if images is not None:
        total = max(sum(stage.images for stage in config.stages), 1)
        stages = tuple(replace(s, images=max(1, round(s.images * images / total))) for s in config.stages)
        config = replace(config, stages=stages)
    if size is not None:
        unit = config.model.patch * 2 ** (len(config.model.channels) - 1)
        if size < unit or size % unit:
            near = max(round(size / unit), 1) * unit
            raise ConfigError(f"size must be a multiple of {unit} for this network; got {size}; try {near}")
        config = replace(config, model=replace(config.model, image_shape=(config.model.image_shape[0], size, size)))
    return config


def keep_memory() -> None:
    """Tell glibc to keep freed memory instead of returning it to the system.

    The activations of a training step are large blocks, which glibc would by default map anew, and the system clear anew, at
    every step; keeping them saves that time. Does nothing where there is no glibc.
    """
    try:
        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, ValueError, OSError):
        return
    for option, value in MALLOPT.values():
        mallopt(option, value)


@app.command(
    epilog=example("macs train fashion-mnist --minutes 60", "macs train my.toml --data photos/ --size 64 --out runs/photos")
)
def train(
    config: Annotated[str, typer.Argument(help="A TOML file, or the name of a bundled configuration.")],
    out: Annotated[Path | None, typer.Option(help="The folder of the run; runs/NAME by default.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Stop after this time; the same command goes on later.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Train on so many images in all, over all stages.")] = None,
    data: Annotated[Path | None, typer.Option(help="A folder of images, or an IDX file; else Fashion-MNIST.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="The side of the images, instead of the configuration's.")] = None,
) -> None:
    """Train a model, or go on training it: a run that was stopped continues bit for bit.

    Ctrl-C stops after the current step and saves; a second one stops at once.
    """
    source = config_path(config)
    keep_memory()
    import torch

    from macs.data import training_images
    from macs.training.config import load_config
    from macs.training.loop import Run

    torch.set_flush_denormal(True)
    settings = adapted(load_config(source), images, size)
    folder = Path("runs") / settings.name if out is None else out
    run = Run(settings, training_images(data, settings.model.image_shape), folder)
    stopped = followed(run, float("inf") if minutes is None else minutes)
    path = export(run)
    typer.echo(f"{'finished' if run.done else 'stopped'} after {run.total_images:,} images; wrote {path}")
    if not run.done:
        typer.echo("the same command goes on from here")
    if stopped:
        raise typer.Exit(130)


class Stopped(Exception):  # noqa: N818
    """The user asked for the end, and a step has just ended."""


def followed(run: "Run", minutes: float) -> bool:
    """Train and show how it goes, a bar on a terminal and a line per minute elsewhere; whether Ctrl-C ended it."""
    from macs.training.loop import train as train_run

    show = progress_bar if sys.stderr.isatty() else progress_lines
    with asked_to_stop() as asked, show(run) as on_step:

        def after_step(at: "Progress") -> None:
            on_step(at)
            if asked and at.step < at.steps:
                raise Stopped

        try:
            train_run(run, minutes=minutes, on_step=after_step)
        except Stopped:
            run.save()
            return True
    return False


@contextmanager
def asked_to_stop() -> Iterator[list[int]]:
    """A list that the first Ctrl-C or SIGTERM makes non-empty; a second Ctrl-C is an ordinary ``KeyboardInterrupt``."""
    asked: list[int] = []

    def first(number: int, frame: Any) -> None:
        asked.append(number)
        if before[signal.SIGINT] is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, first)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def total_images(config: "TrainConfig") -> int:
    """The images of all stages, in whole batches."""
    return config.batch * sum(config.steps(i) for i in range(len(config.stages)))


def smoothed() -> Callable[["Progress"], float]:
    """The loss as a running mean over about 50 steps, begun anew with each stage."""
    mean: dict[int, float] = {}

    def loss(at: "Progress") -> float:
        mean[at.stage] = at.loss + 0.98 * (mean.get(at.stage, at.loss) - at.loss)
        return mean[at.stage]

    return loss


@contextmanager
def progress_bar(run: "Run") -> Iterator["OnStep"]:
    """A bar with stage, loss, speed and time left."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    stages, loss = run.config.stages, smoothed()
    text = TextColumn("loss {task.fields[loss]:.4f}  {task.fields[rate]:.0f} images/s")
    columns = (TextColumn("{task.description}  {task.percentage:3.0f}%"), BarColumn(), text, TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=total_images(run.config), completed=run.total_images, loss=0.0, rate=0.0)

        def show(at: "Progress") -> None:
            stage = f"stage {at.stage + 1}/{len(stages)} {stages[at.stage].loss}"
            bar.update(task, description=stage, completed=at.images, loss=loss(at), rate=at.images_per_second)

        yield show


@contextmanager
def progress_lines(run: "Run", every: float = 60.0) -> Iterator["OnStep"]:
    """A line per minute, for logs."""
    stages, loss, total = run.config.stages, smoothed(), total_images(run.config)
    last = -every

    def show(at: "Progress") -> None:
        nonlocal last
        mean = loss(at)
        if time.monotonic() - last < every:
            return
        last = time.monotonic()
        left = (total - at.images) / max(at.images_per_second, 1e-9) / 60
        stage = f"stage {at.stage + 1}/{len(stages)} {stages[at.stage].loss}"
        done = f"{at.images:,}/{total:,} images"
        typer.echo(f"{stage}  {done}  loss {mean:.4f}  {at.images_per_second:.0f} images/s  {left:.0f} min left", err=True)

    yield show


def export(run: "Run") -> Path:
    """Write the run's average as a model file that ``macs.load`` reads."""
    from macs.models.store import save_model

    config = run.config
    info = {
        "name": config.name, "macs": __version__, "seed": config.seed, "images": run.total_images, "finished": run.done,
        "stages": [stage.loss for stage in config.stages],
    }  # fmt: skip
    path = run.folder / f"{config.name}.safetensors"
    save_model(path, run.average.state_dict(), config.model, info)
    return path


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
    typer.echo(f"wrote {comparison} and {report}")
    typer.echo("next: macs models show fashion-mnist; the Python in README.md; macs train fashion-mnist --minutes 5")
