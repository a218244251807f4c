"""Model x task x sampler to rows, in a folder that a killed run goes on in.

All samplers of a task see the same measurements and the same start noise, image by image, so they can be compared in pairs.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from macs import __version__
from macs.benchmark.bench import Bench, Job
from macs.benchmark.features import Extractor
from macs.benchmark.folder import check_folder, check_settings, chunks, enter, images_path, read_rows, write_rows
from macs.benchmark.inception import runtime
from macs.benchmark.intervals import interval
from macs.benchmark.measure import Measured
from macs.benchmark.networks import check_conditions, loaded
from macs.benchmark.paired import COMPARED
from macs.benchmark.perceptual import Perceptual, find_lpips
from macs.benchmark.sealed import read_npz, write_npz
from macs.distances import Reference, frechet, kernel
from macs.errors import MacsWarning
from macs.metrics import psnr, ssim
from macs.problem import Problem, to_sampler
from macs.solver import Restorer, Trace
from macs.training.checkpoint import locked

#: Metrics of a row, those of the paper first; each has ``_lo`` and ``_hi``. LPIPS is there where its weights were given.
METRICS = ("psnr", "ssim", "fid", "kid", "lpips", "chi2", "residue")


@dataclass(frozen=True)
class Restored:
    """The images of a row, what they cost and how well they fit: (N, C, H, W), and (N,) for each number per image."""

    images: Tensor
    chi2: Tensor
    residue: Tensor
    seconds: float
    nfe: int
    levels: list[float]


def restore_chunk(solver: Restorer, y: Tensor, physics: Any, ids: range, seed: int, traced: bool) -> dict[str, np.ndarray]:
    """A part of the images restored, and how well they fit; with the calls and levels of a trace, or else with the time.

    A trace costs time of its own, and the first call of a network also pays for its preparation: so one is not the other.
    """
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MacsWarning)
        out = solver(y, physics, seed=seed, ids=ids, trace=traced)
    seconds = time.perf_counter() - start
    x = out[0] if traced else out
    cost = calls_and_levels(out[1]) if traced else {"seconds": np.array(seconds)}
    problem, image = Problem(y, physics), to_sampler(x)
    with torch.no_grad():
        chi2, residual = problem.chi2(image), problem.residual(image)
    residue = (residual / 4 / y.flatten(1).double().square().sum(1)).sqrt()
    return {"x": x.numpy(), "chi2": chi2.numpy(), "residue": residue.numpy(), **cost}


def calls_and_levels(trace: Trace) -> dict[str, np.ndarray]:
    """The number of network calls, and the levels; the mean over images where each has its own."""
    levels = [t if isinstance(t, float) else t.mean().item() for t in trace.levels]
    return {"nfe": np.array(max(trace.nfe, default=0)), "levels": np.array(levels)}


def restored(bench: Bench, job: Job, solver: Restorer, measured: Measured, on_images: Callable[[int], None]) -> Restored:
    """All images of a row, chunk by chunk; finished chunks are read from the cache.

    The first chunk that a process restores is traced and warms the networks up, at the size of the others; of those every
    full one is timed, without a trace. So no time holds a compilation, and no image is restored twice for the clock's sake.
    """
    parts, warm = {}, False
    for images, path in chunks(bench, job, bench.entries[job[2]].settings(job[1])).items():
        part = read_npz(path)
        if part is None:
            part = restore_chunk(solver, *measured.part(images.start, images.stop), images, bench.seed, not warm)
            write_npz(path, part)
            warm = True
        parts[images] = part
        on_images(len(images))
    first = next(iter(parts))
    times = [part["seconds"].item() for images, part in parts.items() if "seconds" in part and len(images) == len(first)]
    seconds = np.mean(times or time_again(solver, measured, first, bench.seed)).item() / len(first)
    x, chi2, residue = (torch.from_numpy(np.concatenate([p[key] for p in parts.values()])) for key in ("x", "chi2", "residue"))
    return Restored(x, chi2, residue, seconds, int(parts[first]["nfe"]), parts[first]["levels"].tolist())


def time_again(solver: Restorer, measured: Measured, images: range, seed: int) -> float:
    """The time of a chunk, for a row that was killed so often that none was timed; the first of two calls warms up."""
    y, physics = measured.part(images.start, images.stop)
    twice = [restore_chunk(solver, y, physics, images, seed, False) for _ in range(2)]
    return twice[1]["seconds"].item()


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


def keep_each(path: Path, each: dict[str, np.ndarray]) -> None:
    """What each image contributed to the metrics that are compared in pairs, in single precision."""
    write_npz(path, {key: values.astype(np.float32) for key, values in each.items() if key in COMPARED})


def software(features: str) -> dict[str, str]:
    """What computed a row: this package, torch and, where they are Inception's, the runtime of the features."""
    versions = {"macs": __version__, "torch": torch.__version__}
    return versions | ({"inception": runtime()} if features == "inception" else {})


def with_interval(metric: str, value: float, each: Tensor, seed: int) -> dict[str, float]:
    """A metric as a row has it, with the ends of its interval."""
    low, high = interval(each, value, seed)
    return {metric: value, f"{metric}_lo": low, f"{metric}_hi": high}


def run(bench: Bench, on_row: Callable[[dict[str, Any]], None], on_images: Callable[[int], None] = lambda n: None) -> None:
    """Compute every row that is not there yet, and the LPIPS of those that are there without it."""
    with locked(bench.out):
        jobs = missing_jobs(bench)
        measured = {task: bench.measured(task) for task in dict.fromkeys(task for _, task, _ in jobs)}
        known = check_folder(bench)
        check_settings(bench)
        check_conditions(bench.names, bench.models, list(measured))
        lpips = find_lpips(bench.lpips)
        extractor = Extractor(bench.features, bench.cache, bench.inception)
        enter(bench, known, digests(bench, extractor if jobs else None, lpips))
        if lpips is not None:
            add_lpips(bench, lpips, on_row)
        for row in fresh_rows(bench, jobs, measured, extractor, lpips, on_images):
            write_rows(bench.rows_path, [*read_rows(bench.rows_path), row])
            on_row(row)


def digests(bench: Bench, extractor: Extractor | None, lpips: Perceptual | None) -> dict[str, str]:
    """What tells the weights of every network of a run from others, by its name."""
    out = bench.names.digests(bench.models, bench.tasks, {part for entry in bench.entries.values() for part in entry.uses})
    if extractor is not None:
        out[f"{extractor.kind} of the distances"] = extractor.digest
    if lpips is not None:
        out["LPIPS"] = lpips.digest
    return out


def missing_jobs(bench: Bench) -> list[Job]:
    """The jobs without a finished row."""
    done = {(row["model"], row["task"], row["sampler"]) for row in read_rows(bench.rows_path)}
    return [job for job in bench.jobs() if job not in done]


def add_lpips(bench: Bench, lpips: Perceptual, on_row: Callable[[dict[str, Any]], None]) -> None:
    """LPIPS for finished rows that lack it, from the restored images in the cache; a row without images is left alone."""
    rows, gone = read_rows(bench.rows_path), []
    for i, row in enumerate(rows):
        job = (row["model"], row["task"], row["sampler"])
        parts = [read_npz(path) for path in chunks(bench, job, row["settings"]).values()] if "lpips" not in row else []
        known = [part["x"] for part in parts if part is not None]
        if len(known) < len(parts):
            gone.append(row["sampler"])
        elif known:
            each = lpips(torch.from_numpy(np.concatenate(known)), bench.truth).double()
            rows[i] = row | with_interval("lpips", each.mean().item(), each, bench.seed)
            keep_each(images_path(bench, job), {**(read_npz(images_path(bench, job)) or {}), "lpips": each.numpy()})
            write_rows(bench.rows_path, rows)
            on_row(rows[i])
    if gone:
        warnings.warn(
            f"{len(gone)} rows stay without LPIPS ({', '.join(dict.fromkeys(gone))}): their images are no longer in the cache; "
            "run them anew with another --out",
            MacsWarning,
            2,
        )


def fresh_rows(
    bench: Bench,
    jobs: list[Job],
    measured: dict[str, Measured],
    extractor: Extractor,
    lpips: Perceptual | None,
    on_images: Callable[[int], None],
) -> Iterator[dict[str, Any]]:
    """The rows of the missing jobs, one after another; the networks of one model and task are in memory at a time."""
    if not jobs:
        return
    x = bench.truth
    reference = Reference(extractor(x))
    for (name, task), group in groupby(jobs, key=lambda job: job[:2]):
        networks = loaded(bench.names, name, task, bench.compiled)
        for job, solver in [(job, bench.entries[job[2]].solver(networks, task)) for job in group]:
            out = restored(bench, job, solver, measured[task], on_images)
            values, each = contributions(out, x, extractor, reference, lpips, on_images)
            keep_each(images_path(bench, job), {key: v.numpy() for key, v in each.items()})
            row = {
                "model": name, "task": task, "sampler": job[2], "settings": bench.entries[job[2]].settings(task),
                "levels": [round(t, 6) for t in out.levels], "nfe": out.nfe, "images": len(x), "seed": bench.seed,
                "features": bench.features, "seconds_per_image": round(out.seconds, 6), "software": software(bench.features),
            }  # fmt: skip
            for metric in METRICS:
                if metric in values:
                    row |= with_interval(metric, values[metric], each[metric], bench.seed)
            yield row
