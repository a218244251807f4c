"""The paper's figures from our rows: residue against calls, the visual comparison, sweeps, perception against distortion.

Colours are Okabe and Ito's, which colour-blind readers can tell apart, or darken with the number of calls; every series has
its own marker as well.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from macs.benchmark.features import NAMES
from macs.benchmark.suite import SAME_GRID

Row = dict[str, Any]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*X<>hp"
STYLES = ("-", "--", ":", "-.")

#: What each figure shows, by the first word of its file's name; after it comes the model, where it is of one.
CAPTIONS = {
    "plane": "PSNR against the Frechet distance: up and left is better. MACS-D is filled",
    "residue": "The misfit of the result against the number of network calls, the paper's residue figure in units of the "
    "misfit of the true image, which the titles give",
    "gamma": "The guidance scale of MACS: differences from DDIM on the same images",
    "level": "The second of two levels",
    "solvers": "Quality of all solvers against their cost",
    "comparison": "The first images of the set, restored",
}


def described(path: Path) -> str:
    """What a figure shows, and of which model or task."""
    kind, _, what = path.stem.partition("-")
    return f"{CAPTIONS[kind]} ({what or 'all models, up to two calls'})."


def canvas(columns: int, width: float = 3.6, height: float = 3.2, rows: int = 1) -> Any:
    """Axes, a row of them or several, that draw into files only."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    size = (width * columns, height * rows)
    return plt.subplots(rows, columns, figsize=size, dpi=150, squeeze=False, layout="constrained")


def finish(figure: Any, path: Path) -> Path:
    """Write a figure and let it go."""
    from matplotlib import pyplot as plt

    figure.savefig(path)
    plt.close(figure)
    return path


def tasks_of(rows: Sequence[Row]) -> list[str]:
    """The tasks in order of appearance."""
    return list(dict.fromkeys(row["task"] for row in rows))


#: In the plane a shape stands for a sampler, a colour for its number of calls; what lies on top of each other is still seen.
SHAPES = {
    "MACS-D": "*", "MACS-D, averaged": "P", "MACS-D, coarse average": "H", "Multistep": "o", "one step": "o", "DDIM": "s",
    "MACS": "D", "aDDIM": "^", SAME_GRID: "<",
    "Euler": "v", "Euler, as published": ">", "DPM-Solver": "X", "Heun, 20 steps": "p", "Heun": "h",
}  # fmt: skip
CALLS = {1: "#F89540", 2: "#CC4778", 3: "#7E03A8", 4: "#0D0887"}
MANY = "#000000"
#: What the bars of a figure are, where it shows the rows and not their differences.
BARS = "bars: 95 % interval of each point alone; differences on the same images have narrower ones, which are in paired.jsonl"


def shape(label: str) -> str:
    """The marker of a row of the table; that of two calls for more of them."""
    return SHAPES.get(label) or SHAPES[label.rpartition(", ")[0]]


def plane(rows: Sequence[Row], path: Path) -> Path:
    """PSNR against the Frechet distance, a point for each sampler of the table: up and left is better.

    Samplers of many calls lie far from the others: where there are some, the others have a panel of their own above all. A
    task of one row is left out.
    """
    counts = Counter(row["task"] for row in rows)
    rows = [row for row in rows if counts[row["task"]] > 1]
    tasks, many = tasks_of(rows), {row["task"] for row in rows if row["nfe"] not in CALLS}
    near = [row for row in rows if row["nfe"] in CALLS or row["task"] not in many]
    far = [row for row in rows if row["task"] in many]
    views = [near, far] if far and any(row["task"] in many for row in near) else [rows]
    labels = list(dict.fromkeys(row["sampler"] for row in rows))
    columns = min(5, max(2, 2 * len(tasks) - 1))
    colours = hues(rows)
    lines = -(-(len(labels) + len(colours)) // columns)
    figure, axes = canvas(len(tasks), 4.2, 3.1 + 0.2 * lines / len(views), rows=len(views))
    handles: dict[str, Any] = {}
    for i, view in enumerate(views):
        drawn = {axis: [row for row in view if row["task"] == task] for axis, task in zip(axes[i], tasks, strict=True)}
        for axis in (axis for axis, mine in drawn.items() if not mine):
            axis.remove()
        drawn = {axis: mine for axis, mine in drawn.items() if mine}
        for axis, mine in drawn.items():
            handles |= scatter(axis, mine)
            axis.set_title(mine[0]["task"] + (", with many calls" if i else ""))
        next(iter(drawn)).set_ylabel("PSNR in dB (higher is better)")
        distance_axes(drawn)
    looks = {"ncols": columns, "fontsize": 8, "title": BARS, "title_fontsize": 8}
    key = {label: handles[label] for label in labels} | colours
    figure.legend(key.values(), key, loc="outside lower center", **looks)
    return finish(figure, path)


def hues(rows: Sequence[Row]) -> dict[str, Any]:
    """What the colours of a plane mean: a patch for each number of calls that is there."""
    from matplotlib.patches import Patch

    calls = {row["nfe"] for row in rows}
    some = {f"{n} call{'s' if n > 1 else ''}": Patch(color=colour) for n, colour in CALLS.items() if n in calls}
    return some | ({"more calls": Patch(color=MANY)} if calls - set(CALLS) else {})


def distance_axes(drawn: dict[Any, list[Row]]) -> None:
    """The axis of the Frechet distance of panels side by side, logarithmic in all where that is needed in one."""
    values = [[row["fid"] for row in rows] for rows in drawn.values()]
    log = all(min(v) > 0 for v in values) and any(max(v) > 4 * min(v) for v in values)
    for axis, rows in drawn.items():
        axis.set_xlabel(f"{NAMES[rows[0]['features']][0]} ({'logarithmic, ' if log else ''}lower is better)")
        if log:
            axis.set_xscale("log")
            plain_numbers(axis.xaxis)


def scatter(axis: Any, rows: Sequence[Row]) -> dict[str, Any]:
    """One task's points with their intervals; the marker of each label."""
    handles = {}
    for row in rows:
        own, colour = row["sampler"].startswith("MACS-D"), CALLS.get(row["nfe"], MANY)
        ends = {"xerr": half(row, "fid"), "yerr": half(row, "psnr")}
        axis.errorbar(row["fid"], row["psnr"], **ends, color=colour, fmt="none", elinewidth=0.8)
        (handles[row["sampler"]],) = axis.plot(
            row["fid"], row["psnr"], color=colour, marker=shape(row["sampler"]), markersize=11 if own else 7,
            markerfacecolor=colour if own else "none", linestyle="none",
        )  # fmt: skip
    axis.grid(alpha=0.3)
    return handles


def networks(rows: Sequence[Row], path: Path) -> Path:
    """The plane of all models together, samplers of up to two calls: a shape for each sampler, a colour for each model.

    Models have their colours by name, so that these are the same in all figures of the same models.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    tasks, models = tasks_of(rows), sorted({row["model"] for row in rows})
    figure, axes = canvas(len(tasks), 4.2, 3.6)
    handles: dict[str, Any] = {}
    for axis, task in zip(axes[0], tasks, strict=True):
        for row in (row for row in rows if row["task"] == task):
            own, colour = row["sampler"].startswith("MACS-D"), COLOURS[models.index(row["model"]) % len(COLOURS)]
            marker = "." if row["nfe"] == 1 else shape(row["sampler"])
            look: dict[str, Any] = {"marker": marker, "linestyle": "none", "markersize": 11 if own else 7}
            axis.plot(row["fid"], row["psnr"], color=colour, markerfacecolor=colour if own else "none", **look)
            if row["sampler"] not in handles:
                handles[row["sampler"]] = Line2D([], [], color="0.3", markerfacecolor="0.3" if own else "none", **look)
        axis.set_title(task)
        axis.grid(alpha=0.3)
    distance_axes({axis: [row for row in rows if row["task"] == task] for axis, task in zip(axes[0], tasks, strict=True)})
    axes[0, 0].set_ylabel("PSNR in dB (higher is better)")
    known = {model: Patch(color=COLOURS[i % len(COLOURS)]) for i, model in enumerate(models)} | handles
    figure.legend(known.values(), known, loc="outside lower center", ncols=min(len(known), 6), fontsize=8)
    return finish(figure, path)


def plain_numbers(scale: Any) -> None:
    """The numbers 1, 2, 5, 10, ... along a logarithmic scale, written out; fewer on a long one, more on a short one."""
    from matplotlib.ticker import LogLocator, NullLocator

    first, last = scale.get_view_interval()
    decades = math.log10(last / first)
    scale.set_major_locator(LogLocator(subs=(1,) if decades > 3.4 else (1, 2, 5) if decades > 1 else (1, 1.5, 2, 3, 4, 6, 8)))
    scale.set_minor_locator(NullLocator())
    scale.set_major_formatter(lambda value, _: f"{value:g}")


def half(row: Row, metric: str) -> float:
    """Half of the interval."""
    return (row[f"{metric}_hi"] - row[f"{metric}_lo"]) / 2


#: The samplers that are drawn at several numbers of calls.
FAMILIES = ("Multistep", "DDIM", "MACS", "MACS-D")


def curved(rows: Sequence[Row]) -> list[str]:
    """The tasks of which some family has more than one number of calls, so that there is a curve to draw."""
    calls: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        for family in (family for family in FAMILIES if member(row["sampler"], family)):
            calls.setdefault((row["task"], family), set()).add(row["nfe"])
    return [task for task in tasks_of(rows) if any(len(calls.get((task, family), ())) > 1 for family in FAMILIES)]


def residue(rows: Sequence[Row], noise: dict[str, float], path: Path) -> Path:
    """The paper's residue curves: the misfit of the result against the number of calls, for each family of samplers.

    ``noise`` is the misfit of the true image for each task, below which a sampler fits the noise; it is the unit, so that the
    tasks share an axis and none of them looks larger than it is.
    """
    tasks = list(noise)
    ticks = sorted({row["nfe"] for row in rows if any(member(row["sampler"], family) for family in FAMILIES)})
    figure, axes = canvas(len(tasks))
    handles: dict[str, Any] = {}
    for axis, task in zip(axes[0], tasks, strict=True):
        axis.sharey(axes[0, 0])
        for i, family in enumerate(FAMILIES):
            mine = [row for row in rows if row["task"] == task and member(row["sampler"], family)]
            points = sorted((row["nfe"], row["residue"] / noise[task]) for row in mine)
            if points:
                calls, values = zip(*points, strict=True)
                style = {"marker": MARKERS[i], "color": COLOURS[i], "linestyle": STYLES[i], "fillstyle": "none"}
                (handles[family],) = axis.plot(calls, values, **style)
        handles["the noise alone"] = axis.axhline(1, color="0.4", linestyle="--", zorder=0)
        title = f"{task} (noise: {noise[task]:.3f})"
        axis.set(title=title, xlabel="network calls", xticks=ticks, xlim=(ticks[0] - 0.3, ticks[-1] + 0.3))
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel(r"$\|y - A\hat x\| / \|y\|$, that of the noise = 1")
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(handles), fontsize=8)
    return finish(figure, path)


def member(label: str, family: str) -> bool:
    """Whether a row belongs to a family; one step is the first point of each."""
    return label in ("one step", family, f"{family}, 3 calls", f"{family}, 4 calls")


def sweep(rows: Sequence[Row], place: Callable[[Row], tuple[str, float]], name: str, what: str, path: Path) -> Path:
    """PSNR and the Frechet distance of each task against a parameter; ``place`` gives a row's line and place on it.

    ``what`` is written before the metrics, where they are differences.
    """
    metrics = {"psnr": f"{what}PSNR in dB", "fid": f"{what}{NAMES[rows[0]['features']][0]}"}
    tasks, lines = tasks_of(rows), list(dict.fromkeys(place(row)[0] for row in rows))
    ticks = sorted({place(row)[1] for row in rows})
    figure, axes = canvas(len(tasks), 3.6, 2.8, rows=len(metrics))
    for i, (metric, title) in enumerate(metrics.items()):
        for axis, task in zip(axes[i], tasks, strict=True):
            for k, line in enumerate(lines):
                mine = [r for r in rows if r["task"] == task and place(r)[0] == line]
                points = sorted((place(r)[1], r[metric], half(r, metric)) for r in mine)
                at, value, error = zip(*points, strict=True) if points else ((), (), ())
                style = {"marker": MARKERS[k], "color": COLOURS[k], "linestyle": STYLES[k]}
                axis.errorbar(at, value, yerr=error, label=line, capsize=2, **style)
            axis.set_xscale("log")
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_xticks([], minor=True)
            axis.grid(alpha=0.3)
        axes[i, 0].set_ylabel(title)
    for k, task in enumerate(tasks):
        axes[0, k].set_title(task)
        axes[-1, k].set_xlabel(name)
    if not what:
        figure.suptitle(BARS, fontsize=8)
    if len(lines) > 1:
        axes[0, -1].legend(fontsize=8)
    return finish(figure, path)


def front(points: Sequence[tuple[float, float]], more: bool) -> list[tuple[float, float]]:
    """The Pareto front: the points (cost, quality) to which none of the same cost or less is preferred, cheapest first.

    ``more`` says whether more quality is better, or less.
    """
    out: list[tuple[float, float]] = []
    for cost, quality in sorted(points, key=lambda point: (point[0], -point[1] if more else point[1])):
        if not out or (quality > out[-1][1] if more else quality < out[-1][1]):
            out.append((cost, quality))
    return out


def pareto(rows: Sequence[Row], kinds: dict[str, str], path: Path) -> Path:
    """Quality of all solvers on one task against calls and time, with the Pareto front; ``kinds`` gives the colours."""
    metrics = {"psnr": ("PSNR in dB", True), "fid": (NAMES[rows[0]["features"]][0], False)}
    costs = {"nfe": "network calls", "seconds_per_image": "seconds per image"}
    colours = {kind: COLOURS[i] for i, kind in enumerate(dict.fromkeys(kinds.values()))}
    restored = [row for row in rows if row["nfe"] > 0]
    figure, axes = canvas(len(costs), 4.6, 3.2, rows=len(metrics))
    for i, (metric, (title, more)) in enumerate(metrics.items()):
        for axis, (cost, name) in zip(axes[i], costs.items(), strict=True):
            best = front([(row[cost], row[metric]) for row in restored], more)
            end = (max(row[cost] for row in restored), best[-1][1])
            axis.step(*zip(*best, end, strict=True), where="post", color="0.6", linestyle="--", zorder=0, label="Pareto front")
            for k, row in enumerate(restored):
                axis.errorbar(
                    row[cost], row[metric], yerr=half(row, metric), color=colours[kinds[row["sampler"]]], capsize=2,
                    marker=MARKERS[k % len(MARKERS)], markersize=6, linestyle="none", label=row["sampler"],
                )  # fmt: skip
            for row in (r for r in rows if r["nfe"] == 0):
                axis.axhline(row[metric], color="0.4", linestyle=":", zorder=0, label=row["sampler"])
            axis.set(xscale="log", xlabel=name, ylabel=title, yscale="linear" if more else "log")
            for scale in (axis.xaxis,) if more else (axis.xaxis, axis.yaxis):
                plain_numbers(scale)
            axis.grid(alpha=0.3)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8)
    figure.suptitle(rows[0]["task"])
    return finish(figure, path)


def comparison(columns: dict[str, dict[str, Any]], path: Path) -> Path:
    """Images in a grid: a row for each image of each task, a column for truth, measurement and each sampler.

    ``columns`` maps a label to images, (K, C, H, W), grey or in colour, by task.
    """
    tasks = list(next(iter(columns.values())))
    each = len(next(iter(columns.values()))[tasks[0]])
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    rows = each * len(tasks)
    cell = 1.05 if next(iter(columns.values()))[tasks[0]].shape[1] == 1 else 1.5
    size = (cell * len(columns) + 0.3, cell * rows + 0.5)
    figure, axes = plt.subplots(rows, len(columns), figsize=size, dpi=150, squeeze=False, layout="constrained")
    for j, (label, images) in enumerate(columns.items()):
        for i, task in enumerate(tasks):
            for k in range(each):
                axis = axes[i * each + k, j]
                image = np.asarray(images[task][k]).transpose(1, 2, 0)
                axis.imshow(image, cmap="gray", vmin=0, vmax=1)
                axis.set(xticks=[], yticks=[])
                if j == 0 and k == 0:
                    axis.set_ylabel(task, fontsize=9)
        axes[0, j].set_title(label.replace(", ", ",\n"), fontsize=8)
    return finish(figure, path)
