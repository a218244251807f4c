"""The figures in README, findings and solvers are those of the committed rows, to every digit that is shown."""

import json
import re
from pathlib import Path
from statistics import median

import pytest

from macs.benchmark.paired import Difference
from macs.benchmark.paper import TABLE_II
from macs.benchmark.tables import glance, grouped
from macs.benchmark.tables import tables as report_tables

ROOT = Path(__file__).parent.parent
METRICS = {"PSNR": "psnr", "SSIM": "ssim", "FID": "fid", "KID x 10^3": "kid", "KID": "kid", "LPIPS": "lpips"}
TASKS = ("super-resolution", "inpainting", "deblurring", "nonlinear-deblurring")
ALL, FIRST, ROOMS = "fashion-mnist", "fashion-mnist-500", "bedroom64"
#: What the pages call a row, where its label is another.
LABELS = {
    "MACS-D without the data step": "without the data step",
    "data step after the last call, always": "data step after the last call",
    "all of the noise (`eta=1`)": "all of the noise",
    "no noise (`eta=0`)": "no noise",
    "reused noise everywhere, data step always": "reused noise",
    "level set by the residual (`polish`)": "level set by the residual",
    "lower level (1.77)": "lower level",
    "the same, a tenth of the first estimate (averaged)": "MACS-D, averaged",
    "the same, a quarter of it": "lower level, a quarter of the first",
    "Multistep, MACS-D's level": "Multistep, same grid",
}
#: The tables of a page under a heading: of which model, and in which folder of results.
TABLES = [
    ("README.md", "Measured", 0, "fashion-mnist", ALL),
    ("README.md", "Sharper, at the price of PSNR", 0, "fashion-mnist-score", ALL),
    ("README.md", "In colour", 0, "bedroom64", ROOMS),
    ("docs/findings.md", "What MACS-D adds", 0, "fashion-mnist", ALL),
    ("docs/findings.md", "Three and four calls", 0, "fashion-mnist", ALL),
    ("docs/findings.md", "What each part does", 0, "fashion-mnist", FIRST),
    ("docs/findings.md", "On a weaker network", 0, "fashion-mnist-sbi", ALL),
    ("docs/findings.md", "On a weaker network", 1, "fashion-mnist-sbi", FIRST),
    ("docs/findings.md", "Averaging for wide blurs", 0, "fashion-mnist", ALL),
    ("docs/findings.md", "A network trained to draw", 0, "fashion-mnist-score", ALL),
    ("docs/findings.md", "A network trained to draw", 1, "fashion-mnist-score", ALL),
    ("docs/findings.md", "In colour, 64 pixels", 0, "bedroom64", ROOMS),
    ("docs/solvers.md", "Which one", 1, "fashion-mnist", "solvers"),
]


def lines_of(folder, name):
    return [json.loads(line) for line in (ROOT / "results" / folder / name).read_text().splitlines()]


def rows_of(folder, model):
    return {(r["task"], r["sampler"]): r for r in lines_of(folder, "rows.jsonl") if r["model"] == model}


def pairs_of(folder, model):
    return {
        (p["task"], p["sampler"], p["against"], p["metric"]): p for p in lines_of(folder, "paired.jsonl") if p["model"] == model
    }


def section(page, heading):
    text = (ROOT / page).read_text()
    start = re.search(rf"^#+ {re.escape(heading)}$", text, re.MULTILINE)
    assert start, f"{page} has no heading {heading!r}"
    return re.split(r"^#+ ", text[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def tables(text):
    """Each as its cells, the head first."""
    blocks = [block.splitlines() for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)]
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])] for lines in blocks]


def plain(cell):
    return cell.replace("*", "").strip()


def is_shown(cell, value):
    """Whether a cell is the value to its own digits; SSIM and LPIPS are written without the zero before the point."""
    digits = len(cell.partition(".")[2])
    sign = "+" if cell[0] in "+-" else ""
    written = f"{value:{sign}.{digits}f}"
    return cell in (written, written.replace("0.", ".", 1))


def task_of(head):
    return next(t for t in TASKS if t == re.sub(r" x\d$", "", head).replace(" ", "-"))


def check_list(table, rows, pairs):
    """One sampler a line, one metric a column, tasks one below the other; bold is ahead of Multistep and of DDIM."""
    metrics, task, checked = [METRICS[plain(name).rstrip(" ↑↓")] for name in table[0][2:]], None, 0
    for first, name, *cells in table[1:]:
        task = task_of(first) if first else task
        if "paper: " in name:
            found = TABLE_II.published(plain(name).removeprefix("paper: "), task)
            assert all(is_shown(plain(c), v) for c, v in zip(cells, found, strict=False)), (task, name, cells)
            continue
        for label in re.split(", and ", plain(name)):
            for metric, cell in zip(metrics, cells, strict=True):
                assert is_shown(plain(cell), rows[task, label][metric]), (task, label, metric, cell)
                checked += 1
                if cell.startswith("**"):
                    for rival in ("Multistep", "DDIM"):
                        assert pairs[task, label, rival, metric]["verdict"] == "ahead", (task, label, rival, metric)
    return checked


def check_differences(table, pairs, labels):
    """A difference with its interval in each cell; ``labels`` says of a line which samplers of which task it compares."""
    metrics, checked = {i: METRICS[name] for i, name in enumerate(table[0]) if name in METRICS}, 0
    for line in table[1:]:
        task, label, rival = labels(line)
        for i, metric in metrics.items():
            shown, known = re.findall(r"[+-]?\d*\.\d+", line[i]), pairs[task, label, rival, metric]
            assert all(is_shown(s, known[k]) for s, k in zip(shown, ("value", "lo", "hi"), strict=True)), (line, known)
            checked += 1
    return checked


def check_joint(table, rows, metrics):
    """All metrics of a sampler in one cell, a column for each task."""
    checked = 0
    for name, *cells in table[1:]:
        label = LABELS.get(plain(name), plain(name))
        for head, cell in zip(table[0][1:], cells, strict=True):
            for metric, shown in zip(metrics, cell.split(" / "), strict=True):
                assert is_shown(shown, rows[task_of(head), label][metric]), (head, label, metric, shown)
                checked += 1
    return checked


def check_solvers(table, rows):
    """Calls, the metrics of each task in one cell, and the median over tasks of the time in units of MACS-D's."""
    tasks = [task_of(head) for head in table[0][2:-1]]
    for name, calls, *_, time in table[1:]:
        times = [rows[task, name]["seconds_per_image"] / rows[task, "MACS-D"]["seconds_per_image"] for task in tasks]
        assert {rows[task, name]["nfe"] for task in tasks} == {int(calls)}, name
        assert time == f"{float(f'{median(times):.2g}'):,g}", (name, times)
    return check_joint([[line[0], *line[2:-1]] for line in table], rows, ("psnr", "ssim", "fid"))


def alike(line):
    """Of a table of differences: MACS-D with as many calls as the row that it is compared with."""
    _, comma, calls = line[1].partition(", ")
    return line[0], f"MACS-D{comma}{calls}", line[1]


def averages(line):
    """Of the table of averages: deblurring, the row's label, and DDIM with as many calls."""
    calls = "" if line[1] == "2" else f", {line[1]} calls"
    return "deblurring", f"MACS-D, {line[0]}{calls}", f"DDIM{calls}"


@pytest.mark.parametrize(("page", "heading", "place", "model", "folder"), TABLES)
def test_a_table_is_what_the_rows_say(page, heading, place, model, folder):
    table = tables(section(page, heading))[place]
    rows, pairs = rows_of(folder, model), pairs_of(folder, model)
    if table[0][1] == "sampler":
        assert check_list(table, rows, pairs) >= 15
    elif table[0][1] == "against":
        assert check_differences(table, pairs, alike) >= 16
    elif table[0][0] == "solver":
        assert check_solvers(table, rows) >= 99
    elif table[0][1] == "calls":
        for line in table[1:]:
            task, label, _ = averages(line)
            found = [rows[task, label][metric] for metric in ("psnr", "ssim", "fid", "kid")]
            assert all(is_shown(s, v) for s, v in zip(line[2].split(" / "), found, strict=True)), line
        assert check_differences(table, pairs, averages) >= 12
    else:
        metrics = ("psnr", "ssim", "lpips", "fid") if folder == ROOMS else ("psnr", "ssim", "fid", "kid")
        assert check_joint(table, rows, metrics) >= 72


def test_every_table_of_results_is_checked():
    """A new table of figures beside these must be added above."""
    known = {(page, heading, place) for page, heading, place, *_ in TABLES}
    for page in ("README.md", "docs/findings.md"):
        for heading in re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.MULTILINE):
            for place, table in enumerate(tables(section(page, heading))):
                figures = sum(bool(re.match(r"[*+-]*\d*\.\d", cell)) for line in table[1:] for cell in line)
                assert (page, heading, place) in known or figures == 0, (page, heading, place)


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in (ROOT / "results").glob("*/rows.jsonl")))
def test_a_report_is_what_the_rows_say(folder):
    rows, report = lines_of(folder, "rows.jsonl"), (ROOT / "results" / folder / "report.md").read_text()
    found = [Difference(**{k: v for k, v in pair.items() if k != "verdict"}) for pair in lines_of(folder, "paired.jsonl")]
    assert [d.verdict for d in found] == [pair["verdict"] for pair in lines_of(folder, "paired.jsonl")]
    paper = [TABLE_II] if folder.startswith("fashion-mnist") or folder == "solvers" else []
    expected = [one for group in grouped(rows).values() for one in report_tables(group, paper, found)]
    for one in [*glance(rows, found), *expected]:
        for line in one.body:
            assert f"| {' | '.join(line)} |" in report, (folder, one.caption, line)
