"""What a benchmark runs: models, tasks and solvers on the images of a dataset."""

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from macs.benchmark.dataset import DATASETS, Dataset
from macs.benchmark.features import NAMES
from macs.benchmark.measure import Measured
from macs.benchmark.networks import NONLINEAR, Names
from macs.benchmark.suite import Suite
from macs.errors import ConfigError, unknown
from macs.tasks import task as make_task

#: How many numbers of images are restored at once: 500 images of Fashion-MNIST, 31 of 64 pixels in colour, 1 of 256.
AT_ONCE = 500 * 784

#: Rows of up to so many steps are run for all models and tasks before those of more.
SOONER = (2, 4)

#: A row to be: model, task and label.
Job = tuple[str, str, str]


@dataclass(frozen=True)
class Bench:
    """What is run and where it is kept.

    Args:
        out: the folder.
        models: names or paths.
        tasks: names of tasks.
        entries: what is run, by label.
        images: use the first so many; all where it is None.
        seed: of all noise.
        features: what the distances are computed on.
        inception, lpips: files of weights, where the environment does not name them.
        dataset: a name in :data:`macs.benchmark.dataset.DATASETS`.
        data, take: where the images come from, and which rows of them are used.
        names: networks beside the models.
        cosign_compat: inpainting as CoSIGN's released ControlNet knows it.
        compiled: run the backbones of all networks through ``torch.compile``; faster, and other last bits.
    """

    out: Path
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    entries: Suite
    images: int | None = None
    seed: int = 0
    features: str = "inception"
    inception: str | Path | None = None
    lpips: str | Path | None = None
    dataset: str = "fashion-mnist"
    data: Path | None = None
    take: slice = field(default_factory=lambda: slice(0, None))
    names: Names = field(default_factory=Names)
    cosign_compat: bool = False
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise unknown("dataset", self.dataset, DATASETS)
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be at least 0 and below 2^63; got {self.seed}; any number in between will do")
        for task in self.tasks:
            if task not in self.about.tasks:
                raise unknown("task", task, self.about.tasks)
        if self.features not in NAMES:
            raise unknown("kind of features", self.features, NAMES)
        if self.features not in self.about.features:
            raise ConfigError(
                f"features of {self.dataset} must be {' or '.join(self.about.features)}; got {self.features}, "
                "a network that knows Fashion-MNIST alone; leave --features out"
            )

    @property
    def about(self) -> Dataset:
        """What the dataset says of itself."""
        return DATASETS[self.dataset]

    @property
    def cache(self) -> Path:
        """Restored images and their features."""
        return self.out / "cache"

    @property
    def rows_path(self) -> Path:
        """The finished rows."""
        return self.out / "rows.jsonl"

    @property
    def paired_path(self) -> Path:
        """The differences between rows."""
        return self.out / "paired.jsonl"

    @cached_property
    def pixels(self) -> Tensor:
        """The true images as uint8, (N, C, H, W)."""
        images = self.about.read(self.data, self.take, self.models)[: self.images]
        if len(images) < 10:
            raise ConfigError(f"images must be at least 10, a distance needs a set; got {len(images)}; give more")
        return images

    @cached_property
    def truth(self) -> Tensor:
        """The true images in [0, 1]."""
        return self.pixels.float() / 255

    def chunk(self, label: str) -> int:
        """How many images of a row are restored at once; at least two parts are of that size, as the second is timed."""
        most = max(1, AT_ONCE // self.pixels[0].numel() // self.about.parts(label))
        images = len(self.pixels)
        return images // max(2, math.ceil(images / most))

    def measured(self, task: str) -> Measured:
        """A task on the true images."""
        options: dict[str, dict[str, Any]] = {
            "inpainting": {"cosign_compat": self.cosign_compat},
            NONLINEAR: {"network": self.names.blur, "seed": self.seed, "images": len(self.pixels)},
        }
        c, h, w = self.pixels.shape[1:]
        return Measured(self.truth, make_task(task, image_shape=(c, h, w), **options.get(task, {})), self.seed)

    def jobs(self) -> list[Job]:
        """Every row to be, those of few steps first."""
        jobs = [(model, task, label) for model in self.models for task in self.tasks for label in self.entries]
        return sorted(jobs, key=lambda job: bisect_left(SOONER, self.entries[job[2]].steps))
