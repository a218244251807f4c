"""Model x task x sampler to rows, one JSON line each, in a folder that a killed run goes on in.

All samplers of a task see the same measurements and the same start noise, image by image, so they can be compared in pairs.
In the folder: ``bench.json`` (what must not change between runs), ``rows.jsonl`` (finished rows, never computed again), and in
``cache/`` the restored images in chunks, their features, and what each image contributed to each metric.
"""

import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from macs.benchmark.features import Extractor
from macs.benchmark.intervals import interval
from macs.benchmark.perceptual import Perceptual, find_lpips
from macs.benchmark.suite import Entry
from macs.data import fashion_mnist
from macs.demo import measured
from macs.distances import Reference, frechet, kernel
from macs.errors import ConfigError, DataError, MacsWarning
from macs.metrics import psnr, ssim
from macs.models.consistency import ConsistencyModel
from macs.models.store import load, model_digest
from macs.solver import Solver
from macs.training.checkpoint import locked, write_atomically

CHUNK = 500
FORMAT = 1
#: Metrics of a row, those of the paper first; each has ``_lo`` and ``_hi``. LPIPS is there where its weights were given.
METRICS = ("psnr", "ssim", "fid", "kid", "lpips", "chi2", "residue")


@dataclass(frozen=True)
class Bench:
    """What is run and where it is kept."""

    out: Path
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    entries: dict[str, Entry]
    images: int = 10_000
    seed: int = 0
    features: str = "inception"
    inception: str | None = None
    lpips: str | None = None

    def __post_init__(self) -> None:
        if self.images < 10:
            raise ConfigError(f"images must be at least 10, a distance needs a set; got {self.images}")

    @property
    def cache(self) -> Path:
        """What may be deleted: it only saves time."""
        return self.out / "cache"

    @property
    def rows_path(self) -> Path:
        """The finished rows."""
        return self.out / "rows.jsonl"

    def jobs(self) -> list[tuple[str, str, str]]:
        """Every (model, task, label)."""
        return [(model, task, label) for model in self.models for task in self.tasks for label in self.entries]


def check_folder(bench: Bench) -> None:
    """Refuse a folder of another configuration; enter ours where the folder is new."""
    path = bench.out / "bench.json"
    ours: dict[str, Any] = {
        "format": FORMAT, "images": bench.images, "seed": bench.seed, "features": bench.features,
        "models": {name: model_digest(name) for name in bench.models},
    }  # fmt: skip
    if path.exists():
        try:
            theirs = json.loads(path.read_bytes())
            known = dict(theirs["models"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is damaged ({error}); use another --out") from error
        for key in ("format", "images", "seed", "features"):
            if theirs.get(key) != ours[key]:
                raise ConfigError(f"{bench.out} holds rows of {key} {theirs.get(key)}, not {ours[key]}; use another --out")
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


@dataclass(frozen=True)
class Restored:
    """The images of a row, what they cost and how well they fit: (N, C, H, W), and (N,) for each number per image."""

    images: Tensor
    chi2: Tensor
    residue: Tensor
    seconds: float
    nfe: int
    levels: list[float]


def restore_chunk(solver: Solver, y: Tensor, physics: Any, ids: range, seed: int) -> dict[str, np.ndarray]:
    """A part of the images restored, with all that the row needs of the trace."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MacsWarning)
        x, trace = solver(y, physics, seed=seed, ids=ids, trace=True)
    seconds = time.perf_counter() - start
    size = y.flatten(1).double().square().sum(1)
    return {
        "x": x.numpy(), "chi2": trace.final_chi2.numpy(), "seconds": np.array(seconds), "nfe": np.array(trace.nfe[-1]),
        "residue": (trace.final_residual / 4 / size).sqrt().numpy(),
        "levels": np.array([t if isinstance(t, float) else t.mean().item() for t in trace.levels]),
    }  # fmt: skip


def restored(
    bench: Bench, job: tuple[str, str, str], model: ConsistencyModel, y: Tensor, physics: Any, on_images: Callable[[int], None]
) -> Restored:
    """All images of a row, chunk by chunk; finished chunks are read from the cache."""
    entry = bench.entries[job[2]]
    solver = Solver(model, entry.sampler, steps=entry.steps or 2, levels=entry.levels)
    parts = []
    for first, path in chunks(bench, job, len(y)).items():
        last = min(first + CHUNK, len(y))
        part = read_npz(path)
        if part is None:
            part = restore_chunk(solver, y[first:last], physics, range(first, last), bench.seed)
            write_npz(path, part)
        parts.append(part)
        on_images(last - first)
    gathered = {key: torch.from_numpy(np.concatenate([p[key] for p in parts])) for key in ("x", "chi2", "residue")}
    seconds = float(sum(p["seconds"] for p in parts)) / len(y)
    levels = np.mean([p["levels"] for p in parts], axis=0).tolist()
    return Restored(gathered["x"], gathered["chi2"], gathered["residue"], seconds, int(parts[0]["nfe"]), levels)


def chunks(bench: Bench, job: tuple[str, str, str], images: int) -> dict[int, Path]:
    """Where the restored images of a row are cached, by the first image of each chunk."""
    folder = bench.cache / "restored" / slug(*job)
    return {first: folder / f"{first:06d}.npz" for first in range(0, images, CHUNK)}


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


def contributions(
    out: Restored,
    x: Tensor,
    extractor: Extractor,
    reference: Reference,
    lpips: Perceptual | None,
    on_images: Callable[[int], None],
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Every metric of a row, and what each image contributed to it, (N,)."""
    features = extractor(out.images, on_images)
    fid, kid = frechet(features, reference), kernel(features, reference)
    each = {
        "psnr": psnr(out.images, x), "ssim": ssim(out.images, x), "fid": fid.influence, "kid": 1000 * kid.influence,
        "chi2": out.chi2, "residue": out.residue,
    }  # fmt: skip
    if lpips is not None:
        each["lpips"] = lpips(out.images, x)
    each = {name: values.double() for name, values in each.items()}
    means = {name: values.mean().item() for name, values in each.items()}
    return means | {"fid": fid.value, "kid": 1000 * kid.value}, each


def with_interval(metric: str, value: float, each: Tensor, seed: int) -> dict[str, float]:
    """A metric as a row has it, with the ends of its interval."""
    low, high = interval(each, value, seed)
    return {metric: value, f"{metric}_lo": low, f"{metric}_hi": high}


def run(bench: Bench, on_row: Callable[[dict[str, Any]], None], on_images: Callable[[int], None] = lambda n: None) -> None:
    """Compute every row that is not there yet, and the LPIPS of those that are there without it."""
    with locked(bench.out):
        check_folder(bench)
        lpips = find_lpips(bench.lpips)
        if lpips is not None:
            add_lpips(bench, lpips, on_row)
        for row in fresh_rows(bench, lpips, on_images):
            write_rows(bench.rows_path, [*read_rows(bench.rows_path), row])
            on_row(row)


def missing_jobs(bench: Bench) -> list[tuple[str, str, str]]:
    """The jobs without a finished row."""
    done = {(row["model"], row["task"], row["sampler"]) for row in read_rows(bench.rows_path)}
    return [job for job in bench.jobs() if job not in done]


def true_images(bench: Bench) -> Tensor:
    """What is measured and restored, in [0, 1], (N, C, H, W)."""
    return fashion_mnist("test")[: bench.images].float() / 255


def add_lpips(bench: Bench, lpips: Perceptual, on_row: Callable[[dict[str, Any]], None]) -> None:
    """LPIPS for finished rows that lack it, from the restored images in the cache; a row without images is left alone."""
    rows, gone = read_rows(bench.rows_path), []
    if all("lpips" in row for row in rows):
        return
    x = true_images(bench)
    for i, row in enumerate(rows):
        job = (row["model"], row["task"], row["sampler"])
        parts = [read_npz(path) for path in chunks(bench, job, len(x)).values()] if "lpips" not in row else []
        known = [part["x"] for part in parts if part is not None]
        if len(known) < len(parts):
            gone.append(row["sampler"])
        elif known:
            each = lpips(torch.from_numpy(np.concatenate(known)), x).double()
            rows[i] = row | with_interval("lpips", each.mean().item(), each, bench.seed)
            path = images_path(bench.cache, *job)
            write_npz(path, {**(read_npz(path) or {}), "lpips": each.numpy()})
            write_rows(bench.rows_path, rows)
            on_row(rows[i])
    if gone:
        warnings.warn(
            f"{len(gone)} rows stay without LPIPS ({', '.join(dict.fromkeys(gone))}): their images are no longer in the cache; "
            "run them anew with another --out",
            MacsWarning,
            2,
        )


def fresh_rows(bench: Bench, lpips: Perceptual | None, on_images: Callable[[int], None]) -> Iterator[dict[str, Any]]:
    """The rows of the missing jobs, one after another."""
    jobs = missing_jobs(bench)
    if not jobs:
        return
    x = true_images(bench)
    extractor = Extractor(bench.features, bench.cache, bench.inception)
    reference = Reference(extractor(x))
    measurements: dict[str, tuple[Tensor, Any]] = {}
    models: dict[str, ConsistencyModel] = {}
    for job in jobs:
        name, task, label = job
        if task not in measurements:
            measurements[task] = measured(x, task, bench.seed)
        if name not in models:
            models[name] = load(name)
        out = restored(bench, job, models[name], *measurements[task], on_images)
        values, each = contributions(out, x, extractor, reference, lpips, on_images)
        write_npz(images_path(bench.cache, *job), {key: v.numpy() for key, v in each.items()})
        row = {
            "model": name, "task": task, "sampler": label, "settings": repr(bench.entries[label].sampler),
            "levels": [round(t, 6) for t in out.levels], "nfe": out.nfe, "images": len(x), "seed": bench.seed,
            "features": bench.features, "seconds_per_image": round(out.seconds, 6),
        }  # fmt: skip
        for metric in METRICS:
            if metric in values:
                row |= with_interval(metric, values[metric], each[metric], bench.seed)
        yield row
