"""A benchmark that is killed goes on, repeats itself, refuses a folder of something else, and calls no other distance FID."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import macs
from macs.benchmark.bench import Bench
from macs.benchmark.classifier import released
from macs.benchmark.clock import time_rows
from macs.benchmark.dataset import DATASETS
from macs.benchmark.features import Extractor, to_bytes
from macs.benchmark.figures import FAMILIES, curved, member, networks, plane, shape
from macs.benchmark.folder import chunks, read_rows, slug, write_rows
from macs.benchmark.join import join
from macs.benchmark.networks import Names, Networks, loaded
from macs.benchmark.paired import BASELINES, COMPARED, OUTSIDE, Difference, differences, rivals
from macs.benchmark.paper import NFE, TABLE_I, TABLE_II, TABLE_III
from macs.benchmark.perceptual import find_lpips
from macs.benchmark.report import minus, write_report
from macs.benchmark.run import METRICS, missing_jobs, restore_chunk, run
from macs.benchmark.sealed import read_npz, write_npz
from macs.benchmark.solvers import SAMPLERS, SOLVERS
from macs.benchmark.suite import ABLATION, GAMMAS, LEVELS, Entry, chosen
from macs.benchmark.tables import computed, glance, latex, tables
from macs.cli import app
from macs.cli.bench import listed
from macs.errors import ConfigError, DataError, MacsWarning
from macs.macs_d import MacsD
from macs.metrics import psnr, ssim
from macs.problem import Problem, to_sampler
from macs.steps import Multistep
from tests.lpips import random_weights


@pytest.fixture(scope="module")
def test_set():
    """A test set of ten images that come with the package, four times over with small changes."""
    x = macs.examples("fashion-mnist")
    images = to_bytes(torch.cat([x.roll(k, -1) for k in range(4)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("macs.benchmark.dataset.fashion_mnist", lambda split, root: images)
        patch.setattr("macs.benchmark.bench.AT_ONCE", 19 * 784)
        patch.delenv("MACS_LPIPS", raising=False)
        yield images


def a_bench(folder, labels=("Multistep", "DDIM", "MACS-D"), tasks=("inpainting",), suite="table", images=40, **options):
    entries = chosen(DATASETS["fashion-mnist"].suite(suite), labels)
    return Bench(folder, ("fashion-mnist",), tasks, entries, images=images, features="classifier", **options)


def without_times(rows):
    return [{key: value for key, value in row.items() if key != "seconds_per_image"} for row in rows]


@pytest.fixture(scope="module")
def once(test_set, tmp_path_factory):
    """A finished run, which nobody writes to."""
    bench = a_bench(tmp_path_factory.mktemp("once") / "bench")
    run(bench, lambda row: None)
    return bench


@pytest.fixture
def finished(once, tmp_path):
    """A finished run of one's own."""
    shutil.copytree(once.out, tmp_path / "bench")
    return a_bench(tmp_path / "bench")


def test_rows_say_what_they_are(finished, test_set):
    rows = read_rows(finished.rows_path)
    assert [row["sampler"] for row in rows] == ["MACS-D", "Multistep", "DDIM"]
    assert rows[1]["settings"] == "Multistep(data=None), steps=2"
    for row in rows:
        assert row["nfe"] == 2
        assert row["images"] == 40
        assert row["features"] == "classifier"
        assert row["levels"][0] == 80
        assert row["software"] == {"macs": macs.__version__, "torch": torch.__version__}, "no Inception was run"
        assert "lpips" not in row, "no weights were given"
        assert all(row[f"{m}_lo"] <= row[m] <= row[f"{m}_hi"] for m in METRICS if m != "lpips")


def restored_images(bench, label):
    parts = sorted((bench.cache / "restored").glob(f"fashion-mnist--inpainting--{label}--*/*.npz"))
    return torch.cat([torch.from_numpy(read_npz(p)["x"]) for p in parts])


def test_a_row_is_what_the_images_say(finished, test_set):
    """PSNR and SSIM once more from the restored images in the cache."""
    row, truth = read_rows(finished.rows_path)[1], test_set.float() / 255
    x = restored_images(finished, "Multistep")
    assert row["psnr"] == pytest.approx(psnr(x, truth).mean().item(), rel=1e-6)
    assert row["ssim"] == pytest.approx(ssim(x, truth).double().mean().item(), rel=1e-6)


def test_a_killed_run_goes_on_where_it_was(finished, test_set, tmp_path, monkeypatch):
    """Killed in the middle of a row: the finished row and the finished chunks are not computed again, and nothing differs."""
    bench = a_bench(tmp_path / "other")
    calls = 0

    def until_killed(*args):
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return restore_chunk(*args)

    monkeypatch.setattr("macs.benchmark.run.restore_chunk", until_killed)
    with pytest.raises(KeyboardInterrupt):
        run(bench, lambda row: None)
    assert [job[2] for job in missing_jobs(bench)] == ["Multistep", "DDIM"]
    run(bench, lambda row: None)
    assert calls == 6 + 7, "four chunks a row, 13 images and one; one of the second row was done"
    assert without_times(read_rows(bench.rows_path)) == without_times(read_rows(finished.rows_path))


def test_finished_rows_are_never_computed_again(finished, test_set, monkeypatch):
    before = finished.rows_path.read_bytes()
    monkeypatch.setattr("macs.benchmark.run.restore_chunk", None)
    run(finished, lambda row: None)
    assert finished.rows_path.read_bytes() == before


def test_a_torn_last_line_is_no_row(finished):
    whole = finished.rows_path.read_bytes()
    finished.rows_path.write_bytes(whole + b'{"model": "fashion-mn')
    assert len(read_rows(finished.rows_path)) == 3
    finished.rows_path.write_bytes(b"{]\n" + whole)
    for line in (b"{]", b"[1]", b"{}"):
        finished.rows_path.write_bytes(line + b"\n" + whole)
        with pytest.raises(DataError, match="is damaged"):
            read_rows(finished.rows_path)


def contents(folder):
    """Every file but the lock, which is empty."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize("act", [lambda bench: run(bench, lambda row: None), write_report], ids=["run", "report"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"images": 20}, "holds rows of images 40, not 20; give what its run was given, or use another --out"),
        ({"seed": 1}, "holds rows of seed 0, not 1"),
        ({"cosign_compat": True}, "holds rows of cosign_compat False, not True"),
    ],
    ids=str,
)
def test_a_folder_of_another_configuration(finished, change, sentence, act):
    before = contents(finished.out)
    with pytest.raises(ConfigError, match=sentence):
        act(a_bench(finished.out, **change))
    assert contents(finished.out) == before


def test_a_report_of_other_images(finished, test_set, monkeypatch):
    monkeypatch.setattr("macs.benchmark.dataset.fashion_mnist", lambda split, root: test_set.flip(0))
    before = contents(finished.out)
    with pytest.raises(ConfigError, match="holds rows of data"):
        write_report(a_bench(finished.out))
    assert contents(finished.out) == before


def test_a_report_does_not_ask_how_rows_were_computed(finished):
    path = finished.out / "bench.json"
    path.write_text(path.read_text().replace('"compiled": false', '"compiled": true'))
    write_report(finished)


@pytest.mark.parametrize("name", ["fashion-mnist", "classifier of the distances"])
def test_a_folder_of_other_weights(finished, name, test_set):
    path = finished.out / "bench.json"
    path.write_text(path.read_text().replace(f'"{name}": "', f'"{name}": "0'))
    before = contents(finished.out)
    with pytest.raises(ConfigError, match=f"another file for the network {name}"):
        run(a_bench(finished.out, labels=("aDDIM",)), lambda row: None)
    assert contents(finished.out) == before


def test_a_folder_with_a_row_of_other_settings(finished):
    """A label that stands for something else now: the row that is there is neither kept nor overwritten."""
    before = contents(finished.out)
    bench = replace(finished, entries={"Multistep": Entry(Multistep(), (80.0, 1.0))})
    with pytest.raises(ConfigError, match=r"holds the row 'Multistep' of inpainting for .*steps=2, which is now .*80.0, 1.0"):
        run(bench, lambda row: None)
    assert contents(finished.out) == before


def test_chunks_of_other_settings_are_not_used(finished, tmp_path):
    """The row is gone, its chunks are not: another solver under its label does not take them."""
    rows = finished.rows_path.read_bytes().splitlines(keepends=True)
    finished.rows_path.write_bytes(b"".join(rows[:1]))
    other = {"Multistep": Entry(Multistep(), (80.0, 1.0))}
    run(replace(finished, entries=other), lambda row: None)
    fresh = replace(finished, out=tmp_path / "fresh", entries=other)
    run(fresh, lambda row: None)
    assert without_times(read_rows(finished.rows_path)[1:]) == without_times(read_rows(fresh.rows_path))


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[:100] + bytes([b[100] ^ 1]) + b[101:]])
def test_a_damaged_chunk_is_computed_again(finished, damage, monkeypatch):
    whole = without_times(read_rows(finished.rows_path))
    job = ("fashion-mnist", "inpainting", "DDIM")
    path = list(chunks(finished, job, finished.entries["DDIM"].settings("inpainting")).values())[1]
    path.write_bytes(damage(path.read_bytes()))
    assert read_npz(path) is None
    finished.rows_path.write_bytes(b"".join(finished.rows_path.read_bytes().splitlines(keepends=True)[:2]))
    restored = []
    monkeypatch.setattr("macs.benchmark.run.restore_chunk", lambda *args: restored.append(args[3]) or restore_chunk(*args))
    run(finished, lambda row: None)
    assert restored == [range(13, 26)]
    assert without_times(read_rows(finished.rows_path)) == whole


def test_every_flipped_byte_is_noticed(tmp_path):
    path = tmp_path / "x.npz"
    write_npz(path, {"x": torch.arange(5).numpy()})
    whole = path.read_bytes()
    assert read_npz(path)["x"].tolist() == [0, 1, 2, 3, 4]
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0x40]) + whole[i + 1 :])
        assert read_npz(path) is None, i


def test_time_is_that_of_untraced_warm_calls(test_set, tmp_path, monkeypatch):
    """Of four parts the first warms up and the last is smaller: the time is that of the two between."""
    calls = []

    def slow(solver, y, physics, ids, seed, traced):
        part = restore_chunk(solver, y, physics, ids, seed, traced)
        calls.append((ids, traced))
        return part if traced else part | {"seconds": np.array(float(len(calls)) if len(ids) == 13 else 1e6)}

    monkeypatch.setattr("macs.benchmark.run.restore_chunk", slow)
    bench = a_bench(tmp_path / "bench", labels=("DDIM",))
    run(bench, lambda row: None)
    assert calls == [(range(13), True), (range(13, 26), False), (range(26, 39), False), (range(39, 40), False)]
    assert read_rows(bench.rows_path)[0]["seconds_per_image"] == pytest.approx((2 + 3) / 2 / 13, abs=1e-6)


def test_a_row_of_which_nothing_was_timed_is_timed_once_more(finished, test_set, monkeypatch):
    """Each part was the first of a run that was killed."""
    job = ("fashion-mnist", "inpainting", "DDIM")
    for path in chunks(finished, job, finished.entries["DDIM"].settings("inpainting")).values():
        write_npz(path, {"nfe": np.array(2), "levels": np.ones(2), **{k: read_npz(path)[k] for k in ("x", "chi2", "residue")}})
    finished.rows_path.write_bytes(b"".join(finished.rows_path.read_bytes().splitlines(keepends=True)[:2]))
    run(finished, lambda row: None)
    assert 0 < read_rows(finished.rows_path)[2]["seconds_per_image"] < 10


def test_finished_rows_are_timed_again_in_turns(finished, test_set, monkeypatch):
    """After a warm-up each row has three turns between those of the others, and its time is the middle one."""
    turns = []

    def clocked(solver, y, physics, ids, seed, traced):
        turns.append((solver.sampler, ids, traced))
        return {"seconds": np.array(1e6 if len(turns) <= 3 else (1, 5, 3)[(len(turns) - 4) // 3] * len(ids))}

    monkeypatch.setattr("macs.benchmark.clock.restore_chunk", clocked)
    before, seen = read_rows(finished.rows_path), []
    time_rows(replace(finished, entries=chosen(finished.entries, ["DDIM"])), seen.append)
    after = read_rows(finished.rows_path)
    assert [row["seconds_per_image"] for row in after] == [3.0] * 3
    assert len({row["timed"] for row in after}) == 1
    assert seen == after
    assert [{**row, "seconds_per_image": 0, "timed": 0} for row in before] == [
        {**row, "seconds_per_image": 0, "timed": 0} for row in after
    ]
    assert turns == 4 * [(finished.entries[row["sampler"]].sampler, range(13), False) for row in before]


def test_a_report_says_which_times_may_be_compared(finished, test_set):
    write_report(finished)
    assert "compare those of rows that were computed together" in (finished.out / "report.md").read_text()
    time_rows(finished, lambda row: None)
    write_report(finished)
    report = (finished.out / "report.md").read_text()
    assert "in turns, and may be compared among these." in report
    assert not re.search(r"\d\* \|", report)
    rows = read_rows(finished.rows_path)
    write_rows(finished.rows_path, [{k: v for k, v in rows[0].items() if k != "timed"}, *rows[1:]])
    write_report(finished)
    report = (finished.out / "report.md").read_text()
    assert "but for those with a star, taken at another time" in report
    assert re.findall(r"^\| (.*?) \|.*\d\* \|$", report, re.MULTILINE) == [rows[0]["sampler"]]
    assert len(re.findall(r"<td>[\d.]+\*</td>", (finished.out / "report.html").read_text())) == 1
    assert all(0 < row["seconds_per_image"] < 10 for row in read_rows(finished.rows_path))


def test_a_killed_pass_of_times_keeps_the_tasks_that_it_finished(finished, monkeypatch):
    rows = read_rows(finished.rows_path)
    write_rows(finished.rows_path, [*rows, *({**row, "task": "deblurring"} for row in rows)])
    monkeypatch.setattr("macs.benchmark.clock.check_settings", lambda bench: None)

    def until_killed(bench, model, task, rows):
        if task == "deblurring":
            raise KeyboardInterrupt
        return [3.0] * len(rows)

    monkeypatch.setattr("macs.benchmark.clock.in_turns", until_killed)
    with pytest.raises(KeyboardInterrupt):
        time_rows(finished, lambda row: None)
    assert [row["seconds_per_image"] == 3.0 for row in read_rows(finished.rows_path)] == [True] * 3 + [False] * 3


def test_times_of_nothing_and_of_other_weights(finished, test_set, tmp_path):
    with pytest.raises(ConfigError, match="holds no finished row to time; run it without --time first"):
        time_rows(a_bench(tmp_path / "empty"), lambda row: None)
    told = json.loads((finished.out / "bench.json").read_text())
    told["networks"]["fashion-mnist"] = "0" * 64
    (finished.out / "bench.json").write_text(json.dumps(told))
    rows = finished.rows_path.read_bytes()
    with pytest.raises(ConfigError, match="holds rows of another file for the network fashion-mnist"):
        time_rows(finished, lambda row: None)
    assert finished.rows_path.read_bytes() == rows


def test_a_trace_is_not_needed_to_know_how_well_images_fit(test_set):
    """The numbers that a trace would give of the image that is returned."""
    bench = a_bench("unused")
    y, physics = bench.measured("inpainting").part(0, 5)
    solver = bench.entries["MACS-D"].solver(Networks(macs.load("fashion-mnist"), Names()), "inpainting")
    part = restore_chunk(solver, y, physics, range(5), 0, False)
    _, trace = solver(y, physics, ids=range(5), trace=True)
    torch.testing.assert_close(torch.from_numpy(part["chi2"]), trace.final_chi2, rtol=1e-4, atol=0)


def test_names_that_look_alike_have_places_of_their_own():
    assert slug("fashion-mnist", "DDIM") == "fashion-mnist--DDIM"
    assert len({slug(name) for name in ("runs/m_1", "runs/m-1", "runs-m-1", "runs m 1")}) == 4


def test_a_limited_run_is_extended_in_its_folder(finished, test_set, tmp_path):
    """Another sampler, then another task: what was there stays, the report is of all in the suite's order."""
    before = finished.rows_path.read_bytes()
    run(a_bench(finished.out, labels=("one step", "aDDIM", "MACS-D"), tasks=("deblurring", "inpainting")), lambda row: None)
    assert finished.rows_path.read_bytes().startswith(before)
    rows = [(row["task"], row["sampler"]) for row in read_rows(finished.rows_path)[3:]]
    assert rows == [
        ("deblurring", "MACS-D"), ("deblurring", "aDDIM"), ("deblurring", "one step"), ("inpainting", "aDDIM"),
        ("inpainting", "one step"),
    ]  # fmt: skip
    write_report(a_bench(finished.out, labels=("DDIM",)))
    text = (finished.out / "report.md").read_text().split("## fashion-mnist: inpainting")[1].split("Differences")[0]
    lines = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    assert lines[2:] == ["MACS-D", "Multistep", "DDIM", "aDDIM", "one step"]


def test_what_matters_is_run_first():
    """One and two calls of all tasks, then three and four, then the many."""
    tasks = ("super-resolution", "inpainting")
    jobs = a_bench("unused", labels=None, tasks=tasks).jobs()
    ours = ["MACS-D", "MACS-D, averaged", "MACS-D, coarse average"]
    few = [*ours, "Multistep", "DDIM", "MACS", "aDDIM", "Euler", "Euler, as published", "one step"]
    more = [f"{name}, {n} calls" for n in (3, 4) for name in (*ours, "Multistep", "DDIM", "MACS")]
    many = ["DPM-Solver", "Heun, 20 steps", "Heun"]
    assert jobs == [("fashion-mnist", task, label) for tier in (few, more, many) for task in tasks for label in tier]


LEVELLED = {"MACS-D, s 2.8", "Multistep, s 2.8", "Multistep, s 8"}
STUDIED = {"no noise", "Multistep, same grid", "MACS, gamma 15", *LEVELLED}
TWO = {"MACS-D", "Multistep", "DDIM", "MACS", "aDDIM", "Euler", "Euler, as published", *STUDIED}
CALLS = dict.fromkeys(TWO, 2) | {
    "measurement": 0,
    "one step": 1,
    "DDRM": 20,
    "DPS": 1000,
    "DPS, 100 calls": 100,
    "Heun": 79,
}


@pytest.mark.parametrize(
    ("label", "against"),
    [
        ("MACS-D", TWO - {"MACS-D", *STUDIED} | {"measurement", "one step", "DDRM", "DPS", "DPS, 100 calls"}),
        ("MACS", {"Multistep", "DDIM", "measurement", "one step", "DDRM", "DPS"}),
        ("Multistep", {"DDIM", "measurement", "one step", "DDRM", "DPS"}),
        ("one step", {"measurement", "DDRM", "DPS"}),
        ("no noise", {"MACS-D", "Multistep", "DDIM", "measurement", "one step", "DDRM", "DPS"}),
        ("Multistep, same grid", {"MACS-D", "Multistep", "DDIM", "measurement", "one step", "DDRM", "DPS"}),
        ("MACS-D, s 2.8", {"Multistep, s 2.8", "Multistep", "DDIM", "measurement", "one step", "DDRM", "DPS"}),
        ("Multistep, s 2.8", {"Multistep", "DDIM", "measurement", "one step", "DDRM", "DPS"}),
        ("Heun", set()),
        ("measurement", set()),
    ],
    ids=str,
)
def test_who_is_compared_with_whom(label, against):
    found = rivals(label, CALLS)
    assert set(found) == against
    assert len(found) == len(against)


def test_every_macs_d_of_the_table_meets_all_of_its_calls():
    calls = {label: entry.steps for label, entry in SAMPLERS.items()}
    for n, own in ((2, "MACS-D"), (3, "MACS-D, 3 calls"), (4, "MACS-D, 4 calls")):
        assert set(rivals(own, calls)) == {label for label in calls if calls[label] in (1, n)} - {own}


@pytest.mark.parametrize(
    ("metric", "lo", "value", "hi", "verdict"),
    [
        ("psnr", 0.1, 0.2, 0.3, "ahead"), ("fid", 0.1, 0.2, 0.3, "behind"), ("kid", -0.1, 0.2, 0.3, "open"),
        ("psnr", -4e-4, -3e-4, -2e-4, "same"), ("psnr", -6e-4, -3e-4, -2e-4, "behind"),
    ],
)  # fmt: skip
def test_what_a_difference_says(metric, lo, value, hi, verdict):
    assert Difference("m", "inpainting", "MACS-D", "DDIM", metric, value, lo, hi).verdict == verdict


def test_pairs_are_compared_image_by_image(finished):
    rows = read_rows(finished.rows_path)
    found = {(d.sampler, d.against, d.metric): d for d in differences(finished, rows)}
    by = {row["sampler"]: row for row in rows}
    d = found["MACS-D", "Multistep", "psnr"]
    assert d.value == pytest.approx(by["MACS-D"]["psnr"] - by["Multistep"]["psnr"])
    assert d.hi - d.lo < by["MACS-D"]["psnr_hi"] - by["MACS-D"]["psnr_lo"], "pairs are sharper than two intervals"
    assert ("Multistep", "Multistep", "psnr") not in found


def test_differences_that_no_longer_fit_their_rows_are_left_out(finished):
    """Those of rows whose contributions are gone are kept, until a row changes or goes."""
    write_report(finished)
    whole = read_rows(finished.paired_path)
    shutil.rmtree(finished.out / "images")
    write_report(finished)
    assert read_rows(finished.paired_path) == whole
    rows = read_rows(finished.rows_path)
    write_rows(finished.rows_path, [rows[0] | {"psnr": rows[0]["psnr"] - 5}, rows[1]])
    write_report(finished)
    kept = [
        line for line in whole if {line["sampler"], line["against"]} == {"MACS-D", "Multistep"} and line["metric"] != "psnr"
    ]
    assert read_rows(finished.paired_path) == kept
    write_rows(finished.paired_path, [kept[0] | {"more": 1}])
    with pytest.raises(DataError, match="paired.jsonl is damaged"):
        write_report(finished)


def test_a_report_says_what_software_its_rows_name(finished):
    rows = read_rows(finished.rows_path)
    assert computed(rows) == f"Computed with macs {macs.__version__}, torch {torch.__version__}."
    rows = [rows[0], rows[1] | {"software": {"macs": "9.9"}}, {k: v for k, v in rows[2].items() if k != "software"}]
    assert computed(rows).endswith("; macs 9.9; older rows do not say.")
    assert computed(rows[2:]) == "The rows do not say what software they were computed with."


def test_a_report_of_nothing_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="holds no finished row to report of; run it without --report first"):
        write_report(a_bench(tmp_path))


def test_the_report(finished):
    page = write_report(finished)
    text = (finished.out / "report.md").read_text()
    assert "FD-FMNIST" in text
    assert "FID" not in text, "a distance on a classifier's features is not FID"
    html = page.read_text()
    assert "data:image/png;base64," in html
    assert "http" not in html
    assert "Differences on the same images" in html
    line = next(line for line in text.splitlines() if line.startswith("| MACS-D | Multistep |"))
    cell = line.split("|")[3].strip()
    assert f"<td>MACS-D</td><td>Multistep</td><td>{cell}</td>" in html
    assert r"\begin{tabular}" in (finished.out / "table-II-fashion-mnist.tex").read_text()
    lines = [json.loads(line) for line in (finished.out / "paired.jsonl").read_text().splitlines()]
    assert {line["verdict"] for line in lines} <= {"ahead", "behind", "open", "same"}
    for name in ("plane", "comparison"):
        assert (finished.out / f"{name}-fashion-mnist.png").stat().st_size > 10_000
    residue = finished.out / "residue-fashion-mnist.png"
    assert not residue.exists(), "rows of two calls alone are no curve"
    rows = read_rows(finished.rows_path)
    write_rows(finished.rows_path, [*rows, rows[0] | {"sampler": "MACS-D, 3 calls", "nfe": 3}])
    write_report(finished)
    assert residue.stat().st_size > 10_000


def a_row(label, task="inpainting", nfe=2, psnr_=20.0, fid=10.0):
    values = {"psnr": psnr_, "ssim": 0.8, "fid": fid, "kid": 1.0, "chi2": 1.0, "residue": 0.1}
    ends = {f"{m}_{end}": value + by for m, value in values.items() for end, by in (("lo", -0.1), ("hi", 0.1))}
    return {
        "model": "fashion-mnist", "task": task, "sampler": label, "nfe": nfe, "levels": [80.0, 4.4], "images": 40, "seed": 0,
        "features": "classifier", "seconds_per_image": 0.01, **values, **ends,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("images", "numbers"), [(10_000, ["18.97", "0.557", "19.85", "12.1"]), (500, ["18.97", "0.557", "", ""])]
)
def test_the_papers_distances_stand_beside_those_of_as_many_images(images, numbers):
    rows = [a_row(label, "super-resolution") | {"images": images, "features": "inception"} for label in ("MACS", "Euler")]
    [samplers] = tables(rows, [TABLE_II], [])
    assert next(line for line in samplers.body if line[0] == "*paper: MACS*")[3:7] == numbers
    page = latex(rows, TABLE_II, True)
    assert page.startswith(f"% fashion-mnist, {images} test images, seed 0, inception features\n")
    italics = " & ".join(rf"\textit{{{number}}}" if number else "--" for number in numbers)
    assert rf"\textit{{MACS, paper}} & \textit{{2}} & {italics} & " in page
    assert "Euler, paper" not in page, "the paper's Euler stands under the row that makes its calls"


def test_the_ablation_is_on_the_grid_of_its_images():
    """MACS-D's own grid ends higher on larger images, and its rivals on the same grid must too."""
    for name, side in {"fashion-mnist": 28, "lsun-bedroom": 64}.items():
        suite = DATASETS[name].suite("ablation")
        assert suite["Multistep, same grid"].grid == MacsD().levels(2, 80.0, 0.002, side)


def test_only_curves_are_drawn_as_residue():
    rows = [
        a_row("one step", nfe=1),
        a_row("MACS-D"),
        a_row("Multistep", "deblurring"),
        a_row("DDIM, 3 calls", "deblurring", 3),
    ]
    assert curved(rows) == ["inpainting"]


def test_the_noise_alone_is_the_residue_of_the_true_images(finished, test_set):
    measured = finished.measured("inpainting")
    y, physics = measured.part(0, len(test_set))
    truth = Problem(y, physics).residual(to_sampler(measured.x)) / 4 / y.flatten(1).square().sum(1)
    assert measured.noise_share() == pytest.approx(truth.sqrt().mean().item(), rel=0.02)


def test_a_sweep_of_gamma_is_drawn_as_differences():
    """A row without a difference has no place in a figure of differences."""
    rows = [a_row("MACS"), a_row("MACS, gamma 15"), a_row("MACS, gamma 150")]
    found = [
        Difference("fashion-mnist", "inpainting", "MACS", "DDIM", m, v, v - 1, v + 2) for m, v in (("psnr", 3.0), ("fid", -4.0))
    ]
    found += [Difference("fashion-mnist", "inpainting", "MACS, gamma 15", "DDIM", "psnr", 1.0, 0.0, 2.0)]
    [only] = minus(rows, "DDIM", found)
    assert {key: only[key] for key in ("sampler", "psnr", "psnr_lo", "psnr_hi", "fid", "fid_lo", "fid_hi")} == {
        "sampler": "MACS", "psnr": 3.0, "psnr_lo": 2.0, "psnr_hi": 5.0, "fid": -4.0, "fid_lo": -5.0, "fid_hi": -2.0,
    }  # fmt: skip
    assert minus(rows, None, found) == rows


def test_models_share_a_plane(tmp_path):
    rows = [a_row(label) | {"model": model} for model in ("one", "other") for label in ("MACS-D", "Multistep")]
    rows.append(a_row("one step", nfe=1) | {"model": "one"})
    assert networks(rows, tmp_path / "plane.png").stat().st_size > 10_000


def test_models_keep_their_colours(tmp_path, monkeypatch):
    """Whatever the order in which rows were computed."""
    drawn = []
    monkeypatch.setattr("macs.benchmark.figures.finish", lambda figure, path: drawn.append(figure))
    rows = [a_row("MACS-D", fid=10.0 + i) | {"model": model} for i, model in enumerate(("one", "other"))]
    for some in (rows, rows[::-1]):
        networks(some, tmp_path / "plane.png")
    colours = [{point.get_xdata()[0]: point.get_color() for point in figure.axes[0].lines} for figure in drawn]
    assert colours[0] == colours[1]
    assert len(set(colours[0].values())) == 2


def test_samplers_of_many_calls_do_not_hide_the_others(tmp_path, monkeypatch):
    """Above are the samplers of few calls; below, for the tasks that have others, all of them."""
    drawn = []
    monkeypatch.setattr("macs.benchmark.figures.finish", lambda figure, path: drawn.append(figure))
    few = [
        a_row(label, task, fid=10.0 + i) for task in ("inpainting", "deblurring") for i, label in enumerate(("MACS-D", "DDIM"))
    ]
    plane([*few, a_row("Heun", "inpainting", nfe=79, fid=60.0)], tmp_path / "plane.png")
    panels = {
        axis.get_title(): (
            sorted(point.get_xdata()[0] for point in axis.lines if point.get_marker() != "None"),
            axis.get_xscale(),
        )
        for axis in drawn[0].axes
    }
    assert panels == {
        "inpainting": ([10.0, 11.0], "linear"), "deblurring": ([10.0, 11.0], "linear"),
        "inpainting, with many calls": ([10.0, 11.0, 60.0], "log"),
    }  # fmt: skip


def test_studies_do_not_crowd_the_table():
    """All suites in one folder: the table lists its rows; the ablation, the sweeps and the pairs are tables of their own."""
    rows = [a_row(label) for label in dict.fromkeys([*SAMPLERS, *ABLATION, *GAMMAS, *LEVELS])]
    pairs = [("MACS-D", "DDIM"), ("MACS", "DDIM"), ("DDIM", "Multistep"), ("MACS, gamma 15", "DDIM"), ("no noise", "DDIM")]
    pairs += [("no noise", "MACS-D")]
    found = [Difference("fashion-mnist", "inpainting", *pair, m, -1.0, -2.0, -0.5) for pair in pairs for m in ("psnr", "fid")]
    made = {one.caption: one for one in tables(rows, [], found)}
    firsts = {caption: [line[0] for line in one.body] for caption, one in made.items()}
    assert firsts["Samplers"] == list(SAMPLERS)
    assert firsts["What each part of MACS-D does"] == list(ABLATION)[1:]
    assert firsts["Sweeps"] == [*GAMMAS, *LEVELS]
    same = made["Differences on the same images"]
    assert same.heads == ["sampler", "against", "PSNR", "FD-FMNIST"]
    assert same.body[0] == ["MACS-D", "DDIM", "-1.000 (-2.000 to -0.500) behind", "-1.000 (-2.000 to -0.500) ahead"]
    assert [line[:2] for line in same.body] == [["MACS-D", "DDIM"], ["MACS", "DDIM"]]
    assert [line[:2] for line in made["The variants' differences from MACS-D on the same images"].body] == [
        ["no noise", "MACS-D"]
    ]


def test_a_glance_has_a_word_for_each_metric():
    """Multistep's word and DDIM's where they differ, a dash for a pair that is not known; rows without a pair are left out."""
    rows = [a_row(label) for label in ("MACS-D", "Multistep", "DDIM", "MACS")]
    rows += [a_row("MACS-D, 3 calls", nfe=3), a_row("DPM-Solver", nfe=8)]
    better = [("Multistep", "psnr", 1.0), ("DDIM", "psnr", 1.0), ("Multistep", "ssim", 1.0), ("DDIM", "ssim", -1.0)]
    found = [
        Difference("fashion-mnist", "inpainting", "MACS-D", rival, metric, v, v - 0.5, v + 0.5)
        for rival, metric, v in [*better, ("DDIM", "fid", -1.0)]
    ]
    (one,) = glance(rows, found)
    assert one.heads == ["model", "task", "sampler", "PSNR", "SSIM", "FD-FMNIST", "KD-FMNIST x 10^3"]
    assert one.body == [["fashion-mnist", "inpainting", "MACS-D", "ahead", "ahead / behind", "- / ahead", "-"]]
    assert glance(rows, []) == []


def test_every_row_of_the_plane_looks_different():
    looks = {(shape(label), entry.steps) for label, entry in SAMPLERS.items()}
    assert len(looks) == len(SAMPLERS)


def test_every_residue_curve_has_one_point_for_each_number_of_calls():
    for family in FAMILIES:
        assert sorted(entry.steps for label, entry in SAMPLERS.items() if member(label, family)) == [1, 2, 3, 4]


def test_differences_and_pictures_outlive_the_cache(finished):
    """The few images of the picture are restored again, as no image depends on those beside it."""
    write_report(finished)
    kept = [finished.out / name for name in ("paired.jsonl", "report.md", "comparison-fashion-mnist.png")]
    before = [path.read_bytes() for path in kept]
    shutil.rmtree(finished.cache)
    kept[-1].unlink()
    write_report(finished)
    assert [path.read_bytes() for path in kept] == before


@pytest.mark.parametrize("gone", ["weights", "settings"])
def test_a_picture_is_not_drawn_by_another_solver(finished, gone):
    """The row came from other weights, or its label stands for something else now: what was drawn then is kept."""
    write_report(finished)
    shutil.rmtree(finished.cache)
    path, key, value = {
        "weights": (finished.out / "bench.json", '"fashion-mnist": "', '"fashion-mnist": "0'),
        "settings": (finished.rows_path, "Multistep(data=None), steps=2", "Multistep(data=None), steps=5"),
    }[gone]
    path.write_text(path.read_text().replace(key, value))
    picture = finished.out / "comparison-fashion-mnist.png"
    picture.write_bytes(b"as it was")
    write_report(finished)
    assert picture.read_bytes() == b"as it was"


def test_rows_are_compared_in_pairs_without_the_cache(finished):
    """What images contributed is beside the rows, so rows that come later have their pairs with those that were there."""
    write_report(finished)
    want = finished.paired_path.read_bytes()
    for gone in (finished.cache, finished.paired_path):
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    write_report(finished)
    assert finished.paired_path.read_bytes() == want
    one = next((finished.out / "images").glob("*MACS-D*"))
    kept = read_npz(one)
    assert set(kept) <= set(COMPARED)
    assert {array.dtype.name for array in kept.values()} == {"float32"}


def test_folders_join_to_what_one_run_makes(finished, tmp_path):
    """Two runs with half of the rows each, joined, are the run of all rows: its rows, differences and pictures."""
    write_report(finished)
    for name, labels in {"one": ("MACS-D", "DDIM"), "two": ("Multistep", "DDIM")}.items():
        run(a_bench(tmp_path / name, labels=labels), lambda row: None)
    bench = a_bench(tmp_path / "one")
    assert join(bench, tmp_path / "two") == 1, "DDIM is there already"
    assert join(bench, tmp_path / "two") == 0
    write_report(bench)
    by_label = {row["sampler"]: row for row in without_times(read_rows(bench.rows_path))}
    assert by_label == {row["sampler"]: row for row in without_times(read_rows(finished.rows_path))}
    lines = [{json.dumps(line) for line in read_rows(folder.paired_path)} for folder in (bench, finished)]
    assert lines[0] == lines[1]
    for name in ("bench.json", "comparison-fashion-mnist.png"):
        assert (bench.out / name).read_bytes() == (finished.out / name).read_bytes()


def test_differences_are_joined_without_the_images(finished, tmp_path):
    write_report(finished)
    shutil.rmtree(finished.cache)
    shutil.rmtree(finished.out / "images")
    bench = a_bench(tmp_path / "new")
    assert join(bench, finished.out) == 3
    write_report(bench)
    assert bench.paired_path.read_bytes() == finished.paired_path.read_bytes()


def test_a_lost_cache_is_joined_back(finished, tmp_path):
    """The rows are here, the cache is not: with that of a run somewhere else, pairs and pictures are what they were."""
    again = a_bench(tmp_path / "again")
    shutil.copytree(finished.out, again.out)
    shutil.rmtree(finished.cache)
    assert join(finished, again.out) == 0
    for bench in (finished, again):
        write_report(bench)
    for name in ("paired.jsonl", "report.md", "comparison-fashion-mnist.png"):
        assert (finished.out / name).read_bytes() == (again.out / name).read_bytes()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({"seed": 1}, "holds rows of seed 0, not 1"), ({"compiled": True}, "holds rows of compiled False, not True")],
    ids=str,
)
def test_a_folder_of_something_else_is_not_joined(finished, tmp_path, changed, reason):
    bench = a_bench(tmp_path / "new", **changed)
    with pytest.raises(ConfigError, match=reason):
        join(bench, finished.out)
    assert not bench.rows_path.exists()
    assert not (bench.out / "bench.json").exists()


def test_rows_of_other_networks_are_not_joined(finished, tmp_path):
    shutil.copytree(finished.out, tmp_path / "other")
    record = json.loads((tmp_path / "other" / "bench.json").read_text())
    record["networks"]["fashion-mnist"] = "0" * 64
    (tmp_path / "other" / "bench.json").write_text(json.dumps(record))
    before = finished.rows_path.read_bytes()
    with pytest.raises(ConfigError, match="rows of another file for the network fashion-mnist"):
        join(finished, tmp_path / "other")
    assert finished.rows_path.read_bytes() == before


def test_an_empty_folder_is_not_joined(finished, tmp_path):
    options = ["--features", "classifier", "--images", "40", "--out", str(finished.out), "--join", str(tmp_path / "none")]
    result = CliRunner().invoke(app, ["bench", "fashion-mnist", *options])
    assert result.exit_code == 2
    assert "none holds no finished row to take over" in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.fixture
def weights(tmp_path):
    save_file(random_weights(), tmp_path / "lpips.safetensors")
    return str(tmp_path / "lpips.safetensors")


def test_lpips_is_added_to_finished_rows(finished, test_set, weights, monkeypatch):
    """No network of a sampler runs again, nothing else changes, and the numbers are those of the images in the cache."""
    before = read_rows(finished.rows_path)
    monkeypatch.setattr("macs.benchmark.run.restore_chunk", None)
    told = []
    run(a_bench(finished.out, lpips=weights), told.append)
    rows = read_rows(finished.rows_path)
    assert told == rows
    for old, row in zip(before, rows, strict=True):
        each = find_lpips(weights)(restored_images(finished, row["sampler"]), test_set.float() / 255)
        assert row["lpips"] == pytest.approx(each.double().mean().item(), rel=1e-9)
        assert row["lpips_lo"] < row["lpips"] < row["lpips_hi"]
        assert {k: v for k, v in row.items() if not k.startswith("lpips")} == old
    run(a_bench(finished.out, lpips=weights), lambda row: pytest.fail("it was there"))


def test_lpips_of_new_rows_is_that_of_rows_completed_later(finished, weights, tmp_path):
    new = a_bench(tmp_path / "new", labels=("DDIM",), lpips=weights)
    run(new, lambda row: None)
    run(a_bench(finished.out, lpips=weights), lambda row: None)
    assert without_times(read_rows(new.rows_path)) == without_times(read_rows(finished.rows_path)[2:])


def test_lpips_of_two_files_is_not_mixed(finished, weights, tmp_path):
    run(a_bench(finished.out, lpips=weights), lambda row: None)
    save_file({name: 2 * t for name, t in random_weights().items()}, tmp_path / "other.safetensors")
    before = contents(finished.out)
    with pytest.raises(ConfigError, match="another file for the network LPIPS"):
        run(a_bench(finished.out, labels=("aDDIM",), lpips=str(tmp_path / "other.safetensors")), lambda row: None)
    assert contents(finished.out) == before


def test_rows_whose_images_are_gone_stay_without_lpips(finished, weights):
    next((finished.cache / "restored").glob("fashion-mnist--inpainting--DDIM--*/*.npz")).unlink()
    with pytest.warns(MacsWarning, match=r"1 rows stay without LPIPS \(DDIM\).*another --out"):
        run(a_bench(finished.out, lpips=weights), lambda row: None)
    assert ["lpips" in row for row in read_rows(finished.rows_path)] == [True, True, False]
    write_report(finished)
    text = (finished.out / "report.md").read_text()
    assert "LPIPS is version 0.1 on AlexNet" in text
    line = next(line for line in text.splitlines() if line.startswith("| DDIM |"))
    assert line.count("|") == next(line for line in text.splitlines() if "ms/image" in line).count("|")
    found = {(d.sampler, d.against, d.metric): d for d in differences(finished, read_rows(finished.rows_path))}
    d = found["MACS-D", "Multistep", "lpips"]
    assert d.verdict == ("open" if d.lo <= 0 <= d.hi else "ahead" if d.value < 0 else "behind"), "less is better"
    assert ("MACS-D", "DDIM", "lpips") not in found


def test_features_are_cached_by_content(tmp_path):
    """An image that was seen in another set is not run again, whatever its place."""
    x = macs.examples("fashion-mnist")
    features = Extractor("classifier", tmp_path)(x)
    again = Extractor("classifier", tmp_path)
    again.network = lambda images: pytest.fail("the network ran")
    assert torch.equal(again(x.flip(0)), features.flip(0))


@pytest.mark.parametrize("suffix", ["npy", "keys"])
@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:200] + bytes([b[200] ^ 1]) + b[201:]], ids=["cut", "flipped"]
)
def test_damaged_features_are_computed_again(suffix, damage, tmp_path):
    x = macs.examples("fashion-mnist").repeat(2, 1, 1, 1).roll(1, -1)
    x[10:] = x[10:].flip(-1)
    features = Extractor("classifier", tmp_path)(x)
    path = next(tmp_path.glob(f"classifier-*/*.{suffix}"))
    path.write_bytes(damage(path.read_bytes()))
    assert torch.equal(Extractor("classifier", tmp_path)(x), features)
    again = Extractor("classifier", tmp_path)
    again.network = lambda images: pytest.fail("the network ran")
    assert torch.equal(again(x), features)


def test_features_of_two_networks_are_not_mixed(tmp_path, monkeypatch):
    x, bundled = macs.examples("fashion-mnist"), released()
    features = Extractor("classifier", tmp_path)(x)
    torch.nn.init.zeros_(bundled.neck.weight)
    monkeypatch.setattr("macs.benchmark.features.released", lambda: bundled)
    assert not torch.equal(Extractor("classifier", tmp_path)(x), features)


def test_a_kill_loses_few_features(tmp_path, monkeypatch):
    monkeypatch.setattr("macs.benchmark.features.KEPT", 4)
    x = macs.examples("fashion-mnist")
    killed, seen = Extractor("classifier", tmp_path, batch=2), []

    def until_killed(images):
        seen.append(len(images))
        if len(seen) == 4:
            raise KeyboardInterrupt
        return images.float().mean((2, 3))

    killed.network = until_killed
    with pytest.raises(KeyboardInterrupt):
        killed(x)
    again, ran = Extractor("classifier", tmp_path), []
    again.network = lambda images: ran.append(len(images)) or images.float().mean((2, 3))
    assert torch.equal(again(x), to_bytes(x).float().mean((2, 3)))
    assert sum(ran) == 6, "four of ten were kept"


def test_all_networks_are_compiled(monkeypatch, tmp_path):
    """The model, the denoiser and DEFT's network, and none unless it is asked for."""

    class Network:
        def __init__(self, name):
            self.name, self.compiled = name, False

        def compile_network(self):
            self.compiled = True

    monkeypatch.setattr("macs.benchmark.networks.load", lambda name, control=None: Network(name))
    for compiled in (True, False):
        networks = loaded(Names(deft="deft"), "fashion-mnist", "inpainting", compiled)
        assert [part.compiled for part in (networks.model, networks.denoiser, networks.deft)] == [compiled] * 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["lsun"], "unknown dataset 'lsun'"),
        (["fashion-mnist", "--tasks", "deblur"], "unknown task 'deblur'"),
        (["fashion-mnist", "--samplers", "MACS-E"], "unknown sampler 'MACS-E'"),
        (["fashion-mnist", "--suite", "tables"], "unknown suite of Fashion-MNIST 'tables'"),
        (["fashion-mnist", "--features", "vgg"], "unknown kind of features 'vgg'"),
        (["fashion-mnist", "--model", "none"], "unknown model 'none'"),
        (["fashion-mnist", "--inception", "none.safetensors"], "none.safetensors cannot be read"),
        (["fashion-mnist", "--seed", str(2**63)], "seed must be at least 0 and below 2^63; got 9223372036854775808"),
        (["fashion-mnist", "--report", "--time"], "--report, --time and --join each say what alone to do"),
        (["fashion-mnist", "--lpips", "none.safetensors"], "none.safetensors is no readable file of LPIPS weights"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(options, sentence, test_set, tmp_path):
    result = CliRunner().invoke(app, ["bench", *options, "--images", "10", "--out", str(tmp_path / "bench")])
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "bench" / "rows.jsonl").exists()


def test_a_name_that_is_given_twice_counts_once():
    assert listed(" inpainting; deblurring;inpainting; ") == ["inpainting", "deblurring"]


@pytest.mark.parametrize("name", DATASETS)
def test_the_suite_holds_what_the_paper_compares(name):
    suite = DATASETS[name].suite("table")
    assert set(NFE) <= set(suite)
    assert {*OUTSIDE, *(label for labels in BASELINES.values() for label in labels)} <= {*suite, *SOLVERS}
    assert {task for table in DATASETS[name].tables for task in table.tasks} == set(DATASETS[name].tasks)


@pytest.mark.parametrize("name", DATASETS)
def test_a_label_is_the_same_solver_in_every_suite(name):
    """Suites share a folder, and a row that is there is not computed again."""
    about, networks = DATASETS[name], Networks(lambda x, y, t: x, Names())
    seen, twice = {}, set()
    for suite in about.suites.values():
        for label, entry in suite.items():
            if entry.uses == ("model",) and label != "measurement":
                made = [(entry.settings(task), entry.solver(networks, task).levels) for task in about.tasks]
                assert seen.setdefault(label, made) == made, label
                twice |= {label} if seen[label] is not made else set()
    assert "MACS-D" in twice


def test_the_papers_numbers():
    assert TABLE_I.published("Multistep", "deblurring") == (24.41, 0.700, 41.57, 8.61)
    assert TABLE_II.published("MACS", "super-resolution") == (18.97, 0.557, 19.85, 12.1)
    assert TABLE_III.published("Heun", "nonlinear-deblurring") == (22.47, 0.563, 56.05, 13.4)
    for table in (TABLE_I, TABLE_II, TABLE_III):
        assert set(table.methods) == set(NFE)
        assert set(table.gamma) == set(table.tasks)
        assert all(len(numbers) == len(table.tasks) for numbers in table.methods.values())


def test_the_second_level_is_swept(test_set, tmp_path):
    """Two calls at (80, s) each, by the sampler that the label names; the figure draws both samplers."""
    bench = a_bench(tmp_path / "bench", labels=("Multistep, s 0.8", "Multistep, s 8", "MACS-D, s 0.8"), suite="levels")
    run(bench, lambda row: None)
    rows = read_rows(bench.rows_path)
    assert [row["levels"] for row in rows] == [[80, 0.8], [80, 8], [80, 0.8]]
    assert [row["nfe"] for row in rows] == [2, 2, 2]
    assert [row["settings"].split("(")[0] for row in rows] == ["Multistep", "Multistep", "MacsD"]
    assert len({row["psnr"] for row in rows}) == 3
    write_report(bench)
    assert (bench.out / "level-fashion-mnist.png").stat().st_size > 10_000
    assert "level-fashion-mnist.png" in (bench.out / "report.md").read_text()
    assert not (bench.out / "gamma-fashion-mnist.png").exists()
