"""The folder of a benchmark: ``bench.json`` (what must not change between runs), ``rows.jsonl`` (finished rows, never computed
again), and in ``cache/`` the restored images in chunks, their features, and what each image contributed to each metric.
"""

import hashlib
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from macs.benchmark.bench import Bench, Job
from macs.errors import ConfigError, DataError
from macs.training.checkpoint import write_atomically

FORMAT = 1
#: What a folder's rows must agree in.
CONFIGURATION = ("format", "dataset", "images", "seed", "features", "cosign_compat", "compiled", "data")


def check_folder(bench: Bench) -> None:
    """Refuse a folder of another configuration; enter ours where the folder is new."""
    path = bench.out / "bench.json"
    ours: dict[str, Any] = {
        "format": FORMAT, "dataset": bench.dataset, "images": len(bench.pixels), "seed": bench.seed,
        "features": bench.features, "cosign_compat": bench.cosign_compat, "compiled": bench.compiled,
        "data": hashlib.sha256(bench.pixels.contiguous().numpy().tobytes()).hexdigest()[:16],
        "models": bench.names.digests(bench.models, bench.tasks, {p for entry in bench.entries.values() for p in entry.uses}),
    }  # fmt: skip
    if path.exists():
        try:
            theirs = json.loads(path.read_bytes())
            known = dict(theirs["models"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is damaged ({error}); use another --out") from error
        for key in CONFIGURATION:
            if theirs.get(key, ours[key]) != ours[key]:
                raise ConfigError(f"{bench.out} holds rows of {key} {theirs[key]}, not {ours[key]}; use another --out")
        for name, digest in ours["models"].items():
            if known.get(name, digest) != digest:
                raise ConfigError(f"{bench.out} holds rows of another file for the model {name}; use another --out")
        ours["models"] = {**known, **ours["models"]}
    elif bench.rows_path.exists():
        raise ConfigError(f"{bench.out} has rows but no bench.json that says what they are of; use another --out")
    write_atomically(path, (json.dumps(ours, indent=2, sort_keys=True) + "\n").encode())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The finished rows; what a killed run left of a last line is not one of them."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); delete the line, and its row is computed again") from error


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """All finished rows; they have reached the disk when this returns."""
    write_atomically(path, b"".join(json.dumps(row).encode() + b"\n" for row in rows))


def chunks(bench: Bench, job: Job) -> dict[int, Path]:
    """Where the restored images of a row are cached, by the first image of each chunk."""
    folder = bench.cache / "restored" / slug(*job)
    return {first: folder / f"{first:06d}.npz" for first in range(0, len(bench.pixels), bench.chunk(job[2]))}


def images_path(cache: Path, *job: str) -> Path:
    """Where the contributions of a row's images are kept."""
    return cache / "images" / f"{slug(*job)}.npz"


def slug(*names: str) -> str:
    """Names as a part of a path."""
    return "--".join("".join(c if c.isalnum() or c in ".-" else "-" for c in name) for name in names)


def read_npz(path: Path) -> dict[str, np.ndarray] | None:
    """The arrays of a cache file; None where there is none, or a damaged one."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, KeyError, EOFError):
        return None


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Arrays as a cache file, atomically."""
    buffer = BytesIO()
    np.savez(buffer, **arrays)
    write_atomically(path, buffer.getvalue())
