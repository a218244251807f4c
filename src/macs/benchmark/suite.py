"""What the benchmark runs: each solver by a label that its row carries."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from macs.benchmark.degraded import Degraded
from macs.benchmark.networks import Networks
from macs.errors import unknown
from macs.levels import T_MAX, T_MIN, Levels
from macs.macs_d import AveragedMacsD, MacsD
from macs.solver import Restorer, Solver
from macs.steps import Addim, Ddim, DpmSolver, Euler, Heun, Macs, Multistep, Sampler


class Contender(Protocol):
    """What can be a row: it makes a solver for a task from networks, and says how that is set."""

    @property
    def uses(self) -> tuple[str, ...]:
        """The networks that it is made from, by their names in :class:`macs.benchmark.networks.Networks`."""
        ...

    @property
    def parts(self) -> int:
        """Into how many times more parts a row is cut than usual; those of a slow solver are kept more often."""
        ...

    @property
    def steps(self) -> int:
        """How many steps it was set to, 0 where its settings do not say; rows of few are run first."""
        ...

    def solver(self, networks: Networks, task: str) -> Restorer:
        """The solver."""
        ...

    def settings(self, task: str) -> str:
        """What it is, for the row."""
        ...


@dataclass(frozen=True)
class Entry:
    """A sampler and its grid: a number of steps, for the sampler's own grid, or levels."""

    sampler: Sampler
    grid: int | Levels
    uses: ClassVar[tuple[str, ...]] = ("model",)
    parts: ClassVar[int] = 1

    @property
    def steps(self) -> int:
        """The number of levels."""
        return self.grid if isinstance(self.grid, int) else len(self.grid)

    def solver(self, networks: Networks, task: str) -> Restorer:
        """The sampler on the model of the task."""
        levels = None if isinstance(self.grid, int) else self.grid
        return Solver(networks.model, self.sampler, steps=self.steps, levels=levels)

    def settings(self, task: str) -> str:
        """The sampler as Python writes it, and its grid."""
        return f"{self.sampler!r}, {'steps' if isinstance(self.grid, int) else 'levels'}={self.grid}"


@dataclass(frozen=True)
class ByTask:
    """A sampler whose parameters depend on the task."""

    entries: dict[str, Entry]
    uses: ClassVar[tuple[str, ...]] = ("model",)
    parts: ClassVar[int] = 1

    @property
    def steps(self) -> int:
        """The most that a task takes."""
        return max(entry.steps for entry in self.entries.values())

    def solver(self, networks: Networks, task: str) -> Restorer:
        """That of the task."""
        return self.entries[task].solver(networks, task)

    def settings(self, task: str) -> str:
        """Those of the task."""
        return self.entries[task].settings(task)


@dataclass(frozen=True)
class Made:
    """Any other solver: its class, the networks it takes, and its options."""

    kind: Callable[..., Restorer]
    uses: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    parts: int = 1

    @property
    def steps(self) -> int:
        """What its options say."""
        return int(self.options.get("steps", 0))

    def solver(self, networks: Networks, task: str) -> Restorer:
        """The solver on its networks."""
        return self.kind(*(getattr(networks, name) for name in self.uses), **self.options)

    def settings(self, task: str) -> str:
        """The call that makes it."""
        return f"{self.kind.__name__}({', '.join([*self.uses, *(f'{k}={v!r}' for k, v in self.options.items())])})"


Suite = dict[str, Contender]

#: The row of the degraded image itself.
INPUT = "measurement"
MEASUREMENT: Suite = {INPUT: Made(Degraded, ("model",))}


def macs_by_task(gamma: dict[str, float], steps: int) -> ByTask:
    """MACS with the paper's guidance scale for each task."""
    return ByTask({task: Entry(Macs(gamma=value), steps) for task, value in gamma.items()})


#: MACS-D with half of the coarse structure of the estimates before the last.
COARSE = AveragedMacsD(mean=0.5, smooth=0.7)


def table(gamma: dict[str, float]) -> Suite:
    """The rows of the paper's tables and what stands beside them, in the order in which they matter."""
    rows: Suite = {
        "MACS-D": Entry(MacsD(), 2),
        "MACS-D, averaged": Entry(AveragedMacsD(), 2),
        "MACS-D, coarse average": Entry(COARSE, 2),
        "Multistep": Entry(Multistep(), 2),
        "DDIM": Entry(Ddim(), 2),
        "MACS": macs_by_task(gamma, 2),
        "aDDIM": Entry(Addim(), 2),
        "Euler": Entry(Euler(), 2),
        "Euler, as published": Entry(Euler(), (T_MAX, T_MIN)),
        "one step": Entry(Multistep(), 1),
    }
    for n in (3, 4):
        rows |= {
            f"MACS-D, {n} calls": Entry(MacsD(), n), f"MACS-D, averaged, {n} calls": Entry(AveragedMacsD(), n),
            f"MACS-D, coarse average, {n} calls": Entry(COARSE, n), f"Multistep, {n} calls": Entry(Multistep(), n),
            f"DDIM, {n} calls": Entry(Ddim(), n),
            f"MACS, {n} calls": macs_by_task(gamma, n),
        }  # fmt: skip
    return rows | {"DPM-Solver": Entry(DpmSolver(), 8), "Heun, 20 steps": Entry(Heun(), 20), "Heun": Entry(Heun(), 40)}


#: Of the ablation: Multistep at the levels of MACS-D.
SAME_GRID = "Multistep, same grid"


def ablation(side: int) -> Suite:
    """The ablation of MACS-D on images of ``side`` pixels, on its grid for that size.

    The data step, what noise returns and where, a last level set by the residual; then the lower level of its averaged
    variant, with none of the first estimate and with more of it.
    """
    grid = MacsD().levels(2, T_MAX, T_MIN, side)
    return {
        "MACS-D": Entry(MacsD(), 2),
        "without the data step": Entry(MacsD(data=None), grid),
        "data step after the last call": Entry(MacsD(tolerance=0.0), grid),
        "noise everywhere": Entry(MacsD(null=False), grid),
        "all of the noise": Entry(MacsD(eta=1.0), grid),
        "no noise": Entry(MacsD(eta=0.0), grid),
        "reused noise": Entry(Ddim(data=MacsD().data), grid),
        "level set by the residual": Entry(MacsD(polish=True), 2),
        SAME_GRID: Entry(Multistep(), grid),
        "lower level": Entry(AveragedMacsD(mean=0.0), 2),
        "lower level, a quarter of the first": Entry(AveragedMacsD(mean=0.25), 2),
    }


#: The labels of the ablation, whatever the size of the images.
ABLATION = tuple(ablation(28))

#: A sweep: for each label the line it belongs to, and its place on that line.
Sweep = dict[str, tuple[str, float]]

#: The paper's guidance scale and far beyond it.
GAMMA_OF: Sweep = {f"MACS, gamma {gamma:g}": ("MACS", gamma) for gamma in (0.5, 1.5, 15.0, 150.0, 1500.0)}
GAMMAS: Suite = {label: Entry(Macs(gamma=gamma), 2) for label, (_, gamma) in GAMMA_OF.items()}

#: The second of two levels, from one at which little is left to invent to one at which nearly all is.
SWEPT: dict[str, Sampler] = {"Multistep": Multistep(), "MACS-D": MacsD()}
LEVEL_OF: Sweep = {f"{name}, s {s:g}": (name, s) for name in SWEPT for s in (0.4, 0.8, 1.6, 2.8, 4.4, 8.0, 16.0)}
LEVELS: Suite = {label: Entry(SWEPT[name], (T_MAX, s)) for label, (name, s) in LEVEL_OF.items()}


def studies(side: int) -> dict[str, Suite]:
    """What a dataset of images of ``side`` pixels has beside its table."""
    return {"ablation": ablation(side), "gammas": GAMMAS, "levels": LEVELS}


def chosen(suite: Suite, names: Iterable[str] | None) -> Suite:
    """The rows of these labels, in the suite's order; all of them where none is named."""
    if names is None:
        return suite
    wanted = list(names)
    for name in wanted:
        if name not in suite:
            raise unknown("sampler", name, suite)
    return {label: entry for label, entry in suite.items() if label in wanted}
