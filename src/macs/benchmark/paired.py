"""Differences between samplers, image by image: what one has on another."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from macs.benchmark.bench import Bench
from macs.benchmark.folder import images_path
from macs.benchmark.intervals import interval
from macs.benchmark.sealed import read_npz
from macs.benchmark.solvers import OTHERS, SAMPLERS
from macs.benchmark.suite import ABLATION, INPUT, LEVEL_OF
from macs.errors import DataError

OURS = "MACS-D"
#: What every sampler is compared with, by its number of calls.
BASELINES = {
    2: ("Multistep", "DDIM"),
    3: ("Multistep, 3 calls", "DDIM, 3 calls"),
    4: ("Multistep, 4 calls", "DDIM, 4 calls"),
}
#: What every sampler of so few calls is compared with: the input, a single call, and well-known solvers with more calls.
FEW = 4
OUTSIDE = (INPUT, "one step", "DDRM", "DDRM, published noise", "DPS")
#: The metrics that are compared, and those of which less is better.
COMPARED = ("psnr", "ssim", "fid", "kid", "lpips")
LESS = ("fid", "kid", "lpips")
#: Digits of a difference in reports.
PRINTED = 3


@dataclass(frozen=True)
class Difference:
    """A metric of one sampler minus that of another on the same images, with its 95 % interval."""

    model: str
    task: str
    sampler: str
    against: str
    metric: str
    value: float
    lo: float
    hi: float

    @property
    def verdict(self) -> str:
        """``ahead``, ``behind``, ``open`` where the interval holds zero, or ``same`` where no digit that is shown differs."""
        if max(abs(self.lo), abs(self.hi)) < 0.5 * 10**-PRINTED:
            return "same"
        if self.lo <= 0 <= self.hi:
            return "open"
        return "ahead" if (self.value < 0) == (self.metric in LESS) else "behind"


def ours(label: str) -> bool:
    """Whether a row of the table is MACS-D, at any number of calls or averaged."""
    return label in SAMPLERS and label.split(", ")[0] == OURS


def rivals(label: str, calls: Mapping[str, int]) -> list[str]:
    """What a row is compared with, of the rows that are there, given with their numbers of calls.

    MACS-D with every row of the table that makes as many calls and with all solvers that are no samplers; every sampler with
    Multistep and DDIM of as many, with its input, with one step and with well-known solvers; what the ablation changes with
    what it changes; MACS-D at a level of the sweep with Multistep at that level.
    """
    mine = calls[label]
    wanted = set(BASELINES.get(mine, ())) | (set(OUTSIDE) if 0 < mine <= FEW else set())
    if ours(label):
        wanted |= {other for other in SAMPLERS if calls.get(other) == mine} | set(OTHERS)
    if label in ABLATION:
        wanted.add(OURS)
    line, level = LEVEL_OF.get(label, ("", 0.0))
    if line == OURS:
        wanted |= {other for other, (_, at) in LEVEL_OF.items() if at == level}
    return [other for other in calls if other in wanted and other != label]


def differences(bench: Bench, rows: Iterable[dict[str, Any]]) -> list[Difference]:
    """Every row against its :func:`rivals`, where the images' contributions are still there."""
    groups: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["task"]), {})[row["sampler"]] = row
    out = []
    for (model, task), group in groups.items():
        each = {label: read_npz(images_path(bench, (model, task, label))) for label in group}
        for label, row in group.items():
            for other in rivals(label, {name: beside["nfe"] for name, beside in group.items()}):
                out += pair(row, group[other], each[label] or {}, each[other] or {}, bench.seed)
    return out


def pair(row: dict[str, Any], beside: dict[str, Any], mine: Any, theirs: Any, seed: int) -> list[Difference]:
    """The differences of two rows in every metric that both have, from what each image contributed to it."""
    out = []
    for metric in (m for m in COMPARED if all(m in known for known in (row, beside, mine, theirs))):
        value = row[metric] - beside[metric]
        low, high = interval(torch.from_numpy(mine[metric].astype(float) - theirs[metric]), value, seed)
        out.append(Difference(row["model"], row["task"], row["sampler"], beside["sampler"], metric, value, low, high))
    return out


def from_lines(lines: Iterable[dict[str, Any]], path: Path) -> list[Difference]:
    """The differences that :func:`as_lines` wrote."""
    try:
        return [Difference(**{key: value for key, value in line.items() if key != "verdict"}) for line in lines]
    except TypeError as error:
        raise DataError(f"{path} is damaged ({error}); delete it, and what the rows still allow is computed again") from error


def as_lines(found: list[Difference]) -> list[dict[str, Any]]:
    """The differences as they are written to ``paired.jsonl``."""
    return [asdict(d) | {"verdict": d.verdict} for d in found]
