"""Everything that is written about finished rows: paired differences, tables, figures, the page."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from macs.benchmark import figures
from macs.benchmark.bench import Bench, Job
from macs.benchmark.folder import REPORTED, check_folder, chunks, read_rows, slug, write_rows
from macs.benchmark.networks import loaded
from macs.benchmark.paired import PRINTED, Difference, as_lines, differences, from_lines
from macs.benchmark.run import restore_chunk
from macs.benchmark.sealed import read_npz
from macs.benchmark.solvers import OTHERS, SAMPLERS, TRAINED
from macs.benchmark.suite import GAMMA_OF, LEVEL_OF, SAME_GRID
from macs.benchmark.tables import latex, report_html, report_markdown
from macs.demo import enlarged
from macs.errors import ConfigError, MacsError
from macs.training.checkpoint import write_atomically

Row = dict[str, Any]
#: The columns of the visual comparison, where they were run, and how many images of each task it shows.
SHOWN = (
    "DPM-Solver",
    "Heun",
    "one step",
    "Euler",
    "DDIM",
    "aDDIM",
    "Multistep",
    "MACS",
    "MACS-D",
    "MACS-D, averaged",
    "MACS-D, coarse average",
    "MACS-D, 3 calls",
)
EACH = 2


def write_report(bench: Bench) -> Path:
    """Write ``paired.jsonl``, figures, ``table-NUMBER-MODEL.tex``, ``report.md`` and ``report.html``; the path of the last.

    A folder of other images, another seed or another dataset than the benchmark's is refused before anything is written. The
    paper's numbers stand beside ours where the images are of the size of the paper's, and the distances are FID and KID.
    """
    rows = in_order(bench, read_rows(bench.rows_path))
    if not rows:
        raise ConfigError(f"{bench.out} holds no finished row to report of; run it without --report first")
    check_folder(bench, REPORTED)
    found = paired(bench, rows)
    drawn = draw(bench, rows, found)
    side = bench.pixels.shape[-1]
    paper = [table for table in bench.about.tables if table.side == side and rows[0]["features"] == "inception"]
    for model in models_of(rows):
        for layout in bench.about.tables:
            mine = [row for row in rows if row["model"] == model and row["task"] in layout.tasks]
            if mine:
                path = bench.out / f"table-{layout.number}-{slug(model)}.tex"
                write_atomically(path, latex(mine, layout, layout in paper).encode())
    title = f"{bench.about.title} at {side} pixels"
    write_atomically(bench.out / "report.md", report_markdown(title, rows, paper, found, drawn).encode())
    page = bench.out / "report.html"
    write_atomically(page, report_html(title, rows, paper, found, drawn).encode())
    return page


def in_order(bench: Bench, rows: list[Row]) -> list[Row]:
    """The rows of each model by task and label in the order of the dataset, in whatever order they were computed."""
    models, tasks, labels = models_of(rows), list(bench.about.tasks), list(bench.about.contenders)

    def place(row: Row) -> tuple[int, int, int]:
        known = row["sampler"] in labels
        return models.index(row["model"]), tasks.index(row["task"]), labels.index(row["sampler"]) if known else len(labels)

    return sorted(rows, key=place)


def models_of(rows: list[Row]) -> list[str]:
    """The models in order of appearance."""
    return list(dict.fromkeys(row["model"] for row in rows))


def paired(bench: Bench, rows: list[Row]) -> list[Difference]:
    """The differences, from the images' contributions; those of rows whose contributions are gone, as long as they fit them."""
    fresh = {(d.model, d.task, d.sampler, d.against, d.metric): d for d in differences(bench, rows)}
    known = {(row["model"], row["task"], row["sampler"]): row for row in rows}
    old = {}
    for d in from_lines(read_rows(bench.paired_path), bench.paired_path):
        row, beside = (known.get((d.model, d.task, label), {}) for label in (d.sampler, d.against))
        if d.metric in row and d.metric in beside and abs(row[d.metric] - beside[d.metric] - d.value) < 10**-PRINTED:
            old[d.model, d.task, d.sampler, d.against, d.metric] = d
    found = list((old | fresh).values())
    write_rows(bench.paired_path, as_lines(found))
    return found


def draw(bench: Bench, rows: list[Row], found: list[Difference]) -> list[Path]:
    """The figures that the rows allow, of all models together and of each."""
    few = [row for row in rows if row["sampler"] in SAMPLERS and row["nfe"] in (1, 2)]
    out = [figures.networks(few, bench.out / "plane.png")] if len(models_of(few)) > 1 else []
    for model in models_of(rows):
        mine = [row for row in rows if row["model"] == model]
        name = slug(model)
        plotted = [row for row in mine if row["sampler"] in (*SAMPLERS, SAME_GRID)]
        if len(plotted) > len(figures.tasks_of(plotted)):
            out.append(figures.plane(plotted, bench.out / f"plane-{name}.png"))
        if curved := figures.curved(mine):
            noise = {task: bench.measured(task).noise_share() for task in curved}
            out.append(figures.residue(mine, noise, bench.out / f"residue-{name}.png"))
        for parameter, (axis, place, against) in sweeps(bench).items():
            swept = [row for row in minus(mine, against, found) if place(row) is not None]
            if len({row["sampler"] for row in swept}) > 2:
                what = f"difference from {against}: " if against else ""
                out.append(figures.sweep(swept, place, axis, what, bench.out / f"{parameter}-{name}.png"))
        for task in dict.fromkeys(row["task"] for row in mine if row["sampler"] in OTHERS):
            solvers = [row for row in mine if row["task"] == task and row["sampler"] in TRAINED]
            out.append(figures.pareto(solvers, TRAINED, bench.out / f"solvers-{task}-{name}.png"))
        out += compared(bench, mine, model, bench.out / f"comparison-{name}.png")
    return out


def compared(bench: Bench, rows: list[Row], model: str, path: Path) -> list[Path]:
    """The visual comparison; where images of it can no longer be had, the one that is there is kept."""
    settings = {(row["task"], row["sampler"]): row["settings"] for row in rows}
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    labels = [label for label in SHOWN if all((task, label) in settings for task in tasks)]
    shown = {task: first_images(bench, model, task, {label: settings[task, label] for label in labels}) for task in tasks}
    columns = {label: {task: shown[task][label] for task in tasks} for label in labels if all(label in shown[t] for t in tasks)}
    if len(columns) < len(labels) and path.exists():
        return [path]
    calls = {row["sampler"]: row["nfe"] for row in rows}
    titled = {titled_with_calls(label, calls[label]): images for label, images in columns.items()}
    return [figures.comparison(given(bench, tasks) | titled, path)] if columns else []


def titled_with_calls(label: str, calls: int) -> str:
    """A label that says its number of calls."""
    return label if calls == 1 or label.endswith(" calls") else f"{label}, {calls} calls"


def minus(rows: list[Row], against: str | None, found: list[Difference]) -> list[Row]:
    """The rows with their differences from another in place of PSNR and the Frechet distance, where these are known."""
    if against is None:
        return rows
    known = {(d.model, d.task, d.sampler, d.metric): d for d in found if d.against == against}
    out = []
    for row in rows:
        pairs = {m: known.get((row["model"], row["task"], row["sampler"], m)) for m in ("psnr", "fid")}
        values = {m: {m: d.value, f"{m}_lo": d.lo, f"{m}_hi": d.hi} for m, d in pairs.items() if d is not None}
        out += [row | values["psnr"] | values["fid"]] if len(values) == len(pairs) else []
    return out


def sweeps(bench: Bench) -> dict[str, tuple[str, Callable[[Row], Any], str | None]]:
    """The figures of a parameter: the name of its axis, the line and place of a row, or None, and what it is compared with."""

    def gamma(row: Row) -> tuple[str, float] | None:
        return ("MACS", bench.about.gamma[row["task"]]) if row["sampler"] == "MACS" else GAMMA_OF.get(row["sampler"])

    return {
        "gamma": ("gamma of MACS", gamma, "DDIM"),
        "level": ("second level s", lambda row: LEVEL_OF.get(row["sampler"]), None),
    }


def given(bench: Bench, tasks: list[str]) -> dict[str, dict[str, Any]]:
    """The first columns of every comparison: the first true images, and their measurements."""
    side = bench.pixels.shape[-1]
    measured = {task: enlarged(bench.measured(task).part(0, EACH)[0], side) for task in tasks}
    return {"truth": dict.fromkeys(tasks, bench.truth[:EACH]), "measurement": measured}


def first_images(bench: Bench, model: str, task: str, settings: dict[str, str]) -> dict[str, Any]:
    """The first images of a task's rows by label: from the cache, else restored again; without those that cannot be had."""
    found = {label: cached_images(bench, (model, task, label), set_to) for label, set_to in settings.items()}
    gone = [label for label, images in found.items() if images is None]
    same = [label for label in gone if settings[label] == bench.about.contenders[label].settings(task)]
    if same and networks_are_known(bench, model, task):
        networks = loaded(bench.names, model, task)
        y, physics = bench.measured(task).part(0, EACH)
        for label in same:
            solver = bench.about.contenders[label].solver(networks, task)
            found[label] = restore_chunk(solver, y, physics, range(EACH), bench.seed, False)["x"]
    return {label: images for label, images in found.items() if images is not None}


def cached_images(bench: Bench, job: Job, settings: str) -> Any:
    """The first restored images of a row, or None where they are no longer in the cache."""
    found: list[Any] = []
    for path in chunks(bench, job, settings).values():
        if len(found) >= EACH:
            break
        part = read_npz(path)
        if part is None:
            return None
        found += list(part["x"])
    return found[:EACH]


def networks_are_known(bench: Bench, model: str, task: str) -> bool:
    """Whether the networks of a task are here, and those that its rows came from."""
    try:
        now = bench.names.digests([model], [task], ("model",))
    except MacsError:
        return False
    return now.items() <= check_folder(bench, REPORTED).items()
