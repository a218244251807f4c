"""``macs train``: train a model, watch it, stop it and go on."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from macs import __version__
from macs.cli.base import app, example
from macs.errors import ConfigError, unknown

if TYPE_CHECKING:
    from torch import Tensor

    from macs.training.config import TrainConfig
    from macs.training.loop import Progress, Run
    from macs.training.recipes import Recipe
    from macs.training.validation import Validation

    OnStep = Callable[[Progress], None]
    Say = Callable[[str], None]

#: Training configurations that come with the package.
CONFIGS = Path(__file__).parents[1] / "configs"
#: Options of glibc's ``mallopt``, their numbers in malloc.h and the bytes we set them to.
MALLOPT = {
    "M_MMAP_THRESHOLD": (-3, 32 * 2**20),
    "M_TRIM_THRESHOLD": (-1, 2**31 - 1),
    "M_TOP_PAD": (-2, 256 * 2**20),
}


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

    from macs.models.build import FAMILIES

    if images is not None:
        total = max(sum(stage.images for stage in config.stages), 1)
        stages = tuple(replace(s, images=max(1, round(s.images * images / total))) for s in config.stages)
        config = replace(config, stages=stages)
    if size is not None and config.model.family not in FAMILIES:
        raise ConfigError(f"{config.name} has its images' size from elsewhere; leave --size out; got {size}")
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
    epilog=example(
        "macs train fashion-mnist --minutes 60",
        "macs train my.toml --data photos/ --size 64 --out runs/photos",
        "macs train bedroom64 --data bedrooms.npy --rows :9700",
        "macs train controlnet --task deblurring --backbone bedroom64 --data bedrooms.npy --rows :9700 --out runs/deblurring",
        "macs train controlnet --task inpainting --backbone bedroom64 --start runs/deblurring/bedroom64-deblurring.safetensors",
        "macs train fashion-mnist-score --start fashion-mnist --lpips lpips.safetensors",
    )
)
def train(
    config: Annotated[str, typer.Argument(help="A TOML file, or the name of a bundled configuration.")],
    out: Annotated[Path | None, typer.Option(help="The folder of the run; runs/NAME by default.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Stop after this time; the same command goes on later.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Train on so many images in all, over all stages.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A folder of images, LSUN's lmdb, a .npy[.xz] array or an IDX file; else Fashion-MNIST."),
    ] = None,
    rows: Annotated[
        str, typer.Option(help="Which of the images to use, FIRST:END counted from 0; the last of these are held out.")
    ] = ":",
    size: Annotated[int | None, typer.Option(min=1, help="The side of the images, instead of the configuration's.")] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the network: a minute to start, then faster.")] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="Compute in bfloat16; faster only where the processor has it.")] = False,
    validate_every: Annotated[float, typer.Option(min=0, help="Minutes between restorations of held-out images.")] = 10.0,
    task: Annotated[str | None, typer.Option(help="The inverse problem, for a ControlNet.")] = None,
    backbone: Annotated[
        str | None, typer.Option(help="The model to steer, for a ControlNet: a name, a file or a folder.")
    ] = None,
    blur: Annotated[str, typer.Option(help="The blur network, for a ControlNet for nonlinear deblurring.")] = "blur64",
    lpips: Annotated[Path | None, typer.Option(help="Weights of LPIPS, for the score or a ControlNet's loss.")] = None,
    start: Annotated[
        str | None, typer.Option(help="Begin with this model, for the score; or with a ControlNet of the same backbone.")
    ] = None,
) -> None:
    """Train a model, or go on training it: a run that was stopped continues bit for bit.

    Every so often held-out images are restored: their PSNR is shown, and validation.png in the run's folder shows them.
    Ctrl-C stops after the current step and saves; a second one stops at once. On several processes or GPUs:
    torchrun --nproc_per_node 2 -m -- macs train ...
    """
    source = config_path(config)
    keep_memory()
    import torch

    from macs.data import split_images
    from macs.lsun import rows as parsed_rows
    from macs.training.config import load_config
    from macs.training.loop import Run
    from macs.training.workers import Workers

    torch.set_flush_denormal(True)
    settings, recipe = planned(adapted(load_config(source), images, size), task, backbone, blur, lpips, start)
    folder = Path("runs") / settings.name if out is None else out
    pictures, held = split_images(data, settings.model.image_shape, parsed_rows(rows))
    run = Run(
        settings, pictures, folder, recipe=recipe, validation=held[:64] if len(held) else None, workers=Workers.found(bf16),
        compiled=compiled,
    )  # fmt: skip
    stopped = followed(run, float("inf") if minutes is None else minutes, 60 * validate_every)
    if not run.workers.first:
        return
    path = export(run)
    typer.echo(f"{'finished' if run.done else 'stopped'} after {run.total_images:,} images; wrote {path}")
    if not run.done:
        typer.echo("the same command goes on from here")
    if stopped:
        raise typer.Exit(130)


def planned(
    config: "TrainConfig", task: str | None, backbone: str | None, blur: str, lpips: Path | None, start: str | None
) -> tuple["TrainConfig", "Recipe"]:
    """What is trained; for a ControlNet the configuration with its backbone's network, named after both."""
    from dataclasses import replace

    from macs.lpips import Lpips
    from macs.models.build import ModelConfig
    from macs.models.store import is_own, load, load_blur, load_control, read_model
    from macs.training.recipes import Blur, Consistency, Control, Scored

    if config.model.family != "controlled" and (task is not None or backbone is not None):
        raise ConfigError(f"--task and --backbone are for ControlNets; leave them out of {config.name}")
    if config.stages[0].loss == "score":
        if lpips is None or start is None:
            raise ConfigError(f"{config.name} goes on from a model, by a perceptual distance; give --start and --lpips")
        model: Any = load(start)
        return replace(config, model=read_model(start)[1]), Scored(model, Lpips(lpips))
    if config.model.family != "controlled":
        if lpips is not None or start is not None:
            raise ConfigError(f"--lpips and --start are for ControlNets and the score; leave them out of {config.name}")
        return config, Blur() if config.model.family == "blur" else Consistency()
    if task is None or backbone is None:
        raise ConfigError("a ControlNet is trained for a task on a backbone; give --task and --backbone")
    model = load(backbone)
    network = load_blur(blur) if task == "nonlinear-deblurring" else None
    first = None if start is None else load_control(start)
    recipe = Control(model, task, network, None if lpips is None else Lpips(lpips), backbone, first)
    if is_own(backbone):
        architecture = replace(read_model(backbone)[1], family="controlled")
    else:
        c, h, w = model.image_shape
        architecture = ModelConfig("controlled", (c, h, w), sigma_data=model.sigma_data, t_min=model.t_min, t_max=model.t_max)
    return replace(config, name=f"{Path(backbone).stem}-{task}", model=architecture), recipe


def followed(run: "Run", minutes: float, validate_every: float = 600.0) -> bool:
    """Train and show how it goes, a bar on a terminal and a line per minute elsewhere; whether Ctrl-C ended it."""
    from macs.training.loop import train as train_run

    show = progress_bar if sys.stderr.isatty() else progress_lines
    with asked_to_stop() as asked, show(run) as (on_step, say):

        def on_validation(seen: "Validation") -> None:
            write_picture(run.folder / "validation.png", seen.picture)
            say(f"validation: {seen}")

        train_run(
            run, minutes=minutes, validate_every=validate_every, asked_to_stop=lambda: bool(asked),
            on_step=on_step if run.workers.first else None, on_validation=on_validation,
        )  # fmt: skip
    return bool(asked) and not run.done


def write_picture(path: Path, picture: "Tensor") -> None:
    """A picture as a PNG file, atomically."""
    from io import BytesIO

    from PIL import Image

    from macs.training.checkpoint import write_atomically

    file = BytesIO()
    Image.fromarray(picture.numpy()).save(file, "png")
    write_atomically(path, file.getvalue())


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
def progress_bar(run: "Run") -> Iterator[tuple["OnStep", "Say"]]:
    """A bar with stage, loss, speed and time left, and lines above it."""
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

        yield show, lambda line: bar.console.print(line, highlight=False)


@contextmanager
def progress_lines(run: "Run", every: float = 60.0) -> Iterator[tuple["OnStep", "Say"]]:
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

    yield show, lambda line: typer.echo(line, err=True)


def export(run: "Run") -> Path:
    """Write the run's average as a file that ``macs.load`` reads; a ControlNet for a diffusers model as a diffusers folder.

    The denoiser of the last EDM stage, if there was one, is written beside it.
    """
    from macs.models.store import is_own, save_model
    from macs.training.checkpoint import load_checkpoint, written_folder
    from macs.training.recipes import Control, Scored

    config, network = run.config, run.average
    info: dict[str, Any] = {"macs": __version__, "seed": config.seed, "stages": [stage.loss for stage in config.stages]}
    made = info | {"name": config.name, "images": run.total_images, "finished": run.done}
    made |= {"kind": "denoiser"} if run.last_loss == "edm" else {}
    if isinstance(run.recipe, Scored):
        made |= {"start": run.recipe.start.digest}
    if isinstance(run.recipe, Control):
        made |= {"task": run.recipe.task, "backbone": run.recipe.name, "fingerprint": network.config["backbone"]}
        if not is_own(run.recipe.name):
            with written_folder(run.folder / config.name) as beside:
                network.save_pretrained(beside)
            return run.folder / config.name
    path = run.folder / f"{config.name}.safetensors"
    save_model(path, network.state_dict(), config.model, made)
    denoisers = [i for i, stage in enumerate(config.stages[: run.stage]) if stage.loss == "edm"]
    if denoisers:
        seen = config.batch * sum(config.steps(i) for i in range(denoisers[-1] + 1))
        made = info | {"name": f"{config.name}-edm", "images": seen, "finished": True, "kind": "denoiser"}
        denoiser, _ = load_checkpoint(run.stage_path(denoisers[-1]))
        save_model(run.folder / f"{config.name}-edm.safetensors", denoiser, config.model, made)
    return path
