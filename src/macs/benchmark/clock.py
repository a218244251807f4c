"""The times of finished rows, measured again so that they can be compared: side by side, not hours apart."""

import statistics
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from macs.benchmark.bench import Bench
from macs.benchmark.folder import check_folder, check_settings, enter, read_rows, write_rows
from macs.benchmark.networks import loaded
from macs.benchmark.run import digests, restore_chunk
from macs.benchmark.tables import grouped
from macs.errors import ConfigError
from macs.training.checkpoint import locked

Row = dict[str, Any]
#: The most images that a row is timed on, and how often it has its turn.
IMAGES, TURNS = 100, 3


def time_rows(bench: Bench, on_row: Callable[[Row], None]) -> None:
    """Replace ``seconds_per_image`` of every finished row; the rows of a model and a task take turns.

    ``timed`` of a row says when its pass began: rows in which it is equal were timed together. Rows of a label that is not
    known any more keep what they have.
    """
    with locked(bench.out):
        known = check_folder(bench)
        check_settings(bench)
        rows = read_rows(bench.rows_path)
        if not rows:
            raise ConfigError(f"{bench.out} holds no finished row to time; run it without --time first")
        bench = of_rows(bench, rows)
        enter(bench, known, digests(bench, None, None))
        start = datetime.now(UTC).isoformat(timespec="seconds")
        for (model, task), group in grouped(rows).items():
            timed = [row for row in group if row["sampler"] in bench.entries]
            for row, seconds in zip(timed, in_turns(bench, model, task, timed), strict=True):
                row |= {"seconds_per_image": round(seconds, 6), "timed": start}
                on_row(row)
            write_rows(bench.rows_path, rows)


def of_rows(bench: Bench, rows: list[Row]) -> Bench:
    """The benchmark that has all of these rows."""
    models, tasks, labels = ({row[key]: None for row in rows} for key in ("model", "task", "sampler"))
    entries = {label: entry for label, entry in bench.about.contenders.items() if label in labels}
    return replace(bench, models=tuple(models), tasks=tuple(tasks), entries=entries)


def in_turns(bench: Bench, model: str, task: str, rows: list[Row]) -> list[float]:
    """The seconds per image of each row: the median of its turns, after one that warms its networks up."""
    networks, measured = loaded(bench.names, model, task, bench.compiled), bench.measured(task)
    solvers = [bench.entries[row["sampler"]].solver(networks, task) for row in rows]
    ids = range(min([IMAGES, *(bench.chunk(row["sampler"]) for row in rows)]))
    y, physics = measured.part(ids.start, ids.stop)
    turns = [
        [restore_chunk(solver, y, physics, ids, bench.seed, False)["seconds"].item() / len(ids) for solver in solvers]
        for _ in range(1 + TURNS)
    ]
    return [statistics.median(times) for times in zip(*turns[1:], strict=True)]
