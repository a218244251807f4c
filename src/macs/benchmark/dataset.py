"""What differs between the datasets of the benchmark."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from macs.benchmark.paper import TABLE_I, TABLE_II, TABLE_III, PaperTable
from macs.benchmark.solvers import SOLVERS
from macs.benchmark.suite import MEASUREMENT, Suite, studies, table
from macs.data import fashion_mnist, read_images
from macs.errors import ConfigError, unknown
from macs.models.store import image_shape
from macs.tasks import ALL_TASKS, TASKS


def gammas(tables: Sequence[PaperTable]) -> dict[str, float]:
    """The paper's guidance scale for each task."""
    return {task: gamma for paper in tables for task, gamma in paper.gamma.items()}


@dataclass(frozen=True)
class Dataset:
    """A dataset: its images, what is done to them and with which solvers, and the paper's tables that it is in.

    ``read`` takes the path that ``--data`` gives, the rows that are used, and the models, whose images' size may be needed.
    """

    title: str
    model: str
    tasks: tuple[str, ...]
    features: tuple[str, ...]
    tables: tuple[PaperTable, ...]
    suites: dict[str, Suite]
    read: Callable[[Path | None, slice, Sequence[str]], Tensor]

    @property
    def gamma(self) -> dict[str, float]:
        """The paper's guidance scale for each task."""
        return gammas(self.tables)

    @property
    def contenders(self) -> Suite:
        """Every row of every suite."""
        return {label: entry for suite in self.suites.values() for label, entry in suite.items()}

    def parts(self, label: str) -> int:
        """Into how many times more parts the row of a label is cut than usual."""
        known = self.contenders
        return known[label].parts if label in known else 1

    def suite(self, name: str) -> Suite:
        """A suite by its name."""
        if name not in self.suites:
            raise unknown(f"suite of {self.title}", name, self.suites)
        return self.suites[name]


def read_fashion_mnist(data: Path | None, take: slice, models: Sequence[str]) -> Tensor:
    """The test images, from a folder of Fashion-MNIST's own files or wherever they are found."""
    return fashion_mnist("test", data)[take]


def read_bedrooms(data: Path | None, take: slice, models: Sequence[str]) -> Tensor:
    """Images from a folder, LSUN's lmdb or an array, in the size of the models."""
    if data is None:
        raise ConfigError("lsun-bedroom needs images; give --data, a folder of images, LSUN's lmdb or a .npy[.xz] array")
    shapes = {image_shape(model) for model in models}
    if len(shapes) != 1:
        raise ConfigError(f"the models of a run must take images of one shape; got {sorted(shapes)}; run them one by one")
    return read_images(data, shapes.pop(), take)


DATASETS: dict[str, Dataset] = {
    "fashion-mnist": Dataset(
        "Fashion-MNIST", "fashion-mnist", tuple(TASKS), ("inception", "classifier"), (TABLE_II,),
        {"table": table(gammas([TABLE_II])), **studies(28), "solvers": SOLVERS}, read_fashion_mnist,
    ),
    "lsun-bedroom": Dataset(
        "LSUN Bedroom", "bedroom64", tuple(ALL_TASKS), ("inception",), (TABLE_I, TABLE_III),
        {"table": {**MEASUREMENT, **table(gammas([TABLE_I, TABLE_III]))}, **studies(64)}, read_bedrooms,
    ),
}  # fmt: skip
