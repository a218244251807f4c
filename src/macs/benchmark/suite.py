"""What the benchmark runs: each sampler by a label that its row carries."""

from collections.abc import Iterable
from dataclasses import dataclass

from macs.errors import unknown
from macs.levels import T_MAX, T_MIN, Levels
from macs.steps import Addim, Ddim, DpmSolver, Euler, Heun, Macs, MacsD, Multistep, Sampler


@dataclass(frozen=True)
class Entry:
    """A sampler and its grid: a number of steps, for the sampler's own grid, or levels."""

    sampler: Sampler
    steps: int | None = None
    levels: Levels | None = None


#: The rows of the paper's table in its order, then what stands beside them.
SUITE: dict[str, Entry] = {
    "DPM-Solver": Entry(DpmSolver(), steps=8),
    "Heun, 20 steps": Entry(Heun(), steps=20),
    "Heun": Entry(Heun(), steps=40),
    "Euler, as published": Entry(Euler(), levels=(80.0, T_MIN)),
    "Euler": Entry(Euler(), steps=2),
    "Multistep": Entry(Multistep(), steps=2),
    "MACS": Entry(Macs(gamma=0.15), steps=2),
    "one step": Entry(Multistep(), steps=1),
    "DDIM": Entry(Ddim(), steps=2),
    "aDDIM": Entry(Addim(), steps=2),
    "MACS-D": Entry(MacsD(), steps=2),
    **{
        f"{label}, {n} calls": Entry(sampler, steps=n)
        for n in (3, 4)
        for label, sampler in {"Multistep": Multistep(), "DDIM": Ddim(), "MACS": Macs(gamma=0.15), "MACS-D": MacsD()}.items()
    },
}

#: The ablation of MACS-D, all on its own grid: what noise returns and where, the data step, a last level set by the residual.
GRID = MacsD().levels(2, T_MAX, T_MIN)
ABLATION: dict[str, Entry] = {
    "MACS-D": Entry(MacsD(), levels=GRID),
    "without the data step": Entry(MacsD(data=None), levels=GRID),
    "noise everywhere": Entry(MacsD(null=False), levels=GRID),
    "all of the noise": Entry(MacsD(eta=1.0), levels=GRID),
    "no noise": Entry(MacsD(eta=0.0), levels=GRID),
    "reused noise": Entry(Ddim(data=MacsD().data), levels=GRID),
    "level set by the residual": Entry(MacsD(polish=True), steps=2),
    "Multistep": Entry(Multistep(), levels=GRID),
}

#: A sweep: for each label the line it belongs to, and its place on that line.
Sweep = dict[str, tuple[str, float]]

#: The paper's guidance scale and far beyond it.
GAMMA_OF: Sweep = {f"MACS, gamma {gamma:g}": ("MACS", gamma) for gamma in (0.5, 1.5, 15.0, 150.0, 1500.0)}
GAMMAS: dict[str, Entry] = {label: Entry(Macs(gamma=gamma), steps=2) for label, (_, gamma) in GAMMA_OF.items()}

#: The second of two levels, from one at which little is left to invent to one at which nearly all is.
SWEPT: dict[str, Sampler] = {"Multistep": Multistep(), "MACS-D": MacsD()}
LEVEL_OF: Sweep = {f"{name}, s {s:g}": (name, s) for name in SWEPT for s in (0.4, 0.8, 1.6, 2.8, 4.4, 8.0, 16.0)}
LEVELS: dict[str, Entry] = {label: Entry(SWEPT[name], levels=(T_MAX, s)) for label, (name, s) in LEVEL_OF.items()}

SUITES: dict[str, dict[str, Entry]] = {"table": SUITE, "ablation": ABLATION, "gammas": GAMMAS, "levels": LEVELS}


def chosen(names: Iterable[str] | None, suite: str = "table") -> dict[str, Entry]:
    """The entries of these labels, in the suite's order; all of them where none is named."""
    if suite not in SUITES:
        raise unknown("suite", suite, SUITES)
    entries = SUITES[suite]
    if names is None:
        return entries
    wanted = list(names)
    for name in wanted:
        if name not in entries:
            raise unknown("sampler", name, entries)
    return {label: entry for label, entry in entries.items() if label in wanted}
