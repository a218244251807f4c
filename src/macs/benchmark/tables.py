"""The rows as tables: Markdown for people, HTML in one file, LaTeX in the layout of the paper's tables."""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from macs.benchmark.features import NAMES
from macs.benchmark.figures import described
from macs.benchmark.inception import FEATURES
from macs.benchmark.networks import NONLINEAR
from macs.benchmark.paired import BASELINES, OURS, PRINTED, Difference, ours
from macs.benchmark.paper import NFE, PaperTable
from macs.benchmark.solvers import OTHERS, SAMPLERS, TRAINED
from macs.benchmark.suite import ABLATION, GAMMA_OF, INPUT, LEVEL_OF
from macs.lpips import SIDE

Row = dict[str, Any]
#: Digits of each metric in tables.
DIGITS = {"psnr": 2, "ssim": 3, "fid": 2, "kid": 2, "lpips": 3, "chi2": 2, "residue": 3}


def number(row: Row, metric: str) -> str:
    """A value and the half-width of its interval; nothing where the row has none."""
    if metric not in row:
        return ""
    digits = DIGITS[metric]
    return f"{row[metric]:.{digits}f} ± {(row[f'{metric}_hi'] - row[f'{metric}_lo']) / 2:.{digits}f}"


def quality(rows: Sequence[Row]) -> dict[str, str]:
    """The metrics of these rows and their names; a distance on the classifier's features is not called FID."""
    fid, kid = NAMES[rows[0]["features"]]
    names = {"psnr": "PSNR", "ssim": "SSIM", "fid": fid, "kid": kid}
    return names | {"lpips": "LPIPS"} if any("lpips" in row for row in rows) else names


def table(rows: Sequence[Row], paper: Sequence[PaperTable], late: Sequence[Row] = ()) -> tuple[list[str], list[list[str]]]:
    """The heads and lines of one task's table, the paper's numbers last where there are any.

    A star stands at the times of ``late``, which do not compare with the others.
    """
    metrics = quality(rows)
    heads = ["sampler", "levels", "NFE", *metrics.values(), "chi2", "ms/image"]
    body = [cells(row, metrics, "*" if row in late else "") for row in rows]
    for printed in paper:
        if rows[0]["task"] in printed.tasks:
            lines = paper_rows(printed, rows[0]["task"], set_beside(printed, rows))
            body += [line + [""] * (len(heads) - len(line)) for line in lines]
    return heads, body


def set_beside(paper: PaperTable, rows: Sequence[Row]) -> bool:
    """Whether the paper's distances belong beside ours: a distance depends on the number of images."""
    return rows[0]["images"] == paper.images


def solver_table(rows: Sequence[Row], late: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The heads and lines of one task's table of all solvers; time in units of MACS-D's row, with a star for ``late`` ones."""
    metrics = quality(rows)
    unit = next((row["seconds_per_image"] for row in rows if row["sampler"] == "MACS-D"), None)
    body = []
    for row in rows:
        ratio = f"{row['seconds_per_image'] / unit:.3g}" if unit else ""
        time = f"{float(ratio):,g}{'*' if row in late else ''}" if ratio else ""
        body.append([row["sampler"], TRAINED[row["sampler"]], str(row["nfe"]), *values(row, metrics), time])
    return ["solver", "trained for the tasks", "NFE", *metrics.values(), "chi2", "time / MACS-D"], body


@dataclass(frozen=True)
class Table:
    """A table of the report: what it is of, its heads and its lines."""

    caption: str
    heads: list[str]
    body: list[list[str]]


#: The rows of the table; the sweeps have figures, and with the ablation a table of their own.
LISTED = (INPUT, *SAMPLERS)
STUDIED = {
    "What each part of MACS-D does": tuple(label for label in ABLATION if label not in SAMPLERS),
    "Sweeps": (*GAMMA_OF, *LEVEL_OF),
}


def tables(rows: Sequence[Row], paper: Sequence[PaperTable], found: Sequence[Difference]) -> list[Table]:
    """The tables of one model and task: samplers, studies, all solvers where others than samplers were run, and pairs."""
    listed = [row for row in rows if row["sampler"] in LISTED]
    solvers = [row for row in rows if row["sampler"] in TRAINED] if any(row["sampler"] in OTHERS for row in rows) else []
    late = untimed(rows)
    out = [Table("Samplers", *table(listed, paper, late))] if any(row not in solvers for row in listed) else []
    for caption, labels in STUDIED.items():
        studied = [row for row in rows if row["sampler"] in labels]
        out += [Table(caption, *table(studied, (), late))] if studied else []
    out += [Table("All solvers", *solver_table(solvers, late))] if solvers else []
    mine = [d for d in found if (d.model, d.task) == (rows[0]["model"], rows[0]["task"])]
    return out + pairs(mine, quality(rows))


def pairs(found: Sequence[Difference], names: dict[str, str]) -> list[Table]:
    """What MACS-D and MACS have on the others, each variant of the ablation on MACS-D, and the sweeps on their like."""
    sampled = [d for d in found if d.sampler in SAMPLERS and d.sampler.startswith("MACS")]
    varied = [d for d in found if d.sampler in ABLATION and d.sampler not in SAMPLERS and d.against == OURS]
    guided = [d for d in found if d.sampler in GAMMA_OF and d.against == "DDIM"]
    levelled = [d for d in found if d.sampler in LEVEL_OF and d.against in LEVEL_OF]
    out = {
        "Differences on the same images": sampled,
        f"The variants' differences from {OURS} on the same images": varied,
        "The sweeps' differences on the same images": guided + levelled,
    }
    return [Table(caption, *pairs_table(some, names)) for caption, some in out.items() if some]


def pairs_table(found: Sequence[Difference], names: dict[str, str]) -> tuple[list[str], list[list[str]]]:
    """A line for each pair: in each metric the difference, its 95 % interval and what that says."""
    metrics = [metric for metric in names if any(d.metric == metric for d in found)]
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for d in found:
        said = f"{d.value:+.{PRINTED}f} ({d.lo:+.{PRINTED}f} to {d.hi:+.{PRINTED}f}) {d.verdict}"
        lines.setdefault((d.sampler, d.against), {})[d.metric] = said
    body = [[*pair, *(cell.get(metric, "") for metric in metrics)] for pair, cell in lines.items()]
    return ["sampler", "against", *(names[metric] for metric in metrics)], body


def glance(rows: Sequence[Row], found: Sequence[Difference]) -> list[Table]:
    """Each MACS-D row against Multistep and DDIM with as many calls, in a word for each metric; none where there is no pair."""
    names, said = quality(rows), {(d.model, d.task, d.sampler, d.against, d.metric): d.verdict for d in found}
    body = []
    for row in (row for row in rows if ours(row["sampler"])):
        job = (row["model"], row["task"], row["sampler"])
        words = [[said.get((*job, rival, metric), "-") for rival in BASELINES.get(row["nfe"], ())] for metric in names]
        if any(set(pair) - {"-"} for pair in words):
            body.append([*job, *(pair[0] if len(set(pair)) == 1 else " / ".join(pair) for pair in words)])
    caption = "At a glance: MACS-D against Multistep / DDIM with as many calls, each on its own grid"
    return [Table(caption, ["model", "task", "sampler", *names.values()], body)] if body else []


def values(row: Row, metrics: Iterable[str]) -> list[str]:
    """The metrics of a row, chi2 last."""
    return [number(row, metric) for metric in (*metrics, "chi2")]


def cells(row: Row, metrics: Iterable[str], star: str) -> list[str]:
    """A row of a table."""
    levels = ", ".join(f"{t:.3g}" for t in row["levels"]) if len(row["levels"]) <= 4 else f"{len(row['levels'])} levels"
    return [row["sampler"], levels, str(row["nfe"]), *values(row, metrics), f"{1000 * row['seconds_per_image']:.1f}{star}"]


def grouped(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows by model and task."""
    out: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        out.setdefault((row["model"], row["task"]), []).append(row)
    return out


#: What a reader must know before a number: when it is due, and the sentences.
NOTES: tuple[tuple[Callable[[Sequence[Row]], bool], str], ...] = (
    (
        lambda rows: True,
        "All samplers of a task share measurements and start noise, and network calls (NFE) are counted. Samplers run on their "
        "own grids, as the column says; MACS-D's last level was chosen on validation images, those of the others are published "
        "ones.",
    ),
    (
        lambda rows: True,
        "Plus-minus is half of a 95 % bootstrap interval over images, for the two distances of what each image contributes to "
        "first order. Intervals are over images alone, on networks trained once and one seed, and not corrected for the number "
        "of comparisons.",
    ),
    (
        lambda rows: True,
        "A difference is ahead or behind where its 95 % interval excludes zero, open where it holds zero, and the same where "
        "none of the digits shown differs. At a glance, one word is that for both rivals, and a dash a pair that is not known, "
        "because one row is not there or what its images contributed was not kept. paired.jsonl has more pairs than are shown.",
    ),
    (lambda rows: True, "chi2 is |y - A x|^2/(m sigma_y^2), 1 for the noise itself."),
    (
        lambda rows: True,
        "The reference of both distances are the true images of the same set, rounded to 8 bits as the restored ones are. A "
        "Frechet distance falls as the number of images grows, by more for some rows than for others: compare it at equal "
        "numbers only, and read its intervals as those of the distance at this number; the paper's stands beside it only at "
        "the number of the paper's test images.",
    ),
    (
        lambda rows: rows[0]["features"] == "inception" and rows[0]["images"] <= FEATURES,
        f"Fewer images than the {FEATURES} features of Inception leave most of their covariance unseen: FID is then far above "
        "what many images would give, and differences between rows are larger too; KID suffers less, but its intervals are "
        "wide.",
    ),
    (
        lambda rows: True,
        "The kernel distance's usual estimate takes the two sets for independent, and here they show the same scenes: the "
        "nearer the restorations, the more it is too low, in proportion to 1/N, so it may be negative.",
    ),
    (
        lambda rows: rows[0]["features"] == "inception",
        "KID is too low by up to about 600/N in the table's units: 3 at 200 images, 0.06 at 10,000.",
    ),
    (
        lambda rows: any(row["sampler"].startswith("DDRM") for row in rows),
        '"DDRM" is deepinv\'s, whose noise has half the variance of the published scheme where singular vectors are real; '
        '"DDRM, published noise" has all of it.',
    ),
    (
        lambda rows: any(row["sampler"].startswith("Heun") for row in rows),
        '"Heun" makes two calls in each step but the last, and calls are what NFE counts; the paper gives 40 for it.',
    ),
    (
        lambda rows: any("lpips" in row for row in rows),
        f"LPIPS is version 0.1 on AlexNet; images of less than {SIDE} pixels, the true ones too, are first enlarged bilinearly "
        "by the least whole factor that brings them there.",
    ),
    (
        lambda rows: any(row["sampler"] == INPUT for row in rows),
        f'"{INPUT}" is the degraded image itself: enlarged (bicubic), blurred, or its hole filled with the mean of the rest.',
    ),
    (
        lambda rows: any(row["task"] == NONLINEAR for row in rows),
        "Nonlinear deblurring: each image has a blur kernel of its own, drawn once, that measurement and restoration share.",
    ),
)


def summary(rows: Sequence[Row]) -> str:
    """What the rows are of, in a line."""
    row = rows[0]
    return f"{row['images']:,} test images, seed {row['seed']}, sigma_y 0.05 on [-1, 1], {row['features']} features."


def computed(rows: Sequence[Row]) -> str:
    """What software the rows were computed with, as far as they say."""
    known = dict.fromkeys(", ".join(" ".join(pair) for pair in row["software"].items()) for row in rows if "software" in row)
    said = [*known, *(["older rows do not say"] if any("software" not in row for row in rows) else [])]
    return f"Computed with {'; '.join(said)}." if known else "The rows do not say what software they were computed with."


def notes(rows: Sequence[Row]) -> list[str]:
    """What a reader must know before a number."""
    times = f"Times are after a warm-up and without a trace, {timing(rows)}."
    return [*(note for due, note in NOTES if due(rows)), times, computed(rows)]


def untimed(rows: Sequence[Row]) -> list[Row]:
    """Of the rows of a model and a task those that were not there when the others were timed in turns."""
    last = max((row["timed"] for row in rows if "timed" in row), default=None)
    return [row for row in rows if row.get("timed") != last]


def timing(rows: Sequence[Row]) -> str:
    """Which times may be compared: those of one pass of :func:`macs.benchmark.clock.time_rows`, by model and task."""
    if any("timed" in row for row in rows):
        said = "measured for the rows of a model and a task in turns, and may be compared among these"
        late = any(untimed(group) for group in grouped(rows).values())
        return said + (", but for those with a star, taken at another time" if late else "")
    return "on the machine as it was when each row was computed: compare those of rows that were computed together"


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(line)} |" for line in body)]
    return "\n".join(lines)


def paper_rows(paper: PaperTable, task: str, distances: bool) -> list[list[str]]:
    """The paper's numbers for a task, its own network, as lines of our table."""
    return [[f"*paper: {method}*", "", str(nfe), *published(paper, method, task, distances)] for method, nfe in NFE.items()]


def published(paper: PaperTable, method: str, task: str, distances: bool) -> list[str]:
    """PSNR and SSIM as the paper prints them and, if asked for, FID and KID."""
    p, s, f, k = paper.published(method, task)
    return [f"{p:.2f}", f"{s:.3f}", *((f"{f:.2f}", f"{k:g}") if distances else ("", ""))]


def report_markdown(
    title: str, rows: Sequence[Row], paper: Sequence[PaperTable], found: Sequence[Difference], figures: Sequence[Path]
) -> str:
    """The report."""
    parts = [f"# Benchmark: {title}", summary(rows), "\n".join(f"- {note}" for note in notes(rows))]
    for one in glance(rows, found):
        parts += [f"## {one.caption}", markdown_table(one.heads, one.body)]
    for (model, task), group in grouped(rows).items():
        parts.append(f"## {model}: {task}")
        for one in tables(group, paper, found):
            parts += [f"{one.caption}:", markdown_table(one.heads, one.body)]
    parts += [f"![{described(path)}]({path.name})\n\n*{described(path)}*" for path in figures]
    return "\n\n".join(parts) + "\n"


def html_cell(cell: str) -> str:
    """A cell of Markdown in HTML, a number and its plus-minus on one line."""
    italic = len(cell) > 2 and cell.startswith("*") and cell.endswith("*")
    said = escape(cell[1:-1] if italic else cell).replace(" ± ", "&nbsp;±&nbsp;")
    return f"<td><em>{said}</em></td>" if italic else f"<td>{said}</td>"


def html_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table in HTML."""
    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    lines = "".join("<tr>" + "".join(html_cell(c) for c in line) + "</tr>\n" for line in body)
    return f"<table><tr>{top}</tr>\n{lines}</table>"


def report_html(
    title: str, rows: Sequence[Row], paper: Sequence[PaperTable], found: Sequence[Difference], figures: Sequence[Path]
) -> str:
    """The tables and figures in one file that needs no other."""
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes(rows))
    parts = [f"<h1>Benchmark: {escape(title)}</h1><p>{escape(summary(rows))}</p><ul>{listed}</ul>"]
    for one in glance(rows, found):
        parts += [f"<h2>{escape(one.caption)}</h2>", html_table(one.heads, one.body)]
    for (model, task), group in grouped(rows).items():
        parts.append(f"<h2>{escape(model)}: {escape(task)}</h2>")
        for one in tables(group, paper, found):
            parts += [f"<h3>{escape(one.caption)}</h3>", html_table(one.heads, one.body)]
    for path in figures:
        source = base64.b64encode(path.read_bytes()).decode()
        said = escape(described(path))
        parts.append(f'<figure><img alt="{said}" src="data:image/png;base64,{source}"><figcaption>{said}</figcaption></figure>')
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:80em;margin:2em auto;padding:0 1em}img{max-width:100%}"
        "table{border-collapse:collapse}td,th{padding:.2em .7em;text-align:right}td:first-child,th:first-child{text-align:left}"
        "tr:nth-child(even){background:#8881}"
    )
    head = f'<meta charset="utf-8"><title>macs benchmark</title><style>{style}</style>'
    return f'<!doctype html><html lang="en">{head}{"".join(parts)}</html>\n'


#: The rows of the paper's tables: our label, and the paper's method.
LATEX_ROWS = {
    INPUT: None, "DPM-Solver": "DPM-Solver", "Heun": "Heun", "Euler, as published": "Euler", "Euler": None, "DDIM": None,
    "aDDIM": None, "Multistep": "Multistep", "MACS": "MACS", "MACS-D": None, "MACS-D, averaged": None,
    "MACS-D, coarse average": None,
}  # fmt: skip


def latex(rows: Sequence[Row], layout: PaperTable, with_paper: bool) -> str:
    """One model's rows in the layout of a table of the paper; the paper's numbers, if asked for, below ours in italics."""
    by = {(row["task"], row["sampler"]): row for row in rows}
    metrics = quality(rows)
    names = " & ".join(metrics.values()).replace("x 10^3", r"$\times 10^3$")
    first = rows[0]
    lines = [
        f"% {first['model']}, {first['images']} test images, seed {first['seed']}, {first['features']} features",
        r"\begin{tabular}{lc" + "c" * len(metrics) * len(layout.tasks) + "}", r"\hline",
        "& " + "".join(rf"& \multicolumn{{{len(metrics)}}}{{c}}{{{head}}} " for head in layout.tasks.values()) + r"\\",
        "Method & NFE " + f"& {names} " * len(layout.tasks) + r"\\", r"\hline",
    ]  # fmt: skip
    for label, method in LATEX_ROWS.items():
        here = [by.get((task, label)) for task in layout.tasks]
        known = [row for row in here if row is not None]
        if not known:
            continue
        ours = (f"{row[m]:.{DIGITS[m]}f}" if row and m in row else "--" for row in here for m in metrics)
        lines.append(f"{label} & {known[0]['nfe']} & {' & '.join(ours)} " + r"\\")
        if method is not None and with_paper:
            numbers = printed(layout, method, len(metrics), set_beside(layout, rows))
            lines.append(rf"\textit{{{method}, paper}} & \textit{{{NFE[method]}}} & {numbers} \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def printed(layout: PaperTable, method: str, columns: int, distances: bool) -> str:
    """The paper's numbers of a method for all tasks, in italics, in so many columns each."""
    out = []
    for task in layout.tasks:
        numbers = published(layout, method, task, distances)
        out += [rf"\textit{{{number}}}" if number else "--" for number in numbers] + ["--"] * (columns - len(numbers))
    return " & ".join(out)
