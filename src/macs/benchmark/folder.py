"""The folder of a benchmark: ``bench.json`` (what must not change between runs), ``rows.jsonl`` (finished rows, never computed
again), in ``images/`` what each image contributed to the metrics that are compared in pairs, and in ``cache/`` the restored
images in chunks and their features.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from macs.benchmark.bench import Bench, Job
from macs.errors import ConfigError, DataError
from macs.training.checkpoint import write_atomically

FORMAT = 2
#: What all rows of a folder agree in, and its report as well; how they were computed does not matter to a report.
REPORTED = ("format", "dataset", "images", "seed", "features", "cosign_compat", "data")
CONFIGURATION = (*REPORTED, "compiled")


def configuration(bench: Bench) -> dict[str, Any]:
    """What the rows of a benchmark have in common."""
    return {
        "format": FORMAT, "dataset": bench.dataset, "images": len(bench.pixels), "seed": bench.seed,
        "features": bench.features, "cosign_compat": bench.cosign_compat, "compiled": bench.compiled,
        "data": hashlib.sha256(bench.pixels.contiguous().numpy().tobytes()).hexdigest()[:16],
    }  # fmt: skip


def check_folder(bench: Bench, keys: Sequence[str] = CONFIGURATION) -> dict[str, str]:
    """Refuse a folder that differs in one of ``keys``; the digests of the networks that its rows came from, by name."""
    path = bench.out / "bench.json"
    if not path.exists():
        if bench.rows_path.exists():
            raise ConfigError(f"{bench.out} has rows but no bench.json that says what they are of; use another --out")
        return {}
    try:
        theirs = json.loads(path.read_bytes())
        known = dict(theirs.get("networks", {}))
        ours = configuration(bench)
        differs = next((key for key in keys if theirs[key] != ours[key]), None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); use another --out") from error
    if differs is not None:
        raise ConfigError(
            f"{bench.out} holds rows of {differs} {theirs[differs]}, not {ours[differs]}; "
            "give what its run was given, or use another --out"
        )
    return known


def enter(bench: Bench, known: dict[str, str], networks: dict[str, str]) -> None:
    """Write what the folder's rows are of; refuse networks of other weights than those that are ``known`` there."""
    for name, digest in networks.items():
        if known.get(name, digest) != digest:
            raise ConfigError(
                f"{bench.out} holds rows of another file for the network {name}; give that file, or use another --out"
            )
    content = {**configuration(bench), "networks": {**known, **networks}}
    write_atomically(bench.out / "bench.json", (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def check_settings(bench: Bench) -> None:
    """Refuse a folder with a row of a label that now stands for something else."""
    now = {**bench.about.contenders, **bench.entries}
    for row in read_rows(bench.rows_path):
        label, task = row["sampler"], row["task"]
        if label in now and row["settings"] != now[label].settings(task):
            raise ConfigError(
                f"{bench.out} holds the row {label!r} of {task} for {row['settings']}, "
                f"which is now {now[label].settings(task)}; use another --out"
            )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The finished rows; what a killed run left of a last line is not one of them."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        rows = [json.loads(line) for line in lines]
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); delete the line, and its row is computed again") from error
    for i, row in enumerate(rows, 1):
        if not (isinstance(row, dict) and {"model", "task", "sampler"} <= row.keys()):
            raise DataError(f"{path} is damaged (line {i} is not a row); delete the line, and its row is computed again")
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """All finished rows; they have reached the disk when this returns."""
    write_atomically(path, b"".join(json.dumps(row).encode() + b"\n" for row in rows))


def chunks(bench: Bench, job: Job, settings: str) -> dict[range, Path]:
    """Where the restored images of a row are cached, by which images; other settings have other files."""
    folder = bench.cache / "restored" / f"{slug(*job)}--{digits(settings)}"
    size, images = bench.chunk(job[2]), len(bench.pixels)
    parts = [range(first, min(first + size, images)) for first in range(0, images, size)]
    return {part: folder / f"{part.start:06d}-{part.stop:06d}.npz" for part in parts}


def images_path(bench: Bench, job: Job) -> Path:
    """Where the contributions of a row's images are kept; small, and beside the rows, as they outlive the cache."""
    return bench.out / "images" / f"{slug(*job)}.npz"


def slug(*names: str) -> str:
    """Names as a part of a path; one that cannot stand there as it is gets digits that tell it from its like."""
    out = []
    for name in names:
        plain = "".join(c if c.isalnum() or c in ".-" else "-" for c in name)
        out.append(plain if plain == name else f"{plain}-{digits(name)}")
    return "--".join(out)


def digits(text: str) -> str:
    """Eight hexadecimal digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
