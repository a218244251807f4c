"""Rows that were computed elsewhere: several processes or machines may each work in a folder of their own, to be joined."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from macs.benchmark.bench import Bench, Job
from macs.benchmark.folder import check_folder, check_settings, chunks, enter, images_path, read_rows, write_rows
from macs.errors import ConfigError
from macs.training.checkpoint import locked, write_atomically

Row = dict[str, Any]


def join(bench: Bench, other: Path) -> int:
    """Take over the rows of another folder that are not here yet, with their differences and what is cached of them.

    Both folders must be of one configuration and of the same networks. What is in both stays as it is here; a row whose cache
    is gone gets that of the same row there, so that it can be compared in pairs again. The number of rows that are new.
    """
    theirs = replace(bench, out=other)
    if not read_rows(theirs.rows_path):
        raise ConfigError(f"{other} holds no finished row to take over; give the --out of another run")
    with locked(bench.out):
        known, networks = check_folder(bench), check_folder(theirs)
        check_settings(bench)
        check_settings(theirs)
        enter(bench, known, networks)
        rows, new = with_new(bench.rows_path, theirs.rows_path, ("model", "task", "sampler"))
        for row in read_rows(theirs.rows_path):
            for source, target in zip(cached(theirs, row), cached(bench, row), strict=True):
                if source.exists() and not target.exists():
                    write_atomically(target, source.read_bytes())
        pairs, _ = with_new(bench.paired_path, theirs.paired_path, ("model", "task", "sampler", "against", "metric"))
        write_rows(bench.paired_path, pairs)
        write_rows(bench.rows_path, rows)
    return len(new)


def with_new(here: Path, there: Path, keys: tuple[str, ...]) -> tuple[list[Row], list[Row]]:
    """The lines of one file and those of another that it lacks, told apart by ``keys``; then the latter alone."""
    mine = read_rows(here)
    seen = {tuple(line[key] for key in keys) for line in mine}
    new = [line for line in read_rows(there) if tuple(line[key] for key in keys) not in seen]
    return [*mine, *new], new


def cached(bench: Bench, row: Row) -> Iterator[Path]:
    """The files of a row beside its line: what its images contributed, and the images in the cache."""
    job: Job = (row["model"], row["task"], row["sampler"])
    yield images_path(bench, job)
    yield from chunks(bench, job, row["settings"]).values()
