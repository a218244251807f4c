"""Restore image files: any size in tiles, any number of channels, several draws, a record beside each image."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from macs.degradation import Degradation
from macs.doctor import DOUBT, Finding, examine
from macs.errors import ConfigError, MacsWarning, unknown
from macs.files import Outcome, each_file
from macs.images import decode, encode, read_bytes
from macs.macs_d import MacsD
from macs.models.consistency import ConsistencyModel
from macs.models.manifest import catalogue
from macs.models.store import load, model_digest
from macs.models.tiled import Tiled
from macs.noise import content_ids
from macs.samplers import SAMPLERS
from macs.solver import Solver, Trace
from macs.steps import Sampler

#: The standard deviation, on images in [0, 1], that is white in a picture of it.
STD_WHITE = 0.25
#: What is said of a model that does not see the measurement, where the sampler has a data step and where it has none.
BLIND = "this model does not see the measurement; only the data step does"
BLIND_ALONE = (
    "this model does not see the measurement and this sampler has no data step: the result has nothing to do with the "
    "measurement; use the sampler macs-d, or a ControlNet for this task"
)


def named_sampler(text: str) -> Sampler:
    """A sampler from ``NAME`` or ``NAME:key=value,key=value``, such as ``macs:gamma=0.4,residual=chi2``."""
    name, _, settings = text.partition(":")
    if name not in SAMPLERS:
        raise unknown("sampler", name, SAMPLERS)
    known = {f.name: f.default for f in dataclasses.fields(SAMPLERS[name]) if f.name != "data"}
    values = {}
    for pair in filter(None, settings.split(",")):
        key, _, value = pair.partition("=")
        if key not in known:
            raise unknown(f"setting of {name}", key, known) if known else ConfigError(f"{name} has no settings; got {key!r}")
        values[key] = like_default(value, known[key], f"{key} of {name}")
    return SAMPLERS[name](**values)


def like_default(text: str, default: Any, what: str) -> Any:
    """A setting written as text, as the kind of value that its default is: a word, true or false, or a number."""
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ConfigError(f"{what} must be true or false; got {text!r}")
        return text == "true"
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{what} must be a number; got {text!r}") from None


@dataclass(frozen=True)
class Settings:
    """How to restore.

    Args:
        model: a bundled name, the path of a model file, a diffusers folder or a repository of the Hub.
        sampler: as for ``macs.Solver``.
        steps: network calls per image, for samplers of one call per step.
        seed: of all noise.
        samples: draws; from two on also their mean and standard deviation.
        sigma_y: the noise on images in [-1, 1]; None estimates it from each measurement.
        overlap: of tiles, in pixels; None is half a tile.
        control: a ControlNet's file or folder; None is the one that is bundled for the model and the task, if any.
    """

    model: str = "fashion-mnist"
    sampler: Sampler = dataclasses.field(default_factory=MacsD)
    steps: int = 2
    seed: int = 0
    samples: int = 1
    sigma_y: float | None = None
    overlap: int | None = None
    control: str | None = None

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"samples must be at least 1; got {self.samples}")
        if self.sigma_y is not None and not 0 <= self.sigma_y < float("inf"):
            raise ConfigError(
                f"sigma_y must be a number of at least 0 or auto; got {self.sigma_y}; it is a standard deviation on [-1, 1]"
            )

    def record(self) -> dict[str, Any]:
        """The settings for a JSON file."""
        said = {key: value for key, value in vars(self).items() if key != "control" or value is not None}
        return {**said, "sampler": repr(self.sampler), "sigma_y": "auto" if self.sigma_y is None else self.sigma_y}

    def control_for(self, task: str) -> str | None:
        """The ControlNet by which the model sees a task's measurements: the one given, else the bundled one, else none."""
        bundled = f"{self.model}-{task}"
        return self.control or (bundled if bundled in catalogue() else None)

    def network(self, task: str) -> Any:
        """The model for a task, its ControlNet attached where there is one."""
        return load(self.model, control=self.control_for(task))

    def weights(self, task: str) -> dict[str, str]:
        """The SHA-256 of that model and of its ControlNet, for a JSON file."""
        control = self.control_for(task)
        more = {} if control is None else {"control": control, "control_sha256": model_digest(control)}
        return {"model_sha256": model_digest(self.model), **more}


@dataclass(frozen=True)
class Restored:
    """An image (C, H, W) in [0, 1], the mean and deviation of all draws where there are several, and what happened."""

    image: Tensor
    mean: Tensor | None
    std: Tensor | None
    trace: Trace
    record: dict[str, Any]


class Restorer:
    """Restores one measurement after another with the same settings."""

    def __init__(self, degradation: Degradation, settings: Settings, model: Any = None) -> None:
        self.model = settings.network(degradation.task) if model is None else model
        weights = settings.weights(degradation.task) if model is None else {}
        self.degradation, self.settings = degradation.for_model(self.model.image_shape[-1]), settings
        self.config = {**self.degradation.record(), **settings.record(), **weights}
        self.degradation.options()
        self.solver(self.model)

    def solver(self, model: Any) -> Solver:
        """The solver of these settings around a model."""
        return Solver(model, self.settings.sampler, self.settings.steps)

    def shape(self, y: Tensor) -> tuple[int, int, int]:
        """The shape of the image behind a measurement, as the model sees it."""
        scale = self.degradation.scale
        return (self.model.image_shape[0], y.shape[1] * scale, y.shape[2] * scale)

    def tiled(self, y: Tensor, on_tiles: Callable[[int], None] | None = None) -> Any:
        """The model for the image behind a measurement: itself where the size is its own, else in tiles."""
        shape = self.shape(y)
        if shape == tuple(self.model.image_shape):
            return self.model
        return Tiled(self.model, shape, self.settings.overlap, on_tiles)

    def __call__(self, y: Tensor, on_tiles: Callable[[int], None] | None = None) -> Restored:
        """Restore a measurement (C, h, w) in [0, 1], grey or RGB; it may reach past [0, 1] where it was not cut."""
        start = time.perf_counter()
        self.degradation.check_size(self.shape(y))
        model = self.tiled(y, on_tiles)
        sigma_y = self.degradation.sigma_y(y) if self.settings.sigma_y is None else self.settings.sigma_y
        physics = self.degradation.physics(self.shape(y), sigma_y)
        batch, channels = as_batch(y, self.model.image_shape[0])
        name = content_ids(batch.reshape(1, -1))[0]
        solver, draws, traces = self.solver(model), [], []
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", MacsWarning)
            for k in range(self.settings.samples):
                x, trace = solver(batch, physics, self.settings.seed, ids=[f"{name}/{k}"] * len(batch), trace=True)
                draws.append(as_image(x, len(y)))
                traces.append(trace)
        warned = dict.fromkeys(str(w.message) for w in said if w.category is MacsWarning)
        notes = [*self.blind_notes(), *channels, *self.tile_notes(model), *warned]
        record = {
            "nfe": traces[0].nfe[-1], "tiles": len(getattr(model, "corners", [0])),
            "chi2": finite(traces[0].final_chi2), "sigma_y": sigma_y, "sigma_y_estimated": self.settings.sigma_y is None,
            "seconds": round(time.perf_counter() - start, 3), "notes": notes,
        }  # fmt: skip
        if len(draws) == 1:
            return Restored(draws[0], None, None, traces[0], record)
        stack = torch.stack(draws)
        std = stack.std(0)
        record["std"] = {"mean": float(std.mean()), "largest": float(std.max()), "white": STD_WHITE}
        return Restored(draws[0], stack.mean(0), std, traces[0], record)

    def blind_notes(self) -> list[str]:
        """What is to be said of a model that does not see the measurement."""
        if not isinstance(self.model, ConsistencyModel) or hasattr(self.model, "condition"):
            return []
        return [BLIND_ALONE if self.settings.sampler.data is None else BLIND]

    def tile_notes(self, model: Any) -> list[str]:
        """What is to be said of the size."""
        if not isinstance(model, Tiled):
            return []
        _, height, width = model.image_shape
        return [
            f"{width}x{height} pixels in {len(model.corners)} overlapping tiles of {model.side}x{model.side}, the model's size",
            f"an image unlike those that {self.settings.model} was trained on gets their texture; see macs models show",
        ]

    def calls(self, y: Tensor) -> int:
        """The tiles that a measurement will take through the network, for a progress bar; at least 1."""
        model = self.tiled(y)
        if not isinstance(model, Tiled):
            return 1
        batch = as_batch(y, self.model.image_shape[0])[0]
        return len(model.corners) * len(batch) * self.settings.steps * self.settings.samples


def finite(chi2: Tensor | None) -> float | None:
    """The mean over channels; None where it is no number, as without noise."""
    return None if chi2 is None or not bool(torch.isfinite(chi2).all()) else float(chi2.mean())


def as_batch(y: Tensor, channels: int) -> tuple[Tensor, list[str]]:
    """A measurement as a batch for a model of so many channels, and what is to be said of it."""
    if len(y) == channels:
        return y[None], []
    if channels == 1:
        return y[:, None], [f"a grey model: each of the {len(y)} colour channels was restored on its own, from the same noise"]
    return y.expand(1, channels, -1, -1), [f"a colour model: the grey image was copied into {channels} channels, then averaged"]


def as_image(x: Tensor, channels: int) -> Tensor:
    """A restored batch as one image of so many channels, (C, H, W)."""
    if len(x) == channels > 1:
        return x[:, 0]
    return x[0] if x.shape[1] == channels else x[0].mean(0, keepdim=True)


def pictures(restored: Restored) -> dict[str, bytes]:
    """The PNG files of a result by their endings."""
    out = {"png": encode(restored.image)}
    if restored.mean is not None and restored.std is not None:
        out["mean.png"] = encode(restored.mean)
        out["std.png"] = encode(restored.std.mean(0, keepdim=True) / STD_WHITE)
    return out


def restore_files(
    targets: dict[Path, Path],
    restorer: Restorer,
    overwrite: bool = False,
    on_start: Callable[[Path, int], None] | None = None,
    on_tiles: Callable[[int], None] | None = None,
) -> Iterator[Outcome]:
    """Restore file after file; one that fails does not stop the others, and what is done is skipped."""

    def make(source: Path, data: bytes) -> tuple[dict[str, bytes], dict[str, Any]]:
        y = decode(data, channels=None).float() / 255
        if on_start is not None:
            on_start(source, restorer.calls(y))
        restored = restorer(y, on_tiles)
        return pictures(restored), {"torch": torch.__version__, **restored.record}

    return each_file(targets, restorer.config, make, overwrite)


def examine_file(path: Path, degradation: Degradation, settings: Settings) -> list[Finding]:
    """What :func:`macs.doctor.examine` finds in a measurement in a file and in its solution."""
    restorer = Restorer(degradation, settings)
    y = decode(read_bytes(path), channels=None).float() / 255
    restored = restorer(y)
    batch = as_batch(y, restorer.model.image_shape[0])[0]
    physics = restorer.degradation.physics(restorer.shape(y), restored.record["sigma_y"])
    x = restored.image.reshape(len(batch), -1, *restored.image.shape[1:]).expand(-1, restorer.model.image_shape[0], -1, -1)
    found = [*(Finding("model", DOUBT, note) for note in restorer.blind_notes()), *examine(batch, physics, x)]
    if settings.sigma_y is not None:
        return found
    says = (
        f"{restored.record['sigma_y']:.3g} is an estimate, too large where there is fine texture; give the value if you know it"
    )
    return [Finding("sigma_y", DOUBT, says) if finding.check == "sigma_y" else finding for finding in found]
