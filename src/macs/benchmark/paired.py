"""Differences between samplers, image by image: what one has on another."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from macs.benchmark.bench import Bench
from macs.benchmark.folder import images_path, read_npz
from macs.benchmark.intervals import interval
from macs.benchmark.suite import INPUT

#: What each sampler is compared with, by its number of calls: others with as many, the input, and well-known solvers with more.
AGAINST = {
    1: (INPUT,),
    2: ("Multistep", "DDIM", "MACS", INPUT, "DDRM", "DPS"),
    3: ("Multistep, 3 calls", "DDIM, 3 calls", "MACS, 3 calls", INPUT),
    4: ("Multistep, 4 calls", "DDIM, 4 calls", "MACS, 4 calls", INPUT),
}
#: The metrics that are compared, and those of which less is better.
COMPARED = ("psnr", "ssim", "fid", "kid", "lpips")
LESS = ("fid", "kid", "lpips")


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
        """``ahead``, ``behind``, or ``open`` where the interval holds zero."""
        if self.lo <= 0 <= self.hi:
            return "open"
        return "ahead" if (self.value < 0) == (self.metric in LESS) else "behind"


def differences(bench: Bench, rows: Iterable[dict[str, Any]]) -> list[Difference]:
    """Every row against those of :data:`AGAINST`, where the images' contributions are still there."""
    table = {(r["model"], r["task"], r["sampler"]): r for r in rows}
    out = []
    for (model, task, label), row in table.items():
        for other in AGAINST.get(row["nfe"], ()):
            if other == label or (model, task, other) not in table:
                continue
            mine, theirs = (read_npz(images_path(bench.cache, model, task, name)) for name in (label, other))
            if mine is None or theirs is None:
                continue
            beside = table[model, task, other]
            for metric in (m for m in COMPARED if all(m in known for known in (row, beside, mine, theirs))):
                value = row[metric] - beside[metric]
                low, high = interval(torch.from_numpy(mine[metric] - theirs[metric]), value, bench.seed)
                out.append(Difference(model, task, label, other, metric, value, low, high))
    return out


def as_lines(found: list[Difference]) -> list[dict[str, Any]]:
    """The differences as they are written to ``paired.jsonl``."""
    return [asdict(d) | {"verdict": d.verdict} for d in found]
