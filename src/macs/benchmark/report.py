"""Everything that is written about finished rows: paired differences, tables, figures, the page."""

import json
from pathlib import Path
from typing import Any

from macs.benchmark import figures
from macs.benchmark.paired import Difference, as_lines, differences
from macs.benchmark.run import Bench, read_npz, read_rows, slug
from macs.benchmark.suite import GAMMA_OF, LEVEL_OF, Sweep
from macs.benchmark.tables import latex, report_html, report_markdown
from macs.data import fashion_mnist
from macs.demo import enlarged, measured
from macs.training.checkpoint import write_atomically

#: The columns of the visual comparison, where they were run.
SHOWN = ("DPM-Solver", "Heun", "Euler", "DDIM", "Multistep", "MACS", "MACS-D", "MACS-D, 3 calls")

#: The figures of a parameter: their axis, and the rows they are of.
SWEEPS: dict[str, tuple[str, Sweep]] = {
    "gamma": ("gamma", {"MACS": ("MACS", 0.15), **GAMMA_OF}),
    "level": ("second level s", LEVEL_OF),
}


def write_report(bench: Bench) -> Path:
    """Write ``paired.jsonl``, figures, ``table-MODEL.tex``, ``report.md`` and ``report.html``; the path of the last."""
    rows = read_rows(bench.rows_path)
    found = paired(bench, rows)
    drawn = draw(bench, rows)
    for model in dict.fromkeys(row["model"] for row in rows):
        write_atomically(bench.out / f"table-{slug(model)}.tex", latex(rows, model).encode())
    write_atomically(bench.out / "report.md", report_markdown(rows, found, drawn).encode())
    page = bench.out / "report.html"
    write_atomically(page, report_html(rows, drawn).encode())
    return page


def paired(bench: Bench, rows: list[dict[str, Any]]) -> list[Difference]:
    """The differences, from the images' contributions; those of rows whose contributions are gone are kept as they were."""
    path = bench.out / "paired.jsonl"
    fresh = {(d.model, d.task, d.sampler, d.against, d.metric): d for d in differences(bench, rows)}
    old = {}
    for line in read_rows(path):
        d = Difference(**{k: v for k, v in line.items() if k != "verdict"})
        old[d.model, d.task, d.sampler, d.against, d.metric] = d
    found = list((old | fresh).values())
    write_atomically(path, b"".join(json.dumps(line).encode() + b"\n" for line in as_lines(found)))
    return found


def draw(bench: Bench, rows: list[dict[str, Any]]) -> list[Path]:
    """The figures that the rows allow, for each model."""
    out = []
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        name = slug(model)
        out.append(figures.plane(mine, bench.out / f"plane-{name}.png"))
        if any(figures.member(row["sampler"], family) for row in mine for family in figures.FAMILIES):
            out.append(figures.residue(mine, bench.out / f"residue-{name}.png"))
        for parameter, (axis, place) in SWEEPS.items():
            swept = [row for row in mine if row["sampler"] in place]
            if len({row["sampler"] for row in swept}) > 2:
                out.append(figures.sweep(swept, place, axis, bench.out / f"{parameter}-{name}.png"))
        columns = shown(bench, mine, model)
        if len(columns) > 2:
            out.append(figures.comparison(columns, bench.out / f"comparison-{name}.png"))
    return out


def shown(bench: Bench, rows: list[dict[str, Any]], model: str, each: int = 2) -> dict[str, dict[str, Any]]:
    """The first images of every column that was restored here."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    x = fashion_mnist("test")[:each].float() / 255
    columns: dict[str, dict[str, Any]] = {"truth": dict.fromkeys(tasks, x)}
    columns["measurement"] = {task: enlarged(measured(x, task, bench.seed)[0], x.shape[-1]) for task in tasks}
    for label in SHOWN:
        parts = {task: read_npz(bench.cache / "restored" / slug(model, task, label) / "000000.npz") for task in tasks}
        if all(part is not None for part in parts.values()):
            columns[label] = {task: part["x"][:each] for task, part in parts.items() if part is not None}
    return columns
